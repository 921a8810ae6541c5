// Package bustest is the one conformance suite of the bus: whatever implements bus.Bus passes Exercise, so that a test
// or a simulation on bus/memory says something about bus/jetstream.
package bustest

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// Fixture is a system to be exercised. It must have been created with Partitions, CommandMessages, TombstoneTTL and
// the ack waits below. A nil function is a capability that the system lacks: what needs it is skipped.
type Fixture struct {
	// Connect makes a further connection; whoever opens the fixture closes it.
	Connect func(t *testing.T) bus.Bus
	// Stored lists what a stream without a reader in the bus's ports holds under a subject, oldest first: poison and
	// refusals.
	Stored func(t *testing.T, stream, subject string) []Message
	// OnNotice calls each with what is published under drover.notice.
	OnNotice func(t *testing.T, each func(Message))
	// LostByBoth says that of two writers with the same expectation none may win, as on several servers: the leader
	// refuses whoever comes while an append to the same entity is being replicated, even the one that is done.
	LostByBoth bool
	// Tick fires a tick. Nil: the system fires them by itself.
	Tick func(tick bus.Tick, at time.Time)
	// Kill ends a connection that Connect made, without a word to anybody.
	Kill func(t *testing.T, b bus.Bus)
	// Restart ends each server and starts it again, one after another. Connections live on.
	Restart func(t *testing.T)
	// MoveLeader makes another server lead a stream.
	MoveLeader func(t *testing.T, stream string)
	// Spoil changes one setting of EVENTS that Setup may repair, and one that it may not, behind the bus's back. It
	// returns their names.
	Spoil func(t *testing.T) (repairable, not string)
}

// Message is a stored message.
type Message struct {
	Subject string
	Header  map[string]string
	Body    []byte
}

// How a system under test is made.
const (
	Partitions      = 4
	CommandMessages = 64
	TombstoneTTL    = time.Second
	InputAckWait    = 2 * time.Second
	WorkAckWait     = 2 * time.Second
	SourceSettle    = 300 * time.Millisecond
)

// patience is how long anything may take that must happen. After a restart the server may wait 12 s, and then 22 s, before
// it goes on to derive streams from EVENTS (its own backoff, nats-server 2.15.2).
const patience = 45 * time.Second

// suite is one run of Exercise.
type suite struct {
	Fixture
	b bus.Bus // most tests use this one
}

