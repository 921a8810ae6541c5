package phase_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/phase"
)

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func holds(t *testing.T, condition bool, otherwise string) {
	t.Helper()
	if !condition {
		t.Fatal(otherwise)
	}
}

// same compares; nil is the same as an empty list.
func same(t *testing.T, want, got any, what string) {
	t.Helper()
	if v := reflect.ValueOf(got); v.Kind() == reflect.Slice && v.Len() == 0 {
		if w := reflect.ValueOf(want); want == nil || w.Len() == 0 {
			return
		}
	}
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("%s: want %+v, got %+v", what, want, got)
	}
}

// house is what the workers truly are and did, to hold the record to.
type house struct {
	t       *testing.T
	rng     *rand.Rand
	at      time.Time
	calls   int
	state   phase.State
	workers []*worker
	counted phase.Counts // as the owner has heard it
	killed  bool         // somebody was, and with it what was not recorded yet
}

type worker struct {
	name    string
	said    phase.Report // its next report
	heard   phase.Counts // what the owner has heard of it
	holding bool
}

func (h *house) step(in phase.Input) phase.Reply {
	in.At, in.Calls = h.at, h.calls
	before := h.state
	copied := before
	copied.Holders = slices.Clone(before.Holders)
	after, reply, changed := phase.Step(before, in)
	again, replyAgain, changedAgain := phase.Step(copied, in)
	same(h.t, copied, before, "the state that the step was given")
	same(h.t, after, again, "the same step twice")
	same(h.t, reply, replyAgain, "the same reply twice")
	same(h.t, changed, changedAgain, "the same step twice")
	if !changed {
		same(h.t, before, after, "what is not recorded")
		return reply
	}
	same(h.t, nil, phase.Audit(&before, after), "audit")
	h.state = after
	return reply
}

func (h *house) holders() []string {
	var names []string
	for _, w := range h.workers {
		if w.holding {
			names = append(names, w.name)
		}
	}
	slices.Sort(names)
	return names
}

func (h *house) recorded() []string {
	var names []string
	for _, w := range h.state.Holders {
		names = append(names, w.Worker)
	}
	return names
}

// TestWalks: what workers say in any order, twice, late, or not at all, leads to a record that is sound, that names who
// holds the phase, and no more than may; and when all have said their last word, it has counted what they did.
func TestWalks(t *testing.T) {
	t.Parallel()
	seen := map[phase.Activity]map[phase.Activity]int{}
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		h := &house{t: t, rng: rng, at: zero, calls: rng.IntN(3), state: phase.State{Project: "p", Kind: "k", Phase: "ph"}}
		for i := range 1 + rng.IntN(3) {
			h.workers = append(h.workers, &worker{name: fmt.Sprintf("w%d", i), said: phase.Report{Worker: fmt.Sprintf("w%d", i)}})
		}
		for range 60 {
			was := h.state.Activity
			h.random()
			if seen[was] == nil {
				seen[was] = map[phase.Activity]int{}
			}
			seen[was][h.state.Activity]++
			same(t, h.holders(), h.recorded(), "who holds it")
			if h.calls > 0 {
				holds(t, len(h.state.Holders) <= h.calls, "more hold it than may")
			}
			holds(t, h.state.Counts().Calls <= h.counted.Calls, "calls were counted that nobody made")
		}
		h.end()
	}
	for _, from := range phase.Activities() {
		for _, to := range phase.Activities() {
			if from == phase.Inactive && to == phase.Canceling {
				continue // only where a call is canceled before it was ever reported
			}
			holds(t, seen[from][to] > 0, fmt.Sprintf("%v → %v was never walked", from, to))
		}
	}
}

func (h *house) random() {
	h.at = h.at.Add(time.Duration(h.rng.IntN(3000)) * time.Millisecond)
	w := h.workers[h.rng.IntN(len(h.workers))]
	switch h.rng.IntN(8) {
	case 0, 1: // a call begins or ends
		if !w.holding {
			return
		}
		if w.said.Out > 0 {
			n := uint64(w.said.Out)
			w.said.Out, w.said.Canceling = 0, 0
			pending := h.rng.Uint64N(n + 1)
			w.said.Counts.Completed += n - pending
			w.said.Counts.Pending += pending
			w.said.WakeAt, w.said.WakeUntil = time.Time{}, time.Time{}
			if pending > 0 {
				w.said.WakeAt = h.at.Add(time.Second)
				w.said.WakeUntil = h.at.Add(time.Duration(1+h.rng.IntN(4)) * time.Second)
			}
			return
		}
		w.said.Out = 1 + h.rng.Uint32N(5)
		w.said.Counts.Calls++
		w.said.Counts.Resources += uint64(w.said.Out)
		w.said.LastCallAt = h.at
	case 2:
		w.said.Canceling = h.rng.Uint32N(w.said.Out + 1)
		if h.rng.IntN(2) == 0 {
			w.said.Canceling = w.said.Out
		}
	case 3:
		if w.holding && h.rng.IntN(2) == 0 {
			h.step(phase.Input{Silent: []string{w.name, "nobody"}})
			w.holding, h.killed = false, true
		}
	case 4:
		if w.holding && h.rng.IntN(2) == 0 {
			h.leave(w)
		}
	case 5:
		h.step(phase.Input{}) // its time may have come
		if due := h.state.Due(); !due.IsZero() {
			holds(h.t, h.at.Before(due), "what is due is not done")
		}
	default:
		said := w.said
		reply := h.step(phase.Input{Hold: &said})
		free := h.calls == 0 || len(h.holders()) < h.calls
		same(h.t, w.holding || free, reply.Granted, "granted")
		same(h.t, !reply.Granted, len(reply.Holders) > 0, "who is told of the holders")
		if reply.Granted {
			h.hear(w)
		} else {
			w.said.Out, w.said.Canceling = 0, 0
		}
	}
}

