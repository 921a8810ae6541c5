package resource_test

import (
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

func ask(verb, id, kind string) resource.Input {
	return resource.Input{Kind: resource.OnCommand, At: began, Command: &resource.Command{
		Key: resource.Key{Project: "p", Kind: kind, Name: "n"}, Verb: verb, RequestID: id, JobID: id, Digest: id, NewUID: "u" + id,
	}}
}

// TestNewerStateIsLeftAlone: a state that a newer Drover wrote is not touched, whatever comes; a command is told so.
func TestNewerStateIsLeftAlone(t *testing.T) {
	t.Parallel()
	newer := resource.State{Key: resource.Key{Project: "p", Kind: "node", Name: "n"}, MinReader: resource.ReaderVersion + 1, UID: "u", Revision: 3}
	for kind := resource.OnCommand; kind <= resource.OnLost; kind++ {
		in := ask("start", "j1", "node")
		in.Kind, in.Result, in.Lost = kind, &resource.Result{}, &resource.Fence{}
		after, fx := resource.Step(newer, in, resource.Env{})
		if after.Revision != 3 || fx.Event != nil || len(fx.Notes) != 1 || fx.Notes[0].Code != resource.NoteNewerVersion {
			t.Errorf("kind %d: %+v, %+v", kind, after, fx)
		}
		if (kind == resource.OnCommand) != (fx.Reply != nil && fx.Reply.Refused.Code == resource.Overloaded) {
			t.Errorf("kind %d: %+v", kind, fx.Reply)
		}
	}
}

// TestNonsense: inputs of no known kind, or without their part, change nothing and say so.
func TestNonsense(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.define(&blueprint.Blueprint{
		Digest:    "v1",
		Lifecycle: blueprint.Lifecycle{Flows: []blueprint.Flow{{Verb: "start", Path: []string{"A"}, Target: "Started"}}},
		Phases:    []blueprint.Phase{{Name: "one", States: []string{"A"}}},
	})
	for _, in := range []resource.Input{ask("apply", "a1", "node"), ask("start", "j1", "node")} {
		if _, err := w.step(in); err != nil {
			t.Fatal(err)
		}
	}
	f, _ := w.outstanding("one")
	canceling, _ := resource.Step(w.state, ask("cancel", "c1", "node"), resource.Env{Blueprint: w.pinned()})
	if p := canceling.Phase("one"); p.Status != resource.Canceling {
		t.Fatalf("%+v", p)
	}
	for _, s := range []resource.State{w.state, canceling} {
		for _, in := range []resource.Input{
			{}, {Kind: 99}, {Kind: resource.OnCommand}, {Kind: resource.OnResult}, {Kind: resource.OnLost},
			{Kind: resource.OnResult, Result: &resource.Result{Fence: f}},
			{Kind: resource.OnResult, Result: &resource.Result{Fence: f, Outcome: 99}},
		} {
			after, fx := resource.Step(s, in, resource.Env{Blueprint: w.pinned()})
			if after.Revision != s.Revision || fx.Event != nil || len(fx.Notes) != 1 || fx.Notes[0].Code != resource.NoteIllegal {
				t.Errorf("%+v: %+v", in, fx)
			}
		}
	}
}

// TestWithoutBlueprint: a kind that nothing defines is refused with the field; a Listener needs no blueprint.
func TestWithoutBlueprint(t *testing.T) {
	t.Parallel()
	_, fx := resource.Step(resource.State{}, ask("apply", "a1", "node"), resource.Env{})
	if r := fx.Reply.Refused; r == nil || r.Code != resource.Invalid || len(r.Violations) != 1 || r.Violations[0].Field != "resource.kind" {
		t.Errorf("%+v", fx.Reply)
	}
	s, fx := resource.Step(resource.State{}, ask("apply", "a1", resource.ListenerKind), resource.Env{})
	if fx.Event == nil || s.UID != "ua1" || s.Jobs[0].State != job.Succeeded {
		t.Fatalf("%+v", fx)
	}
	if _, fx := resource.Step(s, ask("start", "j1", resource.ListenerKind), resource.Env{}); fx.Reply.Refused == nil || fx.Reply.Refused.Code != resource.Invalid {
		t.Errorf("%+v", fx.Reply)
	}
	if s, _ := resource.Step(s, ask("delete", "d1", resource.ListenerKind), resource.Env{}); !s.Gone {
		t.Errorf("%+v", s)
	}
}

// TestConstraintsSeeTheStep: a constraint is asked about the state as it is at that point of the step: with the attributes
// of the very answer that freed it.
func TestConstraintsSeeTheStep(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.define(&blueprint.Blueprint{
		Digest:    "v1",
		Lifecycle: blueprint.Lifecycle{Flows: []blueprint.Flow{{Verb: "start", Path: []string{"A", "B"}, Target: "Started"}}},
		Phases: []blueprint.Phase{
			{Name: "one", States: []string{"A"}}, {Name: "two", States: []string{"A"}, DependsOn: []string{"one"}, When: "has(x)"},
			{Name: "three", States: []string{"B"}, When: "has(y)"},
		},
	})
	for _, in := range []resource.Input{ask("apply", "a1", "node"), ask("start", "j1", "node")} {
		if _, err := w.step(in); err != nil {
			t.Fatal(err)
		}
	}
	for _, answer := range []struct{ phase, attribute, next string }{{"one", "x", "two"}, {"two", "y", "three"}} {
		f, _ := w.outstanding(answer.phase)
		fx, err := w.step(resource.Input{Kind: resource.OnResult, At: began, Result: &resource.Result{
			Fence: f, Outcome: resource.OutcomeCompleted, Attributes: map[string]string{answer.attribute: "1"},
		}})
		if err != nil || fx.Event.Dispatch == nil || fx.Event.Dispatch.Fence.Phase != answer.next {
			t.Fatalf("after %s: %v, %+v", answer.phase, err, fx.Event)
		}
	}
}

// TestLimitsAreExact: what is at the limit is kept, one byte more is not; a value that is taken away makes room.
func TestLimitsAreExact(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit int
		put   func(*resource.Result, map[string]string)
		get   func(*resource.State) map[string]string
	}{
		"attributes": {resource.AttributesBytesMax, func(r *resource.Result, m map[string]string) { r.Attributes = m }, func(s *resource.State) map[string]string { return s.Attributes }},
		"data":       {resource.DataBytesMax, func(r *resource.Result, m map[string]string) { r.Data = m }, func(s *resource.State) map[string]string { return s.Phases[0].Data }},
		"outputs":    {resource.OutputsBytesMax, func(r *resource.Result, m map[string]string) { r.Outputs = m }, func(s *resource.State) map[string]string { return s.Phases[0].Outputs }},
	} {
		for _, size := range []int{c.limit, c.limit + 1} {
			w := newWorld()
			w.define(&blueprint.Blueprint{
				Digest:    "v1",
				Lifecycle: blueprint.Lifecycle{Flows: []blueprint.Flow{{Verb: "start", Path: []string{"A"}, Target: "Started"}}},
				Phases:    []blueprint.Phase{{Name: "one", States: []string{"A"}}},
			})
			for _, in := range []resource.Input{ask("apply", "a1", "node"), ask("start", "j1", "node")} {
				if _, err := w.step(in); err != nil {
					t.Fatal(err)
				}
			}
			f, _ := w.outstanding("one")
			for _, set := range []map[string]string{{"a": strings.Repeat("x", 1000)}, {"a": "null", "b": strings.Repeat("x", size-1)}} {
				r := &resource.Result{Fence: f, Outcome: resource.OutcomePending}
				c.put(r, set)
				if _, err := w.step(resource.Input{Kind: resource.OnResult, At: began, Result: r}); err != nil {
					t.Fatal(err)
				}
			}
			kept, status := c.get(&w.state), w.state.Phases[0].Status
			if _, small := kept["a"]; small == (size == c.limit) || (status == resource.Failed) != (size > c.limit) {
				t.Errorf("%s of %d bytes: %s, a kept %t", name, size, status, small)
			}
		}
	}
}

// TestMessageIsCutBetweenCharacters: a cut message is valid text and within its limit.
func TestMessageIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.define(&blueprint.Blueprint{
		Digest:    "v1",
		Lifecycle: blueprint.Lifecycle{Flows: []blueprint.Flow{{Verb: "start", Path: []string{"A"}, Target: "Started"}}},
		Phases:    []blueprint.Phase{{Name: "one", States: []string{"A"}}},
	})
	for _, in := range []resource.Input{ask("apply", "a1", "node"), ask("start", "j1", "node")} {
		if _, err := w.step(in); err != nil {
			t.Fatal(err)
		}
	}
	f, _ := w.outstanding("one")
	_, err := w.step(resource.Input{Kind: resource.OnResult, At: began.Add(time.Second), Result: &resource.Result{
		Fence: f, Outcome: resource.OutcomeFailed, Message: strings.Repeat("ä", resource.MessageBytesMax),
	}})
	message := w.state.Phases[0].Message
	if err != nil || len(message) > resource.MessageBytesMax || strings.ToValidUTF8(message, "?") != message || !strings.HasSuffix(message, "ä...") {
		t.Errorf("%v %q", err, message)
	}
}
