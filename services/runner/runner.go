// Package runner is the service that carries out the phases whose executor is script, http or poll: plugins that Drover
// happens to ship (design.md section 3, "Executors").
//
//	internal/binding    follows the blueprints, binds to their phases, calls executors
//	internal/script     programs on this machine, each in a process group of its own
//	internal/request    HTTP requests: http and poll, and what modules of NCAE are sent (extapi.go)
//	internal/render     templates, and what they may not do
//	internal/executor   what an executor is told and answers
//
// Start more of it and they share the work: each takes no more than it can begin at once. Kill it, and what it was at is
// handed out again when the work's time is up (bus.WorkAckWaitDefault). Stop it, and running calls may end within StopGrace; what is left
// is ended and handed out again at once.
//
// # Memory
//
// Bounded by Concurrency for each executor: a script costs two buffers of 16 KiB and two threads' worth of kernel
// memory, a request at most 1 MiB of response and 1 MiB of rendered body.
//
// # Absent on purpose
//
// No state: what a phase must remember is in its phase data. No isolation of scripts from the machine: they run as the
// runner's user, so run the runner as one that may do no more than they should.
package runner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/plugin"

	"github.com/droverproject/drover/services/runner/internal/binding"
)

// Service is the service's name.
const Service = "runner"

// Defaults of RunOptions.
const (
	ConcurrencyDefault = 64
	StopGraceDefault   = 10 * time.Second
	unbindEvery        = 5 * time.Second
)

// RunOptions are the service's own settings.
type RunOptions struct {
	// Concurrency is the most calls at the same time, for each of the executors script, http and poll. 1 to
	// plugin.ConcurrencyMax. Default ConcurrencyDefault.
	Concurrency int
	// StopGrace is how long calls may go on when the service stops; scripts then have up to 3 s more to tidy up.
	// It should be at least 5 s under Config.StopTimeout. Default StopGraceDefault; 0 means not at all.
	StopGrace time.Duration
}

// DefaultRunOptions is RunOptions of defaults.
func DefaultRunOptions() RunOptions {
	return RunOptions{Concurrency: ConcurrencyDefault, StopGrace: StopGraceDefault}
}

// Flags declares the options as flags.
func (o *RunOptions) Flags(fs *flag.FlagSet) {
	fs.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "most calls at the same time, a `number` for each executor")
	fs.DurationVar(&o.StopGrace, "stop-grace", o.StopGrace, "how long calls may go on when the service stops, as a `duration`")
}

// Run runs the service with default options on a connected bus until ctx ends. It does not close the bus.
func Run(ctx context.Context, h *host.Host, b bus.Bus) error {
	return DefaultRunOptions().Run(ctx, h, b)
}

// Run is Run with options.
func (o RunOptions) Run(ctx context.Context, h *host.Host, b bus.Bus) error {
	if o.Concurrency < 1 || o.Concurrency > plugin.ConcurrencyMax {
		return fmt.Errorf("--concurrency: must be 1 to %d", plugin.ConcurrencyMax)
	}
	if o.StopGrace < 0 {
		return errors.New("--stop-grace: must not be negative")
	}
	binder, err := binding.New(binding.Config{
		Bus: crashing{b}, Worker: "runner-" + h.ID(), Log: h.Log(), Metrics: h.Metrics(), Concurrency: o.Concurrency, StopGrace: o.StopGrace, UnbindEvery: unbindEvery,
	})
	if err != nil {
		return err
	}
	h.ReadyWhen("bus", b.Healthy)
	h.ReadyWhen("blueprints", binder.Ready)
	h.Go("phases", binder.Run)
	return h.Wait(ctx)
}
