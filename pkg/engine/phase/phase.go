// Package phase is what the workers of a phase as a whole are doing: who may call it, and its activity (seed 003, "Phase
// Records"). What the phase means for each resource is package resource's.
//
// # Who may call
//
// A worker calls a phase only while it holds it. One may hold it at a time unless the blueprint allows more (Phase.Calls);
// a phase without that limit is held by all who ask. Who is silent for a lease (State.HoldLease) holds it no more: the shell, which alone knows
// the time, says so (Input.Silent). A lease guards work from being called twice at once, not states from being written
// twice: that is what fences are for, and in a failover two may hold a phase for a moment.
//
// # Activity
//
//	Inactive    no resource is with a worker, and none sleeps
//	Running     a worker has resources
//	Canceling   a worker has resources, and none of their calls is wanted any more
//	Sleeping    no worker has resources, and some are to be called again at a time
//
//	from        a call begins   its calls are canceled   it ends: more is there   some sleep   none are left   the last has slept
//	Inactive    Running         –                        –                        –            –               –
//	Sleeping    Running         –                        –                        Sleeping     –               Inactive
//	Running     Running         Canceling                Running                  Sleeping     Inactive        –
//	Canceling   Running         Canceling                Running                  Sleeping     Inactive        –
//
// The three ways in which a run ends are seed 003's. Where several hold the phase, what is said of all their calls decides; and
// where a word is late, two of these columns come as one. Workers say what they have after every run that lasts longer than a
// blink, and every few seconds; what begins and ends in between costs no event.
package phase

import (
	"cmp"
	"slices"
	"time"
)

// Limits and times.
const (
	// LeaseDefault is how long who holds a phase may be silent, where its blueprint says nothing else: a killed worker's phase
	// stands still that long.
	LeaseDefault = 6 * time.Second
	// LeaseMin is the least that a blueprint can make it, since three reports must fit into it on a busy machine.
	LeaseMin = 2 * time.Second
	// RecordEvery is how often counts alone are recorded.
	RecordEvery = time.Second
	// HoldersMax is how many holders a record names; more may hold a phase that has no limit, unnamed.
	HoldersMax = 64
	// WorkerBytesMax is the length of a worker's name.
	WorkerBytesMax = 128
	// CallsMax is the most calls at a time that a blueprint may allow.
	CallsMax = HoldersMax
	// Slack is how much later than it is due a resource may be called again and still be called sleeping.
	Slack = 5 * time.Second
)

// Activity of a phase as a whole.
type Activity uint8

// The activities.
const (
	None Activity = iota // of a record that is not there yet
	Inactive
	Running
	Canceling
	Sleeping
)

var activities = [...]string{"", "Inactive", "Running", "Canceling", "Sleeping"}

func (a Activity) String() string { return activities[a] }

// Activities lists those of a record.
func Activities() []Activity { return []Activity{Inactive, Running, Canceling, Sleeping} }

// Counts of what was done, since the record was made, as far as it was told: what a worker did after its last word before it was
// killed is not counted. Where a word comes so late that its worker has been found silent since, what it did meanwhile may be
// counted twice.
type Counts struct {
	Calls     uint64 // calls of the plugin
	Resources uint64 // that it was given, each call counted
	Completed uint64
	Failed    uint64
	Pending   uint64 // to be called again
	Exceeded  uint64 // calls that were ended since they had passed their limit
}

func (c Counts) minus(o Counts) Counts {
	return Counts{
		Calls: c.Calls - o.Calls, Resources: c.Resources - o.Resources,
		Completed: c.Completed - o.Completed, Failed: c.Failed - o.Failed, Pending: c.Pending - o.Pending, Exceeded: c.Exceeded - o.Exceeded,
	}
}

func (c Counts) plus(o Counts) Counts {
	return Counts{
		Calls: c.Calls + o.Calls, Resources: c.Resources + o.Resources,
		Completed: c.Completed + o.Completed, Failed: c.Failed + o.Failed, Pending: c.Pending + o.Pending, Exceeded: c.Exceeded + o.Exceeded,
	}
}

