package captured_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/intake/internal/captured"
	"github.com/droverproject/drover/services/intake/internal/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const jsonType = "application/json"

// delivery is a bus.Delivery that remembers how it was settled.
type delivery struct {
	b       *stream
	subject string
	header  map[string]string
	body    []byte
	seq     uint64
}

func (d *delivery) Subject() string           { return d.subject }
func (d *delivery) Header(name string) string { return d.header[name] }
func (d *delivery) Body() []byte              { return d.body }
func (d *delivery) Seq() uint64               { return d.seq }
func (d *delivery) Time() time.Time           { return time.Now() }
func (d *delivery) Delivered() uint64         { return 1 }
func (d *delivery) Ack() error                { return d.b.settle(d.seq, "ack") }
func (d *delivery) Retry(time.Duration) error { return d.b.settle(d.seq, "retry") }
func (d *delivery) Reject(_ context.Context, reason string) error {
	return d.b.settle(d.seq, "reject: "+reason)
}

func (d *delivery) Progress() error {
	d.b.mu.Lock()
	defer d.b.mu.Unlock()
	d.b.progress[d.seq]++
	return nil
}

// stream is the bus of these tests: one inbox a partition, an owner, and a store of refusals.
type stream struct {
	mu       sync.Mutex
	inboxes  map[int]chan bus.Delivery
	lost     map[int]error
	opened   map[int]int
	seq      uint64
	settled  map[uint64]string
	order    []uint64 // in which they were settled
	progress map[uint64]int
	refusals map[string]wire.Reply
	asked    []string // "subject/id", in the order of the owner's answers
	owner    func(ctx context.Context, r bus.Request) (bus.Request, error)
	storeErr error
	ackErr   error
}

func newStream() *stream {
	return &stream{
		inboxes: map[int]chan bus.Delivery{}, lost: map[int]error{}, opened: map[int]int{}, settled: map[uint64]string{},
		progress: map[uint64]int{}, refusals: map[string]wire.Reply{}, owner: accepts,
	}
}

func accepts(context.Context, bus.Request) (bus.Request, error) {
	body, err := wire.EncodeReply(jsonType, wire.Reply{JobID: "job", Resource: "p/k/n"})
	return bus.Request{Header: map[string]string{"Content-Type": jsonType}, Body: body}, err
}

func refuses(code resource.Code) func(context.Context, bus.Request) (bus.Request, error) {
	return func(_ context.Context, r bus.Request) (bus.Request, error) {
		body, err := wire.EncodeReply(jsonType, wire.Reply{RequestID: r.Header["Drover-Request-Id"], Refused: &resource.Refusal{Code: code, Message: "no"}})
		return bus.Request{Header: map[string]string{"Content-Type": jsonType}, Body: body}, err
	}
}

func (s *stream) settle(seq uint64, how string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ackErr != nil && how == "ack" {
		return s.ackErr
	}
	s.settled[seq] = how
	s.order = append(s.order, seq)
	return nil
}

func (s *stream) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *stream) inbox(p int) chan bus.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inboxes[p] == nil {
		s.inboxes[p] = make(chan bus.Delivery, 10_000)
	}
	return s.inboxes[p]
}

// publish puts a command of kind k in project p into partition 0's inbox.
func (s *stream) publish(name, verb, id, body string) uint64 {
	header := map[string]string{"Content-Type": jsonType}
	if id != "" {
		header["Drover-Request-Id"] = id
	}
	return s.deliver(bus.CommandSubject("cmd", "p", "k", name, verb), header, body)
}

func (s *stream) deliver(subject string, header map[string]string, body string) uint64 {
	s.mu.Lock()
	s.seq++
	seq := s.seq
	s.mu.Unlock()
	s.inbox(0) <- &delivery{s, subject, header, []byte(body), seq}
	return seq
}

type inbox struct {
	s *stream
	p int
}

func (i inbox) C() <-chan bus.Delivery { return i.s.inbox(i.p) }
func (i inbox) Close()                 {}
func (i inbox) Err() error {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	return i.s.lost[i.p]
}

func (s *stream) Commands(_ context.Context, p int) (bus.Inbox, error) {
	s.set(func() { s.opened[p]++ })
	return inbox{s, p}, nil
}

func (s *stream) Ask(ctx context.Context, _ int, r bus.Request) (bus.Request, error) {
	s.mu.Lock()
	owner := s.owner
	s.mu.Unlock()
	reply, err := owner(ctx, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Header["Drover-Subject"]+"/"+r.Header["Drover-Request-Id"])
	return reply, err
}

func (s *stream) PublishRefusal(_ context.Context, project, id string, header map[string]string, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.storeErr != nil {
		return s.storeErr
	}
	r, err := wire.DecodeReply(header["Content-Type"], body)
	s.refusals[project+"/"+id] = r
	return err
}

func (s *stream) Backlog(_ context.Context, stream string, p int) (uint64, time.Time, error) {
	if stream != "COMMANDS" {
		return 0, time.Time{}, errors.New("another stream")
	}
	return uint64(10 + p), time.Now().Add(-time.Minute), nil
}

