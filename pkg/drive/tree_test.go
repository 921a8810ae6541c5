package drive_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// newForest is a world in which executions have deploy items.
func newForest(t *testing.T, seed uint64) *world {
	w := newWorld(t, seed)
	own := func(name, state string, do blueprint.Do) blueprint.Phase {
		return blueprint.Phase{
			Name: name, States: []string{state}, Executor: blueprint.Executor{Kind: blueprint.ExecutorChildren}, Children: &blueprint.Children{Do: do},
		}
	}
	w.kinds = []*blueprint.Blueprint{
		{
			Project: "p", Kind: "Execution", Digest: "execution1", Lifecycle: blueprint.Execution(),
			Phases: []blueprint.Phase{
				own("items", blueprint.Init, blueprint.DoApply), own("run", blueprint.Progressing, blueprint.DoRun),
				own("mark", blueprint.InitDelete, blueprint.DoMark), own("remove", blueprint.Deleting, blueprint.DoDelete),
			},
		},
		{
			Project: "p", Kind: "DeployItem", Digest: "item1", Lifecycle: blueprint.DeployItem(),
			Phases: []blueprint.Phase{
				{Name: "deploy", States: []string{blueprint.Progressing}, Executor: blueprint.Executor{Kind: "plugin"}},
				{Name: "uninstall", States: []string{blueprint.Deleting}, Executor: blueprint.Executor{Kind: "plugin"}},
			},
		},
	}
	return w
}

// draw makes n items, each depending on up to three earlier ones.
func (w *world) draw(n int, r *rand.Rand) {
	w.items = nil
	for i := range n {
		it := children.Item{Name: "i" + strconv.Itoa(i), Kind: "DeployItem", SpecDigest: "s1", Spec: "{}"}
		for range min(i, 3) {
			if on := "i" + strconv.Itoa(r.IntN(i)); r.IntN(2) == 0 && !slices.Contains(it.DependsOn, on) {
				it.DependsOn = append(it.DependsOn, on)
			}
		}
		w.items = append(w.items, it)
	}
}

var tree = resource.Key{Project: "p", Kind: "Execution", Name: "exec"}

func (s *shell) ask(verb, id string) *resource.Reply {
	s.t.Helper()
	var got *resource.Reply
	s.loop.Offer([]drive.Input{{
		Key: tree, Input: resource.Input{Kind: resource.OnCommand, At: s.now, Command: &resource.Command{
			Key: tree, Verb: verb, RequestID: id, JobID: "job-" + id, Digest: verb, NewUID: "uid-" + id, SpecDigest: "t" + id,
		}},
		Spec: []byte("{}"), Reply: func(r resource.Reply) { got = &r }, Back: func(error) {},
	}})
	for got == nil && s.answer() {
	}
	return got
}

func (w *world) kids() int {
	n := 0
	for k := range w.states {
		if k.Kind == "DeployItem" {
			n++
		}
	}
	return n
}

// TestATreeIsLinear: children made, run and deleted, at two sizes: what each costs must not grow with their number.
func TestATreeIsLinear(t *testing.T) {
	t.Parallel()
	cost := func(n int) (steps, events float64) {
		w := newForest(t, 7)
		w.draw(n, w.random)
		s := w.start()
		require.Nil(t, s.ask("apply", "1").Refused)
		require.Nil(t, s.ask("reconcile", "2").Refused)
		s.converge(drive.JobKey{Project: "p", ID: "job-2"})
		require.Equal(t, blueprint.Succeeded, w.states[tree].State.State, "%v", w.states[tree].State.Jobs)
		require.Equal(t, n, w.kids())
		require.Equal(t, uint32(n), w.states[tree].State.Children.Succeeded, "what the parent says at the end")
		require.Nil(t, s.ask("delete", "3").Refused)
		s.converge(drive.JobKey{Project: "p", ID: "job-3"})
		require.Zero(t, w.kids())
		require.NotContains(t, w.states, tree)
		stats := s.loop.Stats()
		return float64(stats.Steps) / float64(n), float64(stats.Events) / float64(n)
	}
	smallSteps, smallEvents := cost(100)
	largeSteps, largeEvents := cost(1000)
	require.LessOrEqual(t, largeSteps, 1.2*smallSteps)
	require.LessOrEqual(t, largeEvents, 1.2*smallEvents)
	t.Logf("a child costs %.1f steps and %.1f events; with 100 children %.1f and %.1f", largeSteps, largeEvents, smallSteps, smallEvents)
}

