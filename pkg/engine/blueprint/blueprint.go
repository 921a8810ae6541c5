// Package blueprint is what a kind can do: its lifecycle (a table of flows) and its phases.
//
// A blueprint is immutable by digest. A job pins one when it is accepted and every later step of that job receives
// that one; a changed blueprint takes effect with the next job.
//
// # Absent on purpose
//
// No JSON, no CEL, no digest function: decoding, compiling and hashing are the shell's (pkg/manifest). The executor's
// configuration is opaque here.
package blueprint

import (
	"slices"
	"time"
)

// Limits of one blueprint. Past them Validate refuses, naming the field.
const (
	PhasesMax        = 128     // phases per blueprint
	StatesMax        = 64      // states per path
	DependsOnMax     = 32      // dependencies per phase
	NameBytesMax     = 253     // bytes per name of a phase, state, kind, project or resource
	TextBytesMax     = 4 << 10 // bytes per description or text
	WhenBytesMax     = 4 << 10 // bytes per constraint
	RetryAttemptsMax = 1000    // automatic retries per phase
	TimeoutMax       = 30 * 24 * time.Hour
	IntervalMax      = 24 * time.Hour
	IntervalMin      = 10 * time.Millisecond
)

// Defaults of a phase.
const (
	// IntervalDefault is how long a pending phase sleeps before the next call (seed 003, "Phase Plugins": 15 seconds).
	IntervalDefault = 15 * time.Second
	// LeaseDefault is how long a call that is being canceled may stay silent before it is given up.
	LeaseDefault = 30 * time.Second
	// RetryDelayDefault is the wait before an automatic retry.
	RetryDelayDefault = time.Second
)

// OnTargetChange is what a new flow does to one that runs (facts/common-ground.md, conflict 1).
type OnTargetChange string

// The three policies.
const (
	Cancel OnTargetChange = "cancel" // CycleCloud: calls in flight are canceled, then the new path is walked
	Reject OnTargetChange = "reject" // NCAE: the command is refused while a job runs
	Wait   OnTargetChange = "wait"   // Landscaper: the job waits until the running one is final
)

// OnFailure is what a failed phase means for the others of its state (facts/common-ground.md, conflict 2).
type OnFailure string

// The two policies.
const (
	Continue OnFailure = "continue" // CycleCloud: the others go on; only dependants stay blocked
	Drain    OnFailure = "drain"    // Landscaper: what is out may end, nothing more is handed out
)

// Rerun is what a job does that is asked for again, or after a failure (facts/common-ground.md, conflict 4).
type Rerun string

// The two scopes.
const (
	// RerunFailed: it goes on where the resource stands, with what failed; at its target there is nothing to do
	// (CycleCloud; NCAE: out of Error only the phases that are there).
	RerunFailed Rerun = ""
	// RerunAll: every job begins at the beginning of its path (Landscaper; seed 001: "a new job ID triggers a new
	// reconcile regardless whether or not the execution spec was modified").
	RerunAll Rerun = "all"
)

// Walk says what it is that walks the path of a flow.
type Walk string

// The two walks.
const (
	// Together: the resource walks; in each state its phases run side by side, as their dependencies allow (seed 003).
	Together Walk = ""
	// Each: every phase walks by itself, one after another or as their dependencies allow; the resource's state is
	// computed from theirs (seed 000, "PhaseInstances").
	Each Walk = "each"
)

// WasDeployed is what a flow tells executors of earlier deployments (seed 000, "Service Instance was_deployed Flag").
type WasDeployed string

// The rules. Empty: true from a reached target until the target of deletion is reached.
const (
	WasNot     WasDeployed = "no"      // an initial deployment, or a reactivation
	WasIndeed  WasDeployed = "yes"     // a later one
	ByItsPast  WasDeployed = "history" // true if any phase ever succeeded
	DontChange WasDeployed = ""
)

// Flow is one row of a lifecycle: a verb and the way it leads. Several rows may share a verb: they differ in From, and in
// nothing else but Idempotent and WasDeployed.
type Flow struct {
	Verb    string   // command that starts it
	From    []string // states it may start from; empty means any
	Path    []string // states that are walked, each at most once
	Target  string   // final state; not in Path
	Failure string   // where a failed or canceled job leads; empty: nowhere, a retry goes on in the state that it failed in
	// Undo: phases are carried out by their undo executor, and end Undone.
	Undo bool
	// Reverse: what depends on a phase goes before it.
	Reverse bool
	// Idempotent: it may start only where the phases concerned are idempotent.
	Idempotent  bool
	WasDeployed WasDeployed
}

