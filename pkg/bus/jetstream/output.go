package jetstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// PublishOutput implements bus.Output.
func (b *Bus) PublishOutput(project, kind, name string, body []byte) error {
	if len(body) > bus.BodyBytesMax {
		return fmt.Errorf("%w: output of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.BodyBytesMax)
	}
	if err := b.nc.Publish(bus.OutSubject(project, kind, name), body); err != nil {
		return fmt.Errorf("publish output: %w", sendError(err))
	}
	return nil
}

// StoreOutput implements bus.Output.
func (b *Bus) StoreOutput(ctx context.Context, project, kind, name string, body []byte) error {
	if len(body) > bus.BodyBytesMax {
		return fmt.Errorf("%w: output of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.BodyBytesMax)
	}
	if _, err := b.publishOnce(ctx, &nats.Msg{Subject: bus.OutSubject(project, kind, name), Data: body}); err != nil {
		return fmt.Errorf("store output: %w", err)
	}
	return nil
}

// ReadOutput implements bus.Output.
func (b *Bus) ReadOutput(ctx context.Context, project, kind, name string, follow bool, each func(bus.OutputLine) error) error {
	r, err := b.newReader(streamOutput, natsjs.DeliverAllPolicy, bus.OutSubject(project, kind, name))
	if err != nil {
		return fmt.Errorf("read output: %w", err)
	}
	defer r.close()
	for {
		m, err := r.next(ctx, !follow)
		switch {
		case errors.Is(err, errDrained), follow && err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read output: %w", err)
		}
		if err := each(bus.OutputLine{Subject: m.Subject, Seq: m.Seq, Time: m.Time, Body: m.Data}); err != nil {
			return err
		}
	}
}
