package partition

import (
	"cmp"
	"errors"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

func compareAggregates(a, b drive.AggregateKey) int {
	return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.ID, b.ID))
}

// objectPort is the drive.AggregatePort of family check.
type objectPort struct{ c *checks }

// Step implements drive.AggregatePort.
func (p objectPort) Step(key drive.AggregateKey, s check.State, in check.Input) drive.Decision[check.State, check.Effects] {
	after, fx := check.Step(s, in)
	d := drive.Decision[check.State, check.Effects]{After: after, Reply: fx, Fresh: fx.Fresh}
	if !fx.Changed && !fx.Gone {
		return d
	}
	event := wire.CheckEvent{State: after, Gone: fx.Gone, At: after.UpdatedAt, Cause: resource.Cause{Kind: "derived"}}
	if c := in.Command; c != nil {
		event.Cause = resource.Cause{Kind: "command", Verb: c.Verb, RequestedBy: c.RequestedBy}
		event.JobID = c.JobID
	}
	d.Documents = append(d.Documents, drive.Document{
		Entity: drive.EntityKey{Family: string(bus.Check), ID: key.ID}, Project: key.Project, JobID: event.JobID, Revision: after.Revision,
		Event: event, Gone: fx.Gone,
	})
	for _, m := range fx.Jobs {
		d.Documents = append(d.Documents, drive.Document{
			Entity: drive.EntityKey{Family: string(bus.Job), ID: m.Record.ID}, Project: key.Project, From: m.From.String(), To: m.Record.State.String(),
			JobID: m.Record.ID, Revision: m.Record.Revision, Event: wire.JobEvent{From: m.From, Record: m.Record, At: after.UpdatedAt},
		})
	}
	if fx.Gone {
		d.After = check.State{Project: after.Project, Kind: after.Kind, Name: after.Name}
	}
	return d
}

// Due implements drive.AggregatePort; no object has a time.
func (p objectPort) Due(at time.Time) check.Input { return check.Input{At: at} }

// Load implements drive.AggregatePort.
func (p objectPort) Load(keys []drive.AggregateKey, fresh bool) ([]drive.LoadedAggregate[check.State], error) {
	port := p.c.o.port
	entities := make([]bus.Entity, len(keys))
	for i, k := range keys {
		entities[i] = port.entity(bus.Check, k.Project, "", k.ID)
	}
	stored, err := port.read(entities, fresh)
	if err != nil {
		return nil, err
	}
	loaded := make([]drive.LoadedAggregate[check.State], len(keys))
	var jobs []bus.Entity
	var of []int
	for i, m := range stored {
		l := &loaded[i]
		l.Seqs = map[drive.EntityKey]uint64{}
		if m.Seq == 0 {
			continue
		}
		l.Seqs[drive.EntityKey{Family: string(bus.Check), ID: keys[i].ID}] = m.Seq
		e, err := wire.DecodeCheck(m.Body)
		if err != nil {
			return nil, port.meet(err)
		}
		if m.Deleted || e.Gone {
			continue
		}
		l.State = e.State
		for _, j := range e.State.Jobs {
			jobs, of = append(jobs, port.job(drive.JobKey{Project: keys[i].Project, ID: j.ID})), append(of, i)
		}
	}
	records, err := port.read(jobs, fresh)
	if err != nil {
		return nil, err
	}
	for n, m := range records {
		loaded[of[n]].Seqs[drive.EntityKey{Family: string(bus.Job), ID: m.Entity.Name}] = m.Seq
	}
	return loaded, nil
}

// Store implements drive.AggregatePort.
func (p objectPort) Store(docs []drive.Expected, done func(uint64, error)) {
	p.c.o.port.store(docs, encodeChecks, done)
}

// Known implements drive.AggregatePort.
func (p objectPort) Known(key drive.AggregateKey, s check.State) time.Time {
	p.c.place(key, &s)
	return time.Time{}
}

// Forget implements drive.AggregatePort.
func (p objectPort) Forget(project string, e drive.EntityKey, seq uint64) {
	p.c.o.port.forgetEntity(project, e, seq)
}

func encodeChecks(d drive.Document) ([]byte, error) {
	switch e := d.Event.(type) {
	case wire.CheckEvent:
		return wire.EncodeCheck(e)
	case wire.JobEvent:
		return wire.EncodeJob(e)
	case wire.InstanceEvent:
		return wire.EncodeInstance(e)
	case wire.DeploymentEvent:
		return wire.EncodeDeployment(e)
	}
	return nil, errors.New("not an event of the checks' door")
}

// instancePort is the drive.AggregatePort of families instance and deployment.
type instancePort struct{ c *checks }

