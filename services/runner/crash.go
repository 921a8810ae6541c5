package runner

import (
	"context"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
)

// crashing is a bus with crash points around the storing of an answer, where a runner that dies leaves most behind: a
// phase that was carried out and has no result, and a result whose work was not acknowledged.
type crashing struct{ bus.Bus }

// PublishResult implements bus.Inputs.
func (b crashing) PublishResult(ctx context.Context, subject string, header map[string]string, body []byte) error {
	host.CrashPoint("runner.before-result")
	err := b.Bus.PublishResult(ctx, subject, header, body)
	host.CrashPoint("runner.after-result")
	return err
}
