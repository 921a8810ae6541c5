package rebar

import (
	"encoding/json"
	"net/http"
	"strings"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
)

const modelMachines = "machines"

func (s *Server) info(w http.ResponseWriter, _ *http.Request, _ caller) {
	respond(w, http.StatusOK, s.about())
}

// askMachine sends a request about the machine of the path: by its uuid, or as Name:<name>.
func (s *Server) askMachine(w http.ResponseWriter, r *http.Request, verb string, a wire.MachineAsk) (m wire.MachineEvent, ok bool) {
	id := r.PathValue("id")
	var partition int
	name, byName := strings.CutPrefix(id, "Name:")
	switch {
	case byName && name != "":
		a.Name, partition = name, bus.PartitionOf(s.Project, "", name, s.Bus.Partitions())
	default:
		a.UUID = id
		if partition, ok = wire.RoutedPartition(id, s.Bus.Partitions()); !ok {
			fail(w, problem{Model: modelMachines, Key: id, Type: r.Method, Code: http.StatusNotFound, Messages: []string{"Not Found"}})
			return m, false
		}
	}
	answer, err := s.decide(r.Context(), partition, verb, a)
	switch {
	case err != nil:
		s.unanswered(w, r, modelMachines, err)
		return m, false
	case answer.Code != "":
		refused(w, r, modelMachines, id, answer, a.Ops)
		return m, false
	}
	if m, err = wire.DecodeMachine(answer.Machine); err != nil {
		s.unreadable(w, r, modelMachines, err)
		return m, false
	}
	return m, true
}

func (s *Server) unreadable(w http.ResponseWriter, r *http.Request, model string, err error) {
	s.Log.Error("an answer cannot be read", zap.String("model", model), zap.Error(err))
	fail(w, problem{Model: model, Key: r.PathValue("id"), Type: r.Method, Code: http.StatusInternalServerError, Messages: []string{"the answer cannot be read; it was logged"}})
}

func (s *Server) readMachine(w http.ResponseWriter, r *http.Request, c caller) (wire.MachineEvent, bool) {
	return s.askMachine(w, r, wire.MachineGet, s.ask(c))
}

func (s *Server) getMachine(w http.ResponseWriter, r *http.Request, c caller) {
	if m, ok := s.readMachine(w, r, c); ok {
		respond(w, http.StatusOK, objectOf(&m.State))
	}
}

func (s *Server) patchMachine(w http.ResponseWriter, r *http.Request, c caller) {
	ops, ok := s.readPatch(w, r, modelMachines)
	if !ok {
		return
	}
	a := s.ask(c)
	a.Ops = ops
	if m, ok := s.askMachine(w, r, wire.MachinePatch, a); ok {
		respond(w, http.StatusOK, objectOf(&m.State))
	}
}

func (s *Server) getParams(w http.ResponseWriter, r *http.Request, c caller) {
	if m, ok := s.readMachine(w, r, c); ok {
		respond(w, http.StatusOK, objectOf(&m.State).Params)
	}
}

// getParam answers with the value, or null: what is not set is no error to an agent.
func (s *Server) getParam(w http.ResponseWriter, r *http.Request, c caller) {
	m, ok := s.readMachine(w, r, c)
	if !ok {
		return
	}
	value, ok := m.State.Params[r.PathValue("key")]
	if !ok {
		value = "null"
	}
	send(w, http.StatusOK, []byte(value))
}

// setParam sets one, and answers with it.
func (s *Server) setParam(w http.ResponseWriter, r *http.Request, c caller) {
	body, ok := s.readBody(w, r, "params", BodyBytesMax)
	if !ok {
		return
	}
	if !json.Valid(body) {
		fail(w, problem{Model: "params", Key: r.PathValue("key"), Type: r.Method, Code: http.StatusBadRequest, Messages: []string{"the body is not JSON"}})
		return
	}
	a := s.ask(c)
	key := strings.ReplaceAll(strings.ReplaceAll(r.PathValue("key"), "~", "~0"), "/", "~1")
	a.Ops = []wire.PatchOp{{Op: "add", Path: "/Params/" + key, Value: body}}
	if m, ok := s.askMachine(w, r, wire.MachinePatch, a); ok {
		value := m.State.Params[r.PathValue("key")]
		if value == "" {
			value = "null"
		}
		send(w, http.StatusOK, []byte(value))
	}
}
