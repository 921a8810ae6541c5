package listener_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/listener"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	s, found := listener.Decode([]byte(`{"kinds":["node","host"],"states":"Started","project":"other","webhook":{
		"url":"https://example.net:8443/hook?x=1","headers":{"X-Team":"fleet"},"secretHeaders":{"Authorization":"hook"},"secret":"hook-key"}}`))
	require.Empty(t, found)
	require.Equal(t, listener.Spec{
		Kinds: []string{"node", "host"}, States: []string{"Started"}, Project: "other",
		Webhook: &listener.Webhook{
			URL: "https://example.net:8443/hook?x=1", Headers: map[string]string{"X-Team": "fleet"},
			SecretHeaders: map[string]string{"Authorization": "hook"}, Secret: "hook-key",
		},
	}, s)

	s, found = listener.Decode([]byte(`{"kinds":"node","states":["Started"],"subject":"drover.notice.started.x=2Ey"}`))
	require.Empty(t, found)
	require.Equal(t, listener.Spec{Kinds: []string{"node"}, States: []string{"Started"}, Subject: "drover.notice.started.x=2Ey"}, s)
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	hook := func(webhook string) string { return `{"kinds":"a","states":"b","webhook":` + webhook + `}` }
	to := func(url string) string { return hook(`{"url":"` + url + `"}`) }
	for name, c := range map[string]struct{ spec, field, reason string }{
		"not an object":       {`[]`, "spec", "must be an object"},
		"no JSON":             {`{`, "spec", "is not JSON"},
		"unknown field":       {`{"kinds":"a","states":"b","subject":"drover.notice.x","hook":1}`, "spec.hook", "no field"},
		"no kinds":            {`{"states":"b","subject":"drover.notice.x"}`, "spec.kinds", "missing"},
		"null kinds":          {`{"kinds":null,"states":"b","subject":"drover.notice.x"}`, "spec.kinds", "missing"},
		"empty kinds":         {`{"kinds":[],"states":"b","subject":"drover.notice.x"}`, "spec.kinds", "empty"},
		"a number among them": {`{"kinds":["a",1],"states":"b","subject":"drover.notice.x"}`, "spec.kinds[1]", "string"},
		"an empty kind":       {`{"kinds":"","states":"b","subject":"drover.notice.x"}`, "spec.kinds", "empty"},
		"twice":               {`{"kinds":["a","a"],"states":"b","subject":"drover.notice.x"}`, "spec.kinds[1]", "twice"},
		"unprintable state":   {`{"kinds":"a","states":["b","c\u0007"],"subject":"drover.notice.x"}`, "spec.states[1]", "printable"},
		"too many states":     {`{"kinds":"a","states":[` + strings.Repeat(`"s",`, 64) + `"t"],"subject":"drover.notice.x"}`, "spec.states", "at most 64"},
		"long project":        {`{"kinds":"a","states":"b","project":"` + strings.Repeat("p", 254) + `","subject":"drover.notice.x"}`, "spec.project", "at most 253"},
		"nowhere":             {`{"kinds":"a","states":"b"}`, "spec", "needs webhook or subject"},
		"both":                {`{"kinds":"a","states":"b","subject":"drover.notice.x","webhook":{"url":"http://h"}}`, "spec.subject", "not together"},
		"foreign subject":     {`{"kinds":"a","states":"b","subject":"drover.cmd.x"}`, "spec.subject", "must begin with"},
		"wildcard":            {`{"kinds":"a","states":"b","subject":"drover.notice.>"}`, "spec.subject", "tokens"},
		"empty token":         {`{"kinds":"a","states":"b","subject":"drover.notice.a..b"}`, "spec.subject", "tokens"},
		"space":               {`{"kinds":"a","states":"b","subject":"drover.notice.a b"}`, "spec.subject", "tokens"},
		"no URL":              {hook(`{}`), "spec.webhook.url", "missing"},
		"a file":              {to("file:///etc/passwd"), "spec.webhook.url", "http"},
		"no scheme":           {to("example.net/hook"), "spec.webhook.url", "http"},
		"no host":             {to("http:///x"), "spec.webhook.url", "no host"},
		"a password":          {to("http://u:p@h/x"), "spec.webhook.url", "password"},
		"a fragment":          {to("http://h/#f"), "spec.webhook.url", "fragment"},
		"a bad port":          {to("http://h:70000/"), "spec.webhook.url", "port"},
		"no URL at all":       {to("http://%zz"), "spec.webhook.url", "not a URL"},
		"a reserved header":   {hook(`{"url":"http://h","headers":{"content-type":"x"}}`), "spec.webhook.headers.content-type", "set by Drover"},
		"our header":          {hook(`{"url":"http://h","secretHeaders":{"Drover-X":"x"}}`), "spec.webhook.secretHeaders.Drover-X", "set by Drover"},
		"a broken header":     {hook(`{"url":"http://h","headers":{"A b":"x"}}`), `spec.webhook.headers["A b"]`, "header's name"},
		"a header injection":  {hook(`{"url":"http://h","headers":{"A":"x\r\nB: y"}}`), "spec.webhook.headers.A", "control"},
		"a plain secret":      {hook(`{"url":"http://h","headers":{"authorization":"x"}}`), "spec.webhook.headers.authorization", "secretHeaders"},
		"one header twice":    {hook(`{"url":"http://h","headers":{"A":"x","a":"y"}}`), "spec.webhook.headers.a", "twice"},
		"in both":             {hook(`{"url":"http://h","headers":{"A":"x"},"secretHeaders":{"a":"y"}}`), "spec.webhook.secretHeaders.a", "among headers too"},
		"a secret elsewhere":  {hook(`{"url":"http://h","secret":"../key"}`), "spec.webhook.secret", "secret's name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, found := listener.Decode([]byte(c.spec))
			require.Len(t, found, 1)
			require.Equal(t, c.field, found[0].Field)
			require.Contains(t, found[0].Reason, c.reason)
			require.NotContains(t, found[0].Reason, "u:p@", "a refusal must not repeat a password")
		})
	}
}

// What is accepted can be acted upon, whatever it looks like.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"kinds":"a","states":["b"],"webhook":{"url":"http://h/x","headers":{"A":"b"}}}`))
	f.Add([]byte(`{"kinds":["a"],"states":"b","subject":"drover.notice.a"}`))
	f.Fuzz(func(t *testing.T, spec []byte) {
		s, found := listener.Decode(spec)
		if len(found) > 0 {
			for _, v := range found {
				require.True(t, strings.HasPrefix(v.Field, "spec"), v.Field)
				require.NotEmpty(t, v.Reason)
			}
			return
		}
		require.NotEmpty(t, s.Kinds)
		require.NotEmpty(t, s.States)
		require.NotEqual(t, s.Webhook == nil, s.Subject == "")
	})
}
