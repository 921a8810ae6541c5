package host_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/host"
)

// child names what the test binary does instead of testing, when it is started again by one of the tests below.
const child = "HOST_TEST_CHILD"

func TestMain(m *testing.M) {
	if behaviour := os.Getenv(child); behaviour != "" {
		os.Exit(runChild(behaviour))
	}
	goleak.VerifyTestMain(m)
}

func runChild(behaviour string) int {
	switch behaviour {
	case "graceful": // two components, whose order of stopping is printed
		return host.Main("child", func(ctx context.Context, h *host.Host) error {
			for _, name := range []string{"first", "second"} {
				h.Go(name, func(ctx context.Context) error {
					<-ctx.Done()
					fmt.Println("stopped", name)
					return nil
				})
			}
			fmt.Println("ready", h.ID())
			return h.Wait(ctx)
		})
	case "stubborn": // does not stop
		return host.Main("child", func(context.Context, *host.Host) error {
			fmt.Println("ready")
			select {}
		})
	case "failing":
		return host.Main("child", func(ctx context.Context, h *host.Host) error {
			h.Go("disk", func(context.Context) error { return fmt.Errorf("the disk is gone") })
			return h.Wait(ctx)
		})
	case "config": // prints what it was told
		var colour string
		return host.Main("child", func(_ context.Context, h *host.Host) error {
			out, err := json.Marshal(map[string]any{"config": h.Config(), "colour": colour})
			fmt.Println(string(out))
			if err != nil {
				return err
			}
			return syscall.Kill(os.Getpid(), syscall.SIGTERM)
		}, func(fs *flag.FlagSet) { fs.StringVar(&colour, "fleet-colour", "grey", "`colour` of the fleet") })
	case "roots": // prints how many authorities this process trusts
		pool, err := x509.SystemCertPool()
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(len(pool.Subjects())) //nolint:staticcheck // of fallback roots it is right: they are not the system's
		return 0
	case "crash": // passes two crash points, alternately
		for i := range 5 {
			host.CrashPoint("even")
			fmt.Println("even", i)
			host.CrashPoint("odd")
			fmt.Println("odd", i)
		}
		return 0
	}
	return 99
}

type process struct {
	*exec.Cmd
	lines  *bufio.Scanner
	stderr *bytes.Buffer
}

// start runs the test binary again, with an environment of nothing but what is given.
func start(t *testing.T, behaviour string, env []string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// Without the option the race detector sleeps for a second at every exit.
	cmd.Env = append([]string{child + "=" + behaviour, "GORACE=atexit_sleep_ms=0"}, env...)
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return &process{Cmd: cmd, lines: bufio.NewScanner(stdout), stderr: stderr}
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	require.True(t, p.lines.Scan(), "no further line on stdout")
	return p.lines.Text()
}

// end returns the rest of stdout, and how the process ended.
func (p *process) end(t *testing.T) (rest []string, status syscall.WaitStatus) {
	t.Helper()
	for p.lines.Scan() {
		rest = append(rest, p.lines.Text())
	}
	err := p.Wait()
	if exit := (*exec.ExitError)(nil); err != nil {
		require.ErrorAs(t, err, &exit)
	}
	status, ok := p.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	return rest, status
}

func TestSignalStopsGracefully(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			p := start(t, "graceful", nil, "--id", "one")
			require.Equal(t, "ready one", p.line(t))
			require.NoError(t, p.Process.Signal(s))
			rest, status := p.end(t)
			require.Equal(t, []string{"stopped second", "stopped first"}, rest)
			require.Equal(t, host.ExitOK, status.ExitStatus())

			for line := range strings.Lines(p.stderr.String()) {
				entry := map[string]any{}
				require.NoError(t, json.Unmarshal([]byte(line), &entry), "a pipe gets JSON: %s", line)
				require.Equal(t, "child", entry[host.KeyService])
				require.Equal(t, "one", entry[host.KeyID])
			}
			require.Contains(t, p.stderr.String(), `"msg":"stopped"`)
		})
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t, "stubborn", nil, "--stop-timeout", "1h")
	require.Equal(t, "ready", p.line(t))
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	// The kernel may merge two signals of one kind, and not two different ones.
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	_, status := p.end(t)
	require.True(t, status.Exited())
	require.Contains(t, []int{128 + int(syscall.SIGINT), 128 + int(syscall.SIGTERM)}, status.ExitStatus())
}

