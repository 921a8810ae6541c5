package check_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

const jsonType = "application/json"

func target(kind, name, verb string) check.Target {
	return check.Target{Key: resource.Key{Project: "default", Kind: kind, Name: name}, Verb: verb}
}

func message(t check.Target, body string) check.Message {
	return check.Message{Target: t, RequestID: "r1", ContentType: jsonType, Body: []byte(body)}
}

const blueprint = `{"resource":{"apiVersion":"drover/v1","kind":"Blueprint","metadata":{"name":"node"},"spec":{
	"lifecycle":"node","states":["Allocation"],"phases":[{"name":"a","states":["Allocation"],"executor":{"plugin":{}}}%s]}}}`

func TestAccepts(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]check.Message{
		"apply":             message(target("node", "web-1", "apply"), `{"resource":{"apiVersion":"drover/v1","kind":"node","metadata":{"name":"web-1","labels":{}},"spec":{}}}`),
		"apply, no spec":    message(target("node", "web-1", "apply"), `{"resource":{"apiVersion":"drover/v1","kind":"node","metadata":{"name":"web-1","project":"default"}}}`),
		"a flow":            message(target("node", "web1.example.com", "start"), `{}`),
		"an empty body":     message(target("node", "web-1", "start"), ``),
		"retry":             message(target("node", "web-1", "retry"), `{"args":{"scope":"all"}}`),
		"cancel":            message(target("node", "web-1", "cancel"), `{"args":{"message":"no more"},"requestedBy":"me"}`),
		"a blueprint":       message(target("Blueprint", "node", "apply"), fmt.Sprintf(blueprint, "")),
		"a blueprint's end": message(target("Blueprint", "node", "delete"), `{}`),
		"a listener":        message(target("Listener", "l", "apply"), `{"resource":{"apiVersion":"drover/v1","kind":"Listener","metadata":{"name":"l"},"spec":{"kinds":"node","states":"Started","subject":"drover.notice.x"}}}`),
		"a message id":      {Target: target("node", "web-1", "start"), RequestID: "r1", MessageID: "default/node/web-1/r1", ContentType: jsonType},
		"a selector":        message(target("node", "-", "start"), `{"selector":"a=b,c!=d,e in (x, y),f notin (z),g,!h"}`),
		"all":               message(target("node", "-", "delete"), `{"all":true}`),
		"retry of many":     message(target("node", "-", "retry"), `{"all":true,"args":{"scope":"all"}}`),
		"cancel of many":    message(target("node", "-", "cancel"), `{"selector":"a","args":{"message":"x"}}`),
		"cancel of the job": message(target("node", "-", "cancel"), `{"args":{"job":"x","message":"y","cascade":"true"}}`),
		"protobuf":          {Target: target("node", "web-1", "start"), RequestID: "r1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Nil(t, check.Command(m))
		})
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	apply := func(manifest string) check.Message {
		return message(target("node", "web-1", "apply"), `{"resource":`+manifest+`}`)
	}
	start := target("node", "web-1", "start")
	for name, c := range map[string]struct {
		m      check.Message
		code   resource.Code
		fields []string
	}{
		"no JSON":               {message(start, `{`), resource.Invalid, []string{""}},
		"an unknown field":      {message(start, `{"arg":{}}`), resource.Invalid, []string{"arg"}},
		"deep":                  {apply(`{"apiVersion":"drover/v1","kind":"node","metadata":{"name":"web-1","label":{}},"spec":{}}`), resource.Invalid, []string{"metadata.label"}},
		"no protobuf":           {check.Message{Target: start, RequestID: "r1", Body: []byte("\xff\xff")}, resource.Invalid, []string{""}},
		"a large body":          {message(start, `{"args":{"a":"`+strings.Repeat("x", 1000<<10)+`"}}`), resource.TooLarge, []string{""}},
		"a large spec":          {apply(`{"apiVersion":"drover/v1","kind":"node","metadata":{"name":"web-1"},"spec":{"a":"` + strings.Repeat("x", resource.SpecBytesMax) + `"}}`), resource.TooLarge, []string{"spec"}},
		"no selector":           {message(target("node", "-", "start"), `{}`), resource.Invalid, []string{"selector"}},
		"an empty selector":     {message(target("node", "-", "start"), `{"selector":""}`), resource.Invalid, []string{"selector"}},
		"a blank selector":      {message(target("node", "-", "start"), `{"selector":" "}`), resource.Invalid, []string{"selector"}},
		"a broken selector":     {message(target("node", "-", "start"), `{"selector":"a in (b"}`), resource.Invalid, []string{"selector"}},
		"a long selector":       {message(target("node", "-", "start"), `{"selector":"`+strings.Repeat("x", 5000)+`"}`), resource.Invalid, []string{"selector"}},
		"selector and all":      {message(target("node", "-", "start"), `{"selector":"a","all":true}`), resource.Invalid, []string{"all"}},
		"a selector for one":    {message(start, `{"selector":"a","all":true}`), resource.Invalid, []string{"selector", "all"}},
		"a job of many":         {message(target("node", "-", "cancel"), `{"all":true,"args":{"job":"x"}}`), resource.Invalid, []string{"args.job"}},
		"a cascade for one":     {message(target("node", "web-1", "cancel"), `{"args":{"cascade":"true"}}`), resource.Invalid, []string{"args.cascade"}},
		"no cascade":            {message(target("node", "-", "cancel"), `{"args":{"job":"x","cascade":"yes"}}`), resource.Invalid, []string{"args.cascade"}},
		"apply to many":         {message(target("node", "-", "apply"), `{"all":true}`), resource.Invalid, []string{"subject.name", "resource"}},
		"all blueprints":        {message(target("Blueprint", "-", "delete"), `{"all":true}`), resource.Invalid, []string{"subject.name"}},
		"a long name":           {message(target("node", strings.Repeat("n", 254), "start"), `{}`), resource.Invalid, []string{"subject.name"}},
		"an unprintable name":   {message(target("node", "a\x07b", "start"), `{}`), resource.Invalid, []string{"subject.name"}},
		"no UTF-8":              {message(target("node", "a\xff", "start"), `{}`), resource.Invalid, []string{"subject.name"}},
		"empty tokens":          {message(check.Target{}, `{}`), resource.Invalid, []string{"subject.project", "subject.kind", "subject.name", "subject.verb"}},
		"a bad request id":      {check.Message{Target: start, RequestID: "a b", ContentType: jsonType}, resource.Invalid, []string{"header.Drover-Request-Id"}},
		"a long request id":     {check.Message{Target: start, RequestID: strings.Repeat("a", 65), ContentType: jsonType}, resource.Invalid, []string{"header.Drover-Request-Id"}},
		"a foreign message id":  {check.Message{Target: start, RequestID: "r1", MessageID: "r1", ContentType: jsonType}, resource.Invalid, []string{"header.Nats-Msg-Id"}},
		"apply without":         {message(target("node", "web-1", "apply"), `{}`), resource.Invalid, []string{"resource"}},
		"start with a manifest": {message(start, `{"resource":{"apiVersion":"drover/v1","kind":"node","metadata":{"name":"web-1"}}}`), resource.Invalid, []string{"resource"}},
		"another version":       {apply(`{"apiVersion":"drover/v2","kind":"node","metadata":{"name":"web-1"}}`), resource.Invalid, []string{"apiVersion"}},
		"another resource":      {apply(`{"apiVersion":"drover/v1","kind":"host","metadata":{"name":"web-2","project":"other"}}`), resource.Invalid, []string{"kind", "metadata.name", "metadata.project"}},
		"nothing in it":         {apply(`{}`), resource.Invalid, []string{"apiVersion", "kind", "metadata.name"}},
		"an unknown argument":   {message(start, `{"args":{"scope":"all"}}`), resource.Invalid, []string{"args.scope"}},
		"an unknown scope":      {message(target("node", "web-1", "retry"), `{"args":{"scope":"some","message":"x"}}`), resource.Invalid, []string{"args.message", "args.scope"}},
		"a long argument":       {message(target("node", "web-1", "cancel"), `{"args":{"message":"`+strings.Repeat("x", 2000)+`"}}`), resource.Invalid, []string{"args.message"}},
		"a long label":          {apply(`{"apiVersion":"drover/v1","kind":"node","metadata":{"name":"web-1","labels":{"a":"` + strings.Repeat("x", 254) + `"}}}`), resource.Invalid, []string{"metadata.labels.a"}},
		"a long asker":          {message(start, `{"requestedBy":"`+strings.Repeat("x", 254)+`"}`), resource.Invalid, []string{"requestedBy"}},
		"a blueprint's flow":    {message(target("Blueprint", "node", "start"), `{}`), resource.Invalid, []string{"subject.verb"}},
		"a built-in kind":       {message(target("Blueprint", "Listener", "apply"), strings.Replace(fmt.Sprintf(blueprint, ""), `"node"},`, `"Listener"},`, 1)), resource.Invalid, []string{"metadata.name"}},
		"a broken blueprint": {
			message(target("Blueprint", "node", "apply"), fmt.Sprintf(blueprint, `,{"name":"b","states":["Allocation"],"dependsOn":["nobody"],"executor":{"plugin":{}}}`)),
			resource.Invalid, []string{"spec.phases[1].dependsOn[0]"},
		},
		"a broken constraint": {
			message(target("Blueprint", "node", "apply"), fmt.Sprintf(blueprint, `,{"name":"b","states":["Allocation"],"when":"1 +","executor":{"plugin":{}}}`)),
			resource.Invalid, []string{"spec.phases[1].when"},
		},
		"no blueprint at all": {
			message(target("Blueprint", "node", "apply"), `{"resource":{"apiVersion":"drover/v1","kind":"Blueprint","metadata":{"name":"node"}}}`),
			resource.Invalid, []string{"spec"},
		},
		"a listener without a spec": {
			message(target("Listener", "l", "apply"), `{"resource":{"apiVersion":"drover/v1","kind":"Listener","metadata":{"name":"l"}}}`),
			resource.Invalid, []string{"spec"},
		},
		"a broken listener": {
			message(target("Listener", "l", "apply"), `{"resource":{"apiVersion":"drover/v1","kind":"Listener","metadata":{"name":"l"},"spec":{"kinds":"node","states":[],"webhook":{"url":"ftp://x"}}}}`),
			resource.Invalid, []string{"spec.states", "spec.webhook.url"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := check.Command(c.m)
			require.NotNil(t, r)
			require.Equal(t, c.code, r.Code)
			require.NotEmpty(t, r.Message)
			var fields []string
			for _, v := range r.Violations {
				require.NotEmpty(t, v.Reason)
				fields = append(fields, v.Field)
			}
			require.ElementsMatch(t, c.fields, fields, "%+v", r.Violations)
		})
	}
}

