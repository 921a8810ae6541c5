package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/selector"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// inPhaseShown is how many resources of each status are named.
const inPhaseShown = 10

func newPhases(a *App) *cobra.Command {
	return &cobra.Command{
		Use:     "phases [KIND... | KIND/PHASE... | KIND.PHASE...]",
		Aliases: []string{"phase"},
		Short:   "Show what phases are doing, and who is in them",
		Long: `Show the phases of all kinds, of some kinds, or some phases in full: what their workers are doing, who holds them, what
was done, and which resources are in them.

ACTIVITY is Running (a worker has resources), Sleeping (none has, and some are to be called again), Inactive, or Canceling
(a worker has resources, and none of their calls is wanted any more). It is recorded by the workers, and a call that takes
less than half a second is not; who is in a phase is counted now. A phase without a holder, and with resources that wait,
needs a worker.`,
		Example: `  drover phases
  drover phases node
  drover phases node/create-instance
  drover phases -o json | jq -r '.[] | select(.waiting > 0 and (.holders | length) == 0) | .phase'`,
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.completePhases(cmd, "", true)
		},
		RunE: a.runner(func(ctx context.Context, args []string) error {
			ctx, b, cancel, err := a.patiently(ctx)
			defer cancel()
			if err != nil {
				return err
			}
			return a.showPhases(ctx, b, args)
		}),
	}
}

// phaseEntry is one phase, as its kind's blueprint, its record and the resources have it.
type phaseEntry struct {
	kind   string
	phase  *blueprint.Phase
	record phase.State
	seq    bool // there is a record
	in     map[resource.Status][]string
}

func (a *App) showPhases(ctx context.Context, b Bus, args []string) error {
	prints, err := listBlueprints(ctx, b, a.project)
	if err != nil {
		return err
	}
	var found []phaseEntry
	single := false
	if len(args) == 0 {
		for i := range prints {
			found = append(found, phasesOf(&prints[i], "")...)
		}
	}
	for _, arg := range args {
		of, one, err := a.phasesNamed(prints, arg)
		if err != nil {
			return err
		}
		single = single || one
		found = append(found, of...)
	}
	return a.printPhases(ctx, b, found, single)
}

// kindPhase is what phase records are called where kinds are named.
const kindPhase = "phase"

// describePhases shows phases in full.
func (a *App) describePhases(ctx context.Context, b Bus, targets []target) error {
	prints, err := listBlueprints(ctx, b, a.project)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(prints, func(p blueprintEntry) bool { return p.kind() == kindPhase }) {
		return a.describe(ctx, b, targets) // they are resources here, and `drover phases` shows the records
	}
	var found []phaseEntry
	for _, t := range targets {
		if t.kind != kindPhase {
			return usage("%s is no phase: describe resources by a command of their own", t)
		}
		of, one, err := a.phasesNamed(prints, t.name)
		if err != nil {
			return err
		}
		if !one {
			return usage("%q names a kind: say which phase by phase/KIND.PHASE; `drover phases %s` lists them", t.name, t.name)
		}
		found = append(found, of...)
	}
	return a.printPhases(ctx, b, found, true)
}

// phasesNamed are the phases of KIND, or the one (then one is true) of KIND/PHASE or KIND.PHASE. Kinds and phases may hold dots
// themselves: KIND.PHASE is cut where there is such a phase.
func (a *App) phasesNamed(prints []blueprintEntry, text string) (found []phaseEntry, one bool, err error) {
	if slash := strings.IndexByte(text, '/'); slash >= 0 {
		found, err = a.phaseOf(prints, text[:slash], text[slash+1:])
		return found, true, err
	}
	if slices.ContainsFunc(prints, func(p blueprintEntry) bool { return p.kind() == text }) {
		found, err = a.phaseOf(prints, text, "")
		return found, false, err
	}
	for i, r := range text {
		if r != '.' {
			continue
		}
		if of, err := a.phaseOf(prints, text[:i], text[i+1:]); err == nil {
			found = append(found, of...)
		}
	}
	switch {
	case len(found) > 1:
		forms := make([]string, len(found))
		for i := range found {
			forms[i] = found[i].String()
		}
		return nil, true, usage("%q may be %s: name it with a slash", text, strings.Join(forms, " or "))
	case len(found) == 1:
		return found, true, nil
	}
	kind, name, dotted := strings.Cut(text, ".")
	if !dotted {
		name = ""
	}
	found, err = a.phaseOf(prints, kind, name)
	return found, dotted, err
}

// phaseOf are the phases of a kind, or the one of a name where that is not empty.
func (a *App) phaseOf(prints []blueprintEntry, kind, name string) ([]phaseEntry, error) {
	i := slices.IndexFunc(prints, func(p blueprintEntry) bool { return p.kind() == kind })
	if i < 0 {
		return nil, fail(ExitNotFound, "blueprint/%s in project %s: %w", kind, a.project, bus.ErrNotFound).
			withHint("`drover get blueprints` lists what there is")
	}
	of := phasesOf(&prints[i], name)
	if name != "" && len(of) == 0 {
		return nil, fail(ExitNotFound, "phase %s of kind %s: %w", name, kind, bus.ErrNotFound).withHint("`drover phases %s` lists what there is", kind)
	}
	return of, nil
}

