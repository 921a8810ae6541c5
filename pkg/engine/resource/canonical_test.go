package resource_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// The canonical form of a resource is all of its state that a rule reads, and nothing else: two states of one form do the
// same with the same inputs, for ever (TestCanonicalForm holds that). So one of them stands for all.
//
//	left out                                       because
//	revision, attempts, numbers of calls, uid      rules compare them with those of a fence only, and none comes back
//	ids, digests and messages of jobs              rules compare them for being the same only
//	times                                          as distances from the latest input; what is past is past
//	phases of a state that was left                they are entered anew
//	jobs that have ended, but the newest that      a retry and a flow to the same target take that one up, before one has
//	had begun (and the newest of all)              begun after it; the record answers for the others
//	WasDeployed, SucceededOnce                     they are told to executors, and decide nothing
//	Undo of what is not out                        it is set by the hand-out
//	whether a lost call was the attempt's first    only its deadline depends on it
//
// Phases that the shape of a system makes equal may change places: of all such forms the least is taken.

// former makes canonical forms of one system's states.
type former struct {
	bp    *blueprint.Blueprint
	names [][]string // the phases' names in the blueprint's order, for every symmetry; the first is the identity
	parts []byte
}

// symmetries are the orders of the phases that the system cannot tell from the blueprint's own: same phases, same
// dependencies, both ways. Of equal phases it does not matter which goes out first only if those that wait have no memory: so
// one with a timeout or a retry policy stays where it is, and phases that walk by themselves (each waits in a state of its
// own) have no symmetries.
func symmetries(bp *blueprint.Blueprint) [][]string {
	n := len(bp.Phases)
	own := make([]string, n)
	for i := range n {
		own[i] = bp.Phases[i].Name
	}
	if bp.Lifecycle.Walk == blueprint.Each {
		return [][]string{own}
	}
	same := func(a, b *blueprint.Phase) bool {
		return a.When == b.When && a.Gated() == b.Gated() && a.Timeout == b.Timeout && a.Retry.Attempts == b.Retry.Attempts && slices.Equal(a.States, b.States)
	}
	var all [][]string
	permute(n, func(to []int) {
		name := func(from string) string {
			return bp.Phases[to[slices.IndexFunc(bp.Phases, func(p blueprint.Phase) bool { return p.Name == from })]].Name
		}
		var names []string
		for i := range n {
			p, q := &bp.Phases[i], &bp.Phases[to[i]]
			if !same(p, q) || i != to[i] && (p.Timeout > 0 || p.Retry.Attempts > 0) {
				return
			}
			for _, reverse := range []bool{false, true} {
				before := []string{}
				for _, on := range bp.Before(i, &blueprint.Flow{Reverse: reverse}) {
					before = append(before, name(on))
				}
				other := slices.Clone(bp.Before(to[i], &blueprint.Flow{Reverse: reverse}))
				slices.Sort(before)
				slices.Sort(other)
				if !slices.Equal(before, other) {
					return
				}
			}
			names = append(names, q.Name)
		}
		all = append(all, names)
	})
	slices.SortFunc(all, slices.Compare)
	all = slices.DeleteFunc(all, func(names []string) bool { return slices.Equal(names, own) })
	return append([][]string{own}, all...)
}

// formID is a canonical form in short: 16 bytes of its SHA-256.
type formID [16]byte

func (f *former) id(s *resource.State) formID {
	sum := sha256.Sum256(f.form(s))
	return formID(sum[:16])
}

