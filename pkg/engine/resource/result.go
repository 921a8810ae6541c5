package resource

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
)

// result applies an executor's answer to the hand-out that is outstanding; any other answer is refused (promise 4).
func (x *step) result(r Result) {
	x.cause = Cause{Kind: "result", Phase: r.Fence.Phase, Outcome: r.Outcome.String(), Message: cut(r.Message)}
	p := x.s.Phase(r.Fence.Phase)
	if p != nil {
		r.Fence = ofAttempt(p, r)
	}
	if p == nil || !x.outstanding(p, r.Fence) {
		x.note(NoteFenced, fenceText(r.Fence))
		return
	}
	if !slices.Contains(Outcomes(), r.Outcome) {
		x.note(NoteIllegal, "outcome="+strconv.Itoa(int(r.Outcome)))
		return
	}
	ph := x.phaseOf(p.Name)
	if ph == nil && p.Status != Canceling {
		x.note(NoteNoBlueprint, "phase="+p.Name)
		return
	}
	if p.Status == Canceling {
		x.resultWhileCanceling(p, r)
		return
	}
	switch r.Outcome {
	case OutcomeRunning:
		if p.Status == Waiting {
			x.move(p, Report)
		} else {
			x.note(NoteNoChange, "phase="+p.Name)
		}
	case OutcomeNotStarted:
		x.notStarted(p, ph)
	case OutcomePending:
		x.pending(p, ph, r)
	case OutcomeCompleted:
		if over := x.keep(p, r); over != "" {
			x.fail(p, over)
		} else if x.move(p, completion(p)) {
			x.rest(p)
			p.Message = cut(r.Message)
		}
		x.advance()
	case OutcomeFailed:
		over := x.keep(p, r)
		switch {
		case over != "":
			x.fail(p, over)
		case r.Retryable && p.Retries < uint32(max(0, ph.Retry.Attempts)):
			if x.move(p, Forgive) {
				x.rest(p)
				p.Retries++
				p.Retrying, p.Call, p.Due, p.Deadline = true, 0, x.at.Add(ph.RetryDelay()), time.Time{}
				p.Message = cut(r.Message)
			}
		default:
			x.fail(p, r.Message)
		}
		x.advance()
	}
}

// ofAttempt is the fence of an answer. Who calls back knows the attempt and not the call, which it says by call 0: whichever
// call of the attempt reached it, it is one piece of work (facts/common-ground.md, conflict 6). It says what became of the
// work or leaves data; that it is at it, or never began, is said by a worker, of a call.
func ofAttempt(p *PhaseRun, r Result) Fence {
	says := r.Outcome == OutcomeCompleted || r.Outcome == OutcomeFailed || r.Outcome == OutcomePending
	if p.Callback && says && r.Fence.Call == 0 {
		r.Fence.Call = p.Call
	}
	return r.Fence
}

// completion is what success means for a phase: it is done, or undone.
func completion(p *PhaseRun) PhaseEvent {
	if p.Undo {
		return Undo
	}
	return Complete
}

// outstanding reports whether the fence is that of the hand-out that an answer is awaited for. A Sleeping phase keeps
// the fence of its first call for all its polls.
func (x *step) outstanding(p *PhaseRun, f Fence) bool {
	polled := p.Status == Sleeping && !p.Retrying
	return (p.InFlight || polled) && !p.Children && f == x.fence(p)
}

func fenceText(f Fence) string {
	return "uid=" + f.UID + " job=" + f.JobID + " phase=" + f.Phase +
		" attempt=" + strconv.FormatUint(uint64(f.Attempt), 10) + " call=" + strconv.FormatUint(uint64(f.Call), 10)
}

// keep stores what a plugin keeps, whatever the outcome (seed 003: "Updates to the phase are automatically persisted to
// the resource after the plugin runs"). It returns the limit that was passed, and then keeps nothing.
func (x *step) keep(p *PhaseRun, r Result) string {
	attributes, data, outputs := merge(x.s.Attributes, r.Attributes), merge(p.Data, r.Data), merge(p.Outputs, r.Outputs)
	var over string
	switch {
	case size(attributes) > AttributesBytesMax:
		over = overText("attributes", size(attributes), AttributesBytesMax)
	case size(data) > DataBytesMax:
		over = overText("phase data", size(data), DataBytesMax)
	case size(outputs) > OutputsBytesMax:
		over = overText("outputs", size(outputs), OutputsBytesMax)
	default:
		x.s.Attributes, p.Data, p.Outputs = attributes, data, outputs
		return ""
	}
	x.note(NoteLimit, "phase="+p.Name+" "+over)
	return over
}

func overText(what string, have, limit int) string {
	return what + " of " + strconv.Itoa(have) + " bytes are over the limit of " + strconv.Itoa(limit) + " bytes"
}

func (x *step) fail(p *PhaseRun, message string) {
	if x.move(p, Fail) {
		x.rest(p)
		p.Message = cut(message)
	}
}

// rest clears what belongs to a call that is over.
func (x *step) rest(p *PhaseRun) {
	p.InFlight, p.Retrying, p.Children, p.Due, p.Interval = false, false, false, time.Time{}, 0
	if !p.Status.Active() {
		p.Deadline = time.Time{}
	}
}

