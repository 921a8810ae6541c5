package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/rebar"
	"github.com/droverproject/drover/pkg/wire"
)

// ask implements door: the requests of wire.MachineAsk.
func (m *machines) ask(verb string, r bus.Request, reply Reply) {
	answer := m.answering(reply)
	a, err := wire.DecodeMachineAsk(r.Body)
	if err != nil {
		answer(wire.MachineAnswer{Code: string(machine.Invalid), Message: err.Error()})
		return
	}
	ops, refused := wire.MachineOps(a.Ops)
	if refused != nil {
		answer(machineRefusal(refused))
		return
	}
	in := machineInput{Input: machine.Input{At: m.o.c.Now(), Caller: a.Caller, RequestID: a.RequestID}}
	switch string(bus.Machine) + "." + verb {
	case wire.MachineGet:
		m.ofMachine(a, in, answer)
	case wire.MachinePatch:
		in.Patch = &machine.Patch{Ops: ops}
		m.patch(a, in, answer)
	case wire.MachineNext:
		in.Next = &machine.Next{
			Context: a.Context, RunID: wire.RoutedUUID(m.o.c.Number, "taskrun", a.Project, a.UUID, a.RequestID),
		}
		m.ofMachine(a, in, answer)
	case wire.MachineRun, wire.MachineTask, wire.MachineReport:
		in.Report = &machine.Report{RunID: a.Run, Ops: ops}
		in.loose = string(bus.Machine)+"."+verb == wire.MachineTask
		m.ofRun(a, in, answer)
	default:
		answer(wire.MachineAnswer{Code: string(machine.Invalid), Message: "a partition's owner does not know machine." + verb})
	}
}

func machineRefusal(r *machine.Refusal) wire.MachineAnswer {
	return wire.MachineAnswer{Code: string(r.Code), Field: r.Field, Message: r.Message, Line: r.Line}
}

// errUnread is for a uuid that is not known and cannot be looked for at once: the gateway asks again.
var errUnread = errors.New("no machine of this uuid is known here; the log is read again in a second")

// machineKey finds the machine of a request. A uuid that is not known may be of a machine that another owner has made since
// this one's takeover, so the partition is read once more before it is called unknown, at most once a second: who asks for
// machines that are not there waits for it, and costs no more than that (facts/digitalrebar.md, section 7, PR #494).
func (m *machines) machineKey(a wire.MachineAsk) (drive.AggregateKey, bool, error) {
	if a.Name != "" {
		return drive.AggregateKey{Project: a.Project, ID: a.Name}, true, nil
	}
	key, ok := m.byUUID[a.UUID]
	if !ok {
		if m.o.c.Now().Before(m.readAt.Add(lookAgain)) {
			return key, false, errUnread
		}
		if err := m.takeOver(); err != nil {
			return key, false, m.o.port.meet(err)
		}
		key, ok = m.byUUID[a.UUID]
	}
	return key, ok && key.Project == a.Project, nil
}

// ofMachine offers what is asked of a machine.
func (m *machines) ofMachine(a wire.MachineAsk, in machineInput, answer func(wire.MachineAnswer)) {
	key, ok, err := m.machineKey(a)
	switch {
	case err != nil:
		m.overloaded(answer, err)
		return
	case !ok && in.Next != nil:
		answer(wire.MachineAnswer{Code: string(machine.Unprocessable), Field: "Machine", Message: "there is no such machine"})
		return
	case !ok:
		answer(wire.MachineAnswer{Code: string(machine.NotFound), Message: "there is no such machine"})
		return
	}
	m.offer(key, in, func(r machineReply) { answer(m.answerOf(r, in)) },
		func(err error) { m.overloaded(answer, err) },
		func(reason string) { answer(wire.MachineAnswer{Code: string(machine.TooLarge), Message: reason}) })
}

