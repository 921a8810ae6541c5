package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/drover/internal/render"
	"github.com/droverproject/drover/services/drover/internal/up"
)

// drift is one setting that differed, as `setup` tells it.
type drift struct {
	Stream   string `json:"stream"`
	Setting  string `json:"setting"`
	Want     string `json:"want"`
	Have     string `json:"have"`
	Repaired bool   `json:"repaired"`
}

func newSetup(a *App) *cobra.Command {
	var partitions, replicas int
	var sync string
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Make Drover's streams on a server, or repair them",
		Long: `Make Drover's streams, buckets and schedules on a NATS server, or look at what is there: what differs from what this
version makes is changed where that loses nothing, and told where it would.

A service that may do so makes them when it starts. On a server with permissions (deploy/nats/permissions.conf) only the
operator may: run this once, then start the services. The number of partitions cannot be changed afterwards.
With --timeout it waits so long for a cluster that is coming up.

A server does not tell its clients its sync_interval. Where it is always, say so: on one server what waits for the disk is
then stored together, which about doubles the rate. A wrong word costs speed and nothing else.`,
		Example: `  drover setup --context operator --replicas 3
  drover setup --nkey secrets/operator/nkey --tlsca secrets/operator/ca.pem
  drover setup --sync always
  drover setup -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.runner(func(ctx context.Context, _ []string) error {
			if sync != "" && sync != string(up.SyncAlways) && sync != string(up.SyncDefault) {
				return usage("--sync %s: always or default", sync)
			}
			a.Partitions, a.Replicas, a.Sync, a.patient = partitions, replicas, sync, true
			if a.NKey != "" { // with permissions, nobody else may
				a.Role = bus.Operator
			}
			return a.setup(ctx)
		}),
	}
	cmd.Flags().IntVar(&partitions, "partitions", 0, "partitions of a new system (default 64)")
	cmd.Flags().IntVar(&replicas, "replicas", 0, "copies of each stream: 1, 3 or 5 (default 1)")
	cmd.Flags().StringVar(&sync, "sync", "", "the server's jetstream.sync_interval: always or default (default: as it was said before)")
	return cmd
}

func (a *App) setup(ctx context.Context) error {
	b, err := a.bus(ctx)
	if err != nil {
		return err
	}
	found, err := b.Setup(ctx, true)
	if err != nil {
		return err
	}
	items := make([]item, len(found))
	left := 0
	for i, d := range found {
		if !d.Repairable {
			left++
		}
		items[i] = item{name: d.Stream, json: jsonOf(drift{d.Stream, d.Setting, d.Want, d.Have, d.Repairable})}
	}
	err = a.printItems(items, false, func() error {
		for _, d := range found {
			did := "was changed to"
			if !d.Repairable {
				did = "cannot be changed without loss to"
			}
			if err := a.printf("%s: %s, which is %s, %s %s\n", render.Text(d.Stream), d.Setting, orNothing(d.Have), did, orNothing(d.Want)); err != nil {
				return err
			}
		}
		return a.printf("streams, buckets and schedules are there\n")
	})
	if err == nil && left > 0 {
		err = fmt.Errorf("%d settings are not as this version needs them; an operator must decide", left)
	}
	return err
}
