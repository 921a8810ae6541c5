package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
	"github.com/droverproject/drover/pkg/wire"
)

// contract is the example of contract.md, verbatim.
const contract = `    apiVersion: drover/v1
    kind: Blueprint
    metadata: {name: node}
    spec:
      lifecycle: node                       # preset, or a table of flows
      states: [Allocation, Configuration]
      phases:
      - name: create-volume
        states: [Allocation]
        executor: {plugin: {}}
      - name: create-instance
        states: [Allocation]
        dependsOn: [create-volume]
        when: has(resource.spec.size)       # CEL
        timeout: 10m
        interval: 15s
        executor: {http: {method: POST, url: "http://127.0.0.1:9000/instances", body: "{{ resource.spec | tojson }}"}}
      - name: host-file
        states: [Configuration]
        executor: {script: {command: [sh, -c, 'touch "$DROVER_NAME"']}}
    ---
    apiVersion: drover/v1
    kind: node
    metadata: {name: web-1, labels: {rack: a}}
    spec: {size: small}
`

func dedent(s string) string {
	return strings.TrimPrefix(strings.ReplaceAll(s, "\n    ", "\n"), "    ")
}

func TestContract(t *testing.T) {
	t.Parallel()
	documents, err := Parse([]byte(dedent(contract)))
	require.NoError(t, err)
	require.Len(t, documents, 2)
	require.Equal(t, wire.Manifest{APIVersion: "drover/v1", Kind: "node", Name: "web-1",
		Labels: map[string]string{"rack": "a"}, Spec: []byte(`{"size":"small"}`)}, documents[1].Manifest)
	require.Equal(t, 1, documents[0].Line)
	require.Equal(t, 22, documents[1].Line)
	line, column := documents[0].Position("spec.phases[1].dependsOn[0]")
	require.Equal(t, []int{13, 17}, []int{line, column})

	b, wrong := Blueprint("default", documents[0].Name, documents[0].Spec)
	require.Empty(t, wrong)
	_, digest, err := Canonical(documents[0].Spec)
	require.NoError(t, err)
	require.Equal(t, &blueprint.Blueprint{
		Project: "default", Kind: "node", Digest: digest,
		Lifecycle: blueprint.Node(blueprint.NodePaths{Started: []string{"Allocation", "Configuration"}}),
		Phases: []blueprint.Phase{
			{Name: "create-volume", States: []string{"Allocation"}, Executor: blueprint.Executor{Kind: "plugin", Config: "{}"}},
			{
				Name: "create-instance", States: []string{"Allocation"}, DependsOn: []string{"create-volume"},
				When: "has(resource.spec.size)", Timeout: 10 * time.Minute, Interval: 15 * time.Second,
				Executor: blueprint.Executor{Kind: "http",
					Config: `{"body":"{{ resource.spec | tojson }}","method":"POST","url":"http://127.0.0.1:9000/instances"}`},
			},
			{
				Name: "host-file", States: []string{"Configuration"},
				Executor: blueprint.Executor{Kind: "script", Config: `{"command":["sh","-c","touch \"$DROVER_NAME\""]}`},
			},
		},
	}, b)
	h, err := DecodeHTTP(b.Phases[1].Executor.Config)
	require.NoError(t, err)
	require.Equal(t, HTTP{Method: "POST", URL: "http://127.0.0.1:9000/instances", Body: "{{ resource.spec | tojson }}",
		Timeout: HTTPTimeoutDefault}, h)
	s, err := DecodeScript(b.Phases[2].Executor.Config)
	require.NoError(t, err)
	require.Equal(t, Script{Command: []string{"sh", "-c", `touch "$DROVER_NAME"`}, Grace: ScriptGraceDefault,
		OutputBytesMax: ScriptOutputDefault}, s)

	// What contract.md shows of a refusal.
	_, wrong = Blueprint("default", "node", []byte(strings.Replace(string(documents[0].Spec), `["create-volume"]`, `["create-volum"]`, 1)))
	require.Equal(t, []resource.Violation{{Field: "spec.phases[1].dependsOn[0]", Reason: "no phase of this name"}}, wrong)
}

// full uses every field of a blueprint of the preset node, and of the executors.
const full = `{
	"lifecycle": "node", "states": ["Allocation", "Configuration"],
	"paths": {"Terminated": ["Termination"], "Off": ["Shutdown"], "Deallocated": ["Deallocation"]},
	"phases": [
		{"name": "a", "description": "d", "text": "t", "states": ["Allocation", "Configuration"], "when": "resource.wasDeployed",
		 "provider": "p", "executor": {"plugin": {}}, "timeout": "10m", "interval": "1s", "lease": "1m", "calls": 2,
		 "retry": {"attempts": 3, "delay": "2s"}, "idempotent": true, "attributes": {"Owner": "ops", "Weight": 3, "Tags": ["a"]}},
		{"name": "b", "states": ["Allocation"], "dependsOn": ["a"], "executor": {"http": {
			"method": "PUT", "url": "https://{{ resource.name }}/x", "headers": {"X-A": "{{ job.id }}"}, "body": "{}", "timeout": "5s",
			"expect": {"completed": [200, "201-204"], "pending": ["202"], "retryable": ["5xx"], "failed": [418]},
			"capture": {"attributes": {"ip": "/ip"}, "data": {"id": "/id"}, "outputs": {"all": ""}},
			"poll": {"url": "http://h/{{ phase.data.id }}"}}}},
		{"name": "c", "states": ["Configuration"], "executor": {"poll": {"method": "HEAD", "url": "http://h/", "headers": {"A": "b"},
			"timeout": "1s", "interval": "1s", "expect": ["2xx"], "fail": [500], "capture": {"outputs": {"x": "/x"}}}}},
		{"name": "d", "states": ["Termination"], "executor": {"script": {"command": ["sh", "-c", "exit 0"], "env": {"A": "b"},
			"dir": "/tmp/{{ resource.name }}", "grace": "1s", "outputBytesMax": 1000, "retryableExits": [1, 2]}}}
	]
}`

const table = `{"lifecycle": {"flows": [
	{"verb": "deploy", "path": ["Build"], "target": "Up"},
	{"verb": "remove", "from": ["Up", "Build"], "path": ["Clean"], "target": "Gone"}],
	"delete": "remove", "onTargetChange": "reject", "onFailure": "drain"},
	"phases": [{"name": "a", "states": ["Build", "Clean"], "executor": {"plugin": {}}}]}`

