// Command drover is Drover's command line, and all of Drover in one process (`drover up`).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/bench"
	"github.com/droverproject/drover/services/drover/internal/cli"
	"github.com/droverproject/drover/services/drover/internal/up"
)

func main() {
	if role := os.Getenv(bench.EnvRole); role != "" {
		os.Exit(bench.Child(role, os.Args[1:]))
	}
	os.Exit(run())
}

// run ends gracefully at the first signal; a second one ends the process at once.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		stop()
	}()
	out, err := int(os.Stdout.Fd()), int(os.Stderr.Fd())
	app := &cli.App{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		OutTerminal: term.IsTerminal(out), ErrTerminal: term.IsTerminal(err),
		Getenv: os.Getenv, Connect: connect, Server: server, Streams: streams, Backup: backup, Restore: restore, BenchSystem: benchSystem,
		Up: up.Run,
	}
	if width, _, werr := term.GetSize(err); werr == nil {
		app.Width = width
	}
	return cli.Main(ctx, app, os.Args[1:])
}

// options are a connection's, as the bus takes them.
func options(c cli.Connection) jetstream.Options {
	return jetstream.Options{
		URL: c.Server, Context: c.Context, Name: "drover-cli", InboxPrefix: c.Inbox(),
		CredentialsFile: c.Creds, NKeyFile: c.NKey, TLSCAFile: c.TLSCA, TLSCertFile: c.TLSCert, TLSKeyFile: c.TLSKey,
		Partitions: c.Partitions, Replicas: c.Replicas, Sync: c.Sync,
	}
}

func connect(ctx context.Context, c cli.Connection) (cli.Bus, error) {
	b, err := jetstream.Connect(ctx, options(c))
	if err != nil {
		return nil, err
	}
	return b, nil
}

func server(ctx context.Context, b cli.Bus) (cli.ServerInfo, error) {
	js, ok := b.(*jetstream.Bus)
	if !ok {
		return cli.ServerInfo{}, errors.New("not a connection to a server")
	}
	info, err := js.Server(ctx)
	if err != nil {
		err = fmt.Errorf("ask the server: %w", err)
	}
	return cli.ServerInfo(info), err
}

func streams(ctx context.Context, b cli.Bus) ([]cli.StreamInfo, error) {
	js, ok := b.(*jetstream.Bus)
	if !ok {
		return nil, errors.New("not a connection to a server")
	}
	found, err := js.Streams(ctx)
	infos := make([]cli.StreamInfo, len(found))
	for i := range found {
		infos[i] = cli.StreamInfo(found[i])
	}
	return infos, err
}

func backup(ctx context.Context, b cli.Bus, folder string, each func(bus.Copied)) (bus.Backup, error) {
	js, ok := b.(*jetstream.Bus)
	if !ok {
		return bus.Backup{}, errors.New("not a connection to a server")
	}
	return js.Backup(ctx, folder, each)
}

func restore(ctx context.Context, b cli.Bus, folder string, each func(bus.Copied)) (bus.Restored, error) {
	js, ok := b.(*jetstream.Bus)
	if !ok {
		return bus.Restored{}, errors.New("not a connection to a server")
	}
	return js.Restore(ctx, folder, wire.HandedOut, each)
}

func benchSystem(ctx context.Context, user, worker cli.Connection, o bench.SystemOptions) (bench.SystemReport, error) {
	o.User, o.Worker = options(user), options(worker)
	return bench.RunSystem(ctx, o)
}
