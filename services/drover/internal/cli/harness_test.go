package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ Bus = (*memory.Conn)(nil)

// at is when everything in the fixtures happened; the App's clock stands a little later.
var at = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// run is one command line and what it did.
type run struct {
	code     int
	out, err string
}

// terminal makes an App on a system, with a clock that stands still.
func app(system *memory.System) *App {
	return &App{
		Now:       func() time.Time { return at.Add(90 * time.Second) },
		RequestID: func() string { return "REQUEST" },
		Connect: func(context.Context, Connection) (Bus, error) {
			if system == nil {
				return nil, errors.New("nobody listens")
			}
			return system.Connect(), nil
		},
		Server: func(context.Context, Bus) (ServerInfo, error) {
			return ServerInfo{
				URL: "nats://127.0.0.1:4222", Name: "n1", Version: "2.15.2", RTT: 120 * time.Microsecond, APILevel: 5,
				StoreBytes: 3 << 20, StoreBytesMax: -1, Streams: 12,
			}, nil
		},
		Streams: func(context.Context, Bus) ([]StreamInfo, error) {
			return []StreamInfo{{Name: "EVENTS", Replicas: 1}, {Name: "KV_drover_resources", Replicas: 1, Lag: 3}, {Name: "COMMANDS", Replicas: 1, Full: 0.25}}, nil
		},
	}
}

// drover runs one command line.
func drover(t *testing.T, a *App, args ...string) run {
	t.Helper()
	return droverCtx(t.Context(), t, a, args...)
}

func droverCtx(ctx context.Context, t *testing.T, a *App, args ...string) run {
	t.Helper()
	copied := *a // an App serves one command line
	var out, err bytes.Buffer
	copied.Out, copied.Err = &out, &err
	code := Main(ctx, &copied, args)
	return run{code: code, out: out.String(), err: err.String()}
}

