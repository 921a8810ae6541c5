package sim

import (
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// As pkg/plugin has them.
const (
	runningAfter = 500 * time.Millisecond // a call that lasts longer is told at once
	holdTimeout  = 2 * time.Second        // one request for the phase
	holdAgain    = time.Second            // wait before a phase that another worker holds is asked for again
	holdReports  = 3                      // reports a lease; none is later than with phase.LeaseDefault
)

// What is asked of the owner of a phase's record.
const (
	askHold    = "hold"
	askRelease = "release"
)

// grip is a worker's hold of a phase, by the rules of pkg/plugin: when it asks for it, until when it has it, and what it tells of
// itself. Its counts begin with it and never shrink.
type grip struct {
	worker   string
	until    time.Time // it is held until then; zero: it is not
	lease    time.Duration
	next     time.Time // when the owner is asked again, at the latest
	calls    int       // how many may hold it; 0: any number
	interval time.Duration
	counts   phase.Counts
	lastCall time.Time
	wakes    wakes
	// What was said last, and since when it is otherwise.
	saidRunning bool
	since       time.Time
}

func newGrip(worker string) *grip {
	return &grip{worker: worker, interval: blueprint.IntervalDefault, wakes: wakes{}}
}

// held reports whether the phase may be called.
func (h *grip) held(now time.Time) bool { return now.Before(h.until) }

// alone reports whether a holder may have one call out, and no more.
func (h *grip) alone() bool { return h.calls > 0 }

// began counts a call.
func (h *grip) began(now time.Time, resources int) {
	h.counts.Calls++
	h.counts.Resources += uint64(resources)
	h.lastCall = now
}

// settled counts what became of one resource of a call; delay: after how long one that is pending is called again, 0 for the
// phase's interval.
func (h *grip) settled(now time.Time, outcome resource.Outcome, delay time.Duration) {
	switch outcome {
	case resource.OutcomeCompleted:
		h.counts.Completed++
	case resource.OutcomeFailed:
		h.counts.Failed++
	case resource.OutcomePending:
		h.counts.Pending++
		if delay <= 0 {
			delay = h.interval
		}
		h.wakes.add(now.Add(delay))
	case resource.OutcomeRunning, resource.OutcomeNotStarted:
	}
}

// due reports whether the owner is to be asked now: because the lease is to be renewed, or because calls run, or run no more,
// and that has lasted for longer than a blink without the owner knowing it. Else, when to look again at the latest.
func (h *grip) due(now time.Time, running bool) (due bool, again time.Time) {
	again = h.next
	switch {
	case running == h.saidRunning, !running && !h.held(now):
		h.since = time.Time{}
	case h.since.IsZero():
		h.since = now
		fallthrough
	default:
		if at := h.since.Add(runningAfter); at.Before(again) {
			again = at
		}
	}
	return !now.Before(again), again
}

// report is what the owner is told when it is asked: out is how many resources are in calls, and canceling how many of these
// are not wanted any more.
func (h *grip) report(now time.Time, out, canceling int) wire.PhaseReport {
	r := wire.PhaseReport{
		Worker: h.worker, Out: uint32(out), Canceling: uint32(canceling), Counts: h.counts, Order: uint64(now.UnixNano()),
	}
	if !h.lastCall.IsZero() {
		r.LastCallAgo = max(now.Sub(h.lastCall), 1)
	}
	if first, last, ok := h.wakes.next(now); ok {
		r.WakeIn, r.WakeUntilIn = max(first.Sub(now), 1), max(last.Sub(now), 1)
	}
	return r
}

// answered takes what came of a request that was made at asked, when calls ran or not. It returns why the phase is not held
// by it, or "".
func (h *grip) answered(asked time.Time, running bool, verb string, answer wire.PhaseHold, err error) (reason string) {
	h.next, h.since = asked.Add(holdAgain), time.Time{}
	switch {
	case err != nil:
		return err.Error()
	case verb == askRelease, !answer.Granted, answer.Lease <= 0:
		h.until = time.Time{}
		if answer.Reason == "" {
			answer.Reason = "it was not granted"
		}
		return answer.Reason
	}
	// As long as the owner may have counted from when it was asked.
	h.until, h.lease = asked.Add(answer.Lease), answer.Lease
	h.next = asked.Add(min(answer.Lease, phase.LeaseDefault) / holdReports)
	h.calls, h.saidRunning = answer.Calls, running
	if answer.Interval > 0 {
		h.interval = answer.Interval
	}
	return ""
}

// wakes counts, by the second, when resources are due that were left pending.
type wakes map[int64]int

func (w wakes) add(at time.Time) { w[at.Unix()+1]++ }

// next is when the first and the last of them are due, forgetting those that are past.
func (w wakes) next(now time.Time) (first, last time.Time, ok bool) {
	for second := range w {
		at := time.Unix(second, 0)
		if !at.After(now) {
			delete(w, second)
			continue
		}
		if !ok || at.Before(first) {
			first = at
		}
		if !ok || at.After(last) {
			last = at
		}
		ok = true
	}
	return first, last, ok
}
