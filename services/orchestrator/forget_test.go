package orchestrator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/wire"
)

// TestADeletedResourceLeavesNoSpec: specs go with their resource, and a new one of the same name and spec keeps its own.
func TestADeletedResourceLeavesNoSpec(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.orchestrate("o1")
	s.work(completeAll)
	s.blueprint()
	key := s.node("a", `{"n":1}`, "c1")
	spec := bus.Entity{Family: bus.Spec, Project: key.Project, Kind: key.Kind, Name: key.Name}
	spec.Partition = bus.PartitionOf(key.Project, key.Kind, key.Name, s.bus.Partitions())
	require.Eventually(t, func() bool { _, err := s.bus.Get(t.Context(), spec); return err == nil }, 30*time.Second, 5*time.Millisecond)
	s.awaitJob(s.accept(key, "delete", "d", wire.Command{}), job.Succeeded)
	require.Eventually(t, func() bool {
		_, err := s.bus.Get(t.Context(), spec)
		last, lerr := s.bus.Last(t.Context(), []bus.Entity{spec})
		return errors.Is(err, bus.ErrNotFound) && lerr == nil && (last[0].Seq == 0 || last[0].Deleted)
	}, 30*time.Second, 10*time.Millisecond)
	for i := range 5 { // as fast as it goes: the forgetting of one must not take the spec of the next
		key = s.node("a", `{"n":1}`, "again"+string(rune('a'+i)))
		s.awaitJob(s.accept(key, "delete", "d"+string(rune('a'+i)), wire.Command{}), job.Succeeded)
	}
	key = s.node("a", `{"n":1}`, "last")
	st, ok := s.state(key)
	require.Eventually(t, func() bool { st, ok = s.state(key); return ok && st.Generation == 1 }, 30*time.Second, 5*time.Millisecond)
	m, err := s.bus.Version(t.Context(), spec, st.SpecDigest)
	require.NoError(t, err)
	e, err := wire.DecodeSpec(m.Body)
	require.NoError(t, err)
	require.JSONEq(t, `{"n":1}`, e.JSON)
}
