package resource_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// tree is a parent, its children, and a shell that does with effects what drive does: one place for all states, the
// families rebuilt or kept, asks told in any order.
type tree struct {
	r        *rand.Rand
	now      time.Time
	states   map[string]resource.State // by name
	family   *children.Family
	items    []children.Item
	asks     []resource.FromParent
	more     bool
	requests int
	digest   int
	plans    map[string]*blueprint.Blueprint // by kind
	steps    int
	story    []string
}

const parentName = "exec"

func newTree(seed uint64) *tree {
	t := &tree{r: rand.New(rand.NewPCG(seed, 9)), now: began, states: map[string]resource.State{}, family: children.New()}
	plugin := blueprint.Executor{Kind: "plugin"}
	own := func(do blueprint.Do) (blueprint.Executor, *blueprint.Children) {
		return blueprint.Executor{Kind: "children"}, &blueprint.Children{Do: do, Items: "items"}
	}
	phase := func(name, state string, do blueprint.Do) blueprint.Phase {
		e, c := own(do)
		return blueprint.Phase{Name: name, States: []string{state}, Executor: e, Children: c}
	}
	parent := &blueprint.Blueprint{
		Project: "p", Kind: "Execution", Digest: "e1", Lifecycle: blueprint.Execution(),
		Phases: []blueprint.Phase{
			phase("items", blueprint.Init, blueprint.DoApply), phase("run", blueprint.Progressing, blueprint.DoRun),
			phase("mark", blueprint.InitDelete, blueprint.DoMark), phase("remove", blueprint.Deleting, blueprint.DoDelete),
		},
	}
	child := &blueprint.Blueprint{
		Project: "p", Kind: "DeployItem", Digest: "d1", Lifecycle: blueprint.DeployItem(),
		Phases: []blueprint.Phase{
			{Name: "deploy", States: []string{blueprint.Progressing}, Executor: plugin},
			{Name: "uninstall", States: []string{blueprint.Deleting}, Executor: plugin},
		},
	}
	for _, bp := range []*blueprint.Blueprint{parent, child} {
		if wrong := blueprint.Validate(bp); len(wrong) > 0 {
			panic(fmt.Sprint(wrong))
		}
	}
	t.plans = map[string]*blueprint.Blueprint{"Execution": parent, "DeployItem": child}
	return t
}

// draw makes n items with random dependencies on earlier ones, in a random order.
func (t *tree) draw(n int) {
	t.digest++
	t.items = nil
	for i := range n {
		it := children.Item{
			Name: "i" + strconv.Itoa(i), Kind: "DeployItem", SpecDigest: "s" + strconv.Itoa(t.r.IntN(2)), OnChangeOnly: t.r.IntN(4) == 0,
		}
		for k := range i {
			if t.r.IntN(n) < 2 {
				it.DependsOn = append(it.DependsOn, "i"+strconv.Itoa(k))
			}
		}
		if t.r.IntN(8) > 0 { // some are left out, and those that depend on them do not
			t.items = append(t.items, it)
		}
	}
	for i := range t.items {
		t.items[i].DependsOn = slices.DeleteFunc(t.items[i].DependsOn, func(name string) bool {
			return !slices.ContainsFunc(t.items, func(it children.Item) bool { return it.Name == name })
		})
		if len(t.items[i].DependsOn) == 0 {
			t.items[i].DependsOn = nil
		}
	}
	t.r.Shuffle(len(t.items), func(i, j int) { t.items[i], t.items[j] = t.items[j], t.items[i] })
}

func (t *tree) parent() resource.State { return t.states[parentName] }

func (t *tree) env(s *resource.State, kind string) resource.Env {
	env := resource.Env{Blueprint: t.plans[kind]}
	if kind == "Execution" {
		if j := s.Job(); j != nil {
			t.family.Begin(j.ID)
		}
		env.Children = t.family
		env.Items = func(*blueprint.Phase) ([]children.Item, error) { return t.items, nil }
	}
	return env
}

