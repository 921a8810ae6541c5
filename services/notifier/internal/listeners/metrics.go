package listeners

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Why events were not told.
const (
	droppedOverflow = "overflow" // the queue was full
	droppedFailed   = "failed"   // the receiver did not take the message
	droppedStopped  = "stopped"  // the listener was removed, or the service stopped
)

const (
	messageSent   = "sent"
	messageFailed = "failed"
)

// Metrics of the listeners. Which listener fails is in the log: names are the users', and without bound as labels.
type Metrics struct {
	Events    prometheus.Counter
	Queued    prometheus.Gauge
	Dropped   *prometheus.CounterVec
	Messages  *prometheus.CounterVec
	Retries   prometheus.Counter
	Seconds   prometheus.Histogram
	Listeners prometheus.Gauge
	Invalid   prometheus.Gauge
	Ignored   prometheus.Counter
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		Events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_notifier_events_total", Help: "Events queued for a listener; one that two listen to counts twice.",
		}),
		Queued: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_notifier_queued_events", Help: "Events that wait, all listeners together.",
		}),
		Dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_notifier_dropped_events_total", Help: "Events that a listener was not told: overflow, failed, stopped.",
		}, []string{"reason"}),
		Messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_notifier_messages_total", Help: "Messages by what became of them: sent, failed.",
		}, []string{"answer"}),
		Retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_notifier_retries_total", Help: "Calls that were made again after a failure.",
		}),
		Seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "drover_notifier_call_seconds", Help: "How long a call or a publication took.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 2.5, 5, 10},
		}),
		Listeners: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_notifier_listeners", Help: "Listeners that are served.",
		}),
		Invalid: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_notifier_invalid_listeners", Help: "Listeners whose spec this version cannot act upon.",
		}),
		Ignored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_notifier_ignored_listeners_total", Help: "Listeners that were refused for being too many.",
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.Events, m.Queued, m.Dropped, m.Messages, m.Retries, m.Seconds, m.Listeners, m.Invalid, m.Ignored} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}
