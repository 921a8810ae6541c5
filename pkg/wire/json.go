package wire

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
	agentv1 "github.com/droverproject/drover/proto/gen/drover/agent/v1"
	commandv1 "github.com/droverproject/drover/proto/gen/drover/command/v1"
	eventv1 "github.com/droverproject/drover/proto/gen/drover/event/v1"
)

// EventJSON is an event as contract.md shows it to people: fields that are not set are left out, enums are named as
// users know them ("Completed"), attributes, data, outputs, specs and blueprints are real JSON, whole 64-bit numbers are
// strings, and the state, of whatever family, is under "state". What this version does not know is shown by its number
// or passed over, so any event of any version can be shown.
func EventJSON(body []byte) ([]byte, error) {
	m := new(eventv1.Event)
	if err := unmarshal(body, m); err != nil {
		return nil, err
	}
	if m.Family == "" {
		return nil, missing("family")
	}
	return appendMessage(nil, m.ProtoReflect()), nil
}

// Types of bodies that BodyJSON knows by name.
const (
	TypeEvent   = "event"
	TypeCommand = "command"
	TypeResult  = "result"
	TypeReply   = "reply"
	TypeRefused = "refused"
	TypeOutput  = "output"
)

// Types lists them.
func Types() []string {
	return []string{TypeEvent, TypeCommand, TypeResult, TypeReply, TypeRefused, TypeOutput}
}

// typeBySubject says what is published under which subjects (contract.md, "NATS subjects").
var typeBySubject = []struct{ prefix, name string }{
	{"drover.cmd.", TypeCommand}, {"drover.api.", TypeCommand}, {"drover.log.", TypeEvent}, {"drover.evt.", TypeEvent},
	{"drover.work.", TypeEvent}, {"drover.result.", TypeResult}, {"drover.refused.", TypeReply},
	{"drover.out.", TypeOutput}, {"$KV.drover_", TypeEvent}, {"_INBOX.", TypeReply},
}

// BodyJSON turns a body into JSON. typeName is one of Types, or the subject that the body was published under. A body
// that is JSON already comes back compact. It shows what is there and judges it less than the decoders do.
func BodyJSON(typeName string, body []byte) ([]byte, error) {
	for _, t := range typeBySubject {
		if strings.HasPrefix(typeName, t.prefix) {
			typeName = t.name
			break
		}
	}
	// No message of ours begins with this byte as protobuf (it would be the group of a field 15).
	if len(body) > 0 && body[0] == '{' {
		var compact bytes.Buffer
		if err := json.Compact(&compact, body); err != nil {
			return nil, malformed("", "is not JSON: "+err.Error())
		}
		return compact.Bytes(), nil
	}
	var m proto.Message
	switch typeName {
	case TypeEvent:
		return EventJSON(body)
	case TypeCommand:
		m = new(commandv1.Command)
	case TypeResult:
		m = new(commandv1.Result)
	case TypeReply:
		m = new(commandv1.Reply)
	case TypeRefused:
		m = new(commandv1.Refused)
	case TypeOutput:
		m = new(agentv1.OutputLine)
	default:
		return nil, malformed("", "neither the name of a body's type ("+strings.Join(Types(), ", ")+") nor a subject of Drover: "+
			strconv.Quote(typeName))
	}
	if err := unmarshal(body, m); err != nil {
		return nil, err
	}
	return appendMessage(nil, m.ProtoReflect()), nil
}

// jsonText names the fields that hold JSON text: the values of maps, or the string itself.
var jsonText = map[protoreflect.FullName]bool{
	"drover.state.v1.Resource.attributes": true,
	"drover.state.v1.PhaseRun.data":       true,
	"drover.state.v1.PhaseRun.outputs":    true,
	"drover.state.v1.Machine.params":      true,
	"drover.state.v1.Spec.json":           true,
	"drover.state.v1.Blueprint.json":      true,
	"drover.state.v1.Check.spec":          true,
	"drover.state.v1.Check.pins":          true,
	"drover.state.v1.Deployment.details":  true,
	"drover.command.v1.Manifest.spec":     true,
	"drover.command.v1.Result.attributes": true,
	"drover.command.v1.Result.data":       true,
	"drover.command.v1.Result.outputs":    true,
}

