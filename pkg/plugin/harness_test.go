package plugin_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

// One server and one connection for all tests; each test has a project of its own.
var shared struct {
	once sync.Once
	s    *natsd.Server
	// Two connections: a phase's consumer is made with the AckWait of the connection that makes it.
	patient, impatient *jetstream.Bus
	err                error
}

const impatientAckWait = 2 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	for _, b := range []*jetstream.Bus{shared.patient, shared.impatient} {
		if b == nil {
			continue
		}
		if err := b.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close:", err)
			code = 1
		}
	}
	if shared.s != nil {
		if err := shared.s.Shutdown(); err != nil {
			fmt.Fprintln(os.Stderr, "shutdown:", err)
			code = 1
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func jetstreamBus(t testing.TB, ackWait time.Duration) bus.Bus {
	t.Helper()
	shared.once.Do(func() {
		if shared.s, shared.err = natsd.Start(natsd.Options{Ephemeral: true, Port: -1}); shared.err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		o := jetstream.Options{URL: shared.s.ClientURL(), Partitions: 4}
		if shared.patient, shared.err = jetstream.Connect(ctx, o); shared.err != nil {
			return
		}
		if _, shared.err = shared.patient.Setup(ctx, false); shared.err != nil {
			return
		}
		o.WorkAckWait = impatientAckWait
		shared.impatient, shared.err = jetstream.Connect(ctx, o)
	})
	require.NoError(t, shared.err)
	if ackWait == impatientAckWait {
		return shared.impatient
	}
	return shared.patient
}

func memoryBus(t testing.TB, ackWait time.Duration) bus.Bus {
	t.Helper()
	b := memory.New(memory.Options{Partitions: 4, WorkAckWait: ackWait}).Connect()
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

var buses = map[string]func(t testing.TB, ackWait time.Duration) bus.Bus{"jetstream": jetstreamBus, "memory": memoryBus}

// recorder is a bus that remembers the results that were stored.
type recorder struct {
	bus.Bus
	project string

	mu      sync.Mutex
	results []resource.Result
	changed chan struct{}
	// refuse, if set, may fail a result before it is stored.
	refuse func(resource.Result) error
	// versions counts loads of specs.
	versions int
}

// onBuses runs a test on every bus there is.
func onBuses(t *testing.T, test func(t *testing.T, b *recorder)) {
	t.Helper()
	onBusesWith(t, 0, test)
}

// onBusesWith is onBuses with another wait before work comes again; 0 means the buses' own.
func onBusesWith(t *testing.T, ackWait time.Duration, test func(t *testing.T, b *recorder)) {
	t.Helper()
	t.Parallel()
	for name, open := range buses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			project := strings.NewReplacer("/", "-").Replace(t.Name())
			test(t, &recorder{Bus: open(t, ackWait), project: project, changed: make(chan struct{}, 1)})
		})
	}
}

func (b *recorder) AskPhase(ctx context.Context, p bus.Phase, r bus.Request) (bus.Request, error) {
	return granting{}.AskPhase(ctx, p, r)
}

func (b *recorder) PublishResult(ctx context.Context, subject string, header map[string]string, body []byte) error {
	result, err := wire.DecodeResult(header[bus.HeaderContentType], body)
	if err != nil {
		return err
	}
	b.mu.Lock()
	refuse := b.refuse
	b.mu.Unlock()
	if refuse != nil {
		if err := refuse(result); err != nil {
			return err
		}
	}
	if err := b.Bus.PublishResult(ctx, subject, header, body); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results = append(b.results, result)
	return nil
}

func (b *recorder) Version(ctx context.Context, e bus.Entity, version string) (bus.Stored, error) {
	b.mu.Lock()
	b.versions++
	b.mu.Unlock()
	return b.Bus.Version(ctx, e, version)
}

// of returns the results for a resource, in the order in which they were stored.
func (b *recorder) of(name string) (of []resource.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.results {
		if r.Fence.UID == "uid-"+name {
			of = append(of, r)
		}
	}
	return of
}

