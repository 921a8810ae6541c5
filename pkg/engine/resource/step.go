package resource

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
)

// Step is all that a resource can do. It is total: an input that means nothing now returns s unchanged, with a Note
// that says why. It is pure: s is not modified, and equal arguments give equal results.
func Step(s State, in Input, env Env) (State, Effects) {
	x := &step{before: s, s: s.clone(), in: in, env: env, at: in.At}
	if s.UpdatedAt.After(x.at) {
		x.at = s.UpdatedAt // time never runs backwards
	}
	switch {
	case s.MinReader > max(env.Reader, ReaderVersion):
		x.note(NoteNewerVersion, "min_reader="+strconv.FormatUint(uint64(s.MinReader), 10))
		if in.Kind == OnCommand {
			x.refuse(Overloaded, "this resource was written by a newer version of Drover; a replica of that version will take the command", nil)
		}
	case in.Kind == OnCommand && in.Command != nil:
		x.command(*in.Command)
	case in.Kind == OnParent && in.Parent != nil:
		x.parent(*in.Parent)
	case !s.Exists():
		x.note(NoteNothing, "the resource is gone")
	case in.Kind == OnResult && in.Result != nil:
		x.result(*in.Result)
	case in.Kind == OnDue:
		x.due()
	case in.Kind == OnContinue:
		x.cause = Cause{Kind: "continue"}
		x.advance()
	case in.Kind == OnChildren:
		x.cause = Cause{Kind: "children"}
		x.advance()
	case in.Kind == OnConflict:
		x.conflict(in.Conflict)
	case in.Kind == OnLost && in.Lost != nil:
		x.lost(*in.Lost)
	default:
		x.note(NoteIllegal, "an input of no known kind")
	}
	return x.finish()
}

// step is one run of Step: the state as it becomes, and what was found on the way.
type step struct {
	before State
	s      State
	in     Input
	env    Env
	at     time.Time
	fx     Effects
	cause  Cause
	jobID  string // job that the event belongs to
	all    bool   // a retry of scope all: what is completed in this state is begun again too
	dirty  bool   // something changed: an event must be recorded
	broken bool   // an illegal edge was met: nothing may be recorded
}

func (x *step) note(code NoteCode, of string) {
	x.fx.Notes = append(x.fx.Notes, Note{Code: code, Of: of})
}

// finish turns what was done into a state and its effects.
func (x *step) finish() (State, Effects) {
	if x.broken || !x.dirty {
		fx := x.fx
		fx.Event, fx.More, fx.Batch = nil, false, nil
		if x.broken {
			fx.Polls, fx.NextPoll, fx.Tell, fx.Recount = nil, nil, nil, time.Time{}
		}
		return x.before, fx
	}
	x.brood()
	if x.s.Separate {
		x.settle()
		x.transact()
	}
	x.s.PhaseFailed = x.anyPhase(func(p *PhaseRun) bool { return p.Status == Failed && (x.s.Separate || p.State == x.s.State) })
	x.s.UpdatedAt = x.at
	x.s.Revision++
	x.s.MinReader = ReaderFirst
	if x.env.Needs != nil {
		x.s.MinReader = x.env.Needs(&x.s)
	}
	x.trimJobs()
	if x.fx.Event == nil {
		x.fx.Event = &Event{}
	}
	x.fx.Event.From, x.fx.Event.To = x.before.State, x.s.State
	if x.jobID == "" {
		if j := x.s.FlowJob(); j != nil {
			x.jobID = j.ID
		}
	}
	x.fx.Event.JobID = x.jobID
	x.cause.Traceparent = x.in.Traceparent
	x.fx.Event.Cause = x.cause
	return x.s, x.fx
}

// trimJobs forgets the jobs that ended first, over FinishedJobsMax; never one that ended in this step, whose record must
// still follow from this state, nor the last flow, which a retry takes up again, nor, where that one has not begun, the
// one before it, whose phases these are: the next flow may go on from it.
func (x *step) trimJobs() {
	flow, from := "", ""
	if j := x.s.FlowJob(); j != nil {
		flow = j.ID
		if b := x.begunBefore(j); b != nil && j.StartedAt.IsZero() {
			from = b.ID
		}
	}
	for {
		ended, oldest := 0, -1
		for i := range x.s.Jobs {
			j := &x.s.Jobs[i]
			if !j.State.Final() {
				continue
			}
			ended++
			was := x.before.JobByID(j.ID)
			if j.ID != flow && j.ID != from && was != nil && was.State.Final() && (oldest < 0 || j.EndedAt.Before(x.s.Jobs[oldest].EndedAt)) {
				oldest = i
			}
		}
		if ended <= FinishedJobsMax || oldest < 0 {
			return
		}
		x.s.Jobs = slices.Delete(x.s.Jobs, oldest, oldest+1)
	}
}

