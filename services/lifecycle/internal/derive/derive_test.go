package derive_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/droverproject/drover/services/lifecycle/internal/derive"
)

type log struct {
	mu    sync.Mutex
	looks int
	moved []string
	err   error
}

func (l *log) Rederive(context.Context) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks++
	return l.moved, l.err
}

func (l *log) set(err error, moved ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err, l.moved = err, moved
}

func (l *log) looked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.looks
}

// The process that looks after the streams looks twice a second, and sooner while the log has no leader; the others do not.
func TestOneLooksWhetherTheStreamsFollowTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		registry, l := prometheus.NewRegistry(), &log{}
		w, err := derive.New(l, zap.New(core), registry)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		mine, done := make(chan bool), make(chan error, 1)
		go func() { done <- w.Run(ctx, mine) }()
		during := func(d time.Duration) int {
			before := l.looked()
			time.Sleep(d)
			synctest.Wait()
			return l.looked() - before
		}
		require.Zero(t, during(time.Minute), "another process looks")
		mine <- true
		synctest.Wait()
		require.Equal(t, 1, l.looked(), "at once")
		require.Equal(t, int(10*time.Second/derive.Every), during(10*time.Second))
		require.Zero(t, logs.Len())

		l.set(errors.New("no leader"))
		during(derive.Every)
		require.Equal(t, 100, during(10*time.Second))
		require.Equal(t, 1, logs.FilterMessage("it cannot be seen whether the streams follow the log").Len(), "told once")

		l.set(nil, "WORK", "KV_drover_jobs")
		require.Equal(t, 1, during(100*time.Millisecond))
		l.set(nil)
		require.Equal(t, 1, logs.FilterMessage("streams that did not follow the log are handed to other servers").Len())
		require.Equal(t, 40, during(4*time.Second), "sooner for a while after that")
		during(10 * time.Second)
		require.Equal(t, int(10*time.Second/derive.Every), during(10*time.Second))
		require.Equal(t, 3, logs.Len(), "and that it is seen again")
		count, err := testutil.GatherAndCount(registry, "drover_lifecycle_streams_rederived_total")
		require.NoError(t, err)
		require.Equal(t, 2, count)

		mine <- false
		synctest.Wait()
		require.Zero(t, during(time.Minute), "another process looks again")
		cancel()
		require.NoError(t, <-done)
	})
}
