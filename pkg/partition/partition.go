// Package partition is one partition of the log: a drive.Loop over a bus. It reads what the log holds (takeover), turns
// what is delivered into the Loop's inputs, and carries out what the Loop asks for (port.go). The orchestrator runs it
// on goroutines, the simulator on one thread; both run this code.
//
// # Absent on purpose
//
// No goroutine, timer or channel of its own: what runs beside, and when, is the Shell's. No decision: those are
// pkg/engine's.
package partition

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
)

const (
	retryAfter = time.Second      // before a result that could not be applied comes again
	renewAgain = 2 * time.Second  // before others' events are read again that could not be read
	lookFirst  = 30 * time.Second // after a takeover, and after another owner was met
	lookMost   = 30 * time.Minute // between two looks: less than the time for which a tombstone is there
	lookIdle   = time.Hour        // before a blueprint of which nothing was left is looked at: an owner, late, may have made a consumer anew
)

// Bus is the part of the bus that an Owner needs.
type Bus interface {
	bus.Log
	bus.Work
	// History is bus.Readers'.
	History(ctx context.Context, e bus.Entity) ([]bus.Stored, error)
	Backlog(ctx context.Context, stream string, partition int) (n uint64, oldest time.Time, err error)
	Partitions() int
}

// Shell runs what an Owner does not run itself. Its methods may be called from the Owner's goroutine and from what
// Background runs.
type Shell interface {
	// Background runs f, which may block, beside the Owner. The context given to New ends what it waits for.
	Background(f func())
	// Later runs f on the Owner's goroutine, after the present call has returned; never, once the stint is over.
	Later(f func())
	// Sleep waits, at most until the stint is over. Only what Background runs calls it.
	Sleep(d time.Duration)
}

// Observer counts. Its methods may be called from any goroutine.
type Observer interface {
	Appended(family bus.Family)
	Lost()
	Refused(code resource.Code)
	SetAside()
	Noted(code resource.NoteCode)
	Swept(partition int, s drive.Stats)
}

// Reply answers a request, once.
type Reply func(header map[string]string, body []byte)

// Config is what a partition is served with. All of it is required, but for Others and Limits.
type Config struct {
	Bus      Bus
	Others   Others // nil: selector commands are refused, and those in the log left alone
	Catalog  *catalog.Catalog
	Now      func() time.Time // the server's clock, as this process knows it
	Log      *zap.Logger
	Observer Observer
	Shell    Shell
	Number   int
	Limits   drive.Limits
}

// Owner is one stint at one partition. It belongs to one goroutine.
type Owner struct {
	c      Config
	ctx    context.Context
	port   *port
	loop   *drive.Loop
	sweeps map[bus.Phase]bool // drained phases, of one sweep

	selections *selections
	callbacks  *callbacks
	doors      []door

	seen      map[bus.Family]uint64 // the log was read up to here
	lookAt    time.Time
	lookAfter time.Duration
	learning  []func(error) // who waits for the log to be read
}

// New returns an Owner that knows nothing yet; TakeOver is called next. ctx ends when the stint does.
func New(ctx context.Context, c Config) *Owner {
	p := &port{c: c, ctx: ctx}
	o := &Owner{c: c, ctx: ctx, port: p, loop: drive.New(p, c.Limits)}
	p.keeper = &keeper{p: p, kinds: map[kindKey]*keptKind{}}
	p.look = func() error {
		_, err := o.read(o.loop.Learn)
		return err
	}
	o.callbacks = newCallbacks(o)
	o.loop.Watch(o.callbacks.observe)
	o.doors = []door{newPhases(o), newChecks(o), newMachines(o), o.callbacks}
	o.selections = &selections{o: o, live: map[drive.JobKey]*walk{}, feeds: map[string]func(){}}
	return o
}

// Close gives back what the Owner shares with others. It is called once, when the stint is over and nothing of it runs on
// the Owner's goroutine any more.
func (o *Owner) Close() { o.loop.Close() }

// Taken is what a takeover found.
type Taken struct{ Resources, Jobs int }

