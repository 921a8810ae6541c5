// Package bus is the only room that speaks NATS. It holds the grammar of subjects (subject.go), the streams and
// buckets (in bus/jetstream), who may say what (contract.go), and the ports below, which bus/jetstream and bus/memory
// implement and bus/bustest holds both to.
//
// # Who writes what
//
// EVENTS is the log and the only place of truth; only the orchestrator appends, and every append carries the expected
// last sequence of its entity under one filter string (Entity.Filter). WORK and the KV buckets are derived from EVENTS
// by the server. Nothing else in here is state.
package bus

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Limits of the transport.
const (
	Partitions        = 64      // default number of partitions of a system
	BodyBytesMax      = 1 << 20 // bytes of any message body
	BatchMessagesMax  = 900     // messages of an atomic batch; the server's own limit is 1,000
	CommandBytesMax   = 960 << 10
	LoadEntitiesMax   = 512 // entities of one Last
	WorkDeliveriesMax = 10  // deliveries of work after which a worker must fail it

	// FetchBytesMin is the least that a Fetch may be limited to: the largest message, with its headers and subjects, fits.
	FetchBytesMin = 2 << 20
	// FetchBytesMax is the most: half of what the server lets wait for one connection (64 MiB) before it takes it for too slow
	// and ends it, so that two workers that share one may fetch at once.
	FetchBytesMax = 32 << 20
	// WorkAckWaitDefault is how long work may stay unsettled before it is delivered again, where nothing else is said.
	WorkAckWaitDefault = 6 * time.Second
)

// Errors that callers tell apart, with errors.Is.
var (
	// ErrLost: another writer was first; load again and decide again. Nothing was stored.
	ErrLost = errors.New("another writer was first")
	// ErrUnknownOutcome: the server did not answer in time; the append may or may not be stored. Load again.
	ErrUnknownOutcome = errors.New("no answer in time; the append may or may not be stored")
	// ErrFull: the stream is at its limit and refuses new messages.
	ErrFull = errors.New("the stream is full")
	// ErrNotFound: there is no such message, entity, key or consumer.
	ErrNotFound = errors.New("not found")
	// ErrNoOwner: nobody serves this partition at present.
	ErrNoOwner = errors.New("no orchestrator serves this partition at present")
	// ErrTooLarge: the message is over a limit; the server refused it.
	ErrTooLarge = errors.New("the message is too large")
	// ErrClosed: the bus was closed.
	ErrClosed = errors.New("the bus is closed")
	// ErrDenied: the server's permissions forbid it.
	ErrDenied = errors.New("the server's permissions forbid it")
	// ErrExists: what was to be made is there.
	ErrExists = errors.New("it is there already")
	// ErrBatch: a batch that the bus refuses before it is sent (two messages of one entity, or too many).
	ErrBatch = errors.New("no valid batch")
)

// Family is a kind of entity in the log.
type Family string

// The families that this version writes.
const (
	Resource  Family = "resource"  // tokens: project, kind, name
	Job       Family = "job"       // tokens: project, id (Entity.Kind is empty, Entity.Name is the id)
	Spec      Family = "spec"      // tokens: project, kind, name; versions are digests
	Blueprint Family = "blueprint" // tokens: project, kind (Entity.Name is empty); versions are digests

	// Tokens: project and id, as for a job.
	Machine    Family = "machine"    // Entity.Name is the machine's name
	TaskRun    Family = "taskrun"    // one run of a task on a machine
	Check      Family = "check"      // a check configuration
	Instance   Family = "instance"   // a check instance
	Deployment Family = "deployment" // one version of a check instance's configuration

	// PhaseRecord is what the workers of a phase as a whole are doing (seed 003, "Phase Records"). Tokens: project, kind and
	// phase (Entity.Name).
	PhaseRecord Family = "phase"
)

// Families lists them.
func Families() []Family {
	return []Family{Resource, Job, Spec, Blueprint, PhaseRecord, Machine, TaskRun, Check, Instance, Deployment}
}

