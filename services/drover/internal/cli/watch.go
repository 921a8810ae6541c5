package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/selector"
	"github.com/droverproject/drover/services/drover/internal/follow"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// watcher prints where resources stand, and each again whenever that changes.
type watcher struct {
	app     *App
	kinds   []string // empty: any
	targets []target // nil: any
	sel     selector.Selector

	last    map[target]uint64 // sequence of what was printed
	present []entry           // what is there at the beginning, until all of it is known
	begun   bool
	parents bool
	table   *render.Table
	printed int
}

// watch is `get --watch`.
func (a *App) watch(ctx context.Context, args []string, sel selector.Selector) error {
	w := &watcher{app: a, sel: sel, last: map[target]uint64{}}
	if len(args) > 0 {
		var err error
		if w.targets, err = namedTargets(args); err != nil {
			return err
		}
		if w.targets == nil {
			w.kinds = strings.Split(args[0], ",")
		}
	}
	for _, kind := range slices.Compact(append(slices.Clone(w.kinds), kindsOf(w.targets)...)) {
		if special, err := a.special(ctx, kind); err != nil {
			return err
		} else if special {
			return usage("--watch is for resources, and not for %s", kind).withHint("`drover events -f` follows the others")
		}
	}
	b, err := a.bus(ctx)
	if err != nil {
		return err
	}
	scope := scopeOf(a.project, w.targets)
	if len(w.kinds) == 1 {
		scope.Kind = w.kinds[0]
	}
	err = follow.Bucket(ctx, b, scope, w.see)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return exitWith(ExitTimeout)
	case errors.Is(err, context.Canceled):
		return nil // Ctrl-C is how one stops watching
	}
	return err
}

func kindsOf(targets []target) []string {
	kinds := make([]string, len(targets))
	for i, t := range targets {
		kinds[i] = t.kind
	}
	return kinds
}

// see takes what the bucket delivers; ok is false when all that is present was delivered, and now and then.
func (w *watcher) see(stored bus.Stored, ok bool) (bool, error) {
	if !ok {
		return false, w.begin()
	}
	t := target{kind: stored.Entity.Kind, name: stored.Entity.Name}
	if w.targets != nil && !slices.Contains(w.targets, t) || len(w.kinds) > 0 && !slices.Contains(w.kinds, t.kind) || stored.Seq <= w.last[t] {
		return false, nil
	}
	e, err := decodeEntry(stored)
	if err != nil {
		return false, err
	}
	known := w.last[t] > 0
	gone := stored.Deleted || e.State.Gone
	if !w.sel.Matches(e.State.Labels) || gone && !known {
		return false, nil
	}
	w.last[t] = stored.Seq
	if !w.begun {
		w.present = append(w.present, e)
		return false, nil
	}
	return false, w.print(&e)
}

// begin prints what was present, once.
func (w *watcher) begin() error {
	if w.begun {
		return nil
	}
	w.begun = true
	slices.SortFunc(w.present, func(x, y entry) int {
		return cmp.Or(cmp.Compare(x.State.Kind, y.State.Kind), natural(x.State.Name, y.State.Name))
	})
	if w.app.human() {
		w.parents = slices.ContainsFunc(w.present, func(e entry) bool { return childrenText(&e.State) != "" })
		w.table = w.app.resourceTable(w.present)
		return w.table.Write(w.app.Out, "")
	}
	for i := range w.present {
		if err := w.print(&w.present[i]); err != nil {
			return err
		}
	}
	w.present = nil
	return nil
}

func (w *watcher) print(e *entry) error {
	w.printed++
	return w.app.printStreamed(resourceItem(e), w.printed == 1, func() error {
		w.table.Row(w.app.resourceRow(e, w.parents)...)
		return w.table.Write(w.app.Out, "")
	})
}
