package resource

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
)

// Limits of one step of a parent. What is left over is the next step's.
const (
	BatchMax = 400 // children in one batch with the parent's event
	TellMax  = 256 // children told at once
)

// RecountEvery is how old a parent's event is before another one says no more than how its children stand: thousands may
// finish at once.
const RecountEvery = time.Second

// family is what is known of the children; empty where there are none.
func (x *step) family() *children.Family {
	if x.env.Children == nil {
		return children.New()
	}
	return x.env.Children
}

// beginChildren begins a phase that the engine itself carries out. Nothing of it goes to WORK.
func (x *step) beginChildren(p *PhaseRun, ph *blueprint.Phase, j *job.Ref, f *blueprint.Flow) {
	if !x.move(p, HandOut) || !x.move(p, Report) {
		return
	}
	if x.s.Separate {
		p.State = f.Path[len(f.Path)-1]
	}
	p.Deadline = time.Time{}
	if ph.Timeout > 0 {
		p.Deadline = x.at.Add(ph.Timeout)
	}
	p.Attempt++
	p.Call = 1
	p.InFlight, p.Children, p.Undo, p.JobID, p.Due = true, true, f.Undo, j.ID, time.Time{}
	x.s.Children.Cursor, x.s.Children.Applied = 0, false
	x.fx.More = true
}

// tend goes on with the phases on children.
func (x *step) tend(bp *blueprint.Blueprint, j *job.Ref) {
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		ph := bp.Phase(p.Name)
		if !p.Children || p.Status != Running || ph == nil || ph.Children == nil || !x.concerns(p, j) {
			continue
		}
		if x.tendOne(p, ph, j) {
			if x.move(p, completion(p)) {
				x.rest(p)
				x.fx.More = true
			}
		}
	}
}

// tendOne does the next part of what a phase has to do with children. It reports whether the phase is complete.
func (x *step) tendOne(p *PhaseRun, ph *blueprint.Phase, j *job.Ref) bool {
	do := ph.Children.Do
	if do == blueprint.DoAll {
		switch {
		case p.Undo:
			do = blueprint.DoDelete
		case x.s.Children.Applied:
			do = blueprint.DoRun
		default:
			if x.applyChildren(p, ph, j) {
				x.fx.More = true
			}
			return false
		}
	}
	switch do {
	case blueprint.DoApply:
		return x.applyChildren(p, ph, j)
	case blueprint.DoRun:
		return x.runChildren(p, ph, j)
	case blueprint.DoMark:
		return x.markChildren(j)
	case blueprint.DoAll, blueprint.DoDelete:
	}
	return x.deleteChildren(p, ph, j)
}

// applyChildren creates and updates the children that the spec defines, BatchMax at a time, and then marks those deleted
// that it no longer defines (seed 001, "Phase Init": "Deploy item resources which have no counterpart in the execution
// spec are orphaned. They will be cleaned up").
func (x *step) applyChildren(p *PhaseRun, ph *blueprint.Phase, j *job.Ref) bool {
	if x.env.Items == nil {
		x.note(NoteNothing, "the spec is not at hand")
		return false
	}
	items, err := x.env.Items(ph)
	switch {
	case err != nil:
		x.fail(p, err.Error())
		return false
	case len(items) > children.ItemsMax:
		x.note(NoteLimit, "phase="+p.Name)
		x.fail(p, strconv.Itoa(len(items))+" items are over the limit of "+strconv.Itoa(children.ItemsMax))
		return false
	}
	family, brood := x.family(), &x.s.Children
	i := int(brood.Cursor)
	for ; i < len(items) && len(x.fx.Batch) < BatchMax; i++ {
		it := &items[i]
		c, ok := family.Get(it.Name)
		if ok && c.Is(it, uint32(i)) {
			continue
		}
		if ok && c.Kind != it.Kind && len(x.fx.Batch) > 0 {
			break // what was found before goes first
		}
		if ok && c.Kind != it.Kind { // another resource: this one would be nobody's
			x.fail(p, "item "+it.Name+" is there, of kind "+c.Kind+", and cannot become one of kind "+it.Kind+" before a job without it has deleted it")
			return false
		}
		x.fx.Batch = append(x.fx.Batch, FromParent{
			Ask: Adopt, Key: Key{x.s.Project, it.Kind, ChildName(x.s.Name, it.Name)}, Parent: x.parentOf(it, i), Item: *it, JobID: j.ID,
		})
	}
	if i != int(brood.Cursor) || len(x.fx.Batch) > 0 {
		brood.Cursor = uint32(i)
		x.dirty, x.fx.More = true, true
		return false
	}
	if orphans := family.Orphans(items, BatchMax); len(orphans) > 0 {
		x.mark(j, orphans)
		return false
	}
	brood.Items, brood.Applied = uint32(len(items)), true
	x.dirty = true
	return true
}

