// Package service is what the mains of the services share: a host's process life around a connected bus.
//
//	func main() { os.Exit(service.Main("intake", intake.Run)) }
package service

import (
	"context"
	"flag"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/host"
)

// connectWait is how long a starting service waits for its server; its supervisor then starts it again.
const connectWait = 30 * time.Second

// Main runs a service's whole process and returns its exit code: it connects, makes the streams where they are missing,
// runs the service, and disconnects. flags declare the service's own flags.
func Main(name string, run func(ctx context.Context, h *host.Host, b bus.Bus) error, flags ...func(*flag.FlagSet)) int {
	return host.Main(name, func(ctx context.Context, h *host.Host) error {
		b, err := Connect(ctx, name, h)
		if err != nil {
			return err
		}
		err = run(ctx, h, b)
		if closeErr := b.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("disconnect: %w", closeErr)
		}
		return err
	}, flags...)
}

// Connect connects a host's service as its configuration says, and makes the streams where they are missing. Settings
// that differ from this version's are logged, not changed: `drover setup` does that.
func Connect(ctx context.Context, name string, h *host.Host) (bus.Bus, error) {
	c := h.Config()
	log := h.Log()
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	b, err := jetstream.Connect(ctx, jetstream.Options{
		URL: c.NATS, CredentialsFile: c.Creds, NKeyFile: c.NKey, Name: "drover-" + name,
		TLSCAFile: c.TLSCA, TLSCertFile: c.TLSCert, TLSKeyFile: c.TLSKey,
		InboxPrefix: bus.InboxPrefix(bus.Service(name)), // replies that the server's permissions keep from all others
		Partitions:  c.Partitions, Replicas: c.Replicas, WorkAckWait: c.WorkAckWait,
		Notice: func(event string, err error) {
			log.Info("connection to the server", zap.String("event", event), zap.Error(err))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", host.RedactURL(c.NATS), err)
	}
	drift, err := b.Setup(ctx, false)
	if err != nil {
		_ = b.Close() // the first error is the one to know
		return nil, fmt.Errorf("set up the streams: %w", err)
	}
	for _, d := range drift {
		log.Warn("a stream is not as this version would make it",
			host.Stream(d.Stream), zap.String("setting", d.Setting), zap.String("want", d.Want), zap.String("have", d.Have))
	}
	return b, nil
}
