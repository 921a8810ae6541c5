package wire

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/strictjson"
)

// Verbs of the requests that a gateway sends to the owner of a machine's partition.
const (
	MachineGet    = "machine.get"    // a machine, by uuid or name
	MachinePatch  = "machine.patch"  // PATCH of it
	MachineNext   = "machine.next"   // the next run for its agent
	MachineRun    = "machine.run"    // a run, by id, as it is now
	MachineTask   = "machine.task"   // a run, by id, and its machine, as the owner knows them: what never changes is so in any case
	MachineReport = "machine.report" // PATCH of a run
)

// MachineAsk is the body of these requests, in JSON. Unknown fields are passed over: versions N-1 and N share a house.
type MachineAsk struct {
	Project string `json:"project"`
	UUID    string `json:"uuid,omitempty"` // of the machine
	Name    string `json:"name,omitempty"` // of the machine, where the uuid is not known
	Run     string `json:"run,omitempty"`
	// Caller is the uuid of the machine that asks; empty: an operator.
	Caller  string `json:"caller,omitempty"`
	Context string `json:"context,omitempty"`
	// RequestID makes machine.next, machine.patch and machine.report safe to repeat: the same id is the same run, and has no
	// second effect.
	RequestID string    `json:"requestId,omitempty"`
	Ops       []PatchOp `json:"ops,omitempty"`
}

// PatchOp is one operation of a JSON patch (RFC 6902).
type PatchOp struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// MachineAnswer answers them, in JSON.
type MachineAnswer struct {
	Code    string `json:"code,omitempty"` // of a refusal: machine.Code, or "overloaded"
	Field   string `json:"field,omitempty"`
	Message string `json:"message,omitempty"`
	Line    int    `json:"line,omitempty"`

	Outcome string `json:"outcome,omitempty"` // of machine.next: "new", "goes on", "nothing"
	Machine []byte `json:"machine,omitempty"` // its event, as in the log
	Run     []byte `json:"run,omitempty"`     // its event, as in the log
}

// The outcomes of machine.next.
const (
	OutcomeNothing = "nothing"
	OutcomeNew     = "new"
	OutcomeGoesOn  = "goes on"
)

// EncodeMachineAsk writes a request.
func EncodeMachineAsk(a MachineAsk) ([]byte, error) { return marshalJSON(a) }

// DecodeMachineAsk is its inverse.
func DecodeMachineAsk(body []byte) (a MachineAsk, err error) {
	return a, decodeAsk(body, &a)
}

// EncodeMachineAnswer writes an answer.
func EncodeMachineAnswer(a MachineAnswer) ([]byte, error) {
	a.Message = text(a.Message)
	return marshalJSON(a)
}

// DecodeMachineAnswer is its inverse.
func DecodeMachineAnswer(body []byte) (a MachineAnswer, err error) {
	return a, decodeAsk(body, &a)
}

func decodeAsk(body []byte, v any) error {
	if len(body) > BodyBytesMax {
		return tooLarge("", BodyBytesMax)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return malformed("", "is not JSON of the right form: "+err.Error())
	}
	return nil
}

// MachineOps turns operations into those of the engine. Operations but test, replace, add and remove are refused, as agents
// send none (facts/digitalrebar.md, 2.5); so are paths into lists: a list is replaced whole.
func MachineOps(ops []PatchOp) ([]machine.Op, *machine.Refusal) {
	if len(ops) > machine.OpsMax {
		return nil, &machine.Refusal{Code: machine.TooLarge, Message: "at most " + strconv.Itoa(machine.OpsMax) + " operations"}
	}
	out := make([]machine.Op, len(ops))
	for i, op := range ops {
		bad := func(why string) ([]machine.Op, *machine.Refusal) {
			return nil, &machine.Refusal{Code: machine.BadPatch, Field: op.Path, Message: why, Line: i}
		}
		o := &out[i]
		o.Path = op.Path
		switch op.Op {
		case "test":
			o.Test = true
		case "replace", "add":
		case "remove":
			o.Remove = true
		default:
			return bad("operation " + strconv.Quote(op.Op) + " is not one of test, replace, add, remove")
		}
		if len(op.Path) < 2 || op.Path[0] != '/' {
			return bad("the path is no JSON pointer to a field")
		}
		if o.Remove {
			continue
		}
		v, err := machineValue(op.Value)
		if err != nil {
			return bad("the value is not JSON: " + err.Error())
		}
		o.Value = v
	}
	return out, nil
}

func machineValue(raw json.RawMessage) (v machine.Value, err error) {
	if len(raw) == 0 {
		raw = json.RawMessage("null")
	}
	// A value of any kind: Canonical takes documents, so it is wrapped into one.
	canonical, err := strictjson.Canonical(append(append([]byte(`{"v":`), raw...), '}'))
	if err != nil {
		return v, err
	}
	canonical = bytes.TrimSuffix(bytes.TrimPrefix(canonical, []byte(`{"v":`)), []byte("}"))
	v = machine.Value{Kind: machine.Other, JSON: string(canonical)}
	switch canonical[0] {
	case 'n':
		v.Kind = machine.Null
	case 't', 'f':
		v.Kind, v.Bool = machine.Bool, canonical[0] == 't'
	case '"':
		v.Kind = machine.Text
		err = json.Unmarshal(canonical, &v.Text)
	case '[':
		var list []string
		if json.Unmarshal(canonical, &list) == nil && !bytes.Contains(canonical, []byte("null")) {
			v.Kind, v.List = machine.List, list
		}
	default:
		if n, atoi := strconv.Atoi(string(canonical)); atoi == nil {
			v.Kind, v.Int = machine.Int, n
		}
	}
	return v, err
}
