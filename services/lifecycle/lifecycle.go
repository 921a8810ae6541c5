// Package lifecycle is the service that asks for sweeps: at every tick of 20 seconds it asks the owner of each
// partition to look for lost work, passed due times, what is gone and not forgotten, and jobs without a record
// (design.md section 1; seed 002, "ghost removal"). Once a minute it looks whether the streams drifted, and twice a second, where
// there are several servers, whether the buckets and the work follow the log.
//
// Start more of it and they share the partitions (membership service "lifecycle"). Kill it and nothing is lost: the
// next tick asks again, and no progress of a resource depends on a sweep that only one process saw.
//
//	internal/sweep   who is asked, how many at once, and what is said about those who do not answer
//	internal/drift   the settings of the streams
//	internal/derive  streams that do not follow the log
//
// # Absent on purpose
//
// No state of its own, no clock of its own for sweeps, no decision: what a sweep finds is put right by the partition's
// owner, through the log.
package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/lifecycle/internal/derive"
	"github.com/droverproject/drover/services/lifecycle/internal/drift"
	"github.com/droverproject/drover/services/lifecycle/internal/sweep"
)

// Service is the name under which the processes of this service share the partitions.
const Service = "lifecycle"

// driftEvery is how often the streams' settings are checked.
const driftEvery = time.Minute

// streamsPartition is the partition whose owner looks after the streams, so that one process does.
const streamsPartition = 0

// Run runs the service on a connected bus until ctx ends. It does not close the bus.
func Run(ctx context.Context, h *host.Host, b bus.Bus) error {
	sweeper, err := sweep.New(b, h.Log(), h.Metrics())
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	watch, err := drift.New(b, h.Log(), h.Metrics())
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	derivation, err := derive.New(b, h.Log(), h.Metrics())
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	h.ReadyWhen("bus", b.Healthy)

	ticks := make(chan time.Time, 1)
	stopTicks, err := b.OnTick(bus.TickSweep, func(at time.Time) {
		select {
		case ticks <- at:
		default: // a sweep is running and another is due already
		}
	})
	if err != nil {
		return fmt.Errorf("sweep tick: %w", err)
	}
	defer stopTicks()

	member, err := b.Join(ctx, Service, h.ID())
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	h.OnStop("membership", func(context.Context) error {
		member.Leave()
		return nil
	})

	shares := make(chan []int, 1)
	checks, looks := make(chan bool, 1), make(chan bool, 1)
	h.Go("sweep", func(ctx context.Context) error { return sweeper.Run(ctx, ticks, shares) })
	h.Go("drift", func(ctx context.Context) error { return checkDrift(ctx, watch, checks) })
	h.Go("derivation", func(ctx context.Context) error { return derivation.Run(ctx, looks) })
	h.Go("shares", func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case partitions, ok := <-member.Changes():
				if !ok {
					return nil
				}
				newest(shares, partitions)
				mine := slices.Contains(partitions, streamsPartition)
				newest(checks, mine)
				newest(looks, mine)
			}
		}
	})
	return h.Wait(ctx)
}

// newest puts v into a channel of one place, over what was not yet taken. There is one sender.
func newest[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v
}

// checkDrift checks every minute while this process is the one that does.
func checkDrift(ctx context.Context, watch *drift.Watch, mine <-chan bool) error {
	ticker := time.NewTicker(driftEvery)
	defer ticker.Stop()
	checking := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-mine:
			if now && !checking {
				watch.Check(ctx)
			} else if !now && checking {
				watch.Forget()
			}
			checking = now
		case <-ticker.C:
			if checking {
				watch.Check(ctx)
			}
		}
	}
}
