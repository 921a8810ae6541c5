package machine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

var defs = Definitions{
	Workflows: map[string][]string{"w": {"s1", "s2"}, "broken": {"s1", "none"}},
	Stages: map[string]Stage{
		"s1": {BootEnv: "e1", Tasks: []string{"a", "b"}}, "s2": {Tasks: []string{"c", "context:k", "d", "context:", "x"}}, "s3": {BootEnv: "e3", Tasks: []string{"t"}},
	},
}

// player says things to one machine, and audits every step.
type player struct {
	t *testing.T
	s State
	n int
}

func (p *player) say(in Input) Effects {
	p.t.Helper()
	p.n++
	if in.At.IsZero() {
		in.At = at0
	}
	if in.Next != nil && in.Next.RunID == "" {
		in.Next.RunID = fmt.Sprint("r", p.n)
	}
	after, fx := Step(p.s, in)
	if found := Audit(p.s, after, fx); len(found) > 0 {
		p.t.Fatalf("%+v: %+v", in, found)
	}
	p.s = after
	return fx
}

func (p *player) set(path string, v Value) Effects {
	p.t.Helper()
	in := set(path, v)
	in.Patch.Definitions = defs
	return p.say(in)
}

// must is set that is not refused.
func (p *player) must(path string, v Value) {
	p.t.Helper()
	if fx := p.set(path, v); fx.Refused != nil {
		p.t.Fatalf("%s: %+v", path, fx.Refused)
	}
}

func (p *player) refused(fx Effects, code Code, says string) {
	p.t.Helper()
	if fx.Refused == nil || fx.Refused.Code != code || !strings.Contains(fx.Refused.Field+": "+fx.Refused.Message, says) {
		p.t.Fatalf("want %s %q, got %+v", code, says, fx.Refused)
	}
}

// run has the machine's agent run tasks to their end, letting parked machines go on, until the place is reached.
func (p *player) runTo(place int) {
	p.t.Helper()
	for range 50 {
		if p.s.CurrentTask >= place && (p.s.Run == nil || p.s.Run.State.Final() || p.s.CurrentTask == len(p.s.Tasks)) {
			return
		}
		if !p.s.Runnable {
			p.must("/Runnable", boolValue(true))
		}
		if fx := p.say(Input{Next: &Next{Context: p.s.Context}}); fx.Run != nil {
			p.say(reportOf(agent{fx.Run.ID, Created}, Running))
			p.say(reportOf(agent{fx.Run.ID, Running}, Finished))
		}
	}
	p.t.Fatalf("place %d is not reached: %+v", place, p.s)
}

func newPlayer(t *testing.T, a Apply) *player {
	t.Helper()
	p := &player{t: t, s: State{Key: Key{"p", "m"}}}
	a.UUID, a.Definitions = "u", defs
	if fx := p.say(Input{Apply: &a}); fx.Refused != nil {
		t.Fatal(fx.Refused)
	}
	return p
}

func textOf(s string) *string { return &s }

// TestWorkflow: seed 004, "Changing the Workflow on a Machine" and "Removing a Workflow from a Machine".
func TestWorkflow(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, Apply{Meta: map[string]string{"BaseContext": "base"}})
	if p.s.CurrentTask != -1 || p.s.Stage != StageNone || p.s.Condition() != Idle || p.s.Context != "base" {
		t.Fatalf("a new machine: %+v", p.s)
	}
	p.must("/Context", textValue("other"))
	p.must("/Workflow", textValue("w"))
	want := []string{"stage:s1", "bootenv:e1", "a", "b", "stage:s2", "c", "context:k", "d", "context:", "x"}
	if !slices.Equal(p.s.Tasks, want) || p.s.CurrentTask != -1 || p.s.Context != "base" || p.s.Stage != StageNone {
		t.Fatalf("with a workflow: %+v", p.s)
	}
	p.refused(p.set("/Stage", textValue("s3")), Invalid, "Stage: is read-only while workflow w is set")
	p.refused(p.set("/BootEnv", textValue("e")), Invalid, "BootEnv: is read-only")
	p.refused(p.set("/Workflow", textValue("nowhere")), Invalid, "there is no workflow nowhere")
	p.refused(p.set("/Workflow", textValue("broken")), Invalid, "names stage none, and there is none")
	p.runTo(5)
	if p.s.Stage != "s2" || p.s.BootEnv != "e1" {
		t.Fatalf("settings are taken on: %+v", p.s)
	}
	p.must("/Workflow", textValue(""))
	if p.s.Stage != StageNone || p.s.Tasks != nil || p.s.CurrentTask != -1 || p.s.Context != "base" || p.s.BootEnv != "e1" {
		t.Fatalf("without: %+v", p.s)
	}
}

