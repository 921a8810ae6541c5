package orchestrator_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/partition"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/orchestrator"
)

// counted counts what an orchestrator reads of the log.
type counted struct {
	bus.Bus
	entities, scanned, appended atomic.Int64
}

func (c *counted) Last(ctx context.Context, e []bus.Entity) ([]bus.Stored, error) {
	c.entities.Add(int64(len(e)))
	return c.Bus.Last(ctx, e)
}

func (c *counted) Current(ctx context.Context, e []bus.Entity) ([]bus.Stored, error) {
	c.entities.Add(int64(len(e)))
	return c.Bus.Current(ctx, e)
}

func (c *counted) scan(each func(bus.Stored) error) func(bus.Stored) error {
	return func(s bus.Stored) error { c.scanned.Add(1); return each(s) }
}

func (c *counted) Scan(ctx context.Context, p int, f bus.Family, each func(bus.Stored) error) error {
	return c.Bus.Scan(ctx, p, f, c.scan(each))
}

func (c *counted) ScanAfter(ctx context.Context, p int, f bus.Family, after uint64, each func(bus.Stored) error) error {
	return c.Bus.ScanAfter(ctx, p, f, after, c.scan(each))
}

func (c *counted) Append(a bus.Append) bus.Pending { c.appended.Add(1); return c.Bus.Append(a) }

func (c *counted) AppendBatch(ctx context.Context, b []bus.Append) (uint64, error) {
	c.appended.Add(int64(len(b)))
	return c.Bus.AppendBatch(ctx, b)
}

