package jetstream_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
)

func TestMain(m *testing.M) {
	// A server that is shut down while it waits for a source leaves this behind, for up to 30 s (nats-server 2.15.2).
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*stream).trySetupSourceConsumer.func3"))
}

type server struct {
	dir  string
	port int
	*natsd.Server
}

func start(t testing.TB) *server {
	s := &server{dir: t.TempDir(), port: -1}
	s.up(t)
	t.Cleanup(func() { require.NoError(t, s.Shutdown()) })
	return s
}

func (s *server) up(t testing.TB) {
	n, err := natsd.Start(natsd.Options{StoreDir: s.dir, Port: s.port})
	require.NoError(t, err)
	u, err := url.Parse(n.ClientURL())
	require.NoError(t, err)
	s.port, err = strconv.Atoi(u.Port())
	require.NoError(t, err)
	s.Server = n
}

func open(t testing.TB, s *server, o jetstream.Options) *jetstream.Bus {
	o.URL = s.ClientURL()
	b, err := jetstream.Connect(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	_, err = b.Setup(t.Context(), false)
	require.NoError(t, err)
	return b
}

// client is somebody else's, who has every right.
func client(t testing.TB, s *server) natsjs.JetStream {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	require.NoError(t, err)
	return js
}

func node(i int) bus.Entity {
	return bus.Entity{Partition: i % 4, Family: bus.Resource, Project: "p", Kind: "node", Name: fmt.Sprint("n", i)}
}

func TestConnectGivesUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = jetstream.Connect(ctx, jetstream.Options{URL: "nats://user:secret@" + address})
	require.ErrorIs(t, err, nats.ErrNoServers)
	require.NotContains(t, err.Error(), "secret")
}

// TestPartitionsAreForLife: a system is created with a number of partitions; who comes later learns it, or is told.
func TestPartitionsAreForLife(t *testing.T) {
	t.Parallel()
	s := start(t)
	require.Equal(t, 8, open(t, s, jetstream.Options{Partitions: 8}).Partitions())
	b := open(t, s, jetstream.Options{})
	require.Equal(t, 8, b.Partitions())
	drift, err := b.Setup(t.Context(), true)
	require.NoError(t, err)
	require.Empty(t, drift)
	b, err = jetstream.Connect(t.Context(), jetstream.Options{URL: s.ClientURL(), Partitions: 16})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	drift, err = b.Setup(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, 8, b.Partitions())
	found := map[string]bool{}
	for _, d := range drift {
		require.False(t, d.Repairable)
		found[d.Stream+"."+d.Setting] = true
	}
	require.Equal(t, map[string]bool{"EVENTS.metadata": true, "COMMANDS.subject_transform": true}, found)

	// What is missing is made as the system has it.
	js := client(t, s)
	require.NoError(t, js.DeleteStream(t.Context(), "COMMANDS"))
	_, err = b.Setup(t.Context(), false)
	require.NoError(t, err)
	made, err := js.Stream(t.Context(), "COMMANDS")
	require.NoError(t, err)
	require.Contains(t, made.CachedInfo().Config.SubjectTransform.Destination, "{{partition(8,")
}

