package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/job"
)

// Result is what a run of a seed came to.
type Result struct {
	Seed      uint64
	Violation string // empty: none
	Hash      uint64 // of the trace: equal seeds have equal ones
	Simulated time.Duration
	Events    int // that happened in the world
	Appends   int // to the log
	Jobs      int
}

const (
	settleWithin = 6 * time.Hour // after the faults have stopped
	tombstoneTTL = time.Hour
	// retireLooks are the sweeps, hours apart, by which the consumer of a phase in no use is gone, and then the phase's record.
	retireLooks = 4
)

// Run runs one seed to its end, or to its first violation. trace, where not nil, is told everything that happens; it
// does not change what happens.
func Run(seed uint64, trace io.Writer) (result Result) {
	w := &World{seed: seed, r: rand.New(rand.NewPCG(seed, 0)), now: began, hash: 14695981039346656037, trace: trace}
	defer func() {
		v := recover()
		if v != nil {
			result.Violation = fmt.Sprint(v)
			if x, ok := v.(violation); ok {
				result.Violation = w.clockText(w.now) + ": " + x.text
			} else {
				result.Violation = fmt.Sprintf("panic: %v\n%s", v, debug.Stack())
			}
		}
		result.Seed, result.Hash, result.Simulated, result.Events = seed, w.hash, w.now.Sub(began), w.count
		result.Appends, result.Jobs = w.check.events, len(w.check.jobs)
		w.abandon()
	}()
	w.check = newChecker(w)
	w.house = &house{w: w}
	w.scenario = newScenario(w)
	options := memory.Options{Partitions: w.scenario.partitions, Clock: w, TombstoneTTL: tombstoneTTL, WorkAckWait: w.scenario.ackWait}
	if w.faults.full {
		options.CommandMessages, options.ResultMessages = 1+w.r.IntN(6), 1+w.r.IntN(6)
	}
	if w.faults.trail {
		options.Trail = w.trailing
	}
	w.sys = memory.New(options)
	w.server = w.sys.Connect()
	w.say("%d partitions, faults %+v", w.scenario.partitions, w.faults)
	w.scenario.start()
	w.until(began.Add(w.scenario.active + 5*time.Second))

	w.heal()
	w.settle("after the faults have stopped")
	w.check.atRest()

	w.restart()
	return result
}

// trailing is how far what follows from an event is behind it.
func (w *World) trailing() (bucket, work time.Duration) {
	if w.calm {
		return 0, 0
	}
	bucket, work = w.upTo(50*time.Millisecond), w.upTo(20*time.Millisecond)
	if w.percent(3) {
		work += w.upTo(15 * time.Second)
	}
	return bucket, work
}

// heal ends the faults: who is paused goes on, who is dead comes again, clocks are right.
func (w *World) heal() {
	w.mark("heal", "", 0)
	w.calm = true
	for _, p := range w.house.processes {
		p.pausedUntil, p.cutUntil, p.suspected, p.alone, p.deaf, p.skew = w.now, w.now, false, false, false, 0
		p.clock.Set(w.now)
		p.setAt = w.now
	}
	for _, service := range []string{orchestrator, intake, workers, sweeper} {
		if len(w.house.of(service)) == 0 {
			w.house.start(service)
		}
		w.house.changed(service)
	}
	w.check.healed = w.now
	if w.percent(50) { // a takeover in calm, of what is under way
		w.until(w.now.Add(w.upTo(20 * time.Second)))
		for _, p := range w.house.of(orchestrator) {
			w.house.kill(p)
		}
		w.house.start(orchestrator)
		w.check.restarted = w.now
	}
}

// settle lets the house come to rest.
func (w *World) settle(when string) {
	end := w.now.Add(settleWithin)
	calmFor := 0
	for before := -1; calmFor < 3; before = w.check.events {
		w.until(w.now.Add(sweepTick))
		left := w.check.unfinished()
		switch {
		case left != "" && w.now.After(end):
			w.violate("%s later %s: %s", settleWithin, when, left)
		case left == "" && before == w.check.events:
			calmFor++
		default:
			calmFor = 0
			if w.now.After(end) {
				w.violate("%s later %s the house still writes", settleWithin, when)
			}
		}
	}
}

// restart lets all be forgotten that is to be forgotten, and then looks whether a takeover brings any of it back.
func (w *World) restart() {
	w.check.resting = true
	w.until(w.now.Add(2 * tombstoneTTL))
	w.sweepUntilQuiet()
	w.until(began.Add(job.RetentionDefault - 10*time.Minute)) // nothing is to be forgotten yet
	w.sweepUntilQuiet()
	w.until(w.now.Add(settleWithin + tombstoneTTL))
	w.sweepUntilQuiet()
	for range retireLooks {
		w.until(w.now.Add(2 * tombstoneTTL))
		w.sweepUntilQuiet()
	}
	w.until(w.now.Add(2 * tombstoneTTL))
	w.check.forgotten()

	events := w.check.events
	for _, p := range w.house.of(orchestrator) {
		w.house.kill(p)
	}
	w.house.start(orchestrator)
	w.until(w.now.Add(time.Minute))
	w.sweepUntilQuiet()
	w.until(w.now.Add(2 * tombstoneTTL))
	if w.check.events != events {
		w.violate("a takeover of a house at rest wrote %d events", w.check.events-events)
	}
	w.check.forgotten()
}

// sweepUntilQuiet sweeps until that changes nothing any more.
func (w *World) sweepUntilQuiet() {
	for events := -1; events != w.check.events; {
		events = w.check.events
		for _, p := range w.house.of(sweeper) {
			w.house.sweepOnce(p)
		}
		w.until(w.now.Add(sweepTick))
	}
}

// abandon ends what still waits.
func (w *World) abandon() {
	defer func() { _ = recover() }() // a violation was reported already
	for len(w.house.processes) > 0 {
		w.house.kill(w.house.processes[0])
	}
}
