// Package sweep decides what a sweep asks for: what is outstanding follows from the state, whatever process forgot it
// (promise 8). It comes every 20 seconds, as the life-cycle component of seed 002 does ("ghost removal").
//
// # Absent on purpose
//
// No clock and no look at the bus: both come with the Observation. No decision: an Ask is an input that Step may refuse.
package sweep

import (
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Observation is what the sweep sees beside the state.
type Observation struct {
	// At is the server's time.
	At time.Time
	// Grace is how old a hand-out must be before it may be called lost.
	Grace time.Duration
	// Drained reports whether nothing of a phase's work is out anywhere: not queued, not at a worker, and no result on
	// its way. It is asked only for hand-outs older than Grace.
	Drained func(phase string) bool
}

// Ask is one thing that a sweep asks for.
type Ask struct {
	Input resource.Input
	// Forget asks for the removal of every trace of a resource that is gone; Input is unset then.
	Forget bool
}

// Find returns what one resource needs, in the order in which it is to be given.
func Find(s *resource.State, o Observation) []Ask {
	switch {
	case s.Gone:
		return []Ask{{Forget: true}}
	case !s.Exists():
		return nil
	}
	var asks []Ask
	toGoOn := false
	active := false
	for i := range s.Phases {
		p := &s.Phases[i]
		active = active || p.Status.Active()
		switch {
		case p.InFlight && (p.Status == resource.Waiting || p.Status == resource.Running):
			if o.At.Sub(p.Since) >= o.Grace && o.Drained(p.Name) {
				fence := resource.Fence{UID: s.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt, Call: p.Call}
				asks = append(asks, Ask{Input: resource.Input{Kind: resource.OnLost, At: o.At, Lost: &fence}})
			}
		case p.Status == resource.Waiting && p.State == s.State:
			toGoOn = true
		}
	}
	if due := s.NextDue(); !due.IsZero() && !due.After(o.At) {
		asks = append(asks, Ask{Input: resource.Input{Kind: resource.OnDue, At: o.At}})
	}
	if j := s.Job(); j != nil && (toGoOn || !active || j.State == job.Pending) {
		asks = append(asks, Ask{Input: resource.Input{Kind: resource.OnContinue, At: o.At}})
	}
	return asks
}
