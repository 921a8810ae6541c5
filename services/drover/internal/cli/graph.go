package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/selector"
	"github.com/droverproject/drover/services/drover/internal/graph"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// graphFlags say what is drawn, and how.
type graphFlags struct {
	format string
	file   string
	items  int
}

// graphFormats are the values of --format.
var graphFormats = []string{"mermaid", "dot"}

func newGraph(a *App) *cobra.Command {
	f := graphFlags{}
	cmd := &cobra.Command{
		Use:   "graph (KIND | KIND/NAME | -f FILE [KIND])",
		Short: "Draw a blueprint, a resource or a tree, as Mermaid or DOT",
		Long: `Draw what a kind can do: its states, the flows that lead from one to the next, and the phases of each state with what
they depend on. Of a resource it also shows where it is and how each phase stands, and of one with children the children
with what they depend on. A blueprint in a file is drawn without a server.

Thick arrows are flows, named by their verbs; dashed ones lead where a failure leads; thin ones go from what must be done
first to what waits for it. -o json has the same as lists of nodes and edges.`,
		Example: `  drover graph node                                 Mermaid, for Markdown
  drover graph node/web-1 --format dot | dot -Tsvg > web-1.svg
  drover graph execution/oak --items 50
  drover graph -f blueprint.yaml
  drover graph node -o json | jq '.nodes[].label[0]'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeGraph,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			if !slices.Contains(graphFormats, f.format) {
				return usage("--format: %q is none of %s", f.format, strings.Join(graphFormats, ", "))
			}
			if f.items < 1 || f.items > graph.ItemsMax {
				return usage("--items: is not 1 to %d", graph.ItemsMax)
			}
			g, err := a.draw(ctx, &f, args)
			if err != nil {
				return err
			}
			return a.printItems([]item{{name: g.Title, json: jsonOf(g)}}, true, func() error {
				if f.format == "dot" {
					return g.DOT(a.Out)
				}
				return g.Mermaid(a.Out)
			})
		}),
	}
	cmd.Flags().StringVar(&f.format, "format", "mermaid", "mermaid|dot")
	cmd.Flags().StringVarP(&f.file, "filename", "f", "", "`FILE` of manifests, or - for stdin, instead of what the server has")
	cmd.Flags().IntVar(&f.items, "items", graph.ItemsMax, "most children that are drawn, a `NUMBER`; those that are not done come first")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(graphFormats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *App) draw(ctx context.Context, f *graphFlags, args []string) (*graph.Graph, error) {
	if f.file != "" {
		b, err := a.blueprintOfFile(f.file, args)
		if err != nil {
			return nil, err
		}
		return graph.OfBlueprint(b), nil
	}
	if len(args) == 0 {
		return nil, usage("name what to draw: KIND, KIND/NAME, or -f FILE")
	}
	kind, name, named := strings.Cut(args[0], "/")
	if named && isBlueprint(kind) {
		kind, named = name, false
	}
	if err := checkName("kind", kind); err != nil {
		return nil, err
	}
	ctx, b, cancel, err := a.patiently(ctx) // of a tree the whole bucket is read
	defer cancel()
	if err != nil {
		return nil, err
	}
	of, err := getBlueprint(ctx, b, a.project, kind)
	if err != nil {
		return nil, notFoundHint(err, target{kind: "blueprints"})
	}
	if of.Blueprint == nil {
		return nil, fail(ExitError, "blueprint/%s cannot be read by this version", kind).withHint("`drover get blueprint/%s -o json` shows it", kind)
	}
	if !named {
		return graph.OfBlueprint(of.Blueprint), nil
	}
	t, err := parseTarget(args[0])
	if err != nil {
		return nil, err
	}
	return a.drawResource(ctx, b, &of, t, f.items)
}

// drawResource draws one by the blueprint as it is now, which is not always the one that its job has pinned.
func (a *App) drawResource(ctx context.Context, b Bus, of *blueprintEntry, t target, most int) (*graph.Graph, error) {
	e, err := getResource(ctx, b, a.project, t)
	if err != nil {
		return nil, notFoundHint(err, t)
	}
	s := &e.State
	if j := s.Job(); j != nil && j.Blueprint != "" && j.Blueprint != of.BlueprintEvent.Digest {
		a.tell("job %s began with another version of the blueprint; what phases depend on is drawn as it is now", render.Text(j.ID))
	}
	if s.Children == (resource.Brood{}) {
		return graph.OfResource(of.Blueprint, s), nil
	}
	all, err := listResources(ctx, b, a.project, "", selector.Selector{})
	if err != nil {
		return nil, err
	}
	children := slices.DeleteFunc(all, func(c entry) bool { return c.State.Parent.Name != s.Name || c.State.Parent.UID != s.UID })
	byPlace := func(x, y entry) int { return cmp.Compare(x.State.Parent.Index, y.State.Parent.Index) }
	more := len(children) - most
	if more > 0 {
		slices.SortStableFunc(children, func(x, y entry) int {
			return cmp.Or(cmp.Compare(standingOf(s, &x.State), standingOf(s, &y.State)), byPlace(x, y))
		})
		children = children[:most]
		a.tell("%d of %d children are drawn, those that are not done first", most, most+more)
	}
	slices.SortStableFunc(children, byPlace)
	drawn := make([]graph.Child, len(children))
	for i := range children {
		drawn[i] = childOf(s, &children[i].State)
	}
	return graph.OfTree(of.Blueprint, s, drawn, max(more, 0)), nil
}

// childOf is a child as it stands in the job of its parent.
func childOf(parent, child *resource.State) graph.Child {
	c := graph.Child{State: child}
	switch standingOf(parent, child) {
	case childFailed:
		c.Status = graph.Failed
		if why := resource.Why(child); len(why) > 0 {
			c.Word = why[0].Text
		}
	case childAtWork:
		c.Status = graph.Busy
	case childWaits:
		c.Status, c.Word = graph.Idle, "waits for its turn"
	case childDone:
		c.Status = graph.Done
	}
	return c
}

// blueprintOfFile is the blueprint of a file; where there are several, args must name one.
func (a *App) blueprintOfFile(file string, args []string) (*blueprint.Blueprint, error) {
	documents, err := a.readManifests([]string{file}, false)
	if err != nil {
		return nil, err
	}
	var kinds []string
	var chosen []*document
	for i := range documents {
		d := &documents[i]
		if !d.blueprint() {
			continue
		}
		kinds = append(kinds, d.Manifest.Name)
		if len(args) == 0 || d.Manifest.Name == strings.TrimPrefix(args[0], "blueprint/") {
			chosen = append(chosen, d)
		}
	}
	switch {
	case len(kinds) == 0:
		return nil, fail(ExitError, "no blueprint in %s", file)
	case len(chosen) == 0:
		return nil, fail(ExitNotFound, "blueprint/%s in %s: %w", args[0], file, bus.ErrNotFound).withHint("it has %s", strings.Join(kinds, ", "))
	case len(chosen) > 1:
		return nil, usage("%s has several blueprints: name one of %s", file, strings.Join(kinds, ", "))
	}
	d := chosen[0]
	b, violations := manifest.Blueprint(d.project(a), d.Manifest.Name, d.Manifest.Spec)
	if len(violations) > 0 { // readManifests has told them
		return nil, fail(ExitError, "%s is no blueprint", d.place(""))
	}
	return b, nil
}

// completeGraph completes kinds and KIND/NAME.
func (a *App) completeGraph(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) > 0:
		return nil, cobra.ShellCompDirectiveNoFileComp
	case strings.Contains(toComplete, "/"):
		return a.completeTargets(cmd, args, toComplete)
	}
	return a.completeKinds(cmd, "", false)
}