// most is the greater of each: a worker's counts only grow, so of two reports the later has the greater.
func (c Counts) most(o Counts) Counts {
	return Counts{
		Calls: max(c.Calls, o.Calls), Resources: max(c.Resources, o.Resources),
		Completed: max(c.Completed, o.Completed), Failed: max(c.Failed, o.Failed), Pending: max(c.Pending, o.Pending), Exceeded: max(c.Exceeded, o.Exceeded),
	}
}

// Holder is a worker that holds the phase.
type Holder struct {
	Worker    string
	Since     time.Time
	Out       uint32 // resources that it has
	Canceling uint32 // of them, those whose calls are not wanted any more
	// Base is what it had counted when it began to hold the phase, and Counts what it has counted now. A worker that was
	// silent and comes back goes on counting where it was.
	Base, Counts Counts
}

// State is the record of a phase.
type State struct {
	Project, Kind, Phase string

	Activity Activity
	// ActiveSince is when the activity became what it is.
	ActiveSince time.Time
	Holders     []Holder // sorted by name
	// Before is the counts of those who held it before.
	Before Counts
	// LastCallAt is when the latest call began, by the clock of its worker.
	LastCallAt time.Time
	// WakeAt is when the next sleeping resource is due, as far as workers know, and WakeUntil when the last is.
	WakeAt, WakeUntil time.Time
	// Lease is what the blueprint said of it when the phase was granted last; 0: nothing. It is in the record so that who takes
	// over waits for silent holders as long as who granted them the phase has promised.
	Lease     time.Duration
	Revision  uint64
	UpdatedAt time.Time
}

// HoldLease is how long a holder may be silent, by what the blueprint says of the phase's lease; 0: nothing.
func HoldLease(lease time.Duration) time.Duration {
	if lease <= 0 {
		return LeaseDefault
	}
	return max(lease, LeaseMin)
}

// HoldLease is how long the record's holders may be silent.
func (s *State) HoldLease() time.Duration { return HoldLease(s.Lease) }

// Counts of all who hold it or held it.
func (s State) Counts() Counts {
	sum := s.Before
	for i := range s.Holders {
		sum = sum.plus(s.Holders[i].Counts.minus(s.Holders[i].Base))
	}
	return sum
}

// holder returns the index of a worker among the holders, and whether it is there.
func (s *State) holder(worker string) (int, bool) {
	return slices.BinarySearchFunc(s.Holders, worker, func(h Holder, w string) int { return cmp.Compare(h.Worker, w) })
}

// Due is when the record changes by itself: when the last that sleeps is long overdue, and so was canceled or deleted.
// Zero: it does not.
func (s *State) Due() time.Time {
	if s.Activity != Sleeping {
		return time.Time{}
	}
	return s.WakeUntil.Add(Slack)
}

// Report is what a worker says of itself. Its counts are since it began, and never shrink.
type Report struct {
	Worker    string
	Out       uint32
	Canceling uint32
	Counts    Counts
	// LastCallAt, WakeAt and WakeUntil: zero where there was none.
	LastCallAt, WakeAt, WakeUntil time.Time
}

// Input is one thing that a record is told. Of Hold, Release and Silent at most one is set; none: its time has come.
type Input struct {
	At time.Time
	// Calls is how many may hold the phase; 0: all who ask. Lease is what the blueprint says of it; 0: nothing. Both are of
	// Hold.
	Calls   int
	Lease   time.Duration
	Hold    *Report  // a worker asks for the phase, or goes on holding it
	Release *Report  // it holds it no more
	Silent  []string // workers that were silent for longer than their lease
}

// Reply answers Hold.
type Reply struct {
	Granted bool
	Holders []Holder // where it was not granted: who holds it
}

