package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// holds is what the checker knows of the phases that are held.
type holds struct {
	phases map[bus.Phase]*held
	named  int
	// defined is how many blueprints each kind has had.
	defined map[string]int
	stints  map[int][]*stint // by partition, all that ever were
}

// held is one phase: its record, those who call it, and what was truly done.
type held struct {
	record  phase.State
	writer  string // of the record's last event
	callers []*caller
	made    phase.Counts
	gone    map[string]time.Time // holders that are no more, since when that was seen
}

func newHolds() holds {
	return holds{phases: map[bus.Phase]*held{}, stints: map[int][]*stint{}, defined: map[string]int{}}
}

func (h *holds) of(p bus.Phase) *held {
	if h.phases[p] == nil {
		h.phases[p] = &held{gone: map[string]time.Time{}}
	}
	return h.phases[p]
}

func (h *held) settled(o resource.Outcome) {
	switch o {
	case resource.OutcomeCompleted:
		h.made.Completed++
	case resource.OutcomeFailed:
		h.made.Failed++
	case resource.OutcomePending:
		h.made.Pending++
	case resource.OutcomeRunning, resource.OutcomeNotStarted:
	}
}

// served is an owner that begins.
func (c *checker) served(s *stint) {
	c.holds.stints[s.partition] = append(c.holds.stints[s.partition], s)
}

// callsOf is how many may hold a phase.
func (c *checker) callsOf(p bus.Phase) int {
	for i := range phasesMax {
		if phaseName(i) == p.Phase && i%2 == 1 {
			return 2
		}
	}
	return 1
}

// leaseSlack is what clocks may differ by that are right.
const leaseSlack = 10 * time.Millisecond

// holding are those who hold a phase as far as they know.
func (c *checker) holding(p bus.Phase) []*caller {
	h := c.holds.of(p)
	h.callers = slices.DeleteFunc(h.callers, func(x *caller) bool { return x.k.p.dead || x.over })
	var all []*caller
	for _, x := range h.callers {
		if x.grip.held(c.w.now.Add(leaseSlack)) {
			all = append(all, x)
		}
	}
	return all
}

// granted is a caller that was told that it holds its phase: no more may think so than may hold it, but in a failover.
func (c *checker) granted(by *caller) {
	w := c.w
	all := c.holding(by.phase)
	w.say("%s holds phase %s of %s until %s, by %s", by.name, by.phase.Phase, by.phase.Kind, w.clockText(by.grip.until), by.answeredBy.stint.p.name)
	if len(all) <= c.callsOf(by.phase) {
		return
	}
	for _, x := range all {
		if x != by && c.failover(x, by) {
			return
		}
	}
	names := ""
	for _, x := range all {
		names += fmt.Sprintf(" %s until %s by %s", x.name, w.clockText(x.grip.until), x.answeredBy.stint.p.name)
	}
	w.violate("%d workers hold phase %s of %s, and %d may:%s", len(all), by.phase.Phase, by.phase.Kind, c.callsOf(by.phase), names)
}

// lateAppend is how much later than its owner's end an append may arrive.
const lateAppend = 30 * time.Second

// failover reports whether the owner that has granted a phase to one worker need not have known that another holds it: besides the
// owner that granted it to that one there was a second, who did not hear of it; or a clock has leapt since.
func (c *checker) failover(other, by *caller) bool {
	of := other.answeredBy
	for _, s := range c.holds.stints[of.stint.partition] {
		if s != of.stint && !s.began.After(of.at) && (s.ended.IsZero() || s.ended.Add(lateAppend).After(of.from)) {
			return true
		}
	}
	// A blueprint that makes the lease shorter holds for those who were granted a longer one, once they are silent for the default.
	if c.holds.defined[other.phase.Kind] > 1 && other.grip.lease > phase.LeaseDefault && !by.answeredBy.at.Before(of.from.Add(phase.LeaseDefault)) {
		return true
	}
	for _, s := range []*stint{by.answeredBy.stint, of.stint} {
		if !s.p.setAt.Before(of.from) {
			return true
		}
	}
	return false
}

