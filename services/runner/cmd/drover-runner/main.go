// Command drover-runner runs the service that carries out phases of the executors script, http and poll.
package main

import (
	"context"
	"os"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/service"
	"github.com/droverproject/drover/services/runner"
)

func main() {
	options := runner.DefaultRunOptions()
	os.Exit(service.Main(runner.Service, func(ctx context.Context, h *host.Host, b bus.Bus) error {
		return options.Run(ctx, h, b)
	}, options.Flags))
}