// move takes one edge of the phase table.
func (x *step) move(p *PhaseRun, event PhaseEvent) bool {
	to, ok := nextStatus(p.Status, event)
	if !ok {
		x.note(NoteIllegal, "phase="+p.Name+" status="+p.Status.String()+" event="+event.String())
		x.broken = true
		return false
	}
	if to != p.Status {
		p.Since = x.at
	}
	p.Status = to
	// Kept for good, and at once: the next job may begin in this very step (seed 000: "one Transaction with success=True
	// or state DE,UP,PU,RE"; a decom is a Transaction too).
	x.s.SucceededOnce = x.s.SucceededOnce || to == Completed || to == Undone
	x.dirty = true
	return true
}

// moveJob takes one edge of the job table.
func (x *step) moveJob(j *job.Ref, to job.State, message string) {
	if !job.May(j.State, to) {
		x.note(NoteIllegal, "job="+j.ID+" from="+j.State.String()+" to="+to.String())
		x.broken = true
		return
	}
	j.State = to
	if message != "" {
		j.Message = cut(message)
	}
	switch {
	case to == job.Running:
		j.StartedAt = x.at
	case to.Final():
		j.EndedAt, j.Canceling = x.at, false
	}
	x.dirty = true
}

// cut bounds a message.
func cut(message string) string {
	if len(message) <= MessageBytesMax {
		return message
	}
	return strings.ToValidUTF8(message[:MessageBytesMax-3], "") + "..."
}

// advance drives the job as far as one event may show: at most one change of the lifecycle state and one hand-out.
func (x *step) advance() {
	j := x.s.Job()
	if j == nil || j.Blueprint == "" {
		x.note(NoteNothing, "no job is running")
		return
	}
	x.haltChildren()
	if x.anyPhase(func(p *PhaseRun) bool { return p.Status == Canceling }) {
		x.note(NoteNothing, "calls of an earlier job are still out")
		return
	}
	if x.jobID == "" {
		x.jobID = j.ID
	}
	if j.Canceling {
		x.dropAll(false)
		x.endJob(j, job.Canceled, j.Message)
		return
	}
	bp := x.env.Blueprint
	if bp == nil || bp.Digest != j.Blueprint {
		x.note(NoteNoBlueprint, "digest="+j.Blueprint)
		return
	}
	begun := j.State == job.Pending
	if begun && !x.begin(bp, j) {
		return
	}
	f := flowOf(bp, &x.s, j)
	if begun && x.s.Separate && len(f.Path) > 1 && !x.allDone(bp, j) {
		x.fx.More = true // what is wanted is an event of its own (Pending_Update), before it is carried out
		return
	}
	x.tend(bp, j)
	if x.s.Separate {
		x.unblock(bp, j, &f)
	} else {
		x.walk(bp, j, &f)
	}
	switch {
	case x.broken:
	case !x.s.Separate && x.s.State == j.Target || x.s.Separate && x.allDone(bp, j):
		x.reach(bp, j, &f)
	case x.allDone(bp, j):
		x.fx.More = true // a state with nothing to do is passed by an event of its own, so that listeners see it
	case x.failedAndIdle(bp, j):
		x.endJob(j, job.Failed, x.failure())
	default:
		x.handOut(bp, j, &f)
	}
	if !x.dirty {
		x.recount()
	}
	if !x.dirty {
		x.note(NoteNothing, "no phase can be handed out now")
	}
}

// walk moves the resource to the next state of the path where the present one is done, and frees the phases there whose
// turn has come.
func (x *step) walk(bp *blueprint.Blueprint, j *job.Ref, f *blueprint.Flow) {
	entered := false
	if x.s.State != j.Target && !slices.Contains(f.Path, x.s.State) {
		x.enter(bp, f.Path, j, 0)
		entered = true
	}
	if x.s.State == j.Target || x.broken {
		return
	}
	x.unblock(bp, j, f)
	if !entered && !x.broken && x.allDone(bp, j) {
		x.enter(bp, f.Path, j, slices.Index(f.Path, x.s.State)+1)
		if x.s.State != j.Target {
			x.unblock(bp, j, f)
		}
	}
}

