package drive

import (
	"container/list"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/sweep"
)

// Loop drives the resources of one partition. It belongs to one goroutine.
type Loop struct {
	port      Port
	limits    Limits
	now       time.Time // latest time that came in
	lanes     map[resource.Key]*lane
	idle      *list.List              // lanes with nothing to do, oldest first
	live      map[resource.Key]uint64 // sequence of their last event that is known
	asleep    map[resource.Key]polls  // of lanes that are not in memory
	due       dueTimes[resource.Key]
	gone      map[resource.Key]uint64 // buried, not yet forgotten: sequence
	bury      burials
	broods    map[resource.Key]*brood // children, by their parent
	parents   map[byName][]resource.Key
	again     []resource.Key // to be continued at the next tick
	ended     endedJobs
	taken     takenIDs
	deletions map[resource.Key]*deletion // of blueprints
	behind    map[resource.Key]struct{}  // a job's record could not be brought up to its state
	covered   uint64                     // see Covered
	out       int                        // appends without an answer
	watch     func(key resource.Key, s *resource.State, seq uint64)
	stats     Stats
}

// Watch has f called with every state that the Loop learns of: at a takeover, when it loads one, and after each commit of its
// own, so that what is found by something else than its key can be indexed. Seq tells an older state from a newer one. Where
// the log holds nothing (any more), the state has no uid. f must not call the Loop. Call it before the first Adopt.
func (l *Loop) Watch(f func(key resource.Key, s *resource.State, seq uint64)) { l.watch = f }

// Stats counts what a Loop did since it was made.
type Stats struct {
	Steps, Events, Lost, Polls, Fenced, Swept uint64
	Live                                      int // resources with a job that is not final
	Lanes                                     int // resources in memory
	Appends                                   int // out at present
}

// New returns a Loop that knows nothing yet; Adopt tells it what the log holds.
func New(port Port, limits Limits) *Loop {
	return &Loop{
		port: port, limits: limits.withDefaults(),
		lanes: map[resource.Key]*lane{}, idle: list.New(), live: map[resource.Key]uint64{}, asleep: map[resource.Key]polls{}, gone: map[resource.Key]uint64{},
		broods: map[resource.Key]*brood{}, parents: map[byName][]resource.Key{}, bury: burials{under: map[resource.Key]struct{}{}},
		behind: map[resource.Key]struct{}{}, deletions: map[resource.Key]*deletion{},
		taken: takenIDs{ids: map[string]struct{}{}},
	}
}

// lane is one resource in memory: its state, and the inputs that wait for it, in order.
type lane struct {
	key    resource.Key
	state  resource.State
	seq    uint64
	loaded bool
	busy   bool // an append is out
	// sole: every job of this resource that has a record is among Loop.taken, see takenIDs.
	sole   bool
	kin    bool   // every child of it is known, see meetAll
	news   uint64 // the log was seen to hold an event of this sequence, or a later one, see heard
	queue  []*item
	jobs   map[string]*jobLane // jobs of this resource whose records may have to follow
	polls  polls
	idleAt *list.Element
}

// item is one input on its way.
type item struct {
	Input
	tries    int
	own      bool                    // made by the Loop itself: nothing to settle
	specSent bool                    // the spec of an apply is in the log
	specs    map[resource.Key]string // specs of children that are in the log, by digest
	users    *users                  // of a blueprint that is being deleted
	defines  map[string]definition   // children that the spec of an apply defines, by phase
	fresh    bool                    // the state is read for it as the leader has it
}

// polls are the polls of a resource's Sleeping phases, by phase.
type polls struct {
	uid string
	of  map[string]*poll
}

// begin forgets the polls of an earlier resource of the same name.
func (p *polls) begin(uid string) {
	if p.uid != uid {
		clear(p.of)
		p.uid = uid
	}
}

// poll is what the owner remembers of a Sleeping phase between events. Losing it costs a poll, no more.
type poll struct {
	next time.Time // not before
	sent time.Time // zero: none is out
	n    uint64
}

// Ready reports whether more inputs should be offered: back pressure ends at the streams' limits.
func (l *Loop) Ready() bool { return l.out < l.limits.Appends }