func (h *house) leave(w *worker) {
	w.said.Out, w.said.Canceling = 0, 0
	said := w.said
	h.step(phase.Input{Release: &said})
	h.hear(w)
	w.holding = false
}

// hear adds what a holder has counted since it was last heard; one that was none begins anew.
func (h *house) hear(w *worker) {
	if w.holding {
		h.counted.Calls += w.said.Counts.Calls - w.heard.Calls
		h.counted.Completed += w.said.Counts.Completed - w.heard.Completed
	}
	w.holding, w.heard = true, w.said.Counts
}

// end has all workers leave: nothing that was said is lost then, and what sleeps is over some day.
func (h *house) end() {
	for _, w := range h.workers {
		if w.holding {
			h.leave(w)
		}
	}
	same(h.t, 0, len(h.state.Holders), "holders at the end")
	if !h.killed {
		same(h.t, h.counted.Calls, h.state.Counts().Calls, "calls")
		same(h.t, h.counted.Completed, h.state.Counts().Completed, "completed")
	}
	if due := h.state.Due(); !due.IsZero() {
		h.at = due
		h.step(phase.Input{})
	}
	same(h.t, phase.Inactive, h.state.Activity, "at the end")
	holds(h.t, h.state.WakeUntil.IsZero(), "an inactive phase has something to wake for")
}

// What changes nothing that a reader sees is not recorded, and counts are at a measured pace.
func TestRecordsAreFew(t *testing.T) {
	t.Parallel()
	s, reply, changed := phase.Step(phase.State{}, phase.Input{At: zero, Calls: 1, Hold: &phase.Report{Worker: "a"}})
	holds(t, changed && reply.Granted, "the first holder is granted and recorded")
	for i := range 100 {
		at := zero.Add(time.Duration(i) * time.Hour)
		after, reply, changed := phase.Step(s, phase.Input{At: at, Calls: 1, Hold: &phase.Report{Worker: "a"}})
		holds(t, reply.Granted, "granted")
		holds(t, !changed, "a lease that is renewed is an event")
		same(t, s, after, "what is not recorded")
	}
	at := zero.Add(time.Hour)
	records := 0
	for i := range uint64(100) {
		var recorded bool
		s, _, recorded = phase.Step(s, phase.Input{At: at.Add(time.Duration(i) * 100 * time.Millisecond), Calls: 1,
			Hold: &phase.Report{Worker: "a", Counts: phase.Counts{Calls: i + 1}}})
		if recorded {
			records++
		}
	}
	same(t, 10, records, "records in ten seconds")
	s, _, changed = phase.Step(s, phase.Input{At: at.Add(10 * time.Second), Release: &phase.Report{Worker: "a", Counts: phase.Counts{Calls: 100}}})
	holds(t, changed, "what is to be recorded")
	same(t, uint64(100), s.Counts().Calls, "calls")
}

// A phase without a limit is held by all; more than a record can name hold it unnamed.
func TestHoldersWithoutEnd(t *testing.T) {
	t.Parallel()
	var s phase.State
	for i := range phase.HoldersMax + 5 {
		var reply phase.Reply
		s, reply, _ = phase.Step(s, phase.Input{At: zero, Hold: &phase.Report{Worker: fmt.Sprintf("w%03d", i), Counts: phase.Counts{Calls: 1}}})
		holds(t, reply.Granted, "granted")
	}
	same(t, phase.HoldersMax, len(s.Holders), "holders")
	same(t, nil, phase.Audit(nil, s), "audit")
	lowered, reply, changed := phase.Step(s, phase.Input{At: zero.Add(time.Hour), Calls: 1, Hold: &phase.Report{Worker: "w000"}})
	holds(t, reply.Granted, "who holds it when the limit comes goes on")
	holds(t, !changed, "nothing is to be recorded")
	_, reply, _ = phase.Step(lowered, phase.Input{At: zero.Add(time.Hour), Calls: 1, Hold: &phase.Report{Worker: "new"}})
	holds(t, !reply.Granted, "one more than may")
}

// What a holder said last counts when another leaves, however shortly after the last event it was said.
func TestWhoRunsIsRecordedAtOnce(t *testing.T) {
	t.Parallel()
	var s phase.State
	tell := func(in phase.Input) {
		in.At, in.Calls = zero, 2
		s, _, _ = phase.Step(s, in)
	}
	tell(phase.Input{Hold: &phase.Report{Worker: "a", Out: 1}})
	tell(phase.Input{Hold: &phase.Report{Worker: "b", Out: 2}})
	tell(phase.Input{Hold: &phase.Report{Worker: "b", Out: 2, Canceling: 2}})
	same(t, phase.Running, s.Activity, "a runs")
	tell(phase.Input{Hold: &phase.Report{Worker: "b"}})
	tell(phase.Input{Silent: []string{"a"}})
	same(t, phase.Inactive, s.Activity, "nobody runs any more")
}

// Who holds nothing gives nothing back, and makes no record.
func TestStrangersGiveNothingBack(t *testing.T) {
	t.Parallel()
	for _, in := range []phase.Input{{At: zero, Release: &phase.Report{Worker: "b"}}, {At: zero, Silent: []string{"b"}}, {At: zero}} {
		_, _, changed := phase.Step(phase.State{}, in)
		holds(t, !changed, "there is no record of nobody")
		held, _, _ := phase.Step(phase.State{}, phase.Input{At: zero, Calls: 1, Hold: &phase.Report{Worker: "a", Out: 1}})
		after, _, changed := phase.Step(held, in)
		holds(t, !changed, "a stranger changes it")
		same(t, held, after, "the record")
	}
}
