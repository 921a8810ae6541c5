package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// The spec of a managed service is a template over the parent's spec (seed 000, ServiceManagementPhase: "the data used to
// create the Service Instance can be specified as Jinja template"). The orchestrator fills it in, for every tree that it
// drives, and twice must be the same: so of Jinja there is what names a value, {{ resource.spec.site.0.vlan }}, and no
// filters, statements, or calls. A text that is nothing but that becomes the value itself, of whatever type; within a longer
// text a text, a number or a boolean is written out. A name that is not there is an error that says which.

// templateDepthMax is how deep a template's values may be nested.
const templateDepthMax = 64

// checkTemplate says what is wrong with a template, whatever the parent's spec is.
func checkTemplate(template []byte) error {
	_, err := fillIn(template, nil, true)
	return err
}

// managed is the one child of a phase that manages a service.
func managed(c *blueprint.Children, spec []byte) ([]children.Item, error) {
	var parent any
	if err := decodeExact(spec, &parent); err != nil {
		return nil, fmt.Errorf("spec: is no JSON object: %w", err)
	}
	filled, err := fillIn([]byte(c.Template), parent, false)
	if err != nil {
		return nil, err
	}
	canonical, digest, err := Canonical(filled)
	switch {
	case err != nil:
		return nil, err
	case len(canonical) > resource.SpecBytesMax:
		return nil, fmt.Errorf("the child's spec is larger than %d bytes", resource.SpecBytesMax)
	}
	return []children.Item{{Name: c.Item, Kind: c.Kind, SpecDigest: digest, Spec: string(canonical)}}, nil
}

func decodeExact(text []byte, v any) error {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	return d.Decode(v)
}

// fillIn fills a template in over the parent's spec; with dry it only looks whether it is one.
func fillIn(template []byte, spec any, dry bool) ([]byte, error) {
	var v any
	if err := decodeExact(template, &v); err != nil {
		return nil, errors.New("the template is no JSON")
	}
	f := filler{spec: spec, dry: dry, left: resource.SpecBytesMax}
	v, err := f.value(v, 0)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

type filler struct {
	spec any
	dry  bool
	left int // bytes that texts may yet become
}

func (f *filler) value(v any, depth int) (any, error) {
	if depth > templateDepthMax {
		return nil, fmt.Errorf("the template is nested deeper than %d", templateDepthMax)
	}
	switch v := v.(type) {
	case string:
		return f.text(v)
	case []any:
		for i := range v {
			filled, err := f.value(v[i], depth+1)
			if err != nil {
				return nil, err
			}
			v[i] = filled
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) { // an error is to be the same each time
			filled, err := f.value(v[name], depth+1)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			v[name] = filled
		}
	}
	return v, nil
}

func (f *filler) text(s string) (any, error) {
	var b strings.Builder
	for rest := s; ; {
		before, after, found := strings.Cut(rest, "{{")
		if strings.Contains(before, "{%") || strings.Contains(before, "{#") {
			return nil, errors.New("a template of the orchestrator's has no statements or comments: only {{ resource.spec.… }}")
		}
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, behind, closed := strings.Cut(after, "}}")
		if !closed {
			return nil, errors.New("{{ is not closed by }}")
		}
		value, err := f.lookUp(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		if before == "" && behind == "" && rest == s {
			return value, f.take(value)
		}
		text, ok := plainText(value)
		if !ok {
			return nil, fmt.Errorf("{{ %s }} is no text, number or boolean, and stands within a longer text", strings.TrimSpace(name))
		}
		if f.left -= len(text); f.left < 0 {
			return nil, fmt.Errorf("the child's spec is larger than %d bytes", resource.SpecBytesMax)
		}
		b.WriteString(text)
		rest = behind
	}
}

// take counts what a value adds, so that a small template does not become a large spec by naming one value often.
func (f *filler) take(value any) error {
	if f.dry {
		return nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if f.left -= len(text); f.left < 0 {
		return fmt.Errorf("the child's spec is larger than %d bytes", resource.SpecBytesMax)
	}
	return nil
}

func (f *filler) lookUp(name string) (any, error) {
	parts := strings.Split(name, ".")
	if len(parts) < 2 || parts[0] != "resource" || parts[1] != "spec" {
		return nil, fmt.Errorf("{{ %s }} is not known: only resource.spec, and what is in it", name)
	}
	v := f.spec
	for i, part := range parts[2:] {
		if part == "" || strings.ContainsAny(part, " \t()[]|'\"") {
			return nil, fmt.Errorf("{{ %s }} is no name: a template of the orchestrator's has no filters or calls", name)
		}
		if f.dry {
			continue
		}
		next, ok := member(v, part)
		if !ok {
			return nil, fmt.Errorf("%s is not in the spec", strings.Join(parts[1:i+3], "."))
		}
		v = next
	}
	if f.dry {
		return "", nil
	}
	return v, nil
}

func member(v any, part string) (any, bool) {
	switch v := v.(type) {
	case map[string]any:
		next, ok := v[part]
		return next, ok
	case []any:
		i, err := strconv.Atoi(part)
		if err != nil || i < 0 || i >= len(v) || strconv.Itoa(i) != part {
			return nil, false
		}
		return v[i], true
	}
	return nil, false
}

func plainText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}
