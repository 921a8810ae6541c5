// Package drive is the one loop of the orchestrator: load, step, append, act, settle. It knows no transport: it is told
// (Offer, Tick, the answers to Append) and acts through a Port. One Loop serves one partition.
//
// # Order
//
// Inputs of one resource are stepped one by one, each on the state that the append before it committed; different
// resources proceed side by side, as many as Limits.Appends. An input is settled after its event was appended, never
// before. The record of a job follows its resource's event (job.Derive) and is repeated until it holds.
//
// # Absent on purpose
//
// No goroutine, no clock and no lock: a Loop belongs to one goroutine, and time comes in with Tick and with the inputs.
// Nothing in it is a place of truth: a Loop that is dropped at any point and built again by Adopt goes on where the log
// stands (promise 8).
package drive

import (
	"errors"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Errors that a Port returns, told apart with errors.Is.
var (
	// ErrLost: another writer was first, or the outcome is unknown. The entity is loaded again and stepped again.
	ErrLost = errors.New("lost: load again")
	// ErrRefused: the store will never take this record (too large, denied). The input is set aside.
	ErrRefused = errors.New("refused by the store")
	// ErrNotFound: there is no such thing.
	ErrNotFound = errors.New("not found")
)

// SpecsKept is how many specs of a resource the log keeps; up to twice as many stand there between two trims. A call
// that outlives more changes of the spec than that can no longer read its own.
const SpecsKept = 8

// RetireWait is longer than any owner can go on with what it has read of a blueprint: it may take it from memory for a
// second, or wait for the log's answer for three, and its append arrives within ten, or is not sent.
const RetireWait = 15 * time.Second

// Limits of a Loop. Zero values mean the defaults.
type Limits struct {
	// Appends is how many appends may be out at once; past it Ready is false. Default 512.
	Appends int
	// CachedStates is how many idle resources are kept in memory; with Cache, how many are kept even where that is full.
	// Default 4096, with Cache 1024.
	CachedStates int
	// Cache, if set, is shared with the other Loops of the process.
	Cache *Cache
	// PollLease is how long a poll may stay unanswered before it is sent again. Default 35 s, which is more than the
	// time after which an unsettled delivery comes again.
	PollLease time.Duration
	// JobRetention is how long a final job is kept. Default job.RetentionDefault.
	JobRetention time.Duration
	// Forgets is how many resources are forgotten at once. Default 64.
	Forgets int
	// TakenIDs is how many ids of jobs are kept in memory, some 60 bytes each; past it every command costs a read of
	// the log. Default 1,000,000.
	TakenIDs int
	// StepsMax is how often one input is tried when appends are lost, before it is handed back. Default 20.
	StepsMax int
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.Appends, 512)
	if l.Cache != nil {
		set(&l.CachedStates, 1024)
	}
	set(&l.CachedStates, 4096)
	set(&l.StepsMax, 20)
	set(&l.Forgets, 64)
	set(&l.TakenIDs, 1_000_000)
	if l.PollLease <= 0 {
		l.PollLease = 35 * time.Second
	}
	if l.JobRetention <= 0 {
		l.JobRetention = job.RetentionDefault
	}
	return l
}

// Record is one append. Exactly one of the pointers is set.
type Record struct {
	// Expect is the sequence of the entity's last event; 0: none.
	Expect    uint64
	Resource  *ResourceRecord
	Job       *JobRecord
	Spec      *SpecRecord
	Blueprint *BlueprintRecord
	Document  *DocumentRecord
}

// ResourceRecord is one transition of a resource. Where State.Gone, the record buries it.
type ResourceRecord struct {
	Event resource.Event
	State resource.State
	At    time.Time
}

// JobRecord is one transition of a job. Where Record.Gone, it buries it.
type JobRecord struct {
	From   job.State
	Record job.Record
	At     time.Time
}

// SpecRecord brings a spec.
type SpecRecord struct {
	Key          resource.Key
	Digest, JSON string
	At           time.Time
}

// BlueprintRecord brings a blueprint, or tells of its deletion. Where Gone, it buries it.
type BlueprintRecord struct {
	Blueprint  *blueprint.Blueprint
	JSON       string
	Generation uint64
	Deletion   *job.Ref
	Gone       bool
	At         time.Time
}

// DocumentRecord is one transition of an entity of an aggregate, encoded.
type DocumentRecord struct {
	Document
	Body []byte
}

// Loaded is a resource as the log holds it. Seq 0: there is none.
type Loaded struct {
	State resource.State
	Seq   uint64
}

// LoadedJob is a job as the log holds it. Seq 0: there is none.
type LoadedJob struct {
	Record job.Record
	Seq    uint64
}

// LoadedBlueprint is the present blueprint of a kind. Seq 0: there is none.
type LoadedBlueprint struct {
	Blueprint  *blueprint.Blueprint // nil where Gone
	JSON       string
	Generation uint64
	Deletion   *job.Ref // that was last asked for; nil: none since this version came
	Gone       bool
	Seq        uint64
}

