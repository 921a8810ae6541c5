package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/services/drover/internal/cli"
	"github.com/droverproject/drover/services/drover/internal/up"
)

const fleet = `
apiVersion: drover/v1
kind: Blueprint
metadata: {name: node}
spec:
  lifecycle: node
  states: [Allocation, Configuration]
  paths: {Terminated: [Removal]}
  phases:
  - {name: volume, states: [Allocation], executor: {script: {command: [sh, -c, 'mkdir "$DIR/$DROVER_NAME"'], env: {DIR: DIRECTORY}}}}
  - {name: host-file, states: [Configuration], executor: {script: {command: [sh, -c, 'echo configured; touch "$DIR/$DROVER_NAME/host"'], env: {DIR: DIRECTORY}}}}
  - {name: remove, states: [Removal], executor: {script: {command: [sh, -c, 'rm -r "$DIR/$DROVER_NAME"'], env: {DIR: DIRECTORY}}}}
---
{apiVersion: drover/v1, kind: node, metadata: {name: web-1.example.com}}
---
{apiVersion: drover/v1, kind: node, metadata: {name: web-2, labels: {rack: b}}}
`

// house is a `drover up` in a folder, and a terminal beside it.
type house struct {
	t    *testing.T
	at   up.Addresses
	stop func()
}

func newHouse(t *testing.T, directory string, more ...string) *house {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, announce := io.Pipe()
	var told bytes.Buffer
	done := make(chan int, 1)
	go func() {
		a := &cli.App{Out: announce, Err: &told, Getenv: func(string) string { return "" }, Connect: connect, Server: server, Streams: streams, Up: up.Run}
		done <- cli.Main(ctx, a, append([]string{"up", "--data", filepath.Join(directory, ".drover"), "--nats", "127.0.0.1:0", "--http", "127.0.0.1:0",
			"--partitions", "4", "-o", "json"}, more...))
		_ = announce.Close()
	}()
	h := &house{t: t}
	h.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case code := <-done:
			require.Equal(t, cli.ExitOK, code, told.String())
		case <-time.After(30 * time.Second):
			t.Error("it does not stop")
		}
	})
	t.Cleanup(h.stop)
	require.NoError(t, json.NewDecoder(ready).Decode(&h.at), "one line of JSON when it is ready")
	return h
}

// do runs a command line.
func (h *house) do(args ...string) (code int, out, errs string) {
	var outs, told bytes.Buffer
	a := &cli.App{
		Out: &outs, Err: &told, Connect: connect, Server: server, Streams: streams, Backup: backup, Restore: restore, Up: up.Run,
		Getenv: func(name string) string { return map[string]string{"NATS_URL": h.at.NATS, "USER": "ann"}[name] },
	}
	code = cli.Main(context.Background(), a, append(args, "--timeout", "30s"))
	return code, outs.String(), told.String()
}

// run runs a command line that must end with a code, and returns what it printed.
func (h *house) run(code int, args ...string) string {
	h.t.Helper()
	got, out, errs := h.do(args...)
	require.Equal(h.t, code, got, "%v: %s%s", args, out, errs)
	require.NotContains(h.t, out+errs, "\x1b")
	return out
}

// TestUpAndDown is a newcomer's first session, against a true server: up, apply, start, look, terminate, stop.
func TestUpAndDown(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	manifest := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(manifest, []byte(strings.ReplaceAll(fleet, "DIRECTORY", directory)), 0o600))

	h := newHouse(t, directory)
	run := h.run
	run(cli.ExitOK, "apply", "-f", manifest)
	run(cli.ExitOK, "start", "--all", "node", "--wait")
	require.FileExists(t, filepath.Join(directory, "web-1.example.com", "host"))
	require.Contains(t, run(cli.ExitOK, "get", "node"), "node/web-1.example.com   Started   Started")
	require.Contains(t, run(cli.ExitOK, "describe", "node/web-2"), "it is at its target Started")
	require.Equal(t, "[host-file] configured\n", run(cli.ExitOK, "logs", "node/web-1.example.com"))
	require.Contains(t, run(cli.ExitOK, "history", "node/web-2"), "start by ann")
	require.Contains(t, run(cli.ExitOK, "doctor", "--data", filepath.Join(directory, ".drover")), "always: what was acknowledged is on disk")
	run(cli.ExitNotFound, "get", "node/none")
	run(cli.ExitOK, "terminate", "node", "-l", "rack=b", "--wait")
	require.NoDirExists(t, filepath.Join(directory, "web-2"))
	run(cli.ExitOK, "delete", "--all", "node", "--wait")
	require.Empty(t, run(cli.ExitOK, "get", "node", "-o", "name"))
	require.NoDirExists(t, filepath.Join(directory, "web-1.example.com"))

	h.stop()
	var out, errs bytes.Buffer
	a := &cli.App{Out: &out, Err: &errs, Connect: connect, Server: server, Streams: streams, Up: up.Run}
	require.Equal(t, cli.ExitUnreachable, cli.Main(context.Background(), a, []string{"get", "-s", h.at.NATS}))
	require.NotContains(t, errs.String(), "goroutine")
}

// TestDoctorOnlyLooks: on a server that holds none of Drover's streams it says so, and makes none.
func TestDoctorOnlyLooks(t *testing.T) {
	t.Parallel()
	n, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Shutdown()) })
	for range 2 {
		var out, errs bytes.Buffer
		a := &cli.App{Out: &out, Err: &errs, Connect: connect, Server: server, Streams: streams, Up: up.Run}
		code := cli.Main(t.Context(), a, []string{"doctor", "-s", n.ClientURL(), "--data", t.TempDir(), "--timeout", "10s"})
		require.Equal(t, cli.ExitError, code, errs.String())
		require.Regexp(t, `streams +failed +not there: EVENTS, `, out.String(), errs.String())
		require.Regexp(t, `jetstream +ok +API level \d+, 0 streams, `, out.String())
		require.Regexp(t, `read drover_jobs +unknown +the bucket is not there`, out.String())
		require.Contains(t, errs.String(), "`drover setup` makes what is missing")
	}
	var out, errs bytes.Buffer
	a := &cli.App{Out: &out, Err: &errs, Connect: connect, Server: server, Streams: streams, Up: up.Run}
	require.Equal(t, cli.ExitOK, cli.Main(t.Context(), a, []string{"setup", "-s", n.ClientURL(), "--partitions", "4"}), errs.String())
	a = &cli.App{Out: &out, Err: &errs, Connect: connect, Server: server, Streams: streams, Up: up.Run}
	cli.Main(t.Context(), a, []string{"doctor", "-s", n.ClientURL(), "--data", t.TempDir(), "--timeout", "10s"})
	require.Regexp(t, `streams +ok `, out.String())
}
