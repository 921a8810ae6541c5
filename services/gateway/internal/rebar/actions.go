package rebar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"text/template"

	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/rebar"
	"github.com/droverproject/drover/pkg/wire"
)

// ActionBytesMax is the bytes of one action once it is rendered.
const ActionBytesMax = 1 << 20

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
	rendered, err := render(&task, run, &m.State)
	if err != nil {
		unfit(err.Error())
		return
	}
	respond(w, http.StatusOK, rendered)
}

// scope is what a template sees.
type scope struct {
	Machine machineScope
	Task    taskScope
	params  map[string]string
}

type machineScope struct {
	Name, UUID, Uuid, Stage, BootEnv, Workflow, Description string
}

type taskScope struct{ Name string }

// Param is the value of a parameter; one that is not set is an error.
func (s scope) Param(name string) (any, error) {
	text, ok := s.params[name]
	if !ok {
		return nil, fmt.Errorf("parameter %s is not set", name)
	}
	var v any
	err := json.Unmarshal([]byte(text), &v)
	return v, err
}

// ParamExists reports whether a parameter is set.
func (s scope) ParamExists(name string) bool {
	_, ok := s.params[name]
	return ok
}

func render(t *rebar.Task, run *machine.Run, m *machine.State) ([]actionObject, error) {
	in := scope{
		Machine: machineScope{Name: m.Name, UUID: m.UUID, Uuid: m.UUID, Stage: m.Stage, BootEnv: m.BootEnv, Workflow: m.Workflow, Description: m.Description},
		Task:    taskScope{run.Task}, params: m.Params,
	}
	out := []actionObject{}
	for _, tpl := range t.Templates {
		path, err := expand(tpl.Name+" path", tpl.Path, in)
		if err != nil {
			return nil, err
		}
		content, err := expand(tpl.Name, tpl.Contents, in)
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

// expand renders one template, as Go's text/template does.
func expand(name, text string, in scope) (string, error) {
	t, err := template.New(name).Option("missingkey=error").Parse(text)
	if err != nil {
		return "", fmt.Errorf("template %s: %w", name, err)
	}
	out := &bounded{}
	if err := t.Execute(out, in); err != nil {
		return "", fmt.Errorf("template %s: %w", name, err)
	}
	return out.String(), nil
}

// bounded refuses what is over the limit, so that no template fills the memory.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > ActionBytesMax {
		return 0, errors.New("it renders to more than " + strconv.Itoa(ActionBytesMax) + " bytes")
	}
	return b.Buffer.Write(p)
}
