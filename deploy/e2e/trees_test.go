package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/deploy/e2e/internal/journal"
	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestTrees is the thread of seed 001 on the real wire: an execution of items that depend on each other at random is
// deployed, fails in its middle and drains, is retried, loses an item, and is deleted in reverse, while every process of
// the house is killed in the middle of each. Everybody has a key, and the rights of deploy/nats/permissions.conf. A
// deployer's own ledger says in which order items were carried out.
//
// DROVER_KILLS=n runs it with 1,000 items too, on one server and on three, and kills that many more at random
// (DROVER_TREE=n: another number of items; DROVER_SEED: the same tree and the same kills again).
func TestTrees(t *testing.T) {
	t.Parallel()
	kills, err := strconv.Atoi(os.Getenv("DROVER_KILLS"))
	long := err == nil
	type wood struct{ servers, items, strikes int }
	woods := []wood{{servers: 1, items: 60}}
	if long {
		items := 1000
		if text := os.Getenv("DROVER_TREE"); text != "" {
			var err error
			items, err = strconv.Atoi(text)
			require.NoError(t, err)
		}
		woods = []wood{{1, items, kills}, {3, items, kills}}
	} else if withThreads() {
		woods = append(woods, wood{servers: 3, items: 60})
	}
	for _, w := range woods {
		t.Run(fmt.Sprintf("servers=%d,items=%d", w.servers, w.items), func(t *testing.T) {
			if !long {
				t.Parallel() // the long ones would take each other's time
			}
			newTree(t, ground{servers: w.servers}, w.items, w.strikes).live()
		})
	}
}

// tree is one execution in a house of its own.
type tree struct {
	t         *testing.T
	ctx       context.Context
	house     *house
	door      *door
	chronicle *chronicle
	killer    *killer
	random    *rand.Rand
	strikes   int // kills at random, in each of three jobs

	items  []string
	before map[string][]string // what each depends on
	spec   map[string]object   // of each item
	asked  int
}

const (
	treeKind = "Execution"
	treeName = "oak"
	itemKind = "DeployItem"
)

// treeTime is for a whole life: most of it goes by while killed processes come back.
const treeTime = 4 * time.Minute

func newTree(t *testing.T, on ground, n, strikes int) *tree {
	h := on.house(t, plan{intakes: 1, orchestrators: 2, lifecycles: 1, notifiers: 1, deployers: 2, guarded: true})
	ctx, cancel := context.WithTimeout(h.ctx, h.patience(treeTime)+time.Duration(strikes)*time.Second)
	t.Cleanup(cancel)
	nc := h.connect()
	t.Cleanup(nc.Close)
	d := h.door(nc)
	x := &tree{
		t: t, ctx: ctx, house: h, door: d, killer: newKiller(h, h.seed), random: rand.New(rand.NewPCG(h.seed, 1<<32)), strikes: strikes,
		before: map[string][]string{}, spec: map[string]object{},
	}
	own := func(name, state, do string) object {
		return object{"name": name, "states": list{state}, "executor": object{"children": object{"do": do, "kind": itemKind}}}
	}
	x.chronicle = chronicleAfter(t, ctx, h, d, command{Kind: "Blueprint", Name: treeKind, Verb: "apply", ID: "tree", Body: apply("Blueprint", treeKind, object{
		"lifecycle": "execution", "phases": list{
			own("items", "Init", "apply"), own("run", "Progressing", "run"), own("mark", "InitDelete", "mark"), own("remove", "Deleting", "delete"),
		},
	}, nil)})
	x.request(command{Kind: "Blueprint", Name: itemKind, Verb: "apply", ID: "item", Body: apply("Blueprint", itemKind, object{
		"lifecycle": "deployitem", "phases": list{
			object{"name": "deploy", "states": list{"Progressing"}, "calls": 0, "executor": object{"plugin": object{}}}, // both deployers
			object{"name": "uninstall", "states": list{"Deleting"}, "calls": 0, "executor": object{"plugin": object{}}},
		},
	}, nil)})
	x.grow(n)
	return x
}

