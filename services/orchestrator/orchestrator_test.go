package orchestrator_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/orchestrator"
)

// system is a server and connections to it.
type system struct {
	t    *testing.T
	bus  bus.Bus
	open func(name string) (bus.Bus, error)
}

func start(t *testing.T) *system {
	t.Helper()
	server, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Shutdown()) })
	return begin(t, func(name string) (bus.Bus, error) {
		return jetstream.Connect(t.Context(), jetstream.Options{URL: server.ClientURL(), Name: name, Partitions: partitions})
	})
}

// inMemory is the same without a server.
func inMemory(t *testing.T) *system {
	t.Helper()
	sys := memory.New(memory.Options{Partitions: partitions})
	return begin(t, func(string) (bus.Bus, error) { return sys.Connect(), nil })
}

const partitions = 16

func begin(t *testing.T, open func(name string) (bus.Bus, error)) *system {
	t.Helper()
	s := &system{t: t, open: open}
	s.bus = s.connect("test")
	_, err := s.bus.Setup(t.Context(), false)
	require.NoError(t, err)
	return s
}

func (s *system) connect(name string) bus.Bus {
	s.t.Helper()
	b, err := s.open(name)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = b.Close() })
	return b
}

// orchestrate runs one orchestrator on a connection of its own until stop.
func (s *system) orchestrate(id string) (stop func()) {
	s.t.Helper()
	b := s.connect(id)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		h := host.New(host.Options{Name: "orchestrator", Config: host.Config{ID: id}})
		done <- h.Run(ctx, func(ctx context.Context, h *host.Host) error { return orchestrator.Run(ctx, h, b) })
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(s.t, <-done)
		})
	}
	s.t.Cleanup(stop)
	return stop
}

// send asks the owner, as intake does, until there is one.
func (s *system) send(key resource.Key, verb, id string, c wire.Command) wire.Reply {
	s.t.Helper()
	body, err := wire.EncodeCommand("", c)
	require.NoError(s.t, err)
	var reply wire.Reply
	require.Eventually(s.t, func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Second)
		defer cancel()
		answer, err := s.bus.Ask(ctx, bus.PartitionOf(key.Project, key.Kind, key.Name, s.bus.Partitions()), bus.Request{
			Verb:   "command",
			Header: map[string]string{"Drover-Subject": bus.CommandSubject("cmd", key.Project, key.Kind, key.Name, verb), bus.HeaderRequestID: id},
			Body:   body,
		})
		if err != nil {
			return false
		}
		reply, err = wire.DecodeReply("", answer.Body)
		return err == nil && (reply.Refused == nil || reply.Refused.Code != resource.Overloaded)
	}, 20*time.Second, 20*time.Millisecond)
	return reply
}

func (s *system) accept(key resource.Key, verb, id string, c wire.Command) string {
	s.t.Helper()
	reply := s.send(key, verb, id, c)
	require.Nil(s.t, reply.Refused, "%+v", reply.Refused)
	return reply.JobID
}

const threePhases = `{"lifecycle":"node","states":["Allocation","Configuration"],"paths":{"Terminated":["Release"]},"phases":[
	{"name":"disk","states":["Allocation"],"executor":{"plugin":{}}},
	{"name":"boot","states":["Allocation"],"dependsOn":["disk"],"executor":{"plugin":{}},"interval":"50ms"},
	{"name":"files","states":["Configuration"],"executor":{"plugin":{}},"when":"has(resource.spec.files)"},
	{"name":"free","states":["Release"],"executor":{"plugin":{}}}]}`

func (s *system) blueprint() {
	key := resource.Key{Project: "default", Kind: "Blueprint", Name: "node"}
	s.accept(key, "apply", "bp", wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: "Blueprint", Name: "node", Spec: []byte(threePhases)}})
}

func (s *system) node(name, spec, request string) resource.Key {
	key := resource.Key{Project: "default", Kind: "node", Name: name}
	s.accept(key, "apply", request, wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: "node", Name: name, Spec: []byte(spec)}})
	return key
}

// work serves all phases with one function, until stop.
func (s *system) work(handle plugin.Handler) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	b := s.connect("worker")
	var wg sync.WaitGroup
	for _, phase := range []string{"disk", "boot", "files", "free"} {
		wg.Go(func() {
			_ = plugin.Serve(ctx, b, bus.Phase{Project: "default", Kind: "node", Phase: phase}, plugin.Options{StopGrace: -1}, handle)
		})
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	s.t.Cleanup(stop)
	return stop
}

func completeAll(_ context.Context, batch *plugin.Batch) error {
	for _, r := range batch.Resources() {
		batch.Completed(r)
	}
	return nil
}

