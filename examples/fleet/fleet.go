// Package fleet is the manifests of the example: a blueprint for nodes that are real processes, and the nodes.
//
// Start with README.md; `make demo` at the root runs it all.
package fleet

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"text/template"
	"time"
)

// Blueprint is the manifest of what a node can do.
//
//go:embed blueprint.yaml
var Blueprint []byte

//go:embed nodes.yaml.tmpl
var nodes string

// Limits of a Plan.
const (
	NodesMin = 2
	NodesMax = 100
)

// The typo in the spec of one node, and what it should be.
const (
	PageBroken = "welcom"
	PageMended = "welcome"
)

// Plan is what the nodes of a fleet have in common.
type Plan struct {
	Home     string // absolute path of the folder that the fleet lives in
	Registry string // URL
	Ports    Ports
}

// Ports is from where to where the nodes' ports are, both ends included.
type Ports struct{ From, To int }

// Node is what is each one's own.
type Node struct {
	Name, Rack, Page, Greeting, Motd string
	Warmup                           time.Duration
}

// Nodes makes up n nodes. The page of one of them, whose index is returned too, does not exist: its configuration will
// fail, until someone mends its spec.
func Nodes(n int) (made []Node, broken int) {
	for i := range n {
		node := Node{
			Name: fmt.Sprintf("web-%02d", i+1), Rack: string(rune('a' + i%4)), Page: "plain",
			Warmup: time.Duration(50+i*37%250) * time.Millisecond,
		}
		node.Greeting = "Hello from " + node.Name + "."
		if i%2 == 0 {
			node.Page = PageMended
		}
		if i%5 == 0 {
			node.Motd = "Rack " + node.Rack + " is swept on Thursdays."
		}
		made = append(made, node)
	}
	broken = min(13, n) - 1
	made[broken].Page = PageBroken
	return made, broken
}

var manifest = template.Must(template.New("nodes").Funcs(template.FuncMap{"json": func(v any) (string, error) {
	text, err := json.Marshal(v) // which is YAML too
	return string(text), err
}}).Parse(nodes))

// Write writes the manifests of nodes.
func (p Plan) Write(w io.Writer, nodes []Node) error {
	return manifest.Execute(w, struct {
		Plan
		Nodes []Node
	}{p, nodes})
}
