package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	// inboxPrefetch is how many inputs a partition's inbox holds before they are taken.
	inboxPrefetch = 128
	// inboxBytes is how many bytes of them one request brings; a process has an inbox for each partition that it serves.
	inboxBytes = 2 * bus.FetchBytesMin
	// inboxAckPending is how many inputs of a partition may be unsettled; waiting ones (Retry) count.
	inboxAckPending = 4096
	// inboxWait is how long a request of an inbox waits for inputs.
	inboxWait = 3 * time.Second
	// inboxEnsure is at least between two tries to make a consumer again that nobody answers for.
	inboxEnsure = time.Second
)

// inbox implements bus.Inbox.
type inbox struct {
	b         *Bus
	stream    string
	partition int
	pulls     *pulls
	detour    *detour
	out       chan bus.Delivery
	stop      context.CancelFunc
	ended     chan struct{}

	mu  sync.Mutex
	err error
}

// held is a delivery that nobody has taken yet.
type held struct {
	*delivery
	since time.Time // of its arrival, or when the server was last told that it is not forgotten
}

func (b *Bus) openInbox(ctx context.Context, stream string, partition int) (bus.Inbox, error) {
	if partition < 0 || partition >= b.Partitions() {
		return nil, fmt.Errorf("inbox of %s: partition %d is not one of %d", stream, partition, b.Partitions())
	}
	in := &inbox{b: b, stream: stream, partition: partition, detour: b.newDetour(stream, inboxFilter(stream, partition)), out: make(chan bus.Delivery), ended: make(chan struct{})}
	if err := in.ensure(ctx); err != nil {
		return nil, err
	}
	var err error
	if in.pulls, err = b.newPulls(inboxPrefetch); err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(b.ctx)
	in.stop = stop
	b.wg.Go(func() { in.run(run) })
	return in, nil
}

func (in *inbox) consumer() string { return inboxConsumer(in.partition) }

func inboxConsumer(partition int) string { return "p" + strconv.Itoa(partition) }

func inboxFilter(stream string, partition int) string {
	if stream == streamCommands {
		return "drover.cmds." + strconv.Itoa(partition) + ".>"
	}
	return "drover.result." + strconv.Itoa(partition) + ".>"
}

// ensure makes the partition's one consumer, or finds it.
func (in *inbox) ensure(ctx context.Context) error {
	_, err := in.b.createConsumer(ctx, in.stream, natsjs.ConsumerConfig{
		Durable: in.consumer(), FilterSubject: inboxFilter(in.stream, in.partition),
		DeliverPolicy: natsjs.DeliverAllPolicy, AckPolicy: natsjs.AckExplicitPolicy, AckWait: in.b.options.InputAckWait,
		MaxDeliver: unlimited, MaxAckPending: inboxAckPending,
		// What is settled leaves the stream, so the consumer's own state need not survive a restart: it is made
		// again, and what was unsettled comes again. On file it would be written, and synced, ten times a second
		// for each partition. On several servers the price is that one which has come back knows nothing until its
		// leader has told it, and its vote does not count (nats-server 2.15.2): health checks wait for that. Fewer replicas
		// than its stream's a work queue's consumer may not have.
		MemoryStorage: true,
	})
	if err != nil {
		return fmt.Errorf("consumer %s of %s: %w", in.consumer(), in.stream, err)
	}
	return nil
}

// C implements bus.Inbox.
func (in *inbox) C() <-chan bus.Delivery { return in.out }

// Err implements bus.Inbox.
func (in *inbox) Err() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err
}

// Close implements bus.Inbox. What was not taken is put back at once.
func (in *inbox) Close() {
	in.stop()
	<-in.ended
}

func (in *inbox) run(ctx context.Context) {
	var queue []held
	defer func() {
		in.pulls.close()
		for _, d := range queue {
			_ = d.Retry(0) // or it comes back after the ack wait
		}
		close(in.out)
		close(in.ended)
	}()
	tick := time.NewTicker(min(in.b.options.InputAckWait/3, pullHeartbeat))
	defer tick.Stop()
	var keep <-chan time.Time
	if in.stream == streamResults && in.partition == 0 {
		keeping := time.NewTicker(keepEvery)
		defer keeping.Stop()
		keep = keeping.C
		in.b.keep()
	}
	var pause <-chan time.Time // set while nobody answers
	// To make the consumer again may take as long as nobody leads the servers. It is asked meanwhile: it may be there, without a
	// leader.
	var ensured chan error // of that, while it is under way
	var ensureAt time.Time
	making, giveUp := context.WithCancel(ctx)
	defer giveUp()
	silent := false             // the consumer is
	var looking chan brought    // past it, while that is under way
	var lookAt <-chan time.Time // before it is done again
	for {
		if !in.pulls.open && pause == nil && len(queue) <= inboxPrefetch/2 {
			if err := in.pulls.ask(in.stream, in.consumer(), inboxPrefetch-len(queue), inboxBytes, inboxWait, false); err != nil {
				in.fail(ctx, err)
				return
			}
		}
		if silent && looking == nil && lookAt == nil && len(queue) <= inboxPrefetch/2 {
			looked, room := make(chan brought, 1), inboxPrefetch-len(queue)
			looking = looked
			in.b.wg.Go(func() { looked <- in.detour.look(making, room) })
		}
		var out chan<- bus.Delivery
		var head bus.Delivery
		if len(queue) > 0 {
			out, head = in.out, queue[0].delivery
		}
		select {
		case <-ctx.Done():
			return
		case out <- head:
			queue = queue[1:]
		case <-in.pulls.reconnected:
			in.pulls.lose()
		case now := <-tick.C:
			if in.pulls.lost(now) {
				in.pulls.open, silent = false, true
			}
			for i := range queue {
				if now.Sub(queue[i].since) > in.b.options.InputAckWait/3 {
					queue[i].since = now
					_ = queue[i].Progress() // or it comes twice
				}
			}
		case <-keep:
			in.b.keep()
		case <-pause:
			pause = nil
		case err := <-ensured:
			if err != nil {
				in.fail(ctx, err)
				return
			}
			ensured, ensureAt = nil, time.Now().Add(inboxEnsure)
		case <-lookAt:
			lookAt = nil
		case found := <-looking:
			looking, lookAt = nil, time.After(detourEvery)
			for _, d := range in.detour.take(found) {
				queue = append(queue, held{delivery: d, since: time.Now()})
			}
		case m := <-in.pulls.in:
			said := in.pulls.read(m)
			silent = said == nobody || said == noise && silent
			switch said {
			case delivered:
				d, err := in.b.newDelivery(m)
				if err != nil {
					in.fail(ctx, err)
					return
				}
				if !in.detour.met(d) {
					queue = append(queue, held{delivery: d, since: time.Now()})
				}
			case nobody, gone:
				pause = time.After(apiPause)
				if ensured == nil && !time.Now().Before(ensureAt) {
					made := make(chan error, 1)
					ensured = made
					in.b.wg.Go(func() { made <- in.ensure(making) })
				}
			case alive, drained, ended, noise:
			}
		}
	}
}

// fail keeps why the inbox ends, unless it was closed.
func (in *inbox) fail(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	in.mu.Lock()
	in.err = err
	in.mu.Unlock()
}