func TestStopHasADeadline(t *testing.T) {
	t.Parallel()
	p := start(t, "stubborn", nil, "--stop-timeout", "1ms")
	require.Equal(t, "ready", p.line(t))
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	_, status := p.end(t)
	require.Equal(t, host.ExitError, status.ExitStatus())
	require.Contains(t, p.stderr.String(), host.ErrStopTimeout.Error())
}

func TestFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	p := start(t, "failing", nil)
	_, status := p.end(t)
	require.Equal(t, host.ExitError, status.ExitStatus())
	require.Equal(t, 1, strings.Count(p.stderr.String(), "disk: the disk is gone"))
}

func TestFlagOverEnvironmentOverDefault(t *testing.T) {
	t.Parallel()
	env := []string{
		"NATS_URL=nats://user:secret@b:1", "DROVER_PARTITIONS=8", "DROVER_LOG_LEVEL=debug",
		"DROVER_FLEET_COLOUR=green", "DROVER_REPLICAS=", "DROVER_STOP_TIMEOUT=nonsense",
	}
	p := start(t, "config", env, "--partitions=16", "--stop-timeout=3s", "--listen=")
	var got struct {
		Config host.Config
		Colour string
	}
	require.NoError(t, json.Unmarshal([]byte(p.line(t)), &got))
	_, status := p.end(t)
	require.Equal(t, host.ExitOK, status.ExitStatus(), p.stderr)

	require.True(t, strings.HasPrefix(got.Config.ID, "child-"), got.Config.ID)
	got.Config.ID = ""
	require.Equal(t, host.Config{
		NATS: "nats://user:secret@b:1", Partitions: 16, Replicas: 1, LogLevel: "debug", LogFormat: host.FormatAuto,
		StopTimeout: 3 * time.Second, WorkAckWait: host.WorkAckWaitDefault,
	}, got.Config)
	require.Equal(t, "green", got.Colour)
	require.NotContains(t, p.stderr.String(), "secret")
	require.Contains(t, p.stderr.String(), "nats://xxxxx@b:1")
}

func TestDroverVariableOverNATSURL(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"nats://c:1": nil, "nats://d:1": {"-s", "nats://d:1"}} {
		p := start(t, "config", []string{"NATS_URL=nats://b:1", "DROVER_NATS=nats://c:1"}, append(args, "--listen=")...)
		require.Contains(t, p.line(t), name)
		_, status := p.end(t)
		require.Equal(t, host.ExitOK, status.ExitStatus())
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args, env []string
		code      int
		stdout    string
		stderr    string
	}{
		"help":             {args: []string{"--help"}, stdout: "DROVER_NATS, NATS_URL"},
		"own flag in help": {args: []string{"-h"}, stdout: "DROVER_FLEET_COLOUR"},
		"version":          {args: []string{"--version"}, stdout: host.Version()},
		"unknown flag":     {args: []string{"--colour"}, code: host.ExitUsage, stderr: "-colour"},
		"argument":         {args: []string{"now"}, code: host.ExitUsage, stderr: `unexpected argument "now"`},
		"bad number":       {args: []string{"--partitions=many"}, code: host.ExitUsage, stderr: "partitions"},
		"bad variable":     {env: []string{"DROVER_PARTITIONS=tops3cret"}, code: host.ExitUsage, stderr: "DROVER_PARTITIONS: not a value of --partitions"},
		"out of range":     {args: []string{"--partitions=0", "--replicas=2", "--id=a b", "--log-level=fatal", "--log-format=xml", "--stop-timeout=0s", "--nats="}, code: host.ExitUsage, stderr: "--stop-timeout: must be above zero"},
		"crash point":      {env: []string{host.CrashVariable + "=somewhere"}, code: host.ExitUsage, stderr: host.CrashVariable},
		"half a pair":      {args: []string{"--tlscert=/c.pem"}, code: host.ExitUsage, stderr: "--tlscert: and --tlskey: both or none"},
		"healthcheck help": {args: []string{"--help"}, stdout: "ask the running service at --listen whether it is ready"},
		"log level":        {env: []string{"DROVER_LOG_LEVEL=loud"}, code: host.ExitUsage, stderr: "--log-level"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, "config", c.env, c.args...)
			out, status := p.end(t)
			require.Equal(t, c.code, status.ExitStatus(), p.stderr)
			require.Contains(t, strings.Join(out, "\n"), c.stdout)
			require.Contains(t, p.stderr.String(), c.stderr)
			require.NotContains(t, p.stderr.String(), "tops3cret")
		})
	}
}

