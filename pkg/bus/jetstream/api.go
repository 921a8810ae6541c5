package jetstream

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	// apiService is the name that `nats micro ls` shows; it is the queue group too.
	apiService = "drover-intake"
	// apiInFlight is how many requests one process answers at once; more wait.
	apiInFlight = 256
)

// Request implements bus.Inputs.
func (b *Bus) Request(ctx context.Context, subject string, h map[string]string, body []byte) (bus.Request, error) {
	if !strings.HasPrefix(subject, "drover.api.") {
		return bus.Request{}, fmt.Errorf("not a subject of a request: %q", subject)
	}
	if len(body) > bus.CommandBytesMax {
		return bus.Request{}, fmt.Errorf("%w: command of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.CommandBytesMax)
	}
	reply, err := b.ask(ctx, &nats.Msg{Subject: subject, Header: header(h), Data: body})
	if errors.Is(err, bus.ErrNoOwner) {
		return bus.Request{}, fmt.Errorf("no intake answers: %w", err)
	}
	if err != nil {
		return bus.Request{}, fmt.Errorf("request %s: %w", subject, err)
	}
	return request(reply), nil
}

var (
	semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)([-+][0-9A-Za-z.+-]+)?$`)
	// noticeSubject is a plain subject: no wildcard, no empty token.
	noticeGroup   = regexp.MustCompile(`^[A-Za-z0-9_=-]+$`)
	noticeSubject = regexp.MustCompile(`^drover\.notice(\.[^\s.*>]+)+$`)
)

// ServeAPI implements bus.Inputs. A version that is not a semantic one is shown as 0.0.0.
func (b *Bus) ServeAPI(version string, h bus.APIHandler) (func(), error) {
	if version = strings.TrimPrefix(version, "v"); !semver.MatchString(version) {
		version = "0.0.0"
	}
	places := make(chan struct{}, apiInFlight)
	handle := func(r micro.Request) {
		select {
		case places <- struct{}{}:
		case <-b.ctx.Done():
			return
		}
		go func() {
			defer func() { <-places }()
			in := bus.Request{Header: make(map[string]string, len(r.Headers())), Body: r.Data()}
			for name := range r.Headers() {
				in.Header[name] = first(nats.Header(r.Headers()), name)
			}
			var once sync.Once
			h(r.Subject(), in, func(rh map[string]string, body []byte) {
				once.Do(func() { _ = r.Respond(body, micro.WithHeaders(micro.Headers(header(rh)))) }) // who asked will ask again
			})
		}()
	}
	service, err := micro.AddService(b.nc, micro.Config{
		Name: apiService, Version: version, QueueGroup: apiService,
		Description: "Drover: commands as requests, answered after the commit.",
	})
	if err == nil {
		if err = service.AddEndpoint("command", micro.HandlerFunc(handle), micro.WithEndpointSubject("drover.api.>")); err == nil {
			err = b.subscribed("drover.api.>") // whoever asks after this returned must find us
		}
		if err != nil {
			err = errors.Join(err, service.Stop())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("serve drover.api: %w", b.explain(err))
	}
	return sync.OnceFunc(func() { _ = service.Stop() }), nil // fails only if the connection is closed
}

// Notices implements bus.Inputs.
func (b *Bus) Notices(subject, group string, each func(header map[string]string, body []byte)) (func(), error) {
	if !noticeSubject.MatchString(subject) || !noticeGroup.MatchString(group) {
		return nil, fmt.Errorf("%w: notices come on drover.notice.>, not on %q for %q", bus.ErrDenied, subject, group)
	}
	sub, err := b.nc.QueueSubscribe(subject, group, func(m *nats.Msg) {
		h := make(map[string]string, len(m.Header))
		for name := range m.Header {
			h[name] = m.Header.Get(name)
		}
		each(h, m.Data)
	})
	if err != nil {
		return nil, fmt.Errorf("notices: %w", b.explain(err))
	}
	stop := sync.OnceFunc(func() { _ = sub.Unsubscribe() }) // fails only if the connection is closed
	if err := b.subscribed(subject); err != nil {
		stop()
		return nil, fmt.Errorf("notices: %w", err)
	}
	return stop, nil
}

// Notify implements bus.Inputs.
func (b *Bus) Notify(subject string, h map[string]string, body []byte) error {
	if !noticeSubject.MatchString(subject) {
		return fmt.Errorf("%w: notices go to drover.notice.>, not to %q", bus.ErrDenied, subject)
	}
	if len(body) > bus.BodyBytesMax {
		return fmt.Errorf("%w: notice of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.BodyBytesMax)
	}
	if err := b.nc.PublishMsg(&nats.Msg{Subject: subject, Header: header(h), Data: body}); err != nil {
		return fmt.Errorf("notify: %w", sendError(err))
	}
	return nil
}