// grow makes n items that depend on up to three earlier ones, and lists them in any order.
func (x *tree) grow(n int) {
	for i := range n {
		name := fmt.Sprintf("i%d", i)
		for range min(i, 3) {
			if on := fmt.Sprintf("i%d", x.random.IntN(i)); x.random.IntN(2) == 0 && !slices.Contains(x.before[name], on) {
				x.before[name] = append(x.before[name], on)
			}
		}
		x.items = append(x.items, name)
		x.spec[name] = object{"size": x.random.IntN(9)}
	}
	x.random.Shuffle(n, func(i, j int) { x.items[i], x.items[j] = x.items[j], x.items[i] })
}

// live is the life of the tree.
func (x *tree) live() {
	x.apply()
	middle := x.middle(nil)

	x.put("hold", "deploy", middle)
	deployed := x.begin("reconcile")
	x.begun(deployed, "deploy", middle)
	x.killEach()
	x.lift("hold", "deploy", middle)
	x.rage(deployed)
	x.end(deployed, job.Succeeded)
	x.ordered(deployed, "deploy", x.items)
	x.wait("the execution counts all its items", func() bool {
		of := x.chronicle.resources[resource.Key{Project: x.house.project, Kind: treeKind, Name: treeName}].Children
		return int(of.Succeeded) == len(x.items) && int(of.Items) == len(x.items)
	})

	x.failure()

	gone := x.middle(nil)
	x.prune(gone)
	x.apply()
	pruned := x.begin("reconcile")
	x.rage(pruned)
	x.end(pruned, job.Succeeded)
	x.ordered(pruned, "deploy", x.items)
	x.orphanFirst(pruned, gone)

	middle = x.middle(nil)
	x.put("hold", "uninstall", middle)
	removed := x.begin("delete")
	x.begun(removed, "uninstall", middle)
	x.killEach()
	x.lift("hold", "uninstall", middle)
	x.rage(removed)
	x.end(removed, job.Succeeded)
	x.ordered(removed, "uninstall", x.items)
	x.nothingLeft()
	x.legal()
}

// failure: an item fails while another one is at work. That one may end, nothing more begins, the execution says who
// failed, and a retry ends well (seed 001, "Phase Progressing": class B).
func (x *tree) failure() {
	busy := x.middle(nil)
	broken := x.middle(append(x.reach(busy, true), x.reach(busy, false)...))
	x.put("hold", "deploy", busy)
	x.put("hold", "deploy", broken)
	failed := x.begin("reconcile")
	x.begun(failed, "deploy", busy)
	x.begun(failed, "deploy", broken)
	x.put("fail", "deploy", broken)
	x.lift("hold", "deploy", broken)
	x.wait("the broken item has failed, and only the busy one is at work", func() bool {
		return x.jobOf(broken, failed) == job.Failed && slices.Equal(x.running(failed), []string{busy})
	})
	had := x.handed(failed)
	x.killEach()
	require.False(x.t, x.record(failed).State.Final(), "the job ended while item %s was at work", busy)
	x.lift("hold", "deploy", busy)
	record := x.end(failed, job.Failed)
	require.Equal(x.t, job.Succeeded, x.jobOf(busy, failed), "what ran was drained")
	require.Equal(x.t, had, x.handed(failed), "items that had the job before and after the end of those that ran")
	for _, name := range x.reach(broken, false)[1:] {
		require.False(x.t, slices.Contains(had, name), "item %s has begun although %s had failed, on which it depends", name, broken)
	}
	s := x.chronicle.state(treeKind, treeName)
	require.Equal(x.t, "Failed", s.State)
	var why []string
	for _, r := range resource.Why(&s) {
		why = append(why, r.Text)
	}
	require.Contains(x.t, strings.Join(why, "\n"), broken, "why names the child that failed")
	require.Contains(x.t, record.Message, broken)

	x.lift("fail", "deploy", broken)
	retried := x.begin("retry")
	x.end(retried, job.Succeeded)
	x.ordered(retried, "deploy", x.items)
}

