package machine

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var at0 = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// agent is what one of two agents believes: the run that it holds, and the state in which it saw it.
type agent struct {
	run  string
	seen RunState
}

// world is a machine and two agents who both think that they are its only one.
type world struct {
	s      State
	agents [2]agent
	n      int // runs that were made
}

// key tells worlds apart that can behave differently: ids, times and revisions cannot.
func (w *world) key() string {
	s := &w.s
	var b strings.Builder
	fmt.Fprint(&b, s.Workflow, "|", s.Stage, "|", s.BootEnv, "|", s.Context, "|", s.Tasks, s.CurrentTask, s.Runnable)
	if s.Run != nil {
		fmt.Fprint(&b, "|", s.Run.State, s.Run.Index, s.Run.Task)
	}
	for _, a := range w.agents {
		fmt.Fprint(&b, "|", a.run != "" && a.run == s.CurrentJob, a.run == "", a.seen)
	}
	return b.String()
}

func text(s string) Value { return Value{Kind: Text, Text: s} }

// report is an agent's patch: it tests the state that it saw.
func reportOf(a agent, to RunState) Input {
	return Input{Report: &Report{RunID: a.run, Ops: []Op{
		{Test: true, Path: "/State", Value: text(a.seen.String())}, {Path: "/State", Value: text(to.String())},
	}}}
}

func set(path string, v Value) Input { return Input{Patch: &Patch{Ops: []Op{{Path: path, Value: v}}}} }

// moves are all that can be said in a world.
func (w *world) moves(workflows Definitions) []move1 {
	var all []move1
	for i := range w.agents {
		for _, context := range []string{"", "c"} {
			all = append(all, move1{who: i, in: Input{Next: &Next{Context: context, RunID: fmt.Sprint("r", w.n+1)}}})
		}
		a := w.agents[i]
		if a.run == "" {
			continue
		}
		for _, to := range RunStates() {
			if to != NoRun && (May(a.seen, to)) {
				all = append(all, move1{who: i, in: reportOf(a, to)})
			}
		}
	}
	for _, in := range []Input{
		set("/Runnable", Value{Kind: Bool, Bool: true}), set("/Runnable", Value{Kind: Bool}),
		set("/CurrentTask", Value{Kind: Int, Int: -1}), set("/Workflow", text("")),
	} {
		all = append(all, move1{who: -1, in: in})
	}
	for _, name := range []string{"w", "v"} {
		in := set("/Workflow", text(name))
		in.Patch.Definitions = workflows
		all = append(all, move1{who: -1, in: in})
	}
	return all
}

type move1 struct {
	who int
	in  Input
}

// take makes a move, and checks all that can be checked of one step.
func (w world) take(t *testing.T, m move1) world {
	t.Helper()
	w.n++
	m.in.At = at0.Add(time.Duration(w.n) * time.Second)
	if m.in.Next == nil {
		m.in.RequestID = fmt.Sprint("q", w.n)
	}
	before := w.s
	after, fx := Step(before, m.in)
	if found := Audit(before, after, fx); len(found) > 0 {
		t.Fatalf("%+v\n%s\nto %s\n%+v", m.in, (&w).key(), (&world{s: after}).key(), found)
	}
	if again, fx2 := Step(before, m.in); !reflect.DeepEqual(again, after) || !reflect.DeepEqual(fx, fx2) {
		t.Fatal("the same step comes out otherwise")
	}
	if m.in.Next != nil {
		twinNext(t, before, after, fx, m.in.Next)
		repeated, fx2 := Step(after, m.in)
		if fx2.Machine || len(fx2.Runs) > 0 || repeated.Revision != after.Revision {
			t.Fatalf("a repeated request changed something: %+v", fx2)
		}
		if len(fx.Runs) > 0 && fx.Outcome != fx2.Outcome {
			t.Fatalf("a repeated request was answered %d and then %d", fx.Outcome, fx2.Outcome)
		}
	}
	if m.in.Report != nil && fx.Refused == nil && len(fx.Runs) > 0 {
		if again, fx2 := Step(after, m.in); fx2.Refused != nil || fx2.Machine || len(fx2.Runs) > 0 || again.Revision != after.Revision || fx2.Run.State != fx.Run.State {
			t.Fatalf("the same report was not answered again: %+v", fx2)
		}
		other := m.in
		other.RequestID = "another"
		if again, fx2 := Step(after, other); fx2.Refused == nil || fx2.Machine || len(fx2.Runs) > 0 || again.Revision != after.Revision {
			t.Fatalf("a report of what was is not turned away: %+v", fx2)
		}
	}
	if fx.Refused != nil && (fx.Machine || len(fx.Runs) > 0) {
		t.Fatal("what is refused changes something")
	}
	w.s = after
	if m.who >= 0 && fx.Run != nil {
		w.agents[m.who] = agent{fx.Run.ID, fx.Run.State}
	}
	if w.s.Run != nil {
		reasons := Why(&w.s)
		if reasons.Text == "" || w.s.Condition() == Parked && !reasons.Person {
			t.Fatalf("why: %+v", reasons)
		}
	}
	return w
}

