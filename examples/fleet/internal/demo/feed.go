//go:build unix

package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// eventBytesMax bounds a line of the feed.
const eventBytesMax = 4 << 20

// event is what is read of an event of a node: as `drover events -o jsonl` and `drover get -o json` print it.
type event struct {
	Name string    `json:"name"`
	Time time.Time `json:"time"`
	Work *struct { // the hand-out that the event makes
		Fence struct {
			Phase   string `json:"phase"`
			Attempt int    `json:"attempt"`
			Call    int    `json:"call"`
		} `json:"fence"`
	} `json:"work"`
	State state `json:"state"`
}

type state struct {
	UID         string     `json:"uid"`
	Revision    uint64     `json:"revision,string"`
	State       string     `json:"state"`
	PhaseFailed bool       `json:"phaseFailed"`
	Gone        bool       `json:"gone"`
	Attributes  attributes `json:"attributes"`
	Phases      []phaseRun `json:"phases"`
}

// attributes are what the phases of blueprint.yaml set.
type attributes struct {
	Folder    string `json:"folder"`
	Port      int    `json:"port"`
	PID       int    `json:"pid"`
	Announced string `json:"announced"`
}

type phaseRun struct {
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Attempt int       `json:"attempt"`
	Since   time.Time `json:"since"`
	Message string    `json:"message"`
}

// Statuses of a phase that has ended.
const (
	statusCompleted = "Completed"
	statusSkipped   = "Skipped"
	statusFailed    = "Failed"
)

func (s *state) phase(name string) *phaseRun {
	for i := range s.Phases {
		if s.Phases[i].Name == name {
			return &s.Phases[i]
		}
	}
	return nil
}

// span is one attempt of a phase: from its hand-out until it has ended.
type span struct{ out, end time.Time }

// track is what was seen of one node.
type track struct {
	state     state
	pid, port int // the last that it had
	spans     map[string]span
}

// took is how long the last attempt of a phase took; false where that was not seen.
func (t *track) took(phase string) (time.Duration, bool) {
	s, ok := t.spans[phase]
	if !ok || s.out.IsZero() || s.end.Before(s.out) {
		return 0, false
	}
	return s.end.Sub(s.out), true
}

// atOnce reports whether two phases were out at the same time.
func (t *track) atOnce(x, y string) bool {
	a, b := t.spans[x], t.spans[y]
	return !a.out.IsZero() && !b.out.IsZero() && a.out.Before(b.end) && b.out.Before(a.end)
}

// feed follows the nodes by their events. It is for display: the feed is at most once. Safe for concurrent use.
type feed struct {
	mu    sync.Mutex
	nodes map[string]*track
}

func newFeed() *feed { return &feed{nodes: make(map[string]*track)} }

// read reads lines of events until the reader ends.
func (f *feed) read(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), eventBytesMax)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("an event: %w", err)
		}
		f.see(&e)
	}
	return lines.Err()
}

func (f *feed) see(e *event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.nodes[e.Name]
	if t == nil {
		t = &track{spans: make(map[string]span)}
		f.nodes[e.Name] = t
	}
	if t.state.UID == e.State.UID && e.State.Revision <= t.state.Revision {
		return
	}
	if w := e.Work; w != nil && w.Fence.Call == 1 { // a later call goes on with the same attempt
		t.spans[w.Fence.Phase] = span{out: e.Time}
	}
	for _, p := range e.State.Phases {
		s, seen := t.spans[p.Name]
		if seen && s.end.IsZero() && (p.Status == statusCompleted || p.Status == statusFailed) {
			s.end = p.Since
			t.spans[p.Name] = s
		}
	}
	t.state = e.State
	if a := e.State.Attributes; a.PID != 0 {
		t.pid = a.PID
	}
	if a := e.State.Attributes; a.Port != 0 {
		t.port = a.Port
	}
}

// tracks is a copy of what was seen until now, by name.
func (f *feed) tracks() map[string]track {
	f.mu.Lock()
	defer f.mu.Unlock()
	copies := make(map[string]track, len(f.nodes))
	for name, t := range f.nodes {
		c := *t
		c.spans = make(map[string]span, len(t.spans))
		for phase, s := range t.spans {
			c.spans[phase] = s
		}
		copies[name] = c
	}
	return copies
}

// count is how many nodes were seen.
func (f *feed) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.nodes)
}

// order is that of the states in blueprint.yaml.
var order = []string{
	"", "Allocation", "Configuration", "Launch", "Announcement", "Started", "Withdrawal", "Shutdown", "Release", "Terminated",
}

// summary says how many nodes are in which state.
func (f *feed) summary() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[string]int{}
	failed, gone := 0, 0
	for _, t := range f.nodes {
		switch {
		case t.state.Gone:
			gone++
			continue
		case t.state.PhaseFailed:
			failed++
		}
		counts[t.state.State]++
	}
	var parts []string
	add := func(what string, n int) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", what, n))
		}
	}
	for _, s := range order {
		name := s
		if name == "" {
			name = "new"
		}
		add(name, counts[s])
	}
	add("gone", gone)
	if failed > 0 {
		add("(failed", failed)
		parts[len(parts)-1] += ")"
	}
	return strings.Join(parts, "  ")
}