// Idle reports whether nothing is under way.
func (l *Loop) Idle() bool { return l.out == 0 }

// Stats returns the counters.
func (l *Loop) Stats() Stats {
	s := l.stats
	s.Live, s.Lanes, s.Appends = len(l.live), len(l.lanes), l.out
	return s
}

// NextDue is when Tick has something to do; zero: no time is known.
func (l *Loop) NextDue() time.Time { return l.due.next() }

// Offer takes inputs, in order. Resources that are not in memory are loaded together.
func (l *Loop) Offer(inputs []Input) {
	var missing, touched []*lane
	for i := range inputs {
		in := inputs[i]
		l.see(in.Input.At)
		ln := l.lane(in.Key)
		ln.queue = append(ln.queue, &item{Input: in})
		if !ln.loaded && len(ln.queue) == 1 {
			missing = append(missing, ln)
		}
		touched = append(touched, ln)
	}
	l.loadAll(missing, false) // what fails is tried again, or handed back, by run
	for _, ln := range touched {
		l.run(ln)
	}
}

// Tick tells the time: what is due is stepped.
func (l *Loop) Tick(now time.Time) {
	l.see(now)
	again := l.again
	l.again = nil
	for _, key := range again {
		l.tell(key, resource.Input{Kind: resource.OnContinue, At: l.now})
	}
	for {
		key, ok := l.due.past(l.now)
		if !ok {
			return
		}
		l.tell(key, resource.Input{Kind: resource.OnDue, At: l.now})
	}
}

func (l *Loop) see(at time.Time) {
	if at.After(l.now) {
		l.now = at
	}
}

// tell gives a resource an input of the Loop's own.
func (l *Loop) tell(key resource.Key, in resource.Input) {
	ln := l.lane(key)
	ln.queue = append(ln.queue, &item{Input: Input{Key: key, Input: in}, own: true})
	l.run(ln)
}

func (l *Loop) lane(key resource.Key) *lane {
	ln := l.lanes[key]
	if ln == nil {
		ln = &lane{key: key, jobs: map[string]*jobLane{}, polls: polls{of: map[string]*poll{}}}
		if p, ok := l.asleep[key]; ok {
			ln.polls = p
			delete(l.asleep, key)
		}
		l.lanes[key] = ln
	}
	if ln.idleAt != nil {
		l.idle.Remove(ln.idleAt)
		ln.idleAt = nil
		l.limits.Cache.keep(-1)
	}
	return ln
}

// rest puts a lane with nothing to do at the end of the idle ones, and forgets the oldest over the limit.
func (l *Loop) rest(ln *lane) {
	if ln.busy || len(ln.queue) > 0 || ln.following() || ln.outdated() || ln.idleAt != nil {
		return
	}
	ln.idleAt = l.idle.PushBack(ln)
	l.limits.Cache.keep(1)
	l.trim()
}

// loadAll loads lanes together. What cannot be loaded now stays unloaded: run hands its inputs back.
func (l *Loop) loadAll(lanes []*lane, fresh bool) {
	if len(lanes) == 0 {
		return
	}
	keys := make([]resource.Key, len(lanes))
	for i, ln := range lanes {
		keys[i] = ln.key
	}
	loaded, _, err := l.port.Load(keys, nil, fresh)
	if err == nil && !fresh {
		err = l.refresh(keys, loaded)
	}
	if err != nil {
		return
	}
	for i, ln := range lanes {
		l.found(ln, loaded[i])
	}
	l.repair(lanes)
}

// found makes what the log holds the lane's present state, unless more is known already: a follower that is behind answers
// too, and a result that its state does not await would be dismissed.
func (l *Loop) found(ln *lane, at Loaded) {
	if at.Seq > 0 && at.Seq < ln.seq {
		return
	}
	ln.news = 0
	another := at.Seq != ln.seq // owner may have written it
	l.set(ln, at.State, at.Seq)
	l.noticed(&ln.state)
	if another {
		ln.doubt()
	}
	if another || !ln.sole {
		ln.sole = l.taken.cover(at.Seq)
	}
	for i := range at.State.Jobs {
		l.taken.add(at.State.Jobs[i].ID, l.limits.TakenIDs)
	}
}

