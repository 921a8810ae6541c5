package rebar

import (
	"encoding/json"
	"maps"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/machine"
)

// machineObject is a machine as agents read it. All fields are always there: a patch may test and replace each of them.
type machineObject struct {
	Validated        bool
	Available        bool
	Errors           []string
	ReadOnly         bool
	Meta             map[string]string
	Endpoint         string
	Bundle           string
	Partial          bool
	Name             string
	Description      string
	Uuid             string
	CurrentJob       string
	Address          string
	Stage            string
	BootEnv          string
	Profiles         []string
	Params           map[string]json.RawMessage
	Tasks            []string
	CurrentTask      int
	Runnable         bool
	Secret           string
	OS               string
	HardwareAddrs    []string
	Workflow         string
	WorkflowComplete bool
	Arch             string
	Locked           bool
	Context          string
	Pool             string
}

// Marks that agents look for (facts, 2.2 and 2.6). An agent that meets a machine without the first one makes it runnable at
// every start.
const (
	metaFlags    = "feature-flags"
	flagsMachine = "change-stage-v2"
	flagsTask    = "sane-exit-codes"
)

func objectOf(s *machine.State) machineObject {
	o := machineObject{
		Validated: true, Available: s.Available, Errors: []string{}, Meta: flagged(s.Meta, flagsMachine), Name: s.Name, Description: s.Description,
		Uuid: s.UUID, CurrentJob: s.CurrentJob, Stage: s.Stage, BootEnv: s.BootEnv, Profiles: []string{}, Params: map[string]json.RawMessage{},
		Tasks: s.Tasks, CurrentTask: s.CurrentTask, Runnable: s.Runnable, HardwareAddrs: []string{}, Workflow: s.Workflow,
		WorkflowComplete: s.Workflow != "" && s.CurrentTask >= len(s.Tasks), Arch: "amd64", Context: s.Context, Pool: "default",
	}
	if o.Tasks == nil {
		o.Tasks = []string{}
	}
	for name, value := range s.Params {
		o.Params[name] = json.RawMessage(value)
	}
	return o
}

// flagged is a Meta with a flag that agents need, unless it says flags of its own.
func flagged(meta map[string]string, flag string) map[string]string {
	m := map[string]string{metaFlags: flag}
	maps.Copy(m, meta)
	return m
}

// jobObject is a task run as agents read it (facts, 2.3).
type jobObject struct {
	Validated    bool
	Available    bool
	Errors       []string
	ReadOnly     bool
	Meta         map[string]string
	Endpoint     string
	Bundle       string
	Uuid         string
	Previous     string
	Machine      string
	Task         string
	Stage        string
	Context      string
	State        string
	ExitState    string
	StartTime    time.Time
	EndTime      time.Time
	Archived     bool
	Current      bool
	CurrentIndex int
	NextIndex    int
	Workflow     string
	BootEnv      string
}

const noUUID = "00000000-0000-0000-0000-000000000000"

func jobOf(r *machine.Run, current bool) jobObject {
	previous := r.Previous
	if previous == "" {
		previous = noUUID
	}
	return jobObject{
		Validated: true, Available: true, Errors: []string{}, Meta: map[string]string{}, Uuid: r.ID, Previous: previous, Machine: r.MachineUUID,
		Task: r.Task, Stage: r.Stage, Context: r.Context, State: r.State.String(), ExitState: r.ExitState, StartTime: r.StartedAt, EndTime: r.EndedAt,
		Current: current, CurrentIndex: r.Index, NextIndex: r.Index + 1, Workflow: r.Workflow, BootEnv: r.BootEnv,
	}
}

// info is what an agent looks for at its start (facts, 2.2). "auto-boot-target" keeps it from asking for a boot target before
// a reboot; "agent-auto-update" is left out, as no agent is served here.
func (s *Server) about() map[string]any {
	return map[string]any{
		"arch": "amd64", "os": "linux", "version": s.Version, "id": "drover", "local_id": "drover", "ha_id": "", "api_port": 0, "file_port": 0,
		"features": strings.Fields("api-v3 sane-exit-codes job-exit-states fsm-runner workflows auto-boot-target"),
		"stats":    []any{}, "scopes": map[string]any{}, "errors": []string{},
	}
}