// Lifecycle is a table of flows.
type Lifecycle struct {
	Name           string // preset, or "custom"
	Flows          []Flow
	Delete         string // verb of the flow that deletion walks first; empty: deletion walks none
	OnTargetChange OnTargetChange
	OnFailure      OnFailure
	Rerun          Rerun
	Walk           Walk
	// Initial is the state of what no flow has touched; empty: it has none.
	Initial string
	// Precedence, for Walk Each: the resource's state is the first of these that any of its phases is in.
	Precedence []string
	// OnCreate and OnChange are the verbs of the flows that apply starts where the first phase has auto_deploy set.
	OnCreate, OnChange string
	// SkipUnchanged: a job of OnCreate or OnChange succeeds without running where the resource stands at its target and
	// the spec is as it was then (facts/common-ground.md, conflict 5: opt-in).
	SkipUnchanged bool
	// ByMark: a job of a resource that is marked deleted walks the flow of Delete, whatever its verb (seed 001,
	// "Deleting an Execution"; facts/landscaper.md A2).
	ByMark bool
}

// Flow returns the first row of a verb.
func (l *Lifecycle) Flow(verb string) (Flow, bool) {
	i := slices.IndexFunc(l.Flows, func(f Flow) bool { return f.Verb == verb })
	if i < 0 {
		return Flow{}, false
	}
	return l.Flows[i], true
}

// FlowFrom returns the row of a verb that may start from a state.
func (l *Lifecycle) FlowFrom(verb, state string) (Flow, bool) {
	i := slices.IndexFunc(l.Flows, func(f Flow) bool {
		return f.Verb == verb && (len(f.From) == 0 || slices.Contains(f.From, state))
	})
	if i < 0 {
		return Flow{}, false
	}
	return l.Flows[i], true
}

// From lists the states that a verb may start from, in the order of the table; empty means any.
func (l *Lifecycle) From(verb string) []string {
	var from []string
	for i := range l.Flows {
		if l.Flows[i].Verb != verb {
			continue
		}
		if len(l.Flows[i].From) == 0 {
			return nil
		}
		for _, state := range l.Flows[i].From {
			if !slices.Contains(from, state) {
				from = append(from, state)
			}
		}
	}
	return from
}

// FlowTo returns the first flow with this target.
func (l *Lifecycle) FlowTo(target string) (Flow, bool) {
	i := slices.IndexFunc(l.Flows, func(f Flow) bool { return f.Target == target })
	if i < 0 {
		return Flow{}, false
	}
	return l.Flows[i], true
}

// Executor says who carries out a phase. Kind is "plugin", "http", "poll" or "script"; Config is its JSON.
type Executor struct {
	Kind   string
	Config string
	// Callback says that the worker only asks for the work: who does it calls back when it is done, and may do so before the
	// worker has its answer (facts/ncae.md B3). While it is awaited the phase is not called again.
	Callback bool
}

// Do is what a phase does with children.
type Do string

// The parts. Together they are what seed 001 has in the states of an execution: Init, Progressing, InitDelete and Deleting.
const (
	// DoAll: apply, then run; in a flow that undoes, mark, then delete.
	DoAll Do = ""
	// DoApply creates and updates the children that the spec defines, and marks those deleted that it no longer does.
	DoApply Do = "apply"
	// DoRun hands the job down as the dependencies allow, and waits until all have finished. What is marked deleted is
	// deleted first.
	DoRun Do = "run"
	// DoMark marks all children deleted.
	DoMark Do = "mark"
	// DoDelete hands the job down to what is marked, in reverse of the dependencies, and waits until nothing is left.
	DoDelete Do = "delete"
)

// Children says that a phase is carried out by the engine itself, on the resource's children (executor "children").
type Children struct {
	Do Do
	// Items is the field of the spec that defines the children; the shell reads it.
	Items string
	// Kind of the children that do not name their own.
	Kind string
	// Verb of the flow that children walk; empty: that of their lifecycle for a creation or, once they were deployed, for a
	// change.
	Verb string
	// Item and Template define the one child of a phase that manages a service (seed 000, ServiceManagementPhase: "can only
	// handle one Service"): its name within the parent, and its spec as JSON whose texts may name values of the parent's
	// spec. Where Template is empty the parent's spec lists the children. Such a child walks the parent's own verb where it
	// may start there.
	Item, Template string
}

// Retry is the policy for failures that a worker marked retryable.
type Retry struct {
	Attempts int           // how many failures are forgiven; 0 means none
	Delay    time.Duration // wait before each; 0 means RetryDelayDefault
}

