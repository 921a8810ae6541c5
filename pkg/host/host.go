// Package host is the life of a service's process: configuration, logs, metrics, health, and an orderly start and
// stop. It knows nothing of what the services do, and nothing else of Drover.
//
// # A service
//
// A service exports one Run, and its main is one line:
//
//	func main() { os.Exit(host.Main("intake", intake.Run)) }
//
//	func Run(ctx context.Context, h *host.Host) error {
//		b, err := open(ctx, h.Config())
//		if err != nil {
//			return fmt.Errorf("connect: %w", err)
//		}
//		defer b.Close()                      // after every component has returned
//		h.ReadyWhen("bus", b.Healthy)
//		h.Go("commands", func(ctx context.Context) error { … })
//		return h.Wait(ctx)                   // from here on the service counts as started
//	}
//
// `drover up` runs several of them in one process: one Host each, from New, and Host.Run on each.
//
// # Order
//
// Components start in the order of Go and stop in the reverse of it, one after the other: each is canceled only when
// those started after it have returned. The first that fails stops the rest. All of it must be over within
// Config.StopTimeout; a component that is not is named in the error and left behind, which is why only a process that
// is about to exit may ignore ErrStopTimeout.
//
// # Absent on purpose
//
// No restart of what failed: a service holds nothing that the log does not, so its process ends and is started again
// by whatever supervises it. No recovery from panics, for the same reason. No global state, but for the crash points
// (CrashPoint), which exist for tests that kill processes.
package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
)

// ErrStopTimeout is part of what Wait and Run return when components were still running at the end of
// Config.StopTimeout. Their goroutines are left behind.
var ErrStopTimeout = errors.New("not stopped in time")

// Options is what a Host is made of.
type Options struct {
	// Name of the service, as in "intake": the label service of its metrics and the field service of its logs.
	Name string
	// Config as Flags filled it, or DefaultConfig. An empty ID is made from Name, and a StopTimeout of zero is the
	// default. An empty Listen means no HTTP server.
	Config Config
	// Log is where the service's lines go. Nil means nowhere.
	Log *zap.Logger
	// Registry is shared by the services of one process. Nil means one of its own, which then also holds the metrics
	// of the process and of the Go runtime. Services of one name must not share a Registry.
	Registry *prometheus.Registry
}

// Host is what one service runs on. Safe for concurrent use.
type Host struct {
	name     string
	config   Config
	log      *zap.Logger
	registry *prometheus.Registry
	metrics  prometheus.Registerer

	failed chan struct{} // closed by the first failure of a component

	mu         sync.Mutex
	components []*component // running ones, in the order of their start
	checks     []check      // by name, in the order of registration
	err        error        // first failure
	started    bool         // Wait was reached
	stopping   bool
	addr       string        // of the HTTP server
	stopped    chan struct{} // closed when stop has done its work
}

type component struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// New makes a Host. It starts nothing.
func New(o Options) *Host {
	if o.Config.ID == "" {
		o.Config.ID = newID(o.Name)
	}
	if o.Config.StopTimeout <= 0 {
		o.Config.StopTimeout = StopTimeoutDefault
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
		o.Registry.MustRegister(
			collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		)
	}
	return &Host{
		name:     o.Name,
		config:   o.Config,
		log:      o.Log.With(zap.String(KeyService, o.Name), zap.String(KeyID, o.Config.ID)),
		registry: o.Registry,
		metrics:  prometheus.WrapRegistererWith(prometheus.Labels{"service": o.Name}, o.Registry),
		failed:   make(chan struct{}),
		stopped:  make(chan struct{}),
	}
}

// Name is the service's name.
func (h *Host) Name() string { return h.name }

// ID names this process among those of its service.
func (h *Host) ID() string { return h.config.ID }

// Config is what the service was started with.
func (h *Host) Config() Config { return h.config }

// Log is the service's logger. Every line carries the service and its id.
func (h *Host) Log() *zap.Logger { return h.log }

