package listeners_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/services/notifier/internal/listeners"
	"github.com/droverproject/drover/services/notifier/internal/notice"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errForGood = errors.New("for good")

// receiver remembers what was sent, by listener. send, where set, decides the answer.
type receiver struct {
	mu   sync.Mutex
	sent map[string][]notice.Message
	send func(ctx context.Context, key resource.Key) error
}

func (r *receiver) Send(ctx context.Context, key resource.Key, _ listener.Spec, m *notice.Message) error {
	r.mu.Lock()
	send := r.send
	r.mu.Unlock()
	if send != nil {
		if err := send(ctx, key); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent == nil {
		r.sent = map[string][]notice.Message{}
	}
	r.sent[key.Name] = append(r.sent[key.Name], *m)
	return nil
}

func (*receiver) Permanent(err error) bool { return errors.Is(err, errForGood) }

func (r *receiver) answer(send func(ctx context.Context, key resource.Key) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.send = send
}

func (r *receiver) to(name string) []notice.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent[name]
}

type stage struct {
	*listeners.Roster
	receiver *receiver
	metrics  *listeners.Metrics
	log      *zap.Logger
	logs     *observer.ObservedLogs
}

func open(t *testing.T) *stage {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	m, err := listeners.NewMetrics(prometheus.NewRegistry())
	require.NoError(t, err)
	s := &stage{receiver: &receiver{}, metrics: m, log: zap.New(core), logs: logs}
	s.Roster = listeners.NewRoster(s.receiver, s.log, m)
	t.Cleanup(s.Close)
	return s
}

// pass lets time go by and everything that is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func key(name string) resource.Key {
	return resource.Key{Project: "default", Kind: "Listener", Name: name}
}

func started(revision uint64) notice.Event {
	return notice.Event{Project: "default", Kind: "node", Name: "n", UID: "u", Revision: revision, State: "Started"}
}

var onStarted = listener.Spec{Kinds: []string{"node"}, States: []string{"Started"}, Subject: "drover.notice.x"}

func TestEventsOfOneMomentAreOneMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		s.Set(key("a"), onStarted)
		for i := range uint64(10) {
			s.Offer(started(i))
		}
		pass(listeners.GroupFor)
		s.Offer(started(10))
		pass(listeners.GroupFor)

		sent := s.receiver.to("a")
		require.Len(t, sent, 2)
		require.Len(t, sent[0].Events, 10)
		require.Equal(t, uint64(10), sent[1].Events[0].Revision)
	})
}

func TestOnlyWhatIsListenedTo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		s.Set(key("a"), onStarted)
		s.Set(resource.Key{Project: "other", Kind: "Listener", Name: "b"}, onStarted)
		nosy := onStarted
		nosy.Project = "other"
		s.Set(key("d"), nosy)
		both := listener.Spec{Kinds: []string{"node", "host"}, States: []string{"Started", "Off"}}
		s.Set(key("c"), both)

		for _, e := range []notice.Event{
			{Project: "default", Kind: "node", State: "Started", Name: "1"},
			{Project: "default", Kind: "node", State: "Off", Name: "2"},
			{Project: "default", Kind: "disk", State: "Started", Name: "3"},
			{Project: "other", Kind: "node", State: "Started", Name: "4"},
		} {
			s.Offer(e)
		}
		require.True(t, s.Listened("other", "node", "Started"))
		require.False(t, s.Listened("other", "node", "Off"))
		pass(time.Second)
		names := func(listener string) (names []string) {
			for _, m := range s.receiver.to(listener) {
				for _, e := range m.Events {
					names = append(names, e.Name)
				}
			}
			return names
		}
		require.Equal(t, []string{"1"}, names("a"))
		require.Equal(t, []string{"4"}, names("b"))
		require.Equal(t, []string{"1", "2"}, names("c"))
		require.Equal(t, []string{"1"}, names("d"), "of its own project, whatever its spec says")
	})
}

func TestAListenerThatHangsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		s.receiver.answer(func(ctx context.Context, k resource.Key) error {
			if k.Name == "hangs" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		s.Set(key("hangs"), onStarted)
		s.Set(key("works"), onStarted)
		s.Offer(started(0))
		pass(time.Second) // one message to "hangs" is under way
		const over = 100
		for i := range uint64(listeners.QueueMax + over) {
			s.Offer(started(i + 1)) // would block here, if it could
			if i%1000 == 0 {
				pass(time.Second) // "works" takes what is there
			}
		}
		pass(time.Second)
		total := 0
		for _, m := range s.receiver.to("works") {
			total += len(m.Events)
		}
		require.Equal(t, listeners.QueueMax+over+1, total)
		require.Equal(t, float64(over), testutil.ToFloat64(s.metrics.Dropped.WithLabelValues("overflow")))
		require.Equal(t, float64(listeners.QueueMax), testutil.ToFloat64(s.metrics.Queued))

		// The newest are kept.
		s.receiver.answer(nil)
		s.Remove(key("hangs"))
		synctest.Wait()
		require.Zero(t, testutil.ToFloat64(s.metrics.Queued))
		require.Empty(t, s.receiver.to("hangs"))
	})
}

