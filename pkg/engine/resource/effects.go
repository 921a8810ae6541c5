package resource

import "time"

// Effects is what follows from a step, in the order in which it must happen:
//
//  1. Event is appended, guarded by the sequence that the state was loaded with. If that fails, nothing of the rest
//     happens, and the step is taken again on the state that won.
//  2. The jobs in State.Jobs whose state changed get their records (job.Derive).
//  3. Reply is sent.
//  4. Polls are sent: repeated hand-outs of committed state, safe to send again.
//  5. Tell is told to the children: what follows from committed state, safe to tell again.
//  6. If More, the resource is stepped again with OnContinue.
//
// What is in Batch is stepped with the children before 1, and appended in one batch with Event: no child is made, and none
// marked deleted, for a parent that has moved on (design.md, promise 1). Their specs go before.
type Effects struct {
	Event *Event // nil: nothing happened, the state is unchanged
	Batch []FromParent
	Tell  []FromParent
	Reply *Reply  // answers a command; nil for other inputs
	Polls []Fence // Sleeping phases to call again
	// NextPoll is when a phase whose poll changed nothing is due again, where that is later than the state says.
	NextPoll []PollDue
	// Recount is when a parent whose children have moved is to be stepped with OnDue, to say so; zero: never.
	Recount time.Time
	More    bool
	Notes   []Note // why nothing, or no more, happened
}

// PollDue is the next call of a Sleeping phase whose last poll changed nothing.
type PollDue struct {
	Phase string
	Due   time.Time
}

// Event is one transition, without the state after it.
type Event struct {
	From, To string // lifecycle state before and after
	Cause    Cause
	JobID    string
	Dispatch *Dispatch // the phase that this event hands out; nil: none
}

// Dispatch is one hand-out.
type Dispatch struct {
	Fence    Fence
	State    string
	Deadline time.Time
}

// Cause is the input in short.
type Cause struct {
	Kind        string // command, result, due, continue, lost, parent, children, conflict
	Verb        string
	Phase       string
	Outcome     string
	Message     string
	RequestedBy string
	Traceparent string
}

// Reply answers a command.
type Reply struct {
	JobID   string // of the job that was made, or that the same request made before
	Refused *Refusal
}

// Code is the closed set of reasons for which a command is refused.
type Code string

// The codes (contract.md, "NATS subjects", with the HTTP status that each stands for).
const (
	Invalid    Code = "invalid"    // 400
	NotFound   Code = "not_found"  // 404
	Conflict   Code = "conflict"   // 409
	TooLarge   Code = "too_large"  // 413
	Overloaded Code = "overloaded" // 503
)

// Refusal says why a command left nothing behind.
type Refusal struct {
	Code       Code
	Message    string
	Violations []Violation
}

// Violation is one field that is wrong.
type Violation struct {
	Field, Reason string
}

// NoteCode says why nothing happened.
type NoteCode string

// The notes.
const (
	NoteFenced       NoteCode = "fenced"        // the result is for another hand-out
	NoteNotDue       NoteCode = "not_due"       // no timer of the state has run out
	NoteNoChange     NoteCode = "no_change"     // a poll that changed nothing
	NoteDuplicate    NoteCode = "duplicate"     // the same request was applied before
	NoteNothing      NoteCode = "nothing"       // there is nothing to do
	NoteIllegal      NoteCode = "illegal"       // the table has no such edge
	NoteNoBlueprint  NoteCode = "no_blueprint"  // the pinned blueprint was not to be had
	NoteLimit        NoteCode = "limit"         // a limit was passed; the phase fails
	NoteNewerVersion NoteCode = "newer_version" // the state was written by a newer Drover
)

// Note is one reason.
type Note struct {
	Code NoteCode
	Of   string // what it is about, as in "phase=launch attempt=2"
}
