package script

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/plugin"

	"github.com/droverproject/drover/services/runner/internal/executor"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("TEST_SCRIPT_RUNNER"); dir != "" {
		runAndHang(dir)
	}
	// A secret in the runner's own environment must not reach a program.
	if err := os.Setenv("DROVER_CREDS_SECRET", "sesame"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) log(stream string, _ time.Time, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, stream+": "+line)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.text...)
}

func call(out *lines) *executor.Call {
	return &executor.Call{
		Key:   resource.Key{Project: "default", Kind: "node", Name: "web-1"},
		Fence: resource.Fence{UID: "uid1", JobID: "job1", Phase: "launch", Attempt: 2, Call: 1},
		Phase: "launch", State: "Configuration", Target: "Started", WasDeployed: true,
		Labels:     map[string]string{"rack": "a"},
		Attributes: map[string]string{"port": "8080"},
		Data:       map[string]string{"pid": "12"},
		Spec:       json.RawMessage(`{"size":"small","evil":"$(touch injected); \"'` + "`id`" + ` {{ resource.name }}"}`),
		Log:        out.log,
	}
}

func newScript(t *testing.T, config string) *Script {
	t.Helper()
	decoded, err := manifest.DecodeScript(config)
	require.NoError(t, err)
	s, err := New(decoded)
	require.NoError(t, err)
	return s
}

// shell is the configuration of a script for sh.
func shell(script string, more ...string) string {
	command, err := json.Marshal([]string{"sh", "-c", script})
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"command": %s%s}`, command, strings.Join(append([]string{""}, more...), ", "))
}

func run(t *testing.T, config string, change ...func(*executor.Call)) (executor.Outcome, []string) {
	t.Helper()
	var out lines
	c := call(&out)
	for _, f := range change {
		f(c)
	}
	o, err := newScript(t, config).Run(t.Context(), c)
	require.NoError(t, err)
	return o, out.all()
}

func TestExits(t *testing.T) {
	t.Parallel()
	o, out := run(t, shell("echo one; echo two >&2"))
	require.Equal(t, resource.OutcomeCompleted, o.Kind)
	require.ElementsMatch(t, []string{"stdout: one", "stderr: two"}, out)

	o, _ = run(t, shell("echo still copying; exit 75"))
	require.Equal(t, resource.OutcomePending, o.Kind)
	require.Equal(t, "still copying", o.Message)

	o, _ = run(t, shell("echo reason >&2; exit 3"))
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.False(t, o.Retryable)
	require.Equal(t, "exit status 3: reason", o.Message)

	o, _ = run(t, shell("exit 4", `"retryableExits": [4]`))
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.True(t, o.Retryable)

	o, _ = run(t, shell("kill -KILL $$"))
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.Contains(t, o.Message, "signal 9")

	o, _ = run(t, `{"command": ["no-such-program-anywhere"]}`)
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.Contains(t, o.Message, "no-such-program-anywhere")

	o, _ = run(t, shell("true", `"dir": "/no/such/folder"`))
	require.Equal(t, resource.OutcomeFailed, o.Kind)

	o, _ = run(t, shell("true {{ resource.spec.nope }}"))
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.Contains(t, o.Message, "command[2]")
	require.Contains(t, o.Message, "resource.spec.nope")
}

// A value of a spec is one argument, whatever it holds.
func TestArgumentsAreNotInterpreted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o, out := run(t, `{"command": ["printf", "%s|%s\n", "{{ resource.spec.evil }}", "x"], "dir": "`+dir+`"}`)
	require.Equal(t, resource.OutcomeCompleted, o.Kind, o.Message)
	require.Equal(t, []string{`stdout: $(touch injected); "'` + "`id`" + ` {{ resource.name }}|x`}, out)
	require.NoFileExists(t, filepath.Join(dir, "injected"))
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	deadline := time.Now().Add(time.Hour)
	o, out := run(t, shell(`env; cat "$DROVER_SPEC_FILE"`, `"env": {"GREETING": "hello {{ resource.name }}"}`),
		func(c *executor.Call) { c.Deadline = deadline })
	require.Equal(t, resource.OutcomeCompleted, o.Kind, o.Message)
	all := strings.Join(out, "\n")
	require.NotContains(t, all, "sesame")
	allowed := map[string]bool{"PATH": true, "HOME": true, "LANG": true, "TMPDIR": true, "PWD": true, "SHLVL": true, "_": true, "OLDPWD": true, "GREETING": true}
	seen := map[string]string{}
	for _, line := range out[:len(out)-1] {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "stdout: "), "=")
		require.True(t, allowed[name] || strings.HasPrefix(name, "DROVER_"), line)
		seen[name] = value
	}
	require.Equal(t, "hello web-1", seen["GREETING"])
	for name, want := range map[string]string{
		"PROJECT": "default", "KIND": "node", "NAME": "web-1", "UID": "uid1", "PHASE": "launch", "JOB": "job1", "ATTEMPT": "2",
		"STATE": "Configuration", "TARGET": "Started", "CLUSTER": "", "WAS_DEPLOYED": "true",
		"ATTRIBUTES": `{"port":8080}`, "DATA": `{"pid":12}`, "SPEC": string(call(&lines{}).Spec),
	} {
		require.Contains(t, seen, "DROVER_"+name)
		require.Equal(t, want, seen["DROVER_"+name], name)
	}
	parsed, err := time.Parse(time.RFC3339Nano, seen["DROVER_DEADLINE"])
	require.NoError(t, err)
	require.WithinDuration(t, deadline, parsed, 0)
	require.Equal(t, "stdout: "+string(call(&lines{}).Spec), out[len(out)-1])
	// The files of the call are gone with it.
	require.NoFileExists(t, seen["DROVER_SPEC_FILE"])
	require.NoDirExists(t, filepath.Dir(seen["DROVER_SPEC_FILE"]))
}