// printPhases shows them in a table, or each in full.
func (a *App) printPhases(ctx context.Context, b Bus, found []phaseEntry, full bool) error {
	if err := readPhases(ctx, b, a.project, found); err != nil {
		return err
	}
	items := make([]item, len(found))
	for i := range found {
		p := &found[i]
		items[i] = item{name: "phase/" + p.String(), json: jsonOf(p.report())}
	}
	return a.printItems(items, full && len(found) == 1, func() error {
		if len(found) == 0 {
			a.tell("nothing there: no phase in project %s", render.Text(a.project))
			return nil
		}
		if !full {
			return a.phaseTable(found).Write(a.Out, "")
		}
		for i := range found {
			if i > 0 {
				if err := a.printf("\n"); err != nil {
					return err
				}
			}
			if err := a.writePhase(a.Out, &found[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// phasesOf lists the phases of a kind; name narrows it where not empty.
func phasesOf(p *blueprintEntry, name string) []phaseEntry {
	var found []phaseEntry
	phases := p.phases()
	for i := range phases {
		if (name == "" || phases[i].Name == name) && phases[i].Children == nil {
			found = append(found, phaseEntry{kind: p.kind(), phase: &phases[i], in: map[resource.Status][]string{}})
		}
	}
	return found
}

// readPhases fills in the records, and who is in the phases.
func readPhases(ctx context.Context, b Bus, project string, found []phaseEntry) error {
	var kinds []string
	for i := range found {
		p := &found[i]
		if !slices.Contains(kinds, p.kind) {
			kinds = append(kinds, p.kind)
		}
		stored, err := b.Get(ctx, bus.Entity{Family: bus.PhaseRecord, Project: project, Kind: p.kind, Name: p.phase.Name})
		switch {
		case errors.Is(err, bus.ErrNotFound):
			continue
		case err != nil:
			return fmt.Errorf("record of phase %s: %w", p, err)
		}
		e, err := wire.DecodePhase(stored.Body)
		if err != nil {
			return fmt.Errorf("decode %s in bucket %s: %w", stored.Entity.Key(), bus.PhaseRecord.Bucket(), err)
		}
		p.record, p.seq = e.State, true
	}
	for _, kind := range kinds {
		entries, err := listResources(ctx, b, project, kind, selector.Selector{})
		if err != nil {
			return err
		}
		for i := range found {
			if p := &found[i]; p.kind == kind {
				p.count(entries)
			}
		}
	}
	return nil
}

// count notes who is in the phase: those whose phase has not ended.
func (p *phaseEntry) count(entries []entry) {
	for i := range entries {
		run := entries[i].State.Phase(p.phase.Name)
		if run != nil && (run.Status.Active() || run.Status == resource.Failed) {
			p.in[run.Status] = append(p.in[run.Status], entries[i].State.Name)
		}
	}
}

func (p *phaseEntry) String() string { return p.kind + "/" + p.phase.Name }

// activity is what the record says; without one the phase was never held.
func (p *phaseEntry) activity() string {
	if !p.seq {
		return phase.Inactive.String()
	}
	return p.record.Activity.String()
}

func (p *phaseEntry) holders() []string {
	names := make([]string, len(p.record.Holders))
	for i := range p.record.Holders {
		names[i] = p.record.Holders[i].Worker
	}
	return names
}

// phaseReport is a phase in JSON.
type phaseReport struct {
	Phase       string              `json:"phase"`
	Kind        string              `json:"kind"`
	Name        string              `json:"name"`
	Executor    string              `json:"executor"`
	States      []string            `json:"states,omitempty"`
	Activity    string              `json:"activity"`
	ActiveSince string              `json:"activeSince,omitempty"`
	Calls       int                 `json:"calls"` // allowed at a time; 0: any number
	Holders     []string            `json:"holders"`
	Counts      phaseCounts         `json:"counts"`
	LastCall    string              `json:"lastCall,omitempty"`
	Wake        string              `json:"wake,omitempty"`
	Waiting     int                 `json:"waiting"`
	In          map[string][]string `json:"in,omitempty"` // names by status
}

type phaseCounts struct {
	Calls     uint64 `json:"calls"`
	Resources uint64 `json:"resources"`
	Completed uint64 `json:"completed"`
	Failed    uint64 `json:"failed"`
	Pending   uint64 `json:"pending"`
	Exceeded  uint64 `json:"exceeded"`
}

func (p *phaseEntry) report() phaseReport {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	r := phaseReport{
		Phase: p.String(), Kind: p.kind, Name: p.phase.Name, Executor: p.phase.Executor.Kind, States: p.phase.States,
		Activity: p.activity(), ActiveSince: at(p.record.ActiveSince), Calls: p.phase.CallsAtOnce(), Holders: p.holders(),
		Counts: phaseCounts(p.record.Counts()), LastCall: at(p.record.LastCallAt), Wake: at(p.record.WakeAt), Waiting: len(p.in[resource.Waiting]),
		In: map[string][]string{},
	}
	for status, names := range p.in {
		r.In[status.String()] = slices.Sorted(slices.Values(names))
	}
	return r
}

func (a *App) phaseTable(found []phaseEntry) *render.Table {
	header := []string{"PHASE", "EXECUTOR", "ACTIVITY", "BLOCKED", "WAITING", "RUNNING", "SLEEPING", "FAILED", "LAST CALL", "WAKE", "HELD BY"}
	if a.wide() {
		header = append(header, "CALLS", "RESOURCES", "COMPLETED", "FAILURES", "PENDING")
	}
	t := render.NewTable(header...)
	now := a.Now()
	for i := range found {
		p := &found[i]
		count := func(status resource.Status) string { return fmt.Sprint(len(p.in[status])) }
		row := []string{
			render.Text(p.String()), p.phase.Executor.Kind, a.activityText(p), count(resource.Blocked), count(resource.Waiting),
			count(resource.Running), count(resource.Sleeping), count(resource.Failed), render.Age(now, p.record.LastCallAt), wakeText(now, p.record.WakeAt),
			render.Text(cmp.Or(strings.Join(p.holders(), ","), "-")),
		}
		if a.wide() {
			c := p.record.Counts()
			for _, n := range []uint64{c.Calls, c.Resources, c.Completed, c.Failed, c.Pending} {
				row = append(row, fmt.Sprint(n))
			}
		}
		t.Row(row...)
	}
	return t
}

func (a *App) activityText(p *phaseEntry) string {
	switch p.record.Activity {
	case phase.Running:
		return a.paint.Busy(p.activity())
	case phase.Canceling:
		return a.paint.Warn(p.activity())
	default:
		return p.activity()
	}
}

func wakeText(now, at time.Time) string {
	switch {
	case at.IsZero():
		return "-"
	case at.After(now):
		return "in " + render.Span(at.Sub(now))
	}
	return "now"
}

// writePhase shows one in full.
func (a *App) writePhase(w io.Writer, p *phaseEntry) error {
	s := &sheet{w: w, paint: a.paint}
	now, r := a.Now(), &p.record
	t := render.NewTable()
	t.Row(a.paint.Bold("Phase"), render.Text(p.String()))
	if p.phase.Description != "" {
		t.Row(a.paint.Bold("Description"), render.Text(p.phase.Description))
	}
	t.Row(a.paint.Bold("States"), render.Text(cmp.Or(strings.Join(p.phase.States, ", "), "each phase walks by itself")))
	t.Row(a.paint.Bold("Executor"), p.phase.Executor.Kind)
	t.Row(a.paint.Bold("Calls at a time"), cmp.Or(strings.TrimPrefix(fmt.Sprint(p.phase.CallsAtOnce()), "0"), "any number"))
	t.Row(a.paint.Bold("Activity"), a.activityText(p))
	if p.seq {
		t.Row(a.paint.Bold("Since"), moment(now, r.ActiveSince))
		t.Row(a.paint.Bold("Last call"), moment(now, r.LastCallAt))
		t.Row(a.paint.Bold("Next wake"), moment(now, r.WakeAt))
		c := r.Counts()
		done := fmt.Sprintf("%d calls with %d resources: %d completed, %d failed, %d to be called again",
			c.Calls, c.Resources, c.Completed, c.Failed, c.Pending)
		if c.Exceeded > 0 {
			done += fmt.Sprintf("; %d calls were ended past their limit", c.Exceeded)
		}
		t.Row(a.paint.Bold("Done"), done)
	}
	s.table(t, "")
	s.heading("Held by")
	for i := range r.Holders {
		h := &r.Holders[i]
		s.line("  %s  for %s, resources: %d", render.Text(h.Worker), render.Age(now, h.Since), h.Out)
	}
	if len(r.Holders) == 0 {
		s.line("  nobody: no worker serves this phase at present")
	}
	s.heading("Who is in it")
	in := render.NewTable("STATUS", "COUNT", "RESOURCES")
	for _, status := range resource.Statuses() {
		names := slices.Sorted(slices.Values(p.in[status]))
		if len(names) == 0 {
			continue
		}
		shown := strings.Join(names[:min(len(names), inPhaseShown)], ", ")
		if len(names) > inPhaseShown {
			shown += ", …"
		}
		in.Row(a.paintStatus(status), fmt.Sprint(len(names)), render.Text(shown))
	}
	if in.Len() == 0 {
		s.line("  nobody")
	} else {
		s.table(in, "  ")
	}
	return s.err
}
