package bustest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// checkMakesNothing: on a system that was not set up, who only looks finds everything missing, however often he looks.
func (s *suite) checkMakesNothing(t *testing.T) {
	if s.Spoil == nil {
		t.Skip("nothing is to be made")
	}
	first, err := s.b.Check(within(t))
	require.NoError(t, err)
	streams := map[string]bool{}
	for _, d := range first {
		require.True(t, d.Missing, "%v", d)
		streams[d.Stream] = true
	}
	require.Subset(t, streams, map[string]bool{"EVENTS": true, "WORK": true, "TIMERS": true, "COMMANDS": true})
	again, err := s.b.Check(within(t))
	require.NoError(t, err)
	require.Equal(t, first, again)
}

func (s *suite) setupByMany(t *testing.T) {
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		b := s.Connect(t)
		wg.Go(func() {
			drift, err := b.Setup(within(t), false)
			if err == nil && len(drift) > 0 {
				err = fmt.Errorf("drift: %v", drift)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	missing, err := s.b.Check(within(t))
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Equal(t, Partitions, s.b.Partitions())
	require.NoError(t, s.b.Healthy(within(t)))
}

// race lets two writers append with the same expectation, many times; exactly one must win each round.
func (s *suite) race(t *testing.T, rounds int, event func(round, writer int, e bus.Entity) bus.Append) {
	writers := [2]bus.Bus{s.b, s.Connect(t)}
	e := resource(t, "web1.example.com")
	var expect uint64
	won := 0
	for round := range rounds {
		var wg sync.WaitGroup
		var seqs [2]uint64
		var errs [2]error
		for w, b := range writers {
			a := event(round, w, e)
			a.Expect = expect
			wg.Go(func() { seqs[w], errs[w] = b.Append(a).Result() })
		}
		wg.Wait()
		winner := s.winner(t, round, errs)
		if winner < 0 {
			continue // nothing was stored: the next round expects the same
		}
		require.Greater(t, seqs[winner], expect)
		expect = seqs[winner]
		won++
	}
	require.Greater(t, won, rounds/2)
	s.lastIs(t, e, expect)
}

// winner is who won, or -1 if both lost where that may be.
func (s *suite) winner(t *testing.T, round int, errs [2]error) int {
	t.Helper()
	for w := range errs {
		if errs[w] == nil {
			require.ErrorIs(t, errs[1-w], bus.ErrLost, "round %d: both won", round)
			return w
		}
		require.ErrorIs(t, errs[w], bus.ErrLost, "round %d", round)
	}
	require.True(t, s.LostByBoth, "round %d: nobody won", round)
	return -1
}

func (s *suite) raceOfTwoWriters(t *testing.T) {
	s.race(t, 300, func(round, writer int, e bus.Entity) bus.Append {
		return bus.Append{Entity: e, Body: fmt.Appendf(nil, "%d/%d", round, writer)}
	})
}

// raceWithMixedTails: writers whose subjects differ must exclude each other all the same.
func (s *suite) raceWithMixedTails(t *testing.T) {
	s.race(t, 300, func(round, writer int, e bus.Entity) bus.Append {
		a := bus.Append{Entity: e}
		if writer == round%2 {
			a.Dispatch = fmt.Sprint("phase", round%3)
		}
		return a
	})
}

func (s *suite) pipelinedAppends(t *testing.T) {
	const n = 500
	pending := make([]bus.Pending, n)
	for i := range pending {
		pending[i] = s.b.Append(bus.Append{Entity: resource(t, fmt.Sprint("r", i)), Body: []byte("x")})
	}
	var before uint64
	for i, p := range pending {
		<-p.Done()
		seq, err := p.Result()
		require.NoError(t, err)
		require.Greater(t, seq, before, "append %d of one goroutine was stored out of order", i)
		before = seq
		again, err := p.Result()
		require.NoError(t, err)
		require.Equal(t, seq, again)
	}
}

func (s *suite) refusedAppends(t *testing.T) {
	e := resource(t, "r")
	for about, c := range map[string]struct {
		a    bus.Append
		want error
	}{
		"too large":                    {bus.Append{Entity: e, Body: make([]byte, bus.BodyBytesMax+1)}, bus.ErrTooLarge},
		"expects what is not there":    {bus.Append{Entity: e, Expect: 7}, bus.ErrLost},
		"partition out of range":       {bus.Append{Entity: bus.Entity{Partition: Partitions, Family: bus.Resource, Project: "p", Kind: "k", Name: "n"}}, bus.ErrEntity},
		"no such family":               {bus.Append{Entity: bus.Entity{Family: "soup", Project: "p", Kind: "k", Name: "n"}}, bus.ErrEntity},
		"a spec without a version":     {bus.Append{Entity: bus.Entity{Family: bus.Spec, Project: "p", Kind: "k", Name: "n"}}, bus.ErrEntity},
		"a resource with a version":    {bus.Append{Entity: e, Version: "d"}, bus.ErrEntity},
		"a job that hands out":         {bus.Append{Entity: bus.Entity{Family: bus.Job, Project: "p", Name: "j"}, Dispatch: "d"}, bus.ErrEntity},
		"a job with a kind":            {bus.Append{Entity: bus.Entity{Family: bus.Job, Project: "p", Kind: "k", Name: "j"}}, bus.ErrEntity},
		"a blueprint with a name":      {bus.Append{Entity: bus.Entity{Family: bus.Blueprint, Project: "p", Kind: "k", Name: "n"}, Version: "d"}, bus.ErrEntity},
		"a partition that is negative": {bus.Append{Entity: bus.Entity{Partition: -1, Family: bus.Resource, Project: "p", Kind: "k", Name: "n"}}, bus.ErrEntity},
	} {
		_, err := s.b.Append(c.a).Result()
		require.ErrorIs(t, err, c.want, about)
	}
	_, err := s.b.Bury(bus.Append{Entity: e, Dispatch: "d"}).Result()
	require.ErrorIs(t, err, bus.ErrEntity)
	require.Zero(t, s.last(t, e).Seq)
	seq := s.append(t, bus.Append{Entity: e, Body: make([]byte, bus.BodyBytesMax)})
	require.Len(t, s.lastIs(t, e, seq).Body, bus.BodyBytesMax)
}

func (s *suite) batches(t *testing.T) {
	ctx := within(t)
	seen := make(chan bus.Stored, 4096)
	stop, err := s.b.Follow(bus.Resource, t.Name(), "", "", func(e bus.Stored) { seen <- e })
	require.NoError(t, err)
	defer stop()
	s.warm(t, seen)

	a, b, c := resource(t, "a"), resource(t, "b"), resource(t, "c")
	b.Partition, c.Partition = a.Partition, a.Partition
	seq, err := s.b.AppendBatch(ctx, []bus.Append{{Entity: a, Body: []byte("a1")}, {Entity: b, Dispatch: "launch", Body: []byte("b1")}})
	require.NoError(t, err)
	s.lastIs(t, a, seq-1)
	require.Equal(t, "launch", s.lastIs(t, b, seq).Dispatch)

	// Lost, whichever of its messages lost: nothing of it is stored.
	for at := range 3 {
		lost := []bus.Append{{Entity: a, Expect: seq - 1, Body: []byte("lost")}, {Entity: b, Expect: seq, Body: []byte("lost")}, {Entity: c, Body: []byte("lost")}}
		lost[at].Expect += 7
		_, err = s.b.AppendBatch(ctx, lost)
		require.ErrorIs(t, err, bus.ErrLost)
	}
	require.Equal(t, []byte("a1"), s.lastIs(t, a, seq-1).Body)
	require.Equal(t, []byte("b1"), s.lastIs(t, b, seq).Body)
	require.Zero(t, s.last(t, c).Seq)

	// Refused before it is sent.
	_, err = s.b.AppendBatch(ctx, nil)
	require.ErrorIs(t, err, bus.ErrBatch)
	_, err = s.b.AppendBatch(ctx, []bus.Append{{Entity: c}, {Entity: c, Dispatch: "launch"}})
	require.ErrorIs(t, err, bus.ErrBatch)
	_, err = s.b.AppendBatch(ctx, []bus.Append{{Entity: c}, {Entity: a, Version: "v"}})
	require.ErrorIs(t, err, bus.ErrEntity)
	many := make([]bus.Append, bus.BatchMessagesMax+1)
	for i := range many {
		many[i] = bus.Append{Entity: resource(t, fmt.Sprint("many", i)), Body: []byte("many")}
	}
	_, err = s.b.AppendBatch(ctx, many)
	require.ErrorIs(t, err, bus.ErrBatch)
	require.Zero(t, s.last(t, c).Seq)

	// One, and the most.
	one, err := s.b.AppendBatch(ctx, []bus.Append{{Entity: c, Body: []byte("c1")}})
	require.NoError(t, err)
	s.lastIs(t, c, one)
	end, err := s.b.AppendBatch(ctx, many[:bus.BatchMessagesMax])
	require.NoError(t, err)
	s.lastIs(t, many[bus.BatchMessagesMax-1].Entity, end)

	// The feed shows what was committed, and nothing of what was not. It is at most once, but nothing disturbs it here.
	last := s.append(t, bus.Append{Entity: resource(t, "sentinel")})
	count := 0
	for {
		e := receive(t, seen, "the feed")
		if e.Seq == last {
			break
		}
		require.NotEqual(t, "lost", string(e.Body), "the feed shows a refused batch")
		count++
	}
	require.Equal(t, 3+bus.BatchMessagesMax, count)
}

// batchesRace: two batches that share one entity; exactly one is stored, whole.
func (s *suite) batchesRace(t *testing.T) {
	writers := [2]bus.Bus{s.b, s.Connect(t)}
	shared := resource(t, "shared")
	var expect uint64
	for round := range 20 {
		var wg sync.WaitGroup
		var errs [2]error
		var seqs [2]uint64
		own := [2]bus.Entity{}
		for w, b := range writers {
			own[w] = resource(t, fmt.Sprint("own-", round, "-", w))
			batch := []bus.Append{{Entity: own[w]}, {Entity: shared, Expect: expect}}
			wg.Go(func() { seqs[w], errs[w] = b.AppendBatch(within(t), batch) })
		}
		wg.Wait()
		winner := s.winner(t, round, errs)
		if winner < 0 {
			continue
		}
		s.lastIs(t, own[winner], seqs[winner]-1)
		s.lastIs(t, shared, seqs[winner])
		require.Zero(t, s.last(t, own[1-winner]).Seq)
		expect = seqs[winner]
	}
}

func (s *suite) versions(t *testing.T) {
	ctx := within(t)
	for _, e := range []bus.Entity{
		{Partition: 1, Family: bus.Spec, Project: t.Name(), Kind: "node", Name: "web1.example.com"},
		{Partition: 2, Family: bus.Blueprint, Project: t.Name(), Kind: "node"},
	} {
		var expect uint64
		for i := range 20 { // more than the log keeps of one subject
			expect = s.append(t, bus.Append{Entity: e, Version: fmt.Sprint("sha256-", i), Expect: expect, Body: fmt.Append(nil, i)})
		}
		for i := range 20 {
			got, err := s.b.Version(ctx, e, fmt.Sprint("sha256-", i))
			require.NoError(t, err)
			require.Equal(t, fmt.Append(nil, i), got.Body)
			require.Equal(t, fmt.Sprint("sha256-", i), got.Version)
			require.Equal(t, e, got.Entity)
		}
		_, err := s.b.Version(ctx, e, "never")
		require.ErrorIs(t, err, bus.ErrNotFound)
		require.Equal(t, "sha256-19", s.lastIs(t, e, expect).Version)
		// An earlier one again: it is the last, and there is still one of each.
		newest := s.append(t, bus.Append{Entity: e, Version: "sha256-3", Expect: expect, Body: []byte("again")})
		s.lastIs(t, e, newest)
		eventually(t, func() bool { // a follower that is behind answers with the earlier one, whose body is the same but in tests
			got, err := s.b.Version(ctx, e, "sha256-3")
			return err == nil && string(got.Body) == "again"
		}, "the later of two events of one version")

		// Only the newest stay, whatever their subjects.
		require.NoError(t, s.b.Trim(ctx, e, 3))
		eventually(t, func() bool { // a follower may be behind
			kept, err := s.b.History(ctx, e)
			_, gone := s.b.Version(ctx, e, "sha256-5")
			return err == nil && len(kept) == 3 && kept[2].Seq == newest && errors.Is(gone, bus.ErrNotFound)
		}, "the newest three are kept, and no other")
		require.NoError(t, s.b.Trim(ctx, e, 0), "one stays at least")
		s.lastIs(t, e, newest)
	}
}

func (s *suite) lastOfMany(t *testing.T) {
	entities := make([]bus.Entity, bus.LoadEntitiesMax)
	want := make([]uint64, len(entities))
	for i := range entities {
		entities[i] = resource(t, fmt.Sprint("r", i))
		if i%3 > 0 {
			want[i] = s.append(t, bus.Append{Entity: entities[i], Dispatch: "a"})
		}
		if i%3 > 1 {
			want[i] = s.append(t, bus.Append{Entity: entities[i], Expect: want[i]})
		}
	}
	// A follower may be behind; it catches up.
	eventually(t, func() bool {
		got, err := s.b.Last(within(t), entities)
		if err != nil || len(got) != len(entities) {
			return false
		}
		for i, e := range got {
			if e.Entity != entities[i] || e.Seq != want[i] {
				return false
			}
		}
		return true
	}, "last events in the order asked")
	_, err := s.b.Last(within(t), slices.Concat(entities, entities[:1]))
	require.Error(t, err)
	none, err := s.b.Last(within(t), nil)
	require.NoError(t, err)
	require.Empty(t, none)
}

// current: what was acknowledged to anyone is seen at once, by everyone, without patience for followers.
func (s *suite) current(t *testing.T) {
	other := s.Connect(t)
	entities := []bus.Entity{resource(t, "none"), resource(t, "r")}
	var expect uint64
	for round := range 200 {
		a := bus.Append{Entity: entities[1], Expect: expect}
		if round%2 == 0 {
			a.Dispatch = fmt.Sprint("phase", round%3)
		}
		seq, err := s.b.Append(a).Result()
		require.NoError(t, err)
		expect = seq
		got, err := other.Current(within(t), entities)
		require.NoError(t, err)
		require.Len(t, got, 2)
		require.Equal(t, bus.Stored{Entity: entities[0]}, got[0])
		require.Equal(t, entities[1], got[1].Entity)
		require.Equal(t, expect, got[1].Seq)
	}
	many := make([]bus.Entity, bus.LoadEntitiesMax)
	for i := range many {
		many[i] = resource(t, fmt.Sprint("r", i))
	}
	got, err := s.b.Current(within(t), many)
	require.NoError(t, err)
	require.Len(t, got, len(many))
	_, err = s.b.Current(within(t), slices.Concat(many, many[:1]))
	require.Error(t, err)
}

func (s *suite) scan(t *testing.T) {
	const n = 600 // more than a reader's batch
	want := map[bus.Entity]uint64{}
	for i := range n {
		e := resource(t, fmt.Sprint("r", i))
		e.Partition = i % 2
		seq := s.append(t, bus.Append{Entity: e, Dispatch: "launch"})
		if i%2 == 0 {
			seq = s.append(t, bus.Append{Entity: e, Expect: seq})
		}
		want[e] = seq
	}
	job := bus.Entity{Partition: 0, Family: bus.Job, Project: t.Name(), Name: "j"}
	s.append(t, bus.Append{Entity: job})
	got := map[bus.Entity]uint64{}
	for p := range 2 {
		var before uint64
		require.NoError(t, s.b.Scan(within(t), p, bus.Resource, func(e bus.Stored) error {
			require.Equal(t, p, e.Entity.Partition)
			require.Equal(t, bus.Resource, e.Entity.Family)
			require.Greater(t, e.Seq, before, "not in the order of the log")
			before = e.Seq
			if e.Entity.Project == t.Name() {
				require.NotContains(t, got, e.Entity, "an entity came twice")
				got[e.Entity] = e.Seq
			}
			return nil
		}))
	}
	require.Equal(t, want, got)
	stop := errors.New("stop")
	calls := 0
	require.ErrorIs(t, s.b.Scan(within(t), 0, bus.Resource, func(bus.Stored) error { calls++; return stop }), stop)
	require.Equal(t, 1, calls)
	require.NoError(t, s.b.Scan(within(t), 0, bus.Job, func(e bus.Stored) error {
		require.Equal(t, job, e.Entity)
		return nil
	}))
	// What was acknowledged before is seen, wherever the reader reads.
	e := resource(t, "fresh")
	var expect uint64
	for i := range 20 {
		seq := s.append(t, bus.Append{Entity: e, Expect: expect})
		expect = seq
		var seen uint64
		require.NoError(t, s.b.Scan(within(t), e.Partition, bus.Resource, func(x bus.Stored) error {
			if x.Entity == e {
				seen = x.Seq
			}
			return nil
		}))
		require.Equal(t, seq, seen, "scan %d missed what was acknowledged before it", i)
	}
	var younger []uint64
	require.NoError(t, s.b.ScanAfter(within(t), e.Partition, bus.Resource, expect-1, func(x bus.Stored) error {
		require.GreaterOrEqual(t, x.Seq, expect)
		if x.Entity == e && !slices.Contains(younger, x.Seq) { // one may come twice
			younger = append(younger, x.Seq)
		}
		return nil
	}))
	require.Equal(t, []uint64{expect}, younger)
	require.NoError(t, s.b.ScanAfter(within(t), e.Partition, bus.Resource, expect, func(x bus.Stored) error {
		require.NotEqual(t, e, x.Entity)
		return nil
	}))
	require.ErrorIs(t, s.b.ScanAfter(within(t), e.Partition, bus.Resource, expect-1, func(bus.Stored) error { return stop }), stop)
}

func (s *suite) history(t *testing.T) {
	ctx := within(t)
	e := resource(t, "r")
	none, err := s.b.History(ctx, e)
	require.NoError(t, err)
	require.Empty(t, none)
	var expect uint64
	for i := range 20 {
		a := bus.Append{Entity: e, Expect: expect, Header: bus.Header{Revision: uint64(i + 1)}}
		if i%10 == 0 {
			a.Dispatch = "launch"
		}
		expect = s.append(t, a)
	}
	var revisions []string
	eventually(t, func() bool {
		all, err := s.b.History(ctx, e)
		require.NoError(t, err)
		revisions = nil
		for _, x := range all {
			revisions = append(revisions, fmt.Sprint(x.Header.Revision, x.Dispatch))
		}
		return strings.HasSuffix(strings.Join(revisions, " "), "20")
	}, "history")
	// Eight of each subject.
	require.Equal(t, "1launch 11launch 13 14 15 16 17 18 19 20", strings.Join(revisions, " "))
}

func (s *suite) bury(t *testing.T, e bus.Entity, expect uint64) uint64 {
	t.Helper()
	seq, err := s.b.Bury(bus.Append{Entity: e, Expect: expect, Body: []byte("gone")}).Result()
	require.NoError(t, err)
	return seq
}

func (s *suite) forget(t *testing.T) {
	ctx := within(t)
	e, other := resource(t, "web1.example.com"), resource(t, "web1")
	other.Partition = e.Partition
	s.append(t, bus.Append{Entity: other})
	var seq uint64
	for i := range 12 {
		a := bus.Append{Entity: e, Expect: seq}
		if i%2 == 0 {
			a.Dispatch = fmt.Sprint("phase", i)
		}
		seq = s.append(t, a)
	}
	require.ErrorIs(t, s.b.Forget(ctx, e, seq), bus.ErrLost, "it lives")
	gone := s.bury(t, e, seq)
	last := s.lastIs(t, e, gone)
	require.True(t, last.Deleted)
	require.Equal(t, "gone", string(last.Body))
	require.NoError(t, s.b.Forget(ctx, e, gone))
	require.NoError(t, s.b.Forget(ctx, e, gone), "it may be repeated")
	eventually(t, func() bool {
		last := s.last(t, e)
		require.True(t, last.Seq == 0 || last.Deleted, "an older event resurfaced")
		all, err := s.b.History(ctx, e)
		require.NoError(t, err)
		for _, x := range all {
			require.True(t, x.Deleted, "an older event resurfaced")
		}
		return len(all) == 0
	}, "the log holds nothing of it")
	eventually(t, func() bool { return s.inBucket(t, e) == 0 }, "the bucket holds nothing of it")
	s.lastIs(t, e, 0)
	require.NoError(t, s.b.Forget(ctx, e, gone), "nothing is left to forget")
	// Its namesake lives.
	require.NotZero(t, s.last(t, other).Seq)
	_, err := s.b.Get(ctx, other)
	require.NoError(t, err)

	// Versions go too.
	spec := bus.Entity{Partition: 1, Family: bus.Spec, Project: t.Name(), Kind: "node", Name: "r"}
	seq = s.append(t, bus.Append{Entity: spec, Version: "v1"})
	seq = s.append(t, bus.Append{Entity: spec, Version: "v2", Expect: seq})
	require.NoError(t, s.b.Forget(ctx, spec, s.bury(t, spec, seq)))
	eventually(t, func() bool { // a follower last
		_, err = s.b.Version(ctx, spec, "v1")
		return errors.Is(err, bus.ErrNotFound)
	}, "the version is gone")
}

// inBucket counts the bucket's entries of an entity, deletions too.
func (s *suite) inBucket(t *testing.T, e bus.Entity) (n int) {
	t.Helper()
	w, err := s.b.WatchBucket(within(t), e.Family, e.Project, e.Kind, e.Name)
	require.NoError(t, err)
	defer w.Close()
	for receive(t, w.C(), "the bucket").Entity.Family != "" {
		n++
	}
	return n
}

func (s *suite) scanKind(t *testing.T) {
	e, other := resource(t, "r"), resource(t, "r")
	other.Kind = e.Kind + "2"
	buried := resource(t, "gone")
	buried.Partition = e.Partition
	seq := s.append(t, bus.Append{Entity: e})
	seq = s.append(t, bus.Append{Entity: e, Dispatch: "launch", Expect: seq})
	s.append(t, bus.Append{Entity: other})
	gone := s.bury(t, buried, s.append(t, bus.Append{Entity: buried}))
	var found []string
	require.NoError(t, s.b.ScanKind(within(t), e.Partition, e.Project, e.Kind, func(m bus.Stored) error {
		found = append(found, fmt.Sprint(m.Entity.Name, m.Seq, m.Deleted))
		return nil
	}))
	require.Equal(t, []string{fmt.Sprint("r", seq, false), fmt.Sprint("gone", gone, true)}, found)
	stop := errors.New("stop")
	require.ErrorIs(t, s.b.ScanKind(within(t), e.Partition, e.Project, e.Kind, func(bus.Stored) error { return stop }), stop)
	require.NoError(t, s.b.ScanKind(within(t), (e.Partition+1)%Partitions, e.Project, e.Kind, func(bus.Stored) error { return stop }))
}

func (s *suite) drop(t *testing.T) {
	ctx := within(t)
	e := bus.Entity{Family: bus.Blueprint, Project: t.Name(), Kind: "node", Partition: 1}
	first := s.append(t, bus.Append{Entity: e, Version: "v1"})
	second := s.append(t, bus.Append{Entity: e, Version: "v2", Expect: first})
	again := s.append(t, bus.Append{Entity: e, Version: "v1", Expect: second})
	s.lastIs(t, e, again)
	require.NoError(t, s.b.Drop(ctx, e, "v1", first))
	got, err := s.b.Version(ctx, e, "v1")
	require.NoError(t, err, "it came again later")
	require.Equal(t, again, got.Seq)
	require.NoError(t, s.b.Drop(ctx, e, "v2", second))
	require.NoError(t, s.b.Drop(ctx, e, "v2", second), "it may be repeated")
	eventually(t, func() bool {
		_, err := s.b.Version(ctx, e, "v2")
		all, herr := s.b.History(ctx, e)
		return errors.Is(err, bus.ErrNotFound) && herr == nil && len(all) == 1
	}, "the version is gone")
	s.lastIs(t, e, again)
	s.append(t, bus.Append{Entity: e, Version: "v2", Expect: again})
}

func (s *suite) forgetAndReuse(t *testing.T) {
	ctx := within(t)
	e := resource(t, "r")
	first := s.append(t, bus.Append{Entity: e, Body: []byte("first")})
	gone := s.bury(t, e, first)
	// A new life before anybody forgets the old one: it must not be forgotten.
	second := s.append(t, bus.Append{Entity: e, Expect: gone, Body: []byte("second")})
	require.ErrorIs(t, s.b.Forget(ctx, e, gone), bus.ErrLost)
	gone = s.bury(t, e, second)
	require.NoError(t, s.b.Forget(ctx, e, gone))
	// A new life while the deletion is kept: who expects nothing must learn of it, or it is over already.
	var tomb bus.Stored
	eventually(t, func() bool { tomb = s.last(t, e); return tomb.Seq == 0 || tomb.Seq > gone }, "the deletion that expires")
	third, err := s.b.Append(bus.Append{Entity: e, Expect: tomb.Seq, Body: []byte("third")}).Result()
	if errors.Is(err, bus.ErrLost) { // it expired in between
		third, err = s.b.Append(bus.Append{Entity: e, Body: []byte("third")}).Result()
	}
	require.NoError(t, err)
	require.ErrorIs(t, s.b.Forget(ctx, e, gone), bus.ErrLost)
	// After the deletion's time the new life is all there is.
	eventually(t, func() bool {
		all, err := s.b.History(ctx, e)
		require.NoError(t, err)
		require.NotEmpty(t, all)
		require.Equal(t, third, all[len(all)-1].Seq, "the new life must stay the last event")
		return len(all) == 1
	}, "only the new life is left")
	eventually(t, func() bool {
		got, err := s.b.Get(ctx, e)
		return err == nil && string(got.Body) == "third"
	}, "the bucket shows the new life")
	require.Equal(t, "third", string(s.lastIs(t, e, third).Body))
}
