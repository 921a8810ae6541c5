package manifest

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/blueprint"
)

var update = flag.Bool("update", false, "write the tables of the presets into docs/blueprints.md")

const docs = "../../docs/blueprints.md"

// TestDocsTables: the tables that users read are those of the code. `go test ./pkg/manifest -run Docs -update` writes them.
func TestDocsTables(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(docs)
	require.NoError(t, err)
	tables := map[string]string{"policies": policies()}
	for _, name := range Presets() {
		tables[name] = flowsOf(name)
	}
	place := regexp.MustCompile(`(?s)<!-- table (\w+) -->\n.*?<!-- end -->`)
	var found []string
	want := place.ReplaceAllStringFunc(string(text), func(old string) string {
		name := place.FindStringSubmatch(old)[1]
		found = append(found, name)
		return "<!-- table " + name + " -->\n" + tables[name] + "<!-- end -->"
	})
	require.ElementsMatch(t, append(Presets(), "policies"), found, "each table stands in %s once", docs)
	if *update {
		require.NoError(t, os.WriteFile(docs, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, string(text))
}

func row(cells ...string) string {
	for i := range cells {
		if cells[i] == "" {
			cells[i] = "–"
		}
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// flowsOf is the table of a preset's flows.
func flowsOf(name string) string {
	l, _ := Preset(name)
	text := row("verb", "from", "path", "target", "failure", "was_deployed", "phases") + "|---|---|---|---|---|---|---|\n"
	for _, f := range l.Flows {
		from, path := strings.Join(f.From, ", "), strings.Join(f.Path, ", ")
		if from == "" {
			from = "any state"
		}
		if f.Idempotent {
			from += ", if idempotent"
		}
		if name == blueprint.PresetNode {
			path = "`paths." + f.Target + "`"
			if f.Target == blueprint.Started {
				path = "`states`"
			}
		}
		how := ""
		if f.Undo {
			how = "undone"
		}
		if f.Reverse {
			how += ", in reverse"
		}
		text += row("`"+f.Verb+"`", from, path, f.Target, f.Failure, string(f.WasDeployed), how)
	}
	return text
}

// policies is the table of what the presets differ in beside their flows.
func policies() string {
	text := row("preset", "walk", "onTargetChange", "onFailure", "rerun", "initial", "delete", "onCreate", "onChange", "byMark") +
		"|---|---|---|---|---|---|---|---|---|---|\n"
	for _, name := range Presets() {
		l, _ := Preset(name)
		walk, rerun := string(l.Walk), string(l.Rerun)
		if l.Walk == blueprint.Together {
			walk = walkTogether
		}
		if l.Rerun == blueprint.RerunFailed {
			rerun = rerunFailed
		}
		text += row("`"+name+"`", walk, string(l.OnTargetChange), string(l.OnFailure), rerun, l.Initial, code(l.Delete), code(l.OnCreate),
			code(l.OnChange), fmt.Sprint(l.ByMark))
	}
	return text
}

func code(verb string) string {
	if verb == "" {
		return ""
	}
	return "`" + verb + "`"
}

// TestDocsExamples: what the docs show as a table of one's own, and as an undo, is accepted.
func TestDocsExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(docs)
	require.NoError(t, err)
	block := func(after, first string) string {
		_, rest, ok := strings.Cut(string(text), after)
		require.True(t, ok, after)
		var lines []string
		for line := range strings.Lines(rest) {
			inside := strings.HasPrefix(line, "    ")
			if len(lines) > 0 && !inside {
				break
			}
			if inside && (len(lines) > 0 || strings.HasPrefix(line, "    "+first)) {
				lines = append(lines, strings.TrimPrefix(line, "  "))
			}
		}
		require.NotEmpty(t, lines, first)
		return strings.Join(lines, "")
	}
	for name, spec := range map[string]string{
		"table": block("### A table of your own", "lifecycle:"),
		"undo":  "  lifecycle: service\n" + block("## undo", "phases:"),
	} {
		documents, err := Parse([]byte("apiVersion: drover/v1\nkind: Blueprint\nmetadata: {name: k}\nspec:\n" + spec))
		require.NoError(t, err, name)
		require.Len(t, documents, 1)
		b, wrong := Blueprint("p", "k", documents[0].Spec)
		require.Empty(t, wrong, name)
		require.NotEmpty(t, b.Lifecycle.Flows)
	}
}
