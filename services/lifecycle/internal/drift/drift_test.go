package drift_test

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/lifecycle/internal/drift"
)

type streams struct {
	found    []bus.Drift
	err      error
	repaired bool
}

func (s *streams) Setup(_ context.Context, repair bool) ([]bus.Drift, error) {
	s.repaired = s.repaired || repair
	return s.found, s.err
}

func TestDriftIsToldOnceAndCounted(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	registry, b := prometheus.NewRegistry(), &streams{}
	w, err := drift.New(b, zap.New(core), registry)
	require.NoError(t, err)
	count := func() int {
		n, err := testutil.GatherAndCount(registry, "drover_lifecycle_stream_drift")
		require.NoError(t, err)
		return n
	}

	w.Check(t.Context())
	require.Zero(t, logs.Len())
	require.Zero(t, count())

	b.found = []bus.Drift{{Stream: "EVENTS", Setting: "max_msgs_per_subject", Want: "8", Have: "1"}}
	w.Check(t.Context())
	w.Check(t.Context())
	require.Equal(t, 1, logs.FilterMessage("stream setting drifted").Len())
	require.Equal(t, 1, count())

	b.found = append(b.found, bus.Drift{Stream: "WORK", Setting: "storage", Want: "file", Have: "memory"})
	w.Check(t.Context())
	require.Equal(t, 2, logs.FilterMessage("stream setting drifted").Len(), "the new one is told, the old one not again")
	require.Equal(t, 2, count())

	b.err = errors.New("no answer")
	w.Check(t.Context())
	w.Check(t.Context())
	require.Equal(t, 1, logs.FilterMessage("stream settings cannot be checked").Len())
	require.Equal(t, 2, count(), "what was found stands until it was looked at again")

	b.found, b.err = nil, nil
	w.Check(t.Context())
	require.Equal(t, 1, logs.FilterMessage("stream settings are as they should be again").Len())
	require.Zero(t, count())
	require.False(t, b.repaired)
}

func TestForget(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := &streams{found: []bus.Drift{{Stream: "EVENTS", Setting: "replicas", Want: "3", Have: "1"}}}
	w, err := drift.New(b, zap.NewNop(), registry)
	require.NoError(t, err)
	w.Check(t.Context())
	w.Forget()
	n, err := testutil.GatherAndCount(registry, "drover_lifecycle_stream_drift")
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestACheckThatIsInterruptedSaysNothing(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w, err := drift.New(&streams{err: context.Canceled}, zap.New(core), prometheus.NewRegistry())
	require.NoError(t, err)
	w.Check(ctx)
	require.Zero(t, logs.Len())
}
