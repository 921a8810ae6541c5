package host_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/host"
)

var errBroken = errors.New("broken")

// untilDone is a component that notes when it was told to stop.
func untilDone(note func()) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		note()
		return ctx.Err()
	}
}

func TestStopsInReverseOrder(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t"})
	var order []int // written by one component at a time: that is what is tested
	for i := range 20 {
		if i%3 == 0 {
			h.OnStop(fmt.Sprint(i), func(ctx context.Context) error {
				order = append(order, i)
				return ctx.Err() // not canceled: it has its own deadline
			})
			continue
		}
		h.Go(fmt.Sprint(i), untilDone(func() { order = append(order, i) }))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, h.Wait(ctx))
	require.NoError(t, h.Wait(ctx), "the second call says the same")
	for i, got := range order {
		require.Equal(t, 19-i, got)
	}
	require.Len(t, order, 20)
}

func TestFirstFailureStopsTheRest(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t"})
	stopped := false
	h.Go("patient", untilDone(func() { stopped = true }))
	h.Go("broken", func(context.Context) error { return errBroken })
	err := h.Wait(t.Context())
	require.ErrorIs(t, err, errBroken)
	require.EqualError(t, err, "broken: broken")
	require.True(t, stopped)
	require.Equal(t, err, h.Wait(t.Context()))
}

func TestFailureWhileStoppingIsReported(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t"})
	h.OnStop("flush", func(context.Context) error { return errBroken })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, h.Wait(ctx), errBroken)
}

func TestAComponentMayFinish(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t"})
	finished := make(chan struct{})
	h.Go("brief", func(context.Context) error { close(finished); return nil })
	<-finished
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, h.Wait(ctx))
}

// A component's own cancellation, of something else, is a failure like any other.
func TestCanceledWithoutBeingToldIsAFailure(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t"})
	h.Go("confused", func(context.Context) error { return context.Canceled })
	require.ErrorIs(t, h.Wait(t.Context()), context.Canceled)
}

func TestNothingStartsWhileStopping(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t"})
	late := false
	h.Go("starter", func(ctx context.Context) error {
		<-ctx.Done()
		h.Go("late", func(context.Context) error { late = true; return errBroken })
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, h.Wait(ctx))
	require.False(t, late)
}

func TestStopTimeoutNamesWhatIsLeft(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t", Config: host.Config{StopTimeout: time.Second}})
	release, told := make(chan struct{}), make(chan struct{})
	h.Go("earlier", untilDone(func() { close(told) }))
	h.Go("deaf", func(context.Context) error { <-release; return nil })
	h.Go("later", untilDone(func() {}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := h.Wait(ctx)
	require.ErrorIs(t, err, host.ErrStopTimeout)
	require.ErrorContains(t, err, "earlier, deaf")
	require.NotContains(t, err.Error(), "later")
	<-told // what stands behind the deaf one is told all the same
	close(release)
}

func TestRun(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx context.Context
		run func(ctx context.Context, h *host.Host) error
		err error
	}{
		"setup fails": {t.Context(), func(context.Context, *host.Host) error { return errBroken }, errBroken},
		"setup fails after a start": {t.Context(), func(_ context.Context, h *host.Host) error {
			h.Go("a", untilDone(func() {}))
			return errBroken
		}, errBroken},
		"returns at once": {canceled, func(_ context.Context, h *host.Host) error {
			h.Go("a", untilDone(func() {}))
			return nil
		}, nil},
		"returns at once, and fails": {t.Context(), func(_ context.Context, h *host.Host) error {
			h.Go("a", func(context.Context) error { return errBroken })
			return nil
		}, errBroken},
		"blocks by itself": {canceled, func(ctx context.Context, _ *host.Host) error {
			<-ctx.Done()
			return ctx.Err()
		}, nil},
		"blocks by itself, and a component fails": {t.Context(), func(ctx context.Context, h *host.Host) error {
			h.Go("a", func(context.Context) error { return errBroken })
			<-ctx.Done()
			return nil
		}, errBroken},
		"waits, and a component fails": {t.Context(), func(ctx context.Context, h *host.Host) error {
			h.Go("a", func(context.Context) error { return errBroken })
			return h.Wait(ctx)
		}, errBroken},
		"setup fails after a component has met what it left": {t.Context(), func(ctx context.Context, h *host.Host) error {
			h.Go("a", func(context.Context) error { return errors.New("an echo") })
			<-ctx.Done()
			return errBroken
		}, errBroken},
		"address is taken": {t.Context(), nil, errAddress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := host.New(host.Options{Name: "t"})
			if c.run == nil {
				h = host.New(host.Options{Name: "t", Config: host.Config{Listen: "127.0.0.1:http-of-nobody"}})
			}
			err := h.Run(c.ctx, c.run)
			switch {
			case c.err == nil:
				require.NoError(t, err)
			case errors.Is(c.err, errAddress):
				require.ErrorContains(t, err, "listen for health and metrics")
			default:
				require.ErrorIs(t, err, c.err)
			}
		})
	}
}

var errAddress = errors.New("no such address")

// Everything at once, over and over: starts, finishes, failures, questions and stops.
func TestStress(t *testing.T) {
	t.Parallel()
	for round := range 200 {
		h := host.New(host.Options{Name: "t"})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				h.ReadyWhen(fmt.Sprint(worker%3), func(context.Context) error { return nil })
				h.Go("endless", untilDone(func() {}))
				h.Go("brief", func(context.Context) error { return nil })
				h.OnStop("closer", func(context.Context) error { return nil })
				if worker == 5 && round%2 == 0 {
					h.Go("broken", func(context.Context) error { return errBroken })
				}
				_ = h.Ready(ctx)
			})
			wg.Go(func() {
				if worker == 3 {
					cancel()
				}
				if err := h.Wait(ctx); err != nil && !errors.Is(err, errBroken) {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
		cancel()
		require.ErrorContains(t, h.Ready(ctx), "stopping")
	}
}
