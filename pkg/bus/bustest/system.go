package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

func (s *suite) ticks(t *testing.T) {
	got := make(chan time.Time, 100)
	stop, err := s.b.OnTick(bus.TickSecond, func(at time.Time) { got <- at })
	require.NoError(t, err)
	swept := make(chan time.Time, 100)
	stopSweep, err := s.b.OnTick(bus.TickSweep, func(at time.Time) { swept <- at })
	require.NoError(t, err)
	defer stopSweep()
	_, err = s.b.OnTick("never", func(time.Time) {})
	require.Error(t, err)
	begin := time.Now()
	if s.Tick != nil {
		s.Tick(bus.TickSecond, begin)
		s.Tick(bus.TickSecond, begin.Add(time.Second))
		s.Tick(bus.TickSweep, begin)
		require.Equal(t, begin, receive(t, swept, "the sweep's tick"))
	}
	first := receive(t, got, "a tick")
	second := receive(t, got, "the next tick")
	require.WithinDuration(t, begin, first, 3*time.Second)
	require.InDelta(t, time.Second, second.Sub(first), float64(700*time.Millisecond))
	stop()
	stop()
}

// shares waits until the newest shares of members are disjoint and cover all partitions.
func shares(t *testing.T, members ...bus.Membership) {
	t.Helper()
	now := make([][]int, len(members))
	eventually(t, func() bool {
		var all []int
		for i, m := range members {
			select {
			case now[i] = <-m.Changes():
			default:
			}
			all = append(all, now[i]...)
		}
		slices.Sort(all)
		return slices.Equal(all, []int{0, 1, 2, 3})
	}, "each partition has one owner")
}

func (s *suite) members(t *testing.T) {
	ctx := within(t)
	a, err := s.b.Join(ctx, "orchestrator", "a.1")
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 2, 3}, receive(t, a.Changes(), "alone: all of them"))
	require.Equal(t, []string{"a.1"}, a.Members())
	other, err := s.b.Join(ctx, "intake", "a.1")
	require.NoError(t, err)
	defer other.Leave()
	require.Equal(t, []int{0, 1, 2, 3}, receive(t, other.Changes(), "another service: all of them"))

	b, err := s.Connect(t).Join(ctx, "orchestrator", "b")
	require.NoError(t, err)
	all := []string{"a.1", "b"}
	first := receive(t, b.Changes(), "a newcomer's first share")
	require.Equal(t, bus.Share(Partitions, "b", all), first, "a newcomer takes its own share, not all")
	require.Equal(t, bus.Share(Partitions, "a.1", all), receive(t, a.Changes(), "the other's share"))
	require.Equal(t, all, a.Members())
	require.Equal(t, all, b.Members())
	b.Leave()
	b.Leave()
	began := time.Now()
	require.Equal(t, []int{0, 1, 2, 3}, receive(t, a.Changes(), "alone again"))
	require.Less(t, time.Since(began), 1500*time.Millisecond, "a word of parting is heard at once")
	require.Equal(t, []string{"a.1"}, a.Members())
	a.Leave()
	_, err = s.b.Join(ctx, "", "a")
	require.Error(t, err)
}

func (s *suite) declines(t *testing.T) {
	ctx := within(t)
	a, err := s.b.Join(ctx, "orchestrator", "a")
	require.NoError(t, err)
	defer a.Leave()
	b, err := s.Connect(t).Join(ctx, "orchestrator", "b")
	require.NoError(t, err)
	shares(t, a, b)
	settled := func(m bus.Membership, want []int, what string) {
		t.Helper()
		var got []int
		eventually(t, func() bool {
			select {
			case got = <-m.Changes():
			default:
			}
			return slices.Equal(want, got)
		}, what)
	}
	all := []int{0, 1, 2, 3}
	a.Decline(all)
	settled(b, all, "what one declines falls to the other")
	settled(a, []int{}, "who declines serves nothing")
	c, err := s.Connect(t).Join(ctx, "orchestrator", "late")
	require.NoError(t, err)
	require.Equal(t, bus.Share(Partitions, "late", []string{"b", "late"}), receive(t, c.Changes(), "a newcomer's first share"))
	c.Leave()
	settled(b, all, "it has gone")
	b.Decline([]int{1})
	both := []string{"a", "b"}
	shared := map[string][]int{"a": all, "b": {1}}
	require.ElementsMatch(t, all, append(bus.ShareOf(Partitions, "a", both, shared), bus.ShareOf(Partitions, "b", both, shared)...))
	if only := bus.ShareOf(Partitions, "a", both, shared); len(only) > 0 {
		settled(a, only, "what all decline is shared among all")
	}
	a.Decline(nil)
	b.Decline(nil)
	settled(a, bus.Share(Partitions, "a", both), "nobody declines any more")
}

