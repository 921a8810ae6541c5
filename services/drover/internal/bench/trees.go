package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

// TreeOptions of RunTrees. Zero values mean the defaults.
type TreeOptions struct {
	// Items lists the sizes of the executions that are deployed and deleted, one after another. Default 100, 1,000 and
	// 10,000.
	Items []int
	// Sync lists the server's modes. Default "default" and "always".
	Sync []string
	// Dir is where the server's data goes. Default the system's temporary folder.
	Dir string
	// Progress is told what is being measured. Nil: nobody.
	Progress func(line string)
}

// TreeReport is what was measured of trees.
type TreeReport struct {
	Machine string       `json:"machine"`
	Version string       `json:"version"`
	Rows    []TreeFigure `json:"rows"`
}

// TreeFigure is one execution of items that depend on up to three others at random, deployed by a worker that does nothing,
// and deleted. Server, services and worker are processes of their own.
type TreeFigure struct {
	Sync      string `json:"sync"`
	Items     int    `json:"items"`
	SpecBytes int    `json:"specBytes"` // of the execution

	Deploy Walk `json:"deploy"`
	Delete Walk `json:"delete"`

	// Forgotten is the time from the acceptance of the deletion until nothing is written to EVENTS any more.
	Forgotten Millis `json:"forgottenMsPerItem"`
	// ForgottenCPU is what the deletion and the forgetting took together.
	ForgottenCPU map[string]float64 `json:"forgottenCpuSecondsPer1000Items"`

	EventBytes float64        `json:"eventBytesPerItem"` // in EVENTS, deployed and at rest
	Memory     map[string]int `json:"memoryMiB"`         // resident, by process, deployed
}

// Walk is one job of a tree.
type Walk struct {
	Item         Millis             `json:"msPerItem"`
	Events       float64            `json:"eventsPerItem"` // messages appended to EVENTS
	ParentEvents int                `json:"parentEvents"`  // of the execution itself
	CPU          map[string]float64 `json:"cpuSecondsPer1000Items"`
}

const (
	treeKind = "tree"
	itemKind = "item"
	// treeJobMax is for one job, whatever its size.
	treeJobMax = 10 * time.Minute
	infoWait   = 30 * time.Second // a server that syncs every write answers late
)

var itemPhases = []string{"deploy", "uninstall"}

const treeBlueprint = `{"lifecycle":"execution","phases":[
	{"name":"items","states":["Init"],"executor":{"children":{"do":"apply","kind":"item"}}},
	{"name":"run","states":["Progressing"],"executor":{"children":{"do":"run"}}},
	{"name":"mark","states":["InitDelete"],"executor":{"children":{"do":"mark"}}},
	{"name":"remove","states":["Deleting"],"executor":{"children":{"do":"delete"}}}]}`

const itemBlueprint = `{"lifecycle":"deployitem","phases":[
	{"name":"deploy","states":["Progressing"],"executor":{"plugin":{}}},
	{"name":"uninstall","states":["Deleting"],"executor":{"plugin":{}}}]}`

// RunTrees measures trees of every size in every sync mode; each mode has a server of its own.
func RunTrees(ctx context.Context, o TreeOptions) (TreeReport, error) {
	if len(o.Items) == 0 {
		o.Items = []int{100, 1000, 10_000}
	}
	if len(o.Sync) == 0 {
		o.Sync = []string{"default", "always"}
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	r := TreeReport{Machine: fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())}
	for _, sync := range o.Sync {
		rows, err := measureTrees(ctx, o, sync)
		r.Rows = append(r.Rows, rows...)
		if err != nil {
			return r, fmt.Errorf("sync %s: %w", sync, err)
		}
	}
	return r, nil
}

