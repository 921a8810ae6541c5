package partition_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// grove is a partition with a repository in it, and a monitoring system that is played.
type grove struct {
	*fixture
	sys   *memory.System
	now   time.Time
	n     int // requests
	fails func() bool
}

func plant(t *testing.T) *grove {
	t.Helper()
	g := &grove{sys: memory.New(memory.Options{Partitions: 1}), now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}
	g.fixture = serve(t, g.sys, func() time.Time { return g.now })
	return g
}

// command sends a command under an id of its own.
func (g *grove) command(verb, kind, name, spec string) wire.Reply {
	g.t.Helper()
	g.n++
	return g.commandAs(fmt.Sprint("r", g.n), verb, kind, name, spec)
}

func (g *grove) commandAs(id, verb, kind, name, spec string) wire.Reply {
	g.t.Helper()
	c := wire.Command{}
	if verb == "apply" {
		c.Manifest = &wire.Manifest{APIVersion: "drover/v1", Kind: kind, Name: name, Spec: []byte(spec)}
	}
	return g.fixture.command(kind, name, verb, id, c)
}

func (g *grove) apply(kind, name, spec string) {
	g.t.Helper()
	r := g.command("apply", kind, name, spec)
	require.Nil(g.t, r.Refused, "%s %s: %+v", kind, name, r.Refused)
	require.NotEmpty(g.t, r.JobID)
}

func (g *grove) ask(verb string, q wire.CheckRequest) (a wire.CheckAnswer) {
	g.t.Helper()
	body, err := wire.EncodeCheckRequest(q)
	require.NoError(g.t, err)
	answered := 0
	g.owner.Ask(bus.Request{Verb: "check." + verb, Body: body}, func(_ map[string]string, body []byte) {
		answered++
		a, err = wire.DecodeCheckAnswer(body)
		require.NoError(g.t, err)
	})
	g.shell.run(g.owner)
	require.Equal(g.t, 1, answered)
	return a
}

const (
	monitor    = `{"callback": "http://127.0.0.1:1/x"}`
	capability = `{"system": "eye", "metric": {"path": "cpu"}}`
)

func interval(n int) string {
	return fmt.Sprintf(`{"on": "prod/live", "capability": "cpu", "interval": "%ds", "objectTypes": ["Node"],
		"thresholds": [{"predicate": ">=", "level": {"name": "critical", "numeric": 2}, "value": 95}]}`, n)
}

func (g *grove) stand(nodes int) {
	g.t.Helper()
	g.apply("MonitoringSystem", "eye", monitor)
	g.apply("Capability", "cpu", capability)
	g.apply("Repository", "prod", `{"team": "ops"}`)
	g.apply("Bucket", "prod/live", `{"environment": "live"}`)
	for i := range nodes {
		g.apply("Node", fmt.Sprint("prod/live/n", i), fmt.Sprintf(`{"assetId": %d}`, i+1))
	}
}

// states reads all instances from the log, with their configurations, and audits them.
func (g *grove) states() (all []deployment.State) {
	g.t.Helper()
	deployments := map[string]deployment.Configuration{}
	require.NoError(g.t, g.link.Conn.Scan(g.t.Context(), 0, bus.Deployment, func(s bus.Stored) error {
		e, err := wire.DecodeDeployment(s.Body)
		if err == nil && !s.Deleted {
			deployments[e.Configuration.ID] = e.Configuration
		}
		return err
	}))
	require.NoError(g.t, g.link.Conn.Scan(g.t.Context(), 0, bus.Instance, func(s bus.Stored) error {
		e, err := wire.DecodeInstance(s.Body)
		if err != nil || s.Deleted {
			return err
		}
		st := e.State
		st.Configurations = nil
		for _, c := range e.State.Configurations {
			full, ok := deployments[c.ID]
			if !ok {
				continue // buried
			}
			require.Equal(g.t, c.Status, full.Status, "an instance and its configuration came apart")
			require.Equal(g.t, c.Revision, full.Revision)
			st.Configurations = append(st.Configurations, full)
			delete(deployments, c.ID)
		}
		all = append(all, st)
		return nil
	}))
	require.Empty(g.t, deployments, "configurations of no instance")
	slices.SortFunc(all, func(a, b deployment.State) int { return strings.Compare(a.Object+a.ID, b.Object+b.ID) })
	return all
}

