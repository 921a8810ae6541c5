package natsd_test

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus/natsd"
)

func connect(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

func TestStoreSurvivesRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx := t.Context()
	var lines atomic.Int64
	s, err := natsd.Start(natsd.Options{StoreDir: dir, Port: -1, SyncAlways: true, Log: func(natsd.Level, string) {
		lines.Add(1)
	}})
	require.NoError(t, err)
	js := connect(t, s.ClientURL())
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
	_, err = js.Publish(ctx, "s", make([]byte, 1<<20))
	require.NoError(t, err, "a body of 1 MiB must pass")
	require.NoError(t, s.Shutdown())
	require.NoError(t, s.Shutdown(), "idempotent")
	require.Positive(t, lines.Load())

	s, err = natsd.Start(natsd.Options{StoreDir: dir, Port: -1})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Shutdown() })
	stream, err := connect(t, s.ClientURL()).Stream(ctx, "S")
	require.NoError(t, err)
	require.EqualValues(t, 1, stream.CachedInfo().State.Msgs)
}

func TestEphemeralLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := natsd.Start(natsd.Options{StoreDir: dir, Ephemeral: true, Port: -1})
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NoError(t, s.Shutdown())
	entries, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	_, err := natsd.Start(natsd.Options{Port: -1})
	require.ErrorContains(t, err, "StoreDir")
	_, err = natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1, ConfigFile: "/does/not/exist"})
	require.ErrorContains(t, err, "configuration")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_, err = natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: l.Addr().(*net.TCPAddr).Port})
	require.ErrorContains(t, err, "in use")
}

func TestClusterLosesAndRegainsAMember(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := natsd.StartCluster(3, natsd.Options{StoreDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Shutdown() })
	js := connect(t, c.ClientURL())
	require.Eventually(t, func() bool { // while a cluster forms its leader may not have heard of every member ("no suitable peers")
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3})
		return err == nil
	}, 30*time.Second, 50*time.Millisecond)
	require.NoError(t, c.StepDown(ctx, "S"))
	leader := c.Leader("S")
	require.GreaterOrEqual(t, leader, 0)
	require.NoError(t, c.Stop(leader))
	require.Eventually(t, func() bool {
		try, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := js.Publish(try, "s", nil)
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
	require.NoError(t, c.Start(ctx, leader))
}
