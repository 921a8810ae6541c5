package program

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
)

// Limits of one call.
const (
	CallBytesDefault    = 16 << 20 // bytes of the line that a program is given; a larger batch is several calls
	CallBytesMax        = 64 << 20
	AnswerBytesMax      = 1 << 20  // bytes of a line that it answers
	AnswersMax          = 100_000  // lines that it answers
	AnswerBytesTotalMax = 64 << 20 // bytes of all of them
	DelayMax            = blueprint.IntervalMax
)

// The functions that a program is called for, by the names that they have in seed 003.
const (
	FunctionHandle            = "handle"
	FunctionOnStateTransition = "onStateTransition"
)

// ErrAnswer is a line that a program must not write.
var ErrAnswer = errors.New("not a valid answer")

// callLine is what a program is given.
type callLine struct {
	Function string `json:"function"`
	Project  string `json:"project"`
	// Of handle:
	Kind  string `json:"kind,omitempty"` // where all resources are of one
	Phase string `json:"phase,omitempty"`
	// Of onStateTransition:
	Type    string  `json:"type,omitempty"`
	State   string  `json:"state,omitempty"`
	Cluster *string `json:"cluster,omitempty"`

	Resources []json.RawMessage `json:"resources"` // each a resourceLine
}

// resourceLine is one resource of a call.
type resourceLine struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	UID     string `json:"uid"`
	Cluster string `json:"cluster"`
	State   string `json:"state"`
	Target  string `json:"target"`
	// Of handle:
	Job         string     `json:"job,omitempty"`
	Attempt     int        `json:"attempt,omitempty"`
	Polled      bool       `json:"polled,omitempty"`
	Undo        bool       `json:"undo,omitempty"`
	WasDeployed bool       `json:"wasDeployed"`
	Deadline    *time.Time `json:"deadline,omitempty"`

	Labels     map[string]string          `json:"labels"`
	Spec       json.RawMessage            `json:"spec"`
	Attributes map[string]json.RawMessage `json:"attributes"`
	Data       map[string]json.RawMessage `json:"data,omitempty"`
}

// Answer is one line that a program may write.
type Answer struct {
	Resources []string // whom it is about
	Kind      string   // of these; empty: no other kind of the call has a resource of the name
	Outcome   string   // "", "completed", "failed" or "pending"
	Message   string
	Retryable bool          // of failed
	Delay     time.Duration // of pending; 0: the phase's interval
	Log       string
	// What to set, as JSON text; null removes.
	Attributes, Data, Outputs map[string]json.RawMessage

	Err string // the exception
	End bool   // the call has ended
}

// The outcomes.
const (
	completed = "completed"
	failed    = "failed"
	pending   = "pending"
)

// DecodeAnswer reads one line, with or without its end. The error is ErrAnswer, and says what is wrong where.
func DecodeAnswer(line []byte) (Answer, error) {
	if len(line) > AnswerBytesMax {
		return Answer{}, fmt.Errorf("%w: it has more than %d bytes", ErrAnswer, AnswerBytesMax)
	}
	if !utf8.Valid(line) {
		return Answer{}, fmt.Errorf("%w: it is not UTF-8", ErrAnswer)
	}
	var j struct {
		Resource   *string                    `json:"resource"`
		Resources  []string                   `json:"resources"`
		Kind       *string                    `json:"kind"`
		Outcome    string                     `json:"outcome"`
		Message    string                     `json:"message"`
		Retryable  bool                       `json:"retryable"`
		Delay      time.Duration              `json:"delay"`
		Attributes map[string]json.RawMessage `json:"attributes"`
		Data       map[string]json.RawMessage `json:"data"`
		Outputs    map[string]json.RawMessage `json:"outputs"`
		Log        string                     `json:"log"`
		Error      *string                    `json:"error"`
		End        bool                       `json:"end"`
	}
	if errs := strictjson.Unmarshal("", line, &j); errs != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrAnswer, errs)
	}
	a := Answer{
		Resources: j.Resources, Outcome: j.Outcome, Message: j.Message, Retryable: j.Retryable, Delay: j.Delay, Log: j.Log,
		Attributes: j.Attributes, Data: j.Data, Outputs: j.Outputs, End: j.End,
	}
	if j.Resource != nil {
		if j.Resources != nil {
			return Answer{}, fmt.Errorf("%w: resource and resources exclude each other", ErrAnswer)
		}
		a.Resources = []string{*j.Resource}
	}
	if j.Kind != nil {
		if a.Kind = *j.Kind; a.Kind == "" || a.Resources == nil {
			return Answer{}, fmt.Errorf("%w: kind is empty, or without a resource", ErrAnswer)
		}
	}
	if j.Error != nil {
		if a.Err = *j.Error; a.Err == "" {
			a.Err = "an error without a text"
		}
	}
	about := a.Outcome != "" || a.Attributes != nil || a.Data != nil || a.Outputs != nil || a.Message != "" || a.Retryable || a.Delay != 0
	switch {
	case j.Resource == nil && j.Resources == nil && about:
		return Answer{}, fmt.Errorf("%w: resource is missing: the name of the one that this is about", ErrAnswer)
	case a.Outcome == "" && (a.Message != "" || a.Retryable || a.Delay != 0):
		return Answer{}, fmt.Errorf("%w: outcome is missing: completed, failed or pending", ErrAnswer)
	case a.Outcome != "" && a.Outcome != completed && a.Outcome != failed && a.Outcome != pending:
		return Answer{}, fmt.Errorf("%w: outcome is none of completed, failed, pending", ErrAnswer)
	case a.Retryable && a.Outcome != failed:
		return Answer{}, fmt.Errorf("%w: retryable is for outcome failed", ErrAnswer)
	case a.Delay != 0 && a.Outcome != pending:
		return Answer{}, fmt.Errorf("%w: delay is for outcome pending", ErrAnswer)
	case a.Delay < 0 || a.Delay > DelayMax:
		return Answer{}, fmt.Errorf("%w: delay is not 0 to %s", ErrAnswer, DelayMax)
	}
	for _, set := range []map[string]json.RawMessage{a.Attributes, a.Data, a.Outputs} {
		if _, empty := set[""]; empty {
			return Answer{}, fmt.Errorf("%w: a value has an empty name", ErrAnswer)
		}
	}
	return a, nil
}

// jsonOf is what a state holds of attributes or data, each value as JSON text.
func jsonOf(values map[string]string) map[string]json.RawMessage {
	m := make(map[string]json.RawMessage, len(values))
	for name, text := range values {
		m[name] = json.RawMessage(text)
	}
	return m
}

// line is a call as one line, with its end.
func (c *callLine) line() ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode the call: %w", err)
	}
	return append(body, '\n'), nil
}

// envelopeBytes is more than what a call's line has beside its resources.
const envelopeBytes = 8 * resource.MessageBytesMax