// tally is how many present configurations are in each status.
func (g *grove) tally() map[string]int {
	counts := map[string]int{}
	for _, s := range g.states() {
		status := "none"
		if c := s.Present(); c != nil {
			status = c.Status.String()
		}
		counts[status]++
	}
	return counts
}

// serveAll plays the monitoring system and the notifier once: pokes, fetches within them, feedback.
func (g *grove) serveAll() {
	g.t.Helper()
	for range 10 {
		a := g.ask("pokes", wire.CheckRequest{})
		if len(a.Pokes) == 0 {
			return
		}
		for _, p := range a.Pokes {
			require.Equal(g.t, "eye", p.System)
			for _, poke := range p.Pokes {
				f := g.ask("fetch", wire.CheckRequest{Project: "p", ID: poke.ID})
				require.Empty(g.t, f.Code, f.Message)
				require.Equal(g.t, poke.ID, f.Details.CheckInstance.InstanceID)
				require.Equal(g.t, f.Task, f.Details.Task)
				verb := "success"
				if g.fails != nil && g.fails() {
					verb = "failed"
				}
				require.Empty(g.t, g.ask(verb, wire.CheckRequest{Project: "p", ID: poke.ID}).Code)
			}
			require.Zero(g.t, g.ask("poked", wire.CheckRequest{Project: "p", Poked: p.Pokes}).Missed)
		}
	}
}

func (g *grove) jobs() map[job.State]int {
	states := map[job.State]int{}
	require.NoError(g.t, g.link.Conn.Scan(g.t.Context(), 0, bus.Job, func(s bus.Stored) error {
		e, err := wire.DecodeJob(s.Body)
		states[e.Record.State]++
		return err
	}))
	return states
}

// TestAChecksLife: rollout, a changed configuration, blocked, deprovisioned, unblocked, rolled out, a new node, deleted to the
// end, buried.
func TestAChecksLife(t *testing.T) {
	t.Parallel()
	g := plant(t)
	g.stand(3)
	g.apply("CheckConfiguration", "prod/cpu", interval(60))
	require.Equal(t, map[string]int{"awaiting_rollout": 3}, g.tally())
	g.serveAll()
	require.Equal(t, map[string]int{"active": 3}, g.tally())
	require.Equal(t, "live", g.states()[0].Configurations[0].Details.Environment)

	g.apply("CheckConfiguration", "prod/cpu", interval(60))
	require.Equal(t, map[string]int{"active": 3}, g.tally(), "the same again is discarded")

	g.apply("CheckConfiguration", "prod/cpu", interval(30))
	require.Equal(t, map[string]int{"awaiting_deprovision": 3}, g.tally())
	for _, s := range g.states() {
		require.Len(t, s.Configurations, 2)
		require.Equal(t, deployment.Blocked, s.Configurations[1].Status)
		require.Equal(t, s.Configurations[0].ID, s.Configurations[1].BlockedOn)
		require.True(t, s.UpdateAvailable)
	}
	g.serveAll()
	require.Equal(t, map[string]int{"deprovisioned": 3}, g.tally())
	g.sweep()
	g.serveAll()
	require.Equal(t, map[string]int{"active": 3}, g.tally())
	require.EqualValues(t, 30, g.states()[0].Present().Details.CheckConfig.Interval)

	g.apply("Node", "prod/live/n3", `{"assetId": 9}`)
	g.apply("Node", "prod/live/n0", `{"assetId": 1, "properties": {"fqdn": "a"}}`)
	require.Equal(t, map[string]int{"active": 2, "awaiting_rollout": 1, "awaiting_deprovision": 1}, g.tally())
	g.serveAll()
	g.sweep()
	g.serveAll()
	require.Equal(t, map[string]int{"active": 4}, g.tally())

	refused := g.command("delete", "Bucket", "prod/live", "")
	require.Equal(t, resource.Conflict, refused.Refused.Code)
	require.Nil(t, g.command("delete", "Node", "prod/live/n1", "").Refused)
	g.sweep()
	g.serveAll()
	g.sweep()
	require.Equal(t, map[string]int{"active": 3, "awaiting_deletion": 1}, g.tally())
	require.Nil(t, g.command("delete", "CheckConfiguration", "prod/cpu", "").Refused)
	g.sweep()
	require.Equal(t, map[string]int{"awaiting_deprovision": 3, "awaiting_deletion": 1}, g.tally())
	g.serveAll()
	g.sweep()
	require.Equal(t, map[string]int{"awaiting_deletion": 4}, g.tally())
	require.Equal(t, resource.Conflict, g.command("apply", "CheckConfiguration", "prod/cpu", interval(60)).Refused.Code)
	jobs := g.jobs()
	require.Len(t, jobs, 1, "%v", jobs)
	require.NotZero(t, jobs[job.Succeeded])

	g.now = g.now.Add(deployment.DeletedKept + time.Minute)
	g.owner.Tick()
	g.shell.run(g.owner)
	g.sweep()
	require.Empty(t, g.tally())
	g.sweep()
	require.Nil(t, g.command("apply", "CheckConfiguration", "prod/cpu", interval(60)).Refused, "the name is free again")
	require.Equal(t, map[string]int{"awaiting_rollout": 3}, g.tally())
}