// step takes one step of one resource and commits it, children that it adopts included.
func (t *tree) step(name, kind string, in resource.Input) (resource.Effects, error) {
	t.steps++
	before := t.states[name]
	after, fx := resource.Step(before, in, t.env(&before, kind))
	if len(t.story) > 40 {
		t.story = t.story[1:]
	}
	t.story = append(t.story, fmt.Sprintf("%s %v: %s -> %s, batch %d, tell %d, more %t, notes %v", name, in.Kind, before.State, after.State, len(fx.Batch), len(fx.Tell), fx.More, fx.Notes))
	if fx.Event == nil {
		if len(fx.Batch) > 0 {
			return fx, errors.New("a batch without an event")
		}
	} else if err := t.commit(before, after); err != nil {
		return fx, err
	}
	for _, n := range fx.Notes {
		if n.Code == resource.NoteIllegal {
			return fx, fmt.Errorf("%s: illegal: %s", name, n.Of)
		}
	}
	for i := range fx.Batch {
		a := fx.Batch[i]
		a.NewUID = fmt.Sprintf("u%d.%s", t.steps, a.Item.Name)
		if _, err := t.step(a.Key.Name, a.Key.Kind, resource.Input{Kind: resource.OnParent, At: t.now, Parent: &a}); err != nil {
			return fx, err
		}
	}
	for i := range fx.Tell {
		t.asks = append(t.asks, fx.Tell[i])
		t.family.Asked(fx.Tell[i].Parent.Item, fx.Tell[i].Asking())
	}
	if name == parentName {
		t.more = fx.More
	} else if fx.More {
		if _, err := t.step(name, kind, resource.Input{Kind: resource.OnContinue, At: t.now}); err != nil {
			return fx, err
		}
	}
	return fx, nil
}

func (t *tree) commit(before, after resource.State) error {
	for _, f := range audit.Transition(before, after) {
		return fmt.Errorf("%s: transition: %s (%s)", after.Name, f.Rule, f.Of)
	}
	for _, f := range audit.Resource(after, t.plans[after.Kind]) {
		return fmt.Errorf("%s: audit: %s (%s)", after.Name, f.Rule, f.Of)
	}
	if err := errors.Join(t.order(before, after), t.drained(before, after), skipped(before, after)); err != nil {
		return err
	}
	t.states[after.Name] = after
	if after.Parent.Name != "" {
		t.family.Observe(after.AsChild())
	}
	return nil
}

// order holds seed 001's classes to what the states say, from scratch: what is triggered had its predecessors finished, or
// its successors gone; and nothing is triggered beside a failure.
func (t *tree) order(before, after resource.State) error {
	c := after.AsChild()
	if after.Parent.Name == "" || c.Job == "" || before.UID == after.UID && before.JobByID(c.Job) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(t.states)) {
		s := t.states[name]
		if s.Parent.Name == "" || s.Gone || s.Name == after.Name {
			continue
		}
		o := s.AsChild()
		finished := o.Job == c.Job && o.JobState.Final()
		switch {
		case !c.Marked && o.Marked:
			return fmt.Errorf("%s is triggered before the orphan %s is gone", c.Item, o.Item)
		case !c.Marked && slices.Contains(c.DependsOn, o.Item) && !finished:
			return fmt.Errorf("%s is triggered before %s has finished", c.Item, o.Item)
		case c.Marked && o.Marked && slices.Contains(o.DependsOn, c.Item):
			return fmt.Errorf("%s is deleted before %s, which depends on it", c.Item, o.Item)
		}
	}
	return nil
}

// drained: a job that succeeds or fails leaves no child at work.
func (t *tree) drained(before, after resource.State) error {
	j := before.Job()
	if after.Parent.Name != "" || j == nil || before.UID != after.UID {
		return nil
	}
	if now := after.JobByID(j.ID); now.State != job.Succeeded && now.State != job.Failed {
		return nil
	}
	live := t.live()
	for _, name := range slices.Sorted(maps.Keys(live)) {
		if c := live[name]; c.Job != "" && !c.JobState.Final() {
			return fmt.Errorf("job %s ends before %s, which is at job %s", j.ID, name, c.Job)
		}
	}
	return nil
}

// skipped: only what asks for it, and is as it was when it succeeded, succeeds without running; and a job runs once.
func skipped(before, after resource.State) error {
	c := after.AsChild()
	n := 0
	for i := range after.Jobs {
		if after.Jobs[i].ID == c.Job {
			n++
		}
	}
	switch {
	case after.Parent.Name == "" || c.Job == "" || c.Marked || after.Gone:
		return nil
	case n != 1:
		return fmt.Errorf("%s has job %s %d times", c.Item, c.Job, n)
	case before.UID != after.UID || before.JobByID(c.Job) != nil || c.JobState != job.Succeeded:
		return nil
	case !c.OnChangeOnly || before.ObservedGeneration != after.Generation || before.State != blueprint.Succeeded:
		return fmt.Errorf("%s succeeds without running", c.Item)
	}
	return nil
}

