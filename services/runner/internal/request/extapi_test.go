package request

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/runner/internal/executor"
)

// TestExtAPIRequest: the request is that of NCAE, in every name and type that ncae_sdk's models have (facts/ncae.md B3).
func TestExtAPIRequest(t *testing.T) {
	t.Parallel()
	var body map[string]any
	var header http.Header
	url := server(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		header, body = r.Header, nil
		if r.Method != http.MethodPost || json.Unmarshal(text, &body) != nil {
			http.Error(w, "not what NCAE sends", http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	run := func(config string, change func(*executor.Call)) executor.Outcome {
		decoded, err := manifest.DecodeHTTP(config)
		require.NoError(t, err)
		h, err := NewHTTP(client(t), decoded)
		require.NoError(t, err)
		c := call(nil)
		c.Partition = 5
		if change != nil {
			change(c)
		}
		o, err := h.Run(t.Context(), c)
		require.NoError(t, err)
		return o
	}
	o := run(`{"url": "`+url+`/vlan", "extApi": {"ncaeBaseUrl": "http://drover:8092"}}`, nil)
	fence := call(nil).Fence
	id, service := wire.PhaseInstanceID(5, fence), wire.ServiceInstanceID(5, fence.UID)
	require.Equal(t, resource.OutcomePending, o.Kind)
	require.Contains(t, o.Message, "204 No Content")
	vars := body["extra_vars"].(map[string]any)
	require.Nil(t, body["limit"])
	require.Contains(t, body, "limit")
	require.EqualValues(t, id, vars["phase_instance_id"])
	require.EqualValues(t, service, vars["service_instance_id"])
	require.EqualValues(t, service, vars["ncae_cmdb_entry_id"])
	require.EqualValues(t, wire.ServiceID("default", "node"), vars["service_id"])
	require.EqualValues(t, 1, vars["ncae_tenant_id"])
	require.Equal(t, "default", vars["ncae_tenant_slug"])
	require.Equal(t, "http://drover:8092/", vars["ncae_base_url"])
	require.Equal(t, wire.TransactionID(5, fence), vars["transaction_id"])
	require.Equal(t, false, vars["decommission"])
	require.Equal(t, false, vars["was_deployed"])
	require.Equal(t, "small", vars["data"].(map[string]any)["size"])
	require.Equal(t, map[string]any{}, vars["callback_data"])
	require.Equal(t, []any{}, vars["devices"])
	require.Nil(t, vars["old_data"])
	require.Contains(t, vars, "old_data")
	require.Len(t, vars, 14)
	require.Equal(t, wire.TransactionID(5, fence), header.Get("X-Transaction-Id"))
	require.Equal(t, "1", header.Get("X-Tenant-Id"))
	require.Equal(t, fence.JobID, header.Get("X-Correlation-Id"))
	require.Equal(t, "uid1-job1-create-1", header.Get("Idempotency-Key"))

	run(`{"url": "`+url+`", "extApi": {"ncaeBaseUrl": "http://{{ resource.name }}/", "tenantId": 9, "limit": "{{ resource.kind }}",
		"data": "{\"s\": {{ resource.spec.size | tojson }}}", "devices": "[{\"id\": 1}]"}}`, func(c *executor.Call) {
		c.Undo, c.WasDeployed, c.Attributes["callback_data"] = true, true, `{"port":3}`
	})
	vars = body["extra_vars"].(map[string]any)
	require.Equal(t, "node", body["limit"])
	require.Equal(t, map[string]any{"s": "small"}, vars["data"])
	require.Equal(t, []any{map[string]any{"id": 1.0}}, vars["devices"])
	require.Equal(t, []any{true, true, 9.0, "http://web-1/", map[string]any{"port": 3.0}},
		[]any{vars["decommission"], vars["was_deployed"], vars["ncae_tenant_id"], vars["ncae_base_url"], vars["callback_data"]})

	for config, reason := range map[string]string{
		`"data": "[]"`:                          "extApi.data",
		`"data": "{\"a\": }"`:                   "extApi.data",
		`"devices": "{}"`:                       "extApi.devices",
		`"limit": "{{ nothing }}"`:              "extApi.limit",
		`"data": "{{ resource.spec.nothing }}"`: "extApi.data",
	} {
		o := run(`{"url": "`+url+`", "extApi": {"ncaeBaseUrl": "http://d", `+config+`}}`, nil)
		require.Equal(t, resource.OutcomeFailed, o.Kind, config)
		require.Contains(t, o.Message, reason)
	}
	o = run(`{"url": "`+url+`", "extApi": {"ncaeBaseUrl": "{{ resource.spec.size }}"}}`, nil)
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.Contains(t, o.Message, "ncaeBaseUrl")
}

// TestExtAPIAnswers: any 2xx is a module that is at it; what is none fails as ever.
func TestExtAPIAnswers(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]resource.Outcome{
		200: resource.OutcomePending, 202: resource.OutcomePending, 204: resource.OutcomePending,
		400: resource.OutcomeFailed, 404: resource.OutcomeFailed, 422: resource.OutcomeFailed, 500: resource.OutcomeFailed,
	} {
		url := server(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		o := runHTTP(t, `{"url": "`+url+`", "extApi": {"ncaeBaseUrl": "http://d"}}`, nil)
		require.Equal(t, want, o.Kind, status)
		require.Equal(t, status == 500, o.Retryable)
		require.Empty(t, o.Data, "nothing is remembered: nobody is asked again")
	}
	// A redirect to a page that answers 200 is no module that is at it.
	moved := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/login" {
			http.Redirect(w, r, "/login", http.StatusFound)
		}
	})
	o := runHTTP(t, `{"url": "`+moved+`", "extApi": {"ncaeBaseUrl": "http://d"}}`, nil)
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.Contains(t, o.Message, "a redirect to ")

	o = runHTTP(t, `{"url": "`+refusing(t)+`", "extApi": {"ncaeBaseUrl": "http://d"}}`, nil)
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.True(t, o.Retryable)
}

