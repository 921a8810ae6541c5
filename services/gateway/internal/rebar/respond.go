package rebar

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/wire"
)

// problem is an error as agents read it (facts, 2.0).
type problem struct {
	Model    string   `json:"Model"`
	Key      string   `json:"Key"`
	Type     string   `json:"Type"`
	Messages []string `json:"Messages"`
	Code     int      `json:"Code"`
}

func fail(w http.ResponseWriter, p problem) { respond(w, p.Code, p) }

func forbidden(r *http.Request, message string) problem {
	return problem{Key: r.URL.Path, Type: r.Method, Code: http.StatusForbidden, Messages: []string{message}}
}

// respond writes JSON.
func respond(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("rebar: an answer that is no JSON: " + err.Error()) // our own types
	}
	send(w, status, bytes.TrimSuffix(body.Bytes(), []byte("\n")))
}

// send writes a body of JSON. Every answer says so, one without a body too: agents insist (facts, 2.0).
func send(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if status != http.StatusNoContent {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // the caller is gone: nobody is left to tell
	}
}

// statuses are those of the owner's refusals.
var statuses = map[machine.Code]int{
	machine.NotFound: http.StatusNotFound, machine.Invalid: http.StatusUnprocessableEntity, machine.Conflict: http.StatusConflict,
	machine.TestFailed: http.StatusConflict, machine.Forbidden: http.StatusForbidden, machine.TooLarge: http.StatusRequestEntityTooLarge,
	machine.BadPatch: http.StatusBadRequest, machine.Unprocessable: http.StatusUnprocessableEntity,
}

// refused answers with an owner's refusal.
func refused(w http.ResponseWriter, r *http.Request, model, key string, a wire.MachineAnswer, ops []wire.PatchOp) {
	p := problem{Model: model, Key: key, Type: r.Method, Code: statuses[machine.Code(a.Code)]}
	if p.Code == 0 {
		p.Code = http.StatusServiceUnavailable
	}
	message := a.Message
	if machine.Code(a.Code) == machine.TestFailed || machine.Code(a.Code) == machine.BadPatch {
		p.Messages = []string{"Patch error at line " + strconv.Itoa(a.Line) + ": " + message}
		if a.Line < len(ops) {
			line, err := json.Marshal(ops[a.Line])
			if err == nil {
				p.Messages = append(p.Messages, "Patch line: "+string(line))
			}
		}
		fail(w, p)
		return
	}
	switch {
	case machine.Code(a.Code) == machine.NotFound:
		message = "Not Found: " + message
	case a.Field != "":
		message = a.Field + ": " + message
	}
	p.Messages = []string{message}
	fail(w, p)
}

// readAll reads a body and throws away what is over most, at most for readTimeout. Once nothing of it is left to come that limit
// goes: it would end the request, which may be held for longer.
func (s *Server) readAll(w http.ResponseWriter, body io.Reader, most int64) (read []byte, dropped int64, err error) {
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(s.limits.read)) // a recorder in a test knows none
	if read, err = io.ReadAll(io.LimitReader(body, most)); err == nil {
		dropped, err = io.Copy(io.Discard, body)
	}
	if err == nil {
		_ = c.SetReadDeadline(time.Time{})
	}
	return read, dropped, err
}

// readBody reads a request's body; where it cannot it answers.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, model string, most int64) ([]byte, bool) {
	body, _, err := s.readAll(w, http.MaxBytesReader(w, r.Body, most), most)
	if err == nil {
		return body, true
	}
	p := problem{Model: model, Key: r.PathValue("id"), Type: r.Method, Code: http.StatusBadRequest, Messages: []string{"the body could not be read"}}
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		p.Code, p.Messages = http.StatusRequestEntityTooLarge, []string{"the body is larger than " + strconv.FormatInt(most, 10) + " bytes"}
	}
	fail(w, p)
	return nil, false
}

// readPatch reads the operations of a patch.
func (s *Server) readPatch(w http.ResponseWriter, r *http.Request, model string) (ops []wire.PatchOp, ok bool) {
	body, ok := s.readBody(w, r, model, BodyBytesMax)
	if !ok {
		return nil, false
	}
	if err := json.Unmarshal(body, &ops); err != nil {
		fail(w, problem{Model: model, Key: r.PathValue("id"), Type: r.Method, Code: http.StatusBadRequest,
			Messages: []string{"the body is no JSON patch: " + err.Error()}})
		return nil, false
	}
	return ops, true
}
