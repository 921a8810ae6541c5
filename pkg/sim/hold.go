package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// caller is a worker of one phase, as pkg/plugin's Serve is: it holds the phase, and calls it with what waits. Where a
// true one goes on holding what is idle, this one stops, and begins anew when there is work again: a house at rest is quiet.
type caller struct {
	k          *worker
	phase      bus.Phase
	name       string
	grip       *grip
	keep       *task
	fetch      *task
	checkEvery time.Duration // how often a long call is checked against its resources
	calls      int           // out
	out        int           // resources in calls
	canceling  int           // of them, whose calls are not wanted any more
	answeredBy answeredBy    // its latest grant
	idle       int           // times that it had nothing to do when it looked
	over       bool          // nothing is begun any more
}

const (
	batchMost = 8 // resources that are fetched at once
	idleMost  = 2 // looks with nothing to do, before a caller stops
)

// call has the worker call a phase if it does not and there is work.
func (k *worker) call(ph bus.Phase) {
	if k.callers[ph] != nil || !k.p.w.waiting(ph) {
		return
	}
	w := k.p.w
	c := &caller{k: k, phase: ph, name: k.p.name, checkEvery: min(time.Second+w.upTo(10*time.Second), w.scenario.ackWait/progressEach)}
	if !k.named {
		w.check.holds.named++
		c.name = fmt.Sprint(k.p.name, "/", w.check.holds.named)
	}
	c.grip = newGrip(c.name)
	k.callers[ph] = c
	w.check.holds.of(ph).callers = append(w.check.holds.of(ph).callers, c)
	c.keep = k.p.begin(c.keeps)
	c.fetch = k.p.begin(c.fetches)
}

// waiting reports whether WORK holds anything of a phase, handed out or not.
func (w *World) waiting(ph bus.Phase) bool {
	n, _, err := w.server.Outstanding(context.Background(), ph)
	return err == nil && n > 0
}

// stir has the worker's callers look at what is there.
func (k *worker) stir() {
	for _, ph := range k.p.w.scenario.phases { // in one order
		if c := k.callers[ph]; c != nil {
			c.stir()
		}
	}
}

func (c *caller) stir() {
	if c.fetch.waiting && c.mayCall() {
		c.fetch.wake(0)
	}
}

// mayCall reports whether it may begin a call, and there is something to call with.
func (c *caller) mayCall() bool {
	w := c.k.p.w
	return !c.over && c.grip.held(w.now) && (c.calls == 0 || !c.grip.alone()) && !c.k.p.cut() && w.waiting(c.phase)
}

// keeps asks for the phase, and goes on holding it, until there is nothing to do; then it gives it back.
func (c *caller) keeps() {
	w := c.k.p.w
	for !c.k.p.dead {
		due, again := c.grip.due(w.now, c.out > 0)
		if !due {
			c.keep.wake(again.Sub(w.now))
			c.keep.wait()
			continue
		}
		c.ask(askHold)
		if c.calls > 0 || w.waiting(c.phase) {
			c.idle = 0
		} else if c.idle++; c.idle > idleMost {
			c.stop()
			return
		}
		c.stir()
	}
}

func (c *caller) stop() {
	w := c.k.p.w
	c.over = true
	if c.fetch.waiting {
		c.fetch.wake(0)
	}
	if c.grip.held(w.now) {
		c.ask(askRelease)
	}
	delete(c.k.callers, c.phase)
	w.poke = true // work may have come meanwhile
}

func (c *caller) ask(verb string) {
	w, asked, running := c.k.p.w, c.k.p.w.now, c.out > 0
	body, err := wire.EncodePhaseReport(c.grip.report(asked, c.out, c.canceling))
	if err != nil {
		w.violate("the report of a worker cannot be encoded: %v", err)
	}
	request := bus.Request{Verb: verb, Body: body}.Of(c.phase)
	reply, by, err := c.k.p.link.askWhom(c.phase.Partition(c.k.p.link.Partitions()), request, holdTimeout)
	var answer wire.PhaseHold
	if err == nil {
		if answer, err = wire.DecodePhaseHold(reply.Body); err != nil {
			w.violate("the answer to a worker cannot be read: %v", err)
		}
	}
	if reason := c.grip.answered(asked, running, verb, answer, err); reason == "" {
		c.answeredBy = by
		w.check.granted(c)
	}
}

