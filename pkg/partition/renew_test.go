package partition_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestWhatAnotherOwnerBeganIsGoneOnWith: an owner that was taken for dead reads what was done in its place, and does what is due of it,
// without a sweep and without an end of its own stint.
func TestWhatAnotherOwnerBeganIsGoneOnWith(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "1", node("slow"))
	n := bus.PartitionOf("p", "node", "n", blueprintPartitions)
	first := f.owners[n]
	f.owners[n] = f.prepare(n)
	f.takeOver(n)
	f.accept("node", "n", "apply", "1", `{}`)
	job := f.accept("node", "n", "start", "2", "")
	require.Equal(t, 1, f.answer("slow", resource.OutcomePending))
	f.owners[n] = first // and the other is gone
	f.clock = f.clock.Add(blueprint.IntervalDefault)
	first.owner.Tick()
	first.shell.run(first.owner)
	require.Zero(t, f.complete("slow"), "nobody has told it")
	first.owner.Renew()
	first.shell.run(first.owner)
	require.Equal(t, 1, f.complete("slow"))
	require.Equal(t, job, f.accept("node", "n", "start", "2", ""), "it is the same command")
}

// TestWhatAnotherOwnerWroteIsNotOnesOwn: an append that was refused, and whose answer is lost, is not taken for stored because
// something else is.
func TestWhatAnotherOwnerWroteIsNotOnesOwn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "1", node("slow"))
	n := bus.PartitionOf("p", "node", "n", blueprintPartitions)
	f.accept("node", "n", "apply", "1", `{}`)
	first := f.owners[n]
	f.owners[n] = f.prepare(n)
	f.takeOver(n)
	f.accept("node", "n", "start", "2", "")
	f.owners[n] = first
	lost := 0
	first.link.silent = func() bool { lost++; return lost == 1 }
	reply := f.ask("node", "n", "terminate", "3", "")
	require.Positive(t, lost)
	require.Nil(t, reply.Refused)
	events, err := f.look.History(t.Context(), bus.Entity{Partition: n, Family: bus.Resource, Project: "p", Kind: "node", Name: "n"})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(events, func(e bus.Stored) bool { return e.Header.Job == reply.JobID }), "the job that was promised is there")
}
