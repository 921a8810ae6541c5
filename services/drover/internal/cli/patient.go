package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// errStandstill is what ends a list that does not go on. It is a timeout, as exit codes know it.
var errStandstill = fmt.Errorf("nothing more came for %s: %w", RequestTimeout, context.DeadlineExceeded)

// patiently is for commands that read everything there is: how long that takes grows with it, so where --timeout does not
// bound the whole command, RequestTimeout bounds only how long nothing comes.
func (a *App) patiently(ctx context.Context) (context.Context, Bus, context.CancelFunc, error) {
	if a.timeout > 0 {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		b, err := a.bus(ctx)
		return ctx, b, cancel, err
	}
	ctx, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(RequestTimeout, func() { end(errStandstill) })
	cancel := func() {
		timer.Stop()
		end(nil)
	}
	b, err := a.bus(ctx)
	if err != nil {
		return ctx, nil, cancel, standstill(ctx, err)
	}
	return ctx, patient{b, func() { timer.Reset(RequestTimeout) }}, cancel, nil
}

// patient is a bus whose lists wind a clock up with each entry.
type patient struct {
	Bus
	wind func()
}

// List implements bus.Readers.
func (p patient) List(ctx context.Context, f bus.Family, project, kind string, each func(bus.Stored) error) error {
	err := p.Bus.List(ctx, f, project, kind, func(s bus.Stored) error {
		p.wind()
		return each(s)
	})
	p.wind() // for what follows
	return standstill(ctx, err)
}

// standstill is err, or the reason for which ctx was ended.
func standstill(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStandstill) {
		return errStandstill
	}
	return err
}