// TestPollingPhase: seed 000's three words, wherever they stand in the answer, and nothing else.
func TestPollingPhase(t *testing.T) {
	t.Parallel()
	type answer struct {
		status int
		body   string
		undo   bool
	}
	for a, want := range map[answer]executor.Outcome{
		{200, `polling`, false}:                                    {Kind: resource.OutcomePending, Message: "the module answered polling", Delay: 2 * time.Second},
		{200, `"polling"`, true}:                                   {Kind: resource.OutcomePending, Message: "the module answered polling", Delay: 2 * time.Second},
		{202, `{"status": "polling", "done": 3}`, false}:           {Kind: resource.OutcomePending, Message: "the module answered polling", Delay: 2 * time.Second},
		{200, " deployed\n", false}:                                {Kind: resource.OutcomeCompleted},
		{200, `{"status": "Deployed"}`, false}:                     {Kind: resource.OutcomeCompleted},
		{200, `"retired"`, true}:                                   {Kind: resource.OutcomeCompleted},
		{200, `deployed`, true}:                                    {Kind: resource.OutcomeFailed, Message: "the module answered deployed, and it was to be retired"},
		{200, `retired`, false}:                                    {Kind: resource.OutcomeFailed, Message: "the module answered retired, and it was to be deployed"},
		{200, `error`, false}:                                      {Kind: resource.OutcomeFailed, Message: "the module answered error"},
		{200, `{"status": "error", "message": "no route"}`, false}: {Kind: resource.OutcomeFailed, Message: "no route"},
		{200, `done`, false}:                                       {Kind: resource.OutcomeFailed, Message: "the module answered none of polling, deployed, error: 200 OK: done"},
		{200, ``, false}:                                           {Kind: resource.OutcomeFailed, Message: "the module answered none of polling, deployed, error: 200 OK"},
		{404, `deployed`, false}:                                   {Kind: resource.OutcomeFailed, Message: "404 Not Found: deployed"},
		{429, ``, false}:                                           {Kind: resource.OutcomePending, Message: "429 Too Many Requests", Delay: 2 * time.Second},
		{503, `error`, false}:                                      {Kind: resource.OutcomePending, Message: "503 Service Unavailable", Delay: 2 * time.Second},
	} {
		url := server(t, func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			if r.Method != http.MethodPost || !strings.Contains(string(text), `"phase_instance_id":`) {
				a.status = http.StatusBadRequest
			}
			w.WriteHeader(a.status)
			_, _ = io.WriteString(w, a.body)
		})
		decoded, err := manifest.DecodePoll(`{"url": "` + url + `", "interval": "2s", "extApi": {"ncaeBaseUrl": "http://d"}}`)
		require.NoError(t, err)
		p, err := NewPoll(client(t), decoded)
		require.NoError(t, err)
		c := call(nil)
		c.Undo = a.undo
		o, err := p.Run(t.Context(), c)
		require.NoError(t, err)
		if want.Kind != resource.OutcomePending {
			o.Delay = 0
		}
		require.Equal(t, want, o, "%+v", a)
	}
	decoded, err := manifest.DecodePoll(`{"url": "` + refusing(t) + `", "extApi": {"ncaeBaseUrl": "http://d"}}`)
	require.NoError(t, err)
	p, err := NewPoll(client(t), decoded)
	require.NoError(t, err)
	o, err := p.Run(t.Context(), call(nil))
	require.NoError(t, err)
	require.Equal(t, resource.OutcomePending, o.Kind, "a module that is away for a while stops no workflow")
}
