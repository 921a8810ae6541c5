package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

const selectedServices = 300

// selecting is TestSelection under way.
type selecting struct {
	t     *testing.T
	ctx   context.Context
	house *house
	door  *door
	bus   *jetstream.Bus
	hold  atomic.Bool // the worker takes work and does not answer it
}

// TestSelection has selector commands walk 300 resources of 16 partitions while orchestrators are killed: before the
// record of a page that was asked, and whenever. Some refuse, one fails; the counts are exact all the same, nobody is
// asked twice in effect, and at the end nothing is left.
func TestSelection(t *testing.T) {
	t.Parallel()
	h := newHouse(t, plan{intakes: 1, orchestrators: 2, lifecycles: 1, partitions: 16, unsynced: true})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	nc := h.connect()
	defer nc.Close()
	d, err := openDoor(nc)
	require.NoError(t, err)
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: h.url, Partitions: 16, Name: "selection"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	s := &selecting{t: t, ctx: ctx, house: h, door: d, bus: b}
	s.apply()
	s.work()

	// By the captured door; each orchestrator dies once when it has asked a page and not recorded it.
	for _, p := range h.service("orchestrator") {
		p.kill("orchestrator.before-page:1")
	}
	deploy := command{Kind: "svc", Name: "-", Verb: "deploy", ID: "deploy", Body: object{"selector": "rack in (a, c)"}}
	_, err = d.publish(ctx, deploy)
	require.NoError(t, err)
	id := wire.JobID(resource.Key{Project: project, Kind: "svc", Name: selection.Name}, "deploy")
	require.Equal(t, "270 matched, 269 succeeded, 1 failed", s.ended(id, job.Failed).Message)
	crashes := 0
	for _, p := range h.service("orchestrator") {
		p.calm()
		_, points, _ := p.deaths()
		crashes += len(points)
	}
	require.Positive(t, crashes, "nobody has died between the answers of a page and its record")
	s.once(id, 270)
	a, err := d.request(ctx, deploy)
	require.NoError(t, err)
	require.Equal(t, id, a.JobID, "the same request id by the other door")
	a, err = d.request(ctx, command{Kind: "svc", Name: "-", Verb: "deploy", ID: "deploy", Body: object{"all": true}})
	require.NoError(t, err)
	require.Equal(t, "conflict", a.Code)

	// Those that were never deployed refuse.
	id = s.ask("update", "update", object{"all": true})
	s.storm(4)
	r := s.ended(id, job.Failed)
	require.Equal(t, "300 matched, 270 succeeded, 30 refused", r.Message)
	require.Len(t, r.Selection.Refusals, selection.RefusalsMax)
	s.once(id, 270)

	// Canceled in the middle, with what it has started.
	s.hold.Store(true)
	id = s.ask("redeploy", "redeploy", object{"selector": "rack=a"})
	s.until(id, func(r job.Record) bool { return r.Selection.Accepted > 0 })
	s.ask("cancel", "cancel", object{"args": object{"job": id, "cascade": "true", "message": "enough"}})
	s.storm(2)
	r = s.ended(id, job.Canceled)
	require.Equal(t, "canceled: enough", r.Message)
	require.Equal(t, r.Selection.Accepted, r.Selection.Canceled)
	s.once(id, int(r.Selection.Accepted))
	s.hold.Store(false)

	// Deleted until nothing is left: what was canceled in the middle of a flow may refuse until its job has ended.
	for i := 0; ; i++ {
		require.Less(t, i, 5, "some can never be deleted")
		id = s.ask("delete", fmt.Sprint("delete-", i), object{"all": true})
		if i == 0 {
			s.storm(3)
		}
		r = s.until(id, func(r job.Record) bool { return r.State.Final() })
		t.Logf("delete %d: %s", i, r.Message)
		if r.Selection.Matched == 0 {
			require.Equal(t, job.Succeeded, r.State)
			break
		}
	}
	require.Eventually(t, func() bool { return len(s.list(bus.Resource)) == 0 }, time.Minute, 50*time.Millisecond)
	empty(t, d.js, "COMMANDS", "RESULTS", "WORK", "POISON")
}

// apply makes the blueprint and the resources; every tenth is on rack b.
func (s *selecting) apply() {
	phase := object{"name": "port", "executor": object{"plugin": object{}}, "undo": object{"plugin": object{}}, "idempotent": true, "lease": "1s"}
	s.must(command{Kind: "Blueprint", Name: "svc", Verb: "apply", ID: "svc", Body: apply("Blueprint", "svc", object{
		"lifecycle": "service", "phases": list{phase},
	}, nil)})
	var wg sync.WaitGroup
	places := make(chan struct{}, 32)
	for i := range selectedServices {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			name, rack := fmt.Sprintf("s%03d", i), "a"
			if i%10 == 0 {
				rack = "b"
			}
			s.must(command{Kind: "svc", Name: name, Verb: "apply", ID: "apply", Body: apply("svc", name, object{}, map[string]string{"rack": rack})})
		})
	}
	wg.Wait()
	require.Eventually(s.t, func() bool { return len(s.list(bus.Resource)) == selectedServices }, 30*time.Second, 20*time.Millisecond)
}

