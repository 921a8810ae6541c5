package orchestrator_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

// record is the record of a phase, as its bucket has it.
func (s *system) record(p bus.Phase) (wire.PhaseEvent, bool) {
	s.t.Helper()
	m, err := s.bus.Get(s.t.Context(), bus.Entity{Family: bus.PhaseRecord, Project: p.Project, Kind: p.Kind, Name: p.Phase})
	if err != nil {
		return wire.PhaseEvent{}, false
	}
	e, err := wire.DecodePhase(m.Body)
	require.NoError(s.t, err)
	return e, true
}

func (s *system) awaitRecord(p bus.Phase, what string, is func(phase.State) bool) phase.State {
	s.t.Helper()
	var e wire.PhaseEvent
	require.Eventually(s.t, func() bool {
		var ok bool
		e, ok = s.record(p)
		return ok && is(e.State)
	}, 30*time.Second, 10*time.Millisecond, "%s: %+v", what, e.State)
	require.Empty(s.t, phase.Audit(nil, e.State))
	return e.State
}

var disk = bus.Phase{Project: "default", Kind: "node", Phase: "disk"}

// serveDisk is one worker of the phase disk.
func (s *system) serveDisk(b bus.Bus, name string, handle plugin.Handler) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = plugin.Serve(ctx, b, disk, plugin.Options{Worker: name, StopGrace: -1, BindEvery: 20 * time.Millisecond}, handle)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	s.t.Cleanup(stop)
	return stop
}

// mute is a worker whose word does not reach the owner any more.
type mute struct {
	bus.Bus
	silent atomic.Bool
}

func (m *mute) AskPhase(ctx context.Context, p bus.Phase, r bus.Request) (bus.Request, error) {
	if m.silent.Load() {
		<-ctx.Done()
		return bus.Request{}, ctx.Err()
	}
	return m.Bus.AskPhase(ctx, p, r)
}

// TestAPhaseIsHeldAndRecorded: the record says what the workers of a phase do; an owner that takes over knows who holds it;
// who is silent loses it to the next, and what was never announced is not held.
func TestAPhaseIsHeldAndRecorded(t *testing.T) {
	t.Parallel()
	s := start(t)
	stopOwner := s.orchestrate("o1")
	first := &mute{Bus: s.connect("first")}
	end, begun := make(chan struct{}), make(chan struct{}, 10)
	s.serveDisk(first, "first", func(_ context.Context, batch *plugin.Batch) error {
		begun <- struct{}{}
		<-end
		for _, r := range batch.Resources() {
			batch.Pending(r, time.Hour, "waiting for a disk")
		}
		return nil
	})
	s.blueprint()
	held := s.awaitRecord(disk, "held", func(r phase.State) bool { return len(r.Holders) == 1 })
	require.Equal(t, "first", held.Holders[0].Worker)
	require.Equal(t, phase.Inactive, held.Activity)
	second := s.connect("second")
	s.serveDisk(second, "second", completeAll)

	s.accept(s.node("a", `{}`, "c"), "start", "s", wire.Command{})
	<-begun
	s.awaitRecord(disk, "running", func(r phase.State) bool { return r.Activity == phase.Running && r.Holders[0].Out == 1 })

	// Another owner: the holder stays one.
	s.orchestrate("o2")
	stopOwner()
	close(end)
	sleeping := s.awaitRecord(disk, "sleeping", func(r phase.State) bool { return r.Activity == phase.Sleeping })
	require.Equal(t, "first", sleeping.Holders[0].Worker)
	require.WithinDuration(t, time.Now().Add(time.Hour), sleeping.WakeAt, time.Minute)
	require.Equal(t, phase.Counts{Calls: 1, Resources: 1, Pending: 1}, sleeping.Counts())

	// It is silent: the next gets the phase, and what comes now.
	first.silent.Store(true)
	s.awaitRecord(disk, "the second holds it", func(r phase.State) bool { return len(r.Holders) == 1 && r.Holders[0].Worker == "second" })
	s.accept(s.node("b", `{}`, "c"), "start", "s", wire.Command{})
	done := s.awaitRecord(disk, "completed", func(r phase.State) bool { return r.Counts().Completed == 1 })
	require.Equal(t, phase.Sleeping, done.Activity, "the first resource sleeps still")

	// What no blueprint has, nobody holds.
	body, err := wire.EncodePhaseReport(wire.PhaseReport{Worker: "w"})
	require.NoError(t, err)
	for p, want := range map[bus.Phase]string{
		{Project: "default", Kind: "node", Phase: "none"}: `the blueprint of kind "node" has no phase "none"`,
		{Project: "default", Kind: "none", Phase: "disk"}: `there is no blueprint of kind "none"`,
	} {
		answer, err := s.bus.AskPhase(t.Context(), p, bus.Request{Verb: "hold", Body: body})
		require.NoError(t, err)
		hold, err := wire.DecodePhaseHold(answer.Body)
		require.NoError(t, err)
		require.False(t, hold.Granted)
		require.Equal(t, want, hold.Reason)
	}
	answer, err := s.bus.AskPhase(t.Context(), disk, bus.Request{Verb: "command", Body: body})
	require.NoError(t, err)
	hold, err := wire.DecodePhaseHold(answer.Body)
	require.NoError(t, err)
	require.Equal(t, `a phase's worker cannot ask for "command"`, hold.Reason)
}

// TestOneCallOverAllWorkers: resources that enter a phase are called in few calls, one at a time, by whichever worker.
func TestOneCallOverAllWorkers(t *testing.T) {
	t.Parallel()
	s := inMemory(t)
	s.orchestrate("o1")
	s.orchestrate("o2")
	var now, calls atomic.Int32
	for _, name := range []string{"first", "second", "third"} {
		s.serveDisk(s.connect(name), name, func(_ context.Context, batch *plugin.Batch) error {
			calls.Add(1)
			require.Equal(t, int32(1), now.Add(1), "another call is out")
			time.Sleep(5 * time.Millisecond) // a call that takes no time overlaps with nothing
			now.Add(-1)
			for _, r := range batch.Resources() {
				batch.Failed(r, "no disk")
			}
			return nil
		})
	}
	s.blueprint()
	const n = 200
	keys := make([]resource.Key, n)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			keys[i] = s.node("n"+string(rune('a'+i%26))+string(rune('a'+i/26)), `{}`, "c")
			s.accept(keys[i], "start", "s", wire.Command{})
		})
	}
	wg.Wait()
	record := s.awaitRecord(disk, "all failed", func(r phase.State) bool { return r.Counts().Failed == n && r.Activity == phase.Inactive })
	require.Equal(t, uint64(calls.Load()), record.Counts().Calls)
	require.Len(t, record.Holders, 1)
	t.Logf("%d resources in %d calls", n, calls.Load())
	require.Less(t, calls.Load(), int32(n), "what waits is collected")
}