// TestContexts: an agent of another context gets nothing, and the one whose turn it is goes on.
func TestContexts(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, Apply{Workflow: textOf("w")})
	p.runTo(6) // context:k was taken on
	if p.s.Context != "k" {
		t.Fatalf("%+v", p.s)
	}
	if fx := p.say(Input{Next: &Next{Context: ""}}); fx.Outcome != Nothing || fx.Refused != nil {
		t.Fatalf("another context: %+v", fx)
	}
	fx := p.say(Input{Next: &Next{Context: "k"}})
	if fx.Outcome != NewRun || fx.Run.Task != "d" || fx.Run.Context != "k" {
		t.Fatalf("%+v", fx)
	}
	if why := Why(&p.s); !strings.Contains(why.Text, "waits for its agent to begin d") {
		t.Fatal(why)
	}
}

// TestStage: seed 004, "Changing the Stage on a Machine".
func TestStage(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, Apply{})
	p.must("/Stage", textValue("s3"))
	if !slices.Equal(p.s.Tasks, []string{"t"}) || p.s.BootEnv != "e3" || p.s.Runnable || p.s.CurrentTask != -1 {
		t.Fatalf("another boot environment parks: %+v", p.s)
	}
	p.must("/Runnable", boolValue(true))
	p.must("/Stage", textValue("s2"))
	if p.s.BootEnv != "e3" || !p.s.Runnable {
		t.Fatalf("a stage without one does not: %+v", p.s)
	}
	p.refused(p.set("/Stage", textValue("nowhere")), Invalid, "there is no stage nowhere")
	p.must("/BootEnv", textValue("e4"))
	if p.s.Runnable {
		t.Fatal("another boot environment parks")
	}
}

// TestReset: seed 004, "Resetting the CurrentTask index to -1".
func TestReset(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, Apply{Workflow: textOf("w")})
	p.runTo(5)
	p.refused(p.set("/CurrentTask", Value{Kind: Int, Int: 9}), Invalid, "can only be set back")
	p.refused(p.set("/CurrentTask", Value{Kind: Int, Int: 0}), Invalid, "cannot be set back over bootenv:e1")
	p.must("/CurrentTask", Value{Kind: Int, Int: 3})
	if p.s.CurrentTask != 3 {
		t.Fatalf("%d", p.s.CurrentTask)
	}
	p.must("/CurrentTask", Value{Kind: Int, Int: -1})
	if p.s.CurrentTask != 0 { // the stage of the machine's own boot environment (facts, section 6: "landed on 0")
		t.Fatalf("a reset lands on %d", p.s.CurrentTask)
	}
	if fx := p.say(Input{Next: &Next{}}); fx.Outcome != Nothing || p.s.Stage != "s1" { // it went back to the first stage
		t.Fatalf("%+v", p.s)
	}
	if fx := p.say(Input{Next: &Next{}}); fx.Outcome != NewRun || fx.Run.Task != "a" {
		t.Fatalf("%+v", fx)
	}
	q := newPlayer(t, Apply{Stage: textOf("s2")})
	q.runTo(2)
	q.must("/CurrentTask", Value{Kind: Int, Int: -1})
	if q.s.CurrentTask != -1 || q.s.Context != "" {
		t.Fatalf("without a workflow: %+v", q.s)
	}
}

