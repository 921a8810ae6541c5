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

	soon chan struct{} // asks at once

	mu       sync.Mutex
	until    time.Time     // it is held until then; zero: it is not
	changed  chan struct{} // closed, and replaced, when it is granted or lost
	calls    int           // how many may hold it; 0: any number
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
	return &hold{bus: b, phase: p, worker: worker, log: log, soon: make(chan struct{}, 1), changed: make(chan struct{}), interval: blueprint.IntervalDefault, lease: blueprint.LeaseDefault, wakes: wakes{}}
}

// wait waits until the phase is held, and says whether only one call at a time is allowed.
func (h *hold) wait(ctx context.Context) (alone bool, err error) {
	for {
		h.mu.Lock()
		held, alone, changed := time.Now().Before(h.until), h.calls > 0, h.changed
		h.mu.Unlock()
		if held {
			return alone, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// bound says that the phase is there now: it need not be waited for any more.
func (h *hold) bound() {
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
		if n, canceling := out(); h.due(now, n > 0) || !now.Before(next) {
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
	defer h.tell()
	switch {
	case errors.Is(err, bus.ErrNoOwner):
		return 0, "no orchestrator answers"
	case err != nil:
		return 0, fmt.Sprintf("no answer: %v", err)
	case verb == "release", !answer.Granted, answer.Lease <= 0:
		h.until = time.Time{}
		if answer.Reason == "" {
			answer.Reason = "it was not granted"
		}
		return 0, answer.Reason
	}
	// As long as the owner may have counted from when it was asked.
	h.until, h.calls, h.saidOut, h.since = asked.Add(answer.Lease), answer.Calls, out > 0, time.Time{}
	if answer.Interval > 0 {
		h.interval = answer.Interval
	}
	if answer.CallLease > 0 {
		h.lease = answer.CallLease
	}
	return answer.Lease, ""
}

// tell wakes who waits for the phase.
func (h *hold) tell() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hold) report(now time.Time, out, canceling int) wire.PhaseReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := wire.PhaseReport{Worker: h.worker, Out: uint32(out), Canceling: uint32(canceling), Counts: h.counts}
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
