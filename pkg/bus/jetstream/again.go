package jetstream

import (
	"errors"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

// What is stored at most once, however often it is sent, is sent again while it is not answered: an append, whose expected
// sequence only one of its copies can meet, and what is the same if it is stored twice. A stream that has just lost its leader, or
// elected one, drops what it is sent and says nothing (nats-server 2.15.2), and so does a server that is cut off, until it is
// noticed. Later appends of the same process may wait for this one (gatherer).
const (
	// appendTimeout is how long an append waits for its answer: longer than servers take to elect a leader.
	appendTimeout = 10 * time.Second
	// appendAgain is how long it waits before it is sent once more; then appendLater. A server that is only slow refuses copies of
	// what it is about to store without storing anything.
	appendAgain = time.Second
	appendLater = 2 * time.Second
	// nobodyAgain is the same where nobody takes appends at present: no copy is there.
	nobodyAgain = 250 * time.Millisecond
	// refusedWait is how long the answer of another copy is waited for when one was refused: which was it that the log moved on by?
	refusedWait = time.Second
)

// copies are what was sent for one call. They are guarded by the lock of the call's shard.
type copies struct {
	m    *nats.Msg
	of   []*nats.Msg   // the batch that m commits; nil: m goes alone
	out  int           // copies without an answer
	why  error         // one of them was refused; nil: none
	next time.Time     // when it is sent again; zero: it is not
	gap  time.Duration // from then to the time after
}

// soon has it sent again after a while.
func (k *copies) soon(now time.Time, after time.Duration) {
	if !k.next.IsZero() {
		k.next, k.gap = now.Add(after), appendAgain
	}
}

// sendSure is send of what is stored at most once, or may be stored twice: it is sent until one of its copies is answered, or the
// call's time is up. An error is certain (see appendError) only where each of the copies was refused. ended, unless it is nil, is
// told of the outcome.
func (c *calls) sendSure(m *nats.Msg, ended func(*call)) *call { return c.beginSure(m, nil, ended) }

// commitSure is sendSure of the last message of a batch whose others were sent: all of them are sent again, as another batch.
func (c *calls) commitSure(batch []*nats.Msg) *call {
	return c.beginSure(batch[len(batch)-1], batch, nil)
}

func (c *calls) beginSure(m *nats.Msg, of []*nats.Msg, ended func(*call)) *call {
	now := time.Now()
	return c.begin(m, &call{
		deadline: now.Add(appendTimeout), parse: parsePubAck, ended: ended,
		copies: &copies{m: m, of: of, out: 1, next: now.Add(appendAgain), gap: appendLater},
	})
}

// settles takes the answer to a copy, and says whether the call's outcome is known by it, which p then has.
func (k *copies) settles(p *call, m *nats.Msg, err error, now time.Time) bool {
	k.out--
	if errors.Is(err, errNoResponders) && k.why == nil {
		k.soon(now, nobodyAgain)
		return false
	}
	answer := call{msg: m, err: err}
	if err == nil {
		p.parse(&answer)
	}
	switch {
	case answer.err == nil:
	case errors.Is(err, errNoResponders):
		answer.err = k.why
	case k.why != nil && !certain(k.why):
		answer.err = k.why
	}
	if answer.err != nil && k.out > 0 {
		k.why, k.next = answer.err, time.Time{}
		if end := now.Add(refusedWait); end.Before(p.deadline) {
			p.deadline = end
		}
		return false
	}
	p.msg, p.seq, p.err = answer.msg, answer.seq, answer.err
	return true
}

// certain says whether an error means that nothing was stored.
func certain(err error) bool { return !errors.Is(appendError(err), bus.ErrUnknownOutcome) }

// sendAgain sends copies of what has waited for long enough. Without a connection it does not: what was sent last waits there
// already, or the next look is soon.
func (c *calls) sendAgain(now time.Time) {
	if !c.nc.IsConnected() {
		return
	}
	type due struct {
		reply string
		m     *nats.Msg
		of    []*nats.Msg
	}
	for i := range c.shards {
		s := &c.shards[i]
		var all []due
		s.mu.Lock()
		for id, p := range s.pending {
			k := p.copies
			if k == nil || k.next.IsZero() || now.Before(k.next) {
				continue
			}
			k.out++
			k.next, k.gap = now.Add(k.gap), appendLater
			all = append(all, due{c.reply(id), k.m, k.of})
		}
		s.mu.Unlock()
		// What cannot be sent, since the connection is closed or its buffer full, is as if it were lost on its way.
		for _, d := range all {
			last := copyOf(d.m)
			if d.of != nil {
				batch := make([]*nats.Msg, len(d.of))
				for i := range batch {
					batch[i] = copyOf(d.of[i])
				}
				asBatch(batch)
				last = batch[len(batch)-1]
				for _, m := range batch[:len(batch)-1] {
					_ = c.nc.PublishMsg(m)
				}
			}
			last.Reply = d.reply
			_ = c.nc.PublishMsg(last)
		}
	}
}

// reconnected has copies sent at once: what was on its way went down with the old connection, or its answer did.
func (c *calls) reconnected(now time.Time) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for _, p := range s.pending {
			if p.copies != nil {
				p.copies.soon(now, 0)
			}
		}
		s.mu.Unlock()
	}
}

// copyOf is a message whose header can be changed.
func copyOf(m *nats.Msg) *nats.Msg {
	return &nats.Msg{Subject: m.Subject, Header: maps.Clone(m.Header), Data: m.Data}
}