// TakeOver reads the last events of the partition and rebuilds what is outstanding.
func (o *Owner) TakeOver() (Taken, error) {
	taken, err := o.read(o.loop.Adopt)
	if err != nil {
		return taken, o.port.meet(err)
	}
	now := o.c.Now()
	o.lookAfter = lookFirst
	o.lookAt = now.Add(o.lookAfter)
	o.loop.Begin(now)
	o.selections.resume()
	for _, d := range o.doors {
		if err := d.takeOver(); err != nil {
			return taken, o.port.meet(err)
		}
	}
	return taken, nil
}

type adopt func(s resource.State, seq uint64, jobs func(id string) (drive.LoadedJob, bool))

// read tells the Loop of every entity that was written since the last read.
func (o *Owner) read(each adopt) (Taken, error) {
	jobs := map[string]drive.LoadedJob{}
	taken, seen := Taken{}, map[bus.Family]uint64{}
	err := o.c.Bus.Scan(o.ctx, o.c.Number, bus.Job, func(m bus.Stored) error {
		j, err := decodeJob(m)
		if err != nil {
			return fmt.Errorf("job %s: %w", m.Entity.Name, err)
		}
		jobs[j.Record.ID] = j
		if m.Seq > o.seen[bus.Job] {
			key := drive.JobKey{Project: m.Entity.Project, ID: j.Record.ID}
			o.loop.AdoptJob(key, j)
			o.selections.adopt(key, j)
		}
		seen[bus.Job] = m.Seq
		return nil
	})
	if err != nil {
		return taken, err
	}
	taken.Jobs = len(jobs)
	err = o.c.Bus.Scan(o.ctx, o.c.Number, bus.Blueprint, func(m bus.Stored) error {
		if seen[bus.Blueprint] = m.Seq; m.Seq <= o.seen[bus.Blueprint] {
			return nil
		}
		b, err := o.c.Catalog.Load(m)
		if err != nil {
			return fmt.Errorf("blueprint of kind %s: %w", m.Entity.Kind, err)
		}
		if b.Blueprint != nil {
			o.port.EnsurePhases(b.Blueprint)
		}
		o.loop.AdoptBlueprint(resource.Key{Project: m.Entity.Project, Kind: drive.BlueprintKind, Name: m.Entity.Kind}, b)
		return nil
	})
	if err != nil {
		return taken, err
	}
	err = o.c.Bus.Scan(o.ctx, o.c.Number, bus.Resource, func(m bus.Stored) error {
		taken.Resources++
		if seen[bus.Resource] = m.Seq; m.Seq <= o.seen[bus.Resource] {
			return nil
		}
		r, err := decodeResource(m)
		if err != nil {
			return fmt.Errorf("resource %s/%s/%s: %w", m.Entity.Project, m.Entity.Kind, m.Entity.Name, err)
		}
		each(r.State, r.Seq, func(id string) (drive.LoadedJob, bool) { j, ok := jobs[id]; return j, ok })
		return nil
	})
	if err != nil {
		return taken, err
	}
	o.seen = seen
	o.loop.Covered(seen[bus.Resource])
	return taken, nil
}

// look reads what was written since the last look, if it is time for that, and then does what is to be done after it. Owners overlap, and
// one may have written after another's takeover: of that nobody tells. The longer nobody was met, the seldomer it looks.
func (o *Owner) look(then func()) {
	now := o.c.Now()
	if o.port.met {
		o.port.met = false
		o.lookAfter = lookFirst
	}
	// Another owner was met, or the clock was set back. It is never put off: who meets another again and again would never look.
	if at := now.Add(o.lookAfter); at.Before(o.lookAt) {
		o.lookAt = at
	}
	if now.Before(o.lookAt) || len(o.learning) > 0 {
		then()
		return
	}
	o.learnSoon(func(err error) {
		if err == nil {
			o.lookAfter = min(2*o.lookAfter, lookMost)
			o.lookAt = now.Add(o.lookAfter)
		} else {
			o.c.Log.Warn("what other owners wrote could not be read; the next sweep tries again", zap.Error(err))
		}
		then()
	})
}

