package bustest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

func (s *suite) readers(t *testing.T) {
	ctx := within(t)
	e := resource(t, "web1.example.com")
	_, err := s.b.Get(ctx, e)
	require.ErrorIs(t, err, bus.ErrNotFound)
	header := bus.Header{From: "Ready", To: "Running\r\nNats-Rollup: all", Job: "j1", Revision: 7, Traceparent: "00-a-b-01"}
	seq := s.append(t, bus.Append{Entity: e, Dispatch: "launch", Header: header, Body: []byte{0, 1, 2}})
	var got bus.Stored
	eventually(t, func() bool {
		got, err = s.b.Get(ctx, bus.Entity{Family: e.Family, Project: e.Project, Kind: e.Kind, Name: e.Name}) // no partition
		return err == nil
	}, "the bucket has it")
	require.Equal(t, e, got.Entity)
	require.Equal(t, seq, got.Seq, "the sequence in the log")
	require.Equal(t, "launch", got.Dispatch)
	require.Equal(t, []byte{0, 1, 2}, got.Body)
	require.Equal(t, "Ready", got.Header.From)
	require.Equal(t, "j1", got.Header.Job)
	require.EqualValues(t, 7, got.Header.Revision)
	require.Equal(t, "00-a-b-01", got.Header.Traceparent)
	require.False(t, got.Time.IsZero())

	others := []bus.Entity{
		{Partition: 1, Family: bus.Resource, Project: t.Name(), Kind: "node", Name: "-"},
		{Partition: 1, Family: bus.Resource, Project: t.Name(), Kind: "a.b", Name: "x"},
		{Partition: 1, Family: bus.Resource, Project: t.Name() + "2", Kind: "node", Name: "x"},
		{Partition: 1, Family: bus.Job, Project: t.Name(), Name: "j1"},
		{Partition: 1, Family: bus.Blueprint, Project: t.Name(), Kind: "node"},
		{Partition: 1, Family: bus.Spec, Project: t.Name(), Kind: "node", Name: "x"},
		{Partition: 1, Family: bus.Machine, Project: t.Name(), Name: "web1.example.com"},
		{Partition: 1, Family: bus.TaskRun, Project: t.Name(), Name: "t1"},
		{Partition: 1, Family: bus.Check, Project: t.Name(), Name: "c1"},
		{Partition: 1, Family: bus.Instance, Project: t.Name(), Name: "i1"},
		{Partition: 1, Family: bus.Deployment, Project: t.Name(), Name: "i1"},
	}
	for _, o := range others {
		a := bus.Append{Entity: o}
		if o.Family == bus.Blueprint || o.Family == bus.Spec {
			a.Version = "v1"
		}
		s.append(t, a)
	}
	list := func(f bus.Family, project, kind string) (names []string) {
		require.NoError(t, s.b.List(ctx, f, project, kind, func(e bus.Stored) error {
			names = append(names, fmt.Sprint(e.Entity.Kind, "/", e.Entity.Name))
			return nil
		}))
		slices.Sort(names)
		return names
	}
	for _, c := range []struct {
		f             bus.Family
		project, kind string
		want          []string
	}{
		{bus.Resource, t.Name(), "", []string{"a.b/x", "node/-", "node/web1.example.com"}},
		{bus.Resource, t.Name(), "node", []string{"node/-", "node/web1.example.com"}},
		{bus.Resource, t.Name(), "a.b", []string{"a.b/x"}},
		{bus.Resource, t.Name() + "2", "", []string{"node/x"}},
		{bus.Resource, t.Name(), "none", nil},
		{bus.Job, t.Name(), "", []string{"/j1"}},
		{bus.Blueprint, t.Name(), "", []string{"node/"}},
		{bus.Spec, t.Name(), "node", []string{"node/x"}},
		{bus.Machine, t.Name(), "", []string{"/web1.example.com"}},
		{bus.TaskRun, t.Name(), "", []string{"/t1"}},
		{bus.Check, t.Name(), "", []string{"/c1"}},
		{bus.Instance, t.Name(), "", []string{"/i1"}},
		{bus.Deployment, t.Name(), "", []string{"/i1"}},
	} {
		eventually(t, func() bool { return slices.Equal(list(c.f, c.project, c.kind), c.want) }, fmt.Sprint(c))
	}
	stop := errors.New("stop")
	require.ErrorIs(t, s.b.List(ctx, bus.Resource, "", "", func(bus.Stored) error { return stop }), stop)

	s.bury(t, e, seq)
	eventually(t, func() bool { return !slices.Contains(list(bus.Resource, t.Name(), ""), "node/web1.example.com") }, "a deletion is not listed")
	eventually(t, func() bool { _, err := s.b.Get(ctx, e); return errors.Is(err, bus.ErrNotFound) }, "a deletion is not read") // by a follower last
}

