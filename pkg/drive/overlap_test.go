package drive_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// The stories here were told by the simulator (pkg/sim): an owner whose time overlaps with another's.

// drain lets all appends be answered.
func (s *shell) drain() {
	for s.answer() {
	}
}

// accepted sends a command that must be accepted, and lets its record follow.
func (s *shell) accepted(name, verb, id string) {
	s.t.Helper()
	reply := s.command(name, verb, id)
	require.NotNil(s.t, reply)
	require.Nil(s.t, reply.Refused)
	s.drain()
}

// TestAForgottenJobStaysForgotten (simulator, seed 0): a resource remembers its last jobs for longer than their records
// are kept; a takeover must not write the records anew.
func TestAForgottenJobStaysForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	s := w.start()
	s.accepted("a", "apply", "1")
	k := drive.JobKey{Project: "p", ID: "job-a-1"}
	require.Contains(t, w.jobs, k)
	w.now = w.now.Add(job.RetentionDefault + time.Second)
	s.loop.Sweep(w.now, nil)
	s.drain()
	require.NotContains(t, w.jobs, k)
	s.kill()
	next := w.start()
	next.drain()
	require.NotContains(t, w.jobs, k)
	next.accepted("a", "start", "2") // nor does the next load of the resource
	require.NotContains(t, w.jobs, k)
}

// TestAnAppendThatNobodyRemembers (simulator, seed 91977187651132): the answer of an append is lost, the log cannot be read,
// and the command is handed back. If it does not come again, the job that it made has no record but by a sweep.
func TestAnAppendThatNobodyRemembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 9)
	w.answers = true
	s := w.start()
	s.accepted("a", "apply", "1")
	w.lost, w.unread = true, true
	handedBack := false
	key := resource.Key{Project: "p", Kind: "node", Name: "a"}
	s.loop.Offer([]drive.Input{{
		Key: key, Input: resource.Input{Kind: resource.OnCommand, At: w.now, Command: &resource.Command{
			Key: key, Verb: "start", RequestID: "2", JobID: "job-a-2", Digest: "start",
		}},
		Reply: func(resource.Reply) {}, Back: func(error) { handedBack = true },
	}})
	s.drain()
	require.True(t, handedBack)
	stored := w.states[key].State
	require.NotNil(t, stored.JobByID("job-a-2"))
	w.lost, w.unread = false, false
	s.loop.Sweep(w.now, nil)
	s.drain()
	require.Contains(t, w.jobs, drive.JobKey{Project: "p", ID: "job-a-2"})
}

// TestAStaleOwnerTurnsNothingAway (simulator, seeds 2, 10 and 11): what an owner has in memory may be from before another
// owner's time. Before it calls a result old, or refuses a command, it reads the log.
func TestAStaleOwnerTurnsNothingAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	stale := w.start()
	stale.accepted("a", "apply", "1")
	other := w.start()
	other.accepted("a", "start", "2")
	require.NotEmpty(t, w.work)
	call := w.work[0]
	stale.offerResult(call.key, resource.Result{Fence: call.fence, Outcome: resource.OutcomeCompleted})
	stale.drain()
	state := w.states[call.key].State
	require.Equal(t, resource.Completed, state.Phase(call.fence.Phase).Status)

	stale.loop.Offer([]drive.Input{{Key: resource.Key{Project: "p", Kind: "node", Name: "b"}, Input: resource.Input{Kind: resource.OnContinue, At: w.now}}})
	other.accepted("b", "apply", "3")
	reply := stale.command("b", "start", "4") // it has b in memory, as not there
	require.NotNil(t, reply)
	require.Nil(t, reply.Refused)
}

// TestAPollThatChangedNothingMayEndACancellation (simulator, seed 273045513990907): an owner is asked what became of a poll. By
// what it knows the answer changes nothing; but another owner has canceled the call, and waits for its answer.
func TestAPollThatChangedNothingMayEndACancellation(t *testing.T) {
	t.Parallel()
	for _, outcome := range []resource.Outcome{resource.OutcomePending, resource.OutcomeNotStarted} {
		w := newWorld(t, 9)
		w.answers = true
		stale := w.start()
		stale.startPending()
		w.work = nil
		other := w.start()
		w.now = w.now.Add(time.Minute)
		other.loop.Tick(w.now)
		require.NotEmpty(t, w.work, "it polls")
		other.accepted("a", "cancel", "9")
		call := w.work[0]
		state := w.states[call.key].State
		require.Equal(t, resource.Canceling, state.Phase(call.fence.Phase).Status)
		stale.offerResult(call.key, resource.Result{Fence: call.fence, Outcome: outcome})
		stale.drain()
		state = w.states[call.key].State
		require.Equal(t, resource.Canceled, state.Phase(call.fence.Phase).Status)
	}
}

// TestAnOwnerLearnsWhatAnotherWrote (simulator, seeds 1, 2 and 10 among many): what another owner wrote after this one's
// takeover is known to nobody who lives, until this one looks.
func TestAnOwnerLearnsWhatAnotherWrote(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 9)
	s := w.start()
	other := w.start()
	other.startPending() // both phases sleep: nobody but their owner calls them again
	other.accepted("b", "apply", "b1")
	lagging := drive.JobKey{Project: "p", ID: "job-b-b1"}
	delete(w.jobs, lagging) // it died before its record followed
	other.kill()
	w.now = w.now.Add(time.Minute)
	s.loop.Tick(w.now)
	require.Empty(t, w.work)

	for k, j := range w.jobs {
		s.loop.AdoptJob(k, j)
	}
	for _, k := range w.keys() {
		s.loop.Learn(w.states[k].State, w.states[k].Seq, func(id string) (drive.LoadedJob, bool) {
			j, ok := w.jobs[drive.JobKey{Project: k.Project, ID: id}]
			return j, ok
		})
	}
	s.drain()
	require.Equal(t, job.Succeeded, w.jobs[lagging].Record.State)
	s.loop.Tick(w.now)
	require.Len(t, w.work, 2, "both pending phases are polled")
}

// TestLearningDisturbsNothing: what the owner knows better, or is at work on, stays.
func TestLearningDisturbsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	s := w.start()
	s.accepted("a", "apply", "1")
	old := w.states[resource.Key{Project: "p", Kind: "node", Name: "a"}]
	none := func(string) (drive.LoadedJob, bool) { return drive.LoadedJob{}, false }
	s.accepted("a", "start", "2")
	s.loop.Learn(old.State, old.Seq, none) // older than what it has
	s.loop.Offer([]drive.Input{{Key: old.State.Key, Input: resource.Input{
		Kind: resource.OnCommand, At: w.now, Command: &resource.Command{Key: old.State.Key, Verb: "cancel", RequestID: "3", JobID: "job-a-3", Digest: "c"},
	}, Reply: func(resource.Reply) {}}})
	now := w.states[old.State.Key]
	s.loop.Learn(now.State, now.Seq, none) // an append is out
	s.settle()
	state := w.states[old.State.Key].State
	require.Nil(t, state.Job())
}
