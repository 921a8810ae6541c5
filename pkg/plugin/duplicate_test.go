package plugin_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

// scripted is a bus whose deliveries the test makes: what a server does only in a failover.
type scripted struct {
	bus.Bus // nil: what is not scripted must not be called
	queue   chan []bus.Delivery
	ackWait time.Duration

	mu      sync.Mutex
	last    func(e bus.Entity) (bus.Stored, error)
	log     []string
	results []resource.Result
	fail    func() error
}

func newScripted() *scripted {
	return &scripted{queue: make(chan []bus.Delivery, 10), ackWait: time.Minute}
}

func (b *scripted) say(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, what)
}

func (b *scripted) said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.log)
}

func (b *scripted) Pull(context.Context, bus.Phase) (bus.Puller, error) {
	return scriptedPuller{b}, nil
}

func (b *scripted) Last(_ context.Context, entities []bus.Entity) ([]bus.Stored, error) {
	b.mu.Lock()
	last := b.last
	b.mu.Unlock()
	if last == nil { // what was handed out is still outstanding
		last = func(e bus.Entity) (bus.Stored, error) {
			s := (&recorder{project: "p"}).state(e.Name, resource.Waiting)
			body, err := wire.EncodeResource(wire.ResourceEvent{State: s, At: s.UpdatedAt})
			return bus.Stored{Entity: e, Seq: 5, Body: body}, err
		}
	}
	stored := make([]bus.Stored, len(entities))
	for i, e := range entities {
		var err error
		if stored[i], err = last(e); err != nil {
			return nil, err
		}
	}
	return stored, nil
}

func (b *scripted) AskPhase(ctx context.Context, p bus.Phase, r bus.Request) (bus.Request, error) {
	return granting{}.AskPhase(ctx, p, r)
}

func (b *scripted) PublishResult(_ context.Context, _ string, _ map[string]string, body []byte) error {
	result, err := wire.DecodeResult("", body)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		if err := b.fail(); err != nil {
			return err
		}
	}
	b.results = append(b.results, result)
	b.log = append(b.log, "result "+result.Outcome.String())
	return nil
}

type scriptedPuller struct{ b *scripted }

func (p scriptedPuller) AckWait() time.Duration { return p.b.ackWait }
func (p scriptedPuller) Close()                 {}