// endJob ends a job short of its target, and leads the resource where its flow says. What waits behind it is next.
func (x *step) endJob(j *job.Ref, to job.State, message string) {
	id := j.ID
	x.moveJob(j, to, message)
	switch {
	case to == job.Canceled:
		x.unmark()
	case x.s.Separate:
		x.dropAll(false) // each begins anew from the state that it is in
	default:
		x.holdBack()
	}
	j = x.s.JobByID(id)
	if bp := x.env.Blueprint; bp != nil && !x.s.Separate && !j.StartedAt.IsZero() {
		if f := flowOf(bp, &x.s, j); f.Failure != "" && slices.Contains(f.Path, x.s.State) {
			x.dropAll(false)
			x.s.State = f.Failure
		}
	}
	x.next()
}

// next asks for another step where a job waits: it may have pinned another blueprint.
func (x *step) next() {
	if x.s.Job() != nil {
		x.fx.More = true
	}
}

// unmark takes the mark of deletion away where no job deletes any more: a deletion that was canceled is no deletion. The
// mark of a child is its parent's.
func (x *step) unmark() {
	if x.s.Parent.Name == "" && !slices.ContainsFunc(x.s.Jobs, func(j job.Ref) bool { return j.Verb == VerbDelete && !j.State.Final() }) {
		x.s.DeletedAt = time.Time{}
	}
}

// begin starts a job whose turn it is. It reports whether the job began: where it waited behind another, that one may have
// led to where it cannot start.
func (x *step) begin(bp *blueprint.Blueprint, j *job.Ref) bool {
	if lc := &bp.Lifecycle; lc.ByMark && !x.s.DeletedAt.IsZero() && j.Walks() != lc.Delete {
		if f, ok := lc.Flow(lc.Delete); ok {
			j.Flow, j.Target = f.Verb, f.Target
		}
	}
	f := flowOf(bp, &x.s, j)
	if x.unchanged(bp, &f) {
		x.moveJob(j, job.Succeeded, "unchanged")
		x.next()
		return false
	}
	if reason := x.waitedInVain(bp, j, &f); reason != "" {
		x.endJob(j, job.Failed, reason)
		return false
	}
	if from := x.begunBefore(j); bp.Lifecycle.OnTargetChange == blueprint.Wait &&
		(from == nil || bp.Lifecycle.Rerun == blueprint.RerunAll || from.Target != j.Target || !slices.Contains(f.Path, x.s.State) || !x.runsKnownTo(bp, &f)) {
		x.dropAll(false) // what the job before held back has no place in this one
	}
	x.moveJob(j, job.Running, "")
	j.Message, j.Generation = "", x.s.Generation
	x.s.Target = j.Target
	x.s.Phases = slices.DeleteFunc(x.s.Phases, func(p PhaseRun) bool {
		return bp.Phase(p.Name) == nil && !p.Status.Active()
	})
	if x.s.Separate = bp.Lifecycle.Walk == blueprint.Each; x.s.Separate {
		x.beginEach(bp, j, &f)
		return true
	}
	x.tellOfThePast(&f)
	x.beginTogether(bp, j, &f)
	return true
}

// unchanged reports whether a flow has nothing to do: the resource is at its target, with the spec that it has now.
func (x *step) unchanged(bp *blueprint.Blueprint, f *blueprint.Flow) bool {
	lc := &bp.Lifecycle
	return lc.SkipUnchanged && (f.Verb == lc.OnCreate || f.Verb == lc.OnChange) && x.s.DeletedAt.IsZero() &&
		x.s.State == f.Target && x.s.ObservedGeneration == x.s.Generation
}

// waitedInVain says why a job that waited behind another cannot start from where that one led; empty: it can.
func (x *step) waitedInVain(bp *blueprint.Blueprint, j *job.Ref, f *blueprint.Flow) string {
	switch {
	case bp.Lifecycle.OnTargetChange != blueprint.Wait, j.Verb == VerbDelete && x.nothingToUndo(bp, f):
		return ""
	case bp.Lifecycle.Walk == blueprint.Each:
		return x.mayNotEach(bp, f.Verb)
	case j.Verb == VerbRetry || j.Verb == VerbDelete:
		return ""
	}
	return x.mayNot(bp, f.Verb)
}

