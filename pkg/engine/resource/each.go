package resource

import (
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
)

// Where each phase walks by itself (blueprint.Each; seed 000: a PhaseInstance has a status of its own), a job concerns the
// phases that were in a state from which its verb may start when it began. The others stay as they are.

// stateOf is where a phase is that walks by itself.
func stateOf(lc *blueprint.Lifecycle, s *State, name string) string {
	p := s.Phase(name)
	if p == nil || p.State == "" {
		return lc.Initial
	}
	return p.State
}

// mayNot says why a verb cannot start now; empty: it may.
func (x *step) mayNot(bp *blueprint.Blueprint, verb string) string {
	lc := &bp.Lifecycle
	if lc.Walk == blueprint.Each {
		return x.mayNotEach(bp, verb)
	}
	f, ok := lc.FlowFrom(verb, x.s.State)
	if !ok {
		return "verb " + verb + " may start from " + strings.Join(lc.From(verb), ", ") + "; the resource is in state " + quote(x.s.State)
	}
	for i := range bp.Phases {
		if ph := &bp.Phases[i]; f.Idempotent && !ph.Idempotent && onTheWay(bp, ph, &f) {
			return "phase " + ph.Name + " is not idempotent, and verb " + verb + " from " + quote(x.s.State) + " needs that"
		}
	}
	return notUndoable(bp, &f)
}

func onTheWay(bp *blueprint.Blueprint, ph *blueprint.Phase, f *blueprint.Flow) bool {
	return bp.Lifecycle.Walk == blueprint.Each || slices.ContainsFunc(f.Path, func(state string) bool { return bp.Has(ph, state) })
}

// notUndoable says why a flow that undoes never can; empty: it can, or undoes nothing. It needs every phase to support it
// (seed 000, "isDecommissionable": "a Partial Decom is currently not supported").
func notUndoable(bp *blueprint.Blueprint, f *blueprint.Flow) string {
	for i := range bp.Phases {
		if ph := &bp.Phases[i]; f.Undo && ph.Undo == nil && onTheWay(bp, ph, f) {
			return "phase " + ph.Name + " cannot be undone: it has no undo executor"
		}
	}
	return ""
}

// mayNotEach: out of Error leads only what is idempotent (seed 000: "only when idempotent").
func (x *step) mayNotEach(bp *blueprint.Blueprint, verb string) string {
	lc := &bp.Lifecycle
	concerned := false
	if f, ok := lc.Flow(verb); ok {
		if reason := notUndoable(bp, &f); reason != "" {
			return reason
		}
	}
	var at []string
	for i := range bp.Phases {
		ph := &bp.Phases[i]
		state := stateOf(lc, &x.s, ph.Name)
		at = append(at, ph.Name+" "+state)
		f, ok := lc.FlowFrom(verb, state)
		if ok && f.Idempotent && !ph.Idempotent {
			return "phase " + ph.Name + " is in state " + state + " and is not idempotent, so it cannot " + verb
		}
		concerned = concerned || ok
	}
	if !concerned && len(bp.Phases) > 0 {
		return "verb " + verb + " may start from " + strings.Join(lc.From(verb), ", ") + "; no phase is there: " + strings.Join(at, ", ")
	}
	return ""
}

// beginEach sets the phases that the job concerns anew. All but the last state of the path are entered at once (an update
// that is wanted is Pending_Update), the last when the phase is handed out.
func (x *step) beginEach(bp *blueprint.Blueprint, j *job.Ref, way *blueprint.Flow) {
	lc := &bp.Lifecycle
	was := x.s.WasDeployed
	told, concerned := false, false
	for i := range bp.Phases {
		name := bp.Phases[i].Name
		state := stateOf(lc, &x.s, name)
		f, ok := lc.FlowFrom(way.Verb, state)
		if !ok {
			continue
		}
		if p := x.s.Phase(name); j.Verb == VerbRetry && !x.all && (p == nil || p.Status != Failed && p.Status != Canceled) {
			continue // it did its part
		}
		if p := x.s.Phase(name); f.Undo && p != nil && p.Status == Skipped && p.Attempt == 0 {
			p.State, concerned = f.Target, true // it was never carried out, so there is nothing to undo
			continue
		}
		// One flag for all of them (seed 000): a service that was deployed in any of its phases was deployed.
		x.s.WasDeployed = was
		x.tellOfThePast(&f)
		told, concerned = told || x.s.WasDeployed, true
		p := x.phase(bp, name)
		if len(f.Path) == 0 {
			if p.Status == NoStatus {
				x.move(p, Enter)
				x.move(p, Skip)
			}
			p.State = f.Target
			continue
		}
		if !x.move(p, Enter) {
			return
		}
		x.anew(p, j)
		p.State = state
		if n := len(f.Path); n > 1 {
			p.State = f.Path[n-2]
		}
	}
	x.s.WasDeployed = told || was && !concerned
}

// settle moves what ended in this step where its flow leads, and computes the resource's state.
func (x *step) settle() {
	bp := x.env.Blueprint
	if bp == nil || bp.Lifecycle.Walk != blueprint.Each {
		return
	}
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		j := x.s.JobByID(p.JobID)
		was := x.before.Phase(p.Name)
		if j == nil || was != nil && was.Status == p.Status && was.JobID == p.JobID {
			continue
		}
		f := flowOf(bp, &x.s, j)
		switch p.Status {
		case Completed, Undone, Skipped:
			p.State = f.Target
		case Failed:
			p.State = f.Failure
		case Canceled:
			if n := len(f.Path); n > 0 && p.State == f.Path[n-1] {
				p.State = f.Failure // it had begun, if only once: nobody knows how far it came
			}
		case NoStatus, Blocked, Waiting, Running, Sleeping, Canceling, Gated:
		}
	}
	x.s.State = computed(bp, &x.s)
}

// computed is the state of a resource whose phases walk by themselves: the first of the lifecycle's precedence that any
// of them is in.
func computed(bp *blueprint.Blueprint, s *State) string {
	lc := &bp.Lifecycle
	best := len(lc.Precedence)
	for i := range bp.Phases {
		if at := slices.Index(lc.Precedence, stateOf(lc, s, bp.Phases[i].Name)); at >= 0 {
			best = min(best, at)
		}
	}
	switch {
	case best < len(lc.Precedence):
		return lc.Precedence[best]
	case s.Target != "":
		return s.Target // it has no phases
	}
	return lc.Initial
}
