package captured

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/intake/internal/metrics"
)

// Limits.
const (
	AsksMax         = 64                     // asks of a partition under way: one that hangs holds up no other
	WaitingMax      = 256                    // commands of a partition that are read and not settled
	WaitingBytesMax = 4 << 20                // bytes of their bodies
	HandoverWait    = 500 * time.Millisecond // before a partition that is new to this process is begun
	ProgressEvery   = time.Second            // how often the server is told that a command is in hand
	UnreadableMax   = 10                     // replies of an owner that cannot be read, until the command is set aside
	BackoffMin      = 50 * time.Millisecond
	BackoffMax      = 500 * time.Millisecond
)

// Bus is the part of the bus that is needed.
type Bus interface {
	Commands(ctx context.Context, partition int) (bus.Inbox, error)
	Ask(ctx context.Context, partition int, r bus.Request) (bus.Request, error)
	PublishRefusal(ctx context.Context, project, requestID string, header map[string]string, body []byte) error
	Backlog(ctx context.Context, stream string, partition int) (n uint64, oldest time.Time, err error)
}

// partition is one partition while this process serves it.
type partition struct {
	number     int
	partitions int // of the system
	bus        Bus
	log        *zap.Logger
	metrics    *metrics.Metrics
	// asks limits what is under way to each owner. The partition of an inbox is not that of an owner: the server cuts
	// the one from the subject (bus.CommandPartition), the other is that of the tree (bus.PartitionOf).
	asks []*semaphore.Weighted

	mu      sync.Mutex
	waiting int // commands that had to wait and have not ended; for the log
}

// waits says in the log that commands wait, when that begins.
func (p *partition) waits(c *command, reason string) {
	if c.waited {
		return
	}
	c.waited = true
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting++; p.waiting == 1 {
		p.log.Warn("captured commands wait", host.Partition(p.number), host.Reason(reason))
	}
}

// moves says that none waits any more. A partition that is given up says nothing.
func (p *partition) moves(ctx context.Context, c *command) {
	if !c.waited {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting--; p.waiting == 0 && ctx.Err() == nil {
		p.log.Info("captured commands move again", host.Partition(p.number))
	}
}

// serve applies what arrives until ctx ends (nil) or the inbox is lost (an error). Then nothing of the partition is in
// hand: what was not settled was put back.
func (p *partition) serve(ctx context.Context) error {
	inbox, err := p.bus.Commands(ctx, p.number)
	if err != nil {
		return fmt.Errorf("open the inbox: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	// Only this goroutine touches what follows. A lane is the commands of one subject's resource; the first of them is
	// under way.
	lanes := map[string][]*command{}
	waiting, bytes := 0, 0
	type ended struct {
		c   *command
		err error
	}
	ends := make(chan ended)
	start := func(c *command) {
		go func() { ends <- ended{c, p.apply(ctx, c)} }()
	}
	drop := func(c *command) {
		waiting--
		bytes -= c.size
		p.metrics.Waiting.Dec()
	}
	var left []*command // given up without being settled
	end := func(e ended) {
		drop(e.c)
		switch {
		case errors.Is(e.err, errStopped):
			left = append(left, e.c)
		case e.err != nil:
			p.log.Warn("command could not be settled; it comes again", host.Partition(p.number), host.Sequence(e.c.seq), zap.Error(e.err))
		}
		lane := lanes[e.c.lane]
		lane[0] = nil
		if len(lane) == 1 {
			delete(lanes, e.c.lane)
			return
		}
		lanes[e.c.lane] = lane[1:]
		if ctx.Err() == nil {
			start(lane[1])
		}
	}

	touch := time.NewTicker(ProgressEvery)
	defer touch.Stop()
	for ctx.Err() == nil {
		arrivals := inbox.C()
		if waiting >= WaitingMax || bytes >= WaitingBytesMax {
			arrivals = nil
		}
		select {
		case <-ctx.Done():
		case d, ok := <-arrivals:
			if !ok {
				if err = inbox.Err(); err == nil {
					err = errors.New("the inbox was closed")
				}
				cancel()
				break
			}
			c := &command{lane: laneOf(d.Subject()), seq: d.Seq(), size: len(d.Body()), delivery: d, touched: time.Now()}
			waiting++
			bytes += c.size
			p.metrics.Waiting.Inc()
			lanes[c.lane] = append(lanes[c.lane], c)
			if len(lanes[c.lane]) == 1 {
				start(c)
			}
		case e := <-ends:
			end(e)
		case now := <-touch.C:
			for _, lane := range lanes {
				for _, c := range lane {
					c.touch(now)
				}
			}
		}
	}

	// Stop: the lanes' first commands end because ctx has; the others were never begun.
	inbox.Close()
	under := len(lanes)
	for key, lane := range lanes {
		for _, c := range lane[1:] {
			drop(c)
			left = append(left, c)
		}
		lanes[key] = lane[:1]
	}
	for range under {
		end(<-ends)
	}
	// In their order, so that the next owner gets them in it.
	slices.SortFunc(left, func(a, b *command) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	for _, c := range left {
		_ = c.settle(func(d bus.Delivery) error { return d.Retry(0) }) // at worst it comes again when its time is up
	}
	return err
}

// laneOf names what a command must stay in order with: its resource, or its whole subject where that is none.
func laneOf(subject string) string {
	for i := len(subject) - 1; i >= 0; i-- {
		if subject[i] == '.' {
			return subject[:i] // without the verb
		}
	}
	return subject
}
