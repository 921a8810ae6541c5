package sim

import (
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// worker is a process that carries out all phases, well or badly. Where the seed has phases held, it calls them as pkg/plugin
// does (caller); else it carries out each hand-out by itself, as what may be called any number of times at once.
type worker struct {
	p       *process
	task    *task
	slow    bool
	woke    bool
	callers map[bus.Phase]*caller
	named   bool // its callers have one name, whenever they begin
}

func newWorker(p *process) *worker {
	k := &worker{p: p, slow: p.w.percent(20), callers: map[bus.Phase]*caller{}, named: p.w.percent(50)}
	k.task = p.begin(k.serve)
	return k
}

func (k *worker) wake() {
	k.woke = true
	if k.task.waiting {
		k.woke = false
		k.task.wake(k.p.w.upTo(20 * time.Millisecond))
	}
}

const workBatch = 4

func (k *worker) serve() {
	w := k.p.w
	for !k.p.dead {
		found := false
		for _, phase := range w.scenario.phases {
			if w.scenario.held {
				k.call(phase)
				continue
			}
			puller, err := w.server.Pull(k.p.ctx, phase)
			if err != nil {
				continue // it has no consumer yet
			}
			ds, err := puller.Fetch(k.p.ctx, 1+w.r.IntN(workBatch), bus.FetchBytesMax, 0)
			if err != nil {
				continue
			}
			for _, d := range ds {
				found = true
				w.mark("work", phase.Phase, d.Seq())
				k.p.begin(func() { k.carryOut(phase, &delivery{d, w}) })
			}
		}
		if found {
			if !w.pause(w.upTo(20 * time.Millisecond)) {
				return
			}
		} else if !k.woke && !k.task.wait() {
			return
		}
		k.woke = false
	}
}

// carryOut answers one call.
func (k *worker) carryOut(phase bus.Phase, d *delivery) {
	w := k.p.w
	work := k.read(phase, d)
	took := k.lasts()
	running, progress := w.percent(20), w.percent(80)
	if running {
		if !w.pause(w.upTo(took + 1)) {
			return
		}
		if !k.publish(work, resource.Result{Fence: work.Fence, Outcome: resource.OutcomeRunning}) {
			return
		}
	}
	for took > 0 {
		part := min(took, w.scenario.ackWait/progressEach)
		if !w.pause(part) {
			return
		}
		if took -= part; progress {
			_ = d.Progress()
		}
	}
	k.settle(d, work, k.answer(&work))
}

func (k *worker) read(phase bus.Phase, d *delivery) wire.Work {
	w := k.p.w
	poll := ""
	if d.Header(bus.HeaderPoll) != "" {
		poll = phase.Phase
	}
	work, err := wire.DecodeWork(d.Body(), poll)
	if err != nil {
		w.violate("work cannot be read: %v", err)
	}
	w.check.worked(&work)
	w.check.atWork[work.Fence]++
	return work
}

// lasts draws how long a call lasts.
func (k *worker) lasts() time.Duration {
	w := k.p.w
	took := w.upTo(300 * time.Millisecond)
	switch {
	case w.calm:
	case k.slow && w.percent(30):
		took = w.upTo(90 * time.Second)
	case w.percent(10):
		took = w.upTo(10 * time.Second)
	}
	return took
}

// settle says what a call came to, once, twice, or never. It returns false when the process has died.
func (k *worker) settle(d *delivery, work wire.Work, r resource.Result) bool {
	w := k.p.w
	defer func() { w.check.atWork[work.Fence]-- }()
	if w.fault(w.faults.late, 1) { // rubbish is set aside, and holds nothing up
		w.check.rubbish++
		for w.server.PublishResult(k.p.ctx, work.ResultSubject, nil, []byte{0xff}) != nil {
			if !w.pause(time.Second) {
				return false
			}
		}
		w.check.kept++
		w.poke = true
	}
	if w.fault(w.faults.late, 5) {
		w.check.again[work.Fence] = true
		w.after(w.upTo(3*time.Minute), func() { // somebody says it once more, whoever lives then
			p := w.house.of(users)[0]
			p.begin(func() { _ = send(p, work, r) })
		})
	}
	if w.fault(w.faults.late, 3) {
		if w.check.atWork[work.Fence] > 1 {
			w.check.again[work.Fence] = true // who was given it before, and said for long not that he is at it, answers at any time
		}
		_ = d.Ack() // a worker that loses its answer
		return true
	}
	if !k.publish(work, r) {
		return false
	}
	_ = d.Ack()
	return true
}

// answer draws what a call comes to.
func (k *worker) answer(work *wire.Work) resource.Result {
	w := k.p.w
	r := resource.Result{Fence: work.Fence, Outcome: resource.OutcomeCompleted}
	n := w.r.IntN(100)
	polls := w.check.polls(work.Fence)
	switch {
	case w.calm && polls > 3:
	case w.calm && n < 90:
	case n < 58:
	case n < 74:
		r.Outcome = resource.OutcomePending
		if w.percent(50) {
			r.Delay = time.Second + w.upTo(20*time.Second)
		}
		if w.percent(30) {
			r.Message = pick(w, []string{"booting", "still booting"})
		}
	case n < 84:
		r.Outcome, r.Retryable, r.Message = resource.OutcomeFailed, true, "not now"
	case n < 92:
		r.Outcome, r.Message = resource.OutcomeFailed, "broken"
	case !w.calm:
		r.Outcome = resource.OutcomeNotStarted
	}
	if w.percent(20) {
		r.Attributes = map[string]string{"a": pick(w, []string{"1", "2", `"x"`, "null"})}
	}
	if w.percent(20) {
		r.Data = map[string]string{"d": pick(w, []string{"1", "2"})}
	}
	if w.r.IntN(400) == 0 {
		r.Data = map[string]string{"d": `"` + strings.Repeat("x", resource.DataBytesMax) + `"`} // over the limit: it fails
	}
	return r
}

// publish publishes a result until it is stored, as the SDK does. It returns false when the process has died.
func (k *worker) publish(work wire.Work, r resource.Result) bool {
	for {
		err := send(k.p, work, r)
		if err == nil {
			return true
		}
		if !k.p.w.pause(time.Second) || k.p.dead {
			return false
		}
	}
}

func send(p *process, work wire.Work, r resource.Result) error {
	w := p.w
	body, err := wire.EncodeResult("", r)
	if err != nil {
		w.violate("a result cannot be encoded: %v", err)
	}
	w.check.answers[answer{r.Fence, r.Outcome}] = true
	if w.fault(w.faults.doubled, 3) {
		if err := p.link.PublishResult(p.ctx, work.ResultSubject, nil, body); err != nil {
			return err
		}
	}
	return p.link.PublishResult(p.ctx, work.ResultSubject, nil, body)
}
