// Package orchestrator is the service that decides: the one writer of EVENTS (promise 1). It serves the partitions that
// fall to it among its live processes; for each, one goroutine runs a drive.Loop over the partition's results and
// requests.
//
//	pkg/partition        one partition: takeover, inputs, the Port of its Loop, sweeps
//	pkg/catalog          blueprints and specs by digest, constraints: what a step consults
//	internal/partition   the goroutines, timers and channels around it, lag, metrics
//
// Start more of it and they share the partitions (membership service "orchestrator"). Kill it, and the others take its
// partitions over within seconds, from the log alone. Two that serve one partition for a moment do no harm: the
// expected sequence decides.
//
// # Absent on purpose
//
// No decision: those are pkg/engine's. No state that the log does not hold. No write to a bucket or to WORK, which the
// server derives, but for polls, which repeat what is committed.
package orchestrator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/host"
	owner "github.com/droverproject/drover/pkg/partition"
	"github.com/droverproject/drover/services/orchestrator/internal/partition"
)

// Service is the name under which the processes of this service share the partitions.
const Service = "orchestrator"

// renewPause is more than a beat of the members: until then those who served meanwhile have heard this process again, and have stopped.
// What another owner appends after that is known to nobody for half a minute.
const renewPause = 700 * time.Millisecond

// Run runs the service on a connected bus until ctx ends. It does not close the bus.
func Run(ctx context.Context, h *host.Host, b bus.Bus) error {
	metrics, err := partition.NewMetrics(h.Metrics())
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	books, err := catalog.New(b, time.Now, constraint.NewEvaluator())
	if err != nil {
		return fmt.Errorf("catalog: %w", err)
	}
	clock := owner.NewClock(time.Now)
	stopTicks, err := b.OnTick(bus.TickSecond, clock.Set)
	if err != nil {
		return fmt.Errorf("tick: %w", err)
	}
	defer stopTicks()
	h.ReadyWhen("bus", b.Healthy)

	member, err := b.Join(ctx, Service, h.ID())
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	abilities := &abilities{declined: map[int]bool{}, tell: func(declined []int) {
		member.Decline(declined)
		metrics.Declined.Set(float64(len(declined)))
	}}
	cache := drive.NewCache(drive.CachedStatesAll)
	owners := &owners{
		serve: func(ctx context.Context, n int, renew <-chan struct{}) {
			partition.Serve(ctx, partition.Config{
				Bus: b, Catalog: books, Clock: clock, Metrics: metrics, Log: h.Log(), Cache: cache, Number: n,
				Renew: renew, Able: abilities.set,
			})
		},
		log: h.Log(), running: map[int]*owned{},
	}
	h.Go("partitions", func(ctx context.Context) error {
		defer owners.stopAll()
		var renew <-chan time.Time
		lapsed := false // since renew was set
		for {
			select {
			case <-ctx.Done():
				return nil
			case partitions, ok := <-member.Changes():
				if !ok {
					return nil
				}
				owners.set(ctx, partitions)
				metrics.Owned.Set(float64(len(partitions)))
			case <-member.Lapses():
				if lapsed = renew != nil; !lapsed {
					renew = time.After(renewPause)
				}
			case <-renew:
				owners.renew()
				if renew = nil; lapsed {
					renew, lapsed = time.After(renewPause), false
				}
			}
		}
	})
	h.OnStop("membership", func(context.Context) error {
		member.Leave()
		return nil
	})
	return h.Wait(ctx)
}

// abilities are the partitions that this version cannot serve: the others are told, and take them. Safe for concurrent
// use.
type abilities struct {
	mu       sync.Mutex
	declined map[int]bool
	tell     func(declined []int)
}

func (a *abilities) set(partition int, able bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.declined[partition] == !able {
		return
	}
	if a.declined[partition] = true; able {
		delete(a.declined, partition)
	}
	a.tell(slices.Sorted(maps.Keys(a.declined)))
}

// owners runs one goroutine for each partition that falls to this process.
type owners struct {
	serve   func(ctx context.Context, n int, renew <-chan struct{})
	log     *zap.Logger
	running map[int]*owned
}

type owned struct {
	cancel context.CancelFunc
	renew  chan struct{} // of capacity 1
	done   chan struct{}
}

// set makes the partitions that are served exactly these.
func (o *owners) set(ctx context.Context, partitions []int) {
	wanted := map[int]bool{}
	for _, n := range partitions {
		wanted[n] = true
	}
	var leaving []*owned
	for n, p := range o.running {
		if !wanted[n] {
			p.cancel()
			leaving = append(leaving, p)
			delete(o.running, n)
		}
	}
	for _, p := range leaving {
		<-p.done
	}
	started := 0
	for _, n := range partitions {
		if o.running[n] != nil {
			continue
		}
		serveCtx, cancel := context.WithCancel(ctx)
		p := &owned{cancel: cancel, renew: make(chan struct{}, 1), done: make(chan struct{})}
		o.running[n] = p
		started++
		go func() {
			defer close(p.done)
			o.serve(serveCtx, n, p.renew)
		}()
	}
	o.log.Info("partitions changed", zap.Int("owned", len(partitions)), zap.Int("started", started), zap.Int("left", len(leaving)))
}

// renew has every partition's owner read what others wrote: they may have served it meanwhile, and nothing tells it of that.
func (o *owners) renew() {
	o.log.Warn("processes of this service have not heard each other for a while; what others did with this one's partitions is read",
		zap.Int("partitions", len(o.running)))
	for _, p := range o.running {
		select {
		case p.renew <- struct{}{}:
		default: // it is about to
		}
	}
}

func (o *owners) stopAll() {
	var wg sync.WaitGroup
	for n, p := range o.running {
		p.cancel()
		delete(o.running, n)
		wg.Go(func() { <-p.done })
	}
	wg.Wait()
}
