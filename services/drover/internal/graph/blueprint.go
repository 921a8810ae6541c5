package graph

import (
	"fmt"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// separator is between the verbs of an edge.
const separator = ", "

func words(label string) []string { return strings.Split(label, separator) }

// OfBlueprint draws the states of a kind, the flows between them, and the phases of each state with what they depend on.
func OfBlueprint(b *blueprint.Blueprint) *Graph {
	g := &Graph{Title: b.Kind + ", lifecycle " + b.Lifecycle.Name}
	drawBlueprint(g, b, nil)
	return g
}

// OfResource draws the same of one resource: where it is, and the status of each of its phases. Phases that it has and the
// blueprint does not (it was changed since) are drawn without what they depend on.
func OfResource(b *blueprint.Blueprint, s *resource.State) *Graph {
	g := &Graph{Title: s.Kind + "/" + s.Name}
	drawBlueprint(g, b, s)
	return g
}

// blueprintDrawing is where what was drawn can be found again.
type blueprintDrawing struct {
	*Graph
	blueprint *blueprint.Blueprint
	resource  *resource.State           // nil: the kind is drawn, and no resource
	each      bool                      // each phase walks by itself
	states    map[string]string         // ids
	phases    map[[2]string]string      // ids by state and phase
	runs      map[[2]string]*runOfPhase // of the resource
}

type runOfPhase struct {
	*resource.PhaseRun
	drawn bool
}

func drawBlueprint(g *Graph, b *blueprint.Blueprint, s *resource.State) *blueprintDrawing {
	d := &blueprintDrawing{
		Graph: g, blueprint: b, resource: s, each: b.Lifecycle.Walk == blueprint.Each,
		states: map[string]string{}, phases: map[[2]string]string{}, runs: map[[2]string]*runOfPhase{},
	}
	if s != nil {
		for i := range s.Phases {
			d.runs[d.key(s.Phases[i].State, s.Phases[i].Name)] = &runOfPhase{PhaseRun: &s.Phases[i]}
		}
	}
	for _, state := range d.allStates() {
		d.drawState(state)
	}
	d.drawFlows()
	if d.each {
		d.drawChain()
	}
	return d
}

// key is where a phase is found: in its state, unless each walks by itself.
func (d *blueprintDrawing) key(state, phase string) [2]string {
	if d.each {
		state = ""
	}
	return [2]string{state, phase}
}

// allStates are those of the lifecycle, and those that the resource is or was in.
func (d *blueprintDrawing) allStates() []string {
	states := statesOf(&d.blueprint.Lifecycle)
	if d.resource == nil {
		return states
	}
	more := []string{d.resource.State}
	for i := range d.resource.Phases {
		more = append(more, d.resource.Phases[i].State)
	}
	for _, state := range more {
		if state != "" && !slices.Contains(states, state) {
			states = append(states, state)
		}
	}
	return states
}

// statesOf lists the states of a lifecycle in the order in which its flows walk them.
func statesOf(l *blueprint.Lifecycle) []string {
	var states []string
	add := func(names ...string) {
		for _, name := range names {
			if name != "" && !slices.Contains(states, name) {
				states = append(states, name)
			}
		}
	}
	add(l.Initial)
	for i := range l.Flows {
		f := &l.Flows[i]
		add(f.From...)
		add(f.Path...)
		add(f.Target)
	}
	for i := range l.Flows {
		add(l.Flows[i].Failure)
	}
	return states
}

// drawState draws a state and, in a group with it, its phases.
func (d *blueprintDrawing) drawState(state string) {
	var phases []*blueprint.Phase
	for i := range d.blueprint.Phases {
		if ph := &d.blueprint.Phases[i]; !d.each && slices.Contains(ph.States, state) {
			phases = append(phases, ph)
		}
	}
	var others []*runOfPhase // that the blueprint no longer has
	if d.resource != nil && !d.each {
		for i := range d.resource.Phases {
			run := d.runs[d.key(state, d.resource.Phases[i].Name)]
			if run != nil && !slices.ContainsFunc(phases, func(ph *blueprint.Phase) bool { return ph.Name == run.Name }) {
				others = append(others, run)
			}
		}
	}
	group := 0
	if len(phases)+len(others) > 0 {
		group = d.group(state)
	}
	id := d.node(d.stateNode(state, group))
	d.states[state] = id
	for _, ph := range phases {
		key := d.key(state, ph.Name)
		d.phases[key] = d.node(d.phaseNode(ph, d.runs[key], group))
	}
	for _, run := range others {
		d.edge(id, d.node(d.phaseNode(&blueprint.Phase{Name: run.Name}, run, group)), Holds, "")
	}
	for _, ph := range phases {
		first := true
		for _, on := range ph.DependsOn {
			if from := d.phases[d.key(state, on)]; from != "" {
				d.edge(from, d.phases[d.key(state, ph.Name)], Depends, "")
				first = false
			}
		}
		if first {
			d.edge(id, d.phases[d.key(state, ph.Name)], Holds, "")
		}
	}
}

func (d *blueprintDrawing) stateNode(state string, group int) Node {
	n := Node{Kind: State, Label: []string{state}, Group: group}
	if s := d.resource; s != nil && s.State == state {
		n.Current, n.Status = true, Busy
		switch {
		case s.PhaseFailed:
			n.Status = Failed
		case s.State == s.Target:
			n.Status = Done
		}
	}
	return n
}

// phaseNode is a phase, and how it stands where there is a resource.
func (d *blueprintDrawing) phaseNode(ph *blueprint.Phase, run *runOfPhase, group int) Node {
	n := Node{Kind: Phase, Label: []string{ph.Name}, Group: group}
	if ph.Executor.Kind != "" {
		n.Label = append(n.Label, ph.Executor.Kind)
	}
	if d.resource == nil {
		if ph.When != "" {
			n.Label = append(n.Label, "when "+ph.When)
		}
		if ph.Gated() {
			n.Label = append(n.Label, "waits for approval")
		}
		return n
	}
	if run == nil {
		n.Status = Idle
		return n
	}
	run.drawn = true
	text := run.Status.String()
	if run.State != "" && d.each {
		text = run.State
		if run.Status != resource.NoStatus && !run.Status.Done() {
			text += ", " + run.Status.String()
		}
	}
	if run.Attempt > 1 {
		text += fmt.Sprintf(", attempt %d", run.Attempt)
	}
	if text != "" {
		n.Label = append(n.Label, text)
	}
	if run.Message != "" {
		n.Label = append(n.Label, run.Message)
	}
	n.Status = colour(run.Status)
	return n
}

// colour is how a status is painted.
func colour(s resource.Status) Status {
	switch s {
	case resource.Running, resource.Waiting, resource.Sleeping:
		return Busy
	case resource.Completed, resource.Undone:
		return Done
	case resource.Failed:
		return Failed
	case resource.Gated, resource.Canceling:
		return Held
	case resource.NoStatus, resource.Blocked, resource.Skipped, resource.Canceled:
		return Idle
	}
	return Plain
}

// drawFlows draws the ways: from where a verb may start, by its path, to its target, and where failure leads.
func (d *blueprintDrawing) drawFlows() {
	anywhere := ""
	for i := range d.blueprint.Lifecycle.Flows {
		f := &d.blueprint.Lifecycle.Flows[i]
		way := append(slices.Clone(f.Path), f.Target)
		from := f.From
		if len(from) == 0 {
			if anywhere == "" {
				anywhere = d.node(Node{Kind: Any, Label: []string{"any state"}})
			}
			d.edge(anywhere, d.states[way[0]], Flow, f.Verb)
		}
		for _, start := range from {
			if start == way[0] && len(way) > 1 { // it stands there already, and goes on
				continue
			}
			d.edge(d.states[start], d.states[way[0]], Flow, f.Verb)
		}
		for k := 1; k < len(way); k++ {
			d.edge(d.states[way[k-1]], d.states[way[k]], Flow, f.Verb)
		}
		if f.Failure == "" {
			continue
		}
		for _, state := range f.Path {
			d.edge(d.states[state], d.states[f.Failure], Failure, "")
		}
	}
}

// drawChain draws phases that each walk the states by themselves: one after another, or as they depend on each other.
func (d *blueprintDrawing) drawChain() {
	group := d.group("each phase walks these states")
	for i := range d.blueprint.Phases {
		ph := &d.blueprint.Phases[i]
		d.phases[d.key("", ph.Name)] = d.node(d.phaseNode(ph, d.runs[d.key("", ph.Name)], group))
	}
	for i := range d.blueprint.Phases {
		for _, name := range d.blueprint.Before(i, &blueprint.Flow{}) {
			if from := d.phases[d.key("", name)]; from != "" {
				d.edge(from, d.phases[d.key("", d.blueprint.Phases[i].Name)], Depends, "")
			}
		}
	}
	if d.resource == nil {
		return
	}
	for i := range d.resource.Phases {
		if run := d.runs[d.key("", d.resource.Phases[i].Name)]; !run.drawn {
			d.node(d.phaseNode(&blueprint.Phase{Name: run.Name}, run, group))
		}
	}
}