// HasKind reports whether a kind is one of the tokens of the family's entities.
func (f Family) HasKind() bool {
	return f == Resource || f == Spec || f == Blueprint || f == PhaseRecord
}

// HasName reports whether a name (or an id) is one of them.
func (f Family) HasName() bool { return f != Blueprint }

// Known reports whether this version writes the family.
func (f Family) Known() bool { return slices.Contains(Families(), f) }

// Entity is one thing with a history in the log. Names are as people write them; the subject encodes them (Token).
type Entity struct {
	Partition           int
	Family              Family
	Project, Kind, Name string
}

// Header is what every event says beside its body, so that a client can follow without decoding.
type Header struct {
	From        string // Drover-From
	To          string // Drover-To
	Job         string // Drover-Job
	Revision    uint64 // Drover-Revision
	Traceparent string // traceparent
}

// Append is one event to be stored.
type Append struct {
	Entity Entity
	// Dispatch names the phase that this event hands out. Empty: none. Only for family resource.
	Dispatch string
	// Version is the digest that this event brings; only for families spec and blueprint, and required there.
	Version string
	// Expect is the sequence of the entity's last event; 0 means that there is none.
	Expect uint64
	Header Header
	Body   []byte
}

// Pending is an append that was sent and not yet answered.
type Pending interface {
	// Done is closed when the answer is there, or the bus has given up waiting (10 s).
	Done() <-chan struct{}
	// Result is the stored sequence, or ErrLost, ErrUnknownOutcome, ErrTooLarge, ErrFull, ErrClosed. It blocks until
	// Done.
	Result() (seq uint64, err error)
}

// Stored is a message as the log, a bucket or a feed holds it.
type Stored struct {
	Entity   Entity
	Dispatch string // phase that was handed out, if any
	Version  string // digest, for specs and blueprints
	Seq      uint64 // in EVENTS
	Time     time.Time
	Header   Header
	Body     []byte
	Deleted  bool // it carries KV-Operation DEL: the entity is gone
}

// Log is EVENTS. Safe for concurrent use. Appends of one goroutine reach the server in its order.
type Log interface {
	Append(a Append) Pending
	// AppendBatch stores all or nothing and returns the sequence of the last. At most one message an entity.
	AppendBatch(ctx context.Context, batch []Append) (seq uint64, err error)
	// Last returns the last event of each entity, in the order asked; a Stored with Seq 0 where there is none.
	// A follower may answer and be behind: the expected sequence proves what was read.
	Last(ctx context.Context, entities []Entity) ([]Stored, error)
	// Current is Last as the stream's leader has it: what was acknowledged before the call is seen. It costs a request of
	// the server's API an entity, and is for what no append proves.
	Current(ctx context.Context, entities []Entity) ([]Stored, error)
	// Version returns the event that brought this digest, or ErrNotFound.
	Version(ctx context.Context, e Entity, version string) (Stored, error)
	// Scan calls each with the last event of every entity of a partition and family, in the order of the log, up to
	// the end as it was when Scan began. It stops at each's first error and returns it.
	Scan(ctx context.Context, partition int, family Family, each func(Stored) error) error
	// ScanAfter calls each with every event of a partition and family that the log holds after a sequence, in its order, up to
	// the end as it was when ScanAfter began: what others may have written since. One may
	// come twice. It stops at each's first error.
	ScanAfter(ctx context.Context, partition int, family Family, after uint64, each func(Stored) error) error
	// ScanKind is Scan of the resources of one kind.
	ScanKind(ctx context.Context, partition int, project, kind string, each func(Stored) error) error
	// Drop removes the events that brought a version, up to a sequence: one that brings it again later stays. It may be
	// repeated.
	Drop(ctx context.Context, e Entity, version string, upTo uint64) error
	// Forget removes every trace of an entity whose last event is a deletion (Append by Bury). It may be repeated; it
	// returns ErrLost if the entity lives again.
	Forget(ctx context.Context, e Entity, seq uint64) error
	// Trim removes all but the newest keep events of an entity (at least one stays): versions have a subject each, so no
	// limit of the stream bounds their number.
	Trim(ctx context.Context, e Entity, keep int) error
	// Bury appends the event that says the entity is gone (KV-Operation: DEL).
	Bury(a Append) Pending
}

