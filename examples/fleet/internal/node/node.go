//go:build unix

// Package node is a node of the fleet: a process that serves HTTP on a loopback port of its own until it is told to end.
//
//	GET /         its page
//	GET /healthz  503 while it warms up, then 200
//	GET /about    who it is: {"name": …, "pid": …}
//	GET /motd     its message of the day; 404 where it has none
//
// It ends by SIGTERM, and when nobody keeps the fleet any more: it waits for the lock of the fleet's home, which the
// kernel frees when the keeper has ended, by whatever means. So a keeper that is killed leaves no node behind.
package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/droverproject/drover/examples/fleet/internal/flock"
	"github.com/droverproject/drover/examples/fleet/internal/home"
	"github.com/droverproject/drover/examples/fleet/internal/process"
)

// Files in a node's folder.
const (
	ConfigFile = "config.json"
	PageFile   = "page.txt"
	MotdFile   = "motd.txt"
)

// Limits.
const (
	FileBytesMax    = 64 << 10 // bytes of each of the files
	WarmupMax       = 10 * time.Second
	headerBytesMax  = 16 << 10
	requestTimeout  = 5 * time.Second
	shutdownTimeout = time.Second // for requests that are under way
)

// Config is a node's configuration, as configure writes it.
type Config struct {
	Name string `json:"name"`
	Rack string `json:"rack,omitempty"`
	Port int    `json:"port"` // of the loopback address
	// WarmupMillis is how long /healthz answers 503, in milliseconds, at most WarmupMax.
	WarmupMillis int64 `json:"warmupMillis,omitempty"`
	// Lifeline is the path of a lock file; the node ends when nobody holds it. Empty: it lives on its own.
	Lifeline string `json:"lifeline,omitempty"`
}

// Check refuses what a node cannot serve by.
func (c *Config) Check() error {
	if err := home.CheckName(c.Name); err != nil {
		return err
	}
	if err := (home.Range{From: c.Port, To: c.Port}).Check(); err != nil {
		return err
	}
	if w := c.Warmup(); w < 0 || w > WarmupMax {
		return fmt.Errorf("a warm-up of %s is not 0 to %s", w, WarmupMax)
	}
	return nil
}

// Warmup is WarmupMillis as a duration.
func (c *Config) Warmup() time.Duration { return time.Duration(c.WarmupMillis) * time.Millisecond }

// Read reads the configuration in a node's folder.
func Read(folder string) (Config, error) {
	var c Config
	body, err := readFile(folder, ConfigFile)
	if err != nil {
		return c, err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("%s: %w", ConfigFile, err)
	}
	if err := c.Check(); err != nil {
		return c, fmt.Errorf("%s: %w", ConfigFile, err)
	}
	return c, nil
}

func readFile(folder, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(folder, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, FileBytesMax+1))
	if err != nil {
		return nil, err
	}
	if len(body) > FileBytesMax {
		return nil, fmt.Errorf("%s has more than %d bytes", name, FileBytesMax)
	}
	return body, nil
}

// About is what /about answers.
type About struct {
	Name string `json:"name"`
	Rack string `json:"rack,omitempty"`
	PID  int    `json:"pid"`
}

// errAbandoned: nobody keeps the fleet any more.
var errAbandoned = errors.New("nobody keeps the fleet any more")

// Run serves until ctx ends or nobody keeps the fleet. It tells on log, a line at a time.
func Run(ctx context.Context, folder string, log io.Writer) error {
	c, err := Read(folder)
	if err != nil {
		return err
	}
	page, err := readFile(folder, PageFile)
	if err != nil {
		return err
	}
	motd, err := readFile(folder, MotdFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if c.Lifeline != "" {
		go func() { // ends with the process: the wait for a lock cannot be interrupted
			err := flock.Await(c.Lifeline)
			cancel(errors.Join(errAbandoned, err))
		}()
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", home.Address(c.Port))
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:     handler(c, page, motd, time.Now().Add(c.Warmup())),
		ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, MaxHeaderBytes: headerBytesMax,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	lock, err := process.Announce(folder)
	if err != nil {
		server.Close() //nolint:errcheck,gosec // it ends anyway
		return err
	}
	fmt.Fprintf(log, "%s serves on %s as process %d\n", c.Name, listener.Addr(), os.Getpid())
	select {
	case err = <-served:
	case <-ctx.Done():
		fmt.Fprintf(log, "%s ends: %v\n", c.Name, context.Cause(ctx))
		err = shutdown(server)
	}
	runtime.KeepAlive(lock) // held to the last: who waits for it may then use the port
	return err
}

func shutdown(server *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return server.Close()
	}
	return nil
}

func handler(c Config, page, motd []byte, warm time.Time) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { text(w, page) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if left := time.Until(warm); left > 0 {
			http.Error(w, "warming up, "+strconv.FormatInt(left.Milliseconds(), 10)+" ms to go", http.StatusServiceUnavailable)
			return
		}
		text(w, []byte("ok\n"))
	})
	mux.HandleFunc("GET /about", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(About{Name: c.Name, Rack: c.Rack, PID: os.Getpid()}) // the client has gone
	})
	mux.HandleFunc("GET /motd", func(w http.ResponseWriter, r *http.Request) {
		if motd == nil {
			http.NotFound(w, r)
			return
		}
		text(w, motd)
	})
	return mux
}

func text(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write(body) // the client has gone
}
