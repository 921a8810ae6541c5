package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// server is one Serve.
type server struct {
	Options
	bus    bus.Bus
	lines  []*line // in the order of their kinds
	handle Handler
	log    *zap.Logger
	specs  *specs

	// ctx is Serve's. stopping ends with it, or by Drain: nothing is begun any more. Then ends working, the context of
	// calls; then answering, that of storing their results.
	ctx, stopping, working, answering context.Context

	holds holds
	slots *Limit // of calls in flight
	calls sync.WaitGroup

	mu       sync.Mutex
	out      map[resource.Fence]*Resource // admitted and not yet settled
	answered *answered
}

// fetch pulls work until ctx ends. It fetches no more than can begin at once, so that what is waiting stays where other
// workers can fetch it.
func (s *server) fetch(ctx context.Context) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// A fetch that is under way may end: what the server has sent already would otherwise come again only when its time
	// is up. One that waits for nothing is cut short.
	fetching, stopFetching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopFetching()
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(fetchGrace, stopFetching)
	})()
	work := s.gather(ctx, fetching, stop)
	defer func() { err = work.close() }()
	for {
		alone, err := work.wait(ctx)
		if err != nil {
			return nil // ctx ended
		}
		slots, err := s.takeSlots(ctx, alone)
		if err != nil {
			return nil // ctx ended
		}
		room, err := s.Limit.free(ctx)
		if err != nil {
			s.slots.release(slots)
			return nil // ctx ended
		}
		deliveries, err := work.fetch(ctx, min(slots*s.Batch, room, BatchMax), s.BatchBytes, s.FetchWait)
		ended := err != nil || ctx.Err() != nil || s.draining()
		if ended || !s.begin(deliveries, slots) { // nothing is begun
			s.slots.release(slots)
			for _, d := range deliveries {
				s.putBack(d, 0)
			}
		}
		if ended {
			return nil
		}
	}
}

// draining reports whether Options.Drain is closed, even where the word of it has not yet ended ctx.
func (s *server) draining() bool {
	select {
	case <-s.Drain:
		return true
	default:
		return false
	}
}

// bind waits until the phase of a kind has a consumer; where it has none at first, it calls none. It returns nil when ctx ends.
func (s *server) bind(ctx context.Context, l *line, none func()) (bus.Puller, error) {
	for tries := 0; ; tries++ {
		puller, err := s.bus.Pull(ctx, l.phase)
		switch {
		case err == nil:
			s.mu.Lock()
			l.ackWait, l.boundAt = puller.AckWait(), time.Now()
			s.mu.Unlock()
			l.hold.again()
			l.log.Info("bound to the phase")
			return puller, nil
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // the error says that ctx ended, which is no failure
		case errors.Is(err, bus.ErrClosed) || errors.Is(err, bus.ErrDenied):
			return nil, fmt.Errorf("plugin: pull work of %s: %w", l.phase.WorkSubject(), err)
		case tries == 0 && errors.Is(err, bus.ErrNotFound):
			l.log.Info("the phase has no consumer yet; waiting for its blueprint")
		case tries == 0:
			l.log.Warn("cannot bind to the phase; trying on", zap.Error(err))
		}
		if tries == 0 {
			none()
		}
		if !sleep(ctx, s.BindEvery) {
			return nil, nil
		}
	}
}

// takeSlots waits for room for one call, and takes what more there is; alone: for one call and no other.
func (s *server) takeSlots(ctx context.Context, alone bool) (n int, err error) {
	most := s.Concurrency
	if alone {
		most = 1
	}
	s.slots.setMost(most)
	if n, err = s.slots.free(ctx); err != nil {
		return 0, err
	}
	n = min(n, max(BatchMax/s.Batch, 1))
	return n, s.slots.acquire(ctx, n)
}

// begin starts a call for each Batch of deliveries, and releases those of the slots that these do not need. False: the
// phase is not held any more, and nothing has begun.
func (s *server) begin(deliveries []taken, slots int) bool {
	if !s.holds.begin() {
		return false
	}
	defer s.holds.end()
	calls := 0
	for len(deliveries) > 0 {
		n := min(len(deliveries), s.Batch)
		batch := deliveries[:n:n]
		deliveries = deliveries[n:]
		calls++
		s.holds.call()
		s.calls.Go(func() {
			defer s.slots.release(1)
			defer s.holds.end()
			s.run(batch)
		})
	}
	s.slots.release(slots - calls)
	return true
}

// backoff is how long to wait after the n-th failure in a row.
func backoff(n int) time.Duration {
	return min(retryFirst<<min(n-1, 10), retryLast)
}

// sleep waits, and reports false when ctx ended instead.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
