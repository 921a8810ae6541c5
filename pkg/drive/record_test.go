package drive_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestARecordThatCouldNotBeReadFollowsWithTheSweep (simulator): a takeover finds that a job's record is missing, and
// loses the append of it; the log cannot be read just then. The resource is at rest, so that only the sweep is left.
func TestARecordThatCouldNotBeReadFollowsWithTheSweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 11)
	s := w.start()
	s.accepted("a", "apply", "1")
	s.kill()
	k := drive.JobKey{Project: "p", ID: "job-a-1"}
	delete(w.jobs, k)
	next := w.start()
	w.seq++
	w.jobs[k] = drive.LoadedJob{Record: job.Record{Gone: true}, Seq: w.seq} // so that the append is lost
	w.unread = true
	next.drain()
	w.unread = false
	w.now = w.now.Add(20 * time.Second)
	next.loop.Sweep(w.now, nil)
	next.drain()
	require.Equal(t, job.Succeeded, w.jobs[k].Record.State)
}

// TestAJobIsNotDroppedBeforeItsRecord (simulator): a resource remembers few jobs that have ended. While the record of one
// is on its way, the step that would drop it waits; else a crash would lose the job, and its request would be new.
func TestAJobIsNotDroppedBeforeItsRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 12)
	s := w.start()
	require.Nil(t, s.command("a", "apply", "1").Refused)
	require.Len(t, s.sent, 1)
	record := s.sent[0]
	s.sent = nil // it is under way
	for range resource.FinishedJobsMax - 1 {
		s.accepted("a", "apply", "2")
	}
	key := resource.Key{Project: "p", Kind: "node", Name: "a"}
	require.Nil(t, s.command("a", "apply", "3"), "it waits")
	state := w.states[key].State
	require.NotNil(t, state.JobByID("job-a-1"))

	s.sent = append(s.sent, record)
	s.drain()
	require.Equal(t, job.Succeeded, w.jobs[drive.JobKey{Project: "p", ID: "job-a-1"}].Record.State)
	state = w.states[key].State
	require.NotNil(t, state.JobByID("job-a-3"))
	require.Nil(t, state.JobByID("job-a-1"))
}

// TestATakeoverOfManyCompletesTheRecords (simulator, seed 61785673625124): there are more resources whose jobs' records
// are behind than are kept in memory.
func TestATakeoverOfManyCompletesTheRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 13)
	s := w.start()
	for _, name := range []string{"a", "b", "c"} {
		s.accepted(name, "apply", "1")
	}
	s.kill()
	clear(w.jobs)
	next := &shell{world: w}
	next.loop = drive.New(next, drive.Limits{CachedStates: 1})
	for _, k := range w.keys() {
		next.loop.Adopt(w.states[k].State, w.states[k].Seq, func(string) (drive.LoadedJob, bool) { return drive.LoadedJob{}, false })
	}
	next.loop.Begin(w.now)
	next.drain()
	w.now = w.now.Add(20 * time.Second)
	next.loop.Sweep(w.now, nil)
	next.drain()
	for _, name := range []string{"a", "b", "c"} {
		require.Equal(t, job.Succeeded, w.jobs[drive.JobKey{Project: "p", ID: "job-" + name + "-1"}].Record.State)
	}
}
