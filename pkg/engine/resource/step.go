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
	case s.MinReader > ReaderVersion:
		x.note(NoteNewerVersion, "min_reader="+strconv.FormatUint(uint64(s.MinReader), 10))
		if in.Kind == OnCommand {
			x.refuse(Overloaded, "this resource was written by a newer version of Drover; a replica of that version will take the command", nil)
		}
	case in.Kind == OnCommand && in.Command != nil:
		x.command(*in.Command)
	case !s.Exists():
		x.note(NoteNothing, "the resource is gone")
	case in.Kind == OnResult && in.Result != nil:
		x.result(*in.Result)
	case in.Kind == OnDue:
		x.due()
	case in.Kind == OnContinue:
		x.cause = Cause{Kind: "continue"}
		x.advance()
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
		fx.Event, fx.More = nil, false
		if x.broken {
			fx.Polls, fx.NextPoll = nil, nil
		}
		return x.before, fx
	}
	x.s.PhaseFailed = x.anyFailed()
	x.s.UpdatedAt = x.at
	x.s.Revision++
	if x.s.MinReader == 0 {
		x.s.MinReader = ReaderVersion
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
// still follow from this state, nor the last flow, which a retry takes up again, nor the one that a pending flow may go on
// from.
func (x *step) trimJobs() {
	flow, from := "", ""
	if j := x.s.FlowJob(); j != nil {
		flow = j.ID
		if b := x.begunBefore(j); b != nil && j.State == job.Pending {
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
	if x.anyPhase(func(p *PhaseRun) bool { return p.Status == Canceling }) {
		x.note(NoteNothing, "calls of an earlier job are still out")
		return
	}
	if j.Canceling {
		x.dropAll(false)
		x.moveJob(j, job.Canceled, j.Message)
		x.s.DeletedAt = time.Time{}
		return
	}
	bp := x.env.Blueprint
	if bp == nil || bp.Digest != j.Blueprint {
		x.note(NoteNoBlueprint, "digest="+j.Blueprint)
		return
	}
	path := flowPath(bp, &x.s, j)
	if j.State == job.Pending {
		x.begin(bp, path, j)
	}
	entered := false
	if x.s.State != j.Target && !slices.Contains(path, x.s.State) {
		x.enter(bp, path, j, 0)
		entered = true
	}
	if x.s.State != j.Target && !x.broken {
		x.unblock(bp)
		if !entered && !x.broken && x.allDone(bp) {
			x.enter(bp, path, j, slices.Index(path, x.s.State)+1)
			if x.s.State != j.Target {
				x.unblock(bp)
			}
		}
	}
	switch {
	case x.broken:
	case x.s.State == j.Target:
		x.reach(bp, j)
	case x.allDone(bp):
		x.fx.More = true // a state with nothing to do is passed by an event of its own, so that listeners see it
	case x.failedAndIdle(bp):
		x.moveJob(j, job.Failed, x.failure())
		x.holdBack()
	default:
		x.handOut(bp, j)
	}
	if !x.dirty {
		x.note(NoteNothing, "no phase can be handed out now")
	}
}

// begin starts a job whose turn it is. Runs of phases that the blueprint no longer has are forgotten. If the job's way
// leads through the present state, its phases are set anew; where the job goes on from one to the same target (that target
// asked for again, a retry), only what failed or was canceled, and what depends on that.
func (x *step) begin(bp *blueprint.Blueprint, path []string, j *job.Ref) {
	x.moveJob(j, job.Running, "")
	x.s.Phases = slices.DeleteFunc(x.s.Phases, func(p PhaseRun) bool {
		return bp.Phase(p.Name) == nil && !p.Status.Active()
	})
	if x.s.State != j.Target && !slices.Contains(path, x.s.State) {
		return
	}
	from := x.begunBefore(j)
	goesOn := !x.all && from != nil && from.Target == j.Target
	x.again(bp, j, func(p *PhaseRun, ph *blueprint.Phase) bool {
		return p.Status == Failed || p.Status == Canceled || p.Status.Done() && (!goesOn || !x.dependenciesDone(bp, ph))
	})
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

// holdBack keeps what was never handed out because of policy drain for the next job: as a new attempt, so that no
// deadline runs meanwhile. Its data stays: it did not fail.
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
	for changed := true; changed && !x.broken; {
		changed = false
		for _, ph := range bp.In(x.s.State) {
			p := x.phase(bp, ph.Name)
			event := Retry
			switch {
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

// flowPath is the way of a job's flow: its own verb's; for deletion, that of the lifecycle's flow for it; for a retry,
// that of a flow to its target that passes the present state, if there is one.
func flowPath(bp *blueprint.Blueprint, s *State, j *job.Ref) []string {
	own := j.Verb
	if !s.DeletedAt.IsZero() {
		own = bp.Lifecycle.Delete
	}
	if f, ok := bp.Lifecycle.Flow(own); ok && f.Target == j.Target {
		return f.Path
	}
	for _, f := range bp.Lifecycle.Flows {
		if f.Target == j.Target && slices.Contains(f.Path, s.State) {
			return f.Path
		}
	}
	f, _ := bp.Lifecycle.FlowTo(j.Target)
	return f.Path
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

// unblock moves every phase on whose dependencies are done: to Waiting, or to Skipped by its constraint. A skipped one
// may free others, so it goes on until nothing changes.
func (x *step) unblock(bp *blueprint.Blueprint) {
	in := bp.In(x.s.State)
	for changed := true; changed && !x.broken; {
		changed = false
		for _, ph := range in {
			p := x.phase(bp, ph.Name)
			if p.Status != Blocked || !x.dependenciesDone(bp, ph) {
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
			case holds:
				x.move(p, Unblock)
			default:
				x.move(p, Skip)
			}
		}
	}
}

// dependenciesDone looks at the dependencies of the present state only: a phase of several states may depend on one
// that not all of them have.
func (x *step) dependenciesDone(bp *blueprint.Blueprint, ph *blueprint.Phase) bool {
	for _, name := range ph.DependsOn {
		if on := bp.Phase(name); on == nil || !slices.Contains(on.States, x.s.State) {
			continue
		}
		if p := x.s.Phase(name); p == nil || p.State != x.s.State || !p.Status.Done() {
			return false
		}
	}
	return true
}

func (x *step) allDone(bp *blueprint.Blueprint) bool {
	for _, ph := range bp.In(x.s.State) {
		if p := x.s.Phase(ph.Name); p == nil || !p.Status.Done() {
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
func (x *step) failedAndIdle(bp *blueprint.Blueprint) bool {
	if !x.anyFailed() {
		return false
	}
	return !x.anyPhase(func(p *PhaseRun) bool {
		if bp.Lifecycle.OnFailure == blueprint.Drain && p.Status == Waiting {
			return p.InFlight
		}
		return p.Status.Active()
	})
}

func (x *step) anyFailed() bool {
	return x.anyPhase(func(p *PhaseRun) bool { return p.Status == Failed && p.State == x.s.State })
}

// failure names the failed phases, for the job's message.
func (x *step) failure() string {
	var parts []string
	for i := range x.s.Phases {
		if p := &x.s.Phases[i]; p.Status == Failed && p.State == x.s.State {
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
func (x *step) handOut(bp *blueprint.Blueprint, j *job.Ref) {
	if bp.Lifecycle.OnFailure == blueprint.Drain && x.anyFailed() {
		return
	}
	for i := range bp.Phases {
		ph := &bp.Phases[i]
		p := x.s.Phase(ph.Name)
		if p == nil || p.Status != Waiting || p.InFlight || p.State != x.s.State {
			continue
		}
		if x.fx.Event != nil && x.fx.Event.Dispatch != nil {
			x.fx.More = true
			return
		}
		if !x.move(p, HandOut) {
			return
		}
		if p.Call == 0 {
			p.Attempt++
			p.Deadline = time.Time{}
			if ph.Timeout > 0 {
				p.Deadline = x.at.Add(ph.Timeout)
			}
		}
		p.Call++
		p.InFlight, p.JobID, p.Due, p.Since = true, j.ID, time.Time{}, x.at
		x.fx.Event = &Event{Dispatch: &Dispatch{Fence: x.fence(p), State: x.s.State, Deadline: p.Deadline}}
	}
}

func (x *step) fence(p *PhaseRun) Fence {
	return Fence{UID: x.s.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt, Call: p.Call}
}

// reach ends a job at its target. A marked resource that has reached the end of its deletion is gone.
func (x *step) reach(bp *blueprint.Blueprint, j *job.Ref) {
	x.moveJob(j, job.Succeeded, "")
	f, walks := bp.Lifecycle.Flow(bp.Lifecycle.Delete)
	undeployed := walks && f.Target == x.s.State
	x.s.WasDeployed = !undeployed
	if !x.s.DeletedAt.IsZero() && (undeployed || !walks) {
		x.s.Gone = true
	}
}

// cancelAll stops every phase of the present state: a call that is out becomes Canceling, until its answer or the
// lease's end; the rest is dropped at once.
func (x *step) cancelAll(bp *blueprint.Blueprint) {
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		polling := p.Status == Sleeping && !p.Retrying && slices.Contains(x.in.Polling, p.Name)
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
		case p.Status == Blocked || p.Status == Waiting || p.Status == Sleeping:
			x.drop(p)
		}
	}
}

// dropAll stops every phase at once; with force also those whose call is out. Their answers are refused from now on.
func (x *step) dropAll(force bool) {
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		if p.Status == Blocked || p.Status.Active() && (force || !p.InFlight) {
			x.drop(p)
		}
	}
}

func (x *step) drop(p *PhaseRun) {
	x.move(p, Drop)
	p.InFlight, p.Retrying, p.Due, p.Deadline, p.Call = false, false, time.Time{}, time.Time{}, 0
}
