package rebar

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/rebar"
	"github.com/droverproject/drover/pkg/wire"
)

var errAbsent = errors.New("Not Found")

// spec reads the present spec of a definition from the log.
func (s *Server) spec(ctx context.Context, kind, name string) ([]byte, error) {
	e := bus.Entity{
		Partition: bus.PartitionOf(s.Project, kind, name, s.Bus.Partitions()), Family: bus.Resource, Project: s.Project, Kind: kind, Name: name,
	}
	last, err := s.Bus.Last(ctx, []bus.Entity{e})
	if err != nil {
		return nil, err
	}
	if last[0].Seq == 0 || last[0].Deleted {
		return nil, errAbsent
	}
	event, err := wire.DecodeResource(last[0].Body)
	if err != nil {
		return nil, err
	}
	if event.State.Gone {
		return nil, errAbsent
	}
	known := kind + "\x00" + name + "\x00" + event.State.SpecDigest
	if spec, ok := s.specs.get(known); ok {
		return []byte(spec), nil
	}
	e.Family = bus.Spec
	stored, err := s.Bus.Version(ctx, e, event.State.SpecDigest)
	if err != nil {
		return nil, fmt.Errorf("spec of %s %s: %w", kind, name, err)
	}
	spec, err := wire.DecodeSpec(stored.Body)
	if err == nil && len(spec.JSON) <= specBytesMax {
		s.specs.put(known, spec.JSON)
	}
	return []byte(spec.JSON), err
}

// heldSpec is spec, held while the log cannot be read.
func (s *Server) heldSpec(ctx context.Context, kind, name string) (spec []byte, err error) {
	absent := false
	err = s.hold(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, readWait)
		defer cancel()
		var err error
		spec, err = s.spec(ctx, kind, name)
		if absent = errors.Is(err, errAbsent); absent {
			return nil
		}
		return err
	})
	if absent {
		return nil, errAbsent
	}
	return spec, err
}

// definition answers with a definition, as an object of its own kind.
func (s *Server) definition(w http.ResponseWriter, r *http.Request, model, kind string, object func(spec []byte) map[string]any) {
	name := r.PathValue("name")
	spec, err := s.heldSpec(r.Context(), kind, name)
	switch {
	case errors.Is(err, errAbsent):
		fail(w, problem{Model: model, Key: name, Type: r.Method, Code: http.StatusNotFound, Messages: []string{"Not Found"}})
		return
	case err != nil:
		s.unanswered(w, r, model, err)
		return
	}
	o := object(spec)
	for field, value := range map[string]any{
		"Name": name, "Validated": true, "Available": true, "Errors": []string{}, "ReadOnly": true, "Endpoint": "", "Bundle": "", "Documentation": "",
	} {
		o[field] = value
	}
	respond(w, http.StatusOK, o)
}

type templateObject struct {
	Name, Path, ID, Contents string
	Meta                     map[string]string
}

func (s *Server) getTask(w http.ResponseWriter, r *http.Request, _ caller) {
	s.definition(w, r, "tasks", resource.TaskKind, func(spec []byte) map[string]any {
		t, _ := rebar.DecodeTask(spec) // it was judged when it was applied
		templates := []templateObject{}
		for _, tpl := range t.Templates {
			templates = append(templates, templateObject{Name: tpl.Name, Path: tpl.Path, Contents: tpl.Contents, Meta: tpl.Meta})
		}
		return map[string]any{
			"Description": t.Description, "Templates": templates, "RequiredParams": []string{}, "OptionalParams": []string{}, "Meta": flagged(t.Meta, flagsTask),
		}
	})
}

func (s *Server) getStage(w http.ResponseWriter, r *http.Request, _ caller) {
	s.definition(w, r, "stages", resource.StageKind, func(spec []byte) map[string]any {
		st, _ := rebar.DecodeStage(spec)
		return map[string]any{
			"Description": st.Description, "BootEnv": st.BootEnv, "Tasks": list(st.Tasks), "Profiles": []string{}, "Templates": []any{},
			"Params": map[string]any{}, "Meta": map[string]string{}, "Reboot": false, "RunnerWait": true,
		}
	})
}

func (s *Server) getWorkflow(w http.ResponseWriter, r *http.Request, _ caller) {
	s.definition(w, r, "workflows", resource.WorkflowKind, func(spec []byte) map[string]any {
		wf, _ := rebar.DecodeWorkflow(spec)
		return map[string]any{"Description": wf.Description, "Stages": list(wf.Stages), "Meta": map[string]string{}}
	})
}

func (s *Server) getBootEnv(w http.ResponseWriter, r *http.Request, _ caller) {
	s.definition(w, r, "bootenvs", resource.BootEnvKind, func([]byte) map[string]any {
		return map[string]any{"Description": "", "Meta": map[string]string{}, "OnlyUnknown": false}
	})
}

func list(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}