// Delivery is a message that must be settled once: Ack, Retry or Reject. Not safe for concurrent use.
type Delivery interface {
	Subject() string
	Header(name string) string
	Body() []byte
	// Seq is the sequence in the stream that it was delivered from.
	Seq() uint64
	// Time is when the server stored it.
	Time() time.Time
	// Delivered counts deliveries, from 1. Of work it is at least 2 shortly after the server was reached again, since a
	// server that was killed may have lost count.
	Delivered() uint64
	// Ack settles it: it is applied and will not come again.
	Ack() error
	// Progress keeps a long-lived delivery from coming again; at most every second.
	Progress() error
	// Retry asks for it again after a delay.
	Retry(after time.Duration) error
	// Reject sets it aside: it is stored under drover.poison.<stream> with the reason, and not delivered again.
	Reject(ctx context.Context, reason string) error
}

// Inbox delivers one partition's messages of one stream, in order, until Close.
type Inbox interface {
	// C is closed by Close, and when the consumer is lost for good (Err says why).
	C() <-chan Delivery
	Err() error
	Close()
}

// Request is a message to a partition's owner that no stream captures.
type Request struct {
	// Verb is what is asked: "command", "sweep", or a front door's own ("machine.next").
	Verb string
	// Phase is what a request of AskPhase is about; else empty.
	Phase  Phase
	Header map[string]string
	Body   []byte
}

// RequestHandler answers a request, once, from any goroutine.
type RequestHandler func(r Request, reply func(header map[string]string, body []byte))

// APIHandler answers a request on drover.api, once, from any goroutine. Request.Verb is empty.
type APIHandler func(subject string, r Request, reply func(header map[string]string, body []byte))

// Inputs is what flows to the owners of partitions. Safe for concurrent use.
type Inputs interface {
	// PublishCommand stores a command in COMMANDS. The header may hold Drover-Request-Id, Content-Type, traceparent,
	// Drover-Reply-To. ErrFull means overload.
	PublishCommand(ctx context.Context, subject string, header map[string]string, body []byte) (seq uint64, err error)
	// Commands delivers the captured commands of a partition (of the command's own name, see CommandPartition) to intake.
	Commands(ctx context.Context, partition int) (Inbox, error)
	// PublishResult stores a result; subject is the Work's result subject.
	PublishResult(ctx context.Context, subject string, header map[string]string, body []byte) error
	// Results delivers the results of a partition to its owner.
	Results(ctx context.Context, partition int) (Inbox, error)
	// Ask sends an uncaptured request to the owner of a partition and waits for its reply. ErrNoOwner at once if
	// nobody serves it.
	Ask(ctx context.Context, partition int, r Request) (Request, error)
	// AskPhase is Ask of the owner of a phase's record, for the phase's workers, who may ask nothing else: the owner gets
	// the verb behind "phase.", and Request.Phase.
	AskPhase(ctx context.Context, p Phase, r Request) (Request, error)
	// AskDoor is Ask for those who serve a front door, who may ask for nothing else: what is before the first dot of the verb
	// ("machine.next") is a token of the subject, and the owner is told no other.
	AskDoor(ctx context.Context, partition int, r Request) (Request, error)
	// ServeAsks answers the requests of a partition (Ask, AskPhase and AskDoor) until stop is called.
	ServeAsks(partition int, h RequestHandler) (stop func(), err error)
	// Request sends a command on drover.api.… (CommandSubject "api") and waits for intake's reply until ctx ends.
	// ErrNoOwner at once if no intake listens. The header is as for PublishCommand.
	Request(ctx context.Context, subject string, header map[string]string, body []byte) (Request, error)
	// ServeAPI answers requests on drover.api.> until stop, as one of a queue group: a NATS micro service named
	// "drover-intake" that `nats micro ls` shows. Calls come from several goroutines.
	ServeAPI(version string, h APIHandler) (stop func(), err error)
	// Notify publishes a listener's notice under drover.notice.>, uncaptured and unacknowledged; any other subject is
	// ErrDenied.
	Notify(subject string, header map[string]string, body []byte) error
	// Notices calls each with what is published on a subject under drover.notice.> (no wildcard) while it listens, one of
	// all that name the same group, from a goroutine at a time, until stop. What nobody listens to is lost; so is what comes
	// while each has far too much to do.
	Notices(subject, group string, each func(header map[string]string, body []byte)) (stop func(), err error)
	// PublishRefusal stores why a captured command was refused, under drover.refused.<project>.<request id>.
	PublishRefusal(ctx context.Context, project, requestID string, header map[string]string, body []byte) error
	// Backlog is how many messages of a stream ("COMMANDS" or "RESULTS") a partition's consumer has not settled, and
	// when the oldest of them was stored (zero time if none). The number may be behind for a moment; whether it is zero is not.
	Backlog(ctx context.Context, stream string, partition int) (n uint64, oldest time.Time, err error)
}

