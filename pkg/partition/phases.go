package partition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// phases are the records of a partition's phases, and who holds them. Decisions are package phase's. That a holder still
// lives is no event: it is known here alone, and a new owner gives each holder that it finds one lease, as the record says it.
type phases struct {
	o    *Owner
	loop *drive.Aggregates[phase.State, phaseInput, phase.Reply]
	// heard is what is known of the leases of each record's holders.
	heard map[drive.AggregateKey]map[string]lease
	// silentAt is no later than the first of these times.
	silentAt time.Time
	// unused is since when a record without holders was looked at in vain, so that what no blueprint names any more goes.
	unused map[drive.AggregateKey]time.Time
	// formers are phases that their present blueprint has no more, as the last version that had them has them.
	formers map[bus.Phase]former
}

// lease is what is known of a holder.
type lease struct {
	of    time.Duration // that it was granted
	until time.Time
	order uint64 // of the holder's latest report
	// over: its record is to be told that it was silent; that does not hold where it is heard before the record is.
	over bool
	// spared: the owner itself was late when the lease ended, and has let it have another.
	spared bool
}

// former is a phase as an earlier version of the blueprint has it; def is nil where none has.
type former struct {
	present string // digest of the present blueprint
	def     *blueprint.Phase
}

// phaseInput is what a record is told: what its machine is told, or that it is to be buried.
type phaseInput struct {
	phase.Input
	bury bool
}

// phaseUnusedFor is how long a record stays that nobody holds and no blueprint names.
const phaseUnusedFor = time.Hour

func newPhases(o *Owner) *phases {
	p := &phases{o: o, heard: map[drive.AggregateKey]map[string]lease{}, unused: map[drive.AggregateKey]time.Time{}, formers: map[bus.Phase]former{}}
	p.loop = drive.NewAggregates[phase.State, phaseInput, phase.Reply](p, drive.AggregateLimits{})
	return p
}

func (p *phases) family() string { return string(bus.PhaseRecord) }

// phaseKey is a record's key: kinds and phases may hold any printable byte, so they are joined by one that none holds.
func phaseKey(ph bus.Phase) drive.AggregateKey {
	return drive.AggregateKey{Project: ph.Project, ID: ph.Kind + "\x00" + ph.Phase}
}

func phaseOf(key drive.AggregateKey) bus.Phase {
	kind, name, _ := strings.Cut(key.ID, "\x00")
	return bus.Phase{Project: key.Project, Kind: kind, Phase: name}
}

func phaseEntityKey(ph bus.Phase) drive.EntityKey {
	return drive.EntityKey{Family: string(bus.PhaseRecord), Kind: ph.Kind, ID: ph.Phase}
}

func (p *phases) entity(ph bus.Phase) bus.Entity {
	return bus.Entity{Partition: p.o.c.Number, Family: bus.PhaseRecord, Project: ph.Project, Kind: ph.Kind, Name: ph.Phase}
}

func (p *phases) takeOver() error {
	return p.o.c.Bus.Scan(p.o.ctx, p.o.c.Number, bus.PhaseRecord, func(m bus.Stored) error {
		key := phaseKey(bus.Phase{Project: m.Entity.Project, Kind: m.Entity.Kind, Phase: m.Entity.Name})
		if m.Deleted {
			p.o.port.forgetEntity(key.Project, phaseEntityKey(phaseOf(key)), m.Seq)
			return nil
		}
		s, err := decodePhase(m)
		if err != nil {
			return fmt.Errorf("phase %s of kind %s: %w", m.Entity.Name, m.Entity.Kind, err)
		}
		p.loop.Adopt(key, s)
		return nil
	})
}

func decodePhase(m bus.Stored) (phase.State, error) {
	if m.Seq == 0 || m.Deleted {
		return phase.State{}, nil
	}
	e, err := wire.DecodePhase(m.Body)
	if errors.Is(err, wire.ErrUnknown) {
		return phase.State{}, beyond(m, resource.ReaderVersion+1)
	}
	return e.State, err
}

