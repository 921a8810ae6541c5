// Package notifier is the service that tells listeners when resources of a kind reach a state (seed 003, "State
// Listeners"): by an HTTP call, or by a message on a subject under drover.notice.
//
// A listener is a resource of kind Listener, applied like any other; package pkg/listener describes its spec. The
// notifier follows the feed of committed events. For each one that enters a listened state it sends, to each listener,
//
//	{"type": "node", "state": "Started", "cluster": "", "resources": [{"project": "default", "kind": "node",
//	 "name": "web-1", "uid": "…", "revision": "42", "jobId": "…", "time": "…"}]}
//
// with the header Drover-Event-Id (project/kind/name/uid/revision of the first). Events of the same kind, state and
// cluster within 50 ms are one message. A receiver that must not act twice keeps the ids: a message whose answer was
// lost is sent again, up to four times.
//
// Start more of it and they share the resources by partition (membership service "notifier"). Kill it, and nothing but
// notices is lost.
//
//	internal/listeners   which listeners there are, their queues, and what is tried again
//	internal/notice      events into messages
//	internal/deliver     a message to where it should go
//	internal/webhook     one HTTP call, safely
//	internal/poke        monitoring systems that have a deployment to fetch (seed 002)
//
// Pokes of monitoring systems are of another kind than notices: they are derived from committed state, and none is lost.
//
// # Absent on purpose
//
// No record of what was told (the seed: it "is not tracked anywhere"), so no delivery after a restart and no history: who
// must know everything reads the log. No way to hold up a resource: the feed is read whether or not anybody takes
// messages. No secrets in specs: a listener names them, and the notifier finds them as files. No listener of one project that
// is told of another's resources, or is given another's secrets: who may write in one project alone would choose the host.
package notifier

import (
	"context"
	"flag"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/monitoring"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/notifier/internal/deliver"
	"github.com/droverproject/drover/services/notifier/internal/listeners"
	"github.com/droverproject/drover/services/notifier/internal/notice"
	"github.com/droverproject/drover/services/notifier/internal/poke"
	"github.com/droverproject/drover/services/notifier/internal/webhook"
)

// Service is the name under which the processes of this service share the partitions.
const Service = "notifier"

// RunOptions are the service's own settings.
type RunOptions struct {
	// Secrets is a folder with a folder for each project, whose files are the secrets that the project's listeners may name.
	// Empty: there are none.
	Secrets string
}

// Flags declares the options as flags.
func (o *RunOptions) Flags(fs *flag.FlagSet) {
	fs.StringVar(&o.Secrets, "secrets", o.Secrets, "`folder` with a folder for each project, of files with the secrets that its listeners may name")
}

// Run runs the service without secrets on a connected bus until ctx ends. It does not close the bus.
func Run(ctx context.Context, h *host.Host, b bus.Bus) error { return RunOptions{}.Run(ctx, h, b) }

// Run is Run with options.
func (o RunOptions) Run(ctx context.Context, h *host.Host, b bus.Bus) error {
	metrics, err := listeners.NewMetrics(h.Metrics())
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	var loaded atomic.Bool
	h.ReadyWhen("bus", b.Healthy)
	h.ReadyWhen("listeners", func(context.Context) error {
		if !loaded.Load() {
			return fmt.Errorf("the listeners are not loaded yet")
		}
		return nil
	})

	client := webhook.New(o.Secrets, "drover-notifier/"+host.Version())
	roster := listeners.NewRoster(deliver.Sender{Bus: b, Webhook: client}, h.Log(), metrics)
	h.OnStop("deliveries", func(context.Context) error {
		roster.Close()
		client.Close()
		return nil
	})

	resources, err := b.WatchBucket(ctx, bus.Resource, "", resource.ListenerKind, "")
	if err != nil {
		return fmt.Errorf("watch listeners: %w", err)
	}
	defer resources.Close()
	specs, err := b.WatchBucket(ctx, bus.Spec, "", resource.ListenerKind, "")
	if err != nil {
		return fmt.Errorf("watch listeners' specs: %w", err)
	}
	defer specs.Close()

	member, err := b.Join(ctx, Service, h.ID())
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	h.OnStop("membership", func(context.Context) error {
		member.Leave()
		return nil
	})

	// A poke's own time, which its monitoring system's spec says, is the context's.
	pokes := webhook.NewFor("", "drover-notifier/"+host.Version(), monitoring.PokesMaxMost, monitoring.TimeoutMost)
	h.OnStop("pokes", func(context.Context) error {
		pokes.Close()
		return nil
	})
	poker, err := poke.New(b, pokes, h.Log(), h.Metrics())
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	stopSweeps, err := b.OnTick(bus.TickSweep, func(time.Time) { poker.Sweep() })
	if err != nil {
		return fmt.Errorf("ticks: %w", err)
	}
	h.OnStop("ticks", func(context.Context) error {
		stopSweeps()
		return nil
	})
	h.Go("poker", poker.Run)
	stopInstances, err := b.Follow(bus.Instance, "", "", "", poker.Event)
	if err != nil {
		return fmt.Errorf("follow the feed of instances: %w", err)
	}
	h.OnStop("instances", func(context.Context) error {
		stopInstances()
		return nil
	})

	f := &feed{roster: roster, log: h.Log(), partitions: b.Partitions()}
	watcher := listeners.NewWatcher(roster, h.Log(), metrics)
	h.Go("listeners", func(ctx context.Context) error {
		return watcher.Run(ctx, resources, specs, func() { loaded.Store(true) })
	})
	h.Go("shares", func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case owned, ok := <-member.Changes():
				if !ok {
					return nil
				}
				f.own(owned)
				poker.Own(owned)
			}
		}
	})
	stop, err := b.Follow(bus.Resource, "", "", "", f.event)
	if err != nil {
		return fmt.Errorf("follow the feed: %w", err)
	}
	h.OnStop("feed", func(context.Context) error {
		stop()
		return nil
	})
	return h.Wait(ctx)
}

// feed takes events from the bus; it must be quick, and never waits.
type feed struct {
	roster     *listeners.Roster
	log        *zap.Logger
	partitions int
	owned      atomic.Pointer[[]bool] // by partition
}

func (f *feed) own(partitions []int) {
	owned := make([]bool, f.partitions)
	for _, p := range partitions {
		if p >= 0 && p < len(owned) {
			owned[p] = true
		}
	}
	f.owned.Store(&owned)
}

// event decides by the header alone, so that an event that nobody listens to costs next to nothing.
func (f *feed) event(s bus.Stored) {
	e, h := s.Entity, s.Header
	if h.From == h.To || !f.roster.Listened(e.Project, e.Kind, h.To) {
		return
	}
	owned := f.owned.Load()
	if owned == nil || !(*owned)[bus.PartitionOf(e.Project, e.Kind, e.Name, f.partitions)] {
		return
	}
	event, err := wire.DecodeResource(s.Body)
	if err != nil {
		f.log.Warn("event cannot be read; its listeners are not told", host.Resource(e.Project, e.Kind, e.Name),
			host.Revision(h.Revision), zap.Error(err))
		return
	}
	f.roster.Offer(notice.Event{
		Project: e.Project, Kind: e.Kind, Name: e.Name, UID: event.State.UID, Revision: event.State.Revision,
		State: h.To, Cluster: event.State.Cluster, JobID: event.Event.JobID, Time: event.At, Traceparent: h.Traceparent,
	})
}
