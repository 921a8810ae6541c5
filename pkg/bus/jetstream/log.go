package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	headerExpect        = "Nats-Expected-Last-Subject-Sequence"
	headerExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSeq      = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

// appendMsg is the message of an append; or why it cannot be one.
func (b *Bus) appendMsg(a bus.Append, bury bool) (*nats.Msg, error) {
	if len(a.Body) > bus.BodyBytesMax {
		return nil, fmt.Errorf("%w: body of %d bytes, limit %d", bus.ErrTooLarge, len(a.Body), bus.BodyBytesMax)
	}
	if err := a.Check(b.Partitions(), bury); err != nil {
		return nil, err
	}
	h := make(nats.Header, 8)
	values := make([]string, 0, 8) // one array for all of them
	set := func(name, value string) {
		if value != "" {
			values = append(values, value)
			h[name] = values[len(values)-1 : len(values) : len(values)]
		}
	}
	set(headerExpect, strconv.FormatUint(a.Expect, 10))
	set(headerExpectSubject, a.Entity.Filter())
	set(bus.HeaderFrom, clean(a.Header.From))
	set(bus.HeaderTo, clean(a.Header.To))
	set(bus.HeaderJob, clean(a.Header.Job))
	if a.Header.Revision > 0 {
		set(bus.HeaderRevision, strconv.FormatUint(a.Header.Revision, 10))
	}
	set(bus.HeaderTraceparent, clean(a.Header.Traceparent))
	if bury {
		set(headerOperation, operationDelete)
	}
	return &nats.Msg{Subject: a.Subject(), Header: h, Data: a.Body}, nil
}

// pending is a bus.Pending.
type pending call

// Done implements bus.Pending.
func (p *pending) Done() <-chan struct{} { return p.done }

// Result implements bus.Pending.
func (p *pending) Result() (uint64, error) {
	<-p.done
	return p.seq, appendError(p.err)
}

// appendError is the error of an append. What is not known to be refused may be stored.
func appendError(err error) error {
	var api *natsjs.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bus.ErrLost), errors.Is(err, bus.ErrTooLarge), errors.Is(err, bus.ErrFull), errors.Is(err, bus.ErrClosed),
		errors.Is(err, bus.ErrDenied), errors.Is(err, bus.ErrBatch), errors.Is(err, bus.ErrUnknownOutcome), errors.Is(err, bus.ErrEntity):
		return err
	case errors.As(err, &api):
		if api.Code == 400 {
			return err // refused: nothing was stored
		}
	}
	return fmt.Errorf("%w: %w", bus.ErrUnknownOutcome, err)
}

// failed is a Pending that is done.
func failed(err error) bus.Pending {
	p := &call{done: make(chan struct{}), err: err}
	close(p.done)
	return (*pending)(p)
}

// Append implements bus.Log.
func (b *Bus) Append(a bus.Append) bus.Pending { return b.append(a, false) }

// Bury implements bus.Log.
func (b *Bus) Bury(a bus.Append) bus.Pending { return b.append(a, true) }

func (b *Bus) append(a bus.Append, bury bool) bus.Pending {
	m, err := b.appendMsg(a, bury)
	if err != nil {
		return failed(err)
	}
	return (*pending)(b.appends.send(m))
}

// AppendBatch implements bus.Log. The messages are sent without waiting between them: what goes wrong with an earlier
// one makes the commit fail, and the first one's answer says why.
func (b *Bus) AppendBatch(ctx context.Context, batch []bus.Append) (uint64, error) {
	if err := bus.CheckBatch(batch); err != nil {
		return 0, err
	}
	if len(batch) == 1 { // a batch of one costs the server twenty times as much
		p := b.Append(batch[0])
		select {
		case <-p.Done():
			return p.Result()
		case <-ctx.Done():
			return 0, appendError(ctx.Err())
		}
	}
	msgs := make([]*nats.Msg, len(batch))
	for i, a := range batch {
		m, err := b.appendMsg(a, false)
		if err != nil {
			return 0, err
		}
		msgs[i] = m
	}
	return b.publishBatch(ctx, msgs)
}

// asBatch makes messages one batch of its own.
func asBatch(msgs []*nats.Msg) {
	id := nuid.Next()
	for i, m := range msgs {
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header[headerBatchID] = []string{id}
		m.Header[headerBatchSeq] = []string{strconv.Itoa(i + 1)}
	}
	msgs[len(msgs)-1].Header[headerBatchCommit] = []string{"1"}
}

// publishBatch publishes at least two messages with expected sequences to one stream, all or none. They are sent without waiting
// between them.
func (b *Bus) publishBatch(ctx context.Context, msgs []*nats.Msg) (uint64, error) {
	asBatch(msgs)
	var begun *call
	for i, m := range msgs[:len(msgs)-1] {
		if i == 0 {
			begun = b.calls.send(m, appendTimeout, parseBatchBegun)
			continue
		}
		if err := b.nc.PublishMsg(m); err != nil {
			return 0, appendError(sendError(err)) // never committed: the server abandons it
		}
	}
	committed := b.calls.commitSure(msgs)
	b.calls.wait(ctx, committed)
	err := committed.err
	if begun != nil {
		select {
		case <-begun.done:
			if err != nil && certain(err) && begun.err != nil {
				err = begun.err // the reason; where another copy may be stored it is none
			}
		default:
			b.calls.finish(begun.id, errTimeout)
		}
	}
	return committed.seq, appendError(err)
}

// parseBatchBegun reads the answer to a batch's first message: nothing, or an error.
func parseBatchBegun(p *call) {
	if len(p.msg.Data) > 0 {
		parsePubAck(p)
	}
}

