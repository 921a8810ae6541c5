// Package registry is a small register of who serves where: what the fleet's nodes are announced to.
//
//	POST   /nodes         {"name": …, "url": …}   announce; 201, or 200 where it was announced before
//	DELETE /nodes/{name}                          withdraw; 200 whether it was there or not
//	GET    /nodes                                 all of them, by name
//
// POST and DELETE answer {"announced": …}: when, or null. Both may be repeated without harm, because Drover repeats a
// request whose answer was lost.
package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Limits.
const (
	EntriesMax   = 10_000
	BodyBytesMax = 4 << 10
	NameBytesMax = 253
)

// Entry is one node that was announced.
type Entry struct {
	Name      string    `json:"name"`
	URL       string    `json:"url"`
	Rack      string    `json:"rack,omitempty"`
	Announced time.Time `json:"announced,omitzero"`
}

// Registry is an http.Handler. Its zero value is empty. Safe for concurrent use.
type Registry struct {
	mu      sync.Mutex
	entries map[string]Entry
	once    sync.Once
	mux     *http.ServeMux
}

// Entries lists what is announced, by name.
func (r *Registry) Entries() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries := make([]Entry, 0, len(r.entries))
	for _, e := range r.entries {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(x, y Entry) int { return cmp.Compare(x.Name, y.Name) })
	return entries
}

// ServeHTTP answers a request.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.once.Do(func() {
		r.mux = http.NewServeMux()
		r.mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, r.Entries()) })
		r.mux.HandleFunc("POST /nodes", r.announce)
		r.mux.HandleFunc("DELETE /nodes/{name}", r.withdraw)
	})
	r.mux.ServeHTTP(w, req)
}

func (r *Registry) announce(w http.ResponseWriter, req *http.Request) {
	var e Entry
	d := json.NewDecoder(http.MaxBytesReader(w, req.Body, BodyBytesMax))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", BodyBytesMax))
			return
		}
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if reason := e.check(); reason != "" {
		refuse(w, http.StatusBadRequest, reason)
		return
	}
	e.Announced = time.Now().UTC().Round(time.Millisecond)
	r.mu.Lock()
	_, again := r.entries[e.Name]
	full := !again && len(r.entries) >= EntriesMax
	if !full {
		if r.entries == nil {
			r.entries = make(map[string]Entry)
		}
		r.entries[e.Name] = e
	}
	r.mu.Unlock()
	switch {
	case full:
		refuse(w, http.StatusInsufficientStorage, fmt.Sprintf("%d nodes are announced, which is all there is room for", EntriesMax))
	case again:
		answer(w, http.StatusOK, state{&e.Announced})
	default:
		answer(w, http.StatusCreated, state{&e.Announced})
	}
}

// check says what is wrong with an entry, or "".
func (e *Entry) check() string {
	if e.Name == "" || len(e.Name) > NameBytesMax {
		return fmt.Sprintf("name: is not 1 to %d bytes", NameBytesMax)
	}
	if !e.Announced.IsZero() {
		return "announced: is for the registry to say"
	}
	u, err := url.Parse(e.URL)
	if err != nil || u.Scheme != "http" {
		return "url: is no URL of http"
	}
	if ip := net.ParseIP(u.Hostname()); ip == nil || !ip.IsLoopback() {
		return "url: is not on the loopback address"
	}
	return ""
}

func (r *Registry) withdraw(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	delete(r.entries, req.PathValue("name"))
	r.mu.Unlock()
	answer(w, http.StatusOK, state{})
}

// state is what a node's announcement is after a request; null where it is not announced.
type state struct {
	Announced *time.Time `json:"announced"`
}

func refuse(w http.ResponseWriter, status int, reason string) {
	answer(w, status, map[string]string{"error": reason})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}