// middle is an item that others depend on and that depends on others, of those that are not excluded: while it is held,
// much is done and much is not.
func (x *tree) middle(without []string) string {
	x.t.Helper()
	best, most := "", 0
	for _, name := range x.items {
		if slices.Contains(without, name) || len(x.before[name]) == 0 {
			continue
		}
		if n := min(len(x.reach(name, false)), 1+len(x.reach(name, true))+x.random.IntN(3)); n > most {
			best, most = name, n
		}
	}
	require.NotEmpty(x.t, best, "the tree has no middle: another seed")
	return best
}

// reach is all that an item depends on, or all that depend on it, with itself.
func (x *tree) reach(of string, ancestors bool) []string {
	found := []string{of}
	for i := 0; i < len(found); i++ {
		next := x.before[found[i]]
		if !ancestors {
			next = nil
			for _, name := range x.items {
				if slices.Contains(x.before[name], found[i]) {
					next = append(next, name)
				}
			}
		}
		for _, name := range next {
			if !slices.Contains(found, name) {
				found = append(found, name)
			}
		}
	}
	return found
}

// prune takes an item out, and changes another.
func (x *tree) prune(gone string) {
	x.items = slices.DeleteFunc(x.items, func(name string) bool { return name == gone })
	delete(x.before, gone)
	for name, on := range x.before {
		x.before[name] = slices.DeleteFunc(on, func(name string) bool { return name == gone })
	}
	x.spec[x.items[0]] = object{"size": 99}
}

func (x *tree) request(c command) string {
	x.t.Helper()
	a, err := x.door.request(x.ctx, c)
	require.NoError(x.t, err)
	require.Empty(x.t, a.Message, "%s %s/%s: %+v", c.Verb, c.Kind, c.Name, a)
	return a.JobID
}

func (x *tree) apply() {
	x.t.Helper()
	items := list{}
	for _, name := range x.items {
		item := object{"name": name, "spec": x.spec[name]}
		if on := x.before[name]; len(on) > 0 {
			item["dependsOn"] = on
		}
		items = append(items, item)
	}
	x.asked++
	x.request(command{Kind: treeKind, Name: treeName, Verb: "apply", ID: fmt.Sprint("apply-", x.asked), Body: apply(treeKind, treeName, object{"items": items}, nil)})
}

func (x *tree) begin(verb string) (jobID string) {
	x.t.Helper()
	x.asked++
	return x.request(command{Kind: treeKind, Name: treeName, Verb: verb, ID: fmt.Sprint(verb, "-", x.asked)})
}

// end waits for the end of a job, and says what it cost.
func (x *tree) end(id string, want job.State) job.Record {
	x.t.Helper()
	x.wait("job "+id+" has ended", func() bool { return x.chronicle.jobs[id].State.Final() })
	record := x.record(id)
	require.Equal(x.t, want, record.State, record.Message)
	parent, kids := 0, 0
	var last time.Time
	var silence time.Duration
	var broke string
	for _, e := range x.chronicle.all() {
		if e.Resource != nil && e.Resource.Event.JobID == id {
			if gap := e.At.Sub(last); !last.IsZero() && gap > silence {
				c := e.Resource.Event.Cause
				silence, broke = gap, strings.Join([]string{e.Resource.State.Name, c.Kind, c.Verb, c.Phase, c.Outcome}, " ")
			}
			last = e.At
			if e.Resource.State.Kind == treeKind {
				parent++
			} else {
				kids++
			}
		}
	}
	took := record.EndedAt.Sub(record.AcceptedAt)
	x.t.Logf("%s %s in %s: %d events of the execution, %d of its %d items; the longest silence was %s, before %s",
		record.Verb, record.State, took.Round(time.Millisecond), parent, kids, len(x.items), silence.Round(time.Millisecond), broke)
	// What many children do at once is one look of the parent: batches of 400, a count a second, and its own path.
	most := 12 + 2*(len(x.items)/resource.BatchMax+1) + 2*int(took/time.Second)
	require.LessOrEqual(x.t, parent, most, "events of the execution")
	return record
}

