package deliver_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/services/notifier/internal/deliver"
	"github.com/droverproject/drover/services/notifier/internal/notice"
	"github.com/droverproject/drover/services/notifier/internal/webhook"
)

type subjects func(subject string, header map[string]string, body []byte) error

func (s subjects) Notify(subject string, header map[string]string, body []byte) error {
	return s(subject, header, body)
}

func TestASubject(t *testing.T) {
	t.Parallel()
	m := notice.Message{Events: []notice.Event{{Project: "p", Kind: "k", Name: "n", UID: "u", Revision: 1, State: "Started", Traceparent: "00-1"}}}
	sent := 0
	s := deliver.Sender{Bus: subjects(func(subject string, header map[string]string, body []byte) error {
		sent++
		require.Equal(t, "drover.notice.x", subject)
		require.Equal(t, map[string]string{
			"Drover-Event-Id": "p/k/n/u/1", "Drover-Listener": "default/l", "Content-Type": "application/json", "traceparent": "00-1",
		}, header)
		want, err := m.JSON()
		require.NoError(t, err)
		require.Equal(t, want, body)
		return bus.ErrClosed
	})}
	err := s.Send(t.Context(), resource.Key{Project: "default", Kind: "Listener", Name: "l"}, listener.Spec{Subject: "drover.notice.x"}, &m)
	require.ErrorIs(t, err, bus.ErrClosed)
	require.Equal(t, 1, sent)
}

func TestPermanent(t *testing.T) {
	t.Parallel()
	for _, err := range []error{webhook.ErrRefused, webhook.ErrAddress, webhook.ErrSecret, bus.ErrDenied, bus.ErrTooLarge} {
		require.True(t, deliver.Sender{}.Permanent(fmt.Errorf("wrapped: %w", err)), err)
	}
	for _, err := range []error{errors.New("status 503"), bus.ErrClosed} {
		require.False(t, deliver.Sender{}.Permanent(err), err)
	}
}