func TestTooManyMistakesAreCut(t *testing.T) {
	t.Parallel()
	var labels []string
	for i := range 64 {
		labels = append(labels, fmt.Sprintf(`"%d":"%s"`, i, strings.Repeat("x", 300)))
	}
	r := check.Command(message(target("node", "web-1", "apply"),
		`{"resource":{"apiVersion":"drover/v1","kind":"node","metadata":{"name":"web-1","labels":{`+strings.Join(labels, ",")+`}}}}`))
	require.NotNil(t, r)
	require.Len(t, r.Violations, 32)
}

func TestParseSubject(t *testing.T) {
	t.Parallel()
	got, err := check.ParseSubject("drover.api.default.node.web1=2Eexample=2Ecom.start")
	require.NoError(t, err)
	require.Equal(t, target("node", "web1.example.com", "start"), got)
	require.Equal(t, "drover.cmd.default.node.web1=2Eexample=2Ecom.start", got.Subject())

	got, err = check.ParseSubject("drover.cmd.default.node.-.start")
	require.NoError(t, err)
	require.Equal(t, "-", got.Name)

	for _, subject := range []string{"", "drover.cmd", "drover.evt.a.b.c.d", "drover.cmd.a.b.c.d.e", "drover.cmd.a.b.=zz.d", "drover.cmd.-.-.-.-"} {
		_, err = check.ParseSubject(subject)
		require.Error(t, err, subject)
	}
}

