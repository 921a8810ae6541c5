package program

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// said is what a program has said on stderr, and logged.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) line(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

func (s *said) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

// shell is a program in sh.
func shell(t *testing.T, script string, change ...func(*Options)) (*Program, *said) {
	t.Helper()
	s := &said{}
	o := Options{Command: []string{"sh", "-c", script}, Dir: t.TempDir(), CallTimeout: 2 * time.Minute, Grace: 200 * time.Millisecond, Stderr: s.line}
	for _, f := range change {
		f(&o)
	}
	p, err := New(o)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p, s
}

func resident(o *Options) { o.Resident = true }

func limit(d time.Duration) func(*Options) { return func(o *Options) { o.CallTimeout = d } }

func event(names ...string) *Event {
	e := &Event{Project: "default", Type: "node", State: "Started", Cluster: "c1"}
	for _, name := range names {
		e.Resources = append(e.Resources, EventResource{Name: name, UID: "uid-" + name, State: "Started", Target: "Started", Attributes: map[string]string{"port": "80"}})
	}
	return e
}

func TestACallIsOneLine(t *testing.T) {
	t.Parallel()
	p, said := shell(t, `cat >&2; cat "$DROVER_NAMES_FILE" >&2; echo "$DROVER_PROJECT $DROVER_KIND $DROVER_STATE $DROVER_CLUSTER ${DROVER_SECRET-none}" >&2`,
		func(o *Options) {
			o.Env = Environment(append(os.Environ(), "DROVER_SECRET=sesame", "NATS_URL=nats://u:p@h"))
		})
	require.NoError(t, p.OnStateTransition(t.Context(), event("web-1", "web\n2")))
	require.Equal(t, []string{
		`{"function":"onStateTransition","project":"default","type":"node","state":"Started","cluster":"c1","resources":[` +
			`{"name":"web-1","kind":"node","uid":"uid-web-1","cluster":"","state":"Started","target":"Started","wasDeployed":false,"labels":{},"spec":{},"attributes":{"port":80}},` +
			`{"name":"web\n2","kind":"node","uid":"uid-web\n2","cluster":"","state":"Started","target":"Started","wasDeployed":false,"labels":{},"spec":{},"attributes":{"port":80}}]}`,
		"web-1", "web", "2", "default node Started c1 none",
	}, said.all())
}

// One process, many calls; calls at the same time have processes of their own.
func TestResident(t *testing.T) {
	t.Parallel()
	p, said := shell(t, `while read -r line; do echo "{\"log\": \"$$\"}"; echo '{"end": true}'; done; echo over >&2`, resident)
	for range 20 {
		require.NoError(t, p.OnStateTransition(t.Context(), event("a")))
	}
	require.Len(t, slices.Compact(said.all()), 1, "all by one process")
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for range 5 {
				if err := p.OnStateTransition(t.Context(), event("a")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	calls.Wait()
	p.Close() // they go by themselves when their stdin ends
	require.Contains(t, said.all(), "over")
}

func TestAResidentThatGoesIsStartedAgain(t *testing.T) {
	t.Parallel()
	p, said := shell(t, `read -r line; echo "{\"log\": \"$$\"}"; echo '{"end": true}'`, resident)
	for range 3 {
		require.NoError(t, p.OnStateTransition(t.Context(), event("a")))
		p.mu.Lock()
		went := p.idle[0].done
		p.mu.Unlock()
		select { // that it is reaped is known a moment later than it is so
		case <-went:
		case <-time.After(30 * time.Second):
			t.Fatal("the program does not go")
		}
	}
	require.Len(t, slices.Compact(said.all()), 3)
}

// What is written when nothing was asked is nobody's answer.
func TestAResidentThatTalksBetweenCalls(t *testing.T) {
	t.Parallel()
	p, said := shell(t, `read -r line; echo '{"end": true}'; echo '{"error": "too late"}'; echo told >&2; sleep 600`, resident)
	require.NoError(t, p.OnStateTransition(t.Context(), event("a")))
	require.Eventually(t, func() bool { return slices.Contains(said.all(), "told") }, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, p.OnStateTransition(t.Context(), event("a")), "a new process, whose first answers are its own")
	require.Contains(t, strings.Join(said.all(), "\n"), "when nothing was asked")
}

func TestExceptions(t *testing.T) {
	t.Parallel()
	flood := fmt.Sprintf(`yes '{"log": ""}' | head -n %d`, AnswersMax+1)
	for name, c := range map[string]struct {
		script, message string
		change          []func(*Options)
	}{
		"exit":                 {"echo why >&2; exit 7", "exit status 7: why", nil},
		"signal":               {"kill -SEGV $$", "ended by signal 11", nil},
		"told":                 {`echo '{"error": "no cloud"}'`, "no cloud", nil},
		"told without a text":  {`echo '{"error": ""}'`, "an error without a text", nil},
		"told by a resident":   {`read -r l; echo '{"error": "no cloud"}'; echo '{"end": true}'; read -r l`, "no cloud", []func(*Options){resident}},
		"a resident goes":      {`read -r l; echo bye >&2`, "the program has ended within a call: bye", []func(*Options){resident}},
		"no JSON":              {"echo hello", "line 1 of the call's answers: not a valid answer", nil},
		"after the end":        {`echo '{"end": true}'; echo '{"log": "x"}'`, "line 2 of the call's answers: it comes after the end", nil},
		"a listener decides":   {`echo '{"resource": "a", "outcome": "completed"}'`, "a listener decides nothing", nil},
		"a line too long":      {"head -c 2000000 /dev/zero | tr '\\0' ' '", "more than 1048576 bytes", nil},
		"too many lines":       {flood, "more than 100000 lines", nil},
		"no such program":      {"", "no-such-program cannot be run", []func(*Options){func(o *Options) { o.Command = []string{"no-such-program"} }}},
		"limit":                {"sleep 600", "longer than its limit of 300ms", []func(*Options){limit(300 * time.Millisecond)}},
		"limit without stdout": {"exec >&-; sleep 600", "longer than its limit of 300ms", []func(*Options){limit(300 * time.Millisecond)}},
		"limit of one that stays": {"trap '' TERM; echo on >&2; while :; do sleep 0.05; done", "longer than its limit of 3s, and its process group was ended: on",
			[]func(*Options){limit(3 * time.Second)}}, // time enough to start a shell on a busy machine
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := shell(t, c.script, c.change...)
			require.ErrorContains(t, p.OnStateTransition(t.Context(), event("a")), c.message)
			require.Empty(t, p.idle)
		})
	}
}

