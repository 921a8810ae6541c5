// Package drift looks whether the streams, buckets and consumers are still as this version would create them, and says
// so as a metric and in the log.
//
// # Absent on purpose
//
// It repairs nothing: changing a stream under a running system is an operator's decision (`drover doctor`).
package drift

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
)

// CheckTimeout is how long one check may take.
const CheckTimeout = 30 * time.Second

// Checker is the part of the bus that is needed.
type Checker interface {
	Setup(ctx context.Context, repair bool) ([]bus.Drift, error)
}

// Watch checks again and again. Make one with New; only Run's goroutine uses it.
type Watch struct {
	bus    Checker
	log    *zap.Logger
	drift  *prometheus.GaugeVec
	failed prometheus.Counter
	last   []bus.Drift
	broken bool // the last check could not be made
}

// New returns a Watch that counts in r.
func New(b Checker, log *zap.Logger, r prometheus.Registerer) (*Watch, error) {
	w := &Watch{
		bus: b, log: log,
		drift: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_lifecycle_stream_drift",
			Help: "1 for each setting of a stream that is not as this version would have created it.",
		}, []string{"stream", "setting"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_lifecycle_drift_checks_failed_total",
			Help: "Checks of the streams' settings that could not be made.",
		}),
	}
	return w, errors.Join(r.Register(w.drift), r.Register(w.failed))
}

// Check looks once; it returns without a word if ctx ends meanwhile.
func (w *Watch) Check(ctx context.Context) {
	checkCtx, cancel := context.WithTimeout(ctx, CheckTimeout)
	defer cancel()
	found, err := w.bus.Setup(checkCtx, false)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		w.failed.Inc()
		if !w.broken {
			w.log.Warn("stream settings cannot be checked", zap.Error(err))
		}
		w.broken = true
		return
	}
	if w.broken {
		w.log.Info("stream settings can be checked again")
		w.broken = false
	}
	w.drift.Reset()
	for _, d := range found {
		w.drift.WithLabelValues(d.Stream, d.Setting).Set(1)
	}
	for _, d := range found {
		if !slices.Contains(w.last, d) {
			w.log.Warn("stream setting drifted", zap.String("stream", d.Stream), zap.String("setting", d.Setting),
				zap.String("want", d.Want), zap.String("have", d.Have), zap.Bool("repairable", d.Repairable))
		}
	}
	if len(found) == 0 && len(w.last) > 0 {
		w.log.Info("stream settings are as they should be again")
	}
	w.last = found
}

// Forget drops what was found, where another process checks from now on.
func (w *Watch) Forget() {
	w.drift.Reset()
	w.last, w.broken = nil, false
}
