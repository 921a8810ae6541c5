package captured

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/intake/internal/answer"
	"github.com/droverproject/drover/services/intake/internal/forward"
	"github.com/droverproject/drover/services/intake/internal/metrics"
)

// command is one delivery on its way. Its lane's goroutine applies it; the partition's keeps it from coming again.
type command struct {
	lane     string
	seq      uint64
	size     int // bytes of the body
	delivery bus.Delivery

	mu      sync.Mutex // guards delivery, which is not safe for concurrent use, and settled
	settled bool
	touched time.Time // when the server was last told that it is in hand

	waited bool // apply had to wait; only apply's goroutine uses it
}

// settle tells the server what became of the delivery, once.
func (c *command) settle(how func(bus.Delivery) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled {
		return nil
	}
	if err := how(c.delivery); err != nil {
		return err
	}
	c.settled = true
	return nil
}

// touch says that the delivery is still in hand, if that was not said lately.
func (c *command) touch(now time.Time) {
	if !c.mu.TryLock() {
		return // it is being settled
	}
	defer c.mu.Unlock()
	if c.settled || now.Sub(c.touched) < ProgressEvery {
		return
	}
	c.touched = now
	_ = c.delivery.Progress() // at worst it comes again, which its owner knows how to answer
}

// errStopped is a command that was left where it is, because this process gives its partition up.
var errStopped = errors.New("the partition is given up")

// apply takes a command to its end: acknowledged or set aside. It returns errStopped where ctx ended before.
func (p *partition) apply(ctx context.Context, c *command) error {
	defer p.moves(ctx, c)
	d := c.delivery
	target, err := check.ParseSubject(d.Subject())
	if err != nil {
		return p.setAside(ctx, c, "other", err.Error())
	}
	id := d.Header(bus.HeaderRequestID)
	if id == "" {
		id = madeID(c.seq)
	}
	contentType := d.Header(bus.HeaderContentType)
	refusal := check.Command(check.Message{
		Target: target, RequestID: id, MessageID: d.Header("Nats-Msg-Id"), ContentType: contentType, Body: d.Body(),
	})
	if refusal != nil {
		if !check.RequestID(id) {
			id = madeID(c.seq) // the refusal needs a subject; the violation says which id was none
		}
		header, body, err := answer.Refusal(contentType, id, *refusal)
		if err != nil {
			return p.setAside(ctx, c, target.Verb, "refused, and the refusal cannot be encoded: "+err.Error())
		}
		return p.refuse(ctx, c, target, id, string(refusal.Code), header, body)
	}
	return p.forward(ctx, c, target, &forward.Command{
		Partition: target.Partition(p.partitions), Subject: target.Subject(), RequestID: id, ContentType: contentType,
		Traceparent: d.Header(bus.HeaderTraceparent), Body: d.Body(),
	})
}

// madeID is the request id of a command that came without one (contract.md: "made from the stream sequence").
func madeID(seq uint64) string { return "c" + strconv.FormatUint(seq, 10) }

// forward asks the owner until it decides.
func (p *partition) forward(ctx context.Context, c *command, t check.Target, f *forward.Command) error {
	unreadable := 0
	for wait := newBackoff(); ; {
		reply, err := p.once(ctx, f)
		var decoded wire.Reply
		if err == nil {
			if decoded, err = wire.DecodeReply(reply.Header[bus.HeaderContentType], reply.Body); err != nil {
				if unreadable++; unreadable == UnreadableMax {
					return p.setAside(ctx, c, t.Verb, "the owner's reply cannot be read: "+err.Error())
				}
			}
		}
		switch {
		case ctx.Err() != nil:
			return errStopped
		case err != nil:
			p.waits(c, forward.Reason(f.Partition, err))
		case decoded.Refused == nil:
			return p.acknowledge(c, t, metrics.Accepted)
		case decoded.Refused.Code != resource.Overloaded:
			header := map[string]string{bus.HeaderRequestID: f.RequestID}
			if form := reply.Header[bus.HeaderContentType]; form != "" {
				header[bus.HeaderContentType] = form
			}
			return p.refuse(ctx, c, t, f.RequestID, string(decoded.Refused.Code), header, reply.Body)
		default:
			p.waits(c, "the orchestrator is overloaded: "+decoded.Refused.Message)
		}
		p.metrics.Retries.Inc()
		if !wait.sleep(ctx) {
			return errStopped
		}
	}
}

// once asks the owner once, within the limit of asks under way.
func (p *partition) once(ctx context.Context, f *forward.Command) (bus.Request, error) {
	asks := p.asks[f.Partition]
	if err := asks.Acquire(ctx, 1); err != nil {
		return bus.Request{}, err
	}
	defer asks.Release(1)
	return forward.Once(ctx, p.bus, f)
}

// refuse stores the refusal, and then acknowledges.
func (p *partition) refuse(ctx context.Context, c *command, t check.Target, id, code string, header map[string]string, body []byte) error {
	p.log.Debug("captured command refused", host.Resource(t.Project, t.Kind, t.Name), host.Verb(t.Verb), host.Request(id), host.Reason(code))
	for wait := newBackoff(); ; {
		tryCtx, cancel := context.WithTimeout(ctx, forward.TryTimeout)
		err := p.bus.PublishRefusal(tryCtx, t.Project, id, header, body)
		cancel()
		switch {
		case err == nil:
			return p.acknowledge(c, t, code)
		case ctx.Err() != nil:
			return errStopped
		case errors.Is(err, bus.ErrTooLarge):
			return p.setAside(ctx, c, t.Verb, "refused, and the refusal is too large to be stored")
		}
		p.waits(c, "refusals cannot be stored: "+err.Error())
		if !wait.sleep(ctx) {
			return errStopped
		}
	}
}

// acknowledge is the end of a command that was answered. Where the server cannot be told, the command comes again, and
// is answered in the same way.
func (p *partition) acknowledge(c *command, t check.Target, label string) error {
	host.CrashPoint("intake.before-ack")
	if err := c.settle(bus.Delivery.Ack); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	p.metrics.Command(metrics.SourceCaptured, t.Verb, label, time.Since(c.delivery.Time()))
	return nil
}

// setAside is the end of a command that nobody can answer.
func (p *partition) setAside(ctx context.Context, c *command, verb, reason string) error {
	for wait := newBackoff(); ; {
		tryCtx, cancel := context.WithTimeout(ctx, forward.TryTimeout)
		err := c.settle(func(d bus.Delivery) error { return d.Reject(tryCtx, reason) })
		cancel()
		switch {
		case err == nil:
			p.log.Warn("captured command set aside", host.Subject(c.delivery.Subject()), host.Sequence(c.seq), host.Reason(reason))
			p.metrics.Command(metrics.SourceCaptured, verb, metrics.Poison, time.Since(c.delivery.Time()))
			return nil
		case ctx.Err() != nil:
			return errStopped
		}
		p.waits(c, "commands cannot be set aside: "+err.Error())
		if !wait.sleep(ctx) {
			return errStopped
		}
	}
}

type backoff time.Duration

func newBackoff() *backoff {
	b := backoff(BackoffMin)
	return &b
}

// sleep waits a little longer each time; half of it is drawn. It returns false if ctx ends meanwhile.
func (b *backoff) sleep(ctx context.Context) bool {
	d := time.Duration(*b)
	*b = backoff(min(2*d, BackoffMax))
	return pause(ctx, d/2+rand.N(d/2))
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
