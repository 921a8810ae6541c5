package cli

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// put stores a resource of the fixtures as an event of its own.
func (s *shelf) stand(state resource.State) {
	s.t.Helper()
	s.resource(wire.ResourceEvent{
		State: state, At: at, Event: resource.Event{From: state.State, To: state.State, Cause: resource.Cause{Kind: "continue"}},
	})
}

// everyStatus is a resource with a phase of each status, as no blueprint would bring it about at once.
func everyStatus() resource.State {
	s := state("all")
	s.State, s.Target, s.PhaseFailed = "Allocation", "Started", true
	s.Jobs = []job.Ref{ref("job-all", "start", "Started", job.Running)}
	for _, status := range resource.Statuses()[1:] {
		run := resource.PhaseRun{
			Name: strings.ToLower(status.String()), Status: status, State: "Allocation", JobID: "job-all", Attempt: 1, Call: 1, Since: at,
		}
		switch status {
		case resource.Waiting:
			run.InFlight = true
		case resource.Running:
			run.Deadline = at.Add(10 * time.Minute)
		case resource.Sleeping:
			run.Due, run.Interval, run.Data = at.Add(100*time.Second), 15*time.Second, map[string]string{"operation": `"op-7"`}
		case resource.Canceling:
			run.InFlight, run.Due = true, at.Add(2*time.Minute)
		case resource.Failed:
			run.Message = "no space left"
		case resource.Undone:
			run.Undo = true
		case resource.Blocked, resource.Gated, resource.Skipped:
			run.Attempt, run.Call = 0, 0
		}
		s.Phases = append(s.Phases, run)
	}
	retry := s.Phases[3]
	retry.Name, retry.Retrying, retry.Attempt, retry.Data = "retried", true, 2, nil
	callback := retry
	callback.Name, callback.Retrying, callback.Callback, callback.Due, callback.Deadline = "called-back", false, true, time.Time{}, at.Add(time.Hour)
	s.Phases = append(s.Phases, retry, callback)
	return s
}

// TestEveryStatusIsDescribed holds the table of phases, and the reasons, of each status against testdata.
func TestEveryStatusIsDescribed(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.blueprint("node", nodeBlueprint)
	s.stand(everyStatus())
	r := drover(t, app(s.system), "describe", "node/all")
	golden(t, "describe-statuses", r)
	for _, status := range resource.Statuses()[1:] {
		require.Contains(t, r.out, "  "+status.String()+" ", "no row of %s", status)
	}
}

const dottedBlueprint = `{"lifecycle":"node","states":["Allocation"],"phases":[
	{"name":"b.c","states":["Allocation"],"executor":{"plugin":{}}},{"name":"d","states":["Allocation"],"executor":{"plugin":{}}}]}`

// records is a system with phases of which one has a record.
func records(t *testing.T) *shelf {
	t.Helper()
	s := newShelf(t)
	s.blueprint("node", nodeBlueprint)
	s.blueprint("a", dottedBlueprint)
	s.blueprint("a.b", strings.ReplaceAll(dottedBlueprint, `"b.c"`, `"c"`))
	s.stand(everyStatus())
	waiting := state("web-1")
	waiting.State, waiting.Target = "Allocation", "Started"
	waiting.Phases = []resource.PhaseRun{{Name: "create-volume", Status: resource.Waiting, State: "Allocation", Since: at}}
	s.stand(waiting)
	body, err := wire.EncodePhase(wire.PhaseEvent{At: at, State: phase.State{
		Project: "default", Kind: "node", Phase: "create-volume", Activity: phase.Running, Revision: 1, ActiveSince: at, LastCallAt: at,
		Holders: []phase.Holder{{Worker: "worker-1", Since: at, Out: 3}},
	}})
	require.NoError(t, err)
	s.put(bus.Entity{Family: bus.PhaseRecord, Project: "default", Kind: "node", Name: "create-volume"}, "", bus.Header{Revision: 1}, body)
	return s
}

// TestDescribePhase: a phase's record is named by KIND.PHASE, and by a slash where dots would mean two.
func TestDescribePhase(t *testing.T) {
	t.Parallel()
	s := records(t)
	golden(t, "describe-phase", drover(t, app(s.system), "describe", "phase/node.create-volume"))
	want := drover(t, app(s.system), "describe", "phase/node.create-volume").out
	for _, args := range []string{"describe phase/node/create-volume", "describe phase node.create-volume", "phases node.create-volume", "phases node/create-volume"} {
		require.Equal(t, want, drover(t, app(s.system), strings.Fields(args)...).out, args)
	}
	r := drover(t, app(s.system), "describe", "phase/node.create-volume", "-o", "json")
	var one phaseReport
	require.NoError(t, json.Unmarshal([]byte(r.out), &one))
	require.Equal(t, []string{"web-1"}, one.In["Waiting"])

	for args, name := range map[string]string{"a.d": "a/d", "a.b.d": "a.b/d", "a/b.c": "a/b.c", "a.b/c": "a.b/c"} {
		require.Contains(t, drover(t, app(s.system), "describe", "phase/"+args).out, "Phase             "+name+"\n", args)
	}
	for args, c := range map[string]struct {
		code int
		err  string
	}{
		"phase/a.b.c":      {ExitUsage, `"a.b.c" may be a/b.c or a.b/c: name it with a slash`},
		"phase/node":       {ExitUsage, "`drover phases node` lists them"},
		"phase/node.none":  {ExitNotFound, "phase none of kind node: not found"},
		"phase/none.none":  {ExitNotFound, "blueprint/none in project default: not found"},
		"phase/node.none.": {ExitNotFound, "not found"},
	} {
		r := drover(t, app(s.system), "describe", args)
		require.Equal(t, c.code, r.code, args)
		require.Contains(t, r.err, c.err, args)
	}
	require.Equal(t, ExitUsage, drover(t, app(s.system), "describe", "phase/node.create-volume", "node/web-1").code, "two kinds of thing")

	s.blueprint("phase", dottedBlueprint)
	named := state("moon")
	named.Kind = "phase"
	s.stand(named)
	require.Contains(t, drover(t, app(s.system), "describe", "phase/moon").out, "phase/moon", "a kind of this name is the user's own")
}

