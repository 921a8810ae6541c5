package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/deploy/e2e/internal/journal"
	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

const (
	restoreFleet = 24 // resources that are moved to and fro
	restoreRest  = 12 // resources that have arrived before the backup
)

// TestRestore backs a fleet up while it is at work, by an operator with an operator's rights, lets it work on, destroys all
// of it, and makes it again on a server that holds nothing. Then every job that was accepted before the backup ends, the buckets
// say what the log says, nothing that the backup knows to be done is done again, and new commands are taken.
func TestRestore(t *testing.T) {
	t.Parallel()
	h := newHouse(t, plan{intakes: 1, orchestrators: 2, runners: 2, lifecycles: 1, guarded: true})
	nc := h.connect()
	t.Cleanup(nc.Close)
	d, err := openDoor(nc)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	journalFile := filepath.Join(h.dir, "journal")
	asked := &accepted{door: d}
	asked.must(t, ctx, command{Kind: "Blueprint", Name: "node", Verb: "apply", ID: "node", Body: apply("Blueprint", "node", restoreBlueprint(journalFile), nil)})
	for i := range restoreRest {
		name := fmt.Sprintf("rest%d", i)
		asked.must(t, ctx, command{Kind: "node", Name: name, Verb: "apply", ID: "apply", Body: apply("node", name, object{}, nil)})
		asked.must(t, ctx, command{Kind: "node", Name: name, Verb: "start", ID: "start"})
	}
	asked.end(t, ctx)

	living, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for i := range restoreFleet {
		clients.Go(func() { asked.client(living, fmt.Sprintf("n%d", i)) })
	}
	stopClients := func() {
		stop()
		clients.Wait()
	}
	defer stopClients()
	require.Eventually(t, func() bool { return len(asked.all()) > 4*restoreFleet }, time.Minute, 10*time.Millisecond)

	before := asked.all()
	folder := filepath.Join(h.dir, "backup")
	operator := h.operator(t)
	backup, err := operator.Backup(ctx, folder, nil)
	require.NoError(t, err)
	require.NoError(t, operator.Close())
	// What comes now is lost.
	count := len(asked.all())
	require.Eventually(t, func() bool { return len(asked.all()) > count+restoreFleet }, time.Minute, 10*time.Millisecond)
	stopClients()
	h.stop()
	require.NoError(t, os.RemoveAll(filepath.Join(h.dir, "nats-0")))

	server := h.servers[0]
	h.servers = []*process{h.run("nats-0", "nats-server", server.args...)}
	h.ready()
	operator = h.operator(t)
	restored, err := operator.Restore(ctx, folder, wire.HandedOut, nil)
	require.NoError(t, err)
	require.NoError(t, operator.Close())
	require.Equal(t, backup, restored.Backup)
	require.Positive(t, restored.HandedOut, "some were at work")
	look := h.connectAs(bus.Operator)
	t.Cleanup(look.Close)
	holdsOnly(t, ctx, look, restored.HandedOut)
	done := completedIn(t, ctx, look)
	require.GreaterOrEqual(t, len(done), restoreRest*3)
	t.Logf("%d jobs before the backup, %d in all; %d pieces of work were out, %d phases done", len(before), len(asked.all()), restored.HandedOut, len(done))

	again := time.Now()
	services := h.services
	h.services = nil
	for _, p := range services {
		h.services = append(h.services, h.run(p.name, filepath.Base(p.path), p.args...))
	}
	after := &accepted{door: d}
	after.jobs = before
	after.must(t, ctx, command{Kind: "node", Name: "new", Verb: "apply", ID: "apply", Body: apply("node", "new", object{}, nil)})
	after.must(t, ctx, command{Kind: "node", Name: "new", Verb: "start", ID: "start"})
	for i := range restoreRest {
		after.must(t, ctx, command{Kind: "node", Name: fmt.Sprintf("rest%d", i), Verb: "terminate", ID: "terminate"})
	}
	after.end(t, ctx)
	empty(t, d.js, "COMMANDS", "RESULTS", "WORK", "POISON")
	bucketsAreTheLog(t, ctx, look)
	lines, err := journal.Read(journalFile)
	require.NoError(t, err)
	for _, l := range lines {
		at, known := done[attempt{l.UID, l.Phase, l.Attempt}]
		require.False(t, l.Begin && l.At.After(again) && known, "phase %s, attempt %d, of %s was completed in the backup, and is run again", l.Phase, l.Attempt, at)
	}
}

