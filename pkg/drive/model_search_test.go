package drive

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// modelBounds are what the world may do after the prelude: a bound on what happens, never on states.
type modelBounds struct {
	commands, failures int8
	kills, unheard     int8 // owners that die; answers of appends that are lost
	late               int8 // results that come again
	sweeps             int8 // each tells again what was told
}

func (b modelBounds) String() string {
	return fmt.Sprintf("%d commands, %d failures, %d kills, %d lost answers, %d late, %d sweeps", b.commands, b.failures, b.kills, b.unheard, b.late, b.sweeps)
}

// atLeast reports whether b allows all that o allows.
func (b modelBounds) atLeast(o modelBounds) bool {
	return b.commands >= o.commands && b.failures >= o.failures && b.kills >= o.kills && b.unheard >= o.unheard && b.late >= o.late && b.sweeps >= o.sweeps
}

// spend takes an action off the bounds.
func (b modelBounds) spend(a action) (modelBounds, bool) {
	of := (*int8)(nil)
	switch a.kind {
	case command:
		of = &b.commands
	case failed:
		of = &b.failures
	case kill:
		of = &b.kills
	case unheard:
		of = &b.unheard
	case belated:
		of = &b.late
	case sweepNow:
		of = &b.sweeps
	case arrive, complete, tick:
		return b, true
	}
	*of--
	return b, *of >= 0
}

// acts is all that may happen now.
func (w *modelWorld) acts() []action {
	var all []action
	if len(w.sent) > 0 {
		all = append(all, action{kind: arrive}, action{kind: unheard})
	}
	for i := range w.awaited() {
		all = append(all, action{kind: complete, n: int8(i)}, action{kind: failed, n: int8(i)})
	}
	for i := range len(w.sent) + 1 {
		all = append(all, action{kind: kill, n: int8(i)})
	}
	if len(w.given) > 0 {
		all = append(all, action{kind: belated})
	}
	if len(w.given) > 1 {
		all = append(all, action{kind: belated, n: 1})
	}
	for r := range w.system.roots {
		for i := range cmp.Or(w.system.most, len(w.system.verbs)) {
			all = append(all, action{kind: command, n: int8(i), root: int8(r)})
		}
	}
	if len(w.loop.again) > 0 {
		all = append(all, action{kind: tick})
	}
	return append(all, action{kind: sweepNow})
}

// modelNode is a state: the way that leads to it, and what may still be done.
type modelNode struct {
	before *modelNode
	by     action
	left   modelBounds
	id     formID
}

func (n *modelNode) way() []action {
	var way []action
	for ; n.before != nil; n = n.before {
		way = append(way, n.by)
	}
	slices.Reverse(way)
	return way
}

// modelSearch explores one system. What is come to again with no more left can do nothing that is not seen; those that have
// spent the least go first.
type modelSearch struct {
	system       *modelSystem
	seen         map[formID][]modelBounds
	stack, later []*modelNode
	fair         map[formID]bool // forms from which a fair world ended every job: after a lost answer, with a sweep
	count        modelCount
	// visit, if set, sees every state that is come to, before it is known whether it is new.
	visit func(way []action, id formID)
}

// modelCount is what a search found.
type modelCount struct{ states, transitions, held, deepest int }

// lead makes a world and leads it on a way.
func (s *modelSearch) lead(way []action) *modelWorld {
	w := newModelWorld(s.system)
	for _, a := range s.system.prelude {
		w.act(a)
	}
	for _, a := range way {
		w.act(a)
	}
	return w
}

func (s *modelSearch) run(b modelBounds) error {
	s.seen, s.fair = map[formID][]modelBounds{}, map[formID]bool{}
	w := s.lead(nil)
	if err := w.verdict(); err != nil {
		return fmt.Errorf("the prelude: %w", err)
	}
	s.reach(&modelNode{left: b}, b, w.formID())
	for len(s.stack) > 0 {
		n := s.stack[len(s.stack)-1]
		s.stack = s.stack[:len(s.stack)-1]
		if err := s.expand(n); err != nil {
			return err
		}
		if len(s.stack) == 0 {
			s.stack, s.later = s.later, s.stack
		}
	}
	s.count.states = len(s.seen)
	return nil
}

