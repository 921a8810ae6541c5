package cli

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/definition"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/plugin/announce"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newPluginAnnounce(a *App) *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "announce --definition FILE...",
		Short: "Add the phases and listeners of definition files, and run nothing",
		Long: `Add the phase of each definition file to the blueprints of its kinds, and its state listener to the listeners. The same
again changes nothing. A kind's blueprint must be there, with its lifecycle and states. What a phase's definition cannot
say (timeout, interval, retry, …) stays as the blueprint has it; a phase stays until a blueprint without it is applied.`,
		Example: `  drover plugin announce --definition create_volume.txt --definition create_instance.txt`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.bounded(cmd.Context(), RequestTimeout)
			defer cancel()
			if len(files) == 0 {
				return usage("name what to announce: --definition FILE")
			}
			d, err := a.duties(nil, files)
			if err != nil {
				return err
			}
			b, err := a.bus(ctx)
			if err != nil {
				return err
			}
			var outcomes []announced
			err = a.announce(ctx, b, d, func(o announced) { outcomes = append(outcomes, o) })
			items := make([]item, len(outcomes))
			for i, o := range outcomes {
				items[i] = item{name: o.text(), json: jsonOf(o)}
			}
			return errors.Join(err, a.printItems(items, false, func() error {
				for _, o := range outcomes {
					if err := a.printf("%s  %s\n", render.Text(o.text()), o.Outcome); err != nil {
						return err
					}
				}
				return nil
			}))
		},
	}
	cmd.Flags().StringArrayVar(&files, "definition", nil, "definition `FILE` of a phase or a state listener; may be given again")
	return cmd
}

// duties is what a plugin does.
type duties struct {
	phases    []bus.Phase
	defined   []definedPhase
	listeners []definedListener
}

type definedPhase struct {
	kind string
	*definition.Phase
}

type definedListener struct {
	name string // of the Listener: the definition file's own, without its extension
	*definition.Listener
}

// duties reads what the command line says is to be done. All mistakes of the files are told; then it fails.
func (a *App) duties(phases, files []string) (*duties, error) {
	d := &duties{}
	for _, text := range phases {
		phase, err := a.parsePhase(text)
		if err != nil {
			return nil, err
		}
		d.add(phase)
	}
	mistakes := 0
	for _, file := range files {
		body, err := readBounded(file, definition.FileBytesMax)
		if err != nil {
			return nil, fail(ExitError, "%w", err)
		}
		defined, err := definition.Parse(body)
		var wrong definition.Errors
		if errors.As(err, &wrong) {
			for _, e := range wrong {
				mistakes++
				a.tell("%s %s:%s", a.errPaint.Bad("error:"), render.Text(file), render.Text(e.Error()))
			}
			continue
		}
		if p := defined.Phase; p != nil {
			for _, kind := range p.Kinds {
				if slices.ContainsFunc(d.defined, func(o definedPhase) bool { return o.kind == kind && o.Name == p.Name }) {
					return nil, usage("--definition: two files define the phase %q of kind %q; its name must be unique", p.Name, kind)
				}
				d.defined = append(d.defined, definedPhase{kind, p})
				d.add(bus.Phase{Project: a.project, Kind: kind, Phase: p.Name})
			}
		}
		if l := defined.Listener; l != nil {
			name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
			if reason := manifest.CheckName(name); reason != "" {
				return nil, usage("--definition: %q, which names the listener, %s", name, reason)
			}
			if slices.ContainsFunc(d.listeners, func(o definedListener) bool { return o.name == name }) {
				return nil, usage("--definition: two files name the listener %q", name)
			}
			d.listeners = append(d.listeners, definedListener{name, l})
		}
	}
	switch {
	case mistakes > 0:
		return nil, exitWith(ExitError)
	case len(d.phases) == 0 && len(d.listeners) == 0:
		return nil, usage("name what to do: --definition FILE, or --phase KIND/PHASE")
	}
	return d, nil
}

// add adds a phase once.
func (d *duties) add(phase bus.Phase) {
	if !slices.Contains(d.phases, phase) {
		d.phases = append(d.phases, phase)
	}
}

// announced is what became of a phase or a listener, as it is printed.
type announced struct {
	What    string `json:"what"` // phase or listener
	Kind    string `json:"kind,omitempty"`
	Name    string `json:"name"`
	Project string `json:"project"`
	Outcome string `json:"outcome"` // added, changed or unchanged
}

func (o *announced) text() string {
	if o.Kind == "" {
		return o.What + " " + o.Name
	}
	return o.What + " " + o.Kind + "/" + o.Name
}

// announce adds all that is defined, one after another, and tells what became of each.
func (a *App) announce(ctx context.Context, b announce.Bus, d *duties, tell func(announced)) error {
	o := announce.Options{RequestedBy: a.user(), Waiting: func(reason string) { a.tell("%s", render.Text(reason)) }}
	for _, p := range ordered(d.defined) {
		outcome, err := announce.Phase(ctx, b, a.project, p.kind, p.Phase, o)
		if err != nil {
			return announceFailure(err)
		}
		tell(announced{What: "phase", Kind: p.kind, Name: p.Name, Project: a.project, Outcome: outcome.String()})
	}
	for _, l := range d.listeners {
		outcome, err := announce.Listener(ctx, b, a.project, l.name, l.Listener, o)
		if err != nil {
			return announceFailure(err)
		}
		tell(announced{What: "listener", Name: l.name, Project: a.project, Outcome: outcome.String()})
	}
	return nil
}

// ordered puts phases behind those of the same command line on which they depend, which would else be waited for in
// vain.
func ordered(phases []definedPhase) []definedPhase {
	rest, order := slices.Clone(phases), []definedPhase(nil)
	for len(rest) > 0 {
		i := slices.IndexFunc(rest, func(p definedPhase) bool {
			return !slices.ContainsFunc(rest, func(o definedPhase) bool {
				return o.kind == p.kind && o.Name != p.Name && slices.Contains(p.DependsOn, o.Name)
			})
		})
		i = max(i, 0) // they depend on each other: the blueprint says so
		order, rest = append(order, rest[i]), slices.Delete(rest, i, i+1)
	}
	return order
}

func announceFailure(err error) error {
	switch {
	case errors.Is(err, announce.ErrNoBlueprint):
		return fail(ExitNotFound, "%w", err)
	case errors.Is(err, announce.ErrTaken):
		return fail(ExitConflict, "%w", err)
	}
	return err
}
