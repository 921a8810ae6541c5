package jetstream

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// partitionOfResults plays the stream RESULTS, which has a leader, and its partition's consumer, which has one or not.
type partitionOfResults struct {
	t  *testing.T
	nc *nats.Conn

	mu        sync.Mutex
	stored    map[uint64]string // bodies, by sequence
	delivered map[uint64]int
	words     map[uint64][]string // that the consumer was told
}

const detourSubject = "drover.result.0.default.node.a"

var detourStored = time.Date(2026, 11, 20, 9, 0, 0, 1_234_567, time.UTC) // when every message was

// newPartitionOfResults has an inbox on a partition whose consumer has lost its leader.
func newPartitionOfResults(t *testing.T) (*partitionOfResults, bus.Inbox) {
	t.Helper()
	nc, b := deaf(t)
	p := &partitionOfResults{t: t, nc: nc, stored: map[uint64]string{}, delivered: map[uint64]int{}, words: map[uint64][]string{}}
	answers(t, nc, "CONSUMER.CREATE.RESULTS.>", func() string { return `{"num_pending": 0}` })
	p.hear("$JS.API.STREAM.MSG.GET.RESULTS", p.get)
	p.hear("$JS.ACK.RESULTS.p0.>", func(m *nats.Msg) {
		tokens := strings.Split(m.Subject, ".")
		var seq uint64
		_, err := fmt.Sscan(tokens[5], &seq)
		p.check(err)
		p.words[seq] = append(p.words[seq], string(m.Data))
	})
	in, err := b.Results(t.Context(), 0)
	require.NoError(t, err)
	t.Cleanup(in.Close)
	return p, in
}

func (p *partitionOfResults) check(err error) {
	if err != nil {
		p.t.Error(err)
	}
}

func (p *partitionOfResults) hear(subject string, do nats.MsgHandler) {
	p.t.Helper()
	_, err := p.nc.Subscribe(subject, func(m *nats.Msg) {
		p.mu.Lock()
		defer p.mu.Unlock()
		do(m)
	})
	require.NoError(p.t, err)
	require.NoError(p.t, p.nc.Flush())
}

// get answers what the leader of the stream is asked for.
func (p *partitionOfResults) get(m *nats.Msg) {
	var r getRequest
	p.check(json.Unmarshal(m.Data, &r))
	for seq := r.Seq; seq < r.Seq+100; seq++ {
		if body, ok := p.stored[seq]; ok {
			p.check(m.Respond(fmt.Appendf(nil, `{"message": {"subject": %q, "seq": %d, "data": %q, "time": %q}}`,
				detourSubject, seq, base64.StdEncoding.EncodeToString([]byte(body)), detourStored.Format(time.RFC3339Nano))))
			return
		}
		if r.NextFor == "" {
			break
		}
	}
	p.check(m.Respond([]byte(`{"error": {"code": 404, "err_code": 10037, "description": "no message found"}}`)))
}

// lead gives the consumer a leader, which delivers what is stored and was not settled, in order, to the first that asks.
func (p *partitionOfResults) lead(in *inbox) {
	p.t.Helper()
	p.hear("$JS.API.CONSUMER.MSG.NEXT.RESULTS.p0", func(*nats.Msg) {
		for seq := range uint64(100) {
			if _, ok := p.stored[seq]; ok && p.delivered[seq] == 0 {
				p.deliver(in, seq)
			}
		}
	})
}

// deliver puts a message where it would arrive: a client may not send one that asks for an acknowledgement.
func (p *partitionOfResults) deliver(in *inbox, seq uint64) {
	p.delivered[seq]++
	in.pulls.in <- &nats.Msg{
		Subject: detourSubject, Data: []byte(p.stored[seq]), Sub: in.pulls.sub,
		Reply: fmt.Sprintf("$JS.ACK.RESULTS.p0.%d.%d.%d.%d.0", p.delivered[seq], seq, seq, detourStored.UnixNano()),
	}
}

func (p *partitionOfResults) store(seq uint64, body string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stored[seq] = body
}

// said is what the consumer was told of a message.
func (p *partitionOfResults) said(seq uint64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.words[seq], " ")
}

func (p *partitionOfResults) next(in bus.Inbox, seq uint64, body string, times uint64) bus.Delivery {
	p.t.Helper()
	select {
	case d := <-in.C():
		require.Equal(p.t, seq, d.Seq())
		require.Equal(p.t, body, string(d.Body()))
		require.Equal(p.t, detourSubject, d.Subject())
		require.Equal(p.t, times, d.Delivered())
		return d
	case <-time.After(deafPatience):
		p.t.Fatalf("message %d does not come", seq)
		return nil
	}
}

