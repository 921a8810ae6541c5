package children

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/droverproject/drover/pkg/engine/job"
)

// plain is the family as seed 001 words it: a list, and every question answered by looking at all of it.
type plain struct {
	all map[string]Child
	job string
}

func (p *plain) sorted() []Child {
	return slices.SortedFunc(maps.Values(p.all), func(a, b Child) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Item, b.Item))
	})
}

func (p *plain) class(c Child) Class {
	finished := func(c Child) bool { return c.Job == p.job && c.JobState.Final() }
	switch {
	case c.Job != "" && !c.JobState.Final():
		return Running
	case finished(c) && c.Marked && c.JobState == job.Succeeded:
		return Running
	case finished(c) && c.JobState == job.Succeeded:
		return Succeeded
	case finished(c):
		return Failed
	}
	if !c.Marked {
		for _, name := range c.DependsOn {
			if on, ok := p.all[name]; !ok || on.Marked || !finished(on) {
				return Waiting
			}
		}
		return Runnable
	}
	for _, other := range p.all {
		if other.Marked && slices.Contains(other.DependsOn, c.Item) {
			return Waiting
		}
	}
	return Runnable
}

func (p *plain) counts(marked bool) Counts {
	var n Counts
	for _, c := range p.all {
		if c.Marked == marked {
			n.add(p.class(c), 1)
			if p.class(c) == Running && c.Job != p.job {
				n.Foreign++
			}
		}
	}
	return n
}

// TestFamily observes random children in random order, and asks both.
func TestFamily(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 4))
		f, p := New(), &plain{all: map[string]Child{}, job: "j1"}
		f.Begin("j1")
		var story []string
		for step := range 120 {
			story = append(story, tell(r, f, p, step))
			if err := differ(r, f, p); err != nil {
				t.Fatalf("seed %d, step %d: %v\n%s", seed, step, err, strings.Join(story, "\n"))
			}
		}
	}
}

// tell does one thing to both.
func tell(r *rand.Rand, f *Family, p *plain, step int) string {
	if r.IntN(25) == 0 {
		p.job = fmt.Sprintf("j%d", 1+r.IntN(4))
		f.Begin(p.job)
		return "begin " + p.job
	}
	name := fmt.Sprintf("i%d", r.IntN(7))
	c, ok := p.all[name]
	switch n := r.IntN(10); {
	case !ok:
		c = Child{Kind: "k", Name: "p/" + name, UID: fmt.Sprint(step), Item: name, Index: uint32(r.IntN(7))}
		for k := range 7 {
			if on := fmt.Sprintf("i%d", k); on < name && r.IntN(4) == 0 {
				c.DependsOn = append(c.DependsOn, on)
			}
		}
	case n < 3:
		c.Job, c.JobState = p.job, job.Running
	case n < 6 && c.Job != "":
		c.JobState = []job.State{job.Succeeded, job.Succeeded, job.Failed, job.Canceled}[r.IntN(4)]
	case n == 6:
		c.Marked = !c.Marked
	case n == 7:
		c.Gone = true
	case n == 8:
		c.DependsOn = slices.DeleteFunc(slices.Clone(c.DependsOn), func(string) bool { return r.IntN(2) == 0 })
	case n == 9 && r.IntN(2) == 0:
		f.AskAgain()
	}
	f.Observe(c)
	if c.Gone {
		delete(p.all, name)
	} else {
		p.all[name] = c
	}
	return fmt.Sprintf("%+v", c)
}

func differ(r *rand.Rand, f *Family, p *plain) error {
	if r.IntN(3) == 0 {
		return nil // several changes between two looks
	}
	unmarked := 0
	for _, c := range p.all {
		if !c.Marked {
			unmarked++
		}
	}
	if f.Len() != len(p.all) || f.Unmarked() != unmarked {
		return fmt.Errorf("%d children, %d unmarked, where there are %d and %d", f.Len(), f.Unmarked(), len(p.all), unmarked)
	}
	if got := len(f.ToMark(100)); got != unmarked {
		return fmt.Errorf("%d to mark, where there are %d", got, unmarked)
	}
	kept, marked, there, theirs := f.Kept(), f.Marked(), p.counts(false), p.counts(true)
	for _, m := range f.list { // who was asked is nothing that the log shows
		if counts := &there; !m.Gone && m.asked == ToBegin && p.class(m.Child) == Runnable {
			if m.Marked {
				counts = &theirs
			}
			counts.Told++
		}
	}
	if kept != there || marked != theirs {
		return fmt.Errorf("counts %+v %+v, where there are %+v %+v", kept, marked, there, theirs)
	}
	var failed []string
	for _, c := range p.sorted() {
		if p.class(c) == Failed {
			failed = append(failed, c.Item)
		}
	}
	if got := names(f.Failures(100)); !slices.Equal(got, failed) {
		return fmt.Errorf("failures %v, where they are %v", got, failed)
	}
	for _, marked := range []bool{false, true} {
		var want []string
		for _, c := range p.sorted() {
			if c.Marked == marked && p.class(c) == Runnable {
				want = append(want, c.Item)
			}
		}
		got := names(f.Runnable(marked, 100))
		slices.Sort(got)
		slices.Sort(want)
		for _, name := range got {
			if !slices.Contains(want, name) {
				return fmt.Errorf("%s is not runnable: %v", name, want)
			}
		}
		if len(slices.Compact(slices.Clone(got))) != len(got) {
			return fmt.Errorf("runnable twice: %v", got)
		}
		for _, name := range want { // those that are left out were asked before
			if !slices.Contains(got, name) && f.byItem[name].asked != ToBegin {
				return fmt.Errorf("%s is runnable: %v", name, got)
			}
		}
		for _, name := range got {
			if r.IntN(2) == 0 {
				f.Asked(name, ToBegin)
			}
		}
	}
	return nil
}

func names(of []Child) []string {
	var names []string
	for _, c := range of {
		names = append(names, c.Item)
	}
	return names
}

// TestOrphans: children that are none of the items, however many there are.
func TestOrphans(t *testing.T) {
	t.Parallel()
	f := New()
	for _, name := range []string{"a", "b", "c"} {
		f.Observe(Child{Item: name, UID: name})
	}
	for want, items := range map[string][]Item{
		"":      {{Name: "a"}, {Name: "b"}, {Name: "c"}},
		"c":     {{Name: "a"}, {Name: "b"}, {Name: "d"}},
		"b c":   {{Name: "a"}},
		"a b c": nil,
	} {
		if got := strings.Join(names(f.Orphans(items, 9)), " "); got != want {
			t.Errorf("orphans %q, want %q", got, want)
		}
	}
	if got := len(f.Orphans(nil, 2)); got != 2 {
		t.Errorf("%d orphans where 2 were asked for", got)
	}
}

// TestAnEarlierChildOfTheNameIsNobody: what is said late of a child that is gone does not touch the next of its name.
func TestAnEarlierChildOfTheNameIsNobody(t *testing.T) {
	t.Parallel()
	f := New()
	f.Observe(Child{Item: "a", UID: "2"})
	f.Observe(Child{Item: "a", UID: "1", Gone: true})
	if c, ok := f.Get("a"); !ok || c.UID != "2" || f.Len() != 1 {
		t.Errorf("%+v %t", c, ok)
	}
}
