package rebar

import (
	"context"
	"errors"
	"net/http"

	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/rebar"
	"github.com/droverproject/drover/pkg/wire"
)

type actionObject struct {
	Name    string
	Path    string
	Content string
	Meta    map[string]string
}

// actions answers GET /jobs/<id>/actions: the templates of the run's task, rendered for its machine as both are now. What
// cannot be rendered is a 422: the agent then reports the run as failed, which parks the machine.
func (s *Server) actions(w http.ResponseWriter, r *http.Request, c caller) {
	e, answer, ok := s.oneJob(w, r, wire.MachineTask, s.ask(c))
	if !ok {
		return
	}
	run := &e.Run
	m, err := wire.DecodeMachine(answer.Machine)
	if err != nil {
		s.unreadable(w, r, modelJobs, err)
		return
	}
	unfit := func(message string) {
		fail(w, problem{Model: modelJobs, Key: run.ID, Type: r.Method, Code: http.StatusUnprocessableEntity, Messages: []string{message}})
	}
	spec, err := s.heldSpec(r.Context(), resource.TaskKind, run.Task)
	switch {
	case errors.Is(err, errAbsent):
		unfit("Task " + run.Task + " is not defined")
		return
	case err != nil:
		s.unanswered(w, r, modelJobs, err)
		return
	}
	task, found := rebar.DecodeTask(spec)
	if len(found) > 0 {
		unfit("Task " + run.Task + ": " + found[0].Field + ": " + found[0].Reason)
		return
	}
	rendered, err := render(r.Context(), &task, run, &m.State)
	if err != nil {
		unfit(err.Error())
		return
	}
	respond(w, http.StatusOK, rendered)
}

// render renders all templates of a task for a machine.
func render(ctx context.Context, t *rebar.Task, run *machine.Run, m *machine.State) ([]actionObject, error) {
	ctx, cancel := context.WithTimeout(ctx, TemplateTimeMax)
	defer cancel()
	x := &expander{ctx: ctx, in: &scope{
		Machine: machineScope{Name: m.Name, UUID: m.UUID, Uuid: m.UUID, Stage: m.Stage, BootEnv: m.BootEnv, Workflow: m.Workflow, Description: m.Description},
		Task:    taskScope{run.Task}, params: m.Params, read: map[string]any{},
	}}
	out := []actionObject{}
	for _, tpl := range t.Templates {
		path, err := x.expand(tpl.Name+" path", tpl.Path)
		if err != nil {
			return nil, err
		}
		content, err := x.expand(tpl.Name, tpl.Contents)
		if err != nil {
			return nil, err
		}
		meta := tpl.Meta
		if meta == nil {
			meta = map[string]string{}
		}
		out = append(out, actionObject{Name: tpl.Name, Path: path, Content: content, Meta: meta})
	}
	return out, nil
}