// beginTogether: runs of phases that the blueprint no longer has are forgotten. If the job's way leads through the present
// state, its phases are set anew (RerunAll: it begins at the beginning); where the job goes on from one to the same target (that target asked for again, a
// retry), only what failed or was canceled, and what depends on that.
func (x *step) beginTogether(bp *blueprint.Blueprint, j *job.Ref, f *blueprint.Flow) {
	if bp.Lifecycle.Rerun == blueprint.RerunAll {
		x.s.State = "" // walk enters the first state of the path
		return
	}
	if x.s.State != j.Target && !slices.Contains(f.Path, x.s.State) {
		return
	}
	from := x.begunBefore(j)
	goesOn := !x.all && from != nil && from.Target == j.Target
	x.again(bp, j, func(p *PhaseRun, ph *blueprint.Phase) bool {
		rests := p.Status.Done() || p.Status == Gated
		return p.Status == Failed || p.Status == Canceled || rests && (!goesOn || !x.dependenciesDone(bp, ph, j, f))
	})
}

// tellOfThePast sets what executors are told of earlier deployments (seed 000, "Service Instance was_deployed Flag").
func (x *step) tellOfThePast(f *blueprint.Flow) {
	switch f.WasDeployed {
	case blueprint.WasNot:
		x.s.WasDeployed = false
	case blueprint.WasIndeed:
		x.s.WasDeployed = true
	case blueprint.ByItsPast:
		x.s.WasDeployed = x.s.SucceededOnce
	case blueprint.DontChange:
	}
}

// begunBefore returns the newest flow job before j that has begun: the one that the phases of the present state are of.
func (x *step) begunBefore(j *job.Ref) *job.Ref {
	for i := len(x.s.Jobs) - 1; i >= 0; i-- {
		if b := &x.s.Jobs[i]; b.ID != j.ID && b.Blueprint != "" && !b.StartedAt.IsZero() {
			return b
		}
	}
	return nil
}

// holdBack keeps what is not handed out because of policy drain for the next job: as a new attempt, so that no deadline
// runs meanwhile. Its data stays: it did not fail.
func (x *step) holdBack() {
	for i := range x.s.Phases {
		if p := &x.s.Phases[i]; p.Status == Waiting && !p.InFlight {
			p.Call, p.Deadline = 0, time.Time{}
		}
	}
}

// again sets the phases of the present state anew that are asked for, and those that the state did not have yet. One
// that is set anew may call for others, so it goes on until nothing changes.
func (x *step) again(bp *blueprint.Blueprint, j *job.Ref, which func(*PhaseRun, *blueprint.Phase) bool) {
	f := flowOf(bp, &x.s, j)
	for changed := true; changed && !x.broken; {
		changed = false
		for _, ph := range bp.In(x.s.State) {
			p := x.phase(bp, ph.Name)
			event := Retry
			switch {
			case p.Status == Waiting && !p.InFlight && !x.dependenciesDone(bp, ph, j, &f):
				x.drop(p) // it was held back, and what it depends on is begun again
			case p.Status.Active():
				continue
			case p.Status == NoStatus || p.State != x.s.State:
				event = Enter
			case !which(p, ph):
				continue
			}
			x.move(p, event)
			x.anew(p, j)
			changed = true
		}
	}
}

// flowOf is the flow that a job walks: its own, or, where the blueprint has changed, one to its target that passes the
// present state, if there is one.
func flowOf(bp *blueprint.Blueprint, s *State, j *job.Ref) blueprint.Flow {
	if f, ok := bp.Lifecycle.Flow(j.Walks()); ok && f.Target == j.Target {
		return f
	}
	for _, f := range bp.Lifecycle.Flows {
		if f.Target == j.Target && slices.Contains(f.Path, s.State) {
			return f
		}
	}
	f, _ := bp.Lifecycle.FlowTo(j.Target)
	return f
}

// enter moves the resource to the i-th state of the path, or to the target behind its end, and sets the phases of that
// state anew (design.md section 3: "entering a state sets its phases anew for this state and job").
func (x *step) enter(bp *blueprint.Blueprint, path []string, j *job.Ref, i int) {
	x.dirty = true
	if i >= len(path) {
		x.s.State = j.Target
		return
	}
	x.s.State = path[i]
	for _, ph := range bp.In(path[i]) {
		p := x.phase(bp, ph.Name)
		if !x.move(p, Enter) {
			return
		}
		x.anew(p, j)
	}
}

// anew clears what belongs to an earlier entry or attempt. Attempt stays: fences must not repeat.
func (x *step) anew(p *PhaseRun, j *job.Ref) {
	*p = PhaseRun{Name: p.Name, Status: p.Status, State: x.s.State, JobID: j.ID, Attempt: p.Attempt, Since: x.at}
}

