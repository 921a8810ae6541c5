package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

// delivery implements bus.Delivery.
type delivery struct {
	b       *Bus
	m       *nats.Msg
	meta    *nats.MsgMetadata
	subject string
	settled bool
	again   bool    // it may have been delivered before, and not counted
	detour  *detour // that brought it; nil: its consumer did
}

// What a consumer is told of a delivery, or how that begins.
const (
	wordAck      = "+ACK"
	wordProgress = "+WPI"
	wordRetry    = "-NAK"
	wordReject   = "+TERM "
)

// countLost is how long after a reconnect the counts of work are not trusted: a server that was killed has forgotten
// what it delivered last, and may even have derived the message anew.
const countLost = 5 * time.Second

var errSettled = errors.New("the delivery was settled before")

// rejectedHeaderPrefix is put before the names of a rejected message's headers that would steer the server.
const rejectedHeaderPrefix = "Drover-Original-"

func (b *Bus) newDelivery(m *nats.Msg) (*delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	d := &delivery{b: b, m: m, meta: meta, subject: published(m.Subject)}
	if at := b.reconnectedAt.Load(); at != 0 && meta.Stream == streamWork {
		d.again = time.Since(time.Unix(0, at)) < countLost
	}
	return d, nil
}

// published is the subject that a command was published under; COMMANDS stores it under its partition
// (drover.cmds.<partition>.…). Other subjects are as they are.
func published(subject string) string {
	if rest, ok := strings.CutPrefix(subject, "drover.cmds."); ok {
		if _, rest, ok = strings.Cut(rest, "."); ok {
			return "drover.cmd." + rest
		}
	}
	return subject
}

// Subject implements bus.Delivery.
func (d *delivery) Subject() string { return d.subject }

// Header implements bus.Delivery.
func (d *delivery) Header(name string) string { return first(d.m.Header, name) }

// Body implements bus.Delivery.
func (d *delivery) Body() []byte { return d.m.Data }

// Seq implements bus.Delivery.
func (d *delivery) Seq() uint64 { return d.meta.Sequence.Stream }

// Time implements bus.Delivery.
func (d *delivery) Time() time.Time { return d.meta.Timestamp }

// Delivered implements bus.Delivery.
func (d *delivery) Delivered() uint64 {
	if d.again {
		return max(d.meta.NumDelivered, 2)
	}
	return d.meta.NumDelivered
}

// say answers the delivery; after is the delay that the word asks for. It does not wait: what is lost on the way is
// delivered again.
func (d *delivery) say(word string, after time.Duration) error {
	if d.settled {
		return errSettled
	}
	if d.detour != nil {
		return d.detour.say(d.Seq(), word, after)
	}
	if err := d.b.nc.Publish(d.m.Reply, []byte(word)); err != nil {
		return fmt.Errorf("settle %s: %w", d.subject, sendError(err))
	}
	return nil
}

func (d *delivery) settle(word string, after time.Duration) error {
	err := d.say(word, after)
	if err == nil {
		d.settled = true
	}
	return err
}

// Ack implements bus.Delivery.
func (d *delivery) Ack() error { return d.settle(wordAck, 0) }

// Progress implements bus.Delivery.
func (d *delivery) Progress() error { return d.say(wordProgress, 0) }

// Retry implements bus.Delivery.
func (d *delivery) Retry(after time.Duration) error {
	if after <= 0 {
		return d.settle(wordRetry, 0)
	}
	return d.settle(wordRetry+` {"delay": `+strconv.FormatInt(int64(after), 10)+`}`, after)
}

// Reject implements bus.Delivery.
func (d *delivery) Reject(ctx context.Context, reason string) error {
	if d.settled {
		return errSettled
	}
	m := &nats.Msg{Subject: "drover.poison." + d.meta.Stream, Header: make(nats.Header, len(d.m.Header)+4), Data: d.m.Data}
	for name, values := range d.m.Header {
		if strings.HasPrefix(name, "Nats-") {
			name = rejectedHeaderPrefix + name
		}
		m.Header[name] = values
	}
	m.Header[bus.HeaderReason] = []string{clean(reason)}
	m.Header[bus.HeaderOriginalSubject] = []string{d.subject}
	m.Header[bus.HeaderOriginalSeq] = []string{strconv.FormatUint(d.meta.Sequence.Stream, 10)}
	// The same message set aside twice is kept once.
	m.Header[nats.MsgIdHdr] = []string{d.meta.Stream + "/" + strconv.FormatUint(d.meta.Sequence.Stream, 10)}
	if _, err := d.b.publish(ctx, m); err != nil {
		return fmt.Errorf("set aside %s: %w", d.subject, err)
	}
	return d.settle(wordReject+clean(reason), 0)
}
