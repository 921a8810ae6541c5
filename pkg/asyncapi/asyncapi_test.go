package asyncapi_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/asyncapi"
	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
)

var update = flag.Bool("update", false, "write docs/asyncapi.yaml anew")

func render(t *testing.T) []byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "..", "proto", "drover", "*", "v1", "*.proto"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	var files []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		files = append(files, string(text))
	}
	text, err := asyncapi.Render(asyncapi.Comments(files...))
	require.NoError(t, err)
	return text
}

func TestDocumentIsFresh(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "docs", "asyncapi.yaml")
	want := render(t)
	if *update {
		require.NoError(t, os.WriteFile(path, want, 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "run: make generate")
}

func document(t *testing.T) map[string]any {
	t.Helper()
	var d map[string]any
	require.NoError(t, yaml.Unmarshal(render(t), &d))
	return d
}

// at follows a path of keys.
func at(d any, path ...string) any {
	for _, key := range path {
		m, ok := d.(map[string]any)
		if !ok {
			return nil
		}
		d = m[key]
	}
	return d
}

// TestDocumentIsSound: it is what AsyncAPI 3 calls a document, as far as a document can be wrong by itself.
func TestDocumentIsSound(t *testing.T) {
	t.Parallel()
	d := document(t)
	require.Equal(t, "3.0.0", d["asyncapi"])
	refs := 0
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if to, ok := v["$ref"].(string); ok {
				refs++
				rest, local := strings.CutPrefix(to, "#/")
				require.True(t, local, "%s: %s", path, to)
				require.NotNil(t, at(d, strings.Split(rest, "/")...), "%s: nothing is at %s", path, to)
			}
			for key, value := range v {
				walk(path+"/"+key, value)
			}
		case []any:
			for i, value := range v {
				walk(fmt.Sprint(path, "/", i), value)
			}
		}
	}
	walk("", d)
	require.Greater(t, refs, 100)
	for name, c := range d["channels"].(map[string]any) {
		address := at(c, "address").(string)
		params, _ := at(c, "parameters").(map[string]any)
		found := regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(address, -1)
		require.Len(t, params, len(found), name)
		for _, m := range found {
			require.NotEmpty(t, at(params, m[1], "description"), "%s: %s", name, m[1])
		}
		require.NotEmpty(t, at(c, "messages"), name)
	}
	for name, o := range d["operations"].(map[string]any) {
		require.Contains(t, []string{"send", "receive"}, at(o, "action"), name)
		channel := at(o, "channel", "$ref").(string)
		for _, m := range at(o, "messages").([]any) {
			require.True(t, strings.HasPrefix(at(m, "$ref").(string), channel+"/messages/"), "%s: a message of another channel", name)
		}
	}
	for _, s := range wire.BodySchemas(nil) {
		require.NotEmpty(t, at(d, "components", "schemas", s.Name, "description"), "the .proto file says what %s is", s.Name)
	}
}

// TestEverySubjectIsThere: what is frozen (bus/jetstream TestTheGrammarIsFrozen) and what roles are allowed is in the document,
// and nothing else is.
func TestEverySubjectIsThere(t *testing.T) {
	t.Parallel()
	frozen, err := os.ReadFile(filepath.Join("..", "bus", "jetstream", "testdata", "frozen.txt"))
	require.NoError(t, err)
	subjects := map[string]bool{}
	for _, word := range regexp.MustCompile(`(?:drover\.|\$KV\.)[^\s,\]]+`).FindAllString(string(frozen), -1) {
		word = regexp.MustCompile(`\{\{[^}]+\}\}`).ReplaceAllString(word, "*")
		if !strings.HasPrefix(word, "drover.cmds.") { // as COMMANDS stores what comes by drover.cmd
			subjects[word] = true
		}
	}
	require.Greater(t, len(subjects), 50)
	exact := 0
	channels := asyncapi.Channels()
	for subject := range subjects {
		n := 0
		for _, c := range channels {
			if asyncapi.Overlap(c.Pattern(), subject) {
				n++
			}
		}
		require.Positive(t, n, "%s is frozen, and no channel", subject)
		if !strings.ContainsAny(subject, "*>") && !strings.Contains(subject, ".-.callback.") {
			exact++
			require.Equal(t, 1, n, "%s is one channel's", subject)
		}
	}
	require.GreaterOrEqual(t, exact, 20)
	for _, contract := range bus.Contracts() {
		for _, p := range append(contract.Publish, contract.Subscribe...) {
			if strings.HasPrefix(p, "drover.") {
				subjects[p] = true
				found := false
				for _, c := range channels {
					found = found || asyncapi.Overlap(c.Pattern(), p)
				}
				require.True(t, found, "%s may use %s, and no channel is that", contract.Service, p)
			}
		}
	}
	delete(subjects, "drover.>") // the operator's
	for _, c := range channels {
		found := false
		for subject := range subjects {
			found = found || asyncapi.Overlap(c.Pattern(), subject)
		}
		require.True(t, found, "%s is in no grammar", c.Address)
	}
}

// TestSchemasTakeWhatIsWritten: bodies as contract.md shows them, and none that the decoders refuse.
func TestSchemasTakeWhatIsWritten(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(document(t))
	require.NoError(t, err)
	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("asyncapi.json", parsed))
	check := func(name, body string) error {
		schema, err := compiler.Compile("asyncapi.json#/components/schemas/" + name)
		require.NoError(t, err, name)
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
		require.NoError(t, err, body)
		return schema.Validate(v)
	}
	for _, good := range [][2]string{
		{"Command", `{"resource": {"apiVersion": "drover/v1", "kind": "node", "metadata": {"name": "web-1", "labels": {}}, "spec": {"a": [1]}}}`},
		{"Command", `{}`}, {"Command", `{"args": {"scope": "all"}}`}, {"Command", `{"selector": "rack=a"}`},
		{"Reply", `{"jobId": "j", "resource": "default/node/web-1"}`},
		{"Reply", `{"code": "invalid", "message": "m", "violations": [{"field": "spec", "reason": "r"}]}`},
		{"Result", `{"fence": {"uid": "u", "jobId": "j", "phase": "p", "attempt": 1, "call": 1}, "outcome": "completed", "attributes": {"port": 8080}, "delay": "15s"}`},
		{"Event", `{"family": "resource", "project": "default", "kind": "node", "name": "web-1", "from": "Allocation", "to": "Configuration",
			"cause": {"result": {"phase": "p"}}, "jobId": "j", "time": "2026-11-20T09:00:00Z", "revision": "42", "state": {"uid": "u", "phases": [{"name": "p", "status": "Completed"}]}}`},
	} {
		require.NoError(t, check(good[0], good[1]), good[1])
	}
	for _, bad := range [][2]string{
		{"Command", `{"argument": {}}`}, {"Result", `{"outcome": "done"}`}, {"Event", `{"revision": 42}`}, {"Result", `{"fence": {"attempt": -1}}`},
		{"Event", `{"cause": {"result": {}, "due": {}}}`},
	} {
		require.Error(t, check(bad[0], bad[1]), bad[1])
	}
}
