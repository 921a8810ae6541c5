package resource

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
)

// ReaderVersion is the version of the rules in this package. A state whose MinReader is higher was written by a newer
// Drover: this one must leave its partition alone.
const ReaderVersion uint32 = ReaderFirst

// ReaderFirst is the version of the rules that can decide on whatever uses nothing that came later. Most states say so,
// whichever version wrote them: that is what lets two versions share a fleet, and the newer one be taken back.
const ReaderFirst uint32 = 1

// Limits of one resource.
const (
	LabelsMax          = 64        // labels per resource
	SpecBytesMax       = 768 << 10 // bytes of a spec's JSON
	AttributesBytesMax = 32 << 10  // bytes of all attribute names and values together
	DataBytesMax       = 16 << 10  // bytes of one phase's data
	OutputsBytesMax    = 16 << 10  // bytes of one phase's outputs
	MessageBytesMax    = 1 << 10   // bytes of a message; longer ones are cut
	FinishedJobsMax    = 2         // ended jobs that the state remembers, beside the last flow
	QueuedJobsMax      = 8         // jobs that wait behind a running one
	TransactionsMax    = 16        // transactions that a state remembers; the oldest goes
)

// Key names a resource for people: names are used again, so a Key is not an identity; the UID is.
type Key struct {
	Project, Kind, Name string
}

// String is project/kind/name.
func (k Key) String() string { return k.Project + "/" + k.Kind + "/" + k.Name }

// Status is where one phase of one resource stands.
type Status uint8

// CycleCloud's seven (seed 003, "Phase Plugins" and "Dependencies") and ours: Gated, Skipped, Undone, Canceled.
const (
	NoStatus Status = iota
	Blocked
	Waiting
	Running
	Sleeping
	Completed
	Failed
	Canceling
	Gated
	Skipped
	Undone
	Canceled
)

var statusNames = [...]string{
	"", "Blocked", "Waiting", "Running", "Sleeping", "Completed", "Failed", "Canceling", "Gated", "Skipped", "Undone", "Canceled",
}

// String is the name that users see.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "Unknown"
}

// Statuses lists all of them.
func Statuses() []Status {
	return []Status{NoStatus, Blocked, Waiting, Running, Sleeping, Completed, Failed, Canceling, Gated, Skipped, Undone, Canceled}
}

// Done reports whether the phase counts as completed for its dependants and for leaving the state.
func (s Status) Done() bool { return s == Completed || s == Skipped || s == Undone }

// Active reports whether something will still happen to the phase without a person.
func (s Status) Active() bool {
	return s == Waiting || s == Running || s == Sleeping || s == Canceling
}

// PhaseRun is one resource in one phase: an entry of the PhaseMap.
type PhaseRun struct {
	Name     string
	Status   Status
	State    string // lifecycle state that it was entered for
	JobID    string // job of the last hand-out, or of the entry
	Attempt  uint32 // begun attempts since the resource was created; never goes back, so a fence is never met twice
	Call     uint32 // hand-outs of this attempt; 0: the next hand-out begins a new attempt
	InFlight bool   // handed out and not yet answered, whatever Status shows
	Since    time.Time
	Due      time.Time // when to call again (Sleeping) or to give up the call (Canceling)
	Deadline time.Time // when the attempt times out; zero: never
	Message  string
	Data     map[string]string // JSON text by name; never changed in place
	Outputs  map[string]string // JSON text by name; never changed in place
	Retrying bool              // Sleeping before another attempt, not between polls
	Retries  uint32            // failures that the retry policy forgave
	Interval time.Duration     // delay until the next poll
	Undo     bool              // handed out to the phase's undo executor
	Children bool              // carried out by the engine, on the resource's children: nothing of it is in WORK
	Callback bool              // handed out to who calls back: its answer names the attempt, and no call of it
}

// Transaction is one attempt of a phase that walks by itself (seed 000: "During a deploy/decom of a PhaseInstance, all
// communication between NCAE and the external APIs is grouped in a Transaction"). Phase, attempt and job name it for life.
type Transaction struct {
	Phase   string
	Attempt uint32
	JobID   string
	Verb    string // of the flow
	Calls   uint32 // hand-outs: more than one where a call was lost. Polls are not counted
	Began   time.Time
	Ended   time.Time // zero: it is under way
	Outcome Status    // Completed, Undone, Failed or Canceled; Sleeping: it failed and is tried again; NoStatus: under way
}

// Parent is what a child knows of where it belongs. Kind, name and root are fixed for life.
type Parent struct {
	Kind, Name, UID string   // of the parent; the project is the child's. Empty: it is a root
	RootKind        string   // of the tree's root, whose name is that of the child up to the first slash
	Item            string   // name within the parent
	Index           uint32   // place among the parent's items
	DependsOn       []string // siblings that must have finished first; for deletion, those that must be kept longer
	Revision        uint64   // of the parent when it last asked for something: what it asked before that is out of date
	OnChangeOnly    bool     // a job succeeds without running where the spec is as it was at the last success
}

// Brood counts a resource's children as of its last event; the owner of the partition knows them as they are.
type Brood struct {
	Items                                         uint32 // that the spec defined when they were last applied
	Cursor                                        uint32 // items that the present phase has applied
	Applied                                       bool   // the present phase has applied all, and marked those that are no more
	Waiting, Runnable, Running, Failed, Succeeded uint32
	Marked                                        uint32 // to be deleted
}

// ChildName is the name of a child. Names of roots hold no slash, so a name says which tree it is in.
func ChildName(parent, item string) string { return parent + "/" + item }

// RootName is the name of the tree's root.
func RootName(name string) string {
	root, _, _ := strings.Cut(name, "/")
	return root
}

