package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
)

// Verb is the request that an owner answers with a Report.
const Verb = "sweep"

// Limits of one sweep. A sweep ends before the next tick (20 s) is due.
const (
	AsksMax          = 8                // requests in flight
	AskTimeout       = 5 * time.Second  // wait for one owner
	SweepTimeout     = 18 * time.Second // all of it; who was not reached is unanswered
	ReportBytesMax   = 4 << 10          // bytes of a reply
	partitionsLogMax = 64               // partitions named in one log line
)

// Report is what an owner found in its partition. All fields count since the sweep before, Resources counts what is
// there.
type Report struct {
	Lost       uint64 `json:"lost"`       // hand-outs that were nowhere to be found and are handed out again
	Overdue    uint64 `json:"overdue"`    // due times that had passed without a step
	Forgotten  uint64 `json:"forgotten"`  // entities that were gone, and are now without a trace
	Unrecorded uint64 `json:"unrecorded"` // jobs whose record had not followed their resource
	Resources  uint64 `json:"resources"`  // resources in the partition
}

// Asker is the part of the bus that a sweep needs.
type Asker interface {
	Ask(ctx context.Context, partition int, r bus.Request) (bus.Request, error)
}

// Sweeper asks for sweeps. Make one with New; only Run's goroutine uses it.
type Sweeper struct {
	bus     Asker
	log     *zap.Logger
	metrics *metrics
	// answered is the number of the sweep in which each owned partition last answered, so that who has waited longest
	// is asked first.
	answered   map[int]uint64
	sweeps     uint64
	unanswered []int // after the last sweep, sorted
}

// New returns a Sweeper that counts in r.
func New(b Asker, log *zap.Logger, r prometheus.Registerer) (*Sweeper, error) {
	m, err := newMetrics(r)
	if err != nil {
		return nil, err
	}
	return &Sweeper{bus: b, log: log, metrics: m, answered: map[int]uint64{}}, nil
}

// Run sweeps the owned partitions at every tick until ctx ends; it then returns nil. Ticks that come while a sweep is
// running are for the sender to drop.
func (s *Sweeper) Run(ctx context.Context, ticks <-chan time.Time, owned <-chan []int) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case partitions, ok := <-owned:
			if !ok {
				return errors.New("the membership ended")
			}
			s.own(partitions)
		case <-ticks:
			s.sweep(ctx)
		}
	}
}

func (s *Sweeper) own(partitions []int) {
	for p := range s.answered {
		if !slices.Contains(partitions, p) {
			delete(s.answered, p)
			s.metrics.resources.DeleteLabelValues(partitionLabel(p))
		}
	}
	for _, p := range partitions {
		if _, ok := s.answered[p]; !ok {
			s.answered[p] = 0
		}
	}
	s.unanswered = slices.DeleteFunc(s.unanswered, func(p int) bool { return !slices.Contains(partitions, p) })
	s.metrics.unanswered.Set(float64(len(s.unanswered)))
	s.metrics.owned.Set(float64(len(partitions)))
}

// answer is what came back from one partition.
type answer struct {
	partition int
	report    Report
	err       error
}

func (s *Sweeper) sweep(ctx context.Context) {
	began := time.Now()
	s.sweeps++
	ctx, cancel := context.WithTimeout(ctx, SweepTimeout)
	defer cancel()

	partitions := slices.SortedFunc(maps.Keys(s.answered), func(a, b int) int {
		if s.answered[a] != s.answered[b] {
			if s.answered[a] < s.answered[b] {
				return -1
			}
			return 1
		}
		return a - b
	})
	answers := s.askAll(ctx, partitions)
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return // the process stops; what was not answered says nothing
	}

	var total Report
	var unanswered []int
	var reason error
	for _, a := range answers {
		s.metrics.asks.WithLabelValues(outcome(a.err)).Inc()
		if a.err != nil {
			unanswered = append(unanswered, a.partition)
			reason = a.err
			continue
		}
		s.answered[a.partition] = s.sweeps
		s.metrics.resources.WithLabelValues(partitionLabel(a.partition)).Set(float64(a.report.Resources))
		total.add(a.report)
	}
	slices.Sort(unanswered)
	s.metrics.found("lost", total.Lost)
	s.metrics.found("overdue", total.Overdue)
	s.metrics.found("forgotten", total.Forgotten)
	s.metrics.found("unrecorded", total.Unrecorded)
	s.metrics.unanswered.Set(float64(len(unanswered)))
	s.metrics.seconds.Observe(time.Since(began).Seconds())
	if len(unanswered) == 0 && len(partitions) > 0 {
		s.metrics.complete.SetToCurrentTime()
	}
	s.tell(total, unanswered, reason)
	s.unanswered = unanswered
}

// tell logs what was found, and changes of who does not answer: not the same line every 20 s.
func (s *Sweeper) tell(total Report, unanswered []int, reason error) {
	if total.Lost+total.Overdue+total.Unrecorded > 0 {
		s.log.Info("sweep put things right",
			zap.Uint64("lost", total.Lost), zap.Uint64("overdue", total.Overdue),
			zap.Uint64("unrecorded", total.Unrecorded), zap.Uint64("forgotten", total.Forgotten))
	}
	switch {
	case slices.Equal(unanswered, s.unanswered):
	case len(unanswered) == 0:
		s.log.Info("every partition answers sweeps again")
	default:
		s.log.Warn("partitions do not answer sweeps; they are asked again at the next tick",
			zap.Int("count", len(unanswered)),
			zap.Ints("partitions", unanswered[:min(len(unanswered), partitionsLogMax)]),
			zap.NamedError("last_reason", reason))
	}
}

// askAll asks the partitions in this order, AsksMax at a time, and returns one answer for each.
func (s *Sweeper) askAll(ctx context.Context, partitions []int) []answer {
	answers := make([]answer, len(partitions))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(AsksMax, len(partitions)) {
		workers.Go(func() {
			for i := range next {
				report, err := s.ask(ctx, partitions[i])
				answers[i] = answer{partitions[i], report, err}
			}
		})
	}
	for i := range partitions {
		next <- i // ask returns at once when ctx has ended, so this cannot hang
	}
	close(next)
	workers.Wait()
	return answers
}

// errMalformed is a reply that is no Report.
var errMalformed = errors.New("the owner's reply is no sweep report")

func (s *Sweeper) ask(ctx context.Context, partition int) (Report, error) {
	if err := ctx.Err(); err != nil {
		return Report{}, fmt.Errorf("not asked in time: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	reply, err := s.bus.Ask(ctx, partition, bus.Request{Verb: Verb})
	if err != nil {
		return Report{}, err
	}
	if len(reply.Body) > ReportBytesMax {
		return Report{}, fmt.Errorf("%w: %d bytes", errMalformed, len(reply.Body))
	}
	var report Report
	if err := json.Unmarshal(reply.Body, &report); err != nil {
		return Report{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return report, nil
}

func (r *Report) add(o Report) {
	r.Lost += o.Lost
	r.Overdue += o.Overdue
	r.Forgotten += o.Forgotten
	r.Unrecorded += o.Unrecorded
	r.Resources += o.Resources
}

// outcome is the label of an answer.
func outcome(err error) string {
	switch {
	case err == nil:
		return "answered"
	case errors.Is(err, bus.ErrNoOwner):
		return "no_owner"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, errMalformed):
		return "malformed"
	default:
		return "error"
	}
}
