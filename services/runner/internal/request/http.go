package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"

	"github.com/droverproject/drover/services/runner/internal/executor"
	"github.com/droverproject/drover/services/runner/internal/render"
)

// HTTP is the configuration of a phase whose executor is http, with its templates parsed. Safe for concurrent use.
type HTTP struct {
	client  *Client
	config  manifest.HTTP
	request template
	poll    *Poll   // nil: none
	extAPI  *extAPI // nil: the request is the configuration's own
}

var _ executor.Executor = (*HTTP)(nil)

// NewHTTP parses the templates of a configuration. The error names the field.
func NewHTTP(client *Client, config manifest.HTTP) (*HTTP, error) {
	h := &HTTP{client: client, config: config}
	var err error
	if h.request, err = newTemplate(config.Method, config.URL, config.Headers, config.Body, config.Timeout); err != nil {
		return nil, err
	}
	h.request.keyed = true
	if h.extAPI, err = newExtAPI(config.ExtAPI); err != nil {
		return nil, err
	}
	if config.Poll != nil {
		if h.poll, err = NewPoll(client, *config.Poll); err != nil {
			return nil, fmt.Errorf("poll.%w", err)
		}
	}
	return h, nil
}

// pending is what the phase data remembers of a request that was answered with pending.
type pending struct {
	Location string `json:"location,omitempty"` // where the answer said to ask
}

// Run carries out one call.
func (h *HTTP) Run(ctx context.Context, c *executor.Call) (executor.Outcome, error) {
	vars, err := c.Vars()
	if err != nil {
		return executor.Failed("%v", err), nil
	}
	var before *pending
	if text, ok := c.Data[pendingData]; ok {
		if err := json.Unmarshal([]byte(text), &before); err != nil {
			return executor.Failed("phase data %q: %v", pendingData, err), nil
		}
	}
	if before != nil && h.poll != nil {
		o, err := h.poll.run(ctx, c, vars)
		return settled(o), err
	}
	r, err := h.request.render(ctx, c, vars)
	if err != nil {
		return executor.Failed("%v", err), nil
	}
	if h.extAPI != nil {
		if err := h.extAPI.fill(ctx, r, c, vars); err != nil {
			return executor.Failed("%v", err), nil
		}
	}
	if before != nil && before.Location != "" {
		if r, err = h.ask(r, before.Location, c); err != nil {
			return executor.Failed("%v", err), nil
		}
	}
	res, err := h.client.send(ctx, r)
	switch {
	case ctx.Err() != nil:
		return executor.Outcome{}, context.Cause(ctx)
	case errors.Is(err, errTooLarge):
		return executor.Failed("%v", err), nil
	case err != nil:
		return executor.Retryable("%s", reason(err, r.timeout)), nil
	}
	kind, retryable := h.config.Judge(res.status)
	if h.extAPI != nil && (kind == resource.OutcomeCompleted || kind == resource.OutcomePending) {
		return h.extAPI.accepted(c, res), nil
	}
	o := outcome(kind, retryable, res.retryAfter(time.Now()), res)
	if kind == resource.OutcomeFailed {
		return o, nil
	}
	o.Kept = capture(h.config.Capture, res.body)
	if kind != resource.OutcomePending {
		return settled(o), nil
	}
	now := pending{}
	if location, err := res.url.Parse(res.header.Get("Location")); err == nil && res.header.Get("Location") != "" {
		now.Location = location.String()
	} else if before != nil {
		now = *before
	}
	return keep(o, now), nil
}

// ask is the request for what has become of an earlier one. The headers, which may hold credentials, go to the same
// host only.
func (h *HTTP) ask(first *request, location string, c *executor.Call) (*request, error) {
	u, err := parseURL(location)
	if err != nil {
		return nil, fmt.Errorf("Location: %w", err)
	}
	r := &request{method: http.MethodGet, url: u, header: http.Header{}, timeout: first.timeout}
	if sameHost(u, first.url) {
		r.header = first.header.Clone()
		r.header.Del("Content-Type")
		r.header.Del("Idempotency-Key")
		r.header.Del("Host")
	}
	identify(r.header, c, false)
	return r, nil
}

// keep remembers that the request was sent and what to ask next.
func keep(o executor.Outcome, p pending) executor.Outcome {
	text, err := json.Marshal(p)
	if err != nil {
		return o // a string always has a JSON form
	}
	if o.Data == nil {
		o.Data = map[string]string{}
	}
	o.Data[pendingData] = string(text)
	return o
}

// settled forgets it again, unless the phase is still pending.
func settled(o executor.Outcome) executor.Outcome {
	if o.Kind != resource.OutcomeCompleted {
		return o
	}
	if o.Data == nil {
		o.Data = map[string]string{}
	}
	o.Data[pendingData] = "null"
	return o
}

// Poll is the configuration of a phase whose executor is poll, with its templates parsed. Safe for concurrent use.
type Poll struct {
	client  *Client
	config  manifest.Poll
	request template
	extAPI  *extAPI // nil: the request is the configuration's own
}

var _ executor.Executor = (*Poll)(nil)

// NewPoll parses the templates of a configuration. The error names the field.
func NewPoll(client *Client, config manifest.Poll) (*Poll, error) {
	request, err := newTemplate(config.Method, config.URL, config.Headers, "", config.Timeout)
	if err != nil {
		return nil, err
	}
	ext, err := newExtAPI(config.ExtAPI)
	if err != nil {
		return nil, err
	}
	return &Poll{client: client, config: config, request: request, extAPI: ext}, nil
}

// Run carries out one call.
func (p *Poll) Run(ctx context.Context, c *executor.Call) (executor.Outcome, error) {
	vars, err := c.Vars()
	if err != nil {
		return executor.Failed("%v", err), nil
	}
	return p.run(ctx, c, vars)
}

func (p *Poll) run(ctx context.Context, c *executor.Call, vars render.Vars) (executor.Outcome, error) {
	r, err := p.request.render(ctx, c, vars)
	if err != nil {
		return executor.Failed("%v", err), nil
	}
	if p.extAPI != nil {
		if err := p.extAPI.fill(ctx, r, c, vars); err != nil {
			return executor.Failed("%v", err), nil
		}
	}
	res, err := p.client.send(ctx, r)
	switch {
	case ctx.Err() != nil:
		return executor.Outcome{}, context.Cause(ctx)
	case errors.Is(err, errTooLarge):
		return executor.Failed("%v", err), nil
	case err != nil:
		return executor.Pending(p.config.Interval, "%s", reason(err, r.timeout)), nil
	}
	delay := p.config.Interval
	if after := res.retryAfter(time.Now()); after > 0 {
		delay = after
	}
	if p.extAPI != nil {
		kind, message := p.extAPI.judge(c, res)
		return executor.Outcome{Kind: kind, Message: message, Delay: delay}, nil
	}
	o := outcome(p.config.Judge(res.status), false, delay, res)
	if o.Kind == resource.OutcomeCompleted {
		o.Kept = capture(p.config.Capture, res.body)
	}
	return o, nil
}
