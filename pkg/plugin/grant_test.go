package plugin_test

import (
	"context"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/wire"
)

// granting is an owner of phases that lets any number of workers call, any number of times.
type granting struct{}

func (granting) AskPhase(context.Context, bus.Phase, bus.Request) (bus.Request, error) {
	return holding(wire.PhaseHold{Granted: true, Lease: phase.LeaseDefault})
}

func holding(h wire.PhaseHold) (bus.Request, error) {
	body, err := wire.EncodePhaseHold(h)
	return bus.Request{Body: body}, err
}
