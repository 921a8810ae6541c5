// Package httpapi is Drover's own HTTP API.
//
//	server.go    the listener's limits, start and stop
//	guard.go     what holds for every request: limits, who may call, headers, panics, counting
//	routes.go    which paths there are
//	command.go   commands
//	read.go      resources, blueprints and jobs
//	respond.go   answers
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/gateway/internal/limit"
)

// Limits of the server.
const (
	ConnectionsMax    = 1024     // connections
	RequestsMax       = 256      // requests under way
	HeaderBytesMax    = 32 << 10 // bytes of a request's line and header
	BodyBytesMax      = bus.CommandBytesMax
	headerTimeout     = 5 * time.Second  // to read a request's header
	readTimeout       = 30 * time.Second // to read all of a request
	writeTimeout      = 60 * time.Second // from the header's end to the answer's
	idleTimeout       = 60 * time.Second // of a connection
	CommandTimeout    = 8 * time.Second  // for intake's answer; it is patient for 4 s itself
	ReadTimeout       = 10 * time.Second // for a bucket's answer
	StopTimeout       = 10 * time.Second // for requests under way when the service stops
	ListLimitDefault  = 100              // items of a list
	ListLimitMax      = 1000
	ListBytesMax      = 8 << 20 // bytes of a list's items; a longer one is cut
	NameBytesMax      = 253     // bytes of a name in a path
	RequestIDBytesMax = 64      // bytes of a request id
)

// Bus is the part of the bus that is needed.
type Bus interface {
	Request(ctx context.Context, subject string, header map[string]string, body []byte) (bus.Request, error)
	Get(ctx context.Context, e bus.Entity) (bus.Stored, error)
	List(ctx context.Context, f bus.Family, project, kind string, each func(bus.Stored) error) error
}

// Options of a Server. All fields but Hosts and Local are required.
type Options struct {
	Bus     Bus
	Log     *zap.Logger
	Metrics prometheus.Registerer
	Version string
	// Hosts are names by which the server may be called, beside localhost and IP addresses.
	Hosts []string
	// Routes are paths of other systems' APIs, which are served beside Drover's own.
	Routes []Route
	// Doors serve the paths of other systems' APIs, whatever their form.
	Doors []Door
	// Local says that the server listens on loopback: then no other names are taken.
	Local bool
}

// Door is the API of another system that is spoken here. It comes before the routes of httpapi, behind its guard.
type Door interface {
	http.Handler
	// Serves reports whether a request is for it, and under which route it is counted: one of a closed set.
	Serves(r *http.Request) (route string, ok bool)
	// Routes says what is served, for people: method, path, what.
	Routes() []Route
}

// Server serves HTTP. Make one with New.
type Server struct {
	doors   []Door
	bus     Bus
	log     *zap.Logger
	metrics *metrics
	version string
	hosts   map[string]bool
	local   bool
	more    []Route       // beside its own
	places  chan struct{} // one for each request under way
	handler http.Handler
}

// New returns a Server.
func New(o Options) (*Server, error) {
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	s := &Server{
		more: o.Routes, doors: o.Doors, bus: o.Bus, log: o.Log, metrics: m, version: o.Version, local: o.Local,
		hosts: map[string]bool{"localhost": true}, places: make(chan struct{}, RequestsMax),
	}
	for _, name := range o.Hosts {
		s.hosts[hostKey(name)] = true
	}
	s.handler = s.guard(s.dispatch(s.routes()))
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Serve answers requests on the listener until ctx ends; then those under way have StopTimeout. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	errorLog, err := zap.NewStdLogAt(s.log, zap.DebugLevel) // broken requests are their senders' affair
	if err != nil {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    HeaderBytesMax,
		ErrorLog:          errorLog,
	}
	stopped := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(stopped)
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), StopTimeout)
		defer cancel()
		if err := server.Shutdown(within); err != nil {
			s.log.Warn("requests were cut off", zap.Error(err))
			_ = server.Close() // the error is Shutdown's
		}
	})()
	err = server.Serve(limit.Listener(l, ConnectionsMax))
	if !errors.Is(err, http.ErrServerClosed) {
		_ = server.Close() // the error to know is Serve's
		return fmt.Errorf("serve HTTP: %w", err)
	}
	<-stopped
	return nil
}
