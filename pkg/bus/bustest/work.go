package bustest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// phase is a phase of this test's own project.
func phase(t *testing.T, name string) bus.Phase {
	return bus.Phase{Project: t.Name(), Kind: "node", Phase: name}
}

func (s *suite) pull(t *testing.T, b bus.Bus, p bus.Phase) bus.Puller {
	t.Helper()
	require.NoError(t, b.EnsurePhase(within(t), p))
	puller, err := b.Pull(within(t), p)
	require.NoError(t, err)
	t.Cleanup(puller.Close)
	return puller
}

// fetch waits for n deliveries.
func fetch(t *testing.T, p bus.Puller, n int) []bus.Delivery {
	t.Helper()
	var got []bus.Delivery
	for end := time.Now().Add(patience); len(got) < n && time.Now().Before(end); {
		more, err := p.Fetch(within(t), n-len(got), bus.FetchBytesMax, time.Second)
		require.NoError(t, err)
		got = append(got, more...)
	}
	require.Len(t, got, n)
	return got
}

// idle checks that nothing is to be fetched now.
func idle(t *testing.T, p bus.Puller) {
	t.Helper()
	got, err := p.Fetch(within(t), 10, bus.FetchBytesMax, 50*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, got)
}

func (s *suite) work(t *testing.T) {
	ctx := within(t)
	p := phase(t, "create.volume")
	_, err := s.b.Pull(ctx, p)
	require.ErrorIs(t, err, bus.ErrNotFound)
	// What is handed out before there is a consumer waits for it.
	e := resource(t, "web1.example.com")
	seq := s.append(t, bus.Append{Entity: e, Dispatch: p.Phase, Body: []byte("body"),
		Header: bus.Header{From: "a", To: "b", Job: "j", Revision: 3, Traceparent: "t"}})
	seq = s.append(t, bus.Append{Entity: e, Expect: seq})                    // hands out nothing
	s.append(t, bus.Append{Entity: e, Expect: seq, Dispatch: "other.phase"}) // another's
	require.NoError(t, s.b.EnsurePhase(ctx, p))
	require.NoError(t, s.b.EnsurePhase(ctx, p), "idempotent")
	puller, err := s.b.Pull(ctx, p)
	require.NoError(t, err)
	defer puller.Close()
	require.Equal(t, WorkAckWait, puller.AckWait())
	d := fetch(t, puller, 1)[0]
	require.Equal(t, p.WorkSubject(), d.Subject())
	require.Equal(t, "body", string(d.Body()))
	require.Equal(t, "j", d.Header(bus.HeaderJob))
	require.Equal(t, "3", d.Header(bus.HeaderRevision))
	require.Equal(t, "t", d.Header(bus.HeaderTraceparent))
	require.Empty(t, d.Header(bus.HeaderPoll))
	require.EqualValues(t, 1, d.Delivered())
	require.NotZero(t, d.Seq())
	require.False(t, d.Time().IsZero())
	require.NoError(t, d.Ack())
	require.Error(t, d.Ack(), "settled twice")
	idle(t, puller)

	// Batches, in the order of the log.
	for i := range 10 {
		s.append(t, bus.Append{Entity: resource(t, fmt.Sprint("r", i)), Dispatch: p.Phase, Body: fmt.Append(nil, i)})
	}
	for i, d := range fetch(t, puller, 10) {
		require.Equal(t, fmt.Sprint(i), string(d.Body()))
		require.NoError(t, d.Ack())
	}
	idle(t, puller)
}

func (s *suite) workRedelivery(t *testing.T) {
	p := phase(t, "launch")
	puller := s.pull(t, s.b, p)
	e := resource(t, "r")
	seq := s.append(t, bus.Append{Entity: e, Dispatch: p.Phase})

	d := fetch(t, puller, 1)[0]
	require.NoError(t, d.Retry(0))
	d = fetch(t, puller, 1)[0]
	require.EqualValues(t, 2, d.Delivered())
	asked := time.Now()
	require.NoError(t, d.Retry(300*time.Millisecond))
	// What waits does not hold up what is fresh.
	s.append(t, bus.Append{Entity: e, Expect: seq, Dispatch: p.Phase, Body: []byte("fresh")})
	fresh := fetch(t, puller, 1)[0]
	require.Equal(t, "fresh", string(fresh.Body()))
	require.NoError(t, fresh.Ack())
	d = fetch(t, puller, 1)[0]
	require.GreaterOrEqual(t, time.Since(asked), 250*time.Millisecond)
	require.EqualValues(t, 3, d.Delivered())

	// Progress keeps it past the ack wait; then, unsettled, it comes again.
	for end := time.Now().Add(WorkAckWait + WorkAckWait/4); time.Now().Before(end); {
		require.NoError(t, d.Progress())
		got, err := puller.Fetch(within(t), 1, bus.FetchBytesMax, WorkAckWait/4)
		require.NoError(t, err)
		require.Empty(t, got, "it came again although it is being worked on")
	}
	d = fetch(t, puller, 1)[0]
	require.EqualValues(t, 4, d.Delivered())
	require.NoError(t, d.Reject(within(t), "no use"))
	idle(t, puller)
}

