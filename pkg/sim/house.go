package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/partition"
)

// house is the processes.
type house struct {
	w         *World
	processes []*process // all that live, in the order of their start
	stints    []*stint
	intakes   []*intakePartition
	workers   []*worker
	started   int
}

// Services, as members share their partitions.
const (
	orchestrator = "orchestrator"
	intake       = "intake"
	workers      = "worker"
	sweeper      = "sweeper"
	users        = "users"
)

const (
	deadAfter = 2 * time.Second // of silence
	sweepTick = 20 * time.Second
)

// process is one process, until it dies.
type process struct {
	w           *World
	service     string
	name        string
	link        *link
	ctx         context.Context
	cancel      context.CancelFunc
	tasks       []*task
	dead        bool
	suspected   bool // the others believe it dead
	alone       bool // it believes the others dead
	deaf        bool // ticks do not reach it
	pausedUntil time.Time
	cutUntil    time.Time     // nothing that it says arrives, and nothing it is told
	setAt       time.Time     // when its clock, as it is corrected, last took a leap
	skew        time.Duration // of its own clock
	clock       *partition.Clock
	catalog     *catalog.Catalog
}

// constraints are compiled once for all worlds; what they answer depends on their arguments alone.
var constraints = constraint.NewEvaluator()

func (h *house) start(service string) *process {
	w := h.w
	h.started++
	p := &process{w: w, service: service, name: fmt.Sprint(service, "-", h.started)}
	p.link = &link{Conn: w.sys.Connect(), p: p}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if w.faults.skew && !w.calm {
		p.skew = w.upTo(2*skewMax) - skewMax
		p.deaf = w.percent(40)
	}
	p.clock = partition.NewClock(func() time.Time { return w.now.Add(p.skew) })
	books, err := catalog.New(p.link, func() time.Time { return w.now }, constraints) // as time.Now, of which nothing but the wall's part is set
	if err != nil {
		panic(err)
	}
	p.catalog = books
	h.processes = append(h.processes, p)
	w.mark("start", p.name, 0)
	w.after(w.upTo(time.Second), p.tick)
	switch service {
	case workers:
		h.workers = append(h.workers, newWorker(p))
	case sweeper:
		w.after(w.upTo(sweepTick), func() { h.sweep(p) })
	}
	h.changed(service)
	return p
}

// skewMax is how far a clock may be off, before a tick corrects it.
const skewMax = 2 * time.Minute

// tick sets the process's clock by the server's. Between ticks nothing is lost but the correction, so they come seldom.
func (p *process) tick() {
	w := p.w
	if p.dead {
		return
	}
	if w.fault(w.faults.skew, 10) {
		p.skew = w.upTo(2*skewMax) - skewMax // its clock was set
		p.deaf, p.setAt = w.percent(40), w.now
	}
	if !p.deaf || w.calm {
		at := w.now
		w.after(w.latency(), func() { p.correct(at) })
	}
	if !w.house.resting() {
		w.after(time.Second+w.upTo(15*time.Second), p.tick)
	}
}

// correct sets a process's clock by what the server's was.
func (p *process) correct(at time.Time) {
	before := p.clock.Now()
	p.clock.Set(at)
	if leap := p.clock.Now().Sub(before).Abs(); leap > leaseSlack/2 {
		p.setAt = p.w.now
	}
}

// cut reports whether the process is cut off from all others.
func (p *process) cut() bool { return p.w.now.Before(p.cutUntil) }

func (h *house) resting() bool { return h.w.check.resting }

// kill ends a process as kill -9 does.
func (h *house) kill(p *process) {
	h.w.mark("kill", p.name, 0)
	p.dead = true
	p.cancel()
	p.link.Kill()
	for len(p.tasks) > 0 {
		t := p.tasks[0]
		t.end()
		p.tasks = slices.DeleteFunc(p.tasks, func(x *task) bool { return x == t })
	}
	h.stints = slices.DeleteFunc(h.stints, func(s *stint) bool {
		if s.p == p {
			s.ended = h.w.now
		}
		return s.p == p
	})
	h.intakes = slices.DeleteFunc(h.intakes, func(i *intakePartition) bool { return i.p == p })
	h.workers = slices.DeleteFunc(h.workers, func(k *worker) bool { return k.p == p })
	h.processes = slices.DeleteFunc(h.processes, func(x *process) bool { return x == p })
	h.w.after(deadAfter, func() { h.changed(p.service) })
}