// TestLists: list clears, list all repeats; what is fetched once too often, or answered, says so.
func TestLists(t *testing.T) {
	t.Parallel()
	g := plant(t)
	g.stand(2)
	g.apply("CheckConfiguration", "prod/cpu", interval(60))
	q := wire.CheckRequest{Project: "p", System: "eye"}
	a := g.ask("list", q)
	require.Len(t, a.IDs, 2)
	require.Empty(t, g.ask("list", q).IDs)
	require.Equal(t, a.IDs, g.ask("listall", q).IDs)
	require.Len(t, g.ask("listall", wire.CheckRequest{Project: "p", System: "eye", After: a.IDs[0]}).IDs, 1)
	require.Empty(t, g.ask("listall", wire.CheckRequest{Project: "p", System: "other"}).IDs)
	one := wire.CheckRequest{Project: "p", ID: a.IDs[0]}
	require.Equal(t, resource.Conflict, g.ask("success", one).Code)
	require.Equal(t, "rollout", g.ask("fetch", one).Task)
	require.Equal(t, "rollout", g.ask("fetch", one).Task)
	require.Empty(t, g.ask("success", one).Code)
	require.Len(t, g.ask("listall", q).IDs, 1)
	again := g.ask("success", one)
	require.Equal(t, "Illegal current state active", again.Message)
	for _, id := range []string{"", "x", "0000c0de-0000-4000-8000-000000000000", "0001c0de-0000-4000-8000-000000000000"} {
		require.Equal(t, resource.NotFound, g.ask("fetch", wire.CheckRequest{Project: "p", ID: id}).Code)
	}
	require.Equal(t, resource.NotFound, g.ask("fetch", wire.CheckRequest{Project: "other", ID: a.IDs[0]}).Code)
	require.Equal(t, resource.Invalid, g.ask("nonsense", one).Code)
}

