package machine

import (
	"time"
)

// Input is one thing that a machine is told. Exactly one of the pointers is set, or none: a look, which changes nothing.
type Input struct {
	At     time.Time
	Apply  *Apply
	Next   *Next
	Patch  *Patch
	Report *Report
	// Caller is the uuid of the machine in whose name the caller speaks; empty: an operator, who may speak for all.
	Caller string
	// RequestID tells a patch or a report that comes again, because its answer was lost on the way, from another; empty: it
	// is another.
	RequestID string
}

// Definitions are what the shell looked up of what an input names. A name that is not there is not defined.
type Definitions struct {
	Workflows map[string][]string // stages
	Stages    map[string]Stage
}

// Stage is a list of tasks, and the boot environment that they run in.
type Stage struct {
	BootEnv string // empty: any
	Tasks   []string
}

// Apply creates a machine, or changes what its manifest says of it.
type Apply struct {
	RequestID, Digest   string // Digest is that of the body
	UUID                string // of a machine that it creates
	Description         string
	Meta                map[string]string
	Params              map[string]string
	Workflow            *string // nil: as it is
	Stage               *string
	BootEnv             *string
	Runnable, Available *bool // nil: as it is; true for a new one
	Definitions         Definitions
}

// Next asks for the next run (POST /jobs).
type Next struct {
	Context string // that the agent works in
	RunID   string // of a run that it makes: the same request, the same id
}

// Patch changes a machine (PATCH /machines/<uuid>).
type Patch struct {
	Ops         []Op
	Definitions Definitions
}

// Report changes a run (PATCH /jobs/<uuid>).
type Report struct {
	RunID string
	Ops   []Op
	// Past is the run, where it is not the current one; nil: there is none.
	Past *Run
}

// Op is one operation of a patch (RFC 6902): a test, or else a replacement.
type Op struct {
	Test bool
	// Remove is "remove"; Value is then not looked at.
	Remove bool
	Path   string // as JSON pointer: "/Runnable", "/Params/a~1b"
	Value  Value
}

// ValueKind is what kind of JSON a Value is.
type ValueKind uint8

// The kinds.
const (
	Null ValueKind = iota
	Text
	Bool
	Int
	List  // of texts
	Other // any other JSON
)

// Value is a value in JSON.
type Value struct {
	Kind ValueKind
	Text string
	Bool bool
	Int  int
	List []string
	JSON string // canonical, of every kind; what a parameter keeps
}

// Code says what kind of refusal it is.
type Code string

// The codes, with the status that Digital Rebar's API gives them.
const (
	NotFound      Code = "not_found"     // 404
	Invalid       Code = "invalid"       // 422
	Conflict      Code = "conflict"      // 409
	TestFailed    Code = "test_failed"   // 409
	Forbidden     Code = "forbidden"     // 403
	TooLarge      Code = "too_large"     // 413
	BadPatch      Code = "bad_patch"     // 400
	Unprocessable Code = "unprocessable" // 422, for a job of no machine
)

// Refusal says why an input changed nothing.
type Refusal struct {
	Code    Code
	Field   string // path; empty where it is none's
	Message string
	Line    int // of the operation, for BadPatch and TestFailed
}

// Outcome is what who asks for the next run is told.
type Outcome uint8

// The outcomes, with the status that Digital Rebar's API gives them.
const (
	Nothing   Outcome = iota // 204
	NewRun                   // 201
	RunGoesOn                // 202
)

// Effects is what a step came to.
type Effects struct {
	// Machine says that the machine itself changed, Runs which runs did, as they are now: those are stored together.
	Machine bool
	Runs    []Run
	Cause   string
	// Answer.
	Refused *Refusal
	Outcome Outcome
	Run     *Run // that is spoken of; nil: none
	// Again says that the same request was answered before: nothing changed.
	Again bool
}