func (s *stream) how(seq uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled[seq]
}

type service struct {
	*stream
	shares   chan []int
	logs     *observer.ObservedLogs
	registry *prometheus.Registry
	stop     func()
}

// run starts an intake that serves partition 0. It must be called in a synctest bubble.
func run(t *testing.T) *service {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	s := &service{stream: newStream(), shares: make(chan []int), logs: logs, registry: prometheus.NewRegistry()}
	m, err := metrics.New(s.registry)
	require.NoError(t, err)
	i := captured.New(s.stream, 64, zap.New(core), m)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx, s.shares) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(s.stop)
	s.shares <- []int{0}
	pass(captured.HandoverWait)
	return s
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAcceptedIsAcknowledgedAfterTheOwnersReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		release := make(chan struct{})
		s.set(func() {
			s.owner = func(ctx context.Context, r bus.Request) (bus.Request, error) { <-release; return accepts(ctx, r) }
		})
		seq := s.publish("n", "start", "mine", "{}")
		synctest.Wait()
		require.Empty(t, s.how(seq))
		close(release)
		synctest.Wait()
		require.Equal(t, "ack", s.how(seq))
		require.Equal(t, []string{"drover.cmd.p.k.n.start/mine"}, s.asked)
	})
}

func TestAMissingRequestIDIsTheSequence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		s.publish("n", "start", "", "{}")
		seq := s.publish("n", "start", "", "{}")
		synctest.Wait()
		require.Equal(t, fmt.Sprintf("drover.cmd.p.k.n.start/c%d", seq), s.asked[1])
	})
}

func TestRefusalsAreStoredAndThenAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		s.set(func() { s.storeErr = errors.New("not now"); s.owner = refuses(resource.Conflict) })
		byOwner := s.publish("a", "start", "r1", "{}")
		undecodable := s.publish("b", "start", "r2", "{")
		badID := s.publish("c", "start", "no id", "{}")
		selector := s.deliver("drover.cmd.p.k.-.start", map[string]string{"Content-Type": jsonType, "Drover-Request-Id": "r4"}, "{}")
		foreign := s.deliver("drover.cmd.p.k.d.start", map[string]string{"Content-Type": jsonType, "Drover-Request-Id": "r5", "Nats-Msg-Id": "x"}, "{}")
		pass(time.Second)
		for _, seq := range []uint64{byOwner, undecodable, badID, selector, foreign} {
			require.Empty(t, s.how(seq), "not before the refusal is stored")
		}
		s.set(func() { s.storeErr = nil })
		pass(10 * time.Second)
		for _, seq := range []uint64{byOwner, undecodable, badID, selector, foreign} {
			require.Equal(t, "ack", s.how(seq))
		}
		require.Equal(t, resource.Conflict, s.refusals["p/r1"].Refused.Code)
		require.Equal(t, "r1", s.refusals["p/r1"].RequestID)
		require.Equal(t, resource.Invalid, s.refusals["p/r2"].Refused.Code)
		require.Equal(t, "header.Drover-Request-Id", s.refusals[fmt.Sprintf("p/c%d", badID)].Refused.Violations[0].Field)
		require.Equal(t, "selector", s.refusals["p/r4"].Refused.Violations[0].Field)
		require.Equal(t, "header.Nats-Msg-Id", s.refusals["p/r5"].Refused.Violations[0].Field)
		require.Len(t, s.asked, 1, "only what could be meant reaches the owner")
	})
}

func TestPoisonIsSetAsideAndBlocksNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		poison := s.deliver("drover.cmd.p.k.=zz.start", nil, "{}")
		behind := s.publish("n", "start", "r", "{}")
		synctest.Wait()
		require.True(t, strings.HasPrefix(s.how(poison), "reject: "), s.how(poison))
		require.Equal(t, "ack", s.how(behind))
		require.Equal(t, 1, s.logs.FilterMessage("captured command set aside").Len())
	})
}

func TestAnOwnersReplyThatIsNeverReadable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		s.set(func() {
			s.owner = func(ctx context.Context, r bus.Request) (bus.Request, error) {
				if strings.Contains(r.Header["Drover-Subject"], ".bad.") {
					return bus.Request{Body: []byte("\xff")}, nil
				}
				return accepts(ctx, r)
			}
		})
		bad := s.publish("bad", "start", "r", "{}")
		good := s.publish("good", "start", "r", "{}")
		pass(time.Minute)
		require.True(t, strings.HasPrefix(s.how(bad), "reject: the owner's reply"), s.how(bad))
		require.Equal(t, "ack", s.how(good))
	})
}