// TestEdits: the past and the next stages cannot be changed, the present can.
func TestEdits(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, Apply{Workflow: textOf("w")})
	p.runTo(2)
	list := func(entries ...string) Value { return Value{Kind: List, List: entries} }
	head, tail := []string{"stage:s1", "bootenv:e1", "a"}, []string{"stage:s2", "c", "context:k", "d", "context:", "x"}
	p.must("/Tasks", list(slices.Concat(head, []string{"new", "b"}, tail)...))
	p.must("/Tasks", list(slices.Concat(head, tail)...))
	p.refused(p.set("/Tasks", list(slices.Concat(head[1:], tail)...)), Invalid, "before and at CurrentTask")
	p.refused(p.set("/Tasks", list(slices.Concat(head, []string{"stage:z"}, tail[1:])...)), Invalid, "next stages")
	p.refused(p.set("/Tasks", list(slices.Concat(head, slices.Repeat([]string{"z"}, TasksMax), tail)...)), TooLarge, "at most 1000 entries")
}

// TestActions: no plugin offers one, so it fails, parks, and says so.
func TestActions(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, Apply{Workflow: textOf("w")})
	p.runTo(2)
	p.must("/Tasks", Value{Kind: List, List: []string{"stage:s1", "bootenv:e1", "a", "action:ipmi:off", "stage:s2", "c", "context:k", "d", "context:", "x"}})
	fx := p.say(Input{Next: &Next{}})
	if fx.Outcome != Nothing || p.s.Run.State != Failed || p.s.Runnable || !strings.Contains(Why(&p.s).Text, messageNoPluginText) {
		t.Fatalf("%+v %+v", fx, Why(&p.s))
	}
}

// TestPatches: fields, what is in them, limits, and who may.
func TestPatches(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, Apply{Workflow: textOf("w")})
	p.must("/Params/a~1b", Value{Kind: Other, JSON: `{"x":1}`})
	p.must("/Meta/color", textValue("red"))
	if p.s.Params["a/b"] != `{"x":1}` || p.s.Meta["color"] != "red" {
		t.Fatalf("%+v", p.s)
	}
	revision := p.s.Revision
	p.must("/Meta/color", textValue("red"))
	if p.s.Revision != revision {
		t.Fatal("what changes nothing is no event")
	}
	p.say(Input{Patch: &Patch{Ops: []Op{{Remove: true, Path: "/Meta/color"}}}})
	if _, ok := p.s.Meta["color"]; ok {
		t.Fatal("removed")
	}
	p.refused(p.set("/Meta/color", boolValue(true)), Invalid, "must be a text")
	p.refused(p.set("/Nothing", textValue("")), BadPatch, "there is no such field")
	p.refused(p.set("/Params", textValue("")), BadPatch, "there is no such field")
	p.refused(p.set("/Uuid", textValue("v")), Invalid, "read-only")
	p.refused(p.set("/Runnable", textValue("yes")), Invalid, "must be true or false")
	p.refused(p.set("/Description", textValue(strings.Repeat("x", TextBytesMax+1))), TooLarge, "Description")
	p.refused(p.say(Input{Patch: &Patch{Ops: make([]Op, OpsMax+1)}}), TooLarge, "operations")
	p.refused(p.say(Input{Caller: "another"}), Forbidden, "that machine alone")
	p.refused(p.say(Input{Report: &Report{RunID: "none"}}), NotFound, "no such job")
	none := &player{t: t, s: State{Key: Key{"p", "none"}}}
	none.refused(none.say(Input{}), NotFound, "no such machine")
	none.refused(none.say(Input{Next: &Next{}}), Unprocessable, "no such machine")
}

// TestSuperseded: a run whose place was moved away is recorded as failed with the next one, and parks nothing.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, Apply{Stage: textOf("s3")})
	fx := p.say(Input{Next: &Next{}})
	p.say(reportOf(agent{fx.Run.ID, Created}, Running))
	p.must("/CurrentTask", Value{Kind: Int, Int: -1})
	next := p.say(Input{Next: &Next{}})
	if next.Outcome != NewRun || len(next.Runs) != 2 || next.Runs[0].State != Failed || next.Runs[0].Message != messageSuperseded || !p.s.Runnable {
		t.Fatalf("%+v", next)
	}
	past := next.Runs[0]
	late := reportOf(agent{past.ID, Running}, Finished)
	late.Report.Past = &past
	p.refused(p.say(late), TestFailed, "Test op failed")
	late.Report.Ops = late.Report.Ops[1:]
	p.refused(p.say(late), Conflict, "another job has taken its place")
}