// TestPendingOutlivesTheServer: a caller gets its answer while the server is away: the true one if it is back in time,
// or that nothing is known.
func TestPendingOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 4})
	seq, err := b.Append(bus.Append{Entity: node(1)}).Result()
	require.NoError(t, err)
	require.NoError(t, s.Shutdown())
	soon := b.Append(bus.Append{Entity: node(1), Expect: seq})
	s.up(t)
	_, err = soon.Result()
	if err != nil { // it was written into the connection as that broke
		require.ErrorIs(t, err, bus.ErrUnknownOutcome)
	}

	require.NoError(t, s.Shutdown())
	began := time.Now()
	late := b.Append(bus.Append{Entity: node(2)})
	_, err = b.AppendBatch(t.Context(), []bus.Append{{Entity: node(3)}, {Entity: node(4)}})
	require.ErrorIs(t, err, bus.ErrUnknownOutcome)
	_, err = late.Result()
	require.ErrorIs(t, err, bus.ErrUnknownOutcome)
	require.InDelta(t, 10*time.Second, time.Since(began), float64(3*time.Second))
	require.Error(t, b.Healthy(t.Context()))
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = b.Last(short, []bus.Entity{node(1)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	s.up(t)
	require.Eventually(t, func() bool { return b.Healthy(t.Context()) == nil }, 20*time.Second, 10*time.Millisecond)
	// Whatever became of it, the expected sequence proves it.
	last, err := b.Last(t.Context(), []bus.Entity{node(2)})
	require.NoError(t, err)
	_, err = b.Append(bus.Append{Entity: node(2), Expect: last[0].Seq}).Result()
	require.NoError(t, err)
}

// TestFollowedBySomebodyElse: a bucket is a bucket, and the feed a subject, to clients that know nothing of us.
func TestFollowedBySomebodyElse(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 4})
	js := client(t, s)
	feed, err := js.Conn().SubscribeSync("drover.evt.resource.>")
	require.NoError(t, err)
	require.NoError(t, js.Conn().Flush())
	e := bus.Entity{Partition: 3, Family: bus.Resource, Project: "p", Kind: "node", Name: "web1.example.com"}
	seq, err := b.Append(bus.Append{Entity: e, Dispatch: "launch", Header: bus.Header{From: "Ready", To: "Running"}, Body: []byte("body")}).Result()
	require.NoError(t, err)
	m, err := feed.NextMsg(20 * time.Second)
	require.NoError(t, err)
	require.Equal(t, "drover.evt.resource.p.node.web1=2Eexample=2Ecom", m.Subject)
	require.Equal(t, "Running", m.Header.Get("Drover-To"))
	kv, err := js.KeyValue(t.Context(), "drover_resources")
	require.NoError(t, err)
	entry, err := kv.Get(t.Context(), "p.node.web1=2Eexample=2Ecom")
	require.NoError(t, err)
	require.Equal(t, "body", string(entry.Value()))
	_, err = b.Bury(bus.Append{Entity: e, Expect: seq}).Result()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := kv.Get(t.Context(), "p.node.web1=2Eexample=2Ecom")
		return err != nil
	}, 20*time.Second, 5*time.Millisecond, "a deletion is one to them too")
	// A command without our code, captured and delivered.
	_, err = js.Publish(t.Context(), "drover.cmd.p.node.web1=2Eexample=2Ecom.start", []byte("{}"))
	require.NoError(t, err)
	in, err := b.Commands(t.Context(), bus.CommandPartition("p", "node", "web1.example.com", 4))
	require.NoError(t, err)
	defer in.Close()
	d := <-in.C()
	require.Equal(t, "drover.cmd.p.node.web1=2Eexample=2Ecom.start", d.Subject())
	require.NoError(t, d.Ack())
}

// TestInboxHoldsWhatNobodyTakes: inputs that wait in an inbox, past their ack wait, come once.
func TestInboxHoldsWhatNobodyTakes(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 1, InputAckWait: time.Second})
	in, err := b.Results(t.Context(), 0)
	require.NoError(t, err)
	defer in.Close()
	const n = 20
	for i := range n {
		require.NoError(t, b.PublishResult(t.Context(), bus.ResultSubject(0, "p", "k", "n"), nil, fmt.Append(nil, i)))
	}
	wait := time.After(2500 * time.Millisecond) // more than two ack waits
	<-wait
	for i := range n {
		d := <-in.C()
		require.Equal(t, fmt.Sprint(i), string(d.Body()))
		require.EqualValues(t, 1, d.Delivered())
		require.NoError(t, d.Ack())
	}
	select {
	case d := <-in.C():
		require.Fail(t, "it came twice", "%s, delivery %d", d.Body(), d.Delivered())
	case <-time.After(1500 * time.Millisecond):
	}
}

// TestMuchWorkKeepsTheConnection: more than the server lets wait for one connection (64 MiB) before it cuts that off, fetched in
// one go, comes once and over one connection. Without a limit in bytes most of it came again, half a minute later.
func TestMuchWorkKeepsTheConnection(t *testing.T) {
	t.Parallel()
	s := start(t)
	// Held without a word, longer than it takes a busy machine to bring all of it.
	b := open(t, s, jetstream.Options{Partitions: 1, WorkAckWait: 30 * time.Second})
	p := bus.Phase{Project: "p", Kind: "node", Phase: "launch"}
	require.NoError(t, b.EnsurePhase(t.Context(), p))
	const n = 160
	for i := range n {
		require.NoError(t, b.PublishPoll(t.Context(), p, fmt.Sprint(i), make([]byte, bus.BodyBytesMax)))
	}
	puller, err := b.Pull(t.Context(), p)
	require.NoError(t, err)
	defer puller.Close()
	var held []bus.Delivery // as a worker holds a batch
	require.Eventually(t, func() bool {
		got, err := puller.Fetch(t.Context(), n, math.MaxInt, 5*time.Second)
		require.NoError(t, err)
		require.LessOrEqual(t, len(got)*bus.BodyBytesMax, bus.FetchBytesMax)
		held = append(held, got...)
		return len(held) >= n
	}, 30*time.Second, time.Millisecond)
	require.Len(t, held, n)
	for _, d := range held {
		require.EqualValues(t, 1, d.Delivered())
		require.NoError(t, d.Ack())
	}
}

