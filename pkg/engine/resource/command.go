package resource

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
)

// Built-in kinds, which need no blueprint: their resources have no phases and are read by others.
const (
	ListenerKind = "Listener" // by the notifier
	TaskKind     = "Task"     // definitions that machines are driven by (pkg/rebar), as are the next three
	StageKind    = "Stage"
	WorkflowKind = "Workflow"
	BootEnvKind  = "BootEnv"
)

// MachineKind is the kind of the manifests of machines, which are no resources (pkg/engine/machine).
const MachineKind = "Machine"

// BuiltIn reports whether resources of a kind need no blueprint.
func BuiltIn(kind string) bool {
	switch kind {
	case ListenerKind, TaskKind, StageKind, WorkflowKind, BootEnvKind:
		return true
	default:
		return false
	}
}

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
	if root := RootName(c.Key.Name); root != c.Key.Name && c.Verb != VerbApprove {
		x.refuse(Conflict, "it is a child: its jobs start at the root of its tree, "+root, nil)
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
		x.approve(c)
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
		State: state, AcceptedAt: x.at, RequestedBy: c.RequestedBy, Selection: c.Selection,
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

// apply creates or changes a resource. It starts nothing (contract.md, "Verbs"), unless the first phase of a flow has
// auto_deploy set: then creating starts the lifecycle's flow for that, and a changed spec the one for changes.
func (x *step) apply(c Command) {
	bp := x.env.Blueprint
	if bp == nil && !BuiltIn(c.Key.Kind) {
		x.refuse(Invalid, "no blueprint defines kind "+c.Key.Kind, []Violation{{"resource.kind", "no blueprint of project " + c.Key.Project + " defines this kind"}})
		return
	}
	created := !x.s.Exists()
	if bad := x.badItems(bp); bad != nil && (created || x.s.SpecDigest != c.SpecDigest) {
		x.refuse(Invalid, "its children could not be made: "+bad.Error(), []Violation{{bad.Field, bad.Reason}})
		return
	}
	if created && x.env.Retired {
		x.refuse(Conflict, "the blueprint of kind "+c.Key.Kind+" is being deleted", nil)
		return
	}
	if created {
		x.s = State{Key: c.Key, UID: c.NewUID, CreatedAt: x.at}
		x.before.State = ""
		if bp != nil {
			x.s.State, x.s.Separate = bp.Lifecycle.Initial, bp.Lifecycle.Walk == blueprint.Each
		}
	} else if !x.s.DeletedAt.IsZero() {
		x.refuse(Conflict, "the resource is being deleted", nil)
		return
	}
	changed := x.s.SpecDigest != c.SpecDigest || x.s.Generation == 0
	if changed {
		x.s.Generation++
		x.s.SpecDigest = c.SpecDigest
	}
	x.s.Labels, x.s.Cluster = maps.Clone(c.Labels), c.Cluster
	if bp != nil && changed {
		if f, ok := x.autoFlow(bp, created); ok {
			if !x.start(c, f) {
				x.s = x.before
			}
			return
		}
	}
	x.newJob(c, job.Succeeded, "", "")
}

// badItems says what is wrong with the children that the spec of an apply defines; nil: nothing. A phase of a blueprint
// that came later may still find something, and fails with it.
func (x *step) badItems(bp *blueprint.Blueprint) *children.InvalidError {
	if bp == nil || x.env.Items == nil {
		return nil
	}
	for i := range bp.Phases {
		ph := &bp.Phases[i]
		if ph.Children == nil || ph.Children.Do != blueprint.DoApply && ph.Children.Do != blueprint.DoAll {
			continue
		}
		var bad *children.InvalidError
		if _, err := x.env.Items(ph); errors.As(err, &bad) {
			return bad
		}
	}
	return nil
}

// autoFlow is the flow that apply starts, if any (seed 000, "auto_deploy": "all changes to the CMDB are automatically
// deployed").
func (x *step) autoFlow(bp *blueprint.Blueprint, created bool) (blueprint.Flow, bool) {
	verbs := []string{bp.Lifecycle.OnChange, bp.Lifecycle.OnCreate} // what was never deployed is not updated, but deployed
	if created {
		verbs = verbs[1:]
	}
	for _, verb := range verbs {
		if verb == "" || !x.behind(bp) && x.mayNot(bp, verb) != "" {
			continue
		}
		f, _ := bp.Lifecycle.Flow(verb)
		if first := firstPhase(bp, &f); first != nil && first.AutoDeploy != nil && *first.AutoDeploy {
			return f, true
		}
	}
	return blueprint.Flow{}, false
}

func firstPhase(bp *blueprint.Blueprint, f *blueprint.Flow) *blueprint.Phase {
	for _, state := range f.Path {
		if in := bp.In(state); len(in) > 0 {
			return in[0]
		}
	}
	return nil
}

// remove marks the resource and walks the flow that its lifecycle names for deletion; without one, or at its end
// already, or before any flow, the resource is gone at once.
func (x *step) remove(c Command) {
	bp := x.env.Blueprint
	if j := x.s.Job(); j != nil && !x.s.DeletedAt.IsZero() {
		id := j.ID
		for i := range x.s.Jobs {
			if w := &x.s.Jobs[i]; w.Verb == VerbDelete && !w.State.Final() {
				id = w.ID
			}
		}
		x.refuse(Conflict, "job "+id+" deletes it already", nil)
		return
	}
	var f blueprint.Flow
	walk := false
	if bp != nil {
		f, walk = bp.Lifecycle.Flow(bp.Lifecycle.Delete)
	}
	running := x.s.Job()
	if !walk || running == nil && x.nothingToUndo(bp, &f) {
		if x.hasChildren() {
			x.refuse(Conflict, "it has children, and its lifecycle has no flow that deletes them", nil)
			return
		}
		if running != nil {
			x.refuse(Conflict, "job "+running.ID+" is running and this lifecycle has no flow for deletion; cancel it first", nil)
			return
		}
		x.s.DeletedAt, x.s.Gone = x.at, true
		x.newJob(c, job.Succeeded, x.s.State, "")
		return
	}
	reason := x.mayNot(bp, f.Verb)
	if x.behind(bp) {
		reason = notUndoable(bp, &f) // all else is judged when its turn comes; this never changes
	}
	if reason != "" && (f.Undo || bp.Lifecycle.Walk == blueprint.Each) {
		x.refuse(Conflict, reason, nil)
		return
	}
	x.s.DeletedAt = x.at // before the walk: it may be over at once
	if !x.start(c, f) {
		x.s.DeletedAt = x.before.DeletedAt
	}
}

// nothingToUndo reports whether deletion has nothing to walk: no flow was started yet, or it stands at the end already.
func (x *step) nothingToUndo(bp *blueprint.Blueprint, f *blueprint.Flow) bool {
	if x.hasChildren() {
		return false
	}
	initial := bp.Lifecycle.Initial
	if bp.Lifecycle.Walk != blueprint.Each {
		return x.s.State == initial || x.s.State == "" || x.s.State == f.Target
	}
	for i := range bp.Phases {
		if state := stateOf(&bp.Lifecycle, &x.s, bp.Phases[i].Name); state != initial && state != f.Target {
			return false
		}
	}
	return true
}

// flow starts the flow of a verb.
func (x *step) flow(c Command) {
	bp := x.env.Blueprint
	if bp == nil {
		x.refuse(Invalid, "no blueprint defines kind "+c.Key.Kind, nil)
		return
	}
	f, ok := bp.Lifecycle.Flow(c.Verb)
	deletion, walks := bp.Lifecycle.Flow(bp.Lifecycle.Delete)
	marked := !x.s.DeletedAt.IsZero()
	switch {
	case !ok:
		x.refuse(Invalid, "kind "+c.Key.Kind+" has no verb "+c.Verb, []Violation{{"verb", "not one of " + strings.Join(verbs(bp), ", ")}})
		return
	case marked && bp.Lifecycle.ByMark && walks:
		x.start(c, deletion)
		return
	case marked:
		x.refuse(Conflict, "the resource is being deleted", nil)
		return
	}
	if reason := x.mayNot(bp, c.Verb); reason != "" && !x.behind(bp) {
		x.refuse(Conflict, reason, nil)
		return
	}
	x.start(c, f)
}

// behind reports whether a flow that is asked for now is judged when its turn comes (policy wait), or is refused anyway
// (reject), so that where the running job has come to does not matter.
func (x *step) behind(bp *blueprint.Blueprint) bool {
	return x.s.Job() != nil && bp.Lifecycle.OnTargetChange != blueprint.Cancel
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
func (x *step) start(c Command, f blueprint.Flow) bool {
	bp := x.env.Blueprint
	running := x.s.Job()
	if running != nil && bp.Lifecycle.OnTargetChange == blueprint.Reject {
		x.refuse(Conflict, "job "+running.ID+" ("+running.Verb+") is running", nil)
		return false
	}
	if running != nil && bp.Lifecycle.OnTargetChange == blueprint.Wait {
		return x.queue(c, f)
	}
	goesOn := x.goesOn(bp, &f)
	if running != nil {
		message := "job " + c.JobID + " leads to " + f.Target + " instead"
		if x.s.Target == f.Target {
			message = "job " + c.JobID + " goes on to the same target"
		}
		x.moveJob(running, job.Canceled, message)
	}
	if !goesOn {
		x.cancelAll(bp)
	}
	x.newFlowJob(c, f)
	x.s.Target = f.Target
	x.advance()
	return true
}

// goesOn reports whether a flow takes up the phases of the present state as they are: they were begun on the way to the
// same target.
func (x *step) goesOn(bp *blueprint.Blueprint, f *blueprint.Flow) bool {
	return bp.Lifecycle.Rerun != blueprint.RerunAll && x.s.Target == f.Target && slices.Contains(f.Path, x.s.State) && x.runsKnownTo(bp, f)
}

// newFlowJob adds a job that walks a flow, pending, with the kind's present blueprint.
func (x *step) newFlowJob(c Command, f blueprint.Flow) *job.Ref {
	j := x.newJob(c, job.Pending, f.Target, x.env.Blueprint.Digest)
	if f.Verb != c.Verb {
		j.Flow = f.Verb
	}
	return j
}

// queue puts a job behind the running one (facts/landscaper.md A1: "a change or a delete during a running job waits until
// the running job finishes").
func (x *step) queue(c Command, f blueprint.Flow) bool {
	if n := x.s.Queued(); n >= QueuedJobsMax {
		x.refuse(Overloaded, strconv.Itoa(n)+" jobs wait behind job "+x.s.Job().ID+" already", nil)
		return false
	}
	x.newFlowJob(c, f).Message = cut("waits behind job " + x.s.Job().ID)
	return true
}

// runsKnownTo reports whether the blueprint has every phase that is still active, for the present state and behind
// nothing that is not done.
func (x *step) runsKnownTo(bp *blueprint.Blueprint, f *blueprint.Flow) bool {
	return !x.anyPhase(func(p *PhaseRun) bool {
		ph := bp.Phase(p.Name)
		return p.Status.Active() && (ph == nil || !bp.Has(ph, x.s.State) || !x.dependenciesDone(bp, ph, x.s.Job(), f))
	})
}

// retry begins failed phases again, with their data cleared (seed 003, "Asynchronous Example": "When it is retried,
// CycleCloud will clear the phase data for this resource"). Phases that run go on, under the new job. Where a failure leads
// to a state of its own, the flow begins again at its beginning (seed 001: "the execution phase is changed to Init").
func (x *step) retry(c Command) {
	bp := x.env.Blueprint
	running, last := x.s.Job(), x.toRetry()
	if bp == nil || last == nil || x.s.Target == "" {
		x.refuse(Conflict, "nothing was started yet, so there is nothing to retry", nil)
		return
	}
	all := c.Scope == "all"
	if c.Scope != "" && c.Scope != "failed" && !all {
		x.refuse(Invalid, "unknown scope "+c.Scope, []Violation{{"args.scope", `not one of "failed", "all"`}})
		return
	}
	f, ok := x.flowAgain(bp, last)
	if !ok {
		x.refuse(Conflict, "the kind's blueprint no longer has a flow to "+x.s.Target, nil)
		return
	}
	switch waits := running != nil && bp.Lifecycle.OnTargetChange == blueprint.Wait; {
	case waits && all && bp.Lifecycle.Rerun != blueprint.RerunAll: // a job that waits remembers its flow, and no scope
		x.refuse(Conflict, "job "+running.ID+" is running; retry all when it has ended", nil)
		return
	case waits:
		x.queue(c, f)
		return
	}
	if reason := x.mayNotRetry(bp, last, &f, all); reason != "" {
		x.refuse(Conflict, reason, nil)
		return
	}
	if running != nil {
		x.moveJob(running, job.Failed, x.failure()+"; job "+c.JobID+" retries it")
	}
	x.newFlowJob(c, f)
	x.all = all
	if !x.s.Separate && (!slices.Contains(f.Path, x.s.State) || bp.Lifecycle.Rerun == blueprint.RerunAll) {
		x.cancelAll(bp) // the changed blueprint's way no longer leads through this state
	}
	x.advance()
}

// toRetry is the last flow; one that waited in vain behind another, and never began, has left nothing to retry.
func (x *step) toRetry() *job.Ref {
	last, bp := x.s.FlowJob(), x.env.Blueprint
	if last != nil && last.State.Final() && last.StartedAt.IsZero() && bp != nil && bp.Lifecycle.OnTargetChange == blueprint.Wait {
		if begun := x.begunBefore(last); begun != nil {
			return begun
		}
	}
	return last
}

// flowAgain is the flow that a retry of the last one walks.
func (x *step) flowAgain(bp *blueprint.Blueprint, last *job.Ref) (blueprint.Flow, bool) {
	probe := job.Ref{Verb: last.Walks(), Target: x.s.Target}
	f := flowOf(bp, &x.s, &probe)
	return f, f.Verb != ""
}

// mayNotRetry says why there is nothing to retry now; empty: there is.
func (x *step) mayNotRetry(bp *blueprint.Blueprint, last *job.Ref, f *blueprint.Flow, all bool) string {
	running := x.s.Job()
	stopped := func(p *PhaseRun) bool { return (p.Status == Failed || p.Status == Canceled) && x.concerns(p, last) }
	switch {
	case running != nil && (running.Canceling || running.State == job.Pending):
		return "job " + running.ID + " is not yet past the calls that are being canceled"
	case running != nil && (!x.anyFailed(running) || x.s.Separate):
		return "job " + running.ID + " is running and no phase has failed"
	case x.s.State == x.s.Target && bp.Lifecycle.Rerun != blueprint.RerunAll:
		return "the resource is at its target " + x.s.Target
	case !all && running == nil && !x.anyPhase(stopped) && last.State != job.Failed && last.State != job.Canceled:
		return "no phase has failed"
	case x.s.Separate:
		return x.mayNotEach(bp, f.Verb)
	case !x.runsKnownTo(bp, f):
		return "the kind's blueprint has changed for a phase that is running; retry when it has ended"
	case all && x.anyPhase(func(p *PhaseRun) bool { return p.Status.Active() && x.concerns(p, last) }):
		return "phases of state " + x.s.State + " are still running; cancel the job, or retry all when they have ended"
	}
	return ""
}

// cancel ends a job, by default the one that runs: at once where no call is out, or when asked to interrupt; else when the
// calls that are out have answered, or their leases have ended. One that waits behind another is taken out at once.
func (x *step) cancel(c Command) {
	j := x.s.Job()
	if c.Job != "" {
		j = x.s.JobByID(c.Job)
	}
	if j == nil || j.State.Final() {
		reason := "no job is running"
		if c.Job != "" {
			reason = "job " + c.Job + " neither runs nor waits"
		}
		x.refuse(Conflict, reason, nil)
		return
	}
	id, message := j.ID, c.Message
	if message == "" {
		message = c.Verb + " was asked for by job " + c.JobID
	}
	queued := id != x.s.Job().ID
	switch {
	case queued:
	case c.Verb == VerbInterrupt:
		x.dropAll(true)
	default:
		x.cancelAll(x.env.Blueprint)
	}
	done := x.newJob(c, job.Succeeded, "", "")
	done.Message = "cancels job " + id
	j = x.s.JobByID(id)
	j.Message = cut(message)
	switch {
	case queued:
		x.moveJob(j, job.Canceled, "")
		x.unmark()
	case x.anyPhase(func(p *PhaseRun) bool { return p.Status == Canceling }):
		j.Canceling = true
	default:
		x.endJob(j, job.Canceled, "")
	}
}

// approve lets gated phases run: the one that is named, or all that wait for it.
func (x *step) approve(c Command) {
	var approved []string
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		if p.Status != Gated || c.Phase != "" && p.Name != c.Phase || x.s.Job() == nil || !x.concerns(p, x.s.Job()) {
			continue
		}
		if x.move(p, Approve) {
			approved = append(approved, p.Name)
		}
	}
	if len(approved) == 0 {
		reason := "no phase of this resource waits for approval"
		if c.Phase != "" {
			reason = "phase " + c.Phase + " does not wait for approval"
		}
		x.refuse(Conflict, reason, nil)
		return
	}
	x.newJob(c, job.Succeeded, "", "").Message = cut("approves " + strings.Join(approved, ", "))
	x.fx.More = true // the job's own blueprint hands them out
}