func (s *suite) silentDeath(t *testing.T) {
	if s.Kill == nil {
		t.Skip("cannot kill a connection")
	}
	ctx := within(t)
	doomed := s.Connect(t)
	a, err := s.b.Join(ctx, "orchestrator", "a")
	require.NoError(t, err)
	defer a.Leave()
	b, err := doomed.Join(ctx, "orchestrator", "b")
	require.NoError(t, err)
	shares(t, a, b)
	s.Kill(t, doomed)
	require.Equal(t, []int{0, 1, 2, 3}, receive(t, a.Changes(), "the dead one's share"))
	require.Equal(t, []string{"a"}, a.Members())
}

func (s *suite) closed(t *testing.T) {
	b := s.Connect(t)
	in, err := b.Commands(within(t), 0)
	require.NoError(t, err)
	w, err := b.WatchBucket(within(t), bus.Resource, "", "", "")
	require.NoError(t, err)
	m, err := b.Join(within(t), "orchestrator", "x")
	require.NoError(t, err)
	waiting := make(chan error, 1)
	p := phase(t, "launch")
	puller := s.pull(t, b, p)
	go func() {
		_, err := puller.Fetch(t.Context(), 1, bus.FetchBytesMax, patience)
		waiting <- err
	}()
	require.NoError(t, b.Close())
	require.NoError(t, b.Close(), "idempotent")
	require.ErrorIs(t, receive(t, waiting, "a Fetch that waited"), bus.ErrClosed)
	_, err = b.Append(bus.Append{Entity: resource(t, "r")}).Result()
	require.ErrorIs(t, err, bus.ErrClosed)
	_, err = b.Last(within(t), []bus.Entity{resource(t, "r")})
	require.ErrorIs(t, err, bus.ErrClosed)
	require.ErrorIs(t, b.Healthy(within(t)), bus.ErrClosed)
	in.Close()
	w.Close()
	m.Leave()
	for range in.C() { // it must be closed
	}
}

// restart: what was acknowledged is there, what was settled does not come again, and connections live on.
func (s *suite) restart(t *testing.T) {
	if s.Restart == nil {
		t.Skip("cannot be restarted")
	}
	ctx := within(t)
	const n = 200
	p := phase(t, "launch")
	puller := s.pull(t, s.b, p)
	seqs := map[string]uint64{}
	for i := range n {
		name := fmt.Sprint("r", i)
		seqs[name] = s.append(t, bus.Append{Entity: resource(t, name), Dispatch: p.Phase, Body: []byte(name)})
	}
	finished := map[string]bool{}
	for _, d := range fetch(t, puller, n/2) {
		finished[string(d.Body())] = true
		require.NoError(t, d.Ack())
	}
	// Acks are not answered: their effect is.
	eventually(t, func() bool { left, _, err := s.b.Outstanding(ctx, p); return err == nil && left == n/2 }, "half is settled")
	s.command(t, "r", "before")
	in := s.commands(t, commandPartition(t, "r"))
	require.NoError(t, s.b.PublishResult(ctx, bus.ResultSubject(0, t.Name(), "node", "r"), nil, []byte("before")))

	s.Restart(t)

	eventually(t, func() bool { return s.b.Healthy(within(t)) == nil }, "healthy again")
	for name, seq := range seqs {
		s.lastIs(t, resource(t, name), seq)
	}
	rest := map[string]bool{}
	for len(rest) < n/2 {
		for _, d := range fetch(t, puller, 1) {
			require.False(t, finished[string(d.Body())], "finished work %s was handed out again", d.Body())
			rest[string(d.Body())] = true
			require.NoError(t, d.Ack())
		}
	}
	idle(t, puller)
	for {
		d := receive(t, in.C(), "the command")
		require.NoError(t, d.Ack())
		if string(d.Body()) == "before" {
			break
		}
	}
	results, err := s.b.Results(within(t), 0)
	require.NoError(t, err)
	defer results.Close()
	require.NoError(t, receive(t, results.C(), "the result").Ack())
	// New work flows, and ticks do.
	s.append(t, bus.Append{Entity: resource(t, "r0"), Expect: seqs["r0"], Dispatch: p.Phase, Body: []byte("new")})
	d := fetch(t, puller, 1)[0]
	require.Equal(t, "new", string(d.Body()))
	require.NoError(t, d.Ack())
	ticked := make(chan time.Time, 10)
	stop, err := s.b.OnTick(bus.TickSecond, func(at time.Time) {
		select {
		case ticked <- at:
		default: // ten are enough; nobody reads on
		}
	})
	require.NoError(t, err)
	defer stop()
	if s.Tick != nil {
		s.Tick(bus.TickSecond, time.Now())
	}
	receive(t, ticked, "a tick after the restart")
	eventually(t, func() bool {
		got, err := s.b.Get(within(t), resource(t, "r0"))
		return err == nil && string(got.Body) == "new"
	}, "the bucket follows")
	eventually(t, func() bool {
		left, caughtUp, err := s.b.Outstanding(within(t), p)
		return err == nil && caughtUp && left == 0
	}, "caught up again")
}