// TestChecksMeasured measures one check over DROVER_CHECKS nodes of one repository (say 10000) on one server, and, with
// DROVER_CHECKS_REST check configurations (say 10), what a sweep over as many times more instances at rest costs.
// DROVER_CHECKS_SYNC=always has the server sync each write.
func TestChecksMeasured(t *testing.T) {
	nodes, err := strconv.Atoi(os.Getenv("DROVER_CHECKS"))
	if err != nil {
		t.Skip("DROVER_CHECKS is not set to a number of nodes")
	}
	server, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1, SyncAlways: os.Getenv("DROVER_CHECKS_SYNC") == "always"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Shutdown()) })
	s := begin(t, func(name string) (bus.Bus, error) {
		return jetstream.Connect(t.Context(), jetstream.Options{URL: server.ClientURL(), Name: name, Partitions: 1, Sync: os.Getenv("DROVER_CHECKS_SYNC")})
	})
	c := &counted{Bus: s.connect("orchestrator")}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		h := host.New(host.Options{Name: "orchestrator", Config: host.Config{ID: "o"}})
		done <- h.Run(ctx, func(ctx context.Context, h *host.Host) error { return orchestrator.Run(ctx, h, c) })
	}()
	stop := sync.OnceFunc(func() { cancel(); require.NoError(t, <-done) })
	t.Cleanup(stop)

	apply := func(kind, name, spec string) string {
		r := s.send(resource.Key{Project: "p", Kind: kind, Name: name}, "apply", "r", wire.Command{Manifest: &wire.Manifest{
			APIVersion: "drover/v1", Kind: kind, Name: name, Spec: []byte(spec),
		}})
		if r.Refused != nil {
			t.Errorf("%s %s: %s", kind, name, r.Refused.Message)
		}
		return r.JobID
	}
	parallel := func(n int, f func(i int)) {
		var under sync.WaitGroup
		next := make(chan int)
		for range 64 {
			under.Go(func() {
				for i := range next {
					f(i)
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		under.Wait()
	}
	ask := func(verb string, q wire.CheckRequest) (a wire.CheckAnswer) {
		body, err := wire.EncodeCheckRequest(q)
		require.NoError(t, err)
		within, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		reply, err := s.bus.Ask(within, 0, bus.Request{Verb: "check." + verb, Body: body})
		require.NoError(t, err)
		a, err = wire.DecodeCheckAnswer(reply.Body)
		require.NoError(t, err)
		return a
	}
	measure := func(what string, n int, f func()) {
		read, scanned, appended, began := c.entities.Load(), c.scanned.Load(), c.appended.Load(), time.Now()
		f()
		took := time.Since(began)
		t.Logf("%-44s %10s, %8s each; entities read %7d, scanned %7d, documents stored %7d", what, took.Round(time.Microsecond),
			(took / time.Duration(max(n, 1))).Round(time.Microsecond), c.entities.Load()-read, c.scanned.Load()-scanned, c.appended.Load()-appended)
	}
	apply("MonitoringSystem", "eye", `{"callback": "http://127.0.0.1:1/"}`)
	apply("Capability", "cpu", `{"system": "eye", "metric": {"path": "cpu"}}`)
	apply("Repository", "prod", `{}`)
	apply("Bucket", "prod/live", `{}`)
	measure("nodes applied, 64 at a time", nodes, func() {
		parallel(nodes, func(i int) { apply("Node", fmt.Sprint("prod/live/n", i), fmt.Sprintf(`{"assetId": %d}`, i+1)) })
	})
	ended := func(id string) bool {
		m, err := s.bus.Get(t.Context(), bus.Entity{Family: bus.Job, Project: "p", Name: id})
		if err != nil {
			return false
		}
		e, err := wire.DecodeJob(m.Body)
		return err == nil && e.Record.State.Final()
	}
	check := func(n int) {
		id := apply("CheckConfiguration", fmt.Sprint("prod/c", n), `{"on": "prod/live", "capability": "cpu", "interval": "60s",
			"thresholds": [{"predicate": ">=", "level": {"name": "critical", "numeric": 2}, "value": 95}]}`)
		require.Eventually(t, func() bool { return ended(id) }, 5*time.Minute, 5*time.Millisecond)
	}
	measure("one check: apply to all awaiting_rollout", nodes, func() { check(0) })
	rest, _ := strconv.Atoi(os.Getenv("DROVER_CHECKS_REST"))
	if rest == 0 {
		return
	}
	measure("further checks", (rest-1)*nodes, func() {
		for n := 1; n < rest; n++ {
			check(n)
		}
	})
	var ids []string
	measure("list all", rest*nodes, func() {
		q := wire.CheckRequest{Project: "p", System: "eye"}
		for a := ask("listall", q); ; a = ask("listall", q) {
			ids = append(ids, a.IDs...)
			if !a.More {
				return
			}
			q.After = ids[len(ids)-1]
		}
	})
	require.Len(t, ids, rest*nodes)
	dealt := min(len(ids), 4000)
	measure("fetched and answered, 64 at a time", dealt, func() {
		parallel(dealt, func(i int) {
			q := wire.CheckRequest{Project: "p", ID: ids[i]}
			ask("fetch", q)
			if a := ask("success", q); a.Code != "" {
				t.Errorf("%s: %s", ids[i], a.Message)
			}
		})
	})
	sweep := func() {
		within, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		_, err := s.bus.Ask(within, 0, bus.Request{Verb: "sweep"})
		require.NoError(t, err)
	}
	sweep()
	for i := range 3 {
		measure(fmt.Sprintf("sweep %d over %d instances at rest", i+1, len(ids)), 1, sweep)
	}
	stop()
	began := time.Now()
	c = &counted{Bus: s.connect("next")}
	books, err := catalog.New(c, time.Now, constraint.NewEvaluator())
	require.NoError(t, err)
	quiet := &quietShell{}
	o := partition.New(t.Context(), partition.Config{
		Bus: c, Catalog: books, Now: time.Now, Log: zap.NewNop(), Observer: quiet, Shell: quiet, Number: 0,
	})
	_, err = o.TakeOver()
	require.NoError(t, err)
	took := time.Since(began)
	began = time.Now()
	quiet.run()
	t.Logf("takeover %s, events read %d; all compared %s", took.Round(time.Millisecond), c.scanned.Load(), time.Since(began).Round(time.Millisecond))
}

type quietShell struct{ later []func() }

func (*quietShell) Background(func())       {}
func (s *quietShell) Later(f func())        { s.later = append(s.later, f) }
func (*quietShell) Sleep(time.Duration)     {}
func (*quietShell) Appended(bus.Family)     {}
func (*quietShell) Lost()                   {}
func (*quietShell) Refused(resource.Code)   {}
func (*quietShell) SetAside()               {}
func (*quietShell) Noted(resource.NoteCode) {}
func (*quietShell) Swept(int, drive.Stats)  {}
func (s *quietShell) run() {
	for len(s.later) > 0 {
		f := s.later[0]
		s.later = s.later[1:]
		f()
	}
}
