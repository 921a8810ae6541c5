package poke_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/notifier/internal/poke"
	"github.com/droverproject/drover/services/notifier/internal/webhook"
)

// town is the owners, and the monitoring systems.
type town struct {
	t         *testing.T
	mu        sync.Mutex
	pending   map[int]map[string]map[string]uint64 // by partition, system, instance
	callbacks map[string]string
	answers   map[string]func(id string) error // by callback
	posts     []string
	deaf      int // so many requests "poked" are not answered
}

func (w *town) Partitions() int { return 4 }

func (w *town) Get(_ context.Context, e bus.Entity) (bus.Stored, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, callback := range w.callbacks {
		if e.Name == check.ID(check.MonitoringSystem, name) {
			body, err := wire.EncodeCheck(wire.CheckEvent{At: time.Unix(1, 0), State: check.State{
				Project: e.Project, Kind: check.MonitoringSystem, Name: name, Spec: fmt.Sprintf(`{"callback": %q, "timeout": "1s", "pokesMax": 2}`, callback),
			}})
			return bus.Stored{Body: body}, err
		}
	}
	return bus.Stored{}, bus.ErrNotFound
}

func (w *town) AskDoor(_ context.Context, partition int, r bus.Request) (bus.Request, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q, err := wire.DecodeCheckRequest(r.Body)
	if err != nil {
		return bus.Request{}, err
	}
	var a wire.CheckAnswer
	if r.Verb == "check.pokes" {
		for system, ids := range w.pending[partition] {
			p := wire.CheckPokes{Project: "p", System: system}
			for id, updates := range ids {
				if len(p.Pokes) == 3 {
					p.More = true
					break
				}
				p.Pokes = append(p.Pokes, wire.CheckPoke{ID: id, Updates: updates})
			}
			a.Pokes = append(a.Pokes, p)
		}
	}
	for _, p := range q.Poked {
		if w.deaf > 0 {
			w.deaf--
			return bus.Request{}, bus.ErrNoOwner
		}
		for system, ids := range w.pending[partition] {
			if ids[p.ID] == p.Updates {
				if delete(ids, p.ID); len(ids) == 0 {
					delete(w.pending[partition], system)
				}
			}
		}
	}
	body, err := json.Marshal(a)
	return bus.Request{Body: body}, err
}

func (w *town) Post(ctx context.Context, _ string, l *listener.Webhook, id string, _ map[string]string, body []byte) error {
	w.mu.Lock()
	w.posts = append(w.posts, l.URL+" "+id)
	answer := w.answers[l.URL]
	w.mu.Unlock()
	var b map[string]string
	require.NoError(w.t, json.Unmarshal(body, &b))
	require.Equal(w.t, map[string]string{"uuid": id, "path": "/deployments/id"}, b)
	if answer == nil {
		return nil
	}
	err := answer(id)
	if err == nil {
		err = ctx.Err()
	}
	return err
}

func (w *town) count(post string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.posts {
		if p == post {
			n++
		}
	}
	return n
}

func (w *town) left() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, systems := range w.pending {
		for _, ids := range systems {
			n += len(ids)
		}
	}
	return n
}

func start(t *testing.T, w *town) *poke.Poker {
	t.Helper()
	w.t = t
	p, err := poke.New(w, w, zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var under sync.WaitGroup
	under.Go(func() { _ = p.Run(ctx) })
	t.Cleanup(func() { cancel(); under.Wait() })
	return p
}

func ids(n int) map[string]uint64 {
	all := map[string]uint64{}
	for i := range n {
		all[wire.RoutedUUID(1, fmt.Sprint(i))] = 1
	}
	return all
}

// TestPokes: all that is pending is poked, more than one answer names; a system without a callback is not.
func TestPokes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &town{pending: map[int]map[string]map[string]uint64{1: {"eye": ids(10), "polls": {"v": 1, "w": 1}}, 2: {"eye": {"x": 4}}}, callbacks: map[string]string{"eye": "http://eye", "polls": ""}}
		p := start(t, w)
		p.Own([]int{0, 1})
		time.Sleep(time.Second)
		require.Equal(t, 3, w.left(), "partition 2 is another's")
		w.mu.Lock()
		require.Len(t, w.posts, 10)
		w.mu.Unlock()
		p.Event(bus.Stored{Entity: bus.Entity{Name: wire.RoutedUUID(2, "x")}, Header: bus.Header{To: deployment.AwaitingRollout.String()}})
		time.Sleep(time.Second)
		require.Equal(t, 3, w.left())
		w.mu.Lock()
		w.pending[1]["eye"] = map[string]uint64{"y": 2}
		w.mu.Unlock()
		p.Event(bus.Stored{Entity: bus.Entity{Name: wire.RoutedUUID(1, "y")}, Header: bus.Header{To: deployment.Active.String()}})
		time.Sleep(time.Second)
		require.Equal(t, 4, w.left(), "there is nothing to fetch of an active one")
		p.Event(bus.Stored{Entity: bus.Entity{Name: wire.RoutedUUID(1, "y")}, Header: bus.Header{To: deployment.AwaitingRollout.String()}})
		time.Sleep(time.Second)
		require.Equal(t, 3, w.left())
	})
}

// TestAPokeIsNeverLost: what fails, is refused, or could not be told to the owner comes again with the next sweep; until then a
// dead system is left alone, and delays no other.
func TestAPokeIsNeverLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mended atomic.Bool
		w := &town{
			pending:   map[int]map[string]map[string]uint64{1: {"dead": ids(3), "slow": {"s": 1}, "eye": {"a": 1, "b": 1}}},
			callbacks: map[string]string{"dead": "http://dead", "slow": "http://slow", "eye": "http://eye"},
		}
		w.answers = map[string]func(string) error{
			"http://dead": func(string) error {
				if mended.Load() {
					return nil
				}
				return errors.New("connection refused")
			},
			"http://slow": func(string) error {
				if !mended.Load() {
					time.Sleep(time.Minute)
				}
				return nil
			},
			"http://eye": func(id string) error {
				if id == "b" && !mended.Load() {
					return fmt.Errorf("%w: status 422", webhook.ErrStatus)
				}
				return nil
			},
		}
		p := start(t, w)
		p.Own([]int{1})
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 1, w.count("http://eye a"))
		require.Equal(t, 5, w.left())
		for range 5 { // news of others
			p.Event(bus.Stored{Entity: bus.Entity{Name: wire.RoutedUUID(1, "y")}, Header: bus.Header{To: deployment.AwaitingRollout.String()}})
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, 1, w.count("http://eye b"), "it was refused, and waits for the sweep")
		w.mu.Lock()
		dead := len(slices.DeleteFunc(slices.Clone(w.posts), func(s string) bool { return s[:11] != "http://dead" }))
		w.mu.Unlock()
		require.LessOrEqual(t, dead, 2, "at most those that were under way")
		time.Sleep(2 * time.Minute)
		mended.Store(true)
		w.mu.Lock()
		w.deaf = 2
		w.mu.Unlock()
		p.Sweep()
		time.Sleep(time.Second)
		require.NotZero(t, w.left(), "owners did not hear")
		p.Sweep()
		time.Sleep(time.Second)
		require.Zero(t, w.left())
	})
}
