package wire

import (
	"time"

	"github.com/droverproject/drover/pkg/engine/machine"
	eventv1 "github.com/droverproject/drover/proto/gen/drover/event/v1"
	statev1 "github.com/droverproject/drover/proto/gen/drover/state/v1"
)

const (
	familyMachine = "machine"
	familyTaskRun = "taskrun"
)

var runStates = [...]statev1.TaskRunState{
	machine.NoRun:      statev1.TaskRunState_TASK_RUN_STATE_UNSPECIFIED,
	machine.Created:    statev1.TaskRunState_TASK_RUN_STATE_CREATED,
	machine.Running:    statev1.TaskRunState_TASK_RUN_STATE_RUNNING,
	machine.Incomplete: statev1.TaskRunState_TASK_RUN_STATE_INCOMPLETE,
	machine.Finished:   statev1.TaskRunState_TASK_RUN_STATE_FINISHED,
	machine.Failed:     statev1.TaskRunState_TASK_RUN_STATE_FAILED,
}

// MachineEvent is one transition of a machine, with the state after it. The state's Run does not travel with it: it has
// events of its own (TaskRunEvent).
type MachineEvent struct {
	From  string // condition before; empty for the first
	State machine.State
	Cause string // "next", "patch", "report", "apply"
	At    time.Time
}

// EncodeMachine returns the same bytes for the same event.
func EncodeMachine(e MachineEvent) ([]byte, error) {
	if err := timed(e.At); err != nil {
		return nil, err
	}
	s := &e.State
	if s.UUID == "" {
		return nil, missing("state.uuid")
	}
	if err := inRange("state.times", s.CreatedAt, s.UpdatedAt); err != nil {
		return nil, err
	}
	if s.CurrentTask < -1 || s.CurrentTask > machine.TasksMax {
		return nil, malformed("state.currentTask", "is out of range")
	}
	m := &statev1.Machine{
		MinReader: s.MinReader, Uuid: s.UUID, Revision: s.Revision, Description: text(s.Description), Workflow: s.Workflow,
		Stage: s.Stage, BootEnv: s.BootEnv, Context: s.Context, Meta: s.Meta, Params: s.Params, Tasks: s.Tasks,
		CurrentTask: int32(s.CurrentTask), Runnable: s.Runnable, Available: s.Available, CurrentJob: s.CurrentJob,
		CreatedTime: stamp(s.CreatedAt), UpdatedTime: stamp(s.UpdatedAt), Gone: s.Gone, RequestId: s.RequestID,
		RequestDigest: s.RequestDigest, PatchId: s.PatchID,
	}
	var cause *eventv1.Cause
	if e.Cause != "" {
		cause = &eventv1.Cause{Kind: e.Cause}
	}
	return marshal(&eventv1.Event{
		Family: familyMachine, Project: s.Project, Name: s.Name, From: e.From, To: s.Condition().String(), Cause: cause,
		JobId: s.CurrentJob, Time: stamp(e.At), Revision: s.Revision, State: &eventv1.Event_Machine{Machine: m},
	})
}

// DecodeMachine is the inverse of EncodeMachine. Where the error is ErrUnknown, State.MinReader is set.
func DecodeMachine(body []byte) (e MachineEvent, err error) {
	m, err := decodeEvent(body, familyMachine)
	if err != nil {
		return e, err
	}
	s := m.GetMachine()
	switch {
	case s == nil:
		return e, missing("state")
	case s.Uuid == "":
		return e, missing("state.uuid")
	case s.CurrentTask < -1 || s.CurrentTask > machine.TasksMax:
		return e, malformed("state.currentTask", "is out of range")
	}
	e.From, e.Cause = m.From, m.GetCause().GetKind()
	e.State = machine.State{
		Key: machine.Key{Project: m.Project, Name: m.Name}, UUID: s.Uuid, Revision: s.Revision, MinReader: s.MinReader,
		Description: s.Description, Workflow: s.Workflow, Stage: s.Stage, BootEnv: s.BootEnv, Context: s.Context,
		Meta: present(s.Meta), Params: present(s.Params), Tasks: s.Tasks, CurrentTask: int(s.CurrentTask), Runnable: s.Runnable,
		Available: s.Available, CurrentJob: s.CurrentJob, Gone: s.Gone, RequestID: s.RequestId, RequestDigest: s.RequestDigest,
		PatchID: s.PatchId,
	}
	if e.At, err = instant("time", m.Time); err != nil {
		return e, err
	}
	if e.State.CreatedAt, err = instant("state.createdTime", s.CreatedTime); err != nil {
		return e, err
	}
	e.State.UpdatedAt, err = instant("state.updatedTime", s.UpdatedTime)
	return e, err
}

