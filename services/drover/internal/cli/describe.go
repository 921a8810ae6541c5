package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// historyShown is how many of the last events describe shows.
const historyShown = 8

func newDescribe(a *App) *cobra.Command {
	return &cobra.Command{
		Use:     "describe (KIND/NAME... | KIND NAME... | phase/KIND.PHASE)",
		Aliases: []string{"desc"},
		Short:   "Show one resource in full, ending with why it is where it is",
		Long: `Show a resource: its phases, jobs, children, attributes, labels, spec and last events, and at the end why it is where
it is: what it waits for, since when, and who can change that. Of its children those are shown that are not done, what
failed first.

phase/KIND.PHASE, or phase/KIND/PHASE, is a phase's own record: what its workers are doing, and who is in it.`,
		Example: `  drover describe node/web-1
  drover describe node web-1 web-2
  drover describe blueprint/node
  drover describe phase/node.create-instance
  drover describe instance/0003c0de-0000-4000-8000-000000000000
  drover describe node/web-1 -o json | jq .why`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeDescribe,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			targets, err := namedTargets(args)
			if err != nil {
				return err
			}
			if targets == nil {
				return usage("%q is not of the form KIND/NAME", args[0])
			}
			ctx, b, cancel, err := a.patiently(ctx) // where there are children, the whole bucket is read
			defer cancel()
			if err != nil {
				return err
			}
			if isMachine(targets[0].kind) {
				if special, err := a.special(ctx, targets[0].kind); err != nil {
					return err
				} else if special {
					return a.describeMachines(ctx, args)
				}
			}
			if targets[0].kind == kindPhase {
				return a.describePhases(ctx, b, targets)
			}
			return a.describe(ctx, b, targets)
		}),
	}
}

func (a *App) describe(ctx context.Context, b Bus, targets []target) error {
	var items []item
	var texts []func(io.Writer) error
	special := map[string]bool{} // by kind
	for _, kind := range kindsOf(targets) {
		if _, asked := special[kind]; !asked {
			var err error
			if special[kind], err = a.special(ctx, kind); err != nil {
				return err
			}
		}
	}
	for _, t := range targets {
		if special[t.kind] && isInstance(t.kind) {
			it, write, err := a.describeInstance(ctx, b, t.name)
			if err != nil {
				return err
			}
			items, texts = append(items, it), append(texts, write)
			continue
		}
		if t.kind == kindBlueprint {
			p, err := getBlueprint(ctx, b, a.project, t.name)
			if err != nil {
				return notFoundHint(err, target{kind: "blueprints", name: t.name})
			}
			items = append(items, blueprintItem(&p))
			texts = append(texts, func(w io.Writer) error { return a.writeBlueprint(w, &p) })
			continue
		}
		d, err := readDescription(ctx, b, a.project, t)
		if err != nil {
			return notFoundHint(err, t)
		}
		items = append(items, item{name: t.String(), json: d.json})
		texts = append(texts, func(w io.Writer) error { return a.writeDescription(w, d) })
	}
	return a.printItems(items, len(targets) == 1, func() error {
		for i, write := range texts {
			if i > 0 {
				if err := a.printf("\n"); err != nil {
					return err
				}
			}
			if err := write(a.Out); err != nil {
				return err
			}
		}
		return nil
	})
}

// description is all that is known of one resource.
type description struct {
	entry
	spec    string // JSON; empty where it could not be read
	why     []resource.Reason
	history []entry
	// children are those that are not done, what failed first.
	children  []entry
	partition int // of its tree
}

func readDescription(ctx context.Context, b Bus, project string, t target) (*description, error) {
	e, err := getResource(ctx, b, project, t)
	if err != nil {
		return nil, err
	}
	d := &description{entry: e, why: resource.Why(&e.State), partition: bus.PartitionOf(project, t.kind, t.name, b.Partitions())}
	spec := t.entity(project)
	spec.Family = bus.Spec
	switch stored, err := b.Get(ctx, spec); {
	case err == nil:
		s, err := wire.DecodeSpec(stored.Body)
		if err != nil {
			return nil, fmt.Errorf("decode the spec of %s: %w", t, err)
		}
		if s.Digest == e.State.SpecDigest {
			d.spec = s.JSON
		}
	case !errors.Is(err, bus.ErrNotFound) && !errors.Is(err, bus.ErrDenied):
		return nil, fmt.Errorf("spec of %s: %w", t, err)
	}
	if d.children, err = readChildren(ctx, b, project, &e.State); err != nil {
		return nil, err
	}
	d.history, err = readHistory(ctx, b, project, t)
	if err != nil && !errors.Is(err, bus.ErrDenied) {
		return nil, err
	}
	return d, nil
}

