package partition

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/partition"
)

// Metrics are the service's own. Partitions are labels, so a system of 64 has 64 series each.
type Metrics struct {
	Owned     prometheus.Gauge
	Declined  prometheus.Gauge
	events    *prometheus.CounterVec // by family
	lost      prometheus.Counter
	refused   *prometheus.CounterVec // by code
	set       prometheus.Counter
	notes     *prometheus.CounterVec // by code
	lag       *prometheus.GaugeVec
	lagAge    *prometheus.GaugeVec
	live      *prometheus.GaugeVec
	memory    *prometheus.GaugeVec
	appends   *prometheus.GaugeVec
	takeovers prometheus.Counter
	takeover  prometheus.Histogram
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	const ns, sub = "drover", "orchestrator"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, []string{label})
	}
	gauges := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, []string{"partition"})
	}
	m := &Metrics{
		Owned: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "partitions_owned", Help: "Partitions that this process serves."}),
		Declined: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "partitions_newer",
			Help: "Partitions that this process leaves to a newer version of Drover, whose states it must not decide on.",
		}),
		events:    counters("events_total", "Events appended.", "family"),
		lost:      counter("appends_lost_total", "Appends that another writer came before, or that were not answered."),
		refused:   counters("commands_refused_total", "Commands refused by the engine.", "code"),
		set:       counter("inputs_set_aside_total", "Inputs that could never be applied."),
		notes:     counters("notes_total", "Inputs that changed nothing, by reason.", "code"),
		lag:       gauges("results_unapplied", "Results that are stored and not yet applied."),
		lagAge:    gauges("results_oldest_seconds", "Age of the oldest result that is not yet applied."),
		live:      gauges("resources_live", "Resources with a job that is not final."),
		memory:    gauges("resources_in_memory", "Resources whose state is in memory."),
		appends:   gauges("appends_in_flight", "Appends without an answer."),
		takeovers: counter("takeovers_total", "Partitions taken over."),
		takeover: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "takeover_seconds", Help: "Time to read a partition and take it over.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}),
	}
	for _, c := range []prometheus.Collector{
		m.Owned, m.Declined, m.events, m.lost, m.refused, m.set, m.notes, m.lag, m.lagAge, m.live, m.memory, m.appends, m.takeovers, m.takeover,
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

var _ partition.Observer = (*Metrics)(nil)

// Appended implements partition.Observer.
func (m *Metrics) Appended(f bus.Family) { m.events.WithLabelValues(string(f)).Inc() }

// Lost implements partition.Observer.
func (m *Metrics) Lost() { m.lost.Inc() }

// Refused implements partition.Observer.
func (m *Metrics) Refused(code resource.Code) { m.refused.WithLabelValues(string(code)).Inc() }

// SetAside implements partition.Observer.
func (m *Metrics) SetAside() { m.set.Inc() }

// Noted implements partition.Observer.
func (m *Metrics) Noted(code resource.NoteCode) { m.notes.WithLabelValues(string(code)).Inc() }

// Swept implements partition.Observer.
func (m *Metrics) Swept(number int, s drive.Stats) {
	label := strconv.Itoa(number)
	m.live.WithLabelValues(label).Set(float64(s.Live))
	m.memory.WithLabelValues(label).Set(float64(s.Lanes))
	m.appends.WithLabelValues(label).Set(float64(s.Appends))
}

// leave drops the series of a partition that another process serves now.
func (m *Metrics) leave(partition int) {
	label := strconv.Itoa(partition)
	for _, g := range []*prometheus.GaugeVec{m.lag, m.lagAge, m.live, m.memory, m.appends} {
		g.DeleteLabelValues(label)
	}
}
