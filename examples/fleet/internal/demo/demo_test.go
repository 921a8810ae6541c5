//go:build unix

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/examples/fleet"
	"github.com/droverproject/drover/examples/fleet/internal/home"
	"github.com/droverproject/drover/examples/fleet/internal/site"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openSite(t *testing.T) *site.Site {
	t.Helper()
	s, err := site.Open(t.Context(), t.TempDir(), 3)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// program is a shell script that plays drover.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drover")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700)) //nolint:gosec // it is to be run
	return path
}

// ---- the feed

// line is an event as `drover events -o jsonl` prints it.
func line(revision int, second float64, state, work, phases, attributes string) string {
	at := time.Unix(1000, int64(second*1e9)).UTC().Format(time.RFC3339Nano)
	if work != "" {
		work = fmt.Sprintf(`"work":{"fence":{"phase":%q,"attempt":1,"call":1}},`, work)
	}
	return fmt.Sprintf(`{"family":"resource","name":"web-01","time":%q,%s"state":{"uid":"u1","revision":"%d","state":%q,"phases":[%s],"attributes":{%s}}}`+"\n",
		at, work, revision, state, phases, attributes)
}

func phaseJSON(name, status string, second float64) string {
	return fmt.Sprintf(`{"name":%q,"status":%q,"attempt":1,"since":%q}`, name, status,
		time.Unix(1000, int64(second*1e9)).UTC().Format(time.RFC3339Nano))
}

func TestFeed(t *testing.T) {
	t.Parallel()
	f := newFeed()
	both := func(x, y string) string { return x + "," + y }
	require.NoError(t, f.read(strings.NewReader(
		line(1, 0, "", "", "", "")+
			line(2, 1, "Allocation", "allocate-folder", both(phaseJSON("allocate-folder", "Waiting", 1), phaseJSON("allocate-port", "Waiting", 1)), "")+
			line(3, 1, "Allocation", "allocate-port", both(phaseJSON("allocate-folder", "Waiting", 1), phaseJSON("allocate-port", "Waiting", 1)), "")+
			line(4, 1.5, "Allocation", "", both(phaseJSON("allocate-folder", statusCompleted, 1.5), phaseJSON("allocate-port", "Waiting", 1)), `"folder":"/x"`)+
			line(3, 1, "Allocation", "allocate-port", "", "")+ // an old one comes late
			line(5, 3, "Configuration", "configure", both(phaseJSON("allocate-folder", statusCompleted, 1.5), phaseJSON("allocate-port", statusCompleted, 3)), `"port":20001,"pid":77`)+
			line(6, 4, "Terminated", "", "", ""))))
	seen := f.tracks()
	require.Len(t, seen, 1)
	web := seen["web-01"]
	require.Equal(t, "Terminated", web.state.State)
	require.EqualValues(t, 6, web.state.Revision)
	require.Equal(t, 20001, web.port, "the last that it had")
	require.Equal(t, 77, web.pid)
	took, ok := web.took("allocate-folder")
	require.True(t, ok)
	require.Equal(t, 500*time.Millisecond, took)
	took, ok = web.took("allocate-port")
	require.True(t, ok)
	require.Equal(t, 2*time.Second, took)
	_, ok = web.took("configure")
	require.False(t, ok, "its end was not seen")
	require.True(t, web.atOnce("allocate-folder", "allocate-port"))
	require.False(t, web.atOnce("allocate-folder", "launch"))
	require.Equal(t, "Terminated 1", f.summary())

	require.Error(t, f.read(strings.NewReader("no JSON\n")))
}

func TestSummary(t *testing.T) {
	t.Parallel()
	f := newFeed()
	require.Empty(t, f.summary())
	for i, s := range []state{{}, {State: "Launch"}, {State: "Launch", PhaseFailed: true}, {State: "Started"}, {Gone: true}} {
		s.Revision, s.UID = 1, "u"
		f.see(&event{Name: fmt.Sprint(i), State: s})
	}
	require.Equal(t, "new 1  Launch 2  Started 1  gone 1  (failed 1)", f.summary())
}