// json is the last event, with the spec and the reasons beside its state.
func (d *description) json() ([]byte, error) {
	event, err := wire.EventJSON(d.stored.Body)
	if err != nil {
		return nil, err
	}
	rest := map[string]any{"why": reasonsJSON(d.why)}
	if d.spec != "" {
		rest["spec"] = json.RawMessage(d.spec)
	}
	more, err := render.Marshal(rest)
	if err != nil {
		return nil, err
	}
	// Both are objects, and neither is empty: one follows the other.
	return append(append(slices.Clone(event[:len(event)-1]), ','), more[1:]...), nil
}

type reasonJSON struct {
	Code  string `json:"code"`
	Of    string `json:"of,omitempty"`
	Since string `json:"since,omitempty"`
	Until string `json:"until,omitempty"`
	Text  string `json:"text"`
}

func reasonsJSON(why []resource.Reason) []reasonJSON {
	reasons := make([]reasonJSON, len(why))
	for i, r := range why {
		reasons[i] = reasonJSON{Code: string(r.Code), Of: r.Of, Text: r.Text}
		if !r.Since.IsZero() {
			reasons[i].Since = r.Since.UTC().Format(time.RFC3339Nano)
		}
		if !r.Until.IsZero() {
			reasons[i].Until = r.Until.UTC().Format(time.RFC3339Nano)
		}
	}
	return reasons
}

// sheet writes the parts of a description, and remembers the first error.
type sheet struct {
	w     io.Writer
	paint render.Paint
	err   error
}

func (s *sheet) line(format string, args ...any) {
	if s.err == nil {
		_, s.err = fmt.Fprintf(s.w, format+"\n", args...)
	}
}

func (s *sheet) table(t *render.Table, indent string) {
	if s.err == nil {
		s.err = t.Write(s.w, indent)
	}
}

func (s *sheet) heading(text string) { s.line("\n%s", s.paint.Bold(text)) }

func (a *App) writeDescription(w io.Writer, d *description) error {
	s := &sheet{w: w, paint: a.paint}
	a.writeIdentity(s, d)
	a.writePhases(s, &d.State)
	a.writeJobs(s, &d.State)
	a.writeChildren(s, d)
	a.writeTransactions(s, d)
	writeValues(s, "Attributes", d.State.Attributes)
	if d.spec != "" && d.spec != "{}" {
		s.heading("Spec")
		s.json(d.spec, specLinesShown)
	}
	if len(d.history) > 0 {
		s.heading("Last events")
		if text := droppedText(d.history); text != "" {
			s.line("  %s", a.paint.Dim(text))
		}
		from := max(0, len(d.history)-historyShown)
		s.table(a.historyTable(d.history[from:], false), "  ")
	}
	s.heading("Why it is where it is")
	a.writeWhy(s, d)
	return s.err
}

// json shows a document, at most so many lines of it.
func (s *sheet) json(body string, most int) {
	text, err := render.YAML([]byte(body))
	if err != nil && s.err == nil {
		s.err = err
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if n++; n <= most {
			s.line("  %s", strings.TrimSuffix(line, "\n"))
		}
	}
	if n > most {
		s.line("  ... %d more lines, with -o yaml", n-most)
	}
}

func (a *App) writeIdentity(s *sheet, d *description) {
	r, now := &d.State, a.Now()
	t := render.NewTable()
	t.Row(a.paint.Bold("Resource"), render.Text(r.Kind+"/"+r.Name))
	t.Row(a.paint.Bold("Project"), render.Text(r.Project))
	t.Row(a.paint.Bold("State"), a.stateText(r))
	t.Row(a.paint.Bold("Target"), render.Text(r.Target))
	if !r.DeletedAt.IsZero() {
		t.Row(a.paint.Bold("Deleted"), moment(now, r.DeletedAt))
	}
	if r.Cluster != "" {
		t.Row(a.paint.Bold("Cluster"), render.Text(r.Cluster))
	}
	t.Row(a.paint.Bold("Labels"), render.Text(labelsText(r.Labels)))
	t.Row(a.paint.Bold("UID"), render.Text(r.UID))
	t.Row(a.paint.Bold("Generation"), fmt.Sprint(r.Generation))
	t.Row(a.paint.Bold("Observed"), observedText(r))
	t.Row(a.paint.Bold("Revision"), fmt.Sprint(r.Revision))
	t.Row(a.paint.Bold("Created"), moment(now, r.CreatedAt))
	t.Row(a.paint.Bold("Updated"), moment(now, r.UpdatedAt))
	s.table(t, "")
}

// moment is a time, and how long ago it was.
func moment(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	if t.After(now) {
		return render.Time(t) + "  in " + render.Span(t.Sub(now))
	}
	return render.Time(t) + "  " + render.Age(now, t) + " ago"
}