// Last implements bus.Log. Each entity is one request, all of them in flight at once: a request for many entities at
// once would return every phase's and version's last event, and be refused over 1,024 of them.
func (b *Bus) Last(ctx context.Context, entities []bus.Entity) ([]bus.Stored, error) {
	if len(entities) > bus.LoadEntitiesMax {
		return nil, fmt.Errorf("last events of %d entities: the limit is %d", len(entities), bus.LoadEntitiesMax)
	}
	out := make([]bus.Stored, len(entities))
	todo := make([]int, len(entities))
	for i := range todo {
		todo[i] = i
	}
	err := b.retry(ctx, func(ctx context.Context) error {
		sent := make([]*call, len(todo))
		for n, i := range todo {
			sent[n] = b.calls.send(directGetMsg(streamEvents, getRequest{LastFor: entities[i].Filter()}), callTimeout, nil)
		}
		var left []int
		var why error
		for n, p := range sent {
			b.calls.wait(ctx, p)
			i := todo[n]
			if p.err != nil {
				left, why = append(left, i), p.err
				continue
			}
			switch m, err := directGot(p.msg); {
			case errors.Is(err, bus.ErrNotFound):
				out[i] = bus.Stored{Entity: entities[i]}
			case err != nil:
				left, why = append(left, i), err
			default:
				if out[i], err = logged(m); err != nil {
					return err
				}
			}
		}
		todo = left
		return why
	})
	if err != nil {
		return nil, fmt.Errorf("last events: %w", err)
	}
	return out, nil
}

// currentTogether is how many requests of one Current are in flight.
const currentTogether = 32

// Current implements bus.Log.
func (b *Bus) Current(ctx context.Context, entities []bus.Entity) ([]bus.Stored, error) {
	if len(entities) > bus.LoadEntitiesMax {
		return nil, fmt.Errorf("current events of %d entities: the limit is %d", len(entities), bus.LoadEntitiesMax)
	}
	out, errs := make([]bus.Stored, len(entities)), make([]error, len(entities))
	var next atomic.Int64
	var readers sync.WaitGroup
	for range min(currentTogether, len(entities)) {
		readers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(entities); i = int(next.Add(1)) - 1 {
				m, err := b.leaderGet(ctx, streamEvents, getRequest{LastFor: entities[i].Filter()})
				switch {
				case errors.Is(err, bus.ErrNotFound):
					out[i] = bus.Stored{Entity: entities[i]}
				case err != nil:
					errs[i] = err
				default:
					out[i], errs[i] = logged(m)
				}
			}
		})
	}
	readers.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("current events: %w", err)
		}
	}
	return out, nil
}

// Version implements bus.Log.
func (b *Bus) Version(ctx context.Context, e bus.Entity, version string) (bus.Stored, error) {
	subject := e.VersionSubject(version)
	m, err := b.directGet(ctx, streamEvents, getRequest{LastFor: subject})
	if err == nil {
		return logged(m)
	}
	if errors.Is(err, bus.ErrNotFound) {
		// The replica that answered may be behind: the leader's word is the last.
		if m, err = b.leaderGet(ctx, streamEvents, getRequest{LastFor: subject}); err == nil {
			return logged(m)
		}
	}
	return bus.Stored{}, fmt.Errorf("version %s of %s: %w", version, e.Key(), err)
}

// Scan implements bus.Log. It holds the last events of the partition in memory until it has seen the end: an event
// that hands out a phase has a subject of its own, so that only the end shows which is an entity's last.
func (b *Bus) Scan(ctx context.Context, partition int, family bus.Family, each func(bus.Stored) error) error {
	return b.scan(ctx, fmt.Sprintf("drover.log.%d.%s.>", partition, family), each)
}

// ScanAfter implements bus.Log.
func (b *Bus) ScanAfter(ctx context.Context, partition int, family bus.Family, after uint64, each func(bus.Stored) error) error {
	filter := fmt.Sprintf("drover.log.%d.%s.>", partition, family)
	err := b.readAfter(ctx, streamEvents, filter, after, func(m message) error {
		s, err := logged(m)
		if err != nil {
			return err
		}
		return each(s)
	})
	if err != nil {
		return fmt.Errorf("scan of %s after %d: %w", filter, after, err)
	}
	return nil
}

// ScanKind implements bus.Log.
func (b *Bus) ScanKind(ctx context.Context, partition int, project, kind string, each func(bus.Stored) error) error {
	return b.scan(ctx, fmt.Sprintf("drover.log.%d.%s.%s.%s.>", partition, bus.Resource, bus.Token(project), bus.Token(kind)), each)
}

func (b *Bus) scan(ctx context.Context, filter string, each func(bus.Stored) error) error {
	last, err := b.lastOf(ctx, filter)
	if err != nil {
		return fmt.Errorf("scan of %s: %w", filter, err)
	}
	for _, s := range last {
		if err := each(s); err != nil {
			return err
		}
	}
	return nil
}

// lastOf is the last event of each entity that a filter covers, in the order of the log.
func (b *Bus) lastOf(ctx context.Context, filter string) ([]bus.Stored, error) {
	last := map[bus.Entity]bus.Stored{}
	err := b.readToEnd(ctx, streamEvents, filter, func(m message) error {
		s, err := logged(m)
		if err == nil {
			last[s.Entity] = s // messages come in the order of the log
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	sorted := make([]bus.Stored, 0, len(last))
	for _, s := range last {
		sorted = append(sorted, s)
	}
	slices.SortFunc(sorted, func(a, b bus.Stored) int {
		if a.Seq < b.Seq {
			return -1
		}
		return 1
	})
	return sorted, nil
}
