package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	project    = "default"
	kind       = "node"
	partitions = 4
)

// house is a system in memory with the orchestrator's part played by the test.
type house struct {
	*memory.Conn
	t *testing.T

	mu      sync.Mutex
	results []resource.Result
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{Conn: memory.New(memory.Options{Partitions: partitions}).Connect(), t: t}
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

func (h *house) PublishResult(ctx context.Context, subject string, header map[string]string, body []byte) error {
	result, err := wire.DecodeResult(header[bus.HeaderContentType], body)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.results = append(h.results, result)
	h.mu.Unlock()
	return h.Conn.PublishResult(ctx, subject, header, body)
}

// AskPhase lets the runner call all phases, as the orchestrator does.
func (h *house) AskPhase(context.Context, bus.Phase, bus.Request) (bus.Request, error) {
	body, err := wire.EncodePhaseHold(wire.PhaseHold{Granted: true, Lease: time.Minute})
	return bus.Request{Body: body}, err
}

// answers are the results for a resource, but for Running.
func (h *house) answers(name string) (of []resource.Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.results {
		if r.Fence.UID == "uid-"+name && r.Outcome != resource.OutcomeRunning {
			of = append(of, r)
		}
	}
	return of
}

func (h *house) answer(name string) resource.Result {
	h.t.Helper()
	require.Eventually(h.t, func() bool { return len(h.answers(name)) > 0 }, 20*time.Second, 5*time.Millisecond, "no answer for %s", name)
	return h.answers(name)[0]
}

// blueprint makes a blueprint the present one, and returns its digest. Consumers are made as the orchestrator does.
func (h *house) blueprint(phases ...string) string {
	h.t.Helper()
	spec := fmt.Sprintf(`{"lifecycle": "node", "states": ["Allocation"], "phases": [%s]}`, strings.Join(phases, ","))
	bp, violations := manifest.Blueprint(project, kind, []byte(spec))
	require.Empty(h.t, violations)
	canonical, digest, err := manifest.Canonical([]byte(spec))
	require.NoError(h.t, err)
	e := bus.Entity{
		Partition: bus.PartitionOf(project, manifest.KindBlueprint, kind, partitions), Family: bus.Blueprint, Project: project, Kind: kind,
	}
	last, err := h.Last(h.t.Context(), []bus.Entity{e})
	require.NoError(h.t, err)
	body, err := wire.EncodeBlueprint(wire.BlueprintEvent{
		Project: project, Kind: kind, Digest: digest, JSON: string(canonical), Generation: last[0].Seq + 1, At: time.Now(),
	})
	require.NoError(h.t, err)
	_, err = h.Append(bus.Append{Entity: e, Version: digest, Expect: last[0].Seq, Body: body}).Result()
	require.NoError(h.t, err)
	for i := range bp.Phases {
		require.NoError(h.t, h.EnsurePhase(h.t.Context(), bus.Phase{Project: project, Kind: kind, Phase: bp.Phases[i].Name}))
	}
	return digest
}

// phase is one phase of a blueprint.
func phase(name, executor string) string {
	return fmt.Sprintf(`{"name": %q, "states": ["Allocation"], "executor": %s}`, name, executor)
}

func script(text string, more ...string) string {
	command, err := json.Marshal([]string{"sh", "-c", text})
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"script": {"command": %s%s}}`, command, strings.Join(append([]string{""}, more...), ", "))
}

func (h *house) state(name, phase, digest string, revision uint64, status resource.Status) resource.State {
	at := time.Now().UTC()
	return resource.State{
		Key: resource.Key{Project: project, Kind: kind, Name: name}, MinReader: 1, UID: "uid-" + name, Generation: 1, Revision: revision,
		State: "Allocation", Target: "Started", CreatedAt: at, UpdatedAt: at,
		Jobs:   []job.Ref{{ID: "job", RequestID: "r", Verb: "start", Target: "Started", Blueprint: digest, State: job.Running, AcceptedAt: at}},
		Phases: []resource.PhaseRun{{Name: phase, Status: status, State: "Allocation", JobID: "job", Attempt: 1, Call: 1, InFlight: true, Since: at}},
	}
}

// put appends a state; with dispatch it hands out the phase.
func (h *house) put(s resource.State, dispatch bool) {
	h.t.Helper()
	e := bus.Entity{Partition: 1, Family: bus.Resource, Project: s.Project, Kind: s.Kind, Name: s.Name}
	last, err := h.Last(h.t.Context(), []bus.Entity{e})
	require.NoError(h.t, err)
	a := bus.Append{Entity: e, Expect: last[0].Seq, Header: bus.Header{Revision: s.Revision}}
	event := resource.Event{JobID: "job"}
	if dispatch {
		run := s.Phases[0]
		a.Dispatch = run.Name
		event.Dispatch = &resource.Dispatch{
			Fence: resource.Fence{UID: s.UID, JobID: "job", Phase: run.Name, Attempt: 1, Call: 1}, State: s.State, Deadline: run.Deadline,
		}
	}
	a.Body, err = wire.EncodeResource(wire.ResourceEvent{
		Event: event, State: s, At: time.Now(), Partition: 1, ResultSubject: bus.ResultSubject(1, s.Project, s.Kind, s.Name),
	})
	require.NoError(h.t, err)
	_, err = h.Append(a).Result()
	require.NoError(h.t, err)
}

func (h *house) handOut(name, phase, digest string) {
	h.t.Helper()
	h.put(h.state(name, phase, digest, 1, resource.Waiting), true)
}

type running struct {
	registry *prometheus.Registry
	host     *host.Host
	stop     func()
}

func (h *house) run(o runner.RunOptions) running {
	h.t.Helper()
	registry := prometheus.NewRegistry()
	config := host.DefaultConfig()
	config.Listen = ""
	s := host.New(host.Options{Name: runner.Service, Config: config, Registry: registry})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(ctx context.Context, s *host.Host) error { return o.Run(ctx, s, h) })
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(h.t, <-done)
	})
	h.t.Cleanup(stop)
	require.Eventually(h.t, func() bool { return s.Ready(h.t.Context()) == nil }, 30*time.Second, 5*time.Millisecond)
	return running{registry: registry, host: s, stop: stop}
}

// served is how many phases of an executor are served.
func (r running) served(executor string) float64 {
	return r.metric("drover_runner_phases", map[string]string{"executor": executor})
}

func (r running) metric(name string, labels map[string]string) float64 {
	families, err := r.registry.Gather()
	if err != nil {
		return -1
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	metrics:
		for _, m := range family.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for key, value := range labels {
				if have[key] != value {
					continue metrics
				}
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return 0
}

func (h *house) output(name string) (lines []string) {
	h.t.Helper()
	require.NoError(h.t, h.ReadOutput(h.t.Context(), project, kind, name, false, func(l bus.OutputLine) error {
		line, err := wire.DecodeOutputLine(l.Body)
		lines = append(lines, line.Stream+": "+line.Text)
		return err
	}))
	return lines
}

func TestExecutors(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusCreated)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer web.Close()
	digest := h.blueprint(
		phase("configure", script(`echo "$DROVER_NAME"; echo warn >&2; echo '{"attributes": {"port": 80}}' > "$DROVER_RESULT"`)),
		phase("break", script(`echo because >&2; exit 3`)),
		phase("announce", `{"http": {"url": "`+web.URL+`/{{ resource.name }}"}}`),
		phase("healthy", `{"poll": {"url": "`+web.URL+`", "interval": "3s"}}`),
		phase("other", `{"plugin": {}}`),
	)
	r := h.run(runner.DefaultRunOptions())
	for name, phase := range map[string]string{"a": "configure", "b": "break", "c": "announce", "d": "healthy", "e": "other"} {
		h.handOut(name, phase, digest)
	}
	a := h.answer("a")
	require.Equal(t, resource.OutcomeCompleted, a.Outcome, a.Message)
	require.Equal(t, map[string]string{"port": "80"}, a.Attributes)
	require.ElementsMatch(t, []string{"stdout: a", "stderr: warn"}, h.output("a"))
	require.Equal(t, "exit status 3: because", h.answer("b").Message)
	require.Equal(t, resource.OutcomeCompleted, h.answer("c").Outcome)
	d := h.answer("d")
	require.Equal(t, resource.OutcomePending, d.Outcome)
	require.Equal(t, 3*time.Second, d.Delay)
	require.EqualValues(t, 2, r.served("script"))
	require.EqualValues(t, 1, r.served("http"))
	require.EqualValues(t, 1, r.served("poll"))
	require.Eventually(t, func() bool {
		return r.metric("drover_runner_calls_total", map[string]string{"executor": "script", "outcome": "completed"}) == 1 &&
			r.metric("drover_runner_calls_total", map[string]string{"executor": "script", "outcome": "failed"}) == 1 &&
			r.metric("drover_runner_calls_total", map[string]string{"executor": "poll", "outcome": "pending"}) == 1
	}, 30*time.Second, 5*time.Millisecond)
	require.Empty(t, h.answers("e"))
	problems, err := testutil.GatherAndLint(r.registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// A phase that is handed out to be undone is carried out by its undo executor, with the same context.
func TestUndo(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var asked sync.Map
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Store(r.Method+" "+r.URL.Path, true)
	}))
	defer web.Close()
	undone := func(name, executor, undo string) string {
		return fmt.Sprintf(`{"name": %q, "states": ["Allocation"], "executor": %s, "undo": %s}`, name, executor, undo)
	}
	digest := h.blueprint(
		undone("file", script(`echo "do $DROVER_UNDO"`),
			script(`echo "undo $DROVER_UNDO $DROVER_WAS_DEPLOYED $DROVER_STATE {{ phase.undo }} {{ resource.wasDeployed }}"`)),
		undone("record", script("true"), `{"http": {"method": "DELETE", "url": "`+web.URL+`/{{ resource.name }}/{{ phase.name }}"}}`),
		phase("kept", script("true")),
		undone("broken", script("true"), `{"script": {"command": ["echo", "{{ nothing }}"]}}`),
		undone("other", `{"plugin": {}}`, `{"plugin": {}}`),
	)
	r := h.run(runner.DefaultRunOptions())
	for name, phase := range map[string]string{"a": "file", "b": "record", "c": "kept", "d": "broken"} {
		s := h.state(name, phase, digest, 1, resource.Waiting)
		s.Phases[0].Undo, s.WasDeployed, s.State = true, true, "Retiring"
		h.put(s, true)
	}
	h.handOut("e", "file", digest)
	require.Equal(t, resource.OutcomeCompleted, h.answer("a").Outcome, h.answer("a").Message)
	require.Equal(t, []string{"stdout: undo true true Retiring True True"}, h.output("a"))
	require.Equal(t, resource.OutcomeCompleted, h.answer("b").Outcome)
	_, deleted := asked.Load("DELETE /b/record")
	require.True(t, deleted)
	require.Equal(t, resource.OutcomeFailed, h.answer("c").Outcome)
	require.Contains(t, h.answer("c").Message, `phase "kept" has no undo executor`)
	require.Equal(t, resource.OutcomeFailed, h.answer("d").Outcome)
	require.Contains(t, h.answer("d").Message, "nothing")
	require.Equal(t, resource.OutcomeCompleted, h.answer("e").Outcome)
	require.Equal(t, []string{"stdout: do false"}, h.output("e"))
	require.EqualValues(t, 4, r.served("script"), "the executor says who serves a phase")
}

// A job keeps the blueprint that it pinned.
func TestPinnedBlueprint(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	foreign := h.blueprint(phase("p", `{"plugin": {}}`))
	first := h.blueprint(phase("p", script("echo first")))
	second := h.blueprint(phase("p", script("echo second")))
	h.run(runner.DefaultRunOptions())
	h.handOut("a", "p", first)
	h.handOut("b", "p", second)
	h.handOut("c", "p", strings.Repeat("0", 32))
	h.handOut("d", "p", foreign)
	require.Equal(t, resource.OutcomeCompleted, h.answer("a").Outcome)
	require.Equal(t, resource.OutcomeCompleted, h.answer("b").Outcome)
	require.Equal(t, []string{"stdout: first"}, h.output("a"))
	require.Equal(t, []string{"stdout: second"}, h.output("b"))
	lost := h.answer("c")
	require.Equal(t, resource.OutcomeFailed, lost.Outcome)
	require.Contains(t, lost.Message, "blueprint")
	other := h.answer("d")
	require.Equal(t, resource.OutcomePending, other.Outcome)
	require.Contains(t, other.Message, `"plugin"`)
}

// Phases are bound and unbound as the blueprint changes; one that has left it is served while its consumer is there.
func TestBlueprintChanges(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	r := h.run(runner.DefaultRunOptions())
	require.Zero(t, r.served("script"))
	first := h.blueprint(phase("one", script("true")), phase("two", script("true")))
	require.Eventually(t, func() bool { return r.served("script") == 2 }, 30*time.Second, 5*time.Millisecond)
	h.handOut("a", "one", first)
	require.Equal(t, resource.OutcomeCompleted, h.answer("a").Outcome)

	// two becomes a plugin's, three comes, one goes.
	h.blueprint(phase("two", `{"plugin": {}}`), phase("three", `{"poll": {"url": "http://127.0.0.1:1"}}`))
	require.Eventually(t, func() bool { return r.served("poll") == 1 && r.served("script") == 1 }, 30*time.Second, 5*time.Millisecond)
	h.handOut("b", "one", first)
	require.Equal(t, resource.OutcomeCompleted, h.answer("b").Outcome)
	require.NoError(t, h.RemovePhase(t.Context(), bus.Phase{Project: project, Kind: kind, Phase: "one"}))
	require.Eventually(t, func() bool { return r.served("script") == 0 }, 20*time.Second, 5*time.Millisecond)

	// one comes back, and is bound to again; all go with their blueprint, and come back with it.
	again := h.blueprint(phase("one", script("true")))
	require.Eventually(t, func() bool { return r.served("script") == 1 }, 30*time.Second, 5*time.Millisecond)
	h.handOut("c", "one", again)
	require.Equal(t, resource.OutcomeCompleted, h.answer("c").Outcome)
	e := bus.Entity{
		Partition: bus.PartitionOf(project, manifest.KindBlueprint, kind, partitions), Family: bus.Blueprint, Project: project, Kind: kind,
	}
	last, err := h.Last(t.Context(), []bus.Entity{e})
	require.NoError(t, err)
	gone, err := h.Bury(bus.Append{Entity: e, Expect: last[0].Seq, Body: last[0].Body}).Result()
	require.NoError(t, err)
	for _, name := range []string{"one", "two", "three"} {
		require.NoError(t, h.RemovePhase(t.Context(), bus.Phase{Project: project, Kind: kind, Phase: name}))
	}
	require.NoError(t, h.Forget(t.Context(), e, gone))
	require.Eventually(t, func() bool { return r.served("script") == 0 && r.served("poll") == 0 }, 20*time.Second, 5*time.Millisecond)
	again = h.blueprint(phase("one", script("true")))
	h.handOut("d", "one", again)
	require.Equal(t, resource.OutcomeCompleted, h.answer("d").Outcome)

	// Its consumer goes and comes while it is served: the worker finds the new one.
	require.NoError(t, h.RemovePhase(t.Context(), bus.Phase{Project: project, Kind: kind, Phase: "one"}))
	require.NoError(t, h.EnsurePhase(t.Context(), bus.Phase{Project: project, Kind: kind, Phase: "one"}))
	h.handOut("e", "one", again)
	require.Equal(t, resource.OutcomeCompleted, h.answer("e").Outcome)
}

func TestConcurrencyIsLimited(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	dir := t.TempDir()
	text := `mkdir "$DROVER_NAME"; ls | wc -l; sleep 0.05; rmdir "$DROVER_NAME"`
	digest := h.blueprint(phase("one", script(text, `"dir": "`+dir+`"`)), phase("two", script(text, `"dir": "`+dir+`"`)))
	options := runner.DefaultRunOptions()
	options.Concurrency = 2
	h.run(options)
	var names []string
	for i := range 16 {
		name := fmt.Sprintf("r%d", i)
		names = append(names, name)
		h.handOut(name, []string{"one", "two"}[i%2], digest)
	}
	for _, name := range names {
		require.Equal(t, resource.OutcomeCompleted, h.answer(name).Outcome)
		lines := h.output(name)
		require.Len(t, lines, 1)
		require.Contains(t, []string{"stdout: 1", "stdout: 2"}, strings.Join(strings.Fields(lines[0]), " "))
	}
}

// endless is a script that starts a child, writes its pid, and never ends.
const endless = `sh -c 'echo $$ > child; while :; do sleep 0.02; done' & wait`

func pid(t *testing.T, file string) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasSuffix(string(text), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	}, 30*time.Second, 5*time.Millisecond)
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // a broken runner must not leave it to the machine
		}
	})
	return pid
}

func gone(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) {
			return true
		}
		return err == nil && strings.Contains(string(stat), ") Z ")
	}, 30*time.Second, 5*time.Millisecond)
}

// A canceled phase ends its script, with what it has started, within seconds.
func TestCancel(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	dir := t.TempDir()
	digest := h.blueprint(phase("p", script(endless, `"dir": "`+dir+`"`)))
	h.run(runner.DefaultRunOptions())
	h.handOut("a", "p", digest)
	child := pid(t, filepath.Join(dir, "child"))
	h.put(h.state("a", "p", digest, 2, resource.Canceling), false)
	gone(t, child)
	require.Equal(t, resource.OutcomeNotStarted, h.answer("a").Outcome)
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	dir := t.TempDir()
	digest := h.blueprint(phase("p", script(endless, `"dir": "`+dir+`"`)))
	h.run(runner.DefaultRunOptions())
	s := h.state("a", "p", digest, 1, resource.Waiting)
	s.Phases[0].Deadline = time.Now().Add(time.Second)
	h.put(s, true)
	child := pid(t, filepath.Join(dir, "child"))
	result := h.answer("a")
	require.Equal(t, resource.OutcomeFailed, result.Outcome)
	require.True(t, result.Retryable)
	require.Contains(t, result.Message, "timed out")
	gone(t, child)
}

// A runner that stops ends its scripts and answers nothing: another one carries the work out at once.
func TestStopHandsOver(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	dir := t.TempDir()
	text := `if [ -e child ]; then echo second; exit 0; fi; ` + endless
	digest := h.blueprint(phase("p", script(text, `"dir": "`+dir+`"`)))
	options := runner.DefaultRunOptions()
	options.StopGrace = 0
	first := h.run(options)
	h.handOut("a", "p", digest)
	child := pid(t, filepath.Join(dir, "child"))
	first.stop()
	gone(t, child)
	require.Empty(t, h.answers("a"))
	h.run(options)
	require.Equal(t, resource.OutcomeCompleted, h.answer("a").Outcome)
	require.Equal(t, []string{"stdout: second"}, h.output("a"))
}

func TestOptions(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, o := range []runner.RunOptions{{}, {Concurrency: 1, StopGrace: -1}, {Concurrency: 100_000}} {
		config := host.DefaultConfig()
		config.Listen = ""
		s := host.New(host.Options{Name: runner.Service, Config: config})
		require.Error(t, s.Run(t.Context(), func(ctx context.Context, s *host.Host) error { return o.Run(ctx, s, h) }))
	}
}
