package orchestrator_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// lapsing is a bus on which this process may be taken for dead.
type lapsing struct {
	bus.Bus
	lapses chan struct{}
	reads  atomic.Int64 // of the resources of a partition
}

func (l *lapsing) Join(ctx context.Context, service, id string) (bus.Membership, error) {
	m, err := l.Bus.Join(ctx, service, id)
	return &lapsed{m, l.lapses}, err
}

func (l *lapsing) Scan(ctx context.Context, partition int, family bus.Family, each func(bus.Stored) error) error {
	if family == bus.Resource {
		l.reads.Add(1)
	}
	return l.Bus.Scan(ctx, partition, family, each)
}

type lapsed struct {
	bus.Membership
	lapses chan struct{}
}

func (l *lapsed) Lapses() <-chan struct{} { return l.lapses }

// TestWhoWasTakenForDeadReadsTheLogAnew: no sweep comes here, and its share stays the same.
func TestWhoWasTakenForDeadReadsTheLogAnew(t *testing.T) {
	t.Parallel()
	s := inMemory(t)
	l := &lapsing{lapses: make(chan struct{})}
	open := s.open
	s.open = func(name string) (b bus.Bus, err error) {
		l.Bus, err = open(name)
		return l, err
	}
	s.orchestrate("a")
	read := func(n int64) {
		t.Helper()
		require.Eventually(t, func() bool { return l.reads.Load() == n }, 20*time.Second, 5*time.Millisecond)
	}
	read(partitions)
	l.lapses <- struct{}{}
	read(2 * partitions)
}