// Phase names a phase of a kind: who pulls its work.
type Phase struct {
	Project, Kind, Phase string
}

// Work is what executors pull. Safe for concurrent use.
type Work interface {
	// EnsurePhase makes the one consumer of a phase, or finds it. Idempotent.
	EnsurePhase(ctx context.Context, p Phase) error
	// RemovePhase removes it and what still waits for it.
	RemovePhase(ctx context.Context, p Phase) error
	// Pull returns a puller bound to the consumer of a phase; ErrNotFound before EnsurePhase.
	Pull(ctx context.Context, p Phase) (Puller, error)
	// PublishPoll hands out a Sleeping phase again: body is the resource's last event, key makes it safe to repeat.
	// The message carries the header Drover-Poll.
	PublishPoll(ctx context.Context, p Phase, key string, body []byte) error
	// Outstanding is how much of a phase's work is undelivered or unsettled, and whether WORK has caught up with the
	// log; only if caughtUp is true does 0 mean that nothing is out.
	Outstanding(ctx context.Context, p Phase) (n uint64, caughtUp bool, err error)
}

// Puller fetches work. Not safe for concurrent use.
type Puller interface {
	// Fetch waits up to wait for a first message, then returns what is there, at most most, and at most mostBytes of them
	// together: bodies, headers and subjects, FetchBytesMin to FetchBytesMax (what is less or more means these). Empty
	// without an error when there was none.
	Fetch(ctx context.Context, most, mostBytes int, wait time.Duration) ([]Delivery, error)
	// AckWait is how long a delivery may stay unsettled, without Progress, before it is delivered again.
	AckWait() time.Duration
	Close()
}

// Watch follows a bucket or the feed. Its channel is closed by Close.
type Watch interface {
	// C delivers the present entries first. After the last of them comes one Stored with an empty Entity.Family.
	C() <-chan Stored
	Close()
}

// Readers is for those who look on: buckets trail the log by milliseconds. Safe for concurrent use.
type Readers interface {
	// Get returns one entity from its bucket, or ErrNotFound. Entity.Partition is not needed.
	Get(ctx context.Context, e Entity) (Stored, error)
	// List calls each with every present entry of a family, once with each, also where they change while they are listed;
	// project and kind narrow it where not empty. It keeps the keys in memory, some 100 bytes each.
	List(ctx context.Context, f Family, project, kind string, each func(Stored) error) error
	// WatchBucket follows a bucket; project, kind and name narrow it where not empty.
	WatchBucket(ctx context.Context, f Family, project, kind, name string) (Watch, error)
	// Follow subscribes to the republished feed, drover.evt.<family>.…: at most once, ordered per entity.
	Follow(f Family, project, kind, name string, each func(Stored)) (stop func(), err error)
	// History reads what the log still holds of an entity, oldest first.
	History(ctx context.Context, e Entity) ([]Stored, error)
}

