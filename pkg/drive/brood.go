package drive

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// brood is what an owner knows of the children of one resource: rebuilt at takeover from their last events, and kept up
// with every event of theirs.
type brood struct {
	family *children.Family
	told   bool                    // the parent is to look, and has not yet
	later  bool                    // it is to look at the next tick
	count  time.Time               // when it is to say how its children stand (resource.Effects.Recount)
	unsure []resource.Key          // children of a batch whose outcome is not known: they are read before anything is decided on them
	seqs   map[resource.Key]uint64 // of the last event that is known of each child
	at     uint64                  // sequence of the parent's last event of which is known that it made no child unknown here
	digest string
	phase  string
	items  []children.Item // of that spec, for that phase
	err    error
}

func parentOf(s *resource.State) resource.Key {
	return resource.Key{Project: s.Project, Kind: s.Parent.Kind, Name: s.Parent.Name}
}

// byName finds broods where only the parent's name is known: that of a child which the log no longer holds.
type byName struct{ project, name string }

// observe keeps the family of a child's parent.
func (l *Loop) observe(key resource.Key, s *resource.State, seq uint64) {
	if l.watch != nil {
		l.watch(key, s, seq)
	}
	if s.UID == "" {
		l.vanished(key)
		return
	}
	if s.Parent.Name == "" {
		return
	}
	parent := parentOf(s)
	b := l.broods[parent]
	if b == nil {
		if s.Gone {
			return
		}
		b = l.newBrood(parent)
	}
	if seq < b.seqs[key] {
		return // it was read before what is known of it was written
	}
	b.seqs[key] = seq
	b.family.Observe(s.AsChild())
}

// refresh reads again what is older than what is known already: a follower answered that is behind. An append proves what
// was read, but not what is not done for it: a due time that is passed over, or what a parent takes from a child.
func (l *Loop) refresh(keys []resource.Key, loaded []Loaded) error {
	var old []resource.Key
	var at []int
	for i, key := range keys {
		if loaded[i].Seq < l.known(key) {
			old, at = append(old, key), append(at, i)
		}
	}
	if old == nil {
		return nil
	}
	again, _, err := l.port.Load(old, nil, true)
	for n := range again {
		loaded[at[n]] = again[n]
	}
	return err
}

// known is the sequence of the last event that is known of a parent, a child, what has a job, what is gone and not yet forgotten,
// or what was heard of; of others 0.
func (l *Loop) known(key resource.Key) uint64 {
	seq := max(l.live[key], l.gone[key])
	if ln := l.lanes[key]; ln != nil {
		seq = max(seq, ln.news)
	}
	if b := l.broods[key]; b != nil {
		seq = max(seq, b.at)
	}
	if i := strings.LastIndexByte(key.Name, '/'); i >= 0 {
		for _, parent := range l.parents[byName{key.Project, key.Name[:i]}] {
			seq = max(seq, l.broods[parent].seqs[key])
		}
	}
	return seq
}

func (l *Loop) newBrood(parent resource.Key) *brood {
	b := &brood{family: children.New(), seqs: map[resource.Key]uint64{}}
	l.broods[parent] = b
	name := byName{parent.Project, parent.Name}
	l.parents[name] = append(l.parents[name], parent)
	return b
}

func (l *Loop) dropBrood(parent resource.Key) {
	delete(l.broods, parent)
	name := byName{parent.Project, parent.Name}
	left := slices.DeleteFunc(slices.Clone(l.parents[name]), func(k resource.Key) bool { return k == parent })
	if len(left) == 0 {
		delete(l.parents, name)
		return
	}
	l.parents[name] = left
}

// vanished takes a child from its family of which the log holds nothing any more: its last event was not seen.
func (l *Loop) vanished(key resource.Key) {
	i := strings.LastIndexByte(key.Name, '/')
	if i < 0 {
		return
	}
	for _, parent := range l.parents[byName{key.Project, key.Name[:i]}] {
		b := l.broods[parent]
		if c, ok := b.family.Get(key.Name[i+1:]); ok && c.Kind == key.Kind {
			c.Gone = true
			delete(b.seqs, key)
			b.family.Observe(c)
			l.look(parent, b)
		}
	}
}

// tellParent has the parent look at its children after one of them has moved; once, however many have. A sweep has it look
// too, so nothing is lost without this but time: a sweep's 20 s for each step of the tree. The model's fair world has no
// sweeps, and so holds that it is told.
func (l *Loop) tellParent(s *resource.State) {
	if s.Parent.Name == "" {
		return
	}
	key := parentOf(s)
	b := l.broods[key]
	if _, live := l.live[key]; !live || b == nil || b.told {
		return
	}
	b.told = true
	l.tell(key, resource.Input{Kind: resource.OnChildren, At: l.now})
}