// A program that does not read its call is not in anybody's way.
func TestStdinIsNotRead(t *testing.T) {
	t.Parallel()
	big := event("a")
	big.Resources[0].Spec = []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	p, _ := shell(t, "exit 0")
	require.NoError(t, p.OnStateTransition(t.Context(), big))
	p, _ = shell(t, "exec 3<&0; sleep 600 <&3 & echo $! > pid; exit 0") // which has the end of the pipe too
	require.NoError(t, p.OnStateTransition(t.Context(), big))
	pid, err := strconv.Atoi(strings.TrimSpace(read(t, filepath.Join(p.o.Dir, "pid"))))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// The limit ends all of the group, and so does the end of the caller's context.
func TestTheWholeGroupEnds(t *testing.T) {
	t.Parallel()
	const tree = `trap '' TERM; sh -c 'echo $$ > child; while :; do sleep 0.05; done' & while ! test -s child; do sleep 0.01; done; echo $$ > parent; wait`
	gone := func(dir string) {
		for _, name := range []string{"parent", "child"} {
			pid := strings.TrimSpace(read(t, filepath.Join(dir, name)))
			require.Eventually(t, func() bool {
				stat, err := os.ReadFile("/proc/" + pid + "/stat")
				return err != nil || bytes.Contains(stat, []byte(") Z ")) || bytes.Contains(stat, []byte(") X "))
			}, 30*time.Second, 5*time.Millisecond)
		}
	}
	p, _ := shell(t, tree, limit(3*time.Second)) // time enough for the whole tree to start
	require.ErrorContains(t, p.OnStateTransition(t.Context(), event("a")), "longer than its limit")
	gone(p.o.Dir)

	p, _ = shell(t, tree)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.OnStateTransition(ctx, event("a")) }()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(p.o.Dir, "parent")); return err == nil }, 30*time.Second, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	gone(p.o.Dir)
}

// Who stops all processes of a service at once may reach the program first: that is no exception.
func TestASignalForBoth(t *testing.T) {
	t.Parallel()
	stopping := make(chan struct{})
	p, _ := shell(t, "kill -TERM $$", func(o *Options) { o.Stopping = stopping })
	require.ErrorContains(t, p.OnStateTransition(t.Context(), event("a")), "ended by signal 15")
	time.AfterFunc(100*time.Millisecond, func() { close(stopping) })
	require.ErrorIs(t, p.OnStateTransition(t.Context(), event("a")), errStopping)
}

func TestNewNamesTheOption(t *testing.T) {
	t.Parallel()
	for message, o := range map[string]Options{
		"the command": {},
		"limit":       {Command: []string{"x"}, CallTimeout: 2 * time.Hour},
		"grace":       {Command: []string{"x"}, Grace: -1},
	} {
		_, err := New(o)
		require.ErrorContains(t, err, message)
	}
}