// answerOf is the answer that follows from a step.
func (m *machines) answerOf(r machineReply, in machineInput) (a wire.MachineAnswer) {
	if r.fx.Refused != nil {
		return machineRefusal(r.fx.Refused)
	}
	if in.Next != nil {
		a.Outcome = map[machine.Outcome]string{
			machine.Nothing: wire.OutcomeNothing, machine.NewRun: wire.OutcomeNew, machine.RunGoesOn: wire.OutcomeGoesOn,
		}[r.fx.Outcome]
	}
	var err error
	if in.Report == nil || in.loose {
		s := r.state
		if a.Machine, err = wire.EncodeMachine(wire.MachineEvent{State: s, At: s.UpdatedAt}); err != nil {
			return wire.MachineAnswer{Code: string(machine.TooLarge), Message: err.Error()}
		}
	}
	if r.fx.Run != nil {
		if a.Run, err = wire.EncodeTaskRun(wire.TaskRunEvent{Run: *r.fx.Run, At: in.At}); err != nil {
			return wire.MachineAnswer{Code: string(machine.TooLarge), Message: err.Error()}
		}
	}
	return a
}

// ofRun offers what is asked of a run to its machine. A run that is not the current one is read first.
func (m *machines) ofRun(a wire.MachineAsk, in machineInput, answer func(wire.MachineAnswer)) {
	known, ok := m.runs[a.Run]
	key := known.key
	if !ok || m.live[key].run != a.Run {
		past, err := m.pastRun(a)
		switch {
		case err != nil:
			m.overloaded(answer, err)
			return
		case past == nil:
			answer(wire.MachineAnswer{Code: string(machine.NotFound), Message: "there is no such job"})
			return
		case in.Caller != "" && in.Caller != past.MachineUUID:
			answer(wire.MachineAnswer{Code: string(machine.Forbidden), Message: "a machine's token is for that machine alone"})
			return
		}
		key, in.Report.Past = drive.AggregateKey{Project: a.Project, ID: past.Machine.Name}, past
	}
	m.offer(key, in, func(r machineReply) {
		if r.fx.Refused != nil && r.fx.Refused.Code == machine.NotFound && in.Report.Past == nil {
			if past, err := m.pastRun(a); err == nil && past != nil { // another has taken its place meanwhile
				in.Report.Past = past
				m.o.c.Shell.Later(func() { m.ofRun(a, in, answer) })
				return
			}
		}
		answer(m.answerOf(r, in))
	}, func(err error) { m.overloaded(answer, err) },
		func(reason string) { answer(wire.MachineAnswer{Code: string(machine.TooLarge), Message: reason}) })
}

// pastRun reads a run; nil where there is none.
func (m *machines) pastRun(a wire.MachineAsk) (*machine.Run, error) {
	stored, err := m.o.port.read([]bus.Entity{m.entity(bus.TaskRun, a.Project, a.Run)}, true)
	if err != nil || stored[0].Seq == 0 || stored[0].Deleted {
		return nil, err
	}
	run, err := decodeRun(stored[0])
	if err != nil {
		return nil, m.o.port.meet(err)
	}
	return &run, nil
}

// patch looks up what a patch names before it is offered.
func (m *machines) patch(a wire.MachineAsk, in machineInput, answer func(wire.MachineAnswer)) {
	var names wanted
	for _, op := range in.Patch.Ops {
		switch {
		case op.Test || op.Value.Text == "":
		case op.Path == "/Workflow":
			names.want(&op.Value.Text, nil)
		case op.Path == "/Stage":
			names.want(nil, &op.Value.Text)
		}
	}
	m.define(a.Project, names, func(defs machine.Definitions, err error) {
		if err != nil {
			if definitionCode(err) == resource.Overloaded {
				m.overloaded(answer, err)
				return
			}
			answer(wire.MachineAnswer{Code: string(machine.Invalid), Message: err.Error()})
			return
		}
		in.Patch.Definitions = defs
		m.ofMachine(a, in, answer)
	})
}

// wanted are the names of definitions that an input needs.
type wanted struct{ workflows, stages []string }

