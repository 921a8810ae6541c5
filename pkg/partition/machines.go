package partition

import (
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/rebar"
	"github.com/droverproject/drover/pkg/wire"
)

// Limits of what is kept of task runs (machines_forget.go), and of looks for what is not known.
const (
	RunsKept     = 32                 // runs of a machine, the current one not counted
	RunsKeptFor  = 7 * 24 * time.Hour // of a run, after its last event
	lookAgain    = time.Second        // between two reads of the partition for a uuid that nobody knows
	codeOverload = string(resource.Overloaded)
)

// machines is the door of the machines of a partition (pkg/engine/machine). What it knows beside its loop is an index, rebuilt
// from the log: which machine has a uuid, and which runs there are.
type machines struct {
	o      *Owner
	loop   *drive.Aggregates[machine.State, machineInput, machineReply]
	byUUID map[string]drive.AggregateKey
	live   map[drive.AggregateKey]knownMachine
	runs   map[string]keptRun
	seen   reading
	readAt time.Time
	begun  map[string]bool // runs that are being forgotten
}

type knownMachine struct{ uuid, run string }

// keptRun is a run that the log holds.
type keptRun struct {
	key drive.AggregateKey
	seq uint64 // of its last event
	at  time.Time
}

// machineInput is an input, and how its answer is to be believed.
type machineInput struct {
	machine.Input
	// loose says that the answer tells only what never changes: it need not be read from the leader.
	loose bool
	// record is the job of a command; it is stored with what the command did.
	record *job.Record
}

type machineReply struct {
	state machine.State
	fx    machine.Effects
}

func newMachines(o *Owner) *machines {
	m := &machines{
		o: o, byUUID: map[string]drive.AggregateKey{}, live: map[drive.AggregateKey]knownMachine{}, runs: map[string]keptRun{},
		seen: reading{}, begun: map[string]bool{},
	}
	m.loop = drive.NewAggregates(m, drive.AggregateLimits{})
	return m
}

func (m *machines) family() string     { return string(bus.Machine) }
func (m *machines) tick(now time.Time) { m.loop.Tick(now) }
func (m *machines) nextDue() time.Time { return m.loop.NextDue() }
func (m *machines) entity(f bus.Family, project, id string) bus.Entity {
	return m.o.port.entity(f, project, "", id)
}

// takeOver reads the machines and runs of the partition that were written since the last read.
func (m *machines) takeOver() error {
	err := m.seen.news(m.o, bus.Machine, func(s bus.Stored) error {
		state, err := decodeMachine(s)
		if err != nil {
			return fmt.Errorf("machine %s: %w", s.Entity.Name, err)
		}
		key := drive.AggregateKey{Project: s.Entity.Project, ID: s.Entity.Name}
		if s.Deleted {
			m.Forget(key.Project, drive.EntityKey{Family: string(bus.Machine), ID: key.ID}, s.Seq)
		}
		m.loop.Adopt(key, state)
		return nil
	})
	if err != nil {
		return err
	}
	err = m.seen.news(m.o, bus.TaskRun, func(s bus.Stored) error {
		run, err := decodeRun(s)
		if err != nil {
			return fmt.Errorf("task run %s: %w", s.Entity.Name, err)
		}
		if s.Deleted {
			delete(m.runs, s.Entity.Name)
			m.Forget(s.Entity.Project, drive.EntityKey{Family: string(bus.TaskRun), ID: s.Entity.Name}, s.Seq)
			return nil
		}
		m.runs[run.ID] = keptRun{key: drive.AggregateKey{Project: s.Entity.Project, ID: run.Machine.Name}, seq: s.Seq, at: s.Time}
		return nil
	})
	if err != nil {
		return err
	}
	m.readAt = m.o.c.Now()
	return nil
}

