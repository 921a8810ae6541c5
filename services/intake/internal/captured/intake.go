package captured

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/intake/internal/metrics"
)

// Intake serves the partitions that fall to this process. Only Run's goroutine uses it.
type Intake struct {
	bus        Bus
	partitions int
	log        *zap.Logger
	metrics    *metrics.Metrics
	asks       []*semaphore.Weighted // by owner's partition
	serving    map[int]*serving
}

// serving is a partition's goroutine.
type serving struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// New returns an Intake for a system of so many partitions.
func New(b Bus, partitions int, log *zap.Logger, m *metrics.Metrics) *Intake {
	asks := make([]*semaphore.Weighted, partitions)
	for p := range asks {
		asks[p] = semaphore.NewWeighted(AsksMax)
	}
	return &Intake{bus: b, partitions: partitions, log: log, metrics: m, asks: asks, serving: map[int]*serving{}}
}

// Run serves what shares says until ctx ends; then nothing is in hand any more.
func (i *Intake) Run(ctx context.Context, shares <-chan []int) error {
	defer i.share(ctx, nil)
	owned := make(chan []int, 1)
	watchCtx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watchBacklog(watchCtx, i.bus, i.log, i.metrics, owned)
	}()
	defer func() {
		cancel()
		<-watched
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case partitions, ok := <-shares:
			if !ok {
				if ctx.Err() != nil {
					return nil
				}
				return errors.New("the membership ended")
			}
			i.share(ctx, partitions)
			select {
			case <-owned:
			default:
			}
			owned <- partitions
		}
	}
}

// share begins the partitions that are new, and ends those that are no longer there: it returns when they have put
// back what they had in hand.
func (i *Intake) share(ctx context.Context, partitions []int) {
	keep := make(map[int]bool, len(partitions))
	for _, p := range partitions {
		keep[p] = true
	}
	var ending []*serving
	for p, s := range i.serving {
		if !keep[p] {
			s.cancel()
			ending = append(ending, s)
			delete(i.serving, p)
		}
	}
	for _, s := range ending {
		<-s.done
	}
	for _, p := range partitions {
		if i.serving[p] == nil {
			i.serving[p] = i.begin(ctx, p)
		}
	}
}

func (i *Intake) begin(ctx context.Context, number int) *serving {
	ctx, cancel := context.WithCancel(ctx)
	s := &serving{cancel: cancel, done: make(chan struct{})}
	p := &partition{
		number: number, partitions: i.partitions, bus: i.bus, log: i.log, metrics: i.metrics, asks: i.asks,
	}
	go func() {
		defer close(s.done)
		// Whoever served it until now is giving it up at this moment: what it puts back must be here before what is new.
		if !pause(ctx, HandoverWait) {
			return
		}
		lost := false
		for wait := newBackoff(); ; {
			began := time.Now()
			err := p.serve(ctx)
			if ctx.Err() != nil {
				return
			}
			if time.Since(began) > healthyAfter {
				wait, lost = newBackoff(), false
			}
			if !lost {
				lost = true
				i.log.Warn("inbox of commands is lost; it is opened again", host.Partition(number), zap.Error(err))
			}
			if !wait.sleep(ctx) {
				return
			}
		}
	}()
	return s
}

// healthyAfter is how long an inbox must have lasted for its end to be news.
const healthyAfter = 10 * time.Second
