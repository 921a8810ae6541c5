package resource

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
)

// ListenerKind is the one kind that needs no blueprint: its resources are read by the notifier and have no phases.
const ListenerKind = "Listener"

func (x *step) refuse(code Code, message string, violations []Violation) {
	x.fx.Reply = &Reply{Refused: &Refusal{Code: code, Message: message, Violations: violations}}
}

// command applies one command, once: the same request again is answered with the same job and has no second effect;
// another body under its id is a conflict (contract.md, "NATS subjects").
func (x *step) command(c Command) {
	x.cause = Cause{Kind: "command", Verb: c.Verb, RequestedBy: c.RequestedBy, Message: cut(c.Message)}
	x.jobID = c.JobID
	digest, known := "", false
	if j := x.s.JobByID(c.JobID); j != nil {
		digest, known = j.Digest, true
	} else if c.Known != nil {
		digest, known = c.Known.Digest, true
	}
	switch {
	case known && digest == c.Digest:
		x.fx.Reply = &Reply{JobID: c.JobID}
		x.note(NoteDuplicate, "job="+c.JobID)
		return
	case known:
		x.refuse(Conflict, "request id "+c.RequestID+" was used before for another command on this resource", nil)
		return
	case !x.s.Exists() && c.Verb != VerbApply:
		x.refuse(NotFound, "there is no resource "+c.Key.String(), nil)
		return
	}
	switch c.Verb {
	case VerbApply:
		x.apply(c)
	case VerbDelete:
		x.remove(c)
	case VerbRetry:
		x.retry(c)
	case VerbCancel, VerbInterrupt:
		x.cancel(c)
	case VerbApprove:
		x.refuse(Conflict, "no phase of this resource waits for approval", nil)
	default:
		x.flow(c)
	}
	if x.broken {
		x.refuse(Conflict, "this would be an illegal transition: "+x.fx.Notes[len(x.fx.Notes)-1].Of, nil)
		return
	}
	if x.fx.Reply == nil {
		x.fx.Reply = &Reply{JobID: c.JobID}
	}
}

// newJob adds the command's job to the state.
func (x *step) newJob(c Command, state job.State, target, blueprintDigest string) *job.Ref {
	j := job.Ref{
		ID: c.JobID, RequestID: c.RequestID, Digest: c.Digest, Verb: c.Verb, Target: target, Blueprint: blueprintDigest,
		State: state, AcceptedAt: x.at, RequestedBy: c.RequestedBy,
	}
	switch {
	case state == job.Running:
		j.StartedAt = x.at
	case state.Final():
		j.StartedAt, j.EndedAt = x.at, x.at
	}
	x.s.Jobs = append(x.s.Jobs, j)
	x.dirty = true
	return &x.s.Jobs[len(x.s.Jobs)-1]
}

// apply creates or changes a resource. It starts nothing (contract.md, "Verbs").
func (x *step) apply(c Command) {
	if x.env.Blueprint == nil && c.Key.Kind != ListenerKind {
		x.refuse(Invalid, "no blueprint defines kind "+c.Key.Kind, []Violation{{"resource.kind", "no blueprint of project " + c.Key.Project + " defines this kind"}})
		return
	}
	if !x.s.Exists() {
		x.s = State{Key: c.Key, UID: c.NewUID, CreatedAt: x.at}
		x.before.State = ""
	} else if !x.s.DeletedAt.IsZero() {
		x.refuse(Conflict, "the resource is being deleted", nil)
		return
	}
	if x.s.SpecDigest != c.SpecDigest || x.s.Generation == 0 {
		x.s.Generation++
		x.s.SpecDigest = c.SpecDigest
	}
	x.s.Labels, x.s.Cluster = maps.Clone(c.Labels), c.Cluster
	x.newJob(c, job.Succeeded, "", "")
}

