package jetstream

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// deaf is a server of which the test plays the part of JetStream: what nobody listens to gets no responders, as a consumer
// without a leader does; what is listened to and not answered is what a group without a leader drops.
func deaf(t *testing.T, with ...func(*server.Options)) (*nats.Conn, *Bus) {
	t.Helper()
	return deafTo(t, func() string { return `{"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}` }, with...)
}

// deafTo is deaf, with what is answered to who asks after EVENTS.
func deafTo(t *testing.T, events func() string, with ...func(*server.Options)) (*nats.Conn, *Bus) {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true}
	for _, f := range with {
		f(o)
	}
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(30*time.Second))
	nc, err := nats.Connect(s.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	answers(t, nc, "STREAM.INFO.EVENTS", events)
	b, err := Connect(t.Context(), Options{URL: s.ClientURL(), Partitions: 1})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return nc, b
}

// answers plays a part of JetStream's API; what is empty is not answered. asked counts.
func answers(t *testing.T, nc *nats.Conn, subject string, answer func() string) (asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	_, err := nc.Subscribe("$JS.API."+subject, func(m *nats.Msg) {
		asked.Add(1)
		if text := answer(); text != "" {
			_ = m.Respond([]byte(text))
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return asked
}

const deafPatience = 30 * time.Second

// TestWhatIsDroppedIsAskedAgain: within one try, long before it is given up.
func TestWhatIsDroppedIsAskedAgain(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	var number atomic.Int32
	asked := answers(t, nc, "STREAM.INFO.FAKE", func() string {
		if number.Add(1) < 2 {
			return ""
		}
		return `{"config": {"name": "FAKE"}}`
	})
	ctx, cancel := context.WithTimeout(t.Context(), apiTry) // one try, and no other
	defer cancel()
	info, err := b.streamInfo(ctx, "FAKE", "")
	require.NoError(t, err)
	require.Equal(t, "FAKE", info.Config.Name)
	require.GreaterOrEqual(t, asked.Load(), int32(2))
}

// TestASnapshotIsBegunOnce: what may not be repeated is not.
func TestASnapshotIsBegunOnce(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	asked := answers(t, nc, "STREAM.SNAPSHOT.FAKE", func() string { return "" })
	ctx, cancel := context.WithTimeout(t.Context(), 3*askAgain)
	defer cancel()
	_, err := b.snapshotOnce(ctx, "FAKE", filepath.Join(t.TempDir(), "fake"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool { return asked.Load() > 0 }, deafPatience, 10*time.Millisecond)
	require.EqualValues(t, 1, asked.Load())
}

// TestAnInboxAsksWhileNobodyMakesItsConsumer: the partition's consumer has a leader again before the servers have one.
func TestAnInboxAsksWhileNobodyMakesItsConsumer(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	var made atomic.Bool
	answers(t, nc, "CONSUMER.CREATE.RESULTS.>", func() string {
		if made.CompareAndSwap(false, true) {
			return `{"num_pending": 0}`
		}
		return ""
	})
	in, err := b.Results(t.Context(), 0)
	require.NoError(t, err)
	defer in.Close()
	pulled := answers(t, nc, "CONSUMER.MSG.NEXT.RESULTS.p0", func() string { return "" })
	require.Eventually(t, func() bool { return pulled.Load() > 0 }, deafPatience, 10*time.Millisecond, "the consumer is asked again")
	require.NoError(t, in.Err())
}

// TestAWorkerAsksWhileNobodyKnowsItsPhase is the same of a phase's consumer.
func TestAWorkerAsksWhileNobodyKnowsItsPhase(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	var known atomic.Bool
	p := bus.Phase{Project: "default", Kind: "node", Phase: "volume"}
	asked := answers(t, nc, "CONSUMER.INFO.WORK."+p.Consumer(), func() string {
		if known.CompareAndSwap(false, true) {
			return `{"config": {"ack_wait": 6000000000}}`
		}
		return ""
	})
	puller, err := b.Pull(t.Context(), p)
	require.NoError(t, err)
	defer puller.Close()
	require.Equal(t, 6*time.Second, puller.AckWait())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fetched := make(chan error, 1)
	go func() {
		_, err := puller.Fetch(ctx, 1, 0, deafPatience)
		fetched <- err
	}()
	require.Eventually(t, func() bool { return asked.Load() > 1 }, deafPatience, 10*time.Millisecond, "it is asked whether the consumer is there")
	pulled := answers(t, nc, "CONSUMER.MSG.NEXT.WORK."+p.Consumer(), func() string { return "" })
	require.Eventually(t, func() bool { return pulled.Load() > 0 }, deafPatience/2, 10*time.Millisecond, "the consumer is asked again")
	cancel()
	require.ErrorIs(t, <-fetched, context.Canceled)
}

// TestAWorkerHearsOfAnotherAckWait: orchestrators with another --work-ack-wait change the consumer, whoever is bound to it.
func TestAWorkerHearsOfAnotherAckWait(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	p := bus.Phase{Project: "default", Kind: "node", Phase: "volume"}
	var wait atomic.Int64
	wait.Store(int64(30 * time.Second))
	answers(t, nc, "CONSUMER.INFO.WORK."+p.Consumer(), func() string {
		return fmt.Sprintf(`{"config": {"ack_wait": %d}}`, wait.Load())
	})
	pulled, err := b.Pull(t.Context(), p)
	require.NoError(t, err)
	defer pulled.Close()
	require.Equal(t, 30*time.Second, pulled.AckWait())
	wait.Store(int64(6 * time.Second))
	pulled.(*puller).asked = time.Now().Add(-2 * workLook)
	for end := time.Now().Add(deafPatience); pulled.AckWait() != 6*time.Second; {
		require.True(t, time.Now().Before(end), "it stays as it was")
		_, err := pulled.Fetch(t.Context(), 1, 0, 10*time.Millisecond)
		require.NoError(t, err)
	}
}

// TestHistoryOfAReplicaThatIsBehind: its consumer says that it has delivered everything, and the leader has more.
func TestHistoryOfAReplicaThatIsBehind(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	made := answers(t, nc, "CONSUMER.CREATE.EVENTS.>", func() string { return `{"num_pending": 0}` })
	_, err := nc.Subscribe("$JS.API.CONSUMER.MSG.NEXT.EVENTS.*", func(m *nats.Msg) {
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"404"}, "Description": {"No Messages"}}})
	})
	require.NoError(t, err)
	var later atomic.Bool
	later.Store(true)
	answers(t, nc, "STREAM.MSG.GET.EVENTS", func() string {
		if later.CompareAndSwap(true, false) {
			return `{"message": {"subject": "drover.log.0.blueprint.default.node.is.x", "seq": 7, "time": "2026-11-20T09:00:00Z"}}`
		}
		return `{"error": {"code": 404, "err_code": 10037, "description": "no message found"}}` // removed meanwhile
	})
	all, err := b.History(t.Context(), bus.Entity{Family: bus.Blueprint, Project: "default", Kind: "node"})
	require.NoError(t, err)
	require.Empty(t, all)
	require.EqualValues(t, 2, made.Load(), "another replica is asked")
}