func TestOrderOfAResourceIsKeptAndOthersDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		began := time.Now()
		s.set(func() {
			s.owner = func(ctx context.Context, r bus.Request) (bus.Request, error) {
				if strings.Contains(r.Header["Drover-Subject"], ".slow.") {
					if time.Since(began) < 10*time.Second {
						return refuses(resource.Overloaded)(ctx, r)
					}
					time.Sleep(time.Millisecond)
				}
				return accepts(ctx, r)
			}
		})
		var slow, fast []uint64
		for i := range 20 {
			slow = append(slow, s.publish("slow", "start", fmt.Sprint("s", i), "{}"))
			fast = append(fast, s.publish("fast", "start", fmt.Sprint("f", i), "{}"))
		}
		synctest.Wait()
		for _, seq := range fast {
			require.Equal(t, "ack", s.how(seq))
		}
		require.Empty(t, s.how(slow[0]))
		require.Equal(t, 1, s.logs.FilterMessage("captured commands wait").Len())
		pass(5 * time.Second)
		s.set(func() {
			require.GreaterOrEqual(t, s.progress[slow[0]], 4, "the server is told that it is in hand")
			require.GreaterOrEqual(t, s.progress[slow[19]], 4, "those behind it too")
		})
		pass(time.Minute)
		var order []uint64
		s.set(func() {
			for _, seq := range s.order {
				if slices.Contains(slow, seq) {
					order = append(order, seq)
				}
			}
		})
		require.Equal(t, slow, order)
		require.Equal(t, 1, s.logs.FilterMessage("captured commands move again").Len())
	})
}

func TestNoOwnerLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		s.set(func() {
			s.owner = func(context.Context, bus.Request) (bus.Request, error) { return bus.Request{}, bus.ErrNoOwner }
		})
		var seqs []uint64
		for i := range captured.WaitingMax + 100 {
			seqs = append(seqs, s.publish(fmt.Sprint("n", i), "start", "r", "{}"))
		}
		pass(time.Minute)
		s.set(func() { require.Empty(t, s.settled) })
		require.Len(t, s.inbox(0), 100, "the rest stays where it is")
		s.set(func() { s.owner = accepts })
		pass(time.Minute)
		for _, seq := range seqs {
			require.Equal(t, "ack", s.how(seq))
		}
	})
}

func TestWhatIsGivenUpIsPutBackInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		s.set(func() {
			s.owner = func(ctx context.Context, _ bus.Request) (bus.Request, error) {
				<-ctx.Done()
				return bus.Request{}, ctx.Err()
			}
		})
		var seqs []uint64
		for i := range 50 {
			seqs = append(seqs, s.publish(fmt.Sprint("n", i%5), "start", fmt.Sprint("r", i), "{}"))
		}
		synctest.Wait()
		s.shares <- nil // another process serves it now
		synctest.Wait()
		require.Equal(t, seqs, s.order)
		for _, seq := range seqs {
			require.Equal(t, "retry", s.how(seq))
		}

		// The same partition comes back.
		s.set(func() { s.owner = accepts; s.order = nil })
		s.shares <- []int{0}
		pass(captured.HandoverWait)
		again := s.publish("n", "start", "again", "{}")
		synctest.Wait()
		require.Equal(t, "ack", s.how(again))
	})
}

func TestStopWhileAsking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		s.set(func() {
			s.owner = func(ctx context.Context, _ bus.Request) (bus.Request, error) {
				<-ctx.Done()
				return bus.Request{}, ctx.Err()
			}
		})
		seq := s.publish("n", "start", "r", "{}")
		synctest.Wait()
		s.stop()
		require.Equal(t, "retry", s.how(seq))
	})
}

func TestALostInboxIsOpenedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		synctest.Wait()
		s.set(func() {
			s.lost[0] = errors.New("consumer deleted")
			close(s.inboxes[0])
			s.inboxes[0] = nil
		})
		pass(time.Minute)
		require.Equal(t, 2, s.opened[0])
		require.Equal(t, 1, s.logs.FilterMessage("inbox of commands is lost; it is opened again").Len())
		seq := s.publish("n", "start", "r", "{}")
		synctest.Wait()
		require.Equal(t, "ack", s.how(seq))
	})
}

func TestAnAckThatFailsIsNotTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		s.set(func() { s.ackErr = errors.New("disconnected") })
		s.publish("n", "start", "r1", "{}")
		synctest.Wait()
		s.set(func() { s.ackErr = nil })
		behind := s.publish("n", "start", "r2", "{}")
		synctest.Wait()
		require.Equal(t, "ack", s.how(behind))
		require.Equal(t, 1, s.logs.FilterMessageSnippet("could not be settled").Len())
	})
}

func TestBacklogIsMeasured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t)
		s.shares <- []int{0, 7}
		pass(5 * time.Second)
		values := func() map[string]float64 {
			families, err := s.registry.Gather()
			require.NoError(t, err)
			got := map[string]float64{}
			for _, f := range families {
				if strings.HasPrefix(f.GetName(), "drover_intake_backlog_") {
					for _, m := range f.GetMetric() {
						got[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
					}
				}
			}
			return got
		}
		require.Equal(t, map[string]float64{
			"drover_intake_backlog_commands 0": 10, "drover_intake_backlog_commands 7": 17,
			"drover_intake_backlog_oldest_seconds 0": 60, "drover_intake_backlog_oldest_seconds 7": 60,
		}, values())
		s.shares <- []int{7}
		pass(5 * time.Second)
		require.NotContains(t, values(), "drover_intake_backlog_commands 0")
	})
}
