package partition_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/wire"
)

// tell has a worker ask for a phase, or give it back. The answer comes when the owner has gone on.
func (f *fixture) tell(p bus.Phase, verb string, r wire.PhaseReport) *wire.PhaseHold {
	f.t.Helper()
	body, err := wire.EncodePhaseReport(r)
	require.NoError(f.t, err)
	answer := new(wire.PhaseHold)
	f.owner.Ask(bus.Request{Verb: verb, Body: body}.Of(p), func(_ map[string]string, body []byte) {
		*answer, err = wire.DecodePhaseHold(body)
		require.NoError(f.t, err)
	})
	return answer
}

func (f *fixture) hold(p bus.Phase, worker string) wire.PhaseHold {
	f.t.Helper()
	answer := f.tell(p, "hold", wire.PhaseReport{Worker: worker})
	f.shell.run(f.owner)
	return *answer
}

// homeOf is the owner of the records of kind node.
func homeOf(f *fleet) *fixture { return f.owners[f.home()] }

var old = bus.Phase{Project: "p", Kind: "node", Phase: "old"}

// TestAPhaseThatHasLeftIsHeldForItsWork (simulator, seed 188815128348130): a job walks by the blueprint that it pinned, so a phase
// that the present one has no more is called as long as anything is at it, and as often at a time as its own version allows.
func TestAPhaseThatHasLeftIsHeldForItsWork(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	two := `{"lifecycle":"node","states":["A"],"phases":[{"name":"old","states":["A"],"calls":2,"executor":{"plugin":{}}}]}`
	f.accept("Blueprint", "node", "apply", "first", two)
	f.accept("node", "n", "apply", "1", `{}`)
	f.accept("node", "n", "start", "2", "")
	f.accept("Blueprint", "node", "apply", "second", node("new"))
	for i, worker := range []string{"a", "b", "a"} {
		held := homeOf(f).hold(old, worker)
		require.True(t, held.Granted, "%d %s", i, held.Reason)
		require.Equal(t, 2, held.Calls)
	}
	require.Equal(t, "held by a, b", homeOf(f).hold(old, "c").Reason)
	f.accept("Blueprint", "node", "apply", "third", node("newer"))
	require.True(t, homeOf(f).hold(old, "a").Granted, "the version before knows it no more")
	f.complete("old")
	for range 4 {
		f.passed(time.Hour)
	}
	require.False(t, f.bound("old"))
	require.Equal(t, `the blueprint of kind "node" has no phase "old"`, homeOf(f).hold(old, "a").Reason)
}

// holding is an owner of one phase, whose clock is set by hand.
func holding(t *testing.T) (f *fixture, now *time.Time) {
	t.Helper()
	at := time.Now()
	f = serve(t, memory.New(memory.Options{Partitions: 1}), func() time.Time { return at })
	fleet := &fleet{t: t, owners: []*fixture{f, f, f}}
	fleet.accept("Blueprint", "node", "apply", "1", node("old"))
	return f, &at
}

func (f *fixture) tick() {
	f.owner.Tick()
	f.shell.run(f.owner)
}

// TestWhoIsHeardInTimeStays (simulator, seed 12489923163524): what a holder says while the log is slow is heard, though its lease
// ends before that is taken.
func TestWhoIsHeardInTimeStays(t *testing.T) {
	t.Parallel()
	f, now := holding(t)
	began := *now
	require.True(t, f.hold(old, "a").Granted)
	*now = began.Add(phase.Lease - 2*time.Second)
	first := f.tell(old, "hold", wire.PhaseReport{Worker: "a", Out: 1}) // an event, whose answer does not come
	*now = began.Add(phase.Lease - time.Second)
	second := f.tell(old, "hold", wire.PhaseReport{Worker: "a", Out: 1})
	*now = began.Add(phase.Lease + phase.Lease/10)
	f.owner.Tick()
	require.False(t, first.Granted || second.Granted, "the log is slow")
	f.shell.run(f.owner)
	require.True(t, first.Granted && second.Granted)
	require.Equal(t, "held by a", f.hold(old, "b").Reason)
	*now = began.Add(2*phase.Lease - time.Second)
	f.tick()
	require.True(t, f.hold(old, "b").Granted, "it was silent since")
}

