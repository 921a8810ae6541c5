package gateway

import (
	"context"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
)

// crashing is a bus with crash points around the storing of a callback, where a gateway that dies leaves most behind: a word
// that nobody has, and one that is stored and whose caller was not answered.
type crashing struct{ bus.Bus }

// PublishResult implements bus.Inputs.
func (b crashing) PublishResult(ctx context.Context, subject string, header map[string]string, body []byte) error {
	host.CrashPoint("gateway.before-callback")
	err := b.Bus.PublishResult(ctx, subject, header, body)
	host.CrashPoint("gateway.after-callback")
	return err
}