// remove marks the resource and walks the flow that its lifecycle names for deletion; without one, or at its end
// already, or before any flow, the resource is gone at once.
func (x *step) remove(c Command) {
	bp := x.env.Blueprint
	if j := x.s.Job(); j != nil && !x.s.DeletedAt.IsZero() {
		x.refuse(Conflict, "job "+j.ID+" deletes it already", nil)
		return
	}
	var f blueprint.Flow
	walk := false
	if bp != nil {
		f, walk = bp.Lifecycle.Flow(bp.Lifecycle.Delete)
	}
	if !walk || x.s.State == "" || x.s.State == f.Target && x.s.Job() == nil {
		if j := x.s.Job(); j != nil {
			x.refuse(Conflict, "job "+j.ID+" is running and this lifecycle has no flow for deletion; cancel it first", nil)
			return
		}
		x.s.DeletedAt, x.s.Gone = x.at, true
		x.newJob(c, job.Succeeded, x.s.State, "")
		return
	}
	x.s.DeletedAt = x.at // before the walk: it may be over at once
	if !x.start(c, f.Target, f.Path) {
		x.s.DeletedAt = x.before.DeletedAt
	}
}

// flow starts the flow of a verb.
func (x *step) flow(c Command) {
	bp := x.env.Blueprint
	if bp == nil {
		x.refuse(Invalid, "no blueprint defines kind "+c.Key.Kind, nil)
		return
	}
	f, ok := bp.Lifecycle.Flow(c.Verb)
	switch {
	case !ok:
		x.refuse(Invalid, "kind "+c.Key.Kind+" has no verb "+c.Verb, []Violation{{"verb", "not one of " + strings.Join(verbs(bp), ", ")}})
	case !x.s.DeletedAt.IsZero():
		x.refuse(Conflict, "the resource is being deleted", nil)
	case len(f.From) > 0 && !slices.Contains(f.From, x.s.State):
		x.refuse(Conflict, "verb "+c.Verb+" may start from "+strings.Join(f.From, ", ")+"; the resource is in state "+quote(x.s.State), nil)
	default:
		x.start(c, f.Target, f.Path)
	}
}

func verbs(bp *blueprint.Blueprint) []string {
	known := []string{VerbApply, VerbDelete, VerbRetry, VerbCancel, VerbInterrupt, VerbApprove}
	for _, f := range bp.Lifecycle.Flows {
		known = append(known, f.Verb)
	}
	slices.Sort(known)
	return known
}

func quote(state string) string {
	if state == "" {
		return `"" (no flow was started yet)`
	}
	return state
}

// start makes the job of a flow, and settles what a running one means by the lifecycle's policy (facts/common-ground.md,
// conflict 1). It reports whether the job was made.
func (x *step) start(c Command, target string, path []string) bool {
	bp := x.env.Blueprint
	running := x.s.Job()
	if running != nil && bp.Lifecycle.OnTargetChange == blueprint.Reject {
		x.refuse(Conflict, "job "+running.ID+" ("+running.Verb+") is running", nil)
		return false
	}
	if running != nil && bp.Lifecycle.OnTargetChange == blueprint.Wait {
		x.refuse(Conflict, "job "+running.ID+" ("+running.Verb+") is running, and jobs cannot wait in this version", nil)
		return false
	}
	goesOn := x.s.Target == target && slices.Contains(path, x.s.State) && x.runsKnownTo(bp)
	if running != nil {
		message := "job " + c.JobID + " leads to " + target + " instead"
		if x.s.Target == target {
			message = "job " + c.JobID + " goes on to the same target"
		}
		x.moveJob(running, job.Canceled, message)
	}
	if !goesOn {
		x.cancelAll(bp)
	}
	x.newJob(c, job.Pending, target, bp.Digest)
	x.s.Target = target
	x.advance()
	return true
}