// TestRefusals: what cannot be is refused with its field, and leaves nothing behind.
func TestRefusals(t *testing.T) {
	t.Parallel()
	g := plant(t)
	for _, c := range []struct{ kind, name, spec, field string }{
		{"Bucket", "prod/live", `{}`, "metadata.name"},
		{"Node", "prod", `{"assetId": 1}`, "metadata.name"},
		{"Node", "prod/live/n", `{}`, "spec.assetId"},
		{"Node", "prod/live/n", `{"assetid": 1}`, "spec.assetid"},
		{"CheckConfiguration", "prod/cpu", interval(0), "spec.interval"},
		{"CheckConfiguration", "test/cpu", interval(60), "spec.on"},
		{"CheckConfiguration", "prod/cpu", interval(60), "spec.on"},
		{"MonitoringSystem", "eye", `{"callback": "ftp://x"}`, "spec.callback"},
	} {
		r := g.command("apply", c.kind, c.name, c.spec)
		require.NotNil(t, r.Refused, "%v", c)
		require.NotEmpty(t, r.Refused.Violations, "%v", r.Refused)
		require.Equal(t, c.field, r.Refused.Violations[0].Field, "%v", c)
	}
	require.Empty(t, g.jobs())
	g.stand(1)
	require.Equal(t, "metadata.name", g.command("apply", "Group", "prod/live/n0", `{}`).Refused.Violations[0].Field)
	require.Equal(t, "spec.capability", g.command("apply", "CheckConfiguration", "prod/cpu",
		strings.Replace(interval(60), `"cpu"`, `"disk"`, 1)).Refused.Violations[0].Field)
	require.Equal(t, resource.NotFound, g.command("delete", "Node", "prod/live/x", "").Refused.Code)
	first := g.commandAs("same", "apply", "Node", "prod/live/n7", `{"assetId": 7}`)
	require.Equal(t, first, g.commandAs("same", "apply", "Node", "prod/live/n7", `{"assetId": 7}`))
	require.Equal(t, resource.Conflict, g.commandAs("same", "apply", "Node", "prod/live/n7", `{"assetId": 8}`).Refused.Code)
}

// died is what a test panics with where the owner is to end.
type died struct{}

// TestACommandWhoseAnswerIsLost has one job, and is not in its own way; what a monitoring system reports is taken once, and it is
// told so. Where the leader cannot be asked about it, it is decided again on what it has changed.
func TestACommandWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	for _, mute := range []bool{false, true} {
		g := plant(t)
		g.link.mute = mute
		lost := 0
		unheard := func() bool { // every second one
			lost++
			return lost%2 == 1
		}
		rest := func() {
			if mute { // a monitoring system is told that it has said so already
				g.link.unheard = nil
			}
			for range 3 {
				g.sweep()
				g.serveAll()
			}
			g.link.unheard = unheard
		}
		g.link.unheard = unheard
		g.stand(2)
		for _, seconds := range []int{60, 30} {
			g.apply("CheckConfiguration", "prod/cpu", interval(seconds))
			rest()
		}
		for _, of := range [][2]string{{"CheckConfiguration", "prod/cpu"}, {"Node", "prod/live/n0"}, {"Capability", "cpu"}, {"MonitoringSystem", "eye"}} {
			r := g.command("delete", of[0], of[1], "")
			require.Nil(t, r.Refused, "%v: %+v", of, r.Refused)
			rest()
		}
		require.NotNil(t, g.command("delete", "Capability", "cpu", "").Refused, "it is gone")
		jobs := g.jobs()
		require.Zero(t, jobs[job.Running]+jobs[job.Pending], "%v", jobs)
		require.Equal(t, g.n-1, jobs[job.Succeeded]+jobs[job.Canceled], "one a command that was accepted: %v", jobs)
		require.Greater(t, lost, 10)
	}
}

