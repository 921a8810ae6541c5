package sweep_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/lifecycle/internal/sweep"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// owners answers for partitions, and remembers who was asked in which order.
type owners struct {
	mu      sync.Mutex
	asked   []int
	out     int
	mostOut int
	answer  func(ctx context.Context, partition int) ([]byte, error)
}

func (o *owners) Ask(ctx context.Context, partition int, r bus.Request) (bus.Request, error) {
	if r.Verb != "sweep" {
		return bus.Request{}, errors.New("not a sweep")
	}
	o.mu.Lock()
	o.asked = append(o.asked, partition)
	o.out++
	o.mostOut = max(o.mostOut, o.out)
	answer := o.answer
	o.mu.Unlock()
	defer func() { o.mu.Lock(); o.out--; o.mu.Unlock() }()
	body, err := answer(ctx, partition)
	return bus.Request{Body: body}, err
}

func (o *owners) take() []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	asked := o.asked
	o.asked = nil
	return asked
}

func (o *owners) set(answer func(ctx context.Context, partition int) ([]byte, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

type house struct {
	owners   *owners
	logs     *observer.ObservedLogs
	registry *prometheus.Registry
	ticks    chan time.Time
	shares   chan []int
}

// start runs a sweeper inside a synctest bubble.
func start(t *testing.T) *house {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	h := &house{owners: &owners{}, logs: logs, registry: prometheus.NewRegistry(), ticks: make(chan time.Time), shares: make(chan []int)}
	s, err := sweep.New(h.owners, zap.New(core), h.registry)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, h.ticks, h.shares) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return h
}

// sweep ticks once and waits until the sweep is over: the next receive happens only then.
func (h *house) sweep(shares []int) {
	h.ticks <- time.Now()
	h.shares <- shares
}

func (h *house) value(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := h.registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			match := len(m.GetLabel()) == len(labels)/2
			for i := 0; match && i < len(labels); i += 2 {
				match = m.GetLabel()[i/2].GetName() == labels[i] && m.GetLabel()[i/2].GetValue() == labels[i+1]
			}
			if match {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func report(r sweep.Report) []byte {
	body, _ := json.Marshal(r)
	return body
}

func TestAsksEveryOwnedPartitionAndCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		h.owners.set(func(_ context.Context, p int) ([]byte, error) {
			time.Sleep(time.Millisecond) // the bubble's clock: all workers are out before the first returns
			return report(sweep.Report{Lost: 1, Overdue: 2, Forgotten: 3, Unrecorded: 4, Resources: uint64(p)}), nil
		})
		owned := make([]int, 20)
		for i := range owned {
			owned[i] = i
		}
		h.shares <- owned
		h.sweep(owned)

		require.ElementsMatch(t, owned, h.owners.take())
		require.Equal(t, sweep.AsksMax, h.owners.mostOut)
		require.Equal(t, 20.0, h.value(t, "drover_lifecycle_found_total", "what", "lost"))
		require.Equal(t, 40.0, h.value(t, "drover_lifecycle_found_total", "what", "overdue"))
		require.Equal(t, 60.0, h.value(t, "drover_lifecycle_found_total", "what", "forgotten"))
		require.Equal(t, 80.0, h.value(t, "drover_lifecycle_found_total", "what", "unrecorded"))
		require.Equal(t, 7.0, h.value(t, "drover_lifecycle_resources", "partition", "7"))
		require.Equal(t, 0.0, h.value(t, "drover_lifecycle_unanswered_partitions"))
		require.Equal(t, 1, h.logs.FilterMessage("sweep put things right").Len())
	})
}