// service uses what phases have that walk by themselves.
const service = `{"lifecycle": "service", "phases": [
	{"name": "vlan", "executor": {"script": {"command": ["make"]}}, "undo": {"http": {"url": "http://h/{{ resource.name }}", "method": "DELETE"}},
	 "autoDeploy": true, "idempotent": true},
	{"name": "port", "executor": {"plugin": {}}, "undo": {"plugin": {}}, "autoDeploy": false},
	{"name": "ip", "dependsOn": ["vlan"], "executor": {"poll": {"url": "http://h"}}, "decom": {"script": {"command": ["unmake"]}},
	 "auto_deploy": false, "idempotency": true}]}`

// wholeTable uses every field of a table of flows.
const wholeTable = `{"lifecycle": {"flows": [
	{"verb": "deploy", "from": ["New"], "path": ["Build"], "target": "Up", "failure": "Broken", "wasDeployed": "no"},
	{"verb": "deploy", "from": ["Broken"], "path": ["Build"], "target": "Up", "failure": "Broken", "idempotent": true, "wasDeployed": "history"},
	{"verb": "remove", "from": ["Up"], "path": ["Clean"], "target": "Gone", "failure": "Broken", "undo": true, "reverse": true, "was_deployed": "yes"}],
	"delete": "remove", "onTargetChange": "wait", "onFailure": "continue", "walk": "each", "initial": "New", "rerun": "failed",
	"precedence": ["Broken", "Build", "Clean", "New", "Up", "Gone"], "onCreate": "deploy", "on_change": "deploy", "byMark": true, "skip_unchanged": true},
	"phases": [{"name": "a", "executor": {"plugin": {}}, "undo": {"plugin": {}}}]}`

// tree uses phases on children.
const tree = `{"lifecycle": "execution", "phases": [
	{"name": "items", "states": ["Init"], "executor": {"children": {"do": "apply", "items": "deployItems", "kind": "Item", "verb": "reconcile"}}}]}`

// examples are blueprints that are accepted; between them they use every field.
var examples = []string{full, table, service, wholeTable, tree, module}

// module is a service whose phases are a module's.
const module = `{"lifecycle": "service", "phases": [
	{"name": "vlan", "executor": {"http": {"url": "http://m/vlan", "extApi": {"ncaeBaseUrl": "http://d", "tenantId": 2, "data": "{{ resource.spec | tojson }}", "devices": "[]", "limit": "all"}}},
		"undo": {"http": {"url": "http://m/vlan/decom", "ext_api": {"ncaeBaseUrl": "http://d", "tenant_id": 3}}}},
	{"name": "ready", "executor": {"poll": {"url": "http://m/ready", "ext_api": {"ncaeBaseUrl": "http://d"}}}},
	{"name": "access", "executor": {"children": {"kind": "access", "item": "a", "spec": {"vlan": "{{ resource.spec.vlan }}"}}}, "undo": {"children": {}}}]}`

func TestBlueprintService(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	b, wrong := Blueprint("p", "k", []byte(service))
	require.Empty(t, wrong)
	require.Equal(t, blueprint.Service(), b.Lifecycle)
	require.Equal(t, []blueprint.Phase{
		{
			Name: "vlan", Executor: blueprint.Executor{Kind: "script", Config: `{"command":["make"]}`},
			Undo:       &blueprint.Executor{Kind: "http", Config: `{"method":"DELETE","url":"http://h/{{ resource.name }}"}`},
			Idempotent: true, AutoDeploy: &yes,
		},
		{
			Name: "port", Executor: blueprint.Executor{Kind: "plugin", Config: "{}"},
			Undo: &blueprint.Executor{Kind: "plugin", Config: "{}"}, AutoDeploy: &no,
		},
		{
			Name: "ip", DependsOn: []string{"vlan"}, Executor: blueprint.Executor{Kind: "poll", Config: `{"url":"http://h"}`},
			Undo: &blueprint.Executor{Kind: "script", Config: `{"command":["unmake"]}`}, Idempotent: true, AutoDeploy: &no,
		},
	}, b.Phases)

	b, wrong = Blueprint("p", "k", []byte(wholeTable))
	require.Empty(t, wrong)
	require.Equal(t, blueprint.Lifecycle{
		Name: "custom",
		Flows: []blueprint.Flow{
			{Verb: "deploy", From: []string{"New"}, Path: []string{"Build"}, Target: "Up", Failure: "Broken", WasDeployed: blueprint.WasNot},
			{
				Verb: "deploy", From: []string{"Broken"}, Path: []string{"Build"}, Target: "Up", Failure: "Broken", Idempotent: true,
				WasDeployed: blueprint.ByItsPast,
			},
			{
				Verb: "remove", From: []string{"Up"}, Path: []string{"Clean"}, Target: "Gone", Failure: "Broken", Undo: true, Reverse: true,
				WasDeployed: blueprint.WasIndeed,
			},
		},
		Delete: "remove", OnTargetChange: blueprint.Wait, OnFailure: blueprint.Continue, Walk: blueprint.Each, Initial: "New",
		Precedence: []string{"Broken", "Build", "Clean", "New", "Up", "Gone"}, OnCreate: "deploy", OnChange: "deploy", SkipUnchanged: true, ByMark: true,
	}, b.Lifecycle)

	together := strings.NewReplacer(`"failed"`, `"all"`, `"each"`, `"together"`, `"precedence": ["Broken", "Build", "Clean", "New", "Up", "Gone"],`, "",
		`"name": "a"`, `"name": "a", "states": ["Build", "Clean"]`).Replace(wholeTable)
	b, wrong = Blueprint("p", "k", []byte(together))
	require.Empty(t, wrong)
	require.Equal(t, blueprint.RerunAll, b.Lifecycle.Rerun)
	require.Equal(t, blueprint.Together, b.Lifecycle.Walk)
}

