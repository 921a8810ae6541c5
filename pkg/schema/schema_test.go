package schema_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/schema"
)

var update = flag.Bool("update", false, "write docs/manifests.md anew")

func TestReferenceIsFresh(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "docs", "manifests.md")
	want := string(schema.Reference())
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(have), "run: make generate")
	for line := range strings.Lines(want) {
		require.False(t, strings.HasPrefix(line, "| ") && strings.HasSuffix(line, "|  |\n"), "a field without a word on it, see fields.go: %s", line)
	}
}

// examples are good manifests of every kind, by kind and name.
var examples = map[string][]string{
	"Blueprint box": {`{"lifecycle": "node", "states": ["A"], "phases": [{"name": "p", "states": ["A"], "timeout": "10m", "executor": {"plugin": {}}}]}`},
	"Listener l": {
		`{"kinds": ["node"], "states": "Started", "project": "p", "webhook": {"url": "https://example.net/hook", "headers": {"X-Team": "a"}, "secretHeaders": {"Authorization": "k"}, "secret": "s"}}`,
		`{"kinds": "node", "states": ["Started", "Off"], "subject": "drover.notice.started"}`,
	},
	"Repository r":              {`{"team": "a"}`, `{}`},
	"Bucket r/b":                {`{"environment": "live"}`},
	"Group r/b/g":               {`{"datacenter": "x", "properties": {"a": "b"}}`},
	"Cluster r/b/c":             {`{}`},
	"Node r/b/n":                {`{"assetId": 7, "offline": true}`},
	"MonitoringSystem m":        {`{"callback": "http://127.0.0.1:1/x", "mode": "private", "contact": "c", "team": "t", "generation": "0.9", "path": "/p", "ordering": "queued", "pokesMax": 64, "timeout": "30s"}`},
	"Capability c":              {`{"system": "m", "view": "v", "metric": {"path": "p", "unit": "u", "unitName": "n", "description": "d"}, "thresholds": 3}`},
	"CheckConfiguration r/conf": {`{"on": "r/b", "capability": "c", "interval": "60s", "inheritance": true, "childrenOnly": true, "objectTypes": ["Node"], "externalId": "x", "thresholds": [{"predicate": "<", "level": {"name": "warning", "shortName": "w", "numeric": 2}, "value": 5}]}`},
	"Task t":                    {`{"description": "d", "templates": [{"name": "a", "path": "/x", "contents": "c", "meta": {"a": "b"}}], "meta": {"a": "b"}}`},
	"Stage s":                   {`{"description": "d", "bootEnv": "local", "tasks": ["a", "context:x"]}`},
	"Workflow w":                {`{"description": "d", "stages": ["a"]}`},
	"BootEnv b":                 {`{"description": "d"}`},
	"Machine m":                 {`{"description": "d", "stage": "s", "bootEnv": "b", "runnable": true, "available": false, "meta": {"a": "b"}, "params": {"a": [1]}}`},
	"node web-1":                {`{"anything": [1, {"a": null}]}`},
}

// intake is what intake says of a manifest.
func intake(t *testing.T, manifest any) *resource.Refusal {
	t.Helper()
	m, ok := manifest.(map[string]any)
	require.True(t, ok)
	body, err := json.Marshal(map[string]any{"resource": m})
	require.NoError(t, err)
	kind, _ := m["kind"].(string)
	metadata, _ := m["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return check.Command(check.Message{
		Target:    check.Target{Key: resource.Key{Project: "default", Kind: kind, Name: name}, Verb: resource.VerbApply},
		RequestID: "r", ContentType: bus.ContentTypeJSON, Body: body,
	})
}

func compiled(t *testing.T, of map[string]any) *jsonschema.Schema {
	t.Helper()
	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(string(schema.JSON(of))))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", parsed))
	s, err := c.Compile("schema.json")
	require.NoError(t, err)
	return s
}

// onlyIntake is what one field says of another, or what a pattern cannot say.
var onlyIntake = []string{
	"excludes stage and bootEnv", "is given twice", "is not of repository", "only a Node has one", "not together with webhook", "has an empty part",
	"is named by its way", "must begin with its repository", "no phase of this name", "begins or ends with a space", "cannot be printed",
	"whole seconds", "the default) to", "http or https URL", "has no host", "is not the subject's", "is the name of a built-in kind",
	"is neither a task nor", "holds a slash", "has more than 1 parts", "has more than 2 parts",
}

