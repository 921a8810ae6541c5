// Package graph draws blueprints, resources and trees for people: as Mermaid, for documents and web pages, and as DOT, for
// Graphviz.
//
// # Rule
//
// Names come from other people. A node's id in the drawing is made here, and a name appears in labels only, each escaped for
// its format: no name can add a node, an edge or a directive.
package graph

import (
	"fmt"
	"slices"
)

// Limits of a drawing. Mermaid itself gives up at 500 edges and 50,000 characters unless it is told otherwise.
const (
	// ItemsMax is how many children of a resource are drawn, unless fewer are asked for.
	ItemsMax = 200
	// LabelRunesMax is how much of a name or a message is shown; what is cut shows as "…".
	LabelRunesMax = 80
)

// Status paints a node: the words of phases and jobs, in as many colours as people tell apart.
type Status string

// The colours.
const (
	Plain  Status = ""
	Busy   Status = "busy"   // under way
	Done   Status = "done"   // as it should be
	Failed Status = "failed" // needs a person
	Held   Status = "held"   // waits for a person, or is being canceled
	Idle   Status = "idle"   // has nothing to do yet, or was left out
)

// Statuses lists those that have a colour.
func Statuses() []Status { return []Status{Busy, Done, Failed, Held, Idle} }

// Kind is the shape of a node.
type Kind string

// The shapes.
const (
	State Kind = "state" // of a lifecycle
	Phase Kind = "phase"
	Item  Kind = "item" // a child of a resource
	Any   Kind = "any"  // whichever state it is in
)

// Node is one thing. IDs are made by the Graph.
type Node struct {
	ID     string   `json:"id"`
	Kind   Kind     `json:"kind"`
	Label  []string `json:"label"` // lines
	Status Status   `json:"status,omitempty"`
	// Current: the resource is here.
	Current bool `json:"current,omitempty"`
	// Group is the index of its group, from 1; 0: none.
	Group int `json:"group,omitempty"`
}

// Style is what an edge means.
type Style string

// The styles.
const (
	Flow    Style = "flow"    // a step of a flow, or the way in
	Failure Style = "failure" // where failure leads
	Depends Style = "depends" // the second waits for the first
	Holds   Style = "holds"   // a state has a phase, a phase has an item
)

// Edge leads from one node to another, both by their ids.
type Edge struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Style Style  `json:"style"`
	Label string `json:"label,omitempty"`
}

// Graph is a drawing before it has a format. Not safe for concurrent use.
type Graph struct {
	Title  string   `json:"title"`
	Groups []string `json:"groups,omitempty"`
	Nodes  []Node   `json:"nodes"`
	Edges  []Edge   `json:"edges"`
}

// group adds one and returns its number.
func (g *Graph) group(label string) int {
	g.Groups = append(g.Groups, label)
	return len(g.Groups)
}

// node adds one and returns its id.
func (g *Graph) node(n Node) string {
	n.ID = fmt.Sprintf("n%d", len(g.Nodes))
	g.Nodes = append(g.Nodes, n)
	return n.ID
}

// edge adds one, once: flows share steps, and the label then names each.
func (g *Graph) edge(from, to string, style Style, label string) {
	i := slices.IndexFunc(g.Edges, func(e Edge) bool { return e.From == from && e.To == to && e.Style == style })
	if i < 0 {
		g.Edges = append(g.Edges, Edge{From: from, To: to, Style: style, Label: label})
		return
	}
	if e := &g.Edges[i]; label != "" && !slices.Contains(words(e.Label), label) {
		e.Label += separator + label
	}
}
