// Package partition serves one partition of the log on goroutines: it feeds a partition.Owner with results, requests,
// answers and times. What an Owner does is pkg/partition's.
package partition

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/partition"
)

const (
	gatherMax     = 256              // results that are taken together
	asksMax       = 1024             // requests that wait for the partition; past it: overloaded
	callsMax      = 1024             // answers of background work that wait for the partition
	takeoverAgain = 2 * time.Second  // pause after a takeover that failed
	newerAgain    = 30 * time.Second // pause before a partition is tried again that needed a newer version, and that nobody took
	lagEvery      = 15 * time.Second // between two looks at the backlog
	lagTimeout    = 5 * time.Second
	idleTimer     = time.Hour
)

// Config is what a partition is served with.
type Config struct {
	Bus     bus.Bus
	Catalog *catalog.Catalog
	Clock   *partition.Clock
	Metrics *Metrics
	Log     *zap.Logger
	Cache   *drive.Cache // shared by all partitions of the process
	Number  int
	// Renew delivers when others may have served the partition meanwhile, and have stopped (partition.Owner.Renew).
	Renew <-chan struct{}
	// Able says whether this version can serve the partition, as of a takeover that worked, or of what was met since.
	Able func(partition int, able bool)
}

// Serve serves the partition until ctx ends. A takeover that fails is tried again.
func Serve(ctx context.Context, c Config) {
	c.Log = c.Log.With(host.Partition(c.Number))
	defer c.Metrics.leave(c.Number)
	for {
		err := serve(ctx, c)
		if ctx.Err() != nil {
			return
		}
		again := takeoverAgain
		if errors.Is(err, partition.ErrNewer) {
			again = newerAgain
			c.Able(c.Number, false)
			c.Log.Warn("the partition is left to a newer version of Drover; until a replica of that version takes it, it is not served",
				zap.Error(err), zap.Uint32("reader_version", drive.Reader))
		} else {
			c.Log.Warn("the partition is not served; it is taken over again", zap.Error(err), zap.Duration("after", again))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}

// server is one stint at one partition. All of it belongs to one goroutine, but for the channels.
type server struct {
	Config
	ctx   context.Context
	owner *partition.Owner
	asks  chan ask
	calls chan func()
	timer *time.Timer
}

var _ partition.Shell = (*server)(nil)

type ask struct {
	request bus.Request
	reply   partition.Reply
}

// Background implements partition.Shell.
func (s *server) Background(f func()) { go f() }

// Later implements partition.Shell.
func (s *server) Later(f func()) {
	go func() {
		select {
		case s.calls <- f:
		case <-s.ctx.Done():
		}
	}()
}

// Sleep implements partition.Shell.
func (s *server) Sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

func serve(parent context.Context, c Config) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	s := &server{
		Config: c, ctx: ctx, asks: make(chan ask, asksMax), calls: make(chan func(), callsMax), timer: time.NewTimer(idleTimer),
	}
	defer s.timer.Stop()
	s.owner = partition.New(ctx, partition.Config{
		Bus: c.Bus, Others: c.Bus, Catalog: c.Catalog, Now: c.Clock.Now, Log: c.Log, Observer: c.Metrics, Shell: s, Number: c.Number,
		Limits: drive.Limits{Cache: c.Cache},
	})
	defer s.owner.Close()
	began := time.Now()
	taken, err := s.owner.TakeOver()
	if err != nil {
		return fmt.Errorf("takeover: %w", err)
	}
	c.Able(c.Number, true)
	s.Metrics.takeovers.Inc()
	s.Metrics.takeover.Observe(time.Since(began).Seconds())
	s.Log.Debug("partition taken over", zap.Int("resources", taken.Resources), zap.Int("jobs", taken.Jobs), zap.Duration("took", time.Since(began)))
	inbox, err := c.Bus.Results(ctx, c.Number)
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	defer inbox.Close()
	stop, err := c.Bus.ServeAsks(c.Number, func(r bus.Request, reply func(map[string]string, []byte)) {
		select {
		case s.asks <- ask{r, reply}:
		default:
			s.owner.Overloaded(r, reply, "the partition has "+strconv.Itoa(asksMax)+" requests waiting; try again")
		}
	})
	if err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	defer stop()
	go s.watchLag()
	err = s.run(inbox)
	s.drain()
	return err
}

// run feeds the Owner until ctx ends or the inbox is lost.
func (s *server) run(inbox bus.Inbox) error {
	for {
		s.owner.Answered()
		if err := s.owner.Newer(); err != nil {
			return err
		}
		var results <-chan bus.Delivery
		if s.owner.Ready() {
			results = inbox.C()
		}
		s.arm()
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case d, ok := <-results:
			if !ok {
				return fmt.Errorf("results: %w", inbox.Err())
			}
			s.owner.Offer(s.gather(d, results))
		case a := <-s.asks:
			s.owner.Ask(a.request, a.reply)
		case f := <-s.calls:
			f()
		case <-s.owner.Head():
		case <-s.timer.C:
			s.owner.Tick()
		case <-s.Renew:
			s.owner.Renew()
		}
	}
}

// drain waits for the appends that are out, so that what was asked is answered before the partition is left.
func (s *server) drain() {
	deadline := time.After(2 * time.Second)
	for s.owner.Out() > 0 {
		select {
		case <-s.owner.Head():
			s.owner.Answered()
		case <-deadline:
			return
		}
	}
}

// arm sets the timer to the next due time by the server's clock.
func (s *server) arm() {
	wait := idleTimer
	if next := s.owner.NextDue(); !next.IsZero() {
		wait = max(next.Sub(s.Clock.Now()), 0)
	}
	s.timer.Reset(min(wait, idleTimer))
}

func (s *server) gather(first bus.Delivery, results <-chan bus.Delivery) []bus.Delivery {
	gathered := []bus.Delivery{first}
	for len(gathered) < gatherMax {
		select {
		case d, ok := <-results:
			if !ok {
				return gathered // the next select sees it
			}
			gathered = append(gathered, d)
		default:
			return gathered
		}
	}
	return gathered
}

// watchLag measures how far behind the partition is.
func (s *server) watchLag() {
	ticker := time.NewTicker(lagEvery)
	defer ticker.Stop()
	label := strconv.Itoa(s.Number)
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(s.ctx, lagTimeout)
		n, oldest, err := s.Bus.Backlog(ctx, "RESULTS", s.Number)
		cancel()
		if err != nil {
			continue // the gauge keeps its last value; readiness says that the bus is ill
		}
		s.Metrics.lag.WithLabelValues(label).Set(float64(n))
		age := 0.0
		if !oldest.IsZero() {
			age = max(0, s.Clock.Now().Sub(oldest).Seconds())
		}
		s.Metrics.lagAge.WithLabelValues(label).Set(age)
		select {
		case s.calls <- func() { s.Metrics.Swept(s.Number, s.owner.Stats()) }:
		case <-s.ctx.Done():
			return
		}
	}
}
