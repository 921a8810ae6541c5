package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/deploy/e2e/internal/journal"
	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// lateMax is how long after the commit of its completion a run of a phase may still begin: a worker looks at the state
// before it begins, and in between lie the start of a process and whatever else two cores have to do.
const lateMax = 500 * time.Millisecond

// verdict holds what the log, the buckets and the journal say against what was promised.
type verdict struct {
	t         *testing.T
	house     *house
	door      *door
	chronicle *chronicle
	work      *workload
	journal   string
	least     int // completions that prove something

	wrong []string
}

func (v *verdict) fail(format string, args ...any) {
	v.wrong = append(v.wrong, fmt.Sprintf(format, args...))
}

// settled waits until every accepted job is final and nothing is on its way (promise 5).
func (v *verdict) settled(by time.Time) {
	v.t.Helper()
	ctx, cancel := context.WithDeadline(context.Background(), by)
	defer cancel()
	var open []string
	over := v.chronicle.wait(ctx, func() bool {
		open = open[:0]
		for _, a := range v.work.asked {
			id := wire.JobID(resource.Key{Project: project, Kind: a.Kind, Name: a.Name}, a.ID)
			record, recorded := v.chronicle.jobs[id]
			_, refused := v.chronicle.refusals[bus.RefusedSubject(project, a.ID)]
			if (a.captured && !refused || a.jobID != "") && (!recorded || !record.State.Final()) {
				open = append(open, fmt.Sprintf("%s %s by request %s, captured %t: job %s is %s", a.Verb, a.Name, a.ID, a.captured, id, record.State))
			}
		}
		return len(open) == 0
	})
	if over {
		v.door.empty(v.t, "COMMANDS", "RESULTS", "WORK", "POISON")
		return
	}
	for _, line := range open {
		v.fail("accepted, and not ended in time: %s", line)
	}
	for _, name := range []string{"COMMANDS", "RESULTS", "WORK", "POISON"} {
		tellLeft(v.t, v.door.js, name)
	}
}

// pass checks everything and fails the test with all that is wrong.
func (v *verdict) pass() {
	v.t.Helper()
	entries := v.chronicle.all()
	v.wrong = append(v.wrong, v.chronicle.problems...)
	v.commands()
	v.history(entries)
	v.jobTable(entries)
	v.runs(entries)
	v.buckets()
	for _, line := range v.wrong[:min(len(v.wrong), 40)] {
		v.t.Error(line)
	}
	if len(v.wrong) > 0 {
		v.t.Fatalf("%d promises broken", len(v.wrong))
	}
}

// commands: a command is accepted or refused, not both, and had its effect once (promises 4 and 5).
func (v *verdict) commands() {
	accepted, refused, captured := 0, 0, 0
	for _, a := range v.work.asked {
		id := wire.JobID(resource.Key{Project: project, Kind: a.Kind, Name: a.Name}, a.ID)
		_, recorded := v.chronicle.jobs[id]
		_, stored := v.chronicle.refusals[bus.RefusedSubject(project, a.ID)]
		switch {
		case a.jobID != "" && a.jobID != id:
			v.fail("request %s was answered with job %s, not %s", a.ID, a.jobID, id)
		case a.code != "" && recorded:
			v.fail("request %s was refused (%s) and has job %s", a.ID, a.code, id)
		case stored && recorded:
			v.fail("captured command %s was refused and has job %s", a.ID, id)
		}
		if recorded {
			accepted++
		} else {
			refused++
		}
		if a.captured {
			captured++
		}
	}
	v.t.Logf("%d commands, %d of them captured: %d accepted, %d refused", len(v.work.asked), captured, accepted, refused)
}