// pause stops a process for a while; the others may believe it dead meanwhile.
func (h *house) pause(p *process, d time.Duration) {
	w := h.w
	w.mark("pause", p.name, uint64(d))
	p.pausedUntil = w.now.Add(d)
	if d > deadAfter {
		w.after(deadAfter, func() { p.suspected = !p.dead; h.changed(p.service) })
		w.after(d+w.upTo(time.Second), func() { p.suspected = false; h.changed(p.service); h.heardAgain(p.service) })
	}
}

// heardAgain has the owners read what others wrote, a while after processes that took each other for dead hear each other again. Not
// everyone notices.
func (h *house) heardAgain(service string) {
	if service != orchestrator {
		return
	}
	w := h.w
	for _, p := range h.of(orchestrator) {
		if w.percent(20) {
			continue
		}
		w.after(renewPause+w.latency(), func() {
			for _, s := range h.stints {
				if s.p == p && s.open {
					s.Later(s.renew)
				}
			}
		})
	}
}

// members are the live ones of a service, as p sees them.
func (h *house) members(p *process) []string {
	var ids []string
	for _, x := range h.processes {
		if x.service == p.service && (x == p || !x.suspected && !p.alone) {
			ids = append(ids, x.name)
		}
	}
	return ids
}

// changed tells the members of a service who lives, each at its time.
func (h *house) changed(service string) {
	if service != orchestrator && service != intake {
		return
	}
	w := h.w
	for _, p := range h.processes {
		if p.service == service {
			d := w.latency()
			if w.fault(w.faults.overlap, 50) {
				d += w.upTo(4 * time.Second)
			}
			w.after(d, func() { h.share(p) })
		}
	}
}

// share makes the partitions that a process serves those that are its share.
func (h *house) share(p *process) {
	if p.dead {
		return
	}
	if p.w.now.Before(p.pausedUntil) {
		p.w.after(p.pausedUntil.Sub(p.w.now), func() { h.share(p) })
		return
	}
	mine := bus.Share(p.w.server.Partitions(), p.name, h.members(p))
	if p.service == orchestrator {
		for _, s := range h.stints {
			if s.p == p && !slices.Contains(mine, s.partition) {
				s.leave()
			}
		}
		for _, n := range mine {
			if !slices.ContainsFunc(h.stints, func(s *stint) bool { return s.p == p && s.partition == n && !s.leaving }) {
				h.stints = append(h.stints, newStint(p, n))
			}
		}
		return
	}
	for _, i := range h.intakes {
		if i.p == p && !slices.Contains(mine, i.partition) {
			i.leave()
		}
	}
	for _, n := range mine {
		if !slices.ContainsFunc(h.intakes, func(i *intakePartition) bool { return i.p == p && i.partition == n && !i.leaving }) {
			h.intakes = append(h.intakes, newIntakePartition(p, n))
		}
	}
}

// answered wakes the stints of a process: one of its appends was answered.
func (p *process) answered() {
	if p.dead {
		return
	}
	for _, s := range p.w.house.stints {
		if s.p == p {
			s.wake()
		}
	}
}

// wake wakes whoever has something to receive.
func (h *house) wake() {
	for _, s := range h.stints {
		if s.inbox != nil && len(s.inbox.C()) > 0 {
			s.wake()
		}
	}
	for _, i := range h.intakes {
		if i.inbox != nil && len(i.inbox.C()) > 0 {
			i.wake()
		}
	}
	for _, k := range h.workers {
		k.wake()
		k.stir()
	}
}

// sweep is the sweeper's tick: each owner is asked.
func (h *house) sweep(p *process) {
	w := h.w
	if p.dead {
		return
	}
	if !h.resting() {
		w.after(sweepTick, func() { h.sweep(p) })
	}
	if w.fault(w.faults.lost, 10) {
		return // the tick was lost
	}
	h.sweepOnce(p)
}

func (h *house) sweepOnce(p *process) {
	for n := range h.w.server.Partitions() {
		p.begin(func() { _, _ = p.link.ask(n, bus.Request{Verb: "sweep"}, 5*time.Second) }) // the next tick asks again
	}
}

// of lists the live processes of a service.
func (h *house) of(service string) []*process {
	var of []*process
	for _, p := range h.processes {
		if p.service == service {
			of = append(of, p)
		}
	}
	return of
}

var nobody = zap.NewNop()