// TestInputsComePastAConsumerWithoutALeader, once each, and the consumer hears what became of them when it is back.
func TestInputsComePastAConsumerWithoutALeader(t *testing.T) {
	t.Parallel()
	p, in := newPartitionOfResults(t)
	p.store(3, "three")
	p.store(5, "five")
	p.store(8, "eight")
	three := p.next(in, 3, "three", 1)
	five := p.next(in, 5, "five", 1)
	eight := p.next(in, 8, "eight", 1)
	require.Equal(t, detourStored, three.Time().UTC())
	require.NoError(t, three.Ack())
	require.ErrorIs(t, three.Ack(), errSettled)
	require.NoError(t, five.Progress(), "nobody is there to be told")
	require.NoError(t, eight.Retry(time.Second))
	began := time.Now()
	eight = p.next(in, 8, "eight", 2)
	require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond, "not before its delay")
	p.store(13, "thirteen")
	thirteen := p.next(in, 13, "thirteen", 1)
	require.NoError(t, thirteen.Ack())

	p.lead(in.(*inbox))
	require.Eventually(t, func() bool { return p.said(3) == wordAck && p.said(13) == wordAck }, deafPatience, 10*time.Millisecond)
	require.Empty(t, p.said(5)+p.said(8), "these are in hand")
	require.NoError(t, five.Progress())
	require.NoError(t, five.Ack())
	require.NoError(t, eight.Retry(0))
	require.Eventually(t, func() bool { return p.said(5) == wordProgress+" "+wordAck && p.said(8) == wordRetry }, deafPatience, 10*time.Millisecond)
	select {
	case d := <-in.C():
		t.Fatalf("message %d comes a second time", d.Seq())
	default:
	}
	dt := in.(*inbox).detour
	dt.mu.Lock()
	defer dt.mu.Unlock()
	require.Empty(t, dt.passes)
	require.Empty(t, dt.again)
}

// TestAConsumerThatAnswersIsNotPassed: nothing is read past one that has nothing to deliver.
func TestAConsumerThatAnswersIsNotPassed(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	answers(t, nc, "CONSUMER.CREATE.RESULTS.>", func() string { return `{"num_pending": 0}` })
	var pulled atomic.Int32
	_, err := nc.Subscribe("$JS.API.CONSUMER.MSG.NEXT.RESULTS.p0", func(m *nats.Msg) {
		status := nats.Header{"Status": {"100"}, "Description": {"Idle Heartbeat"}}
		if pulled.Add(1)%2 == 0 {
			status = nats.Header{"Status": {"408"}, "Description": {"Request Timeout"}}
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: status})
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"408"}, "Description": {"Request Timeout"}}})
	})
	require.NoError(t, err)
	passed := answers(t, nc, "STREAM.MSG.GET.RESULTS", func() string { return "" })
	in, err := b.Results(t.Context(), 0)
	require.NoError(t, err)
	defer in.Close()
	require.Eventually(t, func() bool { return pulled.Load() > 20 }, deafPatience, time.Millisecond)
	require.Zero(t, passed.Load())
}

// TestAForgottenMessageIsNoOther: a server that was killed and has forgotten a message gives its sequence to the next one.
func TestAForgottenMessageIsNoOther(t *testing.T) {
	t.Parallel()
	_, b := deaf(t)
	d := b.newDetour(streamResults, "drover.result.0.>")
	all := d.take(brought{new: []message{{Subject: detourSubject, Seq: 7, Time: detourStored}}})
	require.Len(t, all, 1)
	require.NoError(t, all[0].Ack())
	require.False(t, d.met(&delivery{b: b, m: &nats.Msg{}, meta: &nats.MsgMetadata{
		Sequence: nats.SequencePair{Stream: 7}, NumDelivered: 1, Timestamp: detourStored.Add(time.Second),
	}}), "it is handed out")
	require.Empty(t, d.passes)
}

// TestPassesEnd: what the consumer never delivers, because it has delivered what comes later, is not kept.
func TestPassesEnd(t *testing.T) {
	t.Parallel()
	_, b := deaf(t)
	d := b.newDetour(streamResults, "drover.result.0.>")
	of := func(seq uint64) message { return message{Subject: detourSubject, Seq: seq} }
	all := d.take(brought{new: []message{of(1), of(2), of(3)}})
	require.Len(t, all, 3)
	require.NoError(t, all[0].Ack())
	meta := func(seq, times uint64) *delivery {
		return &delivery{b: b, m: &nats.Msg{Reply: "_none"}, meta: &nats.MsgMetadata{Sequence: nats.SequencePair{Stream: seq}, NumDelivered: times}}
	}
	require.False(t, d.met(meta(9, 2)), "comes again, so out of order")
	require.Len(t, d.passes, 3)
	require.False(t, d.met(meta(10, 1)))
	require.Len(t, d.passes, 2, "of the first nothing more is to be said")
	require.NoError(t, all[1].Ack())
	require.NoError(t, all[2].Ack())
	require.Empty(t, d.passes)
	require.Empty(t, d.order)
	require.Empty(t, d.take(brought{new: []message{of(4), of(10)}, again: []message{of(2)}}), "the consumer was faster")
}
