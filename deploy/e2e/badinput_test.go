package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// bad is one command that must be refused.
type bad struct {
	name    string
	subject string // behind drover.api. or drover.cmd.
	proto   bool   // the body is not sent as JSON
	body    string
	header  map[string]string
	code    string
	field   string // of the first violation; empty where the reason is no field's
	reason  string // part of the message
}

// badCommands is every refusal of issue A1, "Bad input and faults".
func badCommands() []bad {
	resource := func(kind, name, more string) string {
		return fmt.Sprintf(`{"resource": {"apiVersion": "drover/v1", "kind": %q, "metadata": {"name": %q}%s}}`, kind, name, more)
	}
	blueprint := func(phases string) string {
		return resource("Blueprint", "lamp", `, "spec": {"lifecycle": "node", "states": ["On"], "phases": [`+phases+`]}`)
	}
	phase := func(name, more string) string {
		return fmt.Sprintf(`{"name": %q, "states": ["On"], "executor": {"plugin": {}}%s}`, name, more)
	}
	tree := func(items string) string { return resource("tree", "oak", `, "spec": {"items": [`+items+`]}`) }
	var tooMany strings.Builder
	for i := range 10_001 {
		fmt.Fprintf(&tooMany, `,{"name": "i%d"}`, i)
	}
	long := strings.Repeat("n", 254)
	return []bad{
		{name: "unknown kind", subject: "default.ghost.x.apply", body: resource("ghost", "x", ""), code: "invalid", field: "resource.kind", reason: "ghost"},
		{name: "unknown resource", subject: "default.door.x.open", body: "{}", code: "not_found", reason: "default/door/x"},
		{name: "unknown verb", subject: "default.door.front.slam", body: "{}", code: "invalid", field: "verb", reason: "slam"},
		{name: "verb not allowed now", subject: "default.door.front.shut", body: "{}", code: "conflict", reason: "may start from"},
		{name: "malformed protobuf", subject: "default.door.front.open", proto: true, body: "\xff\xff\xff", code: "invalid", reason: "protobuf"},
		{name: "unknown field of protobuf", subject: "default.door.front.open", proto: true, body: "\x98\x06\x01", code: "invalid", field: "99"},
		{name: "malformed JSON", subject: "default.door.front.open", body: `{"args": `, code: "invalid", reason: "JSON"},
		{name: "unknown field", subject: "default.door.front.open", body: `{"force": true}`, code: "invalid", field: "force"},
		{name: "unknown field of a manifest", subject: "default.door.front.apply", body: resource("door", "front", `, "colour": "red"`), code: "invalid", field: "colour"},
		{name: "unknown field of a blueprint", subject: "default.Blueprint.lamp.apply", body: blueprint(phase("a", "") + "," + phase("b", `, "retries": 3`)), code: "invalid", field: "spec.phases[1].retries"},
		{name: "unknown argument", subject: "default.door.front.retry", body: `{"args": {"scop": "all"}}`, code: "invalid", field: "args.scop"},
		{name: "another name than the subject's", subject: "default.door.front.apply", body: resource("door", "back", ""), code: "invalid", field: "metadata.name"},
		{name: "unprintable name", subject: "default.door.a=0Ab.apply", body: resource("door", `a\nb`, ""), code: "invalid", field: "subject.name", reason: "printed"},
		{name: "overlong name", subject: "default.door." + long + ".apply", body: resource("door", long, ""), code: "invalid", field: "subject.name", reason: "253"},
		{name: "cycle", subject: "default.Blueprint.lamp.apply", body: blueprint(phase("a", `, "dependsOn": ["b"]`) + "," + phase("b", `, "dependsOn": ["a"]`)), code: "invalid", field: "spec.phases[1].dependsOn[0]", reason: "cycle"},
		{name: "unknown name in dependsOn", subject: "default.Blueprint.lamp.apply", body: blueprint(phase("a", "") + "," + phase("b", `, "dependsOn": ["c"]`)), code: "invalid", field: "spec.phases[1].dependsOn[0]"},
		{name: "CEL that does not compile", subject: "default.Blueprint.lamp.apply", body: blueprint(phase("a", `, "when": "resource.spec.("`)), code: "invalid", field: "spec.phases[0].when"},
		{name: "items over their limit", subject: "default.tree.oak.apply", body: tree(tooMany.String()[1:]), code: "invalid", field: "spec.items", reason: "10001"},
		{name: "item that depends on none", subject: "default.tree.oak.apply", body: tree(`{"name": "a"}, {"name": "b", "dependsOn": ["a", "c"]}`), code: "invalid", field: "spec.items[1].dependsOn[1]"},
		{name: "items that wait for each other", subject: "default.tree.oak.apply", body: tree(`{"name": "a", "dependsOn": ["b"]}, {"name": "b", "dependsOn": ["a"]}`), code: "invalid", field: "spec.items", reason: "circle"},
		{name: "unknown field of an item", subject: "default.tree.oak.apply", body: tree(`{"name": "a", "wait": true}`), code: "invalid", field: "spec.items[0].wait"},
		{name: "spec over its limit", subject: "default.door.front.apply", body: resource("door", "front", `, "spec": {"x": "`+strings.Repeat("x", 768<<10)+`"}`), code: "too_large", field: "spec"},
		{name: "command over its limit", subject: "default.door.front.apply", body: resource("door", "front", `, "spec": {"x": "`+strings.Repeat("x", 960<<10)+`"}`), code: "too_large"},
		{name: "bad request id", subject: "default.door.front.open", body: "{}", header: map[string]string{"Drover-Request-Id": "no spaces"}, code: "invalid", field: "header.Drover-Request-Id"},
		{name: "foreign message id", subject: "default.door.front.open", body: "{}", header: map[string]string{"Nats-Msg-Id": "mine"}, code: "invalid", field: "header.Nats-Msg-Id"},
		{name: "no selector", subject: "default.door.-.open", body: "{}", code: "invalid", field: "selector", reason: "all"},
		{name: "broken selector", subject: "default.door.-.open", body: `{"selector": "a in (b"}`, code: "invalid", field: "selector"},
		{name: "selector for one", subject: "default.door.front.open", body: `{"all": true}`, code: "invalid", field: "all"},
		{name: "manifest for many", subject: "default.door.-.apply", body: resource("door", "-", ""), code: "invalid", field: "subject.name"},
	}
}