// form is the canonical form of a state. The slice is good until the next call.
func (f *former) form(s *resource.State) []byte {
	b := f.parts[:0]
	flags := func(is ...bool) {
		n := byte('@')
		for _, flag := range is {
			n <<= 1
			if flag {
				n |= 1
			}
		}
		b = append(b, n)
	}
	b = append(b, s.State...)
	b = append(b, '>')
	b = append(b, s.Target...)
	if s.Gone || s.UID == "" {
		b = append(b, "none"...) // of what is gone, nothing is left to the next of its name
		f.parts = b
		return b
	}
	flags(!s.DeletedAt.IsZero(), s.ObservedGeneration == 0, s.ObservedGeneration == s.Generation)
	begun, newest := "", -1 // newest flow job that has ended and had begun; newest flow job of all
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if j.Blueprint != "" {
			newest = i
		}
		switch {
		case !j.State.Final():
			b = append(b, j.Walks()...)
			b = append(b, '>')
			b = append(b, j.Target...)
			b = append(b, byte('0'+j.State))
			flags(j.Canceling, j.Verb == resource.VerbRetry, j.Verb == resource.VerbDelete, j.StartedAt.IsZero(), j.Generation == s.Generation)
		case j.Blueprint != "" && !j.StartedAt.IsZero():
			begun = j.ID
		}
	}
	if j := s.Job(); j != nil && !j.StartedAt.IsZero() {
		begun = "" // the one that is driven has taken up whatever there was
	}
	if j := s.JobByID(begun); j != nil {
		b = append(b, "; "...)
		b = append(b, j.Walks()...)
		b = append(b, '>')
		b = append(b, j.Target...)
		b = append(b, byte('0'+j.State))
	}
	if newest >= 0 && s.Jobs[newest].State.Final() && s.Jobs[newest].StartedAt.IsZero() {
		b = append(b, "; "...)
		b = append(b, s.Jobs[newest].Walks()...)
		b = append(b, byte('0'+s.Jobs[newest].State))
	}
	b = append(b, '|')
	head := len(b)
	b = f.phases(b, s, f.names[0], begun)
	for _, names := range f.names[1:] {
		least := len(b)
		b = f.phases(b, s, names, begun)
		if slices.Compare(b[least:], b[head:least]) < 0 {
			copy(b[head:], b[least:])
		}
		b = b[:least] // all orders take equally many bytes: see phases
	}
	f.parts = b
	return b
}

// phases are the runs in one order of the phases. Each takes the same number of bytes, whatever its name.
func (f *former) phases(b []byte, s *resource.State, names []string, begun string) []byte {
	distance := func(t time.Time) {
		if t.IsZero() {
			b = append(b, '-')
			return
		}
		b = strconv.AppendInt(b, max(0, int64(t.Sub(s.UpdatedAt)/time.Millisecond)), 10)
		b = append(b, ' ')
	}
	flag := func(is bool, yes byte) {
		if is {
			b = append(b, yes)
		}
	}
	driven, last := s.Job(), s.FlowJob()
	for _, name := range names {
		b = append(b, '.')
		p := s.Phase(name)
		if p == nil || !s.Separate && p.State != s.State && !p.Status.Active() {
			continue // never entered, or left behind: it is entered anew
		}
		ph := f.bp.Phase(name)
		b = append(b, byte('a'+p.Status), byte('0'+p.Retries))
		flag(p.InFlight, 'i')
		flag(p.Retrying, 'r')
		flag(p.Undo && (p.InFlight || p.Status == resource.Sleeping), 'u')
		flag(p.Status == resource.Sleeping && p.Message != "", 'm')
		flag(ph != nil && ph.Timeout > 0 && p.Status == resource.Waiting && p.Call == 0, 'n')
		distance(p.Due)
		distance(p.Deadline)
		if s.Separate {
			flag(p.Attempt == 0, 'z')
			b = append(b, p.State...)
			flag(driven != nil && p.JobID == driven.ID, 'd')
			flag(last != nil && p.JobID == last.ID, 'l')
			flag(begun != "" && p.JobID == begun, 'b')
		}
	}
	return b
}

// sampleSystems are some of every number of phases and both walks, plain, left out and gated, all policies among them.
func sampleSystems(each int) []*blueprint.Blueprint {
	var sample []*blueprint.Blueprint
	for n := 1; n <= 4; n++ {
		for i, s := range shapes(n) {
			all := s.systems()
			for k := range each {
				sample = append(sample, all[(i*31+k*53)%len(all)])
			}
		}
	}
	return append(sample, twoStates.systems()...)
}