// fetches fetches what waits, whenever it may be called, and begins a call with it.
func (c *caller) fetches() {
	w := c.k.p.w
	for !c.over && !c.k.p.dead {
		if !c.mayCall() {
			c.fetch.wait()
			continue
		}
		puller, err := w.server.Pull(c.k.p.ctx, c.phase)
		var ds []bus.Delivery
		if err == nil {
			ds, err = puller.Fetch(c.k.p.ctx, 1+w.r.IntN(batchMost), bus.FetchBytesMax, 0)
		}
		if err != nil || len(ds) == 0 {
			c.fetch.wait()
			continue
		}
		if !w.pause(w.latency()) {
			return
		}
		batch := make([]*delivery, len(ds))
		for i, d := range ds {
			w.mark("work", c.phase.Phase, d.Seq())
			batch[i] = &delivery{d, w}
		}
		if !c.grip.held(w.now) || c.over { // nothing is begun
			for _, d := range batch {
				_ = d.Retry(0)
			}
			continue
		}
		w.check.calls(c, len(batch))
		c.calls++
		c.out += len(batch)
		c.grip.began(w.now, len(batch))
		c.told()
		c.k.p.begin(func() { c.carryOut(batch) })
	}
}

// told has the keeper look: something has begun or ended.
func (c *caller) told() {
	if c.keep.waiting {
		c.keep.wake(0)
	}
}

// carryOut is one call. What it is given and is not wanted any more it may leave alone.
func (c *caller) carryOut(batch []*delivery) {
	w, k := c.k.p.w, c.k
	works := make([]wire.Work, len(batch))
	for i, d := range batch {
		works[i] = k.read(c.phase, d)
	}
	canceled := make([]bool, len(batch))
	running, begun := w.percent(30), w.now
	took := k.lasts()
	if w.calm && w.percent(10) {
		took = w.upTo(2 * c.checkEvery)
	}
	var unwanted time.Time // since when it is known that none of it is wanted
	for took > 0 {
		part := min(took, c.checkEvery)
		if !w.pause(part) {
			return
		}
		if took -= part; took <= 0 {
			break
		}
		for i, d := range batch {
			_ = d.Progress()
			if running && !k.publish(works[i], resource.Result{Fence: works[i].Fence, Outcome: resource.OutcomeRunning}) {
				return
			}
			if !canceled[i] && !k.wanted(&works[i]) {
				canceled[i] = true
				c.canceling++
			}
		}
		if unwanted.IsZero() && !slices.Contains(canceled, false) {
			unwanted = w.now
		}
		running = false
	}
	w.check.displayed(c, begun, unwanted)
	for i, d := range batch {
		r := k.answer(&works[i])
		if canceled[i] && w.percent(60) {
			r = resource.Result{Fence: r.Fence, Outcome: resource.OutcomeNotStarted}
		}
		w.check.holds.of(c.phase).settled(r.Outcome)
		if !k.settle(d, works[i], r) {
			return
		}
		c.grip.settled(w.now, r.Outcome, r.Delay)
		if c.out--; canceled[i] {
			c.canceling--
		}
	}
	c.calls--
	c.told()
	c.stir()
}

// wanted looks whether a call is still wanted, as pkg/plugin does.
func (k *worker) wanted(work *wire.Work) bool {
	key := work.State.Key
	n := k.p.link.Partitions()
	stored, err := k.p.link.Last(k.p.ctx, []bus.Entity{{
		Partition: bus.PartitionOf(key.Project, key.Kind, key.Name, n), Family: bus.Resource, Project: key.Project, Kind: key.Kind, Name: key.Name,
	}})
	if err != nil {
		return true
	}
	if stored[0].Seq == 0 || stored[0].Deleted {
		return false
	}
	e, err := wire.DecodeResource(stored[0].Body)
	if err != nil {
		k.p.w.violate("an event cannot be read: %v", err)
	}
	p := e.State.Phase(work.Fence.Phase)
	if e.State.UID == work.State.UID && e.State.Revision < work.State.Revision {
		return true // a follower that is behind
	}
	return p != nil && !e.State.Gone && p.Status != resource.Canceling && fenceOf(&e.State, p) == work.Fence
}
