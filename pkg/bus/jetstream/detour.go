package jetstream

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	// detourEvery is between two looks past a consumer that does not answer.
	detourEvery = 250 * time.Millisecond
	// detourTry is how long one such look may take.
	detourTry = 2 * time.Second
)

// detour brings a partition's inputs past its consumer while that is silent. On several servers a consumer elects leaders of
// its own: when the server of one is lost, the next leads 4 to 9 seconds later, and twice that if the vote is split
// (nats-server 2.15.2), while the stream goes on taking and giving messages. There is a consumer for each partition, so one of
// them nearly always waits longest.
//
// What it brought comes a second time when the consumer is back. That delivery is not handed out: it is told what was
// said of the first one.
type detour struct {
	b              *Bus
	stream, filter string

	mu     sync.Mutex
	next   uint64               // from here on nothing was handed out
	passes map[uint64]*pass     // by sequence
	order  []uint64             // of the passes, ascending, as far as they were not passed by the consumer
	again  map[uint64]time.Time // what is to come again, and when
}

// pass is a message that came past the consumer, and that the consumer has not settled.
type pass struct {
	at     time.Time // of the message: a server that was killed may forget one, and give its sequence to another
	word   string    // what was said of it; empty: it is in hand
	twin   *delivery // the consumer's own, of a message in hand
	passed bool      // the consumer has delivered a later one: it is not known to come
}

func (b *Bus) newDetour(stream, filter string) *detour {
	return &detour{b: b, stream: stream, filter: filter, passes: map[uint64]*pass{}, again: map[uint64]time.Time{}}
}

// brought is what one look found.
type brought struct {
	again, new []message
	settled    []uint64 // by another process: of what was to come again
}

// look reads up to room messages that nobody has in hand, the next ones in order. It is the leader that is asked: its answer
// holds headers apart from what the server says, and without a leader nothing new is stored. Errors are none: the next look
// is soon, and the consumer may be back before.
func (t *detour) look(ctx context.Context, room int) (found brought) {
	ctx, cancel := context.WithTimeout(ctx, detourTry)
	defer cancel()
	t.mu.Lock()
	from := max(t.next, 1)
	room = min(room, inboxAckPending-len(t.passes))
	var due []uint64
	for seq, at := range t.again {
		if !time.Now().Before(at) {
			due = append(due, seq)
		}
	}
	t.mu.Unlock()
	slices.Sort(due)
	for _, seq := range due[:min(len(due), max(room, 0))] {
		room--
		switch m, err := t.b.leaderGet(ctx, t.stream, getRequest{Seq: seq}); {
		case err == nil:
			found.again = append(found.again, m)
		case errors.Is(err, bus.ErrNotFound):
			found.settled = append(found.settled, seq)
		}
	}
	for ; room > 0; room-- {
		m, err := t.b.leaderGet(ctx, t.stream, getRequest{Seq: from, NextFor: t.filter})
		if err != nil {
			break
		}
		found.new = append(found.new, m)
		from = m.Seq + 1
	}
	return found
}

// take makes deliveries of what a look found, but for what the consumer has delivered meanwhile.
func (t *detour) take(found brought) (all []*delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hand := func(m message, times uint64) {
		t.passes[m.Seq] = &pass{at: m.Time}
		all = append(all, &delivery{
			b: t.b, m: &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, subject: published(m.Subject), detour: t,
			meta: &nats.MsgMetadata{Stream: t.stream, Sequence: nats.SequencePair{Stream: m.Seq}, Timestamp: m.Time, NumDelivered: times},
		})
	}
	for _, seq := range found.settled {
		delete(t.again, seq)
	}
	for _, m := range found.again {
		if _, waits := t.again[m.Seq]; waits {
			delete(t.again, m.Seq)
			hand(m, 2)
		}
	}
	for _, m := range found.new {
		if m.Seq >= t.next {
			t.next = m.Seq + 1
			t.order = append(t.order, m.Seq)
			hand(m, 1)
		}
	}
	return all
}

// met reports whether what the consumer delivers came past it before, and is not to be handed out.
func (t *detour) met(d *delivery) bool {
	seq := d.Seq()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = max(t.next, seq+1)
	delete(t.again, seq)
	for d.Delivered() == 1 && len(t.order) > 0 && t.order[0] < seq { // what comes first comes in order
		if p := t.passes[t.order[0]]; p != nil {
			p.passed = true
			if p.word != "" {
				delete(t.passes, t.order[0])
			}
		}
		t.order = t.order[1:]
	}
	p := t.passes[seq]
	switch {
	case p == nil:
		return false
	case !p.at.Equal(d.Time()):
		delete(t.passes, seq)
		return false
	case p.word == "":
		p.twin = d
	default:
		delete(t.passes, seq)
		_ = d.settle(p.word, 0) // or it comes again
	}
	return true
}

// say keeps what the holder of a message says of it, or tells the consumer if that has delivered it.
func (t *detour) say(seq uint64, word string, after time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.passes[seq]
	progress := word == wordProgress
	switch {
	case p == nil:
	case p.twin != nil && progress:
		return p.twin.say(word, after)
	case p.twin != nil:
		delete(t.passes, seq)
		return p.twin.settle(word, after)
	case progress:
	case strings.HasPrefix(word, wordRetry):
		delete(t.passes, seq)
		t.again[seq] = time.Now().Add(after)
	case p.passed:
		delete(t.passes, seq)
	default:
		p.word = word
	}
	return nil
}
