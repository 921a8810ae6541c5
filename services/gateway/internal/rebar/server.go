// Package rebar is the machine-agent API of Digital Rebar, /api/v3, as its agents use it (facts/digitalrebar.md, section 2):
// over TLS, with a websocket for events.
//
//	server.go       the listener's limits, start and stop
//	routes.go       which paths there are
//	auth.go         tokens, and who may what
//	hold.go         requests to the owners of partitions, held while nobody answers
//	machines.go     machines and their parameters
//	jobs.go         task runs: asking, reporting, logs
//	actions.go      what a task run is to do
//	definitions.go  tasks, stages, workflows, boot environments
//	objects.go      machines and runs as agents read them
//	memo.go         what never changes, in memory
//	socket.go       the websocket
//	events.go       what happens, from the buckets
//	respond.go      answers
//
// A gateway decides nothing and holds no state: the owners of partitions decide, and several gateways may stand behind one
// address. One gateway serves one project under /api/v3, which knows no projects.
//
// # Held, not refused
//
// An agent gives a task up when it meets a 5xx (facts, section 5), and it has no time limit of its own. So a request waits
// here, at most HoldMax, until the owner of its partition answers; asking again is safe, as what makes something carries an
// id of its own.
package rebar

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/gateway/internal/limit"
)

// Limits of the server.
const (
	RequestsMax    = 4096             // requests under way, held ones included
	SocketsMax     = 4096             // websockets
	ConnectionsMax = 3 * 4096         // connections: an agent has a websocket, and keeps two for its requests
	HeaderBytesMax = 32 << 10         // bytes of a request's line and header
	BodyBytesMax   = 512 << 10        // bytes of a patch or a parameter
	LogBytesMax    = 1 << 20          // bytes of one piece of a log; agents send 64 KiB
	HoldMax        = 5 * time.Minute  // that a request waits for an owner
	StopTimeout    = 10 * time.Second // for requests under way when the service stops
	headerTimeout  = 5 * time.Second
	readTimeout    = 60 * time.Second // to read a request's body
	idleTimeout    = 2 * time.Minute
	readWait       = 3 * time.Second // of one read of the log
)

// Bus is the part of the bus that is needed.
type Bus interface {
	AskDoor(ctx context.Context, partition int, r bus.Request) (bus.Request, error)
	Last(ctx context.Context, entities []bus.Entity) ([]bus.Stored, error)
	Version(ctx context.Context, e bus.Entity, version string) (bus.Stored, error)
	WatchBucket(ctx context.Context, f bus.Family, project, kind, name string) (bus.Watch, error)
	PublishOutput(project, kind, name string, body []byte) error
	StoreOutput(ctx context.Context, project, kind, name string, body []byte) error
	ReadOutput(ctx context.Context, project, kind, name string, follow bool, each func(bus.OutputLine) error) error
	Partitions() int
}

// Options of a Server. All fields are required.
type Options struct {
	Bus     Bus
	Log     *zap.Logger
	Version string
	Project string
	// Key signs tokens: at least KeyBytesMin bytes, the same for all gateways of an address.
	Key []byte
	// Password is that of the operator, by Basic authentication.
	Password string
	Now      func() time.Time
}

// Server serves /api/v3. Make one with New.
type Server struct {
	Options
	handler  http.Handler
	places   chan struct{}
	jobs     *memo // uuid of the machine by run: that never changes
	specs    *memo
	exchange *exchange
	pace     pace
	limits   limits
	stopping context.Context
	stop     context.CancelFunc
}

// limits are those that a test sets lower.
type limits struct {
	connections int           // open at once
	read        time.Duration // to send a request's body
}

// New returns a Server.
func New(o Options) (*Server, error) {
	if len(o.Key) < KeyBytesMin {
		return nil, fmt.Errorf("the key that signs tokens must have at least %d bytes", KeyBytesMin)
	}
	if o.Password == "" {
		return nil, errors.New("the operator's password is empty")
	}
	s := &Server{
		Options: o, places: make(chan struct{}, RequestsMax), jobs: newMemo(runsMax), specs: newMemo(specsMax), exchange: newExchange(o.Log),
		pace: pace{pingEvery, writeWait}, limits: limits{ConnectionsMax, readTimeout},
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.handler = s.routes()
	return s, nil
}

// ServeHTTP answers one request. Its body has readTimeout before anything is known of the sender: net/http reads, before it
// answers, what a handler has left of a body, and would wait for ever for one that never comes.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body != http.NoBody { // where none comes the limit would end the request itself, which may be held for longer
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.limits.read)) // a recorder in a test knows none
	}
	select {
	case s.places <- struct{}{}:
	default:
		fail(w, problem{Type: r.Method, Code: http.StatusServiceUnavailable, Messages: []string{"too many requests are under way"}})
		return
	}
	p := &place{ResponseWriter: w, free: sync.OnceFunc(func() { <-s.places })}
	defer p.free()
	s.handler.ServeHTTP(p, r)
}

// place is that of one request among RequestsMax. A websocket is none once its upgrade is accepted: it lasts as long as its agent
// does, and SocketsMax counts it.
type place struct {
	http.ResponseWriter
	free func()
}

// Hijack implements http.Hijacker. It clears the deadlines of the connection, as net/http's does.
func (p *place) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, buffered, err := http.NewResponseController(p.ResponseWriter).Hijack()
	if err == nil {
		p.free()
	}
	return c, buffered, err
}

// Unwrap is for http.ResponseController.
func (p *place) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Serve answers requests on the listener, over TLS, until ctx ends; then those under way have StopTimeout. It closes the
// listener. Events are followed before the first request is taken. certificate is asked in each handshake.
func (s *Server) Serve(
	ctx context.Context, l net.Listener, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error),
) error {
	defer s.stop()
	errorLog, err := zap.NewStdLogAt(s.Log, zap.DebugLevel) // broken requests are their senders' affair
	if err != nil {
		return fmt.Errorf("serve %s: %w", Base, err)
	}
	watching, err := s.follow(ctx)
	if err != nil {
		_ = l.Close() // nothing was served on it
		return err
	}
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, // bodies have readTimeout (ServeHTTP), answers none
		MaxHeaderBytes: HeaderBytesMax, ErrorLog: errorLog,
		TLSConfig: &tls.Config{GetCertificate: certificate, MinVersion: tls.VersionTLS12},
	}
	stopped := make(chan struct{})
	var once sync.Once
	end := func() {
		once.Do(func() {
			defer close(stopped)
			s.stop() // the websockets, and what is held: what an owner is asked now he may answer
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), StopTimeout)
			defer cancel()
			if err := server.Shutdown(within); err != nil {
				s.Log.Warn("requests were cut off", zap.Error(err))
				_ = server.Close() // the error is Shutdown's
			}
		})
	}
	defer context.AfterFunc(ctx, end)()
	lost := make(chan error, 1)
	go func() {
		if err := watching(); err != nil {
			lost <- err
			end()
		}
	}()
	err = server.ServeTLS(limit.Listener(l, s.limits.connections), "", "")
	if !errors.Is(err, http.ErrServerClosed) {
		_ = server.Close() // the error to know is Serve's
		return fmt.Errorf("serve %s: %w", Base, err)
	}
	<-stopped
	s.exchange.sockets.Wait()
	select {
	case err := <-lost:
		return err
	default:
		return nil
	}
}