// conflict fails the phase that was to make a child that belongs to another parent.
func (x *step) conflict(reason string) {
	x.cause = Cause{Kind: "conflict", Message: cut(reason)}
	for i := range x.s.Phases {
		if p := &x.s.Phases[i]; p.Children && p.Status == Running && !x.s.Children.Applied {
			x.cause.Phase = p.Name
			x.fail(p, reason)
			x.advance()
			return
		}
	}
	x.note(NoteNothing, "no phase makes children")
}

func (x *step) parentOf(it *children.Item, i int) Parent {
	root := x.s.Parent.RootKind
	if root == "" {
		root = x.s.Kind
	}
	return Parent{
		Kind: x.s.Kind, Name: x.s.Name, UID: x.s.UID, RootKind: root, Item: it.Name, Index: uint32(i), DependsOn: it.DependsOn,
		Revision: x.before.Revision, OnChangeOnly: it.OnChangeOnly,
	}
}

// tell asks children for something; it follows from the committed state, and may be told again. To end a job means the one
// that the child has: an ask that comes late must not end a newer one.
func (x *step) tell(ask Ask, j *job.Ref, to []children.Child, verb string) {
	for i := range to {
		p := x.asked(ask, j, &to[i])
		if p.Verb = verb; ask == Halt || ask == Stop {
			p.JobID = to[i].Job
		}
		x.fx.Tell = append(x.fx.Tell, p)
	}
}

// triggerChildren tells children to begin: with the phase's verb, or where the phase manages a service with the parent's own (seed
// 000, ServiceManagementPhase: "Manages create, update and decom").
func (x *step) triggerChildren(j *job.Ref, to []children.Child, ph *blueprint.Phase) {
	verb, follow := ph.Children.Verb, false
	if verb == "" && ph.Children.Template != "" {
		verb, follow = j.Walks(), true
	}
	from := len(x.fx.Tell)
	x.tell(Trigger, j, to, verb)
	for i := from; i < len(x.fx.Tell); i++ {
		x.fx.Tell[i].Follow = follow
	}
}

// mark marks children deleted, in one batch with the parent's event.
func (x *step) mark(j *job.Ref, which []children.Child) {
	for i := range which {
		x.fx.Batch = append(x.fx.Batch, x.asked(Mark, j, &which[i]))
	}
	x.dirty, x.fx.More = true, true
}

func (x *step) asked(ask Ask, j *job.Ref, c *children.Child) FromParent {
	return FromParent{
		Ask: ask, Key: Key{x.s.Project, c.Kind, c.Name}, JobID: j.ID,
		Parent: Parent{Kind: x.s.Kind, Name: x.s.Name, UID: x.s.UID, Item: c.Item, Revision: x.before.Revision},
	}
}

// runChildren hands the job down as the dependencies allow (seed 001, "Phase Progressing"): any in class B, and nothing
// more is triggered; the end waits for class C. What is orphaned is deleted first, and must be gone before anything is
// triggered (facts/landscaper.md A2; in reverse of the dependencies that were recorded, where upstream's order is
// arbitrary).
func (x *step) runChildren(p *PhaseRun, ph *blueprint.Phase, j *job.Ref) bool {
	family := x.family()
	if family.Marked().Total > 0 {
		x.sweepChildren(p, ph, j, true)
		return false
	}
	if kept := family.Kept(); kept.Succeeded == kept.Total && kept.Total == int(x.s.Children.Items) {
		return true
	}
	x.sweepChildren(p, ph, j, false)
	return false
}

