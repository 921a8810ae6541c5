// Package intake is the service that takes commands: it checks them by themselves, takes them to the owner of their
// partition, and brings the answers back (design.md section 1; contract.md, "NATS subjects").
//
// Commands come two ways. A request (drover.api) is answered after the commit. A published command (drover.cmd) was
// captured by a stream before intake saw it; it is acknowledged when its owner has accepted it, and a refusal is kept
// under drover.refused for its sender to find.
//
// Start more of it and they share both: requests by a queue group, captured commands by partition (membership service
// "intake"). Kill it, and what was not acknowledged comes again, to the same effect: an owner answers a request id that
// it knows with the job that it made.
//
//	internal/check      whether a command could be meant at all
//	internal/forward    to the owner of the partition, and back
//	internal/answer     refusals, in the form in which the command came
//	internal/api        requests
//	internal/captured   published commands: order, patience, and what is set aside
//	internal/metrics    what is counted
//
// # Absent on purpose
//
// No decision that needs a state, and no write to the log: the owner's; one of a selector too (the name "-"), whose
// partition is that of the name. No Drover-Reply-To: who wants the answer sends a request. No state of its own.
package intake

import (
	"context"
	"fmt"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/intake/internal/api"
	"github.com/droverproject/drover/services/intake/internal/captured"
	"github.com/droverproject/drover/services/intake/internal/metrics"
)

// Service is the name under which the processes of this service share the partitions.
const Service = "intake"

// Run runs the service on a connected bus until ctx ends. It does not close the bus.
func Run(ctx context.Context, h *host.Host, b bus.Bus) error {
	m, err := metrics.New(h.Metrics())
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	h.ReadyWhen("bus", b.Healthy)

	member, err := b.Join(ctx, Service, h.ID())
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	h.OnStop("membership", func(context.Context) error {
		member.Leave()
		return nil
	})
	commands := captured.New(b, b.Partitions(), h.Log(), m)
	h.Go("captured", func(ctx context.Context) error { return commands.Run(ctx, member.Changes()) })

	server := api.New(b, b.Partitions(), h.Log(), m)
	stop, err := b.ServeAPI(host.Version(), server.Handle)
	if err != nil {
		return fmt.Errorf("serve requests: %w", err)
	}
	h.OnStop("requests", func(context.Context) error {
		stop()
		server.Stop()
		return nil
	})
	return h.Wait(ctx)
}