func TestDecodeAnswer(t *testing.T) {
	t.Parallel()
	a, err := DecodeAnswer([]byte(`{"resource": "a", "outcome": "pending", "delay": "1m30s", "message": "m", "data": {"x": null}, "log": "l"}` + "\n"))
	require.NoError(t, err)
	require.Equal(t, Answer{
		Resources: []string{"a"}, Outcome: "pending", Delay: 90 * time.Second, Message: "m", Log: "l", Data: a.Data,
	}, a)
	require.Equal(t, "null", string(a.Data["x"]))
	a, err = DecodeAnswer([]byte(`{"resources": ["a"], "kind": "node", "outcome": "completed"}`))
	require.NoError(t, err)
	require.Equal(t, Answer{Resources: []string{"a"}, Kind: "node", Outcome: "completed"}, a)
	for line, reason := range map[string]string{
		`{"kind": "node", "log": "x"}`:                          "kind is empty, or without",
		`{"resource": "a", "kind": "", "outcome": "completed"}`: "kind is empty, or without",
		``:                                     "is not JSON",
		`[]`:                                   "must be an object",
		`{"outcome": "completed"}`:             "resource is missing",
		`{"attributes": {}}`:                   "resource is missing",
		`{"resource": "a", "resources": []}`:   "exclude each other",
		`{"resource": "a", "outcome": "done"}`: "none of completed, failed, pending",
		`{"resource": "a", "message": "x"}`:    "outcome is missing",
		`{"resource": "a", "outcome": "completed", "retryable": true}`: "retryable is for",
		`{"resource": "a", "outcome": "failed", "delay": "1s"}`:        "delay is for",
		`{"resource": "a", "outcome": "pending", "delay": "-1s"}`:      "delay is not 0 to",
		`{"resource": "a", "outcome": "pending", "delay": "25h"}`:      "delay is not 0 to",
		`{"resource": "a", "outcome": "pending", "delay": 5}`:          "delay",
		`{"resource": "a", "attributes": {"": 1}}`:                     "empty name",
		`{"resource": "a", "outcome": "completed"} {}`:                 "is not JSON",
		`{"resource": "a", "outcom": "completed"}`:                     "no field of this name",
		`{"resource": "a", "resource": "b", "outcome": "completed"}`:   "resource",
		"{\"resource\": \"\xff\"}":                                     "not UTF-8",
	} {
		_, err := DecodeAnswer([]byte(line))
		require.ErrorIs(t, err, ErrAnswer, line)
		require.ErrorContains(t, err, reason, line)
	}
}

// Whatever a program writes, it speaks of its own resources or fails, and nothing panics.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte("{\"resource\": \"a\", \"outcome\": \"completed\"}\n{\"end\": true}\n"))
	f.Add([]byte("{\"resources\": [\"a\", \"b\"], \"outcome\": \"failed\", \"message\": \"x\", \"retryable\": true}\n\n{\"error\": \"e\"}"))
	f.Add([]byte("{\"resource\": \"a\", \"attributes\": {\"x\": [1, {\"y\": null}]}, \"log\": \"\xff\"}\r\n"))
	f.Fuzz(func(t *testing.T, stdout []byte) {
		r := reading{each: func(a *Answer) error {
			if a.Outcome != "" && a.Outcome != completed && a.Outcome != failed && a.Outcome != pending {
				t.Fatalf("outcome %q", a.Outcome)
			}
			if a.Outcome != "" && a.Resources == nil || a.Delay < 0 || a.Delay > DelayMax || a.Retryable && a.Outcome != failed {
				t.Fatalf("%+v", a)
			}
			return nil
		}}
		var failure error
		process.Lines(64, func(line []byte, cut bool) {
			if failure == nil {
				failure = r.line(outLine{bytes.Clone(line), cut})
			}
			if cut && failure == nil {
				t.Fatal("a line that was cut is an answer")
			}
		})(bytes.NewReader(stdout))
		if failure != nil && r.count > 0 && !strings.Contains(failure.Error(), fmt.Sprintf("line %d of", r.count)) {
			t.Fatal(failure)
		}
	})
}

func read(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(body)
}

// A program that has gone before its call is read has said why.
func TestWhatWasSaidBeforeTheCallIsKept(t *testing.T) {
	t.Parallel()
	p, _ := shell(t, "echo why >&2; exit 7")
	c, err := p.take(p.o.Env)
	require.NoError(t, err)
	<-c.done
	_, err = p.callChild(t.Context(), c, []byte("{}\n"), nil, func(*Answer) error { return nil })
	require.ErrorContains(t, err, "exit status 7: why")
}
