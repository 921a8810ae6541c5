package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// stream is a work queue: what it holds is not settled.
type stream struct {
	s       *System
	name    string
	ackWait time.Duration
	most    int // messages it takes; 0: any number
	seq     uint64
	held    int
	queues  map[string]*queue // by partition or phase
}

func newStream(s *System, name string, ackWait time.Duration, most int) *stream {
	return &stream{s: s, name: name, ackWait: ackWait, most: most, queues: map[string]*queue{}}
}

// queue finds a queue, or makes it. The lock must be held.
func (st *stream) queue(key string) *queue {
	q := st.queues[key]
	if q == nil {
		q = &queue{stream: st, items: map[uint64]*item{}}
		st.queues[key] = q
	}
	return q
}

// full says whether it refuses new messages. The lock must be held.
func (st *stream) full() error {
	if st.most > 0 && st.held >= st.most {
		return fmt.Errorf("%w: %s holds %d messages", bus.ErrFull, st.name, st.held)
	}
	return nil
}

// queue is what one consumer delivers. The system's lock guards it.
type queue struct {
	stream  *stream
	items   map[uint64]*item // unsettled, by sequence
	ready   []*item          // to be delivered, by sequence
	inboxes []*inbox
	waiters []chan struct{}
}

type item struct {
	subject   string
	header    map[string]string
	body      []byte
	seq       uint64
	at        time.Time
	delivered uint64
	stop      func() // of the timer that brings it back
}

// bytes is what counts of an item where bytes are limited.
func (i *item) bytes() int {
	n := len(i.subject) + len(i.body)
	for name, value := range i.header {
		n += len(name) + len(value)
	}
	return n
}

func (q *queue) put(subject string, header map[string]string, body []byte) uint64 {
	st := q.stream
	st.seq++
	st.held++
	i := &item{subject: subject, header: header, body: slices.Clone(body), seq: st.seq, at: st.s.clock.Now(), stop: func() {}}
	q.items[i.seq] = i
	q.ready = append(q.ready, i)
	q.push()
	return i.seq
}

// push hands what is ready to the inboxes, in turn, and wakes those who wait.
func (q *queue) push() {
	for skipped := 0; len(q.ready) > 0 && skipped < len(q.inboxes); {
		in := q.inboxes[0]
		q.inboxes = append(q.inboxes[1:], in)
		if skipped++; in.room() {
			in.c <- q.take()
			skipped = 0
		}
	}
	if len(q.ready) > 0 {
		for _, w := range q.waiters {
			close(w)
		}
		q.waiters = nil
	}
}

// take delivers the first that is ready.
func (q *queue) take() *delivery {
	i := q.ready[0]
	q.ready = q.ready[1:]
	i.delivered++
	q.back(i, q.stream.ackWait)
	return &delivery{q: q, i: i, count: i.delivered}
}

// back brings an item back after a time, unless it is settled.
func (q *queue) back(i *item, after time.Duration) {
	i.stop()
	count, s := i.delivered, q.stream.s
	i.stop = s.clock.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if q.items[i.seq] == i && i.delivered == count {
			q.again(i)
		}
	})
}

// again makes an item ready, in its place.
func (q *queue) again(i *item) {
	at, found := slices.BinarySearchFunc(q.ready, i.seq, func(x *item, seq uint64) int { return cmp.Compare(x.seq, seq) })
	if !found {
		q.ready = slices.Insert(q.ready, at, i)
	}
	q.push()
}

// drop settles an item, whether or not it waits to be delivered again.
func (q *queue) drop(i *item) {
	if q.items[i.seq] != i {
		return
	}
	i.stop()
	delete(q.items, i.seq)
	q.stream.held--
	q.ready = slices.DeleteFunc(q.ready, func(x *item) bool { return x == i })
}

// delivery implements bus.Delivery.
type delivery struct {
	q       *queue
	i       *item
	count   uint64
	settled bool
}