// await returns the results for a resource once there are n.
func (b *recorder) await(t *testing.T, name string, n int) []resource.Result {
	t.Helper()
	require.Eventually(t, func() bool { return len(b.of(name)) >= n }, 20*time.Second, 5*time.Millisecond, "results of %s: %v", name, b.of(name))
	return b.of(name)
}

const phaseName = "launch"

func (b *recorder) phase() bus.Phase {
	return bus.Phase{Project: b.project, Kind: "node", Phase: phaseName}
}

func (b *recorder) entity(name string) bus.Entity {
	return bus.Entity{Partition: 1, Family: bus.Resource, Project: b.project, Kind: "node", Name: name}
}

func fence(name string) resource.Fence {
	return resource.Fence{UID: "uid-" + name, JobID: "job", Phase: phaseName, Attempt: 1, Call: 1}
}

func (b *recorder) state(name string, status resource.Status) resource.State {
	at := time.Now().UTC()
	return resource.State{
		Key: resource.Key{Project: b.project, Kind: "node", Name: name}, MinReader: 1, UID: "uid-" + name, Generation: 1, Revision: 1,
		State: "Configuration", Target: "Started", CreatedAt: at, UpdatedAt: at,
		Labels: map[string]string{"rack": "a"}, Attributes: map[string]string{"port": "8080"},
		Jobs: []job.Ref{{ID: "job", RequestID: "r", Verb: "start", Target: "Started", Blueprint: "b1", State: job.Running, AcceptedAt: at}},
		Phases: []resource.PhaseRun{{
			Name: phaseName, Status: status, State: "Configuration", JobID: "job", Attempt: 1, Call: 1,
			InFlight: status == resource.Waiting || status == resource.Running || status == resource.Canceling,
			Data:     map[string]string{"step": "1"}, Since: at,
		}},
	}
}

// put appends a state, handing out the phase if dispatch, and returns its body.
func (b *recorder) put(t *testing.T, s resource.State, dispatch bool) []byte {
	t.Helper()
	e := b.entity(s.Name)
	e.Kind = s.Kind
	last, err := b.Last(t.Context(), []bus.Entity{e})
	require.NoError(t, err)
	event := resource.Event{From: s.State, To: s.State, Cause: resource.Cause{Kind: "command"}, JobID: "job"}
	a := bus.Append{Entity: e, Expect: last[0].Seq, Header: bus.Header{Revision: s.Revision}}
	if dispatch {
		a.Dispatch = phaseName
		event.Dispatch = &resource.Dispatch{Fence: fence(s.Name), State: s.State}
		event.Dispatch.Fence.UID = s.UID
	}
	a.Body, err = wire.EncodeResource(wire.ResourceEvent{
		Event: event, State: s, At: time.Now(), Partition: e.Partition,
		ResultSubject: bus.ResultSubject(e.Partition, e.Project, e.Kind, e.Name),
	})
	require.NoError(t, err)
	_, err = b.Append(a).Result()
	require.NoError(t, err)
	return a.Body
}

// handOut makes resources wait for the phase.
func (b *recorder) handOut(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		b.put(t, b.state(name, resource.Waiting), true)
	}
}

func (b *recorder) ensure(t *testing.T) {
	t.Helper()
	require.NoError(t, b.EnsurePhase(t.Context(), b.phase()))
	t.Cleanup(func() {
		require.NoError(t, b.RemovePhase(context.Background(), b.phase()))
	})
}

// serve runs Serve until stop is called, or the test ends.
func (b *recorder) serve(t *testing.T, o plugin.Options, handle plugin.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- plugin.Serve(ctx, b, b.phase(), o, handle) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(30 * time.Second):
			t.Error("Serve does not return")
		}
	})
	t.Cleanup(stop)
	return stop
}

// settled waits until no work of the phase is left.
func (b *recorder) settled(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		n, _, err := b.Outstanding(t.Context(), b.phase())
		return err == nil && n == 0
	}, 20*time.Second, 10*time.Millisecond)
}

// names are those of a batch.
func names(batch *plugin.Batch) (all []string) {
	for _, r := range batch.Resources() {
		all = append(all, r.Key().Name)
	}
	return all
}
