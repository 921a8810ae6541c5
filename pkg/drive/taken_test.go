package drive_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// A command for a resource that nobody else has written to asks the log for no job; one that was sent before is found
// all the same, however long ago it ended.
func TestACommandForAKnownResourceReadsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.answers = true
	first := w.start()
	require.Nil(t, first.command("a", "apply", "1").Refused)
	ids := []string{"2", "3", "4", "5", "6", "7"}
	drive := func(s *shell, ids []string) {
		for i, id := range ids {
			verb := []string{"start", "terminate"}[i%2]
			require.Nil(t, s.command("a", verb, id).Refused)
			s.settle()
		}
	}
	before := w.asked
	drive(first, ids)
	require.Equal(t, before, w.asked, "records of jobs were read")
	// So after a takeover, once the resource is in memory again.
	first.kill()
	second := w.start()
	drive(second, []string{"8"})
	before = w.asked
	require.Nil(t, second.command("a", "terminate", "9").Refused)
	second.settle()
	drive(second, []string{"10", "11"})
	require.Equal(t, before, w.asked, "records of jobs were read")

	for i, id := range append(ids, "8", "9", "10", "11") {
		events := w.events
		reply := second.command("a", []string{"start", "terminate"}[i%2], id)
		require.Nil(t, reply.Refused)
		require.Equal(t, "job-a-"+id, reply.JobID)
		require.Equal(t, events, w.events, "request %s had a second effect", id)
		require.Equal(t, resource.Conflict, second.command("a", []string{"terminate", "start"}[i%2], id).Refused.Code)
	}
}

// Two owners at once: what the other one has accepted, driven and let go of is known again by the one that was not told.
func TestWhatARivalAcceptedIsNotTakenForNew(t *testing.T) {
	t.Parallel()
	for name, remembers := range map[string]bool{"the resource is in memory": true, "it is not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.answers = true
			slow := w.start()
			creator := slow
			if !remembers {
				creator = w.start()
			}
			require.Nil(t, creator.command("a", "apply", "1").Refused)
			creator.settle()
			rival := w.start()
			for i, id := range []string{"2", "3", "4", "5", "6", "7"} {
				require.Nil(t, rival.command("a", []string{"start", "terminate"}[i%2], id).Refused)
				rival.settle()
			}
			state := w.states[resource.Key{Project: "p", Kind: "node", Name: "a"}].State
			require.Nil(t, state.JobByID("job-a-2"), "the state still remembers it: this tests nothing")
			events := w.events
			reply := slow.command("a", "start", "2")
			require.Nil(t, reply.Refused)
			require.Equal(t, "job-a-2", reply.JobID)
			slow.settle()
			require.Equal(t, events, w.events, "the request had a second effect")
		})
	}
}

// Past the limit every command asks again.
func TestTooManyIDsAreNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.answers = true
	s := &shell{world: w}
	s.loop = drive.New(s, drive.Limits{TakenIDs: 3})
	s.loop.Begin(w.now)
	require.Nil(t, s.command("a", "apply", "1").Refused)
	for i, id := range []string{"2", "3", "4", "5", "6", "7"} {
		require.Nil(t, s.command("a", []string{"start", "terminate"}[i%2], id).Refused)
		s.settle()
	}
	events, asked := w.events, w.asked
	require.Equal(t, "job-a-2", s.command("a", "start", "2").JobID)
	require.Equal(t, events, w.events, "the request had a second effect")
	require.Greater(t, w.asked, asked)
}