func (t *tree) command(verb string) (resource.Effects, error) {
	t.requests++
	id := "j" + strconv.Itoa(t.requests)
	return t.step(parentName, "Execution", resource.Input{Kind: resource.OnCommand, At: t.now, Command: &resource.Command{
		Key: resource.Key{Project: "p", Kind: "Execution", Name: parentName}, Verb: verb, RequestID: id, JobID: id, Digest: id,
		NewUID: "u" + id, SpecDigest: "e" + strconv.Itoa(t.digest),
	}})
}

// move does one thing that can be done: an ask, an answer, another look of the parent. It reports whether there was any.
func (t *tree) move(fail int) (bool, error) {
	t.now = t.now.Add(time.Millisecond)
	var can []func() error
	if t.more {
		can = append(can, func() error {
			_, err := t.step(parentName, "Execution", resource.Input{Kind: resource.OnContinue, At: t.now})
			return err
		})
	}
	if len(t.asks) > 0 {
		i := t.r.IntN(len(t.asks))
		can = append(can, func() error {
			a := t.asks[i]
			if t.r.IntN(5) > 0 { // else it comes again
				t.asks = slices.Delete(t.asks, i, i+1)
			}
			_, err := t.step(a.Key.Name, a.Key.Kind, resource.Input{Kind: resource.OnParent, At: t.now, Parent: &a})
			return errors.Join(err, t.tellParent())
		})
	}
	var out []resource.State
	for _, name := range slices.Sorted(maps.Keys(t.states)) {
		for _, p := range t.states[name].Phases {
			if p.InFlight && !p.Children {
				out = append(out, t.states[name])
			}
		}
	}
	if len(out) > 0 {
		s := out[t.r.IntN(len(out))]
		can = append(can, func() error { return errors.Join(t.answer(s, fail), t.tellParent()) })
	}
	if len(can) == 0 {
		return false, nil
	}
	return true, can[t.r.IntN(len(can))]()
}

func (t *tree) tellParent() error {
	_, err := t.step(parentName, "Execution", resource.Input{Kind: resource.OnChildren, At: t.now})
	return err
}

func (t *tree) answer(s resource.State, fail int) error {
	for i := range s.Phases {
		p := &s.Phases[i]
		if !p.InFlight {
			continue
		}
		r := &resource.Result{
			Fence:   resource.Fence{UID: s.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt, Call: p.Call},
			Outcome: resource.OutcomeCompleted,
		}
		if t.r.IntN(100) < fail {
			r.Outcome = resource.OutcomeFailed
		}
		_, err := t.step(s.Name, s.Kind, resource.Input{Kind: resource.OnResult, At: t.now, Result: r})
		return err
	}
	return nil
}

// restart forgets what is not in the states: the family is built anew, in another order, and asks are lost.
func (t *tree) restart() error {
	t.family, t.asks = children.New(), nil
	names := slices.Sorted(maps.Keys(t.states))
	t.r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		if s := t.states[name]; s.Parent.Name != "" {
			t.family.Observe(s.AsChild())
		}
	}
	_, err := t.step(parentName, "Execution", resource.Input{Kind: resource.OnContinue, At: t.now})
	return err
}

// run moves until nothing can, at most bound times; a sweep comes when nothing moves.
func (t *tree) run(bound, fail int) error {
	swept := false
	for range bound {
		moved, err := t.move(fail)
		if err != nil {
			return err
		}
		if moved {
			swept = false
			continue
		}
		if p := t.parent(); p.Job() == nil || !p.Exists() || swept {
			return nil
		}
		swept = true
		t.family.AskAgain()
		if err := t.tellParent(); err != nil {
			return err
		}
	}
	return fmt.Errorf("no end after %d moves", bound)
}

// live are the children that there are, by item.
func (t *tree) live() map[string]children.Child {
	live := map[string]children.Child{}
	for _, name := range slices.Sorted(maps.Keys(t.states)) {
		if s := t.states[name]; s.Parent.Name != "" && !s.Gone {
			live[s.Parent.Item] = s.AsChild()
		}
	}
	return live
}

// TestTrees drives random families through reconciliations, changes of their items, failures, cancels, restarts and
// deletion, in random order, and holds every step to seed 001.
func TestTrees(t *testing.T) {
	t.Parallel()
	seeds := 250
	if testing.Short() {
		seeds = 50
	}
	for seed := range uint64(seeds) {
		w := newTree(seed)
		if err := grow(w); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(w.story, "\n"))
		}
	}
}

