package resource_test

import (
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
)

// shape is a way in which a number of phases depend on each other, and who walks.
type shape struct {
	phases   int
	relation uint32 // see relations
	walk     blueprint.Walk
}

// twoStates is a path of two states, the first with phases beside and behind each other, and one state on the way back.
var twoStates = shape{}

func (s shape) String() string {
	if s == twoStates {
		return "two states in a row"
	}
	walk := "together"
	if s.walk == blueprint.Each {
		walk = "each"
	}
	var deps []string
	for i := range s.phases {
		for k := range i {
			if s.relation&(1<<(i*s.phases+k)) != 0 {
				deps = append(deps, string(rune('a'+i))+"<"+string(rune('a'+k)))
			}
		}
	}
	if deps == nil {
		deps = []string{"apart"}
	}
	return string(rune('0'+s.phases)) + " " + walk + " " + strings.Join(deps, ",")
}

// shapes are all of n phases.
func shapes(n int) []shape {
	var all []shape
	for _, walk := range []blueprint.Walk{blueprint.Together, blueprint.Each} {
		for _, relation := range relations(n) {
			all = append(all, shape{n, relation, walk})
		}
	}
	return all
}

// systems are all of one shape: phases plain, left out by their constraint, or gated; both policies of failure; all of target
// changes; with and without a state for failures. Of four phases at most one is not plain.
func (s shape) systems() []*blueprint.Blueprint {
	if s == twoStates {
		return twoStateSystems()
	}
	policies, failures := []blueprint.OnTargetChange{blueprint.Cancel, blueprint.Wait, blueprint.Reject}, []string{"", "Broken"}
	if s.walk == blueprint.Each { // it has a state for failures, and its calls are never canceled for another target
		policies, failures = policies[1:], failures[:1]
	}
	var all []*blueprint.Blueprint
	for _, kinds := range phaseKinds(s.phases) {
		for _, onFailure := range []blueprint.OnFailure{blueprint.Continue, blueprint.Drain} {
			for _, onChange := range policies {
				for _, failure := range failures {
					all = append(all, smallSystem(s.phases, s.relation, kinds, s.walk, onFailure, onChange, failure))
				}
			}
		}
	}
	return all
}

func twoStateSystems() []*blueprint.Blueprint {
	const tick = 10 * time.Second
	var all []*blueprint.Blueprint
	for _, onFailure := range []blueprint.OnFailure{blueprint.Continue, blueprint.Drain} {
		for _, onChange := range []blueprint.OnTargetChange{blueprint.Cancel, blueprint.Wait, blueprint.Reject} {
			bp := &blueprint.Blueprint{
				Project: "p", Kind: "node", Digest: "v1",
				Lifecycle: blueprint.Lifecycle{
					Name: "custom", Delete: "stop", OnTargetChange: onChange, OnFailure: onFailure,
					Flows: []blueprint.Flow{
						{Verb: "start", Path: []string{"A", "B"}, Target: "Started"},
						{Verb: "stop", Path: []string{"D", "A"}, Target: "Off"},
					},
				},
				Phases: []blueprint.Phase{
					{Name: "one", States: []string{"A"}, Retry: blueprint.Retry{Attempts: 1, Delay: tick}},
					{Name: "two", States: []string{"A", "B"}, DependsOn: []string{"one"}},
					{Name: "three", States: []string{"A"}, Timeout: 3 * tick},
					{Name: "last", States: []string{"B"}},
					{Name: "down", States: []string{"D"}},
				},
			}
			for i := range bp.Phases {
				ph := &bp.Phases[i]
				ph.Executor, ph.Interval, ph.Lease = blueprint.Executor{Kind: "plugin"}, tick, tick
			}
			all = append(all, bp)
		}
	}
	return all
}

func phaseKinds(n int) []string {
	all := []string{""}
	for range n {
		var longer []string
		for _, kinds := range all {
			for _, kind := range "pfg" { // plain, false, gated
				longer = append(longer, kinds+string(kind))
			}
		}
		all = longer
	}
	if n == 4 {
		all = slices.DeleteFunc(all, func(kinds string) bool { return strings.Count(kinds, "p") < 3 })
	}
	return all
}

// smallSystem's times are all the same, so that few distances between them can be.
func smallSystem(n int, relation uint32, kinds string, walk blueprint.Walk, onFailure blueprint.OnFailure, onChange blueprint.OnTargetChange, failure string) *blueprint.Blueprint {
	const tick = 10 * time.Second
	bp := &blueprint.Blueprint{Project: "p", Kind: "node", Digest: "v1"}
	if walk == blueprint.Each {
		bp.Lifecycle = blueprint.Service()
	} else {
		bp.Lifecycle = blueprint.Lifecycle{Name: "custom", Delete: "stop", Flows: []blueprint.Flow{
			{Verb: "start", Path: []string{"A"}, Target: "Started", Failure: failure},
			{Verb: "stop", Path: []string{"D"}, Target: "Off"},
		}}
	}
	bp.Lifecycle.OnFailure, bp.Lifecycle.OnTargetChange = onFailure, onChange
	phase := func(name string, states ...string) blueprint.Phase {
		return blueprint.Phase{
			Name: name, States: states, Executor: blueprint.Executor{Kind: "plugin"}, Undo: &blueprint.Executor{Kind: "plugin"}, Idempotent: true,
			Interval: tick, Lease: tick, Retry: blueprint.Retry{Delay: tick},
		}
	}
	for i := range n {
		ph := phase(string(rune('a'+i)), "A")
		for k := range i {
			if relation&(1<<(i*n+k)) != 0 {
				ph.DependsOn = append(ph.DependsOn, string(rune('a'+k)))
			}
		}
		switch kinds[i] {
		case 'f':
			ph.When = "false"
		case 'g':
			no := false
			ph.AutoDeploy = &no
		}
		if i == 0 {
			ph.Retry.Attempts, ph.Timeout = 1, 3*tick
		}
		if walk == blueprint.Each {
			ph.States = nil
		}
		bp.Phases = append(bp.Phases, ph)
	}
	if walk != blueprint.Each {
		bp.Phases = append(bp.Phases, phase("down", "D"))
	}
	return bp
}

// relations are all acyclic relations of n phases, up to renaming. Bit i*n+k: phase i depends on phase k, k < i.
func relations(n int) []uint32 {
	var places []int
	for i := range n {
		for k := range i {
			places = append(places, i*n+k)
		}
	}
	seen := map[uint32]bool{}
	var all []uint32
	for set := range uint32(1) << len(places) {
		var r uint32
		for b, place := range places {
			if set&(1<<b) != 0 {
				r |= 1 << place
			}
		}
		least := ^uint32(0)
		permute(n, func(to []int) {
			var other uint32
			for i := range n {
				for k := range n {
					if r&(1<<(i*n+k)) != 0 {
						other |= 1 << (to[i]*n + to[k])
					}
				}
			}
			least = min(least, other)
		})
		if !seen[least] {
			seen[least] = true
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b uint32) int { return bits.OnesCount32(a) - bits.OnesCount32(b) })
	return all
}

func permute(n int, visit func([]int)) {
	to := make([]int, 0, n)
	var more func()
	more = func() {
		if len(to) == n {
			visit(to)
			return
		}
		for i := range n {
			if !slices.Contains(to, i) {
				to = append(to, i)
				more()
				to = to[:len(to)-1]
			}
		}
	}
	more()
}
