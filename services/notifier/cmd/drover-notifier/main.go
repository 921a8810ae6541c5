// Command drover-notifier runs the service that tells listeners of states.
package main

import (
	"context"
	"os"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/service"
	"github.com/droverproject/drover/services/notifier"
)

func main() {
	var options notifier.RunOptions
	os.Exit(service.Main(notifier.Service, func(ctx context.Context, h *host.Host, b bus.Bus) error {
		return options.Run(ctx, h, b)
	}, options.Flags))
}