func (s *modelSearch) expand(n *modelNode) error {
	if !slices.Contains(s.seen[n.id], n.left) {
		return nil // it was come to with more left meanwhile
	}
	way := n.way()
	s.count.deepest = max(s.count.deepest, len(way))
	at := s.lead(way)
	acts := at.acts()
	if lost, known := s.fair[n.id]; !known || lost && !at.lost {
		s.fair[n.id] = at.lost
		if err := at.fairEnd(); err != nil {
			return fmt.Errorf("a fair world after %v: %w", way, err)
		}
		if err := s.lead(way).abandoned(); err != nil {
			return fmt.Errorf("a sweep after %v: %w", way, err)
		}
	}
	for _, a := range acts {
		left, ok := n.left.spend(a)
		if !ok {
			s.count.held++
			continue
		}
		next := s.lead(way)
		next.act(a)
		s.count.transitions++
		if err := next.verdict(); err != nil {
			return fmt.Errorf("%w\nafter %v, at %s\n%s", err, way, a, next.form())
		}
		id := next.formID()
		if s.visit != nil {
			s.visit(append(slices.Clone(way), a), id)
		}
		s.reach(&modelNode{before: n, by: a, left: left}, n.left, id)
	}
	return nil
}

func (s *modelSearch) reach(n *modelNode, from modelBounds, id formID) {
	known := s.seen[id]
	if slices.ContainsFunc(known, func(b modelBounds) bool { return b.atLeast(n.left) }) {
		return
	}
	n.id = id
	s.seen[id] = append(slices.DeleteFunc(known, n.left.atLeast), n.left)
	if n.left == from {
		s.stack = append(s.stack, n)
	} else {
		s.later = append(s.later, n)
	}
}

// fairEnd is a fair world: what was sent arrives, what is out is completed, ticks come. Without any sweep every job must end,
// and its record show it, and a sweep or two later nothing is at work for a job that is over.
func (w *modelWorld) fairEnd() error {
	run := func() error {
		for range 400 {
			switch awaited := w.awaited(); {
			case len(w.sent) > 0:
				w.act(action{kind: arrive})
			case len(awaited) > 0:
				w.act(action{kind: complete})
			case len(w.loop.again) > 0:
				w.act(action{kind: tick})
			default:
				return w.verdict()
			}
			if err := w.verdict(); err != nil {
				return err
			}
		}
		return fmt.Errorf("no rest: %s", w.form())
	}
	if err := run(); err != nil {
		return err
	}
	ended := func() error {
		for _, k := range sortedKeys(w.states) {
			s := w.states[k].State
			if j := s.Job(); j != nil && s.Parent.Name == "" {
				return fmt.Errorf("job %s of %s does not end: %+v", j.ID, k, resource.Why(&s))
			}
		}
		for _, ref := range w.asked {
			if r := w.jobs[JobKey{"p", ref.ID}].Record; !r.State.Final() {
				return fmt.Errorf("job %s was accepted, and its record is %s", ref.ID, r.State)
			}
		}
		return nil
	}
	if err := ended(); err != nil && !w.lost {
		return fmt.Errorf("without a sweep: %w", err)
	}
	for range 3 {
		w.act(action{kind: sweepNow})
		if err := run(); err != nil {
			return err
		}
	}
	if err := ended(); err != nil {
		return err
	}
	for _, k := range sortedKeys(w.states) {
		s := w.states[k].State
		switch j := s.Job(); {
		case s.Gone:
			return fmt.Errorf("%s is gone and not forgotten", k)
		case j != nil:
			return fmt.Errorf("child %s is still at job %s", k, j.ID)
		case s.Parent.Name != "" && w.states[parentOf(&s)].Seq == 0:
			return fmt.Errorf("child %s is left without its parent", k)
		}
	}
	return nil
}

// abandoned: where a parent is done with its job, a sweep ends what its children still do for it, though no worker answers.
func (w *modelWorld) abandoned() error {
	if len(w.sent) > 0 || slices.ContainsFunc(sortedKeys(w.states), func(k resource.Key) bool {
		s := w.states[k].State
		return s.Parent.Name == "" && s.Job() != nil
	}) {
		return nil
	}
	for w.act(action{kind: sweepNow}); len(w.sent) > 0; {
		w.act(action{kind: arrive})
	}
	for _, k := range sortedKeys(w.states) {
		s := w.states[k].State
		if j := s.Job(); j != nil {
			return fmt.Errorf("child %s is still at job %s", k, j.ID)
		}
	}
	return w.verdict()
}

