package job

import (
	"slices"
	"time"
)

// State is how far a job is.
type State uint8

// The states. Succeeded, Failed and Canceled are final.
const (
	None State = iota
	Pending
	Running
	Succeeded
	Failed
	Canceled
)

var names = [...]string{"none", "pending", "running", "succeeded", "failed", "canceled"}

// String is the name that users see.
func (s State) String() string {
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// States lists all states, in rank order.
func States() []State { return []State{None, Pending, Running, Succeeded, Failed, Canceled} }

// Final reports whether nothing follows.
func (s State) Final() bool { return s >= Succeeded }

// edges is the table: what may follow what. It is total by construction: what is not listed is refused.
var edges = map[State][]State{
	None:    {Pending, Running, Succeeded, Failed, Canceled}, // a record may begin late, after a crash
	Pending: {Running, Succeeded, Failed, Canceled},
	Running: {Succeeded, Failed, Canceled},
}

// May reports whether a job may go from one state to another.
func May(from, to State) bool { return slices.Contains(edges[from], to) }

// RetentionDefault is how long a final job is kept (design.md, "Job").
const RetentionDefault = 7 * 24 * time.Hour

// Ref is a job as its root resource knows it.
type Ref struct {
	ID          string // 26 characters, derived from project, kind, name and request id
	RequestID   string // [A-Za-z0-9_-]{1,64}
	Digest      string // of the command's body
	Verb        string
	Flow        string // verb of the flow that it walks, where that is another: of a retry, a deletion, an apply that starts one
	Target      string // of the flow; empty for verbs that are no flow
	Blueprint   string // digest that it pinned; empty for verbs that need none
	State       State
	AcceptedAt  time.Time
	StartedAt   time.Time // zero while pending
	EndedAt     time.Time // zero until final
	Message     string
	RequestedBy string
	Canceling   bool   // a cancel was accepted; the job ends when no call is in flight
	Generation  uint64 // of the spec when it began; 0 while pending
	Handed      bool   // handed down by the parent: the record is that of the tree's root
	Selection   string // id of the selector command's job that started it; empty: none did
}

// Walks is the verb of the flow that the job walks.
func (r *Ref) Walks() string {
	if r.Flow != "" {
		return r.Flow
	}
	return r.Verb
}

// Record is the state of a job's own entity.
type Record struct {
	Ref
	Project, Kind, Name string // root resource
	UID                 string // of the root resource
	ResourceRevision    uint64 // revision of the root resource that this is derived from
	Revision            uint64 // of this record, from 1
	MinReader           uint32
	Gone                bool
	Selection           *Selection // of a selector command's job (package selection); nil otherwise
}

// Root is what a record says about its root resource.
type Root struct {
	Project, Kind, Name, UID string
	Revision                 uint64
	MinReader                uint32
}

// Derive returns the record that must follow from what the root resource says of the job, and whether anything
// follows at all: not if the record already shows this state, or a later one. prior is nil where no record exists.
func Derive(root Root, ref Ref, prior *Record) (Record, bool) {
	if prior == nil {
		return record(root, ref, 1), true
	}
	if prior.State == ref.State || prior.State.Final() || !May(prior.State, ref.State) {
		return *prior, false
	}
	return record(root, ref, prior.Revision+1), true
}

func record(root Root, ref Ref, revision uint64) Record {
	return Record{
		Ref: ref, Project: root.Project, Kind: root.Kind, Name: root.Name, UID: root.UID,
		ResourceRevision: root.Revision, Revision: revision, MinReader: root.MinReader,
	}
}
