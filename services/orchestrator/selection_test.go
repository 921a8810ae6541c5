package orchestrator_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

const oneService = `{"lifecycle":"service","phases":[{"name":"port","executor":{"plugin":{}},"undo":{"plugin":{}},"lease":"1s","idempotent":true}]}`

// services makes n resources of kind svc; every tenth is on rack b.
func (s *system) services(n int) {
	s.t.Helper()
	key := resource.Key{Project: "default", Kind: "Blueprint", Name: "svc"}
	s.accept(key, "apply", "bp", wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: "Blueprint", Name: "svc", Spec: []byte(oneService)}})
	var wg sync.WaitGroup
	places := make(chan struct{}, 16)
	for i := range n {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			name, rack := fmt.Sprintf("s%03d", i), "a"
			if i%10 == 0 {
				rack = "b"
			}
			s.accept(resource.Key{Project: "default", Kind: "svc", Name: name}, "apply", "c", wire.Command{Manifest: &wire.Manifest{
				APIVersion: "drover/v1", Kind: "svc", Name: name, Labels: map[string]string{"rack": rack}, Spec: []byte(`{}`),
			}})
		})
	}
	wg.Wait()
	require.Eventually(s.t, func() bool { return s.left("svc") == n }, 30*time.Second, 10*time.Millisecond, "the bucket shows them")
}

func (s *system) left(kind string) (n int) {
	err := s.bus.List(s.t.Context(), bus.Resource, "default", kind, func(bus.Stored) error { n++; return nil })
	require.NoError(s.t, err)
	return n
}

// serve completes phase port of all services, as handle says.
func (s *system) serve(handle plugin.Handler) {
	ctx, cancel := context.WithCancel(context.Background())
	b, done := s.connect("worker"), make(chan struct{})
	go func() {
		defer close(done)
		_ = plugin.Serve(ctx, b, bus.Phase{Project: "default", Kind: "svc", Phase: "port"}, plugin.Options{StopGrace: -1, BindEvery: 20 * time.Millisecond}, handle)
	}()
	s.t.Cleanup(func() { cancel(); <-done })
}

var services = resource.Key{Project: "default", Kind: "svc", Name: "-"}

// both runs a test on the memory's bus and on a server's.
func both(t *testing.T, test func(t *testing.T, s *system)) {
	t.Helper()
	for name, start := range map[string]func(*testing.T) *system{"memory": inMemory, "server": start} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t))
		})
	}
}

func TestSelectorCommands(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, s *system) {
		s.orchestrate("o1")
		s.orchestrate("o2")
		var once sync.Map
		s.serve(func(_ context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				if _, failed := once.LoadOrStore(r.Key().Name, true); !failed && r.Key().Name == "s007" {
					batch.Failed(r, "out of ports")
					continue
				}
				batch.Completed(r)
			}
			return nil
		})
		s.services(300)

		id := s.accept(services, "deploy", "d1", wire.Command{Selector: "rack=a"})
		r := s.awaitJob(id, job.Failed)
		require.Equal(t, "270 matched, 269 succeeded, 1 failed", r.Message)
		require.Equal(t, id, s.accept(services, "deploy", "d1", wire.Command{Selector: "rack=a"}), "the same request is the same job")
		require.Equal(t, resource.Conflict, s.send(services, "deploy", "d1", wire.Command{All: true}).Refused.Code)
		mine := 0
		require.NoError(t, s.bus.List(t.Context(), bus.Job, "default", "", func(m bus.Stored) error {
			if e, err := wire.DecodeJob(m.Body); err == nil && e.Record.Ref.Selection == id {
				mine++
			}
			return nil
		}))
		require.Equal(t, 270, mine)

		r = s.awaitJob(s.accept(services, "update", "u1", wire.Command{All: true}), job.Failed)
		require.Equal(t, "300 matched, 270 succeeded, 30 refused", r.Message)
		require.Len(t, r.Selection.Refusals, 8)
		require.Equal(t, "s000", r.Selection.Refusals[0].Name)
		require.Contains(t, r.Selection.Refusals[0].Message, "Ready")

		require.Equal(t, "no resource matched", s.awaitJob(s.accept(services, "deploy", "d2", wire.Command{Selector: "rack=z"}), job.Succeeded).Message)
		r = s.awaitJob(s.accept(services, "delete", "x1", wire.Command{All: true}), job.Succeeded)
		require.Equal(t, "300 matched, 300 succeeded", r.Message)
		require.Eventually(t, func() bool { return s.left("svc") == 0 }, 20*time.Second, 20*time.Millisecond, "nothing is left")
		require.Equal(t, "no resource matched", s.awaitJob(s.accept(services, "delete", "x2", wire.Command{All: true}), job.Succeeded).Message)
	})
}

// TestSelectionsChangeHands: orchestrators come and go while one walks and waits.
func TestSelectionsChangeHands(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, s *system) {
		stop := s.orchestrate("o0")
		release := make(chan struct{})
		var calls sync.Map
		s.serve(func(ctx context.Context, batch *plugin.Batch) error {
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
			for _, r := range batch.Resources() {
				calls.Store(r.Key().Name, true)
				batch.Completed(r)
			}
			return nil
		})
		s.services(300)
		id := s.accept(services, "deploy", "d1", wire.Command{All: true})
		for i := range 3 {
			next := s.orchestrate(fmt.Sprint("o", i+1))
			stop()
			stop = next
		}
		require.Eventually(t, func() bool {
			m, err := s.bus.Get(t.Context(), bus.Entity{Family: bus.Job, Project: "default", Name: id})
			if err != nil {
				return false
			}
			e, err := wire.DecodeJob(m.Body)
			return err == nil && e.Record.Selection.Stage == job.Waiting
		}, 30*time.Second, 20*time.Millisecond)
		close(release)
		require.Equal(t, "300 matched, 300 succeeded", s.awaitJob(id, job.Succeeded).Message)
	})
}

// TestACanceledSelectionCancelsWhatItStarted by the captured door's and the API's one way: its own name.
func TestACanceledSelectionCancelsWhatItStarted(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, s *system) {
		s.orchestrate("o1")
		s.services(40) // nobody serves their phase
		id := s.accept(services, "deploy", "d1", wire.Command{All: true})
		canceled := s.accept(services, "cancel", "c1", wire.Command{Args: map[string]string{"job": id, "cascade": "true", "message": "enough"}})
		s.awaitJob(canceled, job.Succeeded)
		r := s.awaitJob(id, job.Canceled)
		require.Equal(t, "canceled: enough", r.Message)
		require.Equal(t, r.Selection.Accepted, r.Selection.Canceled)
		require.Equal(t, canceled, s.accept(services, "cancel", "c1", wire.Command{Args: map[string]string{"job": id, "cascade": "true", "message": "enough"}}))
	})
}
