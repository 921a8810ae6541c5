package orchestrator_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

// TestABlueprintIsDeletedAndComesBack: on a true server, over the end of the orchestrator that began it; and a worker that
// was bound all the time serves the phases that come back.
func TestABlueprintIsDeletedAndComesBack(t *testing.T) {
	t.Parallel()
	s := start(t)
	stop := s.orchestrate("o1")
	var calls atomic.Int32
	s.work(func(ctx context.Context, batch *plugin.Batch) error {
		calls.Add(int32(len(batch.Resources())))
		return completeAll(ctx, batch)
	})
	s.blueprint()
	node := s.node("a", `{}`, "c")
	s.awaitJob(s.accept(node, "start", "s", wire.Command{}), job.Succeeded)
	key := resource.Key{Project: "default", Kind: "Blueprint", Name: "node"}
	refused := s.send(key, "delete", "d1", wire.Command{}).Refused
	require.NotNil(t, refused)
	require.Equal(t, resource.Conflict, refused.Code)
	require.Equal(t, "1 resource uses it: node/a", refused.Message)
	s.awaitJob(s.accept(node, "delete", "d", wire.Command{}), job.Succeeded)

	id := s.accept(key, "delete", "d2", wire.Command{})
	stop() // in the middle: the mark is there, and the wait has begun
	require.Nil(t, s.finalJob(id), "it waits until nobody can have missed the mark")
	s.orchestrate("o2")
	s.awaitJob(id, job.Succeeded)
	e := bus.Entity{Family: bus.Blueprint, Project: "default", Kind: "node"}
	e.Partition = bus.PartitionOf("default", "Blueprint", "node", s.bus.Partitions())
	disk := bus.Phase{Project: "default", Kind: "node", Phase: "disk"}
	require.Eventually(t, func() bool {
		_, err := s.bus.Get(t.Context(), e)
		last, lerr := s.bus.Last(t.Context(), []bus.Entity{e})
		history, herr := s.bus.History(t.Context(), e)
		_, perr := s.bus.Pull(t.Context(), disk)
		return errors.Is(err, bus.ErrNotFound) && lerr == nil && (last[0].Seq == 0 || last[0].Deleted) &&
			herr == nil && len(history) <= 1 && errors.Is(perr, bus.ErrNotFound)
	}, 20*time.Second, 20*time.Millisecond)
	// It is refused throughout; that the blueprint is gone, and no longer about to be, an owner knows catalog.PresentFor later.
	require.Eventually(t, func() bool {
		refused := s.send(node, "apply", "x", wire.Command{
			Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: "node", Name: "a", Spec: []byte(`{}`)},
		}).Refused
		require.NotNil(t, refused)
		return refused.Code == resource.Invalid
	}, 30*time.Second, 20*time.Millisecond)
	require.Equal(t, id, s.accept(key, "delete", "d2", wire.Command{}), "the same request again")

	s.accept(key, "apply", "back", wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: "Blueprint", Name: "node", Spec: []byte(threePhases)}})
	before := calls.Load()
	node = s.node("a", `{}`, "c2")
	s.awaitJob(s.accept(node, "start", "s2", wire.Command{}), job.Succeeded)
	require.Equal(t, before+2, calls.Load())
}

// finalJob is the record of a job that has ended, or nil.
func (s *system) finalJob(id string) *job.Record {
	m, err := s.bus.Get(s.t.Context(), bus.Entity{Family: bus.Job, Project: "default", Name: id})
	if err != nil {
		return nil
	}
	e, err := wire.DecodeJob(m.Body)
	require.NoError(s.t, err)
	if !e.Record.State.Final() {
		return nil
	}
	return &e.Record
}
