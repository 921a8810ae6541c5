package graph

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// DOT writes the drawing for Graphviz: `dot -Tsvg`.
func (g *Graph) DOT(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph drover {\n  label=%s;\n  labelloc=t;\n  rankdir=LR;\n", dotText(g.Title))
	b.WriteString("  node [fontname=\"sans-serif\", style=filled, fillcolor=\"#ffffff\"];\n  edge [fontname=\"sans-serif\"];\n")
	for group := 0; group <= len(g.Groups); group++ {
		indent := "  "
		if group > 0 {
			fmt.Fprintf(&b, "  subgraph cluster_g%d {\n    label=%s;\n", group, dotText(g.Groups[group-1]))
			indent = "    "
		}
		for i := range g.Nodes {
			if n := &g.Nodes[i]; n.Group == group {
				fmt.Fprintf(&b, "%s%s [%s];\n", indent, n.ID, dotNode(n))
			}
		}
		if group > 0 {
			b.WriteString("  }\n")
		}
	}
	for _, e := range g.Edges {
		attributes := map[Style]string{
			Flow: "penwidth=2", Failure: "style=dashed, color=\"#dc2626\"", Depends: "color=\"#374151\"", Holds: "dir=none, color=\"#9ca3af\"",
		}[e.Style]
		if e.Label != "" {
			attributes += ", label=" + dotText(e.Label)
		}
		fmt.Fprintf(&b, "  %s -> %s [%s];\n", e.From, e.To, attributes)
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func dotNode(n *Node) string {
	shape := map[Kind]string{State: "ellipse", Phase: "box", Item: "box3d", Any: "circle"}[n.Kind]
	text := fmt.Sprintf("shape=%s, label=%s", shape, dotText(n.Label...))
	if c, ok := colours[n.Status]; ok {
		text += fmt.Sprintf(", fillcolor=\"%s\", color=\"%s\"", c[0], c[1])
	}
	if n.Current {
		text += ", penwidth=4"
	}
	return text
}

// dotText is a quoted string of lines. Graphviz reads backslashes and HTML entities in labels: both are written so that they
// come out as they were.
func dotText(lines ...string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i, line := range lines {
		if i > 0 {
			b.WriteString(`\n`)
		}
		for _, r := range cut(line) {
			switch {
			case r == '"' || r == '\\':
				b.WriteByte('\\')
				b.WriteRune(r)
			case r == '&':
				b.WriteString("&amp;")
			case unicode.IsPrint(r):
				b.WriteRune(r)
			default:
				b.WriteRune(unicode.ReplacementChar)
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}
