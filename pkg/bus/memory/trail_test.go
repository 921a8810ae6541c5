package memory_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
)

// TestTrail: what follows from the log comes later, in the log's order, and WORK says that it has not caught up.
func TestTrail(t *testing.T) {
	t.Parallel()
	clock := &handClock{now: time.Unix(1000, 0)}
	delays := []time.Duration{2 * time.Second, time.Second}
	s := memory.New(memory.Options{Partitions: 1, Clock: clock, Trail: func() (bucket, work time.Duration) {
		d := delays[0]
		delays = delays[1:]
		return d, d
	}})
	b := s.Connect()
	ctx := t.Context()
	phase := bus.Phase{Project: "p", Kind: "k", Phase: "f"}
	e := bus.Entity{Family: bus.Resource, Project: "p", Kind: "k", Name: "n"}
	first, err := b.Append(bus.Append{Entity: e, Dispatch: "f"}).Result()
	require.NoError(t, err)
	second, err := b.Append(bus.Append{Entity: e, Expect: first}).Result()
	require.NoError(t, err)

	clock.advance(time.Second)
	_, err = b.Get(ctx, e)
	require.ErrorIs(t, err, bus.ErrNotFound, "the second event's time has come, and the first's has not")
	n, caughtUp, err := b.Outstanding(ctx, phase)
	require.NoError(t, err)
	require.Zero(t, n)
	require.False(t, caughtUp)

	clock.advance(time.Second)
	got, err := b.Get(ctx, e)
	require.NoError(t, err)
	require.Equal(t, second, got.Seq)
	n, caughtUp, err = b.Outstanding(ctx, phase)
	require.NoError(t, err)
	require.Equal(t, uint64(1), n)
	require.True(t, caughtUp)
}
