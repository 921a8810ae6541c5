package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/selector"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newGet(a *App) *cobra.Command {
	var labels string
	var watch bool
	cmd := &cobra.Command{
		Use:     "get [KIND[,KIND...] [NAME...] | KIND/NAME...]",
		Aliases: []string{"list", "ls"},
		Short:   "Show where resources stand",
		Long: `Show resources: all of the project, those of kinds, or some by name. "blueprints" are the kinds that there are,
"jobs" are the jobs, "machines" the machines that agents drive, "instances" the check instances, and "checks" what these are
made of; where the project has a kind of its own that is called so, that kind is meant.

PHASES names the phases that keep a resource in its state, or, where each phase walks by itself (a service), the state
of each. CHILDREN is shown where any has some. JOB is what it is at, or was last, and how many jobs wait behind it. GENERATION counts changes of the spec;
OBSERVED is the one that was last carried out to the end.

With --watch it goes on and prints each resource again whenever it changes; what is deleted has the state (gone).`,
		Example: `  drover get                           everything
  drover get node
  drover get node -l rack=a -o wide
  drover get node/web-1 -o yaml
  drover get node -o json | jq -r '.[] | select(.state.phaseFailed) | .name'
  drover get node --watch
  drover get blueprints`,
		ValidArgsFunction: a.completeGet,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			sel, err := selector.Parse(labels)
			if err != nil {
				return usage("%w", err)
			}
			if watch {
				return a.watch(ctx, args, sel)
			}
			if len(args) == 0 {
				return a.getResources(ctx, args, sel)
			}
			kind, _, _ := strings.Cut(args[0], "/")
			special, err := a.special(ctx, kind)
			switch {
			case err != nil:
				return err
			case !special:
				return a.getResources(ctx, args, sel)
			case !sel.Empty():
				return usage("%s have no labels that --selector could match", kind)
			case isBlueprint(kind):
				return a.getBlueprints(ctx, args)
			case kind == wordJobs:
				if len(args) > 1 {
					return usage("jobs have no names: `drover jobs show ID` shows one")
				}
				return a.listJobs(ctx, jobFilter{})
			case isMachine(kind):
				return a.getMachines(ctx, args)
			case isInstance(kind):
				return a.getInstances(ctx, args)
			default:
				return a.getChecks(ctx, args)
			}
		}),
	}
	cmd.Flags().StringVarP(&labels, "selector", "l", "", "only those whose labels match, as in rack=a,size!=small")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on, and print resources again when they change")
	return cmd
}

func (a *App) getResources(ctx context.Context, args []string, sel selector.Selector) error {
	var targets []target
	kinds := []string{""}
	if len(args) > 0 {
		var err error
		if targets, err = namedTargets(args); err != nil {
			return err
		}
		kinds = strings.Split(args[0], ",")
	}
	ctx, b, cancel, err := a.patiently(ctx)
	defer cancel()
	if err != nil {
		return err
	}
	var entries []entry
	exit := ExitOK
	if targets != nil {
		if !sel.Empty() {
			return usage("--selector is for kinds, and names are given")
		}
		for _, t := range targets {
			e, err := getResource(ctx, b, a.project, t)
			switch {
			case errors.Is(err, bus.ErrNotFound) && len(targets) > 1:
				a.tell("%s %s", a.errPaint.Bad("error:"), render.Text(err.Error()))
				exit = ExitNotFound
			case err != nil:
				return notFoundHint(err, t)
			default:
				entries = append(entries, e)
			}
		}
	} else {
		for _, kind := range kinds {
			more, err := listResources(ctx, b, a.project, kind, sel)
			if err != nil {
				return err
			}
			entries = append(entries, more...)
		}
	}
	items := make([]item, len(entries))
	for i := range entries {
		items[i] = resourceItem(&entries[i])
	}
	err = a.printItems(items, len(targets) == 1, func() error {
		if len(entries) == 0 {
			a.tell("nothing there: no resource%s in project %s", ofKinds(kinds), render.Text(a.project))
			return nil
		}
		return a.resourceTable(entries).Write(a.Out, "")
	})
	if err != nil {
		return err
	}
	return exitWith(exit)
}

func ofKinds(kinds []string) string {
	if len(kinds) == 1 && kinds[0] == "" {
		return ""
	}
	return " of kind " + render.Text(strings.Join(kinds, ", "))
}

func notFoundHint(err error, t target) error {
	if !errors.Is(err, bus.ErrNotFound) {
		return err
	}
	return fail(ExitNotFound, "%w", err).withHint("`drover get %s` lists what there is; --project names another project", t.kind)
}

func (a *App) getBlueprints(ctx context.Context, args []string) error {
	ctx, cancel := a.bounded(ctx, RequestTimeout)
	defer cancel()
	targets, err := namedTargets(args)
	if err != nil {
		return err
	}
	b, err := a.bus(ctx)
	if err != nil {
		return err
	}
	prints, err := listBlueprints(ctx, b, a.project)
	if err != nil {
		return err
	}
	if targets != nil {
		for _, t := range targets {
			if !slices.ContainsFunc(prints, func(p blueprintEntry) bool { return p.kind() == t.name }) {
				return fail(ExitNotFound, "blueprint/%s in project %s: %w", t.name, a.project, bus.ErrNotFound).
					withHint("`drover get blueprints` lists what there is")
			}
		}
		prints = slices.DeleteFunc(prints, func(p blueprintEntry) bool {
			return !slices.Contains(targets, target{kind: kindBlueprint, name: p.kind()})
		})
	}
	items := make([]item, len(prints))
	for i := range prints {
		items[i] = blueprintItem(&prints[i])
	}
	return a.printItems(items, len(targets) == 1, func() error {
		if len(prints) == 0 {
			a.tell("nothing there: no blueprint in project %s", render.Text(a.project))
			return nil
		}
		return a.blueprintTable(prints).Write(a.Out, "")
	})
}

// blueprintTable shows kinds.
func (a *App) blueprintTable(prints []blueprintEntry) *render.Table {
	header := []string{"KIND", "LIFECYCLE", "VERBS", "PHASES", "GENERATION", "AGE"}
	if a.wide() {
		header = append(header, "DIGEST")
	}
	t := render.NewTable(header...)
	for i := range prints {
		p := &prints[i]
		row := []string{
			render.Text(p.kind()), render.Text(p.lifecycle()), render.Text(strings.Join(p.verbs(), ",")),
			fmt.Sprint(len(p.phases())), fmt.Sprint(p.Generation), render.Age(a.Now(), p.At),
		}
		if a.wide() {
			row = append(row, render.Text(p.BlueprintEvent.Digest))
		}
		t.Row(row...)
	}
	return t
}
