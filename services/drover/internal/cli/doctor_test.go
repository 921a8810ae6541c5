package cli

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

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
