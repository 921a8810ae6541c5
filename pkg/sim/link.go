package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
)

// errNoAnswer is a request that got lost, or its answer.
var errNoAnswer = errors.New("no answer in time")

const (
	answerWait = 3 * time.Second  // of a request
	appendWait = 10 * time.Second // of an append
	// appendRefused is how long another copy's answer is waited for when one was refused.
	appendRefused = time.Second
)

// appendAgain is when an append that is not answered is sent again, after it was sent first.
var appendAgain = []time.Duration{time.Second, 3 * time.Second, 5 * time.Second, 7 * time.Second, 9 * time.Second}

// link is a process's connection. What it does not override goes straight to the memory's connection.
type link struct {
	*memory.Conn
	p      *process
	sendAt time.Time // when the append before this one arrives
}

// call takes a request to the server, where effect runs, and its answer back.
func (l *link) call(effect func()) error {
	w := l.p.w
	if !w.pause(w.latency()) {
		return bus.ErrClosed
	}
	if l.p.cut() || w.fault(w.faults.lost, 2) {
		w.pause(answerWait)
		return errNoAnswer
	}
	effect()
	if w.fault(w.faults.lost, 2) {
		w.pause(answerWait)
		return errNoAnswer
	}
	if !w.pause(w.latency()) {
		return bus.ErrClosed
	}
	return nil
}

// pending implements bus.Pending.
type pending struct {
	done   chan struct{}
	seq    uint64
	err    error
	waiter *task
}

func (p *pending) Done() <-chan struct{} { return p.done }

// Result implements bus.Pending. It does not wait: who asks has seen Done, or waits in a task.
func (p *pending) Result() (uint64, error) { return p.seq, p.err }

func (p *pending) finished() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Append implements bus.Log.
func (l *link) Append(a bus.Append) bus.Pending { return l.send(a, false) }

// Bury implements bus.Log. It is also used by what blocks for its answer.
func (l *link) Bury(a bus.Append) bus.Pending {
	p := l.send(a, true)
	return &awaited{p, l}
}

// awaited is a pending whose Result waits where a task can.
type awaited struct {
	*pending
	l *link
}

// Result implements bus.Pending.
func (a *awaited) Result() (uint64, error) {
	for !a.finished() {
		a.waiter = a.l.p.w.running
		if !a.waiter.wait() {
			return 0, bus.ErrClosed
		}
	}
	return a.pending.Result()
}

// send sends an append. It may arrive when its sender has given up or died.
func (l *link) send(a bus.Append, bury bool) *pending {
	w, p := l.p.w, &pending{done: make(chan struct{})}
	finish := func(seq uint64, err error) {
		if !p.finished() {
			p.seq, p.err = seq, err
			close(p.done)
			if p.waiter != nil {
				p.waiter.wake(0)
			}
			l.p.answered()
		}
	}
	if l.p.dead {
		p.err = bus.ErrClosed
		close(p.done)
		return p
	}
	w.after(appendWait, func() { finish(0, bus.ErrUnknownOutcome) })
	// It is sent again while it is not answered; a refusal is believed only of all copies (pkg/bus/jetstream/again.go).
	out, refused := 0, false
	transmit := func() {
		if p.finished() || refused || l.p.dead {
			return
		}
		out++
		arrive := w.now.Add(w.latency())
		if arrive.Before(l.sendAt) {
			arrive = l.sendAt
		}
		l.sendAt = arrive
		if w.fault(w.faults.lost, 2) {
			return // it never arrives
		}
		answerLost := w.fault(w.faults.lost, 3)
		full := w.fault(w.faults.full, 2)
		w.after(arrive.Sub(w.now), func() {
			var seq uint64
			err := bus.ErrFull
			if !full {
				seq, err = w.check.append(l.p.name, a, bury)
			}
			if answerLost {
				return
			}
			w.after(w.latency(), func() {
				if out--; err == nil || out == 0 {
					finish(seq, err)
					return
				}
				refused = true
				w.after(appendRefused, func() { finish(0, bus.ErrUnknownOutcome) })
			})
		})
	}
	transmit()
	for _, later := range appendAgain {
		w.after(later, transmit)
	}
	return p
}