// Phase is one step of a state (seed 003, "Phase Plugin Attributes").
type Phase struct {
	Name        string
	Description string
	Text        string
	States      []string // lifecycle states during which it is called
	DependsOn   []string // phases of the same state that must be completed first
	When        string   // constraint; empty means always
	Provider    string
	Executor    Executor
	// Undo carries the phase out in flows that undo (seed 000: the decom of a phase). Nil: it cannot be undone.
	Undo     *Executor
	Children *Children     // set where Executor.Kind is "children"
	Timeout  time.Duration // per attempt, from its first hand-out; 0 means none
	Interval time.Duration // delay of a pending phase; 0 means IntervalDefault
	// Lease is the silence after which a worker is given up: a call of its that is canceled (0 means LeaseDefault), and its
	// hold of the phase (0 means phase.LeaseDefault; package phase).
	Lease time.Duration
	Retry Retry
	// Calls is how many calls of the phase there may be at a time, over all workers; 0: any number. Nil: CallsAtOnce's
	// default.
	Calls      *int
	Idempotent bool // safe to repeat, always yielding the same result (seed 000, "idempotency")
	// AutoDeploy: nil, the phase runs when its turn comes; true, the same, and where it is the first one apply starts the
	// flow; false, it is Gated until a person approves (seed 000, "auto_deploy").
	AutoDeploy *bool
}

// Gated reports whether the phase waits for a person's approval.
func (p *Phase) Gated() bool { return p.AutoDeploy != nil && !*p.AutoDeploy }

// PendingInterval is Interval or its default.
func (p *Phase) PendingInterval() time.Duration {
	if p.Interval > 0 {
		return p.Interval
	}
	return IntervalDefault
}

// CallsAtOnce is Calls or its default: one call at a time of a plugin, which is given all that waits (seed 003: "CycleCloud
// collects all resources waiting to run that phase and executes the plugin for that phase with those resources"), and any
// number of what calls for each resource by itself.
func (p *Phase) CallsAtOnce() int {
	switch {
	case p.Calls != nil:
		return *p.Calls
	case p.Executor.Kind == ExecutorPlugin:
		return 1
	}
	return 0
}

// CancelLease is Lease or its default.
func (p *Phase) CancelLease() time.Duration {
	if p.Lease > 0 {
		return p.Lease
	}
	return LeaseDefault
}

// RetryDelay is Retry.Delay or its default.
func (p *Phase) RetryDelay() time.Duration {
	if p.Retry.Delay > 0 {
		return p.Retry.Delay
	}
	return RetryDelayDefault
}

// ExecutorFor is who carries the phase out in a flow; nil where nobody can.
func (p *Phase) ExecutorFor(f *Flow) *Executor {
	if f.Undo {
		return p.Undo
	}
	return &p.Executor
}

// Blueprint is a kind's lifecycle and phases. The value is shared and never changed after Validate.
type Blueprint struct {
	Project   string
	Kind      string
	Digest    string // of its JSON, hex, 32 characters
	Lifecycle Lifecycle
	Phases    []Phase // in the order in which equal phases are handed out
}

// Phase returns the phase of a name, or nil.
func (b *Blueprint) Phase(name string) *Phase {
	for i := range b.Phases {
		if b.Phases[i].Name == name {
			return &b.Phases[i]
		}
	}
	return nil
}

// CallsBack reports whether the answer of the phase's executor, or of the one that undoes it, comes by a callback.
func (p *Phase) CallsBack(undo bool) bool {
	if undo {
		return p.Undo != nil && p.Undo.Callback
	}
	return p.Executor.Callback
}

// In returns the phases of a lifecycle state, in the blueprint's order: all of them where each walks by itself.
func (b *Blueprint) In(state string) []*Phase {
	var in []*Phase
	for i := range b.Phases {
		if b.Lifecycle.Walk == Each || slices.Contains(b.Phases[i].States, state) {
			in = append(in, &b.Phases[i])
		}
	}
	return in
}

// Has reports whether a phase belongs to a lifecycle state.
func (b *Blueprint) Has(p *Phase, state string) bool {
	return b.Lifecycle.Walk == Each || slices.Contains(p.States, state)
}

// Before returns the names of the phases that must be done before the i-th one may begin in a flow: those that it depends
// on, or in a reversed flow those that depend on it. Where each phase walks by itself and none names a dependency, it is
// the one before it (seed 000: phases have an order).
func (b *Blueprint) Before(i int, f *Flow) []string {
	chain := b.Lifecycle.Walk == Each && !slices.ContainsFunc(b.Phases, func(p Phase) bool { return len(p.DependsOn) > 0 })
	switch {
	case chain && f.Reverse && i+1 < len(b.Phases):
		return []string{b.Phases[i+1].Name}
	case chain && !f.Reverse && i > 0:
		return []string{b.Phases[i-1].Name}
	case chain:
		return nil
	case !f.Reverse:
		return b.Phases[i].DependsOn
	}
	var successors []string
	for k := range b.Phases {
		if slices.Contains(b.Phases[k].DependsOn, b.Phases[i].Name) {
			successors = append(successors, b.Phases[k].Name)
		}
	}
	return successors
}
