package blueprint

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// valid is a blueprint that exercises what is allowed, limits included.
func valid() *Blueprint {
	phase := func(name string, states []string, dependsOn ...string) Phase {
		return Phase{Name: name, States: states, DependsOn: dependsOn, Executor: Executor{Kind: "plugin", Config: "{}"}}
	}
	b := &Blueprint{
		Project: "p", Kind: "node",
		Lifecycle: Node(NodePaths{Started: []string{"A", "B"}, Terminated: []string{"C", "A"}}),
		Phases: []Phase{
			phase("one", []string{"A"}), phase("two", []string{"A", "B"}, "one"), phase("name with spaces, é", []string{"B", "C"}, "two"),
		},
	}
	b.Phases[0].Timeout, b.Phases[0].Interval, b.Phases[0].Lease = TimeoutMax, IntervalMin, LeaseMax
	b.Phases[0].Retry = Retry{Attempts: RetryAttemptsMax, Delay: RetryDelayMax}
	b.Phases[0].When = strings.Repeat("x", WhenBytesMax)
	return b
}

func custom(flows ...Flow) Lifecycle {
	return Lifecycle{Name: Custom, Flows: flows, OnTargetChange: Reject, OnFailure: Drain}
}

func TestValid(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Blueprint){
		"as it is":  func(*Blueprint) {},
		"no phases": func(b *Blueprint) { b.Phases = nil },
		"no paths":  func(b *Blueprint) { b.Phases, b.Lifecycle = nil, Node(NodePaths{}) },
		"wait":      func(b *Blueprint) { b.Lifecycle.OnTargetChange = Wait },
		"table": func(b *Blueprint) {
			b.Lifecycle = custom(Flow{Verb: "up", Path: []string{"A", "B"}, Target: "Up"},
				Flow{Verb: "down", From: []string{"Up", "A"}, Path: []string{"C"}, Target: "Down"})
		},
		// A cycle needs a state that all its phases share.
		"no common state": func(b *Blueprint) {
			b.Phases = []Phase{b.Phases[0], b.Phases[0], b.Phases[0]}
			for i, states := range [][]string{{"A", "B"}, {"A", "C"}, {"B", "C"}} {
				b.Phases[i].Name, b.Phases[i].States, b.Phases[i].DependsOn = fmt.Sprint(i), states, []string{fmt.Sprint((i + 1) % 3)}
			}
		},
		"as many as there may be": func(b *Blueprint) {
			p := b.Phases[0]
			b.Phases = nil
			for i := range PhasesMax {
				p.Name, p.DependsOn = fmt.Sprint(i), nil
				for k := max(0, i-DependsOnMax); k < i; k++ {
					p.DependsOn = append(p.DependsOn, fmt.Sprint(k))
				}
				b.Phases = append(b.Phases, p)
			}
		},
	} {
		b := valid()
		change(b)
		if found := Validate(b); found != nil {
			t.Errorf("%s: %v", name, found)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", NameBytesMax+1)
	for want, change := range map[string]func(*Blueprint){
		"metadata.name: is missing":                                      func(b *Blueprint) { b.Kind = "" },
		"metadata.name: begins or ends with a space":                     func(b *Blueprint) { b.Kind = "a " },
		"spec.lifecycle: has no flows":                                   func(b *Blueprint) { b.Phases, b.Lifecycle = nil, custom() },
		"spec.lifecycle.delete: no flow has this verb":                   func(b *Blueprint) { b.Lifecycle.Delete = "x" },
		"spec.lifecycle.onTargetChange: is none of cancel, reject, wait": func(b *Blueprint) { b.Lifecycle.OnTargetChange = "" },
		"spec.lifecycle.onFailure: is none of continue, drain":           func(b *Blueprint) { b.Lifecycle.OnFailure = "x" },
		"spec.states[2]: is in the path twice":                           func(b *Blueprint) { b.Lifecycle.Flows[0].Path = []string{"A", "B", "A"} },
		"spec.states[0]: is the target, which is reached when the path is walked": func(b *Blueprint) {
			b.Phases = nil
			b.Lifecycle.Flows[0].Path = []string{"Started"}
		},
		"spec.paths.Terminated[1]: is missing": func(b *Blueprint) { b.Lifecycle.Flows[3].Path = []string{"C", ""} },
		"spec.states: has more than 64 states": func(b *Blueprint) {
			for i := range StatesMax + 1 {
				b.Lifecycle.Flows[0].Path = append(b.Lifecycle.Flows[0].Path, fmt.Sprint(i))
			}
		},
		"spec.lifecycle.flows[1].verb: another flow has this verb, and may start from the same state":       table(Flow{Verb: "up", Target: "T"}, Flow{Verb: "up", Target: "U"}),
		"spec.lifecycle.flows[0].verb: is missing":                                                          table(Flow{Target: "T"}),
		"spec.lifecycle.flows[0].verb: is a verb that every lifecycle has":                                  table(Flow{Verb: "retry", Target: "T"}),
		"spec.lifecycle.flows[0].verb: is longer than 63 bytes":                                             table(Flow{Verb: long, Target: "T"}),
		"spec.lifecycle.flows[0].verb: is not lower-case letters, digits, - and _, beginning with a letter": table(Flow{Verb: "Go", Target: "T"}),
		"spec.lifecycle.flows[0].target: is missing":                                                        table(Flow{Verb: "go"}),
		"spec.lifecycle.flows[0].path[0]: is the target, which is reached when the path is walked":          table(Flow{Verb: "go", Path: []string{"T"}, Target: "T"}),
		"spec.lifecycle.flows[0].from[1]: no flow leads to or through this state":                           table(Flow{Verb: "go", From: []string{"T", "Y"}, Path: []string{"X"}, Target: "T"}),
		"spec.lifecycle.flows[0].from[1]: is in the list twice":                                             table(Flow{Verb: "go", From: []string{"T", "T"}, Path: []string{"X"}, Target: "T"}),
		"spec.lifecycle.flows[0].from: has more states than the lifecycle":                                  table(Flow{Verb: "go", From: []string{"T", "T"}, Target: "T"}),
		"spec.lifecycle.flows: has more than 32 flows":                                                      table(make([]Flow, FlowsMax+1)...),
		"spec.phases: has more than 128 phases":                                                             func(b *Blueprint) { b.Phases = make([]Phase, PhasesMax+1) },
		"spec.phases[1].name: another phase has this name":                                                  func(b *Blueprint) { b.Phases[1].Name, b.Phases[2].DependsOn = "one", nil; b.Phases[1].DependsOn = nil },
		"spec.phases[2].name: is missing":                                                                   func(b *Blueprint) { b.Phases[2].Name = "" },
		"spec.phases[2].name: is longer than 253 bytes":                                                     func(b *Blueprint) { b.Phases[2].Name = long },
		"spec.phases[2].name: holds a character that cannot be printed":                                     func(b *Blueprint) { b.Phases[2].Name = "a\nb" },
		"spec.phases[0].description: is longer than 4096 bytes":                                             func(b *Blueprint) { b.Phases[0].Description = strings.Repeat("x", TextBytesMax+1) },
		"spec.phases[0].text: is not UTF-8":                                                                 func(b *Blueprint) { b.Phases[0].Text = "\xff" },
		"spec.phases[0].when: is longer than 4096 bytes":                                                    func(b *Blueprint) { b.Phases[0].When += "x" },
		"spec.phases[0].provider: is not printable text of at most 253 bytes":                               func(b *Blueprint) { b.Phases[0].Provider = "a\x00" },
		"spec.phases[0].states: is missing: a phase belongs to one or more states":                          func(b *Blueprint) { b.Phases[0].States = nil; b.Phases[1].DependsOn = nil },
		"spec.phases[0].states[1]: no path of the lifecycle leads through this state":                       func(b *Blueprint) { b.Phases[0].States = []string{"A", "Started"} },
		"spec.phases[0].states[1]: is in the list twice":                                                    func(b *Blueprint) { b.Phases[0].States = []string{"A", "A"} },
		"spec.phases[0].states: has more than 64 states":                                                    func(b *Blueprint) { b.Phases[0].States = append(make([]string, StatesMax), "A") },
		"spec.phases[1].dependsOn[0]: no phase of this name":                                                func(b *Blueprint) { b.Phases[1].DependsOn = []string{"onne"} },
		"spec.phases[1].dependsOn[1]: is in the list twice":                                                 func(b *Blueprint) { b.Phases[1].DependsOn = []string{"one", "one"} },
		"spec.phases[1].dependsOn[0]: is the phase itself":                                                  func(b *Blueprint) { b.Phases[1].DependsOn = []string{"two"} },
		"spec.phases[1].dependsOn: has more than 32 phases":                                                 func(b *Blueprint) { b.Phases[1].DependsOn = make([]string, DependsOnMax+1) },
		"spec.phases[2].dependsOn[0]: shares no state with this phase: dependencies hold within a state, and the order of states is the path's": func(b *Blueprint) {
			b.Phases[2].DependsOn = []string{"one"}
		},
		"spec.phases[1].dependsOn[0]: closes a cycle in state A: one → two → one": func(b *Blueprint) { b.Phases[0].DependsOn = []string{"two"} },
		"spec.phases[2].dependsOn[0]: closes a cycle in state B: two → name with spaces, é → two": func(b *Blueprint) {
			b.Phases[1].DependsOn = []string{"one", "name with spaces, é"}
		},
		"spec.phases[0].calls: is not 0 to 64":                                     func(b *Blueprint) { n := 65; b.Phases[0].Calls = &n },
		"spec.phases[1].calls: is not 0 to 64":                                     func(b *Blueprint) { n := -1; b.Phases[1].Calls = &n },
		"spec.phases[0].executor: is none of plugin, http, poll, script, children": func(b *Blueprint) { b.Phases[0].Executor.Kind = "x" },
		"spec.phases[1].executor.children: phase one makes the children already: one would take those of the other for orphans": func(b *Blueprint) {
			for i := range 2 {
				b.Phases[i].Executor.Kind, b.Phases[i].Children, b.Phases[i].Retry = ExecutorChildren, &Children{Do: []Do{DoAll, DoApply}[i]}, Retry{}
			}
		},
		"spec.phases[0].executor.children.do: is none of apply, run, mark, delete": func(b *Blueprint) {
			b.Phases[0].Executor.Kind, b.Phases[0].Children, b.Phases[0].Retry = ExecutorChildren, &Children{Do: "x"}, Retry{}
		},
		"spec.phases[0].timeout: is negative":             func(b *Blueprint) { b.Phases[0].Timeout = -1 },
		"spec.phases[0].timeout: is longer than 720h0m0s": func(b *Blueprint) { b.Phases[0].Timeout++ },
		"spec.phases[0].interval: is shorter than 10ms":   func(b *Blueprint) { b.Phases[0].Interval-- },
		"spec.phases[0].interval: is longer than 24h0m0s": func(b *Blueprint) { b.Phases[0].Interval = 25 * time.Hour },
		"spec.phases[0].lease: is longer than 24h0m0s":    func(b *Blueprint) { b.Phases[0].Lease++ },
		"spec.phases[0].retry.attempts: is not 0 to 1000": func(b *Blueprint) { b.Phases[0].Retry.Attempts++ },
		"spec.phases[0].retry.delay: is negative":         func(b *Blueprint) { b.Phases[0].Retry.Delay = -1 },
	} {
		b := valid()
		change(b)
		found := Validate(b)
		if len(found) != 1 || found[0].Field+": "+found[0].Reason != want {
			t.Errorf("want %s\n got %v", want, found)
		}
	}
}

// table is a lifecycle of one's own, and no phases.
func table(flows ...Flow) func(*Blueprint) {
	return func(b *Blueprint) { b.Phases, b.Lifecycle = nil, custom(flows...) }
}

func TestViolationsAreBoundedAndInOrder(t *testing.T) {
	t.Parallel()
	b := valid()
	b.Phases = make([]Phase, PhasesMax)
	first := Validate(b)
	if len(first) != ViolationsMax || first[0] != (Violation{"spec.phases[0].name", "is missing"}) {
		t.Fatalf("%d: %v", len(first), first[0])
	}
	if !reflect.DeepEqual(first, Validate(b)) {
		t.Fatal("two answers")
	}
}

// TestCyclesAgainstTheObvious compares with peeling: what cannot be ordered holds a cycle.
func TestCyclesAgainstTheObvious(t *testing.T) {
	t.Parallel()
	const phases = 5
	seed := uint64(1)
	random := func(n uint64) uint64 { // a small generator, so that the test is the same everywhere
		seed ^= seed << 13
		seed ^= seed >> 7
		seed ^= seed << 17
		return seed % n
	}
	cycles := 0
	for range 5000 {
		b := valid()
		b.Phases = b.Phases[:0]
		for i := range phases {
			p := Phase{Name: fmt.Sprint(i), States: [][]string{{"A"}, {"B"}, {"A", "B"}}[random(3)], Executor: Executor{Kind: "plugin"}}
			for k := range phases {
				if k != i && random(4) == 0 {
					p.DependsOn = append(p.DependsOn, fmt.Sprint(k))
				}
			}
			b.Phases = append(b.Phases, p)
		}
		for i := range b.Phases { // only dependencies that share a state
			p := &b.Phases[i]
			p.DependsOn = slices.DeleteFunc(p.DependsOn, func(name string) bool {
				on := b.Phase(name)
				return !slices.ContainsFunc(on.States, func(s string) bool { return slices.Contains(p.States, s) })
			})
		}
		want := peel(b, "A") || peel(b, "B")
		found := Validate(b)
		if want != (len(found) > 0) {
			t.Fatalf("cycle: %v, found %v in %+v", want, found, b.Phases)
		}
		for _, v := range found {
			cycles++
			if !strings.Contains(v.Reason, "closes a cycle in state") {
				t.Fatal(v)
			}
		}
	}
	if cycles < 100 {
		t.Fatalf("only %d cycles were tried", cycles)
	}
}

// peel reports whether the phases of a state cannot all be put in an order.
func peel(b *Blueprint, state string) bool {
	left := b.In(state)
	for {
		n := len(left)
		left = slices.DeleteFunc(left, func(p *Phase) bool {
			return !slices.ContainsFunc(p.DependsOn, func(name string) bool {
				return slices.ContainsFunc(left, func(o *Phase) bool { return o.Name == name })
			})
		})
		if len(left) == n {
			return n > 0
		}
	}
}

func TestNode(t *testing.T) {
	t.Parallel()
	l := Node(NodePaths{Started: []string{"A"}, Off: []string{"B"}, Deallocated: []string{"C"}, Terminated: []string{"D"}})
	want := Lifecycle{
		Name: "node", Delete: "terminate", OnTargetChange: Cancel, OnFailure: Continue,
		Flows: []Flow{
			{Verb: "start", Path: []string{"A"}, Target: "Started"}, {Verb: "shutdown", Path: []string{"B"}, Target: "Off"},
			{Verb: "deallocate", Path: []string{"C"}, Target: "Deallocated"}, {Verb: "terminate", Path: []string{"D"}, Target: "Terminated"},
		},
		OnCreate: "start",
	}
	if !reflect.DeepEqual(l, want) {
		t.Fatalf("%+v", l)
	}
	if f, ok := l.Flow(l.Delete); !ok || f.Target != Terminated {
		t.Fatal("deletion walks to Terminated")
	}
	if _, ok := l.FlowTo(Off); !ok {
		t.Fatal("no flow to Off")
	}
}
