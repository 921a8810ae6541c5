package plugin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// kinds is a bus on which several kinds have the phase, each given out by a desk of its own.
type kinds struct {
	*recorder

	mu    sync.Mutex
	desks map[string]*desk
}

func newKinds(t *testing.T, b *recorder, names ...string) *kinds {
	t.Helper()
	k := &kinds{recorder: b, desks: map[string]*desk{}}
	for _, kind := range names {
		k.appear(t, kind, 1)
	}
	return k
}

func (k *kinds) of(kind string) bus.Phase {
	return bus.Phase{Project: k.project, Kind: kind, Phase: phaseName}
}

// appear adds the phase to a kind, and does not hear some of its workers.
func (k *kinds) appear(t *testing.T, kind string, calls int, deaf ...string) {
	t.Helper()
	require.NoError(t, k.EnsurePhase(t.Context(), k.of(kind)))
	t.Cleanup(func() { require.NoError(t, k.RemovePhase(context.Background(), k.of(kind))) })
	k.mu.Lock()
	defer k.mu.Unlock()
	k.desks[kind] = newDesk(calls)
	k.desks[kind].lease = 3 * time.Second // long enough that a machine under load takes nobody for silent
	for _, worker := range deaf {
		k.desks[kind].silence(worker)
	}
}

func (k *kinds) desk(kind string) *desk {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.desks[kind]
}

func (k *kinds) AskPhase(_ context.Context, p bus.Phase, r bus.Request) (bus.Request, error) {
	if d := k.desk(p.Kind); d != nil {
		return d.ask(r.Verb, r.Body)
	}
	return holding(wire.PhaseHold{Reason: "the blueprint has no such phase"})
}

// handOut makes resources of a kind wait.
func (k *kinds) handOut(t *testing.T, kind string, names ...string) {
	t.Helper()
	for _, name := range names {
		s := k.state(name, resource.Waiting)
		s.Kind, s.UID = kind, "uid-"+kind+"/"+name
		k.put(t, s, true)
	}
}

// waiting waits until so many resources of a kind are in the work queue.
func (k *kinds) waiting(t *testing.T, kind string, n uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		there, _, err := k.Outstanding(t.Context(), k.of(kind))
		return err == nil && there == n
	}, 30*time.Second, 5*time.Millisecond)
}

