package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	// workAckPending is how much work of a phase may be unsettled; what waits for Retry counts.
	workAckPending = 100_000
	// workPullers is how many Fetch calls of a phase may wait at once, over all workers.
	workPullers = 4096
	// workFetchMax is the largest number of deliveries of one Fetch.
	workFetchMax = 10_000
	// workLook is how old a worker's knowledge of its phase's consumer may be: another version of the orchestrators, or another
	// --work-ack-wait, changes its ack wait.
	workLook = 30 * time.Second
	// sourceSure is how old a dispatch must be before a live source without lag is believed, though WORK has stored
	// nothing since: a server that is killed can lose what WORK had not yet written, and where nothing else is handed
	// out nothing would ever be stored after it. It is longer than the server's backoff of its sources (22 s).
	sourceSure = 45 * time.Second
	// sourceActive is how recently WORK must have heard of EVENTS: the server sends a heartbeat every second.
	sourceActive = 3 * time.Second
)

// EnsurePhase implements bus.Work.
func (b *Bus) EnsurePhase(ctx context.Context, p bus.Phase) error {
	_, err := b.createConsumer(ctx, streamWork, natsjs.ConsumerConfig{
		Durable: p.Consumer(), FilterSubject: p.WorkSubject(), Description: p.Project + "/" + p.Kind + "/" + p.Phase,
		DeliverPolicy: natsjs.DeliverAllPolicy, AckPolicy: natsjs.AckExplicitPolicy, AckWait: b.options.WorkAckWait,
		MaxDeliver: unlimited, MaxAckPending: workAckPending, MaxWaiting: workPullers,
	})
	if err != nil {
		return fmt.Errorf("consumer of phase %s: %w", p.Consumer(), err)
	}
	b.watchLeftovers(p)
	return nil
}

// RemovePhase implements bus.Work.
func (b *Bus) RemovePhase(ctx context.Context, p bus.Phase) error {
	b.mu.Lock()
	delete(b.ensured, p)
	b.mu.Unlock()
	err := b.deleteConsumer(ctx, streamWork, p.Consumer())
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return fmt.Errorf("consumer of phase %s: %w", p.Consumer(), err)
	}
	if err := b.purge(ctx, streamWork, p.WorkSubject(), 0); err != nil {
		return fmt.Errorf("work of phase %s: %w", p.Consumer(), err)
	}
	return nil
}

// puller implements bus.Puller.
type puller struct {
	b        *Bus
	phase    bus.Phase
	consumer string
	ackWait  time.Duration
	pulls    *pulls
	found    chan found // of the question, under way, whether the consumer is there; else nil
	asked    time.Time
}

type found struct {
	ackWait time.Duration
	err     error
}

// Pull implements bus.Work.
func (b *Bus) Pull(ctx context.Context, p bus.Phase) (bus.Puller, error) {
	out := &puller{b: b, phase: p, consumer: p.Consumer(), asked: time.Now()}
	var err error
	if out.ackWait, err = out.find(ctx); err != nil {
		return nil, err
	}
	if out.pulls, err = b.newPulls(workFetchMax); err != nil {
		return nil, err
	}
	return out, nil
}

// find asks for the consumer, and what its ack wait is; it is never made here.
func (p *puller) find(ctx context.Context) (time.Duration, error) {
	info, err := p.b.consumerInfo(ctx, streamWork, p.consumer)
	if err != nil {
		return 0, fmt.Errorf("consumer of phase %s: %w", p.consumer, err)
	}
	return info.Config.AckWait, nil
}

// look has it asked whether the consumer is there, without a leader at present, or was removed, and what its ack wait is now. Who
// asks for work goes on meanwhile: as long as nobody leads the servers there is no answer.
func (p *puller) look() {
	if p.found != nil {
		return
	}
	answer := make(chan found, 1)
	p.found, p.asked = answer, time.Now()
	p.b.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.b.ctx, apiTry)
		defer cancel()
		wait, err := p.find(ctx)
		answer <- found{wait, err}
	})
}

// AckWait implements bus.Puller.
func (p *puller) AckWait() time.Duration { return p.ackWait }

// Close implements bus.Puller. What a Fetch that was cut short did not take comes again after AckWait.
func (p *puller) Close() { p.pulls.close() }

