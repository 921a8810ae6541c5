package jetstream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// gatherer stores messages of one stream. Where the server syncs every message to the disk, those that come while
// others are out wait for them and are then stored together as one atomic batch, which is one sync; a batch that the
// server refuses leaves nothing behind, and its messages are stored one by one. Elsewhere each goes out at once.
//
// A batch costs an unreplicated server several syncs by itself, so that few messages go out alone all the same. Order is
// kept: nothing goes out before what came first. Safe for concurrent use.
type gatherer struct {
	b        *Bus
	together atomic.Bool

	mu    sync.Mutex
	out   int // messages, or batches, without an answer
	queue []*gathered
}

const (
	// gatherAlone is how many messages go out one by one rather than together. A batch costs about as much as a dozen.
	gatherAlone = 12
	// gatherMax is how many messages go out together: so many are lost to one lost race, and stored again one by one.
	gatherMax = 256
	// gatherBytes is how large their bodies may be together.
	gatherBytes = 8 << 20
)

// gathered is a message on its way. Its call is not among the Bus's calls: it is settled here.
type gathered struct {
	*call
	m *nats.Msg
}

func (b *Bus) newGatherer() *gatherer { return &gatherer{b: b} }

// send stores a message and returns at once.
func (g *gatherer) send(m *nats.Msg) *call {
	if !g.together.Load() {
		return g.b.calls.sendSure(m, nil)
	}
	p := &gathered{call: &call{subject: m.Subject, done: make(chan struct{})}, m: m}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, p)
	g.next()
	return p.call
}

// next sends what waits, if nothing is out. The lock is held.
func (g *gatherer) next() {
	if g.out > 0 || len(g.queue) == 0 {
		return
	}
	if len(g.queue) <= gatherAlone {
		g.alone(g.queue)
		g.queue = nil
		return
	}
	n := distinct(g.queue)
	batch := g.queue[:n:n]
	g.queue = g.queue[n:]
	g.out++
	go g.batch(batch)
}

// distinct is how many messages from the first on may be one batch: no entity twice, since the server would check both
// against what was before the batch.
func distinct(queue []*gathered) int {
	seen := make(map[string]struct{}, min(len(queue), gatherMax))
	bytes := 0
	for i, p := range queue {
		if bytes += len(p.m.Data); i == gatherMax || i > 0 && bytes > gatherBytes {
			return i
		}
		filter := p.m.Header[headerExpectSubject]
		if len(filter) == 0 {
			continue
		}
		if _, twice := seen[filter[0]]; twice {
			return i
		}
		seen[filter[0]] = struct{}{}
	}
	return len(queue)
}

// alone sends messages one by one, without waiting in between. The lock is held.
func (g *gatherer) alone(all []*gathered) {
	g.out += len(all)
	for _, p := range all {
		// What cannot be sent is settled before sendSure returns, where the lock is held: so the end is told elsewhere.
		sent := make(chan struct{})
		g.b.calls.sendSure(p.m, func(c *call) {
			select {
			case <-sent:
				g.ended(p, c)
			default:
				go func() {
					<-sent
					g.ended(p, c)
				}()
			}
		})
		close(sent)
	}
}

func (g *gatherer) ended(p *gathered, c *call) {
	p.seq = c.seq
	p.settle(nil, c.err)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out--
	g.next()
}

// batch sends messages as one, and one by one if they are refused together.
func (g *gatherer) batch(all []*gathered) {
	msgs := make([]*nats.Msg, len(all))
	for i, p := range all {
		msgs[i] = copyOf(p.m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), appendTimeout) // Close ends it by way of the calls
	defer cancel()
	last, err := g.b.publishBatch(ctx, msgs)
	refused := nothingStored(err)
	if !refused {
		for i, p := range all {
			if err == nil {
				p.seq = last - uint64(len(all)-1-i) // a batch is stored in one go
			}
			p.settle(nil, err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out--
	if refused {
		g.alone(all)
		return
	}
	g.next()
}

// nothingStored says whether an error means that the server refused a batch, so that its messages may be sent again.
func nothingStored(err error) bool {
	var api *natsjs.APIError
	return errors.Is(err, bus.ErrLost) || errors.Is(err, bus.ErrTooLarge) || errors.Is(err, bus.ErrFull) ||
		errors.As(err, &api) && api.Code == 400
}