// TestAnOwnerThatWasStoppedCannotTellWhoWasSilent (simulator, seed 12489923163647): who looks at a lease long after its end, or
// whose clock was set, gives its holder another; but one only.
func TestAnOwnerThatWasStoppedCannotTellWhoWasSilent(t *testing.T) {
	t.Parallel()
	f, now := holding(t)
	require.True(t, f.hold(old, "a").Granted)
	*now = now.Add(time.Minute)
	f.tick()
	require.Equal(t, "held by a", f.hold(old, "b").Reason)
	*now = now.Add(time.Minute)
	f.tick()
	require.True(t, f.hold(old, "b").Granted)
}

// TestWhoIsSilentHoldsNoMore: a lease is as long as it says, and is renewed without an event.
func TestWhoIsSilentHoldsNoMore(t *testing.T) {
	t.Parallel()
	f, now := holding(t)
	require.True(t, f.hold(old, "a").Granted)
	for range 10 {
		*now = now.Add(phase.Lease - time.Millisecond)
		f.tick()
		require.True(t, f.hold(old, "a").Granted)
		require.Equal(t, "held by a", f.hold(old, "b").Reason)
	}
	*now = now.Add(phase.Lease - time.Millisecond)
	f.tick()
	require.Equal(t, "held by a", f.hold(old, "b").Reason)
	*now = now.Add(time.Millisecond)
	f.tick()
	require.True(t, f.hold(old, "b").Granted)
	history, err := f.link.History(t.Context(), bus.Entity{Partition: old.Partition(1), Family: bus.PhaseRecord, Project: "p", Kind: "node", Name: "old"})
	require.NoError(t, err)
	require.Len(t, history, 3, "a holds it, nobody, b")
}

// TestAClockThatIsSetBackMakesNoLeaseLonger (simulator, seed 203099695918420): who is gone holds a phase for no longer because the
// owner's clock was ahead when it was last heard.
func TestAClockThatIsSetBackMakesNoLeaseLonger(t *testing.T) {
	t.Parallel()
	f, now := holding(t)
	require.True(t, f.hold(old, "a").Granted)
	*now = now.Add(-time.Hour)
	f.sweep()
	*now = now.Add(phase.Lease - time.Millisecond)
	f.tick()
	require.Equal(t, "held by a", f.hold(old, "b").Reason)
	*now = now.Add(time.Millisecond)
	f.tick()
	require.True(t, f.hold(old, "b").Granted)
}

// TestAFollowerDoesNotSayWhoHoldsAPhase: that a holder goes on is no event, so it is believed of the log's leader alone.
func TestAFollowerDoesNotSayWhoHoldsAPhase(t *testing.T) {
	t.Parallel()
	sys := memory.New(memory.Options{Partitions: 1})
	f := serve(t, sys, time.Now)
	(&fleet{t: t, owners: []*fixture{f, f, f}}).accept("Blueprint", "node", "apply", "1", node("old"))
	require.True(t, f.hold(old, "a").Granted)
	record := bus.Entity{Partition: old.Partition(1), Family: bus.PhaseRecord, Project: "p", Kind: "node", Name: "old"}
	then, err := f.link.Conn.Last(t.Context(), []bus.Entity{record})
	require.NoError(t, err)
	f.tell(old, "release", wire.PhaseReport{Worker: "a"})
	f.shell.run(f.owner)
	require.True(t, f.hold(old, "b").Granted)
	next := serve(t, sys, time.Now)
	next.link.last = func(entities []bus.Entity, out []bus.Stored) {
		if entities[0] == record {
			out[0] = then[0]
		}
	}
	require.Equal(t, "held by b", next.hold(old, "a").Reason)
	require.True(t, next.hold(old, "b").Granted)
}

// TestANewOwnerLeavesHoldersTheirLease: who holds a phase goes on when another owner takes over, and one that is gone holds it for
// one lease more.
func TestANewOwnerLeavesHoldersTheirLease(t *testing.T) {
	t.Parallel()
	at := time.Now()
	now := func() time.Time { return at }
	sys := memory.New(memory.Options{Partitions: 1})
	f := serve(t, sys, now)
	(&fleet{t: t, owners: []*fixture{f, f, f}}).accept("Blueprint", "node", "apply", "1", node("old"))
	require.True(t, f.hold(old, "a").Granted)
	at = at.Add(phase.Lease - time.Millisecond)
	next := serve(t, sys, now)
	at = at.Add(phase.Lease - time.Millisecond)
	next.tick()
	require.Equal(t, "held by a", next.hold(old, "b").Reason)
	at = at.Add(time.Millisecond)
	next.tick()
	require.True(t, next.hold(old, "b").Granted)
}
