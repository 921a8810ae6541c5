package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/plugin/python"
	"github.com/droverproject/drover/services/drover/internal/cli"
	"github.com/droverproject/drover/services/drover/internal/up"
	"github.com/droverproject/drover/services/intake"
	"github.com/droverproject/drover/services/notifier"
	"github.com/droverproject/drover/services/orchestrator"
)

// roleMain makes this binary the command line itself, so that a test can run it as a process, and kill it.
const roleMain = "DROVER_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(roleMain) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// workAckWait is how soon the work of a killed worker is handed out again in these tests; it is 30 s else.
const workAckWait = 2 * time.Second

// newStage is a house for plugins: a server and the services that they meet, with another workAckWait.
func newStage(t *testing.T) *house {
	t.Helper()
	h, stop := openStage(t, t.TempDir())
	t.Cleanup(stop)
	return h
}

// openStage is newStage on a folder. What is in it stays when it is stopped.
func openStage(t *testing.T, dir string) (h *house, stop func()) {
	t.Helper()
	server, err := natsd.Start(natsd.Options{StoreDir: dir, Port: -1})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		require.NoError(t, server.Shutdown())
	})
	for i, s := range []struct {
		name string
		run  func(context.Context, *host.Host, bus.Bus) error
	}{{orchestrator.Service, orchestrator.Run}, {notifier.Service, notifier.Run}, {intake.Service, intake.Run}} {
		b, err := jetstream.Connect(ctx, jetstream.Options{InProcess: server, Partitions: 4, WorkAckWait: workAckWait})
		require.NoError(t, err)
		if i == 0 {
			_, err = b.Setup(ctx, true)
			require.NoError(t, err)
		}
		config := host.DefaultConfig()
		config.Listen = ""
		h := host.New(host.Options{Name: s.name, Config: config})
		running.Go(func() {
			if err := h.Run(ctx, func(ctx context.Context, h *host.Host) error { return s.run(ctx, h, b) }); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
			_ = b.Close() // the server goes next
		})
		require.Eventually(t, func() bool { return h.Ready(ctx) == nil }, 20*time.Second, 5*time.Millisecond, s.name)
	}
	return &house{t: t, at: up.Addresses{NATS: server.ClientURL()}}, stop
}

// worker is a `drover plugin` in a process of its own.
type worker struct {
	t    *testing.T
	cmd  *exec.Cmd
	said *output
	done chan struct{}
	err  error // of its end
}

// output is what a process has said, while it says it.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// plugin starts `drover plugin ARGS`, in a folder and with variables of its own.
func (h *house) plugin(dir string, env []string, args ...string) *worker {
	h.t.Helper()
	w := &worker{t: h.t, cmd: exec.Command(os.Args[0], append([]string{"plugin"}, args...)...), said: &output{}, done: make(chan struct{})}
	w.cmd.Dir = dir
	w.cmd.Env = append(os.Environ(), roleMain+"=1", "NATS_URL="+h.at.NATS, "PYTHONDONTWRITEBYTECODE=1", "TMPDIR="+h.t.TempDir())
	w.cmd.Env = append(w.cmd.Env, env...)
	w.cmd.Stdout, w.cmd.Stderr = w.said, w.said
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(h.t, w.cmd.Start())
	go func() {
		defer close(w.done)
		w.err = w.cmd.Wait()
	}()
	h.t.Cleanup(func() {
		_ = syscall.Kill(w.cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-w.done:
		case <-time.After(20 * time.Second):
			h.t.Error("the worker does not stop")
			w.kill()
		}
		if h.t.Failed() {
			h.t.Logf("plugin %v said:\n%s", args, w.said)
		}
	})
	return w
}

// kill is kill -9.
func (w *worker) kill() {
	_ = syscall.Kill(w.cmd.Process.Pid, syscall.SIGKILL)
	<-w.done
}

// stop ends it gracefully.
func (w *worker) stop() {
	w.t.Helper()
	require.NoError(w.t, syscall.Kill(w.cmd.Process.Pid, syscall.SIGTERM))
	select {
	case <-w.done:
	case <-time.After(20 * time.Second):
		w.t.Fatal("the worker does not stop")
	}
	require.NoError(w.t, w.err, w.said.String())
}

