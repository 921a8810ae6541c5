package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/selector"
	"github.com/droverproject/drover/services/drover/internal/render"
)

const (
	childrenShown  = 10 // children that describe shows; the others are counted
	specLinesShown = 60 // lines of a spec that describe shows
)

// childrenText counts the children of a resource, as its last event does: "3/8 succeeded, 1 failed". Empty where it has none.
func childrenText(s *resource.State) string {
	b := &s.Children
	if *b == (resource.Brood{}) {
		return ""
	}
	parts := []string{fmt.Sprintf("%d/%d succeeded", b.Succeeded, b.Items)}
	for _, p := range []struct {
		n    uint32
		what string
	}{{b.Failed, "failed"}, {b.Running, "running"}, {b.Marked, "to be deleted"}} {
		if p.n > 0 && (p.what != "running" || s.Job() != nil) { // an interrupt stops them after the parent's last event
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return strings.Join(parts, ", ")
}

// standing orders children by what a person wants to see first.
type standing uint8

const (
	childFailed standing = iota
	childAtWork
	childWaits
	childDone
)

// standingOf is where a child stands with the job of its parent.
func standingOf(parent, child *resource.State) standing {
	jobID := ""
	if j := parent.FlowJob(); j != nil {
		jobID = j.ID
	}
	c := child.AsChild()
	switch {
	case c.Job != "" && !c.JobState.Final():
		return childAtWork
	case c.Job != jobID:
		return childWaits
	case c.JobState == job.Succeeded:
		return childDone
	}
	return childFailed
}

// readChildren returns the children that are not done, those that failed first, and then those at work.
func readChildren(ctx context.Context, b bus.Readers, project string, parent *resource.State) ([]entry, error) {
	if parent.Children == (resource.Brood{}) {
		return nil, nil
	}
	all, err := listResources(ctx, b, project, "", selector.Selector{})
	if err != nil {
		return nil, err
	}
	kids := slices.DeleteFunc(all, func(e entry) bool {
		p := &e.State.Parent
		return p.Name != parent.Name || p.UID != parent.UID || standingOf(parent, &e.State) == childDone
	})
	slices.SortStableFunc(kids, func(x, y entry) int {
		return cmp.Or(cmp.Compare(standingOf(parent, &x.State), standingOf(parent, &y.State)), cmp.Compare(x.State.Parent.Index, y.State.Parent.Index))
	})
	return kids, nil
}

// writeChildren shows how the children stand, and of some that are not done why.
func (a *App) writeChildren(s *sheet, d *description) {
	text := childrenText(&d.State)
	if text == "" {
		return
	}
	s.heading("Children")
	s.line("  %s", text)
	if len(d.children) == 0 {
		return
	}
	t := render.NewTable("CHILD", "STATE", "WHY IT IS WHERE IT IS")
	for i := range d.children[:min(len(d.children), childrenShown)] {
		child := &d.children[i].State
		why := ""
		if reasons := resource.Why(child); len(reasons) > 0 {
			why = reasons[0].Text
		}
		if standingOf(&d.State, child) == childWaits && d.State.Job() != nil {
			// What it stands for itself is the end of an earlier job, or that it waits for its parent.
			why = "waits for its turn"
			if on := child.Parent.DependsOn; len(on) > 0 {
				why += "; depends on " + strings.Join(on, ", ")
			}
		}
		t.Row(render.Text(child.Kind+"/"+child.Name), a.stateText(child), render.Text(why))
	}
	s.table(t, "  ")
	if more := len(d.children) - childrenShown; more > 0 {
		s.line("  and %d more that are not done: drover get %s", more, render.Text(d.children[0].State.Kind))
	}
}