func (x *tree) wait(what string, holds func() bool) {
	x.t.Helper()
	require.True(x.t, x.chronicle.wait(x.ctx, holds), "it never came to this: %s", what)
}

// record is a job as the log last showed it.
func (x *tree) record(id string) job.Record {
	x.chronicle.mu.Lock()
	defer x.chronicle.mu.Unlock()
	return x.chronicle.jobs[id]
}

// jobOf is where a child stands with a job. The chronicle's lock must be held, or nothing be under way.
func (x *tree) jobOf(item, id string) job.State {
	s := x.chronicle.resources[resource.Key{Project: x.house.project, Kind: itemKind, Name: resource.ChildName(treeName, item)}]
	if j := s.JobByID(id); j != nil {
		return j.State
	}
	return job.None
}

func (x *tree) running(id string) (names []string) {
	for _, name := range x.items {
		if s := x.jobOf(name, id); s != job.None && !s.Final() {
			names = append(names, name)
		}
	}
	return names
}

// handed are the items that were given a job.
func (x *tree) handed(id string) (names []string) {
	x.chronicle.mu.Lock()
	defer x.chronicle.mu.Unlock()
	for _, name := range x.items {
		if x.jobOf(name, id) != job.None {
			names = append(names, name)
		}
	}
	return names
}

// put sets up a sign for the deployers, lift takes it away.
func (x *tree) put(what, phase, item string) {
	require.NoError(x.t, os.WriteFile(filepath.Join(x.house.signs(), what+"-"+phase+"-"+item), nil, 0o600))
}

func (x *tree) lift(what, phase, item string) {
	require.NoError(x.t, os.Remove(filepath.Join(x.house.signs(), what+"-"+phase+"-"+item)))
}

// begun waits until an item that is held is at work for a job.
func (x *tree) begun(id, phase, item string) {
	x.t.Helper()
	require.Eventually(x.t, func() bool {
		return slices.ContainsFunc(x.lines(), func(l journal.Line) bool { return l.Job == id && l.Phase == phase && l.Item == item })
	}, time.Minute, 20*time.Millisecond, "item %s was never handed out", item)
}

func (x *tree) lines() []journal.Line {
	x.t.Helper()
	lines, err := journal.Read(x.house.ledger())
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(x.t, err)
	}
	return lines
}

// killEach kills every process of the house once, one after another, each when the one before is back.
func (x *tree) killEach() {
	x.t.Helper()
	began := time.Now()
	defer func() { x.t.Logf("all were killed in %s", time.Since(began).Round(100*time.Millisecond)) }()
	for _, p := range slices.Concat(x.house.services, x.house.servers) {
		before, _, _ := p.deaths()
		p.kill("")
		require.Eventually(x.t, func() bool {
			now, _, _ := p.deaths()
			return now > before && p.up() || x.ctx.Err() != nil
		}, time.Minute, 5*time.Millisecond, "%s does not come back", p.name)
	}
}

// rage kills at random while a job runs.
func (x *tree) rage(id string) {
	for deaths := x.killer.deaths() + x.strikes/3; x.killer.deaths() < deaths && !x.record(id).State.Final(); {
		x.killer.strike()
		if !pause(x.ctx, time.Duration(x.random.Int64N(int64(pauseMax)))) {
			break
		}
	}
	for _, p := range slices.Concat(x.house.services, x.house.servers) {
		p.calm()
	}
}

