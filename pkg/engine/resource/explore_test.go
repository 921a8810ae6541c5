package resource_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestExplore visits, breadth first, every state that a small resource can be brought to: three phases in one state, one
// of them behind another, and one phase in a second state; every answer of every call that is out, in every order, with
// retry, another target, cancel, interrupt, deletion and time in between. Every step is checked (world.step, light), and a
// fair world brings the job to its end. States that differ only in what counts up (revision, attempts, job
// ids, the time of day) are one. The fair world is asked from every eighth state only, for the sake of time.
func TestExplore(t *testing.T) {
	t.Parallel()
	for _, policy := range []blueprint.OnFailure{blueprint.Continue, blueprint.Drain} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			statesMax := 6000
			if testing.Short() {
				statesMax = 1000
			}
			explore(t, policy, statesMax)
		})
	}
}

func explore(t *testing.T, policy blueprint.OnFailure, statesMax int) {
	bp := &blueprint.Blueprint{
		Project: "p", Kind: "node", Digest: "v1",
		Lifecycle: blueprint.Lifecycle{
			Name: "custom", Delete: "stop", OnTargetChange: blueprint.Cancel, OnFailure: policy,
			Flows: []blueprint.Flow{
				{Verb: "start", Path: []string{"A", "B"}, Target: "Started"},
				{Verb: "stop", Path: []string{"D"}, Target: "Off"},
			},
		},
		Phases: []blueprint.Phase{
			{Name: "one", States: []string{"A"}, Retry: blueprint.Retry{Attempts: 1, Delay: 5 * time.Second}},
			{Name: "two", States: []string{"A"}, DependsOn: []string{"one"}},
			{Name: "three", States: []string{"A"}, Timeout: 40 * time.Second},
			{Name: "last", States: []string{"B"}},
			{Name: "down", States: []string{"D"}},
		},
	}
	first := newWorld()
	first.define(bp)
	first.light = true
	requests := 0
	command := func(verb string) resource.Input {
		requests++
		id := fmt.Sprintf("j%d", requests)
		return resource.Input{Kind: resource.OnCommand, Command: &resource.Command{
			Key: resource.Key{Project: "p", Kind: "node", Name: "n"}, Verb: verb, RequestID: id, JobID: id, Digest: id, NewUID: "u" + id,
		}}
	}
	for _, verb := range []string{"apply", "start"} {
		in := command(verb)
		in.At = began
		if _, err := first.step(in); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{canonical(first): true}
	queue, depths := []*world{first}, []int{0}
	steps, deepest := 0, 0
	for n := 0; n < len(queue); n++ {
		w := queue[n]
		queue[n] = nil
		deepest = max(deepest, depths[n])
		if err := w.checkReasons(); err != nil {
			t.Fatalf("%v\nin %s", err, canonical(w))
		}
		var inputs []resource.Input
		for i := range w.state.Phases {
			f, out := w.outstanding(w.state.Phases[i].Name)
			if !out {
				continue
			}
			for _, r := range []resource.Result{
				{Outcome: resource.OutcomeCompleted}, {Outcome: resource.OutcomeFailed}, {Outcome: resource.OutcomeFailed, Retryable: true},
				{Outcome: resource.OutcomePending}, {Outcome: resource.OutcomeNotStarted},
			} {
				r.Fence = f
				inputs = append(inputs, resource.Input{Kind: resource.OnResult, Result: &r})
			}
			inputs = append(inputs, resource.Input{Kind: resource.OnLost, Lost: &f})
		}
		for _, verb := range []string{"start", "stop", "retry", "cancel", "interrupt", "delete"} {
			inputs = append(inputs, command(verb))
		}
		polled := command("stop")
		for i := range w.state.Phases {
			polled.Polling = append(polled.Polling, w.state.Phases[i].Name)
		}
		inputs = append(inputs, polled, resource.Input{Kind: resource.OnDue, At: w.state.NextDue()}, resource.Input{Kind: resource.OnContinue})
		for _, in := range inputs {
			if in.At.IsZero() {
				in.At = w.state.UpdatedAt
			}
			next := w.fork()
			fx, err := next.step(in)
			steps++
			if err != nil {
				t.Fatalf("%v\nafter %s\non %+v", err, canonical(w), in)
			}
			if fx.Event == nil || !next.state.Exists() {
				continue
			}
			if key := canonical(next); !seen[key] && len(seen) < statesMax {
				seen[key] = true
				queue, depths = append(queue, next), append(depths, depths[n]+1)
			}
		}
		if n%8 != 0 {
			continue
		}
		if _, err := w.fork().settle(w.state.UpdatedAt, 60); err != nil {
			t.Fatalf("%v\nfrom %s", err, canonical(w))
		}
	}
	t.Logf("%s: %d states, %d steps, %d inputs deep, complete %t", policy, len(seen), steps, deepest, len(seen) < statesMax)
	if len(seen) < 500 {
		t.Errorf("only %d states: the exploration went nowhere", len(seen))
	}
}

// fork is a copy that goes its own way. States are values, and records are replaced, never changed.
func (w *world) fork() *world {
	c := newWorld()
	c.state, c.present, c.more, c.light = w.state, w.present, w.more, w.light
	c.blueprints = w.blueprints
	for id, r := range w.records {
		if w.state.JobByID(id) != nil {
			c.records[id] = r
		}
	}
	c.fences = append(c.fences, w.fences...)
	if len(c.fences) > 8 {
		c.fences = c.fences[len(c.fences)-8:]
	}
	return c
}

// canonical is the state without what only counts up, with times as distances from its own.
func canonical(w *world) string {
	s := &w.state
	var b strings.Builder
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.Sub(s.UpdatedAt).String()
	}
	word := func(s string, is ...bool) {
		b.WriteString(s)
		for _, flag := range is {
			if flag {
				b.WriteByte('+')
			} else {
				b.WriteByte('-')
			}
		}
		b.WriteByte(' ')
	}
	word(s.State)
	word(s.Target, !s.DeletedAt.IsZero(), s.WasDeployed)
	if j := s.Job(); j != nil {
		word(j.State.String()+j.Target, j.Canceling, j.Verb == "retry")
	}
	if f := s.FlowJob(); f != nil {
		word(f.State.String())
	}
	for i := range s.Phases {
		p := &s.Phases[i]
		if p.State != s.State && p.Status != resource.Canceling {
			continue // left behind: it is entered anew
		}
		word(p.Name+p.Status.String()+strconv.Itoa(int(p.Retries)), p.InFlight, p.Retrying, p.Call == 0)
		word(at(p.Due))
		word(at(p.Deadline))
	}
	return b.String()
}