// TestBadInput sends every bad command through both doors: each is refused with the path of its field, nothing of it is
// stored, and the good one behind it is carried out.
func TestBadInput(t *testing.T) {
	t.Parallel()
	h := newHouse(t, plan{intakes: 1, orchestrators: 1})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nc := h.connect()
	defer nc.Close()
	d, err := openDoor(nc)
	require.NoError(t, err)
	must := func(c command) {
		t.Helper()
		a, err := d.request(ctx, c)
		require.NoError(t, err)
		require.NotEmpty(t, a.JobID, "%s %s: %+v", c.Verb, c.Name, a)
	}
	// A door may be shut only where it is open.
	must(command{Kind: "Blueprint", Name: "door", Verb: "apply", ID: "door", Body: apply("Blueprint", "door", object{
		"lifecycle": object{"flows": list{
			object{"verb": "open", "path": list{"Opening"}, "target": "Open"},
			object{"verb": "shut", "from": list{"Open"}, "path": list{"Shutting"}, "target": "Shut"},
		}},
		"phases": list{object{"name": "turn", "states": list{"Opening", "Shutting"}, "executor": object{"plugin": object{}}}},
	}, nil)})
	must(command{Kind: "door", Name: "front", Verb: "apply", ID: "front", Body: apply("door", "front", object{}, nil)})

	must(command{Kind: "Blueprint", Name: "tree", Verb: "apply", ID: "tree", Body: apply("Blueprint", "tree", object{
		"lifecycle": "execution", "phases": list{
			object{"name": "items", "states": list{"Init"}, "executor": object{"children": object{"do": "apply", "kind": "door"}}},
		},
	}, nil)})

	// The records of the jobs follow their acceptance, and the buckets follow the log.
	var before map[string]uint64
	require.Eventually(t, func() bool {
		before = sequences(t, ctx, d.js)
		derived := before["KV_drover_blueprints"] + before["KV_drover_jobs"] + before["KV_drover_resources"] + before["KV_drover_specs"]
		return before["KV_drover_jobs"] == 3 && derived == before["EVENTS"]
	}, 20*time.Second, 10*time.Millisecond)
	t.Run("api", func(t *testing.T) {
		for i, b := range badCommands() {
			m := b.msg("api", fmt.Sprintf("api-%d", i))
			reply, err := nc.RequestMsgWithContext(ctx, m)
			require.NoError(t, err, b.name)
			b.check(t, reply)
		}
	})
	t.Run("cmd", func(t *testing.T) {
		for i, b := range badCommands() {
			id := fmt.Sprintf("cmd-%d", i)
			m := b.msg("cmd", id)
			ack, err := d.js.PublishMsg(ctx, m)
			require.NoError(t, err, b.name)
			if b.header["Drover-Request-Id"] != "" {
				id = fmt.Sprintf("c%d", ack.Sequence) // made from the stream's sequence
			}
			refused, err := d.js.Stream(ctx, "REFUSED")
			require.NoError(t, err)
			var raw *jetstream.RawStreamMsg
			require.Eventually(t, func() bool {
				raw, err = refused.GetLastMsgForSubject(ctx, "drover.refused.default."+id)
				return err == nil
			}, 30*time.Second, 5*time.Millisecond, b.name)
			b.check(t, &nats.Msg{Header: raw.Header, Data: raw.Data})
		}
	})
	require.Equal(t, before, sequences(t, ctx, d.js), "a refused command must leave nothing behind")
	_, err = d.js.PublishMsg(ctx, &nats.Msg{Subject: "drover.cmd.default.door.front.apply", Data: make([]byte, 1000<<10)})
	require.Error(t, err, "a command that is far too large is not captured at all")

	// What is good behind what is bad, of the same resource and in the same stream, is carried out.
	for i, b := range badCommands() {
		if strings.Contains(b.subject, ".door.front.") {
			_, err := d.js.PublishMsg(ctx, b.msg("cmd", fmt.Sprintf("again-%d", i)))
			require.NoError(t, err, b.name)
		}
	}
	c := chronicleOf(t, h)
	_, err = d.publish(ctx, command{Kind: "door", Name: "front", Verb: "open", ID: "good"})
	require.NoError(t, err)
	require.True(t, c.wait(ctx, func() bool {
		for _, j := range c.jobs {
			if j.RequestID == "good" {
				return true
			}
		}
		return false
	}), "the good command was not carried out")
	require.Equal(t, "Opening", c.state("door", "front").State)
	empty(t, d.js, "COMMANDS", "POISON")
}