// OutputLine is one line of OUTPUT.
type OutputLine struct {
	Subject string
	Seq     uint64
	Time    time.Time
	Body    []byte
}

// Output is what phases print (stream OUTPUT, limited by age and size). Safe for concurrent use.
type Output interface {
	// PublishOutput does not wait for the server; lines may be lost in a crash.
	PublishOutput(project, kind, name string, body []byte) error
	// StoreOutput returns when the server holds the line, and with it what this goroutine has published before. It may be
	// stored twice where the first answer was lost.
	StoreOutput(ctx context.Context, project, kind, name string, body []byte) error
	// ReadOutput calls each with the stored lines of a resource, oldest first, and with follow also with new ones until
	// ctx ends. It returns each's first error.
	ReadOutput(ctx context.Context, project, kind, name string, follow bool, each func(OutputLine) error) error
}

// Tick names a schedule that the server fires.
type Tick string

// The ticks.
const (
	TickSecond Tick = "second" // every second: owners set their clocks by it and look for due times
	TickSweep  Tick = "sweep"  // every 20 seconds (seed 002, "ghost removal"): sweeps
)

// Time is the server's clock as it reaches the services.
type Time interface {
	// OnTick calls each with the server's time of every tick, at most once a tick, until stop.
	OnTick(t Tick, each func(at time.Time)) (stop func(), err error)
}

// Membership is one process among those of its service.
type Membership interface {
	// Changes delivers the partitions that this process should serve, whenever that changes; the first at once. The
	// receiver may be slow: only the newest is kept.
	Changes() <-chan []int
	// Lapses delivers when this process may have been taken for dead: it was stopped or cut off for so long that others may have
	// served its share meanwhile. What it knows of that may be old, and nothing else tells it so. Several in a row may be one.
	Lapses() <-chan struct{}
	// Members lists the live ids, sorted, this one included.
	Members() []string
	// Decline says which partitions this process cannot serve, in the place of what it said before: they fall to others
	// that can, as long as there are any (ShareOf). Safe for concurrent use.
	Decline(partitions []int)
	// Leave tells the others at once. Idempotent.
	Leave()
}

// Members shares the partitions of a service among its live processes by rendezvous hashing. Two may serve one
// partition for a moment; the expected sequence decides between them.
type Members interface {
	// Join announces a process. A member that is silent for 2 s is dead to the others.
	Join(ctx context.Context, service, id string) (Membership, error)
}

// Bus is all of it.
type Bus interface {
	Log
	Inputs
	Work
	Readers
	Output
	Time
	Members
	// Partitions is the number of partitions that the system was created with.
	Partitions() int
	// Setup creates the streams, buckets and schedules, or checks what is there: each difference is one Drift. With
	// repair it also changes what may be changed without loss.
	Setup(ctx context.Context, repair bool) ([]Drift, error)
	// Check reports what Setup would find, and what it would make (Drift.Missing). It changes nothing.
	Check(ctx context.Context) ([]Drift, error)
	// Rederive looks, where there are several servers, whether each bucket and the work follow the log, and hands those that
	// stand still to another server; it returns which. It is asked twice a second by one process, and sooner again
	// where it returns an error: the log has no leader, or a server did not answer.
	Rederive(ctx context.Context) ([]string, error)
	// Healthy is nil while the server answers.
	Healthy(ctx context.Context) error
	// Close flushes and disconnects. Idempotent.
	Close() error
}

// Drift is one setting of a stream that is not as this version would have created it.
type Drift struct {
	Stream, Setting, Want, Have string
	// Repairable says whether Setup may change it.
	Repairable bool
	// Missing says that it is not there: the stream, where Setting is empty, or else that setting's schedule. Setup makes it.
	Missing bool
}
