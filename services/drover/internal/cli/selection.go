package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// toldMax is how many resources of a selector command are told of one by one, of each way in which it went wrong.
const toldMax = 8

// selected is what a selector command came to, as it is printed.
type selected struct {
	Selector  string `json:"selector,omitempty"` // empty: all of the kind
	Matched   uint32 `json:"matched"`
	Accepted  uint32 `json:"accepted"`
	Refused   uint32 `json:"refused"`
	Succeeded uint32 `json:"succeeded"`
	Failed    uint32 `json:"failed"`
	Canceled  uint32 `json:"canceled"`
	// Refusals are the first ones.
	Refusals []refusal `json:"refusals,omitempty"`
	// Resources are those that accepted, sorted by name; only with --wait.
	Resources []*outcome `json:"resources,omitempty"`
}

type refusal struct {
	Resource string `json:"resource"`
	Code     string `json:"code"`
	Message  string `json:"message"`
}

func selectedOf(r *job.Record) *selected {
	s := r.Selection
	out := &selected{
		Selector: s.Selector, Matched: s.Matched, Accepted: s.Accepted, Refused: s.Refused,
		Succeeded: s.Succeeded, Failed: s.Failed, Canceled: s.Canceled,
	}
	for _, f := range s.Refusals {
		out.Refusals = append(out.Refusals, refusal{Resource: target{kind: r.Kind, name: f.Name}.String(), Code: f.Code, Message: f.Message})
	}
	return out
}

// ended is how many of its resources there is nothing to wait for any more.
func (s *selected) ended() uint32 { return s.Refused + s.Succeeded + s.Failed + s.Canceled }

// many reports whether resources are chosen, and not named.
func (f *targetFlags) many() bool { return f.all || f.selector != "" }

// body is that of a selector command.
func (f *targetFlags) body(args map[string]string) wire.Command {
	return wire.Command{Args: args, Selector: f.selector, All: f.all}
}

// runMany sends one selector command for all that are chosen.
func (v *verbCommand) runMany(ctx context.Context, args []string, with map[string]string) error {
	kind, sel, err := v.chosen(args)
	if err != nil {
		return err
	}
	var held []*outcome
	if v.wait && v.job != nil {
		b, err := v.app.bus(ctx)
		if err != nil {
			return err
		}
		entries, err := listResources(ctx, b, v.app.project, kind, sel)
		if err != nil {
			return err
		}
		for i := range entries {
			if id := v.job(&entries[i].State); id != "" && gated(&entries[i].State) {
				t := entries[i].target()
				held = append(held, &outcome{
					Resource: t.String(), Project: v.app.project, Verb: v.verb, Result: resultAccepted, JobID: id, target: t,
				})
			}
		}
	}
	o := order{target: target{kind: kind, name: selection.Name}, verb: v.verb, body: v.body(with)}
	return v.app.carryOut(ctx, [][]order{{o}}, v.sendFlags, len(held) == 0, held...)
}

// gated reports whether a phase waits for a person: the verb has nothing to do with the jobs of others.
func gated(s *resource.State) bool {
	return slices.ContainsFunc(s.Phases, func(run resource.PhaseRun) bool { return run.Status == resource.Gated })
}

