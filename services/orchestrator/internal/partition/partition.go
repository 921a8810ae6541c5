// Package partition serves one partition: it reads what the log holds (takeover), feeds a drive.Loop with results,
// requests and times, and carries out what the Loop asks for over the bus (port.go).
package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/orchestrator/internal/catalog"
)

const (
	gatherMax     = 256              // results that are taken together
	asksMax       = 1024             // requests that wait for the partition; past it: overloaded
	callsMax      = 1024             // answers of background work that wait for the partition
	retryAfter    = time.Second      // before a result that could not be applied comes again
	takeoverAgain = 2 * time.Second  // pause after a takeover that failed
	lagEvery      = 15 * time.Second // between two looks at the backlog
	idleTimer     = time.Hour
)

// ErrNewer says that a state was written by a newer Drover: this process leaves the partition alone (design.md section
// 3, "Upgrades").
var ErrNewer = errors.New("the partition holds states of a newer version")

// Config is what a partition is served with.
type Config struct {
	Bus     bus.Bus
	Catalog *catalog.Catalog
	Clock   *Clock
	Metrics *Metrics
	Log     *zap.Logger
	Number  int
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
		c.Log.Warn("the partition is not served; it is taken over again", zap.Error(err), zap.Duration("after", takeoverAgain))
		select {
		case <-ctx.Done():
			return
		case <-time.After(takeoverAgain):
		}
	}
}

// server is one stint at one partition. All of it belongs to one goroutine, but for the channels.
type server struct {
	Config
	ctx    context.Context
	port   *port
	loop   *drive.Loop
	asks   chan ask
	calls  chan func()
	timer  *time.Timer
	sweeps map[bus.Phase]bool // drained phases, of one sweep
}

type ask struct {
	request bus.Request
	reply   func(header map[string]string, body []byte)
}