func TestLargeSpecIsAFileOnly(t *testing.T) {
	t.Parallel()
	spec := `{"x":"` + strings.Repeat("y", VariableBytesMax) + `"}`
	o, out := run(t, shell(`echo "${DROVER_SPEC-unset}"; wc -c < "$DROVER_SPEC_FILE"`), func(c *executor.Call) { c.Spec = json.RawMessage(spec) })
	require.Equal(t, resource.OutcomeCompleted, o.Kind, o.Message)
	require.Equal(t, []string{"stdout: unset", "stdout: " + strconv.Itoa(len(spec))}, out)
}

func TestOutputFile(t *testing.T) {
	t.Parallel()
	o, _ := run(t, shell(`echo '{"attributes": {"url": "http://x", "old": null}, "data": {"n": 1}, "outputs": {"list": [1, 2]}}' > "$DROVER_RESULT"`))
	require.Equal(t, resource.OutcomeCompleted, o.Kind, o.Message)
	require.Equal(t, map[string]string{"url": `"http://x"`, "old": "null"}, o.Attributes)
	require.Equal(t, map[string]string{"n": "1"}, o.Data)
	require.Equal(t, map[string]string{"list": "[1,2]"}, o.Outputs)

	for name, script := range map[string]string{
		"no JSON":       `echo nonsense > "$DROVER_RESULT"`,
		"unknown field": `echo '{"attribute": {}}' > "$DROVER_RESULT"`,
		"too large":     `head -c 200000 /dev/zero > "$DROVER_RESULT"`,
		"link":          `ln -s /etc/passwd "$DROVER_RESULT"`,
		"pipe":          `mkfifo "$DROVER_RESULT"`,
		"folder":        `mkdir "$DROVER_RESULT"`,
	} {
		o, _ := run(t, shell(script))
		require.Equal(t, resource.OutcomeFailed, o.Kind, name)
		require.Contains(t, o.Message, "DROVER_RESULT", name)
	}
}

func TestOutputLimits(t *testing.T) {
	t.Parallel()
	o, out := run(t, shell(`head -c 40000 /dev/zero | tr '\0' x; echo; echo after; printf 'no line end'`))
	require.Equal(t, resource.OutcomeCompleted, o.Kind)
	require.Len(t, out, 3)
	require.LessOrEqual(t, len(strings.TrimPrefix(out[0], "stdout: ")), LineBytesMax)
	require.True(t, strings.HasSuffix(out[0], cutMark))
	require.Equal(t, []string{"stdout: after", "stdout: no line end"}, out[1:])

	// A flood neither blocks the program nor reaches the log.
	o, out = run(t, shell(`yes 0123456789 | head -n 100000`, `"outputBytesMax": 110`))
	require.Equal(t, resource.OutcomeCompleted, o.Kind)
	require.Len(t, out, 12)
	require.Contains(t, out[10], "runner: output limit")
	require.Equal(t, "runner: 99990 lines were dropped", out[11])
}

// tree is a script with a child and a grandchild in its group, which write their pids. All of them ignore SIGTERM.
const tree = `trap '' TERM; sh -c 'trap "" TERM; echo $$ > child; sh -c "trap \"\" TERM; echo \$\$ > grandchild; while :; do sleep 0.05; done"' &
echo $$ > parent; while :; do sleep 0.05; done`

func alive(pid int) bool {
	// A zombie is not alive: its parent was killed before it could reap it, and init may take a moment.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(fields) > 0 && fields[0] != "Z" && fields[0] != "X"
}