// holdsOnly: WORK has caught up with the log and holds so much, not what was ever handed out. A worker of ours would look at
// the resource and leave that alone; others may not.
func holdsOnly(t *testing.T, ctx context.Context, nc *nats.Conn, n int) {
	t.Helper()
	js, err := natsjs.New(nc)
	require.NoError(t, err)
	work, err := js.Stream(ctx, "WORK")
	require.NoError(t, err)
	for {
		info, err := work.Info(ctx)
		require.NoError(t, err)
		if s := info.Sources[0]; s.Active >= 0 && s.Lag == 0 {
			break
		}
		require.True(t, pause(ctx, 20*time.Millisecond), "WORK does not catch up")
	}
	require.Equal(t, n, left(ctx, work))
}

// restoreBlueprint has a phase that is out long enough to be met there.
func restoreBlueprint(journalFile string) object {
	script := func(more ...any) object {
		return object{"script": object{"command": append(list{filepath.Join(bin, "witness"), "-journal", journalFile}, more...)}}
	}
	return object{
		"lifecycle": "node", "states": list{"Allocation", "Configuration"}, "paths": object{"Terminated": list{"Release"}},
		"phases": list{
			object{"name": "volume", "states": list{"Allocation"}, "executor": script()},
			object{"name": "instance", "states": list{"Allocation"}, "dependsOn": list{"volume"}, "executor": script("-hold", "700ms")},
			object{"name": "healthy", "states": list{"Configuration"}, "executor": script("-pending", "1"), "interval": "200ms"},
			object{"name": "release", "states": list{"Release"}, "executor": script("-hold", "20ms")},
		},
	}
}