func treeSystem(name string, deps [3][]string) *modelSystem {
	own := func(name, state string, do blueprint.Do) blueprint.Phase {
		return blueprint.Phase{
			Name: name, States: []string{state}, Executor: blueprint.Executor{Kind: blueprint.ExecutorChildren}, Children: &blueprint.Children{Do: do},
		}
	}
	var items []children.Item
	for i, item := range []string{"a", "b", "c"} {
		items = append(items, children.Item{Name: item, Kind: "DeployItem", SpecDigest: "s1", Spec: "{}", DependsOn: deps[i]})
	}
	fewer := slices.Clone(items[:2]) // c is no more, and the others have changed places
	fewer[0], fewer[1] = fewer[1], fewer[0]
	return &modelSystem{
		name: name,
		plans: map[string]*blueprint.Blueprint{
			"Execution": {
				Project: "p", Kind: "Execution", Digest: "execution1", Lifecycle: blueprint.Execution(),
				Phases: []blueprint.Phase{
					own("items", blueprint.Init, blueprint.DoApply), own("run", blueprint.Progressing, blueprint.DoRun),
					own("mark", blueprint.InitDelete, blueprint.DoMark), own("remove", blueprint.Deleting, blueprint.DoDelete),
				},
			},
			"DeployItem": {
				Project: "p", Kind: "DeployItem", Digest: "item1", Lifecycle: blueprint.DeployItem(),
				Phases: []blueprint.Phase{
					{Name: "deploy", States: []string{blueprint.Progressing}, Executor: blueprint.Executor{Kind: "plugin"}},
					{Name: "uninstall", States: []string{blueprint.Deleting}, Executor: blueprint.Executor{Kind: "plugin"}},
				},
			},
		},
		items: [][]children.Item{items, fewer},
		roots: []resource.Key{{Project: "p", Kind: "Execution", Name: "exec"}},
		verbs: []string{"apply", "reconcile", "cancel", "interrupt", "delete", "retry"},
		prelude: []action{
			{kind: command}, {kind: arrive}, {kind: arrive}, {kind: arrive}, {kind: command, n: 1},
		},
	}
}

func treeShapes() []*modelSystem {
	return []*modelSystem{
		treeSystem("apart", [3][]string{}), treeSystem("pair", [3][]string{1: {"a"}}), treeSystem("fork", [3][]string{1: {"a"}, 2: {"a"}}),
		treeSystem("join", [3][]string{2: {"a", "b"}}), treeSystem("chain", [3][]string{1: {"a"}, 2: {"b"}}),
		treeSystem("triangle", [3][]string{1: {"a"}, 2: {"a", "b"}}),
	}
}

// begunTree is the shape pair with a and c at work: what ends jobs comes next.
func begunTree() *modelSystem {
	s := treeSystem("begun", [3][]string{1: {"a"}})
	s.verbs = []string{"cancel", "interrupt", "delete", "apply", "reconcile"}
	s.prelude[0].n, s.prelude[4].n = 3, 4
	s.prelude = append(s.prelude, slices.Repeat([]action{{kind: arrive}}, 11)...)
	s.most = 3 // verbs: the others are the prelude's
	return s
}

// interruptedTree is begunTree just interrupted: the children have not heard of it.
func interruptedTree() *modelSystem {
	s := begunTree()
	s.name = "broken off"
	s.prelude = append(s.prelude, action{kind: command, n: 1})
	return s
}

// twoNodes are two resources without children, under one Loop that keeps one of them in memory.
func twoNodes() *modelSystem {
	phase := func(name, state string) blueprint.Phase {
		return blueprint.Phase{Name: name, States: []string{state}, Executor: blueprint.Executor{Kind: "plugin"}}
	}
	return &modelSystem{
		name: "two nodes",
		plans: map[string]*blueprint.Blueprint{"node": {
			Project: "p", Kind: "node", Digest: "n1",
			Lifecycle: blueprint.Lifecycle{
				Name: "custom", Delete: "stop", OnTargetChange: blueprint.Cancel, OnFailure: blueprint.Continue,
				Flows: []blueprint.Flow{{Verb: "start", Path: []string{"A"}, Target: "Started"}, {Verb: "stop", Path: []string{"D"}, Target: "Off"}},
			},
			Phases: []blueprint.Phase{phase("up", "A"), phase("down", "D")},
		}},
		items:  [][]children.Item{nil},
		roots:  []resource.Key{{Project: "p", Kind: "node", Name: "a"}, {Project: "p", Kind: "node", Name: "b"}},
		verbs:  []string{"apply", "start", "stop", "cancel", "delete"},
		limits: Limits{CachedStates: 1},
		prelude: []action{
			{kind: command}, {kind: arrive}, {kind: arrive}, {kind: arrive}, {kind: command, root: 1}, {kind: arrive}, {kind: arrive}, {kind: arrive},
		},
	}
}

