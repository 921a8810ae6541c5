package job

import "time"

// Selection is what the record of a selector command's job says beside the job itself. Package selection decides on it;
// it is never a list of names, so it has the same size for ten resources and for a hundred thousand.
type Selection struct {
	Selector string            // empty: all resources of the kind
	Args     map[string]string // that each resource is asked with
	Stage    Stage
	Cursor   string // name of the last resource that was asked, in the order of bytes; empty: none
	// How many matched up to the cursor, and what became of them. Matched is Accepted and Refused together.
	Matched, Accepted, Refused uint32
	// How many of the jobs that it started have ended so.
	Succeeded, Failed, Canceled uint32
	Refusals                    []Refusal // the first ones, in the order of names
	Cascade                     bool      // a cancel also cancels what it started
	CancelMessage               string
	Waits                       string    // why the walk stands still; empty while it moves
	WalkedAt                    time.Time // when the last resource was asked; zero before
	UpdatedAt                   time.Time // of this state
}

// Refusal is one resource that refused.
type Refusal struct{ Name, Code, Message string }

// Stage is how far the job of a selector command is.
type Stage uint8

// The stages. Ended is final; how it ended is the job's State.
const (
	NoStage   Stage = iota
	Accepted        // nothing was asked yet
	Walking         // the resources are asked, in the order of their names
	Waiting         // all were asked; jobs that it started are not final
	Canceling       // it was canceled; what is out is waited for
	Ended
)

var stageNames = [...]string{"none", "accepted", "walking", "waiting", "canceling", "ended"}

// String is the name that users see.
func (s Stage) String() string {
	if int(s) < len(stageNames) {
		return stageNames[s]
	}
	return "unknown"
}

// Stages lists all of them, in their order.
func Stages() []Stage { return []Stage{NoStage, Accepted, Walking, Waiting, Canceling, Ended} }
