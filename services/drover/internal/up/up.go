// Package up runs all of Drover in one process, on an embedded NATS server that other clients can reach too.
//
// # Order
//
// The data folder is locked, the server starts, streams and buckets are made or checked, then the services start, each
// on a connection and a host of its own, in the order of services; they stop in the reverse order, the server last, and
// the lock is freed. Nothing here is state: the data folder is the server's store, and a next `drover up` on it goes on
// where this one stopped, or was killed.
package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
)

// Defaults of Options.
const (
	DataDefault = ".drover"
	NATSDefault = "127.0.0.1:4222"
	HTTPDefault = "127.0.0.1:8092"
)

// Sync says when the server acknowledges a write.
type Sync string

// The two ways.
const (
	SyncAlways  Sync = "always"  // after it reached the disk
	SyncDefault Sync = "default" // at once; every two minutes all is synced, and a loss of power may lose what is younger
)

// readyTimeout bounds the start.
const readyTimeout = 60 * time.Second

// Errors that callers tell apart, beside ErrInUse.
var (
	// ErrPort: an address is taken, or cannot be listened on.
	ErrPort = errors.New("cannot listen")
	// ErrOptions: an option cannot be used.
	ErrOptions = errors.New("invalid option")
)

// Options of Run.
type Options struct {
	Data      string // folder; ignored where Ephemeral
	Ephemeral bool   // keep everything in a temporary folder that is removed at the end
	NATS      string // host:port for NATS clients; port 0 is a free one
	HTTP      string // host:port of the gateway; port 0 is a free one
	Metrics   string // host:port for /livez, /readyz and /metrics of all services; empty: none
	Sync      Sync
	// Secrets is a folder with a folder for each project, of files that its listeners may name as secrets. Empty: none.
	Secrets string
	// Partitions of a system that is made; 0: the default. An existing one keeps its number.
	Partitions int
	// Restore is the folder of a backup that the system is made of, before any service starts; there must be none yet, but for
	// one whose restore was cut short, which is made anew. Empty: none.
	Restore string

	Log *zap.Logger // nil: none
	// Ready is called once, when all services serve.
	Ready func(Addresses) error
}

// Addresses is where a running one is reached.
type Addresses struct {
	NATS    string `json:"nats"`              // URL
	HTTP    string `json:"http"`              // URL
	Metrics string `json:"metrics,omitempty"` // URL
	Data    string `json:"data,omitempty"`    // folder; empty: ephemeral
	Sync    Sync   `json:"sync"`
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

// service is one of the services and how it is run.
type service struct {
	name string
	run  func(ctx context.Context, h *host.Host, b bus.Bus) error
}

// Run runs until ctx ends or something fails. A graceful stop returns nil.
func Run(ctx context.Context, o Options) (err error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Sync != SyncAlways && o.Sync != SyncDefault {
		return fmt.Errorf("%w: sync %q is neither %s nor %s", ErrOptions, o.Sync, SyncAlways, SyncDefault)
	}
	said := []struct{ address, what string }{{o.NATS, "nats"}, {o.HTTP, "http"}}
	if o.Metrics != "" {
		said = append(said, struct{ address, what string }{o.Metrics, "metrics"})
	}
	for _, a := range said {
		if _, _, err := splitAddress(a.address, a.what); err != nil {
			return err // before the data folder is made
		}
	}
	held, data, err := prepareData(o)
	if err != nil {
		return err
	}
	if held != nil {
		defer func() { err = errors.Join(err, held.release()) }()
	}
	restored := func() error { return nil }
	if held != nil {
		if restored, err = beginRestore(data, o.Restore); err != nil {
			return err
		}
	}
	server, err := startServer(ctx, o, data)
	if err != nil {
		return unlessAsked(ctx, err)
	}
	defer func() { err = errors.Join(err, server.Shutdown()) }()
	listener, err := listen(ctx, o.HTTP, "http")
	if err != nil {
		return unlessAsked(ctx, err)
	}
	defer func() { _ = listener.Close() }() // the gateway has closed it
	addresses := Addresses{
		NATS: server.ClientURL(), HTTP: "http://" + listener.Addr().String(), Data: data, Sync: o.Sync, PID: os.Getpid(),
		Version: host.Version(),
	}
	return serve(ctx, o, server, addresses, services(o, listener), restored, func(a Addresses) error {
		if held == nil {
			return nil
		}
		return held.write(a)
	})
}

// unlessAsked is err, or nil where it only says that Run was asked to stop while it was starting.
func unlessAsked(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// prepareData makes and locks the data folder; none where it is ephemeral.
func prepareData(o Options) (*lock, string, error) {
	if o.Ephemeral {
		return nil, "", nil
	}
	if o.Data == "" {
		return nil, "", fmt.Errorf("%w: the data folder is empty", ErrOptions)
	}
	data, err := filepath.Abs(o.Data)
	if err != nil {
		return nil, "", fmt.Errorf("data folder: %w", err)
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, "", fmt.Errorf("data folder: %w", err)
	}
	held, err := acquire(data)
	return held, data, err
}

func startServer(ctx context.Context, o Options, data string) (*natsd.Server, error) {
	hostname, port, err := splitAddress(o.NATS, "nats")
	if err != nil {
		return nil, err
	}
	if port != 0 { // the server's own error does not tell a taken port from a broken store
		probe, err := listen(ctx, o.NATS, "nats")
		if err != nil {
			return nil, err
		}
		if err := probe.Close(); err != nil {
			return nil, fmt.Errorf("nats: %w", err)
		}
	} else {
		port = -1 // natsd: a free one
	}
	options := natsd.Options{
		Name: "drover-up", Host: hostname, Port: port, Ephemeral: o.Ephemeral, SyncAlways: o.Sync == SyncAlways,
		Log: serverLog(o.Log.With(zap.String(host.KeyService, "nats"))),
	}
	if !o.Ephemeral {
		options.StoreDir = storeDir(data)
	}
	server, err := natsd.Start(options)
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	return server, nil
}

// serverLog passes on what an operator must see. The server is chatty about its start, which is ours.
func serverLog(log *zap.Logger) func(natsd.Level, string) {
	return func(level natsd.Level, line string) {
		line = strings.TrimSpace(line)
		switch level {
		case natsd.Error:
			log.Error("server", zap.String("line", line))
		case natsd.Warn:
			log.Warn("server", zap.String("line", line))
		default:
			log.Debug("server", zap.String("line", line))
		}
	}
}

func splitAddress(address, what string) (hostname string, port int, err error) {
	hostname, text, err := net.SplitHostPort(address)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%w: %s address %q is not of the form HOST:PORT", ErrOptions, what, address)
	}
	return hostname, port, nil
}

func listen(ctx context.Context, address, what string) (net.Listener, error) {
	if _, _, err := splitAddress(address, what); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: %s address: %w", ErrPort, what, err)
	}
	return l, nil
}

