package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

const (
	loadTimeout   = 3 * time.Second
	forgetTimeout = 10 * time.Second
	ensureTimeout = 5 * time.Second
	batchTimeout  = 10 * time.Second // the server gives a batch up after that

	pollAgain     = 200 * time.Millisecond // before a poll is sent again that could not be stored; then twice as long, and so on
	pollAgainMost = 1600 * time.Millisecond
	pollFor       = 30 * time.Second // for as long: less than drive.Limits.PollLease, more than servers take to elect a leader, twice
)

// outcome is an append on its way: its answer is taken in the order of the sends.
type outcome struct {
	sent    bus.Append
	pending bus.Pending
	done    func(uint64, error)
}

// port is the drive.Port of one partition, over the bus.
type port struct {
	c    Config
	ctx  context.Context
	out  []outcome // oldest first
	met  bool      // another owner was first, somewhere
	look func() error
	// newer is what this version must not decide on, once it was met (Owner.Newer).
	newer  error
	keeper *keeper
}

var _ drive.Port = (*port)(nil)

func (p *port) entity(f bus.Family, project, kind, name string) bus.Entity {
	return bus.Entity{Partition: p.c.Number, Family: f, Project: project, Kind: kind, Name: name}
}

func (p *port) resource(k resource.Key) bus.Entity {
	return p.entity(bus.Resource, k.Project, k.Kind, k.Name)
}

func (p *port) job(k drive.JobKey) bus.Entity { return p.entity(bus.Job, k.Project, "", k.ID) }

// Append implements drive.Port.
func (p *port) Append(r drive.Record, done func(uint64, error)) {
	a, bury, err := p.encode(r)
	if err != nil {
		p.c.Log.Error("a record could not be encoded", zap.Error(err))
		p.c.Shell.Later(func() { done(0, errors.Join(drive.ErrRefused, err)) })
		return
	}
	host.CrashPoint("orchestrator.before-append")
	var pending bus.Pending
	if bury {
		pending = p.c.Bus.Bury(a)
	} else {
		pending = p.c.Bus.Append(a)
	}
	p.out = append(p.out, outcome{a, pending, func(seq uint64, err error) {
		host.CrashPoint("orchestrator.after-append")
		switch {
		case err == nil:
			p.c.Observer.Appended(a.Entity.Family)
		case errors.Is(err, bus.ErrTooLarge), errors.Is(err, bus.ErrDenied):
			err = errors.Join(drive.ErrRefused, err)
		default:
			p.met = p.met || errors.Is(err, bus.ErrLost)
			p.c.Observer.Lost()
			err = errors.Join(drive.ErrLost, err)
		}
		done(seq, err)
	}})
}

// AppendBatch implements drive.Port. A batch is answered beside the appends, and may overtake them.
func (p *port) AppendBatch(rs []drive.Record, done func(uint64, error)) {
	batch := make([]bus.Append, len(rs))
	for i, r := range rs {
		a, bury, err := p.encode(r)
		if err == nil && bury {
			err = errors.New("a batch buries nothing")
		}
		if err != nil {
			p.c.Log.Error("a record could not be encoded", zap.Error(err))
			p.c.Shell.Later(func() { done(0, errors.Join(drive.ErrRefused, err)) })
			return
		}
		batch[i] = a
	}
	host.CrashPoint("orchestrator.before-batch")
	p.c.Shell.Background(func() {
		ctx, cancel := context.WithTimeout(p.ctx, batchTimeout)
		defer cancel()
		seq, err := p.c.Bus.AppendBatch(ctx, batch)
		if errors.Is(err, bus.ErrUnknownOutcome) {
			// All of it is stored, in one go, or nothing.
			if first := p.found(batch[:1])[0]; first > 0 {
				seq, err = first+uint64(len(batch)-1), nil
			}
		}
		p.c.Shell.Later(func() {
			host.CrashPoint("orchestrator.after-batch")
			switch {
			case err == nil:
				for i := range batch {
					p.c.Observer.Appended(batch[i].Entity.Family)
				}
			case errors.Is(err, bus.ErrTooLarge), errors.Is(err, bus.ErrDenied), errors.Is(err, bus.ErrBatch):
				p.c.Log.Error("a batch was refused", zap.Error(err))
				err = errors.Join(drive.ErrRefused, err)
			default:
				p.met = p.met || errors.Is(err, bus.ErrLost)
				p.c.Observer.Lost()
				err = errors.Join(drive.ErrLost, err)
			}
			done(seq, err)
		})
	})
}