// state is a resource as `describe -o json` shows it.
type state struct {
	State struct {
		State       string         `json:"state"`
		PhaseFailed bool           `json:"phaseFailed"`
		Attributes  map[string]any `json:"attributes"`
		Phases      []phaseState   `json:"phases"`
	} `json:"state"`
}

type phaseState struct {
	Name    string         `json:"name"`
	Status  string         `json:"status"`
	Attempt int            `json:"attempt"`
	Message string         `json:"message"`
	Data    map[string]any `json:"data"`
}

func (h *house) look(resource string) state {
	h.t.Helper()
	var s state
	require.NoError(h.t, json.Unmarshal([]byte(h.run(cli.ExitOK, "get", resource, "-o", "json")), &s))
	return s
}

// phase is how a phase of a resource stands; its zero value where it does not stand at all.
func (h *house) phase(resource, name string) phaseState {
	h.t.Helper()
	for _, p := range h.look(resource).State.Phases {
		if p.Name == name {
			return p
		}
	}
	return phaseState{}
}

// become waits until a phase has a status.
func (h *house) become(resource, name, status string) phaseState {
	h.t.Helper()
	var p phaseState
	require.Eventually(h.t, func() bool {
		p = h.phase(resource, name)
		return p.Status == status
	}, 30*time.Second, 50*time.Millisecond, "%s of %s is %+v", name, resource, &p)
	return p
}

// apply applies manifests.
func (h *house) apply(manifests string) {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "manifests.yaml")
	require.NoError(h.t, os.WriteFile(file, []byte(manifests), 0o600))
	h.run(cli.ExitOK, "apply", "-f", file)
}

// examples copies examples/phases to a folder of the test, so that nothing is written beside the sources.
func examples(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("../../../../examples/phases")))
	return dir
}

func needsPython(t *testing.T) {
	t.Helper()
	if !python.Here("") {
		t.Skip("no python3 here: plugins in Python are not tested")
	}
}

// ssh makes a program of this name that does on this machine, in a folder, what it is told to do on another.
func ssh(t *testing.T, script string) (path string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ssh"), []byte("#!/bin/sh\n"+script), 0o700))
	return "PATH=" + dir + string(os.PathListSeparator) + os.Getenv("PATH")
}

const boxKind = `
apiVersion: drover/v1
kind: Blueprint
metadata: {name: box}
spec:
  lifecycle: node
  states: [Configuration]
  phases:
  - {name: host-file, states: [Configuration], interval: 200ms, executor: {plugin: {}}}
---
`

func boxes(names ...string) string {
	var all []string
	for _, name := range names {
		text, err := json.Marshal(name)
		if err != nil {
			panic(err)
		}
		all = append(all, fmt.Sprintf("{apiVersion: drover/v1, kind: box, metadata: {name: %s}}\n", text))
	}
	return strings.Join(all, "---\n")
}

// TestPluginInShell: one process a call, all resources in it, each answered by its name.
func TestPluginInShell(t *testing.T) {
	t.Parallel()
	h, dir, files := newStage(t), examples(t), t.TempDir()
	odd := `quoted "and" \back`
	h.apply(boxKind + boxes("a", "b", odd, "missing|folder"))
	require.NoError(t, os.Mkdir(filepath.Join(files, "missing|folder"), 0o500)) // touch of a folder succeeds
	h.plugin(dir, []string{"HOST_FILES=" + files}, "exec", "--phase", "box.host-file", "--", "./host-file.sh")
	h.run(cli.ExitOK, "start", "--all", "box", "--wait")
	for _, name := range []string{"a", "b", odd} {
		require.FileExists(t, filepath.Join(files, name))
	}
}

