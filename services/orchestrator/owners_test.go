package orchestrator

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// TestAfterALapseAllIsTakenOverAnew: a stint that began before the lapse does not know what others did meanwhile.
func TestAfterALapseAllIsTakenOverAnew(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	begun, live := map[int]int{}, map[int]int{}
	began := make(chan struct{}, 16)
	o := &owners{log: zap.NewNop(), running: map[int]*owned{}, serve: func(ctx context.Context, n int) {
		mu.Lock()
		begun[n]++
		live[n]++
		require.Equal(t, 1, live[n], "two stints at one partition")
		mu.Unlock()
		began <- struct{}{}
		<-ctx.Done()
		mu.Lock()
		live[n]--
		mu.Unlock()
	}}
	o.set(t.Context(), []int{1, 3})
	o.renew(t.Context())
	for range 4 {
		select {
		case <-began:
		case <-time.After(20 * time.Second):
			require.FailNow(t, "a stint goes on")
		}
	}
	mu.Lock()
	require.Equal(t, map[int]int{1: 2, 3: 2}, begun)
	mu.Unlock()
	o.stopAll()
	require.Equal(t, map[int]int{1: 0, 3: 0}, live)
}
