package resource_test

import (
	"strings"
	"testing"

	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// child is one child, asked by a parent and answered by a worker.
type child struct {
	t     *testing.T
	state resource.State
	bp    *blueprint.Blueprint
}

var childItem = children.Item{Name: "i", Kind: "item", SpecDigest: "s"}

func (c *child) step(in resource.Input) resource.Effects {
	c.t.Helper()
	in.At = began
	before := c.state
	after, fx := resource.Step(c.state, in, resource.Env{Blueprint: c.bp})
	if fx.Event == nil {
		c.t.Fatalf("nothing happened: %+v", fx.Notes)
	}
	for _, f := range append(audit.Resource(after, c.bp), audit.Transition(before, after)...) {
		c.t.Fatalf("%s: %s\n%+v", f.Rule, f.Of, after.Phases)
	}
	c.state = after
	return fx
}

func (c *child) asked(a resource.Ask, jobID string) resource.Effects {
	c.t.Helper()
	parent := resource.Parent{Kind: "exec", Name: "e", UID: "p", RootKind: "exec", Item: "i", Revision: c.state.Revision + 1}
	return c.step(resource.Input{Kind: resource.OnParent, Parent: &resource.FromParent{
		Ask: a, Key: resource.Key{Project: "p", Kind: "item", Name: "e/i"}, Parent: parent, NewUID: "u", Item: childItem, JobID: jobID,
	}})
}

func (c *child) answer(phase string, o resource.Outcome) {
	c.t.Helper()
	p := c.state.Phase(phase)
	c.step(resource.Input{Kind: resource.OnResult, Result: &resource.Result{Outcome: o, Fence: resource.Fence{
		UID: c.state.UID, JobID: p.JobID, Phase: phase, Attempt: p.Attempt, Call: p.Call,
	}}})
}

// TestAChildBeginsWithoutWhatWasHeldBack: a child of a kind with a table of its own gets a job of another target, while
// phases that a failure held back still wait.
func TestAChildBeginsWithoutWhatWasHeldBack(t *testing.T) {
	t.Parallel()
	c := &child{t: t, bp: &blueprint.Blueprint{
		Kind: "item", Digest: "b",
		Lifecycle: blueprint.Lifecycle{
			Flows: []blueprint.Flow{
				{Verb: "start", Path: []string{"A"}, Target: "Started"}, {Verb: "stop", Path: []string{"D"}, Target: "Off"},
			},
			OnTargetChange: blueprint.Reject, OnFailure: blueprint.Drain, OnCreate: "start", Delete: "stop",
		},
		Phases: []blueprint.Phase{
			{Name: "one", States: []string{"A"}}, {Name: "two", States: []string{"A"}},
			{Name: "three", States: []string{"A"}, DependsOn: []string{"two"}}, {Name: "off", States: []string{"D"}},
		},
	}}
	c.asked(resource.Adopt, "j1")
	c.asked(resource.Trigger, "j1")
	c.step(resource.Input{Kind: resource.OnContinue})
	c.answer("one", resource.OutcomeFailed)
	c.answer("two", resource.OutcomeCompleted)
	if p := c.state.Phase("three"); p.Status != resource.Waiting || c.state.Job() != nil {
		t.Fatalf("it is not held back: %+v", c.state)
	}
	c.asked(resource.Mark, "j2")
	c.asked(resource.Trigger, "j2")
	c.answer("off", resource.OutcomeCompleted)
	if !c.state.Gone {
		c.step(resource.Input{Kind: resource.OnContinue})
	}
	if !c.state.Gone {
		t.Errorf("it is not deleted: %+v", c.state)
	}
}

// TestAChildThatNothingDefinesCanBeDeleted: its jobs fail, and it has nothing that could be undone.
func TestAChildThatNothingDefinesCanBeDeleted(t *testing.T) {
	t.Parallel()
	c := &child{t: t}
	c.asked(resource.Adopt, "j1")
	c.asked(resource.Trigger, "j1")
	if j := c.state.JobByID("j1"); j.State != job.Failed || !strings.Contains(j.Message, "no blueprint defines kind item") {
		t.Fatalf("%+v", j)
	}
	c.asked(resource.Mark, "j2")
	c.asked(resource.Trigger, "j2")
	if !c.state.Gone || c.state.JobByID("j2").State != job.Succeeded {
		t.Errorf("%+v", c.state)
	}
}

// TestAnItemKeepsItsKind: a child is found by the name of its item, so one of another kind would leave it to nobody. What
// comes before it in the spec is made first.
func TestAnItemKeepsItsKind(t *testing.T) {
	t.Parallel()
	executor := blueprint.Executor{Kind: blueprint.ExecutorChildren}
	bp := &blueprint.Blueprint{Kind: "exec", Digest: "e", Lifecycle: blueprint.Execution(), Phases: []blueprint.Phase{
		{Name: "items", States: []string{blueprint.Init}, Executor: executor, Children: &blueprint.Children{Do: blueprint.DoApply}},
	}}
	family := children.New()
	family.Observe(children.Child{Kind: "other", Name: "n/i", UID: "u", Item: "i", Index: 1, SpecDigest: "s"})
	env := resource.Env{Blueprint: bp, Children: family, Items: func(*blueprint.Phase) ([]children.Item, error) {
		return []children.Item{{Name: "new", Kind: "item", SpecDigest: "s"}, childItem}, nil
	}}
	var s resource.State
	var fx resource.Effects
	for _, in := range []resource.Input{
		ask("apply", "a", "exec"), ask("reconcile", "r", "exec"), {Kind: resource.OnContinue, At: began},
	} {
		s, fx = resource.Step(s, in, env)
	}
	if len(fx.Batch) != 1 || fx.Batch[0].Item.Name != "new" {
		t.Fatalf("%+v", fx)
	}
	s, fx = resource.Step(s, resource.Input{Kind: resource.OnContinue, At: began}, env)
	if len(fx.Batch) != 0 || s.State != blueprint.Failed || !strings.Contains(s.Phase("items").Message, "item i is there, of kind other") {
		t.Errorf("%+v, %+v", s, fx)
	}
}

// TestAChildFollowsItsParent: the child of a phase that manages a service walks the parent's own verb where it may, else what
// its lifecycle has for a creation or a change (seed 000, ServiceManagementPhase).
func TestAChildFollowsItsParent(t *testing.T) {
	t.Parallel()
	plugin := blueprint.Executor{Kind: "plugin"}
	for _, s := range []struct {
		state, verb string
		follow      bool
		walks       string // empty: the job fails
	}{
		{"Ready", "deploy", true, "deploy"}, {"Deployed", "redeploy", true, "redeploy"}, {"Deployed", "update", true, "update"},
		{"Ready", "redeploy", true, "deploy"}, {"Ready", "update", true, "deploy"}, {"Deployed", "deploy", true, "update"},
		{"Error", "deploy", true, "deploy"}, {"Deployed", "dance", true, "update"}, {"Ready", "redeploy", false, ""},
	} {
		c := &child{t: t, bp: &blueprint.Blueprint{
			Kind: "item", Digest: "b", Lifecycle: blueprint.Service(),
			Phases: []blueprint.Phase{{Name: "one", Executor: plugin, Undo: &plugin, Idempotent: true}},
		}}
		c.asked(resource.Adopt, "j0")
		if s.state != "Ready" {
			c.asked(resource.Trigger, "j1")
			if s.state == "Deployed" {
				c.answer("one", resource.OutcomeCompleted)
			} else {
				c.answer("one", resource.OutcomeFailed)
			}
		}
		if c.state.State != s.state {
			t.Fatalf("it is in state %s, not %s", c.state.State, s.state)
		}
		c.step(resource.Input{Kind: resource.OnParent, Parent: &resource.FromParent{
			Ask: resource.Trigger, Key: c.state.Key, JobID: "j2", Verb: s.verb, Follow: s.follow,
			Parent: resource.Parent{Kind: "exec", Name: "e", UID: "p", Item: "i", Revision: 99},
		}})
		j := c.state.JobByID("j2")
		if s.walks == "" {
			if j.State != job.Failed {
				t.Errorf("%+v: %+v", s, j)
			}
			continue
		}
		if j.Walks() != s.walks || j.State.Final() {
			t.Errorf("%+v: it walks %s, and is %s: %s", s, j.Walks(), j.State, j.Message)
		}
	}
}
