package deployment

import (
	"cmp"
	"slices"
	"time"
)

// Kind is what an instance is told.
type Kind uint8

// The kinds of input.
const (
	OnOrder   Kind = iota + 1 // a configuration was computed
	OnDelete                  // its check or its object was deleted
	OnFetch                   // GET of the deployment
	OnSuccess                 // feedback
	OnFailed                  // feedback
	OnList                    // the monitoring system asks what is new
	OnListAll                 // … and what is outstanding
	OnPoked                   // the monitoring system has taken a poke
	OnSweep                   // a sweep looks at it
	OnRetry                   // an operator asks for another try
)

var kindNames = [...]string{"", "order", "delete", "fetch", "success", "failed", "list", "list all", "poked", "sweep", "retry"}

// String is the kind's name in events.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Kinds lists all of them.
func Kinds() []Kind {
	var all []Kind
	for i := 1; i < len(kindNames); i++ {
		all = append(all, Kind(i))
	}
	return all
}

// Input is one thing that an instance is told.
type Input struct {
	Kind Kind
	At   time.Time
	// Order is set where the kind is OnOrder.
	Order *Order
	// Updates is, of OnPoked, State.Updates as it was when the poke was derived.
	Updates uint64
}

// Order brings a computed configuration.
type Order struct {
	Project, ID string // of the instance, should it be new
	Key
	Generation, ObjectRevision uint64
	Policy                     Policy
	Details                    *Details
}

// Env is what a step is handed: pure functions.
type Env struct {
	// ConfigurationID is the id of a version of an instance.
	ConfigurationID func(instance string, version uint64) string
}

// Note tells why nothing changed.
type Note string

// The notes.
const (
	NoteNothing   Note = "nothing"   // there is nothing to do
	NoteDuplicate Note = "duplicate" // the same as what is there
	NoteStale     Note = "stale"     // younger ones were applied before
	NoteAbsent    Note = "absent"    // there is no such instance, or no configuration of it to deal with
	NoteIllegal   Note = "illegal"   // not in this status
	NoteFull      Note = "full"      // VersionsMax
)

// Task is what the monitoring system is to do with what it fetched.
type Task string

// The tasks (facts/soma.md section 3.2).
const (
	Rollout     Task = "rollout"
	Deprovision Task = "deprovision"
	Delete      Task = "delete"
)

// Move is one configuration that a step moved.
type Move struct {
	ID       string
	From, To Status
}

// Effects is what follows from a step.
type Effects struct {
	// Changed says that the instance's own document is to be stored, together with those of Moves.
	Changed bool
	Moves   []Move // in the order of versions; at most one a configuration
	// Bury is the id of a configuration that is to be buried, alone; State is then without it. Gone says that the instance
	// itself is.
	Bury string
	Gone bool
	// Again says that the same input has more to do once this is stored.
	Again bool
	// Listed, Task and Fetched answer a list and a fetch or a feedback.
	Listed  bool
	Task    Task
	Fetched *Configuration
	Note    Note // why nothing changed; empty where something did
}

type step struct {
	s  State
	fx Effects
	at time.Time
}

// Step is all that an instance can do. Where Effects has neither Changed, Bury nor Gone, the state is as it was.
func Step(before State, in Input, env Env) (State, Effects) {
	at := in.At
	if at.Before(before.UpdatedAt) {
		at = before.UpdatedAt
	}
	x := &step{s: before.clone(), at: at}
	if before.ID == "" && in.Kind != OnOrder {
		return before, Effects{Note: NoteAbsent}
	}
	switch in.Kind {
	case OnOrder:
		x.order(in.Order, env)
	case OnDelete:
		if x.s.Deleted {
			x.fx.Note = NoteDuplicate
			break
		}
		x.s.Deleted, x.fx.Changed = true, true
	case OnFetch:
		x.fetch()
	case OnSuccess:
		x.feedback(Succeed)
	case OnFailed:
		x.feedback(Fail)
	case OnList:
		x.list(x.s.Pending())
	case OnListAll:
		x.list(x.s.Outstanding())
	case OnPoked:
		x.poked(in.Updates)
	case OnSweep:
		x.sweep()
	case OnRetry:
		x.retry()
	default:
		x.fx.Note = NoteNothing
	}
	if !x.fx.Changed {
		if x.fx.Bury != "" || x.fx.Gone {
			return x.s, x.fx
		}
		x.fx.Note = cmp.Or(x.fx.Note, NoteNothing)
		return before, x.fx
	}
	x.s.Revision++
	x.s.UpdatedAt = at
	slices.SortFunc(x.fx.Moves, func(a, b Move) int { return cmp.Compare(x.s.find(a.ID).Version, x.s.find(b.ID).Version) })
	return x.s, x.fx
}