// TestAReaderWhoseConsumerNobodyAnswersFor, since it was given to a server that was just killed, has another one made.
func TestAReaderWhoseConsumerNobodyAnswersFor(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	var dead atomic.Value // the name that was asked for first
	names := make(chan string, 100)
	_, err := nc.Subscribe("$JS.API.CONSUMER.CREATE.EVENTS.>", func(m *nats.Msg) {
		name := strings.Split(m.Subject, ".")[5]
		dead.CompareAndSwap(nil, name)
		if name != dead.Load() {
			names <- name
			_ = m.Respond([]byte(`{"num_pending": 0}`))
		}
	})
	require.NoError(t, err)
	r, err := b.newReader(streamEvents, natsjs.DeliverAllPolicy, "drover.log.>")
	require.NoError(t, err)
	t.Cleanup(r.close)
	require.NoError(t, nc.Flush())
	ctx, cancel := context.WithTimeout(t.Context(), deafPatience)
	defer cancel()
	require.NoError(t, r.bind(ctx))
	require.Equal(t, <-names, r.consumer)

	r.drop()
	dead.Store("read-")
	_, err = nc.Subscribe("$JS.API.CONSUMER.CREATE.RESULTS.>", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}`))
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	r.stream = streamResults
	require.ErrorIs(t, r.bind(ctx), bus.ErrNotFound, "what is refused is not asked again")
}

// doorman lets in whom he is told to.
type doorman struct {
	closed  atomic.Bool
	refused atomic.Int32
}

// Check implements server.Authentication.
func (d *doorman) Check(server.ClientAuthentication) bool {
	if d.closed.Load() {
		d.refused.Add(1)
		return false
	}
	return true
}

// TestRightsThatAreMended: a process that was refused while it reconnected, as often as may be, comes back once it is not.
func TestRightsThatAreMended(t *testing.T) {
	t.Parallel()
	d := &doorman{}
	_, b := deaf(t, func(o *server.Options) { o.CustomClientAuthentication = d })
	d.closed.Store(true)
	require.NoError(t, b.nc.ForceReconnect())
	require.Eventually(t, func() bool { return d.refused.Load() > 4 }, deafPatience, 10*time.Millisecond, "it tries on")
	d.closed.Store(false)
	require.Eventually(t, b.nc.IsConnected, deafPatience, 10*time.Millisecond)
}

// TestTheURLIsInNoError: nor is a part of it, where it cannot be read.
func TestTheURLIsInNoError(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"nats://svc:ab/cd@127.0.0.1:1", "nats://svc:ab%zzcd@127.0.0.1:1", "nats://svc:ab#cd@127.0.0.1:1"} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := Connect(ctx, Options{URL: url})
		cancel()
		require.ErrorIs(t, err, errUnreadable)
		require.NotContains(t, err.Error(), "ab")
		require.NotContains(t, err.Error(), "cd")
	}
}

// TestAWorkerIsToldThatItsPhaseIsGone, while it waits for work.
func TestAWorkerIsToldThatItsPhaseIsGone(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	var known atomic.Bool
	p := bus.Phase{Project: "default", Kind: "node", Phase: "volume"}
	answers(t, nc, "CONSUMER.INFO.WORK."+p.Consumer(), func() string {
		if known.CompareAndSwap(false, true) {
			return `{"config": {"ack_wait": 6000000000}}`
		}
		return `{"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}`
	})
	puller, err := b.Pull(t.Context(), p)
	require.NoError(t, err)
	defer puller.Close()
	for _, wait := range []time.Duration{deafPatience, 0} {
		_, err = puller.Fetch(t.Context(), 1, 0, wait)
		require.ErrorIs(t, err, bus.ErrNotFound)
	}
}