// twinNext says once more, slowly, what who asks for the next run must get: seed 004, by its own words.
func twinNext(t *testing.T, before, after State, fx Effects, n *Next) {
	t.Helper()
	fail := func(want string) {
		t.Helper()
		t.Fatalf("%s\nbefore %v at %d run %+v runnable %t\nafter at %d run %+v\n%+v", want, before.Tasks, before.CurrentTask, before.Run,
			before.Runnable, after.CurrentTask, after.Run, fx)
	}
	code := Code("")
	if fx.Refused != nil {
		code = fx.Refused.Code
	}
	if !before.Runnable {
		if code != Conflict {
			fail("not runnable is a conflict")
		}
		return
	}
	if before.CurrentTask >= len(before.Tasks) || n.Context != before.Context {
		if code != "" || fx.Outcome != Nothing || fx.Machine {
			fail("no content")
		}
		return
	}
	place, state := before.CurrentTask, "failed"
	onSetting := place >= 0 && strings.ContainsRune(before.Tasks[place], ':')
	stands := before.Run != nil && before.Run.Index == place && !onSetting
	if stands {
		state = before.Run.State.String()
	}
	if place < 0 {
		place = 0
	}
	switch state {
	case "running":
		if code != Conflict {
			fail("running is a conflict")
		}
		return
	case "created":
		if fx.Outcome != NewRun || fx.Run.ID != before.Run.ID || fx.Machine {
			fail("created is handed out again")
		}
		return
	case "incomplete":
		if fx.Outcome != RunGoesOn || fx.Run.ID != before.Run.ID || fx.Machine {
			fail("incomplete goes on")
		}
		return
	case "finished":
		place++
	}
	stage, env, context := before.Stage, before.BootEnv, before.Context
	for place < len(before.Tasks) {
		what, value, ok := strings.Cut(before.Tasks[place], ":")
		if !ok {
			break
		}
		switch what {
		case "stage":
			stage = value
		case "bootenv":
			env = value
		case "context":
			context = value
		}
		place++
	}
	changed := stage != before.Stage || env != before.BootEnv || context != before.Context
	switch {
	case code != "":
		fail("nothing to refuse")
	case changed && (fx.Outcome != Nothing || after.Run.State != Finished || after.CurrentTask != place-1 || after.Stage != stage || after.BootEnv != env ||
		after.Context != context || after.Runnable != (env == before.BootEnv)):
		fail("settings are taken on in one finished job")
	case !changed && place < len(before.Tasks) && (fx.Outcome != NewRun || fx.Run.Task != before.Tasks[place] || fx.Run.ID != n.RunID || after.CurrentTask != place):
		fail("a new run of the entry at the place")
	case !changed && place >= len(before.Tasks) && (fx.Outcome != Nothing || after.CurrentTask != len(before.Tasks)):
		fail("the list is done")
	}
	if before.Run != nil && !before.Run.State.Final() && !stands && (changed || place < len(before.Tasks)) {
		if len(fx.Runs) != 2 || fx.Runs[0].ID != before.Run.ID || fx.Runs[0].State != Failed {
			fail("a run whose place was moved away has failed")
		}
	}
}