// ordered holds the ledger to the dependencies: who depends on something was not begun before that was done; for deletion
// the other way round.
func (x *tree) ordered(id, phase string, items []string) {
	x.t.Helper()
	begun, done, runs := map[string]int{}, map[string]int{}, 0
	for i, l := range x.lines() {
		if l.Job != id || l.Phase != phase {
			continue
		}
		of := done
		if l.Begin {
			of = begun
			runs++
		}
		if _, again := of[l.Item]; !again {
			of[l.Item] = i
		}
	}
	require.Equal(x.t, slices.Sorted(slices.Values(items)), slices.Sorted(maps.Keys(done)), "items that the ledger has as done")
	if runs > len(items) {
		x.t.Logf("%d of %d runs were repeated, after kills", runs-len(items), runs)
	}
	for name, names := range x.before {
		for _, on := range names {
			first, then := on, name
			if phase == "uninstall" {
				first, then = name, on
			}
			require.Less(x.t, done[first], begun[then], "%s: %s is done before %s begins", phase, first, then)
		}
	}
}

// orphanFirst: what the spec no longer lists was uninstalled before anything else of the job began, and is gone.
func (x *tree) orphanFirst(id, gone string) {
	x.t.Helper()
	removed := false
	for _, l := range x.lines() {
		if l.Job != id {
			continue
		}
		removed = removed || l.Phase == "uninstall" && l.Item == gone && !l.Begin
		require.True(x.t, removed || l.Phase == "uninstall", "item %s was begun before the orphan %s was gone", l.Item, gone)
		require.False(x.t, l.Phase == "uninstall" && l.Item != gone, "item %s was uninstalled", l.Item)
	}
	s := x.chronicle.state(itemKind, resource.ChildName(treeName, gone))
	require.True(x.t, removed && s.Gone, "the orphan is gone")
}

// nothingLeft: no resource is left in the bucket, and nothing waits.
func (x *tree) nothingLeft() {
	x.t.Helper()
	x.door.empty(x.t, "COMMANDS", "RESULTS", "WORK", "POISON")
	require.Eventually(x.t, func() bool {
		ctx, cancel := context.WithTimeout(x.ctx, 5*time.Second)
		defer cancel()
		kv, err := x.door.js.KeyValue(ctx, bus.Resource.Bucket())
		if err != nil {
			return false
		}
		keys, err := kv.ListKeys(ctx)
		if err != nil {
			return false
		}
		left := 0
		for key := range keys.Keys() {
			if strings.HasPrefix(key, x.house.project+".") {
				left++
			}
		}
		return left == 0
	}, time.Minute, 100*time.Millisecond, "nothing of the tree is left")
}

// derived waits until the buckets are what the log says: they trail it, and by seconds where a server was just killed.
func (x *tree) derived(v *verdict) {
	x.t.Helper()
	var wrong []string
	var err error
	for end := time.Now().Add(x.house.patience(time.Minute)); ; {
		ctx, cancel := context.WithTimeout(x.ctx, 20*time.Second)
		wrong, err = x.chronicle.unlikeBuckets(ctx, x.door.looks)
		cancel()
		if err == nil && len(wrong) == 0 || time.Now().After(end) || !pause(x.ctx, 100*time.Millisecond) {
			break
		}
	}
	require.NoError(x.t, err)
	v.wrong = append(v.wrong, wrong...)
}

// legal: the whole history was a legal one, the buckets are what it led to, and everybody was killed three times on the way.
func (x *tree) legal() {
	x.t.Helper()
	v := &verdict{t: x.t, house: x.house, door: x.door, chronicle: x.chronicle}
	entries := x.chronicle.all()
	v.wrong = append(v.wrong, x.chronicle.problems...)
	v.history(entries)
	v.jobTable(entries)
	x.derived(v)
	for _, line := range v.wrong[:min(len(v.wrong), 40)] {
		x.t.Error(line)
	}
	for _, p := range slices.Concat(x.house.services, x.house.servers) {
		kills, _, strange := p.deaths()
		require.GreaterOrEqual(x.t, kills, 3, "%s was killed in the middle of each", p.name)
		x.t.Logf("%-16s killed %3d times, ended otherwise: %v", p.name, kills, strange)
	}
}
