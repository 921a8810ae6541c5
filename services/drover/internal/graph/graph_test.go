package graph_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/services/drover/internal/graph"
)

var (
	mermaidNode  = regexp.MustCompile(`^ +(n\d+)(\(\[|\[\[|\(\(|\[)"([^"]*)"(\]\)|\]\]|\)\)|\])$`)
	mermaidGroup = regexp.MustCompile(`^  subgraph (g\d+)\["([^"]*)"\]$`)
	mermaidEdge  = regexp.MustCompile(`^  (n\d+) (==>|-\.->|-->|---)(?:\|"([^"]*)"\|)? (n\d+)$`)
	mermaidPaint = regexp.MustCompile(`^  (?:classDef [a-z]+ fill:#[0-9a-f]{6},stroke:#[0-9a-f]{6},color:#[0-9a-f]{6}|class ((?:n\d+,?)+) [a-z]+|style (n\d+) stroke-width:4px)$`)
	mermaidTitle = regexp.MustCompile(`^  accTitle: ([^"]*)$`)
	entity       = regexp.MustCompile(`#(\d+);`)

	dotNode   = regexp.MustCompile(`^ +(n\d+) \[shape=[a-z0-9]+, label=("(?:[^"\\]|\\.)*")(?:, fillcolor="#[0-9a-f]{6}", color="#[0-9a-f]{6}")?(?:, penwidth=4)?\];$`)
	dotGroup  = regexp.MustCompile(`^  subgraph cluster_g\d+ \{$`)
	dotLabel  = regexp.MustCompile(`^ +label=("(?:[^"\\]|\\.)*");$`)
	dotEdge   = regexp.MustCompile(`^  (n\d+) -> (n\d+) \[[a-z]+=[^"]*?(?:"#[0-9a-f]{6}")?(?:, label=("(?:[^"\\]|\\.)*"))?\];$`)
	dotHeader = map[string]bool{
		"digraph drover {": true, "  labelloc=t;": true, "  rankdir=LR;": true, "}": true, "  }": true,
		`  node [fontname="sans-serif", style=filled, fillcolor="#ffffff"];`: true, `  edge [fontname="sans-serif"];`: true,
	}
)

// drawing is what a reader of the format finds.
type drawing struct {
	labels map[string]string // by node id, lines joined by \n
	edges  []string
	title  string
	groups []string
}

// readMermaid refuses every line that is not one that the writer means to write.
func readMermaid(t *testing.T, text string) drawing {
	t.Helper()
	d := drawing{labels: map[string]string{}}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	require.Equal(t, "flowchart LR", lines[0])
	depth := 0
	var used []string
	for _, line := range lines[1:] {
		switch {
		case mermaidNode.MatchString(line):
			m := mermaidNode.FindStringSubmatch(line)
			shut := map[string]string{"([": "])", "[[": "]]", "((": "))", "[": "]"}[m[2]]
			require.Equal(t, shut, m[4], line)
			require.NotContains(t, d.labels, m[1], "declared twice")
			d.labels[m[1]] = mermaidPlain(t, m[3])
		case mermaidGroup.MatchString(line):
			require.Zero(t, depth, "groups do not nest: %s", line)
			depth++
			d.groups = append(d.groups, mermaidPlain(t, mermaidGroup.FindStringSubmatch(line)[2]))
		case line == "  end":
			depth--
			require.Zero(t, depth)
		case mermaidEdge.MatchString(line):
			m := mermaidEdge.FindStringSubmatch(line)
			used = append(used, m[1], m[4])
			d.edges = append(d.edges, m[1]+m[2]+m[4]+" "+mermaidPlain(t, m[3]))
		case mermaidPaint.MatchString(line):
			m := mermaidPaint.FindStringSubmatch(line)
			for _, id := range strings.Split(m[1]+","+m[2], ",") {
				if id != "" {
					used = append(used, id)
				}
			}
		case mermaidTitle.MatchString(line):
			d.title = mermaidPlain(t, mermaidTitle.FindStringSubmatch(line)[1])
		default:
			t.Fatalf("no line of a drawing: %q", line)
		}
	}
	require.Zero(t, depth)
	for _, id := range used {
		require.Contains(t, d.labels, id, "not declared")
	}
	return d
}

// mermaidPlain is a label as a reader sees it. It refuses what Mermaid could take for more than a text.
func mermaidPlain(t *testing.T, label string) string {
	t.Helper()
	lines := strings.Split(label, "<br/>")
	for i, line := range lines {
		bare := entity.ReplaceAllString(line, "")
		require.False(t, strings.ContainsAny(bare, "#\"'`<>&%{}[]()|;:\\*~!@$^+?"), "%q", label)
		lines[i] = entity.ReplaceAllStringFunc(line, func(e string) string {
			n, err := strconv.Atoi(e[1 : len(e)-1])
			require.NoError(t, err)
			return string(rune(n))
		})
	}
	return strings.Join(lines, "\n")
}