// serve runs the services under one host, which starts and stops them in order and serves the metrics of all. restored is called
// when the backup is a system again, if there is one.
func serve(ctx context.Context, o Options, server *natsd.Server, addresses Addresses, all []service, restored func() error, ready func(Addresses) error) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	config := host.DefaultConfig()
	config.NATS, config.Listen = addresses.NATS, o.Metrics
	house := host.New(host.Options{Name: "up", Config: config, Log: o.Log, Registry: registry})
	return house.Run(ctx, func(ctx context.Context, h *host.Host) error {
		buses := make([]bus.Bus, 0, len(all))
		defer func() {
			for _, b := range buses {
				_ = b.Close() // the server ends next
			}
		}()
		for i, s := range all {
			b, err := connect(ctx, o, server, s.name)
			if err != nil {
				return err
			}
			buses = append(buses, b)
			if i == 0 { // the first one makes what all of them stand on
				if o.Restore != "" {
					if _, err := b.Restore(ctx, o.Restore, wire.HandedOut, nil); err != nil {
						return err
					}
					if err := restored(); err != nil {
						return err
					}
				}
				if err := setup(ctx, b, o.Log); err != nil {
					return err
				}
			}
			config := config
			config.Listen = ""
			one := host.New(host.Options{Name: s.name, Config: config, Log: o.Log, Registry: registry})
			h.ReadyWhen(s.name, one.Ready)
			h.Go(s.name, func(ctx context.Context) error {
				return one.Run(ctx, func(ctx context.Context, h *host.Host) error { return s.run(ctx, h, b) })
			})
		}
		h.Go("ready", func(ctx context.Context) error {
			if h.Addr() != "" {
				addresses.Metrics = "http://" + h.Addr()
			}
			return announce(ctx, h, o, addresses, ready)
		})
		return h.Wait(ctx)
	})
}

// connect connects a service without a socket: its server is in this process.
func connect(ctx context.Context, o Options, server *natsd.Server, name string) (*jetstream.Bus, error) {
	log := o.Log.With(zap.String(host.KeyService, name))
	b, err := jetstream.Connect(ctx, jetstream.Options{
		InProcess: server, Name: "drover-" + name, Partitions: o.Partitions, Sync: string(o.Sync),
		Notice: func(event string, err error) {
			if ctx.Err() == nil {
				log.Warn("connection", zap.String("event", event), zap.Error(err))
			}
		},
	})
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// setup makes streams and buckets. What is there and differs is told; what may be changed without loss is changed.
func setup(ctx context.Context, b bus.Bus, log *zap.Logger) error {
	drifts, err := b.Setup(ctx, true)
	if err != nil {
		return fmt.Errorf("streams and buckets: %w", err)
	}
	for _, d := range drifts {
		log.Warn("drift", zap.String(host.KeyStream, d.Stream), zap.String("setting", d.Setting), zap.String("want", d.Want),
			zap.String("have", d.Have), zap.Bool("repaired", d.Repairable))
	}
	return nil
}

// announce calls Ready when all services are.
func announce(ctx context.Context, h *host.Host, o Options, a Addresses, ready func(Addresses) error) error {
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		err := h.Ready(ctx)
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-deadline.C:
			return fmt.Errorf("not ready after %s: %w", readyTimeout, err)
		case <-look.C:
		}
	}
	if err := ready(a); err != nil {
		return err
	}
	if o.Ready == nil {
		return nil
	}
	return o.Ready(a)
}
