package orchestrator

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// TestAfterALapseEveryOwnerReads what others did meanwhile, and none stops serving for it.
func TestAfterALapseEveryOwnerReads(t *testing.T) {
	t.Parallel()
	type stint struct {
		partition int
		renew     <-chan struct{}
		ctx       context.Context //nolint:containedctx // of one stint
	}
	began := make(chan stint)
	o := &owners{log: zap.NewNop(), running: map[int]*owned{}, serve: func(ctx context.Context, n int, renew <-chan struct{}) {
		began <- stint{n, renew, ctx}
		<-ctx.Done()
	}}
	o.set(t.Context(), []int{1, 3})
	stints := map[int]stint{}
	for range 2 {
		select {
		case s := <-began:
			stints[s.partition] = s
		case <-time.After(20 * time.Second):
			require.FailNow(t, "a partition is not served")
		}
	}
	o.renew()
	o.renew() // before anybody read: one read is enough
	for n, s := range stints {
		require.Len(t, s.renew, 1, "partition %d", n)
		<-s.renew
		require.NoError(t, s.ctx.Err())
	}
	o.renew()
	for n, s := range stints {
		require.Len(t, s.renew, 1, "partition %d", n)
	}
	o.stopAll()
	for _, s := range stints {
		require.Error(t, s.ctx.Err())
	}
}