// Metrics is where the service registers its metrics; each gets the label service.
func (h *Host) Metrics() prometheus.Registerer { return h.metrics }

// Go starts a component: f runs in a goroutine of its own until the context it is given ends, and must return soon
// after. A nil error means that it has done its work; any other error stops the service, except the context's own once
// it has been asked to stop. When the service is already stopping, f is not called.
func (h *Host) Go(name string, f func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &component{name: name, cancel: cancel, done: make(chan struct{})}
	h.mu.Lock()
	if h.stopping {
		h.mu.Unlock()
		cancel()
		return
	}
	h.components = append(h.components, c)
	h.mu.Unlock()

	go func() {
		defer cancel()
		h.log.Debug("component started", Component(name))
		err := f(ctx)
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = nil
		}
		h.mu.Lock()
		h.components = slices.DeleteFunc(h.components, func(other *component) bool { return other == c })
		if err != nil && h.err == nil {
			h.err = fmt.Errorf("%s: %w", name, err)
			close(h.failed)
		}
		h.mu.Unlock()
		h.log.Debug("component ended", Component(name))
		close(c.done)
	}()
}

// OnStop has f called in the place of a component's stop: after what was started later has stopped, and before what
// was started earlier is told to. Its context ends with Config.StopTimeout.
func (h *Host) OnStop(name string, f func(ctx context.Context) error) {
	h.Go(name, func(ctx context.Context) error {
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.config.StopTimeout)
		defer cancel()
		return f(within)
	})
}

// Wait marks the service as started, and blocks until ctx ends or a component fails. Then it stops every component, in
// reverse order, and returns the first failure: nil for a graceful stop. Every call returns the same.
func (h *Host) Wait(ctx context.Context) error {
	h.mu.Lock()
	h.started = true
	h.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-h.failed:
	}
	return h.stop()
}

// Run runs one service from start to end, HTTP server included: it calls run with a context that ends with ctx, or when
// a component fails. A run that returns nil before that leaves its components running; one that returns an error
// stops them. Run returns when all is over, with the first failure. It may be called once.
func (h *Host) Run(ctx context.Context, run func(ctx context.Context, h *Host) error) error {
	stopHTTP, err := h.serveHTTP(ctx)
	if err != nil {
		return err
	}
	defer stopHTTP()

	running, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-h.failed:
			cancel()
		case <-running.Done():
		}
	}()

	err = run(running, h)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // asked to stop while it was starting
	}
	if err != nil {
		h.fail(err)
	}
	return h.Wait(ctx)
}

// fail records a failure that no component has returned. One that has failed before may have met what this one left behind.
func (h *Host) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.err == nil:
		h.err = err
		close(h.failed)
	case !errors.Is(h.err, err): // else it is what Wait has returned
		h.err = errors.Join(h.err, err)
	}
}

// stop cancels the components from the last to the first, waiting for each.
func (h *Host) stop() error {
	h.mu.Lock()
	if h.stopping {
		h.mu.Unlock()
		<-h.stopped
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.err
	}
	h.stopping = true
	h.mu.Unlock()
	defer close(h.stopped)

	deadline := time.NewTimer(h.config.StopTimeout)
	defer deadline.Stop()
	for {
		h.mu.Lock()
		if len(h.components) == 0 {
			defer h.mu.Unlock()
			return h.err
		}
		last := h.components[len(h.components)-1]
		h.mu.Unlock()
		last.cancel()
		select {
		case <-last.done:
		case <-deadline.C:
			return h.abandon()
		}
	}
}

// abandon tells the rest to stop without waiting for it.
func (h *Host) abandon() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var left []string
	for _, c := range h.components {
		c.cancel()
		left = append(left, c.name)
	}
	h.err = errors.Join(h.err, fmt.Errorf("%w: %s", ErrStopTimeout, strings.Join(left, ", ")))
	return h.err
}
