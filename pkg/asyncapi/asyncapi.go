// Package asyncapi renders the AsyncAPI 3 document of Drover's subjects: channels of the grammar (bus/subject.go), who may send
// and receive of the contracts (bus/contract.go), bodies of the protobuf descriptors (wire.BodySchemas). The document is
// committed as docs/asyncapi.yaml; this package's test holds it fresh, whole and sound.
//
// An operation is one role's: what it sends, or receives. A role may do what is not its business (the operator sees all); the
// document says what the server lets it do, because that is what is enforced.
package asyncapi

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
)

// Version of the document: that of the subjects and bodies, which are frozen. Fields and families may be added.
const Version = "1.0.0"

// Channel is one form of subject.
type Channel struct {
	Name    string
	Address string // a token in braces stands for one token; "…" behind it, for the tokens of an entity
	About   string
	Message string // of messages
	Answer  string // message of the answer, where it is a request
	Stream  string // that captures it; empty: none
}

// Channels are all subjects that Drover's own messages go by, in the order of the grammar.
func Channels() []Channel {
	all := []Channel{
		{"command", "drover.cmd.{project}.{kind}.{name}.{verb}", "A command, captured. The PubAck means that it is durably received; why it was refused is found on channel refused. The name `-` stands for all that the body's selector matches.", "command", "", "COMMANDS"},
		{"api", "drover.api.{project}.{kind}.{name}.{verb}", "A command as a request, answered after the commit.", "command", "reply", ""},
		{"refused", "drover.refused.{project}.{requestId}", "Why a captured command was refused.", "reply", "", "REFUSED"},
		{"ask", "drover.ask.{partition}", "A request of a service to a partition's owner; the header Drover-Verb says what is asked.", "internal", "internal", ""},
		{"door", "drover.door.{partition}.{door}", "A request of who serves a front door to a partition's owner.", "internal", "internal", ""},
		{"phase", "drover.phase.{partition}.{project}.{kind}.{phase}", "A phase's worker holds the phase, or releases it: `hold` and `release` in the header Drover-Verb. The partition is that of the kind's blueprint.", "phaseReport", "phaseHold", ""},
		{"result", "drover.result.{partition}.{project}.{kind}.{name}", "A worker's answer to a hand-out, to the subject that came with it. Wait for the PubAck before the work is acknowledged.", "result", "", "RESULTS"},
		{"callback", "drover.result.{partition}.-.callback.{id}", "What somebody says who carries a phase out and holds an id, no fence.", "callback", "", "RESULTS"},
	}
	for _, f := range bus.Families() {
		entity := tokensOf(f)
		all = append(all,
			Channel{"log-" + string(f), "drover.log.{partition}." + string(f) + "." + entity + ".{mark}.{tail}", "The log of family " + string(f) + ". " + tails(f), "event", "", "EVENTS"},
			Channel{"bucket-" + string(f), "$KV." + f.Bucket() + "." + entity, "Bucket `" + f.Bucket() + "`: the last event of each entity, derived from the log.", "event", "", "KV_" + f.Bucket()},
			Channel{"feed-" + string(f), "drover.evt." + string(f) + "." + entity, "The live feed: at most once, ordered per entity. A gap in Drover-Revision is a missed event.", "event", "", ""})
	}
	return append(all,
		Channel{"work", "drover.work.{project}.{kind}.{phase}", "Work of a phase: the event that hands it out, pulled through the consumer `<project>~<kind>~<phase>` of stream WORK. With the header Drover-Poll it is a further call of a pending phase.", "event", "", "WORK"},
		Channel{"output", "drover.out.{project}.{kind}.{name}", "What a phase, or a task run (kind `taskrun`, name its id), prints.", "outputLine", "", "OUTPUT"},
		Channel{"timer", "drover.timer.{tick}", "A schedule.", "internal", "", "TIMERS"},
		Channel{"tick", "drover.tick.{tick}", "What a schedule fires.", "internal", "", "TIMERS"},
		Channel{"ticked", "drover.ticked.{tick}", "A tick, republished.", "internal", "", ""},
		Channel{"member", "drover.member.{service}.{id}", "The heartbeat of a process among those of its service.", "internal", "", ""},
		Channel{"notice", "drover.notice.{listener…}", "A listener's notice: the subject that its manifest names.", "notice", "", ""},
		Channel{"poison", "drover.poison.{stream}", "A message that was set aside, with the reason in the header Drover-Reason.", "internal", "", "POISON"},
	)
}

