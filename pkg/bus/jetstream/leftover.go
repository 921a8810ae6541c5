package jetstream

import (
	"context"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// A server that is killed may remember that work was settled and forget that it has removed it: WORK is written behind,
// its consumers' states ten times a second. Such work is below its consumer's floor, so nobody would ever fetch it, and
// nobody remove it. Whoever makes the phases' consumers therefore looks for it now and then.
const (
	leftoverEvery = 15 * time.Second
	// leftoverAfter is how long after a reconnect the first look is: the server may still be reading its store.
	leftoverAfter = 2 * time.Second
)

// watchLeftovers has the work of a phase looked after until Close.
func (b *Bus) watchLeftovers(p bus.Phase) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ensured == nil {
		b.ensured = map[bus.Phase]struct{}{}
		b.wg.Go(b.removeLeftovers)
	}
	b.ensured[p] = struct{}{}
}

func (b *Bus) removeLeftovers() {
	ticker := time.NewTicker(leftoverEvery)
	defer ticker.Stop()
	reconnected := b.onceReconnected()
	var soon <-chan time.Time
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-reconnected:
			reconnected, soon = b.onceReconnected(), time.After(leftoverAfter)
			continue
		case <-soon:
			soon = nil
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(b.ctx, leftoverEvery)
		b.leftovers(ctx)
		cancel()
	}
}

// leftovers removes what is stored below the floors of the phases' consumers. What cannot be done now is done at the
// next look.
func (b *Bus) leftovers(ctx context.Context) {
	b.mu.Lock()
	phases := make([]bus.Phase, 0, len(b.ensured))
	for p := range b.ensured {
		phases = append(phases, p)
	}
	b.mu.Unlock()
	info, err := b.streamInfo(ctx, streamWork, "drover.work.>")
	if err != nil {
		return
	}
	for _, p := range phases {
		stored := info.State.Subjects[p.WorkSubject()]
		if stored == 0 {
			continue
		}
		consumer, err := b.consumerInfo(ctx, streamWork, p.Consumer())
		if err != nil || stored <= unsettled(consumer) || consumer.AckFloor.Stream == 0 {
			continue
		}
		_ = b.purge(ctx, streamWork, p.WorkSubject(), consumer.AckFloor.Stream+1)
	}
}