// TestPresets: each can be named, and is the engine's table.
func TestPresets(t *testing.T) {
	t.Parallel()
	tables := map[string]blueprint.Lifecycle{
		"node": blueprint.Node(blueprint.NodePaths{}), "service": blueprint.Service(), "installation": blueprint.Installation(),
		"execution": blueprint.Execution(), "deployitem": blueprint.DeployItem(),
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(tables)), Presets())
	for name, want := range tables {
		b, wrong := Blueprint("p", "k", []byte(`{"lifecycle": "`+name+`"}`))
		require.Empty(t, wrong, name)
		require.Equal(t, want, b.Lifecycle)
		table, ok := Preset(name)
		require.True(t, ok)
		require.Equal(t, want, table)
		require.Equal(t, name, table.Name)
	}
	_, ok := Preset("custom")
	require.False(t, ok)
}

func TestBlueprintFull(t *testing.T) {
	t.Parallel()
	two := 2
	b, wrong := Blueprint("p", "k", []byte(full))
	require.Empty(t, wrong)
	require.Equal(t, blueprint.Phase{
		Name: "a", Description: "d", Text: "t", States: []string{"Allocation", "Configuration"}, When: constraint.ForProvider("p", "resource.wasDeployed"),
		Provider: "p", Executor: blueprint.Executor{Kind: "plugin", Config: "{}"}, Timeout: 10 * time.Minute, Interval: time.Second,
		Lease: time.Minute, Calls: &two, Retry: blueprint.Retry{Attempts: 3, Delay: 2 * time.Second}, Idempotent: true,
	}, b.Phases[0])
	require.Equal(t, []string{"Termination"}, b.Lifecycle.Flows[3].Path)
	require.Equal(t, []string{"Deallocation"}, b.Lifecycle.Flows[2].Path)
	require.Equal(t, []string{"Shutdown"}, b.Lifecycle.Flows[1].Path)
	p, err := DecodePoll(b.Phases[2].Executor.Config)
	require.NoError(t, err)
	require.Equal(t, Poll{Method: "HEAD", URL: "http://h/", Headers: map[string]string{"A": "b"}, Timeout: time.Second,
		Interval: time.Second, Expect: []Status{{200, 299}}, Fail: []Status{{500, 500}},
		Capture: Capture{Outputs: map[string]string{"x": "/x"}}}, p)
	h, err := DecodeHTTP(b.Phases[1].Executor.Config)
	require.NoError(t, err)
	require.Equal(t, &Poll{Method: "GET", URL: "http://h/{{ phase.data.id }}", Timeout: PollTimeoutDefault}, h.Poll)

	b, wrong = Blueprint("p", "k", []byte(table))
	require.Empty(t, wrong)
	require.Equal(t, blueprint.Lifecycle{Name: "custom", Flows: []blueprint.Flow{
		{Verb: "deploy", Path: []string{"Build"}, Target: "Up"},
		{Verb: "remove", From: []string{"Up", "Build"}, Path: []string{"Clean"}, Target: "Gone"},
	}, Delete: "remove", OnTargetChange: blueprint.Reject, OnFailure: blueprint.Drain}, b.Lifecycle)

	spaced, _ := Blueprint("p", "k", []byte(" "+table+"\n"))
	require.Equal(t, b.Digest, spaced.Digest, "the digest is of the canonical form")
}

