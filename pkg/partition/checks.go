package partition

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/monitoring"
	"github.com/droverproject/drover/pkg/wire"
)

// Limits of the checks' door.
const (
	// FedMax is how many instances are told something of the door's own at once; the next are told when half of them have
	// answered, so that they share reads and batches.
	FedMax = 900
	feedOf = 450
	// PokesMax is how many pending instances one answer names for a monitoring system, ListMax how many a list.
	PokesMax = 256
	ListMax  = 8192
	// unfinishedAgain is when an order is tried again that could not be carried out.
	unfinishedAgain = 5 * time.Second
)

// checks is the door of seed 002: the tree, the check configurations, and their instances. Decisions are packages check's and
// deployment's. What it keeps in memory is an index, rebuilt at a takeover from the last events of families check and
// instance; configurations themselves are read when they are dealt with, and not before.
//
//	checks.go          what is known, and what a takeover and a sweep do
//	checks_port.go     how aggregates are read and stored
//	checks_order.go    which instances there should be
//	checks_request.go  what gateway, notifier and users ask
type checks struct {
	o         *Owner
	objects   *drive.Aggregates[check.State, check.Input, check.Effects]
	instances *drive.Aggregates[deployment.State, deployment.Input, deployment.Effects]

	projects map[string]*estate
	known    map[drive.AggregateKey]*indexed
	byCheck  map[string]map[drive.AggregateKey]*indexed // by the uid of the check configuration
	byObject map[string]int                             // instances by the uid of the object
	// Sets of instances: those that the next sweep moves, and by monitoring system those that it has to hear of, and those
	// that it owes something.
	sweepable   map[drive.AggregateKey]struct{}
	pending     map[systemKey]map[drive.AggregateKey]struct{}
	outstanding map[systemKey]map[drive.AggregateKey]struct{}

	seen    reading
	changed []drive.AggregateKey // instances that another owner wrote, and that are to be read
	words   map[string]string    // one copy of each name that many instances hold
	queue   []feedItem
	front   []feedItem                                                                                                 // what front doors ask: before the queue
	orders  []func(known []drive.LoadedJob, i int, err error) (drive.AggregateInput[check.Input, check.Effects], bool) // commands that wait for the records of their jobs
	orderOf []drive.JobKey
	fed     int
	feeding bool
	follow  []func()  // what is done when the present call has returned
	loading bool      // a takeover reads
	again   time.Time // when orders that were not carried out are tried again; zero: there are none
	retries map[drive.AggregateKey]struct{}
}

type systemKey struct{ project, system string }

// indexed is what is known of an instance without reading it.
type indexed struct {
	deployment.Key
	generation, objectRevision uint64
	revision, updates          uint64
	deleted                    bool
}

// estate is what of a project stands in this partition.
type estate struct {
	tree    check.Tree
	objects map[string]*object        // by name
	configs map[string]*configuration // by name
	marked  map[string]struct{}       // names of objects that are being deleted
	roots   map[string]*gate          // by the name of the repository
}

// object is what stands on the tree, as it was stored last.
type object struct{ state check.State }

func newChecks(o *Owner) *checks {
	c := &checks{
		o: o, projects: map[string]*estate{}, known: map[drive.AggregateKey]*indexed{}, byCheck: map[string]map[drive.AggregateKey]*indexed{},
		byObject: map[string]int{}, sweepable: map[drive.AggregateKey]struct{}{}, pending: map[systemKey]map[drive.AggregateKey]struct{}{},
		outstanding: map[systemKey]map[drive.AggregateKey]struct{}{}, seen: reading{}, words: map[string]string{},
		retries: map[drive.AggregateKey]struct{}{},
	}
	c.objects = drive.NewAggregates(objectPort{c}, drive.AggregateLimits{CachedStates: 1024})
	c.instances = drive.NewAggregates(instancePort{c}, drive.AggregateLimits{Appends: 2 * FedMax})
	return c
}

func (c *checks) family() string { return "check" }

func (c *checks) estate(project string) *estate {
	e := c.projects[project]
	if e == nil {
		e = &estate{objects: map[string]*object{}, configs: map[string]*configuration{}, marked: map[string]struct{}{}, roots: map[string]*gate{}}
		c.projects[project] = e
	}
	return e
}