// sweepChildren triggers what may begin, of those that are marked or of the others, and fails the phase where no more can.
func (x *step) sweepChildren(p *PhaseRun, ph *blueprint.Phase, j *job.Ref, marked bool) {
	family := x.family()
	counts, others := family.Kept(), family.Marked()
	missing := int(x.s.Children.Items) - counts.Total // seed 001, class B: facts/landscaper.md A3, "DeployItem missing"
	if marked {
		counts, others, missing = others, counts, 0
	}
	running := counts.Running + others.Running
	at := running + counts.Told + others.Told // one that was told may have begun: the phase must not end before it
	if counts.Foreign+others.Foreign > 0 {
		x.tell(Stop, j, family.Begun(true, TellMax), "")
	}
	switch {
	case (counts.Failed > 0 || missing > 0) && at > 0:
	case counts.Failed > 0:
		x.fail(p, failures(family, counts.Failed))
	case missing > 0:
		x.fail(p, strconv.Itoa(missing)+" children are missing")
	case running == 0 && counts.Runnable == 0 && counts.Waiting > 0:
		x.fail(p, strconv.Itoa(counts.Waiting)+" children could not be started: they wait for each other, or for what is not there")
	default:
		x.triggerChildren(j, family.Runnable(marked, TellMax), ph)
	}
}

// failures names the children that failed: a status that does not is of no use (facts/landscaper.md A10, #1201).
func failures(family *children.Family, n int) string {
	var names []string
	for _, c := range family.Failures(5) {
		names = append(names, c.Item+" "+c.JobState.String())
	}
	text := strings.Join(names, ", ")
	if more := n - len(names); more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	return strconv.Itoa(n) + " children failed: " + text
}

// markChildren marks all children deleted (seed 001, "Phase InitDelete").
func (x *step) markChildren(j *job.Ref) bool {
	family := x.family()
	if family.Unmarked() == 0 {
		return true
	}
	x.mark(j, family.ToMark(BatchMax))
	return false
}

// deleteChildren hands the job down in reverse of the dependencies, until none is left (seed 001, "Phase Deleting").
func (x *step) deleteChildren(p *PhaseRun, ph *blueprint.Phase, j *job.Ref) bool {
	family := x.family()
	switch {
	case family.Len() == 0:
		x.s.Children = Brood{}
		return true
	case x.markChildren(j):
		x.sweepChildren(p, ph, j, true)
	}
	return false
}

// haltChildren ends a canceled phase on children when none of them is at work any more.
func (x *step) haltChildren() {
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		if p.Status != Canceling || !p.Children {
			continue
		}
		family := x.family()
		if family.Kept().Running+family.Marked().Running > 0 {
			x.tell(Halt, &job.Ref{ID: p.JobID}, family.Begun(false, TellMax), "")
			continue
		}
		if x.move(p, End) {
			x.rest(p)
		}
	}
}

// recount has the parent say how its children stand, where that has changed: in this step, or asks for one when its last
// event is old enough.
func (x *step) recount() {
	if !x.anyPhase(func(p *PhaseRun) bool { return p.Children && p.Status == Running }) {
		return
	}
	said := x.s.Children
	x.brood()
	changed := x.s.Children != said
	x.s.Children = said
	at := x.before.UpdatedAt.Add(RecountEvery)
	switch {
	case !changed:
	case x.at.Before(at):
		x.fx.Recount = at
	default:
		x.cause.Kind, x.dirty = "children", true
	}
}