// TestPluginKill9: a worker that is killed fails nothing; what it had answered stays, and the rest is handed out again.
func TestPluginKill9(t *testing.T) {
	t.Parallel()
	h, dir := newStage(t), t.TempDir()
	h.apply(boxKind + boxes("done", "left"))
	h.run(cli.ExitOK, "start", "--all", "box")
	// It keeps something of each resource and waits for a file.
	script := `while IFS= read -r name; do echo "$name" >> called; printf '{"resource": "%s", "attributes": {"by": "'$$'"}}\n' "$name"; done < "$DROVER_NAMES_FILE"
echo $$ > pid; echo "waiting on purpose" >&2
while ! test -e go; do sleep 0.05; done
while IFS= read -r name; do printf '{"resource": "%s", "outcome": "completed"}\n' "$name"; done < "$DROVER_NAMES_FILE"`
	args := []string{"exec", "--phase", "box/host-file", "--", "sh", "-c", script}
	first := h.plugin(dir, nil, args...)
	pid := awaitFile(t, filepath.Join(dir, "pid"))
	first.kill()
	// The program goes with its worker, so that it is not at work beside its own next call.
	require.Eventually(t, func() bool { return syscall.Kill(atoi(t, pid), 0) != nil || zombie(pid) }, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, os.Remove(filepath.Join(dir, "pid")))
	second := h.plugin(dir, nil, args...)
	again := awaitFile(t, filepath.Join(dir, "pid"))
	require.NotEqual(t, pid, again)
	require.Eventually(t, func() bool { return strings.Contains(second.said.String(), "waiting on purpose") }, 30*time.Second, 10*time.Millisecond,
		"what the program says on its standard error is passed on")
	for _, name := range []string{"box/done", "box/left"} {
		require.False(t, h.look(name).State.PhaseFailed)
		require.Equal(t, 1, h.phase(name, "host-file").Attempt, "it is the same attempt")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	h.run(cli.ExitOK, "wait", "--all", "box", "--for", "state=Started")
	for _, name := range []string{"box/done", "box/left"} {
		require.Equal(t, again, fmt.Sprint(h.look(name).State.Attributes["by"]), "what the killed one had said without an answer is not kept")
	}
	second.stop()
}

// TestPluginStopFailsNothing: nor does one that is told to stop in the middle of a call.
func TestPluginStopFailsNothing(t *testing.T) {
	t.Parallel()
	h, dir := newStage(t), t.TempDir()
	h.apply(boxKind + boxes("left"))
	h.run(cli.ExitOK, "start", "box/left")
	script := `echo $$ > pid; exec sleep 600`
	w := h.plugin(dir, nil, "exec", "--phase", "box/host-file", "--stop-grace", "100ms", "--grace", "100ms", "--", "sh", "-c", script)
	awaitFile(t, filepath.Join(dir, "pid"))
	w.stop()
	require.NotEqual(t, "Failed", h.phase("box/left", "host-file").Status)
	// One whose whole service is told to stop at once: the program may go first.
	require.NoError(t, os.Remove(filepath.Join(dir, "pid")))
	w = h.plugin(dir, nil, "exec", "--phase", "box/host-file", "--", "sh", "-c", script)
	pid := awaitFile(t, filepath.Join(dir, "pid"))
	require.NoError(t, syscall.Kill(-atoi(t, pid), syscall.SIGTERM))
	w.stop()
	require.NotEqual(t, "Failed", h.phase("box/left", "host-file").Status)
}

// TestPluginCanceled: a call that nobody wants any more is ended, and another target is on its way.
func TestPluginCanceled(t *testing.T) {
	t.Parallel()
	h, dir := newStage(t), t.TempDir()
	h.apply(boxKind + boxes("a"))
	h.run(cli.ExitOK, "start", "box/a")
	h.plugin(dir, nil, "exec", "--phase", "box/host-file", "--grace", "100ms", "--", "sh", "-c", "echo $$ > pid; exec sleep 600")
	pid := awaitFile(t, filepath.Join(dir, "pid"))
	h.run(cli.ExitOK, "terminate", "box/a", "--wait")
	require.True(t, zombie(pid))
	require.Equal(t, "Canceled", h.phase("box/a", "host-file").Status)
	require.Equal(t, "Terminated", h.look("box/a").State.State)
}

// TestPluginExceptions: what an exception is, and whom it fails.
func TestPluginExceptions(t *testing.T) {
	t.Parallel()
	h := newStage(t)
	h.apply(boxKind + boxes("completed", "failed", "pending", "silent"))
	answers := `echo '{"resource": "completed", "outcome": "completed", "attributes": {"kept": 1}}'
echo '{"resource": "failed", "outcome": "failed", "message": "own reason"}'
echo '{"resource": "pending", "outcome": "pending", "delay": "1h", "message": "later"}'
echo '{"resource": "silent", "attributes": {"kept": 2}}'
`
	h.run(cli.ExitOK, "start", "--all", "box")
	for _, c := range []struct{ end, message string }{
		{"echo out of cheese >&2; exit 3", "exit status 3: out of cheese"},
		{"exec sleep 600", "the call lasted longer than its limit of 700ms"},
		{"echo 'what is this'", "line 5 of the call's answers: not a valid answer"},
		{`echo '{"resource": "stranger", "outcome": "completed"}'`, "no resource of this name is in the call"},
		{"head -c 1100000 /dev/zero | tr '\\0' x", "it has more than 1048576 bytes"},
		{`echo '{"error": "the cloud said no"}'`, "the cloud said no"},
		{"kill -KILL $$", "ended by signal 9"},
	} {
		for _, name := range []string{"completed", "failed", "pending", "silent"} {
			h.become("box/"+name, "host-file", "Waiting") // before the worker is there, so that all are in one call
		}
		w := h.plugin(t.TempDir(), nil, "exec", "--phase", "box/host-file", "--call-timeout", "700ms", "--grace", "100ms", "--", "sh", "-c", answers+c.end)
		require.Equal(t, "own reason", h.become("box/failed", "host-file", "Failed").Message)
		require.Contains(t, h.become("box/pending", "host-file", "Failed").Message, c.message)
		require.Contains(t, h.become("box/silent", "host-file", "Failed").Message, c.message)
		require.Equal(t, "Started", h.look("box/completed").State.State)
		require.EqualValues(t, 2, h.look("box/silent").State.Attributes["kept"], "what was set is saved when the call ends, however it ends")
		w.stop()
		// "completed" goes round again, without a worker.
		h.run(cli.ExitOK, "terminate", "box/completed", "--wait")
		h.run(cli.ExitOK, "start", "box/completed")
		h.run(cli.ExitOK, "retry", "box/failed", "box/pending", "box/silent")
	}
	require.Contains(t, h.run(cli.ExitOK, "phases", "box/host-file"), "; 1 calls were ended past their limit")
}

// nodeKind is the kind of examples/phases, in which a person has said one thing of a phase before its plugin came.
const nodeKind = `
apiVersion: drover/v1
kind: Blueprint
metadata: {name: Cloud.Node}
spec:
  lifecycle: node
  states: [Allocation, Configuration, Installation]
  phases:
  - {name: Example.Install, states: [Installation], interval: 100ms, executor: {plugin: {}}}
---
`

func nodes(names ...string) string {
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("{apiVersion: drover/v1, kind: Cloud.Node, metadata: {name: %s}, spec: {Provider: acme, Credentials: key, MachineType: small, Install: all}}\n", name))
	}
	return strings.Join(all, "---\n")
}

