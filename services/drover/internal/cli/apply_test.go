package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const goodBlueprint = `
apiVersion: drover/v1
kind: Blueprint
metadata: {name: node}
spec: {lifecycle: node, states: [A], phases: [{name: p, states: [A], executor: {plugin: {}}}]}
`

// TestManifestMistakes: every mistake is told with its place and its field, and nothing is sent.
func TestManifestMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"unknown field": {
			"apiVersion: drover/v1\nkind: node\nmetadata: {name: a, label: {}}\n", []string{"m.yaml:3:21: metadata.label: "},
		},
		"several, in several documents": {
			"apiVersion: drover/v2\nkind: node\nmetadata: {name: a}\n---\nkind: node\nmetadata: {}\n",
			[]string{"m.yaml:1:1: apiVersion: ", "m.yaml:5:1: apiVersion: is missing", "m.yaml:6:1: metadata.name: is missing"},
		},
		"no YAML": {"a: [\n", []string{"m.yaml:"}},
		"a blueprint's own": {
			strings.Replace(goodBlueprint, "executor: {plugin: {}}", "dependsOn: [q], executor: {plugin: {}}", 1),
			[]string{"m.yaml:4:", "spec.phases[0].dependsOn[0]: "},
		},
		"twice": {
			"apiVersion: drover/v1\nkind: node\nmetadata: {name: a}\n---\napiVersion: drover/v1\nkind: node\nmetadata: {name: a, project: default}\n",
			[]string{"m.yaml:5:1: default/node/a is given twice, first at ", "m.yaml:1:1"},
		},
		"no text at all": {"\x00\x01", []string{"m.yaml:"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := drover(t, app(nil), "apply", "-f", write(t, "m.yaml", c.text))
			require.Equal(t, ExitError, r.code, r.err)
			require.Empty(t, r.out)
			for _, want := range c.want {
				require.Contains(t, r.err, want)
			}
			require.Contains(t, r.err, "nothing was sent\n")
		})
	}
}

func TestManifestSources(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	put := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	put("b.yaml", "{apiVersion: drover/v1, kind: node, metadata: {name: b}}")
	put("a.yml", "apiVersion: drover/v1\nkind: node\nmetadata: {name: a}\n---"+goodBlueprint)
	put("c.json", `{"apiVersion":"drover/v1","kind":"node","metadata":{"name":"c"}}`)
	put("README.md", "not a manifest")
	put("deep/d.yaml", "{apiVersion: drover/v1, kind: node, metadata: {name: d}}")

	names := func(args ...string) []string {
		a := app(nil)
		a.In = strings.NewReader("{apiVersion: drover/v1, kind: node, metadata: {name: stdin}}")
		r := drover(t, a, append([]string{"apply", "--dry-run", "-o", "json", "-f"}, args...)...)
		require.Equal(t, ExitOK, r.code, r.err)
		if strings.HasPrefix(r.out, "{") {
			r.out = "[" + r.out + "]"
		}
		var found []struct{ Resource, Result string }
		require.NoError(t, json.Unmarshal([]byte(r.out), &found))
		var resources []string
		for _, f := range found {
			require.Equal(t, "valid", f.Result)
			resources = append(resources, f.Resource)
		}
		return resources
	}
	require.Equal(t, []string{"Blueprint/node", "node/a", "node/b", "node/c"}, names(folder), "blueprints first")
	require.Equal(t, []string{"Blueprint/node", "node/a", "node/b", "node/c", "node/d"}, names(folder, "-R"))
	require.NoError(t, os.Symlink(folder, filepath.Join(folder, "deep", "current")))
	require.Equal(t, []string{"Blueprint/node", "node/a", "node/b", "node/c"}, names(filepath.Join(folder, "deep", "current")), "by a link")
	require.Equal(t, []string{"node/stdin"}, names("-"))
	require.Equal(t, []string{"node/d", "node/stdin"}, names(filepath.Join(folder, "deep", "d.yaml"), "-f", "-"))

	for _, args := range [][]string{{"-f", "/nonexistent"}, {"-f", t.TempDir()}, {"-f", write(t, "empty.yaml", "# nothing\n")}} {
		r := drover(t, app(nil), append([]string{"apply"}, args...)...)
		require.Equal(t, ExitError, r.code, "%v: %s", args, r.err)
	}
	for _, args := range [][]string{{}, {"-f", "-", "-f", "-"}, {"stray"}} {
		r := drover(t, app(nil), append([]string{"apply"}, args...)...)
		require.Equal(t, ExitUsage, r.code, "%v: %s", args, r.err)
	}
}