// Whatever arrives is either refused with reasons that can be sent, or can be taken to an owner.
func FuzzCommand(f *testing.F) {
	f.Add("drover.cmd.default.node.web-1.apply", "r1", "", jsonType, []byte(`{"resource":{"apiVersion":"drover/v1","kind":"node","metadata":{"name":"web-1"},"spec":{}}}`))
	f.Add("drover.cmd.default.node.-.start", "", "x", "", []byte{0x0a, 0x00})
	f.Add("drover.api.default.Blueprint.node.apply", "r", "", jsonType, []byte(fmt.Sprintf(blueprint, "")))
	f.Fuzz(func(t *testing.T, subject, id, messageID, contentType string, body []byte) {
		target, err := check.ParseSubject(subject)
		if err != nil {
			return
		}
		m := check.Message{Target: target, RequestID: id, MessageID: messageID, ContentType: contentType, Body: body}
		refusal := check.Command(m)
		if refusal == nil {
			require.True(t, check.RequestID(id))
			again, err := check.ParseSubject(target.Subject())
			require.NoError(t, err)
			require.Equal(t, target, again)
			return
		}
		require.NotEmpty(t, refusal.Violations)
		_, err = wire.EncodeReply(jsonType, wire.Reply{Refused: refusal})
		require.NoError(t, err)
		_, err = wire.EncodeReply("", wire.Reply{Refused: refusal})
		require.NoError(t, err)
	})
}