// doubt forgets what was known of a resource as long as nobody else wrote it.
func (ln *lane) doubt() {
	ln.kin, ln.sole = false, false
	for _, j := range ln.jobs {
		j.none = false
	}
}

// set makes a state the lane's present one.
func (l *Loop) set(ln *lane, s resource.State, seq uint64) {
	ln.polls.begin(s.UID)
	ln.state, ln.seq, ln.loaded = s, seq, true
	for name := range ln.polls.of {
		if p := s.Phase(name); p == nil || p.Status != resource.Sleeping || p.Retrying {
			delete(ln.polls.of, name)
		}
	}
	l.track(ln.key, &ln.state, seq)
	if !s.Gone {
		l.due.add(ln.nextDue(l.now, l.limits.PollLease), ln.key)
	}
}

// track keeps what must be known of a resource that is not in memory: whether it is live, due, or to be forgotten.
func (l *Loop) track(key resource.Key, s *resource.State, seq uint64) {
	l.observe(key, s, seq)
	if s.Exists() && s.Job() != nil {
		l.live[key] = seq
	} else {
		delete(l.live, key)
	}
	if s.Gone {
		l.gone[key] = seq
		delete(l.asleep, key)
	} else {
		delete(l.gone, key)
	}
}

// run steps the inputs of a lane until one has to wait for its append.
func (l *Loop) run(ln *lane) {
	for !ln.busy && len(ln.queue) > 0 {
		if ln.outdated() {
			ln.loaded = false
		}
		if !ln.loaded {
			l.loadAll([]*lane{ln}, ln.queue[0].fresh)
			if !ln.loaded {
				l.behind[ln.key] = struct{}{} // an append whose answer was lost may have made jobs that nobody else records
				l.handBack(ln, errors.New("the log could not be read"))
				return
			}
		}
		it := ln.queue[0]
		if it.tries++; it.tries > l.limits.StepsMax {
			ln.queue = ln.queue[1:]
			l.giveBack(ln, it, ErrOvertaken)
			continue
		}
		if ln.key.Kind == BlueprintKind {
			l.blueprint(ln, it)
			continue
		}
		if !l.step(ln, it) {
			break
		}
	}
	l.rest(ln)
}

func (l *Loop) handBack(ln *lane, err error) {
	queue := ln.queue
	ln.queue = nil
	for _, it := range queue {
		l.giveBack(ln, it, err)
	}
	l.rest(ln)
}

// giveBack hands an input back that could not be decided now. One of the Loop's own has nobody to come back from: a time
// that was due is due again soon, and what else it was is found by the next sweep.
func (l *Loop) giveBack(ln *lane, it *item, err error) {
	if it.own {
		l.due.add(l.now.Add(ownAgain), ln.key)
		return
	}
	it.back(err)
}

const ownAgain = time.Second // before a due time that could not be looked at is looked at again

// step takes one step of one resource. It returns false where the step has to wait for the records of jobs.
func (l *Loop) step(ln *lane, it *item) bool {
	in := it.Input.Input
	env, err := l.env(ln, &in)
	if err != nil {
		l.pop(ln)
		it.back(err)
		return true
	}
	if in.Kind == resource.OnCommand {
		if in.Command.Verb == resource.VerbApply && hasChildren(env.Blueprint) {
			env.Items = l.defined(it)
		}
		if err := l.prepare(ln, it, &in, env); err != nil {
			l.pop(ln)
			it.back(err)
			return true
		}
		if ln.busy {
			return true // the spec goes first
		}
	}
	l.stats.Steps++
	after, fx := resource.Step(ln.state, in, env)
	if fx.Event == nil && !it.own && !it.fresh && dismissed(&in, &fx) {
		ln.loaded, it.fresh = false, true
		return true // run reads the state, and it is stepped again
	}
	if fx.Event != nil && l.owes(ln, &after) {
		it.tries--
		return false
	}
	if len(fx.Notes) > 0 {
		l.port.Note(ln.key, in, fx.Notes)
		for _, n := range fx.Notes {
			if n.Code == resource.NoteFenced {
				l.stats.Fenced++
			}
		}
	}
	l.answered(ln, &in)
	if fx.Event == nil {
		l.pop(ln)
		if in.Kind == resource.OnResult && undecided(fx.Notes) {
			it.back(errors.New("the blueprint that the job pinned, or a newer version of Drover, is needed to decide this"))
			return true
		}
		l.act(ln, fx)
		finish(it, fx)
		return true
	}
	if len(fx.Batch) > 0 {
		l.batch(ln, it, after, fx)
		return true
	}
	l.append(ln, it, after, fx)
	return true
}

