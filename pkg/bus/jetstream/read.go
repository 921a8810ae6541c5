package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	readBatch = 256
	// readIdle is when the server drops a reader's consumer that does not ask any more. A reader does not delete it: the
	// right to delete its own would be the right to delete all, those by which streams are derived too. A reader that
	// was slow makes another and goes on where it was.
	readIdle = 5 * time.Second
	// readTry is how long a reader waits for its consumer to be made before it has another made; then twice as long, up to
	// readTryMost.
	readTry     = time.Second
	readTryMost = 8 * time.Second
	// readWait is how long a reader's request waits for messages.
	readWait = 10 * time.Second
	// readAgain is how long a reader waits for a replica that is behind.
	readAgain = 20 * time.Millisecond
)

// reader reads a stream in order, without acknowledging anything, and begins anew where it was when the connection or
// the consumer is lost.
type reader struct {
	b       *Bus
	stream  string
	filters []string
	policy  natsjs.DeliverPolicy
	pulls   *pulls

	consumer string // empty: to be made
	last     uint64 // sequence in the stream of the last message
	seen     uint64 // sequence in the consumer of the last message
	made     uint64 // how many messages the consumer had to deliver when it was made
	pending  uint64 // how many were behind the last message when it was sent
}

func (b *Bus) newReader(stream string, policy natsjs.DeliverPolicy, filters ...string) (*reader, error) {
	p, err := b.newPulls(readBatch)
	if err != nil {
		return nil, err
	}
	return &reader{b: b, stream: stream, filters: filters, policy: policy, pulls: p}, nil
}

func (r *reader) close() { r.pulls.close() }

// drop forgets the consumer; the server drops it when it is idle.
func (r *reader) drop() { r.consumer = "" }

// bind makes the consumer, if there is none. It has one replica, and the servers may give that to one that was just killed
// (nats-server 2.15.2): nobody answers for it until that server is back. So each try is for another consumer.
func (r *reader) bind(ctx context.Context) error {
	if r.consumer != "" {
		return nil
	}
	for patience := readTry; ; patience = min(2*patience, readTryMost) {
		try, cancel := context.WithTimeout(ctx, patience)
		err := r.make(try)
		overdue := try.Err() != nil
		cancel()
		if err == nil || !overdue || ctx.Err() != nil || r.b.ctx.Err() != nil {
			return err
		}
	}
}

// make makes a consumer of a name of its own.
func (r *reader) make(ctx context.Context) error {
	c := natsjs.ConsumerConfig{
		Name: "read-" + nuid.Next(), DeliverPolicy: r.policy, AckPolicy: natsjs.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: readIdle,
	}
	if len(r.filters) == 1 {
		c.FilterSubject = r.filters[0]
	} else {
		c.FilterSubjects = r.filters
	}
	if r.last > 0 {
		c.DeliverPolicy, c.OptStartSeq = natsjs.DeliverByStartSequencePolicy, r.last+1
	}
	made, err := r.b.createConsumer(ctx, r.stream, c)
	if err != nil {
		return fmt.Errorf("reader of %s: %w", r.stream, err)
	}
	r.made = made
	r.consumer, r.seen, r.pulls.open = c.Name, 0, false
	return nil
}

// next waits for the next message. With end it returns errDrained when nothing is left to read at present.
func (r *reader) next(ctx context.Context, end bool) (message, error) {
	for {
		if err := r.bind(ctx); err != nil {
			return message{}, err
		}
		if !r.pulls.open {
			wait := readWait
			if end {
				wait = 0
			}
			if err := r.pulls.ask(r.stream, r.consumer, readBatch, bus.FetchBytesMax/2, wait, end); err != nil {
				return message{}, err
			}
		}
		patience := pullSilence
		if !r.pulls.open {
			patience = apiPause // the connection is down
		}
		silence := time.NewTimer(patience)
		select {
		case <-ctx.Done():
			silence.Stop()
			return message{}, ctx.Err()
		case <-r.b.ctx.Done():
			silence.Stop()
			return message{}, bus.ErrClosed
		case <-r.pulls.reconnected:
			r.pulls.lose()
			r.drop()
		case <-silence.C:
			if r.pulls.lost(time.Now()) {
				r.drop()
			}
		case m := <-r.pulls.in:
			switch r.pulls.read(m) {
			case delivered:
				got, ok, err := r.accept(m)
				if err != nil || ok {
					silence.Stop()
					return got, err
				}
			case drained:
				if !end {
					break
				}
				silence.Stop()
				if r.seen >= r.made {
					return message{}, errDrained
				}
				// Messages were removed since, or the server counts too few: one that is removed while a consumer is made is
				// taken off what that has to deliver without having been counted (nats-server 2.15.2). Another one tells.
				if err := r.anew(ctx); err != nil {
					return message{}, err
				}
			case nobody:
				// Its leader moves, or it was lost with the server that held it.
				silence.Stop()
				select {
				case <-ctx.Done():
					return message{}, ctx.Err()
				case <-time.After(apiPause):
				}
				r.drop()
			case gone:
				r.consumer = ""
			case alive, ended, noise:
			}
		}
		silence.Stop()
	}
}

