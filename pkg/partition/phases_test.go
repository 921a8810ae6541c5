package partition_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/wire"
)

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