// TestPluginsInPython: the four examples of seed 003 as they are, from nothing to Started, and what fails on the way.
func TestPluginsInPython(t *testing.T) {
	t.Parallel()
	needsPython(t)
	h, dir := newStage(t), examples(t)
	acme := &cloud{refusing: true}
	server := httptest.NewServer(acme)
	t.Cleanup(server.Close)
	remote := t.TempDir()
	path := ssh(t, `cd `+remote+`
echo "$*" >> said
host="$1"; shift
case "$1" in
start-install) mkdir "install-$host"; echo "install-$host" ;;
touch) for name in "$@"; do test ! -e "refuse-$name" || { echo "no room for $name" >&2; exit 1; }; done; "$@" ;;
cat) test ! -e "$2" || cat "$2" ;;
esac
`)
	env := []string{path, "ACME_URL=" + server.URL}
	h.apply(nodeKind + nodes("web-1", "web-2.example.com") +
		"---\n{apiVersion: drover/v1, kind: Cloud.Node, metadata: {name: stranger, cluster: c1}, spec: {Provider: other}}\n")
	transitions := filepath.Join(t.TempDir(), "transitions")
	// All at once, the dependants first: each adds its phase to the blueprint, and none is lost.
	var workers []*worker
	for _, name := range []string{"create_instance", "install_script", "host_file", "create_volume", "log_transitions"} {
		workers = append(workers, h.plugin(dir, append(slices.Clone(env), "TRANSITIONS="+transitions), "exec", "--definition", name+".txt", "--python", name+".py"))
	}
	for _, w := range workers { // what holds for jobs is what was answered, and not what a bucket shows
		require.Eventually(t, func() bool { return regexp.MustCompile(`: (added|changed)\n`).MatchString(w.said.String()) }, 30*time.Second, 20*time.Millisecond)
	}
	blueprint := h.run(cli.ExitOK, "describe", "blueprint/Cloud.Node")
	require.Regexp(t, `Acme.CreateInstance +Allocation +Example.CreateVolume +plugin .*Starting Acme instance`, blueprint)
	require.Contains(t, blueprint, `interval: "100ms"`, "what a definition does not say stays")
	require.Equal(t, "phase Cloud.Node/Acme.CreateInstance  unchanged\nlistener log_transitions  unchanged\n",
		h.run(cli.ExitOK, "plugin", "announce", "--definition", filepath.Join(dir, "create_instance.txt"), "--definition", filepath.Join(dir, "log_transitions.txt")))
	require.Contains(t, h.run(cli.ExitOK, "describe", "blueprint/Cloud.Node"), "Generation   5\n", "the same again changes nothing")
	h.run(cli.ExitOK, "start", "--all", "Cloud.Node")

	// Volume before instance; an exception fails all that were given, with its text.
	for _, name := range []string{"web-1", "web-2.example.com"} {
		require.Equal(t, "HTTP Error 500: Internal Server Error", h.become("Cloud.Node/"+name, "Example.CreateVolume", "Failed").Message)
		require.Equal(t, "Blocked", h.phase("Cloud.Node/"+name, "Acme.CreateInstance").Status)
	}
	acme.mu.Lock()
	acme.refusing = false
	acme.mu.Unlock()
	require.NoError(t, os.WriteFile(filepath.Join(remote, "refuse-web-1"), nil, 0o600))
	h.run(cli.ExitOK, "retry", "--all", "Cloud.Node")

	// One by one: the one that has no room fails alone.
	require.Equal(t, "Failed to create file: Command '['ssh', 'user@remotehost', 'touch', 'web-1']' returned non-zero exit status 1.",
		h.become("Cloud.Node/web-1", "Example.CreateFile", "Failed").Message)
	require.Regexp(t, `^instance-\d$`, h.look("Cloud.Node/web-1").State.Attributes["InstanceId"])
	h.become("Cloud.Node/web-2.example.com", "Example.CreateFile", "Completed")
	require.FileExists(t, filepath.Join(remote, "web-2.example.com"))

	// The asynchronous one is started once, and then looked at.
	status := filepath.Join(remote, "install-user@web-2.example.com", "status")
	require.Eventually(t, func() bool {
		said, err := os.ReadFile(filepath.Join(remote, "said"))
		return err == nil && strings.Count(string(said), "cat install-user@web-2.example.com/status") >= 2
	}, 20*time.Second, 20*time.Millisecond)
	p := h.phase("Cloud.Node/web-2.example.com", "Example.Install")
	require.Equal(t, "install-user@web-2.example.com", p.Data["Directory"])
	require.NoError(t, os.WriteFile(status, []byte("disk full\n"), 0o600))
	require.Equal(t, "disk full", h.become("Cloud.Node/web-2.example.com", "Example.Install", "Failed").Message)
	// A retry clears the phase data, so it is started again.
	require.NoError(t, os.RemoveAll(filepath.Dir(status)))
	h.run(cli.ExitOK, "retry", "Cloud.Node/web-2.example.com")
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Dir(status)); return err == nil }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, os.WriteFile(status, []byte("ok\n"), 0o600))
	h.run(cli.ExitOK, "wait", "Cloud.Node/web-2.example.com", "--for", "state=Started")

	// Another provider's, without Install: two phases are skipped for it.
	require.Equal(t, "Skipped", h.phase("Cloud.Node/stranger", "Acme.CreateInstance").Status)
	h.run(cli.ExitOK, "wait", "Cloud.Node/stranger", "--for", "state=Started")
	require.Equal(t, "Skipped", h.phase("Cloud.Node/stranger", "Example.Install").Status)

	// The listener was told of each.
	require.Eventually(t, func() bool {
		told, err := os.ReadFile(transitions)
		return err == nil && strings.Count(string(told), "Cloud.Node Configuration  ") == 2 && strings.Count(string(told), "Cloud.Node Started  ") == 1 &&
			strings.Contains(string(told), "Cloud.Node Started  web-2.example.com\n") && strings.Contains(string(told), "Cloud.Node Configuration c1 stranger\n") &&
			strings.Contains(string(told), "Cloud.Node Started c1 stranger\n")
	}, 20*time.Second, 50*time.Millisecond)

	acme.mu.Lock()
	defer acme.mu.Unlock()
	require.ElementsMatch(t, []string{"/volumes", "/volumes", "/volumes", "/instances", "/instances"}, acme.asked)
	for i, path := range acme.asked {
		if path == "/instances" {
			require.Regexp(t, `^volume-\d$`, acme.bodies[i]["params"].(map[string]any)["volume"], "the volume was there before")
			require.Equal(t, "key", acme.bodies[i]["creds"])
		}
	}
}