// runsKnownTo reports whether the blueprint has every phase that is still active, for the present state and behind
// nothing that is not done.
func (x *step) runsKnownTo(bp *blueprint.Blueprint) bool {
	return !x.anyPhase(func(p *PhaseRun) bool {
		ph := bp.Phase(p.Name)
		return p.Status.Active() && (ph == nil || !slices.Contains(ph.States, x.s.State) || !x.dependenciesDone(bp, ph))
	})
}

// retry begins failed phases again, with their data cleared (seed 003, "Asynchronous Example": "When it is retried,
// CycleCloud will clear the phase data for this resource"). Phases that run go on, under the new job.
func (x *step) retry(c Command) {
	bp := x.env.Blueprint
	running, last := x.s.Job(), x.s.FlowJob()
	if bp == nil || last == nil || x.s.Target == "" {
		x.refuse(Conflict, "nothing was started yet, so there is nothing to retry", nil)
		return
	}
	stopped := func(status Status) bool { return status == Failed || status == Canceled }
	all := c.Scope == "all"
	switch {
	case c.Scope != "" && c.Scope != "failed" && !all:
		x.refuse(Invalid, "unknown scope "+c.Scope, []Violation{{"args.scope", `not one of "failed", "all"`}})
		return
	case running != nil && (running.Canceling || running.State == job.Pending):
		x.refuse(Conflict, "job "+running.ID+" is not yet past the calls that are being canceled", nil)
		return
	case running != nil && !x.anyFailed():
		x.refuse(Conflict, "job "+running.ID+" is running and no phase has failed", nil)
		return
	case x.s.State == x.s.Target:
		x.refuse(Conflict, "the resource is at its target "+x.s.Target, nil)
		return
	case !all && running == nil && !x.anyPhase(func(p *PhaseRun) bool { return stopped(p.Status) && p.State == x.s.State }) && last.State != job.Failed && last.State != job.Canceled:
		x.refuse(Conflict, "no phase has failed", nil)
		return
	}
	if _, ok := bp.Lifecycle.FlowTo(x.s.Target); !ok {
		x.refuse(Conflict, "the kind's blueprint no longer has a flow to "+x.s.Target, nil)
		return
	}
	if !x.runsKnownTo(bp) {
		x.refuse(Conflict, "the kind's blueprint has changed for a phase that is running; retry when it has ended", nil)
		return
	}
	if all && x.anyPhase(func(p *PhaseRun) bool { return p.Status.Active() && p.State == x.s.State }) {
		x.refuse(Conflict, "phases of state "+x.s.State+" are still running; cancel the job, or retry all when they have ended", nil)
		return
	}
	if running != nil {
		x.moveJob(running, job.Failed, x.failure()+"; job "+c.JobID+" retries it")
	}
	j := x.newJob(c, job.Pending, x.s.Target, bp.Digest)
	x.all = all
	if !slices.Contains(flowPath(bp, &x.s, j), x.s.State) {
		x.cancelAll(bp) // the changed blueprint's way no longer leads through this state
	}
	x.advance()
}

// cancel ends the running job: at once where no call is out, or when asked to interrupt; else when the calls that are
// out have answered, or their leases have ended.
func (x *step) cancel(c Command) {
	running := x.s.Job()
	if running == nil {
		x.refuse(Conflict, "no job is running", nil)
		return
	}
	id, message := running.ID, c.Message
	if message == "" {
		message = c.Verb + " was asked for by job " + c.JobID
	}
	if c.Verb == VerbInterrupt {
		x.dropAll(true)
	} else {
		x.cancelAll(x.env.Blueprint)
	}
	done := x.newJob(c, job.Succeeded, "", "")
	done.Message = "cancels job " + id
	running = x.s.JobByID(id)
	running.Message = cut(message)
	if x.anyPhase(func(p *PhaseRun) bool { return p.Status == Canceling }) {
		running.Canceling = true
		return
	}
	x.moveJob(running, job.Canceled, "")
	x.s.DeletedAt = time.Time{} // a deletion that was canceled is no deletion
}