// TaskRunEvent is one transition of a task run, with the state after it.
type TaskRunEvent struct {
	From machine.RunState // NoRun for the first
	Run  machine.Run
	At   time.Time
}

// EncodeTaskRun returns the same bytes for the same event.
func EncodeTaskRun(e TaskRunEvent) ([]byte, error) {
	if err := timed(e.At); err != nil {
		return nil, err
	}
	r := &e.Run
	if r.ID == "" {
		return nil, missing("name")
	}
	state, err := toEnum("state.state", runStates[:], r.State)
	if err != nil {
		return nil, err
	}
	if int(e.From) >= len(runStates) {
		return nil, unknown("from", int32(e.From))
	}
	if r.Index < 0 || r.Index > machine.TasksMax {
		return nil, malformed("state.index", "is out of range")
	}
	if err := inRange("state.times", r.CreatedAt, r.StartedAt, r.EndedAt); err != nil {
		return nil, err
	}
	return marshal(&eventv1.Event{
		Family: familyTaskRun, Project: r.Machine.Project, Name: r.ID, From: e.From.String(), To: r.State.String(), JobId: r.ID,
		Time: stamp(e.At), Revision: r.Revision, State: &eventv1.Event_Taskrun{Taskrun: &statev1.TaskRun{
			MinReader: r.MinReader, Revision: r.Revision, Previous: r.Previous, Machine: r.Machine.Name, MachineUuid: r.MachineUUID,
			Task: r.Task, Stage: r.Stage, BootEnv: r.BootEnv, Workflow: r.Workflow, Context: r.Context, State: state,
			ExitState: r.ExitState, Index: uint32(r.Index), CreatedTime: stamp(r.CreatedAt), StartedTime: stamp(r.StartedAt),
			EndedTime: stamp(r.EndedAt), Message: text(r.Message), Gone: r.Gone, ReportId: r.ReportID,
		}},
	})
}

// DecodeTaskRun is the inverse of EncodeTaskRun. Where the error is ErrUnknown, Run.MinReader is set.
func DecodeTaskRun(body []byte) (e TaskRunEvent, err error) {
	m, err := decodeEvent(body, familyTaskRun)
	if err != nil {
		return e, err
	}
	s := m.GetTaskrun()
	switch {
	case s == nil:
		return e, missing("state")
	case m.Name == "":
		return e, missing("name")
	case s.Index > machine.TasksMax:
		return e, malformed("state.index", "is out of range")
	}
	e.Run = machine.Run{
		ID: m.Name, Previous: s.Previous, Machine: machine.Key{Project: m.Project, Name: s.Machine}, MachineUUID: s.MachineUuid,
		Task: s.Task, Stage: s.Stage, BootEnv: s.BootEnv, Workflow: s.Workflow, Context: s.Context, ExitState: s.ExitState,
		Index: int(s.Index), Message: s.Message, Revision: s.Revision, MinReader: s.MinReader, Gone: s.Gone,
		ReportID: s.ReportId,
	}
	if e.Run.State, err = fromEnum[machine.RunState]("state.state", runStates[:], s.State); err != nil {
		return e, err
	}
	if e.From, err = runState("from", m.From); err != nil {
		return e, err
	}
	if e.At, err = instant("time", m.Time); err != nil {
		return e, err
	}
	if e.Run.CreatedAt, err = instant("state.createdTime", s.CreatedTime); err != nil {
		return e, err
	}
	if e.Run.StartedAt, err = instant("state.startedTime", s.StartedTime); err != nil {
		return e, err
	}
	e.Run.EndedAt, err = instant("state.endedTime", s.EndedTime)
	return e, err
}

func runState(field, name string) (machine.RunState, error) {
	for _, s := range machine.RunStates() {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, malformed(field, "is not the name of a run's state")
}