// TestPluginInBulk: one command for all; where it fails, all fail.
func TestPluginInBulk(t *testing.T) {
	t.Parallel()
	needsPython(t)
	h, dir, remote := newStage(t), examples(t), t.TempDir()
	h.apply(boxKind + boxes("a", "b", "c"))
	h.run(cli.ExitOK, "start", "--all", "box")
	for _, name := range []string{"a", "b", "c"} {
		h.become("box/"+name, "host-file", "Waiting")
	}
	env := []string{ssh(t, `cd `+remote+`; shift; echo "$*" >> said; test -e mended && "$@"`)}
	h.plugin(dir, env, "exec", "--phase", "box/host-file", "--python", "host_file_bulk.py")
	for _, name := range []string{"a", "b", "c"} {
		require.Contains(t, h.become("box/"+name, "host-file", "Failed").Message, "returned non-zero exit status 1.")
	}
	said, err := os.ReadFile(filepath.Join(remote, "said"))
	require.NoError(t, err)
	require.Regexp(t, `^touch ([abc]) ([abc]) ([abc])\n$`, string(said), "all that wait are given in one call")
	require.NoError(t, os.WriteFile(filepath.Join(remote, "mended"), nil, 0o600))
	h.run(cli.ExitOK, "retry", "--all", "box", "--wait")
	require.FileExists(t, filepath.Join(remote, "b"))
}

