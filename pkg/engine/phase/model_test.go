package phase_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/phase"
)

// TestModel visits every state that a record can be brought to by two or three workers that ask for the phase, call it, have
// their calls canceled, go on holding it, give it back, are silent, begin anew under their names, and whose words come late.
// What they do is bounded, never what is visited. After each step: the audit, the same step twice, the same input again, and
// a second reading of who holds the phase and what it is doing, made of what was said (twin). From each state the record comes
// to rest when all workers are gone. What is counted must be what testdata/model holds.
//
// DROVER_MODEL=all takes more (make model); =more one more of everything, compared with nothing. DROVER_MODEL_RECORD=1 writes
// what was counted.
func TestModel(t *testing.T) {
	t.Parallel()
	part := cmp.Or(os.Getenv("DROVER_MODEL"), "part")
	bounded := map[string][]bound{
		"part": {{2, 1, 1, 1, 0}, {2, 1, 0, 0, 1}, {3, 1, 0, 0, 0}},
		"all":  {{2, 2, 1, 0, 0}, {2, 2, 0, 1, 0}, {2, 1, 1, 1, 1}, {3, 1, 1, 0, 0}, {3, 1, 0, 1, 0}},
	}[part]
	if part == "more" {
		bounded = []bound{{2, 4, 2, 1, 1}, {3, 2, 2, 1, 1}}
	}
	if bounded == nil {
		t.Fatalf("DROVER_MODEL=%s: neither all nor more", part)
	}
	moved := movements{}
	text := fmt.Sprintf("%-8s %-58s %9s %12s\n", "calls", "bounds", "states", "transitions")
	for _, b := range bounded {
		for calls := range b.workers { // as many as there are is any number of them, 0
			began := time.Now()
			s := &search{calls: calls, seen: map[string]bool{}, moved: moved}
			if err := s.run(b); err != nil {
				t.Fatal(err)
			}
			row := fmt.Sprintf("%-8d %-58s %9d %12d", calls, b, len(s.seen), s.transitions)
			t.Logf("%s %6.1fs", row, time.Since(began).Seconds())
			text += row + "\n"
		}
	}
	moved.check(t, part != "part")
	file := "testdata/model/" + part + ".txt"
	if os.Getenv("DROVER_MODEL_RECORD") != "" {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if kept, err := os.ReadFile(file); part != "more" && (err != nil || string(kept) != text) {
		t.Errorf("what can be reached has changed (%s; DROVER_MODEL_RECORD=1 writes it anew), %v:\nwas\n%s\nis\n%s", file, err, kept, text)
	}
}

// bound is what the world may do: a bound on inputs, never on states.
type bound struct {
	workers  int
	calls    int // calls that begin
	silences int // workers that are not heard, though they live
	restarts int // workers that begin anew under their names
	late     int // words that arrive later than others that were said after them
}

func (b bound) String() string {
	return fmt.Sprintf("%d workers, <=%d calls, <=%d silences, <=%d restarts, <=%d late", b.workers, b.calls, b.silences, b.restarts, b.late)
}

// member is a worker as it truly is.
type member struct {
	report  phase.Report
	wakes   time.Time // when what it left pending is due
	holding bool      // it was told that it holds the phase, and neither gave it back nor was found silent
}

func (m *member) said(now time.Time) phase.Report {
	r := m.report
	r.WakeAt, r.WakeUntil = time.Time{}, time.Time{}
	if m.wakes.After(now) {
		r.WakeAt, r.WakeUntil = m.wakes, m.wakes
	}
	return r
}

// word is one that is under way.
type word struct {
	report  phase.Report
	release bool
}

// mworld is a record, its workers and what is under way.
type mworld struct {
	now     time.Time
	record  phase.State
	members []member
	late    []word
	left    bound
	made    phase.Counts // what truly was done
	doubt   bool         // a word came late or a worker began anew: what was counted may be less, or counted twice
	twin    twin
}

// twin is a second reading of a record, slow and plain: what each holder has said last, and when the last sleeper is due.
type twin struct {
	holders map[string][2]uint32 // resources out, and canceling of them
	until   time.Time
}

func (t twin) fork() twin { return twin{maps.Clone(t.holders), t.until} }

func (t *twin) told(calls int, in phase.Input) (granted bool) {
	r := cmp.Or(in.Hold, in.Release)
	if r != nil {
		_, holds := t.holders[r.Worker]
		if in.Hold != nil && !holds && calls > 0 && len(t.holders) >= calls {
			return false
		}
		if holds || in.Hold != nil {
			t.holders[r.Worker] = [2]uint32{r.Out, r.Canceling}
			if r.WakeUntil.After(t.until) {
				t.until = r.WakeUntil
			}
		}
		if in.Release != nil {
			delete(t.holders, r.Worker)
		}
	}
	for _, w := range in.Silent {
		delete(t.holders, w)
	}
	return in.Hold != nil
}

// activity says what the phase is doing, by seed 003's words.
func (t *twin) activity(now time.Time) phase.Activity {
	running, canceling := false, false
	for _, h := range t.holders {
		running = running || h[0] > h[1]
		canceling = canceling || h[1] > 0
	}
	switch {
	case running:
		return phase.Running // "this phase is actively running with some resources"
	case canceling:
		return phase.Canceling // "this phase is active, but it is being canceled"
	case !t.until.IsZero() && now.Before(t.until.Add(phase.Slack)):
		return phase.Sleeping // "no running resources …, but there are resources sleeping until a point in the future"
	}
	t.until = time.Time{}
	return phase.Inactive // "there are no resources associated with this phase"
}

func (w *mworld) fork() *mworld {
	f := *w
	f.record.Holders, f.members, f.late, f.twin = slices.Clone(w.record.Holders), slices.Clone(w.members), slices.Clone(w.late), w.twin.fork()
	return &f
}

// key tells worlds apart that can go on differently: of times what is compared with others.
func (w *mworld) key() string {
	ago := func(at time.Time, most time.Duration) string {
		if at.IsZero() {
			return "-"
		}
		return max(at.Sub(w.now), -most).String()
	}
	var b strings.Builder
	s := &w.record
	over := phase.Slack
	fmt.Fprint(&b, s.Activity, ago(s.WakeAt, over), ago(s.WakeUntil, over), ago(s.UpdatedAt, phase.RecordEvery), s.Before, w.left, w.made, w.doubt, w.twin.until.Equal(s.WakeUntil))
	calls := []time.Time{s.LastCallAt}
	for _, h := range s.Holders {
		fmt.Fprint(&b, "|", h.Worker, h.Out, h.Canceling, h.Base, h.Counts, w.twin.holders[h.Worker])
	}
	for i := range w.members {
		m := &w.members[i]
		fmt.Fprint(&b, "|", m.holding, m.report.Out, m.report.Canceling, m.report.Counts, ago(m.wakes, 0))
		calls = append(calls, m.report.LastCallAt)
	}
	for _, l := range w.late {
		fmt.Fprint(&b, "|", l.release, l.report.Worker, l.report.Out, l.report.Canceling, l.report.Counts, ago(l.report.WakeUntil, over))
		calls = append(calls, l.report.LastCallAt)
	}
	sorted := slices.CompactFunc(slices.SortedFunc(slices.Values(calls), time.Time.Compare), time.Time.Equal)
	for _, at := range calls {
		fmt.Fprint(&b, ",", slices.IndexFunc(sorted, at.Equal))
	}
	return b.String()
}

// search explores.
type search struct {
	calls       int
	seen        map[string]bool
	moved       movements
	transitions int
}

func (s *search) run(b bound) error {
	first := &mworld{now: zero, record: phase.State{Project: "p", Kind: "k", Phase: "ph"}, left: b, twin: twin{holders: map[string][2]uint32{}}}
	for i := range b.workers {
		first.members = append(first.members, member{report: phase.Report{Worker: fmt.Sprint("w", i)}})
	}
	stack := []*mworld{first}
	for len(stack) > 0 {
		w := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		key := w.key()
		if s.seen[key] {
			continue
		}
		s.seen[key] = true
		if err := s.rest(w.fork()); err != nil {
			return fmt.Errorf("%w\nall workers gone from %+v", err, w.record)
		}
		for _, m := range moves(w) {
			next := w.fork()
			s.transitions++
			if err := m.do(s, next); err != nil {
				return fmt.Errorf("%w\non %s, from\n%+v\n%+v\nto\n%+v", err, m.name, w.record, w.members, next.record)
			}
			stack = append(stack, next)
		}
	}
	return nil
}

type move struct {
	name string
	do   func(*search, *mworld) error
}

// moves are all that can happen in a world.
func moves(w *mworld) []move {
	all := []move{{"a moment", func(_ *search, w *mworld) error { w.now = w.now.Add(phase.RecordEvery); return nil }}}
	add := func(name string, do func(*search, *mworld) error) { all = append(all, move{name, do}) }
	if due := w.record.Due(); !due.IsZero() {
		add("its time comes", func(s *search, w *mworld) error {
			if due.After(w.now) {
				w.now = due
			}
			_, err := s.tell(w, phase.Input{})
			return err
		})
	}
	for i := range w.late {
		add("a late word", func(s *search, w *mworld) error {
			l := w.late[i]
			w.late = slices.Delete(w.late, i, i+1)
			w.doubt = true
			_, err := s.tell(w, l.input())
			return err
		})
	}
	for i := range w.members {
		work(w, i, add)
		speak(w, i, add)
	}
	return all
}

// work is what a worker can do by itself. A call has two resources.
func work(w *mworld, i int, add func(string, func(*search, *mworld) error)) {
	r := &w.members[i].report
	name := r.Worker
	switch {
	case r.Out > 0:
		add(name+" completes", func(_ *search, w *mworld) error { w.end(i, 0); return nil })
		add(name+" leaves one pending", func(_ *search, w *mworld) error { w.end(i, 1); return nil })
		if r.Canceling < r.Out {
			add(name+" is canceled", func(_ *search, w *mworld) error { w.members[i].report.Canceling++; return nil })
		}
	case w.members[i].holding && w.left.calls > 0:
		add(name+" calls", func(_ *search, w *mworld) error {
			w.left.calls--
			r := &w.members[i].report
			r.Out, r.LastCallAt = 2, w.now
			r.Counts.Calls++
			r.Counts.Resources += 2
			w.made.Calls++
			w.made.Resources += 2
			return nil
		})
	}
	if w.left.restarts > 0 && r.Counts.Calls > 0 {
		add(name+" begins anew", func(_ *search, w *mworld) error {
			w.left.restarts--
			w.members[i] = member{report: phase.Report{Worker: name}, holding: false}
			w.doubt = true
			return nil
		})
	}
}

func (w *mworld) end(i int, pending uint64) {
	m := &w.members[i]
	done := uint64(m.report.Out) - pending
	m.report.Out, m.report.Canceling = 0, 0
	m.report.Counts.Completed += done
	m.report.Counts.Pending += pending
	w.made.Completed += done
	w.made.Pending += pending
	if pending > 0 {
		m.wakes = w.now.Add(2 * time.Second)
	}
}

// speak is what a worker can say, and what can become of it.
func speak(w *mworld, i int, add func(string, func(*search, *mworld) error)) {
	name := w.members[i].report.Worker
	add(name+" asks", func(s *search, w *mworld) error {
		said := w.members[i].said(w.now)
		reply, err := s.tell(w, phase.Input{Hold: &said})
		w.members[i].holding = reply.Granted
		return err
	})
	if w.members[i].holding && w.members[i].report.Out == 0 {
		add(name+" gives it back", func(s *search, w *mworld) error {
			said := w.members[i].said(w.now)
			_, err := s.tell(w, phase.Input{Release: &said})
			w.members[i].holding = false
			return err
		})
	}
	if w.left.silences > 0 && w.members[i].holding {
		add(name+" is silent", func(s *search, w *mworld) error {
			w.left.silences--
			_, err := s.tell(w, phase.Input{Silent: []string{name, "nobody"}})
			w.members[i].holding = false
			return err
		})
	}
	if w.left.late > 0 && len(w.late) == 0 {
		for _, release := range []bool{false, true} {
			add(name+" says what comes late", func(_ *search, w *mworld) error {
				w.left.late--
				w.late = append(w.late, word{w.members[i].said(w.now), release})
				return nil
			})
		}
	}
}

func (l *word) input() phase.Input {
	if l.release {
		return phase.Input{Release: &l.report}
	}
	return phase.Input{Hold: &l.report}
}

// tell steps the record, and holds the step to all that can be said of it.
func (s *search) tell(w *mworld, in phase.Input) (phase.Reply, error) {
	in.At, in.Calls = w.now, s.calls
	before := w.record
	before.Holders = slices.Clone(before.Holders)
	after, reply, changed := phase.Step(w.record, in)
	again, replyAgain, _ := phase.Step(before, in)
	if !reflect.DeepEqual(before, w.record) || !reflect.DeepEqual(after, again) || !reflect.DeepEqual(reply, replyAgain) {
		return reply, errors.New("the same step comes out otherwise, or changes what it was given")
	}
	until := w.twin.until
	granted := w.twin.told(s.calls, in)
	if !changed {
		w.twin.until = until // said again with the next word: times are recorded at a measured pace
	}
	stranger := in.Release != nil && !slices.ContainsFunc(before.Holders, func(h phase.Holder) bool { return h.Worker == in.Release.Worker })
	if stranger && changed {
		return reply, errors.New("a stranger gives it back")
	}
	activity := before.Activity // who is turned away changes nothing, the time included; nor does a stranger
	if in.Hold == nil && !stranger || granted {
		activity = w.twin.activity(w.now)
	}
	switch {
	case granted != reply.Granted:
		return reply, fmt.Errorf("granted: %t", reply.Granted)
	case in.Hold != nil && reply.Granted == (len(reply.Holders) > 0):
		return reply, fmt.Errorf("who is turned away is told who holds it, nobody else: %+v", reply)
	case !changed && !reflect.DeepEqual(before, after):
		return reply, errors.New("what is not recorded has changed")
	case changed:
		if wrong := phase.Audit(&before, after); len(wrong) > 0 {
			return reply, fmt.Errorf("audit: %v", wrong)
		}
		w.record = after
	}
	if s.calls > 0 && len(after.Holders) > s.calls {
		return reply, errors.New("more hold it than may")
	}
	for i := range after.Holders {
		if _, ok := w.twin.holders[after.Holders[i].Worker]; !ok {
			return reply, fmt.Errorf("%s holds it, and does not", after.Holders[i].Worker)
		}
	}
	recorded := after.Activity == activity || before.Revision == 0 && !changed // of nobody there is no record
	if len(after.Holders) != len(w.twin.holders) || !recorded {
		return reply, fmt.Errorf("it is %v, and should be %v of %v", after.Activity, activity, w.twin.holders)
	}
	if made := after.Counts(); !w.doubt && !atMost(made, w.made) {
		return reply, fmt.Errorf("it has counted %+v, and what was done is %+v", made, w.made)
	}
	if _, _, more := phase.Step(after, in); more && in.Hold == nil {
		return reply, errors.New("the same again changes it")
	}
	if changed {
		s.moved.note(before.Activity, after.Activity, told(&before, in))
	}
	return reply, nil
}

func atMost(a, b phase.Counts) bool {
	return a.Calls <= b.Calls && a.Resources <= b.Resources && a.Completed <= b.Completed && a.Failed <= b.Failed && a.Pending <= b.Pending
}

// rest has all workers go: the record is then at rest, or is when its time comes.
func (s *search) rest(w *mworld) error {
	for i := range w.members {
		if _, err := s.tell(w, phase.Input{Silent: []string{w.members[i].report.Worker}}); err != nil {
			return err
		}
	}
	if due := w.record.Due(); !due.IsZero() {
		w.now = later(w.now, due)
		if _, err := s.tell(w, phase.Input{}); err != nil {
			return err
		}
	}
	if s := &w.record; s.Revision > 0 && (s.Activity != phase.Inactive || len(s.Holders) > 0 || !s.Due().IsZero()) {
		return fmt.Errorf("it does not come to rest: %+v", s)
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// movements are the activities that were gone between, by what was told.
type movements map[string]map[string]bool

// told is what a record is told: the columns of the package's table.
func told(before *phase.State, in phase.Input) string {
	r := cmp.Or(in.Hold, in.Release)
	out := 0
	for i := range before.Holders {
		if r != nil && before.Holders[i].Worker == r.Worker || slices.Contains(in.Silent, before.Holders[i].Worker) {
			out += int(before.Holders[i].Out)
		}
	}
	switch {
	case r == nil && len(in.Silent) == 0:
		return "the last has slept"
	case in.Hold == nil, r.Out == 0 && out > 0:
		return "it ends"
	case r.Out == 0:
		return "nothing runs"
	case r.Canceling == r.Out:
		return "its calls are canceled"
	}
	return "a call runs"
}

func (m movements) note(from, to phase.Activity, what string) {
	if m[what] == nil {
		m[what] = map[string]bool{}
	}
	if from != to {
		m[what][fmt.Sprintf("%v to %v", from, to)] = true
	}
}

// check holds the movements to the package's table; all: each was gone. Of what is told late, two of its columns come as one.
func (m movements) check(t *testing.T, all bool) {
	t.Helper()
	want := map[string][]string{
		"a call runs":            {"Canceling to Running", "Inactive to Running", "Sleeping to Running"},
		"its calls are canceled": {"Inactive to Canceling", "Running to Canceling", "Sleeping to Canceling"},
		"it ends": {
			"Canceling to Inactive", "Canceling to Sleeping", "Inactive to Sleeping",
			"Running to Canceling", "Running to Inactive", "Running to Sleeping", "Sleeping to Inactive",
		},
		"nothing runs":       {" to Inactive", "Inactive to Sleeping", "Sleeping to Inactive"},
		"the last has slept": {"Sleeping to Inactive"},
	}
	for what := range m {
		seen := slices.Sorted(maps.Keys(m[what]))
		if all && !slices.Equal(want[what], seen) {
			t.Errorf("%s: the table has %q, and seen was %q", what, want[what], seen)
		}
		for _, to := range seen {
			holds(t, slices.Contains(want[what], to), what+": "+to+" is not in the table")
		}
	}
	same(t, len(want), len(m), "what is told")
}