func TestBlueprintRefuses(t *testing.T) {
	t.Parallel()
	phase := func(fields string) string {
		return `{"lifecycle": "node", "states": ["A", "B"], "phases": [{"name": "p", "states": ["A"], ` + fields + `}]}`
	}
	executor := func(e string) string { return phase(`"executor": ` + e) }
	inService := func(fields string) string {
		return `{"lifecycle": "service", "phases": [{"name": "p", "executor": {"script": {"command": ["a"]}}, ` + fields + `}]}`
	}
	inTable := func(flow, fields string) string {
		if flow != "" {
			flow = ", " + flow
		}
		return `{"lifecycle": {"flows": [{"verb": "go", "from": ["T"], "path": ["W"], "target": "T"` + flow + `}], ` + fields + `}}`
	}
	for spec, want := range map[string]string{
		``:   "spec: is missing",
		`{`:  "spec: is not JSON",
		`[]`: "spec: must be an object",
		`{}`: "spec.lifecycle: is missing: node, service, installation, execution, deployitem, or a table of flows",
		phase(`"executor": {"plugin": {}}, "attributes": []`):                                                         "spec.phases[0].attributes: must be an object",
		phase(`"executor": {"plugin": {}}, "attributes": {"": 1}`):                                                    `spec.phases[0].attributes[""]: `,
		phase(`"executor": {"plugin": {}}, "attributes": {"a": "` + strings.Repeat("x", 9000) + `"}`):                 "spec.phases[0].attributes: is larger than 8192 bytes",
		phase(`"executor": {"plugin": {}}, "provider": "p", "when": "true || ` + strings.Repeat(" ", 4000) + `true"`): "spec.phases[0].when: is longer than the 3",
		`{"lifecycle": "nod"}`: "spec.lifecycle: is no preset: node, service, installation, execution, deployitem, or a table of flows",
		`{"lifecycle": 7}`:     "spec.lifecycle: must be a string, not a number",
		`{"lifecycle": {"flows": [{"verb": "go", "target": "T"}], "onTargetChange": "x"}}`:          "spec.lifecycle.onTargetChange: is none of",
		`{"lifecycle": {"flows": [{"verb": "go", "target": "T"}], "onFailure": "x"}}`:               "spec.lifecycle.onFailure: is none of",
		`{"lifecycle": {"flows": [{"verb": "go", "target": "T", "form": []}]}}`:                     "spec.lifecycle.flows[0].form: no field of this name",
		`{"lifecycle": {"flows": [{"verb": "go", "target": "T"}]}, "states": ["A"]}`:                "spec.states: is for the preset node",
		`{"lifecycle": {"flows": [{"verb": "go", "target": "T"}]}, "paths": {"Terminated": ["A"]}}`: "spec.paths: is for the preset node",
		`{"lifecycle": {}}`: "spec.lifecycle: has no flows",
		`{"lifecycle": "node", "paths": {"Started": ["A"]}}`:                                                           "spec.paths.Started: no field of this name",
		`{"lifecycle": "node", "paths": {"Off": ["Off"]}}`:                                                             "spec.paths.Off[0]: is the target",
		phase(`"executor": {"plugin": {}}, "dependson": []`):                                                           "spec.phases[0].dependson: no field of this name",
		`{"lifecycle": "service", "states": ["A"]}`:                                                                    "spec.states: is for the preset node: the preset service has its own paths",
		`{"lifecycle": "execution", "paths": {"Terminated": ["A"]}}`:                                                   "spec.paths: is for the preset node: the preset execution has its own paths",
		inService(`"states": ["Ordered"]`):                                                                             "spec.phases[0].states: is not for this lifecycle",
		inService(`"undo": {}`):                                                                                        "spec.phases[0].undo: is to be exactly one of plugin, http, poll, script, children; 0 are given",
		inService(`"undo": {"plugin": {}, "script": {}}`):                                                              "spec.phases[0].undo: is to be exactly one of plugin, http, poll, script, children; 2 are given",
		inService(`"undo": {"plugin": {}}`):                                                                            "spec.phases[0].undo.plugin: is plugin, and the phase's executor is script",
		inService(`"undo": {"script": {"command": []}}`):                                                               "spec.phases[0].undo.script.command: is missing",
		inService(`"decom": {"http": {"url": "x"}}`):                                                                   "spec.phases[0].undo.http.url: is not a URL",
		inService(`"undo": {"plugin": {}}, "decom": {"plugin": {}}`):                                                   "spec.phases[0].decom: is given twice, under two names",
		inService(`"idempotent": 1`):                                                                                   "spec.phases[0].idempotent: must be true or false",
		inService(`"autoDeploy": "yes"`):                                                                               "spec.phases[0].autoDeploy: must be true or false",
		phase(`"executor": {"plugin": {}}, "undo": {"script": {"command": ["a"]}}`):                                    "spec.phases[0].undo.script: is not plugin, as the phase's executor is",
		`{"lifecycle": "installation", "phases": [{"name": "p", "executor": {"plugin": {}}}]}`:                         "spec.phases[0].states: is missing",
		`{"lifecycle": "deployitem", "phases": [{"name": "p", "states": ["Completing"], "executor": {"plugin": {}}}]}`: "spec.phases[0].states[0]: no path of the lifecycle leads through this state",
		inTable(``, `"walk": "alone"`):                                                                                 "spec.lifecycle.walk: is neither together nor each",
		inTable(``, `"walk": "each"`):                                                                                  "spec.lifecycle.initial: is missing",
		inTable(``, `"precedence": ["T"]`):                                                                             "spec.lifecycle.precedence: is for phases that walk by themselves",
		inTable(``, `"rerun": "some"`):                                                                                 "spec.lifecycle.rerun: is neither failed nor all",
		inTable(``, `"delete": "stop"`):                                                                                "spec.lifecycle.delete: no flow has this verb",
		inTable(``, `"onCreate": "stop"`):                                                                              "spec.lifecycle.onCreate: no flow has this verb",
		inTable(``, `"onChange": "stop"`):                                                                              "spec.lifecycle.onChange: no flow has this verb",
		inTable(``, `"initial": " "`):                                                                                  "spec.lifecycle.initial: begins or ends with a space",
		inTable(``, `"byMark": "yes"`):                                                                                 "spec.lifecycle.byMark: must be true or false",
		inTable(`"failure": "T"`, `"delete": ""`):                                                                      "spec.lifecycle.flows[0].failure: is the target or on the path",
		inTable(`"wasDeployed": "maybe"`, `"delete": ""`):                                                              "spec.lifecycle.flows[0].wasDeployed: is none of no, yes, history",
		inTable(`"undo": "yes"`, `"delete": ""`):                                                                       "spec.lifecycle.flows[0].undo: must be true or false",
		inTable(`"reverse": 1`, `"delete": ""`):                                                                        "spec.lifecycle.flows[0].reverse: must be true or false",
		inTable(`"idempotent": []`, `"delete": ""`):                                                                    "spec.lifecycle.flows[0].idempotent: must be true or false",
		phase(`"executor": {"plugin": {}}, "autoDeploy": true, "auto_deploy": true`):                                   "given twice, under two names",
		phase(`"executor": {"plugin": {}}, "timeout": 5`):                                                              `spec.phases[0].timeout: must be a duration in quotes`,
		phase(`"executor": {"plugin": {}}, "timeout": "5 m"`):                                                          "spec.phases[0].timeout: is not a duration",
		phase(`"executor": {"plugin": {}}, "timeout": "-1s"`):                                                          "spec.phases[0].timeout: is negative",
		phase(`"executor": {"plugin": {}}, "timeout": "9999h"`):                                                        "spec.phases[0].timeout: is longer than 720h0m0s",
		phase(`"executor": {"plugin": {}}, "interval": "1ms"`):                                                         "spec.phases[0].interval: is shorter than 10ms",
		phase(`"executor": {"plugin": {}}, "when": "1 +"`):                                                             "spec.phases[0].when: does not compile",
		phase(`"executor": {"plugin": {}}, "when": "resource.nme == ''"`):                                              "spec.phases[0].when: does not compile: undefined field 'nme' (line 1, column 9)",
		phase(`"executor": {"plugin": {}}, "retry": {"attempts": 1.5}`):                                                "spec.phases[0].retry.attempts: must be a whole number",
		phase(`"executor": {"plugin": {}}, "retry": {"attempts": 1001}`):                                               "spec.phases[0].retry.attempts: is not 0 to 1000",
		phase(`"text": "no executor"`):                                                                                 "spec.phases[0].executor: is to be exactly one of plugin, http, poll, script, children; 0 are given",
		executor(`{"plugin": {}, "http": {}}`):                                                                         "exactly one of plugin, http, poll, script, children; 2 are given",
		executor(`{"plugin": {"queue": 1}}`):                                                                           "spec.phases[0].executor.plugin.queue: no field of this name",
		executor(`{"http": {}}`):                                                                                       "spec.phases[0].executor.http.url: is missing",
		executor(`{"http": {"url": "ftp://h"}}`):                                                                       "spec.phases[0].executor.http.url: is not a URL of http or https",
		executor(`{"http": {"url": "http://"}}`):                                                                       "executor.http.url: is not a URL",
		executor(`{"http": {"url": "http://h/{{ x"}}`):                                                                 `executor.http.url: is not a template: "{{" at byte 9 is not closed by "}}"`,
		executor(`{"http": {"url": "http://h", "method": "YELL"}}`):                                                    "executor.http.method: is none of",
		executor(`{"http": {"url": "http://h", "headers": {"a b": "c"}}}`):                                             `executor.http.headers["a b"]: is not the name of a header`,
		executor(`{"http": {"url": "http://h", "headers": {"a": "c\r\nd: e"}}}`):                                       "executor.http.headers.a: holds a line end",
		executor(`{"http": {"url": "http://h", "body": "{% if %"}}`):                                                   "executor.http.body: is not a template",
		executor(`{"http": {"url": "http://h", "timeout": "11m"}}`):                                                    "executor.http.timeout: is longer than 10m0s",
		executor(`{"http": {"url": "http://h", "expect": {"completed": [99]}}}`):                                       "executor.http.expect.completed[0]: is no HTTP status",
		executor(`{"http": {"url": "http://h", "expect": {"pending": [true]}}}`):                                       "executor.http.expect.pending[0]: must be a string or a number",
		executor(`{"http": {"url": "http://h", "capture": {"data": {"id": "id"}}}}`):                                   "executor.http.capture.data.id: is not a JSON Pointer",
		executor(`{"http": {"url": "http://h", "poll": {"url": "x"}}}`):                                                "executor.http.poll.url: is not a URL",
		executor(`{"poll": {"url": "http://h", "method": "POST"}}`):                                                    "executor.poll.method: is none of GET, HEAD",
		executor(`{"poll": {"url": "http://h", "interval": "-1s"}}`):                                                   "executor.poll.interval: is negative",
		executor(`{"script": {}}`):                                                                                     "executor.script.command: is missing",
		executor(`{"script": {"command": "ls"}}`):                                                                      "executor.script.command: must be a list, not a string",
		executor(`{"script": {"command": [""]}}`):                                                                      "executor.script.command[0]: is empty",
		executor(`{"script": {"command": ["a", "b\u0000"]}}`):                                                          "executor.script.command[1]: holds a zero byte",
		executor(`{"script": {"command": ["a"], "env": {"1A": ""}}}`):                                                  `executor.script.env.1A: is not the name of a variable`,
		executor(`{"script": {"command": ["a"], "env": {"DROVER_X": ""}}}`):                                            "executor.script.env.DROVER_X: is set by Drover",
		executor(`{"script": {"command": ["a"], "env": {"PORT": 80}}}`):                                                "executor.script.env.PORT: must be a string, not a number (write it in quotes)",
		executor(`{"script": {"command": ["a"], "outputBytesMax": -1}}`):                                               "executor.script.outputBytesMax: is not 1 to",
		executor(`{"script": {"command": ["a"], "retryableExits": [75]}}`):                                             "executor.script.retryableExits[0]: is not an exit status",
		executor(`{"script": {"command": ["a"], "grace": "1h"}}`):                                                      "executor.script.grace: is longer than 10m0s",
	} {
		b, wrong := Blueprint("p", "k", []byte(spec))
		require.Nil(t, b, spec)
		require.NotEmpty(t, wrong, spec)
		require.Contains(t, wrong[0].Field+": "+wrong[0].Reason, want, spec)
	}
	_, wrong := Blueprint("p", "Blueprint", []byte(full))
	require.Equal(t, "metadata.name", wrong[0].Field)
	_, wrong = Blueprint("p", "k", []byte(`{"a": "`+strings.Repeat("x", resource.SpecBytesMax)+`"}`))
	require.Equal(t, []resource.Violation{{Field: "spec", Reason: "is larger than 786432 bytes"}}, wrong)
	many := `{"lifecycle": "node", "phases": [` + strings.Repeat(`{},`, 1000) + `{}]}`
	_, wrong = Blueprint("p", "k", []byte(many))
	require.Equal(t, []resource.Violation{{Field: "spec.phases", Reason: "has more than 128 phases"}}, wrong)
	_, wrong = Blueprint("p", "k", []byte(`{"lifecycle": "node", "phases": [`+strings.Repeat(`{},`, 100)+`{}]}`))
	require.Len(t, wrong, blueprint.ViolationsMax)
	// Several mistakes are all named, in order.
	_, wrong = Blueprint("p", "k", []byte(executor(`{"script": {"command": [], "env": {"a-b": ""}, "grace": "-1s"}}`)))
	require.Len(t, wrong, 3)
}