// TestPluginsGoOnAfterARestart: what slept and what ran when all of it was ended goes on when it is back, with what the plugin
// has kept (seed 003: "If CycleCloud is restarted, this plugin will resume where it left off").
func TestPluginsGoOnAfterARestart(t *testing.T) {
	t.Parallel()
	store, dir := t.TempDir(), t.TempDir()
	h, stop := openStage(t, store)
	t.Cleanup(func() { stop() })
	h.apply(`
apiVersion: drover/v1
kind: Blueprint
metadata: {name: Cloud.Node}
spec:
  lifecycle: node
  states: [Example.Config]
  phases:
  - {name: Phase.2, states: [Example.Config], interval: 2s, executor: {plugin: {}}}
  - {name: Phase.3, states: [Example.Config], executor: {plugin: {}}}
---
{apiVersion: drover/v1, kind: Cloud.Node, metadata: {name: Node1}}
`)
	// Phase.2 begins an operation once, and asks after it. Phase.3 is in the middle of its call.
	operation := []string{"exec", "--phase", "Cloud.Node/Phase.2", "--", "sh", "-c", `read -r call
case "$call" in
*'"OperationId":"abc123"'*) echo asked >> asked ;;
*) echo begun >> begun; echo '{"resource": "Node1", "data": {"OperationId": "abc123"}}' ;;
esac
if test -e over; then echo '{"resource": "Node1", "outcome": "completed"}'
else echo '{"resource": "Node1", "outcome": "pending", "message": "Performing operation 2"}'; fi`}
	long := []string{"exec", "--phase", "Cloud.Node/Phase.3", "--", "sh", "-c", `echo $$ > pid; while ! test -e over; do sleep 0.05; done; echo '{"resource": "Node1", "outcome": "completed"}'`}
	workers := []*worker{h.plugin(dir, nil, operation...), h.plugin(dir, nil, long...)}
	h.run(cli.ExitOK, "start", "Cloud.Node/Node1")
	awaitFile(t, filepath.Join(dir, "asked"))
	awaitFile(t, filepath.Join(dir, "pid"))
	h.become("Cloud.Node/Node1", "Phase.3", "Running")
	p := h.become("Cloud.Node/Node1", "Phase.2", "Sleeping")
	require.Equal(t, "abc123", p.Data["OperationId"])
	for _, w := range workers {
		w.kill()
	}
	stop()

	require.NoError(t, os.Remove(filepath.Join(dir, "asked")))
	require.NoError(t, os.Remove(filepath.Join(dir, "pid")))
	h, stop = openStage(t, store)
	p = h.phase("Cloud.Node/Node1", "Phase.2")
	require.Equal(t, []any{"Sleeping", "Performing operation 2", "abc123"}, []any{p.Status, p.Message, p.Data["OperationId"]})
	h.plugin(dir, nil, operation...)
	h.plugin(dir, nil, long...)
	awaitFile(t, filepath.Join(dir, "asked"))
	awaitFile(t, filepath.Join(dir, "pid"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "over"), nil, 0o600))
	h.run(cli.ExitOK, "wait", "Cloud.Node/Node1", "--for", "state=Started")
	for _, name := range []string{"Phase.2", "Phase.3"} {
		require.Equal(t, 1, h.phase("Cloud.Node/Node1", name).Attempt, "nothing has failed")
	}
	begun, err := os.ReadFile(filepath.Join(dir, "begun"))
	require.NoError(t, err)
	require.Equal(t, "begun\n", string(begun), "the operation was begun once")
}