// TestSchemasAreIntakes: every value of good manifests in turn is left out, made null, made something else, or given a field that nobody
// knows. What intake accepts the schemas accept; what the schemas accept and intake does not is of onlyIntake. The schema of all
// kinds says what that of the one kind says.
func TestSchemasAreIntakes(t *testing.T) {
	t.Parallel()
	all := compiled(t, schema.All())
	changes, refused := 0, 0
	for _, kind := range schema.Kinds() {
		require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(examples)), func(k string) bool { return strings.HasPrefix(k, kind.Name+" ") }), "no example of %s", kind.Name)
	}
	for of, specs := range examples {
		kind, name, _ := strings.Cut(of, " ")
		one := compiled(t, schema.Of(kind))
		judge := func(m any, where string) {
			raw, err := json.Marshal(m)
			require.NoError(t, err)
			v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
			require.NoError(t, err)
			refusal, bySchema := intake(t, m), one.Validate(v)
			raw = raw[:min(len(raw), 400)]
			if refusal != nil {
				refused++
			}
			require.Equal(t, bySchema == nil, all.Validate(v) == nil, "%s of %s: the schema of the kind (%v) and that of all (%v) differ: %s", where, of, bySchema, all.Validate(v), raw)
			switch {
			case refusal == nil:
				require.NoError(t, bySchema, "%s of %s: intake accepts %s", where, of, raw)
			case bySchema == nil && kind != "Blueprint": // pkg/manifest TestSchema holds that
				for _, v := range refusal.Violations {
					require.True(t, slices.ContainsFunc(onlyIntake, func(text string) bool { return strings.Contains(v.Reason, text) }),
						"%s of %s: the schema accepts what intake does not: %s: %s: %s", where, of, v.Field, v.Reason, raw)
				}
			}
		}
		for _, spec := range specs {
			fresh := func() any {
				var m any
				text := fmt.Sprintf(`{"apiVersion": "drover/v1", "kind": %q, "metadata": {"name": %q, "labels": {"a": "b"}}, "spec": %s}`, kind, name, spec)
				require.NoError(t, json.Unmarshal([]byte(text), &m), text)
				return m
			}
			require.Nil(t, intake(t, fresh()), of)
			judge(fresh(), "nothing")
			for _, change := range []func(any) (any, bool){
				func(any) (any, bool) { return nil, false },
				func(any) (any, bool) { return nil, true },
				func(any) (any, bool) { return "text", true },
				func(any) (any, bool) { return "", true },
				func(any) (any, bool) { return true, true },
				func(any) (any, bool) { return -1.0, true },
				func(any) (any, bool) { return 1.5, true },
				func(any) (any, bool) { return 70000.0, true },
				func(any) (any, bool) { return []any{}, true },
				func(any) (any, bool) { return []any{"a"}, true },
				func(any) (any, bool) { return map[string]any{}, true },
				func(any) (any, bool) { return strings.Repeat("x", 5000), true },
				func(old any) (any, bool) {
					if m, ok := old.(map[string]any); ok {
						m["nobody-knows"] = 1.0
					}
					return old, true
				},
			} {
				for i := 1; ; i++ {
					m, n, where := fresh(), 0, ""
					m = mutate(m, "", &n, i, change, &where)
					if where == "" {
						break
					}
					if where == ".kind" || where == ".metadata.name" || where == ".metadata" {
						continue // another kind, or another name than the subject's
					}
					changes++
					judge(m, where)
				}
			}
		}
	}
	t.Logf("%d changed manifests, %d refused", changes, refused)
	require.Greater(t, refused, 500)
	require.Greater(t, changes, refused)
}

// mutate applies a change to the value that is met as number at, but the whole.
func mutate(v any, path string, n *int, at int, change func(any) (any, bool), where *string) any {
	step := func(old any, path string, put func(any), remove func()) {
		*n++
		if *n == at {
			*where = path
			if now, keep := change(old); keep {
				put(now)
			} else {
				remove()
			}
			return
		}
		mutate(old, path, n, at, change, where)
	}
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			step(v[name], path+"."+name, func(now any) { v[name] = now }, func() { delete(v, name) })
		}
	case []any:
		for i := range v {
			step(v[i], path+"[]", func(now any) { v[i] = now }, func() { v[i] = nil })
		}
	}
	return v
}