func (s *suite) watch(t *testing.T) {
	const n = 300 // more than a reader's batch
	seqs := map[string]uint64{}
	for i := range n {
		name := fmt.Sprint("r", i)
		seqs[name] = s.append(t, bus.Append{Entity: resource(t, name)})
	}
	eventually(t, func() bool {
		present := 0
		require.NoError(t, s.b.List(within(t), bus.Resource, t.Name(), "node", func(bus.Stored) error { present++; return nil }))
		return present == n
	}, "the bucket has them all")

	listed := map[string]int{}
	require.NoError(t, s.b.List(within(t), bus.Resource, t.Name(), "node", func(e bus.Stored) error {
		if listed[e.Entity.Name]++; len(listed) == 1 { // all change while they are listed
			for name, seq := range seqs {
				seqs[name] = s.append(t, bus.Append{Entity: resource(t, name), Expect: seq})
			}
		}
		return nil
	}))
	require.Len(t, listed, n)
	for name, times := range listed {
		require.Equal(t, 1, times, name)
	}
	eventually(t, func() bool {
		present := map[string]uint64{}
		require.NoError(t, s.b.List(within(t), bus.Resource, t.Name(), "node", func(e bus.Stored) error {
			present[e.Entity.Name] = e.Seq
			return nil
		}))
		return maps.Equal(seqs, present)
	}, "the bucket has all changes")

	ctx, cancel := context.WithCancel(t.Context())
	w, err := s.b.WatchBucket(ctx, bus.Resource, t.Name(), "node", "")
	require.NoError(t, err)
	cancel() // the context was for opening it
	present := map[string]uint64{}
	for {
		e := receive(t, w.C(), "present entries")
		if e.Entity.Family == "" {
			break
		}
		present[e.Entity.Name] = e.Seq
	}
	require.Equal(t, seqs, present)

	one, err := s.b.WatchBucket(within(t), bus.Resource, t.Name(), "node", "r7")
	require.NoError(t, err)
	require.Equal(t, seqs["r7"], receive(t, one.C(), "the one entry").Seq)
	require.Empty(t, receive(t, one.C(), "the end of the present").Entity.Family)

	next := s.append(t, bus.Append{Entity: resource(t, "r8"), Expect: seqs["r8"]})
	require.Equal(t, next, receive(t, w.C(), "a change").Seq)
	gone := s.bury(t, resource(t, "r7"), seqs["r7"])
	for _, c := range []<-chan bus.Stored{w.C(), one.C()} {
		e := receive(t, c, "a deletion")
		require.Equal(t, gone, e.Seq)
		require.True(t, e.Deleted)
	}
	one.Close()
	w.Close()
	w.Close()
	_, open := <-w.C()
	require.False(t, open)

	none, err := s.b.WatchBucket(within(t), bus.Job, t.Name(), "", "")
	require.NoError(t, err)
	require.Empty(t, receive(t, none.C(), "the end of nothing").Entity.Family)
	job := s.append(t, bus.Append{Entity: bus.Entity{Family: bus.Job, Project: t.Name(), Name: "j"}})
	require.Equal(t, job, receive(t, none.C(), "the first").Seq)
	none.Close()
}