func (p *port) encode(r drive.Record) (a bus.Append, bury bool, err error) {
	a.Expect = r.Expect
	switch {
	case r.Resource != nil:
		rec := r.Resource
		s := &rec.State
		a.Entity = p.resource(s.Key)
		a.Header = bus.Header{
			From: rec.Event.From, To: rec.Event.To, Job: rec.Event.JobID, Revision: s.Revision,
			Traceparent: rec.Event.Cause.Traceparent,
		}
		e := wire.ResourceEvent{Event: rec.Event, State: *s, At: rec.At, Partition: p.c.Number}
		if rec.Event.Dispatch != nil {
			a.Dispatch = rec.Event.Dispatch.Fence.Phase
			e.ResultSubject = bus.ResultSubject(p.c.Number, s.Project, s.Kind, s.Name)
		}
		a.Body, err = wire.EncodeResource(e)
		return a, s.Gone, err
	case r.Job != nil:
		rec := r.Job
		a.Entity = p.job(drive.JobKey{Project: rec.Record.Project, ID: rec.Record.ID})
		a.Header = bus.Header{From: rec.From.String(), To: rec.Record.State.String(), Job: rec.Record.ID, Revision: rec.Record.Revision}
		a.Body, err = wire.EncodeJob(wire.JobEvent{From: rec.From, Record: rec.Record, At: rec.At})
		return a, rec.Record.Gone, err
	case r.Spec != nil:
		rec := r.Spec
		a.Entity = p.entity(bus.Spec, rec.Key.Project, rec.Key.Kind, rec.Key.Name)
		a.Version = rec.Digest
		a.Body, err = wire.EncodeSpec(wire.SpecEvent{Key: rec.Key, Digest: rec.Digest, JSON: rec.JSON, At: rec.At})
		return a, false, err
	case r.Blueprint != nil:
		rec := r.Blueprint
		bp := rec.Blueprint
		a.Entity = catalog.BlueprintEntity(bp.Project, bp.Kind, p.c.Bus.Partitions())
		if !rec.Gone {
			a.Version = bp.Digest
		}
		a.Header.Revision = rec.Generation
		a.Body, err = wire.EncodeBlueprint(wire.BlueprintEvent{
			Project: bp.Project, Kind: bp.Kind, Digest: bp.Digest, JSON: rec.JSON, Generation: rec.Generation,
			Deletion: rec.Deletion, Gone: rec.Gone, At: rec.At,
		})
		return a, rec.Gone, err
	case r.Document != nil:
		rec := r.Document
		a.Entity = p.entity(bus.Family(rec.Entity.Family), rec.Project, rec.Entity.Kind, rec.Entity.ID)
		a.Header = bus.Header{From: rec.From, To: rec.To, Job: rec.JobID, Revision: rec.Revision}
		a.Body = rec.Body
		return a, rec.Gone, nil
	}
	return a, false, errors.New("an empty record")
}

// Load implements drive.Port.
func (p *port) Load(keys []resource.Key, jobs []drive.JobKey, fresh bool) ([]drive.Loaded, []drive.LoadedJob, error) {
	entities := make([]bus.Entity, 0, len(keys)+len(jobs))
	for _, k := range keys {
		entities = append(entities, p.resource(k))
	}
	for _, k := range jobs {
		entities = append(entities, p.job(k))
	}
	stored, err := p.read(entities, fresh)
	if err != nil {
		return nil, nil, err
	}
	loaded, loadedJobs := make([]drive.Loaded, len(keys)), make([]drive.LoadedJob, len(jobs))
	for i := range keys {
		var err error
		if loaded[i], err = decodeResource(stored[i]); err != nil {
			return nil, nil, p.meet(err)
		}
	}
	for i := range jobs {
		var err error
		if loadedJobs[i], err = decodeJob(stored[len(keys)+i]); err != nil {
			return nil, nil, p.meet(err)
		}
	}
	return loaded, loadedJobs, nil
}

// read returns the last event of each entity, however many; fresh: of the stream's leader. It may be called from any
// goroutine.
func (p *port) read(entities []bus.Entity, fresh bool) ([]bus.Stored, error) {
	ctx, cancel := context.WithTimeout(p.ctx, loadTimeout)
	defer cancel()
	read := p.c.Bus.Last
	if fresh {
		read = p.c.Bus.Current
	}
	stored := make([]bus.Stored, 0, len(entities))
	for part := range slices.Chunk(entities, bus.LoadEntitiesMax) {
		of, err := read(ctx, part)
		if err != nil {
			return nil, err
		}
		stored = append(stored, of...)
	}
	return stored, nil
}