func tokensOf(f bus.Family) string {
	tokens := "{project}"
	if f.HasKind() {
		tokens += ".{kind}"
	}
	if f.HasName() {
		tokens += ".{name}"
	}
	return tokens
}

func tails(f bus.Family) string {
	switch f {
	case bus.Resource:
		return "Mark and tail are `is.-`, or `do.<phase>` where the event hands out a phase."
	case bus.Spec, bus.Blueprint:
		return "Mark and tail are `is.<digest>`, or `is.-` at its end."
	default:
		return "Mark and tail are `is.-`."
	}
}

// parameters says what stands in braces.
var parameters = map[string]string{
	"project": "Name of the project.", "kind": "Kind of the resource.", "name": "Name, or the id of what has none.", "verb": "What is asked: `apply`, a flow of the lifecycle, `retry`, `cancel`, …",
	"requestId": "The command's request id.", "partition": "Partition, from 0.", "door": "`machine`, `check` or `callback`.", "phase": "Name of the phase.",
	"id": "A number or a name that is the process's or the attempt's own.", "mark": "`is` or `do`.", "tail": "`-`, a digest, or the phase that is handed out.",
	"tick": "`second` or `sweep`.", "service": "Name of the service.", "stream": "Stream that it was taken from.", "listener": "One token or several.",
}

// messages are the bodies: the schema, and what is said of it. Empty: of Drover's own, and may change.
var messages = []struct{ name, schema, about string }{
	{"command", "Command", "A command. Protobuf, or JSON with the header Content-Type: application/json."},
	{"reply", "Reply", "Accepted or refused, in the form of the command."},
	{"result", "Result", "What became of a hand-out. Protobuf, or JSON with the header Content-Type: application/json."},
	{"callback", "Callback", "A callback. Protobuf."},
	{"event", "Event", "One transition of one entity, with the state after it. Protobuf; `drover decode` writes the JSON that the schema describes."},
	{"outputLine", "OutputLine", "One line of output. Protobuf."},
	{"phaseReport", "PhaseReport", "What a phase's worker says of itself. Protobuf."},
	{"phaseHold", "PhaseHold", "Whether it holds the phase. Protobuf."},
	{"notice", "Event", "The event that the listener waited for."},
	{"internal", "", "Between Drover's own processes; it is no part of the public surface, and may change with any version."},
}

// headersOf are the headers of a message, and what they say.
func headersOf(message string) [][2]string {
	contentType := [2]string{bus.HeaderContentType, "`application/json` where the body is JSON; else it is protobuf."}
	trace := [2]string{bus.HeaderTraceparent, "W3C trace context, carried through."}
	switch message {
	case "command":
		return [][2]string{{bus.HeaderRequestID, "`[A-Za-z0-9_-]{1,64}`. The same id again for a resource is the same job and has no second effect; another body under it is a conflict. Made where it is missing."},
			{bus.HeaderReplyTo, "Where the answer to a captured command goes, besides stream REFUSED."}, {"Nats-Msg-Id", "If set: `<project>/<kind>/<name>/<request id>`."}, contentType, trace}
	case "event", "notice":
		return [][2]string{{bus.HeaderFrom, "State before."}, {bus.HeaderTo, "State after."}, {bus.HeaderJob, "Job."}, {bus.HeaderRevision, "Revision of the entity, without a gap."},
			{bus.HeaderPoll, "On work: the key of a further call of a pending phase."}, trace}
	case "result", "reply", "callback":
		return [][2]string{contentType, trace}
	case "phaseReport", "phaseHold":
		return [][2]string{{bus.HeaderVerb, "`hold` or `release`."}}
	default:
		return nil
	}
}

type pairs = yaml.MapSlice

func pair(key string, value any) yaml.MapItem { return yaml.MapItem{Key: key, Value: value} }

func ref(path string) pairs { return pairs{pair("$ref", "#/"+path)} }

