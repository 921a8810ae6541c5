package drive

import (
	"container/list"
	"errors"
	"time"
)

// An aggregate is what is decided on together and is no resource: a machine with its task runs, a check instance with its
// configurations. It goes the same way as a resource: load, step, append with the expected sequences, act, settle. Its
// machine is pkg/engine's and pure; Aggregates is the loop around it.

// AggregateKey names an aggregate.
type AggregateKey struct{ Project, ID string }

// EntityKey names one entity of an aggregate, or a job's record that is written with it. Kind is empty but where the family's
// entities have one.
type EntityKey struct{ Family, Kind, ID string }

// Document is one event of an entity of an aggregate. Where Gone, it buries it.
type Document struct {
	Entity   EntityKey
	Project  string
	From, To string
	JobID    string
	Revision uint64
	// Event is what the Port encodes.
	Event any
	Gone  bool
}

// Decision is what one step of an aggregate came to.
type Decision[S, R any] struct {
	// After is the state once the documents are stored.
	After S
	// Documents are stored together or not at all, at most one an entity and DocumentsMax. None: nothing changed. One that
	// buries is alone.
	Documents []Document
	// Again asks for another step with the same input, once they are stored: what is more than one batch goes on from
	// what the state holds. The input is answered by the step that asks for none.
	Again bool
	// Reply answers the input.
	Reply R
	// Fresh says that the reply turns the input away, or tells what no append proves: it is only believed of a state that
	// was read from the log's leader for it.
	Fresh bool
}

// DocumentsMax is how many documents one decision may hold: those of one atomic batch (bus.BatchMessagesMax).
const DocumentsMax = 900

// LoadedAggregate is an aggregate as the log holds it. Seqs has the sequence of each of its entities that is there, those
// that are buried included.
type LoadedAggregate[S any] struct {
	State S
	Seqs  map[EntityKey]uint64
}

// AggregatePort is what Aggregates act through. All but Load return at once.
type AggregatePort[S, I, R any] interface {
	// Step decides on one input. It is pure: pkg/engine's Step.
	Step(key AggregateKey, s S, in I) Decision[S, R]
	// Due is the input that tells an aggregate that its time has come.
	Due(at time.Time) I
	// Load reads aggregates, in the order asked; fresh as for Port.Load.
	Load(keys []AggregateKey, fresh bool) ([]LoadedAggregate[S], error)
	// Store appends one document, or several as one atomic batch, each with the sequence that it expects of its entity; done
	// as for Port.Append, with the sequence of the last, the others being right before it.
	Store(docs []Expected, done func(seq uint64, err error))
	// Known tells of a state that is now the aggregate's last: loaded, adopted or stored. It returns when the aggregate is
	// to be stepped by itself; zero: never. What it offers is stepped after the input that led to the state.
	Known(key AggregateKey, s S) (due time.Time)
	// Forget removes every trace of an entity that was buried at seq; it works in the background, and what fails is told
	// again by the next takeover.
	Forget(project string, e EntityKey, seq uint64)
}

// Expected is a document with the sequence of its entity's last event; 0: there is none.
type Expected struct {
	Document
	Expect uint64
}

// ErrOvertaken is that other writers were first each time that something was tried. One of them may have been this one, earlier, with
// an answer that was lost.
var ErrOvertaken = errors.New("other writers were first, again and again")

// AggregateInput is one thing that an aggregate is told. Exactly one of the functions is called, once.
type AggregateInput[I, R any] struct {
	Key   AggregateKey
	Input I
	// Reply is called with the answer, after what was decided is stored.
	Reply func(R)
	// Back is called when the input could not be decided now: it must come again. ErrOvertaken: it was tried AggregateLimits.StepsMax
	// times.
	Back func(error)
	// Aside is called when what it came to can never be stored.
	Aside func(reason string)
}

// Aggregates drives the aggregates of one partition. It belongs to one goroutine.
//
// Inputs of one aggregate are stepped one by one, each on the state that the batch before it committed; different ones
// proceed side by side. What several aggregates decide while the log is busy shares a batch: a batch costs the log some
// milliseconds by itself. One that is refused because another writer was first stores nothing, and each of its decisions
// is made anew, alone.
type Aggregates[S, I, R any] struct {
	port    AggregatePort[S, I, R]
	limits  AggregateLimits
	now     time.Time
	lanes   map[AggregateKey]*aggregateLane[S, I, R]
	idle    *list.List
	due     dueTimes[AggregateKey]
	armed   map[AggregateKey]time.Time // the earliest time under which each stands in due
	waiting []*decided[S, I, R]        // several documents each, for the next batch
	batches int                        // out
	lone    int                        // out
	stats   AggregateStats
}