// AppendBatch implements bus.Log: it may be lost, refused, or stored without an answer, and arrive after its sender died.
func (l *link) AppendBatch(_ context.Context, batch []bus.Append) (uint64, error) {
	w := l.p.w
	t := w.running
	p := &pending{done: make(chan struct{})}
	if l.p.dead {
		return 0, bus.ErrClosed
	}
	finish := func(seq uint64, err error) {
		if !p.finished() {
			p.seq, p.err = seq, err
			close(p.done)
			t.wake(0)
		}
	}
	w.after(appendWait, func() { finish(0, bus.ErrUnknownOutcome) })
	if !w.fault(w.faults.lost, 6) {
		answerLost := w.fault(w.faults.lost, 8)
		var refused error
		if w.fault(w.faults.full, 6) {
			refused = pick(w, []error{bus.ErrFull, bus.ErrLost}) // on a cluster both of two writers may lose
		}
		w.after(w.latency(), func() {
			seq, err := uint64(0), refused
			if err == nil {
				seq, err = w.check.batch(l.p.name, batch)
			}
			if !answerLost {
				w.after(w.latency(), func() { finish(seq, err) })
			}
		})
	}
	for !p.finished() {
		if !t.wait() {
			return 0, bus.ErrClosed
		}
	}
	return p.Result()
}

// Last implements bus.Log. A follower may answer.
func (l *link) Last(ctx context.Context, entities []bus.Entity) (out []bus.Stored, err error) {
	w := l.p.w
	var readErr error
	if err := l.call(func() {
		if out, readErr = w.server.Last(ctx, entities); readErr == nil && w.fault(w.faults.stale, 15) {
			at := w.now.Add(-w.upTo(3 * time.Second))
			for i := range out {
				if old, ok := w.check.as(out[i].Entity, out[i].Seq, at); ok {
					out[i] = old
				}
			}
		}
	}); err != nil {
		return nil, err
	}
	return out, readErr
}

// Current implements bus.Log: the leader answers.
func (l *link) Current(ctx context.Context, entities []bus.Entity) (out []bus.Stored, err error) {
	var readErr error
	if err := l.call(func() { out, readErr = l.p.w.server.Current(ctx, entities) }); err != nil {
		return nil, err
	}
	return out, readErr
}

// Version implements bus.Log.
func (l *link) Version(ctx context.Context, e bus.Entity, version string) (out bus.Stored, err error) {
	w := l.p.w
	var readErr error
	if err := l.call(func() {
		out, readErr = w.server.Version(ctx, e, version)
		if w.fault(w.faults.stale, 5) {
			out, readErr = bus.Stored{}, fmt.Errorf("version %s: %w", version, bus.ErrNotFound)
		}
	}); err != nil {
		return out, err
	}
	return out, readErr
}

// Scan implements bus.Log: it sees all that was stored before it began.
func (l *link) Scan(ctx context.Context, partition int, family bus.Family, each func(bus.Stored) error) error {
	var all []bus.Stored
	var readErr error
	if err := l.call(func() {
		readErr = l.p.w.server.Scan(ctx, partition, family, func(s bus.Stored) error { all = append(all, s); return nil })
	}); err != nil {
		return err
	}
	if readErr != nil {
		return readErr
	}
	for _, s := range all {
		if err := each(s); err != nil {
			return err
		}
	}
	return nil
}

// ScanAfter implements bus.Log: as Scan.
func (l *link) ScanAfter(ctx context.Context, partition int, family bus.Family, after uint64, each func(bus.Stored) error) error {
	var all []bus.Stored
	var readErr error
	if err := l.call(func() {
		readErr = l.p.w.server.ScanAfter(ctx, partition, family, after, func(s bus.Stored) error { all = append(all, s); return nil })
	}); err != nil {
		return err
	}
	if readErr != nil {
		return readErr
	}
	for _, s := range all {
		if err := each(s); err != nil {
			return err
		}
	}
	return nil
}

// Forget implements bus.Log.
func (l *link) Forget(ctx context.Context, e bus.Entity, seq uint64) error {
	var done error
	if err := l.call(func() { done = l.p.w.check.forget(ctx, l.p.name, e, seq) }); err != nil {
		return err
	}
	return done
}

// Trim implements bus.Log.
func (l *link) Trim(ctx context.Context, e bus.Entity, keep int) error {
	var done error
	if err := l.call(func() { done = l.p.w.server.Trim(ctx, e, keep) }); err != nil {
		return err
	}
	return done
}

// EnsurePhase implements bus.Work.
func (l *link) EnsurePhase(ctx context.Context, p bus.Phase) error {
	var done error
	if err := l.call(func() { done = l.p.w.server.EnsurePhase(ctx, p); l.p.w.poke = true }); err != nil {
		return err
	}
	return done
}

// PublishPoll implements bus.Work.
func (l *link) PublishPoll(ctx context.Context, p bus.Phase, key string, body []byte) error {
	var done error
	if err := l.call(func() {
		l.p.w.check.poll(p, body)
		done = l.p.w.server.PublishPoll(ctx, p, key, body)
		l.p.w.poke = true
	}); err != nil {
		return err
	}
	return done
}

// Outstanding implements bus.Work.
func (l *link) Outstanding(ctx context.Context, p bus.Phase) (n uint64, caughtUp bool, err error) {
	var readErr error
	if err := l.call(func() { n, caughtUp, readErr = l.p.w.server.Outstanding(ctx, p) }); err != nil {
		return 0, false, err
	}
	return n, caughtUp, readErr
}