func (d *delivery) Subject() string           { return d.i.subject }
func (d *delivery) Header(name string) string { return d.i.header[name] }
func (d *delivery) Body() []byte              { return d.i.body }
func (d *delivery) Seq() uint64               { return d.i.seq }
func (d *delivery) Time() time.Time           { return d.i.at }
func (d *delivery) Delivered() uint64         { return d.count }

func (d *delivery) settle(how func()) error {
	if d.settled {
		return errSettled
	}
	d.settled = true
	s := d.q.stream.s
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
	d.q.push() // an inbox may have room again
	return nil
}

// current says whether this is the item's last delivery, and it is not settled. The lock must be held.
func (d *delivery) current() bool {
	return d.q.items[d.i.seq] == d.i && d.i.delivered == d.count && !slices.Contains(d.q.ready, d.i)
}

func (d *delivery) Ack() error { return d.settle(func() { d.q.drop(d.i) }) }

func (d *delivery) Progress() error {
	if d.settled {
		return errSettled
	}
	s := d.q.stream.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.current() {
		d.q.back(d.i, d.q.stream.ackWait)
	}
	return nil
}

func (d *delivery) Retry(after time.Duration) error {
	return d.settle(func() {
		switch {
		case !d.current():
		case after <= 0:
			d.i.stop()
			d.q.again(d.i)
		default:
			d.q.back(d.i, after)
		}
	})
}

func (d *delivery) Reject(_ context.Context, reason string) error {
	return d.settle(func() {
		if d.q.items[d.i.seq] != d.i {
			return // settled by another delivery of it
		}
		header := map[string]string{}
		for k, v := range d.i.header {
			header[k] = v
		}
		header[bus.HeaderReason], header[bus.HeaderOriginalSubject] = reason, d.i.subject
		header[bus.HeaderOriginalSeq] = fmt.Sprint(d.i.seq)
		s := d.q.stream.s
		s.poison = append(s.poison, Message{Subject: "drover.poison." + d.q.stream.name, Header: header, Body: d.i.body})
		d.q.drop(d.i)
	})
}

// inbox implements bus.Inbox.
type inbox struct {
	q      *queue
	c      chan bus.Delivery
	closed bool
}

// inboxPrefetch is how many inputs an inbox holds before they are taken.
const inboxPrefetch = 128

func (in *inbox) C() <-chan bus.Delivery { return in.c }
func (in *inbox) Err() error             { return nil }

// room says whether another fits. Only holders of the lock fill it.
func (in *inbox) room() bool { return !in.closed && len(in.c) < cap(in.c) }

// Close implements bus.Inbox.
func (in *inbox) Close() {
	s := in.q.stream.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.closed {
		return
	}
	in.closed = true
	in.q.inboxes = remove(in.q.inboxes, in)
	for {
		select {
		case d := <-in.c:
			if d := d.(*delivery); d.current() {
				d.i.stop()
				in.q.again(d.i)
			}
			continue
		default:
		}
		close(in.c)
		return
	}
}

// abandon drops an inbox without a word: what it holds comes again after the ack wait. The lock must be held.
func (in *inbox) abandon() {
	if !in.closed {
		in.closed = true
		in.q.inboxes = remove(in.q.inboxes, in)
		close(in.c)
	}
}

// open opens an inbox on a queue.
func (c *Conn) open(st *stream, partition int) (bus.Inbox, error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	if partition < 0 || partition >= c.Partitions() {
		return nil, fmt.Errorf("inbox of %s: partition %d is not one of %d", st.name, partition, c.Partitions())
	}
	s := c.s
	s.mu.Lock()
	q := st.queue(fmt.Sprint(partition))
	in := &inbox{q: q, c: make(chan bus.Delivery, inboxPrefetch)}
	q.inboxes = append(q.inboxes, in)
	q.push()
	s.mu.Unlock()
	c.ifKilled(in.abandon)
	return in, c.onClose(in.Close)
}

// backlog is what is unsettled.
func (q *queue) backlog() (n uint64, oldest time.Time) {
	var first *item
	for _, i := range q.items {
		if first == nil || i.seq < first.seq {
			first = i
		}
	}
	if first == nil {
		return 0, time.Time{}
	}
	return uint64(len(q.items)), first.at
}