// AggregateLimits of Aggregates. Zero values mean the defaults.
type AggregateLimits struct {
	// Batches is how many atomic batches may be out at once. Default 4; the server takes 50 a stream.
	Batches int
	// Appends is how many lone appends may be out, and how many decisions wait for a batch, before Ready is false.
	// Default 512.
	Appends int
	// CachedStates is how many idle aggregates are kept in memory. Default 4096.
	CachedStates int
	// StepsMax is how often one input is tried when others are first. Default 20.
	StepsMax int
}

// AggregateStats counts what was done.
type AggregateStats struct{ Steps, Documents, Batches, Lost uint64 }

// NewAggregates returns a loop that knows nothing yet.
func NewAggregates[S, I, R any](port AggregatePort[S, I, R], limits AggregateLimits) *Aggregates[S, I, R] {
	for v, otherwise := range map[*int]int{&limits.Batches: 4, &limits.Appends: 512, &limits.CachedStates: 4096, &limits.StepsMax: 20} {
		if *v <= 0 {
			*v = otherwise
		}
	}
	return &Aggregates[S, I, R]{
		port: port, limits: limits, lanes: map[AggregateKey]*aggregateLane[S, I, R]{}, idle: list.New(),
		armed: map[AggregateKey]time.Time{},
	}
}

type aggregateLane[S, I, R any] struct {
	key    AggregateKey
	state  S
	seqs   map[EntityKey]uint64
	loaded bool
	busy   bool
	lost   bool // an append was not answered, or another writer was first, and the log was not read since
	queue  []*aggregateItem[I, R]
	idleAt *list.Element
}

type aggregateItem[I, R any] struct {
	AggregateInput[I, R]
	tries int
	fresh bool // the state was read from the leader for it
	alone bool // it was in a batch that was refused
}

// decided is a decision on its way to the log.
type decided[S, I, R any] struct {
	lane *aggregateLane[S, I, R]
	item *aggregateItem[I, R]
	Decision[S, R]
}

// Ready reports whether more inputs should be offered.
func (a *Aggregates[S, I, R]) Ready() bool {
	return a.lone < a.limits.Appends && len(a.waiting) < a.limits.Appends
}

// Idle reports whether nothing is under way.
func (a *Aggregates[S, I, R]) Idle() bool {
	return a.lone == 0 && a.batches == 0 && len(a.waiting) == 0
}

// Stats returns the counters.
func (a *Aggregates[S, I, R]) Stats() AggregateStats { return a.stats }

// NextDue is when Tick has something to do; zero: no time is known.
func (a *Aggregates[S, I, R]) NextDue() time.Time { return a.due.next() }

// Adopt tells of an aggregate that the log holds, at a takeover, or because somebody else may have written. It is not kept
// in memory: it is read again before it is stepped.
func (a *Aggregates[S, I, R]) Adopt(key AggregateKey, s S) {
	if ln := a.lanes[key]; ln != nil {
		if ln.busy {
			return // its answer tells more
		}
		ln.loaded = false
	}
	a.arm(key, s)
}

// arm tells the Port of a state, and notes when the aggregate is due.
func (a *Aggregates[S, I, R]) arm(key AggregateKey, s S) {
	at := a.port.Known(key, s)
	if earlier, ok := a.armed[key]; at.IsZero() || ok && !at.Before(earlier) {
		return
	}
	a.armed[key] = at
	a.due.add(at, key)
}

// Offer takes inputs, in order. Aggregates that are not in memory are loaded together.
func (a *Aggregates[S, I, R]) Offer(inputs ...AggregateInput[I, R]) {
	var missing, touched []*aggregateLane[S, I, R]
	for i := range inputs {
		ln := a.lane(inputs[i].Key)
		ln.queue = append(ln.queue, &aggregateItem[I, R]{AggregateInput: inputs[i]})
		if !ln.loaded && !ln.busy && len(ln.queue) == 1 {
			missing = append(missing, ln)
		}
		touched = append(touched, ln)
	}
	a.load(missing, false) // what fails is tried again, or handed back, by run
	for _, ln := range touched {
		a.run(ln)
	}
	a.flush()
}

