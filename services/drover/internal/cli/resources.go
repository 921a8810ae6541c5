package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// resourceItem is a resource as its last event shows it.
func resourceItem(e *entry) item {
	return item{name: e.target().String(), json: func() ([]byte, error) { return wire.EventJSON(e.stored.Body) }}
}

// phasesColumns bounds the column of phases, unless -o wide.
const phasesColumns = 48

// resourceTable shows where resources stand.
func (a *App) resourceTable(entries []entry) *render.Table {
	parents := slices.ContainsFunc(entries, func(e entry) bool { return childrenText(&e.State) != "" })
	t := render.NewTable(a.resourceHeader(parents)...)
	for i := range entries {
		t.Row(a.resourceRow(&entries[i], parents)...)
	}
	return t
}

// resourceHeader names the columns; parents says that some have children.
func (a *App) resourceHeader(parents bool) []string {
	header := []string{"NAME", "STATE", "TARGET", "PHASES", "JOB", "AGE"}
	if parents {
		header = slices.Insert(header, 4, "CHILDREN")
	}
	if a.wide() {
		header = append(header, "JOB ID", "REVISION", "GENERATION", "OBSERVED", "UPDATED", "LABELS")
	}
	return header
}

func (a *App) resourceRow(e *entry, parents bool) []string {
	s, now := &e.State, a.Now()
	phases := phasesText(s)
	if !a.wide() {
		phases = render.Cut(phases, phasesColumns)
	}
	verb, id := jobText(s)
	state := a.stateText(s)
	if s.Gone || e.stored.Deleted {
		state = a.paint.Dim("(gone)")
	}
	row := []string{
		render.Text(s.Kind + "/" + s.Name), state, targetText(s), a.paintPhases(s, phases), verb, render.Age(now, s.CreatedAt),
	}
	if parents {
		row = slices.Insert(row, 4, childrenText(s))
	}
	if a.wide() {
		row = append(row, render.Text(id), fmt.Sprint(s.Revision), fmt.Sprint(s.Generation), observedText(s), render.Age(now, s.UpdatedAt),
			render.Text(labelsText(s.Labels)))
	}
	return row
}

// stateText is the lifecycle state, painted by how it is meant.
func (a *App) stateText(s *resource.State) string {
	state := render.Text(s.State)
	switch {
	case s.PhaseFailed:
		return a.paint.Bad(state)
	case s.State != "" && s.State == s.Target:
		return a.paint.Good(state)
	default:
		return a.paint.Busy(state)
	}
}

func targetText(s *resource.State) string {
	if s.DeletedAt.IsZero() {
		return render.Text(s.Target)
	}
	return "(deleted)"
}

// phasesText names the phases that keep the resource in its state, as in "launch=Failed,healthy=Blocked". Where each
// phase walks by itself, it is all of them with their own states, as in "vlan=Deployed,port=Ordered/Running", unless all
// are done and where the resource is.
func phasesText(s *resource.State) string {
	var parts []string
	if s.Separate {
		apart := false
		for i := range s.Phases {
			run := &s.Phases[i]
			apart = apart || run.State != s.State || !run.Status.Done()
			parts = append(parts, render.Text(run.Name)+"="+ownState(run))
		}
		if !apart {
			return ""
		}
		return strings.Join(parts, ",")
	}
	for i := range s.Phases {
		run := &s.Phases[i]
		if run.State == s.State && !run.Status.Done() && run.Status != resource.Undone && run.Status != resource.Canceled {
			parts = append(parts, render.Text(run.Name)+"="+run.Status.String())
		}
	}
	return strings.Join(parts, ",")
}

// ownState is where a phase is that walks by itself, and how far it is there unless it is done or was dropped.
func ownState(run *resource.PhaseRun) string {
	state := render.Text(run.State)
	if run.Status == resource.NoStatus || run.Status.Done() || run.Status == resource.Canceled {
		return state
	}
	return state + "/" + run.Status.String()
}

func (a *App) paintPhases(s *resource.State, text string) string {
	if s.PhaseFailed {
		return a.paint.Bad(text)
	}
	return text
}

// observedText is the generation of the spec that the last flow that succeeded began with.
func observedText(s *resource.State) string {
	if s.ObservedGeneration == 0 {
		return "-"
	}
	return fmt.Sprint(s.ObservedGeneration)
}

// jobText is the job that the resource is at, or the one that ended last, as "start:running", and how many wait behind it, as in
// "reconcile:running +2".
func jobText(s *resource.State) (text, id string) {
	ref := s.Job()
	for i := range s.Jobs {
		if s.Job() == nil && (ref == nil || !s.Jobs[i].EndedAt.Before(ref.EndedAt)) {
			ref = &s.Jobs[i]
		}
	}
	if ref == nil {
		return "", ""
	}
	text = render.Text(ref.Verb) + ":" + ref.State.String()
	if n := s.Queued(); n > 0 {
		text += fmt.Sprintf(" +%d", n)
	}
	return text, ref.ID
}

func labelsText(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, key+"="+labels[key])
	}
	return strings.Join(parts, ",")
}

func (a *App) paintJob(s job.State) string {
	switch s {
	case job.Succeeded:
		return a.paint.Good(s.String())
	case job.Failed:
		return a.paint.Bad(s.String())
	case job.Canceled:
		return a.paint.Warn(s.String())
	default:
		return a.paint.Busy(s.String())
	}
}

func (a *App) paintStatus(s resource.Status) string {
	switch s {
	case resource.Completed:
		return a.paint.Good(s.String())
	case resource.Failed:
		return a.paint.Bad(s.String())
	case resource.Canceling, resource.Gated:
		return a.paint.Warn(s.String())
	case resource.Running, resource.Waiting, resource.Sleeping:
		return a.paint.Busy(s.String())
	default:
		return s.String()
	}
}

// runText is how long a job ran, or has run.
func runText(now time.Time, ref *job.Ref) string {
	switch {
	case ref.StartedAt.IsZero():
		return "-"
	case ref.EndedAt.IsZero():
		return render.Age(now, ref.StartedAt)
	default:
		return render.Span(ref.EndedAt.Sub(ref.StartedAt))
	}
}