func TestWhoDoesNotAnswerIsToldOnceAndAskedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		owned := []int{1, 2, 3}
		h.owners.set(func(ctx context.Context, p int) ([]byte, error) {
			switch p {
			case 2:
				return nil, bus.ErrNoOwner
			case 3:
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return report(sweep.Report{}), nil
		})
		h.shares <- owned
		for range 3 {
			began := time.Now()
			h.sweep(owned)
			require.Equal(t, sweep.AskTimeout, time.Since(began))
		}
		require.Equal(t, 2.0, h.value(t, "drover_lifecycle_unanswered_partitions"))
		require.Equal(t, 3.0, h.value(t, "drover_lifecycle_sweep_asks_total", "answer", "no_owner"))
		require.Equal(t, 3.0, h.value(t, "drover_lifecycle_sweep_asks_total", "answer", "timeout"))
		told := h.logs.FilterMessageSnippet("do not answer sweeps").All()
		require.Len(t, told, 1, "one line per change, not per tick")
		require.Equal(t, []any{2, 3}, told[0].ContextMap()["partitions"])

		h.owners.take()
		h.owners.set(func(context.Context, int) ([]byte, error) { return report(sweep.Report{}), nil })
		h.sweep(owned)
		require.Len(t, h.owners.take(), 3)
		require.Equal(t, 1, h.logs.FilterMessageSnippet("answers sweeps again").Len())
		require.Equal(t, 0.0, h.value(t, "drover_lifecycle_unanswered_partitions"))
	})
}

// With every owner silent a sweep ends in time, and those it did not reach come first in the next one.
func TestASweepEndsBeforeTheNextTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		owned := make([]int, 64)
		for i := range owned {
			owned[i] = i
		}
		h.owners.set(func(ctx context.Context, p int) ([]byte, error) {
			if p < 8 {
				return report(sweep.Report{}), nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		h.shares <- owned
		began := time.Now()
		h.sweep(owned)
		require.Equal(t, sweep.SweepTimeout, time.Since(began))
		require.Equal(t, 56.0, h.value(t, "drover_lifecycle_unanswered_partitions"))

		h.owners.take()
		h.owners.set(func(context.Context, int) ([]byte, error) { return report(sweep.Report{}), nil })
		h.sweep(owned)
		asked := h.owners.take()
		require.Len(t, asked, 64)
		require.NotContains(t, asked[:40], 0, "partition 0 answered last time and waits behind those that did not")
	})
}

func TestAReplyThatIsNoReport(t *testing.T) {
	t.Parallel()
	for name, body := range map[string][]byte{
		"empty":     nil,
		"no JSON":   []byte("sorry"),
		"negative":  []byte(`{"lost":-1}`),
		"too large": append([]byte(`{"lost":1`), make([]byte, sweep.ReportBytesMax)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := start(t)
				h.owners.set(func(context.Context, int) ([]byte, error) { return body, nil })
				h.shares <- []int{5}
				h.sweep([]int{5})
				require.Equal(t, 1.0, h.value(t, "drover_lifecycle_sweep_asks_total", "answer", "malformed"))
				require.Equal(t, 1.0, h.value(t, "drover_lifecycle_unanswered_partitions"))
			})
		})
	}
}

func TestPartitionsThatMoveAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		h.owners.set(func(_ context.Context, p int) ([]byte, error) {
			if p == 1 {
				return nil, bus.ErrNoOwner
			}
			return report(sweep.Report{Resources: 9}), nil
		})
		h.shares <- []int{1, 2}
		h.sweep([]int{1, 2})
		require.Equal(t, 1.0, h.value(t, "drover_lifecycle_unanswered_partitions"))

		h.shares <- []int{3}
		h.owners.take()
		h.sweep([]int{3})
		require.Equal(t, []int{3}, h.owners.take())
		require.Equal(t, 0.0, h.value(t, "drover_lifecycle_unanswered_partitions"))
		n, err := testutil.GatherAndCount(h.registry, "drover_lifecycle_resources")
		require.NoError(t, err)
		require.Equal(t, 1, n, "only what it sweeps is reported")
	})
}

func TestNothingOwned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		h.sweep(nil)
		require.Empty(t, h.owners.take())
		require.Zero(t, h.logs.Len())
	})
}
