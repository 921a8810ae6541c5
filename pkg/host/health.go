package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// Limits of the HTTP server.
const (
	CheckTimeout       = time.Second     // of one readiness check
	requestTimeout     = 5 * time.Second // of reading a request, and of a scrape
	responseTimeout    = 2 * requestTimeout
	headerBytesMax     = 8 << 10     // bytes of a request's header
	scrapesMax         = 4           // at the same time
	httpStopTimeout    = time.Second // for requests under way when the service has stopped
	idleTimeout        = time.Minute // of a connection
	contentTypeText    = "text/plain; charset=utf-8"
	contentTypeOptions = "nosniff"
)

// Reasons for which a service is not ready, beside its own checks.
var (
	errStarting = errors.New("the service is starting")
	errStopping = errors.New("the service is stopping")
)

type check struct {
	name string
	f    func(ctx context.Context) error
}

type verdict struct {
	name string
	err  error
}

// ReadyWhen has the service ready only while f returns nil. Checks run at every question, all at once; f must
// return when its context ends, which is after CheckTimeout. What f returns is shown to whoever may reach the address, so it must not hold secrets. A second check
// of one name replaces the first.
func (h *Host) ReadyWhen(name string, f func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.checks {
		if h.checks[i].name == name {
			h.checks[i].f = f
			return
		}
	}
	h.checks = append(h.checks, check{name: name, f: f})
}

// Ready is nil when the service has started (Wait), is not stopping, and all its checks pass. Otherwise the error
// names each reason.
func (h *Host) Ready(ctx context.Context) error {
	var errs []error
	for _, v := range h.verdicts(ctx) {
		if v.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.name, v.err))
		}
	}
	return errors.Join(errs...)
}

// Addr is where the HTTP server listens. Empty where there is none.
func (h *Host) Addr() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.addr
}

func (h *Host) verdicts(ctx context.Context) []verdict {
	h.mu.Lock()
	life := verdict{name: "started"}
	switch {
	case h.stopping:
		life.err = errStopping
	case !h.started:
		life.err = errStarting
	}
	checks := slices.Clone(h.checks)
	h.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, CheckTimeout)
	defer cancel()
	verdicts := make([]verdict, len(checks)+1)
	verdicts[0] = life
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { verdicts[i+1] = verdict{name: c.name, err: c.f(ctx)} })
	}
	wg.Wait()
	return verdicts
}

// handler serves /livez (the process answers), /readyz (Ready, one line a check) and /metrics.
func (h *Host) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		status, body := http.StatusOK, strings.Builder{}
		for _, v := range h.verdicts(r.Context()) {
			if v.err != nil {
				status = http.StatusServiceUnavailable
				fmt.Fprintf(&body, "not ready: %s: %v\n", v.name, v.err)
				continue
			}
			fmt.Fprintf(&body, "ok: %s\n", v.name)
		}
		respond(w, status, body.String())
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(h.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapesMax,
		Timeout:             requestTimeout,
	}))
	return mux
}

func respond(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", contentTypeText)
	w.Header().Set("X-Content-Type-Options", contentTypeOptions)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // the caller is gone: nobody is left to tell
}

// serveHTTP listens where Config.Listen says. stop ends it.
func (h *Host) serveHTTP(ctx context.Context) (stop func(), err error) {
	if h.config.Listen == "" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", h.config.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for health and metrics: %w", err)
	}
	h.mu.Lock()
	h.addr = listener.Addr().String()
	h.mu.Unlock()
	server := &http.Server{
		Handler:           h.handler(),
		ReadTimeout:       requestTimeout,
		ReadHeaderTimeout: requestTimeout,
		WriteTimeout:      responseTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytesMax,
		ErrorLog:          zap.NewStdLog(h.log),
	}
	h.log.Info("health and metrics", Address(h.addr))
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			h.fail(fmt.Errorf("health and metrics: %w", err))
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), httpStopTimeout)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			_ = server.Close() // slow callers are cut off
		}
		<-served
	}, nil
}
