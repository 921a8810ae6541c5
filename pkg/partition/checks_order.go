package partition

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/monitoring"
	"github.com/droverproject/drover/pkg/wire"
)

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// soon has something done when the present call has returned: what follows from a stored event is told to aggregates, which
// may be in the middle of being told that it was stored.
func (c *checks) soon(f func()) {
	if c.loading {
		return // what there should be is compared when all is read
	}
	if c.follow = append(c.follow, f); len(c.follow) == 1 {
		c.o.c.Shell.Later(func() {
			follow := c.follow
			c.follow = nil
			for _, f := range follow {
				f()
			}
			c.feed()
		})
	}
}

// place makes what was stored of an object the present tree, and has the check configurations compared that it concerns.
func (c *checks) place(key drive.AggregateKey, s *check.State) {
	kind, name, _ := strings.Cut(key.ID, "/")
	e := c.estate(key.Project)
	switch kind {
	case check.MonitoringSystem, check.Capability:
	case check.CheckConfiguration:
		c.placeConfiguration(e, key, name, s)
	default:
		c.placeObject(e, name, s)
	}
}

func (c *checks) placeConfiguration(e *estate, key drive.AggregateKey, name string, s *check.State) {
	if s.UID == "" {
		delete(e.configs, name)
		delete(c.retries, key)
		return
	}
	old := e.configs[name]
	if old != nil && old.state.UID == s.UID && old.state.Generation == s.Generation {
		old.state = *s // a job has ended, or begun
		c.soon(func() { c.settle(key, old) })
		return
	}
	f := &configuration{state: *s}
	if old != nil && old.state.UID == s.UID {
		f = old
		f.state, f.invalid = *s, ""
	}
	e.configs[name] = f
	read, err := monitoring.Read(s)
	if err != nil { // it was checked when it was applied; another version may have been laxer
		f.invalid = err.Error()
		c.o.c.Log.Error("a check configuration cannot be read", zap.String("check", key.ID), zap.Error(err))
		return
	}
	f.read, f.place = read, read.Place()
	c.soon(func() { c.compare(key, f) })
}

func (c *checks) placeObject(e *estate, name string, s *check.State) {
	old := e.objects[name]
	delete(e.marked, name)
	if s.UID == "" {
		delete(e.objects, name)
		e.tree.Remove(name)
		return
	}
	if s.Deleted() {
		e.marked[name] = struct{}{}
	}
	e.objects[name] = &object{*s}
	e.tree.Put(check.Object{Kind: s.Kind, Name: name, UID: s.UID, Revision: s.Generation, Deleted: s.Deleted()})
	if old != nil && old.state.UID == s.UID && old.state.Generation == s.Generation {
		return
	}
	deep := old != nil && e.tree.Below(name) != "" // what it says is said of those below, too
	kept := *s
	c.soon(func() { c.placed(e, name, &kept, deep) })
}

// placed has the check configurations look at an object that has changed.
func (c *checks) placed(e *estate, name string, s *check.State, deep bool) {
	for _, config := range slices.Sorted(maps.Keys(e.configs)) {
		f := e.configs[config]
		key := drive.AggregateKey{Project: s.Project, ID: check.ID(check.CheckConfiguration, config)}
		switch {
		case f.read == nil || f.state.Deleted():
		case s.Deleted() && check.HasInstances(s.Kind):
			c.unorder(key, f, c.instance(key.Project, f.state.UID, s.UID))
		case deep && (strings.HasPrefix(f.place.On+"/", name+"/") || strings.HasPrefix(name+"/", f.place.On+"/")):
			c.compare(key, f)
		case e.tree.Reaches(f.place, name):
			c.order(key, f, name)
		}
	}
	c.endObject(s)
}

// instance is the key of the instance of a configuration on an object, be it there or not. One that was deleted does not come
// back: another takes its place.
func (c *checks) instance(project, checkUID, objectUID string) drive.AggregateKey {
	for n := uint64(0); ; n++ {
		key := drive.AggregateKey{Project: project, ID: wire.RoutedUUID(c.o.c.Number, "instance", project, checkUID, objectUID, decimal(n))}
		if x := c.known[key]; x == nil || !x.deleted {
			return key
		}
	}
}

