package drive_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// world is the log and the workers that all Loops of a test share: one partition, in memory, on the test's own clock.
type world struct {
	kinds   []*blueprint.Blueprint // of a tree
	items   []children.Item
	t       *testing.T
	random  *rand.Rand
	now     time.Time
	seq     uint64
	states  map[resource.Key]drive.Loaded
	jobs    map[drive.JobKey]drive.LoadedJob
	specs   map[resource.Key]drive.SpecRecord
	specSeq map[resource.Key]uint64
	bp      *blueprint.Blueprint
	work    []work // handed out, not yet answered
	results []resource.Result
	resKeys []resource.Key
	done    map[string]int // completions by uid, phase and attempt, as the log recorded them
	begun   map[string]int // hand-outs recorded after the completion of the same job and phase
	events  int
	unread  bool // Load fails
	looks   int  // reads of the whole log
	asked   int  // records of jobs that were loaded
	answers bool // every answer arrives
	lost    bool // none does
	trims   []resource.Key
	old     map[resource.Key]drive.Loaded // what a follower that is behind shows where the leader need not answer
	// read, where not nil, is called once, when a Load has read and its caller has not been answered.
	read func()
}

type work struct {
	key   resource.Key
	fence resource.Fence
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	return &world{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		states: map[resource.Key]drive.Loaded{}, jobs: map[drive.JobKey]drive.LoadedJob{},
		specs: map[resource.Key]drive.SpecRecord{}, specSeq: map[resource.Key]uint64{},
		done: map[string]int{}, begun: map[string]int{},
		bp: &blueprint.Blueprint{
			Project: "p", Kind: "node", Digest: "d1",
			Lifecycle: blueprint.Lifecycle{
				Name: "node", Delete: "terminate", OnTargetChange: blueprint.Cancel, OnFailure: blueprint.Continue,
				Flows: []blueprint.Flow{
					{Verb: "start", Path: []string{"Allocation", "Configuration"}, Target: "Started"},
					{Verb: "terminate", Path: []string{"Leaving"}, Target: "Terminated"},
				},
			},
			Phases: []blueprint.Phase{
				{Name: "disk", States: []string{"Allocation"}},
				{Name: "net", States: []string{"Allocation"}, Interval: time.Second},
				{Name: "boot", States: []string{"Allocation"}, DependsOn: []string{"disk"}, Timeout: time.Hour},
				{Name: "files", States: []string{"Configuration"}, Retry: blueprint.Retry{Attempts: 3, Delay: time.Second}},
				{Name: "stop", States: []string{"Leaving"}},
			},
		},
	}
}

// store applies a record under compare and set, as the log does.
func (w *world) store(r drive.Record) (uint64, error) {
	switch {
	case r.Resource != nil:
		key := r.Resource.State.Key
		before := w.states[key]
		if before.Seq != r.Expect {
			return 0, drive.ErrLost
		}
		after := r.Resource.State
		require.Empty(w.t, audit.Resource(after, w.plan(after.Kind)), "%+v", after)
		prior := before.State
		if prior.Gone {
			prior = resource.State{UID: prior.UID, Gone: true, UpdatedAt: prior.UpdatedAt}
		}
		require.Empty(w.t, audit.Transition(prior, after))
		for i := range after.Phases {
			p := &after.Phases[i]
			if p.Status == resource.Completed {
				w.done[fmt.Sprintf("%s/%s/%d", after.UID, p.Name, p.Attempt)]++
			}
		}
		w.seq++
		w.events++
		w.states[key] = drive.Loaded{State: after, Seq: w.seq}
		if d := r.Resource.Event.Dispatch; d != nil {
			if n := w.done[fmt.Sprintf("%s/%s/%d", after.UID, d.Fence.Phase, d.Fence.Attempt)]; n > 0 {
				w.t.Fatalf("phase %s was handed out again in the attempt that completed", d.Fence.Phase)
			}
			w.work = append(w.work, work{key, d.Fence})
		}
	case r.Job != nil:
		k := drive.JobKey{Project: r.Job.Record.Project, ID: r.Job.Record.ID}
		if w.jobs[k].Seq != r.Expect {
			return 0, drive.ErrLost
		}
		require.True(w.t, job.May(r.Job.From, r.Job.Record.State), "job %s: %s to %s", k.ID, r.Job.From, r.Job.Record.State)
		w.seq++
		w.jobs[k] = drive.LoadedJob{Record: r.Job.Record, Seq: w.seq}
	case r.Spec != nil:
		if w.specSeq[r.Spec.Key] != r.Expect {
			return 0, drive.ErrLost
		}
		w.seq++
		w.specs[r.Spec.Key], w.specSeq[r.Spec.Key] = *r.Spec, w.seq
	}
	return w.seq, nil
}