func readDOT(t *testing.T, text string) drawing {
	t.Helper()
	d := drawing{labels: map[string]string{}}
	depth := 0
	var used []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case dotHeader[line]:
			depth += strings.Count(line, "{") - strings.Count(line, "}")
		case dotGroup.MatchString(line):
			depth++
		case dotNode.MatchString(line):
			m := dotNode.FindStringSubmatch(line)
			require.NotContains(t, d.labels, m[1], "declared twice")
			d.labels[m[1]] = dotPlain(t, m[2])
		case dotEdge.MatchString(line):
			m := dotEdge.FindStringSubmatch(line)
			used = append(used, m[1], m[2])
			d.edges = append(d.edges, m[1]+"->"+m[2]+" "+dotPlain(t, m[3]))
		case dotLabel.MatchString(line):
			label := dotPlain(t, dotLabel.FindStringSubmatch(line)[1])
			if d.title == "" {
				d.title = label
			} else {
				d.groups = append(d.groups, label)
			}
		default:
			t.Fatalf("no line of a drawing: %q", line)
		}
	}
	require.Zero(t, depth, "braces are balanced")
	for _, id := range used {
		require.Contains(t, d.labels, id, "not declared")
	}
	return d
}

// dotPlain reads a quoted string of DOT as Graphviz shows it.
func dotPlain(t *testing.T, quoted string) string {
	t.Helper()
	if quoted == "" {
		return ""
	}
	var b strings.Builder
	inside := quoted[1 : len(quoted)-1]
	for i := 0; i < len(inside); i++ {
		switch {
		case inside[i] == '\\' && inside[i+1] == 'n':
			b.WriteByte('\n')
			i++
		case inside[i] == '\\':
			require.Contains(t, `"\`, inside[i+1:i+2], "an escape that Graphviz reads otherwise: %s", quoted)
			b.WriteByte(inside[i+1])
			i++
		case inside[i] == '&':
			require.True(t, strings.HasPrefix(inside[i:], "&amp;"), quoted)
			b.WriteByte('&')
			i += len("&amp;") - 1
		default:
			b.WriteByte(inside[i])
		}
	}
	return b.String()
}

// both draws in both formats, which must show the same.
func both(t *testing.T, g *graph.Graph) drawing {
	t.Helper()
	var mermaid, dot strings.Builder
	require.NoError(t, g.Mermaid(&mermaid))
	require.NoError(t, g.DOT(&dot))
	m, d := readMermaid(t, mermaid.String()), readDOT(t, dot.String())
	require.Equal(t, m.labels, d.labels)
	require.Equal(t, m.title, d.title)
	require.Equal(t, m.groups, d.groups)
	require.Len(t, d.edges, len(m.edges))
	return m
}

// id of the node whose label begins with a line.
func (d drawing) id(t *testing.T, first string) string {
	t.Helper()
	for id, label := range d.labels {
		if line, _, _ := strings.Cut(label, "\n"); line == first {
			return id
		}
	}
	t.Fatalf("no node %q in %v", first, d.labels)
	return ""
}

func (d drawing) has(t *testing.T, from, arrow, to, label string) {
	t.Helper()
	require.Contains(t, d.edges, d.id(t, from)+arrow+d.id(t, to)+" "+label)
}

func node() *blueprint.Blueprint {
	return &blueprint.Blueprint{
		Kind: "node",
		Lifecycle: blueprint.Node(blueprint.NodePaths{
			Started: []string{"Allocation", "Configuration"}, Terminated: []string{"Removal"},
		}),
		Phases: []blueprint.Phase{
			{Name: "volume", States: []string{"Allocation"}, Executor: blueprint.Executor{Kind: "plugin"}},
			{Name: "instance", States: []string{"Allocation"}, DependsOn: []string{"volume"}, When: "has(resource.spec.size)", Executor: blueprint.Executor{Kind: "http"}},
			{Name: "agent", States: []string{"Allocation", "Configuration"}, Executor: blueprint.Executor{Kind: "script"}},
		},
	}
}

func TestBlueprint(t *testing.T) {
	t.Parallel()
	d := both(t, graph.OfBlueprint(node()))
	require.Equal(t, "node, lifecycle node", d.title)
	require.Equal(t, []string{"Allocation", "Configuration"}, d.groups, "states with phases hold them")
	d.has(t, "Allocation", "==>", "Configuration", "start")
	d.has(t, "Configuration", "==>", "Started", "start")
	d.has(t, "Removal", "==>", "Terminated", "terminate")
	d.has(t, "any state", "==>", "Allocation", "start")
	d.has(t, "any state", "==>", "Off", "shutdown")
	d.has(t, "volume", "-->", "instance", "")
	d.has(t, "Allocation", "---", "volume", "")
	require.Contains(t, d.labels[d.id(t, "instance")], "http\nwhen has(resource.spec.size)")
	agents := 0
	for _, label := range d.labels {
		if strings.HasPrefix(label, "agent\n") {
			agents++
		}
	}
	require.Equal(t, 2, agents, "a phase of two states is in both")
}

// TestPresets: every state and phase of every preset is drawn, and the flows of the table.
func TestPresets(t *testing.T) {
	t.Parallel()
	for _, l := range []blueprint.Lifecycle{
		blueprint.Service(), blueprint.Installation(), blueprint.Execution(), blueprint.DeployItem(), node().Lifecycle,
	} {
		b := &blueprint.Blueprint{Kind: "k", Lifecycle: l, Phases: []blueprint.Phase{{Name: "one"}, {Name: "two"}}}
		if l.Walk != blueprint.Each {
			b.Phases[0].States, b.Phases[1].States = l.Flows[0].Path, l.Flows[0].Path
		}
		d := both(t, graph.OfBlueprint(b))
		for _, f := range l.Flows {
			way := append(append([]string{}, f.Path...), f.Target)
			for i, state := range way {
				to := d.id(t, state)
				if i == 0 {
					continue
				}
				from := d.id(t, way[i-1])
				require.Truef(t, hasEdge(d, from+"==>"+to, f.Verb), "%s: %s to %s by %s", l.Name, way[i-1], state, f.Verb)
			}
			if f.Failure != "" {
				for _, state := range f.Path {
					d.has(t, state, "-.->", f.Failure, "")
				}
			}
		}
		if l.Walk == blueprint.Each {
			d.has(t, "one", "-->", "two", "")
		}
	}
}

func hasEdge(d drawing, edge, verb string) bool {
	for _, e := range d.edges {
		if label, found := strings.CutPrefix(e, edge+" "); found && strings.Contains(", "+label+", ", ", "+verb+", ") {
			return true
		}
	}
	return false
}

func TestResource(t *testing.T) {
	t.Parallel()
	s := &resource.State{
		Key: resource.Key{Kind: "node", Name: "web-1"}, State: "Allocation", Target: "Started", PhaseFailed: true,
		Phases: []resource.PhaseRun{
			{Name: "volume", State: "Allocation", Status: resource.Completed, Attempt: 1},
			{Name: "instance", State: "Allocation", Status: resource.Failed, Attempt: 3, Message: `no "space" left`},
			{Name: "dropped", State: "Allocation", Status: resource.Gated},
			{Name: "former", State: "Elsewhere", Status: resource.Skipped},
		},
	}
	g := graph.OfResource(node(), s)
	d := both(t, g)
	require.Equal(t, "instance\nhttp\nFailed, attempt 3\nno \"space\" left", d.labels[d.id(t, "instance")])
	require.Equal(t, "dropped\nGated", d.labels[d.id(t, "dropped")], "the blueprint no longer has it, and the resource has")
	require.Equal(t, "former\nSkipped", d.labels[d.id(t, "former")])
	byLabel := map[string]graph.Node{}
	for _, n := range g.Nodes {
		if n.Status != graph.Idle || n.Label[0] != "agent" {
			byLabel[n.Label[0]] = n
		}
	}
	require.True(t, byLabel["Allocation"].Current)
	require.Equal(t, graph.Failed, byLabel["Allocation"].Status)
	require.Equal(t, graph.Done, byLabel["volume"].Status)
	require.Equal(t, graph.Held, byLabel["dropped"].Status)
	require.False(t, byLabel["Configuration"].Current)
}

// TestEveryStatusHasItsWord: each status of a phase is shown by its name, and painted.
func TestEveryStatusHasItsWord(t *testing.T) {
	t.Parallel()
	want := map[resource.Status]graph.Status{
		resource.Running: graph.Busy, resource.Waiting: graph.Busy, resource.Sleeping: graph.Busy, resource.Completed: graph.Done,
		resource.Undone: graph.Done, resource.Failed: graph.Failed, resource.Canceling: graph.Held, resource.Gated: graph.Held,
		resource.Blocked: graph.Idle, resource.Skipped: graph.Idle, resource.Canceled: graph.Idle,
	}
	for _, status := range resource.Statuses()[1:] {
		s := &resource.State{State: "Allocation", Phases: []resource.PhaseRun{{Name: "volume", State: "Allocation", Status: status}}}
		g := graph.OfResource(node(), s)
		d := both(t, g)
		require.Equal(t, "volume\nplugin\n"+status.String(), d.labels[d.id(t, "volume")])
		for _, n := range g.Nodes {
			if n.Label[0] == "volume" {
				require.Equal(t, want[status], n.Status, status.String())
			}
		}
	}
}

func TestTree(t *testing.T) {
	t.Parallel()
	b := &blueprint.Blueprint{Kind: "execution", Lifecycle: blueprint.Execution(), Phases: []blueprint.Phase{
		{Name: "make", States: []string{"Init"}, Children: &blueprint.Children{Do: blueprint.DoApply}, Executor: blueprint.Executor{Kind: "children"}},
		{Name: "run", States: []string{"Progressing"}, Children: &blueprint.Children{Do: blueprint.DoRun}, Executor: blueprint.Executor{Kind: "children"}},
	}}
	s := &resource.State{Key: resource.Key{Kind: "execution", Name: "oak"}, State: "Progressing", Jobs: []job.Ref{{ID: "j"}}}
	child := func(item string, status graph.Status, on ...string) graph.Child {
		return graph.Child{Status: status, Word: "w " + item, State: &resource.State{
			Key: resource.Key{Kind: "deployitem", Name: "oak/" + item}, State: "Succeeded", Parent: resource.Parent{Item: item, DependsOn: on},
		}}
	}
	d := both(t, graph.OfTree(b, s, []graph.Child{child("a", graph.Done), child("b", graph.Busy, "a", "absent"), child("c", graph.Idle, "absent")}, 7))
	require.Contains(t, d.groups, "children, and 7 more")
	require.Equal(t, "a\ndeployitem\nSucceeded\nw a", d.labels[d.id(t, "a")])
	d.has(t, "a", "-->", "b", "")
	d.has(t, "run", "---", "a", "")
	d.has(t, "run", "---", "c", "")
	require.NotContains(t, d.edges, d.id(t, "run")+"---"+d.id(t, "b")+" ")
}

// FuzzNames: no name adds a node, an edge or a directive, and each comes out as it went in.
func FuzzNames(f *testing.F) {
	for _, s := range []string{
		"plain", `"`, `\`, `\N`, `"]; n9["x`, "a\nb", "%%{init: {}}%%", "end", "#35;", "&quot;", "<b>", "style:#x;", "`md`", "1. a", "\x1b[31m", "\u202e", "東京", "\xff",
		`"] --> n0`, "subgraph x", "click n0 href", strings.Repeat("long", 40), "|", "a;b", "é#", "classDef x:#a;",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		b := node()
		b.Kind = name
		b.Lifecycle.Flows[0].Verb, b.Lifecycle.Flows[0].Target, b.Lifecycle.Flows[0].Failure = name, "to "+name, "failed "+name
		b.Phases[0].Name, b.Phases[0].When, b.Phases[1].DependsOn = "phase "+name, name, []string{"phase " + name}
		s := &resource.State{Key: resource.Key{Kind: name, Name: name}, State: "in " + name, Phases: []resource.PhaseRun{
			{Name: "phase " + name, State: "Allocation", Status: resource.Failed, Message: name}, {Name: "other " + name, State: "in " + name, Status: resource.Gated},
		}}
		kid := &resource.State{Key: resource.Key{Kind: name, Name: name}, State: name, Parent: resource.Parent{Item: "item " + name}}
		for _, g := range []*graph.Graph{
			graph.OfBlueprint(b), graph.OfResource(b, s), graph.OfTree(b, s, []graph.Child{{State: kid, Word: name}}, 1),
		} {
			d := both(t, g)
			require.Len(t, d.labels, len(g.Nodes))
			require.Len(t, d.edges, len(g.Edges))
			for _, n := range g.Nodes {
				lines := make([]string, len(n.Label))
				for i, line := range n.Label {
					lines[i] = shown(line)
				}
				require.Equal(t, strings.Join(lines, "\n"), d.labels[n.ID])
			}
		}
	})
}

// shown is a text as a drawing may show it.
func shown(s string) string {
	runes := []rune(s)
	if len(runes) > graph.LabelRunesMax {
		runes = append(runes[:graph.LabelRunesMax-1], '…')
	}
	for i, r := range runes {
		if !unicode.IsPrint(r) {
			runes[i] = utf8.RuneError
		}
	}
	return string(runes)
}

func TestDrawingsAreTheSameEachTime(t *testing.T) {
	t.Parallel()
	draw := func() string {
		s := &resource.State{Key: resource.Key{Kind: "node", Name: "a"}, State: "Allocation"}
		for i := range 20 {
			s.Phases = append(s.Phases, resource.PhaseRun{Name: fmt.Sprint("p", i), State: fmt.Sprint("S", i%5), Status: resource.Blocked})
		}
		var b strings.Builder
		require.NoError(t, graph.OfResource(node(), s).Mermaid(&b))
		return b.String()
	}
	first := draw()
	for range 20 {
		require.Equal(t, first, draw())
	}
}