// TestHealthcheck asks a service that starts, one that is ready, and none, as an image's health command does.
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t", Config: host.Config{Listen: host.ListenDefault}})
	ctx, cancel := context.WithCancel(t.Context())
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- h.Run(ctx, func(ctx context.Context, h *host.Host) error {
			close(begun)
			<-goOn
			return h.Wait(ctx)
		})
	}()
	<-begun
	_, port, err := net.SplitHostPort(h.Addr())
	require.NoError(t, err)
	ask := func(listen string) (int, string) {
		p := start(t, "config", []string{"DROVER_LISTEN=" + listen, "DROVER_HEALTHCHECK=no"}, "--healthcheck")
		out, status := p.end(t)
		require.Empty(t, out, "it runs nothing")
		return status.ExitStatus(), p.stderr.String()
	}
	code, says := ask("127.0.0.1:" + port)
	require.Equal(t, host.ExitError, code)
	require.Contains(t, says, "not ready: started: the service is starting")
	close(goOn)
	require.Eventually(t, func() bool { return h.Ready(t.Context()) == nil }, 30*time.Second, time.Millisecond)
	for _, listen := range []string{"127.0.0.1:" + port, ":" + port, "0.0.0.0:" + port} {
		code, says = ask(listen)
		require.Equal(t, host.ExitOK, code, says)
	}
	cancel()
	require.NoError(t, <-ended)
	code, says = ask("127.0.0.1:" + port)
	require.Equal(t, host.ExitError, code)
	require.Contains(t, says, "refused")
	code, says = ask("127.0.0.1:0")
	require.Equal(t, host.ExitError, code)
	require.Contains(t, says, "no address with a fixed port")
}

// TestRootsWithoutASystem: an image that holds nothing but a program trusts the public authorities all the same.
func TestRootsWithoutASystem(t *testing.T) {
	t.Parallel()
	p := start(t, "roots", []string{"SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent"})
	out, status := p.end(t)
	require.Equal(t, host.ExitOK, status.ExitStatus(), out)
	n, err := strconv.Atoi(lastOf(out))
	require.NoError(t, err)
	require.Greater(t, n, 100)
}

func TestCrashPointKillsAtTheNthHit(t *testing.T) {
	t.Parallel()
	for point, last := range map[string]string{"even:1": "", "even:3": "odd 1", "odd:2": "even 1"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			p := start(t, "crash", []string{host.CrashVariable + "=" + point})
			out, status := p.end(t)
			require.True(t, status.Signaled(), "the process must have died")
			require.Equal(t, syscall.SIGKILL, status.Signal())
			require.Equal(t, last, lastOf(out))
		})
	}
}

func TestCrashPointOfAnotherNameDoesNothing(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"", "elsewhere:1", "even:6"} {
		p := start(t, "crash", []string{host.CrashVariable + "=" + point})
		out, status := p.end(t)
		require.Equal(t, host.ExitOK, status.ExitStatus())
		require.Equal(t, "odd 4", lastOf(out))
	}
}

func lastOf(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

func BenchmarkCrashPointUnset(b *testing.B) {
	for b.Loop() {
		host.CrashPoint("never")
	}
}

func get(t *testing.T, h *host.Host, path string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + h.Addr() + path)
	require.NoError(t, err)
	defer response.Body.Close()
	body := &bytes.Buffer{}
	_, err = body.ReadFrom(response.Body)
	require.NoError(t, err)
	return response.StatusCode, body.String()
}
