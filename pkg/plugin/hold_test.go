package plugin_test

import (
	"context"
	"errors"
	"fmt"
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

// desk is an owner of one phase: package phase's machine, and a short lease.
type desk struct {
	calls            int
	lease, callLease time.Duration

	mu    sync.Mutex
	state phase.State
	heard map[string]time.Time
	deaf  map[string]bool // workers whose words do not arrive
	seen  []phase.Activity
}

func newDesk(calls int) *desk {
	return &desk{calls: calls, lease: 600 * time.Millisecond, heard: map[string]time.Time{}, deaf: map[string]bool{}}
}

func (d *desk) ask(verb string, body []byte) (bus.Request, error) {
	r, err := wire.DecodePhaseReport(body)
	if err != nil {
		return bus.Request{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deaf[r.Worker] {
		return bus.Request{}, errors.New("no answer")
	}
	now := time.Now()
	for w, at := range d.heard {
		if now.Sub(at) > d.lease {
			d.step(phase.Input{At: now, Silent: []string{w}})
			delete(d.heard, w)
		}
	}
	said, in := r.At(now), phase.Input{At: now, Calls: d.calls}
	if verb == "release" {
		in.Release = &said
	} else {
		in.Hold = &said
	}
	reply := d.step(in)
	answer := wire.PhaseHold{Granted: reply.Granted, Lease: d.lease, CallLease: d.callLease, Calls: d.calls}
	for i := range reply.Holders {
		answer.Holders = append(answer.Holders, reply.Holders[i].Worker)
	}
	if answer.Granted {
		d.heard[r.Worker] = now
	}
	return holding(answer)
}

func (d *desk) step(in phase.Input) phase.Reply {
	after, reply, changed := phase.Step(d.state, in)
	if changed {
		d.state = after
		d.seen = append(d.seen, after.Activity)
	}
	return reply
}

func (d *desk) silence(worker string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deaf[worker] = true
}

// hear ends a silence.
func (d *desk) hear(worker string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.deaf, worker)
}

func (d *desk) record() phase.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// held is a bus whose phases a desk gives out.
type held struct {
	*recorder
	desk *desk
}

func (b held) AskPhase(_ context.Context, _ bus.Phase, r bus.Request) (bus.Request, error) {
	return b.desk.ask(r.Verb, r.Body)
}

func newHeld(t *testing.T, calls int) held {
	t.Helper()
	b := &recorder{Bus: memoryBus(t, 0), project: "p", changed: make(chan struct{}, 1)}
	require.NoError(t, b.EnsurePhase(t.Context(), b.phase()))
	return held{b, newDesk(calls)}
}

func (b held) worker(t *testing.T, name string, handle plugin.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- plugin.Serve(ctx, b, b.phase(), plugin.Options{Worker: name, StopGrace: -1, FetchWait: 50 * time.Millisecond}, handle)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// One call of the phase is out at a time, over all workers, and those that come meanwhile wait for the next.
func TestOneCallAtATime(t *testing.T) {
	t.Parallel()
	for _, calls := range []int{1, 2, 0} {
		t.Run(fmt.Sprint(calls), func(t *testing.T) {
			t.Parallel()
			b := newHeld(t, calls)
			b.desk.lease = time.Minute // what a worker counts while it is taken for silent is not recorded
			var now, most, made atomic.Int64
			two := make(chan struct{})
			both := sync.OnceFunc(func() { close(two) })
			handle := func(_ context.Context, batch *plugin.Batch) error {
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				made.Add(1)
				if now.Load() > 1 {
					both()
				}
				if calls == 0 {
					<-two
				}
				time.Sleep(10 * time.Millisecond) // so that calls that may not overlap would be seen to
				now.Add(-1)
				batch.Completed(batch.Resources()...)
				return nil
			}
			for i := range 3 {
				b.worker(t, fmt.Sprint("w", i), handle)
			}
			const resources = 600
			for i := range resources {
				b.handOut(t, fmt.Sprint("r", i))
			}
			b.settled(t)
			if calls > 0 {
				require.LessOrEqual(t, most.Load(), int64(calls))
				require.Less(t, made.Load(), int64(resources/2), "what waits is collected")
			}
			require.Eventually(t, func() bool {
				s := b.desk.record()
				return s.Activity == phase.Inactive && s.Counts().Completed == resources
			}, 30*time.Second, 20*time.Millisecond)
		})
	}
}

// A worker that is not heard any more begins nothing once its lease is over, and another goes on.
func TestSilentWorkerCallsNoMore(t *testing.T) {
	t.Parallel()
	b := newHeld(t, 1)
	var by sync.Map
	handle := func(name string) plugin.Handler {
		return func(_ context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				by.Store(r.Key().Name, name)
			}
			batch.Completed(batch.Resources()...)
			return nil
		}
	}
	b.worker(t, "first", handle("first"))
	b.handOut(t, "one")
	b.await(t, "one", 1)
	b.worker(t, "second", handle("second"))
	b.desk.silence("first")
	require.Eventually(t, func() bool {
		s := b.desk.record()
		return len(s.Holders) == 1 && s.Holders[0].Worker == "second"
	}, 30*time.Second, 10*time.Millisecond)
	for i := range 20 {
		name := fmt.Sprint("later", i)
		b.handOut(t, name)
		b.await(t, name, 1)
		who, _ := by.Load(name)
		require.Equal(t, "second", who)
	}
	who, _ := by.Load("one")
	require.Equal(t, "first", who)
}

// Who stops gives the phase back, with the last of what it has counted.
func TestReleaseGivesThePhaseBack(t *testing.T) {
	t.Parallel()
	b := newHeld(t, 1)
	b.desk.lease = time.Hour // nobody is ever silent
	stop := b.worker(t, "first", complete)
	b.handOut(t, "one", "two")
	b.await(t, "two", 1)
	b.await(t, "one", 1)
	stop()
	require.Empty(t, b.desk.record().Holders)
	require.Equal(t, uint64(2), b.desk.record().Counts().Completed)
	b.worker(t, "second", complete)
	b.handOut(t, "three")
	b.await(t, "three", 1)
}

// The record follows what a call does: running while it lasts, sleeping until what it left pending is due.
func TestRecordFollowsTheCalls(t *testing.T) {
	t.Parallel()
	b := newHeld(t, 1)
	end := make(chan struct{})
	b.worker(t, "first", func(_ context.Context, batch *plugin.Batch) error {
		<-end
		for _, r := range batch.Resources() {
			batch.Pending(r, time.Hour, "waiting")
		}
		return nil
	})
	b.handOut(t, "one")
	require.Eventually(t, func() bool { return b.desk.record().Activity == phase.Running }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, uint32(1), b.desk.record().Holders[0].Out)
	close(end)
	require.Eventually(t, func() bool { return b.desk.record().Activity == phase.Sleeping }, 30*time.Second, 10*time.Millisecond)
	s := b.desk.record()
	require.WithinDuration(t, time.Now().Add(time.Hour), s.WakeAt, time.Minute)
	require.Equal(t, phase.Counts{Calls: 1, Resources: 1, Pending: 1}, s.Counts())
}

// A worker that was told nothing of the phase's lease reports a long call as often as the owner says.
func TestTheOwnerSaysHowLongACallMayBeSilent(t *testing.T) {
	t.Parallel()
	b := newHeld(t, 1)
	b.desk.callLease = 600 * time.Millisecond
	end := make(chan struct{})
	finish := sync.OnceFunc(func() { close(end) })
	b.worker(t, "first", func(_ context.Context, batch *plugin.Batch) error {
		<-end
		batch.Completed(batch.Resources()...)
		return nil
	})
	t.Cleanup(finish)
	b.handOut(t, "one")
	for _, r := range b.await(t, "one", 4) { // by the default they would be ten seconds apart
		require.Equal(t, resource.OutcomeRunning, r.Outcome)
	}
	finish()
	b.settled(t)
}