// appendMessage walks any message, so that a field added later is shown without a change here.
func appendMessage(b []byte, m protoreflect.Message) []byte {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		t, err := instant("", v)
		if err != nil {
			return append(b, "null"...)
		}
		return strictjson.AppendString(b, t.Format(time.RFC3339Nano))
	case *durationpb.Duration:
		d, err := lasting("", v)
		if err != nil {
			return append(b, "null"...)
		}
		return strictjson.AppendString(b, seconds(d))
	case *eventv1.Cause:
		return appendCause(b, v)
	case *commandv1.Reply: // contract.md shows the answer itself
		if f := m.WhichOneof(m.Descriptor().Oneofs().Get(0)); f != nil {
			return appendMessage(b, m.Get(f).Message())
		}
	}
	b = append(b, '{')
	first := true
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !m.Has(f) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		name := f.JSONName()
		if o := f.ContainingOneof(); o != nil {
			name = string(o.Name())
		}
		b = append(strictjson.AppendString(b, name), ':')
		b = appendField(b, f, m.Get(f))
	}
	return append(b, '}')
}

// appendCause is {"result": {"phase": …}}: the kind of the input, and what it said.
func appendCause(b []byte, c *eventv1.Cause) []byte {
	b = append(b, '{')
	b = append(strictjson.AppendString(b, c.Kind), ":{"...)
	first := true
	for _, f := range []struct{ name, value string }{
		{"verb", c.Verb}, {"phase", c.Phase}, {"outcome", c.Outcome}, {"message", c.Message},
		{"requestedBy", c.RequestedBy}, {"traceparent", c.Traceparent},
	} {
		if f.value == "" {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(strictjson.AppendString(b, f.name), ':')
		b = strictjson.AppendString(b, f.value)
	}
	return append(b, "}}"...)
}

func appendField(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch {
	case f.IsList():
		b = append(b, '[')
		for i := range v.List().Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, f, v.List().Get(i))
		}
		return append(b, ']')
	case f.IsMap(): // all of ours are strings by strings
		values := make(map[string]string, v.Map().Len())
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			values[k.String()] = v.String()
			return true
		})
		b = append(b, '{')
		for i, name := range slices.Sorted(maps.Keys(values)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(strictjson.AppendString(b, name), ':')
			b = appendText(b, f, values[name])
		}
		return append(b, '}')
	default:
		return appendValue(b, f, v)
	}
}

func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return appendMessage(b, v.Message())
	case protoreflect.StringKind:
		return appendText(b, f, v.String())
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	case protoreflect.EnumKind:
		return appendEnum(b, f, v.Enum())
	case protoreflect.Uint64Kind:
		return append(strconv.AppendUint(append(b, '"'), v.Uint(), 10), '"')
	case protoreflect.Sint32Kind:
		return strconv.AppendInt(b, v.Int(), 10)
	default: // uint32
		return strconv.AppendUint(b, v.Uint(), 10)
	}
}

func appendText(b []byte, f protoreflect.FieldDescriptor, s string) []byte {
	if jsonText[f.FullName()] {
		if canonical, err := strictjson.Canonical([]byte(s)); err == nil {
			return append(b, canonical...)
		}
	}
	return strictjson.AppendString(b, s)
}

// appendEnum writes the name that users see; a number where this version knows none.
func appendEnum(b []byte, f protoreflect.FieldDescriptor, n protoreflect.EnumNumber) []byte {
	switch f.Enum().FullName() {
	case "drover.state.v1.PhaseStatus":
		return appendEnumOf[resource.Status](b, statuses[:], n)
	case "drover.state.v1.JobState":
		return appendEnumOf[job.State](b, jobStates[:], n)
	case "drover.state.v1.SelectionStage":
		return appendEnumOf[job.Stage](b, stages[:], n)
	case "drover.state.v1.DeploymentStatus":
		return appendEnumOf[deployment.Status](b, deploymentStatuses[:], n)
	case "drover.command.v1.Outcome":
		return appendEnumOf[resource.Outcome](b, outcomes[:], n)
	case "drover.state.v1.TaskRunState":
		return appendEnumOf[machine.RunState](b, runStates[:], n)
	}
	return strconv.AppendInt(b, int64(n), 10)
}

func appendEnumOf[E interface {
	~uint8
	String() string
}, P ~int32](b []byte, table []P, n protoreflect.EnumNumber) []byte {
	e, err := fromEnum[E]("", table, P(n))
	if err != nil {
		return strconv.AppendInt(b, int64(n), 10)
	}
	return strictjson.AppendString(b, e.String())
}

// seconds is a duration as protobuf-JSON has it: "15s", "0.5s".
func seconds(d time.Duration) string {
	whole, part := d/time.Second, d%time.Second
	s := strconv.FormatInt(int64(whole), 10)
	if part != 0 {
		nanos := strconv.FormatInt(int64(part), 10)
		s += "." + strings.TrimRight(strings.Repeat("0", 9-len(nanos))+nanos, "0")
	}
	return s + "s"
}

func marshalJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, malformed("", err.Error())
	}
	if b.Len() > BodyBytesMax {
		return nil, tooLarge("", BodyBytesMax)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