// gather reads the jobs of a selection that has ended. The selection's own record is later in the log than theirs, and so
// in the bucket.
func gather(ctx context.Context, b Bus, o *outcome, r *job.Record) error {
	o.Selection = selectedOf(r)
	err := b.List(ctx, bus.Job, r.Project, "", func(s bus.Stored) error {
		e, err := decodeJob(s)
		if err != nil || e.Record.Ref.Selection != r.ID || e.Record.Gone {
			return err
		}
		c := &e.Record
		t := target{kind: c.Kind, name: c.Name}
		made := &outcome{
			Resource: t.String(), Project: c.Project, Verb: c.Verb, Result: c.State.String(), JobID: c.ID, Message: c.Message,
			target: t, uid: c.UID, revision: c.ResourceRevision,
		}
		if c.State.Final() {
			made.Seconds = c.EndedAt.Sub(c.AcceptedAt).Seconds()
		}
		made.record = *c
		o.Selection.Resources = append(o.Selection.Resources, made)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list bucket %s: %w", bus.Job.Bucket(), err)
	}
	slices.SortFunc(o.Selection.Resources, func(x, y *outcome) int {
		return cmp.Or(natural(x.target.name, y.target.name), cmp.Compare(x.JobID, y.JobID))
	})
	places := make(chan struct{}, RequestsInFlight)
	var wg sync.WaitGroup
	for _, made := range o.Selection.Resources {
		if made.record.State == job.Failed {
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				made.FailedPhases = failedPhases(ctx, b, made.record)
			})
		}
	}
	wg.Wait()
	return nil
}

// waitSelected waits for what a user means by a verb that is over before its effect is, of all resources.
func waitSelected(ctx context.Context, b Bus, project string, o *outcome) error {
	uids := map[target]string{}
	var targets []target
	for _, made := range o.Selection.Resources {
		if made.Result == job.Succeeded.String() {
			targets = append(targets, made.target)
			uids[made.target] = made.uid
		}
	}
	switch {
	case len(targets) == 0 || o.Verb != resource.VerbDelete && o.Verb != resource.VerbCancel:
		return nil
	case o.Verb == resource.VerbDelete:
		return awaitResources(ctx, b, project, targets, func(t target, e *entry) (bool, error) {
			return e == nil || uids[t] != "" && e.State.UID != uids[t], nil
		})
	default:
		return awaitResources(ctx, b, project, targets, func(_ target, e *entry) (bool, error) {
			return e == nil || !slices.ContainsFunc(e.State.Jobs, func(r job.Ref) bool { return r.Canceling }), nil
		})
	}
}

// countsText says how a selection stands, for people.
func countsText(s *job.Selection) string {
	text := fmt.Sprintf("%d matched", s.Matched)
	if s.Stage == job.Accepted || s.Stage == job.Walking {
		text += " so far"
	}
	for _, c := range []struct {
		n    uint32
		what string
	}{{s.Refused, "refused"}, {s.Succeeded, "succeeded"}, {s.Failed, "failed"}, {s.Canceled, "canceled"}} {
		if c.n > 0 {
			text += fmt.Sprintf(", %d %s", c.n, c.what)
		}
	}
	if open := s.Accepted - min(s.Accepted, s.Succeeded+s.Failed+s.Canceled); open > 0 {
		text += fmt.Sprintf(", %d under way", open)
	}
	if s.Waits != "" {
		text += "; it waits: " + render.Text(s.Waits)
	}
	return text
}

// selectorText is which resources were chosen, for people.
func selectorText(s *job.Selection) string {
	if s.Selector == "" {
		return "all"
	}
	return render.Text(s.Selector)
}

// selectedVerdict is what a person needs to know of those that did not succeed.
func (p *progress) selectedVerdict(o *outcome) string {
	var b strings.Builder
	s, paint := o.Selection, p.app.errPaint
	for i, f := range s.Refusals {
		if i == toldMax {
			break
		}
		fmt.Fprintf(&b, "\n%s: %s %s: %s: %s", render.Text(f.Resource), render.Text(o.Verb), paint.Bad("refused"), render.Text(f.Code), render.Text(f.Message))
	}
	told := 0
	for _, made := range s.Resources {
		if made.record.State == job.Failed && told < toldMax {
			told++
			b.WriteString("\n" + p.verdict(made, job.Failed))
		}
	}
	if more := int(s.Refused) - min(len(s.Refusals), toldMax) + int(s.Failed) - told; more > 0 {
		fmt.Fprintf(&b, "\nand %d more: drover jobs list --selection %s --state failed", more, render.Text(o.JobID))
	}
	return b.String()
}