// Step implements drive.AggregatePort.
func (p instancePort) Step(key drive.AggregateKey, s deployment.State, in deployment.Input) drive.Decision[deployment.State, deployment.Effects] {
	number := p.c.o.c.Number
	after, fx := deployment.Step(s, in, deployment.Env{ConfigurationID: func(instance string, version uint64) string {
		return wire.RoutedUUID(number, "deployment", key.Project, instance, decimal(version))
	}})
	d := drive.Decision[deployment.State, deployment.Effects]{After: after, Reply: fx, Again: fx.Again}
	cause := resource.Cause{Kind: in.Kind.String()}
	at := after.UpdatedAt
	if in.At.After(at) {
		at = in.At
	}
	configuration := func(c *deployment.Configuration, from deployment.Status, gone bool) {
		d.Documents = append(d.Documents, drive.Document{
			Entity: drive.EntityKey{Family: string(bus.Deployment), ID: c.ID}, Project: key.Project, From: from.String(), To: c.Status.String(),
			Revision: c.Revision, Gone: gone,
			Event: wire.DeploymentEvent{Project: key.Project, Instance: key.ID, Configuration: *c, Gone: gone, From: from, Cause: cause, At: at},
		})
	}
	instance := func(gone bool) {
		from, to := deployment.None, deployment.None
		if c := s.Present(); c != nil {
			from = c.Status
		}
		if c := after.Present(); c != nil {
			to = c.Status
		}
		d.Documents = append(d.Documents, drive.Document{
			Entity: drive.EntityKey{Family: string(bus.Instance), ID: key.ID}, Project: key.Project, From: from.String(), To: to.String(),
			Revision: after.Revision, Gone: gone,
			Event: wire.InstanceEvent{State: after, Gone: gone, From: from, To: to, Cause: cause, At: at},
		})
	}
	switch {
	case fx.Bury != "":
		for i := range s.Configurations {
			if c := s.Configurations[i]; c.ID == fx.Bury {
				c.Revision++
				configuration(&c, c.Status, true)
			}
		}
	case fx.Gone:
		after.Revision++
		instance(true)
		d.After = deployment.State{}
	case fx.Changed:
		for _, m := range fx.Moves {
			for i := range after.Configurations {
				if c := &after.Configurations[i]; c.ID == m.ID {
					configuration(c, m.From, false)
				}
			}
		}
		instance(false)
	default:
		// That there is nothing to fetch, or that feedback comes at the wrong time, no append proves.
		d.Fresh = fx.Note == deployment.NoteAbsent || fx.Note == deployment.NoteIllegal
	}
	return d
}

// Due implements drive.AggregatePort.
func (p instancePort) Due(at time.Time) deployment.Input {
	return deployment.Input{Kind: deployment.OnSweep, At: at}
}

// Load implements drive.AggregatePort. An instance says where its configurations stand, and is stored with each change of one
// of them: what was read of followers that are not equally far is seen, and read again of the leader.
func (p instancePort) Load(keys []drive.AggregateKey, fresh bool) ([]drive.LoadedAggregate[deployment.State], error) {
	port := p.c.o.port
	loaded := make([]drive.LoadedAggregate[deployment.State], len(keys))
	apart, err := p.load(keys, loaded, allOf(len(keys)), fresh)
	if err == nil && len(apart) > 0 && !fresh {
		_, err = p.load(keys, loaded, apart, true)
	}
	return loaded, port.meet(err)
}

func allOf(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func (p instancePort) load(keys []drive.AggregateKey, loaded []drive.LoadedAggregate[deployment.State], of []int, fresh bool) (apart []int, err error) {
	port := p.c.o.port
	entities := make([]bus.Entity, len(of))
	for n, i := range of {
		entities[n] = port.entity(bus.Instance, keys[i].Project, "", keys[i].ID)
	}
	stored, err := port.read(entities, fresh)
	if err != nil {
		return nil, err
	}
	type slot struct{ of, n int } // aggregate, and which of its configurations
	var slots []slot
	var listed []bus.Entity
	for n, m := range stored {
		i := of[n]
		l := &loaded[i]
		*l = drive.LoadedAggregate[deployment.State]{Seqs: map[drive.EntityKey]uint64{}}
		if m.Seq == 0 {
			continue
		}
		l.Seqs[drive.EntityKey{Family: string(bus.Instance), ID: keys[i].ID}] = m.Seq
		e, err := wire.DecodeInstance(m.Body)
		if err != nil {
			return nil, err
		}
		if m.Deleted || e.Gone {
			continue
		}
		l.State = e.State
		for c := range e.State.Configurations {
			slots = append(slots, slot{i, c})
			listed = append(listed, port.entity(bus.Deployment, keys[i].Project, "", e.State.Configurations[c].ID))
		}
	}
	if stored, err = port.read(listed, fresh); err != nil {
		return nil, err
	}
	for n, m := range stored {
		at := slots[n]
		l := &loaded[at.of]
		said := &l.State.Configurations[at.n]
		if m.Seq == 0 {
			if !fresh {
				apart = append(apart, at.of)
			}
			said.Revision = 0 // buried, and forgotten
			continue
		}
		l.Seqs[drive.EntityKey{Family: string(bus.Deployment), ID: said.ID}] = m.Seq
		e, err := wire.DecodeDeployment(m.Body)
		if err != nil {
			return nil, err
		}
		switch {
		case m.Deleted || e.Gone:
			said.Revision = 0
		case e.Configuration.Revision != said.Revision:
			apart = append(apart, at.of)
			*said = e.Configuration
		default:
			*said = e.Configuration
		}
	}
	for _, i := range of {
		s := &loaded[i].State
		kept := s.Configurations[:0]
		for _, c := range s.Configurations {
			if c.Revision > 0 {
				kept = append(kept, c)
			}
		}
		s.Configurations = kept
	}
	if fresh && len(apart) > 0 {
		return nil, errors.New("an instance and its configurations were read apart, while they were written")
	}
	return apart, nil
}

// Store implements drive.AggregatePort.
func (p instancePort) Store(docs []drive.Expected, done func(uint64, error)) {
	p.c.o.port.store(docs, encodeChecks, done)
}

// Known implements drive.AggregatePort.
func (p instancePort) Known(key drive.AggregateKey, s deployment.State) time.Time {
	p.c.keep(key, &s)
	return s.Due()
}

// Forget implements drive.AggregatePort.
func (p instancePort) Forget(project string, e drive.EntityKey, seq uint64) {
	p.c.o.port.forgetEntity(project, e, seq)
}
