package sweep

import (
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// GraceDefault is how long a call may be out, or a poll overdue, before a sweep asks where it is: longer than an event
// takes to become work, and a result to become an input.
const GraceDefault = 10 * time.Second

// Observation is what the sweeper saw beside the state. It must be no older than the state: see Drained.
type Observation struct {
	// At is the server's time.
	At time.Time
	// Grace is how old a call must be before it may be lost. Zero or less means GraceDefault.
	Grace time.Duration
	// Drained reports that nothing of a phase's work is under way anywhere: the work queue has caught up with the log, it
	// holds nothing of the phase that is undelivered or unanswered, and all results that came are applied. It must have
	// been found so after the state was read, or in one look. Nil means that nobody knows, and then nothing is lost.
	Drained func(phase string) bool
}

// Ask is one thing to do about a resource: an input to step it with, or, with Forget, its traces to remove.
type Ask struct {
	Input  resource.Input
	Forget bool
}

// Find returns what a sweep asks for, in the order in which it is to be done: what is over before what is lost, so that a
// call whose deadline has passed is not handed out once more.
func Find(s *resource.State, o Observation) []Ask {
	switch {
	case s.UID == "":
		return nil
	case s.Gone:
		return []Ask{{Forget: true}}
	}
	if o.Grace <= 0 {
		o.Grace = GraceDefault
	}
	var asks []Ask
	overdue := false
	for i := range s.Phases {
		overdue = overdue || o.overdue(&s.Phases[i])
	}
	if overdue {
		asks = append(asks, Ask{Input: resource.Input{Kind: resource.OnDue, At: o.At}})
	}
	for i := range s.Phases {
		if p := &s.Phases[i]; o.lost(p) {
			f := resource.Fence{UID: s.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt, Call: p.Call}
			asks = append(asks, Ask{Input: resource.Input{Kind: resource.OnLost, At: o.At, Lost: &f}})
		}
	}
	if canContinue(s) {
		asks = append(asks, Ask{Input: resource.Input{Kind: resource.OnContinue, At: o.At}})
	}
	return asks
}

func (o *Observation) past(t time.Time) bool { return !t.IsZero() && !o.At.Before(t) }

func (o *Observation) drained(phase string) bool { return o.Drained != nil && o.Drained(phase) }

// overdue reports whether time asks for something. A poll's due time in the state is that of the first poll of several
// that changed nothing, so it alone says little.
func (o *Observation) overdue(p *resource.PhaseRun) bool {
	switch {
	case !p.Status.Active():
		return false
	case p.Status == resource.Canceling:
		return o.past(p.Due)
	case o.past(p.Deadline):
		return true
	case p.Status != resource.Sleeping:
		return false
	case p.Retrying:
		return o.past(p.Due)
	}
	return !p.Due.IsZero() && o.past(p.Due.Add(o.Grace)) && o.drained(p.Name)
}

// lost reports whether a call is out, and nowhere.
func (o *Observation) lost(p *resource.PhaseRun) bool {
	return p.InFlight && !p.Children && (p.Status == resource.Waiting || p.Status == resource.Running) && !o.past(p.Deadline) &&
		o.past(p.Since.Add(o.Grace)) && o.drained(p.Name)
}

// canContinue reports whether the job waits for nothing but the orchestrator.
func canContinue(s *resource.State) bool {
	j := s.Job()
	if j == nil || j.Blueprint == "" {
		return false
	}
	active, waits := false, false
	for i := range s.Phases {
		p := &s.Phases[i]
		if p.Status == resource.Canceling && !p.Children {
			return false
		}
		active = active || p.Status.Active() && !p.Children // children may have moved unheard
		waits = waits || p.Status == resource.Waiting && !p.InFlight
	}
	return j.State == job.Pending || j.Canceling || !active || waits
}
