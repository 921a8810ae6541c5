package partition_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestAPollThatCannotBeStoredIsTriedAgain: a cluster that elects a leader stores nothing for seconds, and the lease of a poll is half a
// minute.
func TestAPollThatCannotBeStoredIsTriedAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "1", node("slow"))
	f.accept("node", "n", "apply", "1", `{}`)
	f.accept("node", "n", "start", "2", "")
	require.Equal(t, 1, f.answer("slow", resource.OutcomePending))
	owner := f.owners[bus.PartitionOf("p", "node", "n", blueprintPartitions)]
	began, failures := f.clock.Add(blueprint.IntervalDefault), 0
	const without = 20 * time.Second // a leader: two elections
	owner.link.poll = func() error {
		if f.clock.Sub(began) < without {
			failures++
			return errors.New("no responders: at once")
		}
		return nil
	}
	f.clock = began
	owner.owner.Tick()
	owner.shell.run(owner.owner)
	require.Greater(t, failures, 10)
	require.Less(t, f.clock.Sub(began), without+2*time.Second)
	require.Equal(t, 1, f.complete("slow"), "the poll, once")
}
