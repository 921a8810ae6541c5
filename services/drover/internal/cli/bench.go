package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/drover/internal/bench"
)

func newBench(a *App) *cobra.Command {
	var o bench.Options
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure what Drover does on this machine, against raw JetStream",
		Long: `Measure phases per second, latency, CPU and memory on this machine.

A NATS server with the services in its process (or apart, with --apart) and a worker are started on free ports and a
temporary folder, and are removed afterwards. Every rate stands beside that of raw JetStream: an asynchronous publish of messages of the
same size to the same server in the same run. Set ` + bench.EnvProfile + ` to a folder to get CPU profiles.`,
		Example: `  drover bench
  drover bench --sync always --state-bytes 300 --for 5s -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress = func(line string) { fmt.Fprintln(a.Err, line) }
			report, err := bench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			report.Version = host.Version()
			return a.printReport(report, func() string { return benchText(report) })
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Sync, "sync", []string{"default", "always"}, "the server's sync modes to measure")
	f.IntSliceVar(&o.StateBytes, "state-bytes", []int{300, 4096}, "bytes of attributes in each state")
	f.IntVar(&o.InFlight, "in-flight", 200, "jobs at once in the steady measurement")
	f.DurationVar(&o.For, "for", 8*time.Second, "how long the steady measurement lasts")
	f.IntVar(&o.Burst, "burst", 10_000, "jobs that are started at once")
	f.IntVar(&o.Idle, "idle", 300, "jobs of one idle resource that are timed")
	f.BoolVar(&o.Apart, "apart", false, "run server and services as processes of their own, as on a cluster")
	f.StringVar(&o.Dir, "dir", "", "folder on the disk to measure (default the system's temporary folder)")
	c.AddCommand(newBenchTrees(a), newBenchMachines(a), newBenchFleet(a), newBenchSystem(a))
	return c
}

// printReport prints what was measured, in the form that was asked for.
func (a *App) printReport(report any, text func() string) error {
	return a.printItems([]item{{name: "bench", json: jsonOf(report)}}, true, func() error { return a.printf("%s", text()) })
}

// benchText is the report as a table, one column a combination.
func benchText(r bench.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, Drover %s\nworker and load are processes of their own on these cores\n\n", r.Machine, r.Version)
	row := func(title string, cell func(bench.Figure) string) {
		fmt.Fprintf(&b, "%-44s", title)
		for _, f := range r.Rows {
			fmt.Fprintf(&b, "%16s", cell(f))
		}
		b.WriteString("\n")
	}
	row("", func(f bench.Figure) string { return fmt.Sprintf("%s/%dB", f.Sync, f.StateBytes) })
	row("phases per second, steady", func(f bench.Figure) string { return fmt.Sprintf("%.0f", f.SteadyPhases) })
	row("phases per second, burst", func(f bench.Figure) string { return fmt.Sprintf("%.0f", f.BurstPhases) })
	row("raw JetStream, messages per second", func(f bench.Figure) string { return fmt.Sprintf("%.0f", f.RawMessages) })
	row("bytes of an event", func(f bench.Figure) string { return fmt.Sprint(f.EventBytes) })
	row("phases per raw message, steady", func(f bench.Figure) string { return fmt.Sprintf("%.3f", f.SteadyRatio) })
	row("phases per raw message, burst", func(f bench.Figure) string { return fmt.Sprintf("%.3f", f.BurstRatio) })
	row("three phases of one idle resource, p50 ms", func(f bench.Figure) string { return fmt.Sprintf("%.2f", float64(f.IdleP50)) })
	row("three phases of one idle resource, p99 ms", func(f bench.Figure) string { return fmt.Sprintf("%.2f", float64(f.IdleP99)) })
	measured := func(p string) bool {
		return slices.ContainsFunc(r.Rows, func(f bench.Figure) bool { _, ok := f.CPU[p]; return ok })
	}
	for _, p := range []string{"up", "server", "services", "worker", "load"} {
		if !measured(p) {
			continue
		}
		row("CPU seconds per 1,000 jobs, "+p, func(f bench.Figure) string { return fmt.Sprintf("%.3f", f.CPU[p]) })
	}
	for _, p := range []string{"up", "server", "services", "worker"} {
		if !measured(p) {
			continue
		}
		row("memory MiB, "+p, func(f bench.Figure) string { return fmt.Sprint(f.Memory[p]) })
	}
	if slices.ContainsFunc(r.Rows, func(f bench.Figure) bool { return f.Lost > 0 }) {
		row("job ends that the feed did not bring", func(f bench.Figure) string { return fmt.Sprint(f.Lost) })
	}
	return b.String()
}
