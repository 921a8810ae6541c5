package binding

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// leftForRedelivery is the outcome of a call that was not answered.
const leftForRedelivery = "left"

// metrics of the executors.
type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	running *prometheus.GaugeVec
	phases  *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_runner_calls_total",
			Help: "Hand-outs by what became of them: completed, failed, pending, not_started, left (for redelivery).",
		}, []string{"executor", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "drover_runner_call_seconds", Help: "How long calls took.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800},
		}, []string{"executor"}),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_runner_calls_running", Help: "Calls that run now.",
		}, []string{"executor"}),
		phases: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_runner_phases", Help: "Phases that are served.",
		}, []string{"executor"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.calls, m.seconds, m.running, m.phases} {
		errs = append(errs, r.Register(c))
	}
	for _, kind := range Kinds() {
		m.running.WithLabelValues(kind)
		m.phases.WithLabelValues(kind)
	}
	return m, errors.Join(errs...)
}
