// Command hostfile runs the plugin of package hostfile until it is stopped.
//
//	HOST_FILES=/srv/hosts NATS_URL=nats://127.0.0.1:4222 hostfile
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/plugin"

	"github.com/droverproject/drover/examples/phases/hostfile"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: os.Getenv("NATS_URL"), InboxPrefix: bus.InboxPrefix(bus.Runner)})
	if err == nil {
		err = plugin.Serve(ctx, b, hostfile.Phase, plugin.Options{}, hostfile.Handle)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