// anew has it read on by another consumer, a little later: the one that it had has not told of everything.
func (r *reader) anew(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(readAgain):
		r.drop()
		return nil
	}
}

// errDrained: nothing is left to read at present.
var errDrained = errors.New("nothing is left to read")

// accept takes a message if it is the next one; a gap, or a message of an earlier consumer, makes the reader begin
// anew after the last that it took.
func (r *reader) accept(m *nats.Msg) (message, bool, error) {
	meta, err := m.Metadata()
	if err != nil {
		return message{}, false, fmt.Errorf("reader of %s: %w", r.stream, err)
	}
	if meta.Consumer != r.consumer {
		return message{}, false, nil
	}
	if meta.Sequence.Consumer != r.seen+1 {
		r.drop()
		return message{}, false, nil
	}
	r.seen, r.last, r.pending = meta.Sequence.Consumer, meta.Sequence.Stream, meta.NumPending
	return message{Subject: m.Subject, Seq: meta.Sequence.Stream, Time: meta.Timestamp, Header: m.Header, Data: m.Data}, true, nil
}

// readToEnd calls each with the last message of every subject of a filter, in the order of the stream, up to the end
// as the leader knew it at first.
//
// A consumer may sit on a replica that is behind. So the stream's last message is made a part of what is read: when it
// has come, all before it have.
func (b *Bus) readToEnd(ctx context.Context, stream, filter string, each func(message) error) error {
	return b.readAfter(ctx, stream, filter, 0, each)
}

// readAfter is readToEnd; after a sequence that is not 0 it calls each with every message that is younger.
func (b *Bus) readAfter(ctx context.Context, stream, filter string, after uint64, each func(message) error) error {
	end, err := b.leaderGet(ctx, stream, getRequest{LastFor: ">"})
	if errors.Is(err, bus.ErrNotFound) {
		return nil // an empty stream
	}
	if err != nil {
		return err
	}
	if end.Seq <= after {
		return nil
	}
	filters := []string{filter}
	if !matches(filter, end.Subject) {
		filters = append(filters, end.Subject)
	}
	r, err := b.newReader(stream, natsjs.DeliverLastPerSubjectPolicy, filters...)
	if err != nil {
		return err
	}
	defer r.close()
	r.last = after
	for {
		m, err := r.next(ctx, true)
		if errors.Is(err, errDrained) {
			if r.last >= end.Seq {
				return nil
			}
			// Either the replica is behind, or that message was removed since: then the next one's last will do.
			if _, err := b.leaderGet(ctx, stream, getRequest{Seq: end.Seq}); errors.Is(err, bus.ErrNotFound) {
				return b.readAfter(ctx, stream, filter, after, each)
			} else if err != nil {
				return err
			}
			if err := r.anew(ctx); err != nil { // the server may count too few for it, see next
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if matches(filter, m.Subject) {
			if err := each(m); err != nil {
				return err
			}
		}
	}
}

// matches says whether a subject falls under a filter.
func matches(filter, subject string) bool {
	for {
		f, frest, fmore := strings.Cut(filter, ".")
		s, srest, smore := strings.Cut(subject, ".")
		if f == ">" {
			return true
		}
		if f != "*" && f != s || fmore != smore {
			return false
		}
		if !fmore {
			return true
		}
		filter, subject = frest, srest
	}
}
