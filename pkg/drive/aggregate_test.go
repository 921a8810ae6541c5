package drive_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/drive"
)

// The aggregate of these tests is a ledger: a book and its copy, which no reader may ever see apart, and the entries of
// which are counted once.

type ledger struct {
	Book, Copy int
	Entries    string   // of the book
	Seen       []string // inputs that were applied, in order
	Left       int      // steps that the last input still has
	DueAt      time.Time
}

type entry struct {
	id    string
	steps int // batches that it takes
	alone bool
	peek  bool
	due   bool
}

type ledgerWorld struct {
	t     *testing.T
	rng   *rand.Rand
	seq   uint64
	log   map[drive.EntityKey]uint64 // sequence of the last event
	state map[string]ledger          // by aggregate, as the log holds it
	stale map[string]ledger          // what a follower that is behind holds
	seqs  map[string]map[drive.EntityKey]uint64
	most  int
	calm  bool // nothing is lost
}

type ledgerHouse struct {
	w       *ledgerWorld
	loop    *drive.Aggregates[ledger, entry, string]
	out     []func()
	unread  bool
	behind  bool
	forgets int
}

func newLedgers(t *testing.T, seed uint64) *ledgerWorld {
	return &ledgerWorld{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), log: map[drive.EntityKey]uint64{}, state: map[string]ledger{},
		stale: map[string]ledger{}, seqs: map[string]map[drive.EntityKey]uint64{},
	}
}

func (w *ledgerWorld) house(limits drive.AggregateLimits) *ledgerHouse {
	h := &ledgerHouse{w: w}
	h.loop = drive.NewAggregates(h, limits)
	for _, id := range slices.Sorted(maps.Keys(w.state)) {
		h.loop.Adopt(drive.AggregateKey{Project: "p", ID: id}, w.state[id])
	}
	return h
}

func (h *ledgerHouse) Step(key drive.AggregateKey, s ledger, in entry) drive.Decision[ledger, string] {
	switch {
	case in.peek:
		return drive.Decision[ledger, string]{Reply: fmt.Sprint(s.Book), Fresh: true}
	case in.due && s.DueAt.IsZero(), slices.Contains(s.Seen, in.id) && s.Left == 0:
		return drive.Decision[ledger, string]{Reply: "again " + in.id}
	}
	after := s
	after.Seen = slices.Clone(s.Seen)
	if in.due {
		after.DueAt, in.id, in.alone = time.Time{}, "due", true
	}
	switch {
	case s.Left > 0 && slices.Contains(s.Seen, in.id):
		after.Left--
	default:
		after.Seen = append(after.Seen, in.id)
		after.Left = max(in.steps-1, 0)
	}
	after.Entries += in.id + ";"
	book, duplicate := drive.EntityKey{Family: "book", ID: key.ID}, drive.EntityKey{Family: "copy", ID: key.ID}
	d := drive.Decision[ledger, string]{After: after, Reply: in.id, Again: after.Left > 0}
	if in.alone {
		d.Documents = []drive.Document{{Entity: book, Project: "p", Event: after}}
		return d
	}
	d.After.Book, d.After.Copy = s.Book+1, s.Copy+1
	d.Documents = []drive.Document{{Entity: book, Project: "p", Event: d.After}, {Entity: duplicate, Project: "p", Event: d.After}}
	return d
}

func (h *ledgerHouse) Due(time.Time) entry { return entry{due: true} }

func (h *ledgerHouse) Load(keys []drive.AggregateKey, fresh bool) ([]drive.LoadedAggregate[ledger], error) {
	if h.unread {
		return nil, errors.New("unread")
	}
	loaded := make([]drive.LoadedAggregate[ledger], len(keys))
	for i, k := range keys {
		s := h.w.state[k.ID]
		if h.behind && !fresh {
			s = h.w.stale[k.ID]
		}
		loaded[i] = drive.LoadedAggregate[ledger]{State: s, Seqs: maps.Clone(h.w.seqs[k.ID])}
	}
	return loaded, nil
}