// brood counts the children as they are, and names those that failed while the others drain.
func (x *step) brood() {
	at := func(p PhaseRun) bool { return p.Children && !p.Status.Done() }
	if x.env.Children == nil || !slices.ContainsFunc(x.s.Phases, at) && !slices.ContainsFunc(x.before.Phases, at) {
		return // what was said when the last phase on children ended is still so
	}
	kept, marked := x.env.Children.Kept(), x.env.Children.Marked()
	b := &x.s.Children
	b.Waiting, b.Runnable, b.Running = uint32(kept.Waiting), uint32(kept.Runnable), uint32(kept.Running)
	b.Failed, b.Succeeded, b.Marked = uint32(kept.Failed), uint32(kept.Succeeded), uint32(marked.Total)
	if kept.Failed+marked.Failed == 0 {
		return
	}
	for i := range x.s.Phases {
		if p := &x.s.Phases[i]; p.Children && p.Status == Running {
			p.Message = cut("nothing more begins: " + failures(x.env.Children, kept.Failed+marked.Failed))
		}
	}
}

func (x *step) hasChildren() bool {
	return x.s.Children.Items > 0 || x.s.Children.Cursor > 0 || x.env.Children != nil && x.env.Children.Len() > 0
}

var askNames = [...]string{"", "adopt", "mark", "trigger", "halt", "stop"}

// String is the name in causes.
func (a Ask) String() string {
	if int(a) < len(askNames) {
		return askNames[a]
	}
	return "unknown"
}

// Asking is what the family notes of an ask that was told.
func (p *FromParent) Asking() children.Asking {
	switch p.Ask {
	case Trigger:
		return children.ToBegin
	case Halt, Stop:
		return children.ToEnd
	case Adopt, Mark:
	}
	return children.NotAsked
}

// parent does what the parent asks.
func (x *step) parent(p FromParent) {
	x.cause = Cause{Kind: "parent", Verb: p.Ask.String()}
	x.jobID = p.JobID
	switch {
	case p.Ask == Adopt:
		x.adopt(p)
	case !x.s.Exists():
		x.note(NoteNothing, "the child is gone")
	case x.s.Parent.UID != p.Parent.UID:
		x.note(NoteFenced, "parent="+p.Parent.UID)
	case p.Ask == Mark:
		if x.s.DeletedAt.IsZero() {
			x.s.DeletedAt, x.s.Parent.Revision, x.dirty = x.at, p.Parent.Revision, true
		} else {
			x.note(NoteDuplicate, "it is marked")
		}
	case p.Ask == Trigger:
		x.trigger(p)
	case p.Ask == Halt, p.Ask == Stop:
		x.halt(p)
	default:
		x.note(NoteIllegal, "ask="+strconv.Itoa(int(p.Ask)))
	}
}

// adopt creates the child, or makes it what its item says. It starts nothing: the job does (seed 001, "Creation of an
// Execution": "The reconcile does not start directly, rather it waits for a job ID").
func (x *step) adopt(p FromParent) {
	if !x.s.Exists() {
		x.s = State{Key: p.Key, UID: p.NewUID, CreatedAt: x.at}
		x.before.State = ""
		if bp := x.env.Blueprint; bp != nil {
			x.s.State, x.s.Separate = bp.Lifecycle.Initial, bp.Lifecycle.Walk == blueprint.Each
		}
		x.dirty = true
	}
	c := x.s.AsChild()
	if c.Is(&p.Item, p.Parent.Index) && x.s.Parent.UID == p.Parent.UID && !x.dirty {
		x.note(NoteNoChange, "the child is as its item")
		return
	}
	if x.s.SpecDigest != p.Item.SpecDigest || x.s.Generation == 0 {
		x.s.Generation++
		x.s.SpecDigest = p.Item.SpecDigest
	}
	x.s.Parent, x.s.Labels, x.s.Cluster = p.Parent, p.Item.Labels, p.Item.Cluster
	x.s.DeletedAt = time.Time{} // it is wanted again: a deletion that runs leads to the end of its path, and no further
	x.dirty = true
}