func (s *suite) workShared(t *testing.T) {
	const n = 200
	p := phase(t, "launch")
	var mu sync.Mutex
	seen := map[string]int{}
	pullers := [2]bus.Puller{s.pull(t, s.Connect(t), p), s.pull(t, s.Connect(t), p)}
	publish := func(i int) {
		s.append(t, bus.Append{Entity: resource(t, fmt.Sprint("r", i)), Dispatch: p.Phase, Body: fmt.Append(nil, i)})
	}
	for i, puller := range pullers { // each gets one, at least
		publish(i)
		d := fetch(t, puller, 1)[0]
		seen[string(d.Body())]++
		require.NoError(t, d.Ack())
	}
	var wg sync.WaitGroup
	for _, puller := range pullers {
		wg.Go(func() {
			for {
				mu.Lock()
				all := len(seen) == n
				mu.Unlock()
				if all {
					return
				}
				got, err := puller.Fetch(t.Context(), 5, bus.FetchBytesMax, 50*time.Millisecond)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, d := range got {
					seen[string(d.Body())]++
					if err := d.Ack(); err != nil {
						t.Error(err)
					}
				}
				mu.Unlock()
			}
		})
	}
	for i := len(pullers); i < n; i++ {
		publish(i)
	}
	wg.Wait()
	for body, times := range seen {
		require.Equal(t, 1, times, "work %s was handed out twice", body)
	}
}

// workBytes: a Fetch brings no more bytes than it was asked for, does not wait for what would pass that, and leaves it for
// the next. The largest message there may be fits into the least that may be asked for.
func (s *suite) workBytes(t *testing.T) {
	const largest, small = 5, 3
	p := phase(t, "launch")
	puller := s.pull(t, s.b, p)
	for i := range largest + small {
		body := make([]byte, bus.BodyBytesMax)
		if i >= largest {
			body = body[:100]
		}
		e := resource(t, fmt.Sprint("r", i))
		s.append(t, bus.Append{Entity: e, Dispatch: p.Phase, Body: body, Header: bus.Header{Revision: 1}})
	}
	for _, most := range []int{1, 0} { // either means FetchBytesMin
		got := fetchBytes(t, puller, most)
		require.Len(t, got, 1, "two of the largest are more than %d bytes", bus.FetchBytesMin)
		require.NoError(t, got[0].Ack())
		require.Len(t, got[0].Body(), bus.BodyBytesMax)
	}
	var bodies []int
	for len(bodies) < largest-2+small {
		bytes := 0
		for _, d := range fetchBytes(t, puller, 2*bus.FetchBytesMin) {
			bytes += len(d.Body())
			bodies = append(bodies, len(d.Body()))
			require.NoError(t, d.Ack())
		}
		require.LessOrEqual(t, bytes, 2*bus.FetchBytesMin)
	}
	slices.Sort(bodies)
	require.Equal(t, []int{100, 100, 100, bus.BodyBytesMax, bus.BodyBytesMax, bus.BodyBytesMax}, bodies)
	idle(t, puller)
}

// fetchBytes fetches once, with all patience, and does not need it.
func fetchBytes(t *testing.T, p bus.Puller, most int) []bus.Delivery {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		began := time.Now()
		got, err := p.Fetch(within(t), 100, most, patience)
		require.NoError(t, err)
		if len(got) > 0 {
			require.Less(t, time.Since(began), patience/2, "what does not fit was waited for")
			return got
		}
		require.True(t, time.Now().Before(end), "nothing came")
	}
}