// TestPluginOfAnEarlierBlueprint: a job goes on with the blueprint that it pinned, also with a phase that the present one has
// no more.
func TestPluginOfAnEarlierBlueprint(t *testing.T) {
	t.Parallel()
	h := newStage(t)
	h.apply(boxKind + boxes("a"))
	h.run(cli.ExitOK, "start", "box/a")
	h.become("box/a", "host-file", "Waiting")
	h.apply(strings.ReplaceAll(boxKind, "host-file", "other") + boxes("b"))
	h.plugin(t.TempDir(), nil, "exec", "--phase", "box/host-file", "--", "sh", "-c", `echo '{"resource": "a", "outcome": "completed"}'`)
	h.run(cli.ExitOK, "wait", "box/a", "--for", "state=Started", "--timeout", "40s")
}

// TestPluginOfSeveralKinds: one call has the resources of all its kinds, of which two may have the same name.
func TestPluginOfSeveralKinds(t *testing.T) {
	t.Parallel()
	needsPython(t)
	h, dir := newStage(t), t.TempDir()
	const disk = "\n{apiVersion: drover/v1, kind: disk, metadata: {name: %s}}\n---"
	h.apply(boxKind + strings.Replace(boxKind, "name: box", "name: disk", 1) + boxes("a", "b") + "---" + fmt.Sprintf(disk, "a") + fmt.Sprintf(disk, "c"))
	all := []string{"box/a", "box/b", "disk/a", "disk/c"}
	wait := func() {
		for _, name := range all {
			h.become(name, "host-file", "Waiting") // before the worker is there, so that all are in one call
		}
	}
	h.run(cli.ExitOK, "start", "--all", "box")
	h.run(cli.ExitOK, "start", "--all", "disk")
	wait()
	exec := []string{"exec", "--phase", "box/host-file", "--phase", "disk/host-file"}
	// In shell, names and kinds are in two files. Who does not say the kind of a name that two have is misunderstood.
	w := h.plugin(dir, nil, append(exec, "--", "sh", "-c", `paste "$DROVER_KINDS_FILE" "$DROVER_NAMES_FILE" | sort | tr '\t\n' '/ ' >> calls; echo "kind=$DROVER_KIND" >> calls
echo '{"resource": "a", "kind": "box", "outcome": "failed", "message": "own reason"}'
echo '{"resource": "c", "outcome": "completed"}'
echo '{"resource": "a", "outcome": "completed"}'`)...)
	require.Equal(t, "own reason", h.become("box/a", "host-file", "Failed").Message)
	require.Contains(t, h.become("disk/a", "host-file", "Failed").Message, "several kinds have a resource of this name, and kind is missing")
	h.become("box/b", "host-file", "Failed")
	h.run(cli.ExitOK, "wait", "disk/c", "--for", "state=Started")
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	require.NoError(t, err)
	require.Equal(t, "box/a box/b disk/a disk/c kind=\n", string(calls))
	w.stop()

	h.run(cli.ExitOK, "terminate", "disk/c", "--wait")
	h.run(cli.ExitOK, "start", "disk/c")
	h.run(cli.ExitOK, "retry", "box/a", "box/b", "disk/a")
	wait()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "several.py"), []byte(`
def handle(handler):
    print("call:", *sorted(r.getAsString("Type") + "/" + r.getAsString("Name") for r in handler.getResources()))
    for r in handler.getResources():
        if r.getAsString("Type") == "box" and r.getAsString("Name") == "a":
            handler.setFailed(r, "not this one")
        else:
            handler.setCompleted(r)
`), 0o600))
	w = h.plugin(dir, nil, append(exec, "--python", "several.py")...)
	require.Equal(t, "not this one", h.become("box/a", "host-file", "Failed").Message)
	h.run(cli.ExitOK, "wait", "--all", "disk", "--for", "state=Started")
	h.run(cli.ExitOK, "wait", "box/b", "--for", "state=Started")
	require.Contains(t, w.said.String(), "call: box/a box/b disk/a disk/c\n")
	w.stop()
	require.Regexp(t, `box/host-file +plugin +Inactive`, h.run(cli.ExitOK, "phases"))

	// One definition makes a phase of each kind.
	definition := filepath.Join(dir, "both.txt")
	require.NoError(t, os.WriteFile(definition, []byte("HandlesStates = [Configuration]\nResourceType = box, disk\nPhaseName = Both\nPhase.Dependencies = host-file\n"), 0o600))
	require.Equal(t, "phase box/Both  added\nphase disk/Both  added\n", h.run(cli.ExitOK, "plugin", "announce", "--definition", definition))
	require.NoError(t, os.WriteFile(definition, []byte("HandlesStates = Started\nResourceType = box\nPhaseName = Late\n"), 0o600))
	h.run(cli.ExitError, "plugin", "announce", "--definition", definition) // nothing is done in the state that is the target
	h.run(cli.ExitUsage, "plugin", "announce", "--definition", definition, "--definition", definition)
}

// cloud is the Acme cloud.
type cloud struct {
	mu       sync.Mutex
	asked    []string // paths
	bodies   []map[string]any
	refusing bool
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var body map[string]any
	if c.refusing || json.NewDecoder(r.Body).Decode(&body) != nil {
		http.Error(w, "no", http.StatusInternalServerError)
		return
	}
	c.asked, c.bodies = append(c.asked, r.URL.Path), append(c.bodies, body)
	_ = json.NewEncoder(w).Encode(map[string]string{"id": fmt.Sprintf("%s-%d", strings.Trim(r.URL.Path, "/s"), len(c.asked))})
}

func awaitFile(t *testing.T, path string) (text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		body, err := os.ReadFile(path)
		text = strings.TrimSpace(string(body))
		return err == nil && bytes.HasSuffix(body, []byte("\n"))
	}, 30*time.Second, 10*time.Millisecond, path)
	return text
}

func atoi(t *testing.T, text string) (n int) {
	t.Helper()
	_, err := fmt.Sscan(text, &n)
	require.NoError(t, err)
	return n
}

// zombie reports whether a process is dead and only not yet reaped.
func zombie(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err != nil || regexp.MustCompile(`\) [ZX] `).Match(stat)
}