// displayed holds the record to a call that ends, in calm: it says that the call runs, or that all of it is canceled.
func (c *checker) displayed(by *caller, begun, unwanted time.Time) {
	w := c.w
	settled := c.healed.Add(ownersSettle)
	if !c.restarted.IsZero() {
		settled = c.restarted.Add(ownersSettle)
	}
	late := w.now.Add(-displayedWithin)
	if !w.calm || begun.Before(settled) || begun.After(late) || w.faults.skew && w.now.Before(c.healed.Add(2*skewMax)) {
		return
	}
	s := c.holds.of(by.phase).record
	i := slices.IndexFunc(s.Holders, func(h phase.Holder) bool { return h.Worker == by.name && h.Out > 0 })
	if i < 0 || s.Activity != phase.Running && s.Activity != phase.Canceling {
		w.violate("%s has called phase %s of %s since %s, and its record says %s", by.name, by.phase.Phase, by.phase.Kind, w.clockText(begun), recordText(&s))
	}
	if by.canceling == by.out && !unwanted.IsZero() && unwanted.Before(late) && s.Holders[i].Canceling < s.Holders[i].Out {
		w.violate("nothing of what %s has in phase %s of %s is wanted since %s, and its record says %s", by.name, by.phase.Phase, by.phase.Kind, w.clockText(unwanted), recordText(&s))
	}
}

// displayedWithin is how long a record may not know what runs, in calm: a report is made after a blink, and with each renewal.
const displayedWithin = 3 * time.Second

// calls is a call that begins.
func (c *checker) calls(by *caller, resources int) {
	h := c.holds.of(by.phase)
	h.made.Calls++
	h.made.Resources += uint64(resources)
}

// record holds an event of a phase's record to the rules.
func (c *checker) record(who string, a bus.Append, bury bool) {
	w := c.w
	e, err := wire.DecodePhase(a.Body)
	if err != nil {
		w.violate("an event of a phase cannot be read: %v", err)
	}
	s := e.State
	p := bus.Phase{Project: s.Project, Kind: s.Kind, Phase: s.Phase}
	if want := (bus.Entity{Partition: p.Partition(w.server.Partitions()), Family: bus.PhaseRecord, Project: p.Project, Kind: p.Kind, Name: p.Phase}); a.Entity != want {
		w.violate("the event of phase %v was appended to %v", p, a.Entity)
	}
	h := c.holds.of(p)
	before := h.record
	w.say("%s phase %s of %s rev %d: %s", who, p.Phase, p.Kind, s.Revision, recordText(&s))
	if bury {
		if len(before.Holders) > 0 || before.Activity != phase.Inactive {
			w.violate("the record of phase %s of %s is buried: %s", p.Phase, p.Kind, recordText(&before))
		}
		*h = held{callers: h.callers, gone: h.gone}
		return
	}
	if e.From != before.Activity || a.Header.From != before.Activity.String() || a.Header.To != s.Activity.String() || a.Header.Revision != s.Revision {
		w.violate("the event of phase %s of %s goes from %s to %s (%+v), and it was %s", p.Phase, p.Kind, e.From, s.Activity, a.Header, before.Activity)
	}
	if wrong := phase.Audit(&before, s); len(wrong) > 0 {
		w.violate("phase %s of %s, written by %s: %v\nbefore: %s\nafter:  %s", p.Phase, p.Kind, who, wrong, recordText(&before), recordText(&s))
	}
	if len(s.Holders) > len(before.Holders) && len(s.Holders) > c.callsOf(p) {
		w.violate("%d hold phase %s of %s, and %d may: %s", len(s.Holders), p.Phase, p.Kind, c.callsOf(p), recordText(&s))
	}
	counts, f := s.Counts(), &w.faults
	if most := h.made; !f.slow && !f.pauses && !f.doubled && !f.overlap && (counts.Calls > most.Calls || counts.Resources > most.Resources || counts.Completed > most.Completed || counts.Failed > most.Failed || counts.Pending > most.Pending) { // else a word may come late
		w.violate("phase %s of %s counts %+v, and what was done is %+v", p.Phase, p.Kind, counts, most)
	}
	h.record, h.writer = s, who
}