// learnSoon is learn once the log can be read, and tells then of it. A reader needs a leader of all servers, which is away for seconds
// when one of them is lost, though the log goes on: the owner serves meanwhile.
func (o *Owner) learnSoon(then func(error)) {
	if o.learning = append(o.learning, then); len(o.learning) > 1 {
		return // it is yet to be read
	}
	o.c.Shell.Background(func() {
		err := o.c.Bus.Scan(o.ctx, o.c.Number, bus.PhaseRecord, func(bus.Stored) error { return nil })
		o.c.Shell.Later(func() {
			told := o.learning
			o.learning = nil
			if err == nil {
				err = o.learn()
			}
			for _, then := range told {
				then(err)
			}
		})
	})
}

// learn reads what was written since the last read. A newer state than this version knows is told by Newer, too.
func (o *Owner) learn() error {
	if _, err := o.read(o.loop.Learn); err != nil {
		return o.port.meet(err)
	}
	for _, d := range o.doors {
		if err := d.takeOver(); err != nil {
			return o.port.meet(err)
		}
	}
	o.port.keeper.again()
	o.selections.resume()
	return nil
}

// Renew goes on as after a takeover, from what is in the log: this process was taken for dead, and others may have served the
// partition meanwhile. Call it when they have stopped; what one appends after all, the next looks find (look). It returns at once, and
// the Owner serves on: two owners do no harm, but nobody tells one of what the other wrote.
func (o *Owner) Renew() {
	o.learnSoon(func(err error) {
		if err != nil {
			o.c.Log.Warn("what other owners wrote could not be read; it is tried again", zap.Error(err), zap.Duration("after", renewAgain))
			o.c.Shell.Background(func() {
				o.c.Shell.Sleep(renewAgain)
				o.c.Shell.Later(o.Renew)
			})
			return
		}
		now := o.c.Now()
		o.lookAfter = lookFirst
		o.lookAt = now.Add(o.lookAfter)
		o.loop.Begin(now)
	})
}

// Ready reports whether more results should be offered.
func (o *Owner) Ready() bool { return o.loop.Ready() }

// Stats are the Loop's counters.
func (o *Owner) Stats() drive.Stats { return o.loop.Stats() }

// NextDue is when Tick has something to do, by the server's clock; zero: no time is known.
func (o *Owner) NextDue() time.Time {
	next := earlier(o.loop.NextDue(), o.selections.nextDue())
	for _, d := range o.doors {
		next = earlier(next, d.nextDue())
	}
	return next
}

// earlier is the earlier of two times, of which a zero one is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Tick looks at the clock: what is due is stepped.
func (o *Owner) Tick() {
	now := o.c.Now()
	o.loop.Tick(now)
	o.selections.tick()
	for _, d := range o.doors {
		d.tick(now)
	}
}

// Out is how many appends were sent whose answers were not taken.
func (o *Owner) Out() int { return len(o.port.out) }

// Head is closed when the oldest append was answered; nil where none is out. Answers are taken in the order of the sends.
func (o *Owner) Head() <-chan struct{} {
	if len(o.port.out) == 0 {
		return nil
	}
	return o.port.out[0].pending.Done()
}

// Answered takes the answers that are there.
func (o *Owner) Answered() {
	for len(o.port.out) > 0 {
		select {
		case <-o.port.out[0].pending.Done():
			if o.port.out[0].unknown() {
				o.port.inquire()
				continue
			}
			first := o.port.out[0]
			o.port.out[0] = outcome{}
			o.port.out = o.port.out[1:]
			first.done(first.pending.Result())
		default:
			return
		}
	}
}

// Offer takes results. What cannot be read is set aside with its reason, and holds nothing up.
func (o *Owner) Offer(deliveries []bus.Delivery) {
	inputs := make([]drive.Input, 0, len(deliveries))
	for _, d := range deliveries {
		in, ok := o.resultOf(d)
		if !ok {
			continue
		}
		in.Settle = func() {
			host.CrashPoint("orchestrator.before-ack")
			if err := d.Ack(); err != nil {
				o.c.Log.Debug("a result was not acknowledged; it comes again and is fenced", zap.Error(err))
			}
		}
		in.Back = func(err error) {
			o.c.Log.Warn("a result could not be applied now", zap.Error(err))
			_ = d.Retry(retryAfter) // unanswered it comes again all the same
		}
		in.Aside = func(reason string) { o.aside(d, reason) }
		inputs = append(inputs, in)
	}
	o.loop.Offer(inputs)
}