// Look implements drive.Port.
func (p *port) Look() error { return p.look() }

func decodeResource(s bus.Stored) (drive.Loaded, error) {
	if s.Seq == 0 {
		return drive.Loaded{}, nil
	}
	e, err := wire.DecodeResource(s.Body)
	if newer := beyond(s, e.State.MinReader); newer != nil {
		return drive.Loaded{}, newer
	}
	if err != nil {
		return drive.Loaded{}, err
	}
	if s.Deleted {
		e.State.Gone = true
	}
	return drive.Loaded{State: e.State, Seq: s.Seq}, nil
}

func decodeJob(s bus.Stored) (drive.LoadedJob, error) {
	if s.Seq == 0 {
		return drive.LoadedJob{}, nil
	}
	e, err := wire.DecodeJob(s.Body)
	if newer := beyond(s, e.Record.MinReader); newer != nil {
		return drive.LoadedJob{}, newer
	}
	if err != nil {
		return drive.LoadedJob{}, err
	}
	if s.Deleted {
		e.Record.Gone = true
	}
	return drive.LoadedJob{Record: e.Record, Seq: s.Seq}, nil
}

// Blueprint implements drive.Port.
func (p *port) Blueprint(project, kind, digest string) (*blueprint.Blueprint, error) {
	bp, err := p.c.Catalog.Blueprint(p.ctx, project, kind, digest)
	return bp, p.meet(err)
}

// PresentBlueprint implements drive.Port.
func (p *port) PresentBlueprint(project, kind string, fresh bool) (drive.LoadedBlueprint, error) {
	present, err := p.c.Catalog.Present(p.ctx, project, kind, fresh)
	return present, p.meet(err)
}

// Spec implements drive.Port.
func (p *port) Spec(key resource.Key, digest string) ([]byte, error) {
	return p.c.Catalog.Spec(p.ctx, key, digest, p.c.Number)
}

// SpecSeq implements drive.Port.
func (p *port) SpecSeq(key resource.Key) (uint64, error) {
	ctx, cancel := context.WithTimeout(p.ctx, loadTimeout)
	defer cancel()
	last, err := p.c.Bus.Last(ctx, []bus.Entity{p.entity(bus.Spec, key.Project, key.Kind, key.Name)})
	if err != nil {
		return 0, err
	}
	return last[0].Seq, nil
}

// TrimSpecs implements drive.Port.
func (p *port) TrimSpecs(key resource.Key) {
	p.c.Shell.Background(func() {
		ctx, cancel := context.WithTimeout(p.ctx, forgetTimeout)
		defer cancel()
		if err := p.c.Bus.Trim(ctx, p.entity(bus.Spec, key.Project, key.Kind, key.Name), drive.SpecsKept); err != nil && p.ctx.Err() == nil {
			p.c.Log.Warn("old specs were not removed; they are with a later one", host.Resource(key.Project, key.Kind, key.Name), zap.Error(err))
		}
	})
}

// Items implements drive.Port.
func (p *port) Items(ph *blueprint.Phase, spec []byte) ([]children.Item, error) {
	return manifest.Items(ph, spec)
}

// ChildUID implements drive.Port.
func (p *port) ChildUID(key resource.Key, jobID string, at time.Time) string {
	return wire.UID(key, jobID, at)
}

// When implements drive.Port.
func (p *port) When(expression string, spec []byte, s *resource.State) (bool, error) {
	return p.c.Catalog.When(expression, spec, s)
}

// Poll implements drive.Port. What cannot be stored is tried again for as long as a cluster may be without a leader; a poll that is
// lost all the same is sent again when its lease ends.
func (p *port) Poll(s *resource.State, f resource.Fence, key string) {
	body, err := wire.EncodeResource(wire.ResourceEvent{
		Event: resource.Event{From: s.State, To: s.State, JobID: f.JobID, Cause: resource.Cause{Kind: "due", Phase: f.Phase}},
		State: *s, At: s.UpdatedAt, Partition: p.c.Number,
		ResultSubject: bus.ResultSubject(p.c.Number, s.Project, s.Kind, s.Name),
	})
	if err != nil {
		p.c.Log.Error("a poll could not be encoded", zap.Error(err))
		return
	}
	phase := bus.Phase{Project: s.Project, Kind: s.Kind, Phase: f.Phase}
	p.c.Shell.Background(func() {
		publish := func() error {
			ctx, cancel := context.WithTimeout(p.ctx, ensureTimeout)
			defer cancel()
			return p.c.Bus.PublishPoll(ctx, phase, key, body)
		}
		end := p.c.Now().Add(pollFor)
		err := publish()
		for wait := pollAgain; err != nil && p.c.Now().Before(end) && p.ctx.Err() == nil; wait = min(2*wait, pollAgainMost) {
			p.c.Shell.Sleep(wait) // a stream without a leader refuses at once
			err = publish()       // under the same key it is stored once
		}
		if err != nil && p.ctx.Err() == nil {
			p.c.Log.Warn("a poll was not sent; it is repeated when its lease ends", host.Phase(f.Phase), zap.Error(err))
		}
	})
}

