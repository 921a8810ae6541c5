package manifest

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
)

// ItemsField is the field of a spec that defines children, unless the phase names another.
const ItemsField = "items"

// Children is a phase that the orchestrator carries out itself, on the resource's children.
type Children struct {
	Do    string `json:"do" enum:"apply run mark delete" doc:"Which part: apply (make and update them), run (give them the job, and wait), mark (for deletion), delete (and wait). Default: apply, then run; in a flow that undoes, mark, then delete."`
	Items string `json:"items" doc:"Field of the spec that lists the children. Default: items."`
	Kind  string `json:"kind" doc:"Kind of the children that do not name their own."`
	Verb  string `json:"verb" doc:"Verb of the flow that the children walk. Default: that of their lifecycle for a creation or a change; with spec the parent's own, where the child may start there."`
	// Item and Spec are for a phase that manages one service (seed 000, ServiceManagementPhase).
	Item string            `json:"item" doc:"With spec: name of the child within the parent. Default: its kind."`
	Spec strictjson.Object `json:"spec" doc:"Spec of the one child. Its texts may hold {{ resource.spec.… }}: values of the parent's spec."`
}

func (s *Children) blueprint(c *checks, path string) *blueprint.Children {
	if s.Kind != "" {
		if reason := CheckName(s.Kind); reason != "" {
			c.fail(path+".kind", "%s", reason)
		}
	}
	if len(s.Items) > blueprint.NameBytesMax || len(s.Verb) > blueprint.VerbBytesMax {
		c.fail(path, "has a name that is too long")
	}
	b := &blueprint.Children{Do: blueprint.Do(s.Do), Items: s.Items, Kind: s.Kind, Verb: s.Verb}
	switch {
	case len(s.Spec) == 0 && s.Item != "":
		c.fail(path+".item", "is for a child that spec defines, and there is no spec")
	case len(s.Spec) == 0:
	case s.Kind == "":
		c.fail(path+".kind", "is missing: the kind of the child that spec defines")
	case s.Items != "":
		c.fail(path+".items", "is not for a phase whose child spec defines")
	default:
		canonical, _, err := Canonical(s.Spec)
		if err != nil {
			c.fail(path+".spec", "%s", err)
			break
		}
		b.Item, b.Template = s.Item, string(canonical)
		if b.Item == "" {
			b.Item = s.Kind
		}
		if field, reason := checkItem(&itemSpec{Name: b.Item, Kind: s.Kind}); reason != "" {
			c.fail(path+".item", "%s: %s", field, reason)
		}
		if err := checkTemplate(canonical); err != nil {
			c.fail(path+".spec", "%s", err)
		}
	}
	return b
}

// itemSpec is one child as a parent's spec defines it.
type itemSpec struct {
	Name         string            `json:"name" need:"true" doc:"Name within the parent; the child is called <parent>/<name>."`
	Kind         string            `json:"kind" doc:"Kind of the child. Default: the one that the phase names."`
	Spec         strictjson.Object `json:"spec" doc:"Spec of the child."`
	DependsOn    []string          `json:"dependsOn" alias:"depends_on" doc:"Items that must have finished first; they are deleted after this one."`
	Labels       map[string]string `json:"labels" doc:"Labels of the child."`
	OnChangeOnly bool              `json:"updateOnChangeOnly" alias:"update_on_change_only" doc:"A job succeeds without running where the spec is as it was at the last success."`
}

