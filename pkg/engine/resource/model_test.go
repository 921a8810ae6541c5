package resource_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestModel checks small systems wholly: one to four phases, every way in which they can depend on each other (up to
// renaming), phases left out by their constraint and gated ones, both policies of failure, all of target changes, both walks.
// From each state that can be reached, everything that can be said is said: every answer of every call that is out, losses,
// late answers, time, a restart (continue), and every command. After each step the world's checks and checkReasons hold; the
// same input again has no effect; and from every state a fair world ends every job.
//
// A run of go test takes a part: few states of few systems, the same ones each time. DROVER_EXPLORE=long takes all systems
// of one and two phases wholly, and many states of some with three and four (about an hour on one core, with -timeout=0);
// DROVER_EXPLORE=all takes everything, if it takes days.
func TestModel(t *testing.T) {
	t.Parallel()
	how := os.Getenv("DROVER_EXPLORE")
	for n := 1; n <= 4; n++ {
		for _, walk := range []blueprint.Walk{blueprint.Together, blueprint.Each} {
			t.Run(fmt.Sprintf("%d phases %s", n, nameOfWalk(walk)), func(t *testing.T) {
				t.Parallel()
				c := modelCheck{t: t, statesMax: 90, systemsMax: 8}
				if testing.Short() {
					c.systemsMax = 3
				}
				switch {
				case how == "all" || how == "long" && n <= 2:
					c.statesMax, c.systemsMax = 1<<30, 1<<30
				case how == "long":
					c.statesMax, c.systemsMax = 20_000, 40
				}
				c.systems(n, walk)
				t.Logf("%d of %d systems, %d states, %d steps, %d of them cut at %d states", c.checked, c.all, c.states, c.steps, c.cut, c.statesMax)
				if c.states < 20*c.checked {
					t.Errorf("the exploration went nowhere")
				}
			})
		}
	}
}

func nameOfWalk(w blueprint.Walk) string {
	if w == blueprint.Each {
		return "each by itself"
	}
	return "together"
}

// TestRelations counts the acyclic relations: 1, 2, 6 and 31 up to renaming.
func TestRelations(t *testing.T) {
	t.Parallel()
	for n, want := range []int{1, 1, 2, 6, 31} {
		if got := len(relations(n)); got != want {
			t.Errorf("%d phases: %d relations, not %d", n, got, want)
		}
	}
}

// relations are all acyclic relations of n phases, up to renaming. Bit i*n+k: phase i depends on phase k, k < i.
func relations(n int) []uint32 {
	var places []int
	for i := range n {
		for k := range i {
			places = append(places, i*n+k)
		}
	}
	seen := map[uint32]bool{}
	var all []uint32
	for set := range uint32(1) << len(places) {
		var r uint32
		for b, place := range places {
			if set&(1<<b) != 0 {
				r |= 1 << place
			}
		}
		least := ^uint32(0)
		permute(n, func(to []int) {
			var other uint32
			for i := range n {
				for k := range n {
					if r&(1<<(i*n+k)) != 0 {
						other |= 1 << (to[i]*n + to[k])
					}
				}
			}
			least = min(least, other)
		})
		if !seen[least] {
			seen[least] = true
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b uint32) int { return bits.OnesCount32(a) - bits.OnesCount32(b) })
	return all
}

func permute(n int, visit func([]int)) {
	to := make([]int, 0, n)
	var more func()
	more = func() {
		if len(to) == n {
			visit(to)
			return
		}
		for i := range n {
			if !slices.Contains(to, i) {
				to = append(to, i)
				more()
				to = to[:len(to)-1]
			}
		}
	}
	more()
}

// modelCheck is one run over many systems.
type modelCheck struct {
	t                                *testing.T
	statesMax, systemsMax            int
	all, checked, states, steps, cut int
}

// systems goes through all of n phases. Each phase is plain, left out by its constraint, or gated; of four, at most one is
// not plain.
func (c *modelCheck) systems(n int, walk blueprint.Walk) {
	policies := []blueprint.OnTargetChange{blueprint.Cancel, blueprint.Wait, blueprint.Reject}
	if walk == blueprint.Each {
		policies = policies[1:]
	}
	var all []*blueprint.Blueprint
	for _, relation := range relations(n) {
		for _, kinds := range phaseKinds(n) {
			for _, onFailure := range []blueprint.OnFailure{blueprint.Continue, blueprint.Drain} {
				for _, onChange := range policies {
					for _, failure := range []string{"", "Broken"} {
						if walk == blueprint.Together || failure == "" { // each by itself always has one
							all = append(all, smallSystem(n, relation, kinds, walk, onFailure, onChange, failure))
						}
					}
				}
			}
		}
	}
	c.all = len(all)
	r := rand.New(rand.NewPCG(uint64(n), 7)) // the part that is taken is the same in every run
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, bp := range all[:min(len(all), c.systemsMax)] {
		c.system(bp, r)
		c.checked++
	}
}

func phaseKinds(n int) []string {
	all := []string{""}
	for range n {
		var longer []string
		for _, kinds := range all {
			for _, kind := range "pfg" { // plain, false, gated
				longer = append(longer, kinds+string(kind))
			}
		}
		all = longer
	}
	if n == 4 {
		all = slices.DeleteFunc(all, func(kinds string) bool { return strings.Count(kinds, "p") < 3 })
	}
	return all
}

// smallSystem's times are all the same, so that few distances between them can be.
func smallSystem(n int, relation uint32, kinds string, walk blueprint.Walk, onFailure blueprint.OnFailure, onChange blueprint.OnTargetChange, failure string) *blueprint.Blueprint {
	const tick = 10 * time.Second
	bp := &blueprint.Blueprint{Project: "p", Kind: "node", Digest: "v1"}
	if walk == blueprint.Each {
		bp.Lifecycle = blueprint.Service()
	} else {
		bp.Lifecycle = blueprint.Lifecycle{Name: "custom", Delete: "stop", Flows: []blueprint.Flow{
			{Verb: "start", Path: []string{"A"}, Target: "Started", Failure: failure},
			{Verb: "stop", Path: []string{"D"}, Target: "Off"},
		}}
	}
	bp.Lifecycle.OnFailure, bp.Lifecycle.OnTargetChange = onFailure, onChange
	phase := func(name string, states ...string) blueprint.Phase {
		return blueprint.Phase{
			Name: name, States: states, Executor: blueprint.Executor{Kind: "plugin"}, Undo: &blueprint.Executor{Kind: "plugin"}, Idempotent: true,
			Interval: tick, Lease: tick, Retry: blueprint.Retry{Delay: tick},
		}
	}
	for i := range n {
		ph := phase(string(rune('a'+i)), "A")
		for k := range i {
			if relation&(1<<(i*n+k)) != 0 {
				ph.DependsOn = append(ph.DependsOn, string(rune('a'+k)))
			}
		}
		switch kinds[i] {
		case 'f':
			ph.When = "false"
		case 'g':
			no := false
			ph.AutoDeploy = &no
		}
		if i == 0 {
			ph.Retry.Attempts, ph.Timeout = 1, 3*tick
		}
		if walk == blueprint.Each {
			ph.States = nil
		}
		bp.Phases = append(bp.Phases, ph)
	}
	if walk != blueprint.Each {
		bp.Phases = append(bp.Phases, phase("down", "D"))
	}
	return bp
}

// system visits the states of one, in any order, so that a part of them is not the shallow ones alone.
func (c *modelCheck) system(bp *blueprint.Blueprint, r *rand.Rand) {
	c.t.Helper()
	if wrong := blueprint.Validate(bp); len(wrong) > 0 {
		c.t.Fatalf("%+v: %+v", wrong, bp)
	}
	verbs := []string{"start", "stop", "retry", "retry all", "cancel", "interrupt", "delete", "approve"}
	if bp.Lifecycle.Walk == blueprint.Each {
		verbs = slices.Concat([]string{"deploy", "redeploy", "update", "decom", "reactivate"}, verbs[2:])
	}
	first := newWorld()
	first.define(bp)
	first.light = true
	if _, err := first.step(commandInput("apply", 0, began)); err != nil {
		c.t.Fatal(err)
	}
	ends := map[string]bool{}
	seen := map[string]bool{key(first): true}
	queue, cut := []*world{first}, false
	for len(queue) > 0 {
		last, next := len(queue)-1, r.IntN(len(queue))
		w := queue[next]
		queue[next], queue[last] = queue[last], nil
		queue = queue[:last]
		blame := func(in any, err error) {
			c.t.Fatalf("%v\nsystem\n%safter %s>%s phases %+v jobs %+v\non %+v", err, &story{versions: []*blueprint.Blueprint{bp}}, w.state.State, w.state.Target, w.state.Phases, w.state.Jobs, in)
		}
		if err := w.checkReasons(); err != nil {
			blame("what it is", err)
		}
		if err := c.fairEnd(w, ends); err != nil {
			blame("a fair world", err)
		}
		for _, in := range everything(w, verbs) {
			next := w.fork()
			fx, err := next.step(in)
			c.steps++
			if err != nil {
				blame(in, err)
			}
			if fx.Event == nil {
				continue
			}
			if in.Kind != resource.OnContinue {
				again := next.fork()
				if fx, err := again.step(in); err != nil || fx.Event != nil {
					blame(in, fmt.Errorf("the same again had an effect: %+v %w", fx.Event, err))
				}
			}
			if k := key(next); next.state.Exists() && !seen[k] {
				if cut = len(seen) >= c.statesMax; cut {
					continue
				}
				seen[k] = true
				queue = append(queue, next)
			}
		}
	}
	c.states += len(seen)
	if cut {
		c.cut++
	}
}

// fairEnd walks on from a state as a fair world does, until it has ended or comes to where others have ended.
func (c *modelCheck) fairEnd(w *world, ends map[string]bool) error {
	var way []string
	f, at := w.fork(), w.state.UpdatedAt
	for n := range 200 {
		k := key(f)
		if ends[k] || f.state.Job() == nil || !f.state.Exists() {
			for _, k := range append(way, k) {
				ends[k] = true
			}
			return nil
		}
		way = append(way, k)
		in := f.fair(at, n)
		at = in.At
		c.steps++
		if _, err := f.step(in); err != nil {
			return err
		}
	}
	return fmt.Errorf("its jobs do not end: %+v", f.state)
}

func commandInput(verb string, n int, at time.Time) resource.Input {
	id := verb + strconv.Itoa(n)
	verb, scope, _ := strings.Cut(verb, " ")
	return resource.Input{Kind: resource.OnCommand, At: at, Command: &resource.Command{
		Key: resource.Key{Project: "p", Kind: "node", Name: "n"}, Verb: verb, RequestID: id, JobID: id, Digest: id, NewUID: "u" + id, Scope: scope,
	}}
}

// everything is all that can be said to a resource now.
func everything(w *world, verbs []string) []resource.Input {
	at := w.state.UpdatedAt
	var inputs []resource.Input
	var polls []string
	for i := range w.state.Phases {
		name := w.state.Phases[i].Name
		f, out := w.outstanding(name)
		if !out {
			continue
		}
		polls = append(polls, name)
		for _, r := range []resource.Result{
			{Outcome: resource.OutcomeCompleted}, {Outcome: resource.OutcomeFailed}, {Outcome: resource.OutcomeFailed, Retryable: true},
			{Outcome: resource.OutcomePending}, {Outcome: resource.OutcomeRunning}, {Outcome: resource.OutcomeNotStarted},
		} {
			r.Fence = f
			inputs = append(inputs, resource.Input{Kind: resource.OnResult, At: at, Result: &r})
		}
		inputs = append(inputs, resource.Input{Kind: resource.OnLost, At: at, Lost: &f})
	}
	for _, late := range w.fences {
		if f, out := w.outstanding(late.Phase); !out || f != late {
			r := resource.Result{Fence: late, Outcome: resource.OutcomeCompleted}
			inputs = append(inputs, resource.Input{Kind: resource.OnResult, At: at, Result: &r})
			break
		}
	}
	for i, verb := range verbs {
		if w.state.Queued() > 0 && i < len(verbs)-4 {
			continue // one that waits shows what waiting is
		}
		in := commandInput(verb, int(w.state.Revision), at)
		inputs = append(inputs, in)
		if len(polls) > 0 && (verb == "cancel" || verb == "stop") {
			polled := commandInput(verb, int(w.state.Revision), at)
			polled.Polling = polls
			inputs = append(inputs, polled)
		}
	}
	if due := w.state.NextDue(); !due.IsZero() {
		if due.Before(at) {
			due = at
		}
		inputs = append(inputs, resource.Input{Kind: resource.OnDue, At: due})
	}
	return append(inputs, resource.Input{Kind: resource.OnContinue, At: at})
}

// key is the state without what only counts up. What it leaves out at most merges states, and so leaves some unvisited; it
// makes none that cannot be.
func key(w *world) string {
	s := &w.state
	var b []byte
	flags := func(is ...bool) {
		n := byte(0)
		for _, flag := range is {
			n <<= 1
			if flag {
				n |= 1
			}
		}
		b = append(b, n, ';')
	}
	distance := func(t time.Time) {
		if t.IsZero() {
			b = append(b, '-')
			return
		}
		b = strconv.AppendInt(b, max(-1, int64(t.Sub(s.UpdatedAt)/time.Second)), 10)
		b = append(b, ' ')
	}
	b = append(b, s.State...)
	b = append(b, '>')
	b = append(b, s.Target...)
	flags(w.more, !s.DeletedAt.IsZero(), s.WasDeployed, s.SucceededOnce)
	last, before := s.FlowJob(), ""
	for i := range s.Jobs {
		switch j := &s.Jobs[i]; {
		case !j.State.Final():
			b = append(b, j.Walks()...)
			b = append(b, byte('0'+j.State))
			flags(j.Canceling, j.Verb == "retry", j.Verb == "delete")
		case last != nil && j.ID == last.ID:
			b = append(b, j.Walks()...)
			b = append(b, byte('0'+j.State))
			flags(j.StartedAt.IsZero())
		case j.Blueprint != "" && !j.StartedAt.IsZero():
			before = j.Target // what the next may go on from
		}
	}
	if last != nil && last.StartedAt.IsZero() {
		b = append(b, before...)
	}
	for i := range s.Phases {
		p := &s.Phases[i]
		if !s.Separate && p.State != s.State && p.Status != resource.Canceling {
			continue // left behind: it is entered anew
		}
		b = append(b, p.Name...)
		b = append(b, byte('a'+p.Status), byte('0'+p.Retries))
		flags(p.InFlight, p.Retrying, p.Call == 0, p.Undo)
		distance(p.Due)
		distance(p.Deadline)
		if s.Separate {
			b = append(b, p.State...)
			of := s.JobByID(p.JobID)
			flags(of != nil && last != nil && of.ID == last.ID, of != nil && !of.State.Final(), of != nil)
		}
	}
	return string(b)
}