func decodeMachine(s bus.Stored) (machine.State, error) {
	key := machine.Key{Project: s.Entity.Project, Name: s.Entity.Name}
	if s.Seq == 0 {
		return machine.State{Key: key}, nil
	}
	e, err := wire.DecodeMachine(s.Body)
	if newer := beyond(s, e.State.MinReader); newer != nil {
		return e.State, newer
	}
	if err != nil {
		return e.State, err
	}
	e.State.Gone = e.State.Gone || s.Deleted
	return e.State, nil
}

func decodeRun(s bus.Stored) (machine.Run, error) {
	e, err := wire.DecodeTaskRun(s.Body)
	if newer := beyond(s, e.Run.MinReader); newer != nil {
		return e.Run, newer
	}
	return e.Run, err
}

// Step implements drive.AggregatePort.
func (m *machines) Step(key drive.AggregateKey, s machine.State, in machineInput) drive.Decision[machine.State, machineReply] {
	s.Key = machine.Key{Project: key.Project, Name: key.ID}
	after, fx := machine.Step(s, in.Input)
	d := drive.Decision[machine.State, machineReply]{After: after, Reply: machineReply{state: after, fx: fx}}
	before := s.Condition().String()
	for i := range fx.Runs {
		r := &fx.Runs[i]
		from := machine.NoRun
		if s.Run != nil && s.Run.ID == r.ID {
			from = s.Run.State
		}
		d.Documents = append(d.Documents, drive.Document{
			Entity: drive.EntityKey{Family: string(bus.TaskRun), ID: r.ID}, Project: key.Project, From: from.String(), To: r.State.String(),
			JobID: r.ID, Revision: r.Revision, Event: wire.TaskRunEvent{From: from, Run: *r, At: in.At},
		})
	}
	if fx.Machine {
		d.Documents = append(d.Documents, drive.Document{
			Entity: drive.EntityKey{Family: string(bus.Machine), ID: key.ID}, Project: key.Project, From: before,
			To: after.Condition().String(), JobID: after.CurrentJob, Revision: after.Revision,
			Event: wire.MachineEvent{From: before, State: after, Cause: fx.Cause, At: in.At},
		})
	}
	if in.record != nil && fx.Machine {
		r := *in.record
		d.Documents = append(d.Documents, drive.Document{
			Entity: drive.EntityKey{Family: string(bus.Job), ID: r.ID}, Project: key.Project, From: job.None.String(), To: r.State.String(),
			JobID: r.ID, Revision: r.Revision, Event: r,
		})
	}
	d.Fresh = len(d.Documents) == 0 && !(in.loose && fx.Refused == nil)
	return d
}

// Due implements drive.AggregatePort. A machine is never due by itself: its agent comes, or a person does.
func (m *machines) Due(at time.Time) machineInput { return machineInput{Input: machine.Input{At: at}} }

// Load implements drive.AggregatePort: the machines, and then the runs that they name. Between the two somebody may write;
// then the append fails, since whoever replaces a run writes to it or found it final.
func (m *machines) Load(keys []drive.AggregateKey, fresh bool) ([]drive.LoadedAggregate[machine.State], error) {
	entities := make([]bus.Entity, len(keys))
	for i, k := range keys {
		entities[i] = m.entity(bus.Machine, k.Project, k.ID)
	}
	stored, err := m.o.port.read(entities, fresh)
	if err != nil {
		return nil, err
	}
	loaded := make([]drive.LoadedAggregate[machine.State], len(keys))
	var runs []bus.Entity
	var of []int
	for i, s := range stored {
		state, err := decodeMachine(s)
		if err != nil {
			return nil, m.o.port.meet(err)
		}
		loaded[i] = drive.LoadedAggregate[machine.State]{State: state, Seqs: map[drive.EntityKey]uint64{}}
		if s.Seq > 0 {
			loaded[i].Seqs[drive.EntityKey{Family: string(bus.Machine), ID: keys[i].ID}] = s.Seq
		}
		if state.CurrentJob != "" && !state.Gone {
			runs, of = append(runs, m.entity(bus.TaskRun, keys[i].Project, state.CurrentJob)), append(of, i)
		}
	}
	if stored, err = m.o.port.read(runs, fresh); err != nil {
		return nil, err
	}
	for n, s := range stored {
		if s.Seq == 0 && !fresh { // a follower is behind
			current, err := m.o.port.read(runs[n:n+1], true)
			if err != nil {
				return nil, err
			}
			s = current[0]
		}
		if s.Seq == 0 {
			return nil, fmt.Errorf("task run %s of machine %s is not in the log", runs[n].Name, keys[of[n]].ID)
		}
		run, err := decodeRun(s)
		if err != nil {
			return nil, m.o.port.meet(err)
		}
		l := &loaded[of[n]]
		l.State.Run = &run
		l.Seqs[drive.EntityKey{Family: string(bus.TaskRun), ID: run.ID}] = s.Seq
	}
	return loaded, nil
}

