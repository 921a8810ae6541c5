package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/drover/internal/bench"
)

func newBenchSystem(a *App) *cobra.Command {
	var o bench.SystemOptions
	var workerNKey string
	c := &cobra.Command{
		Use:   "system",
		Short: "Measure the system that the connection leads to: phases per second, and the time of one job",
		Long: `Measure a system that is there, as its users and workers meet it: this process sends the commands, and carries the
phases out at once. It makes resources of kind unit in project bench, and removes them afterwards; their blueprint stays. It is a
load for everybody who uses the system.

Beside it stands the rate of raw JetStream, an asynchronous publish to a stream of as many replicas. That needs the rights of an
operator; another user is told why it is missing. The worker needs the rights of a runner.`,
		Example: `  drover bench system
  drover bench system --nkey operator/nkey --worker-nkey runner/nkey --in-flight 500 --for 30s -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress = func(line string) { fmt.Fprintln(a.Err, line) }
			user, worker := a.Connection, a.Connection
			if workerNKey != "" {
				if user.NKey != "" && user.Role == "" {
					user.Role = bus.Operator
				}
				worker.NKey, worker.Creds, worker.Role = workerNKey, "", bus.Runner
			}
			report, err := a.BenchSystem(cmd.Context(), user, worker, o)
			if err != nil {
				return err
			}
			report.Version = host.Version()
			return a.printReport(report, func() string { return systemText(report) })
		},
	}
	f := c.Flags()
	f.StringVar(&workerNKey, "worker-nkey", "", "`FILE` of the worker's NKey; the connection's own is then an operator's (default: the connection's own)")
	f.IntVar(&o.InFlight, "in-flight", 200, "jobs at once, each of a resource of its own")
	f.DurationVar(&o.For, "for", 8*time.Second, "how long the steady measurement lasts")
	f.IntVar(&o.Idle, "idle", 100, "jobs of one idle resource that are timed")
	f.IntVar(&o.StateBytes, "state-bytes", 300, "bytes of attributes in each state")
	return c
}

// systemText is the report as a table.
func systemText(r bench.SystemReport) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Drover %s, nats-server %s, %d replicas, %d partitions; worker and load are in this process\n\n", r.Version, r.Server, r.Replicas, r.Partitions)
	row := func(title, format string, cell any) { fmt.Fprintf(&b, "%-44s%16s\n", title, fmt.Sprintf(format, cell)) }
	row("jobs at once", "%d", r.InFlight)
	row("phases per second, steady", "%.0f", r.SteadyPhases)
	row("three phases of one idle resource, p50 ms", "%.2f", float64(r.IdleP50))
	row("three phases of one idle resource, p99 ms", "%.2f", float64(r.IdleP99))
	if r.NoRaw == "" {
		row("raw JetStream, messages per second", "%.0f", r.RawMessages)
		row("phases per raw message, steady", "%.3f", r.SteadyRatio)
	} else {
		row("raw JetStream, messages per second", "%s", "not measured: "+r.NoRaw)
	}
	if r.Lost > 0 {
		row("job ends that the feed did not bring", "%d", r.Lost)
	}
	return b.String()
}