// TestConsumerLost: an inbox whose consumer was deleted makes it again; a puller says that its phase is gone.
func TestConsumerLost(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 1})
	js := client(t, s)
	in, err := b.Results(t.Context(), 0)
	require.NoError(t, err)
	defer in.Close()
	require.NoError(t, js.DeleteConsumer(t.Context(), "RESULTS", "p0"))
	require.NoError(t, b.PublishResult(t.Context(), bus.ResultSubject(0, "p", "k", "n"), nil, []byte("x")))
	d := <-in.C()
	require.NotNil(t, d, "%v", in.Err())
	require.NoError(t, d.Ack())
	require.NoError(t, in.Err())
}

// TestAConsumerThatIsBeingDeleted is closed for a moment before it is gone, and gone before its files are: who makes it then is
// told that it does not exist, or that a file does not. An orchestrator that makes the consumer of a phase which another one
// has just removed meets that.
func TestAConsumerThatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 1})
	p := bus.Phase{Project: "p", Kind: "node", Phase: "launch"}
	for range 20 {
		require.NoError(t, b.EnsurePhase(t.Context(), p))
		removed := make(chan error, 1)
		go func() { removed <- b.RemovePhase(t.Context(), p) }()
		for done := false; !done; {
			require.NoError(t, b.EnsurePhase(t.Context(), p))
			select {
			case err := <-removed:
				require.NoError(t, err)
				done = true
			default:
			}
		}
	}
	require.NoError(t, b.EnsurePhase(t.Context(), p))
	require.NoError(t, b.PublishPoll(t.Context(), p, "x", nil))
	puller, err := b.Pull(t.Context(), p)
	require.NoError(t, err)
	defer puller.Close()
	got, err := puller.Fetch(t.Context(), 1, math.MaxInt, 5*time.Second)
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.NoError(t, got[0].Ack())
}

// TestWhatAConsumerDoesNotKnow: the server that leads a consumer may be behind, and then counts less than is stored; 0 would say that
// nothing is out, and work would be handed out that somebody has. A consumer that is for another subject knows as little.
func TestWhatAConsumerDoesNotKnow(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 1})
	js := client(t, s)
	p := bus.Phase{Project: "p", Kind: "node", Phase: "launch"}
	for _, c := range [][3]string{{"RESULTS", "p0", "drover.result.0.none.>"}, {"WORK", p.Consumer(), "drover.work.none.>"}} {
		_, err := js.CreateConsumer(t.Context(), c[0], natsjs.ConsumerConfig{Durable: c[1], FilterSubject: c[2], AckPolicy: natsjs.AckExplicitPolicy})
		require.NoError(t, err)
	}
	n, oldest, err := b.Backlog(t.Context(), "RESULTS", 0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Zero(t, oldest)
	require.NoError(t, b.PublishResult(t.Context(), bus.ResultSubject(0, "p", "k", "n"), nil, []byte("x")))
	n, oldest, err = b.Backlog(t.Context(), "RESULTS", 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	require.WithinDuration(t, time.Now(), oldest, time.Minute)

	left, _, err := b.Outstanding(t.Context(), p)
	require.NoError(t, err)
	require.Zero(t, left)
	require.NoError(t, b.PublishPoll(t.Context(), p, "x", nil))
	left, _, err = b.Outstanding(t.Context(), p)
	require.NoError(t, err)
	require.EqualValues(t, 1, left)
}

// BenchmarkAppend is the hot path: four writers, a thousand appends in flight each, states of 300 bytes, and everything
// that the server derives from them.
func BenchmarkAppend(b *testing.B) {
	s := start(b)
	conn := open(b, s, jetstream.Options{Partitions: 4})
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	const writers, inFlight = 4, 1000
	for w := range writers {
		wg.Go(func() {
			pending := make([]bus.Pending, 0, inFlight)
			settle := func() {
				for _, p := range pending {
					if _, err := p.Result(); err != nil {
						b.Error(err)
					}
				}
				pending = pending[:0]
			}
			for i := w; i < b.N; i += writers {
				pending = append(pending, conn.Append(bus.Append{Entity: node(i), Dispatch: "launch", Body: make([]byte, 300),
					Header: bus.Header{From: "Ready", To: "Running", Job: "j", Revision: 1}}))
				if len(pending) == inFlight {
					settle()
				}
			}
			settle()
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
}