// ask takes what a worker asks: "hold" and "release".
func (p *phases) ask(verb string, r bus.Request, reply Reply) {
	refuse := func(reason string) { p.answer(reply, wire.PhaseHold{Reason: reason}) }
	if r.Phase == (bus.Phase{}) {
		refuse("only a phase's workers ask for it")
		return
	}
	report, err := wire.DecodePhaseReport(r.Body)
	if err != nil {
		refuse("the report of a worker of " + r.Phase.Phase + ": " + err.Error())
		return
	}
	now := p.o.c.Now()
	said := report.At(now)
	key := phaseKey(r.Phase)
	known, holds := p.heard[key][report.Worker]
	in := phaseInput{Input: phase.Input{At: now}}
	var answer wire.PhaseHold
	switch verb {
	case "hold":
		def, reason, err := p.definition(r.Phase, holds && report.Out > 0)
		switch {
		case err != nil:
			refuse("the blueprint of kind " + strconv.Quote(r.Phase.Kind) + " could not be read; ask again")
			return
		case def == nil && holds && report.Order >= known.order:
			in.Release, answer.Reason = &said, reason // what it did last counts, all the same
		case def == nil:
			refuse(reason)
			return
		default:
			in.Hold, in.Calls, in.Lease = &said, def.CallsAtOnce(), def.Lease
			answer.Calls, answer.Interval = in.Calls, def.PendingInterval()
			answer.Lease, answer.CallLease = phase.HoldLease(def.Lease), def.CancelLease()
		}
	case "release":
		if report.Order != 0 && report.Order < known.order {
			refuse("it has asked for the phase since") // this word was late, and is of the holder's time before
			return
		}
		in.Release = &said
	default:
		refuse("a phase's worker cannot ask for " + strconv.Quote(verb))
		return
	}
	if in.Hold != nil {
		p.shorten(key, now, max(answer.Lease, phase.LeaseDefault)) // by then everyone who lives is heard, whatever he was granted
	}
	p.loop.Offer(drive.AggregateInput[phaseInput, phase.Reply]{
		Key: key, Input: in,
		Reply: func(granted phase.Reply) {
			if answer.Granted = granted.Granted; granted.Granted {
				p.hears(key, &report, now, answer.Lease)
			}
			for i := range granted.Holders {
				answer.Holders = append(answer.Holders, granted.Holders[i].Worker)
			}
			if len(answer.Holders) > 0 {
				answer.Reason = "held by " + strings.Join(answer.Holders, ", ")
			}
			p.answer(reply, answer)
		},
		Back:  func(err error) { refuse(err.Error()) },
		Aside: refuse,
	})
}

func (p *phases) answer(reply Reply, answer wire.PhaseHold) {
	body, err := wire.EncodePhaseHold(answer)
	if err != nil {
		p.o.c.Log.Error("a phase's worker is not answered", zap.Error(err))
		return
	}
	reply(nil, body)
}

// definition is the phase as the present blueprint of its kind has it, or else as the last one that had it, as long as work of
// it may be there: a job walks by the version that it pinned; and as long as a holder's calls are out. Where there is neither, the
// reason.
func (p *phases) definition(ph bus.Phase, out bool) (def *blueprint.Phase, reason string, err error) {
	bp, err := p.o.c.Catalog.Present(p.o.ctx, ph.Project, ph.Kind, false)
	if err != nil {
		return nil, "", p.o.port.meet(err)
	}
	if bp.Blueprint == nil {
		return nil, "there is no blueprint of kind " + strconv.Quote(ph.Kind), nil
	}
	if def := bp.Blueprint.Phase(ph.Phase); def != nil {
		delete(p.formers, ph)
		return def, "", nil
	}
	if def, err := p.former(ph, bp.Blueprint, out); def != nil || err != nil {
		return def, "", err
	}
	return nil, "the blueprint of kind " + strconv.Quote(ph.Kind) + " has no phase " + strconv.Quote(ph.Phase), nil
}

// former is a phase that has left its blueprint, while it has its consumer, until nothing is at it any more; or while calls are out.
func (p *phases) former(ph bus.Phase, present *blueprint.Blueprint, out bool) (*blueprint.Phase, error) {
	ctx, cancel := context.WithTimeout(p.o.ctx, loadTimeout)
	defer cancel()
	if bound, err := p.o.port.keeper.bound(ctx, ph); err != nil || !bound && !out {
		delete(p.formers, ph)
		return nil, err
	}
	if f, ok := p.formers[ph]; ok && f.present == present.Digest {
		return f.def, nil
	}
	f := former{present: present.Digest}
	versions, err := p.o.c.Bus.History(ctx, catalog.BlueprintEntity(ph.Project, ph.Kind, p.o.c.Bus.Partitions()))
	if err != nil {
		return nil, err
	}
	for _, m := range slices.Backward(versions) {
		if m.Version == "" || m.Version == present.Digest {
			continue
		}
		was, err := p.o.c.Catalog.Blueprint(ctx, ph.Project, ph.Kind, m.Version)
		if errors.Is(err, drive.ErrNotFound) {
			continue // it was removed meanwhile
		} else if err != nil {
			return nil, p.o.port.meet(err)
		}
		if f.def = was.Phase(ph.Phase); f.def != nil {
			break
		}
	}
	p.formers[ph] = f
	return f.def, nil
}