// leaderMoves: writers go on through it, nothing acknowledged is lost, and consumers are not stuck.
func (s *suite) leaderMoves(t *testing.T) {
	if s.MoveLeader == nil {
		t.Skip("has no leader that could move")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	p := phase(t, "launch")
	puller := s.pull(t, s.b, p)
	in := s.commands(t, commandPartition(t, "r"))
	var acked sync.Map // name -> sequence
	var stop atomic.Bool
	var wg sync.WaitGroup
	errs := make(chan error, 10)
	for w := range 2 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				name := fmt.Sprint("w", w, "-", i)
				e := resource(t, name)
				for !stop.Load() {
					seq, err := s.b.Append(bus.Append{Entity: e, Dispatch: p.Phase, Body: []byte(name)}).Result()
					if errors.Is(err, bus.ErrUnknownOutcome) || errors.Is(err, bus.ErrLost) {
						var got []bus.Stored
						if got, err = s.b.Last(ctx, []bus.Entity{e}); err == nil && got[0].Seq > 0 {
							seq = got[0].Seq // it was stored after all
						} else if err == nil {
							continue
						}
					}
					if err != nil {
						errs <- err
						return
					}
					acked.Store(name, seq)
					break
				}
			}
		})
	}
	commands := make(chan string, 100_000)
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			body := fmt.Sprint(i)
			_, err := s.b.PublishCommand(ctx, bus.CommandSubject("cmd", t.Name(), "node", "r", "start"), nil, []byte(body))
			if err == nil {
				commands <- body
			} // a command without an acknowledgement is the user's to repeat
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	taken := map[string]bool{}
	drain := func(until func() bool) {
		for !until() {
			select {
			case d, open := <-in.C():
				require.True(t, open, "the inbox is closed: %v", in.Err())
				taken[string(d.Body())] = true
				require.NoError(t, d.Ack())
			case err := <-errs:
				require.NoError(t, err)
			case <-time.After(20 * time.Millisecond):
			}
			require.NoError(t, ctx.Err())
		}
	}
	for _, stream := range []string{"EVENTS", "COMMANDS", "WORK", "EVENTS"} {
		count := func() (n int) { acked.Range(func(any, any) bool { n++; return true }); return n }
		before := count()
		s.MoveLeader(t, stream)
		drain(func() bool { return count() >= before+20 })
	}
	stop.Store(true)
	wg.Wait()
	close(commands)
	for body := range commands {
		drain(func() bool { return taken[body] })
	}
	// Everything acknowledged is there, under its sequence, and was handed out.
	want := map[string]bool{}
	acked.Range(func(name, seq any) bool {
		want[name.(string)] = true
		eventually(t, func() bool { return s.last(t, resource(t, name.(string))).Seq == seq.(uint64) }, "acknowledged and lost")
		return true
	})
	handed := map[string]bool{}
	for len(handed) < len(want) {
		got, err := puller.Fetch(ctx, 100, bus.FetchBytesMax, time.Second)
		require.NoError(t, err)
		for _, d := range got {
			if want[string(d.Body())] {
				handed[string(d.Body())] = true
			}
			require.NoError(t, d.Ack())
		}
		require.NoError(t, ctx.Err(), "%d of %d were handed out", len(handed), len(want))
	}
}

func (s *suite) drift(t *testing.T) {
	if s.Spoil == nil {
		t.Skip("nothing can drift")
	}
	ctx := within(t)
	none, err := s.b.Setup(ctx, false)
	require.NoError(t, err)
	require.Empty(t, none)
	repairable, not := s.Spoil(t)
	check := func(repair bool) map[string]bus.Drift {
		drifts, err := s.b.Setup(ctx, repair)
		require.NoError(t, err)
		found := map[string]bus.Drift{}
		for _, d := range drifts {
			require.Equal(t, "EVENTS", d.Stream)
			require.NotEqual(t, d.Want, d.Have)
			found[d.Setting] = d
		}
		return found
	}
	for range 2 { // looking changes nothing
		found := check(false)
		looked, err := s.b.Check(ctx)
		require.NoError(t, err)
		require.Len(t, looked, len(found))
		for _, d := range looked {
			require.Equal(t, found[d.Setting], d)
		}
		require.Len(t, found, 2)
		require.True(t, found[repairable].Repairable)
		require.False(t, found[not].Repairable)
	}
	found := check(true)
	require.Len(t, found, 1, "what cannot be repaired is still reported")
	require.Contains(t, found, not)
	require.Len(t, check(false), 1)
}
