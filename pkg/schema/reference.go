package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/manifest"
)

// Reference is docs/manifests.md: every kind with its fields, and the limits, rendered from the schemas.
func Reference() []byte {
	var b strings.Builder
	b.WriteString(`<!-- Generated from pkg/schema by ` + "`make generate`" + `, do not edit. -->
# Manifests

A file holds manifests in YAML (several, with ` + "`---`" + ` between) or JSON. ` + "`drover apply -f FILE`" + ` takes it; a field that is unknown, of a
wrong type or out of its limits is refused with its path, line and column. ` + "`drover schema`" + ` prints the JSON Schema of all of this,
` + "`drover schema KIND`" + ` of one kind, for editors that check and complete:

    # yaml-language-server: $schema=drover.schema.json     (first line of a manifest, after drover schema > drover.schema.json)

Every manifest has:

`)
	table(&b, envelopeFields())
	b.WriteString("\nA `null` means that a field is not set. Times are written as `1h30m`, `15s`, `250ms`. **Bold** fields are needed.\n\n")
	for _, k := range Kinds() {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n", k.Name, k.About)
		table(&b, rows(plain(k.schema()), ""))
		b.WriteString("\n")
	}
	b.WriteString("## Kinds that a blueprint defines\n\n" +
		"A resource's kind is the name of a blueprint of its project, which may not be one of the above. Its spec is any object; phases read it\n" +
		"(`{{ resource.spec.… }}`, `resource.spec` in `when`), and a phase with the executor `children` reads the items in it:\n\n")
	table(&b, itemFields())
	b.WriteString("\n## Limits\n\n| limit | of a |\n|---|---|\n")
	for _, l := range Limits() {
		fmt.Fprintf(&b, "| %s %s | %s |\n", thousands(l.Value), l.Unit, l.Of)
	}
	return []byte(b.String())
}

// plain is a schema as whoever reads its text has it: lists of anything, and numbers as JSON has them.
func plain(schema map[string]any) map[string]any {
	var s map[string]any
	if err := json.Unmarshal(JSON(schema), &s); err != nil {
		panic(err) // it is ours
	}
	return s
}

// row is one field.
type row struct {
	path, kind, limits, about string
	needed                    bool
}

func table(b *strings.Builder, all []row) {
	b.WriteString("| field | type | limits | |\n|---|---|---|---|\n")
	for _, r := range all {
		path := "`" + r.path + "`"
		if r.needed {
			path = "**" + path + "**"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", path, r.kind, r.limits, strings.ReplaceAll(r.about, "|", `\|`))
	}
}

func envelopeFields() []row {
	s := plain(envelope())
	properties := object(s, "properties")
	kind := map[string]any{"type": "string", "description": "One of the kinds below, or one that a blueprint defines."}
	all := []row{{path: "apiVersion", kind: "text", limits: "`" + manifest.APIVersion + "`", about: "Version of manifests.", needed: true}, rowOf("kind", kind, true)}
	all = append(all, rowOf("metadata", object(properties, "metadata"), true))
	all = append(all, rows(object(properties, "metadata"), "metadata.")...)
	return append(all, row{path: "spec", kind: "object", about: "What is wanted: below, for each kind."})
}

// rows are the fields of an object, each followed by what is in it.
func rows(s map[string]any, prefix string) []row {
	var all []row
	required, _ := s["required"].([]any)
	properties := object(s, "properties")
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		p := object(properties, name)
		others := aliases(properties, name)
		if len(others) > 0 && others[0] != name {
			continue // said with the other
		}
		r := rowOf(prefix+name, p, slices.Contains(required, any(name)))
		if len(others) > 1 {
			r.about += " Also written `" + strings.Join(others[1:], "`, `") + "`."
		}
		if name == "undo" {
			r.about += " Its fields are those of `executor`."
			all = append(all, r)
			continue
		}
		all = append(append(all, r), within(p, prefix+name)...)
	}
	return all
}

