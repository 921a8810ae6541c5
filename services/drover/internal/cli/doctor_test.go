package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// ailing is a bus whose streams differ and whose buckets may not be read.
type ailing struct{ *memory.Conn }

func (ailing) Setup(context.Context, bool) ([]bus.Drift, error) {
	return nil, errors.New("doctor is to look only")
}

func (ailing) Check(context.Context) ([]bus.Drift, error) {
	return []bus.Drift{
		{Stream: "EVENTS", Setting: "max_msgs_per_subject", Want: "8", Have: "1", Repairable: true},
		{Stream: "WORK", Setting: "retention", Want: "workqueue", Have: ""},
	}, nil
}

func (a ailing) Get(ctx context.Context, e bus.Entity) (bus.Stored, error) {
	if e.Family == bus.Job {
		return bus.Stored{}, bus.ErrDenied
	}
	return a.Conn.Get(ctx, e)
}

func TestDoctorFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	system := memory.New(memory.Options{})
	a := app(system)
	a.Connect = func(context.Context, Connection) (Bus, error) { return ailing{system.Connect()}, nil }
	a.Server = func(context.Context, Bus) (ServerInfo, error) {
		return ServerInfo{URL: "nats://x", Version: "2.12.4", APILevel: 2, StoreBytes: 95, StoreBytesMax: 100}, nil
	}
	api(t, system, func(string, string, wire.Command) (wire.Reply, bool) {
		return wire.Reply{Refused: &resource.Refusal{Code: resource.Invalid, Message: "no such name"}}, true
	})
	r := drover(t, a, "doctor", "--data", t.TempDir())
	require.Equal(t, ExitUnreachable, r.code, "not permitted is the worst of it")
	for _, want := range []string{
		"server                    failed    nats-server 2.12.4",
		"jetstream                 failed    API level 2",
		"stream EVENTS             warning   max_msgs_per_subject is 1, and should be 8",
		"stream WORK               failed    retention is nothing, and should be workqueue",
		"read drover_resources     ok ",
		"read drover_jobs          failed    the server's permissions forbid it",
		"ask                       ok        intake answers in ",
	} {
		require.Contains(t, r.out, want)
	}
	require.Contains(t, r.err, "hint: server: Drover needs nats-server 2.15.2 or newer\n")
}

// bare is a bus where some streams are missing.
type bare struct{ *memory.Conn }

func (bare) Check(context.Context) ([]bus.Drift, error) {
	return []bus.Drift{
		{Stream: "KV_drover_jobs", Want: "present", Have: "missing", Repairable: true, Missing: true},
		{Stream: "TIMERS", Setting: "schedule sweep", Want: "@every 20s", Repairable: true, Missing: true},
	}, nil
}

func TestDoctorFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	system := memory.New(memory.Options{})
	a := app(system)
	a.Connect = func(context.Context, Connection) (Bus, error) { return bare{system.Connect()}, nil }
	r := drover(t, a, "doctor", "--data", t.TempDir())
	require.Equal(t, ExitError, r.code)
	for _, want := range []string{
		"streams                   failed    not there: KV_drover_jobs, TIMERS schedule sweep\n",
		"read drover_resources     ok        this user",
		"read drover_jobs          unknown   the bucket is not there\n",
		"ask                       unknown   not asked: ",
	} {
		require.Contains(t, r.out, want)
	}
}

func TestDoctorReadsSync(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`{"config":{"sync_interval":120000000000,"sync_always":true}}`: verdictOK,
		`{"config":{"sync_interval":120000000000}}`:                    verdictWarning,
		`no JSON`: verdictUnknown,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/jsz" {
				t.Errorf("asked for %s", r.URL.Path)
			}
			_, _ = w.Write([]byte(answer))
		}))
		v := checkSync(t.Context(), "nats://a", server.URL+"/", "/nonexistent")
		server.Close()
		require.Equal(t, want, v.Status, "%s: %s", answer, v.Text)
	}
	require.Equal(t, verdictUnknown, checkSync(t.Context(), "nats://a", "http://127.0.0.1:1", "").Status)
}

func TestOlderThan(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"2.15.2": false, "2.15.10": false, "2.16.0-dev": false, "3.0.0": false, "2.15.1": true, "2.9.25": true, "1.99.99": true, "": true,
	} {
		require.Equal(t, want, olderThan(version, "2.15.2"), version)
	}
}

func TestDoctorWithoutServerInfo(t *testing.T) {
	t.Parallel()
	a := app(memory.New(memory.Options{}))
	a.Server = func(context.Context, Bus) (ServerInfo, error) { return ServerInfo{}, errors.New("cut off") }
	r := drover(t, a, "doctor", "--data", t.TempDir())
	require.Contains(t, r.out, "failed    cut off")
}