// shell is one Loop's Port: what it sent and was not yet answered.
type shell struct {
	*world
	loop *drive.Loop
	sent []func()
	dead bool
	// behind: where the leader need not answer, a follower does that holds no job's record.
	behind bool
}

func (w *world) start() *shell {
	s := &shell{world: w}
	s.loop = drive.New(s, drive.Limits{PollLease: 5 * time.Second})
	for _, k := range slices.SortedFunc(maps.Keys(w.jobs), func(a, b drive.JobKey) int { return cmpString(a.ID, b.ID) }) {
		s.loop.AdoptJob(k, w.jobs[k])
	}
	s.read(s.loop.Adopt)
	s.loop.Begin(w.now)
	return s
}

func (s *shell) read(each func(resource.State, uint64, func(string) (drive.LoadedJob, bool))) {
	for _, k := range s.keys() {
		l := s.states[k]
		each(l.State, l.Seq, func(id string) (drive.LoadedJob, bool) {
			j, ok := s.jobs[drive.JobKey{Project: k.Project, ID: id}]
			return j, ok
		})
	}
	s.loop.Covered(s.seq)
}

func (s *shell) Look() error {
	s.looks++
	if s.unread {
		return errors.New("it cannot be read")
	}
	s.read(s.loop.Learn)
	return nil
}

