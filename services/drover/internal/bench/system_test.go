package bench

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
)

// What a measurement makes is gone after it, but for the blueprint, and the next one is as good.
func TestASystemIsMeasured(t *testing.T) {
	t.Parallel()
	server, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Shutdown()) })
	ctx, cancel := context.WithCancel(t.Context())
	var services sync.WaitGroup
	services.Go(func() {
		// What it says when it is stopped before it has begun is nobody's concern; it is measured, or the test fails.
		_ = runServices(ctx, jetstream.Options{URL: server.ClientURL(), Partitions: 2}, "ready")
	})
	t.Cleanup(func() {
		cancel()
		services.Wait()
	})
	o := SystemOptions{
		User: jetstream.Options{URL: server.ClientURL(), Name: "user"}, Worker: jetstream.Options{URL: server.ClientURL(), Name: "worker"},
		InFlight: 4, Idle: 10, For: 200 * time.Millisecond,
	}
	b, err := jetstream.Connect(t.Context(), o.User)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	l, err := newLoad(b)
	require.NoError(t, err)
	defer l.stop()
	require.Eventually(t, func() bool { return l.apply(t.Context(), "Blueprint", kind, blueprintJSON, "up") == nil }, 30*time.Second, 10*time.Millisecond)
	for range 2 {
		r, err := RunSystem(t.Context(), o)
		require.NoError(t, err)
		require.Positive(t, r.SteadyPhases)
		require.Positive(t, r.IdleP50)
		require.Positive(t, r.RawMessages, r.NoRaw)
		require.Equal(t, 2, r.Partitions)
		require.Equal(t, 1, r.Replicas)
		for i := range o.InFlight {
			_, err := b.Get(t.Context(), bus.Entity{Family: bus.Resource, Project: project, Kind: kind, Name: unit(i)})
			require.ErrorIs(t, err, bus.ErrNotFound)
		}
	}
}