// Step decides on one input. It returns the state as it was where nothing is to be recorded.
func Step(s State, in Input) (after State, reply Reply, changed bool) {
	at := in.At
	if at.Before(s.UpdatedAt) {
		at = s.UpdatedAt
	}
	if s.Revision == 0 && in.Hold == nil {
		return s, Reply{}, false // of what nobody ever asked for there is no record
	}
	after = s
	after.Holders = slices.Clone(s.Holders)
	switch {
	case in.Hold != nil:
		reply.Granted = after.hold(in.Hold, in.Calls, at)
		if !reply.Granted {
			return s, Reply{Holders: slices.Clone(s.Holders)}, false
		}
		after.Lease = in.Lease
	case in.Release != nil:
		i, ok := after.holder(in.Release.Worker)
		if !ok {
			return s, Reply{}, false // it was found silent before, or the word comes late
		}
		after.heard(i, in.Release)
		after.leave(i)
	default:
		for _, w := range in.Silent {
			if i, ok := after.holder(w); ok {
				after.leave(i)
			}
		}
	}
	after.settle(at)
	if !s.worthRecording(&after, at) {
		return s, reply, false
	}
	after.Revision++
	after.UpdatedAt = at
	return after, reply, true
}

func (s *State) hold(r *Report, calls int, at time.Time) bool {
	i, ok := s.holder(r.Worker)
	switch {
	case ok:
	case calls > 0 && len(s.Holders) >= calls:
		return false
	case len(s.Holders) >= HoldersMax:
		return true
	default:
		s.Holders = slices.Insert(s.Holders, i, Holder{Worker: r.Worker, Since: at, Base: r.Counts, Counts: r.Counts})
	}
	s.heard(i, r)
	return true
}

// heard takes a report of a holder.
func (s *State) heard(i int, r *Report) {
	h := &s.Holders[i]
	h.Out, h.Canceling = r.Out, min(r.Canceling, r.Out)
	h.Counts = h.Counts.most(r.Counts)
	if r.LastCallAt.After(s.LastCallAt) {
		s.LastCallAt = r.LastCallAt
	}
	if !r.WakeAt.IsZero() {
		s.WakeAt = r.WakeAt
	}
	if r.WakeUntil.After(s.WakeUntil) {
		s.WakeUntil = r.WakeUntil
	}
}

func (s *State) leave(i int) {
	s.Before = s.Before.plus(s.Holders[i].Counts.minus(s.Holders[i].Base))
	s.Holders = slices.Delete(s.Holders, i, i+1)
}

// settle makes the activity what the holders and the sleepers make it.
func (s *State) settle(at time.Time) {
	var out, canceling uint32
	for i := range s.Holders {
		out += s.Holders[i].Out
		canceling += s.Holders[i].Canceling
	}
	now := Inactive
	switch {
	case out > 0 && canceling == out:
		now = Canceling
	case out > 0:
		now = Running
	case at.Before(s.WakeUntil.Add(Slack)) && !s.WakeUntil.IsZero():
		now = Sleeping
	default:
		s.WakeAt, s.WakeUntil = time.Time{}, time.Time{}
	}
	if now != s.Activity || s.ActiveSince.IsZero() {
		s.Activity, s.ActiveSince = now, at
	}
}

// worthRecording reports whether after is to be an event: always where who holds the phase, for how long, its activity or what
// that is made of differs, and counts and times at a measured pace.
func (s *State) worthRecording(after *State, at time.Time) bool {
	same := func(a, b Holder) bool {
		return a.Worker == b.Worker && a.Out > 0 == (b.Out > 0) && a.Out > a.Canceling == (b.Out > b.Canceling)
	}
	switch {
	case s.Activity != after.Activity, s.Lease != after.Lease, !slices.EqualFunc(s.Holders, after.Holders, same):
		return true
	case at.Sub(s.UpdatedAt) < RecordEvery:
		return false
	}
	return !slices.Equal(s.Holders, after.Holders) || s.LastCallAt != after.LastCallAt || s.WakeAt != after.WakeAt || s.WakeUntil != after.WakeUntil
}
