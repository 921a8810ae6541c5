// Package schema is the JSON Schema (2020-12) of every manifest, for editors and people, and the reference that is rendered from it
// (docs/manifests.md).
//
// A schema accepts what intake accepts. It refuses fields that are unknown, of a wrong type or missing, and most values that are
// out of their limits; what one field says about another, and names that must exist, only intake and the partition's owner check.
// TestSchemasAreIntakes holds the two to each other.
//
// Structure comes of the types that specs are read into, so that a new field is in the schema; what it means and what bounds it is
// in fields.go, where a field without a line fails the test.
package schema

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/monitoring"
	"github.com/droverproject/drover/pkg/rebar"
	"github.com/droverproject/drover/pkg/strictjson"
)

// dialect is what schemas say that they are.
const dialect = "https://json-schema.org/draft/2020-12/schema"

// Kind is one built-in kind of manifests.
type Kind struct {
	Name  string
	About string
	spec  reflect.Type // nil: the schema of the spec is made by itself
	// needsSpec: a manifest without a spec is refused.
	needsSpec bool
}

// Kinds lists them, in the order of the reference. Any other kind is one that a blueprint defines.
func Kinds() []Kind {
	return []Kind{
		{Name: manifest.KindBlueprint, About: "Defines a kind: what its resources can do (docs/blueprints.md).", needsSpec: true},
		{Name: resource.ListenerKind, About: "Who is told when a resource reaches a state.", needsSpec: true},
		{Name: check.Repository, About: "The root of a tree of objects that checks are placed on (docs/checks.md).", spec: reflect.TypeFor[monitoring.RepositorySpec]()},
		{Name: check.Bucket, About: "A part of a repository. Its name is `<repository>/<bucket>`.", spec: reflect.TypeFor[monitoring.BucketSpec]()},
		{Name: check.Group, About: "Objects that belong together. Its name is its way from the repository, with slashes.", spec: reflect.TypeFor[monitoring.ObjectSpec]()},
		{Name: check.Cluster, About: "The same, of nodes that do one thing.", spec: reflect.TypeFor[monitoring.ObjectSpec]()},
		{Name: check.Node, About: "What is monitored.", spec: reflect.TypeFor[monitoring.ObjectSpec](), needsSpec: true},
		{Name: check.MonitoringSystem, About: "What carries checks out, and is told of news.", spec: reflect.TypeFor[monitoring.SystemSpec]()},
		{Name: check.Capability, About: "What a monitoring system can measure.", spec: reflect.TypeFor[monitoring.CapabilitySpec](), needsSpec: true},
		{Name: check.CheckConfiguration, About: "A check on an object and what is below it. Its name is `<repository>/<name>`.", spec: reflect.TypeFor[monitoring.ConfigurationSpec](), needsSpec: true},
		{Name: resource.TaskKind, About: "What a machine's agent does: scripts to be executed, files to be written (docs/machines.md).", spec: reflect.TypeFor[rebar.Task]()},
		{Name: resource.StageKind, About: "Tasks in their order, and the boot environment that they need.", spec: reflect.TypeFor[rebar.Stage]()},
		{Name: resource.WorkflowKind, About: "Stages in their order.", spec: reflect.TypeFor[rebar.Workflow]()},
		{Name: resource.BootEnvKind, About: "A boot environment, by its name.", spec: reflect.TypeFor[rebar.BootEnv]()},
		{Name: resource.MachineKind, About: "What a person sets of a machine. What is not given stays as it is.", spec: reflect.TypeFor[rebar.Machine]()},
	}
}

// Of is the schema of the manifests of a kind; of any kind that is not built in, the one that a blueprint's resources have.
func Of(kind string) map[string]any {
	s := envelope()
	s["$schema"], s["title"] = dialect, "Drover "+kind
	properties := object(s, "properties")
	for _, k := range Kinds() {
		if k.Name != kind {
			continue
		}
		s["description"] = k.About
		properties["kind"] = map[string]any{"const": kind}
		properties["spec"] = k.schema()
		if k.needsSpec {
			s["required"] = []any{"apiVersion", "kind", "metadata", "spec"}
		} else {
			properties["spec"] = orNull(object(properties, "spec"))
		}
		return s
	}
	s["description"] = "A resource of a kind that a blueprint defines. What its spec holds is the blueprint's users' own."
	properties["kind"] = map[string]any{"type": "string", "minLength": 1, "maxLength": 253, "description": "Kind that a blueprint defines."}
	if kind != "" {
		properties["kind"] = map[string]any{"const": kind}
	}
	properties["spec"] = map[string]any{"type": []any{"object", "null"}, "description": "Any object, at most 768 KiB as JSON."}
	return s
}