// word is the one copy of a text that is kept.
func (c *checks) word(s string) string {
	if w, ok := c.words[s]; ok {
		return w
	}
	c.words[s] = s
	return s
}

// takeOver reads what was written since the last time: at first the last event of every check and instance.
func (c *checks) takeOver() error {
	first := len(c.seen) == 0
	c.loading = true
	defer func() { c.loading = false }()
	news := first
	err := c.seen.news(c.o, bus.Check, func(m bus.Stored) error {
		e, err := wire.DecodeCheck(m.Body)
		if err != nil {
			return fmt.Errorf("check %s: %w", m.Entity.Name, err)
		}
		news = true
		key := drive.AggregateKey{Project: m.Entity.Project, ID: m.Entity.Name}
		if m.Deleted || e.Gone {
			c.objects.Adopt(key, check.State{Project: key.Project, Kind: e.State.Kind, Name: e.State.Name})
			c.o.port.forgetEntity(key.Project, drive.EntityKey{Family: string(bus.Check), ID: key.ID}, m.Seq)
			return nil
		}
		c.objects.Adopt(key, e.State)
		return nil
	})
	if err != nil {
		return err
	}
	err = c.seen.news(c.o, bus.Instance, func(m bus.Stored) error {
		e, err := wire.DecodeInstance(m.Body)
		if err != nil {
			return fmt.Errorf("instance %s: %w", m.Entity.Name, err)
		}
		key := drive.AggregateKey{Project: m.Entity.Project, ID: m.Entity.Name}
		switch known := c.known[key]; {
		case m.Deleted || e.Gone:
			c.instances.Adopt(key, deployment.State{})
			c.o.port.forgetEntity(key.Project, drive.EntityKey{Family: string(bus.Instance), ID: key.ID}, m.Seq)
		case first:
			c.instances.Adopt(key, e.State)
		case known == nil || known.revision < e.State.Revision:
			c.changed = append(c.changed, key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(c.changed) > 0 { // another owner wrote them: what is kept of them is out of date
		slices.SortFunc(c.changed, compareAggregates)
		c.changed = slices.Compact(c.changed)
		for part := range slices.Chunk(c.changed, bus.LoadEntitiesMax) {
			loaded, err := instancePort{c}.Load(part, true)
			if err != nil {
				return err
			}
			for i, key := range part {
				c.instances.Adopt(key, loaded[i].State)
			}
		}
	}
	if c.loading = false; news || len(c.changed) > 0 {
		c.soon(c.compareAll)
	}
	c.changed = nil
	return nil
}

// keep makes what was stored of an instance the present index of it.
func (c *checks) keep(key drive.AggregateKey, s *deployment.State) {
	old := c.known[key]
	if s.ID == "" {
		if old == nil {
			return
		}
		delete(c.known, key)
		delete(c.sweepable, key)
		c.unset(c.pending, key, old.System)
		c.unset(c.outstanding, key, old.System)
		if delete(c.byCheck[old.CheckUID], key); len(c.byCheck[old.CheckUID]) == 0 {
			delete(c.byCheck, old.CheckUID)
		}
		if c.byObject[old.ObjectUID]--; c.byObject[old.ObjectUID] == 0 {
			delete(c.byObject, old.ObjectUID)
		}
		c.buried(key.Project, &old.Key)
		return
	}
	x := old
	if x == nil {
		x = &indexed{Key: deployment.Key{
			Check: c.word(s.Check), CheckUID: c.word(s.CheckUID), Object: c.word(s.Object), ObjectUID: c.word(s.ObjectUID), System: c.word(s.System),
		}}
		c.known[key] = x
		if c.byCheck[x.CheckUID] == nil {
			c.byCheck[x.CheckUID] = map[drive.AggregateKey]*indexed{}
		}
		c.byCheck[x.CheckUID][key] = x
		c.byObject[x.ObjectUID]++
	}
	x.generation, x.objectRevision, x.revision, x.updates, x.deleted = s.Generation, s.ObjectRevision, s.Revision, s.Updates, s.Deleted
	if s.Sweepable() {
		c.sweepable[key] = struct{}{}
	} else {
		delete(c.sweepable, key)
	}
	c.set(c.pending, key, x.System, s.Pending())
	c.set(c.outstanding, key, x.System, s.Outstanding())
}

func (c *checks) set(sets map[systemKey]map[drive.AggregateKey]struct{}, key drive.AggregateKey, system string, in bool) {
	if !in {
		c.unset(sets, key, system)
		return
	}
	k := systemKey{key.Project, system}
	if sets[k] == nil {
		sets[k] = map[drive.AggregateKey]struct{}{}
	}
	sets[k][key] = struct{}{}
}

func (c *checks) unset(sets map[systemKey]map[drive.AggregateKey]struct{}, key drive.AggregateKey, system string) {
	k := systemKey{key.Project, system}
	if delete(sets[k], key); len(sets[k]) == 0 {
		delete(sets, k)
	}
}

// sweep tells those instances that a sweep moves, and no others.
func (c *checks) sweep(time.Time) {
	keys := make([]drive.AggregateKey, 0, len(c.sweepable))
	for key := range c.sweepable {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compareAggregates)
	for _, key := range keys {
		c.tell(feedItem{key: key, input: func() (deployment.Input, bool) { return deployment.Input{Kind: deployment.OnSweep}, true }})
	}
	c.retry()
	c.feed()
}

func (c *checks) tick(now time.Time) {
	c.objects.Tick(now)
	c.instances.Tick(now)
	if !c.again.IsZero() && !now.Before(c.again) {
		c.retry()
	}
	c.feed()
}

func (c *checks) nextDue() time.Time {
	return earlier(c.again, earlier(c.objects.NextDue(), c.instances.NextDue()))
}

// feedItem is one thing that the door itself tells an instance.
type feedItem struct {
	key drive.AggregateKey
	// input makes it when its turn has come; false: it means nothing any more.
	input func() (deployment.Input, bool)
	// done is called once, with what came of it; ok says that it was decided. It may be nil.
	done func(fx deployment.Effects, ok bool)
}

// tell queues it; feed sends what is queued, a limited number at a time.
func (c *checks) tell(i feedItem) { c.queue = append(c.queue, i) }

func (c *checks) feed() {
	if c.feeding {
		return
	}
	c.feeding = true
	defer func() { c.feeding = false }()
	for {
		var part []feedItem
		switch {
		case len(c.front) > 0:
			part, c.front = cut(c.front, feedOf)
		case len(c.queue) > 0 && c.fed <= FedMax-feedOf:
			part, c.queue = cut(c.queue, feedOf)
		default:
			return
		}
		n := len(part)
		inputs := make([]drive.AggregateInput[deployment.Input, deployment.Effects], 0, n)
		for _, i := range part {
			in, ok := i.input()
			if !ok {
				i.end(deployment.Effects{}, true)
				continue
			}
			in.At = c.o.c.Now()
			c.fed++
			over := func(fx deployment.Effects, ok bool) {
				c.fed--
				i.end(fx, ok)
				c.feed()
			}
			inputs = append(inputs, drive.AggregateInput[deployment.Input, deployment.Effects]{
				Key: i.key, Input: in,
				Reply: func(fx deployment.Effects) { over(fx, true) },
				Back:  func(error) { over(deployment.Effects{}, false) },
				Aside: func(reason string) {
					c.o.c.Log.Error("what a check instance came to can never be stored", zap.String("instance", i.key.ID), host.Reason(reason))
					over(deployment.Effects{}, false)
				},
			})
		}
		c.instances.Offer(inputs...)
	}
}

// cut takes the first of a queue.
func cut(queue []feedItem, most int) (part, rest []feedItem) {
	n := min(most, len(queue))
	if rest = queue[n:]; len(rest) == 0 {
		rest = nil
	}
	return queue[:n:n], rest
}

func (i *feedItem) end(fx deployment.Effects, ok bool) {
	if i.done != nil {
		i.done(fx, ok)
	}
}

// configuration is a check configuration as it was stored last, and how far its instances follow.
type configuration struct {
	state      check.State
	read       *monitoring.Configuration
	place      check.Place
	invalid    string // why it cannot be read
	out        int    // instances that were told and have not answered
	stale      bool   // what was compared is out of date
	unfinished bool   // not all of them could do what they were told
	compared   uint64 // generation that was compared
	ending     bool   // that all is ordered is on its way to the log
}
