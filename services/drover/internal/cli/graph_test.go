package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const twoBlueprints = `
apiVersion: drover/v1
kind: Blueprint
metadata: {name: node}
spec: {lifecycle: node, states: [Allocation], phases: [{name: volume, states: [Allocation], executor: {plugin: {}}}]}
---
apiVersion: drover/v1
kind: Blueprint
metadata: {name: box}
spec: {lifecycle: node, states: [Packing], phases: [{name: pack, states: [Packing], executor: {plugin: {}}}]}
`

// TestGraphOfFiles: a blueprint is drawn before it is applied, and without a server.
func TestGraphOfFiles(t *testing.T) {
	t.Parallel()
	file := write(t, "two.yaml", twoBlueprints)
	one, _, _ := strings.Cut(twoBlueprints, "---")
	r := drover(t, app(nil), "graph", "-f", write(t, "one.yaml", one))
	require.Equal(t, ExitOK, r.code, r.err)
	require.Contains(t, r.out, `["volume<br/>plugin"]`)
	stdin := app(nil)
	stdin.In = strings.NewReader(one)
	require.Equal(t, r.out, drover(t, stdin, "graph", "-f", "-").out)
	for _, name := range []string{"box", "blueprint/box"} {
		r = drover(t, app(nil), "graph", "-f", file, name, "--format", "dot")
		require.Equal(t, ExitOK, r.code, r.err)
		require.Contains(t, r.out, `label="pack\nplugin"`)
		require.NotContains(t, r.out, "volume")
	}
	for _, c := range []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"-f", file}, ExitUsage, "has several blueprints: name one of node, box"},
		{[]string{"-f", file, "disk"}, ExitNotFound, "hint: it has node, box"},
		{[]string{"-f", write(t, "none.yaml", "{apiVersion: drover/v1, kind: node, metadata: {name: a}}")}, ExitError, "no blueprint in "},
		{[]string{"-f", write(t, "bad.yaml", strings.ReplaceAll(one, "[Allocation], phases", "[Allocation, Allocation], phases"))}, ExitError, "bad.yaml:4:"},
		{[]string{"-f", "/nonexistent.yaml"}, ExitError, "/nonexistent.yaml: no such file"},
		{nil, ExitUsage, "name what to draw"},
		{[]string{"node", "--format", "svg"}, ExitUsage, `--format: "svg" is none of mermaid, dot`},
		{[]string{"node", "--items", "0"}, ExitUsage, "--items: is not 1 to 200"},
	} {
		r := drover(t, app(nil), append([]string{"graph"}, c.args...)...)
		require.Equal(t, c.code, r.code, "%v: %s", c.args, r.err)
		require.Contains(t, r.err, c.err)
		require.Empty(t, r.out, "half a drawing is none")
	}
}

// TestGraphAsData: what is drawn is there as lists too.
func TestGraphAsData(t *testing.T) {
	t.Parallel()
	r := drover(t, app(fleet(t).system), "graph", "node/web-2", "-o", "json")
	require.Equal(t, ExitOK, r.code, r.err)
	var g struct {
		Title string
		Nodes []struct {
			ID, Kind, Status string
			Label            []string
			Current          bool
		}
		Edges []struct{ From, To, Style, Label string }
	}
	require.NoError(t, json.Unmarshal([]byte(r.out), &g))
	require.Equal(t, "node/web-2", g.Title)
	require.NotEmpty(t, g.Edges)
	var current []string
	for _, n := range g.Nodes {
		if n.Current {
			current = append(current, n.Label[0])
		}
	}
	require.Equal(t, []string{"Started"}, current)
}