// Items reads the children that a spec defines for a phase, in their order. It is a function of its arguments. The error is a
// children.InvalidError, which names the first field that is wrong.
func Items(ph *blueprint.Phase, spec []byte) ([]children.Item, error) {
	if ph.Children != nil && ph.Children.Template != "" {
		items, err := managed(ph.Children, spec)
		if err != nil {
			return nil, &children.InvalidError{Field: "spec", Reason: err.Error()}
		}
		return items, nil
	}
	field := ItemsField
	if ph.Children != nil && ph.Children.Items != "" {
		field = ph.Children.Items
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(spec, &fields); err != nil {
		return nil, &children.InvalidError{Field: "spec", Reason: "is no JSON object: " + err.Error()}
	}
	text, ok := fields[field]
	if !ok {
		return nil, nil // an empty one must succeed (facts/landscaper.md A10, #326)
	}
	path := "spec." + field
	var specs []itemSpec
	if errs := strictjson.Unmarshal(path, text, &specs); errs != nil {
		return nil, &children.InvalidError{Field: errs[0].Field, Reason: errs[0].Reason}
	}
	if len(specs) > children.ItemsMax {
		return nil, &children.InvalidError{Field: path, Reason: fmt.Sprintf("has %d items, more than %d", len(specs), children.ItemsMax)}
	}
	items := make([]children.Item, len(specs))
	index := make(map[string]int, len(specs))
	for i := range specs {
		s, at := &specs[i], strictjson.Item(path, i)
		if s.Kind == "" && ph.Children != nil {
			s.Kind = ph.Children.Kind
		}
		if field, reason := checkItem(s); reason != "" {
			return nil, &children.InvalidError{Field: at + "." + field, Reason: reason}
		}
		if _, doubled := index[s.Name]; doubled {
			return nil, &children.InvalidError{Field: at + ".name", Reason: "another item has this name"}
		}
		index[s.Name] = i
		own := []byte(s.Spec)
		if len(own) == 0 {
			own = []byte("{}")
		}
		canonical, digest, err := Canonical(own)
		if err != nil {
			return nil, &children.InvalidError{Field: at + ".spec", Reason: err.Error()}
		}
		items[i] = children.Item{
			Name: s.Name, Kind: s.Kind, SpecDigest: digest, Spec: string(canonical), DependsOn: s.DependsOn, Labels: s.Labels,
			OnChangeOnly: s.OnChangeOnly,
		}
		if len(s.DependsOn) == 0 {
			items[i].DependsOn = nil
		}
		if len(s.Labels) == 0 {
			items[i].Labels = nil
		}
	}
	if err := acyclic(path, items, index); err != nil {
		return items, err
	}
	return items, nil
}

func checkItem(s *itemSpec) (field, reason string) {
	switch reason := CheckName(s.Name); {
	case reason != "":
		return "name", reason
	case strings.Contains(s.Name, "/"):
		return "name", "holds a slash"
	case s.Kind == "":
		return "kind", "is missing, and the phase names none"
	case len(s.Spec) > resource.SpecBytesMax:
		return "spec", fmt.Sprintf("is larger than %d bytes", resource.SpecBytesMax)
	case len(s.DependsOn) > blueprint.DependsOnMax:
		return "dependsOn", fmt.Sprintf("has more than %d items", blueprint.DependsOnMax)
	case len(s.Labels) > resource.LabelsMax:
		return "labels", fmt.Sprintf("has more than %d", resource.LabelsMax)
	}
	return "", ""
}

// acyclic refuses dependencies on what is not there, and cycles (facts/landscaper.md A3: upstream's validation does, and
// the engine fails what slips through).
func acyclic(path string, items []children.Item, index map[string]int) *children.InvalidError {
	waits := make([]int, len(items))
	frees := make([][]int, len(items))
	for i := range items {
		for k, name := range items[i].DependsOn {
			on, ok := index[name]
			if !ok {
				return &children.InvalidError{Field: fmt.Sprintf("%s.dependsOn[%d]", strictjson.Item(path, i), k), Reason: "no item of this name: " + name}
			}
			waits[i]++
			frees[on] = append(frees[on], i)
		}
	}
	var ready []int
	for i := range items {
		if waits[i] == 0 {
			ready = append(ready, i)
		}
	}
	for n := 0; n < len(ready); n++ {
		for _, i := range frees[ready[n]] {
			if waits[i]--; waits[i] == 0 {
				ready = append(ready, i)
			}
		}
	}
	if len(ready) == len(items) {
		return nil
	}
	var caught []string
	for i := range items {
		if waits[i] > 0 && len(caught) < 5 {
			caught = append(caught, items[i].Name)
		}
	}
	return &children.InvalidError{Field: path, Reason: "dependsOn leads in a circle: " + strings.Join(caught, ", ")}
}