// noticed has the parent of a child that was read from the log look at its children at the next tick: what was read may be
// news, as after an append whose answer was lost.
func (l *Loop) noticed(s *resource.State) {
	if s.Parent.Name == "" {
		return
	}
	key := parentOf(s)
	if b := l.broods[key]; b != nil {
		l.look(key, b)
	}
}

func (l *Loop) look(parent resource.Key, b *brood) {
	if !b.later {
		b.later = true
		l.again = append(l.again, parent)
	}
}

// brood gives a step what is known of the children, and what the spec says of them.
func (l *Loop) brood(ln *lane, env *resource.Env) error {
	s := &ln.state
	if err := l.meetAll(ln, env.Blueprint); err != nil {
		return err
	}
	b := l.broods[ln.key]
	if b != nil {
		b.told, b.later = false, false
		if err := l.makeSure(b); err != nil {
			return err
		}
		if b.family.Len() == 0 && s.Job() == nil {
			l.dropBrood(ln.key)
			return nil
		}
		if j := s.Job(); j != nil {
			b.family.Begin(j.ID)
		}
		env.Children = b.family
	}
	if env.Blueprint == nil || !applies(s, env.Blueprint) {
		return nil
	}
	spec, err := l.port.Spec(ln.key, s.SpecDigest)
	if err != nil {
		return err
	}
	if b == nil {
		b = l.newBrood(ln.key)
		env.Children = b.family
	}
	env.Items = func(ph *blueprint.Phase) ([]children.Item, error) {
		if b.digest != s.SpecDigest || b.phase != ph.Name || b.items == nil && b.err == nil {
			b.digest, b.phase = s.SpecDigest, ph.Name
			b.items, b.err = l.port.Items(ph, spec)
		}
		return b.items, b.err
	}
	return nil
}

// definition is what a spec defines for a phase.
type definition struct {
	items []children.Item
	err   error
}

// defined reads the children that the spec of an apply defines, once for all steps of it.
func (l *Loop) defined(it *item) func(*blueprint.Phase) ([]children.Item, error) {
	return func(ph *blueprint.Phase) ([]children.Item, error) {
		d, ok := it.defines[ph.Name]
		if !ok {
			if it.defines == nil {
				it.defines = map[string]definition{}
			}
			d.items, d.err = l.port.Items(ph, it.Spec)
			it.defines[ph.Name] = d
		}
		return d.items, d.err
	}
}

// meetAll sees to it that every child is known which the log holds as of the parent's state. Children are made and marked
// in one batch with an event of their parent, so who has read the log up to that event, or appended it, knows them all. Of
// an event that another owner appended nobody told this one.
func (l *Loop) meetAll(ln *lane, bp *blueprint.Blueprint) error {
	b := l.broods[ln.key]
	if ln.kin || b == nil && ln.state.Children == (resource.Brood{}) && !hasChildren(bp) {
		return nil
	}
	if ln.kin = ln.seq <= l.covered || b != nil && b.at == ln.seq; ln.kin {
		return nil
	}
	if err := l.port.Look(); err != nil {
		return err
	}
	if ln.kin = ln.seq <= l.covered; !ln.kin {
		return errors.New("the log was read from a follower that is behind")
	}
	return nil
}

func hasChildren(bp *blueprint.Blueprint) bool {
	return bp != nil && slices.ContainsFunc(bp.Phases, func(p blueprint.Phase) bool { return p.Children != nil })
}

// Covered says that all resources of the partition were adopted or learned as the log held them at a sequence.
func (l *Loop) Covered(seq uint64) { l.covered = max(l.covered, seq) }

func (l *Loop) makeSure(b *brood) error {
	for len(b.unsure) > 0 {
		n := min(len(b.unsure), loadTogether)
		var lanes []*lane
		for _, key := range b.unsure[:n] {
			if ln := l.lane(key); !ln.loaded && !ln.busy {
				lanes = append(lanes, ln)
			} else {
				l.rest(ln)
			}
		}
		l.loadAll(lanes, false)
		l.restAll(lanes)
		if len(lanes) > 0 && !lanes[0].loaded {
			return errors.New("the log could not be read")
		}
		b.unsure = b.unsure[n:]
	}
	return nil
}

// applies reports whether a phase is at work that needs the items of the spec.
func applies(s *resource.State, bp *blueprint.Blueprint) bool {
	return slices.ContainsFunc(s.Phases, func(p resource.PhaseRun) bool {
		if !p.Children || p.Status != resource.Running {
			return false
		}
		ph := bp.Phase(p.Name)
		return ph != nil && ph.Children != nil && (ph.Children.Do == blueprint.DoApply || ph.Children.Do == blueprint.DoAll && !p.Undo && !s.Children.Applied)
	})
}

