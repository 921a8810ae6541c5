package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

// calls matches replies with requests: one subscription for all of them, any number in flight, one sweep for all
// timeouts. It exists beside nats.go's PublishMsgAsync because that takes one lock for all publishers and a timer for
// each, and drops what is pending when the connection breaks.
type calls struct {
	nc     *nats.Conn
	prefix string // of reply subjects, with the dot
	sub    *nats.Subscription
	last   atomic.Uint64
	shards [callShards]callShard

	stop    chan struct{}
	stopped sync.WaitGroup
}

const (
	callShards = 16
	// callTimeout is how long a request waits for its reply.
	callTimeout = 5 * time.Second
	// callSweep is how often timeouts are looked for: a call may wait that much longer.
	callSweep = 100 * time.Millisecond
	// askAgain is how long a request that may be repeated waits before it is sent once more; then askLater. Servers drop what a group
	// without a leader is asked, and say nothing.
	askAgain = 500 * time.Millisecond
	askLater = time.Second
)

type callShard struct {
	mu      sync.Mutex
	pending map[uint64]*call
	closed  bool
}

// call is one request. msg, err and seq are set before done is closed.
type call struct {
	id       uint64
	subject  string
	deadline time.Time
	copies   *copies // of what may be sent more than once; nil: it may not
	done     chan struct{}
	msg      *nats.Msg // nil if err is not nil
	err      error
	// parse makes the result of the reply; it runs on the subscription's goroutine and must be quick.
	parse func(*call)
	// ended is told after done was closed, on whichever goroutine that was. Nil: nobody is told.
	ended func(*call)
	seq   uint64 // what parsePubAck found
}

var (
	errTimeout      = errors.New("no answer in time")
	errNoResponders = errors.New("nobody answers on this subject at present")
)

func newCalls(nc *nats.Conn) (*calls, error) {
	c := &calls{nc: nc, prefix: nc.NewInbox() + ".", stop: make(chan struct{})}
	for i := range c.shards {
		c.shards[i].pending = map[uint64]*call{}
	}
	var err error
	if c.sub, err = nc.Subscribe(c.prefix+"*", c.receive); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	// Replies come one a request: the number of requests in flight is the limit.
	if err := c.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	c.stopped.Go(c.sweep)
	return c, nil
}

func (c *calls) reply(id uint64) string { return c.prefix + strconv.FormatUint(id, 36) }

func (c *calls) shard(id uint64) *callShard { return &c.shards[id%callShards] }

// send publishes m with a reply subject of its own. It never returns nil; a call that cannot be sent is done at once.
func (c *calls) send(m *nats.Msg, timeout time.Duration, parse func(*call)) *call {
	return c.begin(m, &call{deadline: time.Now().Add(timeout), parse: parse})
}

// begin sends m for p.
func (c *calls) begin(m *nats.Msg, p *call) *call {
	p.id, p.subject, p.done = c.last.Add(1), m.Subject, make(chan struct{})
	s := c.shard(p.id)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		p.settle(nil, bus.ErrClosed)
		return p
	}
	s.pending[p.id] = p
	s.mu.Unlock()
	m.Reply = c.reply(p.id)
	if err := c.nc.PublishMsg(m); err != nil {
		c.finish(p.id, sendError(err))
	}
	return p
}

func sendError(err error) error {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: %w", bus.ErrTooLarge, err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return bus.ErrClosed
	default:
		return err
	}
}

// receive runs on one goroutine, for all replies.
func (c *calls) receive(m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, c.prefix), 36, 64)
	if err != nil {
		return // nobody we know sent this
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		c.answered(id, nil, errNoResponders)
		return
	}
	c.answered(id, m, nil)
}

// answered is told of a reply. It settles the call, unless that is sent again or another of its copies may be answered yet.
func (c *calls) answered(id uint64, m *nats.Msg, err error) {
	s := c.shard(id)
	s.mu.Lock()
	p := s.pending[id]
	if p != nil && p.copies != nil && !p.copies.settles(p, m, err, time.Now()) {
		p = nil
	}
	if p != nil {
		delete(s.pending, id)
	}
	s.mu.Unlock()
	if p == nil {
		return
	}
	if p.copies == nil {
		p.settle(m, err)
	} else {
		p.close()
	}
}

// finish settles a call without a reply; later ones are dropped.
func (c *calls) finish(id uint64, err error) {
	s := c.shard(id)
	s.mu.Lock()
	p, ok := s.pending[id]
	delete(s.pending, id)
	s.mu.Unlock()
	if !ok {
		return
	}
	p.settle(nil, err)
}

// settle fixes the outcome. It is called once.
func (p *call) settle(m *nats.Msg, err error) {
	p.msg, p.err = m, err
	if err == nil && p.parse != nil {
		p.parse(p)
	}
	p.close()
}

// close tells of the outcome.
func (p *call) close() {
	close(p.done)
	if p.ended != nil {
		p.ended(p)
	}
}

func (c *calls) sweep() {
	t := time.NewTicker(callSweep)
	defer t.Stop()
	reconnects := uint64(0)
	for {
		select {
		case <-c.stop:
			return
		case now := <-t.C:
			c.fail(errTimeout, func(p *call) bool { return now.After(p.deadline) })
			if n := c.nc.Stats().Reconnects; n != reconnects {
				reconnects = n
				c.reconnected(now)
			}
			c.sendAgain(now)
		}
	}
}

// fail settles all calls that match.
func (c *calls) fail(err error, match func(*call) bool) {
	for i := range c.shards {
		s := &c.shards[i]
		var ids []uint64
		s.mu.Lock()
		for id, p := range s.pending {
			if match(p) {
				ids = append(ids, id)
			}
		}
		s.mu.Unlock()
		for _, id := range ids {
			c.finish(id, err)
		}
	}
}

// denied settles the calls to a subject that the server's permissions forbid: the server sends no reply to them.
func (c *calls) denied(subject string) {
	c.fail(fmt.Errorf("%w: publish to %s", bus.ErrDenied, subject), func(p *call) bool { return p.subject == subject })
}

func (c *calls) close() {
	close(c.stop)
	c.stopped.Wait()
	for i := range c.shards {
		c.shards[i].mu.Lock()
		c.shards[i].closed = true
		c.shards[i].mu.Unlock()
	}
	c.fail(bus.ErrClosed, func(*call) bool { return true })
	_ = c.sub.Unsubscribe() // the connection is closed next
}

// wait waits until a call is done; where ctx ends before, that is what it has come to.
func (c *calls) wait(ctx context.Context, p *call) {
	select {
	case <-p.done:
	case <-ctx.Done():
		c.finish(p.id, ctx.Err())
		<-p.done
	}
}

// request sends m and waits for its one reply, until ctx ends or the call times out.
func (c *calls) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	p := c.send(m, callTimeout, nil)
	c.wait(ctx, p)
	return p.msg, p.err
}

// repeat is request of what may be asked twice: it is sent again while there is no reply. The first reply counts.
func (c *calls) repeat(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	p := c.send(m, callTimeout, nil)
	for gap := askAgain; ; gap = askLater {
		select {
		case <-p.done:
		case <-ctx.Done():
			c.wait(ctx, p)
		case <-time.After(gap):
			_ = c.nc.PublishMsg(m) // fails only if the connection is closed, which ends the call
			continue
		}
		return p.msg, p.err
	}
}