// All is the schema of any manifest: by its kind.
func All() map[string]any {
	var rules []any
	var names []any
	for _, k := range Kinds() {
		names = append(names, k.Name)
		of := Of(k.Name)
		delete(of, "$schema")
		rules = append(rules, map[string]any{
			"if":   map[string]any{"required": []any{"kind"}, "properties": map[string]any{"kind": map[string]any{"const": k.Name}}},
			"then": of,
		})
	}
	other := Of("")
	delete(other, "$schema")
	rules = append(rules, map[string]any{
		"if": map[string]any{"properties": map[string]any{"kind": map[string]any{"not": map[string]any{"enum": names}}}}, "then": other,
	})
	return map[string]any{"$schema": dialect, "title": "Drover manifest", "type": "object", "required": []any{"apiVersion", "kind", "metadata"}, "allOf": rules}
}

// JSON is a schema as text.
func JSON(schema map[string]any) []byte {
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		panic(err) // it holds maps, lists, texts and numbers only
	}
	return append(text, '\n')
}

// ofBlueprint is the schema of Blueprint manifests, which pkg/manifest makes.
func ofBlueprint() map[string]any {
	var s map[string]any
	if err := json.Unmarshal(manifest.Schema(), &s); err != nil {
		panic(err) // it is ours
	}
	return s
}

func object(m map[string]any, key string) map[string]any {
	o, _ := m[key].(map[string]any)
	return o
}

// envelope is what all manifests have: apiVersion, kind and metadata, with their limits.
func envelope() map[string]any {
	s := ofBlueprint()
	s["required"] = []any{"apiVersion", "kind", "metadata"}
	properties := object(s, "properties")
	object(properties, "apiVersion")["description"] = "Version of manifests."
	metadata := object(properties, "metadata")
	metadata["description"] = "What it is called."
	for name, limits := range map[string]map[string]any{
		"name": {"minLength": 1, "maxLength": 253}, "project": {"maxLength": 253}, "cluster": {"maxLength": 253}, "labels": {"maxProperties": resource.LabelsMax},
	} {
		maps.Copy(object(object(metadata, "properties"), name), limits)
	}
	values := object(object(object(metadata, "properties"), "labels"), "additionalProperties")
	values["maxLength"] = manifest.LabelBytesMax
	return s
}

func (k Kind) schema() map[string]any {
	switch {
	case k.Name == manifest.KindBlueprint:
		return object(object(ofBlueprint(), "properties"), "spec")
	case k.spec == nil:
		return listenerSpec()
	}
	return of(k.Name, "", k.spec)
}

// of is the schema of a type at a path below a kind's spec.
func of(kind, path string, t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "string", "pattern": duration}
	case reflect.TypeFor[strictjson.Object]():
		return map[string]any{"type": "object"}
	case reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int:
		return map[string]any{"type": "integer"}
	case reflect.Uint32:
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 1<<32 - 1}
	case reflect.Pointer:
		return of(kind, path, t.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": bounded(kind, path+"[]", of(kind, path+"[]", t.Elem()))}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": bounded(kind, path+".*", of(kind, path+".*", t.Elem()))}
	default: // a struct
		return ofStruct(kind, path, t)
	}
}

// ofStruct is of, of a struct's fields.
func ofStruct(kind, path string, t reflect.Type) map[string]any {
	properties := map[string]any{}
	var required []any
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("json")
		at := strings.TrimPrefix(path+"."+name, ".")
		s := bounded(kind, at, of(kind, at, t.Field(i).Type))
		if fields[kind][at].need {
			required = append(required, name)
		} else {
			s = orNull(s)
		}
		properties[name] = s
	}
	s := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		s["required"] = required
	}
	return s
}

// bounded adds what is said of a field.
func bounded(kind, path string, s map[string]any) map[string]any {
	f := fields[kind][path]
	if f.doc != "" {
		s["description"] = f.doc
	}
	maps.Copy(s, f.limits)
	return s
}

// orNull allows null, which means not set.
func orNull(s map[string]any) map[string]any {
	if t, ok := s["type"].(string); ok {
		s["type"] = []any{t, "null"}
	}
	if values, ok := s["enum"].([]any); ok {
		s["enum"] = append(slices.Clone(values), nil)
	}
	return s
}

const duration = `^[+-]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+$|^[+-]?0$`