// TestTreesInCrashes: owners die with appends out, two work at once, answers are lost; the tree comes to its target and
// goes, and nothing is left of it.
func TestTreesInCrashes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newForest(t, seed)
			w.draw(1+w.random.IntN(25), w.random)
			s := w.start()
			verbs := []string{"apply", "reconcile", "apply", "reconcile", "delete"}
			for i, verb := range verbs {
				id := strconv.Itoa(i)
				if verb == "apply" && i > 1 {
					w.draw(1+w.random.IntN(25), w.random)
				}
				for s.ask(verb, id) == nil {
				}
				for range 4 {
					for range w.random.IntN(60) {
						s.stir()
					}
					switch w.random.IntN(3) {
					case 0:
						s.kill()
						s = w.start()
					case 1:
						rival := w.start()
						for range w.random.IntN(20) {
							rival.stir()
						}
						rival.kill()
					}
				}
				s.converge(drive.JobKey{Project: "p", ID: "job-" + id})
				if verb == "reconcile" {
					require.Equal(t, blueprint.Succeeded, w.states[tree].State.State, "%v", w.states[tree].State.Jobs)
					require.Equal(t, len(w.items), w.kids())
				}
			}
			require.Zero(t, w.kids())
		})
	}
}

// TestAChildHasOneParent: a child's name is taken by that of another parent's: the phase fails, and says whose it is.
func TestAChildHasOneParent(t *testing.T) {
	t.Parallel()
	w := newForest(t, 3)
	w.draw(3, w.random)
	s := w.start()
	taken := resource.Key{Project: "p", Kind: "DeployItem", Name: "exec/i1"}
	parent := resource.Parent{Kind: "Other", Name: "exec", UID: "u", RootKind: "Other", Item: "i1"}
	state, fx := resource.Step(resource.State{}, resource.Input{Kind: resource.OnParent, At: w.now, Parent: &resource.FromParent{
		Ask: resource.Adopt, Key: taken, Parent: parent, NewUID: "x", Item: children.Item{Name: "i1", Kind: "DeployItem", SpecDigest: "s"},
	}}, resource.Env{})
	require.NotNil(t, fx.Event)
	_, err := w.store(drive.Record{Resource: &drive.ResourceRecord{Event: *fx.Event, State: state, At: w.now}})
	require.NoError(t, err)
	require.Nil(t, s.ask("apply", "1").Refused)
	require.Nil(t, s.ask("reconcile", "2").Refused)
	s.settle()
	after := w.states[tree].State
	require.Equal(t, blueprint.Failed, after.State)
	require.Contains(t, after.FlowJob().Message, "child exec/i1 of kind DeployItem belongs to Other exec")
	require.Equal(t, 1, w.kids(), "a batch is stored as a whole, or not")
}

// TestAResultMeetsAnothersChild (simulator, seeds 191958544300984 and 191958544297741): a result is the first to find that a child
// has another parent. It was handed back for ever, and nothing else came to the parent.
func TestAResultMeetsAnothersChild(t *testing.T) {
	t.Parallel()
	w := newForest(t, 3)
	w.answers = true
	w.kinds[0].Phases = append(w.kinds[0].Phases, blueprint.Phase{Name: "prepare", States: []string{blueprint.Init}, Executor: blueprint.Executor{Kind: "plugin"}})
	w.draw(3, w.random)
	s := w.start()
	taken := resource.Key{Project: "p", Kind: "DeployItem", Name: "exec/i1"}
	parent := resource.Parent{Kind: "Other", Name: "exec", UID: "u", RootKind: "Other", Item: "i1"}
	state, fx := resource.Step(resource.State{}, resource.Input{Kind: resource.OnParent, At: w.now, Parent: &resource.FromParent{
		Ask: resource.Adopt, Key: taken, Parent: parent, NewUID: "x", Item: children.Item{Name: "i1", Kind: "DeployItem", SpecDigest: "s"},
	}}, resource.Env{})
	_, err := w.store(drive.Record{Resource: &drive.ResourceRecord{Event: *fx.Event, State: state, At: w.now}})
	require.NoError(t, err)
	require.Nil(t, s.ask("apply", "1").Refused)
	s.drain()
	w.unread = true // the parent's own step is put off
	require.Nil(t, s.ask("reconcile", "2").Refused)
	s.drain()
	w.unread = false
	require.Len(t, w.work, 1)
	call := w.work[0]
	w.work = nil
	for range 3 { // it comes again
		s.offerResult(call.key, resource.Result{Fence: call.fence, Outcome: resource.OutcomeCompleted})
		s.drain()
	}
	after := w.states[tree].State
	require.Equal(t, resource.Completed, after.Phase("prepare").Status)
	require.Equal(t, blueprint.Failed, after.State)
	require.Contains(t, after.FlowJob().Message, "belongs to Other exec")
}

