package e2e_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	busjs "github.com/droverproject/drover/pkg/bus/jetstream"
)

// TestTheBucketsFollowALostServer: the server that leads the log is killed, and a bucket that another one leads follows the log
// again since it is handed over. By itself it would notice after 10 to 20 seconds. Nothing is handed over that follows.
func TestTheBucketsFollowALostServer(t *testing.T) {
	if !withThreads() {
		t.Skip("make threads runs it")
	}
	t.Parallel()
	h := newHouse(t, plan{servers: 3})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	nc := h.connect()
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	b, err := busjs.Connect(ctx, busjs.Options{URL: h.url, Name: "lifecycle", Partitions: 1, Replicas: 3})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	_, err = b.Setup(ctx, false)
	require.NoError(t, err)
	bucket := "KV_" + bus.Resource.Bucket()
	leader := func(stream string) (name string) {
		require.Eventually(t, func() bool {
			s, err := js.Stream(ctx, stream)
			if err == nil && s.CachedInfo().Cluster != nil {
				name = s.CachedInfo().Cluster.Leader
			}
			return name != ""
		}, time.Minute, 10*time.Millisecond)
		return name
	}
	n := 0
	arrives := func() {
		e := bus.Entity{Family: bus.Resource, Project: project, Kind: "node"}
		require.Eventually(t, func() bool {
			n++ // what was not answered may be stored
			e.Name = strconv.Itoa(n)
			_, err := b.Append(bus.Append{Entity: e, Body: []byte("x")}).Result()
			return err == nil
		}, time.Minute, 10*time.Millisecond)
		require.Eventually(t, func() bool { _, err := b.Get(ctx, e); return err == nil }, time.Minute, 10*time.Millisecond)
	}
	arrives()
	for range 8 {
		moved, err := b.Rederive(ctx)
		require.NoError(t, err)
		require.Empty(t, moved, "it follows the log")
		require.True(t, pause(ctx, 500*time.Millisecond))
	}

	for leader(bucket) == leader("EVENTS") { // of those two one is lost
		h.moveLeader(ctx, bucket)
	}
	arrives() // its new leader follows, too
	lost := leader("EVENTS")
	for _, s := range h.servers {
		if s.name == lost {
			s.slow(func() time.Duration { return 20 * time.Second })
			s.kill("")
		}
	}
	moved := map[string]bool{}
	for !moved[bucket] {
		found, _ := b.Rederive(ctx) // as long as the log has no leader it says so
		for _, stream := range found {
			moved[stream] = true
		}
		require.True(t, pause(ctx, 100*time.Millisecond), "the bucket is not handed over: %v", moved)
	}
	arrives()
}
