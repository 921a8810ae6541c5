package resource_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestExploreTree visits, breadth first, what one parent and three children can be brought to, for every shape of
// dependencies among three: asks that are told in any order, come twice or are lost with their owner; answers of either
// kind; commands at any point. Every step is held to seed 001's classes (tree.commit), and from every 32nd state a fair
// world ends the job and then deletes all. DROVER_EXPLORE=long visits many more.
func TestExploreTree(t *testing.T) {
	t.Parallel()
	statesMax := 900
	switch {
	case os.Getenv("DROVER_EXPLORE") == "long":
		statesMax = 20_000
	case testing.Short():
		statesMax = 300
	}
	for name, deps := range map[string][3][]string{
		"apart": {}, "chain": {1: {"a"}, 2: {"b"}}, "fork": {1: {"a"}, 2: {"a"}}, "join": {2: {"a", "b"}},
		"pair": {1: {"a"}}, "triangle": {1: {"a"}, 2: {"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTree(1)
			for i, item := range []string{"a", "b", "c"} {
				w.items = append(w.items, children.Item{Name: item, Kind: "DeployItem", SpecDigest: "s", DependsOn: deps[i]})
			}
			exploreTree(t, w, statesMax)
		})
	}
}

func exploreTree(t *testing.T, w *tree, statesMax int) {
	t.Helper()
	for _, verb := range []string{"apply", "reconcile"} {
		if _, err := w.command(verb); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{w.canonical(): true}
	queue := []*tree{w}
	steps := 0
	for n := 0; n < len(queue); n++ {
		at := queue[n]
		queue[n] = nil
		for _, act := range at.acts() {
			next := at.fork()
			steps++
			if err := act(next); err != nil {
				t.Fatalf("%v\nafter %s\n%s", err, at.canonical(), strings.Join(next.story, "\n"))
			}
			if key := next.canonical(); !seen[key] && len(seen) < statesMax && next.states[parentName].UID != "" && !next.states[parentName].Gone {
				seen[key] = true
				queue = append(queue, next)
			}
		}
		if n%32 == 0 {
			if err := at.fork().away(); err != nil {
				t.Fatalf("%v\nfrom %s", err, at.canonical())
			}
		}
	}
	t.Logf("%d states, %d steps, complete %t", len(seen), steps, len(seen) < statesMax)
	if len(seen) < 250 {
		t.Errorf("only %d states: the exploration went nowhere", len(seen))
	}
}

// away is a fair world: whatever runs ends, another job succeeds, and all is deleted.
func (t *tree) away() error {
	if err := t.run(3000, 0); err != nil {
		return err
	}
	for _, verb := range []string{"reconcile", "delete"} {
		if p := t.parent(); p.Gone {
			return nil
		}
		if _, err := t.command(verb); err != nil {
			return err
		}
		if err := t.run(3000, 0); err != nil {
			return err
		}
	}
	if p := t.parent(); !p.Gone || len(t.live()) > 0 {
		return fmt.Errorf("it is not gone: %v, children %v", resource.Why(&p), t.live())
	}
	return nil
}

// acts is all that may happen next.
func (t *tree) acts() []func(*tree) error {
	acts := []func(*tree) error{
		func(t *tree) error { // another look: a continuation, or a child that moved
			_, err := t.step(parentName, "Execution", resource.Input{Kind: resource.OnContinue, At: t.now})
			return err
		},
		(*tree).restart,
	}
	for i := range t.asks {
		for _, again := range []bool{false, true} {
			acts = append(acts, func(t *tree) error {
				a := t.asks[i]
				if !again {
					t.asks = slices.Delete(slices.Clone(t.asks), i, i+1)
				}
				_, err := t.step(a.Key.Name, a.Key.Kind, resource.Input{Kind: resource.OnParent, At: t.now, Parent: &a})
				return err
			})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.states)) {
		s := t.states[name]
		if !slices.ContainsFunc(s.Phases, func(p resource.PhaseRun) bool { return p.InFlight && !p.Children }) {
			continue
		}
		for _, fail := range []int{0, 100} {
			acts = append(acts, func(t *tree) error { return t.answer(t.states[name], fail) })
		}
	}
	for _, verb := range []string{"reconcile", "cancel", "interrupt", "delete", "retry"} {
		acts = append(acts, func(t *tree) error {
			_, err := t.command(verb)
			return err
		})
	}
	return acts
}

// fork is a copy that goes its own way. The family is rebuilt, and remembers who was asked and has not heard yet.
func (t *tree) fork() *tree {
	c := *t
	c.now, c.family = t.now.Add(time.Millisecond), children.New()
	c.states, c.asks, c.story = maps.Clone(t.states), slices.Clone(t.asks), slices.Clone(t.story)
	for _, name := range slices.Sorted(maps.Keys(c.states)) {
		if s := c.states[name]; s.Parent.Name != "" {
			c.family.Observe(s.AsChild())
		}
	}
	if p := c.parent(); p.Job() != nil {
		c.family.Begin(p.Job().ID)
	}
	for i := range c.asks {
		c.family.Kept() // classes are found before who was asked is noted
		c.family.Asked(c.asks[i].Parent.Item, c.asks[i].Asking())
	}
	return &c
}

// canonical is the tree without what only counts up: job ids become their order among those that there are.
func (t *tree) canonical() string {
	var b strings.Builder
	ids := []string{}
	short := func(id string) string {
		i := slices.Index(ids, id)
		if i < 0 {
			ids = append(ids, id)
			i = len(ids) - 1
		}
		return fmt.Sprint("j", i)
	}
	for _, name := range slices.Sorted(maps.Keys(t.states)) {
		s := t.states[name]
		fmt.Fprintf(&b, "%s %s>%s %t%t %+v", name, s.State, s.Target, s.Gone, s.DeletedAt.IsZero(), s.Children)
		for i := range s.Jobs {
			if j := &s.Jobs[i]; !j.State.Final() || s.FlowJob() != nil && j.ID == s.FlowJob().ID {
				fmt.Fprintf(&b, " %s:%s:%s:%t", short(j.ID), j.Walks(), j.State, j.Canceling)
			}
		}
		for i := range s.Phases {
			if p := &s.Phases[i]; p.State == s.State || p.InFlight {
				fmt.Fprintf(&b, " %s=%s%t", p.Name, p.Status, p.InFlight)
			}
		}
		b.WriteString("\n")
	}
	var asks []string
	for i := range t.asks {
		asks = append(asks, fmt.Sprint(t.asks[i].Ask, t.asks[i].Key.Name, short(t.asks[i].JobID)))
	}
	slices.Sort(asks)
	fmt.Fprint(&b, slices.Compact(asks))
	return b.String()
}