// Render writes the document. comments are those of the .proto files (Comments).
func Render(comments map[string]string) ([]byte, error) {
	var channels, operations, bodies, schemas pairs
	contracts := bus.Contracts()
	for _, c := range Channels() {
		channel := pairs{pair("address", strings.ReplaceAll(c.Address, "…", "")), pair("description", c.About)}
		if c.Stream != "" {
			channel = append(channel, pair("x-stream", c.Stream))
		}
		var params pairs
		for _, name := range c.Parameters() {
			params = append(params, pair(name, pairs{pair("description", parameters[name])}))
		}
		used := pairs{pair(c.Message, ref("components/messages/"+c.Message))}
		if c.Answer != "" && c.Answer != c.Message {
			used = append(used, pair(c.Answer, ref("components/messages/"+c.Answer)))
		}
		channels = append(channels, pair(c.Name, append(channel, pair("parameters", params), pair("messages", used))))
		for _, contract := range contracts {
			for _, side := range []struct {
				action   string
				patterns []string
			}{{"send", contract.Publish}, {"receive", contract.Subscribe}} {
				if !c.within(side.patterns) {
					continue
				}
				operation := pairs{pair("action", side.action), pair("channel", ref("channels/"+c.Name)),
					pair("messages", []any{ref("channels/" + c.Name + "/messages/" + c.Message)}), pair("x-role", string(contract.Service))}
				if c.Answer != "" {
					operation = append(operation, pair("reply", pairs{
						pair("address", pairs{pair("location", "$message.header#/reply"), pair("description", "The reply subject of the request.")}),
						pair("channel", ref("channels/"+c.Name)), pair("messages", []any{ref("channels/" + c.Name + "/messages/" + c.Answer)})}))
				}
				operations = append(operations, pair(fmt.Sprintf("%s-%ss-%s", contract.Service, side.action, c.Name), operation))
			}
		}
	}
	for _, m := range messages {
		body := pairs{pair("name", m.name), pair("description", m.about)}
		if m.schema != "" {
			body = append(body, pair("contentType", "application/json"), pair("payload", ref("components/schemas/"+m.schema)))
		}
		var headers pairs
		for _, h := range headersOf(m.name) {
			headers = append(headers, pair(h[0], pairs{pair("type", "string"), pair("description", h[1])}))
		}
		if headers != nil {
			body = append(body, pair("headers", pairs{pair("type", "object"), pair("properties", headers)}))
		}
		bodies = append(bodies, pair(m.name, body))
	}
	for _, s := range wire.BodySchemas(func(name string) string { return comments[name] }) {
		s.Schema["x-protobuf"] = s.FullName
		schemas = append(schemas, pair(s.Name, s.Schema))
	}
	document := pairs{
		pair("asyncapi", "3.0.0"),
		pair("info", pairs{
			pair("title", "Drover"), pair("version", Version), pair("license", pairs{pair("name", "Apache-2.0")}),
			pair("description", "The subjects of Drover on NATS. A name is one token: a byte outside `[A-Za-z0-9_-]` is written `=XX` (hex), and the name `-` is `=2D`. "+
				"Schemas are of the bodies' JSON form; fields may be added. See docs/subjects.md."),
		}),
		pair("defaultContentType", "application/x-protobuf"),
		pair("servers", pairs{pair("local", pairs{pair("host", "127.0.0.1:4222"), pair("protocol", "nats")})}),
		pair("channels", channels), pair("operations", operations),
		pair("components", pairs{pair("messages", bodies), pair("schemas", schemas)}),
	}
	text, err := yaml.MarshalWithOptions(document, yaml.IndentSequence(true), yaml.UseLiteralStyleIfMultiline(true))
	if err != nil {
		return nil, fmt.Errorf("asyncapi: %w", err)
	}
	return append([]byte("# Generated from pkg/asyncapi by `make generate`, do not edit.\n"), text...), nil
}

// Parameters are the names in braces, in their order.
func (c Channel) Parameters() []string {
	var names []string
	for _, token := range strings.Split(c.Address, ".") {
		if name, ok := strings.CutPrefix(token, "{"); ok {
			names = append(names, strings.TrimSuffix(strings.TrimSuffix(name, "}"), "…"))
		}
	}
	return names
}

// Pattern is the address as a subscription.
func (c Channel) Pattern() string {
	tokens := strings.Split(c.Address, ".")
	for i, token := range tokens {
		switch {
		case strings.HasSuffix(token, "…}"):
			tokens[i] = ">"
		case strings.HasPrefix(token, "{"):
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// within reports whether one of the patterns covers a part of the channel that no narrower channel has to itself.
func (c Channel) within(patterns []string) bool {
	for _, p := range patterns {
		if Overlap(c.Pattern(), p) && (c.Name != "result" || p != bus.CallbackSubjects) {
			return true
		}
	}
	return false
}

// Overlap reports whether a subject can match both of two patterns.
func Overlap(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		if x[i] == ">" || y[i] == ">" {
			return true
		}
		if x[i] != y[i] && x[i] != "*" && y[i] != "*" {
			return false
		}
	}
	return len(x) == len(y)
}