// Retired reports whether it is being deleted: no resource of the kind is created.
func (b *LoadedBlueprint) Retired() bool { return b.Deletion != nil && !b.Deletion.State.Final() }

// Users are the resources of a kind.
type Users struct {
	Count   int
	Example resource.Key // one of them
}

// JobKey names a job.
type JobKey struct{ Project, ID string }

// Port is what a Loop acts through. Loads may block; everything else returns at once.
type Port interface {
	// Append sends a record. done is called exactly once, on the Loop's goroutine, after Append has returned, with the
	// stored sequence, ErrLost or ErrRefused. Records reach the log in the order of the calls.
	Append(r Record, done func(seq uint64, err error))
	// AppendBatch stores all records or none. done is called as for Append, with the sequence of the last record; the
	// others are stored right before it, in the order given.
	AppendBatch(rs []Record, done func(seq uint64, err error))
	// Load returns resources and jobs as the log holds them, in the order asked. Without fresh a follower may answer that is
	// behind: an append on what it says proves it. fresh is for what no append proves.
	Load(keys []resource.Key, jobs []JobKey, fresh bool) ([]Loaded, []LoadedJob, error)
	// Look learns what the log was written since it was last read (Loop.Learn, Loop.Covered).
	Look() error
	// Blueprint returns the blueprint of this digest (ErrNotFound). It is immutable, so the Port may cache it.
	Blueprint(project, kind, digest string) (*blueprint.Blueprint, error)
	// PresentBlueprint returns the one that new jobs of a kind pin; Seq 0 without an error where there is none. fresh
	// asks for the log's answer. Without it the answer may be as old as the acceptance of a changed blueprint is held
	// back, so that it holds for all that is sent after its acceptance was answered.
	PresentBlueprint(project, kind string, fresh bool) (LoadedBlueprint, error)
	// Spec returns a spec's JSON.
	Spec(key resource.Key, digest string) ([]byte, error)
	// SpecSeq returns the sequence of the last spec event of a resource; 0 where there is none.
	SpecSeq(key resource.Key) (seq uint64, err error)
	// TrimSpecs keeps the newest SpecsKept specs of a resource. It works in the background; what fails is done next time.
	TrimSpecs(key resource.Key)
	// Items are the children that a spec defines for a phase; an error names the field that is wrong. It is a function of
	// its arguments alone.
	Items(ph *blueprint.Phase, spec []byte) ([]children.Item, error)
	// ChildUID is the uid of a child that is made under a job at a time: the same for the same arguments.
	ChildUID(key resource.Key, jobID string, at time.Time) string
	// When evaluates a constraint over a spec and a state.
	When(expression string, spec []byte, s *resource.State) (bool, error)
	// Poll hands a Sleeping phase out again, with the committed state s. key makes it safe to repeat.
	Poll(s *resource.State, f resource.Fence, key string)
	// Users counts the resources of a kind in all partitions, as the log holds them when wait is over. done is called on
	// the Loop's goroutine, after Users has returned.
	Users(project, kind string, wait time.Duration, done func(Users, error))
	// ForgetBlueprint removes every trace of a blueprint that was buried at seq, and the consumers of its phases; done as
	// for ForgetResource.
	ForgetBlueprint(project, kind string, seq uint64, done func(error))
	// EnsurePhases makes the consumers of a blueprint's phases. It may work in the background.
	EnsurePhases(bp *blueprint.Blueprint)
	// ForgetResource removes every trace of a resource that is gone, buried at seq; done as for Append, nil when there
	// is nothing left.
	ForgetResource(key resource.Key, seq uint64, done func(error))
	// ForgetJob does the same for a job.
	ForgetJob(k JobKey, seq uint64, done func(error))
	// Note tells why an input changed nothing, for metrics and debug logs.
	Note(key resource.Key, in resource.Input, notes []resource.Note)
}

// Input is one thing that a Loop is told, with the way to settle it. Exactly one of the functions is called, once.
type Input struct {
	Key   resource.Key
	Input resource.Input
	// Spec is the canonical JSON of an apply's spec, or of a blueprint's.
	Spec []byte
	// Blueprint is set for an apply of one; it is validated, and its digest is that of Spec.
	Blueprint *blueprint.Blueprint
	// IfDigest is the digest that the present blueprint must have for an apply of one to be accepted; empty: any.
	IfDigest string
	// Settle is called when the input is applied, or means nothing: it must not come again.
	Settle func()
	// Reply is called instead of Settle for a command.
	Reply func(resource.Reply)
	// Back is called when the input could not be decided now (the store did not answer): it must come again.
	Back func(err error)
	// Aside is called when it can never be applied, with the reason.
	Aside func(reason string)
}

func (in *Input) settle() {
	if in.Settle != nil {
		in.Settle()
	}
}

func (in *Input) back(err error) {
	if in.Back != nil {
		in.Back(err)
	}
}

func (in *Input) aside(reason string) {
	if in.Aside != nil {
		in.Aside(reason)
	}
}