// Store implements drive.AggregatePort.
func (m *machines) Store(docs []drive.Expected, done func(uint64, error)) {
	m.o.port.store(docs, encodeMachineDocument, func(seq uint64, err error) {
		for i := 0; i < len(docs) && err == nil; i++ {
			at := seq - uint64(len(docs)-1-i)
			switch e := docs[i].Event.(type) {
			case wire.TaskRunEvent:
				m.runs[e.Run.ID] = keptRun{key: drive.AggregateKey{Project: docs[i].Project, ID: e.Run.Machine.Name}, seq: at, at: e.At}
			case job.Record:
				m.o.loop.AdoptJob(drive.JobKey{Project: docs[i].Project, ID: e.ID}, drive.LoadedJob{Record: e, Seq: at})
			}
		}
		done(seq, err)
	})
}

func encodeMachineDocument(d drive.Document) ([]byte, error) {
	switch e := d.Event.(type) {
	case wire.MachineEvent:
		return wire.EncodeMachine(e)
	case wire.TaskRunEvent:
		return wire.EncodeTaskRun(e)
	case job.Record:
		return wire.EncodeJob(wire.JobEvent{Record: e, At: e.EndedAt})
	default:
		return nil, fmt.Errorf("no document of a machine: %T", d.Event)
	}
}

// Known implements drive.AggregatePort.
func (m *machines) Known(key drive.AggregateKey, s machine.State) time.Time {
	known := m.live[key]
	if !s.Exists() {
		delete(m.byUUID, known.uuid)
		delete(m.live, key)
		return time.Time{}
	}
	if known.uuid != s.UUID {
		delete(m.byUUID, known.uuid)
	}
	m.byUUID[s.UUID] = key
	m.live[key] = knownMachine{uuid: s.UUID, run: s.CurrentJob}
	return time.Time{}
}

// Forget implements drive.AggregatePort.
func (m *machines) Forget(project string, e drive.EntityKey, seq uint64) {
	m.o.port.forgetEntity(project, e, seq)
}

func (m *machines) takes(kind string) bool { return kind == resource.MachineKind }

