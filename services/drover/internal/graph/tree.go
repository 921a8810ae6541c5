package graph

import (
	"fmt"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Child is one child of a resource, with how it stands in the job of its parent.
type Child struct {
	*resource.State
	Status Status
	Word   string // what is said of it beside its state; empty: nothing
}

// OfTree draws a resource and its children with what they depend on, in the order of children. Dependencies on children that
// are not among these are left out; more is how many others there are.
func OfTree(b *blueprint.Blueprint, s *resource.State, children []Child, more int) *Graph {
	g := &Graph{Title: s.Kind + "/" + s.Name}
	d := drawBlueprint(g, b, s)
	label := "children"
	if more > 0 {
		label = fmt.Sprintf("children, and %d more", more)
	}
	group := d.group(label)
	ids := make(map[string]string, len(children))
	for _, c := range children {
		lines := []string{c.Parent.Item, c.Kind}
		if c.Parent.Item == "" {
			lines[0] = c.Name
		}
		if c.State.State != "" {
			lines = append(lines, c.State.State)
		}
		if c.Word != "" {
			lines = append(lines, c.Word)
		}
		ids[c.Parent.Item] = d.node(Node{Kind: Item, Label: lines, Status: c.Status, Group: group})
	}
	holder := d.holder()
	for _, c := range children {
		first := true
		for _, on := range c.Parent.DependsOn {
			if from := ids[on]; from != "" {
				d.edge(from, ids[c.Parent.Item], Depends, "")
				first = false
			}
		}
		if first && holder != "" {
			d.edge(holder, ids[c.Parent.Item], Holds, "")
		}
	}
	return g
}

// holder is the phase that makes the children work; empty where the blueprint has none any more.
func (d *blueprintDrawing) holder() string {
	found := ""
	for i := range d.blueprint.Phases {
		ph := &d.blueprint.Phases[i]
		if ph.Children == nil {
			continue
		}
		for _, state := range append([]string{""}, ph.States...) {
			id := d.phases[d.key(state, ph.Name)]
			if id != "" && (found == "" || ph.Children.Do == blueprint.DoRun) {
				found = id
			}
		}
	}
	return found
}