// TestCanonicalForm: two states of one form step alike, so that one of them stands for all. Wherever a search comes to a form
// that it knows by another state, both are told the same: whatever is said, the same comes of it, and the states after it
// are of one form again. That being so of all pairs, it is so of all that may follow.
func TestCanonicalForm(t *testing.T) {
	t.Parallel()
	each, every := 1, 5
	switch {
	case os.Getenv("DROVER_MODEL") != "":
		each, every = 3, 3
	case testing.Short():
		every = 50
	}
	pairs, steps, met := 0, 0, 0
	for _, bp := range sampleSystems(each) {
		s := newSearch(bp, false)
		first := map[formID]*world{}
		s.visit = func(_ node, in *resource.Input, to node) {
			id := s.former.id(&to.world.state)
			one := first[id]
			if one == nil {
				first[id] = to.world
				return
			}
			if met++; met%every != 0 || to.world.state.Gone {
				return
			}
			pairs++
			n, err := s.alike(one, to.world)
			steps += n
			if err != nil {
				t.Fatal(s.blame(to.world, inputText(in), fmt.Errorf("%w\nthe other was %s, %s", err, phasesText(&one.state), jobsText(&one.state))))
			}
		}
		b := bounds{3, 1, 1}
		if len(bp.Phases) > 2 {
			b = bounds{1, 1, 1}
		}
		if _, err := s.run(b); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d pairs, %d steps of each", pairs, steps)
	if pairs < 200 {
		t.Errorf("only %d pairs: the forms tell all states apart", pairs)
	}
}

// alike tells two states of one form everything, and compares what comes of it.
func (s *search) alike(a, b *world) (int, error) {
	if of, or := reasonCodes(a), reasonCodes(b); of != or {
		return 0, fmt.Errorf("for one it is %s, for the other %s", of, or)
	}
	in, same := everything(a, s.verbs), everything(b, s.verbs)
	if len(in) != len(same) {
		return 0, fmt.Errorf("%d things can be said to one, %d to the other", len(in), len(same))
	}
	for i := range in {
		one, other := s.outcome(a, in[i]), s.outcome(b, same[i])
		if one != other {
			return i, fmt.Errorf("told %s one came to\n%q\ntold %s the other to\n%q", inputText(&in[i]), one, inputText(&same[i]), other)
		}
	}
	return len(in), nil
}

// reasonCodes is why it waits, without the ids of jobs.
func reasonCodes(w *world) string {
	var all []string
	for _, r := range resource.Why(&w.state) {
		if w.state.JobByID(r.Of) != nil {
			r.Of = ""
		}
		all = append(all, string(r.Code)+" "+r.Of)
	}
	return strings.Join(all, ", ")
}

// outcome is all that comes of an input, in words that do not depend on ids and counts.
func (s *search) outcome(w *world, in resource.Input) string {
	said, env := w.prepare(in)
	after, fx := resource.Step(w.state, said, env)
	var b strings.Builder
	if e := fx.Event; e != nil {
		fmt.Fprintf(&b, "%s>%s %s %s", e.From, e.To, e.Cause.Kind, e.Cause.Phase)
		if e.Dispatch != nil {
			b.WriteString(" out " + e.Dispatch.Fence.Phase)
		}
	}
	if fx.Reply != nil && fx.Reply.Refused != nil {
		fmt.Fprintf(&b, " refused %s", fx.Reply.Refused.Code)
	}
	for _, f := range fx.Polls {
		b.WriteString(" poll " + f.Phase)
	}
	for _, p := range fx.NextPoll {
		fmt.Fprintf(&b, " next %s %s", p.Phase, p.Due.Sub(w.state.UpdatedAt))
	}
	for _, n := range fx.Notes {
		fmt.Fprintf(&b, " note %s", n.Code)
	}
	fmt.Fprintf(&b, " more %t form %s", fx.More, s.former.form(&after))
	return b.String()
}

// TestSymmetries: a search that takes states for one which differ only in the names of phases comes to just those forms
// that one comes to which does not.
func TestSymmetries(t *testing.T) {
	t.Parallel()
	var systems []*blueprint.Blueprint
	for n := 2; n <= 4; n++ {
		for _, s := range shapes(n) {
			all := s.systems()
			for k := range 2 {
				bp := all[k*5%len(all)]
				if len(symmetries(bp)) > 1 {
					systems = append(systems, bp)
				}
			}
		}
	}
	less, more := 0, 0
	for i, bp := range systems {
		if testing.Short() && i%4 > 0 {
			continue
		}
		b := bounds{2, 1, 1}
		if len(bp.Phases) > 4 { // four, and the one on the way back
			b = bounds{1, 1, 0}
		}
		whole, part := newSearch(bp, false), newSearch(bp, true)
		forms := map[formID]struct{}{}
		var root *node
		whole.visit = func(from node, _ *resource.Input, to node) {
			if root == nil {
				root = &from
				forms[part.former.id(&from.world.state)] = struct{}{}
			}
			if !to.world.state.Gone {
				forms[part.former.id(&to.world.state)] = struct{}{}
			}
		}
		all, err := whole.run(b)
		if err != nil {
			t.Fatal(err)
		}
		some, err := part.run(b)
		if err != nil {
			t.Fatal(err)
		}
		for id := range forms {
			if _, ok := part.seen[id]; !ok {
				t.Fatalf("a form is not found without the symmetries' twins\n%s", &story{versions: []*blueprint.Blueprint{bp}})
			}
		}
		if len(forms) != len(part.seen) {
			t.Errorf("%d forms, %d with symmetries", len(forms), len(part.seen))
		}
		less, more = less+some.states, more+all.states
	}
	t.Logf("%d systems: %d states, %d with symmetries", len(systems), more, less)
	if less*10 > more*9 {
		t.Errorf("symmetries spare nothing: %d of %d states", less, more)
	}
}
