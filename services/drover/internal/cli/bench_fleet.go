package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/drover/internal/bench"
)

func newBenchFleet(a *App) *cobra.Command {
	var o bench.FleetOptions
	c := &cobra.Command{
		Use:   "fleet",
		Short: "Measure fleets of many resources: time, memory, disk and plugin calls of each resource",
		Long: `Measure fleets of many resources of three phases, started by one selector command and carried out by one plugin.

Server, services and plugin are processes of their own; each fleet has a server of its own. What a resource takes should not
grow with the number of resources. After the start each fleet is read as users read it, by this command line, and the services
are started again. 100,000 resources take minutes, four GiB of memory and one of disk.`,
		Example: `  drover bench fleet
  drover bench fleet --at 10000 --call 1s
  drover bench fleet --at 1000,10000,100000 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, n := range o.At {
				if n < 1 {
					return usage("--at: %d is not 1 or more", n)
				}
			}
			o.Progress = func(line string) { fmt.Fprintln(a.Err, line) }
			report, err := bench.RunFleets(cmd.Context(), o)
			if err != nil {
				return err
			}
			report.Version = host.Version()
			return a.printReport(report, func() string { return fleetText(report) })
		},
	}
	f := c.Flags()
	f.IntSliceVar(&o.At, "at", []int{1000, 10_000, 100_000}, "resources of each fleet")
	f.StringSliceVar(&o.Sync, "sync", []string{"default"}, "the server's sync modes to measure")
	f.DurationVar(&o.Call, "call", 0*time.Second, "how long each call of the plugin lasts, however many resources it is given")
	f.StringVar(&o.Dir, "dir", "", "folder on the disk to measure (default the system's temporary folder)")
	return c
}

// fleetText is the report as a table, one column a fleet.
func fleetText(r bench.FleetReport) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, Drover %s\nserver, services, plugin and load are processes of their own on these cores\n\n", r.Machine, r.Version)
	row := func(title string, cell func(bench.FleetFigure) string) {
		fmt.Fprintf(&b, "%-44s", title)
		for _, f := range r.Rows {
			fmt.Fprintf(&b, "%20s", cell(f))
		}
		b.WriteString("\n")
	}
	row("resources", func(f bench.FleetFigure) string { return fmt.Sprintf("%s/%d", f.Sync, f.Resources) })
	row("applied, ms a resource", func(f bench.FleetFigure) string { return fmt.Sprintf("%.3f", float64(f.Apply)) })
	row("start: the last was asked after, s", func(f bench.FleetFigure) string { return fmt.Sprintf("%.1f", float64(f.Walked)) })
	row("start: the job has ended after, s", func(f bench.FleetFigure) string { return fmt.Sprintf("%.1f", float64(f.Start)) })
	row("start, ms a resource", func(f bench.FleetFigure) string { return fmt.Sprintf("%.3f", float64(f.Each)) })
	row("start, phases per second", func(f bench.FleetFigure) string { return fmt.Sprintf("%.0f", f.Phases) })
	processes := []string{"server", "services", "plugin"}
	for _, p := range processes {
		row("start, CPU s per 1,000 resources, "+p, func(f bench.FleetFigure) string { return fmt.Sprintf("%.3f", f.CPU[p]) })
	}
	for _, p := range processes {
		row("peak memory MiB (KiB a resource), "+p, func(f bench.FleetFigure) string { return fmt.Sprintf("%d (%.1f)", f.Peak[p], f.PeakEach[p]) })
	}
	row("disk, bytes a resource", func(f bench.FleetFigure) string { return fmt.Sprintf("%.0f", f.DiskEach) })
	streams := map[string]bool{}
	for _, f := range r.Rows {
		for stream := range f.Disk {
			streams[stream] = true
		}
	}
	for _, stream := range slices.Sorted(maps.Keys(streams)) {
		row("disk MiB, "+stream, func(f bench.FleetFigure) string { return fmt.Sprintf("%.1f", f.Disk[stream]) })
	}
	for i := range r.Rows[0].Calls {
		phase := r.Rows[0].Calls[i].Phase
		row("calls of "+phase+" (largest, median)", func(f bench.FleetFigure) string {
			return fmt.Sprintf("%d (%d, %d)", f.Calls[i].Calls, f.Calls[i].Largest, f.Calls[i].Median)
		})
		row("resources of "+phase+" (in two calls)", func(f bench.FleetFigure) string {
			return fmt.Sprintf("%d (%d)", f.Calls[i].Resources, f.Calls[i].Twice)
		})
	}
	row("takeover by new services, s (MiB)", func(f bench.FleetFigure) string { return fmt.Sprintf("%.1f (%d)", float64(f.Takeover), f.Again) })
	for i := range r.Rows[0].Reads {
		row("drover "+r.Rows[0].Reads[i].Command+", s (MiB)", func(f bench.FleetFigure) string {
			return fmt.Sprintf("%.2f (%d)", float64(f.Reads[i].Took), f.Reads[i].Peak)
		})
	}
	return b.String()
}