func TestTable(t *testing.T) {
	t.Parallel()
	at := time.Unix(0, 0)
	text := table([]fleet.Node{{Name: "web-01", Rack: "a"}, {Name: "web-02", Rack: "b"}}, map[string]track{"web-01": {
		pid: 4711, port: 20001,
		state: state{State: "Terminated", Phases: []phaseRun{{Name: "motd", Status: statusSkipped}}},
		spans: map[string]span{"launch": {at, at.Add(1234 * time.Millisecond)}},
	}})
	require.Equal(t, strings.TrimLeft(`
NODE    RACK  STATE        PID   PORT  FOLDER  PORT  CONFIG  MOTD  LAUNCH  HEALTHY  ANNOUNCE  WITHDRAW  STOP  -PORT  -FOLDER
web-01  a     Terminated  4711  20001       -     -       -     .    1.23        -         -         -     -      -        -
web-02  b                    -      -       -     -       -     -       -        -         -         -     -      -        -
`, "\n"), text)
}

// TestColumnsAreTheBlueprints: a phase that is added to the one is missed in the other.
func TestColumnsAreTheBlueprints(t *testing.T) {
	t.Parallel()
	var phases, states []string
	for text := range strings.Lines(string(fleet.Blueprint)) {
		text, _, _ = strings.Cut(text, "#")
		if name, ok := strings.CutPrefix(strings.TrimSpace(text), "- name: "); ok {
			phases = append(phases, name)
		}
		if _, list, ok := strings.Cut(text, "["); ok && (strings.Contains(text, "  states: [Allocation, ") || strings.Contains(text, "Terminated: [")) {
			list, _, _ = strings.Cut(list, "]")
			states = append(states, strings.Split(list, ", ")...)
		}
	}
	var shown []string
	for _, c := range columns {
		shown = append(shown, c.phase)
	}
	require.Equal(t, phases, shown)
	for _, s := range states {
		require.Contains(t, order, s)
	}
	require.Len(t, states, len(order)-3, "all but new, Started and Terminated")
}

func TestSection(t *testing.T) {
	t.Parallel()
	const text = "Resource  node/a\n\nPhases\n  PHASE\n  one\n\nWhy it is where it is\n  because\n"
	require.Equal(t, "Phases\n  PHASE\n  one\n", section(text, "Phases"))
	require.Equal(t, "Why it is where it is\n  because\n", section(text, "Why it is where it is"))
	require.Empty(t, section(text, "Spec"))
}

func TestScreen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &screen{out: &out, terminal: true}
	s.draw("one")
	s.draw(strings.Repeat("ä", 100))
	s.say("done %d", 1)
	require.Equal(t, "one\r\x1b[K"+strings.Repeat("ä", 78)+"…\r\x1b[Kdone 1\n", out.String())

	var told error
	s = &screen{out: brokenPipe{}, broken: func(err error) { told = err }}
	s.say("is anybody there?")
	require.ErrorIs(t, told, errPipe)
}

var errPipe = errors.New("broken pipe")

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errPipe }

// ---- the checks

func completed(at ...int) state {
	var st state
	for i, name := range []string{"withdraw", "stop", "release-port", "release-folder"} {
		st.Phases = append(st.Phases, phaseRun{Name: name, Status: statusCompleted, Since: time.Unix(int64(at[i]), 0)})
	}
	return st
}

func TestInOrder(t *testing.T) {
	t.Parallel()
	for _, at := range [][]int{{1, 2, 3, 4}, {1, 2, 4, 3}, {1, 1, 1, 1}} {
		st := completed(at...)
		require.NoError(t, inOrder(&st), "%v", at)
	}
	for _, at := range [][]int{{2, 1, 3, 4}, {1, 3, 2, 4}, {1, 3, 4, 2}} {
		st := completed(at...)
		require.ErrorContains(t, inOrder(&st), "before the phases", "%v", at)
	}
	st := completed(1, 2, 3, 4)
	st.Phases[1].Status = statusFailed
	require.ErrorContains(t, inOrder(&st), "stop is not completed")
}