// recount has a parent say how its children stand when its time has come. Many children ask for the same time.
func (l *Loop) recount(ln *lane, at time.Time) {
	if b := l.broods[ln.key]; b != nil && !at.IsZero() && !at.Equal(b.count) {
		b.count = at
		l.due.add(at, ln.key)
	}
}

// tellChildren tells children what follows from the parent's committed state.
func (l *Loop) tellChildren(ln *lane, fx resource.Effects) {
	for i := range fx.Tell {
		if b := l.broods[ln.key]; b != nil {
			b.family.Asked(fx.Tell[i].Parent.Item, fx.Tell[i].Asking())
		}
	}
	for i := range fx.Tell {
		l.tell(fx.Tell[i].Key, resource.Input{Kind: resource.OnParent, At: l.now, Parent: &fx.Tell[i]})
	}
}

// askAgain is a sweep's: what was told may be lost, and a child may be at a job that its parent no longer drives. parents are
// those that this sweep has read.
func (l *Loop) askAgain(ln *lane, parents map[resource.Key]Loaded) {
	if b := l.broods[ln.key]; b != nil {
		b.family.AskAgain()
	}
	s := &ln.state
	j := s.Job()
	if s.Parent.Name == "" || j == nil || !j.Handed {
		return
	}
	if _, live := l.live[parentOf(s)]; live || l.driven(s, j.ID, parents) {
		return
	}
	l.tell(ln.key, resource.Input{Kind: resource.OnParent, At: l.now, Parent: &resource.FromParent{
		Ask: resource.Stop, Key: ln.key, Parent: s.Parent, JobID: j.ID, Message: "its parent is no longer at this job",
	}})
}

// driven reports whether the parent of a child is at a job, as the leader has it, or that is not known: another owner may
// have begun it, and the append that stops a child proves the child alone. A parent has its job before any child of it, so
// one that does not have it any more is done with it.
func (l *Loop) driven(s *resource.State, job string, parents map[resource.Key]Loaded) bool {
	key := parentOf(s)
	parent, read := parents[key]
	if !read {
		loaded, _, err := l.port.Load([]resource.Key{key}, nil, true)
		if err != nil {
			return true // the next sweep asks again
		}
		parent = loaded[0]
		parents[key] = parent
	}
	if !parent.State.Exists() || parent.State.UID != s.Parent.UID {
		return false
	}
	if j := parent.State.JobByID(job); j == nil || j.State.Final() {
		return false
	}
	ln := l.lane(key)
	if !ln.loaded || ln.seq < parent.Seq {
		l.heard(ln, parent.Seq)
	}
	l.rest(ln)
	return true
}

// step of a child in a batch.
type batched struct {
	lane  *lane
	state resource.State
	fx    resource.Effects
}

// batch appends a parent's event together with those of children that it makes or marks. The specs of those that it makes
// go before.
func (l *Loop) batch(ln *lane, it *item, after resource.State, fx resource.Effects) {
	lanes := make([]*lane, len(fx.Batch))
	var missing []*lane
	for i := range fx.Batch {
		kid := l.lane(fx.Batch[i].Key)
		lanes[i] = kid
		if kid.busy || len(kid.queue) > 0 {
			l.restAll(lanes[:i+1])
			l.putOff(ln, it)
			return
		}
		if !kid.loaded {
			missing = append(missing, kid)
		}
	}
	for len(missing) > 0 {
		n := min(len(missing), loadTogether)
		l.loadAll(missing[:n], false)
		missing = missing[n:]
	}
	steps := make([]batched, 0, len(lanes))
	for i, kid := range lanes {
		if !kid.loaded || kid.busy {
			l.restAll(lanes)
			l.putOff(ln, it)
			return
		}
		p := fx.Batch[i]
		if other := kid.state.Parent; p.Ask == resource.Adopt && kid.state.Exists() && other.UID != p.Parent.UID {
			l.restAll(lanes)
			l.conflict(ln, it, "child "+kid.key.Name+" of kind "+kid.key.Kind+" belongs to "+other.Kind+" "+other.Name)
			return
		}
		if p.Ask == resource.Adopt {
			p.NewUID = l.port.ChildUID(p.Key, p.JobID, it.Input.Input.At)
		}
		in := resource.Input{Kind: resource.OnParent, At: it.Input.Input.At, Parent: &p}
		env, err := l.env(kid, &in)
		if err != nil {
			l.restAll(lanes)
			l.putOff(ln, it)
			return
		}
		if env.Retired && p.Ask == resource.Adopt && !kid.state.Exists() {
			l.restAll(lanes)
			l.conflict(ln, it, "the blueprint of kind "+kid.key.Kind+", of child "+kid.key.Name+", is being deleted")
			return
		}
		l.stats.Steps++
		if state, kidFx := resource.Step(kid.state, in, env); kidFx.Event != nil {
			steps = append(steps, batched{kid, state, kidFx})
		}
	}
	if !l.specsFirst(ln, it, fx, lanes) {
		l.restAll(lanes)
		return
	}
	records := []Record{{Expect: ln.seq, Resource: &ResourceRecord{Event: *fx.Event, State: after, At: after.UpdatedAt}}}
	for i := range steps {
		s := &steps[i]
		s.lane.busy = true
		records = append(records, Record{Expect: s.lane.seq, Resource: &ResourceRecord{Event: *s.fx.Event, State: s.state, At: s.state.UpdatedAt}})
	}
	ln.busy = true
	l.out += len(records)
	l.port.AppendBatch(records, func(last uint64, err error) {
		l.out -= len(records)
		ln.busy = false
		for i := range steps {
			steps[i].lane.busy = false
		}
		switch {
		case errors.Is(err, ErrRefused):
			l.pop(ln)
			it.aside(err.Error())
		case err != nil:
			l.stats.Lost++
			ln.loaded, it.specSent, it.specs = false, false, nil
			b := l.broods[ln.key]
			if b == nil {
				b = l.newBrood(ln.key)
			}
			for i := range steps {
				steps[i].lane.loaded = false
				b.unsure = append(b.unsure, steps[i].lane.key)
			}
		default:
			first := last - uint64(len(records)-1)
			for i := range steps {
				l.stats.Events++
				l.set(steps[i].lane, steps[i].state, first+uint64(i)+1)
			}
			l.committed(ln, it, after, fx, first)
		}
		l.run(ln)
		for i := range steps {
			l.run(steps[i].lane)
		}
	})
	l.restAll(lanes)
}