// compareAll compares all of them: after a takeover nobody knows how far they have come.
func (c *checks) compareAll() {
	for _, project := range slices.Sorted(maps.Keys(c.projects)) {
		e := c.projects[project]
		for _, name := range slices.Sorted(maps.Keys(e.configs)) {
			if f := e.configs[name]; f.read != nil {
				c.compare(drive.AggregateKey{Project: project, ID: check.ID(check.CheckConfiguration, name)}, f)
			}
		}
		c.endObjects(e)
	}
	// Instances whose configuration is gone: an owner whose time was over may have made them.
	for _, uid := range slices.Sorted(maps.Keys(c.byCheck)) {
		for _, key := range slices.SortedFunc(maps.Keys(c.byCheck[uid]), compareAggregates) {
			x := c.known[key]
			f := c.estate(key.Project).configs[x.Check]
			if x.deleted || f != nil && f.state.UID == x.CheckUID {
				continue
			}
			c.tell(feedItem{key: key, input: func() (deployment.Input, bool) { return deployment.Input{Kind: deployment.OnDelete}, true }})
		}
	}
	c.feed()
}

// compare looks which instances of a configuration there are and which there should be, in memory, and orders and deletes
// what differs. While an earlier comparison is being carried out it only notes that there is a newer one to make.
func (c *checks) compare(key drive.AggregateKey, f *configuration) {
	if f.out > 0 {
		f.stale = true
		return
	}
	f.stale, f.unfinished, f.compared = false, false, f.state.Generation
	delete(c.retries, key)
	e := c.estate(key.Project)
	wanted := map[drive.AggregateKey]struct{}{}
	f.out++ // so that it does not settle before all are queued
	if !f.state.Deleted() {
		e.tree.Reach(f.place, func(o *check.Object) bool {
			id := c.instance(key.Project, f.state.UID, o.UID)
			wanted[id] = struct{}{}
			if x := c.known[id]; x == nil || x.generation != f.state.Generation || x.objectRevision != c.wayRevision(e, o.Name) {
				c.order(key, f, o.Name)
			}
			return true
		})
	}
	for _, id := range slices.SortedFunc(maps.Keys(c.byCheck[f.state.UID]), compareAggregates) {
		if _, ok := wanted[id]; !ok && !c.known[id].deleted {
			c.unorder(key, f, id)
		}
	}
	c.feed()
	f.out--
	c.settle(key, f)
}

// wayRevision grows with every change of an object and of those above it.
func (c *checks) wayRevision(e *estate, name string) (sum uint64) {
	for ; name != ""; name = check.Parent(name) {
		if o := e.tree.Get(name); o != nil {
			sum += o.Revision
		}
	}
	return sum
}

// order has the instance of a configuration on an object ordered. Its details are assembled when its turn has come.
func (c *checks) order(key drive.AggregateKey, f *configuration, name string) {
	e := c.estate(key.Project)
	object := e.tree.Get(name).UID
	id := c.instance(key.Project, f.state.UID, object)
	f.out++
	c.tell(feedItem{key: id, done: c.told(key, f), input: func() (deployment.Input, bool) {
		way := e.tree.Way(name)
		if f.state.Deleted() || !e.tree.Reaches(f.place, name) || way[len(way)-1].UID != object {
			return deployment.Input{}, false
		}
		placed := make([]monitoring.Placed, len(way))
		for i, o := range way {
			placed[i] = monitoring.Placed{Kind: o.Kind, Name: o.Name, UID: o.UID, Spec: e.objects[o.Name].state.Spec}
		}
		details, err := f.read.Details(id.ID, placed)
		if err != nil {
			f.unfinished = true
			c.o.c.Log.Error("deployment details cannot be assembled", zap.String("check", key.ID), zap.String("object", name), zap.Error(err))
			return deployment.Input{}, false
		}
		o := way[len(way)-1]
		return deployment.Input{Kind: deployment.OnOrder, Order: &deployment.Order{
			Project: key.Project, ID: id.ID, Key: deployment.Key{
				Check: f.state.Name, CheckUID: f.state.UID, Object: check.ID(o.Kind, o.Name), ObjectUID: o.UID, System: f.read.System(),
			},
			Generation: f.state.Generation, ObjectRevision: c.wayRevision(e, name), Policy: f.read.Policy(), Details: details,
		}}, true
	}})
}

// unorder has an instance of a configuration deleted.
func (c *checks) unorder(key drive.AggregateKey, f *configuration, id drive.AggregateKey) {
	if x := c.known[id]; x == nil || x.deleted {
		return
	}
	f.out++
	c.tell(feedItem{key: id, done: c.told(key, f), input: func() (deployment.Input, bool) { return deployment.Input{Kind: deployment.OnDelete}, true }})
	c.feed()
}

