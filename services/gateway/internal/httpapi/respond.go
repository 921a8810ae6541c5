package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/droverproject/drover/pkg/engine/resource"
)

// Fail answers with an error in the form of every error here. It is for what is served beside (Options.Doors).
func Fail(w http.ResponseWriter, status int, code, message string) { fail(w, status, code, message) }

// Invalid answers 400 and names the field.
func Invalid(w http.ResponseWriter, field, reason string) { invalid(w, field, reason) }

// Respond answers with JSON. What cannot be written as JSON panics.
func Respond(w http.ResponseWriter, status int, v any) { respond(w, status, v) }

// problem is every answer that is an error, in the form of a refused command (contract.md).
type problem struct {
	Code       string      `json:"code"`
	Message    string      `json:"message"`
	Violations []violation `json:"violations,omitempty"`
	RequestID  string      `json:"requestId,omitempty"`
}

type violation struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

func fail(w http.ResponseWriter, status int, code, message string) {
	respond(w, status, problem{Code: code, Message: message})
}

func invalid(w http.ResponseWriter, field, reason string) {
	respond(w, http.StatusBadRequest, problem{
		Code: string(resource.Invalid), Message: field + ": " + reason, Violations: []violation{{field, reason}},
	})
}

func respond(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("httpapi: an answer that is no JSON: " + err.Error()) // our own types; contained by guard
	}
	send(w, status, body.Bytes())
}

// send writes JSON.
func send(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the caller is gone: nobody is left to tell
}

// statusOf is the HTTP status of each code (contract.md, "NATS subjects").
func statusOf(code resource.Code) int {
	switch code {
	case resource.Invalid:
		return http.StatusBadRequest
	case resource.NotFound:
		return http.StatusNotFound
	case resource.Conflict:
		return http.StatusConflict
	case resource.TooLarge:
		return http.StatusRequestEntityTooLarge
	default:
		return http.StatusServiceUnavailable
	}
}

// names reads parts of the path. Where one cannot be a name it answers, and returns false: a longer one would not fit
// into a subject.
func names(w http.ResponseWriter, r *http.Request, parts ...string) ([]string, bool) {
	values := make([]string, len(parts))
	for i, part := range parts {
		value := r.PathValue(part)
		if reason := checkName(value); reason != "" {
			invalid(w, "path."+part, reason)
			return nil, false
		}
		values[i] = value
	}
	return values, true
}

func checkName(name string) string {
	switch {
	case name == "":
		return "must not be empty"
	case len(name) > NameBytesMax:
		return "at most " + strconv.Itoa(NameBytesMax) + " bytes"
	case !utf8.ValidString(name):
		return "must be UTF-8"
	}
	for _, c := range name {
		if !unicode.IsPrint(c) {
			return "must be printable"
		}
	}
	return ""
}
