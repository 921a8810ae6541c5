//go:build unix

package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/examples/fleet/internal/flock"
	"github.com/droverproject/drover/examples/fleet/internal/home"
	"github.com/droverproject/drover/examples/fleet/internal/node"
	"github.com/droverproject/drover/examples/fleet/internal/process"
	"github.com/droverproject/drover/examples/fleet/internal/site"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is a folder with a configuration, on a port of its own.
func place(t *testing.T, change func(*node.Config)) (folder string, c node.Config) {
	t.Helper()
	s, err := site.Open(t.Context(), t.TempDir(), 2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	port, err := s.Home.Reserve("web-1", s.Ports)
	require.NoError(t, err)
	folder = t.TempDir()
	c = node.Config{Name: "web-1", Rack: "a", Port: port}
	if change != nil {
		change(&c)
	}
	body, err := json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, node.ConfigFile), body, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, node.PageFile), []byte("welcome\n"), 0o600))
	return folder, c
}

// log is what a node tells; safe to read while it does.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func run(t *testing.T, folder string) (cancel context.CancelFunc, ended chan error, told *log) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended, told = make(chan error, 1), &log{}
	go func() { ended <- node.Run(ctx, folder, told) }()
	require.Eventually(t, func() bool {
		pid, err := process.Running(folder)
		return err == nil && pid == os.Getpid()
	}, 30*time.Second, time.Millisecond, "it says its id when it serves")
	return cancel, ended, told
}

func get(t *testing.T, c node.Config, path string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + home.Address(c.Port) + path)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

func TestServes(t *testing.T) {
	t.Parallel()
	folder, c := place(t, func(c *node.Config) { c.WarmupMillis = 300 })
	began := time.Now()
	cancel, ended, _ := run(t, folder)

	for {
		status, body := get(t, c, "/healthz")
		if status == http.StatusOK {
			break
		}
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, body, "warming up")
		time.Sleep(5 * time.Millisecond)
	}
	require.GreaterOrEqual(t, time.Since(began), c.Warmup())
	_, body := get(t, c, "/")
	require.Equal(t, "welcome\n", body)
	_, body = get(t, c, "/about")
	var about node.About
	require.NoError(t, json.Unmarshal([]byte(body), &about))
	require.Equal(t, node.About{Name: "web-1", Rack: "a", PID: os.Getpid()}, about)
	status, _ := get(t, c, "/motd")
	require.Equal(t, http.StatusNotFound, status)
	status, _ = get(t, c, "/elsewhere")
	require.Equal(t, http.StatusNotFound, status)

	cancel()
	require.NoError(t, <-ended)
	require.True(t, home.Free(c.Port))
}

func TestMotd(t *testing.T) {
	t.Parallel()
	folder, c := place(t, nil)
	require.NoError(t, os.WriteFile(filepath.Join(folder, node.MotdFile), []byte("sweep\n"), 0o600))
	cancel, ended, _ := run(t, folder)
	status, body := get(t, c, "/motd")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "sweep\n", body)
	cancel()
	require.NoError(t, <-ended)
}

// TestEndsWithItsKeeper: the kernel frees the lock of a keeper that is killed; here it is closed.
func TestEndsWithItsKeeper(t *testing.T) {
	t.Parallel()
	lifeline := filepath.Join(t.TempDir(), "lock")
	lock, err := flock.Take(lifeline)
	require.NoError(t, err)
	folder, c := place(t, func(c *node.Config) { c.Lifeline = lifeline })
	_, ended, told := run(t, folder)
	status, _ := get(t, c, "/")
	require.Equal(t, http.StatusOK, status)

	require.NoError(t, lock.Close())
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("it has not noticed")
	}
	require.Contains(t, told.String(), "nobody keeps the fleet any more")
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config, reason string
	}{
		"no JSON":       {`{`, "config.json: unexpected EOF"},
		"unknown field": {`{"name": "a", "port": 2000, "colour": "red"}`, `unknown field "colour"`},
		"bad name":      {`{"name": "../a", "port": 2000}`, "is not a node's name"},
		"bad port":      {`{"name": "a", "port": 22}`, "not a range of ports"},
		"long warm-up":  {`{"name": "a", "port": 2000, "warmupMillis": 60000}`, "a warm-up of 1m0s"},
		"too large":     {strings.Repeat(" ", node.FileBytesMax+1), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(folder, node.ConfigFile), []byte(c.config), 0o600))
			require.ErrorContains(t, node.Run(t.Context(), folder, io.Discard), c.reason)
		})
	}
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	folder, c := place(t, nil)
	cancel, ended, _ := run(t, folder)
	second, _ := place(t, func(other *node.Config) { other.Port = c.Port })
	require.ErrorContains(t, node.Run(t.Context(), second, io.Discard), "address already in use")
	running, err := process.Running(second)
	require.NoError(t, err)
	require.Zero(t, running, "it has not said that it serves")
	cancel()
	require.NoError(t, <-ended)
}