// hears that a holder lives: it holds the phase for so long without another word. Where that is shorter than what it was granted
// before, it may not have heard it yet, and holds the phase for as long as it believes.
func (p *phases) hears(key drive.AggregateKey, report *wire.PhaseReport, at time.Time, of time.Duration) {
	held := p.heard[key]
	if l, ok := held[report.Worker]; ok { // else it holds the phase unnamed
		if left := l.until.Sub(at); left > of {
			of = min(left, max(of, phase.LeaseDefault))
		}
		until := at.Add(of)
		held[report.Worker] = lease{of: of, until: until, order: max(l.order, report.Order)}
		p.silentAt = earlier(p.silentAt, until) // where the lease is a shorter one now
	}
}

// shorten has who holds the phase hold it for no longer than a lease of now without another word: a blueprint that makes it a
// shorter one holds for a worker that was killed before it, too. Who lives will be heard before.
func (p *phases) shorten(key drive.AggregateKey, now time.Time, of time.Duration) {
	for worker, l := range p.heard[key] {
		if until := now.Add(of); until.Before(l.until) && !l.over {
			l.of, l.until = of, until
			p.heard[key][worker] = l
			p.silentAt = earlier(p.silentAt, until)
		}
	}
}

// Step implements drive.AggregatePort.
func (p *phases) Step(key drive.AggregateKey, s phase.State, in phaseInput) drive.Decision[phase.State, phase.Reply] {
	ph := phaseOf(key)
	if in.bury {
		if s.Activity != phase.Inactive || len(s.Holders) > 0 {
			return drive.Decision[phase.State, phase.Reply]{}
		}
		gone := s
		gone.Revision++
		gone.UpdatedAt = in.At
		return drive.Decision[phase.State, phase.Reply]{Documents: []drive.Document{p.document(ph, s.Activity, gone, true)}}
	}
	s.Project, s.Kind, s.Phase = ph.Project, ph.Kind, ph.Phase
	in.Silent = slices.DeleteFunc(slices.Clone(in.Silent), func(worker string) bool {
		l, holds := p.heard[key][worker]
		return holds && !l.over // it was heard while the record was waiting for the log
	})
	after, reply, changed := phase.Step(s, in.Input)
	d := drive.Decision[phase.State, phase.Reply]{After: after, Reply: reply}
	if changed {
		d.Documents = []drive.Document{p.document(ph, s.Activity, after, false)}
	}
	return d
}

func (p *phases) document(ph bus.Phase, from phase.Activity, after phase.State, gone bool) drive.Document {
	return drive.Document{
		Entity: phaseEntityKey(ph), Project: ph.Project, From: from.String(), To: after.Activity.String(), Revision: after.Revision,
		Event: wire.PhaseEvent{From: from, State: after, At: after.UpdatedAt}, Gone: gone,
	}
}

// Due implements drive.AggregatePort: holders whose lease is over hold the phase no more.
func (p *phases) Due(at time.Time) phaseInput { return phaseInput{Input: phase.Input{At: at}} }

// Load implements drive.AggregatePort. It asks the log's leader: that a holder goes on holding is an answer that no append proves.
func (p *phases) Load(keys []drive.AggregateKey, _ bool) ([]drive.LoadedAggregate[phase.State], error) {
	entities := make([]bus.Entity, len(keys))
	for i, k := range keys {
		entities[i] = p.entity(phaseOf(k))
	}
	stored, err := p.o.port.read(entities, true)
	if err != nil {
		return nil, err
	}
	loaded := make([]drive.LoadedAggregate[phase.State], len(keys))
	for i := range stored {
		s, err := decodePhase(stored[i])
		if err != nil {
			return nil, p.o.port.meet(err)
		}
		loaded[i].State = s
		if stored[i].Seq != 0 {
			loaded[i].Seqs = map[drive.EntityKey]uint64{phaseEntityKey(phaseOf(keys[i])): stored[i].Seq}
		}
	}
	return loaded, nil
}

// Store implements drive.AggregatePort.
func (p *phases) Store(docs []drive.Expected, done func(uint64, error)) {
	p.o.port.store(docs, func(d drive.Document) ([]byte, error) { return wire.EncodePhase(d.Event.(wire.PhaseEvent)) }, done)
}