// aliases are the names of one field, the one to be used first: those without an underscore, the last of them.
func aliases(properties map[string]any, name string) []string {
	p := object(properties, name)
	if p["description"] == nil {
		return nil
	}
	var names []string
	for other := range properties {
		if reflect.DeepEqual(p, properties[other]) {
			names = append(names, other)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if x, y := strings.Contains(a, "_"), strings.Contains(b, "_"); x != y {
			if x {
				return 1
			}
			return -1
		}
		return strings.Compare(b, a)
	})
	return names
}

func within(s map[string]any, path string) []row {
	all := rows(s, path+".")
	if of := object(s, "items"); of != nil {
		all = append(all, rows(of, path+"[].")...)
	}
	if of := object(s, "additionalProperties"); of != nil {
		all = append(all, rows(of, path+".*.")...)
	}
	for _, word := range []string{"oneOf", "anyOf"} {
		choices, _ := s[word].([]any)
		for _, c := range choices {
			if of, ok := c.(map[string]any); ok && of["additionalProperties"] == false { // else it is a condition
				all = append(all, rows(of, path+".")...)
			}
		}
	}
	return all
}

func rowOf(path string, s map[string]any, needed bool) row {
	r := row{path: path, kind: kindOf(s), needed: needed}
	r.about, _ = s["description"].(string)
	r.limits = strings.Join(limitsOf(s), ", ")
	return r
}

// kindOf is the type of a value in words.
func kindOf(s map[string]any) string {
	var types []string
	switch t := s["type"].(type) {
	case string:
		types = []string{t}
	case []any:
		for _, one := range t {
			if one != "null" {
				types = append(types, fmt.Sprint(one))
			}
		}
	}
	if s["pattern"] == duration {
		return "time"
	}
	for i, t := range types {
		switch t {
		case "string":
			types[i] = "text"
		case "boolean":
			types[i] = "true or false"
		case "integer":
			types[i] = "whole number"
		case "array":
			types[i] = "list"
			if of := object(s, "items"); of != nil {
				types[i] = "list of " + kindOf(of)
			}
		case "object":
			if of := object(s, "additionalProperties"); of != nil {
				types[i] = "names to " + kindOf(of)
			}
		}
	}
	for _, word := range []string{"oneOf", "anyOf"} {
		choices, _ := s[word].([]any)
		for _, c := range choices {
			if of, ok := c.(map[string]any); ok && types == nil || ok && of["type"] != nil {
				types = append(types, kindOf(of))
			}
		}
	}
	if types == nil {
		if s["enum"] != nil {
			return "text"
		}
		return "any"
	}
	return strings.Join(slices.Compact(types), " or ")
}

func limitsOf(s map[string]any) []string {
	var all []string
	values, _ := s["enum"].([]any)
	choices, _ := s["oneOf"].([]any)
	for _, c := range choices {
		if of, ok := c.(map[string]any); ok && values == nil {
			values, _ = of["enum"].([]any)
		}
	}
	var listed []string
	for _, v := range values {
		if v != nil && v != "" {
			listed = append(listed, fmt.Sprintf("`%v`", v))
		}
	}
	if listed != nil {
		all = append(all, strings.Join(listed, " "))
	}
	number := func(word string) (int, bool) {
		n, ok := s[word].(float64)
		return int(n), ok
	}
	least, hasLeast := number("minimum")
	if most, ok := number("maximum"); ok {
		all = append(all, fmt.Sprintf("%s to %s", thousands(least), thousands(most)))
	} else if hasLeast {
		all = append(all, fmt.Sprintf("%s or more", thousands(least)))
	}
	for _, bound := range [][2]string{{"maxLength", "bytes"}, {"maxItems", "entries"}, {"maxProperties", "entries"}} {
		if n, ok := number(bound[0]); ok && (bound[0] != "maxProperties" || n > 1) {
			all = append(all, "at most "+thousands(n)+" "+bound[1])
		}
	}
	return all
}

// thousands writes a number with its thousands apart.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// itemFields are those of a child as a parent's spec defines it.
func itemFields() []row { return rows(plain(manifest.ItemSchema()), "items[].") }
