// Package children is what a partition's owner knows of the children of one resource, and which of them may be told to
// begin: the index that a parent's state does not hold (design.md section 3, "Children").
//
// # Classes
//
// A family is looked at under one job (Begin). Every child is in one class (seed 001, "Phase Progressing" and "Phase
// Deleting"; facts/landscaper.md A3):
//
//	Succeeded (A)  it has the job, has finished and succeeded
//	Failed    (B)  it has the job, has finished and did not succeed
//	Running   (C)  it has the job and has not finished; or an earlier job of it has not finished
//	Runnable  (D)  it does not have the job yet, and nothing that it waits for is left
//	Waiting   (E)  it does not have the job yet, and waits
//
// A child waits until all that it depends on have finished; one that is marked deleted, until all that depend on it are
// gone. A child that is gone is in no class.
//
// # Cost
//
// Observe costs one look at the children that wait for the one observed: a tree of n children and e dependencies is
// walked in n + e, whatever the order. Begin costs n + e, once a job.
//
// Not safe for concurrent use. Nothing in here is a place of truth: a family is rebuilt by observing the last event of
// every child, in any order.
package children

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/droverproject/drover/pkg/engine/job"
)

// ItemsMax is how many children one resource may have: what was measured (docs/measurements.md). More belong into several
// executions of one installation.
const ItemsMax = 10_000

// InvalidError is why a spec defines no children.
type InvalidError struct{ Field, Reason string }

// Error is the field and the reason.
func (e *InvalidError) Error() string { return e.Field + ": " + e.Reason }

// Item is a child as its parent's spec defines it.
type Item struct {
	Name       string // within the parent
	Kind       string
	SpecDigest string
	Spec       string // canonical JSON
	DependsOn  []string
	Labels     map[string]string
	Cluster    string
	// OnChangeOnly: where it succeeded and its spec is as it was then, a job succeeds without running (facts/landscaper.md
	// A3, "updateOnChangeOnly").
	OnChangeOnly bool
}

// Child is a child as the log holds it.
type Child struct {
	Kind, Name string // of the resource
	UID        string
	Item       string // name within the parent
	Index      uint32 // place among the items
	DependsOn  []string
	SpecDigest string
	Marked     bool // for deletion
	Gone       bool
	Meta       string // of its labels and cluster (Meta)
	// OnChangeOnly is as in Item.
	OnChangeOnly bool
	Job          string    // newest job that was handed down; empty: none yet
	JobState     job.State // of that one
}

// Is reports whether the child is as the i-th item defines it.
func (c *Child) Is(it *Item, i uint32) bool {
	return !c.Marked && c.Kind == it.Kind && c.SpecDigest == it.SpecDigest && c.Index == i && c.OnChangeOnly == it.OnChangeOnly &&
		slices.Equal(c.DependsOn, it.DependsOn) && c.Meta == Meta(it.Labels, it.Cluster)
}

// Meta is one text for labels and cluster; equal ones have equal texts.
func Meta(labels map[string]string, cluster string) string {
	if len(labels) == 0 && cluster == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString(strconv.Quote(cluster))
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(strconv.Quote(name) + strconv.Quote(labels[name]))
	}
	return b.String()
}

// Class is where a child stands under the family's job.
type Class uint8

// The classes.
const (
	Waiting Class = iota
	Runnable
	Running
	Failed
	Succeeded
)

var classNames = [...]string{"waiting", "runnable", "running", "failed", "succeeded"}

// String is the name that users see.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "unknown"
}

// Counts is how many children are in each class; those that are marked deleted are counted apart.
type Counts struct {
	Total                                         int
	Waiting, Runnable, Running, Failed, Succeeded int
	Foreign                                       int // of those running, with another job than the family's
	// Told is how many of those runnable were asked to begin and are not known to have begun: what they were asked may be on
	// its way into the log, so whoever ends the job waits for them, or until it is forgotten that they were asked (AskAgain).
	Told int
}

// Asking is what a child was asked last, so that it is not asked again with every move of a sibling.
type Asking uint8

// What a child may be asked.
const (
	NotAsked Asking = iota
	ToBegin
	ToEnd
)

func (c *Counts) add(class Class, n int) {
	c.Total += n
	switch class {
	case Waiting:
		c.Waiting += n
	case Runnable:
		c.Runnable += n
	case Running:
		c.Running += n
	case Failed:
		c.Failed += n
	case Succeeded:
		c.Succeeded += n
	}
}

// Family is the children of one resource.
type Family struct {
	byItem map[string]*member // never ranged over
	list   []*member          // by index and name, once sorted; may hold some that are gone
	gone   int                // of those in list
	keep   int                // that are not marked
	from   int                // place in list before which none is left to be marked
	job    string
	stale  bool // classes are to be found anew
	kept   Counts
	marked Counts
	ready  [2][]*member // runnable ones, oldest first, some no longer so: kept, marked
}

