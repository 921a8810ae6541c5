// Command module is a module of NCAE in a few lines: it is asked for pieces of work (POST /vlan, /port), answers at once, does
// the work, and calls back what became of it; and it is polled (POST /ready). It stands for what makes VLANs where you are.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// order is what a module is asked for: the fields that this one needs of what NCAE sends.
type order struct {
	ExtraVars struct {
		Decommission    bool            `json:"decommission"`
		Data            json.RawMessage `json:"data"`
		BaseURL         string          `json:"ncae_base_url"`
		PhaseInstance   uint64          `json:"phase_instance_id"`
		ServiceInstance uint64          `json:"service_instance_id"`
		Transaction     string          `json:"transaction_id"`
		WasDeployed     bool            `json:"was_deployed"`
	} `json:"extra_vars"`
}

func main() {
	listen := flag.String("listen", "127.0.0.1:9000", "`address` to listen on")
	takes := flag.Duration("takes", time.Second, "how long a piece of work takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *takes); err != nil {
		say("%v", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen string, takes time.Duration) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	m := &module{takes: takes, client: &http.Client{Timeout: 15 * time.Second}, polls: map[uint64]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /vlan", m.work)
	mux.HandleFunc("POST /port", m.work)
	mux.HandleFunc("POST /ready", m.ready)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	say("listening on %s", l.Addr())
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	m.atWork.Wait()
	return nil
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

type module struct {
	takes  time.Duration
	client *http.Client
	atWork sync.WaitGroup
	mu     sync.Mutex
	polls  map[uint64]int // by attempt
}

// read reads an order.
func read(w http.ResponseWriter, r *http.Request) (o order, ok bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(body, &o)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	}
	return o, err == nil
}

// work takes an order, answers, and does it.
func (m *module) work(w http.ResponseWriter, r *http.Request) {
	o, ok := read(w, r)
	if !ok {
		return
	}
	what := r.URL.Path
	m.atWork.Go(func() {
		x := &o.ExtraVars
		time.Sleep(m.takes) // here the work is done; asked twice for one attempt, it is to be done once
		status, text := "DE", "made"
		if x.Decommission {
			status, text = "RE", "removed"
		}
		say("%s of %d: %s with %s (was deployed: %t)", what, x.ServiceInstance, text, x.Data, x.WasDeployed)
		m.call(&o, http.MethodPost, "logger/v1/service-instance-log", map[string]any{
			"service_instance_id": x.ServiceInstance, "status": "IN", "log_title": what, "log_hostname": "module", "log_text": text,
		})
		m.call(&o, http.MethodPatch, "automation/v1/phase-instance/"+strconv.FormatUint(x.PhaseInstance, 10), map[string]any{"status": status})
	})
	w.WriteHeader(http.StatusNoContent)
}

// ready is polled: the third answer of an attempt says that it is.
func (m *module) ready(w http.ResponseWriter, r *http.Request) {
	o, ok := read(w, r)
	if !ok {
		return
	}
	m.mu.Lock()
	m.polls[o.ExtraVars.PhaseInstance]++
	n := m.polls[o.ExtraVars.PhaseInstance]
	m.mu.Unlock()
	status := "polling"
	switch {
	case n > 2 && o.ExtraVars.Decommission:
		status = "retired"
	case n > 2:
		status = "deployed"
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"status": %q}`, status)
}

// call calls Drover back, a few times where it is not there: nobody else knows what became of the work.
func (m *module) call(o *order, method, path string, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		say("%v", err)
		return
	}
	for try := range 10 {
		if try > 0 {
			time.Sleep(500 * time.Millisecond)
		}
		r, err := http.NewRequestWithContext(context.Background(), method, o.ExtraVars.BaseURL+"api/"+path, bytes.NewReader(text))
		if err != nil {
			say("%v", err)
			return
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Transaction-Id", o.ExtraVars.Transaction)
		response, err := m.client.Do(r)
		if err != nil {
			say("%v", err)
			continue
		}
		answer, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
		_ = response.Body.Close()
		if response.StatusCode < 500 {
			if response.StatusCode >= 400 {
				say("%s %s: %s %s", method, path, response.Status, answer)
			}
			return
		}
	}
}