func cmpString(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

func (w *world) keys() []resource.Key {
	return slices.SortedFunc(maps.Keys(w.states), func(a, b resource.Key) int { return cmpString(a.Name, b.Name) })
}

func (s *shell) Append(r drive.Record, done func(uint64, error)) {
	s.sent = append(s.sent, func() {
		seq, err := s.store(r)
		if s.lost {
			seq, err = 0, drive.ErrLost
		}
		if !s.answers && s.random.IntN(50) == 0 { // the answer is lost, whether it was stored or not
			seq, err = 0, drive.ErrLost
		}
		if !s.dead {
			done(seq, err)
		}
	})
}

// answer takes the oldest append.
func (s *shell) answer() bool {
	if len(s.sent) == 0 {
		return false
	}
	f := s.sent[0]
	s.sent = s.sent[1:]
	f()
	return true
}

// kill drops the Loop; of what it sent, some reaches the log all the same.
func (s *shell) kill() {
	s.dead = true
	for range s.random.IntN(len(s.sent) + 1) {
		s.answer()
	}
	s.sent = nil
}

func (s *shell) Load(keys []resource.Key, jobs []drive.JobKey, fresh bool) ([]drive.Loaded, []drive.LoadedJob, error) {
	if s.unread {
		return nil, nil, errors.New("no answer")
	}
	var l []drive.Loaded
	for _, k := range keys {
		if old, ok := s.old[k]; ok && !fresh {
			l = append(l, old)
			continue
		}
		l = append(l, s.states[k])
	}
	var j []drive.LoadedJob
	for _, k := range jobs {
		if s.behind && !fresh {
			j = append(j, drive.LoadedJob{})
			continue
		}
		j = append(j, s.jobs[k])
	}
	s.asked += len(jobs)
	if f := s.world.read; f != nil {
		s.world.read = nil
		f()
	}
	return l, j, nil
}

func (s *shell) Blueprint(_, _, digest string) (*blueprint.Blueprint, error) {
	for _, bp := range append([]*blueprint.Blueprint{s.bp}, s.kinds...) {
		if bp.Digest == digest {
			return bp, nil
		}
	}
	return nil, drive.ErrNotFound
}

func (s *shell) PresentBlueprint(_, kind string, _ bool) (drive.LoadedBlueprint, error) {
	return drive.LoadedBlueprint{Blueprint: s.plan(kind), Generation: 1, Seq: 1}, nil
}

// plan is the blueprint of a kind; all kinds but a tree's are nodes.
func (w *world) plan(kind string) *blueprint.Blueprint {
	for _, bp := range w.kinds {
		if bp.Kind == kind {
			return bp
		}
	}
	return w.bp
}

func (s *shell) AppendBatch(rs []drive.Record, done func(uint64, error)) {
	s.sent = append(s.sent, func() {
		var err error
		for _, r := range rs {
			if s.states[r.Resource.State.Key].Seq != r.Expect {
				err = drive.ErrLost // nothing is stored
			}
		}
		var seq uint64
		for _, r := range rs {
			if err == nil {
				seq, err = s.store(r)
				require.NoError(s.t, err)
			}
		}
		if !s.answers && s.random.IntN(20) == 0 {
			seq, err = 0, drive.ErrLost
		}
		if !s.dead {
			done(seq, err)
		}
	})
}

func (s *shell) Items(*blueprint.Phase, []byte) ([]children.Item, error) { return s.items, nil }

func (s *shell) ChildUID(key resource.Key, jobID string, at time.Time) string {
	return "uid-" + key.Name + "-" + jobID + "-" + at.Format(time.RFC3339Nano)
}

func (s *shell) Spec(key resource.Key, digest string) ([]byte, error) {
	if s.specs[key].Digest != digest {
		return nil, drive.ErrNotFound
	}
	return []byte(s.specs[key].JSON), nil
}

func (s *shell) SpecSeq(key resource.Key) (uint64, error)           { return s.specSeq[key], nil }
func (s *shell) TrimSpecs(key resource.Key)                         { s.trims = append(s.trims, key) }
func (s *shell) When(string, []byte, *resource.State) (bool, error) { return true, nil }
func (s *shell) Poll(st *resource.State, f resource.Fence, _ string) {
	s.work = append(s.work, work{st.Key, f})
}
func (s *shell) EnsurePhases(*blueprint.Blueprint) {}

// Blueprints are deleted in the tests of pkg/partition.
func (s *shell) Users(string, string, time.Duration, func(drive.Users, error)) {}
func (s *shell) ForgetBlueprint(string, string, uint64, func(error))           {}
func (s *shell) ForgetResource(key resource.Key, seq uint64, done func(error)) {
	s.sent = append(s.sent, func() {
		err := drive.ErrLost
		if s.states[key].Seq == seq {
			delete(s.states, key)
			delete(s.specs, key)
			delete(s.specSeq, key)
			err = nil
		}
		if !s.dead {
			done(err)
		}
	})
}

func (s *shell) ForgetJob(k drive.JobKey, _ uint64, done func(error)) {
	s.sent = append(s.sent, func() {
		delete(s.jobs, k)
		if !s.dead {
			done(nil)
		}
	})
}
func (s *shell) Note(resource.Key, resource.Input, []resource.Note) {}

func (s *shell) command(name, verb, id string) *resource.Reply {
	s.t.Helper()
	return s.apply(name, verb, id, "s1")
}

// apply sends a command with a spec of this digest.
func (s *shell) apply(name, verb, id, spec string) *resource.Reply {
	var got *resource.Reply
	key := resource.Key{Project: "p", Kind: "node", Name: name}
	c := &resource.Command{
		Key: key, Verb: verb, RequestID: id, JobID: "job-" + name + "-" + id, Digest: verb,
		NewUID: "uid-" + name + "-" + id + "-" + s.now.Format(time.RFC3339Nano), SpecDigest: spec,
	}
	s.loop.Offer([]drive.Input{{
		Key: key, Input: resource.Input{Kind: resource.OnCommand, At: s.now, Command: c}, Spec: []byte("{}"),
		Reply: func(r resource.Reply) { got = &r },
		Back:  func(error) {},
	}})
	for got == nil && s.answer() {
	}
	return got
}

func (s *shell) offerResult(key resource.Key, r resource.Result) {
	s.loop.Offer([]drive.Input{{
		Key: key, Input: resource.Input{Kind: resource.OnResult, At: s.now, Result: &r},
		Settle: func() {}, Back: func(error) { s.results, s.resKeys = append(s.results, r), append(s.resKeys, key) },
		Aside: func(reason string) { s.t.Fatalf("set aside: %s", reason) },
	}})
}

// settle lets everything that is out be answered, and workers complete what they have, until nothing is left to do.
func (s *shell) settle() {
	for range 100_000 {
		switch {
		case s.answer():
		case len(s.work) > 0:
			wk := s.work[0]
			s.work = s.work[1:]
			s.offerResult(wk.key, resource.Result{Fence: wk.fence, Outcome: resource.OutcomeCompleted})
		case !s.loop.NextDue().IsZero():
			s.now = later(s.now, s.loop.NextDue())
			s.loop.Tick(s.now)
		default:
			return
		}
	}
	s.t.Fatal("it does not come to rest")
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func TestFromNothingToStartedAndAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s := w.start()
	require.Nil(t, s.command("a", "apply", "1").Refused)
	require.Nil(t, s.command("a", "start", "2").Refused)
	s.settle()
	key := resource.Key{Project: "p", Kind: "node", Name: "a"}
	require.Equal(t, "Started", w.states[key].State.State)
	require.Equal(t, job.Succeeded, w.jobs[drive.JobKey{Project: "p", ID: "job-a-2"}].Record.State)
	require.Nil(t, s.command("a", "delete", "3").Refused)
	s.settle()
	require.NotContains(t, w.states, key, "a deleted resource is forgotten")
	require.Equal(t, job.Succeeded, w.jobs[drive.JobKey{Project: "p", ID: "job-a-3"}].Record.State)
	require.Nil(t, s.command("a", "apply", "4").Refused, "the name is free again")
}

func TestTheSameRequestIsTheSameJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	s := w.start()
	first := s.command("a", "apply", "1")
	events := w.events
	require.Equal(t, first, s.command("a", "apply", "1"))
	require.Equal(t, resource.Conflict, s.command("a", "start", "1").Refused.Code)
	require.Equal(t, events, w.events)
	for i := range 6 { // the state forgets ended jobs, the job's own record does not
		require.Nil(t, s.command("a", "apply", fmt.Sprint("more", i)).Refused)
	}
	s.settle()
	events = w.events
	require.Equal(t, first, s.command("a", "apply", "1"))
	require.Equal(t, events, w.events)
}

func TestOldSpecsAreTrimmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	s := w.start()
	for i := range 3 * drive.SpecsKept {
		require.Nil(t, s.apply("a", "apply", fmt.Sprint("c", i), fmt.Sprint("spec", i)).Refused)
		require.Nil(t, s.apply("a", "apply", fmt.Sprint("same", i), fmt.Sprint("spec", i)).Refused)
	}
	require.Len(t, w.trims, 3)
}

// startPending starts resource a and answers its first two phases with pending.
func (s *shell) startPending() {
	s.t.Helper()
	require.Nil(s.t, s.command("a", "apply", "1").Refused)
	require.Nil(s.t, s.command("a", "start", "2").Refused)
	for s.answer() {
	}
	for _, wk := range s.work {
		s.offerResult(wk.key, resource.Result{Fence: wk.fence, Outcome: resource.OutcomePending})
	}
	s.work = nil
	for s.answer() {
	}
}

// TestTakeoverArmsTheDueTimes: no sweep comes here, so only the heap that the takeover filled can call the phase again.
func TestTakeoverArmsTheDueTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	s := w.start()
	s.startPending()
	s.kill()
	next := w.start()
	require.False(t, next.loop.NextDue().IsZero())
	require.Empty(t, w.work)
	w.now = later(w.now, next.loop.NextDue()).Add(blueprint.IntervalDefault)
	next.loop.Tick(w.now)
	require.Len(t, w.work, 2, "both pending phases are polled")
}

// TestADeadlineEndsAPollThatIsOut (simulator, seed 54763307861436): whoever has the poll of a phase has it no longer than until the
// phase's deadline. No sweep comes here.
func TestADeadlineEndsAPollThatIsOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 7)
	w.answers = true
	w.bp.Phases[0].Timeout = 40 * time.Second
	s := &shell{world: w}
	s.loop = drive.New(s, drive.Limits{PollLease: time.Hour})
	began := w.now
	s.startPending()
	s = &shell{world: w} // who takes over knows the time of the poll alone
	s.loop = drive.New(s, drive.Limits{PollLease: time.Hour})
	s.read(s.loop.Adopt)
	s.loop.Begin(w.now)
	w.now = w.now.Add(blueprint.IntervalDefault)
	s.loop.Tick(w.now)
	require.Len(t, w.work, 2, "both pending phases are polled")
	for i := 0; w.now.Before(began.Add(40*time.Second)) && i < 1000; i++ {
		w.now = later(w.now, s.loop.NextDue())
		s.loop.Tick(w.now)
		for s.answer() {
		}
	}
	require.Equal(t, began.Add(40*time.Second), w.now)
	key := resource.Key{Project: "p", Kind: "node", Name: "a"}
	state := w.states[key].State
	require.Equal(t, resource.Failed, state.Phase("disk").Status)
}

