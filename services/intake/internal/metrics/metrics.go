// Package metrics is what intake counts.
package metrics

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// Where a command came from.
const (
	SourceAPI      = "api"      // a request
	SourceCaptured = "captured" // the stream of commands
)

// Answers beside the codes of refusals.
const (
	Accepted = "accepted"
	Poison   = "poison" // set aside
)

// Metrics of the service.
type Metrics struct {
	commands *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	backlog  *prometheus.GaugeVec
	oldest   *prometheus.GaugeVec
	// Waiting is commands that were read and are not settled.
	Waiting prometheus.Gauge
	// Requests is requests under way.
	Requests prometheus.Gauge
	// Retries is asks of captured commands that were made again.
	Retries prometheus.Counter
}

// New registers them.
func New(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_intake_commands_total",
			Help: "Commands by source (api, captured), verb and answer (accepted, poison, or the code of the refusal).",
		}, []string{"source", "verb", "answer"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "drover_intake_command_seconds",
			Help:    "From the arrival of a command to its answer; for captured ones from when the server stored them.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		}, []string{"source"}),
		backlog: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_intake_backlog_commands",
			Help: "Captured commands that are not settled, of each partition that this process serves.",
		}, []string{"partition"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_intake_backlog_oldest_seconds",
			Help: "Age of the oldest captured command that is not settled; 0 where there is none.",
		}, []string{"partition"}),
		Waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_intake_waiting_commands", Help: "Captured commands that this process has read and not settled.",
		}),
		Requests: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_intake_requests", Help: "Requests under way.",
		}),
		Retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_intake_retries_total", Help: "Asks for captured commands that were made again.",
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.commands, m.seconds, m.backlog, m.oldest, m.Waiting, m.Requests, m.Retries} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// Command counts an answered command and how long it took.
func (m *Metrics) Command(source, verb, answer string, took time.Duration) {
	m.commands.WithLabelValues(source, known(verb), answer).Inc()
	m.seconds.WithLabelValues(source).Observe(max(took, 0).Seconds())
}

// Backlog sets what waits in a partition.
func (m *Metrics) Backlog(partition int, n uint64, oldest time.Duration) {
	label := strconv.Itoa(partition)
	m.backlog.WithLabelValues(label).Set(float64(n))
	m.oldest.WithLabelValues(label).Set(max(oldest, 0).Seconds())
}

// Forget drops a partition that another process serves now.
func (m *Metrics) Forget(partition int) {
	label := strconv.Itoa(partition)
	m.backlog.DeleteLabelValues(label)
	m.oldest.DeleteLabelValues(label)
}

// Answer is the label of a reply.
func Answer(r wire.Reply) string {
	if r.Refused == nil {
		return Accepted
	}
	return string(r.Refused.Code)
}

// verbs are those of the contract. Any other is a user's and would make labels without bound.
var verbs = map[string]bool{
	resource.VerbApply: true, resource.VerbDelete: true, resource.VerbRetry: true, resource.VerbCancel: true,
	resource.VerbInterrupt: true, resource.VerbApprove: true,
	"start": true, "shutdown": true, "deallocate": true, "terminate": true,
	"deploy": true, "redeploy": true, "update": true, "decom": true, "reactivate": true, "reconcile": true,
}

func known(verb string) string {
	if verbs[verb] {
		return verb
	}
	return "other"
}