// history: revisions without a gap, the auditor's rules on every state and every transition, every command once.
func (v *verdict) history(entries []entry) {
	seqs := make([]uint64, len(entries))
	for i, e := range entries {
		seqs[i] = e.Seq
	}
	// unread is how many events between two were gone before they could be read: what is deleted is purged at once.
	unread := func(from, to uint64) uint64 {
		i, _ := slices.BinarySearch(seqs, from)
		j, _ := slices.BinarySearch(seqs, to)
		return to - from - uint64(j-i)
	}
	type last struct {
		state resource.State
		seq   uint64
	}
	lasts := map[resource.Key]last{}
	began := map[string]uint64{} // by job: sequence of the event that made it
	transitions := 0
	for _, e := range entries {
		if e.Resource == nil {
			continue
		}
		s := e.Resource.State
		if e.Deleted != s.Gone {
			v.fail("event %d of %s: deleted %t, gone %t", e.Seq, s.Key, e.Deleted, s.Gone)
		}
		before := lasts[s.Key]
		if before.state.Gone && s.Gone && before.state.UID == s.UID && before.state.Revision == s.Revision {
			continue // the same tombstone, with a TTL
		}
		lasts[s.Key] = last{s, e.Seq}
		transitions++
		for _, f := range audit.Resource(s, v.pinned(&s)) {
			v.fail("event %d of %s revision %d: %s: %s", e.Seq, s.Key, s.Revision, f.Rule, f.Of)
		}
		if c := e.Resource.Event.Cause; c.Kind == "command" {
			if first, twice := began[e.Resource.Event.JobID]; twice {
				v.fail("event %d of %s: the command of job %s was applied before, by event %d", e.Seq, s.Key, e.Resource.Event.JobID, first)
			}
			began[e.Resource.Event.JobID] = e.Seq
		}
		if unread(before.seq+1, e.Seq) > 0 && (before.state.UID != s.UID || s.Revision != before.state.Revision+1) {
			continue // what lies between may be among those
		}
		for _, f := range audit.Transition(before.state, s) {
			v.fail("event %d of %s revision %d after event %d: %s: %s", e.Seq, s.Key, s.Revision, before.seq, f.Rule, f.Of)
		}
	}
	missing := uint64(0)
	if len(seqs) > 0 {
		missing = unread(seqs[0], seqs[len(seqs)-1]+1)
	}
	v.t.Logf("%d events, %d transitions, %d purged before they were read", len(entries), transitions, missing)
	if missing > uint64(len(entries))/10 {
		v.fail("%d of %d events were purged before they were read: too many to judge the rest", missing, len(entries))
	}
}

// pinned is the blueprint that a state's job pinned.
func (v *verdict) pinned(s *resource.State) *blueprint.Blueprint {
	j := s.Job()
	if j == nil {
		if j = s.FlowJob(); j == nil {
			return nil
		}
	}
	return v.chronicle.blueprints[j.Blueprint]
}

// jobTable: every record moves by the table of jobs, with a revision more each time, and ends.
func (v *verdict) jobTable(entries []entry) {
	lasts := map[string]job.Record{}
	for _, e := range entries {
		if e.Job == nil {
			continue
		}
		r := e.Job.Record
		before, known := lasts[r.ID]
		lasts[r.ID] = r
		if !known {
			before.State = job.None
		}
		if r.Revision != before.Revision+1 || !job.May(before.State, r.State) || e.Job.From != before.State {
			v.fail("event %d: job %s goes from %s (revision %d) to %s (revision %d)", e.Seq, r.ID, before.State, before.Revision, r.State, r.Revision)
		}
	}
	for id, r := range lasts {
		if !r.State.Final() {
			v.fail("job %s (%s of %s) has not ended: %s", id, r.Verb, r.Name, r.State)
		}
	}
}

// attempt is what a completion is told apart by.
type attempt struct {
	uid, phase string
	number     uint32
}