// modelPlan is a system, and what may happen to it.
type modelPlan struct {
	system *modelSystem
	bounds modelBounds
}

// allModelPlans is the complete run.
func allModelPlans() []modelPlan {
	plans := []modelPlan{{begunTree(), modelBounds{commands: 2}}, {begunTree(), modelBounds{commands: 1, kills: 1}}, {interruptedTree(), modelBounds{commands: 1, kills: 1}}}
	for _, b := range []modelBounds{{failures: 1, kills: 1}, {failures: 1, unheard: 1, late: 1}, {commands: 1, sweeps: 1}, {commands: 1, kills: 1}} {
		for _, s := range treeShapes() {
			plans = append(plans, modelPlan{s, b})
		}
	}
	return append(plans, modelPlan{twoNodes(), modelBounds{commands: 2, kills: 1}}, modelPlan{twoNodes(), modelBounds{commands: 2, failures: 1, late: 1}},
		modelPlan{twoNodes(), modelBounds{commands: 2, unheard: 1, sweeps: 1}})
}

// partModelPlans is what every run of the tests takes.
func partModelPlans() []modelPlan {
	plans := []modelPlan{{twoNodes(), modelBounds{commands: 1, kills: 1}}, {twoNodes(), modelBounds{commands: 2}}}
	for _, s := range treeShapes() {
		plans = append(plans, modelPlan{s, modelBounds{failures: 1}})
	}
	chain := treeShapes()[4]
	return append(plans, modelPlan{begunTree(), modelBounds{commands: 1}}, modelPlan{interruptedTree(), modelBounds{commands: 1}},
		modelPlan{interruptedTree(), modelBounds{kills: 1}}, modelPlan{chain, modelBounds{kills: 1}}, modelPlan{chain, modelBounds{unheard: 1}}, modelPlan{chain, modelBounds{late: 1, sweeps: 1}})
}

// TestModel leads a Loop to every state that one parent with three children, or two resources, can be brought to, within
// bounds on what happens: everything that the log and the Loop's memory can show, every place at which an owner can die or an
// answer be lost. After each step every promise is checked (store, family); from each state a fair world ends every job and
// leaves nothing (fairEnd). What is counted must be what testdata/model holds.
//
// A run of go test takes a part; DROVER_MODEL=all takes all (make model). DROVER_MODEL_SHAPE=chain takes the systems whose
// names begin so. DROVER_MODEL_RECORD=1 writes what was counted.
func TestModel(t *testing.T) {
	t.Parallel()
	part, plans := os.Getenv("DROVER_MODEL"), partModelPlans()
	switch part {
	case "":
		part = "part"
	case "all", "more":
		part, plans = "all", allModelPlans()
	default:
		t.Fatalf("DROVER_MODEL=%s: neither all nor more", part)
	}
	file := "testdata/model/" + part + ".txt"
	kept, rows := keptRows(t, file), map[string]string{}
	t.Log(strings.TrimSpace(fmt.Sprintf(modelRow, "system", "bounds", "states", "transitions", "held back", "deepest") + "     time"))
	all, began := modelCount{}, time.Now()
	for start := 0; start < len(plans); start += runtime.GOMAXPROCS(0) {
		together := plans[start:min(len(plans), start+runtime.GOMAXPROCS(0))]
		searches, errs, took := make([]*modelSearch, len(together)), make([]error, len(together)), make([]time.Duration, len(together))
		var workers sync.WaitGroup
		for i, p := range together {
			if !strings.HasPrefix(p.system.name, os.Getenv("DROVER_MODEL_SHAPE")) {
				continue
			}
			workers.Go(func() {
				at := time.Now()
				searches[i] = &modelSearch{system: p.system}
				errs[i] = searches[i].run(p.bounds)
				took[i] = time.Since(at)
			})
		}
		workers.Wait()
		for i, p := range together {
			if searches[i] == nil {
				continue
			}
			if errs[i] != nil {
				t.Fatalf("%s, %s: %v", p.system.name, p.bounds, errs[i])
			}
			c := searches[i].count
			row := fmt.Sprintf(modelRow, p.system.name, p.bounds.String(), strconv.Itoa(c.states), strconv.Itoa(c.transitions), strconv.Itoa(c.held), strconv.Itoa(c.deepest))
			rows[modelRowName(row)] = row
			t.Logf("%s %7.1fs", row, took[i].Seconds())
			all.states, all.transitions, all.held = all.states+c.states, all.transitions+c.transitions, all.held+c.held
			if os.Getenv("DROVER_MODEL_RECORD") != "" {
				recordRows(t, file, plans, rows, kept)
			}
		}
	}
	t.Logf("%d states, %d transitions, %.1fs", all.states, all.transitions, time.Since(began).Seconds())
	if os.Getenv("DROVER_MODEL_RECORD") != "" {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if kept[name] != rows[name] {
			t.Errorf("what can be reached has changed (%s; DROVER_MODEL_RECORD=1 writes it anew):\n  was %s\n  is  %s", file, kept[name], rows[name])
		}
	}
	if n := len(kept) - 1; n != len(plans) { // but the head
		t.Errorf("%s has %d rows for %d plans", file, n, len(plans))
	}
}