// TestAnOwnerMeetsTheChildrenThatAnotherMade: of two owners at once one makes the children, and the other is asked to delete
// their parent. It knew of none.
func TestAnOwnerMeetsTheChildrenThatAnotherMade(t *testing.T) {
	t.Parallel()
	for _, marks := range []bool{true, false} {
		w := newForest(t, 11)
		w.answers = true
		if !marks { // then the phase that deletes is the first to look
			w.kinds[0].Phases = slices.DeleteFunc(w.kinds[0].Phases, func(p blueprint.Phase) bool { return p.Name == "mark" })
		}
		w.draw(5, w.random)
		s := w.start()
		require.Nil(t, s.ask("apply", "1").Refused)
		s.settle()
		other := w.start()
		require.Nil(t, other.ask("reconcile", "2").Refused)
		other.converge(drive.JobKey{Project: "p", ID: "job-2"})
		require.Equal(t, 5, w.kids())
		require.Zero(t, w.looks, "who made them knows them")
		require.Nil(t, s.ask("delete", "3").Refused)
		s.converge(drive.JobKey{Project: "p", ID: "job-3"})
		require.Zero(t, w.kids(), "nothing is left without its parent")
		require.Equal(t, 1, w.looks)
	}
}

// TestAnOwnerHearsOfAParentThatItIsAtWorkOn (simulator, seeds 273045513994859 and 273045514012823): while an owner decides on a
// request that another has answered, it reads the log, and finds that the parent is at a job. The step changes nothing; the
// other one dies, and nobody but this one will take the job to its end.
func TestAnOwnerHearsOfAParentThatItIsAtWorkOn(t *testing.T) {
	t.Parallel()
	w := newForest(t, 5)
	w.answers = true
	w.draw(3, w.random)
	s := w.start()
	require.Nil(t, s.ask("apply", "1").Refused)
	s.settle()
	other := w.start()
	require.Nil(t, other.ask("apply", "2").Refused) // s is no longer the last who wrote
	other.drain()
	reached := false
	answered := func() {
		reached = true
		require.Nil(t, other.ask("reconcile", "3").Refused)
		other.drain()
	}
	s.world.read = func() { s.world.read = answered } // what comes after the reading of the job's record
	require.Equal(t, &resource.Reply{JobID: "job-3"}, s.ask("reconcile", "3"))
	require.True(t, reached)
	other.kill()
	s.converge(drive.JobKey{Project: "p", ID: "job-3"})
	require.Equal(t, 3, w.kids())
}

// TestAChildIsStoppedOnlyForAParentThatIsDone (simulator, seed 273045513994859): an owner that was given a child's result does
// not know that the parent is at a job, which another owner began. It must not take the child for one that was left behind.
func TestAChildIsStoppedOnlyForAParentThatIsDone(t *testing.T) {
	t.Parallel()
	w := newForest(t, 5)
	w.answers = true
	w.draw(1, w.random)
	s := w.start()
	require.Nil(t, s.ask("apply", "1").Refused)
	s.settle()
	other := w.start()
	require.Nil(t, other.ask("reconcile", "2").Refused)
	other.drain()
	require.Len(t, w.work, 1)
	call := w.work[0]
	w.work = nil
	s.offerResult(call.key, resource.Result{Fence: call.fence, Outcome: resource.OutcomePending})
	s.drain()
	other.kill()
	s.loop.Sweep(s.now, func(string, string, resource.Key) bool { return false })
	s.drain()
	child := w.states[call.key].State
	require.Equal(t, job.Running, child.JobByID("job-2").State)

	parent := w.states[tree]
	delete(w.states, tree)
	heir := w.start()
	heir.loop.Sweep(s.now, func(string, string, resource.Key) bool { return false })
	heir.drain()
	child = w.states[call.key].State
	require.Equal(t, job.Canceled, child.JobByID("job-2").State, "without its parent it is stopped")
	heir.kill()

	w.states[tree] = parent
	other = w.start()
	require.Nil(t, other.ask("retry", "3").Refused)
	other.converge(drive.JobKey{Project: "p", ID: "job-3"})
}

