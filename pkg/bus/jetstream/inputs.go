package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

// PublishCommand implements bus.Inputs.
func (b *Bus) PublishCommand(ctx context.Context, subject string, h map[string]string, body []byte) (uint64, error) {
	if !strings.HasPrefix(subject, "drover.cmd.") {
		return 0, fmt.Errorf("not a subject of a captured command: %q", subject)
	}
	if len(body) > bus.CommandBytesMax {
		return 0, fmt.Errorf("%w: command of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.CommandBytesMax)
	}
	seq, err := b.publishOnce(ctx, &nats.Msg{Subject: subject, Header: header(h), Data: body})
	if err != nil {
		return 0, fmt.Errorf("publish command: %w", err)
	}
	return seq, nil
}

// Commands implements bus.Inputs.
func (b *Bus) Commands(ctx context.Context, partition int) (bus.Inbox, error) {
	return b.openInbox(ctx, streamCommands, partition)
}

// PublishResult implements bus.Inputs.
func (b *Bus) PublishResult(ctx context.Context, subject string, h map[string]string, body []byte) error {
	if _, err := bus.ResultPartition(subject); err != nil {
		return err
	}
	if len(body) > bus.BodyBytesMax {
		return fmt.Errorf("%w: result of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.BodyBytesMax)
	}
	m := &nats.Msg{Subject: subject, Header: header(h), Data: body}
	if _, err := b.publish(ctx, m); err != nil {
		return fmt.Errorf("publish result: %w", err)
	}
	b.recent.add(m)
	return nil
}

// Results implements bus.Inputs.
func (b *Bus) Results(ctx context.Context, partition int) (bus.Inbox, error) {
	return b.openInbox(ctx, streamResults, partition)
}

// Ask implements bus.Inputs. While a partition changes hands two may answer: the first answer counts.
func (b *Bus) Ask(ctx context.Context, partition int, r bus.Request) (bus.Request, error) {
	m := &nats.Msg{Subject: bus.AskSubject(partition), Header: header(r.Header), Data: r.Body}
	m.Header[bus.HeaderVerb] = []string{clean(r.Verb)}
	reply, err := b.ask(ctx, m)
	if err != nil {
		return bus.Request{}, fmt.Errorf("ask partition %d: %w", partition, err)
	}
	return request(reply), nil
}

// AskPhase implements bus.Inputs.
func (b *Bus) AskPhase(ctx context.Context, p bus.Phase, r bus.Request) (bus.Request, error) {
	m := &nats.Msg{Subject: p.AskSubject(b.Partitions()), Header: header(r.Header), Data: r.Body}
	m.Header[bus.HeaderVerb] = []string{clean(r.Verb)}
	reply, err := b.ask(ctx, m)
	if err != nil {
		return bus.Request{}, fmt.Errorf("ask for phase %s of %s/%s: %w", p.Phase, p.Project, p.Kind, err)
	}
	return request(reply), nil
}

// AskDoor implements bus.Inputs.
func (b *Bus) AskDoor(ctx context.Context, partition int, r bus.Request) (bus.Request, error) {
	door, verb := r.Door()
	if door == "" || verb == "" || door == string(bus.PhaseRecord) {
		return bus.Request{}, fmt.Errorf("ask partition %d: no front door has the verb %q", partition, r.Verb)
	}
	m := &nats.Msg{Subject: bus.DoorSubject(partition, door), Header: header(r.Header), Data: r.Body}
	m.Header[bus.HeaderVerb] = []string{clean(verb)}
	reply, err := b.ask(ctx, m)
	if err != nil {
		return bus.Request{}, fmt.Errorf("ask partition %d for %s: %w", partition, r.Verb, err)
	}
	return request(reply), nil
}

// askWait is how long a request waits whose context has no deadline.
const askWait = time.Minute

// ask waits for a reply until ctx ends; ErrNoOwner if nobody listens.
func (b *Bus) ask(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	wait := askWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = time.Until(deadline) + 2*callSweep // ctx ends it
	}
	p := b.calls.send(m, wait, nil)
	b.calls.wait(ctx, p)
	if errors.Is(p.err, errNoResponders) {
		return nil, bus.ErrNoOwner
	}
	return p.msg, p.err
}

// request reads a request, or the reply to one.
func request(m *nats.Msg) bus.Request {
	r := bus.Request{Verb: first(m.Header, bus.HeaderVerb), Header: make(map[string]string, len(m.Header)), Body: m.Data}
	for name := range m.Header {
		if name != bus.HeaderVerb {
			r.Header[name] = first(m.Header, name)
		}
	}
	return r
}

// ServeAsks implements bus.Inputs.
func (b *Bus) ServeAsks(partition int, h bus.RequestHandler) (func(), error) {
	owned, phases, doors := bus.AskSubject(partition), bus.PhasesSubject(partition), bus.DoorsSubject(partition)
	var subs []*nats.Subscription
	stop := sync.OnceFunc(func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe() // fails only if the connection is closed
		}
	})
	for _, subject := range []string{owned, phases, doors} {
		sub, err := b.nc.Subscribe(subject, func(m *nats.Msg) {
			r := request(m)
			if m.Subject != owned {
				if r, ok := b.within(m.Subject, partition, r); ok {
					b.answer(m, r, h)
				}
				return
			}
			b.answer(m, r, h)
		})
		if err != nil {
			stop()
			return nil, fmt.Errorf("serve partition %d: %w", partition, b.explain(err))
		}
		subs = append(subs, sub)
	}
	// Whoever asks after this returned must find us.
	for _, subject := range []string{owned, phases, doors} {
		if err := b.subscribed(subject); err != nil {
			stop()
			return nil, fmt.Errorf("serve partition %d: %w", partition, err)
		}
	}
	return stop, nil
}

