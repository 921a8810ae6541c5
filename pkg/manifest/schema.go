package manifest

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/strictjson"
)

// Schema is the JSON Schema (2020-12) of Blueprint manifests, for editors and for people. It is made from the types
// that Blueprint reads into, so it knows the same fields; what one field says about another only Blueprint checks.
func Schema() []byte {
	s := schemaOf(reflect.TypeFor[file]())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "Drover Blueprint"
	properties := s["properties"].(map[string]any)
	properties["apiVersion"] = map[string]any{"const": APIVersion}
	properties["kind"] = map[string]any{"const": KindBlueprint}
	properties["spec"] = schemaOf(reflect.TypeFor[blueprintSpec]())
	s["required"] = []string{"apiVersion", "kind", "metadata", "spec"}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // it holds maps, lists and strings only
	}
	return append(text, '\n')
}

// ItemSchema is the JSON Schema of one child in a parent's spec.
func ItemSchema() map[string]any { return schemaOf(reflect.TypeFor[itemSpec]()) }

// named is a part of the schema whose Go type does not say what may stand there.
func named(name string) map[string]any {
	switch name {
	case "lifecycle":
		return map[string]any{"oneOf": []any{
			map[string]any{"enum": Presets()}, schemaOf(reflect.TypeFor[tableSpec]()),
		}}
	case "plugin":
		return schemaOf(reflect.TypeFor[Plugin]())
	case "http":
		return schemaOf(reflect.TypeFor[HTTP]())
	case "poll":
		return schemaOf(reflect.TypeFor[Poll]())
	case "attributes":
		return map[string]any{"type": "object"}
	case "children":
		return schemaOf(reflect.TypeFor[Children]())
	default:
		return schemaOf(reflect.TypeFor[Script]())
	}
}

func schemaOf(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "string", "pattern": `^[+-]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+$|^[+-]?0$`}
	case reflect.TypeFor[Status]():
		return map[string]any{"type": []string{"integer", "string"}, "minimum": 100, "maximum": 999,
			"pattern": `^[1-9](xx|\d\d(-[1-9]\d\d)?)$`}
	case reflect.TypeFor[strictjson.Object]():
		return map[string]any{"type": "object"}
	}
	switch t.Kind() {
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int:
		return map[string]any{"type": "integer"}
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	default:
		return schemaOfStruct(t)
	}
}

func schemaOfStruct(t reflect.Type) map[string]any {
	properties := make(map[string]any)
	var needed []string
	for i := range t.NumField() {
		f := t.Field(i)
		var s map[string]any
		if name := f.Tag.Get("schema"); name != "" {
			s = named(name)
		} else {
			s = schemaOf(f.Type)
		}
		if values := f.Tag.Get("enum"); values != "" {
			s["enum"] = append([]any{nil}, enumOf(values)...)
		}
		if f.Tag.Get("need") != "" {
			needed = append(needed, f.Tag.Get("json"))
		} else {
			s = orNull(s)
		}
		if doc := f.Tag.Get("doc"); doc != "" {
			s["description"] = doc
		}
		properties[f.Tag.Get("json")] = s
		if alias := f.Tag.Get("alias"); alias != "" {
			properties[alias] = s
		}
	}
	s := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if t == reflect.TypeFor[executorSpec]() {
		s["minProperties"], s["maxProperties"] = 1, 1
	}
	if needed != nil {
		s["required"] = needed
	}
	return s
}

// enumOf is the values that a field may have.
func enumOf(values string) []any {
	var list []any
	for value := range strings.FieldsSeq(values) {
		list = append(list, value)
	}
	return list
}

// orNull allows null, which means not set, for what has a type.
func orNull(s map[string]any) map[string]any {
	switch t := s["type"].(type) {
	case string:
		s["type"] = []string{t, "null"}
	case []string:
		s["type"] = append(slices.Clone(t), "null")
	}
	return s
}
