package machine

import (
	"strings"
	"time"
)

// ReaderVersion is the version of these rules; a state says the oldest that may decide on it.
const ReaderVersion = 1

// Limits.
const (
	TasksMax            = 1000      // entries of a task list
	EntryBytesMax       = 300       // bytes of an entry: a name of 253 bytes and what stands before it
	TextBytesMax        = 1024      // bytes of a description, a context, a message
	MetaMax             = 64        // entries of Meta
	MetaBytesMax        = 16 << 10  // bytes of all of them
	ParamsMax           = 256       // parameters
	ParamsBytesMax      = 256 << 10 // bytes of all of them
	OpsMax              = 256       // operations of a patch
	StageNone           = "none"    // stage of a machine whose workflow was removed (seed 004)
	metaBaseContext     = "BaseContext"
	prefixStage         = "stage:"
	prefixBootEnv       = "bootenv:"
	prefixContext       = "context:"
	prefixAction        = "action:"
	messageSuperseded   = "the place in the task list was moved while this run was under way"
	messageNoPluginText = "no plugin offers this action"
)

// Key names a machine.
type Key struct{ Project, Name string }

// String is "project/name".
func (k Key) String() string { return k.Project + "/" + k.Name }

// State is one machine with its current run. The zero State is a machine that is not there.
type State struct {
	Key
	UUID                     string
	Revision                 uint64 // of the machine, from 1; a run has its own
	MinReader                uint32
	Description              string
	Workflow                 string // empty: none
	Stage, BootEnv           string
	Context                  string // empty: that of an agent on the machine itself
	Meta                     map[string]string
	Params                   map[string]string // each value is JSON text
	Tasks                    []string
	CurrentTask              int // index in Tasks; -1: before it; len(Tasks): done
	Runnable, Available      bool
	CurrentJob               string // id of the run that was made last; empty: none yet
	RequestID, RequestDigest string // of the last command that was accepted, and of its body
	PatchID                  string // of the request that patched it last
	CreatedAt, UpdatedAt     time.Time
	Gone                     bool

	Run *Run // the run of CurrentJob; nil where there is none
}

// Exists reports whether there is such a machine.
func (s *State) Exists() bool { return s.UUID != "" && !s.Gone }

// Run is one execution of a task on a machine ("Job", seed 004).
type Run struct {
	ID, Previous             string // Previous is empty for the first
	Machine                  Key
	MachineUUID              string
	Task                     string // entry of the list
	Stage, BootEnv, Workflow string
	Context                  string
	State                    RunState
	ExitState                string // "", complete, failed, reboot, poweroff, stop
	Index                    int    // of the entry
	CreatedAt                time.Time
	StartedAt, EndedAt       time.Time
	Message                  string // what the machine itself has to say of it
	Revision                 uint64 // from 1
	MinReader                uint32
	ReportID                 string // of the request that changed it last
	Gone                     bool
}

// RunState is how far a run is.
type RunState uint8

// The states of a run. Finished and Failed are final.
const (
	NoRun RunState = iota
	Created
	Running
	Incomplete
	Finished
	Failed
)

var runNames = [...]string{"none", "created", "running", "incomplete", "finished", "failed"}

// String is Digital Rebar's name of it.
func (s RunState) String() string {
	if int(s) < len(runNames) {
		return runNames[s]
	}
	return "unknown"
}

// RunStates lists all of them.
func RunStates() []RunState { return []RunState{NoRun, Created, Running, Incomplete, Finished, Failed} }

// ParseRunState is the inverse of String; false where there is no such state.
func ParseRunState(name string) (RunState, bool) {
	for _, s := range RunStates() {
		if s != NoRun && s.String() == name {
			return s, true
		}
	}
	return NoRun, false
}

// Final reports whether nothing follows.
func (s RunState) Final() bool { return s == Finished || s == Failed }

// exitStates are what a run may say of what follows it (facts, section 6, "PATCH job").
var exitStates = []string{"", "complete", "failed", "reboot", "poweroff", "stop"}

// Condition is what a machine is, from its own fields.
type Condition uint8

// The conditions.
const (
	NoMachine Condition = iota
	Unavailable
	Parked
	Idle
	Done
	Ready
)

var conditionNames = [...]string{"none", "unavailable", "parked", "idle", "done", "ready"}

// String is its name.
func (c Condition) String() string {
	if int(c) < len(conditionNames) {
		return conditionNames[c]
	}
	return "unknown"
}

// Conditions lists them.
func Conditions() []Condition {
	return []Condition{NoMachine, Unavailable, Parked, Idle, Done, Ready}
}

// Condition is what the machine is.
func (s *State) Condition() Condition {
	switch {
	case !s.Exists():
		return NoMachine
	case !s.Available:
		return Unavailable
	case !s.Runnable:
		return Parked
	case len(s.Tasks) == 0:
		return Idle
	case s.CurrentTask >= len(s.Tasks):
		return Done
	default:
		return Ready
	}
}

// setting splits an entry that the machine takes on by itself: what is set, and to what.
func setting(entry string) (what, value string, ok bool) {
	for _, prefix := range []string{prefixStage, prefixBootEnv, prefixContext} {
		if value, ok = strings.CutPrefix(entry, prefix); ok {
			return prefix, value, true
		}
	}
	return "", "", false
}

// baseContext is the context that a machine begins a list in.
func (s *State) baseContext() string { return s.Meta[metaBaseContext] }