// TestHistorySaysWhatIsGone: what the log has dropped is told.
func TestHistorySaysWhatIsGone(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	r := state("web-1")
	for _, revision := range []uint64{4, 5, 7, 11} {
		r.Revision = revision
		s.stand(r)
	}
	again := state("web-1")
	again.UID, again.Revision = "uid-again", 2
	s.stand(again)
	golden(t, "history-dropped", drover(t, app(s.system), "history", "node/web-1"))
	whole := state("web-2")
	s.stand(whole)
	require.Empty(t, drover(t, app(s.system), "history", "node/web-2").err)
	require.Contains(t, drover(t, app(s.system), "describe", "node/web-1").out, "the log no longer holds revision 1 to 3, 6, 8 to 10, 1\n")
}

// cuttable is a bus whose watches can be lost, as when a server goes away.
type cuttable struct {
	*memory.Conn
	mu      sync.Mutex
	watches []bus.Watch
}

func (c *cuttable) WatchBucket(ctx context.Context, f bus.Family, project, kind, name string) (bus.Watch, error) {
	w, err := c.Conn.WatchBucket(ctx, f, project, kind, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches = append(c.watches, w)
	return w, err
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches[len(c.watches)-1].Close()
}

// TestWatchGoesOnAfterALoss: what has not changed meanwhile is not shown again.
func TestWatchGoesOnAfterALoss(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	first, other := state("web-1"), state("web-2")
	s.stand(first)
	s.stand(other)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := &cuttable{Conn: s.system.Connect()}
	a := app(s.system)
	a.Connect = func(context.Context, Connection) (Bus, error) { return b, nil }
	out := &syncBuffer{}
	a.Out = out
	done := make(chan int, 1)
	go func() { done <- Main(ctx, a, []string{"get", "--watch", "-o", "name"}) }()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "web-2") }, 30*time.Second, 5*time.Millisecond)
	b.cut()
	first.State, first.Revision = "Allocation", 2
	s.stand(first)
	require.Eventually(t, func() bool { return strings.Count(out.String(), "web-1") == 2 }, 30*time.Second, 5*time.Millisecond)
	first.Revision = 3
	s.stand(first)
	require.Eventually(t, func() bool { return strings.Count(out.String(), "web-1") == 3 }, 30*time.Second, 5*time.Millisecond)
	cancel()
	require.Equal(t, ExitOK, <-done)
	require.Equal(t, 1, strings.Count(out.String(), "web-2"), out.String())
}

// TestWatch: what is there is shown once, and each change after it.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	first, other := state("web-1"), state("web-2")
	first.State, other.Labels = "Allocation", map[string]string{"rack": "z"}
	s.stand(first)
	s.stand(other)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch := func(args ...string) (*syncBuffer, chan int) {
		a := app(s.system)
		out := &syncBuffer{}
		a.Out = out
		done := make(chan int, 1)
		go func() { done <- Main(ctx, a, args) }()
		return out, done
	}
	table, ended := watch("get", "node", "--watch")
	selected, selectedEnded := watch("get", "-w", "-l", "rack=a", "-o", "jsonl")
	named, namedEnded := watch("get", "node/web-2", "-w", "-o", "name")
	shows := func(b *syncBuffer, words ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(b.String(), w) })
		}, 30*time.Second, 5*time.Millisecond, "%v", words)
	}
	shows(table, "node/web-1", "node/web-2")
	shows(selected, `"name":"web-1"`)
	shows(named, "node/web-2\n")
	first.State, first.Revision = "Configuration", 2
	s.stand(first)
	shows(table, "node/web-1   Configuration")
	shows(selected, `"revision":"2"`)
	first.Gone, first.Revision = true, 3
	s.stand(first)
	shows(table, "node/web-1   (gone)")
	cancel()
	for _, done := range []chan int{ended, selectedEnded, namedEnded} {
		require.Equal(t, ExitOK, <-done, "Ctrl-C is how one stops watching")
	}
	require.Equal(t, 1, strings.Count(table.String(), "NAME"), "one header: %s", table.String())
	require.Equal(t, 1, strings.Count(table.String(), "node/web-2"), "what has not changed is shown once")
	require.NotContains(t, selected.String(), "web-2")
	require.Equal(t, "node/web-2\n", named.String())

	for _, args := range []string{"get blueprints -w", "get jobs -w", "get machines -w", "get instances -w"} {
		require.Equal(t, ExitUsage, drover(t, app(s.system), strings.Fields(args)...).code, args)
	}
	require.Equal(t, ExitTimeout, drover(t, app(s.system), "get", "-w", "--timeout", "50ms").code)
}
