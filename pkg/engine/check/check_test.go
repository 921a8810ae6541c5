package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestStories tells objects random stories: the audit holds after each step, each job is made once and ends once, a request
// that comes again is the same job, and what is turned away changes nothing.
func TestStories(t *testing.T) {
	t.Parallel()
	ends := map[job.State]int{}
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		kind := Kinds()[rng.IntN(len(Kinds()))]
		var s State
		now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
		records := map[string]job.Record{}
		step := func(in Input) Effects {
			in.At = now
			before := s
			next, fx := Step(s, in)
			if fx.Gone {
				s = State{}
				return fx
			}
			if fx.Changed {
				if found := Audit(&before, &next); len(found) > 0 {
					t.Fatalf("seed %d: %v", seed, found)
				}
			}
			for _, m := range fx.Jobs {
				prior := records[m.Record.ID]
				if prior.State != m.From || prior.Revision+1 != m.Record.Revision || !job.May(m.From, m.Record.State) {
					t.Fatalf("seed %d: %+v after %+v", seed, m, prior)
				}
				records[m.Record.ID] = m.Record
				ends[m.Record.State]++
			}
			s = next
			return fx
		}
		for i := range 40 {
			now = now.Add(time.Duration(rng.IntN(3)-1) * time.Second)
			switch n := rng.IntN(10); {
			case n < 7:
				c := &Command{
					Project: "p", Kind: kind, Name: "n", Verb: resource.VerbApply, JobID: fmt.Sprint("j", rng.IntN(i+1)), NewUID: fmt.Sprint("u", i),
					Spec: fmt.Sprint("s", rng.IntN(3)),
				}
				c.Digest = c.Spec
				if n > 5 {
					c.Verb = resource.VerbDelete
				}
				if n == 0 {
					c.Missing, c.Below = "x", "y"
				}
				if r, ok := records[c.JobID]; ok {
					c.Known = &r
				}
				fx := step(Input{Command: c})
				switch {
				case fx.Reply == nil:
					t.Fatalf("seed %d: no reply", seed)
				case fx.Reply.Refused != nil && (fx.Changed || !fx.Fresh):
					t.Fatalf("seed %d: refused, and changed", seed)
				case fx.Reply.Refused == nil && records[c.JobID].ID == "":
					t.Fatalf("seed %d: accepted without a record", seed)
				case c.Known != nil && fx.Changed:
					t.Fatalf("seed %d: the same request changed something", seed)
				}
			case n < 9:
				step(Input{Walked: &Walked{Generation: s.Generation - uint64(rng.IntN(2)), Deleted: rng.IntN(2) == 0}})
			default:
				if fx := step(Input{Bury: true}); fx.Gone && len(s.Jobs) > 0 {
					t.Fatalf("seed %d: buried with open jobs", seed)
				}
			}
		}
		for range 2 {
			step(Input{Walked: &Walked{Generation: s.Generation, Deleted: s.Deleted()}})
		}
		for _, r := range records {
			if !r.State.Final() {
				t.Fatalf("seed %d: job %s has not ended", seed, r.ID)
			}
		}
	}
	if ends[job.Succeeded] == 0 || ends[job.Canceled] == 0 || ends[job.Running] == 0 {
		t.Errorf("jobs: %v", ends)
	}
}

// TestReach holds the tree's two ways of asking to each other and to a slow one.
func TestReach(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var tree Tree
		kinds := map[string]string{}
		names := []string{""}
		for i := range 30 {
			parent := names[rng.IntN(len(names))]
			name := fmt.Sprint(parent, "/", i)
			kind := []string{Bucket, Group, Cluster, Node}[rng.IntN(4)]
			if parent == "" {
				name, kind = fmt.Sprint("r", i), Repository
			}
			if tree.Missing(kind, name) != "" {
				continue
			}
			tree.Put(Object{Kind: kind, Name: name})
			kinds[name] = kind
			names = append(names, name)
		}
		if rng.IntN(2) == 0 && len(names) > 3 {
			gone := names[len(names)-1]
			tree.Remove(gone)
			delete(kinds, gone)
		}
		for _, on := range names[1:] {
			p := Place{On: on, Inheritance: rng.IntN(2) == 0, ChildrenOnly: rng.IntN(3) == 0}
			if rng.IntN(3) == 0 {
				p.ObjectTypes = []string{Node}
			}
			var got []string
			tree.Reach(p, func(o *Object) bool { got = append(got, o.Name); return true })
			var want []string
			for name, kind := range kinds {
				itself := name == on && !p.ChildrenOnly
				below := strings.HasPrefix(name, on+"/") && (p.Inheritance || p.ChildrenOnly)
				yes := HasInstances(kind) && (itself || below) && (p.ObjectTypes == nil || kind == Node) && kinds[on] != ""
				if yes {
					want = append(want, name)
				}
				if tree.Reaches(p, name) != yes {
					t.Fatalf("seed %d: %+v reaches %s: %v", seed, p, name, !yes)
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %+v reaches %v, want %v", seed, p, got, want)
			}
		}
	}
}

// TestACommandIsDecidedAgain: its answer was lost, so that who decides does not know that it was stored.
func TestACommandIsDecidedAgain(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{resource.VerbApply, resource.VerbDelete} {
		s, _ := Step(State{}, Input{Command: &Command{Project: "p", Kind: CheckConfiguration, Name: "r/c", Verb: resource.VerbApply, JobID: "j0", NewUID: "u", Spec: "a"}})
		in := Input{Command: &Command{Project: "p", Kind: CheckConfiguration, Name: "r/c", Verb: verb, JobID: "j1", RequestID: "q1", Digest: "d1", Spec: "b"}}
		once, _ := Step(s, in)
		again, fx := Step(once, in)
		if fx.Changed || fx.Reply.JobID != "j1" || len(again.Jobs) != len(once.Jobs) {
			t.Fatalf("%s: %+v, %+v", verb, fx, again.Jobs)
		}
		in.Command.Digest = "d2"
		if _, fx = Step(once, in); fx.Reply.Refused == nil || fx.Reply.Refused.Code != resource.Conflict {
			t.Fatalf("%s: %+v", verb, fx)
		}
	}
}

// TestAJobWaitsForItsGeneration: a comparison that began before a change ends the jobs before it, and not that of the change.
func TestAJobWaitsForItsGeneration(t *testing.T) {
	t.Parallel()
	apply := func(s State, id, spec string) State {
		s, _ = Step(s, Input{Command: &Command{Project: "p", Kind: CheckConfiguration, Name: "r/c", Verb: resource.VerbApply, JobID: id, NewUID: "u", Spec: spec}})
		return s
	}
	s := apply(apply(State{}, "j1", "a"), "j2", "b")
	s, fx := Step(s, Input{Walked: &Walked{Generation: 1}})
	if len(fx.Jobs) != 1 || fx.Jobs[0].Record.ID != "j1" || len(s.Jobs) != 1 || !s.Behind() {
		t.Fatalf("%+v, %+v", fx.Jobs, s.Jobs)
	}
	s, fx = Step(s, Input{Walked: &Walked{Generation: 2}})
	if len(fx.Jobs) != 1 || fx.Jobs[0].Record.State != job.Succeeded || s.Behind() {
		t.Fatalf("%+v, %+v", fx.Jobs, s.Jobs)
	}
}