// command takes a Machine's manifest.
func (m *machines) command(d doorCommand, reply func(resource.Reply)) {
	key := drive.AggregateKey{Project: d.Project, ID: d.Name}
	id, digest := wire.JobID(d.Key, d.requestID), wire.BodyDigest(d.verb, d.body)
	var spec []byte
	if d.verb == resource.VerbApply {
		var r *resource.Refusal
		if spec, _, r = appliedSpec(d.body); r != nil {
			reply(resource.Reply{Refused: r})
			return
		}
	}
	_, jobs, err := m.o.port.Load(nil, []drive.JobKey{{Project: d.Project, ID: id}}, true)
	if err != nil {
		reply(refused(resource.Overloaded, "the log could not be read; send the command again: "+err.Error()))
		return
	}
	known := present(jobs[0])
	switch {
	case known.ID != "" && known.Digest != digest:
		reply(refused(resource.Conflict, "request id "+d.requestID+" was used before for another command on this machine"))
		return
	case known.ID != "":
		reply(resource.Reply{JobID: known.ID})
		return
	case d.verb != resource.VerbApply:
		reply(refused(resource.Invalid, "a Machine knows apply only"))
		return
	}
	said, found := rebar.DecodeMachine(spec)
	if len(found) > 0 {
		reply(resource.Reply{Refused: &resource.Refusal{Code: resource.Invalid, Message: "the machine is not valid", Violations: found}})
		return
	}
	at := m.o.c.Now()
	a := &machine.Apply{
		RequestID: d.requestID, Digest: digest,
		UUID:        wire.RoutedUUID(m.o.c.Number, "machine", d.Project, d.Name, wire.UID(d.Key, d.requestID, at)),
		Description: said.Description, Meta: said.Meta, Workflow: said.Workflow, Stage: said.Stage, BootEnv: said.BootEnv,
		Runnable: said.Runnable, Available: said.Available,
	}
	for name, value := range said.Params {
		if a.Params == nil {
			a.Params = map[string]string{}
		}
		a.Params[name] = string(value)
	}
	in := machineInput{
		Input: machine.Input{At: at, Apply: a},
		record: &job.Record{
			Ref: job.Ref{
				ID: id, RequestID: d.requestID, Digest: digest, Verb: d.verb, State: job.Succeeded, RequestedBy: d.body.RequestedBy,
				AcceptedAt: at, StartedAt: at, EndedAt: at,
			},
			Project: d.Project, Kind: d.Kind, Name: d.Name, Revision: 1, MinReader: resource.ReaderFirst,
		},
	}
	var names wanted
	names.want(said.Workflow, said.Stage)
	m.define(d.Project, names, func(defs machine.Definitions, err error) {
		if err != nil {
			reply(refused(definitionCode(err), err.Error()))
			return
		}
		a.Definitions = defs
		m.offer(key, in, func(r machineReply) {
			if r.fx.Refused != nil {
				reply(refused(commandCode(r.fx.Refused.Code), refusalText(r.fx.Refused)))
				return
			}
			reply(resource.Reply{JobID: id})
		}, func(err error) {
			reply(refused(resource.Overloaded, "the command could not be decided now; send it again: "+err.Error()))
		}, func(reason string) { reply(refused(resource.TooLarge, reason)) })
	})
}

// offer gives a machine an input.
func (m *machines) offer(key drive.AggregateKey, in machineInput, reply func(machineReply), back func(error), aside func(string)) {
	m.loop.Offer(drive.AggregateInput[machineInput, machineReply]{Key: key, Input: in, Reply: reply, Back: back, Aside: aside})
}

func refusalText(r *machine.Refusal) string {
	if r.Field == "" {
		return r.Message
	}
	return strings.TrimPrefix(r.Field, "/") + ": " + r.Message
}

func commandCode(c machine.Code) resource.Code {
	switch c {
	case machine.NotFound:
		return resource.NotFound
	case machine.Conflict, machine.TestFailed:
		return resource.Conflict
	case machine.TooLarge:
		return resource.TooLarge
	default:
		return resource.Invalid
	}
}

// overloaded answers what could not be decided now: the gateway holds it, and asks again.
func (m *machines) overloaded(answer func(wire.MachineAnswer), err error) {
	m.o.c.Log.Debug("a machine's request could not be decided now", zap.Error(err))
	answer(wire.MachineAnswer{Code: codeOverload, Message: err.Error()})
}

// answering encodes the answer to a request.
func (m *machines) answering(reply Reply) func(wire.MachineAnswer) {
	return func(a wire.MachineAnswer) {
		host.CrashPoint("orchestrator.before-reply")
		body, err := wire.EncodeMachineAnswer(a)
		if err != nil {
			m.o.c.Log.Error("an answer about a machine could not be written", zap.Error(err))
			return
		}
		reply(map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, body)
	}
}
