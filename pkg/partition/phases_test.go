package partition_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/partition"
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
	*now = began.Add(phase.LeaseDefault - 2*time.Second)
	first := f.tell(old, "hold", wire.PhaseReport{Worker: "a", Out: 1}) // an event, whose answer does not come
	*now = began.Add(phase.LeaseDefault - time.Second)
	second := f.tell(old, "hold", wire.PhaseReport{Worker: "a", Out: 1})
	*now = began.Add(phase.LeaseDefault + phase.LeaseDefault/10)
	f.owner.Tick()
	require.False(t, first.Granted || second.Granted, "the log is slow")
	f.shell.run(f.owner)
	require.True(t, first.Granted && second.Granted)
	require.Equal(t, "held by a", f.hold(old, "b").Reason)
	*now = began.Add(2*phase.LeaseDefault - time.Second)
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
		*now = now.Add(phase.LeaseDefault - time.Millisecond)
		f.tick()
		require.True(t, f.hold(old, "a").Granted)
		require.Equal(t, "held by a", f.hold(old, "b").Reason)
	}
	*now = now.Add(phase.LeaseDefault - time.Millisecond)
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
	*now = now.Add(phase.LeaseDefault - time.Millisecond)
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
	at = at.Add(phase.LeaseDefault - time.Millisecond)
	next := serve(t, sys, now)
	at = at.Add(phase.LeaseDefault - time.Millisecond)
	next.tick()
	require.Equal(t, "held by a", next.hold(old, "b").Reason)
	at = at.Add(time.Millisecond)
	next.tick()
	require.True(t, next.hold(old, "b").Granted)
}

// hold asks for the phase "one" of nodes.
func (f *fleet) hold(worker string) (answer wire.PhaseHold) {
	f.t.Helper()
	body, err := wire.EncodePhaseReport(wire.PhaseReport{Worker: worker})
	require.NoError(f.t, err)
	o := f.owners[f.home()]
	o.owner.Ask(bus.Request{Verb: "phase.hold", Phase: bus.Phase{Project: "p", Kind: "node", Phase: "one"}, Body: body},
		func(_ map[string]string, body []byte) {
			answer, err = wire.DecodePhaseHold(body)
			require.NoError(f.t, err)
		})
	o.shell.run(o.owner)
	return answer
}

// later lets a time pass, and lets the owner look at the clock.
func (f *fleet) later(d time.Duration) {
	f.clock = f.clock.Add(d)
	o := f.owners[f.home()]
	o.owner.Tick()
	o.shell.run(o.owner)
}

func leased(lease string) string {
	return fmt.Sprintf(`{"lifecycle":"node","states":["A"],"phases":[{"name":"one","states":["A"],"lease":%q,"executor":{"plugin":{}}}]}`, lease)
}

// How long a phase stands still when its holder is killed is the phase's lease, also where its owner is killed with it.
func TestAHolderIsSilentForALease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec       string
		hold, call time.Duration
	}{
		{node("one"), phase.LeaseDefault, 30 * time.Second},
		{leased("2m"), 2 * time.Minute, 2 * time.Minute},
		{leased("500ms"), phase.LeaseMin, 500 * time.Millisecond},
	} {
		for _, ownerDies := range []bool{false, true} {
			f := newFleet(t)
			f.accept("Blueprint", "node", "apply", "1", c.spec)
			granted := f.hold("killed")
			require.True(t, granted.Granted, granted.Reason)
			require.Equal(t, []time.Duration{c.hold, c.call}, []time.Duration{granted.Lease, granted.CallLease})
			f.later(c.hold / 2)
			require.True(t, f.hold("killed").Granted, "it goes on holding it")
			f.later(c.hold - time.Second)
			if ownerDies {
				f.owners[f.home()] = f.prepare(f.home())
				f.takeOver(f.home())
				f.later(c.hold - time.Second)
			}
			refused := f.hold("next")
			require.False(t, refused.Granted, "the lease is not over")
			require.Equal(t, []string{"killed"}, refused.Holders)
			f.later(2 * time.Second)
			require.True(t, f.hold("next").Granted, "%s later", c.hold)
		}
	}
}

// A lease that is made shorter holds for a holder that is dead already, and one that is taken away is the default again.
func TestALeaseIsChanged(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "1", leased("20h"))
	require.True(t, f.hold("killed").Granted)
	f.later(time.Hour)
	require.False(t, f.hold("next").Granted)
	f.accept("Blueprint", "node", "apply", "2", node("one"))
	f.later(time.Second) // the blueprint is taken from memory for a moment
	require.False(t, f.hold("next").Granted)
	f.later(phase.LeaseDefault)
	require.True(t, f.hold("next").Granted)
	f.later(phase.LeaseDefault + time.Second)
	require.True(t, f.hold("third").Granted)
}