// pending puts the phase to sleep. A poll that changed nothing is no event (design.md section 3, "Executors").
func (x *step) pending(p *PhaseRun, ph *blueprint.Phase, r Result) {
	interval := r.Delay
	if interval <= 0 {
		interval = ph.PendingInterval()
	}
	interval = min(max(interval, blueprint.IntervalMin), blueprint.IntervalMax)
	if p.Callback {
		interval = 0 // it is not called again
	}
	message := cut(r.Message)
	if message == "" && p.Status == Sleeping {
		message = p.Message // it says nothing new, and what it said stays with the rest of the phase's data (seed 003, "Phase Plugins")
	}
	same := p.Status == Sleeping && p.Interval == interval && p.Message == message &&
		maps.Equal(merge(x.s.Attributes, r.Attributes), x.s.Attributes) &&
		maps.Equal(merge(p.Data, r.Data), p.Data) && maps.Equal(merge(p.Outputs, r.Outputs), p.Outputs)
	if same {
		x.note(NoteNoChange, "phase="+p.Name)
		if !p.Callback {
			x.fx.NextPoll = append(x.fx.NextPoll, PollDue{Phase: p.Name, Due: x.at.Add(interval)})
		}
		return
	}
	if over := x.keep(p, r); over != "" {
		x.fail(p, over)
		x.advance()
		return
	}
	since := p.Since
	wasSleeping := p.Status == Sleeping
	if !x.move(p, Sleep) {
		return
	}
	if wasSleeping {
		p.Since = since
	}
	p.InFlight, p.Interval, p.Due, p.Message = false, interval, x.at.Add(interval), message
	if p.Callback {
		p.Due = time.Time{} // nobody is asked: who does it calls back, or the attempt times out
	}
	x.advance()
}

// notStarted puts the phase back: it waits for another worker, with its data (design.md section 3: "A killed worker or
// a lost connection fails nothing").
func (x *step) notStarted(p *PhaseRun, ph *blueprint.Phase) {
	if p.Status == Sleeping {
		x.note(NoteNoChange, "phase="+p.Name)
		if !p.Callback {
			x.fx.NextPoll = append(x.fx.NextPoll, PollDue{Phase: p.Name, Due: x.at.Add(min(time.Second, ph.PendingInterval()))})
		}
		return
	}
	if x.move(p, Lose) {
		p.InFlight = false
		x.advance()
	}
}

// resultWhileCanceling ends a canceled call. What it has to keep is kept: an instance that was created must not be
// forgotten. A call that succeeded all the same is Completed.
func (x *step) resultWhileCanceling(p *PhaseRun, r Result) {
	if r.Outcome == OutcomeRunning {
		lease := blueprint.LeaseDefault
		if ph := x.phaseOf(p.Name); ph != nil {
			lease = ph.CancelLease()
		}
		if due := x.at.Add(lease); !due.After(p.Due) {
			x.note(NoteNoChange, "phase="+p.Name)
		} else if x.move(p, Report) {
			p.Due = due
		}
		return
	}
	over := x.keep(p, r)
	event := End
	if r.Outcome == OutcomeCompleted && over == "" {
		event = completion(p)
	}
	if x.move(p, event) {
		x.rest(p)
		p.Message = cut(r.Message)
		if over != "" {
			p.Message = cut(over)
		}
	}
	x.advance()
}

// due does what time asks for: deadlines, leases, retries; and says which polls are to be sent.
func (x *step) due() {
	x.cause = Cause{Kind: "due"}
	past := func(t time.Time) bool { return !t.IsZero() && !x.at.Before(t) }
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		switch {
		case !p.Status.Active():
		case p.Status == Canceling && p.Children && past(p.Due):
			x.cause.Phase = p.Name
			if x.move(p, Report) { // it ends with its children, and they with their own leases
				p.Due = x.at.Add(blueprint.LeaseDefault)
			}
		case p.Status == Canceling && past(p.Due):
			if x.move(p, End) {
				x.rest(p)
				p.Message = "the canceled call did not answer within its lease and was given up"
			}
			x.cause.Phase = p.Name
		case p.Status != Canceling && past(p.Deadline):
			x.cause.Phase = p.Name
			if p.Children {
				x.tell(Halt, &job.Ref{ID: p.JobID}, x.family().Begun(false, TellMax), "")
			}
			if x.move(p, Expire) {
				x.rest(p)
				p.Message = "timed out"
				if ph := x.phaseOf(p.Name); ph != nil && ph.Timeout > 0 {
					p.Message = "timed out after " + ph.Timeout.String()
				}
			}
		case p.Status == Sleeping && p.Retrying && past(p.Due):
			x.cause.Phase = p.Name
			if x.move(p, Wake) {
				p.Retrying, p.Due = false, time.Time{}
			}
		case p.Status == Sleeping && !p.Retrying && past(p.Due):
			x.fx.Polls = append(x.fx.Polls, x.fence(p))
		}
	}
	if x.dirty {
		x.advance()
		return
	}
	x.recount()
	if !x.dirty && x.fx.Recount.IsZero() && len(x.fx.Polls) == 0 {
		x.note(NoteNotDue, "")
	}
}

func (x *step) phaseOf(name string) *blueprint.Phase {
	if x.env.Blueprint == nil {
		return nil
	}
	return x.env.Blueprint.Phase(name)
}

// lost puts back a hand-out that a sweep found nowhere (promise 8).
func (x *step) lost(f Fence) {
	x.cause = Cause{Kind: "lost", Phase: f.Phase}
	p := x.s.Phase(f.Phase)
	switch {
	case p == nil || !x.outstanding(p, f):
		x.note(NoteFenced, fenceText(f))
	case p.Status == Sleeping && p.Callback:
		x.note(NoteNoChange, "phase="+p.Name) // that nothing of it is in WORK says nothing of who does it
	case p.Status == Sleeping:
		x.note(NoteNoChange, "phase="+p.Name)
		x.fx.NextPoll = append(x.fx.NextPoll, PollDue{Phase: p.Name, Due: x.at})
	case p.Status == Canceling:
		if x.move(p, End) {
			x.rest(p)
			x.advance()
		}
	default:
		if x.move(p, Lose) {
			p.InFlight = false
			x.advance()
		}
	}
}