// TestDoctorSeesHowStreamsStand is one row of each way in which they can stand.
func TestDoctorSeesHowStreamsStand(t *testing.T) {
	t.Parallel()
	many := make([]string, 6)
	for i := range many {
		many[i] = fmt.Sprint("n", i)
	}
	for want, c := range map[string]struct {
		stream StreamInfo
		exit   int
	}{
		"replicas ok one copy of each stream, on one server":                {stream: StreamInfo{Replicas: 1}},
		"replicas ok 3 copies of each stream, and all have caught up":       {stream: StreamInfo{Replicas: 3, Clustered: true, Leader: "n1"}},
		"replicas warning one copy of each stream, on a cluster":            {stream: StreamInfo{Replicas: 1, Clustered: true, Leader: "n1"}},
		"replicas failed no leader: EVENTS":                                 {stream: StreamInfo{Replicas: 3, Clustered: true}, exit: ExitUnreachable},
		"replicas warning away, or behind: EVENTS on n2":                    {stream: StreamInfo{Replicas: 3, Clustered: true, Leader: "n1", Behind: []string{"n2"}}},
		"EVENTS on n0, EVENTS on n1, EVENTS on n2, EVENTS on n3 and 2 more": {stream: StreamInfo{Replicas: 3, Clustered: true, Leader: "n1", Behind: many}},
		"lag ok buckets and work are at most 10000 events behind the log":   {stream: StreamInfo{Replicas: 1, Lag: 10_000}},
		"lag warning EVENTS is 10001 events behind the log":                 {stream: StreamInfo{Replicas: 1, Lag: 10_001}},
		"room ok the inputs are at most 90 % full":                          {stream: StreamInfo{Replicas: 1, Full: 0.9}},
		"room warning EVENTS is 95 % full":                                  {stream: StreamInfo{Replicas: 1, Full: 0.95}},
		"clock ok the server's clock and this one agree":                    {stream: StreamInfo{Replicas: 1, Skew: -2 * time.Second}},
		"clock warning the server's clock is 5s ahead of this one":          {stream: StreamInfo{Replicas: 1, Skew: 5 * time.Second}},
		"clock warning the server's clock is 1m0s behind this one":          {stream: StreamInfo{Replicas: 1, Skew: -time.Minute}},
	} {
		system := memory.New(memory.Options{})
		a := app(system)
		c.stream.Name = "EVENTS"
		a.Streams = func(context.Context, Bus) ([]StreamInfo, error) { return []StreamInfo{c.stream}, nil }
		api(t, system, func(string, string, wire.Command) (wire.Reply, bool) {
			return wire.Reply{Refused: &resource.Refusal{Code: resource.Invalid, Message: "no such name"}}, true
		})
		r := drover(t, a, "doctor", "--data", t.TempDir())
		require.Equal(t, c.exit, r.code, "%s: %s%s", want, r.out, r.err)
		require.Contains(t, strings.Join(strings.Fields(r.out), " "), want)
	}
}

// blind is a bus whose user may read neither the log, nor what phases print, nor how streams are set up.
type blind struct{ *memory.Conn }

func (blind) Check(context.Context) ([]bus.Drift, error) {
	return nil, fmt.Errorf("check: $JS.API.STREAM.INFO.EVENTS: %w: publish to $JS.API.STREAM.INFO.EVENTS", bus.ErrDenied)
}

func (blind) History(context.Context, bus.Entity) ([]bus.Stored, error) {
	return nil, fmt.Errorf("%w: publish to $JS.API.CONSUMER.CREATE.EVENTS", bus.ErrDenied)
}

func (blind) ReadOutput(context.Context, string, string, string, bool, func(bus.OutputLine) error) error {
	return fmt.Errorf("%w: publish to $JS.API.CONSUMER.CREATE.OUTPUT", bus.ErrDenied)
}

func TestDoctorNamesMissingRights(t *testing.T) {
	t.Parallel()
	system := memory.New(memory.Options{})
	a := app(system)
	a.Connect = func(context.Context, Connection) (Bus, error) { return blind{system.Connect()}, nil }
	a.Streams = func(context.Context, Bus) ([]StreamInfo, error) {
		return nil, fmt.Errorf("stream EVENTS: %w", bus.ErrDenied)
	}
	r := drover(t, a, "doctor", "--data", t.TempDir())
	require.Equal(t, ExitUnreachable, r.code)
	for _, want := range []string{
		"streams unknown check: $JS.API.STREAM.INFO.EVENTS: the server's permissions forbid it",
		"replicas unknown stream EVENTS: the server's permissions forbid it",
		"history failed history of doctor/doctor: the server's permissions forbid it: publish to $JS.API.CONSUMER.CREATE.EVENTS",
		"logs failed the server's permissions forbid it: publish to $JS.API.CONSUMER.CREATE.OUTPUT",
	} {
		require.Contains(t, strings.Join(strings.Fields(r.out), " "), want)
	}
	require.Contains(t, r.err, "hint: logs: an operator grants it to this user, as deploy/nats/permissions.conf does to DROVER_USER")
}