// A job whose owner died before its record was written is no new one either, once its resource has let go of it.
func TestWhatHadNoRecordAtTheTakeoverIsNotTakenForNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.answers = true
	s := w.start()
	for _, name := range []string{"a", "z"} {
		require.Nil(t, s.command(name, "apply", "1").Refused)
		s.settle()
	}
	require.Nil(t, s.command("a", "start", "2").Refused)
	require.NotContains(t, w.jobs, drive.JobKey{Project: "p", ID: "job-a-2"}, "the record is on its way")
	s.dead, s.sent = true, nil
	w.now = w.now.Add(time.Second)
	// Another job's record is younger than the resource's last event.
	w.seq++
	w.jobs[drive.JobKey{Project: "p", ID: "job-z-9"}] = drive.LoadedJob{
		Record: job.Record{Ref: job.Ref{ID: "job-z-9", State: job.Succeeded, EndedAt: w.now}, Project: "p"}, Seq: w.seq,
	}
	s = w.start()
	s.settle()
	for i, id := range []string{"3", "4", "5", "6", "7"} {
		require.Nil(t, s.command("a", []string{"terminate", "start"}[i%2], id).Refused)
		s.settle()
	}
	state := w.states[resource.Key{Project: "p", Kind: "node", Name: "a"}].State
	require.Nil(t, state.JobByID("job-a-2"), "the state still remembers it: this tests nothing")
	events := w.events
	require.Equal(t, "job-a-2", s.command("a", "start", "2").JobID)
	require.Equal(t, events, w.events, "the request had a second effect")
}

// TestARecordOnItsWayIsNotNone (simulator, seed 273045514026609): an owner's append of a job's record has no answer, and a
// follower that is behind knows of no record, so it is sent once more. Another owner drops the job from the resource
// meanwhile, with which the first one meets the same request again.
func TestARecordOnItsWayIsNotNone(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]int{"the record is under way": 0, "it was found to be there": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.answers = true
			s := w.start()
			require.Nil(t, s.command("a", "apply", "1").Refused)
			w.lost, s.behind = true, true
			require.True(t, s.answer())
			require.Len(t, s.sent, 1, "it is sent again")
			w.lost, s.behind = false, false
			rival := w.start()
			for i := range resource.FinishedJobsMax {
				rival.accepted("a", "apply", fmt.Sprint("more", i))
			}
			key := resource.Key{Project: "p", Kind: "node", Name: "a"}
			state := w.states[key].State
			require.Nil(t, state.JobByID("job-a-1"), "the state still remembers it: this tests nothing")
			s.offerResult(key, resource.Result{Fence: resource.Fence{UID: "old"}, Outcome: resource.OutcomeCompleted}) // it reads the resource
			for range answers {
				s.answer()
			}
			events := w.events
			reply := s.command("a", "apply", "1")
			for range 3 {
				if reply == nil { // handed back: it comes again
					reply = s.command("a", "apply", "1")
				}
			}
			require.Equal(t, &resource.Reply{JobID: "job-a-1"}, reply)
			require.Equal(t, events, w.events, "the request had a second effect")
		})
	}
}

// TestARequestThatWasNewMayBeSoNoMore: the leader knows of no record of a request's job. Before the append arrives another owner
// accepts the same request, and its resource lets go of the job: the append is lost, and then the request is no new one.
func TestARequestThatWasNewMayBeSoNoMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.answers = true
	s := w.start()
	s.accepted("a", "apply", "1")
	key := resource.Key{Project: "p", Kind: "node", Name: "a"}
	var reply *resource.Reply
	s.loop.Offer([]drive.Input{{
		Key: key, Input: resource.Input{Kind: resource.OnCommand, At: w.now, Command: &resource.Command{
			Key: key, Verb: "apply", RequestID: "2", JobID: "job-a-2", Digest: "apply", NewUID: "u", SpecDigest: "s1",
		}},
		Reply: func(r resource.Reply) { reply = &r }, Back: func(error) {},
	}})
	require.Len(t, s.sent, 1)
	rival := w.start()
	rival.accepted("a", "apply", "2")
	for i := range resource.FinishedJobsMax {
		rival.accepted("a", "apply", fmt.Sprint("more", i))
	}
	state := w.states[key].State
	require.Nil(t, state.JobByID("job-a-2"), "the state still remembers it: this tests nothing")
	events := w.events
	s.drain()
	require.Equal(t, &resource.Reply{JobID: "job-a-2"}, reply)
	require.Equal(t, events, w.events, "the request had a second effect")
}
