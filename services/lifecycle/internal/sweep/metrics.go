package sweep

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	asks       *prometheus.CounterVec
	foundTotal *prometheus.CounterVec
	resources  *prometheus.GaugeVec
	unanswered prometheus.Gauge
	owned      prometheus.Gauge
	complete   prometheus.Gauge
	seconds    prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		asks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_lifecycle_sweep_asks_total",
			Help: "Sweep requests by what became of them: answered, no_owner, timeout, malformed, error.",
		}, []string{"answer"}),
		foundTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_lifecycle_found_total",
			Help: "What owners reported: lost, overdue, forgotten, unrecorded.",
		}, []string{"what"}),
		resources: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_lifecycle_resources",
			Help: "Resources of each partition that this process sweeps, as of its last answer.",
		}, []string{"partition"}),
		unanswered: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_lifecycle_unanswered_partitions",
			Help: "Partitions that did not answer the last sweep of this process.",
		}),
		owned: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_lifecycle_owned_partitions",
			Help: "Partitions that this process sweeps.",
		}),
		complete: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_lifecycle_last_complete_sweep_timestamp_seconds",
			Help: "When every partition of this process last answered one sweep (Unix time).",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "drover_lifecycle_sweep_seconds",
			Help:    "How long a sweep took, all partitions of this process together.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20},
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.asks, m.foundTotal, m.resources, m.unanswered, m.owned, m.complete, m.seconds} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) found(what string, n uint64) { m.foundTotal.WithLabelValues(what).Add(float64(n)) }

func partitionLabel(p int) string { return strconv.Itoa(p) }