func recordText(s *phase.State) string {
	text := s.Activity.String()
	for i := range s.Holders {
		h := &s.Holders[i]
		text += fmt.Sprintf(" [%s out %d canceling %d calls %d-%d]", h.Worker, h.Out, h.Canceling, h.Counts.Calls, h.Base.Calls)
	}
	if !s.WakeUntil.IsZero() {
		text += fmt.Sprintf(" wakes until %.1fs", s.WakeUntil.Sub(began).Seconds())
	}
	return text + fmt.Sprintf(" %+v", s.Counts())
}

// goneWithin is how long, in calm, a record may name a worker that is gone: until a sweep has seen that a clock was set back, its
// lease (at most the longest of a scenario), and another where an owner has taken over.
const goneWithin = sweepTick + 2*leaseLongest + 10*time.Second

// lookedWithin is how much longer that is where the owner has not written the record itself: another one has, late, and of that it
// learns when it looks.
const lookedWithin = 31 * time.Minute

// within is how long a phase's record may name a worker that is gone.
func (c *checker) within(p bus.Phase, h *held) time.Duration {
	for _, s := range c.holds.stints[p.Partition(c.w.server.Partitions())] {
		if s.ended.IsZero() && s.p.name == h.writer {
			return goneWithin
		}
	}
	return goneWithin + lookedWithin
}

// leaseLongest is the longest lease that a scenario's phases have.
const leaseLongest = 10 * time.Second

// held says what of the phases is not at rest, or "": each comes to be Inactive, and is held by nobody.
func (c *checker) held() string {
	for _, p := range c.heldPhases() {
		h := c.holds.phases[p]
		c.holding(p)
		for i := range h.record.Holders {
			name := h.record.Holders[i].Worker
			switch since, gone := h.gone[name]; {
			case slices.ContainsFunc(h.callers, func(x *caller) bool { return x.name == name }):
				delete(h.gone, name)
			case !gone:
				h.gone[name] = c.w.now
			case c.w.now.After(since.Add(c.within(p, h))) && c.w.now.After(c.restarted.Add(goneWithin)):
				c.w.violate("%s is gone since %s, and holds phase %s of %s: %s", name, c.w.clockText(since), p.Phase, p.Kind, recordText(&h.record))
			}
		}
		if s := &h.record; s.Revision > 0 && (s.Activity != phase.Inactive || len(s.Holders) > 0) {
			return fmt.Sprintf("phase %s of %s is not at rest: %s", p.Phase, p.Kind, recordText(s))
		}
	}
	return ""
}

func (c *checker) heldPhases() []bus.Phase {
	return slices.SortedFunc(maps.Keys(c.holds.phases), func(a, b bus.Phase) int {
		return compareKeys(resource.Key{Kind: a.Kind, Name: a.Phase}, resource.Key{Kind: b.Kind, Name: b.Phase})
	})
}

// counted holds the counts of records at rest to what was done, where nothing went wrong.
func (c *checker) counted() {
	if c.w.faults != (faults{}) {
		return
	}
	for _, p := range c.heldPhases() {
		h := c.holds.phases[p]
		if !c.named(bus.Entity{Project: p.Project, Kind: p.Kind, Name: p.Phase}) {
			continue // it was refused to those who held it, who told their last counts to nobody
		}
		if got := h.record.Counts(); got != h.made {
			c.w.violate("phase %s of %s has counted %+v, and what was done is %+v", p.Phase, p.Kind, got, h.made)
		}
	}
}

// named reports whether a record is of a phase that the present blueprint has, or of one whose consumer is there: a job that has not
// ended may come to it.
func (c *checker) named(e bus.Entity) bool {
	w, ctx := c.w, context.Background()
	if puller, err := w.server.Pull(ctx, bus.Phase{Project: e.Project, Kind: e.Kind, Phase: e.Name}); err == nil {
		puller.Close()
		return true
	}
	stored, err := w.server.Last(ctx, []bus.Entity{catalog.BlueprintEntity(e.Project, e.Kind, w.server.Partitions())})
	if err != nil || stored[0].Seq == 0 || stored[0].Deleted {
		return false
	}
	b, err := wire.DecodeBlueprint(stored[0].Body)
	if err != nil {
		w.violate("a blueprint cannot be read: %v", err)
	}
	bp := c.blueprints[b.Digest]
	return bp != nil && bp.Phase(e.Name) != nil
}