// conflict tells the parent that a child cannot be its own. An input from outside is handed back, and comes again when that is
// recorded: it may be all that ever comes.
func (l *Loop) conflict(ln *lane, it *item, reason string) {
	if !it.own {
		l.pop(ln)
		it.back(errors.New(reason))
		it = &item{Input: Input{Key: ln.key}, own: true}
		ln.queue = append([]*item{it}, ln.queue...)
	}
	it.Input.Input = resource.Input{Kind: resource.OnConflict, At: l.now, Conflict: reason} // in its place; run steps it next
}

func (l *Loop) restAll(lanes []*lane) {
	for _, ln := range lanes {
		l.rest(ln)
	}
}

// putOff gives an input back that meets children at work: one of the Loop's own is taken up again with the next tick.
func (l *Loop) putOff(ln *lane, it *item) {
	l.pop(ln)
	if !it.own {
		it.back(errors.New("children of it are being written"))
		return
	}
	l.again = append(l.again, ln.key)
}

// specsFirst sends the specs of children that the log may not hold yet, and reports whether all are there. When the
// answers have come, the parent's input is stepped again.
func (l *Loop) specsFirst(ln *lane, it *item, fx resource.Effects, lanes []*lane) bool {
	waiting, failed := 0, false
	done := func(key resource.Key, digest string, err error) {
		waiting--
		if err == nil {
			it.specs[key] = digest
		}
		failed = failed || errors.Is(err, ErrRefused)
		if waiting > 0 {
			return
		}
		ln.busy = false
		if failed {
			l.pop(ln)
			it.aside("the spec of a child was refused by the store")
		}
		l.run(ln)
	}
	if it.specs == nil {
		it.specs = map[resource.Key]string{}
	}
	for i := range fx.Batch {
		p := &fx.Batch[i]
		known := lanes[i].state.Exists() && lanes[i].state.SpecDigest == p.Item.SpecDigest
		if p.Ask == resource.Adopt && !known && it.specs[p.Key] != p.Item.SpecDigest {
			waiting++
			ln.busy = true
			l.childSpec(p, it, done)
		}
	}
	return waiting == 0
}

// childSpec sends one. Most children are new and have no spec yet, so that is expected first.
func (l *Loop) childSpec(p *resource.FromParent, it *item, done func(resource.Key, string, error)) {
	record := func(expect uint64) Record {
		return Record{Expect: expect, Spec: &SpecRecord{Key: p.Key, Digest: p.Item.SpecDigest, JSON: p.Item.Spec, At: it.Input.Input.At}}
	}
	l.send(record(0), func(_ uint64, err error) {
		if !errors.Is(err, ErrLost) {
			done(p.Key, p.Item.SpecDigest, err)
			return
		}
		seq, err := l.port.SpecSeq(p.Key)
		if err != nil {
			done(p.Key, p.Item.SpecDigest, err)
			return
		}
		l.send(record(seq), func(_ uint64, err error) { done(p.Key, p.Item.SpecDigest, err) })
	})
}
