// Command drover-gateway runs the service that speaks HTTP.
package main

import (
	"context"
	"os"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/service"
	"github.com/droverproject/drover/services/gateway"
)

func main() {
	options := gateway.DefaultRunOptions()
	os.Exit(service.Main(gateway.Service, func(ctx context.Context, h *host.Host, b bus.Bus) error {
		return options.Run(ctx, h, b)
	}, options.Flags))
}
