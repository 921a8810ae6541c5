package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

const (
	holdTimeout = 2 * time.Second // one request for the phase
	holdAgain   = time.Second     // wait before a phase that another worker holds is asked for again
	holdReports = 3               // reports a lease, so that two may be lost; none is later than with phase.LeaseDefault
)

// hold is the worker's right to call the phase: package phase's lease, asked for, renewed, and given back. Nothing is
// fetched without it. It also counts, for the phase's record.
type hold struct {
	bus    bus.Bus
	phase  bus.Phase
	worker string
	log    *zap.Logger

	bell          *bell
	before, after *hold // those of the kinds that come before and after; nil: none

	soon chan struct{} // asks at once

	mu       sync.Mutex
	until    time.Time // it is held until then; zero: it is not
	standing standing  // where it is not held
	calling  int       // calls that are out under it
	calls    int       // how many may hold it; 0: any number
	interval time.Duration
	lease    time.Duration // of a call
	counts   phase.Counts
	lastCall time.Time
	wakes    wakes
	// What was said last, and since when it is otherwise.
	saidOut bool
	since   time.Time
}

func newHold(b bus.Bus, p bus.Phase, worker string, log *zap.Logger) *hold {
	return &hold{bus: b, phase: p, worker: worker, log: log, bell: newBell(), soon: make(chan struct{}, 1), interval: blueprint.IntervalDefault, lease: blueprint.LeaseDefault, wakes: wakes{}}
}

// standing is what is known of a phase that is not held.
type standing uint8

const (
	unknown standing = iota
	absent           // the kind has no such phase: there is nothing to be held
	denied           // another worker holds it
)

// again asks for the phase at once, if it is not held.
func (h *hold) again() {
	select {
	case h.soon <- struct{}{}:
	default:
	}
}

// held reports whether the phase may be called.
func (h *hold) held() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.until)
}

// how is held, and where it is not, what is known.
func (h *hold) how() (held bool, s standing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.until), h.standing
}

// turn reports whether this kind may be asked for: all before it are held, or absent. taken says that another worker
// holds one of these.
func (h *hold) turn() (mine, taken bool) {
	for b := h.before; b != nil; b = b.before {
		if held, s := b.how(); !held && s != absent {
			return false, s == denied
		}
	}
	return true, false
}

// yield gives the phase up, unless a call is out.
func (h *hold) yield() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calling > 0 || !time.Now().Before(h.until) {
		return false
	}
	h.until = time.Time{}
	return true
}

// callLease is how long a call that is being canceled may be silent.
func (h *hold) callLease() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease
}

// began counts a call.
func (h *hold) began(resources int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts.Calls++
	h.counts.Resources += uint64(resources)
	h.lastCall = time.Now()
}

// exceeded counts a call that has passed its limit.
func (h *hold) exceeded() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts.Exceeded++
}

// answered counts what became of one resource.
func (h *hold) answered(a answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case a.release:
	case a.outcome == resource.OutcomeCompleted:
		h.counts.Completed++
	case a.outcome == resource.OutcomeFailed:
		h.counts.Failed++
	case a.outcome == resource.OutcomePending:
		h.counts.Pending++
		delay := a.delay
		if delay <= 0 {
			delay = h.interval
		}
		h.wakes.add(time.Now().Add(delay))
	}
}

// keep asks for the phase, and goes on holding it, until stop; then it gives it back, if ctx is still there. out tells how
// many resources are in calls, and how many of these are not wanted any more.
func (h *hold) keep(ctx context.Context, stop <-chan struct{}, out func() (resources, canceling int)) {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	var next time.Time
	told := ""
	for {
		now := time.Now()
		n, canceling := out()
		switch mine, taken := h.turn(); {
		case taken && h.yield():
			h.ask(ctx, "release", n, canceling)
			told = "" // it is waited for again
		case !mine && !h.held(): // those before come first
		case h.due(now, n > 0) || !now.Before(next):
			lease, reason := h.ask(ctx, "hold", n, canceling)
			next = now.Add(holdAgain)
			if reason == "" {
				next = now.Add(min(lease, phase.LeaseDefault) / holdReports)
			} else if reason != told {
				h.log.Info("waiting for the phase", zap.String("reason", reason))
			}
			told = reason
		}
		select {
		case <-stop:
			if h.held() {
				h.ask(ctx, "release", 0, 0)
			}
			return
		case <-h.soon:
			if !h.held() {
				next = time.Time{}
			}
		case <-ticker.C:
		}
	}
}

// due reports whether the record is to be told at once that calls run, or run no more: once that has lasted for more than a
// blink.
func (h *hold) due(now time.Time, running bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if running == h.saidOut || !now.Before(h.until) && !running {
		h.since = time.Time{}
		return false
	}
	if h.since.IsZero() {
		h.since = now
	}
	return now.Sub(h.since) >= RunningAfter
}

// ask says how this worker stands. It returns the lease, or why there is none.
func (h *hold) ask(ctx context.Context, verb string, out, canceling int) (lease time.Duration, reason string) {
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	asked := time.Now()
	body, err := wire.EncodePhaseReport(h.report(asked, out, canceling))
	if err != nil {
		return 0, err.Error()
	}
	r, err := h.bus.AskPhase(ctx, h.phase, bus.Request{Verb: verb, Body: body})
	var answer wire.PhaseHold
	if err == nil {
		answer, err = wire.DecodePhaseHold(r.Body)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	was, stood := time.Now().Before(h.until), h.standing
	defer func() {
		if was != time.Now().Before(h.until) || stood != h.standing {
			h.tell()
		}
	}()
	switch {
	case errors.Is(err, bus.ErrNoOwner):
		return 0, "no orchestrator answers"
	case err != nil:
		return 0, fmt.Sprintf("no answer: %v", err)
	case verb == "release", !answer.Granted, answer.Lease <= 0:
		h.until, h.standing = time.Time{}, absent
		if verb == "release" || len(answer.Holders) > 0 {
			h.standing = denied
		}
		if answer.Reason == "" {
			answer.Reason = "it was not granted"
		}
		return 0, answer.Reason
	}
	// As long as the owner may have counted from when it was asked.
	h.standing = unknown
	h.until, h.calls, h.saidOut, h.since = asked.Add(answer.Lease), answer.Calls, out > 0, time.Time{}
	if answer.Interval > 0 {
		h.interval = answer.Interval
	}
	if answer.CallLease > 0 {
		h.lease = answer.CallLease
	}
	return answer.Lease, ""
}

// tell wakes who waits for the phase, and the kind that comes next.
func (h *hold) tell() {
	h.bell.ring()
	if h.after != nil {
		h.after.again()
	}
}

func (h *hold) report(now time.Time, out, canceling int) wire.PhaseReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := wire.PhaseReport{
		Worker: h.worker, Out: uint32(out), Canceling: uint32(canceling), Counts: h.counts, Order: uint64(max(now.UnixNano(), 1)),
	}
	if !h.lastCall.IsZero() {
		r.LastCallAgo = max(now.Sub(h.lastCall), 1)
	}
	if first, last, ok := h.wakes.next(now); ok {
		r.WakeIn, r.WakeUntilIn = max(first.Sub(now), 1), max(last.Sub(now), 1)
	}
	return r
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