// dismissed reports whether an input from outside is turned away. No append proves the state right on which that was
// decided, and another owner may have changed it since it was read: a result that it would have awaited would be lost. So
// would the answer to a poll that changed nothing: the call may be being canceled, and end with it.
func dismissed(in *resource.Input, fx *resource.Effects) bool {
	if in.Kind == resource.OnCommand {
		return fx.Reply != nil && fx.Reply.Refused != nil
	}
	return in.Kind == resource.OnResult && slices.ContainsFunc(fx.Notes, func(n resource.Note) bool {
		return n.Code == resource.NoteFenced || n.Code == resource.NoteNothing ||
			n.Code == resource.NoteNoChange && in.Result.Outcome != resource.OutcomeRunning // which ends nothing
	})
}

// undecided reports whether a step could not judge its input: it must come again.
func undecided(notes []resource.Note) bool {
	return slices.ContainsFunc(notes, func(n resource.Note) bool {
		return n.Code == resource.NoteNoBlueprint || n.Code == resource.NoteNewerVersion
	})
}

// append records what a step decided; the rest of its effects follow when it is stored.
func (l *Loop) append(ln *lane, it *item, after resource.State, fx resource.Effects) {
	ln.busy = true
	if c := it.Input.Input.Command; c != nil {
		l.taken.add(c.JobID, l.limits.TakenIDs) // whatever the answer will be
	}
	l.send(Record{
		Expect:   ln.seq,
		Resource: &ResourceRecord{Event: *fx.Event, State: after, At: after.UpdatedAt},
	}, func(seq uint64, err error) {
		ln.busy = false
		switch {
		case errors.Is(err, ErrRefused):
			l.pop(ln)
			it.aside(err.Error())
		case err != nil:
			l.stats.Lost++
			ln.loaded = false // the state that won decides; the input is stepped again
			// What won may be the last trace of a deletion, which is younger than the spec that was sent: it would go
			// with the deleted resource.
			it.specSent = false
		default:
			l.committed(ln, it, after, fx, seq)
			if after.Gone {
				l.forget(ln.key)
			} else if it.specSent && after.Generation%SpecsKept == 0 {
				l.port.TrimSpecs(ln.key)
			}
		}
		l.run(ln)
	})
}

func (l *Loop) send(r Record, done func(uint64, error)) {
	l.out++
	l.port.Append(r, func(seq uint64, err error) {
		l.out--
		done(seq, err)
	})
}

func (l *Loop) pop(ln *lane) {
	ln.queue[0] = nil
	ln.queue = ln.queue[1:]
}

// finish settles an input that was applied, or that means nothing.
func finish(it *item, fx resource.Effects) {
	if it.own {
		return
	}
	if fx.Reply != nil && it.Reply != nil {
		it.Reply(*fx.Reply)
		return
	}
	it.settle()
}

// act sends the polls, and remembers when the next ones are due.
func (l *Loop) act(ln *lane, fx resource.Effects) {
	for _, due := range fx.NextPoll {
		p := ln.poll(due.Phase)
		p.next, p.sent = due.Due, time.Time{}
		l.wake(ln, due.Due)
	}
	for _, f := range fx.Polls {
		p := ln.poll(f.Phase)
		if p.next.After(l.now) || !p.sent.IsZero() && l.now.Before(p.sent.Add(l.limits.PollLease)) {
			continue
		}
		p.sent = l.now
		p.n++
		l.stats.Polls++
		l.port.Poll(&ln.state, f, f.UID+"/"+f.Phase+"/"+strconv.FormatUint(uint64(f.Attempt), 10)+"/"+
			strconv.FormatUint(uint64(f.Call), 10)+"/"+strconv.FormatInt(l.now.UnixNano(), 36))
		l.wake(ln, l.now.Add(l.limits.PollLease))
	}
	l.recount(ln, fx.Recount)
	l.tellChildren(ln, fx)
}