// stir does one thing: an answer, or a worker's.
func (s *shell) stir() {
	if len(s.work) > 0 && s.random.IntN(2) == 0 {
		i := s.random.IntN(len(s.work))
		wk := s.work[i]
		s.work = append(s.work[:i], s.work[i+1:]...)
		s.offerResult(wk.key, resource.Result{Fence: wk.fence, Outcome: resource.OutcomeCompleted})
		return
	}
	s.answer()
}

// converge lets time pass, with its sweeps, until a job has ended.
func (s *shell) converge(k drive.JobKey) {
	s.t.Helper()
	for range 60 {
		s.settle()
		if j, ok := s.jobs[k]; ok && j.Record.State.Final() {
			require.Equal(s.t, job.Succeeded, j.Record.State, "%+v", j.Record)
			s.loop.Sweep(s.now, func(string, string, resource.Key) bool { return len(s.work) == 0 })
			s.settle()
			return
		}
		s.now = s.now.Add(20 * time.Second)
		s.loop.Tick(s.now)
		s.loop.Sweep(s.now, func(string, string, resource.Key) bool { return len(s.work) == 0 })
	}
	p := s.states[tree].State
	s.t.Fatalf("job %s does not end: %v", k.ID, resource.Why(&p))
}

// TestAParentSaysHowItsChildrenStand: at most once a second, however many of them move, and at the latest a second after
// one has; and it names who failed while the others are still at work.
func TestAParentSaysHowItsChildrenStand(t *testing.T) {
	t.Parallel()
	w := newForest(t, 5)
	w.answers = true
	w.draw(50, w.random)
	for i := range w.items {
		w.items[i].DependsOn = nil
	}
	s := w.start()
	require.Nil(t, s.ask("apply", "1").Refused)
	require.Nil(t, s.ask("reconcile", "2").Refused)
	s.deliver()
	parent := func() resource.State { return w.states[tree].State }
	require.Len(t, w.work, 50, "all are handed out")
	first := parent().Revision

	at := func(outcome resource.Outcome, n int) {
		for range n {
			wk := w.work[0]
			w.work = w.work[1:]
			s.offerResult(wk.key, resource.Result{Fence: wk.fence, Outcome: outcome})
			s.deliver()
		}
	}
	at(resource.OutcomeCompleted, 30)
	require.Equal(t, first, parent().Revision, "none of 30 that finish within a second is worth an event of the parent")
	require.False(t, s.loop.NextDue().IsZero())
	s.now = s.now.Add(resource.RecountEvery)
	s.loop.Tick(s.now)
	s.deliver()
	require.Equal(t, first+1, parent().Revision)
	require.Equal(t, uint32(30), parent().Children.Succeeded)
	require.Equal(t, uint32(20), parent().Children.Running)

	s.loop.Tick(s.now.Add(time.Minute))
	s.deliver()
	require.Equal(t, first+1, parent().Revision, "what has not changed is not said again")

	s.now = s.now.Add(time.Hour) // it is long since the last event: the next move is said at once
	broken := w.work[0].key.Name
	at(resource.OutcomeFailed, 1)
	require.Equal(t, first+2, parent().Revision)
	require.Contains(t, resource.Why(ref(parent()))[0].Text, broken[len("exec/"):]+" failed")
	require.Contains(t, resource.Why(ref(parent()))[0].Text, "nothing more begins")
}

func ref(s resource.State) *resource.State { return &s }

// deliver answers all appends; workers do nothing.
func (s *shell) deliver() {
	for s.answer() {
	}
}