// runs: no phase runs again after its completion was committed, and no answer of another attempt was counted.
func (v *verdict) runs(entries []entry) {
	completed := map[attempt]entry{}
	type worked struct{ uid, job, phase string }
	done := map[worked]uint64{}
	for _, e := range entries {
		if e.Resource == nil {
			continue
		}
		r := e.Resource
		if d := r.Event.Dispatch; d != nil {
			w := worked{d.Fence.UID, d.Fence.JobID, d.Fence.Phase}
			if seq, ok := done[w]; ok {
				v.fail("event %d of %s hands out phase %s, which job %s had completed with event %d", e.Seq, r.State.Key, w.phase, w.job, seq)
			}
		}
		c := r.Event.Cause
		if c.Kind != "result" || c.Outcome != "completed" || e.Deleted && e.Header.Get("Nats-TTL") != "" {
			continue
		}
		p := r.State.Phase(c.Phase)
		if p == nil || p.Status != resource.Completed {
			continue // over a limit, or its state is left and begun anew
		}
		at := attempt{r.State.UID, p.Name, p.Attempt}
		if first, twice := completed[at]; twice {
			v.fail("event %d of %s completes attempt %d of phase %s, which event %d had", e.Seq, r.State.Key, p.Attempt, p.Name, first.Seq)
			continue
		}
		completed[at] = e
		done[worked{r.State.UID, p.JobID, p.Name}] = e.Seq
		var ran journal.Ran
		want := journal.Ran{UID: r.State.UID, Job: p.JobID, Phase: p.Name, Attempt: p.Attempt}
		if err := json.Unmarshal([]byte(p.Outputs["ran"]), &ran); err != nil || ran != want {
			v.fail("event %d of %s: phase %s attempt %d was completed by an answer of %+v (%v)", e.Seq, r.State.Key, p.Name, p.Attempt, ran, err)
		}
	}
	lines, err := journal.Read(v.journal)
	if err != nil && !os.IsNotExist(err) {
		v.fail("%v", err)
	}
	begun, runs, again := map[attempt]int{}, 0, 0
	latest := time.Duration(0)
	for _, l := range lines {
		if !l.Begin {
			continue
		}
		runs++
		at := attempt{l.UID, l.Phase, l.Attempt}
		if begun[at]++; begun[at] > 1 {
			again++
		}
		e, ok := completed[at]
		if !ok {
			continue
		}
		late := l.At.Sub(e.At)
		latest = max(latest, late)
		if late > lateMax {
			v.fail("phase %s attempt %d of %s began %s after event %d had completed it", l.Phase, l.Attempt, e.Entity.Key(), late, e.Seq)
		}
	}
	v.t.Logf("%d completions, %d runs begun, %d of them again, polls included; the latest began %s after its completion",
		len(completed), runs, again, latest)
	if len(completed) < v.least {
		v.fail("only %d completions: the workload did not get far enough to prove anything", len(completed))
	}
}

// buckets: what the server derived is what the log says, after all its deaths.
func (v *verdict) buckets() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	wrong, err := v.chronicle.unlikeBuckets(ctx, v.door.js)
	require.NoError(v.t, err)
	v.wrong = append(v.wrong, wrong...)
}

// unlikeBuckets says in what the buckets of resources and jobs differ from the log. Each job must have ended.
func (c *chronicle) unlikeBuckets(ctx context.Context, js jetstream.JetStream) (wrong []string, err error) {
	c.mu.Lock()
	resources, jobs := maps.Clone(c.resources), len(c.jobs)
	c.mu.Unlock()
	unlike := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf("bucket: "+format, args...)) }
	bucket, err := js.KeyValue(ctx, bus.Resource.Bucket())
	if err != nil {
		return nil, err
	}
	for key, s := range resources {
		entry, err := bucket.Get(ctx, bus.Entity{Family: bus.Resource, Project: key.Project, Kind: key.Kind, Name: key.Name}.Key())
		switch {
		case s.Gone && err == nil:
			unlike("%s is gone, and there", key)
		case !s.Gone && err != nil:
			unlike("%s: %v", key, err)
		case !s.Gone:
			e, err := wire.DecodeResource(entry.Value())
			if err != nil || e.State.UID != s.UID || e.State.Revision != s.Revision {
				unlike("%s has revision %d, the log %d (%v)", key, e.State.Revision, s.Revision, err)
			}
		}
	}
	bucket, err = js.KeyValue(ctx, bus.Job.Bucket())
	if err != nil {
		return nil, err
	}
	watch, err := bucket.Watch(ctx, c.project+".>", jetstream.IgnoreDeletes())
	if err != nil {
		return nil, err
	}
	defer func() { _ = watch.Stop() }()
	n := 0
	for entry := range watch.Updates() {
		if entry == nil {
			break
		}
		n++
		if e, err := wire.DecodeJob(entry.Value()); err != nil || !e.Record.State.Final() {
			unlike("job %s is %s (%v)", entry.Key(), e.Record.State, err)
		}
	}
	if n != jobs {
		unlike("%d jobs, the log has %d", n, jobs)
	}
	return wrong, nil
}
