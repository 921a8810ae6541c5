package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/selector"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// kindBlueprint is the kind under which blueprints are applied and deleted; a blueprint's name is the kind it defines.
const kindBlueprint = manifest.KindBlueprint

// target is one resource, or one blueprint, that a command line names.
type target struct{ kind, name string }

func (t target) String() string { return t.kind + "/" + t.name }

// safe is the target for a terminal.
func (t target) safe() string { return render.Text(t.String()) }

func (t target) key(project string) resource.Key {
	return resource.Key{Project: project, Kind: t.kind, Name: t.name}
}

func (t target) entity(project string) bus.Entity {
	return bus.Entity{Family: bus.Resource, Project: project, Kind: t.kind, Name: t.name}
}

// isBlueprint reports whether a kind on the command line means blueprints.
func isBlueprint(kind string) bool {
	return kind == "blueprint" || kind == "blueprints" || kind == kindBlueprint
}

// wordJobs is what means jobs where a kind is named.
const wordJobs = "jobs"

// special reports whether a kind on the command line means something else than resources. A project may have a kind of its own
// that is called like one of these words; then it means that kind. What no blueprint may be called is not asked for.
func (a *App) special(ctx context.Context, kind string) (bool, error) {
	switch {
	case isBlueprint(kind), kind == resource.MachineKind, check.IsKind(kind):
		return true, nil
	case kind != wordJobs && !isMachine(kind) && !isInstance(kind) && !isCheck(kind):
		return false, nil
	}
	ctx, cancel := a.bounded(ctx, RequestTimeout)
	defer cancel()
	b, err := a.bus(ctx)
	if err != nil {
		return false, err
	}
	_, err = getBlueprint(ctx, b, a.project, kind)
	if errors.Is(err, bus.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// parseTarget reads KIND/NAME. A name may hold further slashes.
func parseTarget(arg string) (target, error) {
	kind, name, ok := strings.Cut(arg, "/")
	if !ok {
		return target{}, usage("%q is not of the form KIND/NAME", arg)
	}
	t := target{kind: kind, name: name}
	if err := checkName("kind", kind); err != nil {
		return target{}, err
	}
	if err := checkName("name", name); err != nil {
		return target{}, err
	}
	if isBlueprint(kind) {
		t.kind = kindBlueprint
	}
	return t, nil
}

func checkName(field, name string) error {
	if reason := manifest.CheckName(name); reason != "" {
		return usage("%s %q %s", field, name, reason)
	}
	return nil
}

// targetFlags are how a command is told what to act on, beside its arguments.
type targetFlags struct {
	all      bool
	selector string
}

func (f *targetFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.all, "all", false, "all resources of the kind")
	cmd.Flags().StringVarP(&f.selector, "selector", "l", "", "those of the kind whose labels match, as in rack=a,size!=small")
}

const targetHelp = `Resources are named KIND/NAME, or KIND NAME..., or KIND with --all or -l SELECTOR.`

const manyHelp = `With --all or -l it is one job, which asks all that match and goes on without this command line: see
` + "`drover jobs show ID`" + `. It fails where one of them refuses or fails.`

// resolve turns arguments into targets, in the order in which they are to be acted on. With --all or a selector it reads
// the bucket.
func (f *targetFlags) resolve(ctx context.Context, a *App, args []string) ([]target, error) {
	if f.all || f.selector != "" {
		return f.match(ctx, a, args)
	}
	if len(args) == 0 {
		return nil, usage("name what to act on: KIND/NAME, or KIND with --all or -l SELECTOR")
	}
	targets, err := namedTargets(args)
	if err != nil {
		return nil, err
	}
	if targets == nil {
		return nil, usage("%q names a kind: say which by KIND/NAME, --all or -l SELECTOR", args[0])
	}
	return targets, nil
}

// namedTargets reads KIND/NAME... or KIND NAME...; nil means that only a kind was named.
func namedTargets(args []string) ([]target, error) {
	if !strings.Contains(args[0], "/") {
		if len(args) == 1 {
			return nil, checkName("kind", args[0])
		}
		kind := args[0]
		args = slices.Clone(args[1:])
		for i, name := range args {
			args[i] = kind + "/" + name
		}
	}
	targets := make([]target, 0, len(args))
	for _, arg := range args {
		t, err := parseTarget(arg)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	if len(targets) > TargetsMax {
		return nil, usage("more than %d resources", TargetsMax)
	}
	return targets, nil
}

// chosen is the kind, and which of its resources --all or --selector choose.
func (f *targetFlags) chosen(args []string) (kind string, sel selector.Selector, err error) {
	if len(args) != 1 || strings.Contains(args[0], "/") {
		return "", sel, usage("--all and --selector take one KIND and no names")
	}
	if f.all && f.selector != "" {
		return "", sel, usage("--all and --selector exclude each other")
	}
	kind = args[0]
	if err := checkName("kind", kind); err != nil {
		return "", sel, err
	}
	if isBlueprint(kind) {
		return "", sel, usage("--all and --selector are for resources; name blueprints one by one")
	}
	if sel, err = selector.Parse(f.selector); err != nil {
		return "", sel, usage("%w", err)
	}
	return kind, sel, nil
}

func (f *targetFlags) match(ctx context.Context, a *App, args []string) ([]target, error) {
	kind, sel, err := f.chosen(args)
	if err != nil {
		return nil, err
	}
	b, err := a.bus(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := listResources(ctx, b, a.project, kind, sel)
	if err != nil {
		return nil, err
	}
	if len(entries) > TargetsMax {
		return nil, usage("%d resources match; one command line acts on at most %d", len(entries), TargetsMax)
	}
	targets := make([]target, len(entries))
	for i, e := range entries {
		targets[i] = target{kind: e.State.Kind, name: e.State.Name}
	}
	if len(targets) == 0 {
		a.tell("no resource of kind %s in project %s matches", render.Text(kind), render.Text(a.project))
	}
	return targets, nil
}

// entry is one resource as its bucket holds it.
type entry struct {
	wire.ResourceEvent
	stored bus.Stored
}

func (e *entry) target() target { return target{kind: e.State.Kind, name: e.State.Name} }

func decodeEntry(s bus.Stored) (entry, error) {
	event, err := wire.DecodeResource(s.Body)
	if err != nil {
		return entry{}, fmt.Errorf("decode %s in bucket %s: %w", s.Entity.Key(), bus.Resource.Bucket(), err)
	}
	return entry{ResourceEvent: event, stored: s}, nil
}

// getResource reads one resource.
func getResource(ctx context.Context, b bus.Readers, project string, t target) (entry, error) {
	s, err := b.Get(ctx, t.entity(project))
	if err != nil || s.Deleted {
		return entry{}, fmt.Errorf("%s in project %s: %w", t, project, absent(err))
	}
	return decodeEntry(s)
}

// absent is err, or ErrNotFound without what the bus has to add, which the user has just typed.
func absent(err error) error {
	if err == nil || errors.Is(err, bus.ErrNotFound) {
		return bus.ErrNotFound
	}
	return err
}

// listResources reads the resources of a project, or of one kind of it, sorted by kind and name.
func listResources(ctx context.Context, b bus.Readers, project, kind string, sel selector.Selector) ([]entry, error) {
	var entries []entry
	err := b.List(ctx, bus.Resource, project, kind, func(s bus.Stored) error {
		if s.Deleted {
			return nil
		}
		e, err := decodeEntry(s)
		if err == nil && !e.State.Gone && sel.Matches(e.State.Labels) {
			entries = append(entries, e)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list bucket %s: %w", bus.Resource.Bucket(), err)
	}
	slices.SortFunc(entries, func(x, y entry) int {
		return cmp.Or(cmp.Compare(x.State.Kind, y.State.Kind), natural(x.State.Name, y.State.Name))
	})
	return entries, nil
}

// natural orders names with numbers as people do: web-2 before web-10.
func natural(x, y string) int {
	i, j := 0, 0
	for i < len(x) && j < len(y) {
		if digit(x[i]) && digit(y[j]) {
			xEnd, yEnd := numberEnd(x, i), numberEnd(y, j)
			xn, yn := strings.TrimLeft(x[i:xEnd], "0"), strings.TrimLeft(y[j:yEnd], "0")
			if c := cmp.Or(cmp.Compare(len(xn), len(yn)), cmp.Compare(xn, yn)); c != 0 {
				return c
			}
			i, j = xEnd, yEnd
			continue
		}
		if x[i] != y[j] {
			return cmp.Compare(x[i], y[j])
		}
		i, j = i+1, j+1
	}
	return cmp.Or(cmp.Compare(len(x)-i, len(y)-j), cmp.Compare(x, y))
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func numberEnd(s string, i int) int {
	for i < len(s) && digit(s[i]) {
		i++
	}
	return i
}
