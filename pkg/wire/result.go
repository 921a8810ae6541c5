package wire

import (
	"encoding/json"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
	commandv1 "github.com/droverproject/drover/proto/gen/drover/command/v1"
)

// The JSON form of a result. attributes, data and outputs are objects.
type resultJSON struct {
	Fence      fenceJSON                  `json:"fence"`
	Outcome    string                     `json:"outcome"`
	Message    string                     `json:"message,omitempty"`
	Retryable  bool                       `json:"retryable,omitempty"`
	Delay      time.Duration              `json:"delay,omitempty"`
	Attributes map[string]json.RawMessage `json:"attributes,omitempty"`
	Data       map[string]json.RawMessage `json:"data,omitempty"`
	Outputs    map[string]json.RawMessage `json:"outputs,omitempty"`
}

type fenceJSON struct {
	UID     string `json:"uid"`
	JobID   string `json:"jobId" alias:"job_id"`
	Phase   string `json:"phase"`
	Attempt uint32 `json:"attempt"`
	Call    uint32 `json:"call"`
}

// DecodeResult reads a result in JSON or protobuf. The values of attributes, data and outputs come out as compact JSON
// text with sorted keys.
func DecodeResult(contentType string, body []byte) (resource.Result, error) {
	if len(body) > BodyBytesMax {
		return resource.Result{}, tooLarge("", BodyBytesMax)
	}
	if isJSON(contentType) {
		return resultFromJSON(body)
	}
	m := new(commandv1.Result)
	if err := unmarshal(body, m); err != nil {
		return resource.Result{}, err
	}
	outcome, err := fromEnum[resource.Outcome]("outcome", outcomes[:], m.Outcome)
	if err != nil {
		return resource.Result{}, err
	}
	r := resource.Result{
		Fence: fenceFromProto(m.Fence), Outcome: outcome, Message: m.Message, Retryable: m.Retryable,
		Attributes: present(m.Attributes), Data: present(m.Data), Outputs: present(m.Outputs),
	}
	if r.Delay, err = lasting("delay", m.Delay); err != nil {
		return resource.Result{}, err
	}
	if r, err = checkResult(r); err != nil {
		return resource.Result{}, err
	}
	return r, nil
}

func resultFromJSON(body []byte) (resource.Result, error) {
	var j resultJSON
	if errs := strictjson.Unmarshal("", body, &j); errs != nil {
		return resource.Result{}, first(errs)
	}
	r := resource.Result{
		Fence:   resource.Fence(j.Fence),
		Message: j.Message, Retryable: j.Retryable, Delay: j.Delay,
		Attributes: texts(j.Attributes), Data: texts(j.Data), Outputs: texts(j.Outputs),
	}
	if j.Outcome == "" {
		return resource.Result{}, missing("outcome")
	}
	for _, o := range resource.Outcomes() {
		if j.Outcome == o.String() || j.Outcome == outcomes[o].String() {
			r.Outcome = o
		}
	}
	if r.Outcome == 0 {
		return resource.Result{}, malformed("outcome", "is none of completed, failed, pending, running, not_started")
	}
	return checkResult(r)
}

func checkResult(r resource.Result) (resource.Result, error) {
	if err := fenced("fence", &r.Fence); err != nil {
		return resource.Result{}, err
	}
	if r.Delay < 0 {
		return resource.Result{}, malformed("delay", "is negative")
	}
	for _, m := range []struct {
		field  string
		values map[string]string
	}{{"attributes", r.Attributes}, {"data", r.Data}, {"outputs", r.Outputs}} {
		for name, value := range m.values {
			canonical, err := strictjson.Canonical([]byte(value))
			if err != nil {
				return resource.Result{}, malformed(strictjson.Field(m.field, name), err.Error())
			}
			m.values[name] = string(canonical)
		}
	}
	return r, nil
}

func texts(m map[string]json.RawMessage) map[string]string {
	if len(m) == 0 {
		return nil
	}
	t := make(map[string]string, len(m))
	for name, value := range m {
		t[name] = string(value)
	}
	return t
}

func raws(m map[string]string) map[string]json.RawMessage {
	r := make(map[string]json.RawMessage, len(m))
	for name, value := range m {
		r[name] = json.RawMessage(value)
	}
	return r
}

// EncodeResult is the inverse of DecodeResult, in the same form.
func EncodeResult(contentType string, r resource.Result) ([]byte, error) {
	r.Attributes, r.Data, r.Outputs = copied(r.Attributes), copied(r.Data), copied(r.Outputs)
	r, err := checkResult(r)
	if err != nil {
		return nil, err
	}
	outcome, err := toEnum("outcome", outcomes[:], r.Outcome)
	if err != nil {
		return nil, err
	}
	if isJSON(contentType) {
		j := struct {
			resultJSON
			Delay string `json:"delay,omitempty"`
		}{resultJSON: resultJSON{
			Fence: fenceJSON(r.Fence), Outcome: r.Outcome.String(), Message: text(r.Message), Retryable: r.Retryable,
			Attributes: raws(r.Attributes), Data: raws(r.Data), Outputs: raws(r.Outputs),
		}}
		if r.Delay != 0 {
			j.Delay = seconds(r.Delay)
		}
		return marshalJSON(j)
	}
	return marshal(&commandv1.Result{
		Fence: fenceToProto(&r.Fence), Outcome: outcome, Message: text(r.Message), Retryable: r.Retryable,
		Delay: span(r.Delay), Attributes: r.Attributes, Data: r.Data, Outputs: r.Outputs,
	})
}

func copied(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	c := make(map[string]string, len(m))
	for name, value := range m {
		c[name] = value
	}
	return c
}