// fair has one agent and a person play as they should, until the list is done.
func (w world) fair(t *testing.T) {
	t.Helper()
	from := (&w).key()
	for range 200 {
		s := &w.s
		if len(s.Tasks) == 0 || s.CurrentTask >= len(s.Tasks) && (s.Run == nil || s.Run.State.Final()) {
			return
		}
		switch r := s.Run; {
		case r != nil && r.State == Running && r.Index == s.CurrentTask:
			w = w.take(t, move1{0, reportOf(agent{r.ID, r.State}, Finished)})
		case !s.Runnable:
			w = w.take(t, move1{-1, set("/Runnable", Value{Kind: Bool, Bool: true})})
		default:
			held := w.n
			w = w.take(t, move1{0, Input{Next: &Next{Context: s.Context, RunID: fmt.Sprint("f", held)}}})
			if r := w.s.Run; r != nil && (r.State == Created || r.State == Incomplete) && r.Index == w.s.CurrentTask {
				w = w.take(t, move1{0, reportOf(agent{r.ID, r.State}, Running)})
			}
		}
	}
	t.Fatalf("no end from %s; at %s", from, (&w).key())
}

// lists are task lists of up to four entries, of every kind of entry in every order.
func lists(most int) [][]string {
	entries := []string{"a", "b", "stage:s", "bootenv:e", "context:c"}
	all := [][]string{{}}
	for begin, n := 0, 0; n < most; n++ {
		end := len(all)
		for _, l := range all[begin:end] {
			for _, e := range entries {
				if !slices.Contains(l, e) || e == "a" {
					all = append(all, append(slices.Clone(l), e))
				}
			}
		}
		begin = end
	}
	return all
}

// TestModel says everything that can be said in every state that can be reached, for task lists of up to four entries: two
// agents who ask and report, on what they saw last, and a person who sets the machine runnable or not, resets it, and
// changes its workflow. Every step is audited and compared with twinNext; from every state a fair world ends.
func TestModel(t *testing.T) {
	t.Parallel()
	worlds, steps := 0, 0
	for i, list := range lists(4) {
		part := map[int]int{1: 2, 2: 61, 3: 4001, 4: 90001}[len(list)]
		if os.Getenv("DROVER_MODEL") == "" && part > 0 && i%part != 0 {
			continue // a part of the longer ones, the same each time
		}
		defs := Definitions{
			Workflows: map[string][]string{"w": {"w"}, "v": {"v"}},
			Stages:    map[string]Stage{"w": {Tasks: list}, "v": {BootEnv: "e", Tasks: []string{"x"}}},
		}
		first := world{s: State{
			Key: Key{"p", "m"}, UUID: "u", Revision: 1, Runnable: true, Available: true, CurrentTask: -1, Stage: StageNone, BootEnv: "local",
			CreatedAt: at0, UpdatedAt: at0,
		}}
		first.s.Workflow, first.s.Tasks = "w", list
		seen := map[string]bool{first.key(): true}
		for queue := []world{first}; len(queue) > 0; {
			w := queue[0]
			queue = queue[1:]
			worlds++
			w.fair(t)
			for _, m := range w.moves(defs) {
				steps++
				next := w.take(t, m)
				if k := next.key(); !seen[k] {
					seen[k] = true
					queue = append(queue, next)
				}
			}
		}
	}
	t.Logf("%d states, %d steps", worlds, steps)
	if worlds < 1000 {
		t.Fatal("too few states: something is not reached")
	}
}
