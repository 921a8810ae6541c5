package graph

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// colours of the statuses, for both formats: fill and line.
var colours = map[Status][2]string{
	Busy: {"#dbeafe", "#2563eb"}, Done: {"#dcfce7", "#16a34a"}, Failed: {"#fee2e2", "#dc2626"}, Held: {"#fef3c7", "#d97706"},
	Idle: {"#f3f4f6", "#9ca3af"},
}

// Mermaid writes the drawing as a Mermaid flowchart, which GitHub, GitLab and most editors of Markdown show.
func (g *Graph) Mermaid(w io.Writer) error {
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	fmt.Fprintf(&b, "  accTitle: %s\n", mermaidText(g.Title))
	for group := 0; group <= len(g.Groups); group++ {
		indent := "  "
		if group > 0 {
			fmt.Fprintf(&b, "  subgraph g%d[\"%s\"]\n", group, mermaidText(g.Groups[group-1]))
			indent = "    "
		}
		for i := range g.Nodes {
			if n := &g.Nodes[i]; n.Group == group {
				open, shut := mermaidShape(n.Kind)
				fmt.Fprintf(&b, "%s%s%s\"%s\"%s\n", indent, n.ID, open, mermaidLabel(n.Label), shut)
			}
		}
		if group > 0 {
			b.WriteString("  end\n")
		}
	}
	for _, e := range g.Edges {
		arrow := map[Style]string{Flow: "==>", Failure: "-.->", Depends: "-->", Holds: "---"}[e.Style]
		label := ""
		if e.Label != "" {
			label = "|\"" + mermaidText(e.Label) + "\"|"
		}
		fmt.Fprintf(&b, "  %s %s%s %s\n", e.From, arrow, label, e.To)
	}
	for _, s := range Statuses() {
		var ids []string
		for i := range g.Nodes {
			if g.Nodes[i].Status == s {
				ids = append(ids, g.Nodes[i].ID)
			}
		}
		if len(ids) > 0 {
			fmt.Fprintf(&b, "  classDef %s fill:%s,stroke:%s,color:#111827\n  class %s %s\n", s, colours[s][0], colours[s][1], strings.Join(ids, ","), s)
		}
	}
	for i := range g.Nodes {
		if g.Nodes[i].Current {
			fmt.Fprintf(&b, "  style %s stroke-width:4px\n", g.Nodes[i].ID)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func mermaidShape(k Kind) (open, shut string) {
	switch k {
	case State:
		return "([", "])"
	case Any:
		return "((", "))"
	case Item:
		return "[[", "]]"
	case Phase:
	}
	return "[", "]"
}

func mermaidLabel(lines []string) string {
	texts := make([]string, len(lines))
	for i, line := range lines {
		texts[i] = mermaidText(line)
	}
	return strings.Join(texts, "<br/>")
}

// mermaidText is a text inside quotes. Everything that Mermaid could take for more than a text, its comments and directives
// and Markdown included, is an entity; so is what no terminal should be sent.
func mermaidText(s string) string {
	var b strings.Builder
	for _, r := range cut(s) {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" ._-/,=", r) || r > unicode.MaxASCII && unicode.IsPrint(r):
			b.WriteRune(r)
		case unicode.IsPrint(r):
			fmt.Fprintf(&b, "#%d;", r)
		default:
			b.WriteRune(unicode.ReplacementChar)
		}
	}
	return b.String()
}

// cut bounds a text; bytes that are no UTF-8 become replacement characters.
func cut(s string) []rune {
	runes := []rune(s)
	if len(runes) > LabelRunesMax {
		runes = append(runes[:LabelRunesMax-1], '…')
	}
	return runes
}