func serve(parent context.Context, c Config) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	s := &server{
		Config: c, ctx: ctx, asks: make(chan ask, asksMax), calls: make(chan func(), callsMax), timer: time.NewTimer(idleTimer),
	}
	defer s.timer.Stop()
	s.port = &port{c: c, ctx: ctx, calls: s.calls}
	s.loop = drive.New(s.port, drive.Limits{})
	if err := s.takeOver(); err != nil {
		return fmt.Errorf("takeover: %w", err)
	}
	inbox, err := c.Bus.Results(ctx, c.Number)
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	defer inbox.Close()
	stop, err := c.Bus.ServeAsks(c.Number, func(r bus.Request, reply func(map[string]string, []byte)) {
		select {
		case s.asks <- ask{r, reply}:
		default:
			s.refuse(reply, r.Header, resource.Overloaded, "the partition has "+strconv.Itoa(asksMax)+" requests waiting; try again")
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

// takeOver reads the last events of the partition and rebuilds what is outstanding.
func (s *server) takeOver() error {
	began := time.Now()
	jobs := map[string]drive.LoadedJob{}
	err := s.Bus.Scan(s.ctx, s.Number, bus.Job, func(m bus.Stored) error {
		j, err := decodeJob(m)
		if err != nil {
			return fmt.Errorf("job %s: %w", m.Entity.Name, err)
		}
		if j.Record.MinReader > resource.ReaderVersion {
			return ErrNewer
		}
		jobs[j.Record.ID] = j
		s.loop.AdoptJob(drive.JobKey{Project: m.Entity.Project, ID: j.Record.ID}, j)
		return nil
	})
	if err != nil {
		return err
	}
	resources := 0
	err = s.Bus.Scan(s.ctx, s.Number, bus.Resource, func(m bus.Stored) error {
		r, err := decodeResource(m)
		if err != nil {
			return fmt.Errorf("resource %s/%s/%s: %w", m.Entity.Project, m.Entity.Kind, m.Entity.Name, err)
		}
		if r.State.MinReader > resource.ReaderVersion {
			return ErrNewer
		}
		resources++
		s.loop.Adopt(r.State, r.Seq, func(id string) (drive.LoadedJob, bool) { j, ok := jobs[id]; return j, ok })
		return nil
	})
	if err != nil {
		return err
	}
	err = s.Bus.Scan(s.ctx, s.Number, bus.Blueprint, func(m bus.Stored) error {
		present, err := s.Catalog.Present(s.ctx, m.Entity.Project, m.Entity.Kind, true)
		if err != nil {
			return err
		}
		if present.Blueprint != nil {
			s.port.EnsurePhases(present.Blueprint)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.loop.Begin(s.Clock.Now())
	s.Metrics.takeovers.Inc()
	s.Metrics.takeover.Observe(time.Since(began).Seconds())
	s.Log.Debug("partition taken over", zap.Int("resources", resources), zap.Int("jobs", len(jobs)), zap.Duration("took", time.Since(began)))
	return nil
}

// run feeds the Loop until ctx ends or the inbox is lost.
func (s *server) run(inbox bus.Inbox) error {
	for {
		s.answered()
		var results <-chan bus.Delivery
		if s.loop.Ready() {
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
			s.offer(s.gather(d, results))
		case a := <-s.asks:
			s.ask(a)
		case f := <-s.calls:
			f()
		case <-s.head():
		case <-s.timer.C:
			s.loop.Tick(s.Clock.Now())
		}
	}
}

// head is closed when the oldest append was answered; answers come in the order of the sends.
func (s *server) head() <-chan struct{} {
	if len(s.port.out) == 0 {
		return nil
	}
	return s.port.out[0].pending.Done()
}

// answered takes the answers that are there.
func (s *server) answered() {
	for len(s.port.out) > 0 {
		select {
		case <-s.port.out[0].pending.Done():
			o := s.port.out[0]
			s.port.out[0] = outcome{}
			s.port.out = s.port.out[1:]
			o.done(o.pending.Result())
		default:
			return
		}
	}
}

// drain waits for the appends that are out, so that what was asked is answered before the partition is left.
func (s *server) drain() {
	deadline := time.After(2 * time.Second)
	for len(s.port.out) > 0 {
		select {
		case <-s.head():
			s.answered()
		case <-deadline:
			return
		}
	}
}

// arm sets the timer to the next due time by the server's clock.
func (s *server) arm() {
	wait := idleTimer
	if next := s.loop.NextDue(); !next.IsZero() {
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

// offer turns results into inputs. What cannot be read is set aside with its reason, and holds nothing up.
func (s *server) offer(deliveries []bus.Delivery) {
	inputs := make([]drive.Input, 0, len(deliveries))
	for _, d := range deliveries {
		e, err := bus.ParseResultSubject(d.Subject())
		if err != nil {
			s.aside(d, err.Error())
			continue
		}
		r, err := wire.DecodeResult(d.Header(bus.HeaderContentType), d.Body())
		if err != nil {
			s.aside(d, err.Error())
			continue
		}
		inputs = append(inputs, drive.Input{
			Key: resource.Key{Project: e.Project, Kind: e.Kind, Name: e.Name},
			Input: resource.Input{
				Kind: resource.OnResult, At: d.Time(), Result: &r, Traceparent: d.Header(bus.HeaderTraceparent),
			},
			Settle: func() {
				host.CrashPoint("orchestrator.before-ack")
				if err := d.Ack(); err != nil {
					s.Log.Debug("a result was not acknowledged; it comes again and is fenced", zap.Error(err))
				}
			},
			Back: func(err error) {
				s.Log.Warn("a result could not be applied now", zap.Error(err))
				_ = d.Retry(retryAfter) // unanswered it comes again all the same
			},
			Aside: func(reason string) { s.aside(d, reason) },
		})
	}
	s.loop.Offer(inputs)
}

// aside sets a poison message aside; a sound one behind it is not held up.
func (s *server) aside(d bus.Delivery, reason string) {
	s.Metrics.set.Inc()
	s.Log.Warn("a result was set aside", host.Subject(d.Subject()), host.Sequence(d.Seq()), host.Reason(reason))
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, ensureTimeout)
		defer cancel()
		if err := d.Reject(ctx, reason); err != nil {
			s.Log.Warn("a poison message could not be set aside; it comes again", zap.Error(err))
		}
	}()
}

// ask takes a request of intake or lifecycle.
func (s *server) ask(a ask) {
	switch a.request.Verb {
	case "command":
		s.command(a)
	case "sweep":
		s.sweep(a)
	default:
		s.refuse(a.reply, a.request.Header, resource.Invalid, "a partition's owner does not know "+strconv.Quote(a.request.Verb))
	}
}

func (s *server) sweep(a ask) {
	s.sweeps = map[bus.Phase]bool{}
	report := s.loop.Sweep(s.Clock.Now(), s.drained)
	s.sweeps = nil
	s.Metrics.observe(s.Number, s.loop.Stats())
	body, err := json.Marshal(report)
	if err != nil {
		s.Log.Error("a sweep's report could not be written", zap.Error(err))
		return
	}
	a.reply(map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, body)
}

// drained reports whether nothing of a phase's work is out anywhere: neither in WORK nor, as a result, on its way here.
func (s *server) drained(kind, phase string, key resource.Key) bool {
	p := bus.Phase{Project: key.Project, Kind: kind, Phase: phase}
	if known, ok := s.sweeps[p]; ok {
		return known
	}
	ctx, cancel := context.WithTimeout(s.ctx, ensureTimeout)
	defer cancel()
	n, caughtUp, err := s.Bus.Outstanding(ctx, p)
	drained := err == nil && caughtUp && n == 0
	if drained {
		backlog, _, err := s.Bus.Backlog(ctx, "RESULTS", s.Number)
		drained = err == nil && backlog == 0
	}
	s.sweeps[p] = drained
	return drained
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
		ctx, cancel := context.WithTimeout(s.ctx, ensureTimeout)
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
		case s.calls <- func() { s.Metrics.observe(s.Number, s.loop.Stats()) }:
		case <-s.ctx.Done():
			return
		}
	}
}
