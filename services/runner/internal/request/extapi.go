package request

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/runner/internal/executor"
	"github.com/droverproject/drover/services/runner/internal/render"
)

// extAPI makes requests what NCAE sends to a module.
type extAPI struct {
	base, data, devices, limit *render.Template
	tenant                     int
}

func newExtAPI(config *manifest.ExtAPI) (*extAPI, error) {
	if config == nil {
		return nil, nil
	}
	e := &extAPI{tenant: config.TenantID}
	for _, t := range []struct {
		name, source string
		to           **render.Template
	}{{"ncaeBaseUrl", config.BaseURL, &e.base}, {"data", config.Data, &e.data}, {"devices", config.Devices, &e.devices}, {"limit", config.Limit, &e.limit}} {
		var err error
		if *t.to, err = render.Parse(t.source); err != nil {
			return nil, fmt.Errorf("extApi.%s: %w", t.name, err)
		}
	}
	return e, nil
}

// launch is the body of the request (facts/ncae.md B3; the names are NCAE's).
type launch struct {
	Limit     *string   `json:"limit"`
	ExtraVars extraVars `json:"extra_vars"`
}

type extraVars struct {
	Decommission    bool            `json:"decommission"`
	Data            json.RawMessage `json:"data"`
	OldData         json.RawMessage `json:"old_data"` // null: Drover keeps no spec for comparison
	CallbackData    json.RawMessage `json:"callback_data"`
	Devices         json.RawMessage `json:"devices"`
	BaseURL         string          `json:"ncae_base_url"`
	ServiceID       uint64          `json:"service_id"`
	ServiceInstance uint64          `json:"service_instance_id"`
	PhaseInstance   uint64          `json:"phase_instance_id"`
	CmdbEntry       uint64          `json:"ncae_cmdb_entry_id"`
	TenantID        int             `json:"ncae_tenant_id"`
	TenantSlug      string          `json:"ncae_tenant_slug"`
	Transaction     string          `json:"transaction_id"`
	// WasDeployed is seed 000's flag. That it stands here is Drover's: NCAE's place of it is not public (facts/ncae.md B5),
	// and the models of ncae_sdk ignore what they do not know.
	WasDeployed bool `json:"was_deployed"`
}

// fill makes a rendered request the one that a module gets.
func (e *extAPI) fill(ctx context.Context, r *request, c *executor.Call, vars render.Vars) error {
	service := wire.ServiceInstanceID(c.Partition, c.Fence.UID)
	body := launch{ExtraVars: extraVars{
		Decommission: c.Undo, Data: json.RawMessage("{}"), CallbackData: json.RawMessage("{}"), Devices: json.RawMessage("[]"),
		ServiceID: wire.ServiceID(c.Key.Project, c.Key.Kind), ServiceInstance: service,
		PhaseInstance: wire.PhaseInstanceID(c.Partition, c.Fence), CmdbEntry: service,
		TenantID: e.tenant, TenantSlug: c.Key.Project,
		Transaction: wire.TransactionID(c.Partition, c.Fence), WasDeployed: c.WasDeployed,
	}}
	x := &body.ExtraVars
	base, err := e.base.Render(ctx, vars)
	if err != nil {
		return fmt.Errorf("extApi.ncaeBaseUrl: %w", err)
	}
	if _, err := parseURL(base); err != nil {
		return fmt.Errorf("extApi.ncaeBaseUrl: %w", err)
	}
	x.BaseURL = strings.TrimRight(base, "/") + "/"
	if len(c.Spec) > 0 {
		x.Data = c.Spec
	}
	if err := e.json(ctx, "data", e.data, vars, '{', &x.Data); err != nil {
		return err
	}
	if err := e.json(ctx, "devices", e.devices, vars, '[', &x.Devices); err != nil {
		return err
	}
	limit, err := e.limit.Render(ctx, vars)
	if err != nil {
		return fmt.Errorf("extApi.limit: %w", err)
	}
	if limit != "" {
		body.Limit = &limit
	}
	if text := c.Attributes[wire.AttributeCallbackData]; strings.HasPrefix(text, "{") {
		x.CallbackData = json.RawMessage(text)
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("extApi: %w", err)
	}
	r.method, r.body = http.MethodPost, string(text)
	r.header.Set("Content-Type", "application/json")
	r.header.Set("X-Transaction-Id", x.Transaction)
	r.header.Set("X-Tenant-Id", strconv.Itoa(e.tenant))
	r.header.Set("X-Correlation-Id", c.Fence.JobID)
	return nil
}

// json renders a template to JSON that begins with first; one that renders to nothing changes nothing.
func (e *extAPI) json(ctx context.Context, name string, t *render.Template, vars render.Vars, first byte, to *json.RawMessage) error {
	text, err := t.Render(ctx, vars)
	if err != nil {
		return fmt.Errorf("extApi.%s: %w", name, err)
	}
	if text = strings.TrimSpace(text); text == "" {
		return nil
	}
	if text[0] != first || !json.Valid([]byte(text)) {
		what := "an object"
		if first == '[' {
			what = "a list"
		}
		return fmt.Errorf("extApi.%s: renders to what is no JSON of %s", name, what)
	}
	*to = json.RawMessage(text)
	return nil
}

// accepted is the answer of a module that is at it.
func (e *extAPI) accepted(c *executor.Call, res *response) executor.Outcome {
	return executor.Pending(0, "the module answered %s and calls back phase-instance %d", res.describeStatus(),
		wire.PhaseInstanceID(c.Partition, c.Fence))
}

// Words of a PollingPhase (seed 000: "This endpoint should only return “polling” and “deployed”. In case an “error“ will be
// given back, the workflow is stopped"). retired is ours, for what is undone.
const (
	wordPolling  = "polling"
	wordDeployed = "deployed"
	wordRetired  = "retired"
	wordError    = "error"
)

// judge says what a module's answer to a poll means. The seed has the words and not where they stand: here they are the
// answer's text, a JSON text, or status of a JSON object, which may also have a message.
func (e *extAPI) judge(c *executor.Call, res *response) (kind resource.Outcome, message string) {
	switch {
	case res.status == http.StatusRequestTimeout || res.status == http.StatusTooManyRequests || res.status >= 500:
		return resource.OutcomePending, res.describeStatus()
	case res.status < 200 || res.status > 299:
		return resource.OutcomeFailed, res.describe()
	}
	word := strings.TrimSpace(string(res.body))
	var answer struct{ Status, Message string }
	if json.Unmarshal(res.body, &answer) == nil && answer.Status != "" {
		word, message = answer.Status, answer.Message
	} else if text := ""; json.Unmarshal(res.body, &text) == nil {
		word = text
	}
	switch strings.ToLower(word) {
	case wordPolling:
		return resource.OutcomePending, "the module answered polling"
	case wordDeployed:
		if c.Undo {
			return resource.OutcomeFailed, "the module answered deployed, and it was to be retired"
		}
		return resource.OutcomeCompleted, ""
	case wordRetired:
		if !c.Undo {
			return resource.OutcomeFailed, "the module answered retired, and it was to be deployed"
		}
		return resource.OutcomeCompleted, ""
	case wordError:
		if message == "" {
			message = "the module answered error"
		}
		return resource.OutcomeFailed, message
	}
	return resource.OutcomeFailed, "the module answered none of polling, deployed, error: " + res.describe()
}