// TestAFetchWhoseAnswerIsLost has moved the deployment on, and its monitoring system has nothing. What it did not take is poked
// and listed again.
func TestAFetchWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	g := plant(t)
	g.stand(2)
	fetchLost := func(status string) {
		pokes := g.ask("pokes", wire.CheckRequest{}).Pokes
		require.Len(t, pokes, 1)
		require.Len(t, pokes[0].Pokes, 2)
		for _, p := range pokes[0].Pokes {
			require.Empty(t, g.ask("fetch", wire.CheckRequest{Project: "p", ID: p.ID}).Code)
		}
		require.Equal(t, map[string]int{status: 2}, g.tally())
		require.Equal(t, pokes, g.ask("pokes", wire.CheckRequest{}).Pokes)
		for _, s := range g.states() {
			require.Contains(t, deployment.Why(&s)[0].Text, "it is told again")
		}
	}
	g.apply("CheckConfiguration", "prod/cpu", interval(60))
	fetchLost("rollout_in_progress")
	g.serveAll()
	require.Equal(t, map[string]int{"active": 2}, g.tally())
	require.Nil(t, g.command("delete", "CheckConfiguration", "prod/cpu", "").Refused)
	g.sweep()
	fetchLost("deprovision_in_progress")
	require.Len(t, g.ask("list", wire.CheckRequest{Project: "p", System: "eye"}).IDs, 2)
	require.Empty(t, g.ask("pokes", wire.CheckRequest{}).Pokes, "a list has told it")
	require.Len(t, g.ask("listall", wire.CheckRequest{Project: "p", System: "eye"}).IDs, 2)
	for _, s := range g.states() {
		require.Empty(t, g.ask("success", wire.CheckRequest{Project: "p", ID: s.ID}).Code)
	}
	g.sweep()
	require.Equal(t, map[string]int{"awaiting_deletion": 2}, g.tally())
}

// TestWhatAnotherOwnerChangedIsReadAtLast, though a read of it failed in between.
func TestWhatAnotherOwnerChangedIsReadAtLast(t *testing.T) {
	t.Parallel()
	g := plant(t)
	g.stand(2)
	g.apply("CheckConfiguration", "prod/cpu", interval(60))
	first := g.fixture
	require.NotEmpty(t, g.ask("pokes", wire.CheckRequest{}).Pokes)
	g.fixture = serve(t, g.sys, func() time.Time { return g.now })
	g.serveAll()
	g.fixture = first
	look := func() []wire.CheckPokes {
		g.now = g.now.Add(time.Hour)
		g.sweep()
		return g.ask("pokes", wire.CheckRequest{}).Pokes
	}
	first.link.asks = 1 // that the leader does not answer: which of the instances have changed is known by then
	require.NotEmpty(t, look())
	require.Zero(t, first.link.asks)
	require.Empty(t, look(), "nothing is pending any more")
}

// TestOwnersOfChecksDie: whatever owner dies between whichever two of its writes, the next one brings every instance where it
// belongs, with the versions that were ordered, each once.
func TestOwnersOfChecksDie(t *testing.T) {
	t.Parallel()
	deaths := 0
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 3))
		g := plant(t)
		g.stand(4)
		g.fails = func() bool { return rng.IntN(4) == 0 }
		left := -1
		arm := func() { left = rng.IntN(14) }
		guard := func() {
			if left > 0 {
				left--
			} else if left == 0 {
				left = -1
				panic(died{})
			}
		}
		g.link.dies = guard
		// do carries something out, and again by another owner where the first one dies.
		do := func(f func()) {
			for {
				again := func() (again bool) {
					defer func() {
						switch r := recover(); r.(type) {
						case nil:
						case died:
							again = true
						default:
							panic(r)
						}
					}()
					f()
					return false
				}()
				if !again {
					return
				}
				deaths++
				g.fixture = serve(t, g.sys, func() time.Time { return g.now })
				g.link.dies = guard
			}
		}
		want := 0
		for i := range 12 {
			arm()
			switch n := rng.IntN(10); {
			case n < 3:
				want = 30 + rng.IntN(4)
				id := fmt.Sprint("c", i)
				do(func() {
					r := g.commandAs(id, "apply", "CheckConfiguration", "prod/cpu", interval(want))
					require.Nil(t, r.Refused, "seed %d: %+v", seed, r.Refused)
				})
			case n < 5:
				do(g.sweep)
			case n < 6:
				id := fmt.Sprint("n", i)
				do(func() {
					require.Nil(t, g.commandAs(id, "apply", "Node", fmt.Sprint("prod/live/m", i), fmt.Sprintf(`{"assetId": %d}`, 100+i)).Refused)
				})
			default:
				do(g.lenient)
			}
		}
		left = -1
		g.fails = nil
		for range 60 { // a monitoring system that fetches what failed again
			g.sweep()
			g.serveAll()
			if counts := g.tally(); counts["active"] == len(g.states()) && !slices.ContainsFunc(g.states(), func(s deployment.State) bool { return s.Sweepable() }) {
				break
			}
			for _, s := range g.states() {
				if c := s.Present(); c.Status == deployment.RolloutFailed || c.Status == deployment.DeprovisionFailed || c.Status == deployment.RolloutInProgress || c.Status == deployment.DeprovisionInProgress {
					q := wire.CheckRequest{Project: "p", ID: s.ID}
					g.ask("fetch", q)
					g.ask("success", q)
				}
			}
		}
		for _, s := range g.states() {
			c := s.Present()
			require.Equal(t, deployment.Active, c.Status, "seed %d: %v", seed, deployment.Why(&s))
			require.EqualValues(t, want, c.Details.CheckConfig.Interval, "seed %d", seed)
			require.False(t, s.Sweepable())
		}
		if want > 0 {
			nodes := 0
			require.NoError(t, g.link.Conn.Scan(t.Context(), 0, bus.Check, func(m bus.Stored) error {
				if strings.HasPrefix(m.Entity.Name, "Node/") {
					nodes++
				}
				return nil
			}))
			require.Len(t, g.states(), nodes, "seed %d: one instance a node", seed)
		}
		jobs := g.jobs()
		require.Zero(t, jobs[job.Running]+jobs[job.Pending], "seed %d: %v", seed, jobs)
	}
	require.Greater(t, deaths, 40)
}