// wake has a resource stepped when it polls again, and before that at what its other phases wait for: of those, who has taken
// over while it slept knows the first time alone.
func (l *Loop) wake(ln *lane, at time.Time) {
	l.due.add(at, ln.key)
	for t := range ln.ahead(l.now, at) {
		l.due.add(t, ln.key)
	}
}

// ahead are the times between two at which phases that are at something want a step.
func (ln *lane) ahead(after, before time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for i := range ln.state.Phases {
			p := &ln.state.Phases[i]
			for _, t := range []time.Time{p.Due, p.Deadline} {
				if p.Status.Active() && t.After(after) && t.Before(before) && !yield(t) {
					return
				}
			}
		}
	}
}

func (ln *lane) poll(phase string) *poll {
	p := ln.polls.of[phase]
	if p == nil {
		p = &poll{}
		ln.polls.of[phase] = p
	}
	return p
}

// polling reports whether all that is due is a poll that is out, or that is not yet to be sent again: its due time in
// the state is the first one, and polls that change nothing leave it there.
func (ln *lane) polling(now time.Time) bool {
	for i := range ln.state.Phases {
		p := &ln.state.Phases[i]
		past := func(t time.Time) bool { return !t.IsZero() && !t.After(now) }
		if !p.Status.Active() || !past(p.Due) && !past(p.Deadline) {
			continue
		}
		known := ln.polls.of[p.Name]
		if p.Status != resource.Sleeping || p.Retrying || past(p.Deadline) || known == nil {
			return false
		}
	}
	return true
}