// operator is the operator's connection.
func (h *house) operator(t *testing.T) *jetstream.Bus {
	t.Helper()
	b, err := jetstream.Connect(t.Context(), jetstream.Options{
		URL: h.url, NKeyFile: h.keys[bus.Operator], InboxPrefix: bus.InboxPrefix(bus.Operator), Name: "operator",
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// accepted is what was accepted: the ids of jobs. Safe for concurrent use.
type accepted struct {
	door *door
	mu   sync.Mutex
	jobs []string
}

func (a *accepted) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.jobs[:len(a.jobs):len(a.jobs)]
}

func (a *accepted) note(c command) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.jobs = append(a.jobs, wire.JobID(resource.Key{Project: project, Kind: c.Kind, Name: c.Name}, c.ID))
}

// must sends a request, which must be accepted.
func (a *accepted) must(t *testing.T, ctx context.Context, c command) {
	t.Helper()
	got, err := a.door.request(ctx, c)
	require.NoError(t, err)
	require.Empty(t, got.Code, "%s of %s: %s", c.Verb, c.Name, got.Message)
	a.note(c)
}

// client sends one resource to and fro, through both doors, until ctx ends.
func (a *accepted) client(ctx context.Context, name string) {
	verbs := []string{"start", "terminate"}
	for n := 0; ctx.Err() == nil; n++ {
		c := command{Kind: "node", Name: name, Verb: verbs[n%2], ID: fmt.Sprint("c", n)}
		if n == 0 {
			c.Verb, c.Body = "apply", apply("node", name, object{}, nil)
		}
		captured := n > 0 && rand.IntN(2) == 0 // a captured start could overtake no apply
		if captured {
			if _, err := a.door.publish(ctx, c); err != nil {
				return
			}
			a.note(c)
		} else if got, err := a.door.request(ctx, c); err != nil {
			return
		} else if got.Code == "" {
			a.note(c)
		}
		pause(ctx, time.Duration(200+rand.Int64N(1200))*time.Millisecond)
	}
}

// end waits until each job has a record, and that is final.
func (a *accepted) end(t *testing.T, ctx context.Context) {
	t.Helper()
	jobs, err := a.door.js.KeyValue(ctx, bus.Job.Bucket())
	require.NoError(t, err)
	for _, id := range a.all() {
		for {
			var why string
			entry, err := jobs.Get(ctx, bus.Entity{Family: bus.Job, Project: project, Name: id}.Key())
			if err == nil {
				e, err := wire.DecodeJob(entry.Value())
				require.NoError(t, err)
				if e.Record.State.Final() {
					break
				}
				why = fmt.Sprintf("it is %s", e.Record.State)
			} else {
				why = err.Error()
			}
			require.True(t, pause(ctx, 50*time.Millisecond), "job %s was accepted, and does not end: %s", id, why)
		}
	}
}

// lastOfEach reads the whole log and returns the last message of each entity.
func lastOfEach(t *testing.T, ctx context.Context, nc *nats.Conn) map[bus.Entity]stored {
	t.Helper()
	last := map[bus.Entity]stored{}
	for next := uint64(1); ; {
		got, err := batch(ctx, nc, "EVENTS", "drover.log.>", next)
		require.NoError(t, err)
		if len(got) == 0 {
			return last
		}
		for _, m := range got {
			e, _, _, err := bus.ParseLogSubject(m.Subject)
			require.NoError(t, err)
			last[e] = m
			next = m.Seq + 1
		}
	}
}

// completedIn is what the log knows to be done: attempts, and whose.
func completedIn(t *testing.T, ctx context.Context, nc *nats.Conn) map[attempt]string {
	t.Helper()
	done := map[attempt]string{}
	for e, m := range lastOfEach(t, ctx, nc) {
		if e.Family != bus.Resource {
			continue
		}
		r, err := wire.DecodeResource(m.Body)
		require.NoError(t, err)
		for _, p := range r.State.Phases {
			if p.Status == resource.Completed {
				done[attempt{r.State.UID, p.Name, p.Attempt}] = e.Name
			}
		}
	}
	return done
}

// bucketsAreTheLog: each bucket holds the last event of every entity that lives, and nothing else.
func bucketsAreTheLog(t *testing.T, ctx context.Context, nc *nats.Conn) {
	t.Helper()
	differs := func() string {
		want := map[string]stored{}
		for e, m := range lastOfEach(t, ctx, nc) {
			if m.Header.Get("KV-Operation") != "DEL" {
				want["$KV."+e.Family.Bucket()+"."+e.Key()] = m
			}
		}
		for _, f := range bus.Families() {
			for next := uint64(1); ; {
				got, err := batch(ctx, nc, "KV_"+f.Bucket(), "$KV.>", next)
				if err != nil {
					return err.Error()
				}
				if len(got) == 0 {
					break
				}
				for _, m := range got {
					next = m.Seq + 1
					w, ok := want[m.Subject]
					if deleted := m.Header.Get("KV-Operation") == "DEL"; ok == deleted {
						return fmt.Sprintf("%s is in the log: %t, in its bucket: %t", m.Subject, ok, !deleted)
					}
					if ok && !bytes.Equal(w.Body, m.Body) {
						return m.Subject + " is another in the log"
					}
					delete(want, m.Subject)
				}
			}
		}
		var missing []string
		for subject := range want {
			missing = append(missing, subject)
		}
		return strings.Join(missing, ", ")
	}
	for {
		difference := differs()
		if difference == "" {
			return
		}
		require.True(t, pause(ctx, 100*time.Millisecond), "the buckets are not the log: %s", difference)
	}
}
