package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/deploy/e2e/internal/journal"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// sharedResources is how many resources two orchestrators and two runners share.
const sharedResources = 1000

// TestShare has two orchestrators and two runners share resources, once undisturbed and once with one of each killed in
// the middle and never started again: what happened must be the same, but for the time.
func TestShare(t *testing.T) {
	t.Parallel()
	h := newHouse(t, plan{intakes: 1, orchestrators: 2, runners: 2, lifecycles: 1, partitions: 16, unsynced: true})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	site := newSite(t)
	journalFile := filepath.Join(h.dir, "journal")
	nc := h.connect()
	defer nc.Close()
	d, err := openDoor(nc)
	require.NoError(t, err)
	var c *chronicle
	for _, kind := range []string{"calm", "storm"} {
		first := command{Kind: "Blueprint", Name: kind, Verb: "apply", ID: kind, Body: apply("Blueprint", kind, object{
			"lifecycle": "node", "states": list{"Fetching", "Building"},
			"phases": list{
				object{"name": "fetch", "states": list{"Fetching"}, "executor": site.executor()},
				object{"name": "note", "states": list{"Building"}, "when": "resource.spec.noted", "executor": object{"script": object{
					"command": list{filepath.Join(bin, "witness"), "-journal", journalFile}}}},
				object{"name": "build", "states": list{"Building"}, "dependsOn": list{"note"}, "executor": site.executor()},
			},
		}, nil)}
		if c == nil {
			c = chronicleAfter(t, ctx, h, d, first)
		} else {
			_, err := d.request(ctx, first)
			require.NoError(t, err)
		}
	}

	began := time.Now()
	drive(t, ctx, d, c, "calm", nil)
	calm := time.Since(began)
	lines, err := journal.Read(journalFile)
	require.NoError(t, err)
	parents := map[int]bool{}
	for _, l := range lines {
		parents[l.Parent] = parents[l.Parent] || l.Begin
	}
	require.Len(t, parents, 3, "scripts of both runners, and the ends") // an end says no parent
	for _, p := range h.service("orchestrator") {
		log, err := os.ReadFile(p.log)
		require.NoError(t, err)
		require.NotContains(t, string(log), `"owned":16`, "one orchestrator must not have had all partitions")
		require.Contains(t, string(log), `"partitions changed"`)
	}

	began = time.Now()
	killed := make(chan struct{})
	drive(t, ctx, d, c, "storm", func() {
		defer close(killed)
		h.service("orchestrator")[0].stop(false)
		h.service("runner")[1].stop(false)
	})
	storm := time.Since(began)
	<-killed

	want, got := tally(c, "calm"), tally(c, "storm")
	require.Equal(t, want, got, "one orchestrator and one runner less must change nothing but the time")
	require.Equal(t, sharedResources, got["at Started, job succeeded"])
	require.Equal(t, sharedResources/20, got["Building→Building result note completed and hands out build"]) // one in twenty
	require.Equal(t, map[string]int{"fetch": sharedResources, "build": sharedResources}, site.attempts("calm"))
	require.Equal(t, site.attempts("calm"), site.attempts("storm"), "each phase of each resource has one attempt")
	empty(t, d.js, "COMMANDS", "RESULTS", "WORK", "POISON")
	t.Logf("%d resources, undisturbed: %s, %d requests; with one of each killed: %s, %d requests",
		sharedResources, calm.Round(time.Millisecond), site.requests("calm"), storm.Round(time.Millisecond), site.requests("storm"))
	for _, line := range slices.Sorted(maps.Keys(got)) {
		t.Logf("%5d  %s", got[line], line)
	}
}