// Tick tells the time: what is due is stepped.
func (a *Aggregates[S, I, R]) Tick(now time.Time) {
	if now.After(a.now) {
		a.now = now
	}
	var inputs []AggregateInput[I, R]
	for {
		key, ok := a.due.past(a.now)
		if !ok {
			break
		}
		delete(a.armed, key)
		inputs = append(inputs, AggregateInput[I, R]{
			Key: key, Input: a.port.Due(a.now), Reply: func(R) {}, Aside: func(string) {},
			Back: func(error) { a.again(key) },
		})
	}
	if len(inputs) > 0 {
		a.Offer(inputs...)
	}
}

// rearm is arm after a step that changed nothing: a time that has come and brought nothing is not asked for at once again.
func (a *Aggregates[S, I, R]) rearm(ln *aggregateLane[S, I, R]) {
	if at := a.port.Known(ln.key, ln.state); !at.IsZero() && !at.After(a.now) {
		a.again(ln.key)
		return
	}
	a.arm(ln.key, ln.state)
}

// again looks at an aggregate soon whose time had come and which could not be looked at.
func (a *Aggregates[S, I, R]) again(key AggregateKey) {
	at := a.now.Add(ownAgain)
	if earlier, ok := a.armed[key]; !ok || at.Before(earlier) {
		a.armed[key] = at
		a.due.add(at, key)
	}
}

func (a *Aggregates[S, I, R]) lane(key AggregateKey) *aggregateLane[S, I, R] {
	ln := a.lanes[key]
	if ln == nil {
		ln = &aggregateLane[S, I, R]{key: key}
		a.lanes[key] = ln
	}
	if ln.idleAt != nil {
		a.idle.Remove(ln.idleAt)
		ln.idleAt = nil
	}
	return ln
}

func (a *Aggregates[S, I, R]) rest(ln *aggregateLane[S, I, R]) {
	if ln.busy || len(ln.queue) > 0 || ln.idleAt != nil {
		return
	}
	ln.idleAt = a.idle.PushBack(ln)
	for a.idle.Len() > a.limits.CachedStates {
		delete(a.lanes, a.idle.Remove(a.idle.Front()).(*aggregateLane[S, I, R]).key)
	}
}

func (a *Aggregates[S, I, R]) load(lanes []*aggregateLane[S, I, R], fresh bool) {
	if len(lanes) == 0 {
		return
	}
	keys := make([]AggregateKey, len(lanes))
	for i, ln := range lanes {
		keys[i] = ln.key
	}
	loaded, err := a.port.Load(keys, fresh)
	if err != nil {
		return
	}
	for i, ln := range lanes {
		ln.state, ln.seqs, ln.loaded, ln.lost = loaded[i].State, loaded[i].Seqs, true, false
		if ln.seqs == nil {
			ln.seqs = map[EntityKey]uint64{}
		}
		a.arm(ln.key, ln.state)
	}
}

// run steps the inputs of an aggregate until one has to wait for the log.
func (a *Aggregates[S, I, R]) run(ln *aggregateLane[S, I, R]) {
	for !ln.busy && len(ln.queue) > 0 {
		it := ln.queue[0]
		if !ln.loaded {
			a.load([]*aggregateLane[S, I, R]{ln}, it.fresh)
			if !ln.loaded {
				queue := ln.queue
				ln.queue = nil
				if ln.lost { // nobody else would come to know what was stored
					a.again(ln.key)
				}
				for _, it := range queue {
					it.Back(errors.New("the log could not be read"))
				}
				break
			}
		}
		if it.tries++; it.tries > a.limits.StepsMax {
			ln.queue = ln.queue[1:]
			it.Back(ErrOvertaken)
			continue
		}
		a.stats.Steps++
		d := a.port.Step(ln.key, ln.state, it.Input)
		switch {
		case d.Fresh && !it.fresh:
			ln.loaded, it.fresh = false, true
		case len(d.Documents) == 0:
			ln.queue = ln.queue[1:]
			a.rearm(ln)
			it.Reply(d.Reply)
		default:
			ln.busy = true
			w := &decided[S, I, R]{lane: ln, item: it, Decision: d}
			if len(d.Documents) == 1 {
				a.lone++
				a.store([]*decided[S, I, R]{w}, func() { a.lone-- })
			} else {
				a.waiting = append(a.waiting, w)
			}
		}
	}
	a.rest(ln)
}