// TestATakeoverGoesOn: an order whose owner died goes on though nobody asks again.
func TestATakeoverGoesOn(t *testing.T) {
	t.Parallel()
	g := plant(t)
	g.stand(3)
	left := 1 // it dies when the configuration is stored
	g.link.dies = func() {
		if left--; left < 0 {
			panic(died{})
		}
	}
	require.Panics(t, func() { g.apply("CheckConfiguration", "prod/cpu", interval(60)) })
	require.Empty(t, g.tally())
	require.Equal(t, 1, g.jobs()[job.Running])
	g.fixture = serve(t, g.sys, func() time.Time { return g.now })
	require.Equal(t, map[string]int{"awaiting_rollout": 3}, g.tally())
	require.Zero(t, g.jobs()[job.Running])
}

// lenient is a monitoring system whose requests may find that somebody has done them before.
func (g *grove) lenient() {
	for _, p := range g.ask("pokes", wire.CheckRequest{}).Pokes {
		for _, poke := range p.Pokes {
			q := wire.CheckRequest{Project: "p", ID: poke.ID}
			g.ask("fetch", q)
			verb := "success"
			if g.fails() {
				verb = "failed"
			}
			g.ask(verb, q)
		}
		g.ask("poked", wire.CheckRequest{Project: "p", Poked: p.Pokes})
	}
}

// TestChecksHeld measures what an owner keeps of DROVER_CHECKS_HELD instances at rest (say 100000): ten checks over a tenth as
// many nodes. The bus is in memory, and holds its own before it is measured.
func TestChecksHeld(t *testing.T) {
	instances, err := strconv.Atoi(os.Getenv("DROVER_CHECKS_HELD"))
	if err != nil {
		t.Skip("DROVER_CHECKS_HELD is not set to a number of instances")
	}
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	g := plant(t)
	g.stand(instances / 10)
	for i := range 10 {
		g.apply("CheckConfiguration", fmt.Sprint("prod/c", i), interval(30+i))
	}
	for a := g.ask("list", wire.CheckRequest{Project: "p", System: "eye"}); len(a.IDs) > 0; {
		a = g.ask("list", wire.CheckRequest{Project: "p", System: "eye"})
	}
	g.fixture = nil // the owner that wrote them
	before, began := heap(), time.Now()
	f := serve(t, g.sys, func() time.Time { return g.now })
	took := time.Since(began)
	after := heap()
	began = time.Now()
	f.sweep()
	t.Logf("taken over in %s; held: %.1f MB, %.0f bytes an instance; a sweep: %s", took.Round(time.Millisecond), (after-before)/1e6,
		(after-before)/float64(instances), time.Since(began))
	runtime.KeepAlive(f)
}
