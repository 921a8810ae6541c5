// Package derive sees to it that the buckets and the work follow the log, where they are on several servers: after the loss of a
// server nats-server takes 10 to 43 seconds until all of them do, with this a second or two after the log has a leader again.
package derive

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

const (
	// Every is how often it is looked.
	Every = 500 * time.Millisecond
	// again is how soon after a look that could not be made: the log has no leader, most often. And for a while after that: who leads a
	// stream since then may be known to have asked in vain a moment later.
	again    = 100 * time.Millisecond
	againFor = 5 * time.Second
)

// Deriver is the part of the bus that is needed.
type Deriver interface {
	Rederive(ctx context.Context) ([]string, error)
}

// Watch looks again and again. Make one with New.
type Watch struct {
	bus     Deriver
	log     *zap.Logger
	streams *prometheus.CounterVec
	failed  prometheus.Counter
	broken  bool      // the last look could not be made
	mended  time.Time // when the first one could be made after such
}

// New returns a Watch that counts in r.
func New(b Deriver, log *zap.Logger, r prometheus.Registerer) (*Watch, error) {
	w := &Watch{
		bus: b, log: log,
		streams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_lifecycle_streams_rederived_total",
			Help: "How often a bucket's stream, or WORK, did not follow the log and was handed to another server.",
		}, []string{"stream"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_lifecycle_derivation_checks_failed_total",
			Help: "Looks at whether the streams follow the log that could not be made; as long as the log has no leader, some in a second.",
		}),
	}
	return w, errors.Join(r.Register(w.streams), r.Register(w.failed))
}

// Run looks while this process is the one that does, as mine says, until ctx ends. It returns nil.
func (w *Watch) Run(ctx context.Context, mine <-chan bool) error {
	looking := false
	timer := time.NewTimer(Every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case looking = <-mine:
		case <-timer.C:
		}
		wait := Every
		if looking {
			wait = w.look(ctx)
		}
		timer.Reset(wait)
	}
}

// look looks once, and says when to look again.
func (w *Watch) look(ctx context.Context) time.Duration {
	moved, err := w.bus.Rederive(ctx)
	for _, stream := range moved {
		w.streams.WithLabelValues(stream).Inc()
	}
	if len(moved) > 0 {
		w.log.Info("streams that did not follow the log are handed to other servers", zap.Strings("streams", moved))
	}
	if ctx.Err() != nil {
		return Every
	}
	if err != nil {
		w.failed.Inc()
		if !w.broken {
			w.log.Warn("it cannot be seen whether the streams follow the log", zap.Error(err))
		}
		w.broken = true
		return again
	}
	if w.broken {
		w.log.Info("it is seen again whether the streams follow the log")
		w.broken, w.mended = false, time.Now()
	}
	if time.Since(w.mended) < againFor {
		return again
	}
	return Every
}
