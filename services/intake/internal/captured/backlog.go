package captured

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/services/intake/internal/metrics"
)

// How often, and how long, the server is asked what waits.
const (
	backlogEvery   = 5 * time.Second
	backlogTimeout = 2 * time.Second
)

// watchBacklog sets the gauges of what waits in the owned partitions. It stops a round at its first error: a server
// that does not answer is not asked 64 times.
func watchBacklog(ctx context.Context, b Bus, log *zap.Logger, m *metrics.Metrics, owned <-chan []int) {
	ticker := time.NewTicker(backlogEvery)
	defer ticker.Stop()
	var partitions []int
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-owned:
			for _, p := range partitions {
				if !slices.Contains(now, p) {
					m.Forget(p)
				}
			}
			partitions = now
			continue
		case <-ticker.C:
		}
		err := measure(ctx, b, m, partitions)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			log.Warn("backlog of commands cannot be measured", zap.Error(err))
		case err == nil && failing:
			log.Info("backlog of commands can be measured again")
		}
		failing = err != nil
	}
}

func measure(ctx context.Context, b Bus, m *metrics.Metrics, partitions []int) error {
	for _, p := range partitions {
		tryCtx, cancel := context.WithTimeout(ctx, backlogTimeout)
		n, oldest, err := b.Backlog(tryCtx, "COMMANDS", p)
		cancel()
		if err != nil {
			return err
		}
		age := time.Duration(0)
		if !oldest.IsZero() {
			age = time.Since(oldest)
		}
		m.Backlog(p, n, age)
	}
	return nil
}
