package notifier_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/notifier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a notifier of its own; stop returns when it has ended.
func start(t *testing.T, s *memory.System, id string) (stop func()) {
	t.Helper()
	b := s.Connect()
	config := host.DefaultConfig()
	config.ID, config.Listen = id, ""
	h := host.New(host.Options{Name: notifier.Service, Config: config})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- h.Run(ctx, func(ctx context.Context, h *host.Host) error { return notifier.Run(ctx, h, b) })
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, b.Close())
	})
	t.Cleanup(stop)
	require.Eventually(t, func() bool { return h.Ready(t.Context()) == nil }, 30*time.Second, time.Millisecond)
	return stop
}

// log writes events as an orchestrator does.
type log struct {
	t *testing.T
	b bus.Bus

	seq      map[resource.Key]uint64
	revision map[resource.Key]uint64
}

func (l *log) listener(name, spec string) {
	key := resource.Key{Project: "default", Kind: "Listener", Name: name}
	digest := fmt.Sprintf("%x", spec)[:16]
	partition := bus.PartitionOf(key.Project, key.Kind, key.Name, l.b.Partitions())
	body, err := wire.EncodeSpec(wire.SpecEvent{Key: key, Digest: digest, JSON: spec, At: time.Now()})
	require.NoError(l.t, err)
	_, err = l.b.Append(bus.Append{Entity: bus.Entity{Partition: partition, Family: bus.Spec, Project: key.Project, Kind: key.Kind, Name: key.Name}, Version: digest, Body: body}).Result()
	require.NoError(l.t, err)
	l.transition(key, "", "", digest)
}

func (l *log) transition(key resource.Key, from, to, digest string) {
	l.revision[key]++
	body, err := wire.EncodeResource(wire.ResourceEvent{
		Event: resource.Event{From: from, To: to, JobID: "job"},
		State: resource.State{Key: key, MinReader: 1, UID: "uid", Revision: l.revision[key], SpecDigest: digest, State: to, Cluster: "c"},
		At:    time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC),
	})
	require.NoError(l.t, err)
	seq, err := l.b.Append(bus.Append{
		Entity: bus.Entity{Partition: bus.PartitionOf(key.Project, key.Kind, key.Name, l.b.Partitions()), Family: bus.Resource, Project: key.Project, Kind: key.Kind, Name: key.Name},
		Expect: l.seq[key], Header: bus.Header{From: from, To: to, Job: "job", Revision: l.revision[key]}, Body: body,
	}).Result()
	require.NoError(l.t, err)
	l.seq[key] = seq
}

type call struct {
	id   string
	body struct {
		Type, State, Cluster string
		Resources            []struct{ Project, Kind, Name, UID, Revision, JobID, Time string }
	}
}

// Two notifiers share the resources: every event is told once, by webhook and by subject.
func TestListenersAreTold(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var calls []call
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var c call
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &c.body); err != nil {
			t.Error(err)
		}
		c.id = r.Header.Get("Drover-Event-Id")
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, c)
	}))
	defer hook.Close()

	s := memory.New(memory.Options{})
	b := s.Connect()
	defer b.Close()
	l := &log{t: t, b: b, seq: map[resource.Key]uint64{}, revision: map[resource.Key]uint64{}}
	l.listener("hook", `{"kinds":["node"],"states":["Started"],"webhook":{"url":"`+hook.URL+`/"}}`) // before they run
	stopA := start(t, s, "a")
	start(t, s, "b")
	l.listener("subject", `{"kinds":["node"],"states":["Started"],"subject":"drover.notice.started"}`) // and while they do

	told := func() (byHook, bySubject map[string]int) {
		byHook, bySubject = map[string]int{}, map[string]int{}
		mu.Lock()
		defer mu.Unlock()
		for _, c := range calls {
			for _, r := range c.body.Resources {
				byHook[r.Name]++
			}
		}
		for _, n := range s.Notices() {
			var c call
			require.NoError(t, json.Unmarshal(n.Body, &c.body))
			require.Equal(t, "drover.notice.started", n.Subject)
			require.Equal(t, "application/json", n.Header["Content-Type"])
			require.Equal(t, "default/subject", n.Header["Drover-Listener"])
			for _, r := range c.body.Resources {
				bySubject[r.Name]++
			}
		}
		return byHook, bySubject
	}
	// The shares and the second listener are there once a resource is told to both.
	probe := 0
	require.Eventually(t, func() bool {
		probe++
		l.transition(resource.Key{Project: "default", Kind: "node", Name: fmt.Sprint("probe-", probe)}, "", "Started", "d")
		byHook, bySubject := told()
		return len(byHook) > 0 && len(bySubject) > 0
	}, 30*time.Second, 50*time.Millisecond)

	const nodes = 200
	for i := range nodes {
		key := resource.Key{Project: "default", Kind: "node", Name: fmt.Sprint("n", i)}
		l.transition(key, "", "Allocation", "d")
		l.transition(key, "Allocation", "Started", "d")
		l.transition(key, "Started", "Started", "d") // not a change of state
	}
	l.transition(resource.Key{Project: "default", Kind: "disk", Name: "other"}, "", "Started", "d")
	l.transition(resource.Key{Project: "other", Kind: "node", Name: "other"}, "", "Started", "d")
	complete := func() bool {
		byHook, bySubject := told()
		for i := range nodes {
			if byHook[fmt.Sprint("n", i)] == 0 || bySubject[fmt.Sprint("n", i)] == 0 {
				return false
			}
		}
		return true
	}
	require.Eventually(t, complete, 30*time.Second, 10*time.Millisecond)
	byHook, bySubject := told()
	for i := range nodes {
		require.Equal(t, 1, byHook[fmt.Sprint("n", i)])
		require.Equal(t, 1, bySubject[fmt.Sprint("n", i)])
	}
	require.Zero(t, byHook["other"])

	mu.Lock()
	last := calls[len(calls)-1]
	mu.Unlock()
	first := last.body.Resources[0]
	require.Equal(t, "node", last.body.Type)
	require.Equal(t, "Started", last.body.State)
	require.Equal(t, "c", last.body.Cluster)
	require.Equal(t, "default/node/"+first.Name+"/uid/"+first.Revision, last.id)
	require.Equal(t, "job", first.JobID)
	require.Equal(t, "2026-11-20T09:00:00Z", first.Time)

	// One stops: the other takes all.
	stopA()
	require.Eventually(t, func() bool {
		probe++
		name := fmt.Sprint("after-", probe)
		l.transition(resource.Key{Project: "default", Kind: "node", Name: name}, "", "Started", "d")
		byHook, _ := told()
		for i := range probe {
			if byHook[fmt.Sprint("after-", i)] > 0 {
				return true
			}
		}
		return false
	}, 30*time.Second, 50*time.Millisecond)
}