// Fetch implements bus.Puller.
func (p *puller) Fetch(ctx context.Context, most, mostBytes int, wait time.Duration) ([]bus.Delivery, error) {
	most = min(max(most, 1), workFetchMax)
	mostBytes = min(max(mostBytes, bus.FetchBytesMin), bus.FetchBytesMax)
	end := time.Now().Add(wait)
	if time.Since(p.asked) > workLook {
		p.look()
	}
	paused := false
	var got []bus.Delivery
	for {
		left := max(time.Until(end), 0)
		if left > 0 && left < time.Millisecond {
			left = 0
		}
		if !p.pulls.open && !paused {
			if err := p.pulls.ask(streamWork, p.consumer, most-len(got), mostBytes, left, true); err != nil {
				return got, err
			}
		}
		// A little longer than the server waits: it says itself when it is over.
		patience := left + pullSilence
		if left >= 2*pullHeartbeat {
			patience = pullSilence
		}
		if !p.pulls.open {
			if patience = apiPause; left == 0 && p.found == nil { // the connection is down
				return got, nil
			}
		}
		timer := time.NewTimer(patience)
		select {
		case <-ctx.Done():
			timer.Stop()
			p.pulls.open = false
			return got, ctx.Err()
		case <-p.b.ctx.Done():
			timer.Stop()
			return got, bus.ErrClosed
		case <-p.pulls.reconnected:
			p.pulls.lose()
		case f := <-p.found:
			p.found = nil
			switch {
			case f.err == nil:
				p.ackWait = f.ackWait
			case errors.Is(f.err, context.DeadlineExceeded): // there is nothing to be fetched now
			default:
				timer.Stop()
				return got, f.err
			}
		case <-timer.C:
			p.pulls.open, paused = false, false // unheard, or nobody was there: ask again
		case m := <-p.pulls.in:
			switch p.pulls.read(m) {
			case delivered:
				d, err := p.b.newDelivery(m)
				if err != nil {
					timer.Stop()
					return got, err
				}
				if got = append(got, d); len(got) == most || !p.pulls.open { // the latter: all that its bytes allow
					timer.Stop()
					return got, nil
				}
			case ended, drained:
				if len(got) > 0 || time.Until(end) <= 0 {
					timer.Stop()
					return got, nil
				}
			case nobody, gone:
				if len(got) > 0 {
					timer.Stop()
					return got, nil
				}
				p.look()
				paused = true
			case alive, noise:
			}
		}
		timer.Stop()
		if !p.pulls.open && p.found == nil && time.Until(end) <= 0 {
			return got, nil
		}
	}
}

// PublishPoll implements bus.Work.
func (b *Bus) PublishPoll(ctx context.Context, p bus.Phase, key string, body []byte) error {
	m := &nats.Msg{Subject: p.WorkSubject(), Header: make(nats.Header, 2), Data: body}
	m.Header[bus.HeaderPoll] = []string{clean(key)}
	m.Header[nats.MsgIdHdr] = []string{p.Consumer() + "/" + clean(key)}
	if _, err := b.publish(ctx, m); err != nil {
		return fmt.Errorf("publish poll: %w", err)
	}
	return nil
}

// Outstanding implements bus.Work. WORK is a work queue: what is not stored is settled. The server does not say up to
// which event WORK has been derived, so caughtUp is careful: the source is alive, reports no lag, WORK has stored
// something since the phase's last dispatch, and that dispatch is older than Options.SourceSettle; or it is older than
// sourceSure.
func (b *Bus) Outstanding(ctx context.Context, p bus.Phase) (uint64, bool, error) {
	fail := func(err error) (uint64, bool, error) {
		return 0, false, fmt.Errorf("outstanding work of phase %s: %w", p.Consumer(), err)
	}
	dispatched, err := b.leaderGet(ctx, streamEvents, getRequest{
		LastFor: "drover.log.*.resource." + bus.Token(p.Project) + "." + bus.Token(p.Kind) + ".*.do." + bus.Token(p.Phase)})
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return fail(err)
	}
	info, err := b.streamInfo(ctx, streamWork, p.WorkSubject())
	if err != nil {
		return fail(err)
	}
	n := info.State.Subjects[p.WorkSubject()]
	if len(info.Sources) != 1 {
		return n, false, nil
	}
	if n > 0 { // some of it may be left over, see removeLeftovers: nothing will come of that
		switch consumer, err := b.consumerInfo(ctx, streamWork, p.Consumer()); {
		case err == nil && unsettled(consumer) > 0:
			n = unsettled(consumer)
		case err == nil: // or the consumer knows nothing of it yet
			last, err := b.leaderGet(ctx, streamWork, getRequest{LastFor: p.WorkSubject()})
			if err != nil && !errors.Is(err, bus.ErrNotFound) {
				return fail(err)
			}
			if last.Seq <= consumer.AckFloor.Stream {
				n = 0
			}
		case !errors.Is(err, bus.ErrNotFound):
			return fail(err)
		}
	}
	source := info.Sources[0]
	caughtUp := source.Error == nil && source.Lag == 0 && source.Active >= 0 && source.Active <= sourceActive
	if dispatched.Seq > 0 {
		age := info.TimeStamp.Sub(dispatched.Time)
		caughtUp = caughtUp && age >= b.options.SourceSettle && (age >= sourceSure || !info.State.LastTime.Before(dispatched.Time))
	}
	return n, caughtUp, nil
}