func (k *kinds) worker(t *testing.T, name string, of []string, handle plugin.Handler) (stop func()) {
	t.Helper()
	var phases []bus.Phase
	for _, kind := range of {
		phases = append(phases, k.of(kind))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- plugin.ServeKinds(ctx, k, phases, plugin.Options{Worker: name, StopGrace: -1, BindEvery: 50 * time.Millisecond}, handle)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// keys are the resources of a batch, kind and name, in order.
func keys(batch *plugin.Batch) string {
	var all []string
	for _, r := range batch.Resources() {
		all = append(all, r.Key().Kind+"/"+r.Key().Name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// A phase over several kinds is called once with all of them, also with those that came while it ran (seed 003: a plugin
// handles "the type or types of resources", and is given "all resources waiting to run that phase").
func TestAPhaseOfSeveralKindsIsCalledOnce(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		k := newKinds(t, b, "disk", "node")
		k.handOut(t, "node", "a", "b", "c")
		k.handOut(t, "disk", "a", "d")
		k.waiting(t, "node", 3)
		k.waiting(t, "disk", 2)
		calls, next := make(chan string), make(chan struct{})
		k.worker(t, "w", []string{"node", "disk", "absent", "node"}, func(_ context.Context, batch *plugin.Batch) error {
			calls <- keys(batch)
			<-next
			batch.Completed(batch.Resources()...)
			return nil
		})
		require.Equal(t, "disk/a disk/d node/a node/b node/c", <-calls)
		k.handOut(t, "disk", "e", "f")
		k.handOut(t, "node", "e", "g")
		k.waiting(t, "disk", 4)
		k.waiting(t, "node", 5)
		next <- struct{}{}
		require.Equal(t, "disk/e disk/f node/e node/g", <-calls)
		next <- struct{}{}
		k.waiting(t, "disk", 0)
		k.waiting(t, "node", 0)
		// One that comes while nothing waits is called at once, of whichever kind.
		for i, kind := range []string{"node", "disk", "disk", "node"} {
			k.handOut(t, kind, fmt.Sprint("late", i))
			require.Equal(t, fmt.Sprintf("%s/late%d", kind, i), <-calls)
			next <- struct{}{}
		}
		k.waiting(t, "disk", 0)
		k.waiting(t, "node", 0)
		for kind, want := range map[string]phase.Counts{
			"disk": {Calls: 4, Resources: 6, Completed: 6}, "node": {Calls: 4, Resources: 7, Completed: 7},
		} {
			require.Eventually(t, func() bool { return k.desk(kind).record().Counts() == want }, 30*time.Second, 20*time.Millisecond,
				"each kind's record counts the calls that it was in: %s", kind)
		}
	})
}

// Work of a kind that is not held is left alone, and does not hold the others up for ever: workers of several kinds neither
// call at the same time nor wait for each other, also when a kind gets the phase later and when one of them is killed.
func TestKindsAreHeldTogether(t *testing.T) {
	t.Parallel()
	b := &recorder{Bus: memoryBus(t, 0), project: "p", changed: make(chan struct{}, 1)}
	k := newKinds(t, b, "m", "z")
	var now, most, done atomic.Int64
	handle := func(_ context.Context, batch *plugin.Batch) error {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(5 * time.Millisecond) // so that calls that may not overlap would be seen to
		now.Add(-1)
		done.Add(int64(len(batch.Resources())))
		batch.Completed(batch.Resources()...)
		return nil
	}
	of := []string{"a", "m", "z"}
	stops := map[string]func(){}
	for _, name := range []string{"w0", "w1", "w2"} {
		stops[name] = k.worker(t, name, of, handle)
	}
	given := int64(0)
	// through hands out until one of each kind was called.
	through := func(among ...string) {
		for range 10 {
			for _, kind := range among {
				k.handOut(t, kind, fmt.Sprint("r", given))
				given++
			}
		}
		require.Eventually(t, func() bool { return done.Load() == given }, 30*time.Second, 5*time.Millisecond)
	}
	holder := func(kind string) string {
		if holders := k.desk(kind).record().Holders; len(holders) == 1 {
			return holders[0].Worker
		}
		return ""
	}
	through("m", "z")
	first := holder("m")
	require.Equal(t, first, holder("z"))
	// Another worker gets the kind that is new, and comes before the others: who holds those gives them up.
	k.appear(t, "a", 1, first)
	require.Eventually(t, func() bool { return holder("a") != "" }, 30*time.Second, 5*time.Millisecond)
	second := holder("a")
	k.desk("a").hear(first)
	require.NotEqual(t, first, second)
	require.Eventually(t, func() bool { return holder("m") == second && holder("z") == second }, 30*time.Second, 5*time.Millisecond)
	through("a", "m", "z")
	require.EqualValues(t, 1, most.Load())
	// One that is not heard any more, of one kind, begins nothing; the others go on.
	for _, kind := range of {
		k.desk(kind).silence(second)
	}
	through("a", "m", "z")
	require.Eventually(t, func() bool { return holder("a") != second && holder("a") == holder("m") && holder("m") == holder("z") },
		30*time.Second, 5*time.Millisecond)
	stops[second]()
	through("z", "m", "a")
	require.EqualValues(t, 1, most.Load())
}

// A worker that stops gives back what it had fetched for no call.
func TestKindsStopFailsNothing(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		k := newKinds(t, b, "disk", "node")
		started := make(chan struct{})
		stop := k.worker(t, "first", []string{"disk", "node"}, func(ctx context.Context, _ *plugin.Batch) error {
			started <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})
		k.handOut(t, "disk", "a")
		<-started
		k.handOut(t, "node", "b") // which the worker may have fetched, for its next call
		k.waiting(t, "node", 1)
		began := time.Now()
		stop()
		got := make(chan string, 10)
		k.worker(t, "second", []string{"disk", "node"}, func(_ context.Context, batch *plugin.Batch) error {
			batch.Completed(batch.Resources()...)
			for _, r := range batch.Resources() {
				got <- r.Key().Name
			}
			return nil
		})
		both := []string{<-got, <-got}
		require.ElementsMatch(t, []string{"a", "b"}, both)
		require.Less(t, time.Since(began), 25*time.Second) // put back, not timed out, which takes 30 s
		k.waiting(t, "disk", 0)
		k.waiting(t, "node", 0)
	})
}

func TestServeKindsNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := memoryBus(t, 0)
	for reason, phases := range map[string][]bus.Phase{
		"a phase of 0 kinds":               {},
		"p/x and p/y are not the same":     {{Project: "p", Kind: "a", Phase: "x"}, {Project: "p", Kind: "b", Phase: "y"}},
		"p/x and q/x are not the same":     {{Project: "p", Kind: "a", Phase: "x"}, {Project: "q", Kind: "b", Phase: "x"}},
		"a phase of 17 kinds, not 1 to 16": make([]bus.Phase, plugin.KindsMax+1),
	} {
		require.ErrorContains(t, plugin.ServeKinds(t.Context(), b, phases, plugin.Options{}, complete), reason)
	}
}