const modelRow = "%-10s %-80s %8s %12s %10s %8s"

func modelRowName(row string) string { return row[:91] }

func keptRows(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	kept := map[string]string{}
	for row := range strings.Lines(string(text)) {
		kept[modelRowName(row)] = strings.TrimSuffix(row, "\n")
	}
	return kept
}

func recordRows(t *testing.T, file string, plans []modelPlan, rows, kept map[string]string) {
	t.Helper()
	text := fmt.Sprintf(modelRow, "system", "bounds", "states", "transitions", "held back", "deepest") + "\n"
	for _, p := range plans {
		name := modelRowName(fmt.Sprintf(modelRow, p.system.name, p.bounds.String(), "", "", "", ""))
		if row := cmp.Or(rows[name], kept[name]); row != "" {
			text += row + "\n"
		}
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestModelForms: two ways that lead to one form lead on alike: whatever happens next, the forms are the same again.
func TestModelForms(t *testing.T) {
	t.Parallel()
	every, most := 7, 60
	if os.Getenv("DROVER_MODEL") != "" {
		every, most = 3, 4000
	}
	pairs, steps := 0, 0
	plans := []modelPlan{
		{treeShapes()[1], modelBounds{kills: 1}}, {treeShapes()[1], modelBounds{failures: 1, late: 1}},
		{twoNodes(), modelBounds{commands: 1, kills: 1}}, {begunTree(), modelBounds{commands: 1}},
	}
	for i, p := range plans {
		s := &modelSearch{system: p.system}
		first := map[formID][]action{}
		met := 0
		s.visit = func(way []action, id formID) {
			other, known := first[id]
			if !known {
				first[id] = way
				return
			}
			if met++; met%every != 0 || pairs >= (i+1)*most/len(plans) {
				return
			}
			pairs++
			acts, same := s.lead(other).acts(), s.lead(way).acts()
			if !slices.Equal(acts, same) {
				t.Fatalf("after %v this may happen: %v\nafter %v this: %v", other, acts, way, same)
			}
			for _, a := range acts {
				steps++
				one, two := s.lead(other), s.lead(way)
				one.act(a)
				two.act(a)
				if x, y := one.form(), two.form(); x != y {
					t.Fatalf("%v and %v lead to one form, and then %s leads to\n%s\nand to\n%s", other, way, a, x, y)
				}
			}
		}
		if err := s.run(p.bounds); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d pairs, %d steps of each", pairs, steps)
	if pairs < 20 {
		t.Errorf("only %d pairs: the forms tell all states apart", pairs)
	}
}

// TestAParentWaitsForWhomItTold (found by TestModel): b depends on a, and c on nothing. a has succeeded, so b is told to begin, and
// its first event is on its way; c fails before it is there. The parent's job must not end over b's head.
func TestAParentWaitsForWhomItTold(t *testing.T) {
	t.Parallel()
	s := &modelSearch{system: treeShapes()[1]}
	w := s.lead(slices.Concat(slices.Repeat([]action{{kind: arrive}}, 10), []action{{kind: complete}, {kind: arrive}, {kind: failed}}))
	if err := w.fairEnd(); err != nil {
		t.Fatal(err)
	}
	if j := w.jobs[JobKey{"p", "r2"}].Record; j.State != job.Failed {
		t.Errorf("the job is %s", j.State)
	}
}
