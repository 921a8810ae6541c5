package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

// TestTree deploys an execution whose items depend on each other at random, and deletes it in reverse (seed 001), while
// orchestrators are killed. A worker's own ledger says in which order items were carried out. DROVER_TREE=n sets the number
// of items; with more than 1,000 nothing is killed, and the time per item is what is looked for.
func TestTree(t *testing.T) {
	t.Parallel()
	n := 200
	if s := os.Getenv("DROVER_TREE"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	storm := n <= 1000
	h := newHouse(t, plan{intakes: 1, orchestrators: 2, lifecycles: 1, partitions: 8, unsynced: true})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	nc := h.connect()
	defer nc.Close()
	d, err := openDoor(nc)
	require.NoError(t, err)
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: h.url, Partitions: 8, Name: "tree"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })

	own := func(name, state, do string) object {
		return object{"name": name, "states": list{state}, "executor": object{"children": object{"do": do, "kind": "Item"}}}
	}
	items, before := randomItems(n)
	for _, c := range []command{
		{Kind: "Blueprint", Name: "Tree", Verb: "apply", ID: "tree", Body: apply("Blueprint", "Tree", object{
			"lifecycle": "execution", "phases": list{
				own("items", "Init", "apply"), own("run", "Progressing", "run"), own("mark", "InitDelete", "mark"), own("remove", "Deleting", "delete"),
			},
		}, nil)},
		{Kind: "Blueprint", Name: "Item", Verb: "apply", ID: "item", Body: apply("Blueprint", "Item", object{
			"lifecycle": "deployitem", "phases": list{
				object{"name": "deploy", "states": list{"Progressing"}, "executor": object{"plugin": object{}}},
				object{"name": "uninstall", "states": list{"Deleting"}, "executor": object{"plugin": object{}}},
			},
		}, nil)},
		{Kind: "Tree", Name: "oak", Verb: "apply", ID: "apply", Body: apply("Tree", "oak", object{"items": items}, nil)},
	} {
		a, err := d.request(ctx, c)
		require.NoError(t, err)
		require.Empty(t, a.Message, "%s %s: %v", c.Kind, c.Name, a)
	}

	var ledger journalOfItems
	for _, phase := range []string{"deploy", "uninstall"} {
		serve, stop := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan error, 1)
		go func() {
			done <- plugin.Serve(serve, b, bus.Phase{Project: project, Kind: "Item", Phase: phase}, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
				for _, r := range batch.Resources() {
					ledger.add(phase, r.Key().Name)
					batch.Completed(r)
				}
				return nil
			})
		}()
		t.Cleanup(func() {
			stop()
			<-done
		})
	}

	deploy := walkTree(t, ctx, h, d, b, "reconcile", storm)
	ledger.ordered(t, "deploy", n, before, false)
	remove := walkTree(t, ctx, h, d, b, "delete", storm)
	ledger.ordered(t, "uninstall", n, before, true)
	require.Eventually(t, func() bool {
		left := 0
		err := b.List(ctx, bus.Resource, project, "", func(bus.Stored) error {
			left++
			return nil
		})
		return err == nil && left == 0
	}, 2*time.Minute, 100*time.Millisecond, "nothing of the tree is left")
	empty(t, d.js, "COMMANDS", "RESULTS", "WORK", "POISON")
	t.Logf("%d items: deployed in %s (%s an item), deleted in %s (%s an item)", n, deploy.Round(time.Millisecond),
		(deploy / time.Duration(n)).Round(10*time.Microsecond), remove.Round(time.Millisecond), (remove / time.Duration(n)).Round(10*time.Microsecond))
}

// walkTree runs a job of the tree to its end; in a storm, each orchestrator is killed and started again on the way.
func walkTree(t *testing.T, ctx context.Context, h *house, d *door, b *jetstream.Bus, verb string, storm bool) time.Duration {
	t.Helper()
	began := time.Now()
	a, err := d.request(ctx, command{Kind: "Tree", Name: "oak", Verb: verb, ID: verb})
	require.NoError(t, err)
	require.NotEmpty(t, a.JobID, "%v", a)
	if storm {
		for _, p := range h.service("orchestrator") {
			pause(ctx, 300*time.Millisecond)
			p.kill("")
		}
	}
	for {
		m, err := b.Get(ctx, bus.Entity{Family: bus.Job, Project: project, Name: a.JobID})
		if err == nil {
			e, err := wire.DecodeJob(m.Body)
			require.NoError(t, err)
			if e.Record.State.Final() {
				require.Equal(t, job.Succeeded, e.Record.State, "%s: %s", verb, e.Record.Message)
				return time.Since(began)
			}
		} else if !errors.Is(err, bus.ErrNotFound) {
			require.NoError(t, ctx.Err())
		}
		require.True(t, pause(ctx, 20*time.Millisecond), "%s does not end", verb)
	}
}

// randomItems depend on up to three earlier ones, and are listed in any order. before says what each depends on.
func randomItems(n int) (items list, before map[string][]string) {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	before = map[string][]string{}
	for i := range n {
		name := fmt.Sprintf("i%d", i)
		item := object{"name": name}
		for range min(i, 3) {
			if on := fmt.Sprintf("i%d", r.IntN(i)); r.IntN(2) == 0 && !slices.Contains(before[name], on) {
				before[name] = append(before[name], on)
			}
		}
		if len(before[name]) > 0 {
			item["dependsOn"] = before[name]
		}
		items = append(items, item)
	}
	r.Shuffle(n, func(i, j int) { items[i], items[j] = items[j], items[i] })
	return items, before
}

// journalOfItems is when which item was first carried out.
type journalOfItems struct {
	mu    sync.Mutex
	first map[string]map[string]int
}

func (j *journalOfItems) add(phase, name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.first == nil {
		j.first = map[string]map[string]int{"deploy": {}, "uninstall": {}}
	}
	if _, again := j.first[phase][name]; !again {
		j.first[phase][name] = len(j.first[phase])
	}
}

// ordered holds the order to the dependencies, or to their reverse.
func (j *journalOfItems) ordered(t *testing.T, phase string, n int, before map[string][]string, reverse bool) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	require.Len(t, j.first[phase], n)
	for name, names := range before {
		for _, on := range names {
			earlier, later := on, name
			if reverse {
				earlier, later = name, on
			}
			require.Less(t, j.first[phase]["oak/"+earlier], j.first[phase]["oak/"+later], "%s: %s before %s", phase, earlier, later)
		}
	}
}