func (p scriptedPuller) Fetch(ctx context.Context, _, _ int, wait time.Duration) ([]bus.Delivery, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case d := <-p.b.queue:
		return d, nil
	case <-timer.C:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type scriptedDelivery struct {
	b         *scripted
	name      string
	body      []byte
	seq       uint64
	delivered uint64
	at        time.Time
}

func (d *scriptedDelivery) Subject() string      { return "drover.work.p.node." + phaseName }
func (d *scriptedDelivery) Header(string) string { return "" }
func (d *scriptedDelivery) Body() []byte         { return d.body }
func (d *scriptedDelivery) Seq() uint64          { return d.seq }
func (d *scriptedDelivery) Time() time.Time      { return d.at }
func (d *scriptedDelivery) Delivered() uint64    { return d.delivered }

func (d *scriptedDelivery) Ack() error {
	d.b.say("ack " + d.name)
	return nil
}

func (d *scriptedDelivery) Progress() error {
	d.b.say("progress " + d.name)
	return nil
}

func (d *scriptedDelivery) Retry(time.Duration) error {
	d.b.say("retry " + d.name)
	return nil
}

func (d *scriptedDelivery) Reject(context.Context, string) error {
	d.b.say("reject " + d.name)
	return nil
}

// deliver makes a delivery of the work of one resource; change may alter the state that it carries.
func (b *scripted) deliver(t *testing.T, name string, seq, delivered uint64, change ...func(*resource.State)) *scriptedDelivery {
	t.Helper()
	return &scriptedDelivery{b: b, name: name, body: b.event(t, change...), seq: seq, delivered: delivered, at: time.Now()}
}

func (b *scripted) event(t *testing.T, change ...func(*resource.State)) []byte {
	t.Helper()
	s := (&recorder{project: "p"}).state("one", resource.Waiting)
	for _, f := range change {
		f(&s)
	}
	body, err := wire.EncodeResource(wire.ResourceEvent{
		Event: resource.Event{JobID: "job", Dispatch: &resource.Dispatch{Fence: fence("one"), State: s.State}},
		State: s, At: time.Now(), Partition: 1, ResultSubject: bus.ResultSubject(1, "p", "node", "one"),
	})
	require.NoError(t, err)
	return body
}

func (b *scripted) serve(t *testing.T, o plugin.Options, handle plugin.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- plugin.Serve(ctx, b, bus.Phase{Project: "p", Kind: "node", Phase: phaseName}, o, handle)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

func (b *scripted) present(t *testing.T, change ...func(*resource.State)) func(bus.Entity) (bus.Stored, error) {
	t.Helper()
	body := b.event(t, change...)
	return func(e bus.Entity) (bus.Stored, error) { return bus.Stored{Entity: e, Seq: 5, Body: body}, nil }
}

func complete(_ context.Context, batch *plugin.Batch) error {
	batch.Completed(batch.Resources()...)
	return nil
}

// Duplicates of work that is out, or was just answered, are not run and do not come again.
func TestDuplicatesAreNotRun(t *testing.T) {
	t.Parallel()
	b := newScripted()
	b.last = b.present(t) // the answer does not show in the state yet
	started, finish, held := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	b.serve(t, plugin.Options{Observe: func(plugin.Answer) { held <- struct{}{} }}, func(_ context.Context, batch *plugin.Batch) error {
		b.say("call")
		close(started)
		<-finish
		batch.Completed(batch.Resources()...)
		return nil
	})
	b.queue <- []bus.Delivery{b.deliver(t, "first", 7, 1)}
	<-started
	b.queue <- []bus.Delivery{b.deliver(t, "second", 7, 2)}
	// A third is fetched after the second was taken: the queue is empty then.
	require.Eventually(t, func() bool { return len(b.queue) == 0 }, 30*time.Second, time.Millisecond)
	b.queue <- []bus.Delivery{b.deliver(t, "third", 7, 3)}
	require.Eventually(t, func() bool { return len(b.queue) == 0 }, 30*time.Second, time.Millisecond)
	close(finish)
	<-held
	b.queue <- []bus.Delivery{b.deliver(t, "late", 7, 4)}
	var said []string // acknowledged in any order
	require.Eventually(t, func() bool { said = b.said(); return len(said) >= 6 }, 30*time.Second, time.Millisecond, "%v", &said)
	require.Equal(t, []string{"call", "result completed"}, said[:2])
	require.ElementsMatch(t, []string{"ack first", "ack second", "ack third", "ack late"}, said[2:])
}

// What was answered is not what is handed out again: a retry of the same phase is called.
func TestAnotherCallIsNoDuplicate(t *testing.T) {
	t.Parallel()
	b := newScripted()
	b.last = b.present(t)
	b.serve(t, plugin.Options{}, func(ctx context.Context, batch *plugin.Batch) error {
		b.say("call")
		return complete(ctx, batch)
	})
	b.queue <- []bus.Delivery{b.deliver(t, "first", 7, 1)}
	require.Eventually(t, func() bool { return slices.Contains(b.said(), "ack first") }, 30*time.Second, time.Millisecond)
	b.queue <- []bus.Delivery{b.deliver(t, "poll", 8, 1)} // same fence, another message
	require.Eventually(t, func() bool { return slices.Contains(b.said(), "ack poll") }, 30*time.Second, time.Millisecond)
	require.Equal(t, []string{"call", "result completed", "ack first", "call", "result completed", "ack poll"}, b.said())
}

func TestWornWorkFails(t *testing.T) {
	t.Parallel()
	b := newScripted()
	b.last = b.present(t)
	b.serve(t, plugin.Options{}, func(ctx context.Context, batch *plugin.Batch) error {
		b.say("call")
		return complete(ctx, batch)
	})
	b.queue <- []bus.Delivery{b.deliver(t, "last", 7, bus.WorkDeliveriesMax)}
	require.Eventually(t, func() bool { return slices.Contains(b.said(), "ack last") }, 30*time.Second, time.Millisecond)
	b.queue <- []bus.Delivery{b.deliver(t, "worn", 8, bus.WorkDeliveriesMax+1)}
	require.Eventually(t, func() bool { return slices.Contains(b.said(), "ack worn") }, 30*time.Second, time.Millisecond)
	require.Equal(t, []string{"call", "result completed", "ack last", "result failed", "ack worn"}, b.said())
	require.Equal(t, "handed out 10 times without an answer", b.results[1].Message)
	require.False(t, b.results[1].Retryable)
}

// Redelivered work is compared with the present state, and only a state that is newer counts.
func TestRedeliveredWorkIsChecked(t *testing.T) {
	t.Parallel()
	moved := func(s *resource.State) { s.Revision, s.Phases[0].Attempt = 9, 2 }
	for name, test := range map[string]struct {
		last func(b *scripted) func(bus.Entity) (bus.Stored, error)
		want []string
	}{
		"outstanding": {func(b *scripted) func(bus.Entity) (bus.Stored, error) { return b.present(t) },
			[]string{"call", "result completed", "ack d"}},
		"another attempt": {func(b *scripted) func(bus.Entity) (bus.Stored, error) { return b.present(t, moved) },
			[]string{"result not_started", "ack d"}},
		"completed": {func(b *scripted) func(bus.Entity) (bus.Stored, error) {
			return b.present(t, func(s *resource.State) {
				s.Revision, s.Phases[0].Status, s.Phases[0].InFlight = 9, resource.Completed, false
			})
		}, []string{"result not_started", "ack d"}},
		"canceling": {func(b *scripted) func(bus.Entity) (bus.Stored, error) {
			return b.present(t, func(s *resource.State) { s.Revision, s.Phases[0].Status = 9, resource.Canceling })
		}, []string{"result not_started", "ack d"}},
		"a follower that is behind": {func(b *scripted) func(bus.Entity) (bus.Stored, error) {
			return b.present(t, func(s *resource.State) {
				moved(s)
				s.Revision, s.UpdatedAt = 1, s.UpdatedAt.Add(-time.Minute)
			})
		}, []string{"call", "result completed", "ack d"}},
		"gone": {func(*scripted) func(bus.Entity) (bus.Stored, error) {
			return func(e bus.Entity) (bus.Stored, error) { return bus.Stored{Entity: e}, nil }
		}, []string{"result not_started", "ack d"}},
		"deleted": {func(*scripted) func(bus.Entity) (bus.Stored, error) {
			return func(e bus.Entity) (bus.Stored, error) { return bus.Stored{Entity: e, Seq: 9, Deleted: true}, nil }
		}, []string{"result not_started", "ack d"}},
		"unreadable": {func(*scripted) func(bus.Entity) (bus.Stored, error) {
			return func(e bus.Entity) (bus.Stored, error) { return bus.Stored{Entity: e, Seq: 9, Body: []byte{0xff}}, nil }
		}, []string{"retry d"}},
		"unreachable": {func(*scripted) func(bus.Entity) (bus.Stored, error) {
			return func(bus.Entity) (bus.Stored, error) { return bus.Stored{}, errors.New("no answer") }
		}, []string{"retry d"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newScripted()
			b.last = test.last(b)
			b.serve(t, plugin.Options{}, func(ctx context.Context, batch *plugin.Batch) error {
				b.say("call")
				return complete(ctx, batch)
			})
			b.queue <- []bus.Delivery{b.deliver(t, "d", 7, 2, func(s *resource.State) { s.Revision = 3 })}
			require.Eventually(t, func() bool { return len(b.said()) == len(test.want) }, 30*time.Second, time.Millisecond, "%v", b.said())
			require.Equal(t, test.want, b.said())
		})
	}
}

// A result that cannot be stored leaves the work to be delivered again.
func TestResultsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	b := newScripted()
	b.fail = func() error { return bus.ErrDenied }
	b.serve(t, plugin.Options{}, complete)
	b.queue <- []bus.Delivery{b.deliver(t, "d", 7, 1)}
	require.Eventually(t, func() bool { return slices.Equal(b.said(), []string{"retry d"}) }, 30*time.Second, time.Millisecond)
}

// Work that waits for a shared limit is held, and put back when the worker stops.
func TestWorkThatWaitsIsHeld(t *testing.T) {
	t.Parallel()
	b := newScripted()
	b.ackWait = 300 * time.Millisecond
	limit := plugin.NewLimit(1)
	started, finish := make(chan struct{}), make(chan struct{})
	stop := b.serve(t, plugin.Options{Batch: 1, Limit: limit}, func(_ context.Context, batch *plugin.Batch) error {
		close(started)
		<-finish
		batch.Completed(batch.Resources()...)
		return nil
	})
	b.queue <- []bus.Delivery{b.deliver(t, "one", 7, 1), b.other(t, "two", 8)}
	<-started
	require.Eventually(t, func() bool {
		said := b.said()
		return slices.Contains(said, "progress one") && slices.Contains(said, "progress two")
	}, 30*time.Second, time.Millisecond)
	go func() {
		defer close(finish)
		for !slices.Contains(b.said(), "retry one") && !slices.Contains(b.said(), "retry two") {
			time.Sleep(time.Millisecond)
		}
	}()
	stop()
	acks, retries := 0, 0
	for _, s := range b.said() {
		switch s {
		case "ack one", "ack two":
			acks++
		case "retry one", "retry two":
			retries++
		}
	}
	require.Equal(t, 1, acks)
	require.Equal(t, 1, retries)
}

// other is the work of another resource.
func (b *scripted) other(t *testing.T, name string, seq uint64) *scriptedDelivery {
	t.Helper()
	s := (&recorder{project: "p"}).state("other", resource.Waiting)
	body, err := wire.EncodeResource(wire.ResourceEvent{
		Event: resource.Event{JobID: "job", Dispatch: &resource.Dispatch{Fence: fence("other"), State: s.State}},
		State: s, At: time.Now(), Partition: 1, ResultSubject: bus.ResultSubject(1, "p", "node", "other"),
	})
	require.NoError(t, err)
	return &scriptedDelivery{b: b, name: name, body: body, seq: seq, delivered: 1, at: time.Now()}
}