// flush sends the decisions that wait, as many in a batch as it holds.
func (a *Aggregates[S, I, R]) flush() {
	for len(a.waiting) > 0 && a.batches < a.limits.Batches {
		n, documents := 0, 0
		taken := map[entityOf]struct{}{}
		for n < len(a.waiting) && a.fits(a.waiting[n], n, documents, taken) {
			documents += len(a.waiting[n].Documents)
			n++
		}
		batch := a.waiting[:n:n]
		a.waiting = a.waiting[n:]
		a.batches++
		a.stats.Batches++
		a.store(batch, func() { a.batches-- })
	}
}

type entityOf struct {
	project string
	key     EntityKey
}

// fits reports whether a decision may be the next of a batch that has n already, and notes its entities.
func (a *Aggregates[S, I, R]) fits(d *decided[S, I, R], n, documents int, taken map[entityOf]struct{}) bool {
	if n > 0 && (a.waiting[0].item.alone || d.item.alone || documents+len(d.Documents) > DocumentsMax) {
		return false
	}
	for i := range d.Documents {
		if _, ok := taken[entityOf{d.Documents[i].Project, d.Documents[i].Entity}]; ok {
			return false
		}
	}
	for i := range d.Documents {
		taken[entityOf{d.Documents[i].Project, d.Documents[i].Entity}] = struct{}{}
	}
	return true
}

// store appends what a batch decided; what follows from it follows when it is stored.
func (a *Aggregates[S, I, R]) store(batch []*decided[S, I, R], returned func()) {
	var docs []Expected
	for _, d := range batch {
		for _, doc := range d.Documents {
			docs = append(docs, Expected{Document: doc, Expect: d.lane.seqs[doc.Entity]})
		}
	}
	a.port.Store(docs, func(seq uint64, err error) {
		returned()
		if err == nil {
			a.stats.Documents += uint64(len(docs))
			next := seq - uint64(len(docs)) + 1
			for _, d := range batch {
				a.stored(d, next)
				next += uint64(len(d.Documents))
			}
		} else {
			a.failed(batch, err)
		}
		for _, d := range batch {
			a.run(d.lane)
		}
		a.flush()
	})
}

// stored makes what was decided the aggregate's present state; its first document has the sequence first.
func (a *Aggregates[S, I, R]) stored(d *decided[S, I, R], first uint64) {
	ln := d.lane
	ln.state = d.After
	if !d.Again {
		ln.queue = ln.queue[1:]
	}
	// It stays busy while others are told, who may offer it more: that is stepped when all are told.
	defer func() { ln.busy = false }()
	for i := range d.Documents {
		doc, seq := &d.Documents[i], first+uint64(i)
		ln.seqs[doc.Entity] = seq
		if doc.Gone {
			a.port.Forget(doc.Project, doc.Entity, seq)
		}
	}
	a.arm(ln.key, ln.state)
	if d.Again {
		d.item.tries, d.item.fresh = 0, false
		return
	}
	d.item.Reply(d.Reply)
}

// failed has what a batch decided decided anew: it may be stored though its answer was lost, so the log is read.
func (a *Aggregates[S, I, R]) failed(batch []*decided[S, I, R], err error) {
	for _, d := range batch {
		d.lane.busy, d.lane.loaded, d.lane.lost = false, false, true
		switch {
		case len(batch) > 1:
			d.item.alone = true
			d.item.tries-- // the batch's fault
		case errors.Is(err, ErrRefused):
			d.lane.queue = d.lane.queue[1:]
			d.item.Aside(err.Error())
		default:
			a.stats.Lost++
		}
	}
	if len(batch) > 1 {
		lanes := make([]*aggregateLane[S, I, R], len(batch))
		for i, d := range batch {
			lanes[i] = d.lane
		}
		a.load(lanes, false)
	}
}