func TestCheckMended(t *testing.T) {
	t.Parallel()
	st := state{State: "Started", Phases: []phaseRun{{Name: "configure", Attempt: 2}, {Name: "motd", Status: statusSkipped}, {Name: "launch", Attempt: 1}}}
	require.NoError(t, checkMended(st))
	st.Phases[2].Attempt = 2
	require.ErrorContains(t, checkMended(st), "launch has run 2 times")
	st.State = "Launch"
	require.ErrorContains(t, checkMended(st), "not Started")
}

func TestCheckTerminatedFindsWhatIsLeft(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	nodes := s.Nodes
	states := map[string]state{}
	for _, n := range nodes {
		st := completed(1, 2, 3, 4)
		st.State = "Terminated"
		states[n.Name] = st
	}
	require.NoError(t, checkTerminated(s, nodes, states, []int{s.Ports.From}))

	wrong := completed(2, 1, 3, 4)
	wrong.State = "Terminated"
	states[nodes[0].Name] = wrong
	wrong = completed(1, 2, 3, 4)
	wrong.State, wrong.Attributes.PID = "Terminated", 4711
	states[nodes[1].Name] = wrong
	delete(states, nodes[2].Name)
	_, err := s.Home.Reserve("web-09", s.Ports)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(s.Home.Node("web-08"), 0o700))
	l, err := net.Listen("tcp", home.Address(s.Ports.To))
	require.NoError(t, err)
	defer l.Close()

	err = checkTerminated(s, nodes, states, []int{s.Ports.From, s.Ports.To})
	for _, finding := range []string{
		"web-01: phase stop was completed before", "web-02: still has {Folder: Port:0 PID:4711", `web-03: is in state "", not Terminated`,
		"is still reserved for web-09", "folder " + s.Home.Node("web-08") + " is left", fmt.Sprintf("port %d is in use", s.Ports.To),
	} {
		require.ErrorContains(t, err, finding)
	}
}

func TestCheckStartedBelievesNobody(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	free := s.Ports.From // nobody listens there
	states := map[string]state{
		s.Nodes[0].Name: {State: "Started", Attributes: attributes{Port: free, PID: 4711}},
		s.Nodes[1].Name: {State: "Started", Attributes: attributes{Port: free, PID: 4712}},
	}
	err := checkStarted(t.Context(), s, s.Nodes, states)
	for _, finding := range []string{
		"web-01: Get ", "connection refused", "web-02: shares process 4712 or port", "web-03: drover knows no such node",
		"0 processes are nodes, not 3", "the registry holds 0 nodes, not 3",
	} {
		require.ErrorContains(t, err, finding)
	}
}

func TestCheckGoneNamesAndKills(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	require.NoError(t, checkGone(s.Home, nil, 50*time.Millisecond))

	// Two that bear the mark, by environment and by command line: one of them is found on any system.
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.Args[0] = string(s.Home) + "/sleep"
	cmd.Env = []string{"A=b", mark(s.Home), "PATH=" + os.Getenv("PATH")}
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	err := checkGone(s.Home, nil, 50*time.Millisecond)
	require.ErrorContains(t, err, fmt.Sprintf("process %d: ", cmd.Process.Pid))
	require.ErrorContains(t, <-ended, "killed")
	require.NoError(t, checkGone(s.Home, nil, 50*time.Millisecond))
}

// ---- children

func TestEnvironment(t *testing.T) {
	t.Setenv("DROVER_RESULT", "yaml")
	t.Setenv("NATS_URL", "nats://192.0.2.1")
	t.Setenv("TMPDIR", "/elsewhere")
	t.Setenv("FLEET_TEST", "stays")
	env := environment("/home")
	all := "\n" + strings.Join(env, "\n") + "\n"
	require.NotContains(t, all, "\nDROVER_")
	require.NotContains(t, all, "\nNATS_")
	require.Contains(t, all, "\nFLEET_TEST=stays\n")
	require.Contains(t, all, "\nPATH=/home/bin:")
	require.Equal(t, 1, strings.Count(all, "\nTMPDIR="))
	require.Contains(t, all, "\nTMPDIR=/home/tmp\n")
}