func (a *App) writePhases(s *sheet, r *resource.State) {
	if len(r.Phases) == 0 {
		return
	}
	s.heading("Phases")
	now := a.Now()
	t := render.NewTable("PHASE", "STATE", "STATUS", "ATTEMPT", "SINCE", "NEXT", "MESSAGE")
	for i := range r.Phases {
		run := &r.Phases[i]
		status := a.paintStatus(run.Status)
		if run.Undo && run.Status != resource.Undone {
			status += " (undo)"
		}
		if run.InFlight && run.Status == resource.Waiting {
			status += " (out)"
		}
		attempt := ""
		if run.Attempt > 0 {
			attempt = fmt.Sprint(run.Attempt)
		}
		t.Row(render.Text(run.Name), render.Text(run.State), status, attempt, render.Age(now, run.Since), nextText(now, run),
			render.Text(run.Message))
	}
	s.table(t, "  ")
	for i := range r.Phases {
		run := &r.Phases[i]
		writeNested(s, run.Name+" data", run.Data)
		writeNested(s, run.Name+" outputs", run.Outputs)
	}
}

// nextText is what happens next to a phase by itself, and when; empty: nothing does.
func nextText(now time.Time, run *resource.PhaseRun) string {
	due := func(what string, at time.Time) string {
		switch {
		case at.IsZero():
			return ""
		case at.After(now):
			return what + " in " + render.Span(at.Sub(now))
		}
		return what + " now"
	}
	switch run.Status { //nolint:exhaustive // nothing happens to the others by itself
	case resource.Waiting, resource.Running:
		return due("times out", run.Deadline)
	case resource.Canceling:
		return due("is given up", run.Due)
	case resource.Sleeping:
		switch {
		case run.Retrying:
			return due("retry", run.Due)
		case run.Callback:
			return due("times out", run.Deadline)
		}
		return due("call", run.Due)
	}
	return ""
}

func writeNested(s *sheet, title string, values map[string]string) {
	if len(values) == 0 {
		return
	}
	s.line("  %s", render.Text(title)+":")
	s.table(valueTable(values), "    ")
}

func (a *App) writeJobs(s *sheet, r *resource.State) {
	if len(r.Jobs) == 0 {
		return
	}
	s.heading("Jobs")
	now := a.Now()
	t := render.NewTable("JOB", "VERB", "STATE", "ACCEPTED", "RAN", "BY", "MESSAGE")
	for i := range r.Jobs {
		ref := &r.Jobs[i]
		t.Row(render.Text(ref.ID), render.Text(ref.Verb), a.paintJob(ref.State), render.Age(now, ref.AcceptedAt)+" ago",
			runText(now, ref), render.Text(ref.RequestedBy), render.Text(ref.Message))
	}
	s.table(t, "  ")
}

// writeTransactions shows the last attempts of phases that walk by themselves, under the ids that those were told who carried
// them out.
func (a *App) writeTransactions(s *sheet, d *description) {
	r := &d.State
	if len(r.Transactions) == 0 {
		return
	}
	s.heading("Transactions")
	now := a.Now()
	t := render.NewTable("TRANSACTION", "PHASE", "ATTEMPT", "VERB", "OUTCOME", "CALLS", "BEGAN", "TOOK")
	for i := range r.Transactions {
		tr := &r.Transactions[i]
		id := wire.TransactionID(d.partition, resource.Fence{UID: r.UID, JobID: tr.JobID, Phase: tr.Phase, Attempt: tr.Attempt})
		outcome, end := "under way", now
		if !tr.Ended.IsZero() {
			outcome, end = a.paintStatus(tr.Outcome), tr.Ended
		}
		if tr.Outcome == resource.Sleeping {
			outcome = "failed, tried again"
		}
		t.Row(id, render.Text(tr.Phase), fmt.Sprint(tr.Attempt), render.Text(tr.Verb), outcome, fmt.Sprint(tr.Calls),
			render.Age(now, tr.Began)+" ago", render.Span(end.Sub(tr.Began)))
	}
	s.table(t, "  ")
}

func writeValues(s *sheet, title string, values map[string]string) {
	if len(values) == 0 {
		return
	}
	s.heading(title)
	s.table(valueTable(values), "  ")
}

// valueTable shows values that are JSON texts; plain strings without their quotes.
func valueTable(values map[string]string) *render.Table {
	t := render.NewTable()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		var plain string
		if json.Unmarshal([]byte(value), &plain) == nil {
			value = plain
		}
		t.Row(render.Text(name), render.Text(value))
	}
	return t
}