// TestMoreSleepersThanLanes: phases that sleep and fell due together, of more resources than are kept in memory, are each
// polled once in a lease. Every load of one finds a time in its state that is past, and makes another one go.
func TestMoreSleepersThanLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 21)
	w.answers = true
	s := &shell{world: w}
	s.loop = drive.New(s, drive.Limits{PollLease: 20 * time.Second, CachedStates: 1})
	for _, name := range []string{"a", "b", "c"} {
		require.Nil(t, s.command(name, "apply", "1").Refused)
		require.Nil(t, s.command(name, "start", "2").Refused)
		for s.answer() {
		}
	}
	for _, wk := range w.work {
		s.offerResult(wk.key, resource.Result{Fence: wk.fence, Outcome: resource.OutcomePending})
		for s.answer() {
		}
	}
	sleeping := len(w.work)
	w.work = nil
	w.now = w.now.Add(time.Minute)
	for range 19 { // seconds
		for range 50 {
			s.loop.Tick(w.now)
		}
		w.now = w.now.Add(time.Second)
	}
	require.Len(t, w.work, sleeping)
	polled := w.work
	w.work = nil
	for _, wk := range polled { // an answer that changes nothing
		s.offerResult(wk.key, resource.Result{Fence: wk.fence, Outcome: resource.OutcomePending})
	}
	for range 50 {
		s.loop.Tick(w.now)
	}
	require.Empty(t, w.work, "none is due before its interval has passed")
	s.loop.Tick(w.now.Add(blueprint.IntervalDefault))
	require.Len(t, w.work, sleeping)
}

// TestADueTimeSurvivesALogThatCannotBeRead: no sweep comes here either.
func TestADueTimeSurvivesALogThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8)
	s := &shell{world: w}
	s.loop = drive.New(s, drive.Limits{PollLease: 5 * time.Second, CachedStates: 1})
	s.startPending()
	for _, other := range []string{"b", "c"} { // so that the first is no longer in memory
		require.Nil(t, s.command(other, "apply", "1").Refused)
		for s.answer() {
		}
	}
	w.unread = true
	w.now = w.now.Add(time.Minute)
	s.loop.Tick(w.now)
	require.Empty(t, w.work)
	w.unread = false
	for range 3 {
		w.now = w.now.Add(time.Second)
		s.loop.Tick(w.now)
	}
	require.Len(t, w.work, 2, "both pending phases are polled")
}

// TestTakeoverCompletesTheRecords: a crash between a resource's event and its job's leaves no job behind, though nobody
// asks the resource for anything any more.
func TestTakeoverCompletesTheRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 7)
	s := w.start()
	require.Nil(t, s.command("a", "apply", "1").Refused)
	s.settle()
	id := drive.JobKey{Project: "p", ID: "job-a-1"}
	delete(w.jobs, id)
	s.dead = true
	next := w.start()
	for next.answer() {
	}
	require.Equal(t, job.Succeeded, w.jobs[id].Record.State)
}

// TestAResultThatCannotBeDecidedComesAgain: a blueprint that cannot be read for now must not cost a result.
func TestAResultThatCannotBeDecidedComesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	s := w.start()
	require.Nil(t, s.command("a", "apply", "1").Refused)
	require.Nil(t, s.command("a", "start", "2").Refused)
	for s.answer() {
	}
	digest := w.bp.Digest
	w.bp.Digest = "another"
	wk := w.work[0]
	back := 0
	s.loop.Offer([]drive.Input{{
		Key: wk.key, Input: resource.Input{Kind: resource.OnResult, At: w.now, Result: &resource.Result{Fence: wk.fence, Outcome: resource.OutcomeCompleted}},
		Settle: func() { t.Fatal("settled") }, Back: func(error) { back++ },
	}})
	require.Equal(t, 1, back)
	w.bp.Digest = digest
	s.settle()
	require.Equal(t, "Started", w.states[wk.key].State.State)
}

func TestWhatCannotBeReadIsHandedBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	s := w.start()
	w.unread = true
	back := 0
	key := resource.Key{Project: "p", Kind: "node", Name: "a"}
	s.loop.Offer([]drive.Input{{Key: key, Input: resource.Input{Kind: resource.OnResult, At: w.now, Result: &resource.Result{}}, Back: func(error) { back++ }}})
	require.Equal(t, 1, back)
	require.True(t, s.loop.Idle())
}

// TestCrashesAndRivals drives many resources while Loops are killed at random points, sometimes two serve the
// partition at once, answers are lost, results are doubled and come late, and commands are repeated. Afterwards every
// accepted job is final, and the records agree with the resources (promises 1, 4, 5, 8).
func TestCrashesAndRivals(t *testing.T) {
	t.Parallel()
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			t.Parallel()
			crashesAndRivals(t, seed)
		})
	}
}

func crashesAndRivals(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	shells := []*shell{w.start()}
	accepted := map[string]bool{}
	r := w.random
	for step := range 3000 {
		s := shells[r.IntN(len(shells))]
		switch n := r.IntN(100); {
		case n < 40:
			s.answer()
		case n < 70 && len(w.work) > 0:
			i := r.IntN(len(w.work))
			wk := w.work[i]
			if r.IntN(10) > 0 { // else it is answered once more, later
				w.work = slices.Delete(w.work, i, i+1)
			}
			outcomes := []resource.Outcome{
				resource.OutcomeCompleted, resource.OutcomeCompleted, resource.OutcomeCompleted, resource.OutcomePending,
				resource.OutcomeRunning, resource.OutcomeNotStarted, resource.OutcomeFailed,
			}
			res := resource.Result{Fence: wk.fence, Outcome: outcomes[r.IntN(len(outcomes))], Retryable: r.IntN(2) == 0}
			s.offerResult(wk.key, res)
			if res.Outcome == resource.OutcomeRunning {
				w.work = append(w.work, wk)
			}
		case n < 85:
			name := fmt.Sprint("n", r.IntN(6))
			verb := []string{"apply", "start", "start", "terminate", "retry", "delete", "cancel", "interrupt"}[r.IntN(8)]
			id := fmt.Sprint(verb, r.IntN(40))
			if reply := s.command(name, verb, id); reply != nil && reply.Refused == nil {
				accepted[reply.JobID] = true
			}
		case n < 90:
			w.now = w.now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			s.loop.Tick(w.now)
		case n < 92:
			s.loop.Sweep(w.now, func(string, string, resource.Key) bool { return len(w.work) == 0 })
		case n < 94 && len(shells) == 1:
			shells = append(shells, w.start())
		case n < 97:
			s.kill()
			shells = slices.DeleteFunc(shells, func(x *shell) bool { return x == s })
			if len(shells) == 0 {
				shells = append(shells, w.start())
			}
		case n < 98 && len(w.work) > 0 && step%7 == 0:
			w.work = w.work[1:] // work that is nowhere to be found: the sweep's business
		}
	}
	for _, s := range shells {
		s.kill()
	}
	s := w.start()
	for range 40 { // time passes, sweeps come, workers answer: everything must end
		s.settle()
		w.now = w.now.Add(20 * time.Second)
		for i := range w.resKeys {
			s.offerResult(w.resKeys[i], w.results[i])
		}
		w.resKeys, w.results = nil, nil
		s.loop.Sweep(w.now, func(string, string, resource.Key) bool { return true })
	}
	s.settle()
	for _, key := range w.keys() {
		st := w.states[key].State
		if j := st.Job(); j != nil {
			t.Fatalf("job %s of %s is %s for ever: %+v", j.ID, key, j.State, resource.Why(&st))
		}
		for i := range st.Jobs {
			rec := w.jobs[drive.JobKey{Project: "p", ID: st.Jobs[i].ID}].Record
			require.Equal(t, st.Jobs[i].State, rec.State, "the record of job %s follows", st.Jobs[i].ID)
		}
	}
	for id := range accepted {
		rec, ok := w.jobs[drive.JobKey{Project: "p", ID: id}]
		require.True(t, ok, "accepted job %s has a record", id)
		require.True(t, rec.Record.State.Final(), "accepted job %s is %s", id, rec.Record.State)
	}
}