// resultOf reads a result, or a callback. False: it was settled, or comes again.
func (o *Owner) resultOf(d bus.Delivery) (in drive.Input, ok bool) {
	if _, _, err := bus.ParseCallbackSubject(d.Subject()); err == nil {
		return o.callbacks.take(d)
	}
	e, err := bus.ParseResultSubject(d.Subject())
	if err != nil {
		o.aside(d, err.Error())
		return in, false
	}
	r, err := wire.DecodeResult(d.Header(bus.HeaderContentType), d.Body())
	if err != nil {
		o.aside(d, err.Error())
		return in, false
	}
	return drive.Input{
		Key: resource.Key{Project: e.Project, Kind: e.Kind, Name: e.Name},
		Input: resource.Input{
			Kind: resource.OnResult, At: d.Time(), Result: &r, Traceparent: d.Header(bus.HeaderTraceparent),
		},
	}, true
}

// aside sets a poison message aside; a sound one behind it is not held up.
func (o *Owner) aside(d bus.Delivery, reason string) {
	o.c.Observer.SetAside()
	o.c.Log.Warn("a result was set aside", host.Subject(d.Subject()), host.Sequence(d.Seq()), host.Reason(reason))
	o.c.Shell.Background(func() {
		ctx, cancel := context.WithTimeout(o.ctx, ensureTimeout)
		defer cancel()
		if err := d.Reject(ctx, reason); err != nil {
			o.c.Log.Warn("a poison message could not be set aside; it comes again", zap.Error(err))
		}
	})
}

// Ask takes a request of intake or lifecycle. The reply may come later, on the Owner's goroutine.
func (o *Owner) Ask(r bus.Request, reply Reply) {
	switch r.Verb {
	case "command":
		o.command(r, reply)
	case "sweep":
		o.sweep(reply)
	default:
		family, verb, _ := strings.Cut(r.Verb, ".")
		for _, d := range o.doors {
			if d.family() == family {
				d.ask(verb, r, reply)
				return
			}
		}
		o.refuse(reply, r.Header, resource.Invalid, "a partition's owner does not know "+strconv.Quote(r.Verb))
	}
}

// Overloaded refuses a request that the Owner has no room for. It may be called from any goroutine.
func (o *Owner) Overloaded(r bus.Request, reply Reply, reason string) {
	o.refuse(reply, r.Header, resource.Overloaded, reason)
}

func (o *Owner) sweep(reply Reply) { o.look(func() { o.swept(reply) }) }

func (o *Owner) swept(reply Reply) {
	o.sweeps = map[bus.Phase]bool{}
	report := o.loop.Sweep(o.c.Now(), o.drained)
	o.sweeps = nil
	o.port.keeper.sweep(o.c.Now())
	for _, d := range o.doors {
		d.sweep(o.c.Now())
	}
	o.c.Observer.Swept(o.c.Number, o.loop.Stats())
	body, err := json.Marshal(report)
	if err != nil {
		o.c.Log.Error("a sweep's report could not be written", zap.Error(err))
		return
	}
	reply(map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, body)
}

// drained reports whether nothing of a phase's work is out anywhere: neither in WORK nor, as a result, on its way here.
func (o *Owner) drained(kind, phase string, key resource.Key) bool {
	p := bus.Phase{Project: key.Project, Kind: kind, Phase: phase}
	if known, ok := o.sweeps[p]; ok {
		return known
	}
	ctx, cancel := context.WithTimeout(o.ctx, ensureTimeout)
	defer cancel()
	n, caughtUp, err := o.c.Bus.Outstanding(ctx, p)
	drained := err == nil && caughtUp && n == 0
	if drained {
		backlog, _, err := o.c.Bus.Backlog(ctx, "RESULTS", o.c.Number)
		drained = err == nil && backlog == 0
	}
	o.sweeps[p] = drained
	return drained
}
