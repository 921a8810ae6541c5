package lifecycle_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a lifecycle of its own; stop returns when it has ended.
func start(t *testing.T, s *memory.System, id string) (stop func()) {
	t.Helper()
	b := s.Connect()
	config := host.DefaultConfig()
	config.ID, config.Listen = id, ""
	h := host.New(host.Options{Name: lifecycle.Service, Config: config})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- h.Run(ctx, func(ctx context.Context, h *host.Host) error { return lifecycle.Run(ctx, h, b) })
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, b.Close())
	})
	t.Cleanup(stop)
	require.Eventually(t, func() bool { return h.Ready(t.Context()) == nil }, 30*time.Second, time.Millisecond)
	return stop
}

// Two processes share the partitions: one tick asks each partition, and after one has stopped the other asks all.
func TestEveryPartitionIsAskedAtEachTick(t *testing.T) {
	t.Parallel()
	s := memory.New(memory.Options{})
	b := s.Connect()
	defer b.Close()
	asked := make([]atomic.Int64, b.Partitions())
	for p := range asked {
		stop, err := b.ServeAsks(p, func(r bus.Request, reply func(map[string]string, []byte)) {
			if r.Verb == "sweep" {
				asked[p].Add(1)
			}
			reply(nil, []byte(`{"lost":0,"overdue":0,"forgotten":0,"unrecorded":0,"resources":1}`))
		})
		require.NoError(t, err)
		defer stop()
	}
	all := func() bool {
		for p := range asked {
			if asked[p].Load() == 0 {
				return false
			}
		}
		return true
	}
	forget := func() {
		for p := range asked {
			asked[p].Store(0)
		}
	}
	start(t, s, "a")
	stopB := start(t, s, "b")
	// A share may arrive after a tick, so the tick is repeated, as the server does.
	tick := func() bool { s.Tick(bus.TickSweep, time.Now()); return all() }
	require.Eventually(t, tick, 30*time.Second, 20*time.Millisecond)
	stopB()
	forget()
	require.Eventually(t, tick, 30*time.Second, 20*time.Millisecond)
}