func (b bad) msg(door, id string) *nats.Msg {
	m := nats.NewMsg("drover." + door + "." + b.subject)
	m.Data = []byte(b.body)
	m.Header["Drover-Request-Id"] = []string{id}
	if !b.proto {
		m.Header["Content-Type"] = []string{"application/json"}
	}
	for name, value := range b.header {
		m.Header[name] = []string{value}
	}
	return m
}

func (b bad) check(t *testing.T, reply *nats.Msg) {
	t.Helper()
	if b.proto { // answered in the form in which it came: Reply.refused, and in it code and violations
		refused := field(t, reply.Data, 2)
		require.Equal(t, b.code, string(field(t, refused, 1)), b.name)
		require.Contains(t, string(field(t, refused, 2)), b.reason, b.name)
		require.Equal(t, b.field, string(field(t, field(t, refused, 3), 1)), b.name)
		return
	}
	var a answer
	require.NoError(t, json.Unmarshal(reply.Data, &a), "%s: %q", b.name, reply.Data)
	require.Equal(t, b.code, a.Code, "%s: %s", b.name, reply.Data)
	require.Empty(t, a.JobID, b.name)
	require.Contains(t, a.Message, b.reason, b.name)
	if b.field != "" {
		require.NotEmpty(t, a.Violations, "%s: %s", b.name, reply.Data)
		require.Equal(t, b.field, a.Violations[0].Field, "%s: %s", b.name, reply.Data)
		require.NotEmpty(t, a.Violations[0].Reason, b.name)
	}
	require.False(t, bytes.Contains(reply.Data, []byte("xxxxxxxx")), "%s: a refusal does not give back what was too large", b.name)
}

// sequences is the last sequence of each stream that holds state or is derived from it.
func sequences(t *testing.T, ctx context.Context, js jetstream.JetStream) map[string]uint64 {
	t.Helper()
	last := map[string]uint64{}
	streams := js.ListStreams(ctx)
	for info := range streams.Info() {
		last[info.Config.Name] = info.State.LastSeq
	}
	require.NoError(t, streams.Err())
	for _, name := range []string{"RESULTS", "WORK"} { // the bus replaces a message of its own there
		s, err := js.Stream(ctx, name)
		require.NoError(t, err)
		last[name] = uint64(left(ctx, s))
	}
	require.Contains(t, last, "KV_drover_resources")
	maps.DeleteFunc(last, func(name string, _ uint64) bool {
		return name == "COMMANDS" || name == "REFUSED" || name == "TIMERS" || name == "OUTPUT"
	})
	return last
}