func measureTrees(ctx context.Context, o TreeOptions, sync string) (rows []TreeFigure, err error) {
	dir, err := os.MkdirTemp(o.Dir, "drover-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := startFleet(ctx, dir, sync, true, roleDeployer)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: f.url, Name: "bench"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	nc, err := nats.Connect(f.url)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err != nil {
		return nil, err
	}
	l, err := newLoad(b)
	if err != nil {
		return nil, err
	}
	defer l.stop()
	for kind, spec := range map[string]string{treeKind: treeBlueprint, itemKind: itemBlueprint} {
		if err := l.apply(ctx, "Blueprint", kind, spec, "bp"); err != nil {
			return nil, err
		}
	}
	for _, n := range o.Items {
		t := &treeLoad{load: l, fleet: f, js: js, name: fmt.Sprintf("t%d", n), items: n}
		o.Progress(fmt.Sprintf("sync %s: a tree of %d items", sync, n))
		row, err := t.measure(ctx)
		row.Sync = sync
		if err != nil {
			return rows, fmt.Errorf("%d items: %w", n, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// treeLoad drives one tree.
type treeLoad struct {
	load  *load
	fleet *fleet
	js    natsjs.JetStream
	name  string
	items int
}

func (t *treeLoad) measure(ctx context.Context) (f TreeFigure, err error) {
	spec, err := randomTree(t.items)
	if err != nil {
		return f, err
	}
	f.Items, f.SpecBytes = t.items, len(spec)
	before, err := t.events(ctx)
	if err != nil {
		return f, err
	}
	if err := t.load.apply(ctx, treeKind, t.name, spec, "apply"); err != nil {
		return f, err
	}
	if f.Deploy, err = t.walk(ctx, "reconcile"); err != nil {
		return f, err
	}
	after, err := t.events(ctx)
	if err != nil {
		return f, err
	}
	f.EventBytes = round(float64(after.Bytes-before.Bytes) / float64(t.items))
	f.Memory = t.fleet.memory()
	began, cpu := time.Now(), t.fleet.cpu()
	if f.Delete, err = t.walk(ctx, "delete"); err != nil {
		return f, err
	}
	at, err := t.rest(ctx)
	f.ForgottenCPU = t.spent(cpu)
	f.Forgotten = Millis(round(float64(at.Sub(began).Microseconds()) / 1000 / float64(t.items)))
	return f, err
}

// rest waits until nothing is appended to EVENTS any more, and returns when that began.
func (t *treeLoad) rest(ctx context.Context) (since time.Time, err error) {
	const still, look = 2 * time.Second, 50 * time.Millisecond
	var last uint64
	for ctx.Err() == nil {
		now, err := t.events(ctx)
		switch {
		case err != nil:
			return since, err
		case now.LastSeq != last:
			last, since = now.LastSeq, time.Now()
		case time.Since(since) > still:
			return since, nil
		}
		time.Sleep(look)
	}
	return since, ctx.Err()
}

func (t *treeLoad) events(ctx context.Context) (natsjs.StreamState, error) {
	ctx, cancel := context.WithTimeout(ctx, infoWait)
	defer cancel()
	s, err := t.js.Stream(ctx, "EVENTS")
	if err != nil {
		return natsjs.StreamState{}, fmt.Errorf("stream EVENTS: %w", err)
	}
	return s.CachedInfo().State, nil
}

// walk runs one job of the tree. What the execution itself has appended is told by its revision: a deletion takes that
// away, and what came last of it is in the feed.
func (t *treeLoad) walk(ctx context.Context, verb string) (w Walk, err error) {
	ctx, cancel := context.WithTimeout(ctx, treeJobMax)
	defer cancel()
	var mu sync.Mutex
	parent := 0
	unsub, err := t.load.bus.Follow(bus.Resource, project, treeKind, t.name, func(bus.Stored) {
		mu.Lock()
		parent++
		mu.Unlock()
	})
	if err != nil {
		return w, err
	}
	defer unsub()
	first, err := t.events(ctx)
	if err != nil {
		return w, err
	}
	cpu := t.fleet.cpu()
	began := time.Now()
	ended := make(chan string, 1)
	if err := t.load.command(ctx, treeKind, t.name, verb, verb, wire.Command{}, ended); err != nil {
		return w, err
	}
	if err := t.end(ctx, verb, ended); err != nil {
		return w, fmt.Errorf("the end of %s: %w", verb, err)
	}
	took := time.Since(began)
	last, err := t.events(ctx)
	if err != nil {
		return w, err
	}
	w.CPU = t.spent(cpu)
	w.Item = Millis(round(float64(took.Microseconds()) / 1000 / float64(t.items)))
	w.Events = round(float64(last.LastSeq-first.LastSeq) / float64(t.items))
	mu.Lock()
	w.ParentEvents = parent
	mu.Unlock()
	return w, nil
}

// spent is the CPU seconds that each process has used since, for 1,000 items.
func (t *treeLoad) spent(since map[string]float64) map[string]float64 {
	used := map[string]float64{}
	for name, seconds := range t.fleet.cpu() {
		used[name] = round((seconds - since[name]) / float64(t.items) * 1000)
	}
	return used
}

// end waits for the end of a job. The feed is at most once: the bucket is asked now and then.
func (t *treeLoad) end(ctx context.Context, verb string, ended <-chan string) error {
	id := wire.JobID(resource.Key{Project: project, Kind: treeKind, Name: t.name}, verb)
	for {
		state := ""
		select {
		case state = <-ended:
		case <-time.After(5 * time.Second):
			m, err := t.load.bus.Get(ctx, bus.Entity{Family: bus.Job, Project: project, Name: id})
			if err == nil { // else it is asked again
				state = m.Header.To
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		switch state {
		case "succeeded":
			return nil
		case "failed", "canceled":
			return fmt.Errorf("%s %s", verb, state)
		}
	}
}

// randomTree is the spec of an execution whose items depend on up to three earlier ones, listed in any order; the same for
// the same n.
func randomTree(n int) (string, error) {
	type item struct {
		Name      string         `json:"name"`
		DependsOn []string       `json:"dependsOn,omitempty"`
		Spec      map[string]int `json:"spec"`
	}
	r := rand.New(rand.NewPCG(1, uint64(n))) //nolint:gosec // a tree of no secrets
	items := make([]item, n)
	for i := range items {
		it := &items[i]
		it.Name, it.Spec = fmt.Sprintf("i%d", i), map[string]int{"n": i}
		for range min(i, 3) {
			if on := fmt.Sprintf("i%d", r.IntN(i)); r.IntN(2) == 0 && !slices.Contains(it.DependsOn, on) {
				it.DependsOn = append(it.DependsOn, on)
			}
		}
	}
	r.Shuffle(n, func(i, j int) { items[i], items[j] = items[j], items[i] })
	body, err := json.Marshal(map[string]any{"items": items})
	return string(body), err
}

// childDeployer carries the items of trees out at once.
func childDeployer(ctx context.Context, args []string) error {
	return connected(ctx, args, func(b bus.Bus) {
		work(ctx, b, itemKind, itemPhases, func(_ string, batch *plugin.Batch, r *plugin.Resource) error {
			batch.Completed(r)
			return nil
		})
	})
}