type member struct {
	Child
	class   Class
	waits   int       // for how many others
	frees   []*member // who waits for this one
	asked   Asking
	counted bool
	foreign bool // counted so
}

// New returns a family without children.
func New() *Family { return &Family{byItem: map[string]*member{}} }

// Len is the number of children that there are.
func (f *Family) Len() int { return len(f.byItem) }

// Get returns a child by the name of its item.
func (f *Family) Get(item string) (Child, bool) {
	if m := f.byItem[item]; m != nil {
		return m.Child, true
	}
	return Child{}, false
}

// Begin looks at the family under a job.
func (f *Family) Begin(jobID string) {
	if f.job != jobID {
		f.job, f.stale = jobID, true
	}
}

// Observe takes what the log says of a child now.
func (f *Family) Observe(c Child) {
	m := f.byItem[c.Item]
	switch {
	case m == nil && c.Gone:
		return
	case m == nil:
		m = &member{Child: c}
		f.byItem[c.Item] = m
		f.list = append(f.list, m)
		f.stale = true
		if !c.Marked {
			f.keep++
		}
		return
	case m.UID != c.UID && c.Gone:
		return // an earlier child of this name
	}
	same := m.UID == c.UID && m.Marked == c.Marked && m.Index == c.Index && slices.Equal(m.DependsOn, c.DependsOn)
	was := m.Child
	m.Child = c
	if !was.Marked {
		f.keep--
	}
	if !c.Marked && !c.Gone {
		f.keep++
		f.from = 0
	}
	switch {
	case c.Gone:
		delete(f.byItem, c.Item)
		f.gone++
		if f.gone > len(f.list)/2 {
			f.list = slices.DeleteFunc(f.list, func(m *member) bool { return m.Gone })
			f.gone, f.from = 0, 0
		}
		if f.stale {
			return
		}
		f.count(m, -1)
		if !was.Marked {
			f.stale = true
			return
		}
		f.release(m)
	case !same:
		f.stale = true
	case !f.stale:
		f.move(m)
	}
}

// move puts a child where it belongs after a change of its job.
func (f *Family) move(m *member) {
	class := f.classOf(m)
	if class == m.class && m.foreign == (class == Running && m.Job != f.job) {
		return
	}
	done := m.class == Succeeded || m.class == Failed
	f.set(m, class)
	switch {
	case done:
		f.stale = true // it begins again under the same job: those that it had freed are to be looked at
	case !m.Marked && (class == Succeeded || class == Failed):
		f.release(m)
	}
}

func (f *Family) set(m *member, class Class) {
	f.count(m, -1)
	m.class = class
	if class == Runnable {
		m.asked = NotAsked
	}
	f.count(m, 1)
	if class == Runnable {
		f.ready[side(m)] = append(f.ready[side(m)], m)
	}
}

// release lets those go on that waited for m.
func (f *Family) release(m *member) {
	for _, w := range m.frees {
		if w.waits--; w.waits == 0 && w.class == Waiting && !w.Gone {
			f.set(w, Runnable)
		}
	}
	m.frees = nil
}

func side(m *member) int {
	if m.Marked {
		return 1
	}
	return 0
}

func (f *Family) count(m *member, n int) {
	if n > 0 == m.counted {
		return
	}
	m.counted = n > 0
	counts := f.countsOf(m)
	counts.add(m.class, n)
	if n > 0 {
		m.foreign = m.class == Running && m.Job != f.job
	}
	if m.foreign {
		counts.Foreign += n
	}
	if m.told() {
		counts.Told += n
	}
}

func (f *Family) countsOf(m *member) *Counts {
	if m.Marked {
		return &f.marked
	}
	return &f.kept
}

func (m *member) told() bool { return m.class == Runnable && m.asked == ToBegin }

// classOf is the class of a child by its own state and the number of those that it waits for.
func (f *Family) classOf(m *member) Class {
	switch {
	case m.Job != "" && !m.JobState.Final():
		return Running
	case m.Job != f.job || f.job == "":
		if m.waits == 0 {
			return Runnable
		}
		return Waiting
	case m.JobState == job.Succeeded && !m.Marked:
		return Succeeded
	case m.JobState == job.Succeeded:
		return Running // it has been deleted, and is about to vanish
	}
	return Failed
}