func (c *checks) told(key drive.AggregateKey, f *configuration) func(deployment.Effects, bool) {
	return func(fx deployment.Effects, ok bool) {
		f.out--
		f.unfinished = f.unfinished || !ok || fx.Note == deployment.NoteFull
		c.settle(key, f)
	}
}

// settle says in the log that all instances follow, once they do.
func (c *checks) settle(key drive.AggregateKey, f *configuration) {
	if f.out > 0 || c.estate(key.Project).configs[f.state.Name] != f {
		return
	}
	switch {
	case f.stale || f.compared != f.state.Generation:
		c.compare(key, f)
	case f.unfinished:
		c.later(key)
	case f.state.Behind():
		c.end(key, &f.ending, check.Input{Walked: &check.Walked{Generation: f.compared, Deleted: f.state.Deleted()}})
	case f.state.Deleted() && len(c.byCheck[f.state.UID]) == 0:
		c.end(key, &f.ending, check.Input{Bury: true})
	}
	c.endObjects(c.estate(key.Project))
}

// endObjects ends the deletions of objects that have come to their end.
func (c *checks) endObjects(e *estate) {
	for _, name := range slices.Sorted(maps.Keys(e.marked)) {
		if o := e.objects[name]; o != nil {
			c.endObject(&o.state)
		}
	}
}

// end tells an object something of the door's own. One that could not be told is told later.
func (c *checks) end(key drive.AggregateKey, under *bool, in check.Input) {
	if *under {
		return
	}
	*under = true
	in.At = c.o.c.Now()
	c.objects.Offer(drive.AggregateInput[check.Input, check.Effects]{
		Key: key, Input: in,
		Reply: func(check.Effects) { *under = false }, // what follows does so by the state
		Back:  func(error) { *under = false; c.later(key) },
		Aside: func(reason string) {
			*under = false
			c.o.c.Log.Error("an event of a check can never be stored", zap.String("check", key.ID), host.Reason(reason))
		},
	})
}

func (c *checks) configuration(key drive.AggregateKey) *configuration {
	if name, ok := strings.CutPrefix(key.ID, check.CheckConfiguration+"/"); ok {
		return c.estate(key.Project).configs[name]
	}
	return nil
}

// endObject ends the deletion of an object, and then buries it, once its instances are.
func (c *checks) endObject(s *check.State) {
	under := false
	key := drive.AggregateKey{Project: s.Project, ID: s.ID()}
	switch {
	case !s.Deleted():
	case s.Behind() && c.marking(s.UID) == 0:
		c.end(key, &under, check.Input{Walked: &check.Walked{Generation: s.Generation, Deleted: true}})
	case !s.Behind() && c.byObject[s.UID] == 0:
		c.end(key, &under, check.Input{Bury: true})
	}
}

// marking is how many instances of an object are not marked deleted.
func (c *checks) marking(objectUID string) (n int) {
	if c.byObject[objectUID] == 0 {
		return 0
	}
	for _, x := range c.known {
		if x.ObjectUID == objectUID && !x.deleted {
			n++
		}
	}
	return n
}

// buried is told of an instance that is gone.
func (c *checks) buried(project string, k *deployment.Key) {
	e, gone := c.estate(project), *k
	c.soon(func() {
		if f := e.configs[gone.Check]; f != nil && f.state.UID == gone.CheckUID && f.state.Deleted() {
			c.settle(drive.AggregateKey{Project: project, ID: check.ID(check.CheckConfiguration, gone.Check)}, f)
		}
		_, name, _ := strings.Cut(gone.Object, "/")
		if o := e.objects[name]; o != nil && o.state.UID == gone.ObjectUID {
			c.endObject(&o.state)
		}
	})
}

// later has a configuration compared again in a while.
func (c *checks) later(key drive.AggregateKey) {
	c.retries[key] = struct{}{}
	if c.again.IsZero() {
		c.again = c.o.c.Now().Add(unfinishedAgain)
	}
}

// retry compares what could not be carried out, and ends what has come to its end: level-triggered, with each sweep.
func (c *checks) retry() {
	keys := slices.SortedFunc(maps.Keys(c.retries), compareAggregates)
	clear(c.retries)
	c.again = time.Time{}
	for _, key := range keys {
		if f := c.configuration(key); f != nil && f.read != nil {
			c.compare(key, f)
		}
	}
	for _, project := range slices.Sorted(maps.Keys(c.projects)) {
		c.endObjects(c.projects[project])
	}
}
