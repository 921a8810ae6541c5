// Package deliver sends a message where its listener wants it: to a webhook, or to a subject under drover.notice.
package deliver

import (
	"context"
	"errors"
	"fmt"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/services/notifier/internal/notice"
	"github.com/droverproject/drover/services/notifier/internal/webhook"
)

// Bus is the part of the bus that is needed.
type Bus interface {
	Notify(subject string, header map[string]string, body []byte) error
}

// Sender sends messages. Safe for concurrent use.
type Sender struct {
	Bus     Bus
	Webhook *webhook.Client
}

// Send sends once. The header says what the message is and whose it is, so that a receiver can tell a repetition.
func (s Sender) Send(ctx context.Context, key resource.Key, spec listener.Spec, m *notice.Message) error {
	body, err := m.JSON()
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	header := map[string]string{
		notice.HeaderEventID:  m.ID(),
		notice.HeaderListener: key.Project + "/" + key.Name,
	}
	if trace := m.Traceparent(); trace != "" {
		header[bus.HeaderTraceparent] = trace
	}
	if spec.Webhook != nil {
		return s.Webhook.Post(ctx, key.Project, spec.Webhook, m.ID(), header, body)
	}
	header[bus.HeaderContentType] = bus.ContentTypeJSON
	return s.Bus.Notify(spec.Subject, header, body)
}

// Permanent tells errors that no repetition mends.
func (Sender) Permanent(err error) bool {
	for _, permanent := range []error{webhook.ErrRefused, webhook.ErrAddress, webhook.ErrSecret, bus.ErrDenied, bus.ErrTooLarge} {
		if errors.Is(err, permanent) {
			return true
		}
	}
	return false
}
