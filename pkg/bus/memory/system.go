// Package memory is a whole system of the bus in memory: the same ports as bus/jetstream, with the same promises, for
// tests and for the simulator. bus/bustest holds both to them.
//
// # What it is not
//
// It is not durable, and it is kinder than a server: nothing is lost, an append is answered at once and never with
// bus.ErrUnknownOutcome, buckets, feed and work follow an append without delay, and each member knows of each change at
// once, but for a silent death (Conn.Kill).
//
// # One thread
//
// No call starts a goroutine but WatchBucket, and none waits for anything but Fetch with a wait, ReadOutput that
// follows, and Ask and Request whose handler does not answer before it returns. Callbacks (Follow, OnTick) run on the
// goroutine whose call caused them, after the call's effect, one after another in the order of the log; if another
// goroutine is running them already, that one runs these too. With a Clock of its own a simulator is therefore
// deterministic. With Options.Trail buckets, feed and work trail the log, as a server's do.
package memory

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// Options of a system. The zero value of each field is as its comment says.
type Options struct {
	// Partitions of the system. Zero: bus.Partitions.
	Partitions int
	// Clock of the system. Nil: the machine's.
	Clock Clock
	// CommandMessages and ResultMessages are how many inputs may be unsettled; past it: ErrFull. Zero: 1,000,000.
	CommandMessages, ResultMessages int
	// InputAckWait, WorkAckWait and TombstoneTTL are as in bus/jetstream. Zero: 5 s, 6 s, 1 h.
	InputAckWait, WorkAckWait, TombstoneTTL time.Duration
	// OutputBytes is how much output is kept. Zero: 64 MiB.
	OutputBytes int
	// Trail is how long after an event its bucket and the feed show it, and WORK holds it; asked for each event, in the
	// order of the log, which both keep. Nil: at once.
	Trail func() (bucket, work time.Duration)
}

// System is what the connections share: the server. Safe for concurrent use.
type System struct {
	options Options
	clock   Clock

	mu        sync.Mutex
	seq       uint64
	entities  map[bus.Entity]*history
	buckets   map[bus.Family]map[string]bus.Stored
	followers []*follower
	listeners []*listener // in the order in which those of a group are served next
	watches   []*watch
	commands  *stream
	results   *stream
	work      *stream
	shown     trail                // events on their way to the buckets and the feed
	handed    trail                // events on their way to WORK
	phases    map[string]struct{}  // consumers of WORK, by name
	polls     map[string]time.Time // when a poll's key was used
	asks      []*askServer         // newest last
	apis      []*apiServer
	apiNext   int
	notices   []Message
	refusals  []Message
	poison    []Message
	ticks     []*ticker
	members   map[string][]*membership // by service
	output    outputLines

	callbacks []func() // to be run by run, in order
	running   bool
}

// Message is what a stream without a reader in the bus's ports holds.
type Message struct {
	Subject string
	Header  map[string]string
	Body    []byte
}

// New makes an empty system.
func New(o Options) *System {
	or := func(v *time.Duration, otherwise time.Duration) { *v = cmp.Or(*v, otherwise) }
	o.Partitions = cmp.Or(o.Partitions, bus.Partitions)
	o.CommandMessages = cmp.Or(o.CommandMessages, 1_000_000)
	o.ResultMessages = cmp.Or(o.ResultMessages, 1_000_000)
	o.OutputBytes = cmp.Or(o.OutputBytes, 64<<20)
	or(&o.InputAckWait, 5*time.Second)
	or(&o.WorkAckWait, bus.WorkAckWaitDefault)
	or(&o.TombstoneTTL, time.Hour)
	if o.Clock == nil {
		o.Clock = realClock{}
	}
	s := &System{
		options: o, clock: o.Clock,
		entities: map[bus.Entity]*history{}, buckets: map[bus.Family]map[string]bus.Stored{},
		phases: map[string]struct{}{}, polls: map[string]time.Time{}, members: map[string][]*membership{},
	}
	for _, f := range bus.Families() {
		s.buckets[f] = map[string]bus.Stored{}
	}
	s.commands = newStream(s, "COMMANDS", o.InputAckWait, o.CommandMessages)
	s.results = newStream(s, "RESULTS", o.InputAckWait, o.ResultMessages)
	s.work = newStream(s, "WORK", o.WorkAckWait, 0)
	return s
}

// Connect makes a connection; each process of a test has its own.
func (s *System) Connect() *Conn { return &Conn{s: s, done: make(chan struct{})} }

// Tick fires a tick: the system has no schedules of its own.
func (s *System) Tick(t bus.Tick, at time.Time) {
	s.mu.Lock()
	for _, k := range s.ticks {
		if k.tick == t {
			s.callbacks = append(s.callbacks, func() { k.each(at) })
		}
	}
	s.mu.Unlock()
	s.run()
}

// Poison lists what was set aside, of all streams, oldest first. Its subject is drover.poison.<stream>.
func (s *System) Poison() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.poison)
}

// Unsettled lists what WORK and RESULTS hold, each in its order.
func (s *System) Unsettled() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Message
	for _, st := range []*stream{s.work, s.results} {
		var seqs []uint64
		held := map[uint64]*item{}
		for _, q := range st.queues {
			for seq, i := range q.items {
				seqs, held[seq] = append(seqs, seq), i
			}
		}
		slices.Sort(seqs)
		for _, seq := range seqs {
			i := held[seq]
			all = append(all, Message{Subject: i.subject, Header: maps.Clone(i.header), Body: slices.Clone(i.body)})
		}
	}
	return all
}

// Refusals lists the published refusals, oldest first.
func (s *System) Refusals() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refusals)
}

// Notices lists what was published by Notify, oldest first.
func (s *System) Notices() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notices)
}

// run runs the callbacks that are due. The lock must not be held.
func (s *System) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return // whoever runs them will see ours
	}
	s.running = true
	defer func() { s.running = false }()
	for len(s.callbacks) > 0 {
		f := s.callbacks[0]
		s.callbacks = s.callbacks[1:]
		func() {
			s.mu.Unlock()
			defer s.mu.Lock()
			f()
		}()
	}
}

// remove drops an element. The lock must be held.
func remove[T comparable](list []T, e T) []T {
	if i := slices.Index(list, e); i >= 0 {
		return slices.Delete(slices.Clone(list), i, i+1)
	}
	return list
}

var errSettled = errors.New("the delivery was settled before")

type ticker struct {
	tick bus.Tick
	each func(time.Time)
}
