package listeners

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/services/notifier/internal/notice"
)

// worker is one listener.
type worker struct {
	roster *Roster
	key    resource.Key
	spec   atomic.Pointer[listener.Spec]
	ctx    context.Context // of this listener alone
	remove context.CancelFunc
	wake   chan struct{} // holds one place; full: something is queued

	mu    sync.Mutex
	queue ring

	failing bool // the last message was not delivered; only run's goroutine uses it
}

func newWorker(r *Roster, key resource.Key, s listener.Spec) *worker {
	w := &worker{roster: r, key: key, wake: make(chan struct{}, 1)}
	w.spec.Store(&s)
	w.ctx, w.remove = context.WithCancel(context.Background())
	return w
}

func (w *worker) offer(e notice.Event) {
	w.mu.Lock()
	overflow := w.queue.push(e)
	w.mu.Unlock()
	w.roster.metrics.Events.Inc()
	if overflow {
		w.roster.metrics.Dropped.WithLabelValues(droppedOverflow).Inc()
	} else {
		w.roster.metrics.Queued.Inc()
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) take(most int) []notice.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.queue.take(most)
	w.roster.metrics.Queued.Sub(float64(len(taken)))
	return taken
}

// run delivers until the listener is removed, or the service stops and the queue is empty.
func (w *worker) run() {
	defer func() {
		left := len(w.take(QueueMax))
		w.roster.metrics.Dropped.WithLabelValues(droppedStopped).Add(float64(left))
	}()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.roster.ctx.Done():
			w.deliverAll(1)
			return
		case <-w.wake:
		}
		group := time.NewTimer(GroupFor)
		select {
		case <-group.C:
		case <-w.ctx.Done():
		case <-w.roster.ctx.Done():
		}
		group.Stop()
		w.deliverAll(AttemptsMax)
	}
}

// deliverAll empties the queue.
func (w *worker) deliverAll(attempts int) {
	for w.ctx.Err() == nil && w.roster.drain.Err() == nil {
		events := w.take(eventsPerTake)
		if len(events) == 0 {
			return
		}
		for _, m := range notice.Group(events) {
			w.deliver(&m, attempts)
		}
	}
}

// deliver sends one message, up to so many times, and says in the log when the listener begins or ends to fail.
func (w *worker) deliver(m *notice.Message, attempts int) {
	var err error
	backoff := BackoffMin
	for attempt := 1; ; attempt++ {
		if err = w.send(m); err == nil {
			break
		}
		stopping := w.ctx.Err() != nil || w.roster.ctx.Err() != nil
		if attempt >= attempts || stopping || w.roster.sender.Permanent(err) {
			break
		}
		w.roster.metrics.Retries.Inc()
		// Half of it is drawn, so that listeners that failed together do not come back together.
		wait := time.NewTimer(backoff/2 + rand.N(backoff/2))
		select {
		case <-wait.C:
		case <-w.ctx.Done():
		case <-w.roster.ctx.Done():
		}
		wait.Stop()
		backoff = min(2*backoff, BackoffMax)
	}
	if err == nil {
		w.roster.metrics.Messages.WithLabelValues(messageSent).Inc()
		if w.failing {
			w.failing = false
			w.roster.log.Info("listener takes messages again", zap.Stringer("listener", w.key))
		}
		return
	}
	w.roster.metrics.Messages.WithLabelValues(messageFailed).Inc()
	w.roster.metrics.Dropped.WithLabelValues(droppedFailed).Add(float64(len(m.Events)))
	if !w.failing && w.ctx.Err() == nil {
		w.failing = true
		w.roster.log.Warn("listener does not take messages; they are dropped", zap.Stringer("listener", w.key),
			zap.Error(err), zap.String("event", m.ID()), zap.Int("events", len(m.Events)))
	}
}

// send makes one call, within the limit of all listeners together.
func (w *worker) send(m *notice.Message) error {
	ctx, cancel := context.WithCancel(w.roster.drain)
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)()
	if err := w.roster.calls.Acquire(ctx, 1); err != nil {
		return err
	}
	defer w.roster.calls.Release(1)
	began := time.Now()
	err := w.roster.sender.Send(ctx, w.key, *w.spec.Load(), m)
	w.roster.metrics.Seconds.Observe(time.Since(began).Seconds())
	return err
}