// Backlog implements bus.Inputs.
func (l *link) Backlog(ctx context.Context, stream string, partition int) (n uint64, oldest time.Time, err error) {
	var readErr error
	if err := l.call(func() { n, oldest, readErr = l.p.w.server.Backlog(ctx, stream, partition) }); err != nil {
		return 0, time.Time{}, err
	}
	return n, oldest, readErr
}

// PublishResult implements bus.Inputs.
func (l *link) PublishResult(ctx context.Context, subject string, header map[string]string, body []byte) error {
	var done error
	if err := l.call(func() { done = l.p.w.server.PublishResult(ctx, subject, header, body); l.p.w.poke = true }); err != nil {
		return err
	}
	return done
}

// PublishCommand implements bus.Inputs.
func (l *link) PublishCommand(ctx context.Context, subject string, header map[string]string, body []byte) (seq uint64, err error) {
	var done error
	if err := l.call(func() {
		if seq, done = l.p.w.server.PublishCommand(ctx, subject, header, body); done == nil {
			l.p.w.check.captured(seq, subject, header)
		}
		l.p.w.poke = true
	}); err != nil {
		return 0, err
	}
	return seq, done
}

// PublishRefusal implements bus.Inputs.
func (l *link) PublishRefusal(ctx context.Context, project, requestID string, header map[string]string, body []byte) error {
	var done error
	if err := l.call(func() {
		if done = l.p.w.server.PublishRefusal(ctx, project, requestID, header, body); done == nil {
			l.p.w.check.refusals[requestID] = true
		}
	}); err != nil {
		return err
	}
	return done
}

// delivery is a delivery whose settlement takes its time, and may be lost.
type delivery struct {
	bus.Delivery
	w *World
}

func (d *delivery) settle(how func() error) error {
	if d.w.fault(d.w.faults.lost, 3) {
		return nil
	}
	d.w.after(d.w.latency(), func() { _ = how(); d.w.poke = true }) // it may have been settled before
	return nil
}

// Ack implements bus.Delivery.
func (d *delivery) Ack() error { return d.settle(d.Delivery.Ack) }

// Progress implements bus.Delivery.
func (d *delivery) Progress() error { return d.settle(d.Delivery.Progress) }

// Retry implements bus.Delivery.
func (d *delivery) Retry(after time.Duration) error {
	return d.settle(func() error { return d.Delivery.Retry(after) })
}

// Reject implements bus.Delivery.
func (d *delivery) Reject(ctx context.Context, reason string) error {
	return d.settle(func() error { return d.Delivery.Reject(ctx, reason) })
}

// answeredBy is who answered a request.
type answeredBy struct {
	stint    *stint
	from, at time.Time // when it had the request, and when it answered
}

// ask sends a request to the owners of a partition and waits for the first reply.
func (l *link) ask(partition int, r bus.Request, wait time.Duration) (bus.Request, error) {
	got, _, err := l.askWhom(partition, r, wait)
	return got, err
}

func (l *link) askWhom(partition int, r bus.Request, wait time.Duration) (bus.Request, answeredBy, error) {
	w := l.p.w
	if !w.pause(w.latency()) {
		return bus.Request{}, answeredBy{}, bus.ErrClosed
	}
	t := w.running
	var got *bus.Request
	var by answeredBy
	asked, over := false, false
	defer func() { over = true }()
	for _, s := range w.house.stints {
		if s.partition != partition || !s.open || s.p.dead {
			continue
		}
		asked = true
		if l.p.cut() {
			continue
		}
		for range w.copies() {
			w.after(w.latency(), func() {
				from := w.now
				s.ask(r, func(header map[string]string, body []byte) {
					if w.fault(w.faults.lost, 4) || l.p.cut() {
						return
					}
					at := w.now
					w.after(w.latency(), func() {
						if got == nil && !over {
							got, by = &bus.Request{Verb: r.Verb, Header: header, Body: body}, answeredBy{s, from, at}
							t.wake(0)
						}
					})
				})
			})
		}
	}
	if !asked {
		return bus.Request{}, by, bus.ErrNoOwner
	}
	for end := w.now.Add(wait); got == nil; {
		if !w.now.Before(end) {
			return bus.Request{}, by, context.DeadlineExceeded
		}
		t.wake(end.Sub(w.now))
		if !t.wait() {
			return bus.Request{}, by, bus.ErrClosed
		}
	}
	return *got, by, nil
}

// copies is how often a message that may be lost or doubled arrives.
func (w *World) copies() int {
	switch {
	case w.fault(w.faults.lost, 4):
		return 0
	case w.fault(w.faults.doubled, 5):
		return 2
	}
	return 1
}