// EnsurePhases implements drive.Port.
func (p *port) EnsurePhases(bp *blueprint.Blueprint) { p.keeper.ensure(bp) }

// ForgetResource implements drive.Port. Its specs go first: what finds them is the trace of their resource, and once that is
// gone they would stay for ever.
func (p *port) ForgetResource(key resource.Key, seq uint64, done func(error)) {
	p.forget(func(ctx context.Context) error {
		if err := p.forgetSpecs(ctx, key, seq); err != nil {
			return fmt.Errorf("specs: %v", err) //nolint:errorlint // a lost append here does not say that the resource lives
		}
		return p.c.Bus.Forget(ctx, p.resource(key), seq)
	}, done)
}

// forgetSpecs removes the specs of a resource that is gone since seq. They are older than that; a younger one is that of the
// next resource of this name. The leader is read, since a follower that is behind may show none.
func (p *port) forgetSpecs(ctx context.Context, key resource.Key, seq uint64) error {
	spec := p.entity(bus.Spec, key.Project, key.Kind, key.Name)
	current, err := p.c.Bus.Current(ctx, []bus.Entity{spec})
	if err != nil {
		return err
	}
	s := current[0]
	if s.Seq == 0 || s.Seq > seq && !s.Deleted {
		return nil
	}
	at := s.Seq
	if !s.Deleted {
		a := bus.Append{Entity: spec, Expect: at} // it brings no version
		if a.Body, err = wire.EncodeSpec(wire.SpecEvent{Key: key, Digest: s.Version, At: s.Time}); err != nil {
			return err
		}
		if at, err = p.c.Bus.Bury(a).Result(); err != nil {
			return err
		}
	}
	return p.c.Bus.Forget(ctx, spec, at)
}

// ForgetJob implements drive.Port.
func (p *port) ForgetJob(k drive.JobKey, _ uint64, done func(error)) {
	p.forget(func(ctx context.Context) error {
		last, err := p.c.Bus.Last(ctx, []bus.Entity{p.job(k)})
		if err != nil || last[0].Seq == 0 {
			return err
		}
		at := last[0].Seq
		if !last[0].Deleted {
			e, err := wire.DecodeJob(last[0].Body)
			if err != nil {
				return err
			}
			if !e.Record.State.Final() {
				return drive.ErrLost
			}
			record := e.Record
			record.Gone, record.Revision = true, record.Revision+1
			a := bus.Append{Entity: p.job(k), Expect: at, Header: bus.Header{
				From: record.State.String(), To: record.State.String(), Job: k.ID, Revision: record.Revision,
			}}
			if a.Body, err = wire.EncodeJob(wire.JobEvent{From: record.State, Record: record, At: p.c.Now()}); err != nil {
				return err
			}
			if at, err = p.c.Bus.Bury(a).Result(); err != nil {
				return err
			}
		}
		return p.c.Bus.Forget(ctx, p.job(k), at)
	}, done)
}

func (p *port) forget(do func(ctx context.Context) error, done func(error)) {
	p.c.Shell.Background(func() {
		ctx, cancel := context.WithTimeout(p.ctx, forgetTimeout)
		defer cancel()
		err := do(ctx)
		switch {
		case errors.Is(err, bus.ErrLost):
			err = errors.Join(drive.ErrLost, err)
		case err != nil && p.ctx.Err() == nil:
			p.c.Log.Warn("what is gone was not forgotten; the next sweep tries again", zap.Error(err))
		}
		p.c.Shell.Later(func() { done(err) })
	})
}

// Note implements drive.Port.
func (p *port) Note(key resource.Key, in resource.Input, notes []resource.Note) {
	for _, n := range notes {
		p.c.Observer.Noted(n.Code)
		if ce := p.c.Log.Check(zap.DebugLevel, "nothing changed"); ce != nil {
			ce.Write(host.Resource(key.Project, key.Kind, key.Name), zap.String("note", string(n.Code)), zap.String("of", n.Of), zap.Uint8("input", uint8(in.Kind)))
		}
	}
}
