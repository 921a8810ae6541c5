package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// What `get` and `describe` show of the checks' front door: "instances" are check instances, "checks" is what they are made of,
// which also goes by its own kinds (Node, CheckConfiguration, …).

func isInstance(kind string) bool { return kind == "instance" || kind == "instances" }

func isCheck(kind string) bool { return kind == "check" || kind == "checks" || check.IsKind(kind) }

// checkEntry is a check instance with its configurations, as the buckets show them.
type checkEntry struct {
	state  deployment.State
	stored bus.Stored
}

// checkItem is one of either family as its last event shows it.
func checkItem(s bus.Stored, name string) item {
	return item{name: name, json: func() ([]byte, error) { return wire.EventJSON(s.Body) }}
}

// getChecks is `get checks`, `get Node`, `get Node/prod/live/web-1`.
func (a *App) getChecks(ctx context.Context, args []string) error {
	ctx, b, cancel, err := a.patiently(ctx)
	defer cancel()
	if err != nil {
		return err
	}
	targets, err := namedTargets(args)
	if err != nil {
		return err
	}
	var found []bus.Stored
	for _, t := range targets {
		if !check.IsKind(t.kind) {
			return usage("%q is no kind that checks are made of; it is one of %s", t.kind, strings.Join(check.Kinds(), ", "))
		}
		s, err := b.Get(ctx, bus.Entity{Family: bus.Check, Project: a.project, Name: check.ID(t.kind, t.name)})
		if err != nil || s.Deleted {
			return notFoundHint(fmt.Errorf("%s in project %s: %w", t, a.project, absent(err)), t)
		}
		found = append(found, s)
	}
	if kind := args[0]; targets == nil {
		err := b.List(ctx, bus.Check, a.project, "", func(s bus.Stored) error {
			if !s.Deleted && (!check.IsKind(kind) || strings.HasPrefix(s.Entity.Name, kind+"/")) {
				found = append(found, s)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("list bucket %s: %w", bus.Check.Bucket(), err)
		}
	}
	slices.SortFunc(found, func(x, y bus.Stored) int { return strings.Compare(x.Entity.Name, y.Entity.Name) })
	items := make([]item, len(found))
	t := render.NewTable("NAME", "GENERATION", "OBSERVED", "STATE", "AGE")
	for i, s := range found {
		e, err := wire.DecodeCheck(s.Body)
		if err != nil {
			return fmt.Errorf("decode %s: %w", s.Entity.Name, err)
		}
		state := ""
		switch {
		case e.State.Deleted():
			state = "(deleted)"
		case e.State.Behind():
			state = "ordering"
		}
		items[i] = checkItem(s, s.Entity.Name)
		t.Row(render.Text(s.Entity.Name), fmt.Sprint(e.State.Generation), fmt.Sprint(e.State.Observed), a.paint.Busy(state), render.Age(a.Now(), e.State.CreatedAt))
	}
	return a.printItems(items, len(targets) == 1, func() error {
		if len(found) == 0 {
			a.tell("nothing there: nothing that checks are made of in project %s", render.Text(a.project))
			return nil
		}
		return t.Write(a.Out, "")
	})
}

// getInstances is `get instances` and `get instance/ID`.
func (a *App) getInstances(ctx context.Context, args []string) error {
	ctx, b, cancel, err := a.patiently(ctx)
	defer cancel()
	if err != nil {
		return err
	}
	targets, err := namedTargets(args)
	if err != nil {
		return err
	}
	var entries []checkEntry
	for _, t := range targets {
		if !isInstance(t.kind) {
			return usage("%s: check instances are shown by themselves", t)
		}
		e, err := readInstance(ctx, b, a.project, t.name)
		if err != nil {
			return notFoundHint(err, target{kind: "instances", name: t.name})
		}
		entries = append(entries, *e)
	}
	if targets == nil {
		err := b.List(ctx, bus.Instance, a.project, "", func(s bus.Stored) error {
			if s.Deleted {
				return nil
			}
			e, err := wire.DecodeInstance(s.Body)
			if err != nil {
				return fmt.Errorf("decode instance %s: %w", s.Entity.Name, err)
			}
			entries = append(entries, checkEntry{e.State, s})
			return nil
		})
		if err != nil {
			return fmt.Errorf("list bucket %s: %w", bus.Instance.Bucket(), err)
		}
	}
	slices.SortFunc(entries, func(x, y checkEntry) int {
		return strings.Compare(x.state.Check+" "+x.state.Object+" "+x.state.ID, y.state.Check+" "+y.state.Object+" "+y.state.ID)
	})
	items := make([]item, len(entries))
	t := render.NewTable("INSTANCE", "CHECK", "OBJECT", "SYSTEM", "STATUS", "VERSION", "UPDATE", "AGE")
	for i := range entries {
		e := &entries[i]
		s := &e.state
		items[i] = checkItem(e.stored, "instance/"+s.ID)
		status, version, update := "-", "-", ""
		if c := s.Present(); c != nil {
			status, version = c.Status.String(), fmt.Sprint(c.Version)
		}
		if s.UpdateAvailable {
			update = "available"
		}
		if s.Deleted {
			status += " (deleted)"
		}
		t.Row(render.Text(s.ID), render.Text(s.Check), render.Text(s.Object), render.Text(s.System), a.statusText(s, status), version, update, render.Age(a.Now(), s.CreatedAt))
	}
	return a.printItems(items, len(targets) == 1, func() error {
		if len(entries) == 0 {
			a.tell("nothing there: no check instance in project %s", render.Text(a.project))
			return nil
		}
		return t.Write(a.Out, "")
	})
}

func (a *App) statusText(s *deployment.State, text string) string {
	switch c := s.Present(); {
	case c == nil:
		return text
	case c.Status == deployment.RolloutFailed || c.Status == deployment.DeprovisionFailed:
		return a.paint.Bad(text)
	case c.Status == deployment.Active && !s.Deleted || s.Ended():
		return a.paint.Good(text)
	default:
		return a.paint.Busy(text)
	}
}

// readInstance reads an instance and its configurations.
func readInstance(ctx context.Context, b Bus, project, id string) (*checkEntry, error) {
	s, err := b.Get(ctx, bus.Entity{Family: bus.Instance, Project: project, Name: id})
	if err != nil || s.Deleted {
		return nil, fmt.Errorf("instance/%s in project %s: %w", id, project, absent(err))
	}
	e, err := wire.DecodeInstance(s.Body)
	if err != nil {
		return nil, fmt.Errorf("decode instance %s: %w", id, err)
	}
	for i := range e.State.Configurations {
		c := &e.State.Configurations[i]
		stored, err := b.Get(ctx, bus.Entity{Family: bus.Deployment, Project: project, Name: c.ID})
		switch {
		case errors.Is(err, bus.ErrNotFound) || err == nil && stored.Deleted:
			continue // buried, or not derived yet
		case err != nil:
			return nil, fmt.Errorf("deployment %s: %w", c.ID, err)
		}
		full, err := wire.DecodeDeployment(stored.Body)
		if err != nil {
			return nil, fmt.Errorf("decode deployment %s: %w", c.ID, err)
		}
		*c = full.Configuration
	}
	return &checkEntry{e.State, s}, nil
}

// describeInstance returns how one is shown, as an item and in words.
func (a *App) describeInstance(ctx context.Context, b Bus, id string) (item, func(io.Writer) error, error) {
	e, err := readInstance(ctx, b, a.project, id)
	if err != nil {
		return item{}, nil, notFoundHint(err, target{kind: "instances", name: id})
	}
	why := deployment.Why(&e.state)
	it := item{name: "instance/" + id, json: func() ([]byte, error) {
		event, err := wire.EventJSON(e.stored.Body)
		if err != nil {
			return nil, err
		}
		reasons := make([]reasonJSON, len(why))
		for i, r := range why {
			reasons[i] = reasonJSON{Code: string(r.Code), Of: r.Of, Text: r.Text}
		}
		more, err := render.Marshal(map[string]any{"why": reasons})
		if err != nil {
			return nil, err
		}
		return append(append(slices.Clone(event[:len(event)-1]), ','), more[1:]...), nil
	}}
	return it, func(w io.Writer) error { return a.writeInstance(w, &e.state, why) }, nil
}

func (a *App) writeInstance(w io.Writer, s *deployment.State, why []deployment.Reason) error {
	sheet := &sheet{w: w, paint: a.paint}
	now := a.Now()
	t := render.NewTable()
	row := func(name, value string) { t.Row(a.paint.Bold(name), value) }
	row("Instance", render.Text(s.ID))
	row("Check", render.Text(s.Check))
	row("Object", render.Text(s.Object))
	row("System", render.Text(s.System))
	row("Update", map[bool]string{true: "available", false: "-"}[s.UpdateAvailable])
	row("Notified", moment(now, s.NotifiedAt))
	if s.Deleted {
		row("Deleted", "yes")
	}
	row("Revision", fmt.Sprint(s.Revision))
	row("Created", moment(now, s.CreatedAt))
	row("Updated", moment(now, s.UpdatedAt))
	sheet.table(t, "")
	sheet.heading("Configurations")
	table := render.NewTable("VERSION", "STATUS", "NEXT", "SINCE", "BLOCKED ON", "ID")
	for i := range s.Configurations {
		c := &s.Configurations[i]
		mark := ""
		if c.ID == s.Current {
			mark = " (present)"
		}
		table.Row(fmt.Sprint(c.Version)+mark, c.Status.String(), c.Next.String(), render.Age(now, c.Since), render.Text(c.BlockedOn), render.Text(c.ID))
	}
	sheet.table(table, "  ")
	if c := s.Present(); c != nil && c.Details != nil {
		body, err := json.Marshal(c.Details)
		if err != nil {
			return err
		}
		sheet.heading("Details")
		sheet.json(string(body), math.MaxInt)
	}
	sheet.heading("Why it is where it is")
	if len(why) == 0 {
		sheet.line("  Nothing is asked of it.")
	}
	for _, r := range why {
		line := render.Text(r.Text)
		if !r.Since.IsZero() {
			line += a.paint.Dim("  since " + render.Age(now, r.Since))
		}
		if r.Until.After(now) {
			line += a.paint.Dim("  until in " + render.Span(r.Until.Sub(now)))
		}
		sheet.line("  %s", line)
	}
	return sheet.err
}

// checkEvent is one event of the checks' families for people.
func checkEvent(s bus.Stored) (*eventLine, error) {
	switch s.Entity.Family {
	case bus.Check:
		e, err := wire.DecodeCheck(s.Body)
		if err != nil {
			return nil, fmt.Errorf("decode check %s: %w", s.Entity.Name, err)
		}
		to := fmt.Sprintf("generation %d", e.State.Generation)
		switch {
		case e.Gone || s.Deleted:
			to = "gone"
		case e.State.Deleted():
			to = "deleted"
		case e.State.Behind():
			to += ", ordering"
		}
		return &eventLine{
			at: e.At, what: s.Entity.Name, transition: "→ " + to, cause: causeText(e.Cause), job: e.JobID,
			life: life{uid: e.State.UID, revision: e.State.Revision},
		}, nil
	case bus.Instance:
		e, err := wire.DecodeInstance(s.Body)
		if err != nil {
			return nil, fmt.Errorf("decode instance %s: %w", s.Entity.Name, err)
		}
		to := transition(e.From.String(), e.To.String())
		if e.Gone || s.Deleted {
			to = "→ gone"
		}
		return &eventLine{
			at: e.At, what: "instance/" + e.State.ID, transition: to, cause: causeText(e.Cause) + " " + render.Text(e.State.Check+" on "+e.State.Object),
			life: life{uid: e.State.ID, revision: e.State.Revision},
		}, nil
	default:
		e, err := wire.DecodeDeployment(s.Body)
		if err != nil {
			return nil, fmt.Errorf("decode deployment %s: %w", s.Entity.Name, err)
		}
		c := &e.Configuration
		to := transition(e.From.String(), c.Status.String())
		if e.Gone || s.Deleted {
			to = "→ gone"
		}
		return &eventLine{
			at: e.At, what: "deployment/" + c.ID, transition: to, cause: fmt.Sprintf("%s version %d of instance %s", causeText(e.Cause), c.Version, render.Text(e.Instance)),
			life: life{uid: c.ID, revision: c.Revision},
		}, nil
	}
}
