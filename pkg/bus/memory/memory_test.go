package memory_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handClock is moved by hand: timers run on the goroutine that moves it, in the order of their times.
type handClock struct {
	now    time.Time
	timers []*timer
}

type timer struct {
	at time.Time
	f  func()
}

func (c *handClock) Now() time.Time { return c.now }

func (c *handClock) AfterFunc(d time.Duration, f func()) func() {
	t := &timer{at: c.now.Add(d), f: f}
	c.timers = append(c.timers, t)
	return func() { c.timers = slices.DeleteFunc(c.timers, func(x *timer) bool { return x == t }) }
}

func (c *handClock) advance(d time.Duration) {
	end := c.now.Add(d)
	for {
		var next *timer
		for _, t := range c.timers {
			if !t.at.After(end) && (next == nil || t.at.Before(next.at)) {
				next = t
			}
		}
		if next == nil {
			c.now = end
			return
		}
		c.timers = slices.DeleteFunc(c.timers, func(x *timer) bool { return x == next })
		c.now = next.at
		next.f()
	}
}

// history is what one run of a small world looks like; the world is on one thread and its clock is moved by hand.
func history(t *testing.T) []string {
	clock := &handClock{now: time.Unix(1_000_000, 0)}
	sys := memory.New(memory.Options{Partitions: 4, Clock: clock, WorkAckWait: 30 * time.Second})
	a, b := sys.Connect(), sys.Connect()
	var log []string
	say := func(format string, args ...any) {
		log = append(log, fmt.Sprintf("%d ", clock.now.Unix())+fmt.Sprintf(format, args...))
	}
	_, err := a.Follow(bus.Resource, "", "", "", func(s bus.Stored) {
		say("feed %s %d %v", s.Entity.Name, s.Seq, s.Deleted)
		if s.Dispatch == "" && !s.Deleted { // a callback may append; its own effects come after
			_, err := a.Append(bus.Append{Entity: s.Entity, Expect: s.Seq, Dispatch: "launch", Body: []byte(s.Entity.Name)}).Result()
			require.NoError(t, err)
			say("handed out %s", s.Entity.Name)
		}
	})
	require.NoError(t, err)
	_, err = a.OnTick(bus.TickSecond, func(at time.Time) { say("tick %d", at.Unix()) })
	require.NoError(t, err)
	p := bus.Phase{Project: "p", Kind: "node", Phase: "launch"}
	require.NoError(t, a.EnsurePhase(t.Context(), p))
	puller, err := b.Pull(t.Context(), p)
	require.NoError(t, err)
	var entities []bus.Entity
	for i := range 5 {
		e := bus.Entity{Partition: i % 4, Family: bus.Resource, Project: "p", Kind: "node", Name: fmt.Sprint("n", i)}
		entities = append(entities, e)
		_, err := a.Append(bus.Append{Entity: e}).Result()
		require.NoError(t, err)
	}
	sys.Tick(bus.TickSecond, clock.now)
	fetch := func() {
		got, err := puller.Fetch(t.Context(), 10, bus.FetchBytesMax, 0)
		require.NoError(t, err)
		for i, d := range got {
			say("work %s delivery %d", d.Body(), d.Delivered())
			if i%2 == 0 {
				require.NoError(t, d.Ack())
			}
		}
	}
	fetch()
	fetch()
	clock.advance(29 * time.Second)
	fetch()
	clock.advance(2 * time.Second) // the ack wait is over
	fetch()
	gone, err := a.Bury(bus.Append{Entity: entities[0], Expect: 2}).Result()
	if err != nil {
		last, lerr := a.Last(t.Context(), entities[:1])
		require.NoError(t, lerr)
		gone, err = a.Bury(bus.Append{Entity: entities[0], Expect: last[0].Seq}).Result()
	}
	require.NoError(t, err)
	require.NoError(t, a.Forget(t.Context(), entities[0], gone))
	clock.advance(time.Hour)
	require.NoError(t, a.Scan(t.Context(), 0, bus.Resource, func(s bus.Stored) error { say("left %s", s.Entity.Name); return nil }))
	ma, err := a.Join(t.Context(), "orchestrator", "a")
	require.NoError(t, err)
	_, err = b.Join(t.Context(), "orchestrator", "b")
	require.NoError(t, err)
	say("shared %v", <-ma.Changes())
	b.Kill()
	clock.advance(1900 * time.Millisecond)
	say("not yet %v", ma.Members())
	clock.advance(200 * time.Millisecond)
	say("alone %v %v", ma.Members(), <-ma.Changes())
	require.NoError(t, a.Close())
	return log
}

// TestDeterministic: with a clock moved by hand and one thread, the same calls have the same effects in the same order,
// and nothing waits for real time.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	began := time.Now()
	first := history(t)
	for range 20 {
		require.Equal(t, first, history(t))
	}
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, []string{
		"1000000 feed n0 1 false", "1000000 handed out n0", "1000000 feed n0 2 false",
		"1000000 feed n1 3 false", "1000000 handed out n1", "1000000 feed n1 4 false",
		"1000000 feed n2 5 false", "1000000 handed out n2", "1000000 feed n2 6 false",
		"1000000 feed n3 7 false", "1000000 handed out n3", "1000000 feed n3 8 false",
		"1000000 feed n4 9 false", "1000000 handed out n4", "1000000 feed n4 10 false",
		"1000000 tick 1000000",
		"1000000 work n0 delivery 1", "1000000 work n1 delivery 1", "1000000 work n2 delivery 1", "1000000 work n3 delivery 1", "1000000 work n4 delivery 1",
		"1000031 work n1 delivery 2", "1000031 work n3 delivery 2",
		"1000031 feed n0 11 true", "1000031 feed n0 12 true",
		"1003631 left n4",
	}, first[:26])
	require.Contains(t, first[len(first)-1], "alone [a] [0 1 2 3]")
}

// TestKilledConnectionIsSilent: what a killed process held comes to the others after the ack wait, and it hears nothing.
func TestKilledConnectionIsSilent(t *testing.T) {
	t.Parallel()
	clock := &handClock{now: time.Unix(1_000_000, 0)}
	sys := memory.New(memory.Options{Partitions: 1, Clock: clock})
	doomed, other := sys.Connect(), sys.Connect()
	in, err := doomed.Results(t.Context(), 0)
	require.NoError(t, err)
	_, err = doomed.OnTick(bus.TickSecond, func(time.Time) { require.Fail(t, "the dead hear") })
	require.NoError(t, err)
	w, err := doomed.WatchBucket(t.Context(), bus.Resource, "", "", "")
	require.NoError(t, err)
	require.NoError(t, other.PublishResult(t.Context(), bus.ResultSubject(0, "p", "k", "n"), nil, []byte("x")))
	require.Equal(t, "x", string((<-in.C()).Body()))
	doomed.Kill()
	doomed.Kill()
	sys.Tick(bus.TickSecond, clock.now)
	for range w.C() { // until it is closed
	}
	again, err := other.Results(t.Context(), 0)
	require.NoError(t, err)
	require.Empty(t, again.C())
	clock.advance(5 * time.Second)
	d := <-again.C()
	require.EqualValues(t, 2, d.Delivered())
	require.NoError(t, d.Ack())
	n, _, err := other.Backlog(t.Context(), "RESULTS", 0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.ErrorIs(t, doomed.Healthy(t.Context()), bus.ErrClosed)
	require.NoError(t, other.Close())
}
