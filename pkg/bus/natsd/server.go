// Package natsd runs NATS servers inside this process: one for `drover up`, and one or several for tests. A fleet's
// own servers are set up from deploy/nats instead.
//
// # Durability
//
// With SyncAlways a write is acknowledged after it reached the disk. Without it the server syncs every two minutes, and
// an acknowledged write can be lost with the machine's power, though not with the process. Drover's default is always.
package natsd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// MaxPayloadBytes is the largest message the servers take: 1 MiB of body and room for headers.
	MaxPayloadBytes = 1<<20 + 64<<10
	// startWait is how long Start waits for a server to take connections and for JetStream to be ready.
	startWait = 20 * time.Second
)

// Level is how serious a line of the server's log is.
type Level string

// The levels.
const (
	Debug Level = "debug"
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Options of a server. The zero value of each field is as its comment says.
type Options struct {
	// Name of the server. Empty: made up.
	Name string
	// StoreDir holds the streams. Required unless Ephemeral.
	StoreDir string
	// Ephemeral keeps the streams in a temporary folder that Shutdown removes. StoreDir is then the folder's parent;
	// empty: the system's.
	Ephemeral bool
	// Host to listen on. Empty: 127.0.0.1.
	Host string
	// Port to listen on; -1 takes a free one. Zero: 4222.
	Port int
	// SyncAlways acknowledges a write only after it reached the disk (sync_interval: always).
	SyncAlways bool
	// StoreBytesMax limits what JetStream stores. Zero: three quarters of the disk.
	StoreBytesMax int64
	// ConfigFile is a NATS configuration that the other fields are laid over: users and permissions. Empty: none.
	ConfigFile string
	// Log receives the server's log; it must be quick and safe for concurrent use. Nil: no log is kept.
	Log func(level Level, line string)

	cluster    string
	routesPort int
	routes     []int
}

// Server is a running server. Safe for concurrent use.
type Server struct {
	server *server.Server
	temp   string // folder to remove
	stop   sync.Once
	err    error
}

// Start starts a server and returns when it serves. The caller must call Shutdown.
func Start(o Options) (*Server, error) {
	s, err := start(o)
	if err != nil {
		return nil, err
	}
	if !s.server.ReadyForConnections(startWait) {
		_ = s.Shutdown() // the error below says more
		return nil, fmt.Errorf("nats server %q does not take connections on %s:%d after %s", o.Name, o.Host, o.Port, startWait)
	}
	return s, nil
}

// start begins to start a server: its first lines are run, its ports may not be open yet.
func start(o Options) (*Server, error) {
	opts, temp, err := serverOptions(o)
	if err != nil {
		return nil, err
	}
	s := &Server{temp: temp}
	if s.server, err = server.NewServer(opts); err != nil {
		return nil, errors.Join(fmt.Errorf("nats server: %w", err), s.removeTemp())
	}
	if o.Log != nil {
		s.server.SetLoggerV2(sink(o.Log), false, false, false)
	}
	s.server.Start()
	// A server that cannot start (its port is taken, its store is broken) shuts itself down.
	if opts.Port > 0 && !s.server.Running() {
		return nil, errors.Join(fmt.Errorf("nats server cannot start on %s:%d with store %q", opts.Host, opts.Port, opts.StoreDir), s.Shutdown())
	}
	return s, nil
}

func serverOptions(o Options) (_ *server.Options, temp string, err error) {
	opts := &server.Options{}
	if o.ConfigFile != "" {
		if opts, err = server.ProcessConfigFile(o.ConfigFile); err != nil {
			return nil, "", fmt.Errorf("nats server configuration: %w", err)
		}
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Port > 0 {
		// The server would end the whole process if it could not listen.
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(o.Host, strconv.Itoa(o.Port)))
		if err != nil {
			return nil, "", fmt.Errorf("nats server: %w", err)
		}
		if err := l.Close(); err != nil {
			return nil, "", fmt.Errorf("nats server: %w", err)
		}
	}
	dir := o.StoreDir
	switch {
	case o.Ephemeral:
		if dir, err = os.MkdirTemp(o.StoreDir, "drover-nats-"); err != nil {
			return nil, "", fmt.Errorf("nats server: ephemeral store: %w", err)
		}
		temp = dir
	case dir == "":
		return nil, "", errors.New("nats server: StoreDir is required unless the store is ephemeral")
	}
	opts.ServerName, opts.Host, opts.Port = o.Name, o.Host, o.Port
	opts.NoSigs, opts.NoLog = true, o.Log == nil
	opts.JetStream, opts.StoreDir, opts.JetStreamMaxStore = true, dir, o.StoreBytesMax
	opts.SyncAlways = o.SyncAlways
	opts.MaxPayload = MaxPayloadBytes
	if o.cluster != "" {
		opts.Cluster = server.ClusterOpts{Name: o.cluster, Host: o.Host, Port: o.routesPort, PoolSize: -1}
		for _, port := range o.routes {
			opts.Routes = append(opts.Routes, server.RoutesFromStr(serverURL(o.Host, port))...)
		}
	}
	return opts, temp, nil
}

func serverURL(host string, port int) string {
	return "nats://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// ClientURL is where clients connect.
func (s *Server) ClientURL() string { return s.server.ClientURL() }

// InProcessConn is a connection that does not go through the operating system, for clients in this process.
func (s *Server) InProcessConn() (net.Conn, error) { return s.server.InProcessConn() }

// Shutdown ends the server, waits until it has ended and removes an ephemeral store. Idempotent.
func (s *Server) Shutdown() error {
	s.stop.Do(func() {
		s.server.Shutdown()
		s.server.WaitForShutdown()
		s.err = s.removeTemp()
	})
	return s.err
}

func (s *Server) removeTemp() error {
	if s.temp == "" {
		return nil
	}
	if err := os.RemoveAll(s.temp); err != nil {
		return fmt.Errorf("nats server: ephemeral store: %w", err)
	}
	return nil
}

// sink hands the server's log to a function. It satisfies server.Logger.
type sink func(level Level, line string)

func (s sink) Noticef(format string, v ...any) { s(Info, fmt.Sprintf(format, v...)) }
func (s sink) Warnf(format string, v ...any)   { s(Warn, fmt.Sprintf(format, v...)) }
func (s sink) Errorf(format string, v ...any)  { s(Error, fmt.Sprintf(format, v...)) }
func (s sink) Fatalf(format string, v ...any)  { s(Error, fmt.Sprintf(format, v...)) }
func (s sink) Debugf(format string, v ...any)  { s(Debug, fmt.Sprintf(format, v...)) }
func (s sink) Tracef(format string, v ...any)  { s(Debug, fmt.Sprintf(format, v...)) }