// within is a request of a phase's worker or of a front door, as the owner is told it: no other verb can be named by it. False:
// nobody who asks by AskPhase or AskDoor has sent it.
func (b *Bus) within(subject string, partition int, r bus.Request) (bus.Request, bool) {
	if p, at, err := bus.ParsePhaseSubject(subject); err == nil {
		return r.Of(p), at == partition && p.Partition(b.Partitions()) == partition
	}
	at, door, err := bus.ParseDoorSubject(subject)
	r.Verb = door + "." + r.Verb
	return r, err == nil && at == partition && door != string(bus.PhaseRecord)
}

// answer has a request answered, once.
func (b *Bus) answer(m *nats.Msg, r bus.Request, h bus.RequestHandler) {
	var once sync.Once
	verb := first(m.Header, bus.HeaderVerb)
	h(r, func(rh map[string]string, body []byte) {
		once.Do(func() {
			if m.Reply == "" {
				return
			}
			reply := &nats.Msg{Subject: m.Reply, Header: header(rh), Data: body}
			reply.Header[bus.HeaderVerb] = []string{verb}
			_ = b.nc.PublishMsg(reply) // who asked will ask again
		})
	})
}

// PublishRefusal implements bus.Inputs.
func (b *Bus) PublishRefusal(ctx context.Context, project, requestID string, h map[string]string, body []byte) error {
	m := &nats.Msg{Subject: bus.RefusedSubject(project, requestID), Header: header(h), Data: body}
	if _, err := b.publish(ctx, m); err != nil {
		return fmt.Errorf("publish refusal: %w", err)
	}
	return nil
}

// Backlog implements bus.Inputs.
func (b *Bus) Backlog(ctx context.Context, stream string, partition int) (uint64, time.Time, error) {
	if stream != streamCommands && stream != streamResults {
		return 0, time.Time{}, fmt.Errorf("backlog: no stream of inputs: %q", stream)
	}
	filter := inboxFilter(stream, partition)
	var n uint64
	switch info, err := b.consumerInfo(ctx, stream, inboxConsumer(partition)); {
	case err == nil:
		n = unsettled(info)
	case errors.Is(err, bus.ErrNotFound): // nobody has opened it yet: all of it waits
		info, err := b.streamInfo(ctx, stream, filter)
		if err != nil {
			return 0, time.Time{}, fmt.Errorf("backlog: %w", err)
		}
		for _, count := range info.State.Subjects {
			n += count
		}
	default:
		return 0, time.Time{}, fmt.Errorf("backlog: %w", err)
	}
	// What is settled is not stored, so the stream's leader knows whether there is any.
	oldest, err := b.leaderGet(ctx, stream, getRequest{Seq: 1, NextFor: filter})
	if errors.Is(err, bus.ErrNotFound) {
		return 0, time.Time{}, nil // settled meanwhile
	}
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("backlog of partition %d: %w", partition, err)
	}
	return max(n, 1), oldest.Time, nil
}