// golden compares what a command line did with testdata/<name>.golden.
func golden(t *testing.T, name string, r run) {
	t.Helper()
	got := "exit " + string(rune('0'+r.code)) + "\n--- stdout\n" + r.out + "--- stderr\n" + r.err
	require.NotContains(t, got, "\x1b", "an escape reached the output")
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// put stores events one after another, with the revisions that their bodies have.
type shelf struct {
	t      *testing.T
	conn   *memory.Conn
	last   map[bus.Entity]uint64
	system *memory.System
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	system := memory.New(memory.Options{})
	conn := system.Connect()
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return &shelf{t: t, conn: conn, last: map[bus.Entity]uint64{}, system: system}
}

func (s *shelf) put(e bus.Entity, version string, h bus.Header, body []byte) {
	s.t.Helper()
	e.Partition = bus.PartitionOf(e.Project, e.Kind, e.Name, s.conn.Partitions())
	seq, err := s.conn.Append(bus.Append{Entity: e, Version: version, Expect: s.last[e], Header: h, Body: body}).Result()
	require.NoError(s.t, err)
	s.last[e] = seq
}

func (s *shelf) resource(e wire.ResourceEvent) {
	s.t.Helper()
	e.ResultSubject = bus.ResultSubject(0, e.State.Project, e.State.Kind, e.State.Name)
	body, err := wire.EncodeResource(e)
	require.NoError(s.t, err)
	s.put(bus.Entity{Family: bus.Resource, Project: e.State.Project, Kind: e.State.Kind, Name: e.State.Name}, "",
		bus.Header{From: e.Event.From, To: e.Event.To, Job: e.Event.JobID, Revision: e.State.Revision}, body)
}

func (s *shelf) job(e wire.JobEvent) {
	s.t.Helper()
	body, err := wire.EncodeJob(e)
	require.NoError(s.t, err)
	s.put(bus.Entity{Family: bus.Job, Project: e.Record.Project, Name: e.Record.ID}, "",
		bus.Header{From: e.From.String(), To: e.Record.State.String(), Job: e.Record.ID, Revision: e.Record.Revision}, body)
}

func (s *shelf) spec(key resource.Key, digest, json string) {
	s.t.Helper()
	body, err := wire.EncodeSpec(wire.SpecEvent{Key: key, Digest: digest, JSON: json, At: at})
	require.NoError(s.t, err)
	s.put(bus.Entity{Family: bus.Spec, Project: key.Project, Kind: key.Kind, Name: key.Name}, digest, bus.Header{}, body)
}

func (s *shelf) blueprint(kind, json string) {
	s.t.Helper()
	body, err := wire.EncodeBlueprint(wire.BlueprintEvent{Project: "default", Kind: kind, Digest: "d1", JSON: json, Generation: 1, At: at})
	require.NoError(s.t, err)
	s.put(bus.Entity{Family: bus.Blueprint, Project: "default", Kind: kind}, "d1", bus.Header{Revision: 1}, body)
}

const nodeBlueprint = `{"lifecycle":"node","states":["Allocation","Configuration"],"phases":[
	{"name":"create-volume","description":"Make a volume","states":["Allocation"],"executor":{"plugin":{}}},
	{"name":"create-instance","states":["Allocation"],"dependsOn":["create-volume"],"executor":{"plugin":{}}},
	{"name":"host-file","states":["Configuration"],"executor":{"plugin":{}}}]}`

// ref is a job of the fixtures.
func ref(id, verb, target string, state job.State) job.Ref {
	r := job.Ref{
		ID: id, RequestID: "r-" + id, Digest: "digest-" + id, Verb: verb, Target: target, State: state, AcceptedAt: at,
		RequestedBy: "ann",
	}
	if target != "" {
		r.Blueprint = "d1"
	}
	if state != job.Pending {
		r.StartedAt = at.Add(time.Second)
	}
	if state.Final() {
		r.EndedAt = at.Add(31 * time.Second)
	}
	return r
}

// state is a resource of the fixtures.
func state(name string) resource.State {
	return resource.State{
		Key: resource.Key{Project: "default", Kind: "node", Name: name}, MinReader: 1, UID: "uid-" + name, Generation: 1,
		Revision: 1, SpecDigest: "spec-" + name, Labels: map[string]string{"rack": "a", "size": "small"},
		CreatedAt: at.Add(-26 * time.Hour), UpdatedAt: at.Add(time.Minute),
	}
}

// fleet is a system with resources that stand in all kinds of places.
func fleet(t *testing.T) *shelf {
	t.Helper()
	s := newShelf(t)
	s.blueprint("node", nodeBlueprint)

	started := state("web-2")
	started.State, started.Target, started.WasDeployed = "Started", "Started", true
	started.Jobs = []job.Ref{ref("job-web-2", "start", "Started", job.Succeeded)}
	started.Phases = []resource.PhaseRun{
		{Name: "create-volume", Status: resource.Completed, State: "Allocation", JobID: "job-web-2", Attempt: 1, Call: 1, Since: at},
		{Name: "host-file", Status: resource.Skipped, State: "Configuration", JobID: "job-web-2", Since: at},
	}
	s.resource(wire.ResourceEvent{
		State: started, At: at.Add(31 * time.Second),
		Event: resource.Event{From: "Configuration", To: "Started", JobID: "job-web-2", Cause: resource.Cause{Kind: "result", Phase: "host-file", Outcome: "completed"}},
	})

	failed := state("web-10.example.com")
	failed.Labels = map[string]string{"rack": "b"}
	failed.State, failed.Target, failed.PhaseFailed = "Allocation", "Started", false
	failed.Revision = 1
	failed.Jobs = []job.Ref{ref("job-web-10", "start", "Started", job.Running)}
	failed.Phases = []resource.PhaseRun{
		{Name: "create-volume", Status: resource.Waiting, State: "Allocation", JobID: "job-web-10", Attempt: 1, Call: 1, InFlight: true, Since: at},
		{Name: "create-instance", Status: resource.Blocked, State: "Allocation", JobID: "job-web-10", Since: at},
	}
	s.resource(wire.ResourceEvent{
		State: failed, At: at.Add(time.Second),
		Event: resource.Event{
			To: "Allocation", JobID: "job-web-10", Cause: resource.Cause{Kind: "command", Verb: "start", RequestedBy: "ann"},
			Dispatch: &resource.Dispatch{Fence: resource.Fence{UID: failed.UID, JobID: "job-web-10", Phase: "create-volume", Attempt: 1, Call: 1}, State: "Allocation"},
		},
	})
	failed.PhaseFailed, failed.Revision = true, 2
	failed.Jobs = []job.Ref{ref("job-web-10", "start", "Started", job.Failed)}
	failed.Jobs[0].Message = "phase create-volume failed: no space left"
	failed.Attributes = map[string]string{"ip": `"10.0.0.7"`, "disks": `["a","b"]`}
	failed.Phases = []resource.PhaseRun{
		{
			Name: "create-volume", Status: resource.Failed, State: "Allocation", JobID: "job-web-10", Attempt: 2, Call: 1,
			Since: at.Add(31 * time.Second), Message: "no space left",
			Data: map[string]string{"operation": `"op-1"`}, Outputs: map[string]string{"log": `"a\nb"`},
		},
		{Name: "create-instance", Status: resource.Blocked, State: "Allocation", JobID: "job-web-10", Since: at},
	}
	s.resource(wire.ResourceEvent{
		State: failed, At: at.Add(31 * time.Second),
		Event: resource.Event{From: "Allocation", To: "Allocation", JobID: "job-web-10", Cause: resource.Cause{Kind: "result", Phase: "create-volume", Outcome: "failed", Message: "no space left"}},
	})
	s.spec(failed.Key, failed.SpecDigest, `{"disk":{"gigabytes":100},"size":"large"}`)

	evil := state("evil\u202e\x1b[31m")
	evil.Labels = map[string]string{"rack": "\x1b]0;title\x07"}
	evil.Jobs = []job.Ref{ref("job-evil", "apply", "", job.Succeeded)}
	evil.Jobs[0].RequestedBy, evil.Jobs[0].Message = "\x1b[2Jroot", "line one\nline two\r\u009b31m"
	evil.Attributes = map[string]string{"a\x1b[1m": `"\u001b[0m"`}
	s.resource(wire.ResourceEvent{
		State: evil, At: at,
		Event: resource.Event{JobID: "job-evil", Cause: resource.Cause{Kind: "command", Verb: "apply", RequestedBy: "\x1b[2Jroot", Message: "a\nb"}},
	})

	sleeping := state("db-1")
	sleeping.State, sleeping.Target = "Configuration", "Started"
	sleeping.Jobs = []job.Ref{ref("job-db-1", "start", "Started", job.Running)}
	sleeping.Phases = []resource.PhaseRun{{
		Name: "host-file", Status: resource.Sleeping, State: "Configuration", JobID: "job-db-1", Attempt: 1, Call: 1,
		Since: at, Due: at.Add(100 * time.Second), Interval: 15 * time.Second, Message: "waiting for the host",
	}}
	s.resource(wire.ResourceEvent{
		State: sleeping, At: at.Add(2 * time.Second),
		Event: resource.Event{From: "Configuration", To: "Configuration", JobID: "job-db-1", Cause: resource.Cause{Kind: "result", Phase: "host-file", Outcome: "pending"}},
	})
	for i, j := range []struct {
		name string
		ref  job.Ref
	}{
		{"web-2", started.Jobs[0]}, {"web-10.example.com", failed.Jobs[0]}, {evil.Name, evil.Jobs[0]}, {"db-1", sleeping.Jobs[0]},
	} {
		j.ref.AcceptedAt = j.ref.AcceptedAt.Add(time.Duration(i) * time.Millisecond)
		s.job(wire.JobEvent{At: at.Add(time.Second), From: job.Pending, Record: job.Record{
			Ref: j.ref, Project: "default", Kind: "node", Name: j.name, UID: "uid-" + j.name, ResourceRevision: 2, Revision: 2, MinReader: 1,
		}})
	}
	return s
}

func (s *shelf) line(name, phase, stream, text string, attempt uint32) {
	s.t.Helper()
	body, err := wire.EncodeOutputLine(wire.OutputLine{
		Fence: resource.Fence{UID: "uid-" + name, JobID: "job-" + name, Phase: phase, Attempt: attempt, Call: 1},
		Time:  at, Stream: stream, Text: text,
	})
	require.NoError(s.t, err)
	require.NoError(s.t, s.conn.PublishOutput("default", "node", name, body))
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(strings.TrimLeft(text, "\n")), 0o600))
	return path
}