func (a *App) writeWhy(s *sheet, d *description) {
	if len(d.why) == 0 {
		s.line("  Nothing is asked of it.")
	}
	now := a.Now()
	name := render.Text(d.State.Kind + "/" + d.State.Name)
	for _, r := range d.why {
		line := render.Text(r.Text)
		if !r.Since.IsZero() {
			line += a.paint.Dim("  since " + render.Age(now, r.Since))
		}
		if r.Until.After(now) {
			line += a.paint.Dim("  until in " + render.Span(r.Until.Sub(now)) + " at the latest")
		}
		s.line("  %s", line)
		switch r.Code { //nolint:exhaustive // the others end by themselves, or are of no single phase or job
		case resource.IsGated:
			s.line("  %s approve with: drover approve %s --phase %s", a.paint.Dim("next:"), name, render.Text(r.Of))
		case resource.BehindJob:
			s.line("  %s take it out with: drover jobs cancel %s", a.paint.Dim("next:"), render.Text(r.Of))
		}
	}
	if d.State.PhaseFailed {
		root := name
		if p := &d.State.Parent; p.Name != "" { // its jobs begin there
			root = render.Text(p.RootKind + "/" + resource.RootName(d.State.Name))
		}
		s.line("  %s drover logs %s; once it is mended: drover retry %s --wait", a.paint.Dim("next:"), name, root)
	}
}

func getBlueprint(ctx context.Context, b bus.Readers, project, kind string) (blueprintEntry, error) {
	stored, err := b.Get(ctx, bus.Entity{Family: bus.Blueprint, Project: project, Kind: kind})
	if err != nil || stored.Deleted {
		return blueprintEntry{}, fmt.Errorf("blueprint/%s in project %s: %w", kind, project, absent(err))
	}
	return decodeBlueprint(stored)
}

func (a *App) writeBlueprint(w io.Writer, p *blueprintEntry) error {
	s := &sheet{w: w, paint: a.paint}
	t := render.NewTable()
	t.Row(a.paint.Bold("Blueprint"), render.Text(p.kind()))
	t.Row(a.paint.Bold("Project"), render.Text(p.BlueprintEvent.Project))
	t.Row(a.paint.Bold("Lifecycle"), render.Text(p.lifecycle()))
	t.Row(a.paint.Bold("Verbs"), render.Text(strings.Join(p.verbs(), ", ")))
	t.Row(a.paint.Bold("Digest"), render.Text(p.BlueprintEvent.Digest))
	if d := p.Deletion; d != nil {
		text := "job " + d.ID + " is running; nothing of this kind is created"
		if d.State.Final() {
			text = "job " + d.ID + " " + d.State.String() + ": " + d.Message
		}
		t.Row(a.paint.Bold("Deletion"), render.Text(text))
	}
	t.Row(a.paint.Bold("Generation"), fmt.Sprint(p.Generation))
	t.Row(a.paint.Bold("Applied"), moment(a.Now(), p.At))
	s.table(t, "")
	writeFlows(s, p)
	s.heading("Phases")
	phases := render.NewTable("PHASE", "STATES", "DEPENDS ON", "EXECUTOR", "UNDO", "TRAITS", "DESCRIPTION")
	for _, ph := range p.phases() {
		undo := ""
		if ph.Undo != nil {
			undo = ph.Undo.Kind
		}
		phases.Row(render.Text(ph.Name), render.Text(strings.Join(ph.States, ",")),
			render.Text(strings.Join(ph.DependsOn, ",")), render.Text(ph.Executor.Kind), render.Text(undo), traitsText(&ph),
			render.Text(ph.Description))
	}
	s.table(phases, "  ")
	s.heading("Spec")
	s.json(p.JSON, math.MaxInt)
	return s.err
}

// writeFlows shows the table of a lifecycle.
func writeFlows(s *sheet, p *blueprintEntry) {
	if p.Blueprint == nil || len(p.Blueprint.Lifecycle.Flows) == 0 {
		return
	}
	s.heading("Flows")
	t := render.NewTable("VERB", "FROM", "PATH", "TARGET", "FAILURE")
	for _, f := range p.Blueprint.Lifecycle.Flows {
		from := strings.Join(f.From, ",")
		switch {
		case from == "":
			from = "any"
		case f.Idempotent:
			from += " (idempotent)"
		}
		t.Row(render.Text(f.Verb), render.Text(from), render.Text(strings.Join(f.Path, ",")), render.Text(f.Target), render.Text(f.Failure))
	}
	s.table(t, "  ")
}

// traitsText is what is special about a phase, in words.
func traitsText(ph *blueprint.Phase) string {
	var traits []string
	if ph.Idempotent {
		traits = append(traits, "idempotent")
	}
	switch {
	case ph.Gated():
		traits = append(traits, "gated")
	case ph.AutoDeploy != nil:
		traits = append(traits, "auto-deploy")
	}
	return strings.Join(traits, ",")
}