func (h *ledgerHouse) Known(_ drive.AggregateKey, s ledger) time.Time { return s.DueAt }

func (h *ledgerHouse) Forget(string, drive.EntityKey, uint64) { h.forgets++ }

// Store answers when it is asked to (answer), as a log would: all or nothing, and what is out of date is refused.
func (h *ledgerHouse) Store(docs []drive.Expected, done func(uint64, error)) {
	require.LessOrEqual(h.w.t, len(docs), drive.DocumentsMax)
	h.w.most = max(h.w.most, len(docs))
	h.out = append(h.out, func() {
		w := h.w
		fate := w.rng.IntN(10)
		if w.calm {
			fate = 9
		}
		if fate == 0 { // it never arrived
			done(0, drive.ErrLost)
			return
		}
		seen := map[drive.EntityKey]bool{}
		for _, d := range docs {
			require.False(w.t, seen[d.Entity], "two events of %v in a batch", d.Entity)
			seen[d.Entity] = true
			if w.log[d.Entity] != d.Expect {
				done(0, drive.ErrLost)
				return
			}
		}
		for _, d := range docs {
			w.seq++
			w.log[d.Entity] = w.seq
			id := d.Entity.ID
			if w.seqs[id] == nil {
				w.seqs[id] = map[drive.EntityKey]uint64{}
			}
			w.seqs[id][d.Entity] = w.seq
			w.stale[id] = w.state[id]
			w.state[id] = d.Event.(ledger)
		}
		if fate == 1 { // the answer is lost
			done(0, drive.ErrLost)
			return
		}
		done(w.seq, nil)
	})
}

func (h *ledgerHouse) answer() {
	if len(h.out) == 0 {
		return
	}
	i := h.w.rng.IntN(len(h.out))
	f := h.out[i]
	h.out = slices.Delete(h.out, i, i+1)
	f()
}

// TestLedgers: whatever is lost, overtaken or repeated, and by however many owners at once, each input is applied once, all
// of its steps, and the entities of an aggregate never come apart.
func TestLedgers(t *testing.T) {
	t.Parallel()
	most := 0
	for seed := range uint64(300) {
		w := newLedgers(t, seed)
		limits := drive.AggregateLimits{CachedStates: 2, Batches: 2, StepsMax: 3 + int(seed%5)}
		houses := []*ledgerHouse{w.house(limits), w.house(limits)}
		want, answered := map[string]int{}, map[string]bool{}
		var offer func(h *ledgerHouse, id string, in entry)
		offer = func(h *ledgerHouse, id string, in entry) {
			h.loop.Offer(drive.AggregateInput[entry, string]{
				Key: drive.AggregateKey{Project: "p", ID: id}, Input: in,
				Reply: func(string) { answered[in.id] = true },
				Back:  func(error) { w.rng.Uint64(); h.out = append(h.out, func() { offer(h, id, in) }) },
				Aside: func(reason string) { t.Fatalf("seed %d: %s set aside: %s", seed, in.id, reason) },
			})
		}
		for i := range 60 {
			id := fmt.Sprint("l", w.rng.IntN(5))
			in := entry{id: fmt.Sprint("e", i), steps: 1 + w.rng.IntN(3), alone: w.rng.IntN(4) == 0}
			if in.alone {
				in.steps = 1
			}
			want[in.id] = in.steps
			h := houses[w.rng.IntN(2)]
			h.unread = w.rng.IntN(8) == 0
			offer(h, id, in)
			for range w.rng.IntN(4) {
				houses[w.rng.IntN(2)].answer()
			}
			if w.rng.IntN(15) == 0 { // killed: what it had is offered to the next by those that got no answer
				n := w.rng.IntN(2)
				houses[n] = w.house(limits)
			}
		}
		for _, h := range houses {
			h.unread = false
		}
		for tries := 0; len(answered) < len(want) || !houses[0].loop.Idle() || !houses[1].loop.Idle(); tries++ {
			require.Less(t, tries, 20_000, "seed %d: no end; %d of %d answered", seed, len(answered), len(want))
			for _, h := range houses {
				h.answer()
			}
			if tries%200 == 199 { // who got no answer asks again
				for _, in := range slices.Sorted(maps.Keys(want)) {
					if !answered[in] {
						id := holder(w, in)
						offer(houses[0], id, entry{id: in, steps: want[in]})
					}
				}
			}
		}
		applied := map[string]int{}
		for id, s := range w.state {
			require.Equal(t, s.Book, s.Copy, "seed %d: %s", seed, id)
			require.Zero(t, s.Left, "seed %d: %s was left in the middle", seed, id)
			for _, e := range s.Seen {
				applied[e]++
			}
		}
		for in := range want {
			require.Equal(t, 1, applied[in], "seed %d: %s", seed, in)
		}
		most = max(most, w.most)
	}
	require.Greater(t, most, 4, "aggregates that wait for the log share a batch")
}