// drive applies and starts all resources of a kind, and waits until their jobs have ended. middle is called when a
// third of them has come halfway.
func drive(t *testing.T, ctx context.Context, d *door, c *chronicle, kind string, middle func()) {
	t.Helper()
	names := make(chan int)
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			for i := range names {
				name := fmt.Sprintf("r%d", i)
				for _, one := range []command{
					{Kind: kind, Name: name, Verb: "apply", ID: "apply", Body: apply(kind, name, object{"noted": i%20 == 0}, nil)},
					{Kind: kind, Name: name, Verb: "start", ID: "start"},
				} {
					if _, err := d.publish(ctx, one); err != nil {
						t.Errorf("%s %s: %v", one.Verb, name, err)
					}
				}
			}
		})
	}
	go func() {
		for i := range sharedResources {
			names <- i
		}
		close(names)
	}()
	if middle != nil {
		require.True(t, c.wait(ctx, func() bool { return c.count(kind, "Building", "Started") > sharedResources/3 }))
		middle()
	}
	clients.Wait()
	started, ended := 0, 0
	require.True(t, c.wait(ctx, func() bool {
		started, ended = c.count(kind, "Started"), 0
		for _, r := range c.jobs {
			if r.Kind == kind && r.Verb == "start" && r.State.Final() {
				ended++
			}
		}
		return started == sharedResources && ended == sharedResources
	}), "of %d resources, %d are started, and %d jobs have ended", sharedResources, started, ended)
}

// count is how many resources of a kind are in one of the states. The lock must be held.
func (c *chronicle) count(kind string, states ...string) (n int) {
	for key, s := range c.resources {
		if key.Kind == kind && slices.Contains(states, s.State) {
			n++
		}
	}
	return n
}

// tally counts what happened to the resources of a kind: each sort of transition, and where they ended.
func tally(c *chronicle, kind string) map[string]int {
	n := map[string]int{}
	jobs := map[resource.Key]job.State{}
	for _, e := range c.all() {
		switch {
		case e.Resource != nil && e.Entity.Kind == kind:
			cause := e.Resource.Event.Cause
			if cause.Outcome == "running" {
				continue // for display: it depends on the time
			}
			parts := []string{e.Resource.Event.From + "→" + e.Resource.Event.To, cause.Kind}
			for _, part := range []string{cause.Verb, cause.Phase, cause.Outcome} {
				if part != "" {
					parts = append(parts, part)
				}
			}
			if d := e.Resource.Event.Dispatch; d != nil {
				parts = append(parts, "and hands out", d.Fence.Phase)
			}
			n[strings.Join(parts, " ")]++
		case e.Job != nil && e.Job.Record.Kind == kind && e.Job.Record.Verb == "start":
			jobs[resource.Key{Kind: kind, Name: e.Job.Record.Name}] = e.Job.Record.State
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, s := range c.resources {
		if key.Kind == kind {
			n[fmt.Sprintf("at %s, job %s", s.State, jobs[resource.Key{Kind: kind, Name: key.Name}])]++
		}
	}
	return n
}

// site is what the phases of TestShare ask for something.
type site struct {
	server *httptest.Server

	mu   sync.Mutex
	seen map[string]map[string]map[string]int // requests, by kind, phase and idempotency key
}

func newSite(t *testing.T) *site {
	s := &site{seen: map[string]map[string]map[string]int{}}
	s.server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		part := strings.Split(r.URL.Path, "/") // "", kind, phase, name
		s.mu.Lock()
		byPhase := s.seen[part[1]]
		if byPhase == nil {
			byPhase = map[string]map[string]int{}
			s.seen[part[1]] = byPhase
		}
		if byPhase[part[2]] == nil {
			byPhase[part[2]] = map[string]int{}
		}
		byPhase[part[2]][r.Header.Get("Idempotency-Key")]++
		s.mu.Unlock()
		time.Sleep(10 * time.Millisecond) // so that a runner that dies leaves something behind
	}))
	t.Cleanup(s.server.Close)
	return s
}

func (s *site) executor() object {
	return object{"http": object{"url": s.server.URL + "/{{ resource.kind }}/{{ phase.name }}/{{ resource.name }}"}}
}

// attempts counts the different attempts of each phase of a kind that came.
func (s *site) attempts(kind string) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for phase, keys := range s.seen[kind] {
		n[phase] = len(keys)
	}
	return n
}

// requests counts all of a kind.
func (s *site) requests(kind string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, keys := range s.seen[kind] {
		for _, times := range keys {
			n += times
		}
	}
	return n
}