func TestJudge(t *testing.T) {
	t.Parallel()
	usual := HTTP{}
	custom := HTTP{Expect: Expect{Completed: []Status{{202, 202}, {409, 409}}, Retryable: []Status{{404, 404}}, Failed: []Status{{299, 299}}}}
	for _, c := range []struct {
		h         HTTP
		code      int
		outcome   resource.Outcome
		retryable bool
	}{
		{usual, 200, resource.OutcomeCompleted, false}, {usual, 204, resource.OutcomeCompleted, false},
		{usual, 202, resource.OutcomePending, false}, {usual, 408, resource.OutcomeFailed, true},
		{usual, 429, resource.OutcomeFailed, true}, {usual, 503, resource.OutcomeFailed, true},
		{usual, 301, resource.OutcomeFailed, false}, {usual, 404, resource.OutcomeFailed, false},
		{custom, 202, resource.OutcomeCompleted, false}, {custom, 409, resource.OutcomeCompleted, false},
		{custom, 200, resource.OutcomeFailed, false}, {custom, 404, resource.OutcomeFailed, true},
		{custom, 503, resource.OutcomeFailed, false}, {custom, 299, resource.OutcomeFailed, false},
	} {
		outcome, retryable := c.h.Judge(c.code)
		require.Equal(t, c.outcome, outcome, "%d", c.code)
		require.Equal(t, c.retryable, retryable, "%d", c.code)
	}
	poll := Poll{}
	require.Equal(t, resource.OutcomeCompleted, poll.Judge(200))
	require.Equal(t, resource.OutcomePending, poll.Judge(204))
	require.Equal(t, resource.OutcomePending, poll.Judge(503))
	poll = Poll{Expect: []Status{{204, 204}}, Fail: []Status{{500, 599}}}
	require.Equal(t, resource.OutcomeCompleted, poll.Judge(204))
	require.Equal(t, resource.OutcomePending, poll.Judge(200))
	require.Equal(t, resource.OutcomeFailed, poll.Judge(503))
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Status{"200": {200, 200}, "2xx": {200, 299}, "200-204": {200, 204}} {
		var s Status
		require.Empty(t, s.SetScalar(text))
		require.Equal(t, want, s)
		require.Equal(t, text, s.String())
	}
	for _, text := range []string{"", "2", "20", "99", "0xx", "xxx", "2XX", "200-", "-200", "204-200", "2e2", "200-2000", "+20", "1.5"} {
		require.NotEmpty(t, new(Status).SetScalar(text), text)
	}
}