// TestOneOwnerLosesNothing: the sequences that a batch was stored with are those that its aggregates expect next.
func TestOneOwnerLosesNothing(t *testing.T) {
	t.Parallel()
	w := newLedgers(t, 3)
	w.calm = true
	h := w.house(drive.AggregateLimits{Batches: 1})
	for i := range 200 {
		h.loop.Offer(drive.AggregateInput[entry, string]{
			Key: drive.AggregateKey{Project: "p", ID: fmt.Sprint("l", i%7)}, Input: entry{id: fmt.Sprint("e", i), steps: 1 + i%3, alone: i%5 == 0},
			Reply: func(string) {},
		})
		if i%3 == 0 {
			h.answer()
		}
	}
	for !h.loop.Idle() {
		h.answer()
	}
	require.Zero(t, h.loop.Stats().Lost)
	require.Less(t, h.loop.Stats().Batches, h.loop.Stats().Documents/4, "a batch is shared")
}

// TestARefusedBatchIsMadeAnewAlone: an aggregate that another owner has written to holds nothing up twice.
func TestARefusedBatchIsMadeAnewAlone(t *testing.T) {
	t.Parallel()
	w := newLedgers(t, 4)
	w.calm = true
	h, rival := w.house(drive.AggregateLimits{Batches: 1}), w.house(drive.AggregateLimits{})
	replies := 0
	tell := func(h *ledgerHouse, id, in string) {
		h.loop.Offer(drive.AggregateInput[entry, string]{
			Key: drive.AggregateKey{Project: "p", ID: id}, Input: entry{id: in, steps: 1}, Reply: func(string) { replies++ },
		})
	}
	tell(h, "l0", "a") // it is out, so that the others wait and share
	for i := 1; i < 4; i++ {
		tell(h, fmt.Sprint("l", i), "b")
	}
	tell(rival, "l2", "c")
	rival.answer()
	h.answer()
	require.Len(t, h.out, 1)
	h.answer() // refused
	for range 3 {
		require.Len(t, h.out, 1)
		h.answer()
	}
	require.Empty(t, h.out)
	require.Equal(t, 5, replies)
	require.Zero(t, h.loop.Stats().Lost, "alone none was lost")
}

// holder is the aggregate that has an input already, or else any.
func holder(w *ledgerWorld, in string) string {
	for _, id := range slices.Sorted(maps.Keys(w.state)) {
		if slices.Contains(w.state[id].Seen, in) {
			return id
		}
	}
	return "l0"
}

// TestAnswersThatNothingProves: what turns an input away is decided on what the leader holds, not on what a follower did.
func TestAnswersThatNothingProves(t *testing.T) {
	t.Parallel()
	w := newLedgers(t, 1)
	w.state["l0"], w.stale["l0"] = ledger{Book: 7}, ledger{Book: 6}
	h := w.house(drive.AggregateLimits{})
	h.behind = true
	var got string
	h.loop.Offer(drive.AggregateInput[entry, string]{
		Key: drive.AggregateKey{Project: "p", ID: "l0"}, Input: entry{peek: true}, Reply: func(s string) { got = s },
	})
	require.Equal(t, "7", got)
}