// Known implements drive.AggregatePort. A holder that was not known gets a lease.
func (p *phases) Known(key drive.AggregateKey, s phase.State) time.Time {
	if len(s.Holders) == 0 {
		delete(p.heard, key)
		if s.Revision > 0 {
			if _, ok := p.unused[key]; !ok {
				p.unused[key] = p.o.c.Now()
			}
		} else {
			delete(p.unused, key)
		}
		return s.Due()
	}
	delete(p.unused, key)
	held := make(map[string]lease, len(s.Holders))
	for i := range s.Holders {
		l, ok := p.heard[key][s.Holders[i].Worker]
		if !ok {
			l = lease{of: s.HoldLease(), until: p.o.c.Now().Add(s.HoldLease())}
		}
		held[s.Holders[i].Worker] = l
	}
	p.heard[key] = held
	p.listen()
	return s.Due()
}

// Forget implements drive.AggregatePort.
func (p *phases) Forget(project string, e drive.EntityKey, seq uint64) {
	p.o.port.forgetEntity(project, e, seq)
}

func (p *phases) nextDue() time.Time { return earlier(p.loop.NextDue(), p.silentAt) }

// listen notes when the first holder is silent for too long, unless it is heard before.
func (p *phases) listen() {
	p.silentAt = time.Time{}
	for _, held := range p.heard {
		for _, l := range held {
			if !l.over {
				p.silentAt = earlier(p.silentAt, l.until)
			}
		}
	}
}

func (p *phases) tick(now time.Time) {
	if !p.silentAt.IsZero() && !now.Before(p.silentAt) {
		p.dismiss(now)
		p.listen()
	}
	p.loop.Tick(now)
}

// lateMost is how late an owner may look at a lease that has ended. When it looks later it was stopped, or its clock was set:
// it cannot tell who was silent meanwhile.
const lateMost = time.Second

// dismiss tells the records of those that were silent for too long.
func (p *phases) dismiss(now time.Time) {
	for _, key := range sortedKeys(p.heard) {
		held := p.heard[key]
		var silent []string
		for worker, l := range held {
			switch {
			case l.over || now.Before(l.until):
			case now.Sub(l.until) > lateMost && !l.spared:
				held[worker] = lease{of: l.of, until: now.Add(l.of), order: l.order, spared: true}
			default:
				silent = append(silent, worker)
				l.over = true
				held[worker] = l
			}
		}
		if len(silent) == 0 {
			continue
		}
		slices.Sort(silent)
		ph := phaseOf(key)
		p.o.c.Log.Info("a worker is silent; it holds the phase no more", zap.String("phase", ph.Phase), zap.String("kind", ph.Kind), zap.Strings("workers", silent))
		p.tell(key, phaseInput{Input: phase.Input{At: now, Silent: silent}}, func() { p.stay(key, silent) })
	}
}

// stay has holders asked about again whose record could not be told that they were silent.
func (p *phases) stay(key drive.AggregateKey, workers []string) {
	for _, w := range workers {
		if l, ok := p.heard[key][w]; ok && l.over {
			p.heard[key][w] = lease{of: l.of, until: p.o.c.Now().Add(l.of), order: l.order, spared: true}
		}
	}
	p.listen()
}

// tell is an input that nobody waits for. undone is called where it came to nothing.
func (p *phases) tell(key drive.AggregateKey, in phaseInput, undone func()) {
	p.loop.Offer(drive.AggregateInput[phaseInput, phase.Reply]{
		Key: key, Input: in, Reply: func(phase.Reply) {}, Back: func(error) { undone() }, Aside: func(string) { undone() },
	})
}

// clamp ends no lease later than one that begins now: the clock was set back where one does.
func (p *phases) clamp(now time.Time) {
	for _, held := range p.heard {
		for worker, l := range held {
			if most := now.Add(l.of); l.until.After(most) {
				l.until = most
				held[worker] = l
			}
		}
	}
	p.listen()
}

// sweep buries the records of phases that no blueprint names any more.
func (p *phases) sweep(now time.Time) {
	p.clamp(now)
	for _, key := range sortedKeys(p.unused) {
		if now.Sub(p.unused[key]) < phaseUnusedFor {
			continue
		}
		p.unused[key] = now
		if def, _, err := p.definition(phaseOf(key), false); err == nil && def == nil {
			p.o.port.keeper.dismiss(phaseOf(key), func() {
				p.tell(key, phaseInput{Input: phase.Input{At: p.o.c.Now()}, bury: true}, func() {}) // it is looked at again
			})
		}
	}
}

// sortedKeys is what m is about, in one order.
func sortedKeys[V any](m map[drive.AggregateKey]V) []drive.AggregateKey {
	return slices.SortedFunc(maps.Keys(m), compareAggregates)
}