// move takes an event to a configuration; false where the table has no edge.
func (x *step) move(c *Configuration, event Event) bool {
	e, ok := lookup(c.Status, event)
	if !ok {
		return false
	}
	if e.flags {
		x.flag()
	}
	if e.to == c.Status {
		return true
	}
	from := c.Status
	c.Status, c.Next, c.Since = e.to, e.next, x.at
	switch {
	case event == Succeed && e.to == Active:
		c.ActivatedAt = x.at
	case e.to == Deprovisioned:
		c.DeprovisionedAt = x.at
	}
	x.fx.Changed = true
	for i := range x.fx.Moves {
		if x.fx.Moves[i].ID == c.ID {
			x.fx.Moves[i].To = e.to
			return true
		}
	}
	c.Revision++
	x.fx.Moves = append(x.fx.Moves, Move{ID: c.ID, From: from, To: e.to})
	return true
}

func (x *step) flag() {
	x.s.UpdateAvailable = true
	x.s.Updates++
	x.fx.Changed = true
}

// order is seed 002, "configuration ordering". Creation, computation and ordering are one commit: nothing outside is needed
// in between, so nobody ever sees awaiting_computation or computed.
func (x *step) order(o *Order, env Env) {
	s := &x.s
	switch {
	case o == nil || o.Details == nil:
		x.fx.Note = NoteNothing
		return
	case s.ID == "":
		*s = State{Project: o.Project, ID: o.ID, Key: o.Key, CreatedAt: x.at}
	case s.Deleted:
		x.fx.Note = NoteStale
		return
	case o.Generation < s.Generation || o.ObjectRevision < s.ObjectRevision,
		o.Generation == s.Generation && o.ObjectRevision == s.ObjectRevision:
		x.fx.Note = NoteStale
		return
	}
	previous := s.last()
	if previous != nil && Same(previous.Details, o.Details) {
		// It is discarded. That it was looked at is noted, so that an order from before it is known to be older.
		s.Generation, s.ObjectRevision, x.fx.Changed = o.Generation, o.ObjectRevision, true
		return
	}
	if len(s.Configurations) >= VersionsMax {
		x.fx.Note = NoteFull
		return
	}
	s.Generation, s.ObjectRevision, s.Policy = o.Generation, o.ObjectRevision, o.Policy
	c := Configuration{ID: env.ConfigurationID(s.ID, s.Versions), Version: s.Versions, CreatedAt: x.at, Details: o.Details}
	s.Versions++
	x.move(&c, Create)
	x.move(&c, Compute)
	if previous == nil {
		x.move(&c, OrderFirst)
		s.Current = c.ID
	} else {
		c.BlockedOn = previous.ID
		x.move(&c, OrderBehind)
		// Only the one that the monitoring system deals with is taken back: one that is itself blocked has its turn first.
		if !s.Policy.Queued && previous.ID == s.Current {
			x.move(previous, Supersede)
		}
	}
	s.Configurations = append(s.Configurations, c)
}

// task is what a monitoring system is to do with a configuration that it may fetch.
func (x *step) task(c *Configuration) Task {
	switch {
	case c.Status.rollsOut():
		return Rollout
	case x.s.Policy.TaskDelete && x.s.behind(c.ID) == nil:
		return Delete
	default:
		return Deprovision
	}
}

// fetch is seed 002, "fetch deployment". It does not clear the flag.
func (x *step) fetch() {
	c := x.s.Present()
	if c == nil || !x.move(c, Fetch) {
		x.fx.Note = NoteAbsent
		return
	}
	fetched := *c
	x.fx.Fetched, x.fx.Task = &fetched, x.task(c)
}

// feedback is seed 002, "deployment result".
func (x *step) feedback(event Event) {
	c := x.s.Present()
	if c == nil {
		x.fx.Note = NoteAbsent
		return
	}
	task := x.task(c)
	fetched := *c
	x.fx.Fetched, x.fx.Task = &fetched, task
	if !x.move(c, event) {
		x.fx.Note = NoteIllegal
	}
}

// list is seed 002, "list deployments" and "list all deployments": who is listed has its flag cleared.
func (x *step) list(listed bool) {
	x.fx.Listed = listed
	if !listed || !x.s.UpdateAvailable {
		return
	}
	x.s.UpdateAvailable, x.s.NotifiedAt, x.fx.Changed = false, x.at, true
}

// poked clears the flag, unless it was set again since the poke was derived.
func (x *step) poked(updates uint64) {
	switch {
	case !x.s.UpdateAvailable:
		x.fx.Note = NoteDuplicate
	case updates != x.s.Updates:
		x.fx.Note = NoteStale
	default:
		x.s.UpdateAvailable, x.s.NotifiedAt, x.fx.Changed = false, x.at, true
	}
}

// retry is an operator's (facts/soma.md section 2, row 22).
func (x *step) retry() {
	c := x.s.Present()
	if c == nil || !x.move(c, Retry) {
		x.fx.Note = NoteIllegal
	}
}
