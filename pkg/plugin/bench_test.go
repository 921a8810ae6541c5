package plugin_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

// endless is a bus with work without end, which costs nothing itself.
type endless struct {
	bus.Bus // nil
	bodies  [][]byte
	seq     atomic.Uint64
	left    atomic.Int64
	answers atomic.Int64
	want    int64
	done    chan struct{}
}

func (b *endless) Pull(context.Context, bus.Phase) (bus.Puller, error) { return endlessPuller{b}, nil }

// Last is asked in a worker's first second only: the work is of a time to come.
func (b *endless) Last(_ context.Context, entities []bus.Entity) ([]bus.Stored, error) {
	stored := make([]bus.Stored, len(entities))
	for i, e := range entities {
		n, err := strconv.Atoi(strings.TrimPrefix(e.Name, "r"))
		if err != nil {
			return nil, err
		}
		stored[i] = bus.Stored{Entity: e, Seq: 1, Body: b.bodies[n]}
	}
	return stored, nil
}

func (b *endless) AskPhase(ctx context.Context, p bus.Phase, r bus.Request) (bus.Request, error) {
	return granting{}.AskPhase(ctx, p, r)
}

func (b *endless) PublishResult(context.Context, string, map[string]string, []byte) error {
	if b.answers.Add(1) == b.want {
		close(b.done)
	}
	return nil
}

type endlessPuller struct{ b *endless }

func (p endlessPuller) AckWait() time.Duration { return time.Minute }
func (p endlessPuller) Close()                 {}

func (p endlessPuller) Fetch(ctx context.Context, most, _ int, _ time.Duration) ([]bus.Delivery, error) {
	n := min(most, 40) // what a fetch brings with 200 in flight
	if p.b.left.Add(-int64(n)) < -int64(n) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ds := make([]bus.Delivery, n)
	for i := range ds {
		seq := p.b.seq.Add(1)
		ds[i] = &endlessDelivery{body: p.b.bodies[seq%uint64(len(p.b.bodies))], seq: seq, at: time.Now()}
	}
	return ds, nil
}

type endlessDelivery struct {
	body []byte
	seq  uint64
	at   time.Time
}

func (d *endlessDelivery) Subject() string                      { return "" }
func (d *endlessDelivery) Header(string) string                 { return "" }
func (d *endlessDelivery) Body() []byte                         { return d.body }
func (d *endlessDelivery) Seq() uint64                          { return d.seq }
func (d *endlessDelivery) Time() time.Time                      { return d.at }
func (d *endlessDelivery) Delivered() uint64                    { return 1 }
func (d *endlessDelivery) Ack() error                           { return nil }
func (d *endlessDelivery) Progress() error                      { return nil }
func (d *endlessDelivery) Retry(time.Duration) error            { return nil }
func (d *endlessDelivery) Reject(context.Context, string) error { return nil }

// BenchmarkServe is what the SDK itself costs per phase: decode, call, encode, settle.
func BenchmarkServe(b *testing.B) {
	e := &endless{want: int64(b.N), done: make(chan struct{})}
	for i := range 2000 {
		s := (&recorder{project: "p"}).state(fmt.Sprintf("r%d", i), resource.Waiting)
		s.UpdatedAt = s.UpdatedAt.Add(time.Hour)
		body, err := wire.EncodeResource(wire.ResourceEvent{
			Event: resource.Event{JobID: "job", Dispatch: &resource.Dispatch{Fence: fence(s.Name), State: s.State}},
			State: s, At: time.Now(), Partition: 1, ResultSubject: bus.ResultSubject(1, "p", "node", s.Name),
		})
		require.NoError(b, err)
		e.bodies = append(e.bodies, body)
	}
	e.left.Store(int64(b.N))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		stopped <- plugin.Serve(ctx, e, bus.Phase{Project: "p", Kind: "node", Phase: phaseName}, plugin.Options{}, complete)
	}()
	<-e.done
	b.StopTimer()
	cancel()
	require.NoError(b, <-stopped)
}

// BenchmarkBacklog is a backlog of work on a real server, worked off.
func BenchmarkBacklog(b *testing.B) {
	r := &recorder{project: fmt.Sprintf("bench-%d", b.N)}
	r.Bus = jetstreamBus(b, 0)
	require.NoError(b, r.EnsurePhase(b.Context(), r.phase()))
	var pending []bus.Pending
	for i := range b.N {
		s := r.state(fmt.Sprintf("r%d", i), resource.Waiting)
		e := r.entity(s.Name)
		body, err := wire.EncodeResource(wire.ResourceEvent{
			Event: resource.Event{JobID: "job", Dispatch: &resource.Dispatch{Fence: fence(s.Name), State: s.State}},
			State: s, At: time.Now(), Partition: 1, ResultSubject: bus.ResultSubject(1, e.Project, e.Kind, e.Name),
		})
		require.NoError(b, err)
		pending = append(pending, r.Append(bus.Append{Entity: e, Dispatch: phaseName, Body: body, Header: bus.Header{Revision: 1}}))
	}
	for _, p := range pending {
		_, err := p.Result()
		require.NoError(b, err)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		stopped <- plugin.Serve(ctx, r, r.phase(), plugin.Options{Observe: func(plugin.Answer) {
			if left.Add(-1) == 0 {
				close(done)
			}
		}}, complete)
	}()
	<-done
	b.StopTimer()
	cancel()
	require.NoError(b, <-stopped)
	require.NoError(b, r.RemovePhase(b.Context(), r.phase()))
}