// nextDue is when the resource asks for a step: its state's time, unless that is of polls which are out or not yet due
// again. A load must not find what is past anew each time: of more resources than there are lanes each would make the
// others be loaded again.
func (ln *lane) nextDue(now time.Time, lease time.Duration) time.Time {
	next := ln.state.NextDue()
	if next.IsZero() || next.After(now) || !ln.polling(now) {
		return next
	}
	next = time.Time{}
	for _, p := range ln.polls.of {
		at := p.next
		if !p.sent.IsZero() && p.sent.Add(lease).After(at) {
			at = p.sent.Add(lease)
		}
		if at.IsZero() {
			return ln.state.NextDue()
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for at := range ln.ahead(now, next) {
		if at.Before(next) {
			next = at
		}
	}
	return next
}

// answered notes that the poll of a phase is no longer out.
func (l *Loop) answered(ln *lane, in *resource.Input) {
	if in.Kind != resource.OnResult || in.Result.Outcome == resource.OutcomeRunning {
		return
	}
	if p := ln.polls.of[in.Result.Fence.Phase]; p != nil {
		p.sent = time.Time{}
	}
}

// env gathers what the step may consult. A command sees the kind's present blueprint, which its job will pin; all else
// the one that the job pinned.
func (l *Loop) env(ln *lane, in *resource.Input) (resource.Env, error) {
	env := rules
	s := &ln.state
	switch {
	case in.Kind == resource.OnCommand:
		if resource.BuiltIn(in.Command.Key.Kind) {
			return env, nil
		}
		present, err := l.port.PresentBlueprint(ln.key.Project, ln.key.Kind, false)
		if err != nil {
			return env, err
		}
		env.Blueprint, env.Retired = present.Blueprint, present.Retired()
	case in.Kind == resource.OnParent && (in.Parent.Ask == resource.Adopt || in.Parent.Ask == resource.Trigger):
		present, err := l.port.PresentBlueprint(ln.key.Project, ln.key.Kind, false)
		if err == nil && present.Blueprint == nil {
			present, err = l.port.PresentBlueprint(ln.key.Project, ln.key.Kind, true)
		}
		if err != nil {
			return env, err
		}
		env.Blueprint, env.Retired = present.Blueprint, present.Retired()
	case s.Exists():
		j := s.Job()
		if j == nil {
			j = s.FlowJob()
		}
		if j == nil || j.Blueprint == "" {
			return env, nil
		}
		bp, err := l.port.Blueprint(ln.key.Project, ln.key.Kind, j.Blueprint)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return env, err
		}
		env.Blueprint = bp
	}
	if err := l.brood(ln, &env); err != nil {
		return env, err
	}
	if !hasConstraint(env.Blueprint) || !s.Exists() {
		return env, nil
	}
	spec, err := l.port.Spec(ln.key, s.SpecDigest)
	if err != nil {
		return env, err
	}
	env.When = func(expression string, at *resource.State) (bool, error) { return l.port.When(expression, spec, at) }
	return env, nil
}

func hasConstraint(bp *blueprint.Blueprint) bool {
	if bp == nil {
		return false
	}
	for i := range bp.Phases {
		if bp.Phases[i].When != "" {
			return true
		}
	}
	return false
}

// prepare completes a command: the job that the same request made before, the polls that are out; and sends the spec of
// an apply ahead, so that no state ever names a spec that the log does not hold.
func (l *Loop) prepare(ln *lane, it *item, in *resource.Input, env resource.Env) error {
	c := *in.Command
	in.Command = &c
	for name, p := range ln.polls.of {
		if !p.sent.IsZero() && l.now.Before(p.sent.Add(l.limits.PollLease)) {
			in.Polling = append(in.Polling, name)
		}
	}
	if ln.state.JobByID(c.JobID) == nil {
		j := ln.jobs[c.JobID]
		if j == nil && l.new(ln, c.JobID) {
			j = &jobLane{none: true}
			ln.jobs[c.JobID] = j
		}
		// No append proves that it is new. A lane of the job's own says so only if it was made for that: else it waits for a
		// record that is to follow, and has not been found by a follower that is behind.
		if j == nil || j.stale || j.record == nil && !j.none {
			if j != nil && j.busy {
				return errors.New("the record of the job that this request made is being written")
			}
			_, jobs, err := l.port.Load(nil, []JobKey{{c.Key.Project, c.JobID}}, true)
			if err != nil {
				return err
			}
			j = &jobLane{seq: jobs[0].Seq, record: known(jobs[0])}
			j.none = j.record == nil
			ln.jobs[c.JobID] = j
		}
		if j.record != nil {
			c.Known = &resource.KnownJob{Digest: j.record.Digest}
		}
	}
	// A new resource brings its spec even where the log still holds the same one: that of an earlier resource of this
	// name may be about to be forgotten.
	if c.Verb != resource.VerbApply || c.Known != nil || it.specSent || ln.state.Exists() && ln.state.SpecDigest == c.SpecDigest {
		return nil
	}
	if _, fx := resource.Step(ln.state, *in, env); fx.Event == nil {
		return nil // refused: it leaves nothing behind, its spec included
	}
	seq, err := l.port.SpecSeq(ln.key)
	if err != nil {
		return err
	}
	ln.busy = true
	l.send(Record{Expect: seq, Spec: &SpecRecord{Key: ln.key, Digest: c.SpecDigest, JSON: string(it.Spec), At: in.At}},
		func(_ uint64, err error) {
			ln.busy = false
			it.specSent = err == nil
			if errors.Is(err, ErrRefused) {
				l.pop(ln)
				it.aside(err.Error())
			}
			l.run(ln) // the command is prepared again, and finds its spec
		})
	return nil
}

// Sweep finds what is outstanding and moves it: lost hand-outs, overdue times, jobs that could go on, records that do
// not follow, what is gone and not forgotten. drained says whether nothing of a phase's work is out anywhere.
func (l *Loop) Sweep(now time.Time, drained func(kind, phase string, key resource.Key) bool) SweepReport {
	l.see(now)
	report := SweepReport{Resources: len(l.live)}
	var lanes []*lane
	var missing []*lane
	parents := map[resource.Key]Loaded{}
	swept := maps.Clone(l.behind)
	for key := range l.live {
		swept[key] = struct{}{}
	}
	clear(l.behind)
	for _, key := range sortedKeys(swept) {
		ln := l.lane(key)
		lanes = append(lanes, ln)
		if (!ln.loaded || ln.outdated()) && !ln.busy {
			ln.loaded = false
			missing = append(missing, ln)
		}
	}
	for len(missing) > 0 {
		n := min(len(missing), loadTogether)
		l.loadAll(missing[:n], false)
		missing = missing[n:]
	}
	for _, ln := range lanes {
		if !ln.loaded || ln.busy || len(ln.queue) > 0 {
			if _, is := l.live[ln.key]; !is {
				l.behind[ln.key] = struct{}{}
			}
			l.run(ln)
			continue
		}
		l.askAgain(ln, parents)
		for _, ask := range sweep.Find(&ln.state, sweep.Observation{
			At: now, Grace: sweepGrace, Drained: func(phase string) bool { return drained(ln.key.Kind, phase, ln.key) },
		}) {
			if ask.Input.Kind == resource.OnLost {
				report.Lost++
			} else if ask.Input.Kind == resource.OnDue && !ln.polling(l.now) {
				report.Overdue++
			}
			l.stats.Swept++
			l.tell(ln.key, ask.Input)
		}
		report.Unrecorded += l.follow(ln)
		l.rest(ln)
	}
	for _, key := range sortedKeys(l.gone) {
		report.Forgotten++
		l.forget(key)
	}
	report.Forgotten += l.forgetJobs(now)
	l.trim() // others may have filled the Cache since
	l.tendDeletions()
	return report
}

// SweepReport says what a sweep found.
type SweepReport struct {
	Lost       int `json:"lost"`
	Overdue    int `json:"overdue"`
	Forgotten  int `json:"forgotten"`
	Unrecorded int `json:"unrecorded"`
	Resources  int `json:"resources"`
}

const (
	loadTogether = 256              // resources of one load
	sweepGrace   = 10 * time.Second // age before a hand-out may be called lost
)

// committed does what follows from an event that is in the log.
func (l *Loop) committed(ln *lane, it *item, after resource.State, fx resource.Effects, seq uint64) {
	l.stats.Events++
	l.pop(ln)
	l.set(ln, after, seq)
	if b := l.broods[ln.key]; b != nil && ln.kin {
		b.at = seq
	}
	l.follow(ln)
	l.act(ln, fx)
	finish(it, fx)
	if fx.More {
		more := &item{Input: Input{Key: ln.key, Input: resource.Input{
			Kind: resource.OnContinue, At: after.UpdatedAt, Traceparent: it.Input.Input.Traceparent,
		}}, own: true}
		ln.queue = append([]*item{more}, ln.queue...)
	}
	l.tellParent(&ln.state)
}

// burials are the resources whose traces are being removed, and those that wait for that: a tree of thousands goes at once.
type burials struct {
	waiting []resource.Key
	under   map[resource.Key]struct{} // waiting or being removed
	out     int
}

// forget removes the traces of a resource that is gone, when its turn comes.
func (l *Loop) forget(key resource.Key) {
	if _, ok := l.gone[key]; !ok {
		return
	}
	if _, ok := l.bury.under[key]; ok {
		return
	}
	l.bury.under[key] = struct{}{}
	l.bury.waiting = append(l.bury.waiting, key)
	l.buryNext()
}

func (l *Loop) buryNext() {
	for l.bury.out < l.limits.Forgets && len(l.bury.waiting) > 0 {
		key := l.bury.waiting[0]
		l.bury.waiting = l.bury.waiting[1:]
		seq, ok := l.gone[key]
		if !ok {
			delete(l.bury.under, key)
			continue
		}
		l.bury.out++
		l.out++
		l.port.ForgetResource(key, seq, func(err error) {
			l.out--
			l.bury.out--
			delete(l.bury.under, key)
			if err == nil && l.gone[key] == seq || errors.Is(err, ErrLost) { // lost: it lives again
				delete(l.gone, key)
			}
			l.buryNext()
		})
	}
}

// known is the record of a loaded job, or nil.
func known(j LoadedJob) *job.Record {
	if j.Seq == 0 || j.Record.Gone {
		return nil
	}
	r := j.Record
	return &r
}