func pidIn(t *testing.T, file string) int {
	t.Helper()
	pid := 0
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

func pids(t *testing.T, dir string) []int {
	t.Helper()
	var all []int
	for _, name := range []string{"parent", "child", "grandchild"} {
		all = append(all, pidIn(t, filepath.Join(dir, name)))
	}
	for _, pid := range all {
		require.True(t, alive(pid))
	}
	return all
}

func requireGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return !alive(pid) }, 30*time.Second, 5*time.Millisecond, "pid %d", pid)
	}
}

func TestCancelEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("canceled by the test")
	s, ended := newScript(t, shell(tree, `"dir": "`+dir+`"`, `"grace": "100ms"`)), make(chan error, 1)
	go func() {
		_, err := s.Run(ctx, call(&lines{}))
		ended <- err
	}()
	seen := pids(t, dir)
	cancel(reason)
	require.ErrorIs(t, <-ended, reason)
	requireGone(t, seen)
}

func TestDeadlineEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o, _ := run(t, shell("echo slow >&2; "+tree, `"dir": "`+dir+`"`, `"grace": "100ms"`),
		func(c *executor.Call) { c.Deadline = time.Now().Add(time.Second) })
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.True(t, o.Retryable)
	require.Contains(t, o.Message, "timed out")
	require.Contains(t, o.Message, "slow")
	var all []int
	for _, name := range []string{"parent", "child", "grandchild"} {
		all = append(all, pidIn(t, filepath.Join(dir, name)))
	}
	requireGone(t, all)
}

func TestGraceLetsAProgramTidyUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	s, ended := newScript(t, shell(`trap 'echo tidy > tidied; exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done`,
		`"dir": "`+dir+`"`, `"grace": "1m"`)), make(chan error, 1)
	go func() {
		_, err := s.Run(ctx, call(&lines{}))
		ended <- err
	}()
	_ = pidIn(t, filepath.Join(dir, "pid"))
	began := time.Now()
	cancel(plugin.ErrCanceled)
	require.ErrorIs(t, <-ended, plugin.ErrCanceled)
	require.FileExists(t, filepath.Join(dir, "tidied"))
	require.Less(t, time.Since(began), 30*time.Second) // nobody waits for the grace of a group that is gone
}

// What a completed script launched stays, and is not waited for.
func TestLaunchedProcessStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, launch := range map[string]string{
		"redirected": `sh -c 'echo $$ > pid; exec sleep 300' > log 2>&1 &`,
		"on pipes":   `sh -c 'echo $$ > pid; exec sleep 300' &`,
		"session":    `setsid sh -c 'echo $$ > pid; exec sleep 300' > log 2>&1 < /dev/null &`,
	} {
		dir := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		require.NoError(t, os.Mkdir(dir, 0o700))
		began := time.Now()
		o, _ := run(t, shell(launch+` while [ ! -s pid ]; do sleep 0.01; done; echo launched`, `"dir": "`+dir+`"`))
		require.Equal(t, resource.OutcomeCompleted, o.Kind, o.Message)
		require.Less(t, time.Since(began), 10*time.Second, name)
		pid := pidIn(t, filepath.Join(dir, "pid"))
		require.True(t, alive(pid), name)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// runAndHang is the runner in a process of its own, for the test below.
func runAndHang(dir string) {
	config, err := manifest.DecodeScript(shell(`echo $$ > pid; sh -c 'echo $$ > launched; exec sleep 300' > /dev/null 2>&1 & wait`, `"dir": "`+dir+`"`))
	if err != nil {
		panic(err)
	}
	s, err := New(config)
	if err != nil {
		panic(err)
	}
	_, _ = s.Run(context.Background(), call(&lines{}))
	os.Exit(1)
}

func TestKilledRunnerTakesItsProgram(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a parent-death signal")
	}
	dir := t.TempDir()
	runner := exec.Command(os.Args[0], "-test.run=^$")
	runner.Env = append(os.Environ(), "TEST_SCRIPT_RUNNER="+dir, "TMPDIR="+t.TempDir()) // what a killed runner leaves goes there
	require.NoError(t, runner.Start())
	pid, launched := pidIn(t, filepath.Join(dir, "pid")), pidIn(t, filepath.Join(dir, "launched"))
	require.NoError(t, runner.Process.Kill())
	require.Error(t, runner.Wait())
	requireGone(t, []int{pid})
	require.True(t, alive(launched)) // the known limit: what the program has started is not reached
	require.NoError(t, syscall.Kill(launched, syscall.SIGKILL))
}

func TestNewNamesTheField(t *testing.T) {
	t.Parallel()
	for field, config := range map[string]manifest.Script{
		"command[1]": {Command: []string{"sh", "{{ a b }}"}},
		"env.X":      {Command: []string{"sh"}, Env: map[string]string{"X": "{% include 'x' %}"}},
		"dir":        {Command: []string{"sh"}, Dir: "{{ ( }}"},
	} {
		_, err := New(config)
		require.ErrorContains(t, err, field)
	}
}