func (s *system) state(key resource.Key) (resource.State, bool) {
	m, err := s.bus.Get(s.t.Context(), bus.Entity{Family: bus.Resource, Project: key.Project, Kind: key.Kind, Name: key.Name})
	if err != nil {
		return resource.State{}, false
	}
	e, err := wire.DecodeResource(m.Body)
	require.NoError(s.t, err)
	return e.State, true
}

func (s *system) awaitJob(id string, want job.State) job.Record {
	s.t.Helper()
	var r job.Record
	require.Eventually(s.t, func() bool {
		m, err := s.bus.Get(s.t.Context(), bus.Entity{Family: bus.Job, Project: "default", Name: id})
		if err != nil {
			return false
		}
		e, err := wire.DecodeJob(m.Body)
		require.NoError(s.t, err)
		r = e.Record
		return r.State.Final()
	}, 30*time.Second, 10*time.Millisecond, "job %s", id)
	require.Equal(s.t, want, r.State, r.Message)
	return r
}

func TestANodeIsDrivenToItsTargetAndForgotten(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.orchestrate("o1")
	var polls atomic.Int32
	s.work(func(_ context.Context, batch *plugin.Batch) error {
		for _, r := range batch.Resources() {
			if r.Phase() == "boot" && polls.Add(1) < 4 {
				batch.Pending(r, 0, "booting")
				continue
			}
			batch.Completed(r)
		}
		return nil
	})
	s.blueprint()
	key := s.node("web-1.example.com", `{"size":1}`, "c1")
	s.awaitJob(s.accept(key, "start", "s1", wire.Command{}), job.Succeeded)
	require.Eventually(t, func() bool { st, ok := s.state(key); return ok && st.State == "Started" }, 30*time.Second, 5*time.Millisecond)
	st, _ := s.state(key)
	require.Equal(t, resource.Completed, st.Phase("boot").Status)
	require.Equal(t, resource.Skipped, st.Phase("files").Status, "its constraint does not hold")
	require.GreaterOrEqual(t, polls.Load(), int32(4))
	require.Equal(t, "at_target", string(resource.Why(&st)[0].Code))

	s.awaitJob(s.accept(key, "delete", "d1", wire.Command{}), job.Succeeded)
	require.Eventually(t, func() bool { _, ok := s.state(key); return !ok }, 30*time.Second, 10*time.Millisecond)
	again := s.node("web-1.example.com", `{"size":1}`, "c2")
	require.Equal(t, resource.NotFound, s.send(resource.Key{Project: "default", Kind: "node", Name: "no"}, "start", "x", wire.Command{}).Refused.Code)
	s.awaitJob(s.accept(again, "start", "s2", wire.Command{}), job.Succeeded)
	st2, _ := s.state(again)
	require.NotEqual(t, st.UID, st2.UID)
}

// TestOrchestratorsShareAndAreReplaced drives resources over two orchestrators and takes one away in the middle.
func TestOrchestratorsShareAndAreReplaced(t *testing.T) {
	t.Parallel()
	s := start(t)
	stopFirst := s.orchestrate("o1")
	s.orchestrate("o2")
	var calls sync.Map
	s.work(func(_ context.Context, batch *plugin.Batch) error {
		for _, r := range batch.Resources() {
			n, _ := calls.LoadOrStore(r.Key().Name+"/"+r.Phase(), new(atomic.Int32))
			n.(*atomic.Int32).Add(1)
			batch.Completed(r)
		}
		return nil
	})
	s.blueprint()
	const n = 100
	var jobs [n]string
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			key := s.node(fmt.Sprint("n", i), `{"files":true}`, "c")
			jobs[i] = s.accept(key, "start", "s", wire.Command{})
		})
		if i == n/2 {
			stopFirst()
		}
	}
	wg.Wait()
	for i := range n {
		s.awaitJob(jobs[i], job.Succeeded)
	}
	total := 0
	calls.Range(func(_, v any) bool { total += int(v.(*atomic.Int32).Load()); return true })
	require.Equal(t, 3*n, total, "no phase was called twice: nothing but an orchestrator stopped")
}

func TestPoisonBlocksNothing(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.orchestrate("o1")
	s.blueprint()
	key := s.node("a", `{}`, "c")
	p := bus.PartitionOf(key.Project, key.Kind, key.Name, s.bus.Partitions())
	subject := bus.ResultSubject(p, key.Project, key.Kind, key.Name)
	require.NoError(t, s.bus.PublishResult(t.Context(), subject, nil, []byte{0xff, 0xff, 0xff}))
	require.NoError(t, s.bus.PublishResult(t.Context(), subject, map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, []byte(`{"outcome":"nonsense"}`)))
	s.work(completeAll)
	s.awaitJob(s.accept(key, "start", "s", wire.Command{}), job.Succeeded)
	require.Eventually(t, func() bool {
		n, _, err := s.bus.Backlog(t.Context(), "RESULTS", p)
		return err == nil && n == 0
	}, 30*time.Second, 20*time.Millisecond)
}