// TestWhoLivesKeepsAPhaseWhoseLeaseIsMadeShorter (simulator, seed 206752390160907): a holder reports as often as the lease that it
// was granted asks for, and hears of a shorter one by its next report.
func TestWhoLivesKeepsAPhaseWhoseLeaseIsMadeShorter(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "1", leased("20s"))
	require.True(t, f.hold("lives").Granted)
	f.accept("Blueprint", "node", "apply", "2", leased("500ms"))
	f.later(time.Second) // the blueprint is taken from memory for a moment
	require.False(t, f.hold("next").Granted)
	f.later(phase.LeaseMin + time.Second)
	require.False(t, f.hold("next").Granted)
	require.True(t, f.hold("lives").Granted)
	f.later(phase.LeaseMin + time.Second)
	require.True(t, f.hold("next").Granted, "now it knows")
}

// TestAShorterLeaseThatIsNotHeardOf (simulator, seed 8281802017397): the answer that shortens a lease was lost, and its holder goes by
// the one before.
func TestAShorterLeaseThatIsNotHeardOf(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "1", leased("5s"))
	require.True(t, f.hold("lives").Granted) // for 5 s
	f.accept("Blueprint", "node", "apply", "2", leased("500ms"))
	f.later(time.Second)
	require.True(t, f.hold("lives").Granted, "and is not told")
	f.sweep()
	f.later(phase.LeaseMin + time.Second)
	require.False(t, f.hold("next").Granted)
	f.later(time.Second)
	require.True(t, f.hold("next").Granted)
}

// TestALateReleaseIsNotHeard (simulator, seeds 54763307842717 and 54763307847951): what a worker said before it asked for the phase
// again does not take the phase from it.
func TestALateReleaseIsNotHeard(t *testing.T) {
	t.Parallel()
	f, _ := holding(t)
	say := func(verb string, order uint64) bool {
		answer := f.tell(old, verb, wire.PhaseReport{Worker: "a", Order: order})
		f.shell.run(f.owner)
		return answer.Granted
	}
	require.True(t, say("hold", 10))
	require.True(t, say("hold", 12))
	say("release", 11)
	require.Equal(t, "held by a", f.hold(old, "b").Reason)
	say("release", 13)
	require.True(t, f.hold(old, "b").Granted)
	require.False(t, say("hold", 14))
}

// TestWhatALateOwnerLeavesOfAPhaseGoes (simulator, seed 206895283325483): when no version has a phase any more, its consumer and a
// poll that a late owner has made go with its record. No worker would get the phase to take that.
func TestWhatALateOwnerLeavesOfAPhaseGoes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	one := bus.Phase{Project: "p", Kind: "node", Phase: "one"}
	f.accept("Blueprint", "node", "apply", "first", node("one"))
	require.True(t, f.hold("w").Granted)
	f.later(phase.LeaseDefault) // it is silent, and holds it no more
	for i := range partition.VersionsKept + 2 {
		f.accept("Blueprint", "node", "apply", fmt.Sprint(i), node("always", fmt.Sprint("then", i)))
	}
	began := f.clock
	for f.bound("one") || len(f.versions()) > 1+partition.VersionsKept {
		require.Less(t, f.clock.Sub(began), 50*time.Minute, "its record goes an hour after its last holder")
		f.passed(20 * time.Second)
	}
	require.NoError(t, f.look.EnsurePhase(t.Context(), one))
	require.NoError(t, f.look.PublishPoll(t.Context(), one, "late", []byte("x")))
	for range 4 {
		f.passed(time.Hour)
	}
	require.False(t, f.bound("one"))
	left, _, err := f.look.Outstanding(t.Context(), one)
	require.NoError(t, err)
	require.Zero(t, left)
}

// TestAHolderOfAPhaseThatIsGoneIsHeard (simulator, seed 206895283333073): what it did between its last report and the end of the
// phase counts, should the phase come back; and as long as its calls are out it holds the phase.
func TestAHolderOfAPhaseThatIsGoneIsHeard(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "first", node("old"))
	f.accept("node", "n", "apply", "1", `{}`)
	f.accept("node", "n", "start", "2", "")
	order := uint64(0)
	say := func(calls uint64, out uint32) wire.PhaseHold {
		order++
		answer := homeOf(f).tell(old, "hold", wire.PhaseReport{Worker: "a", Order: order, Out: out, Counts: phase.Counts{Calls: calls}})
		homeOf(f).shell.run(homeOf(f).owner)
		return *answer
	}
	require.True(t, say(0, 0).Granted)
	f.accept("Blueprint", "node", "apply", "second", node("new"))
	require.True(t, say(1, 1).Granted, "its job has pinned the first")
	f.complete("old")
	for f.bound("old") {
		f.passed(time.Second)
		require.True(t, say(1, 1).Granted)
	}
	require.True(t, say(2, 1).Granted, "its call is out")
	refused := say(3, 0)
	require.Equal(t, `the blueprint of kind "node" has no phase "old"`, refused.Reason)
	require.Empty(t, refused.Holders)
	f.accept("Blueprint", "node", "apply", "third", node("old"))
	require.True(t, homeOf(f).hold(old, "b").Granted)
	stored, err := f.look.Last(t.Context(), []bus.Entity{{
		Partition: f.home(), Family: bus.PhaseRecord, Project: old.Project, Kind: old.Kind, Name: old.Phase,
	}})
	require.NoError(t, err)
	e, err := wire.DecodePhase(stored[0].Body)
	require.NoError(t, err)
	require.EqualValues(t, 3, e.State.Counts().Calls)
}