// Exercise runs the whole suite on one system. The parts that shake it come last.
func Exercise(t *testing.T, open func(t *testing.T) Fixture) {
	f := open(t)
	s := &suite{Fixture: f, b: f.Connect(t)}
	for _, part := range []struct {
		name string
		test func(t *testing.T)
	}{
		{"CheckMakesNothing", s.checkMakesNothing},
		{"SetupByMany", s.setupByMany},
		{"RaceOfTwoWriters", s.raceOfTwoWriters},
		{"RaceWithMixedTails", s.raceWithMixedTails},
		{"PipelinedAppends", s.pipelinedAppends},
		{"RefusedAppends", s.refusedAppends},
		{"Batches", s.batches},
		{"BatchesRace", s.batchesRace},
		{"Versions", s.versions},
		{"LastOfMany", s.lastOfMany},
		{"Current", s.current},
		{"Scan", s.scan},
		{"Readers", s.readers},
		{"Watch", s.watch},
		{"Feed", s.feed},
		{"History", s.history},
		{"Forget", s.forget},
		{"ForgetAndReuse", s.forgetAndReuse},
		{"ScanKind", s.scanKind},
		{"Drop", s.drop},
		{"Work", s.work},
		{"WorkRedelivery", s.workRedelivery},
		{"WorkShared", s.workShared},
		{"WorkWaits", s.workWaits},
		{"WorkBytes", s.workBytes},
		{"Polls", s.polls},
		{"Outstanding", s.outstanding},
		{"RemovePhase", s.removePhase},
		{"CommandsInOrder", s.commandsInOrder},
		{"InputRedelivery", s.inputRedelivery},
		{"Poison", s.poison},
		{"ForeignHeaders", s.foreignHeaders},
		{"InboxPutsBack", s.inboxPutsBack},
		{"Results", s.results},
		{"Refusals", s.refusals},
		{"Asks", s.asks},
		{"AsksOfPhases", s.asksOfPhases}, {"Callbacks", s.callbacks},
		{"API", s.api},
		{"Notify", s.notify},
		{"Notices", s.notices},
		{"Ticks", s.ticks},
		{"Members", s.members},
		{"Declines", s.declines},
		{"SilentDeath", s.silentDeath},
		{"Output", s.output},
		{"FullStream", s.fullStream},
		{"Closed", s.closed},
		{"Restart", s.restart},
		{"LeaderMoves", s.leaderMoves},
		{"Drift", s.drift},
	} {
		t.Run(part.name, part.test)
	}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until condition holds.
func eventually(t *testing.T, condition func() bool, about string) {
	t.Helper()
	require.Eventually(t, condition, patience, 5*time.Millisecond, about)
}

// resource is an entity of this test's own project, in the partition of its tree.
func resource(t *testing.T, name string) bus.Entity {
	project := t.Name()
	return bus.Entity{Partition: bus.PartitionOf(project, "node", name, Partitions), Family: bus.Resource, Project: project, Kind: "node", Name: name}
}

// append stores an event that must be accepted. Where a sole writer can lose (LostByBoth) it does what pkg/drive does: it
// loads again, and tries again on what it finds.
func (s *suite) append(t *testing.T, a bus.Append) uint64 {
	t.Helper()
	seq, err := s.b.Append(a).Result()
	for end := time.Now().Add(patience); s.LostByBoth && time.Now().Before(end) &&
		(errors.Is(err, bus.ErrLost) || errors.Is(err, bus.ErrUnknownOutcome)); {
		switch last := s.last(t, a.Entity); {
		case last.Seq == a.Expect:
			seq, err = s.b.Append(a).Result()
		case last.Seq > a.Expect && last.Dispatch == a.Dispatch && last.Version == a.Version && bytes.Equal(last.Body, a.Body):
			return last.Seq // it was stored, and the answer was lost
		}
	}
	require.NoError(t, err)
	require.NotZero(t, seq)
	return seq
}

// warm waits until a follower of this test's feed hears: its interest has reached the servers. What it heard is taken
// from seen.
func (s *suite) warm(t *testing.T, seen <-chan bus.Stored) {
	t.Helper()
	e := resource(t, "warm")
	seq := s.last(t, e).Seq
	eventually(t, func() bool {
		seq = s.append(t, bus.Append{Entity: e, Expect: seq})
		for {
			select {
			case m := <-seen:
				if m.Seq == seq { // all before it came, or will not come
					return true
				}
			case <-time.After(200 * time.Millisecond):
				return false
			}
		}
	}, "the feed is heard")
}

func (s *suite) last(t *testing.T, e bus.Entity) bus.Stored {
	t.Helper()
	got, err := s.b.Last(within(t), []bus.Entity{e})
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, e, got[0].Entity)
	return got[0]
}

// lastIs waits until the last event of an entity is the one with a sequence (0: there is none), whichever server answers: a
// follower may be behind, each request may go to another, and none goes back. So many answers in a row miss one of three servers
// one time in three thousand.
func (s *suite) lastIs(t *testing.T, e bus.Entity, seq uint64) (last bus.Stored) {
	t.Helper()
	eventually(t, func() bool {
		for range 20 {
			if last = s.last(t, e); last.Seq != seq {
				require.True(t, seq == 0 || last.Seq < seq, "the last event of %s is %d, which is later than %d", e.Key(), last.Seq, seq)
				return false
			}
		}
		return true
	}, "the last event is the one that was acknowledged")
	return last
}

// receive takes the next from a channel.
func receive[T any](t *testing.T, c <-chan T, about string) T {
	t.Helper()
	select {
	case v, ok := <-c:
		require.True(t, ok, "closed: "+about)
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came: "+about)
		panic("unreachable")
	}
}

// silent checks that nothing comes for a while. It can only find a fault, not prove that there is none.
func silent[T any](t *testing.T, c <-chan T, about string) {
	t.Helper()
	select {
	case v := <-c:
		require.FailNow(t, about, "%v", v)
	case <-time.After(100 * time.Millisecond):
	}
}
