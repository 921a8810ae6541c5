package resource

import (
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
)

// InputKind says which part of an Input is set.
type InputKind uint8

// What a resource may be told.
const (
	OnCommand  InputKind = iota + 1 // a user asks
	OnResult                        // an executor answers
	OnDue                           // time has passed
	OnContinue                      // the step before left more to hand out
	OnLost                          // a sweep found that a hand-out is nowhere to be found
	OnParent                        // the parent asks
	OnChildren                      // a child has moved
	OnConflict                      // a child that was to be made belongs to another parent
)

// Input is one thing that a resource is told. Time comes with it: At is when the server stored it.
type Input struct {
	Kind     InputKind
	At       time.Time
	Command  *Command    // OnCommand
	Result   *Result     // OnResult
	Lost     *Fence      // OnLost
	Parent   *FromParent // OnParent
	Conflict string      // OnConflict: which child, and whose it is
	// Polling names the Sleeping phases whose poll is out right now, as the partition's owner knows. They count as
	// in flight.
	Polling     []string
	Traceparent string
}

// Verbs that every lifecycle has. All others are flows.
const (
	VerbApply     = "apply"
	VerbDelete    = "delete"
	VerbRetry     = "retry"
	VerbCancel    = "cancel"
	VerbInterrupt = "interrupt"
	VerbApprove   = "approve"
)

// Command is what a user asks of one resource.
type Command struct {
	Key         Key
	Verb        string
	RequestID   string
	JobID       string // derived from Key and RequestID by the shell
	Digest      string // of the body
	NewUID      string // uid for a resource that this command creates; derived by the shell, not drawn
	RequestedBy string
	Selection   string // id of the selector command's job that asks; empty: none does
	// Known is the job's record where one exists already: the same request was answered before.
	Known *KnownJob
	// For apply.
	SpecDigest string
	Labels     map[string]string
	Cluster    string
	// For retry: "failed" (default) or "all".
	Scope string
	// For cancel and interrupt: the job to end; empty: the one that is driven.
	Job     string
	Message string
	// For approve: the gated phase; empty: all that wait for approval.
	Phase string
}

// Ask is what a parent asks of a child.
type Ask uint8

// The asks. Each may come again, and then changes nothing.
const (
	Adopt   Ask = iota + 1 // be there, with this spec
	Mark                   // you are to be deleted, when the job comes
	Trigger                // here is the job: begin
	Halt                   // end the job: what is out may answer
	Stop                   // end it at once
)

// FromParent is what a parent asks of a child.
type FromParent struct {
	Ask    Ask
	Key    Key // of the child
	Parent Parent
	// For Adopt.
	NewUID string // derived by the shell, for a child that this creates
	Item   children.Item
	// JobID is that of the tree's job: to begin, or under which the child is adopted or marked; for Halt and Stop, the one
	// to end.
	JobID   string
	Verb    string // Trigger: of the flow; empty: as the child's lifecycle has it
	Follow  bool   // Trigger: Verb is the parent's own; where it may not start, it is as the child's lifecycle has it
	Message string // Halt, Stop
}

// KnownJob is what the job's own record says of an earlier command with the same request id.
type KnownJob struct {
	Digest string
}

// Fence names one hand-out.
type Fence struct {
	UID     string
	JobID   string
	Phase   string
	Attempt uint32
	Call    uint32
}

// Outcome is what became of a hand-out.
type Outcome uint8

// The outcomes.
const (
	OutcomeCompleted Outcome = iota + 1
	OutcomeFailed
	OutcomePending
	OutcomeRunning    // for display, and to hold the lease of a canceled call
	OutcomeNotStarted // the worker did not begin
)

var outcomeNames = [...]string{"", "completed", "failed", "pending", "running", "not_started"}

// String is the name that users see.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

// Outcomes lists all of them.
func Outcomes() []Outcome {
	return []Outcome{OutcomeCompleted, OutcomeFailed, OutcomePending, OutcomeRunning, OutcomeNotStarted}
}

// Result is an executor's answer.
type Result struct {
	Fence      Fence
	Outcome    Outcome
	Message    string
	Retryable  bool
	Delay      time.Duration // of a pending phase; 0 means its interval
	Attributes map[string]string
	Data       map[string]string
	Outputs    map[string]string
}

// Env is what a step may consult. All of it is fixed for the step, so the step stays a pure function.
type Env struct {
	// Blueprint is the one that the job pinned; for a command that starts a job, the kind's present one. Nil where
	// the kind has none.
	Blueprint *blueprint.Blueprint
	// Retired says that the kind's present blueprint is being deleted: no resource of the kind is created.
	Retired bool
	// When evaluates a constraint over the state as it is at that point of the step. It must be a function of its
	// arguments and of the spec alone. Nil means that every constraint is true.
	When func(expression string, s *State) (bool, error)
	// Children is what the owner knows of the resource's children, looked at under the job that is driven. Nil: it has
	// none. A step does not change it.
	Children *children.Family
	// Items are the children that the spec defines, for a phase on children; for an apply, the spec that it brings. It must
	// be a function of the phase and the spec alone. An error is a *children.InvalidError.
	Items func(ph *blueprint.Phase) ([]children.Item, error)
	// Reader is the version of the rules that decide, where it is newer than ReaderVersion, and Needs the oldest that can
	// decide on a state as it is; nil: ReaderFirst. Both are for the tests of upgrades, which build a pretended next
	// version (drive.Reader).
	Reader uint32
	Needs  func(s *State) uint32
}