func (s *selecting) must(c command) string {
	s.t.Helper()
	a, err := s.door.request(s.ctx, c)
	require.NoError(s.t, err)
	require.Empty(s.t, a.Code, "%s %s: %v", c.Kind, c.Name, a)
	return a.JobID
}

func (s *selecting) ask(verb, id string, body object) string {
	s.t.Helper()
	return s.must(command{Kind: "svc", Name: "-", Verb: verb, ID: id, Body: body})
}

// work serves the phase; s007 fails when it is first deployed.
func (s *selecting) work() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var failed atomic.Bool
	go func() {
		phase := bus.Phase{Project: project, Kind: "svc", Phase: "port"}
		done <- plugin.Serve(ctx, s.bus, phase, plugin.Options{BindEvery: 50 * time.Millisecond, StopGrace: -1}, func(ctx context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				for s.hold.Load() && ctx.Err() == nil && pause(r.Context(), 20*time.Millisecond) { // a canceled call that goes on is waited for
				}
			}
			for _, r := range batch.Resources() {
				if r.Key().Name == "s007" && failed.CompareAndSwap(false, true) {
					batch.Failed(r, "out of ports")
					continue
				}
				batch.Completed(r)
			}
			return nil
		})
	}()
	s.t.Cleanup(func() {
		stop()
		<-done
	})
}

// storm kills the orchestrators, one after another.
func (s *selecting) storm(times int) {
	all := s.house.service("orchestrator")
	for i := range times {
		pause(s.ctx, 150*time.Millisecond)
		all[i%len(all)].kill("")
	}
}

func (s *selecting) until(id string, done func(job.Record) bool) (r job.Record) {
	s.t.Helper()
	before := job.Record{}
	for {
		if m, err := s.bus.Get(s.ctx, bus.Entity{Family: bus.Job, Project: project, Name: id}); err == nil {
			e, err := wire.DecodeJob(m.Body)
			require.NoError(s.t, err)
			r = e.Record
			if r.Revision == before.Revision+1 {
				require.Equal(s.t, []audit.Finding(nil), selection.Audit(before, r))
			}
			if before = r; done(r) {
				return r
			}
		}
		if !pause(s.ctx, 20*time.Millisecond) {
			r.Selection.Refusals = nil
			require.Fail(s.t, "it does not end", "%s %s: %+v\n%s", r.Verb, r.State, r.Selection, s.open(id))
		}
	}
}

// open is what has not ended of a selection, and why.
func (s *selecting) open(id string) (text string) {
	for _, m := range s.listIn(context.WithoutCancel(s.ctx), bus.Job) {
		e, err := wire.DecodeJob(m.Body)
		if err != nil || e.Record.Ref.Selection != id || e.Record.State.Final() {
			continue
		}
		text += fmt.Sprintf("job %s of %s is %s", e.Record.ID, e.Record.Name, e.Record.State)
		r, err := s.bus.Get(context.WithoutCancel(s.ctx), bus.Entity{Family: bus.Resource, Project: project, Kind: e.Record.Kind, Name: e.Record.Name})
		if err != nil {
			text += fmt.Sprintln(":", err)
			continue
		}
		if of, err := wire.DecodeResource(r.Body); err == nil {
			text += fmt.Sprintf(", phases %+v, jobs %+v, because %+v\n", of.State.Phases, of.State.Jobs, resource.Why(&of.State))
		}
	}
	return text
}

func (s *selecting) ended(id string, want job.State) job.Record {
	s.t.Helper()
	r := s.until(id, func(r job.Record) bool { return r.State.Final() })
	require.Equal(s.t, want, r.State, r.Message)
	return r
}

// once requires that a selection has started so many jobs, at most one of each resource.
func (s *selecting) once(id string, want int) {
	s.t.Helper()
	names := map[string]bool{}
	for _, m := range s.list(bus.Job) {
		e, err := wire.DecodeJob(m.Body)
		require.NoError(s.t, err)
		if r := e.Record; r.Ref.Selection == id {
			require.False(s.t, names[r.Name], "%s was asked twice", r.Name)
			require.True(s.t, strings.HasPrefix(r.Name, "s"), r.Name)
			names[r.Name] = true
		}
	}
	require.Len(s.t, names, want)
}

func (s *selecting) list(f bus.Family) (all []bus.Stored) {
	s.t.Helper()
	return s.listIn(s.ctx, f)
}

func (s *selecting) listIn(ctx context.Context, f bus.Family) (all []bus.Stored) {
	s.t.Helper()
	err := s.bus.List(ctx, f, project, "", func(m bus.Stored) error { all = append(all, m); return nil })
	require.NoError(s.t, err)
	return all
}