// feed: ordered per entity, from the buckets, with everything that a client needs.
func (s *suite) feed(t *testing.T) {
	seen := make(chan bus.Stored, 4096)
	stop, err := s.Connect(t).Follow(bus.Resource, t.Name(), "", "", func(e bus.Stored) { seen <- e })
	require.NoError(t, err)
	narrow := make(chan bus.Stored, 4096)
	stopNarrow, err := s.b.Follow(bus.Resource, t.Name(), "node", "r1", func(e bus.Stored) { narrow <- e })
	require.NoError(t, err)
	defer stopNarrow()
	s.warm(t, seen)
	const n = 50
	expect := map[string]uint64{}
	for i := range 3 * n {
		name := fmt.Sprint("r", i%3)
		a := bus.Append{Entity: resource(t, name), Expect: expect[name], Header: bus.Header{Revision: uint64(i/3 + 1)}}
		if i%2 == 0 {
			a.Dispatch = "launch"
		}
		expect[name] = s.append(t, a)
	}
	revisions := map[string]uint64{}
	for range 3 * n {
		e := receive(t, seen, "the feed")
		require.Equal(t, resource(t, e.Entity.Name), e.Entity)
		require.Equal(t, revisions[e.Entity.Name]+1, e.Header.Revision)
		revisions[e.Entity.Name]++
	}
	require.Equal(t, []string{"r0", "r1", "r2"}, slices.Sorted(maps.Keys(revisions)))
	for i := range n {
		e := receive(t, narrow, "the narrow feed")
		require.Equal(t, "r1", e.Entity.Name)
		require.EqualValues(t, i+1, e.Header.Revision)
	}
	stop()
	last := s.append(t, bus.Append{Entity: resource(t, "r1"), Expect: expect["r1"]})
	require.Equal(t, last, receive(t, narrow, "the narrow feed").Seq)
	silent(t, seen, "the feed goes on after stop")
}

func (s *suite) output(t *testing.T) {
	ctx := within(t)
	const n = 300 // more than a reader's batch
	for i := range n {
		require.NoError(t, s.b.PublishOutput(t.Name(), "node", "web1.example.com", fmt.Append(nil, i)))
		require.NoError(t, s.b.PublishOutput(t.Name(), "node", "other", []byte("other")))
	}
	require.ErrorIs(t, s.b.PublishOutput(t.Name(), "node", "r", make([]byte, bus.BodyBytesMax+1)), bus.ErrTooLarge)
	read := func() (lines []bus.OutputLine) {
		require.NoError(t, s.b.ReadOutput(ctx, t.Name(), "node", "web1.example.com", false, func(l bus.OutputLine) error {
			lines = append(lines, l)
			return nil
		}))
		return lines
	}
	var lines []bus.OutputLine
	eventually(t, func() bool { lines = read(); return len(lines) == n }, "all lines")
	for i, l := range lines {
		require.Equal(t, fmt.Sprint(i), string(l.Body))
		require.Equal(t, bus.OutSubject(t.Name(), "node", "web1.example.com"), l.Subject)
		require.False(t, l.Time.IsZero())
	}
	stop := errors.New("stop")
	require.ErrorIs(t, s.b.ReadOutput(ctx, t.Name(), "node", "web1.example.com", true, func(bus.OutputLine) error { return stop }), stop)
	require.NoError(t, s.b.ReadOutput(ctx, t.Name(), "node", "silent", false, func(bus.OutputLine) error { return stop }))

	follow, cancel := context.WithCancel(ctx)
	got := make(chan string, n+10)
	ended := make(chan error, 1)
	go func() {
		ended <- s.b.ReadOutput(follow, t.Name(), "node", "web1.example.com", true, func(l bus.OutputLine) error {
			got <- string(l.Body)
			return nil
		})
	}()
	for i := range n {
		require.Equal(t, fmt.Sprint(i), receive(t, got, "stored lines"))
	}
	require.NoError(t, s.b.PublishOutput(t.Name(), "node", "web1.example.com", []byte("fresh")))
	require.Equal(t, "fresh", receive(t, got, "a fresh line"))
	require.NoError(t, s.b.PublishOutput(t.Name(), "node", "web1.example.com", []byte("before")))
	require.NoError(t, s.b.StoreOutput(ctx, t.Name(), "node", "web1.example.com", []byte("stored")))
	var held []string // what was stored is there at once, and in order
	require.NoError(t, s.b.ReadOutput(ctx, t.Name(), "node", "web1.example.com", false, func(l bus.OutputLine) error {
		held = append(held, string(l.Body))
		return nil
	}))
	require.Equal(t, []string{"before", "stored"}, held[len(held)-2:])
	require.ErrorIs(t, s.b.StoreOutput(ctx, t.Name(), "node", "r", make([]byte, bus.BodyBytesMax+1)), bus.ErrTooLarge)
	cancel()
	require.NoError(t, receive(t, ended, "the end of following"))
}