// workWaits: a Fetch that waits is woken by the first, and does not wait for a full batch.
func (s *suite) workWaits(t *testing.T) {
	p := phase(t, "launch")
	puller := s.pull(t, s.b, p)
	idle(t, puller)
	got := make(chan []bus.Delivery, 1)
	go func() {
		ds, err := puller.Fetch(t.Context(), 100, bus.FetchBytesMax, patience)
		if err != nil {
			t.Error(err)
		}
		got <- ds
	}()
	began := time.Now()
	s.append(t, bus.Append{Entity: resource(t, "r"), Dispatch: p.Phase})
	ds := receive(t, got, "a Fetch that waits")
	require.Len(t, ds, 1)
	require.Less(t, time.Since(began), patience/2)
	require.NoError(t, ds[0].Ack())
	// Without a wait it returns at once.
	none, err := puller.Fetch(within(t), 1, bus.FetchBytesMax, 0)
	require.NoError(t, err)
	require.Empty(t, none)
}

func (s *suite) polls(t *testing.T) {
	ctx := within(t)
	p, other := phase(t, "healthy"), phase(t, "other")
	puller, otherPuller := s.pull(t, s.b, p), s.pull(t, s.b, other)
	for range 3 {
		require.NoError(t, s.b.PublishPoll(ctx, p, "key-1", []byte("state")))
	}
	require.NoError(t, s.b.PublishPoll(ctx, other, "key-1", []byte("other")), "keys of phases are apart")
	d := fetch(t, puller, 1)[0]
	require.Equal(t, "state", string(d.Body()))
	require.Equal(t, "key-1", d.Header(bus.HeaderPoll))
	require.Equal(t, p.WorkSubject(), d.Subject())
	require.NoError(t, d.Ack())
	idle(t, puller)
	require.NoError(t, s.b.PublishPoll(ctx, p, "key-1", []byte("state")), "the same again, after it was taken")
	idle(t, puller)
	require.NoError(t, s.b.PublishPoll(ctx, p, "key-2", []byte("state")))
	require.NoError(t, fetch(t, puller, 1)[0].Ack())
	require.NoError(t, fetch(t, otherPuller, 1)[0].Ack())
}

func (s *suite) outstanding(t *testing.T) {
	ctx := within(t)
	p := phase(t, "launch")
	puller := s.pull(t, s.b, p)
	count := func() uint64 {
		var n uint64
		eventually(t, func() bool {
			var caughtUp bool
			var err error
			n, caughtUp, err = s.b.Outstanding(ctx, p)
			require.NoError(t, err)
			return caughtUp
		}, "the work catches up with the log")
		return n
	}
	require.Zero(t, count(), "nothing was handed out")
	for i := range 5 {
		s.append(t, bus.Append{Entity: resource(t, fmt.Sprint("r", i)), Dispatch: p.Phase})
		// Never a false zero: right after the append it is either counted or not caught up.
		n, caughtUp, err := s.b.Outstanding(ctx, p)
		require.NoError(t, err)
		require.True(t, n == uint64(i+1) || !caughtUp, "%d outstanding, caught up, after %d were handed out", n, i+1)
	}
	require.EqualValues(t, 5, count())
	got := fetch(t, puller, 3)
	require.EqualValues(t, 5, count(), "what is delivered is out still")
	for _, d := range got {
		require.NoError(t, d.Ack())
	}
	eventually(t, func() bool { return count() == 2 }, "what is settled is not")
	for _, d := range fetch(t, puller, 2) {
		require.NoError(t, d.Ack())
	}
	eventually(t, func() bool { return count() == 0 }, "nothing is out")
}

func (s *suite) removePhase(t *testing.T) {
	ctx := within(t)
	p := phase(t, "launch")
	puller := s.pull(t, s.b, p)
	s.append(t, bus.Append{Entity: resource(t, "r1"), Dispatch: p.Phase})
	require.NoError(t, fetch(t, puller, 1)[0].Ack())
	s.append(t, bus.Append{Entity: resource(t, "r2"), Dispatch: p.Phase})
	eventually(t, func() bool { n, _, err := s.b.Outstanding(ctx, p); return err == nil && n == 1 }, "it waits")
	require.NoError(t, s.b.RemovePhase(ctx, p))
	require.NoError(t, s.b.RemovePhase(ctx, p), "idempotent")
	_, err := puller.Fetch(ctx, 1, bus.FetchBytesMax, time.Second)
	require.ErrorIs(t, err, bus.ErrNotFound)
	_, err = s.b.Pull(ctx, p)
	require.ErrorIs(t, err, bus.ErrNotFound)
	puller = s.pull(t, s.b, p)
	idle(t, puller)
	s.append(t, bus.Append{Entity: resource(t, "r3"), Dispatch: p.Phase, Body: []byte("r3")})
	d := fetch(t, puller, 1)[0]
	require.Equal(t, "r3", string(d.Body()))
	require.NoError(t, d.Ack())
}