// State is one resource. A State is a value: Step never changes the one it is given, and maps in it are shared and
// never written.
type State struct {
	Key
	MinReader  uint32
	UID        string
	Generation uint64
	Revision   uint64
	SpecDigest string
	Cluster    string
	Labels     map[string]string
	Attributes map[string]string // JSON text by name
	State      string            // lifecycle state; empty before the first flow
	Target     string            // of the newest flow that began
	Phases     []PhaseRun
	// Separate says that each phase walks by itself (blueprint.Each): PhaseRun.State is where that phase is, and State is
	// computed from them.
	Separate    bool
	Jobs        []job.Ref // not final ones and the last FinishedJobsMax that ended, oldest first
	PhaseFailed bool
	WasDeployed bool
	// SucceededOnce says that a phase of it succeeded at any time (seed 000: "the transaction history contains one
	// Transaction with success=True").
	SucceededOnce bool
	// Transactions are the last attempts of a resource whose phases walk by themselves, oldest first. Those that were
	// evicted are not forgotten in what they mean: SucceededOnce.
	Transactions []Transaction
	// ObservedGeneration is the generation that the last flow that succeeded began with; 0: none did, or it was the one of
	// deletion.
	ObservedGeneration uint64
	Parent             Parent
	Children           Brood
	DeletedAt          time.Time // when deletion was asked for
	CreatedAt          time.Time
	UpdatedAt          time.Time // latest time that any input carried
	Gone               bool
}

// Exists reports whether there is such a resource.
func (s *State) Exists() bool { return s.UID != "" && !s.Gone }

// Job returns the job that is being driven: the oldest one that is not final. Nil means none. Those behind it wait.
func (s *State) Job() *job.Ref {
	for i := range s.Jobs {
		if !s.Jobs[i].State.Final() {
			return &s.Jobs[i]
		}
	}
	return nil
}

// Queued counts the jobs that wait behind the one that is driven.
func (s *State) Queued() int {
	n := 0
	for i := range s.Jobs {
		if !s.Jobs[i].State.Final() {
			n++
		}
	}
	return max(0, n-1)
}

// FlowJob returns the flow job whose blueprint the phases follow: the one that is driven, or else the newest. Nil before
// the first.
func (s *State) FlowJob() *job.Ref {
	if j := s.Job(); j != nil && j.Blueprint != "" {
		return j
	}
	for i := len(s.Jobs) - 1; i >= 0; i-- {
		if s.Jobs[i].Blueprint != "" {
			return &s.Jobs[i]
		}
	}
	return nil
}

// Pins are the digests of the blueprints that the resource may still be stepped by, or carried out by: those of every job
// that it remembers. A running job reads its own at every step; the last flow's tells how the phases stand until the
// resource remembers a later one. A resource that is gone pins nothing.
func (s *State) Pins() []string {
	var pins []string
	for i := range s.Jobs {
		if d := s.Jobs[i].Blueprint; s.Exists() && d != "" && !slices.Contains(pins, d) {
			pins = append(pins, d)
		}
	}
	return pins
}

// JobByID returns a job that the state remembers.
func (s *State) JobByID(id string) *job.Ref {
	for i := range s.Jobs {
		if s.Jobs[i].ID == id {
			return &s.Jobs[i]
		}
	}
	return nil
}

// Phase returns the run of a phase, or nil.
func (s *State) Phase(name string) *PhaseRun {
	for i := range s.Phases {
		if s.Phases[i].Name == name {
			return &s.Phases[i]
		}
	}
	return nil
}

// AsChild is what the parent's family is told of this resource.
func (s *State) AsChild() children.Child {
	c := children.Child{
		Kind: s.Kind, Name: s.Name, UID: s.UID, Item: s.Parent.Item, Index: s.Parent.Index, DependsOn: s.Parent.DependsOn,
		SpecDigest: s.SpecDigest, Marked: !s.DeletedAt.IsZero(), Gone: s.Gone,
		Meta: children.Meta(s.Labels, s.Cluster), OnChangeOnly: s.Parent.OnChangeOnly,
	}
	for i := range s.Jobs {
		if s.Jobs[i].Handed {
			c.Job, c.JobState = s.Jobs[i].ID, s.Jobs[i].State
		}
	}
	return c
}

// Root is what a job's record says of this resource.
func (s *State) Root() job.Root {
	return job.Root{
		Project: s.Project, Kind: s.Kind, Name: s.Name, UID: s.UID, Revision: s.Revision, MinReader: s.MinReader,
	}
}

// NextDue is when the state itself next asks for a step, by the server's clock; zero means never.
func (s *State) NextDue() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for i := range s.Phases {
		if p := &s.Phases[i]; p.Status.Active() {
			earlier(p.Due)
			if p.Status != Canceling {
				earlier(p.Deadline)
			}
		}
	}
	return next
}

func (s *State) clone() State {
	n := *s
	n.Phases = slices.Clone(s.Phases)
	n.Jobs = slices.Clone(s.Jobs)
	n.Transactions = slices.Clone(s.Transactions)
	return n
}

// merge sets each name of set in old, and removes those whose value is "null". Neither map is changed.
func merge(old, set map[string]string) map[string]string {
	if len(set) == 0 {
		return old
	}
	merged := make(map[string]string, len(old)+len(set))
	maps.Copy(merged, old)
	maps.Copy(merged, set)
	maps.DeleteFunc(merged, func(_, value string) bool { return value == "null" })
	return merged
}

// size is the bytes of all names and values.
func size(m map[string]string) int {
	total := 0
	for _, name := range slices.Sorted(maps.Keys(m)) {
		total += len(name) + len(m[name])
	}
	return total
}
