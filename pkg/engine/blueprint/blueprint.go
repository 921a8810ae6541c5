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

// Flow is one row of a lifecycle: a verb and the way it leads.
type Flow struct {
	Verb   string   // command that starts it
	From   []string // states it may start from; empty means any
	Path   []string // states that are walked, each at most once
	Target string   // final state; not in Path
}

// Lifecycle is a table of flows.
type Lifecycle struct {
	Name           string // preset, or "custom"
	Flows          []Flow
	Delete         string // verb of the flow that deletion walks first; empty: deletion walks none
	OnTargetChange OnTargetChange
	OnFailure      OnFailure
}

// Flow returns the flow of a verb.
func (l *Lifecycle) Flow(verb string) (Flow, bool) {
	i := slices.IndexFunc(l.Flows, func(f Flow) bool { return f.Verb == verb })
	if i < 0 {
		return Flow{}, false
	}
	return l.Flows[i], true
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
	Timeout     time.Duration // per attempt, from its first hand-out; 0 means none
	Interval    time.Duration // delay of a pending phase; 0 means IntervalDefault
	Lease       time.Duration // silence after which a canceled call is given up; 0 means LeaseDefault
	Retry       Retry
	Idempotent  bool
	AutoDeploy  *bool
}

// PendingInterval is Interval or its default.
func (p *Phase) PendingInterval() time.Duration {
	if p.Interval > 0 {
		return p.Interval
	}
	return IntervalDefault
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

// In returns the phases of a lifecycle state, in the blueprint's order.
func (b *Blueprint) In(state string) []*Phase {
	var in []*Phase
	for i := range b.Phases {
		if slices.Contains(b.Phases[i].States, state) {
			in = append(in, &b.Phases[i])
		}
	}
	return in
}