// phase returns the run of a phase, making it in the blueprint's order where it is missing.
func (x *step) phase(bp *blueprint.Blueprint, name string) *PhaseRun {
	if p := x.s.Phase(name); p != nil {
		return p
	}
	at := 0
	for i := range bp.Phases {
		if bp.Phases[i].Name == name {
			break
		}
		if at < len(x.s.Phases) && x.s.Phases[at].Name == bp.Phases[i].Name {
			at++
		}
	}
	x.s.Phases = slices.Insert(x.s.Phases, at, PhaseRun{Name: name})
	return &x.s.Phases[at]
}

// unblock moves every phase on whose turn has come: to Waiting, to Gated where a person must approve, or to Skipped by
// its constraint. A skipped one may free others, so it goes on until nothing changes.
func (x *step) unblock(bp *blueprint.Blueprint, j *job.Ref, f *blueprint.Flow) {
	in := bp.In(x.s.State)
	for changed := true; changed && !x.broken; {
		changed = false
		for _, ph := range in {
			if x.s.Separate && x.s.Phase(ph.Name) == nil {
				continue
			}
			p := x.phase(bp, ph.Name)
			if p.Status != Blocked || !x.concerns(p, j) || !x.dependenciesDone(bp, ph, j, f) {
				continue
			}
			changed = true
			holds, err := true, error(nil)
			if ph.When != "" && x.env.When != nil {
				holds, err = x.env.When(ph.When, &x.s)
			}
			switch {
			case err != nil:
				x.move(p, Fail)
				p.Message = cut("when: " + err.Error())
			case !holds:
				x.move(p, Skip)
			case ph.Gated() && !f.Undo:
				x.move(p, Gate)
			default:
				x.move(p, Unblock)
			}
		}
	}
}

// concerns reports whether a phase is part of what the job drives now.
func (x *step) concerns(p *PhaseRun, j *job.Ref) bool {
	if x.s.Separate {
		return j == nil || p.JobID == j.ID
	}
	return p.State == x.s.State
}

// dependenciesDone looks at the dependencies of the present state only: a phase of several states may depend on one
// that not all of them have.
func (x *step) dependenciesDone(bp *blueprint.Blueprint, ph *blueprint.Phase, j *job.Ref, f *blueprint.Flow) bool {
	i := slices.IndexFunc(bp.Phases, func(o blueprint.Phase) bool { return o.Name == ph.Name })
	for _, name := range bp.Before(i, f) {
		if on := bp.Phase(name); on == nil || !bp.Has(on, x.s.State) {
			continue
		}
		p := x.s.Phase(name)
		if x.s.Separate && (p == nil || !x.concerns(p, j)) {
			continue // it has no part in this flow
		}
		if p == nil || !x.concerns(p, j) || !p.Status.Done() {
			return false
		}
	}
	return true
}

func (x *step) allDone(bp *blueprint.Blueprint, j *job.Ref) bool {
	for _, ph := range bp.In(x.s.State) {
		p := x.s.Phase(ph.Name)
		if x.s.Separate && (p == nil || !x.concerns(p, j)) {
			continue
		}
		if p == nil || !p.Status.Done() {
			return false
		}
	}
	return true
}

func (x *step) anyPhase(is func(*PhaseRun) bool) bool {
	for i := range x.s.Phases {
		if is(&x.s.Phases[i]) {
			return true
		}
	}
	return false
}

// failedAndIdle reports whether a phase failed and nothing else will happen by itself. Under policy drain, what was not
// yet handed out does not count (facts/landscaper.md A3: any B triggers nothing more, the end waits for C).
func (x *step) failedAndIdle(bp *blueprint.Blueprint, j *job.Ref) bool {
	if !x.anyFailed(j) {
		return false
	}
	return !x.anyPhase(func(p *PhaseRun) bool {
		if bp.Lifecycle.OnFailure == blueprint.Drain && p.Status == Waiting {
			return p.InFlight
		}
		return p.Status.Active()
	})
}

func (x *step) anyFailed(j *job.Ref) bool {
	return x.anyPhase(func(p *PhaseRun) bool { return p.Status == Failed && x.concerns(p, j) })
}

