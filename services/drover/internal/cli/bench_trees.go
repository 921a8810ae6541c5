package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/drover/internal/bench"
)

func newBenchTrees(a *App) *cobra.Command {
	var o bench.TreeOptions
	c := &cobra.Command{
		Use:   "trees",
		Short: "Measure executions of many items: time, events, memory and CPU of each item",
		Long: `Measure executions whose items depend on each other at random, deployed by a worker that does nothing, and deleted.

Server, services and worker are processes of their own. The time of an item should not grow with the number of items.`,
		Example: `  drover bench trees
  drover bench trees --items 10000 --sync default -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress = func(line string) { fmt.Fprintln(a.Err, line) }
			report, err := bench.RunTrees(cmd.Context(), o)
			if err != nil {
				return err
			}
			report.Version = host.Version()
			return a.printReport(report, func() string { return treesText(report) })
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Sync, "sync", []string{"default", "always"}, "the server's sync modes to measure")
	f.IntSliceVar(&o.Items, "items", []int{100, 1000, 10_000}, "items of each execution")
	f.StringVar(&o.Dir, "dir", "", "folder on the disk to measure (default the system's temporary folder)")
	return c
}

// treesText is the report as a table, one column an execution.
func treesText(r bench.TreeReport) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, Drover %s\nserver, services, worker and load are processes of their own on these cores\n\n", r.Machine, r.Version)
	row := func(title string, cell func(bench.TreeFigure) string) {
		fmt.Fprintf(&b, "%-44s", title)
		for _, f := range r.Rows {
			fmt.Fprintf(&b, "%16s", cell(f))
		}
		b.WriteString("\n")
	}
	row("items", func(f bench.TreeFigure) string { return fmt.Sprintf("%s/%d", f.Sync, f.Items) })
	row("bytes of the spec", func(f bench.TreeFigure) string { return fmt.Sprint(f.SpecBytes) })
	row("bytes in EVENTS an item, deployed", func(f bench.TreeFigure) string { return fmt.Sprintf("%.0f", f.EventBytes) })
	for _, w := range []struct {
		title string
		walk  func(bench.TreeFigure) bench.Walk
	}{
		{"deploy", func(f bench.TreeFigure) bench.Walk { return f.Deploy }},
		{"delete", func(f bench.TreeFigure) bench.Walk { return f.Delete }},
	} {
		title, walk := w.title, w.walk
		row(title+", ms an item", func(f bench.TreeFigure) string { return fmt.Sprintf("%.2f", float64(walk(f).Item)) })
		row(title+", events an item", func(f bench.TreeFigure) string { return fmt.Sprintf("%.2f", walk(f).Events) })
		row(title+", events of the execution", func(f bench.TreeFigure) string { return fmt.Sprint(walk(f).ParentEvents) })
		for _, p := range []string{"server", "services", "deployer"} {
			row(title+", CPU s per 1,000 items, "+p, func(f bench.TreeFigure) string { return fmt.Sprintf("%.3f", walk(f).CPU[p]) })
		}
	}
	row("deleted and forgotten, ms an item", func(f bench.TreeFigure) string { return fmt.Sprintf("%.2f", float64(f.Forgotten)) })
	for _, p := range []string{"server", "services"} {
		row("deleted and forgotten, CPU s per 1,000, "+p, func(f bench.TreeFigure) string { return fmt.Sprintf("%.3f", f.ForgottenCPU[p]) })
	}
	for _, p := range []string{"server", "services"} {
		row("memory MiB when deployed, "+p, func(f bench.TreeFigure) string { return fmt.Sprint(f.Memory[p]) })
	}
	return b.String()
}
