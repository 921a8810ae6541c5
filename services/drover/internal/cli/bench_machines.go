package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/drover/internal/bench"
)

func newBenchMachines(a *App) *cobra.Command {
	var o bench.MachineOptions
	c := &cobra.Command{
		Use:   "machines",
		Short: "Measure task cycles of machine agents, over TLS",
		Long: `Measure how many tasks machine agents get through on this machine: each goes round POST the job, PATCH it running, GET its
actions, PUT its log, PATCH it finished. A NATS server, the services and the gateway are one process, the agents another.`,
		Example: `  drover bench machines
  drover bench machines --sync always --machines 32 --for 10s -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress = func(line string) { fmt.Fprintln(a.Err, line) }
			report, err := bench.Machines(cmd.Context(), o)
			if err != nil {
				return err
			}
			report.Version = host.Version()
			return a.printReport(report, func() string {
				var b strings.Builder
				fmt.Fprintf(&b, "%s, Drover %s\n\n", report.Machine, report.Version)
				for _, f := range report.Rows {
					fmt.Fprintf(&b, "%-8s %d machines: %.0f cycles per second, p50 %.1f ms, p99 %.1f ms; CPU seconds per 1,000 cycles: house %.2f, agents %.2f\n",
						f.Sync, f.Machines, f.Cycles, float64(f.P50), float64(f.P99), f.CPU["machines"], f.CPU["load"])
				}
				return b.String()
			})
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Sync, "sync", []string{"default", "always"}, "the server's sync modes to measure")
	f.IntVar(&o.Machines, "machines", 32, "machines that go round at once")
	f.DurationVar(&o.For, "for", 8*time.Second, "how long they do")
	f.StringVar(&o.Dir, "dir", "", "folder on the disk to measure (default the system's temporary folder)")
	return c
}
