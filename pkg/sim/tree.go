package sim

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// role is what a kind is in a tree; empty: it has none.
type role string

const (
	execution   role = "execution"
	deployItem  role = "item"
	serviceKind role = "service"
)

const itemsMost = 6 // of one parent

// forest draws kinds whose resources make others: executions of deploy items, and now and then services of either.
func (s *scenario) forest(names []string) {
	w := s.w
	item := kind{name: "item", role: deployItem, table: `{"lifecycle":"deployitem"}`, ways: []string{"Init", "Progressing", "Deleting"}}
	if w.percent(25) {
		item.ways = []string{"A", "B", "D"}
		lifecycle := map[string]any{
			"flows": []any{
				map[string]any{"verb": "start", "path": []string{"A", "B"}, "target": "Started"},
				map[string]any{"verb": "stop", "path": []string{"D"}, "target": "Off"},
			},
			"onTargetChange": pick(w, []string{"cancel", "wait", "reject"}), "onFailure": pick(w, []string{"continue", "drain"}),
			"onCreate": "start", "onChange": "start",
		}
		if w.percent(80) {
			lifecycle["delete"] = "stop"
		}
		table, _ := json.Marshal(map[string]any{"lifecycle": lifecycle})
		item.table = string(table)
	}
	s.kinds = append(s.kinds, item, kind{
		name: "exec", role: execution, table: `{"lifecycle":"execution"}`, flows: []string{"reconcile"}, ways: []string{"Init", "Completing"},
		names: names[:1+w.r.IntN(min(3, len(names)))],
	})
	if w.percent(35) {
		s.kinds = append(s.kinds, kind{
			name: "svc", role: serviceKind, table: `{"lifecycle":"service"}`, names: names[:1+w.r.IntN(2)],
			flows: []string{"deploy", "deploy", "update", "redeploy", "decom", "reactivate"},
		})
	}
	for _, k := range s.kinds {
		for f := range phasesMax {
			s.phases = append(s.phases, bus.Phase{Project: project, Kind: k.name, Phase: phaseName(f)})
		}
	}
}

// treePhases draws the phases of a kind of trees.
func (s *scenario) treePhases(k *kind) []map[string]any {
	w := s.w
	own := func(name string, do string, states ...string) map[string]any {
		c := map[string]any{"kind": "item"}
		if do != "" {
			c["do"] = do
		}
		p := map[string]any{"name": name, "executor": map[string]any{"children": c}}
		if states != nil {
			p["states"] = states
		}
		if w.percent(15) {
			p["timeout"] = pick(w, []string{"5s", "90s", "5m"})
		}
		return p
	}
	if k.role == serviceKind {
		var phases []map[string]any
		made := own("own", "")
		if w.percent(90) {
			made["undo"] = map[string]any{"children": map[string]any{}}
		}
		made["idempotent"] = w.percent(70)
		before := w.percent(50)
		if before {
			f := map[string]any{
				"name": phaseName(0), "executor": map[string]any{"plugin": map[string]any{}}, "undo": map[string]any{"plugin": map[string]any{}},
				"idempotent": w.percent(70),
			}
			phases = append(phases, f)
			if w.percent(60) {
				made["dependsOn"] = []string{phaseName(0)}
			}
		}
		return append(phases, made)
	}
	phases := s.plugins(k, 2)
	if w.percent(70) {
		phases = append(phases, own("own", "apply", "Init"), own("run", "run", "Progressing"))
	} else {
		phases = append(phases, own("own", "", "Progressing"))
	}
	if w.percent(80) {
		phases = append(phases, own("mark", "mark", "InitDelete"))
	}
	if w.percent(97) {
		phases = append(phases, own("remove", "delete", "Deleting"))
	}
	return phases
}

// items draws what a parent is to have: a few of the same names each time, in some order, with dependencies among them.
func (s *scenario) items(k *kind) []any {
	w := s.w
	items := []any{}
	names := []string{}
	most := itemsMost
	if k.role == serviceKind {
		most = 2
	}
	for _, i := range w.r.Perm(most)[:w.r.IntN(most+1)] {
		name := fmt.Sprint("i", i)
		item := map[string]any{"name": name}
		spec := map[string]any{"n": w.r.IntN(4)}
		if k.role == serviceKind && w.percent(60) {
			item["kind"] = "exec"
			spec["items"] = s.items(&kind{role: execution})
		} else if w.percent(1) {
			item["kind"] = "nobody"
		}
		if w.percent(90) {
			item["spec"] = spec
		}
		var on []string
		for _, before := range names {
			if w.percent(35) {
				on = append(on, before)
			}
		}
		if on != nil {
			item["dependsOn"] = on
		}
		if w.percent(25) {
			item["labels"] = map[string]string{"x": pick(w, []string{"y", "z"})}
		}
		if w.percent(25) {
			item["updateOnChangeOnly"] = true
		}
		names = append(names, name)
		items = append(items, item)
	}
	if w.percent(50) {
		slices.Reverse(items) // what another depends on need not come first
	}
	return items
}

// spec draws the spec of a resource.
func (s *scenario) spec(k *kind) []byte {
	if k.role == "" || s.w.percent(3) {
		return fmt.Appendf(nil, `{"n":%d}`, s.w.r.IntN(5)) // a parent without items
	}
	items := s.items(k)
	if s.w.percent(2) {
		items = append(items, map[string]any{"name": "i0", "dependsOn": []string{"none"}})
	}
	text, _ := json.Marshal(map[string]any{"n": s.w.r.IntN(3), "items": items})
	return text
}

// child draws the name of what may be a child.
func (s *scenario) child(of *kind) resource.Key {
	w := s.w
	key := resource.Key{Project: project, Kind: "item", Name: resource.ChildName(pick(w, of.names), fmt.Sprint("i", w.r.IntN(itemsMost)))}
	if of.role == serviceKind && w.percent(50) {
		key.Kind = "exec"
	}
	return key
}