func TestAFullQueueKeepsTheNewest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		s.Set(key("a"), onStarted)
		for i := range uint64(listeners.QueueMax + 5) {
			s.Offer(started(i))
		}
		pass(time.Second)
		var got []uint64
		for _, m := range s.receiver.to("a") {
			require.LessOrEqual(t, len(m.Events), notice.ResourcesMax)
			for _, e := range m.Events {
				got = append(got, e.Revision)
			}
		}
		require.Len(t, got, listeners.QueueMax)
		for i, revision := range got {
			require.Equal(t, uint64(i+5), revision)
		}
	})
}

func TestRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		calls := 0
		s.receiver.answer(func(context.Context, resource.Key) error {
			if calls++; calls < listeners.AttemptsMax {
				return errors.New("busy")
			}
			return nil
		})
		s.Set(key("a"), onStarted)
		s.Offer(started(1))
		pass(time.Minute)
		require.Len(t, s.receiver.to("a"), 1)
		require.Zero(t, s.logs.Len())

		calls = -1000
		s.Offer(started(2))
		s.Offer(started(3))
		pass(time.Minute)
		s.Offer(started(4))
		pass(time.Minute)
		require.Equal(t, -1000+2*listeners.AttemptsMax, calls)
		require.Equal(t, 3.0, testutil.ToFloat64(s.metrics.Dropped.WithLabelValues("failed")))
		require.Equal(t, 1, s.logs.FilterMessageSnippet("does not take").Len(), "told when it begins, not each time")

		calls = listeners.AttemptsMax
		s.Offer(started(5))
		pass(time.Minute)
		require.Equal(t, 1, s.logs.FilterMessageSnippet("takes messages again").Len())
	})
}

func TestAPermanentFailureIsNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		calls := 0
		s.receiver.answer(func(context.Context, resource.Key) error { calls++; return errForGood })
		s.Set(key("a"), onStarted)
		s.Offer(started(1))
		pass(time.Minute)
		require.Equal(t, 1, calls)
	})
}

func TestNoMoreCallsAtOnceThanTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		var mu sync.Mutex
		out, most := 0, 0
		s.receiver.answer(func(context.Context, resource.Key) error {
			mu.Lock()
			out++
			most = max(most, out)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			out--
			mu.Unlock()
			return nil
		})
		for i := range 2 * listeners.CallsMax {
			s.Set(key(fmt.Sprint(i)), onStarted)
		}
		s.Offer(started(1))
		pass(time.Minute)
		require.Equal(t, listeners.CallsMax, most)
		require.Equal(t, 2.0*listeners.CallsMax, testutil.ToFloat64(s.metrics.Messages.WithLabelValues("sent")))
	})
}

func TestAChangedListenerKeepsWhatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		s.Set(key("a"), onStarted)
		s.Offer(started(1))
		off := onStarted
		off.States = []string{"Off"}
		s.Set(key("a"), off)
		s.Offer(started(2))
		pass(time.Second)
		require.Len(t, s.receiver.to("a"), 1)
		require.Len(t, s.receiver.to("a")[0].Events, 1)
		require.Equal(t, []resource.Key{key("a")}, s.Keys())
	})
}

func TestTooManyListeners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		for i := range listeners.ListenersMax + 2 {
			s.Set(key(fmt.Sprint(i)), onStarted)
		}
		require.Len(t, s.Keys(), listeners.ListenersMax)
		require.Equal(t, 2.0, testutil.ToFloat64(s.metrics.Ignored))
		require.Equal(t, 1, s.logs.FilterMessageSnippet("more listeners").Len())
	})
}

func TestCloseSendsWhatIsQueuedAndDoesNotHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		s.receiver.answer(func(ctx context.Context, k resource.Key) error {
			if k.Name == "hangs" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		s.Set(key("hangs"), onStarted)
		s.Set(key("works"), onStarted)
		s.Offer(started(1))
		began := time.Now()
		s.Close()
		require.Equal(t, listeners.DrainTimeout, time.Since(began))
		require.Len(t, s.receiver.to("works"), 1)
		s.Set(key("late"), onStarted)
		require.NotContains(t, s.Keys(), key("late"))
	})
}