func TestRunsCommandLines(t *testing.T) {
	t.Parallel()
	c := cli{program: program(t, `echo "$@"; echo oops >&2; exit 4`), server: "nats://127.0.0.1:1", env: os.Environ()}
	r, err := c.run(t.Context(), "get", "node")
	require.NoError(t, err)
	require.Equal(t, "get node --server nats://127.0.0.1:1\n", string(r.stdout))
	require.NoError(t, r.expect(4))
	err = r.expect(0)
	require.ErrorContains(t, err, "`drover get node` ended with exit code 4, not 0")
	require.ErrorContains(t, err, "oops")

	c.program = filepath.Join(t.TempDir(), "nothing")
	_, err = c.run(t.Context(), "get")
	require.ErrorIs(t, err, os.ErrNotExist)

	// One that hangs ends with the demo.
	c.program = program(t, `trap 'exit 0' TERM; echo x; while :; do sleep 0.01; done`)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	_, err = c.run(ctx, "get")
	require.ErrorIs(t, err, cause)
}

func TestServerStartsAndStops(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	up, err := startServer(t.Context(), program(t, `
trap 'echo stopped >&2; exit 0' TERM
echo '{"nats": "nats://127.0.0.1:1", "http": "x"}'
while :; do sleep 0.01; done`), s.Home)
	require.NoError(t, err)
	require.Equal(t, "nats://127.0.0.1:1", up.url)
	require.NoError(t, up.stop())
	require.NoError(t, up.stop(), "again is no failure")
	require.Contains(t, up.tail(), "stopped")
}

func TestServerThatDoesNotStart(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	for script, reason := range map[string]string{
		`echo "no room" >&2; exit 1`: "no room",
		`echo hello`:                 `it says "hello\n"`,
		`exit 0`:                     "it ended before it was ready",
	} {
		_, err := startServer(t.Context(), program(t, script), s.Home)
		require.ErrorContains(t, err, reason)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	_, err := startServer(ctx, program(t, `trap 'exit 0' TERM; while :; do sleep 0.01; done`), s.Home)
	require.ErrorIs(t, err, cause)
	require.NoError(t, checkGone(s.Home, nil, 50*time.Millisecond), "where it returns an error, nothing runs")
}

func TestServerThatEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := Run(t.Context(), Options{Drover: program(t, `
case $1 in
up) echo '{"nats": "nats://127.0.0.1:1"}'; sleep 0.2; echo "out of memory" >&2; exit 3;;
*) exec sleep 60;;
esac`), Nodes: 2, Out: &out})
	require.ErrorContains(t, err, "drover up has ended in the middle")
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "out of memory")
	require.NotErrorIs(t, err, ErrLeft)
	homes, err := filepath.Glob(homeOf(t, out.String()))
	require.NoError(t, err)
	require.Empty(t, homes)
}

// homeOf reads the home out of what a demo tells.
func homeOf(t *testing.T, told string) string {
	t.Helper()
	_, rest, ok := strings.Cut(told, "Its home is ")
	require.True(t, ok, told)
	path, _, ok := strings.Cut(rest, ", ")
	require.True(t, ok, told)
	return path
}

func TestSweepRemovesWhatIsAbandoned(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	open := func(name string) *site.Site {
		s, err := site.Open(t.Context(), filepath.Join(folder, name), 2)
		require.NoError(t, err)
		return s
	}
	abandoned, kept, other := open(homePrefix+"1"), open(homePrefix+"2"), open("else")
	require.NoError(t, abandoned.Close())
	require.NoError(t, other.Close())
	require.NoError(t, os.Mkdir(filepath.Join(folder, homePrefix+"3"), 0o700)) // one that is being made
	sweep(folder)
	require.NoDirExists(t, string(abandoned.Home))
	require.DirExists(t, string(kept.Home))
	require.DirExists(t, string(other.Home))
	require.DirExists(t, filepath.Join(folder, homePrefix+"3"))
	require.NoError(t, kept.Close())
}
