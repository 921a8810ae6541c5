package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/intake"
	"github.com/droverproject/drover/services/orchestrator"
	"github.com/droverproject/drover/services/runner"
)

// house runs intake, orchestrator and runner on a bus in memory, and ticks it.
func house(t *testing.T) *memory.System {
	t.Helper()
	system := memory.New(memory.Options{Partitions: 4})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for name, run := range map[string]func(context.Context, *host.Host, bus.Bus) error{
		orchestrator.Service: orchestrator.Run, intake.Service: intake.Run, runner.Service: runner.Run,
	} {
		conn := system.Connect()
		config := host.DefaultConfig()
		config.Listen = ""
		h := host.New(host.Options{Name: name, Config: config})
		running.Go(func() {
			if err := h.Run(ctx, func(ctx context.Context, h *host.Host) error { return run(ctx, h, conn) }); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := conn.Close(); err != nil {
				t.Errorf("%s: close: %v", name, err)
			}
		})
		require.Eventually(t, func() bool { return h.Ready(ctx) == nil }, 30*time.Second, 5*time.Millisecond, name)
	}
	running.Go(func() {
		second := time.NewTicker(50 * time.Millisecond)
		defer second.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case now := <-second.C:
				system.Tick(bus.TickSecond, now)
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return system
}

func houseApp(system *memory.System) *App {
	a := app(system)
	a.Now, a.RequestID = nil, nil // the true ones
	return a
}

const boxes = `
apiVersion: drover/v1
kind: box
metadata: {name: good, labels: {rack: a}}
---
apiVersion: drover/v1
kind: box
metadata: {name: bad, labels: {rack: b}}
---
apiVersion: drover/v1
kind: Blueprint
metadata: {name: box}
spec:
  lifecycle: node
  states: [Allocation]
  paths: {Terminated: [Removal]}
  phases:
  - name: make
    states: [Allocation]
    executor: {script: {command: [sh, -c, 'echo making "$DROVER_NAME"; case "$DROVER_NAME" in bad) test -e %[1]s || { echo no disk >&2; exit 3; };; esac']}}
  - name: hold
    states: [Removal]
    executor: {script: {command: [sh, -c, 'while test -e %[1]s.hold; do sleep 0.02; done']}}
`

// TestHouse tells one story from apply to delete, with the services behind it.
func TestHouse(t *testing.T) {
	t.Parallel()
	a := houseApp(house(t))
	mended := write(t, "x", "") + ".mended"
	manifest := write(t, "boxes.yaml", fmt.Sprintf(boxes, mended))

	r := drover(t, a, "apply", "-f", manifest, "--wait", "--timeout", "20s")
	require.Equal(t, ExitOK, r.code, r.err)
	lines := strings.Split(r.out, "\n")
	require.True(t, strings.HasPrefix(lines[0], "Blueprint/box"), "blueprints first: %s", r.out)

	r = drover(t, a, "start", "--all", "box", "--wait", "--timeout", "20s", "-o", "json")
	require.Equal(t, ExitFailed, r.code, r.err)
	var many outcome
	require.NoError(t, json.Unmarshal([]byte(r.out), &many))
	require.Equal(t, []string{"box/-", "failed", "2 matched, 1 succeeded, 1 failed"}, []string{many.Resource, many.Result, many.Message})
	outcomes := many.Selection.Resources
	require.Equal(t, []string{"box/bad", "box/good"}, []string{outcomes[0].Resource, outcomes[1].Resource})
	require.Equal(t, "failed", outcomes[0].Result)
	require.Equal(t, "succeeded", outcomes[1].Result)
	require.Equal(t, []failedPhase{{Phase: "make", State: "Allocation", Attempt: 1, Message: outcomes[0].FailedPhases[0].Message}}, outcomes[0].FailedPhases)
	require.Contains(t, outcomes[0].FailedPhases[0].Message, "no disk")
	require.Contains(t, r.err, "phase make failed in state Allocation, attempt 1: ")
	require.Contains(t, r.err, "drover retry box/bad --wait")
	require.NotContains(t, r.err, "\x1b")

	r = drover(t, a, "describe", "box/bad")
	require.Contains(t, r.out, "Why it is where it is\n  phase make failed")
	r = drover(t, a, "logs", "box", "bad", "--phase", "make")
	require.ElementsMatch(t, []string{"making bad", "no disk"}, strings.Split(strings.TrimSpace(r.out), "\n"), "two streams have no order")
	r = drover(t, a, "jobs", "wait", outcomes[0].JobID, outcomes[1].JobID)
	require.Equal(t, ExitFailed, r.code, r.err)
	r = drover(t, a, "wait", "box/good", "--for", "job="+outcomes[1].JobID)
	require.Equal(t, ExitOK, r.code, r.err)
	r = drover(t, a, "wait", "box/good", "--for", "job="+outcomes[0].JobID)
	require.Equal(t, ExitUsage, r.code, "the job is another's")
	r = drover(t, a, "wait", "box/bad", "--for", "state=Started", "--timeout", "1s", "-o", "json")
	require.Equal(t, ExitTimeout, r.code)
	require.Contains(t, r.out, `"why": "phase make failed`)

	// The same request id, the same job; another body under it is a conflict.
	first := drover(t, a, "retry", "box/bad", "--request-id", "again", "--wait", "--timeout", "20s")
	require.Equal(t, ExitFailed, first.code, first.err)
	require.Equal(t, first.out, drover(t, a, "retry", "box/bad", "--request-id", "again", "--wait", "--timeout", "20s").out)
	r = drover(t, a, "retry", "box/bad", "--scope", "all", "--request-id", "again")
	require.Equal(t, ExitConflict, r.code)
	require.Contains(t, r.err, "refused: conflict: ")

	touch(t, mended)
	r = drover(t, a, "retry", "box", "-l", "rack=b", "--wait", "--timeout", "20s")
	require.Equal(t, ExitOK, r.code, r.err)
	r = drover(t, a, "wait", "--all", "box", "--for", "state=Started", "--timeout", "20s")
	require.Equal(t, "box/bad  Started\nbox/good  Started\n", r.out)
	r = drover(t, a, "retry", "--all", "box", "--wait")
	require.Equal(t, ExitFailed, r.code, "nothing has failed")
	require.Contains(t, r.err, "box/good: retry refused: conflict: ")
	require.Contains(t, r.out, "2 matched, 2 refused")
	r = drover(t, a, "retry", "--all", "box")
	require.Equal(t, ExitOK, r.code, "it was accepted; what becomes of it shows its job: %s", r.err)

	// A selector command's job shows its counts, and what refused.
	r = drover(t, a, "jobs", "show", many.JobID)
	require.Regexp(t, `Selector +all\n`, r.out)
	require.Regexp(t, `Resources +2 matched, 1 succeeded, 1 failed\n`, r.out)
	r = drover(t, a, "jobs", "list", "--selection", many.JobID, "-o", "name")
	require.ElementsMatch(t, []string{outcomes[0].JobID, outcomes[1].JobID}, strings.Fields(r.out))
	r = drover(t, a, "jobs", "wait", many.JobID)
	require.Equal(t, ExitFailed, r.code, r.err)
	r = drover(t, a, "start", "--all", "box", "--wait", "--timeout", "20s")
	require.Equal(t, ExitOK, r.code, r.err)
	require.Regexp(t, `(?m)^box/- +start succeeded .*2 matched, 2 succeeded$`, r.out)
	r = drover(t, a, "start", "box", "-l", "rack=z", "--wait", "--timeout", "20s")
	require.Equal(t, ExitOK, r.code, r.err)
	require.Contains(t, r.out, "no resource matched")

	// One that is under way is canceled by its id, with what it has started.
	touch(t, mended+".hold")
	r = drover(t, a, "terminate", "--all", "box", "-o", "json")
	require.Equal(t, ExitOK, r.code, r.err)
	var under outcome
	require.NoError(t, json.Unmarshal([]byte(r.out), &under))
	require.Equal(t, ExitTimeout, drover(t, a, "jobs", "wait", under.JobID, "--timeout", "300ms").code)
	r = drover(t, a, "jobs", "list", "--state", "running")
	require.Contains(t, r.out, "2 matched, 2 under way")
	r = drover(t, a, "jobs", "cancel", under.JobID, "--cascade")
	require.Equal(t, ExitOK, r.code, r.err)
	remove(t, mended+".hold")
	r = drover(t, a, "jobs", "wait", under.JobID, "--timeout", "20s")
	require.Equal(t, ExitCanceled, r.code, r.err)
	require.Equal(t, ExitUsage, drover(t, a, "jobs", "cancel", "--cascade", restarted(t, a)).code, "it is no selector command's")
	require.Equal(t, ExitOK, drover(t, a, "start", "box", "-l", "rack in (a,b)", "--wait", "--timeout", "20s").code)

	// A job that hangs is canceled by its id. What it leads to is another matter.
	touch(t, mended+".hold")
	r = drover(t, a, "terminate", "box/good", "-o", "json")
	require.Equal(t, ExitOK, r.code, r.err)
	var one outcome
	require.NoError(t, json.Unmarshal([]byte(r.out), &one))
	require.Equal(t, "accepted", one.Result)
	r = drover(t, a, "jobs", "wait", one.JobID, "--timeout", "200ms")
	require.Equal(t, ExitTimeout, r.code)
	r = drover(t, a, "jobs", "cancel", one.JobID, "--wait", "--timeout", "1s")
	require.Equal(t, ExitTimeout, r.code, "its call is still out: %s", r.err)
	require.Contains(t, r.out, "box/good  cancel waiting")
	remove(t, mended+".hold")
	r = drover(t, a, "jobs", "wait", one.JobID, "--timeout", "20s")
	require.Equal(t, ExitCanceled, r.code, r.err)
	r = drover(t, a, "jobs", "cancel", one.JobID)
	require.Equal(t, ExitConflict, r.code, "it has ended")

	require.Equal(t, ExitOK, drover(t, a, "start", "box/good", "--wait", "--timeout", "20s").code)
	touch(t, mended+".hold")
	require.Equal(t, ExitOK, drover(t, a, "terminate", "box/good").code)
	r = drover(t, a, "cancel", "box/good", "-m", "not now", "--wait", "--timeout", "1s")
	require.Equal(t, ExitTimeout, r.code, "a cancel has done its work when what is out has ended: %s", r.err)
	remove(t, mended+".hold")
	require.Equal(t, ExitTimeout, drover(t, a, "wait", "box/good", "--for", "state=Started", "--timeout", "200ms").code)
	require.Equal(t, ExitOK, drover(t, a, "start", "box/good", "--wait", "--timeout", "20s").code)

	r = drover(t, a, "delete", "blueprint/box")
	require.Equal(t, ExitConflict, r.code)
	require.Contains(t, r.err, "Blueprint/box: delete refused: conflict: 2 resources use it, such as box/")

	r = drover(t, a, "delete", "box/good", "box/bad", "--wait", "--timeout", "20s")
	require.Equal(t, ExitOK, r.code, r.err)
	r = drover(t, a, "get", "box", "-o", "name")
	require.Empty(t, r.out)
	r = drover(t, a, "wait", "box/good", "--for", "deleted", "--timeout", "5s")
	require.Equal(t, ExitOK, r.code, r.err)
	require.Equal(t, "box/good  gone\n", r.out)

	r = drover(t, a, "delete", "blueprint/box")
	require.Equal(t, ExitOK, r.code, r.err)
	r = drover(t, a, "describe", "blueprint/box")
	require.Regexp(t, `Deletion +job \S+ is running`, r.out)
	r = drover(t, a, "delete", "blueprint/box")
	require.Equal(t, ExitConflict, r.code)
	require.Regexp(t, `conflict: job \S+ is deleting it`, r.err)
	id := regexp.MustCompile(`job (\S+) is deleting`).FindStringSubmatch(r.err)[1]
	r = drover(t, a, "jobs", "wait", id, "--timeout", "40s")
	require.Equal(t, ExitOK, r.code, r.err)
	require.Contains(t, r.out, "Blueprint/box  delete succeeded")
	require.Empty(t, drover(t, a, "get", "blueprints", "-o", "name").out)
	require.Equal(t, ExitNotFound, drover(t, a, "delete", "blueprint/box").code)
	require.Equal(t, ExitOK, drover(t, a, "apply", "-f", manifest, "--wait", "--timeout", "20s").code)
}

// restarted makes a job of box/good that is under way, or has just ended.
func restarted(t *testing.T, a *App) string {
	t.Helper()
	touched := drover(t, a, "terminate", "box/good", "-o", "json")
	require.Equal(t, ExitOK, touched.code, touched.err)
	var o outcome
	require.NoError(t, json.Unmarshal([]byte(touched.out), &o))
	return o.JobID
}

// TestRefusals is one of each code, as an exit code and with what to do.
func TestRefusals(t *testing.T) {
	t.Parallel()
	a := houseApp(house(t))
	require.Equal(t, ExitOK, drover(t, a, "apply", "-f", write(t, "b.yaml", fmt.Sprintf(boxes, "/nonexistent"))).code)
	for _, c := range []struct {
		args string
		code int
		err  string
	}{
		{"start box/none", ExitNotFound, "box/none: start refused: not_found: there is no resource default/box/none\n"},
		{"do fly box/good", ExitError, "verb: not one of apply, "},
		{"cancel box/good", ExitConflict, "refused: conflict"},
		{"retry box/good", ExitConflict, "see `drover describe box/good`\n"},
		{"start disk/a", ExitNotFound, "refused: not_found"},
		{"do start box/good --arg speed=fast", ExitError, "args.speed: "},
		{"start box/good box/none", ExitNotFound, "box/none: start refused"},
		{"jobs cancel none", ExitNotFound, "job none in project default: not found"},
	} {
		r := drover(t, a, strings.Fields(c.args)...)
		require.Equal(t, c.code, r.code, "%s: %s", c.args, r.err)
		require.Contains(t, r.err, c.err, c.args)
	}
	r := drover(t, a, "apply", "-f", write(t, "c.yaml", "apiVersion: drover/v1\nkind: unknown\nmetadata: {name: x}\n"))
	require.Equal(t, ExitError, r.code)
	require.Contains(t, r.err, "c.yaml:2:", "the server's violation has its place in the file: %s", r.err)
}

func TestFollowingTheFeed(t *testing.T) {
	t.Parallel()
	system := house(t)
	a := houseApp(system)
	manifest := write(t, "b.yaml", fmt.Sprintf(boxes, "/nonexistent"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &syncBuffer{}
	follower := *houseApp(system)
	follower.Out = out
	done := make(chan int, 1)
	go func() { done <- Main(ctx, &follower, []string{"events", "-f", "-o", "jsonl"}) }()
	require.Equal(t, ExitOK, drover(t, a, "apply", "-f", manifest, "--wait", "--timeout", "20s").code)
	require.Equal(t, ExitOK, drover(t, a, "start", "box/good", "--wait", "--timeout", "20s").code)
	require.Eventually(t, func() bool { return strings.Contains(out.String(), `"to":"Started"`) }, 30*time.Second, 5*time.Millisecond)
	cancel()
	require.Equal(t, ExitOK, <-done, "Ctrl-C is how one stops following")
	seen := map[string]uint64{}
	for line := range strings.Lines(out.String()) {
		var e struct {
			Name     string `json:"name"`
			Revision uint64 `json:"revision,string"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		if seen[e.Name] > 0 { // the first is where the bucket stood when following began
			require.Equal(t, seen[e.Name]+1, e.Revision, "%s: none missed, none twice", e.Name)
		}
		seen[e.Name] = e.Revision
	}
	require.Greater(t, seen["good"], uint64(2))
}

// late is a bus whose resources can be seen only some reads after they are there.
type late struct {
	Bus
	mu   sync.Mutex
	seen map[bus.Entity]int
}

func (l *late) Get(ctx context.Context, e bus.Entity) (bus.Stored, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen[e]++; l.seen[e] < 5 {
		return bus.Stored{}, bus.ErrNotFound
	}
	return l.Bus.Get(ctx, e)
}

// TestAcceptedIsSeen: when apply returns, the buckets show what it did.
func TestAcceptedIsSeen(t *testing.T) {
	t.Parallel()
	system := house(t)
	a := houseApp(system)
	l := &late{Bus: system.Connect(), seen: map[bus.Entity]int{}}
	a.Connect = func(context.Context, Connection) (Bus, error) { return l, nil }
	require.Equal(t, ExitOK, drover(t, a, "apply", "-f", write(t, "b.yaml", fmt.Sprintf(boxes, "/nonexistent"))).code)
	require.Len(t, l.seen, 3)
	for e, reads := range l.seen {
		require.GreaterOrEqual(t, reads, 5, "%v", e)
	}
}

// TestHousePhases: what a phase does is seen while it does it, and who holds it.
func TestHousePhases(t *testing.T) {
	t.Parallel()
	a := houseApp(house(t))
	mended := write(t, "x", "") + ".mended"
	hold := mended + ".hold"
	require.Equal(t, ExitOK, drover(t, a, "apply", "-f", write(t, "boxes.yaml", fmt.Sprintf(boxes, mended)), "--wait", "--timeout", "20s").code)
	require.Equal(t, ExitOK, drover(t, a, "start", "box/good", "--wait", "--timeout", "20s").code)
	require.NoError(t, os.WriteFile(hold, nil, 0o600))
	require.Equal(t, ExitOK, drover(t, a, "terminate", "box/good").code)
	var phases []phaseReport
	require.Eventually(t, func() bool {
		r := drover(t, a, "phases", "-o", "json")
		require.Equal(t, ExitOK, r.code, r.err)
		require.NoError(t, json.Unmarshal([]byte(r.out), &phases))
		return len(phases) == 2 && phases[1].Activity == "Running" && len(phases[1].In["Running"]) == 1
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, "box/hold", phases[1].Phase)
	require.Equal(t, []string{"good"}, phases[1].In["Running"])
	require.Len(t, phases[1].Holders, 1)
	require.Zero(t, phases[1].Calls, "a script is called for each resource by itself")
	r := drover(t, a, "phases", "box/hold")
	for _, want := range []string{"Calls at a time   any number", "resources: 1", "Running   1       good"} {
		require.Contains(t, r.out, want)
	}
	r = drover(t, a, "phases", "box")
	require.Contains(t, r.out, "box/make")
	require.NoError(t, os.Remove(hold))
	require.Eventually(t, func() bool {
		return strings.Contains(drover(t, a, "events", "--family", "phase").out, "phase/box/hold")
	}, 20*time.Second, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		r := drover(t, a, "phases", "box/hold", "-o", "json")
		var one phaseReport
		require.NoError(t, json.Unmarshal([]byte(r.out), &one))
		return one.Activity == "Inactive" && one.Counts.Completed == 1 && len(one.In) == 0
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, ExitNotFound, drover(t, a, "phases", "box/none").code)
	require.Equal(t, ExitNotFound, drover(t, a, "phases", "none").code)
}