func grow(w *tree) error {
	w.draw(1 + w.r.IntN(10))
	if _, err := w.command("apply"); err != nil {
		return err
	}
	for range 6 {
		fail := []int{0, 0, 20, 60}[w.r.IntN(4)]
		if w.r.IntN(2) == 0 {
			w.draw(1 + w.r.IntN(10))
			if _, err := w.command("apply"); err != nil {
				return err
			}
		}
		fx, err := w.command("reconcile")
		if err != nil {
			return err
		}
		if fx.Reply.Refused != nil {
			return fmt.Errorf("refused: %+v", fx.Reply.Refused)
		}
		for range w.r.IntN(30) {
			if _, err := w.move(fail); err != nil {
				return err
			}
		}
		switch w.r.IntN(6) {
		case 0:
			err = w.restart()
		case 1:
			_, err = w.command("cancel")
		case 2:
			_, err = w.command("interrupt")
		case 3: // what was told is lost: children are at work for a job that is over
			if _, err = w.command("interrupt"); err == nil {
				err = w.restart()
			}
			if p := w.parent(); err == nil && p.Job() == nil {
				continue
			}
		}
		if err == nil {
			err = w.run(2000, fail)
		}
		if err != nil {
			return err
		}
		if err := w.settled(); err != nil {
			return err
		}
	}
	// Whatever it went through, it can be brought to its target, and away.
	if _, err := w.command("reconcile"); err != nil {
		return err
	}
	if err := w.run(2000, 0); err != nil {
		return err
	}
	if p := w.parent(); p.State != blueprint.Succeeded {
		return fmt.Errorf("it does not succeed: %s, %v", p.FlowJob().Message, w.live())
	}
	if err := w.settled(); err != nil {
		return err
	}
	if _, err := w.command("delete"); err != nil {
		return err
	}
	if err := w.run(2000, 0); err != nil {
		return err
	}
	if p := w.parent(); !p.Gone || len(w.live()) > 0 {
		return fmt.Errorf("it is not gone: %+v, children %v", p, w.live())
	}
	return nil
}

// settled holds what must be so when a job has ended.
func (t *tree) settled() error {
	p := t.parent()
	if j := p.Job(); j != nil {
		return fmt.Errorf("job %s has not ended: %v, children %v", j.ID, resource.Why(&p), t.live())
	}
	j := p.FlowJob()
	live := t.live()
	for _, name := range slices.Sorted(maps.Keys(live)) {
		c := live[name]
		if c.Job == j.ID && !c.JobState.Final() && j.State != job.Canceled {
			return fmt.Errorf("%s is still at it after the job", name)
		}
	}
	if j.State != job.Succeeded {
		return nil
	}
	if len(live) != len(t.items) {
		return fmt.Errorf("%d children for %d items", len(live), len(t.items))
	}
	for i := range t.items {
		c, ok := live[t.items[i].Name]
		if !ok || c.Job != j.ID || c.JobState != job.Succeeded || !c.Is(&t.items[i], uint32(i)) {
			return fmt.Errorf("item %+v is %+v", t.items[i], c)
		}
	}
	return nil
}

// TestLateAsks: what a parent asked before it asked for something else, or about a job that is over, changes nothing.
func TestLateAsks(t *testing.T) {
	t.Parallel()
	w := newTree(1)
	parent := resource.Parent{Kind: "Execution", Name: parentName, UID: "u", RootKind: "Execution", Item: "a"}
	ask := func(ask resource.Ask, job string, revision uint64) resource.Effects {
		t.Helper()
		p := parent
		p.Revision = revision
		before := w.states["exec/a"]
		after, fx := resource.Step(before, resource.Input{Kind: resource.OnParent, At: began, Parent: &resource.FromParent{
			Ask: ask, Key: resource.Key{Project: "p", Kind: "DeployItem", Name: "exec/a"}, Parent: p, JobID: job, NewUID: "x",
			Item: children.Item{Name: "a", Kind: "DeployItem", SpecDigest: "s"},
		}}, resource.Env{Blueprint: w.plans["DeployItem"]})
		w.states["exec/a"] = after
		return fx
	}
	fenced := func(fx resource.Effects) {
		t.Helper()
		if fx.Event != nil || len(fx.Notes) != 1 || fx.Notes[0].Code != resource.NoteFenced {
			t.Errorf("it is not fenced: %+v", fx)
		}
	}
	if ask(resource.Adopt, "j1", 2).Event == nil || ask(resource.Trigger, "j1", 3).Event == nil {
		t.Fatal("nothing begins")
	}
	fenced(ask(resource.Stop, "j0", 9))
	fenced(ask(resource.Halt, "j0", 9))
	if ask(resource.Stop, "j1", 4).Event == nil || ask(resource.Mark, "j2", 9).Event == nil {
		t.Fatal("it is not marked")
	}
	fenced(ask(resource.Trigger, "j3", 8))
	if ask(resource.Trigger, "j2", 9).Event == nil {
		t.Error("it is not deleted")
	}
}