// TestWhoAskedTheLogInVainIsKnown when the log has a leader again: it was looked at before.
func TestWhoAskedTheLogInVainIsKnown(t *testing.T) {
	t.Parallel()
	var leader atomic.Value
	leader.Store("")
	var led atomic.Bool // are all servers
	info := func(name, leader, sources string) string {
		return fmt.Sprintf(`{"config": {"name": %q, "num_replicas": 3, "metadata": {"drover.partitions": "1"}}, "cluster": {"leader": %q}%s}`, name, leader, sources)
	}
	nc, b := deafTo(t, func() string { return info(streamEvents, leader.Load().(string), "") })
	var streams []string
	stepped := map[string]*atomic.Int32{}
	for _, c := range b.layout().streams(1, "") {
		if len(c.Sources) == 0 {
			continue
		}
		streams = append(streams, c.Name)
		answers(t, nc, "STREAM.INFO."+c.Name, func() string { return info(c.Name, "a", `, "sources": [{"name": "EVENTS", "active": -1}]`) })
		stepped[c.Name] = answers(t, nc, "STREAM.LEADER.STEPDOWN."+c.Name, func() string { return `{"success": true}` })
	}
	require.Contains(t, streams, streamWork)
	answers(t, nc, "INFO", func() string {
		if led.Load() {
			return "{}"
		}
		return ""
	})
	began := time.Now()
	for time.Since(began) < sourceUnsaid+rederiveTry {
		moved, err := b.Rederive(t.Context())
		require.ErrorIs(t, err, errNoLeader)
		require.Empty(t, moved)
		time.Sleep(20 * time.Millisecond) // as often as lifecycle looks, or oftener
	}
	leader.Store("b")
	moved, err := b.Rederive(t.Context())
	require.ErrorIs(t, err, errLeaderless, "it would ask in vain again")
	require.Empty(t, moved)
	led.Store(true)
	moved, err = b.Rederive(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, streams, moved, "at once")
	for name, times := range stepped {
		require.EqualValues(t, 1, times.Load(), name)
	}
}

// TestWhoHearsNotEvenItselfBuriesNobody: its server is gone without a word, and it would take over what others serve.
func TestWhoHearsNotEvenItselfBuriesNobody(t *testing.T) {
	t.Parallel()
	_, b := deaf(t)
	now := time.Now()
	m := &membership{
		b: b, echoed: now.Add(-memberLapse - time.Millisecond), living: map[string]time.Time{"other": now.Add(-time.Minute)},
		declined: map[string][]int{"other": {1}},
	}
	m.bury(now)
	require.Equal(t, map[string]time.Time{"other": now}, m.living, "it is given its time once this one hears again")
	m.echoed = now.Add(memberDead)
	m.bury(now.Add(memberDead))
	require.Contains(t, m.living, "other")
	m.bury(now.Add(memberDead + time.Millisecond))
	require.Empty(t, m.living)
	require.Empty(t, m.declined)
}