// failure names the failed phases, for the job's message.
func (x *step) failure() string {
	j := x.s.Job()
	var parts []string
	for i := range x.s.Phases {
		if p := &x.s.Phases[i]; p.Status == Failed && x.concerns(p, j) {
			part := "phase " + p.Name + " failed"
			if p.Message != "" {
				part += ": " + p.Message
			}
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "; ")
}

// handOut dispatches the first phase that waits, in the blueprint's order: one hand-out an event (design.md section 4).
func (x *step) handOut(bp *blueprint.Blueprint, j *job.Ref, f *blueprint.Flow) {
	if bp.Lifecycle.OnFailure == blueprint.Drain && x.anyFailed(j) {
		x.holdBack()
		return
	}
	for i := range bp.Phases {
		ph := &bp.Phases[i]
		p := x.s.Phase(ph.Name)
		if p == nil || p.Status != Waiting || p.InFlight || !x.concerns(p, j) {
			continue
		}
		if ph.Children != nil {
			x.beginChildren(p, ph, j, f)
			continue
		}
		if x.fx.Event != nil && x.fx.Event.Dispatch != nil {
			x.fx.More = true
			return
		}
		if !x.move(p, HandOut) {
			return
		}
		if x.s.Separate {
			p.State = f.Path[len(f.Path)-1]
		}
		if p.Call == 0 {
			p.Attempt++
			p.Deadline = time.Time{}
			if ph.Timeout > 0 {
				p.Deadline = x.at.Add(ph.Timeout)
			}
		}
		p.Call++
		p.InFlight, p.JobID, p.Due, p.Since, p.Undo = true, j.ID, time.Time{}, x.at, f.Undo
		p.Callback = ph.CallsBack(f.Undo)
		x.fx.Event = &Event{Dispatch: &Dispatch{Fence: x.fence(p), State: p.State, Deadline: p.Deadline}}
	}
}

func (x *step) fence(p *PhaseRun) Fence {
	return Fence{UID: x.s.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt, Call: p.Call}
}

// reach ends a job at its target. A marked resource that has reached the end of its deletion is gone, and with it the jobs
// that still wait.
func (x *step) reach(bp *blueprint.Blueprint, j *job.Ref, f *blueprint.Flow) {
	id := j.ID
	if d := &bp.Lifecycle; !x.s.DeletedAt.IsZero() && j.Walks() == d.Delete && x.hasChildren() {
		x.endJob(j, job.Failed, "children are left, and no phase of the deletion removes them")
		return
	}
	x.moveJob(j, job.Succeeded, "")
	deletion, walks := bp.Lifecycle.Flow(bp.Lifecycle.Delete)
	undeployed := walks && deletion.Target == f.Target
	x.s.ObservedGeneration = x.s.JobByID(id).Generation
	if undeployed {
		x.s.ObservedGeneration = 0
	}
	if f.WasDeployed == blueprint.DontChange {
		x.s.WasDeployed = !undeployed
	}
	if !x.s.DeletedAt.IsZero() && (undeployed || !walks) {
		x.s.Gone = true
		for i := range x.s.Jobs {
			if w := &x.s.Jobs[i]; !w.State.Final() {
				to := job.Canceled
				if w.Verb == VerbDelete {
					to = job.Succeeded
				}
				x.moveJob(w, to, "job "+id+" has deleted the resource")
			}
		}
	}
	x.next()
}

// cancelAll stops every phase of the present state: a call that is out becomes Canceling, until its answer or the
// lease's end; the rest is dropped at once.
func (x *step) cancelAll(bp *blueprint.Blueprint) {
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		polling := p.Status == Sleeping && !p.Retrying && (p.Callback || slices.Contains(x.in.Polling, p.Name))
		switch {
		case p.Status == Canceling:
		case p.InFlight || polling:
			lease := blueprint.LeaseDefault
			if bp != nil {
				if ph := bp.Phase(p.Name); ph != nil {
					lease = ph.CancelLease()
				}
			}
			x.move(p, Cancel)
			p.InFlight, p.Due, p.Deadline = true, x.at.Add(lease), time.Time{}
		case p.Status == Blocked || p.Status == Waiting || p.Status == Sleeping || p.Status == Gated:
			x.drop(p)
		}
	}
}

// dropAll stops every phase at once; with force also those whose call is out. Their answers are refused from now on.
func (x *step) dropAll(force bool) {
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		if p.Status == Blocked || p.Status == Gated || p.Status.Active() && (force || !p.InFlight) {
			x.drop(p)
		}
	}
}

func (x *step) drop(p *PhaseRun) {
	x.move(p, Drop)
	if p.Children {
		x.tell(Stop, &job.Ref{ID: p.JobID}, x.family().Begun(false, TellMax), "")
	}
	p.InFlight, p.Retrying, p.Children, p.Due, p.Deadline, p.Call = false, false, false, time.Time{}, time.Time{}, 0
}