// TestAggregatesAreDue: a time in a state is kept by a takeover, comes once, and one that brings nothing does not come at
// once again.
func TestAggregatesAreDue(t *testing.T) {
	t.Parallel()
	w := newLedgers(t, 1)
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	w.state["l0"] = ledger{DueAt: at}
	h := w.house(drive.AggregateLimits{})
	require.Equal(t, at, h.loop.NextDue())
	h.loop.Tick(at.Add(-time.Second))
	require.Empty(t, h.out)
	h.unread = true
	h.loop.Tick(at)
	require.Empty(t, h.out)
	require.True(t, h.loop.NextDue().After(at), "it could not be read: it is asked for soon, not at once")
	h.unread = false
	for range 100 {
		if w.state["l0"].DueAt.IsZero() {
			break
		}
		h.loop.Tick(cmp.Or(h.loop.NextDue(), at))
		h.answer()
	}
	require.Zero(t, w.state["l0"].DueAt)
	require.Equal(t, []string{"due"}, w.state["l0"].Seen)
}

// teller is a house that offers an aggregate one more input when it is told of a state.
type teller struct {
	*ledgerHouse
	offer func()
}

func (h *teller) Known(k drive.AggregateKey, s ledger) time.Time {
	if offer := h.offer; offer != nil && s.Book > 0 {
		h.offer = nil
		offer()
	}
	return h.ledgerHouse.Known(k, s)
}

// TestWhatATellingOffersComesAfter: who is told of a state may offer its aggregate more, and the input that led to the state is
// not stepped again for it.
func TestWhatATellingOffersComesAfter(t *testing.T) {
	t.Parallel()
	w := newLedgers(t, 9)
	w.calm = true
	h := &teller{ledgerHouse: &ledgerHouse{w: w}}
	h.loop = drive.NewAggregates[ledger, entry, string](h, drive.AggregateLimits{})
	var replies []string
	offer := func(id string) {
		h.loop.Offer(drive.AggregateInput[entry, string]{
			Key: drive.AggregateKey{Project: "p", ID: "l"}, Input: entry{id: id, steps: 1},
			Reply: func(r string) { replies = append(replies, r) },
		})
	}
	h.offer = func() { offer("second") }
	offer("first")
	for !h.loop.Idle() {
		h.answer()
	}
	require.Equal(t, []string{"first", "second"}, replies)
	require.Equal(t, []string{"first", "second"}, w.state["l"].Seen)
	require.Equal(t, uint64(2), h.loop.Stats().Steps)
}

// knower remembers what it was told of.
type knower struct {
	*ledgerHouse
	known ledger
}

func (h *knower) Known(k drive.AggregateKey, s ledger) time.Time {
	h.known = s
	return h.ledgerHouse.Known(k, s)
}

// TestWhatWasStoredUnheardIsKnown (simulator, seed 54763307897013): an append whose answer was lost, in front of a log that could not
// be read then, is looked at until it can be, though nobody asks.
func TestWhatWasStoredUnheardIsKnown(t *testing.T) {
	t.Parallel()
	unheard := 0
	for seed := range uint64(100) {
		w := newLedgers(t, seed)
		h := &knower{ledgerHouse: w.house(drive.AggregateLimits{})}
		h.loop = drive.NewAggregates(h, drive.AggregateLimits{})
		back := false
		h.loop.Offer(drive.AggregateInput[entry, string]{
			Key: drive.AggregateKey{Project: "p", ID: "l0"}, Input: entry{id: "a", steps: 1, alone: true}, Reply: func(string) {},
			Back: func(error) { back = true },
		})
		h.unread = true
		h.answer()
		if !back || w.state["l0"].Entries == "" {
			continue
		}
		unheard++
		require.Empty(t, h.known.Entries)
		at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
		for i := range 4 {
			require.False(t, h.loop.NextDue().IsZero())
			h.unread = i < 2
			h.loop.Tick(at.Add(time.Duration(i) * time.Minute))
			if i < 2 {
				require.Empty(t, h.known.Entries)
				continue
			}
			break
		}
		require.Equal(t, "a;", h.known.Entries)
		require.Empty(t, h.out)
	}
	require.Positive(t, unheard)
}
