package follow_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/follow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var at = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// store appends job records.
type store struct {
	t    *testing.T
	conn *memory.Conn
	last map[string]uint64
}

func newStore(t *testing.T) *store {
	t.Helper()
	conn := memory.New(memory.Options{}).Connect()
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return &store{t: t, conn: conn, last: map[string]uint64{}}
}

func (s *store) entity(id string) bus.Entity {
	e := follow.JobEntity("default", id)
	e.Partition = 1
	return e
}

func (s *store) put(id string, revision uint64, state job.State) {
	body, err := wire.EncodeJob(wire.JobEvent{At: at, Record: job.Record{
		Ref:     job.Ref{ID: id, RequestID: "r", Digest: "d", Verb: "start", State: state, AcceptedAt: at},
		Project: "default", Kind: "node", Name: "a", UID: "u", Revision: revision, ResourceRevision: 1, MinReader: 1,
	}})
	require.NoError(s.t, err)
	seq, err := s.conn.Append(bus.Append{Entity: s.entity(id), Expect: s.last[id], Body: body, Header: bus.Header{Revision: revision}}).Result()
	require.NoError(s.t, err)
	s.last[id] = seq
}

// broken are readers whose watches do what a test says.
type broken struct {
	bus.Readers
	opened atomic.Int32
	// watch makes the n-th watch, from 1; nil, nil means a true one.
	watch func(n int32) (bus.Watch, error)
	gets  atomic.Int32
	get   func(n int32) error
}

func (b *broken) WatchBucket(ctx context.Context, f bus.Family, project, kind, name string) (bus.Watch, error) {
	if w, err := b.watch(b.opened.Add(1)); w != nil || err != nil {
		return w, err
	}
	return b.Readers.WatchBucket(ctx, f, project, kind, name)
}

func (b *broken) Get(ctx context.Context, e bus.Entity) (bus.Stored, error) {
	n := b.gets.Add(1)
	if b.get != nil {
		if err := b.get(n); err != nil {
			return bus.Stored{}, err
		}
	}
	return b.Readers.Get(ctx, e)
}

// lost is a watch that ends at once.
type lost struct{ c chan bus.Stored }

func newLost() lost {
	c := make(chan bus.Stored)
	close(c)
	return lost{c}
}

func (l lost) C() <-chan bus.Stored { return l.c }
func (lost) Close()                 {}

func ids(events []wire.JobEvent) []string {
	var all []string
	for _, e := range events {
		all = append(all, e.Record.ID+":"+e.Record.State.String())
	}
	return all
}

func collect(ctx context.Context, r bus.Readers, jobs ...string) ([]wire.JobEvent, error) {
	var events []wire.JobEvent
	err := follow.Jobs(ctx, r, "default", jobs, func(e wire.JobEvent) error {
		events = append(events, e)
		return nil
	})
	return events, err
}

func TestJobsThatHaveEnded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.put("a", 1, job.Running)
	s.put("a", 2, job.Succeeded)
	s.put("b", 1, job.Failed)
	s.put("other", 1, job.Running)
	events, err := collect(t.Context(), s.conn, "a", "b")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"a:succeeded", "b:failed"}, ids(events))
	events, err = collect(t.Context(), s.conn, "a")
	require.NoError(t, err)
	require.Equal(t, []string{"a:succeeded"}, ids(events))
	events, err = collect(t.Context(), s.conn)
	require.NoError(t, err)
	require.Empty(t, events)
}

// TestJobsThatComeLate: the record follows the answer, so it is waited for; and each state is told once.
func TestJobsThatComeLate(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	told := make(chan string, 8)
	done := make(chan error, 1)
	go func() {
		done <- follow.Jobs(t.Context(), s.conn, "default", []string{"a"}, func(e wire.JobEvent) error {
			told <- e.Record.State.String()
			return nil
		})
	}()
	s.put("a", 1, job.Pending)
	require.Equal(t, "pending", <-told)
	s.put("a", 2, job.Running)
	require.Equal(t, "running", <-told)
	s.put("a", 3, job.Canceled)
	require.Equal(t, "canceled", <-told)
	require.NoError(t, <-done)
	require.Empty(t, told)
}

func TestJobsSurviveALostWatch(t *testing.T) {
	t.Parallel()
	for name, watch := range map[string]func(n int32) (bus.Watch, error){
		"the first watches end at once": func(n int32) (bus.Watch, error) {
			if n <= 2 {
				return newLost(), nil
			}
			return nil, nil
		},
		"the first watches cannot be opened": func(n int32) (bus.Watch, error) {
			if n <= 2 {
				return nil, errors.New("no answer")
			}
			return nil, nil
		},
		"no watch is ever opened": func(int32) (bus.Watch, error) { return nil, errors.New("no answer") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.put("a", 1, job.Running)
			reads := make(chan struct{}, 100)
			b := &broken{Readers: s.conn, watch: watch, get: func(n int32) error {
				if n == 1 {
					return context.DeadlineExceeded // one try that gets no answer is not the end
				}
				reads <- struct{}{}
				return nil
			}}
			done := make(chan []string, 1)
			go func() {
				events, err := collect(t.Context(), b, "a")
				if err != nil {
					t.Errorf("follow: %v", err)
				}
				done <- ids(events)
			}()
			<-reads
			s.put("a", 2, job.Succeeded)
			got := <-done
			require.Equal(t, "a:succeeded", got[len(got)-1])
		})
	}
}

func TestJobsEndWithTheirContextOrForGood(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.put("a", 1, job.Running)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := collect(ctx, s.conn, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)

	_, err = collect(t.Context(), &broken{Readers: s.conn, watch: func(int32) (bus.Watch, error) { return nil, bus.ErrDenied }}, "a")
	require.ErrorIs(t, err, bus.ErrDenied, "what will never be allowed is not repeated")

	stop := errors.New("stop")
	err = follow.Jobs(t.Context(), s.conn, "default", []string{"a"}, func(wire.JobEvent) error { return stop })
	require.ErrorIs(t, err, stop)
}

func TestJobsThatAreForgotten(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.put("a", 1, job.Running)
	seen := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		done <- follow.Jobs(t.Context(), s.conn, "default", []string{"a"}, func(wire.JobEvent) error {
			seen <- struct{}{}
			return nil
		})
	}()
	<-seen
	_, err := s.conn.Bury(bus.Append{Entity: s.entity("a"), Expect: s.last["a"]}).Result()
	require.NoError(t, err)
	require.ErrorIs(t, <-done, follow.ErrForgotten)
}
