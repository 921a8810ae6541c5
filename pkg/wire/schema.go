package wire

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/droverproject/drover/proto/gen/drover/agent/v1"
	commandv1 "github.com/droverproject/drover/proto/gen/drover/command/v1"
	eventv1 "github.com/droverproject/drover/proto/gen/drover/event/v1"
)

// BodySchema is the JSON Schema of one protobuf message in the JSON form that this package writes and reads.
type BodySchema struct {
	Name     string         // of the message, without its package: no two have the same
	FullName string         // with it
	Schema   map[string]any // other messages are referred to as #/components/schemas/<name>
}

// BodySchemas are the schemas of all bodies and of what they are made of, made of the descriptors, so that a field added later
// is in them. comment is what the .proto file says of a message or a field, by its full name; nil: nothing is known.
func BodySchemas(comment func(fullName string) string) []BodySchema {
	if comment == nil {
		comment = func(string) string { return "" }
	}
	s := &schemas{comment: comment, seen: map[protoreflect.FullName]bool{}}
	for _, m := range []proto.Message{
		new(eventv1.Event), new(commandv1.Command), new(commandv1.Reply), new(commandv1.Result), new(commandv1.Callback),
		new(agentv1.OutputLine), new(agentv1.PhaseReport), new(agentv1.PhaseHold),
	} {
		s.message(m.ProtoReflect().Descriptor())
	}
	return s.all
}

type schemas struct {
	comment func(string) string
	seen    map[protoreflect.FullName]bool
	all     []BodySchema
}

func (s *schemas) message(m protoreflect.MessageDescriptor) map[string]any {
	ref := map[string]any{"$ref": "#/components/schemas/" + string(m.Name())}
	if s.seen[m.FullName()] {
		return ref
	}
	s.seen[m.FullName()] = true
	at := len(s.all)
	s.all = append(s.all, BodySchema{Name: string(m.Name()), FullName: string(m.FullName())})
	schema := s.body(m)
	if text := s.comment(string(m.FullName())); text != "" {
		schema["description"] = text
	}
	s.all[at].Schema = schema
	return ref
}

func (s *schemas) body(m protoreflect.MessageDescriptor) map[string]any {
	switch m.FullName() {
	case new(eventv1.Cause).ProtoReflect().Descriptor().FullName(): // appendCause
		said := map[string]any{}
		for i := range m.Fields().Len() {
			if f := m.Fields().Get(i); f.Name() != "kind" {
				said[f.JSONName()] = s.described(f, map[string]any{"type": "string"})
			}
		}
		return map[string]any{"type": "object", "minProperties": 1, "maxProperties": 1,
			"additionalProperties": map[string]any{"type": "object", "properties": said}}
	case new(commandv1.Reply).ProtoReflect().Descriptor().FullName(): // the answer itself
		return map[string]any{"anyOf": s.oneof(m.Oneofs().Get(0))}
	}
	properties := map[string]any{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if o := f.ContainingOneof(); o != nil {
			properties[string(o.Name())] = map[string]any{"anyOf": s.oneof(o)}
			continue
		}
		properties[f.JSONName()] = s.described(f, s.field(f))
	}
	schema := map[string]any{"type": "object", "properties": properties}
	if strict(m) {
		schema["additionalProperties"] = false
	}
	return schema
}

// strict says that an unknown field is refused, since it is somebody's mistake; events may have fields that a reader does not know.
func strict(m protoreflect.MessageDescriptor) bool {
	switch m.Name() {
	case "Command", "Manifest", "Metadata", "Result":
		return true
	}
	return false
}

func (s *schemas) oneof(o protoreflect.OneofDescriptor) []any {
	var all []any
	for i := range o.Fields().Len() {
		all = append(all, s.message(o.Fields().Get(i).Message()))
	}
	return all
}

func (s *schemas) described(f protoreflect.FieldDescriptor, schema map[string]any) map[string]any {
	if text := s.comment(string(f.FullName())); text != "" {
		schema["description"] = text
	}
	return schema
}

func (s *schemas) field(f protoreflect.FieldDescriptor) map[string]any {
	switch {
	case f.IsList():
		return map[string]any{"type": "array", "items": s.value(f)}
	case f.IsMap(): // all of ours are strings by strings
		values := map[string]any{"type": "string"}
		if jsonText[f.FullName()] {
			values = map[string]any{}
		}
		return map[string]any{"type": "object", "additionalProperties": values}
	}
	return s.value(f)
}

func (s *schemas) value(f protoreflect.FieldDescriptor) map[string]any {
	switch f.Kind() {
	case protoreflect.MessageKind:
		switch f.Message().FullName() {
		case new(timestamppb.Timestamp).ProtoReflect().Descriptor().FullName():
			return map[string]any{"type": "string", "format": "date-time"}
		case new(durationpb.Duration).ProtoReflect().Descriptor().FullName():
			return map[string]any{"type": "string", "pattern": `^-?\d+(\.\d{1,9})?s$`}
		}
		return s.message(f.Message())
	case protoreflect.StringKind:
		if jsonText[f.FullName()] {
			return map[string]any{} // any JSON
		}
		return map[string]any{"type": "string"}
	case protoreflect.BoolKind:
		return map[string]any{"type": "boolean"}
	case protoreflect.EnumKind:
		var names []any
		for i := range f.Enum().Values().Len() {
			if text := string(appendEnum(nil, f, f.Enum().Values().Get(i).Number())); strings.HasPrefix(text, `"`) {
				names = append(names, strings.Trim(text, `"`))
			}
		}
		return map[string]any{"type": "string", "enum": names}
	case protoreflect.Uint64Kind:
		return map[string]any{"type": "string", "pattern": `^\d+$`}
	case protoreflect.Sint32Kind:
		return map[string]any{"type": "integer"}
	default: // uint32
		return map[string]any{"type": "integer", "minimum": 0}
	}
}