func TestScriptOutput(t *testing.T) {
	t.Parallel()
	out, err := DecodeScriptOutput([]byte(`{"attributes": {"ip": "10.0.0.1", "old": null}, "data": {"pid": 7}, "outputs": {"o": {"b": 1, "a": 2}}}`))
	require.NoError(t, err)
	require.Equal(t, ScriptOutput{Attributes: map[string]string{"ip": `"10.0.0.1"`, "old": "null"},
		Data: map[string]string{"pid": "7"}, Outputs: map[string]string{"o": `{"a":2,"b":1}`}}, out)
	out, err = DecodeScriptOutput([]byte(" \n"))
	require.NoError(t, err)
	require.Equal(t, ScriptOutput{}, out)
	_, err = DecodeScriptOutput([]byte(`{"attribute": {}}`))
	require.EqualError(t, err, "attribute: no field of this name")
	_, err = DecodeHTTP(`{}`)
	require.EqualError(t, err, "url: is missing")
	_, err = DecodeScript(`{"command": 1}`)
	require.EqualError(t, err, "command: must be a list, not a number")
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	canonical, digest, err := Canonical([]byte(`{"b": 12345678901234567890.10, "a": [1e5, "<é&\u0041\n>", {"z": null, "y": true}]}`))
	require.NoError(t, err)
	want := `{"a":[1e5,"<é&A\n>",{"y":true,"z":null}],"b":12345678901234567890.10}`
	require.Equal(t, want, string(canonical))
	require.Equal(t, "b776442b3a3dcc957ffb308c936faa06", digest)
	_, _, err = Canonical([]byte(`{"a":1,"a":2}`))
	require.ErrorContains(t, err, "a: is given twice")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	valid := func() wire.Manifest {
		return wire.Manifest{APIVersion: APIVersion, Kind: "node", Name: "web1.example.com", Project: "p", Cluster: "c",
			Labels: map[string]string{"a.b/c": ""}}
	}
	m := valid()
	require.Empty(t, Check(&m))
	for want, change := range map[string]func(*wire.Manifest){
		"apiVersion: is missing: drover/v1":                          func(m *wire.Manifest) { m.APIVersion = "" },
		"apiVersion: is not drover/v1":                               func(m *wire.Manifest) { m.APIVersion = "v2" },
		"kind: is missing":                                           func(m *wire.Manifest) { m.Kind = "" },
		"metadata.name: is missing":                                  func(m *wire.Manifest) { m.Name = "" },
		"metadata.name: is longer than 253 bytes":                    func(m *wire.Manifest) { m.Name = strings.Repeat("x", 254) },
		"metadata.name: holds a character that cannot be printed":    func(m *wire.Manifest) { m.Name = "a\tb" },
		"metadata.name: begins or ends with a space":                 func(m *wire.Manifest) { m.Name = " a" },
		"metadata.project: holds a character that cannot be printed": func(m *wire.Manifest) { m.Project = "\xff" },
		"metadata.cluster: holds a character that cannot be printed": func(m *wire.Manifest) { m.Cluster = "\u200b" },
		"metadata.labels: has more than 64 labels": func(m *wire.Manifest) {
			for i := range 65 {
				m.Labels[fmt.Sprint(i)] = ""
			}
		},
		`metadata.labels[""]: its name is missing`:                      func(m *wire.Manifest) { m.Labels[""] = "x" },
		`metadata.labels.x: is not printable text of at most 253 bytes`: func(m *wire.Manifest) { m.Labels["x"] = "a\nb" },
		"spec: is larger than 786432 bytes":                             func(m *wire.Manifest) { m.Spec = make([]byte, resource.SpecBytesMax+1) },
	} {
		m := valid()
		change(&m)
		wrong := Check(&m)
		require.Len(t, wrong, 1, want)
		require.Equal(t, want, wrong[0].Field+": "+wrong[0].Reason)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: drover/v1\nkind: node\nmetadata: {name: n}\n"
	specs := map[string]string{
		"spec: {}\n":                            `{}`,
		"spec:\n  a: 1\n  b: [x, 'y', \"z\"]\n": `{"a":1,"b":["x","y","z"]}`,
		"spec:\n  big: 123456789012345678901234567890\n  f: 1.50\n  e: 1e3\n  hex: 0x1F\n  neg: -7\n": `{"big":123456789012345678901234567890,"f":1.50,"e":1e3,"hex":31,"neg":-7}`,
		"spec:\n  t: true\n  n: null\n  m: ~\n  e:\n  on: on\n":                                       `{"t":true,"n":null,"m":null,"e":null,"on":"on"}`,
		"spec:\n  lit: |\n    a\n    b\n  fold: >-\n    a\n    b\n":                                   `{"lit":"a\nb\n","fold":"a b"}`,
		"spec:\n  a: &x {k: 1}\n  b: *x\n":                                                            `{"a":{"k":1},"b":{"k":1}}`,
		"spec: {a: \"5\", b: '1e3', c: 1e3x, d: -}\n":                                                 `{"a":"5","b":"1e3","c":"1e3x","d":"-"}`,
		"spec: {a: !!str 5}\n":                                                                        `{"a":"5"}`,
		"spec: {\"a\": {\"b\": [1, {\"c\": \"d\"}]}}\n":                                               `{"a":{"b":[1,{"c":"d"}]}}`,
		"spec:\n  time: 10:30\n  date: 2026-11-20\n":                                                  `{"time":"10:30","date":"2026-11-20"}`,
	}
	for spec, want := range specs {
		documents, err := Parse([]byte("# comment\n---\n" + head + spec + "---\n# nothing\n"))
		require.NoError(t, err, spec)
		require.Len(t, documents, 1)
		require.Equal(t, want, string(documents[0].Spec))
	}
	for _, empty := range []string{"", "\n", "# only\n", "---\n---\n"} {
		documents, err := Parse([]byte(empty))
		require.NoError(t, err)
		require.Empty(t, documents)
	}
	// JSON, several documents, with positions.
	documents, err := Parse([]byte("\ufeff{\"apiVersion\": \"drover/v1\", \"kind\": \"node\",\n \"metadata\": {\"name\": \"n\"}, \"spec\": {\"a\": 1.0}}\n\n{\"apiVersion\": \"drover/v1\", \"kind\": \"node\", \"metadata\": {\"name\": \"m\"}}\n"))
	require.NoError(t, err)
	require.Len(t, documents, 2)
	require.Equal(t, `{"a": 1.0}`, string(documents[0].Spec))
	require.Equal(t, []int{1, 4}, []int{documents[0].Line, documents[1].Line})
	line, column := documents[0].Position("spec.a")
	require.Equal(t, []int{2, 43}, []int{line, column})
	line, _ = documents[0].Position("spec.not.there[3]")
	require.Equal(t, 2, line)
	// A flow mapping that is YAML and not JSON.
	documents, err = Parse([]byte("{apiVersion: drover/v1, kind: node, metadata: {name: n}}"))
	require.NoError(t, err)
	require.Len(t, documents, 1)
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: drover/v1\nkind: node\nmetadata: {name: n}\n"
	for text, want := range map[string]Error{
		head + "spce: {}\n": {Line: 4, Column: 1, Field: "spce", Reason: "no field of this name"},
		head + "spec: []\n": {Line: 4, Column: 1, Field: "spec", Reason: "must be an object, not a list"},
		"apiVersion: drover/v1\nkind: node\nmetadata:\n  name: n\n  lables: {}\n":                    {Line: 5, Column: 3, Field: "metadata.lables", Reason: "no field of this name"},
		"apiVersion: drover/v1\nkind: node\nmetadata:\n  name: n\n  labels:\n    a: b\n    row: 7\n": {Line: 7, Column: 5, Field: "metadata.labels.row", Reason: "must be a string, not a number (write it in quotes)"},
		"kind: node\nmetadata: {name: n}\n":                                                          {Line: 1, Column: 1, Field: "apiVersion", Reason: "is missing: drover/v1"},
		head + "---\n" + head + "x: 1\n":                                                             {Line: 8, Column: 1, Field: "x", Reason: "no field of this name"},
		"- a\n":                                                                                      {Line: 1, Column: 1, Reason: "must be an object, not a list"},
		"just text\n":                                                                                {Line: 1, Column: 1, Reason: "must be an object, not a string"},
		head + "spec: {<<: {a: 1}}\n":                                                                {Line: 4, Column: 8, Field: "spec", Reason: "merge keys (<<) are not supported"},
		head + "spec: {1: a}\n":                                                                      {Line: 4, Column: 8, Field: "spec", Reason: `a key must be a string: write "1" in quotes`},
		head + "spec: {a: .inf}\n":                                                                   {Line: 4, Column: 11, Field: "spec.a", Reason: "is no number that JSON can hold"},
		head + "spec: {a: *nothing}\n":                                                               {Line: 4, Column: 11, Field: "spec.a", Reason: "no anchor of the name nothing stands before"},
		head + "spec: {a: !!binary aGk=}\n":                                                          {Line: 4, Column: 11, Field: "spec.a", Reason: "the tag !!binary is not supported"},
		`{"apiVersion": "drover/v1", "kind": "node", "metadata": {"name": "n"},` + "\n" + ` "spec": {}, "spec": {}}`: {Line: 2, Column: 14, Field: "spec", Reason: "is given twice"},
	} {
		_, err := Parse([]byte(text))
		var errs Errors
		require.ErrorAs(t, err, &errs, text)
		require.Equal(t, want, errs[0], text)
	}
	for text, want := range map[string]string{
		head + "spec: {\n":                    "is not YAML",
		head + "spec: {a: 1}\nspec: {a: 1}\n": "5:1",
		head + "\tspec: {}\n":                 "is not YAML",
		head + "spec:\n  a: {b: [\n":          "is not YAML",
		"a: \xff\n":                           "1:4: the file is not UTF-8",
		head + "spec:\n  a: " + strings.Repeat("[", 70) + strings.Repeat("]", 70) + "\n": "is nested deeper than 64",
	} {
		_, err := Parse([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
	// An explosion of aliases ends at the limit of a document.
	bomb := head + "spec:\n  a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 12; i++ {
		bomb += fmt.Sprintf("  a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), i-1)
	}
	_, err := Parse([]byte(bomb))
	require.ErrorContains(t, err, "the document is larger than")
	e := Error{File: "f.yaml", Line: 3, Column: 4, Field: "spec", Reason: "is missing"}
	require.Equal(t, "f.yaml:3:4: spec: is missing", e.Error())
}

// TestSchema holds Schema and Blueprint to each other: what one accepts the other does, and a field that is unknown or
// of a wrong type, anywhere, both refuse.
func TestSchema(t *testing.T) {
	t.Parallel()
	schema := compiled(t)
	check := func(spec any) ([]resource.Violation, error) {
		body, err := json.Marshal(spec)
		require.NoError(t, err)
		return judge(t, schema, string(body))
	}
	changes := 0
	for _, example := range examples {
		value := func() any {
			v, err := jsonschema.UnmarshalJSON(strings.NewReader(example))
			require.NoError(t, err)
			return v
		}
		byUs, bySchema := check(value())
		require.NoError(t, bySchema)
		require.Empty(t, byUs)
		// Every value in turn is replaced by one of another type, and every object gets a field that nobody knows.
		for i := 0; ; i++ {
			v, n := value(), 0
			var where string
			v = mutate(v, "", &n, func(path string, old any) any {
				if n-1 != i {
					return old
				}
				where = path
				if m, ok := old.(map[string]any); ok && !free(path) {
					m["nobody-knows"] = json.Number("1")
					return m
				}
				return []any{map[string]any{}}
			})
			if n <= i {
				break
			}
			changes++
			byUs, bySchema := check(v)
			require.Error(t, bySchema, "the schema accepts a change at %s", where)
			require.NotEmpty(t, byUs, "Blueprint accepts a change at %s", where)
		}
	}
	require.Greater(t, changes, 100)
	require.Error(t, schema.Validate(map[string]any{"apiVersion": APIVersion, "kind": "node", "metadata": map[string]any{"name": "k"}}))
}

// free are the objects whose names are the user's.
func free(path string) bool {
	return strings.HasSuffix(path, ".headers") || strings.HasSuffix(path, ".env") || strings.Contains(path, ".capture.") || anyObject(path)
}

// anyObject are the objects whose names and values are the user's.
func anyObject(path string) bool {
	return strings.HasSuffix(path, ".children.spec") || strings.HasSuffix(path, ".phases[].attributes")
}

func mutate(v any, path string, n *int, change func(string, any) any) any {
	*n++
	v = change(path, v)
	if anyObject(path) {
		return v
	}
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			v[name] = mutate(v[name], path+"."+name, n, change)
		}
	case []any:
		for i := range v {
			v[i] = mutate(v[i], path+"[]", n, change)
		}
	}
	return v
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(dedent(contract)))
	f.Add([]byte(`{"apiVersion": "drover/v1", "kind": "node", "metadata": {"name": "n"}, "spec": {"a": [1.0]}}`))
	f.Add([]byte("a: &x [1]\nb: *x\n<<: *x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		documents, err := Parse(text)
		if err != nil {
			return
		}
		for _, d := range documents {
			if wrong := Check(&d.Manifest); wrong != nil {
				t.Fatalf("parsed, and wrong: %v", wrong)
			}
			if d.Line < 1 {
				t.Fatal("a document without a line")
			}
		}
	})
}

func FuzzBlueprint(f *testing.F) {
	for _, example := range examples {
		f.Add([]byte(example))
	}
	f.Fuzz(func(t *testing.T, spec []byte) {
		b, wrong := Blueprint("p", "k", spec)
		if (b == nil) == (len(wrong) == 0) {
			t.Fatal("a blueprint and violations, or neither")
		}
		if b == nil {
			return
		}
		if wrong := blueprint.Validate(b); wrong != nil {
			t.Fatal(wrong)
		}
		canonical, err := strictjson.Canonical(spec)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := Blueprint("p", "k", canonical)
		require.Equal(t, b, again)
		for i := range b.Phases {
			p := &b.Phases[i]
			executors := []blueprint.Executor{p.Executor}
			if p.Undo != nil {
				executors = append(executors, *p.Undo)
				if (p.Executor.Kind == "plugin") != (p.Undo.Kind == "plugin") {
					t.Fatalf("phase %s is to be served by two", p.Name)
				}
			}
			for _, e := range executors {
				switch e.Kind {
				case "http":
					_, err = DecodeHTTP(e.Config)
				case "poll":
					_, err = DecodePoll(e.Config)
				case "script":
					_, err = DecodeScript(e.Config)
				}
				if err != nil {
					t.Fatalf("the runner would refuse what was accepted: %v", err)
				}
			}
		}
	})
}

// TestSchemaEnums: of the words that a field may have, the schema lists those that the engine knows, and no other.
func TestSchemaEnums(t *testing.T) {
	t.Parallel()
	schema := compiled(t)
	replace := func(example, field, value string) string {
		var spec map[string]any
		require.NoError(t, json.Unmarshal([]byte(example), &spec))
		lifecycle := spec["lifecycle"].(map[string]any)
		if field == "wasDeployed" {
			lifecycle = lifecycle["flows"].([]any)[0].(map[string]any)
		}
		lifecycle[field] = value
		text, err := json.Marshal(spec)
		require.NoError(t, err)
		return string(text)
	}
	for field, words := range map[string][]string{
		"onTargetChange": {"cancel", "reject", "wait"}, "onFailure": {"continue", "drain"}, "walk": {"together", "each"},
		"rerun": {"failed", "all"}, "wasDeployed": {"no", "yes", "history"},
	} {
		for _, word := range append(words, "x", "Cancel", "none") {
			text := replace(table, field, word)
			byUs, bySchema := judge(t, schema, text)
			if slices.Contains(words, word) {
				require.NoError(t, bySchema, "%s %s", field, word)
				for _, v := range byUs { // some words ask for other fields
					require.NotEqual(t, "spec.lifecycle."+field, v.Field, "%s: %s", word, v.Reason)
				}
				continue
			}
			require.Error(t, bySchema, "%s %s", field, word)
			require.NotEmpty(t, byUs, "%s %s", field, word)
		}
	}
	for _, name := range append(Presets(), "custom", "x") {
		byUs, bySchema := judge(t, schema, `{"lifecycle": "`+name+`"}`)
		require.Equal(t, byUs == nil, bySchema == nil, name)
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	text, err := jsonschema.UnmarshalJSON(strings.NewReader(string(Schema())))
	require.NoError(t, err)
	require.NoError(t, compiler.AddResource("blueprint.json", text))
	schema, err := compiler.Compile("blueprint.json")
	require.NoError(t, err)
	return schema
}

// judge asks both Blueprint and Schema about a spec.
func judge(t *testing.T, schema *jsonschema.Schema, spec string) (byUs []resource.Violation, bySchema error) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(spec))
	require.NoError(t, err)
	bySchema = schema.Validate(map[string]any{"apiVersion": APIVersion, "kind": KindBlueprint,
		"metadata": map[string]any{"name": "k"}, "spec": value})
	_, byUs = Blueprint("p", "k", []byte(spec))
	return byUs, bySchema
}

// TestExamplesUseEveryField: what no example has would be tested nowhere.
func TestExamplesUseEveryField(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	var use func(v any)
	use = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, inner := range v {
				used[name] = true
				use(inner)
			}
		case []any:
			for _, inner := range v {
				use(inner)
			}
		}
	}
	for _, example := range examples {
		var v any
		require.NoError(t, json.Unmarshal([]byte(example), &v))
		use(v)
	}
	var known []string
	var gather func(v any)
	gather = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, inner := range v {
				if properties, ok := inner.(map[string]any); ok && name == "properties" {
					known = slices.AppendSeq(known, maps.Keys(properties))
				}
				gather(inner)
			}
		case []any:
			for _, inner := range v {
				gather(inner)
			}
		}
	}
	var schema map[string]any
	require.NoError(t, json.Unmarshal(Schema(), &schema))
	gather(schema["properties"].(map[string]any)["spec"])
	require.Greater(t, len(known), 60)
	aliases := []string{"depends_on", "on_create", "onChange", "by_mark", "skipUnchanged"} // each has its other name in an example
	for _, name := range known {
		if !slices.Contains(aliases, name) {
			require.True(t, used[name], "no example has the field %s", name)
		}
	}
}