// refresh finds all classes anew.
func (f *Family) refresh() {
	if !f.stale {
		return
	}
	f.stale = false
	f.list = slices.DeleteFunc(f.list, func(m *member) bool { return m.Gone })
	f.gone, f.from = 0, 0
	slices.SortFunc(f.list, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Item, b.Item))
	})
	f.kept, f.marked = Counts{}, Counts{}
	f.ready = [2][]*member{}
	for _, m := range f.list {
		m.waits, m.frees, m.counted, m.asked = 0, nil, false, NotAsked
	}
	for _, m := range f.list {
		for _, name := range m.DependsOn {
			on := f.byItem[name]
			switch {
			case m.Marked && (on == nil || !on.Marked):
				// what is kept does not wait for what is deleted
			case m.Marked:
				on.waits++
				m.frees = append(m.frees, on)
			case on == nil || on.Marked:
				m.waits++ // nothing will free it: the job fails, and says so
			case on.Job == f.job && f.job != "" && on.JobState.Final():
			default:
				m.waits++
				on.frees = append(on.frees, m)
			}
		}
	}
	for _, m := range f.list {
		m.class = f.classOf(m)
		f.count(m, 1)
		if m.class == Runnable {
			f.ready[side(m)] = append(f.ready[side(m)], m)
		}
	}
}

// Kept counts the children that are not marked deleted.
func (f *Family) Kept() Counts {
	f.refresh()
	return f.kept
}

// Marked counts those that are.
func (f *Family) Marked() Counts {
	f.refresh()
	return f.marked
}

// Runnable returns children that may begin and were not asked to yet, oldest first, at most limit.
func (f *Family) Runnable(marked bool, limit int) []Child {
	f.refresh()
	i := 0
	if marked {
		i = 1
	}
	queue := f.ready[i]
	passed := func(m *member) bool { return m.asked == ToBegin || m.class != Runnable || m.Gone || side(m) != i }
	for len(queue) > 0 && passed(queue[0]) {
		queue = queue[1:]
	}
	f.ready[i] = queue
	var found []Child
	for _, m := range queue {
		if len(found) == limit {
			break
		}
		if !passed(m) {
			found = append(found, m.Child)
		}
	}
	return found
}

// Unmarked is the number of children that are not marked deleted. It looks at no child.
func (f *Family) Unmarked() int { return f.keep }

// ToMark returns children that are not marked, at most limit.
func (f *Family) ToMark(limit int) []Child {
	var found []Child
	for i := f.from; i < len(f.list) && len(found) < limit; i++ {
		if m := f.list[i]; !m.Gone && !m.Marked {
			found = append(found, m.Child)
		} else if len(found) == 0 {
			f.from = i + 1
		}
	}
	return found
}

// Begun returns children that have not finished a job and were not asked to end it, at most limit; with foreign only those
// whose job is not the family's.
func (f *Family) Begun(foreign bool, limit int) []Child {
	f.refresh()
	var found []Child
	for _, m := range f.list {
		if len(found) == limit {
			break
		}
		if m.Gone || m.asked == ToEnd || m.Job == "" || m.JobState.Final() || foreign && m.Job == f.job {
			continue
		}
		found = append(found, m.Child)
	}
	return found
}

// Asked notes what a child was asked.
func (f *Family) Asked(item string, asking Asking) {
	m := f.byItem[item]
	if m == nil {
		return
	}
	was := m.told()
	m.asked = asking
	if now := m.told(); m.counted && was != now {
		counts := f.countsOf(m)
		if counts.Told--; now {
			counts.Told += 2
		}
	}
}

// AskAgain forgets who was asked: an ask may have been lost.
func (f *Family) AskAgain() {
	f.stale, f.from = true, 0
	for _, m := range f.list {
		m.asked = NotAsked
	}
}

// Failures names children that failed, in their order, at most limit.
func (f *Family) Failures(limit int) []Child {
	f.refresh()
	var found []Child
	for _, m := range f.list {
		if !m.Gone && m.class == Failed && len(found) < limit {
			found = append(found, m.Child)
		}
	}
	return found
}

// Orphans returns the unmarked children that are none of the items, at most limit.
func (f *Family) Orphans(items []Item, limit int) []Child {
	if f.keep <= len(items) && len(f.byItem) <= len(items) {
		// As many children as items: a look at the items tells whether any is missing, and so another one too many.
		all := 0
		for i := range items {
			if m := f.byItem[items[i].Name]; m != nil && !m.Marked {
				all++
			}
		}
		if all == f.keep {
			return nil
		}
	}
	wanted := make(map[string]bool, len(items))
	for i := range items {
		wanted[items[i].Name] = true
	}
	var found []Child
	for _, m := range f.list {
		if !m.Gone && !m.Marked && !wanted[m.Item] && len(found) < limit {
			found = append(found, m.Child)
		}
	}
	return found
}