// trigger begins the tree's job in this child (seed 001: "the job ID serves as a trigger").
func (x *step) trigger(p FromParent) {
	bp := x.env.Blueprint
	switch {
	case x.s.JobByID(p.JobID) != nil:
		x.note(NoteDuplicate, "job="+p.JobID)
		return
	case p.Parent.Revision < x.s.Parent.Revision:
		x.note(NoteFenced, "parent's revision "+strconv.FormatUint(p.Parent.Revision, 10)+" is older than what it asked since")
		return
	case x.s.Job() != nil:
		x.note(NoteNothing, "job "+x.s.Job().ID+" has not ended")
		return
	}
	c := Command{JobID: p.JobID, Verb: p.Verb}
	if c.Verb == "" {
		c.Verb = Trigger.String()
	}
	marked := !x.s.DeletedAt.IsZero()
	if bp == nil && marked && x.s.FlowJob() == nil {
		x.s.Gone = true // it never began anything
		x.handed(x.newJob(c, job.Succeeded, x.s.State, ""))
		return
	}
	if bp == nil {
		x.handed(x.newJob(c, job.Failed, "", "")).Message = "no blueprint defines kind " + x.s.Kind
		return
	}
	f, ok, reason := x.triggered(bp, p, marked)
	if f.Verb != "" && p.Follow {
		c.Verb = f.Verb
	}
	switch {
	case marked && (!ok || x.nothingToUndo(bp, &f)):
		x.s.Gone = true
		x.handed(x.newJob(c, job.Succeeded, x.s.State, ""))
		return
	case reason != "":
		x.handed(x.newJob(c, job.Failed, "", "")).Message = cut(reason)
		return
	case !marked && x.s.Parent.OnChangeOnly && x.s.ObservedGeneration == x.s.Generation && x.succeededLast():
		x.handed(x.newJob(c, job.Succeeded, x.s.State, "")).Message = "unchanged"
		return
	}
	if !x.goesOn(bp, &f) {
		x.cancelAll(bp) // what an earlier job held back has no place in this one
	}
	x.handed(x.newFlowJob(c, f))
	x.s.Target = f.Target
	x.advance()
}

// triggered is the flow that a child walks: that of deletion where it is marked, else the one that the parent names, else
// the lifecycle's for a change or a creation.
func (x *step) triggered(bp *blueprint.Blueprint, ask FromParent, marked bool) (f blueprint.Flow, ok bool, reason string) {
	lc, verb := &bp.Lifecycle, ask.Verb
	if marked {
		if f, ok = lc.Flow(lc.Delete); ok && !x.nothingToUndo(bp, &f) {
			reason = x.mayNot(bp, f.Verb)
		}
		return f, ok, reason
	}
	verbs := []string{verb}
	if verb == "" || ask.Follow {
		verbs = append(verbs, lc.OnChange, lc.OnCreate)
		if x.s.ObservedGeneration == 0 {
			verbs = []string{verb, lc.OnCreate, lc.OnChange}
		}
	}
	reason = "its lifecycle has no flow for a creation or a change"
	for _, verb := range verbs {
		if verb == "" {
			continue
		}
		if f, ok = lc.Flow(verb); !ok {
			reason = "kind " + x.s.Kind + " has no verb " + verb
		} else if reason = x.mayNot(bp, verb); reason == "" {
			return f, true, ""
		}
	}
	return f, false, reason
}

func (x *step) succeededLast() bool {
	j := x.s.FlowJob()
	return j != nil && j.State == job.Succeeded
}

func (x *step) handed(j *job.Ref) *job.Ref {
	j.Handed = true
	x.s.Parent.Revision = x.in.Parent.Parent.Revision
	return j
}

// halt ends the job: at once, or when the calls that are out have answered.
func (x *step) halt(p FromParent) {
	j := x.s.Job()
	if j == nil || j.ID != p.JobID {
		x.note(NoteFenced, "job "+p.JobID+" is not running")
		return
	}
	if p.Ask == Halt && j.Canceling {
		x.note(NoteDuplicate, "it is being canceled")
		return
	}
	id := j.ID
	message := p.Message
	if message == "" {
		message = p.Ask.String() + " was asked for by the parent"
	}
	if p.Ask == Stop {
		x.dropAll(true)
	} else {
		x.cancelAll(x.env.Blueprint)
	}
	j = x.s.JobByID(id)
	j.Message = cut(message)
	if x.anyPhase(func(p *PhaseRun) bool { return p.Status == Canceling }) {
		j.Canceling, x.dirty = true, true
		return
	}
	x.endJob(j, job.Canceled, "")
}
