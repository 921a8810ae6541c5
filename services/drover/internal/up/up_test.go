package up_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/up"
)

// started is a running `drover up`.
type started struct {
	up.Addresses
	stop func() error
}

func start(t *testing.T, o up.Options) started {
	t.Helper()
	if o.NATS == "" {
		o.NATS = "127.0.0.1:0"
	}
	o.HTTP, o.Partitions = "127.0.0.1:0", 4
	if o.Sync == "" {
		o.Sync = up.SyncDefault // quicker, and no test cuts the power
	}
	ready := make(chan up.Addresses, 1)
	o.Ready = func(a up.Addresses) error {
		ready <- a
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- up.Run(ctx, o) }()
	t.Cleanup(cancel)
	select {
	case a := <-ready:
		return started{Addresses: a, stop: func() error {
			cancel()
			return <-done
		}}
	case err := <-done:
		require.NoError(t, err)
		t.Fatal("it ended before it was ready")
	case <-time.After(90 * time.Second):
		t.Fatal("not ready in time")
	}
	return started{}
}

func connect(t *testing.T, url string) *jetstream.Bus {
	t.Helper()
	b, err := jetstream.Connect(t.Context(), jetstream.Options{URL: url})
	require.NoError(t, err)
	return b
}

// TestRestart: what was accepted is there after a restart, one process holds a folder, and its addresses are told.
func TestRestart(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	first := start(t, up.Options{Data: data, Metrics: "127.0.0.1:0", Sync: up.SyncAlways})
	require.Equal(t, data, first.Data)
	require.Equal(t, up.SyncAlways, first.Sync)
	running, err := up.Running(data)
	require.NoError(t, err)
	require.Equal(t, first.Addresses, running)

	response, err := http.Get(first.Metrics + "/readyz")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	response, err = http.Get(first.HTTP + "/")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)

	err = up.Run(t.Context(), up.Options{Data: data, NATS: "127.0.0.1:0", HTTP: "127.0.0.1:0", Sync: up.SyncDefault})
	require.ErrorIs(t, err, up.ErrInUse)
	require.ErrorContains(t, err, first.NATS, "who holds it is told")

	b := connect(t, first.NATS)
	body, err := wire.EncodeCommand("", wire.Command{Manifest: &wire.Manifest{
		APIVersion: "drover/v1", Kind: "Blueprint", Name: "node",
		Spec: []byte(`{"lifecycle":"node","states":["A"],"phases":[{"name":"p","states":["A"],"executor":{"plugin":{}}}]}`),
	}})
	require.NoError(t, err)
	reply, err := b.Request(t.Context(), bus.CommandSubject("api", "default", "Blueprint", "node", "apply"),
		map[string]string{bus.HeaderRequestID: "r1"}, body)
	require.NoError(t, err)
	accepted, err := wire.DecodeReply(reply.Header[bus.HeaderContentType], reply.Body)
	require.NoError(t, err)
	require.Nil(t, accepted.Refused)
	require.NoError(t, b.Close())
	require.NoError(t, first.stop())

	_, err = up.Running(data)
	require.ErrorIs(t, err, os.ErrNotExist, "nobody runs there any more")
	left, err := json.Marshal(first.Addresses)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(data, up.LockFile), left, 0o600))
	_, err = up.Running(data)
	require.ErrorIs(t, err, os.ErrNotExist, "who was killed has left what it wrote, and runs no more")
	second := start(t, up.Options{Data: data})
	b = connect(t, second.NATS)
	require.Eventually(t, func() bool {
		_, err := b.Get(t.Context(), bus.Entity{Family: bus.Blueprint, Project: "default", Kind: "node"})
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, b.Close())
	require.NoError(t, second.stop())
}

func TestEphemeralLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	s := start(t, up.Options{Ephemeral: true, Data: filepath.Join(temp, "ignored")})
	require.Empty(t, s.Data)
	entries, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.NotEmpty(t, entries, "the store is in the temporary folder")
	require.NoError(t, s.stop())
	entries, err = os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestTakenPorts(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	taken := l.Addr().String()
	for what, o := range map[string]up.Options{
		"nats address": {NATS: taken, HTTP: "127.0.0.1:0"},
		"http address": {NATS: "127.0.0.1:0", HTTP: taken},
	} {
		o.Sync, o.Data = up.SyncDefault, t.TempDir()
		err := up.Run(t.Context(), o)
		require.ErrorIs(t, err, up.ErrPort, what)
		require.ErrorContains(t, err, what)
		require.ErrorContains(t, err, taken)
		require.ErrorIs(t, up.Run(t.Context(), o), up.ErrPort, "the folder is free again")
	}
}

func TestOptionsThatAreWrong(t *testing.T) {
	t.Parallel()
	for text, o := range map[string]up.Options{
		"sync":         {Sync: "sometimes", NATS: "127.0.0.1:0", HTTP: "127.0.0.1:0", Ephemeral: true},
		"data folder":  {Sync: up.SyncDefault, NATS: "127.0.0.1:0", HTTP: "127.0.0.1:0"},
		"nats address": {Sync: up.SyncDefault, NATS: "4222", HTTP: "127.0.0.1:0", Ephemeral: true},
		"http address": {Sync: up.SyncDefault, NATS: "127.0.0.1:0", HTTP: "127.0.0.1:http", Ephemeral: true},
	} {
		err := up.Run(t.Context(), o)
		require.ErrorIs(t, err, up.ErrOptions, text)
		require.ErrorContains(t, err, text)
	}
}

func TestStoppedWhileItStarts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, up.Run(ctx, up.Options{Ephemeral: true, NATS: "127.0.0.1:0", HTTP: "127.0.0.1:0", Sync: up.SyncDefault}))
}

// TestRestore: a data folder is made of a backup, and one whose restore was cut short is nothing else than that.
func TestRestore(t *testing.T) {
	t.Parallel()
	data, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	first := start(t, up.Options{Data: data})
	b := connect(t, first.NATS)
	_, err := b.Backup(t.Context(), backup, nil)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.NoError(t, first.stop())
	run := func(data, backup string) error {
		return up.Run(t.Context(), up.Options{Data: data, Restore: backup, NATS: "127.0.0.1:0", HTTP: "127.0.0.1:0", Sync: up.SyncDefault})
	}
	require.ErrorContains(t, run(data, backup), "restore", "a system is there")
	require.NoFileExists(t, filepath.Join(data, up.RestoringFile))
	require.NoError(t, start(t, up.Options{Data: data}).stop(), "which is as it was")

	torn := filepath.Join(t.TempDir(), "torn")
	require.NoError(t, os.CopyFS(torn, os.DirFS(backup)))
	require.DirExists(t, filepath.Join(torn, "COMMANDS"))
	require.NoError(t, os.RemoveAll(filepath.Join(torn, "COMMANDS"))) // which comes after EVENTS
	other := filepath.Join(t.TempDir(), "other")
	require.Error(t, run(other, torn))
	require.ErrorIs(t, run(other, ""), up.ErrOptions)
	require.FileExists(t, filepath.Join(other, up.RestoringFile))
	restored := start(t, up.Options{Data: other, Restore: backup})
	require.NoFileExists(t, filepath.Join(other, up.RestoringFile))
	require.NoError(t, restored.stop())
	require.NoError(t, start(t, up.Options{Data: other}).stop())
}