func (w *wanted) want(workflow, stage *string) {
	if workflow != nil && *workflow != "" {
		w.workflows = append(w.workflows, *workflow)
	}
	if stage != nil && *stage != "" && *stage != machine.StageNone {
		w.stages = append(w.stages, *stage)
	}
}

// errUndefined says that a definition names what is not there.
var errUndefined = errors.New("not defined")

func definitionCode(err error) resource.Code {
	if errors.Is(err, errUndefined) {
		return resource.Invalid
	}
	return resource.Overloaded
}

// define looks definitions up, with all that they name: a task list is made of what there is. It calls then on the Owner's
// goroutine.
func (m *machines) define(project string, names wanted, then func(machine.Definitions, error)) {
	if len(names.workflows)+len(names.stages) == 0 {
		then(machine.Definitions{}, nil)
		return
	}
	m.o.c.Shell.Background(func() {
		ctx, cancel := context.WithTimeout(m.o.ctx, ensureTimeout)
		defer cancel()
		defs, err := m.definitions(ctx, project, names)
		m.o.c.Shell.Later(func() { then(defs, err) })
	})
}

func (m *machines) definitions(ctx context.Context, project string, names wanted) (machine.Definitions, error) {
	defs := machine.Definitions{Workflows: map[string][]string{}, Stages: map[string]machine.Stage{}}
	stages := slices.Clone(names.stages)
	specs, err := m.specs(ctx, project, resource.WorkflowKind, names.workflows)
	if err != nil {
		return defs, err
	}
	for name, spec := range specs {
		w, found := rebar.DecodeWorkflow(spec)
		if len(found) > 0 {
			return defs, fmt.Errorf("workflow %s: %s: %s: %w", name, found[0].Field, found[0].Reason, errUndefined)
		}
		defs.Workflows[name] = w.Stages
		stages = append(stages, w.Stages...)
	}
	if specs, err = m.specs(ctx, project, resource.StageKind, stages); err != nil {
		return defs, err
	}
	var tasks []string
	for name, spec := range specs {
		s, found := rebar.DecodeStage(spec)
		if len(found) > 0 {
			return defs, fmt.Errorf("stage %s: %s: %s: %w", name, found[0].Field, found[0].Reason, errUndefined)
		}
		defs.Stages[name] = machine.Stage{BootEnv: s.BootEnv, Tasks: s.Tasks}
		for _, task := range s.Tasks {
			if !strings.ContainsRune(task, ':') {
				tasks = append(tasks, task)
			}
		}
	}
	known, err := m.specs(ctx, project, resource.TaskKind, tasks)
	if err != nil {
		return defs, err
	}
	slices.Sort(tasks)
	for _, task := range tasks {
		if _, ok := known[task]; !ok {
			return defs, fmt.Errorf("task %s is named by a stage, and there is none: %w", task, errUndefined)
		}
	}
	return defs, nil
}

// specs reads the present specs of definitions, of the log's leader: who was told that one was accepted finds it.
func (m *machines) specs(ctx context.Context, project, kind string, names []string) (map[string][]byte, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	entities := make([]bus.Entity, len(names))
	for i, name := range names {
		partition := bus.PartitionOf(project, kind, name, m.o.c.Bus.Partitions())
		entities[i] = bus.Entity{Partition: partition, Family: bus.Resource, Project: project, Kind: kind, Name: name}
	}
	stored, err := m.o.port.read(entities, true)
	if err != nil {
		return nil, err
	}
	specs := map[string][]byte{}
	for i, s := range stored {
		if s.Seq == 0 || s.Deleted {
			continue
		}
		e, err := wire.DecodeResource(s.Body)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind, names[i], err)
		}
		if e.State.Gone {
			continue
		}
		key := resource.Key{Project: project, Kind: kind, Name: names[i]}
		if specs[names[i]], err = m.o.c.Catalog.Spec(ctx, key, e.State.SpecDigest, entities[i].Partition); err != nil {
			return nil, err
		}
	}
	return specs, nil
}
