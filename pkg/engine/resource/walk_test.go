package resource_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestWalks drives random small blueprints with random inputs: right, stale, doubled, out of order, early and late.
// After every step the world checks it (world.step), and in the end a fair world must bring the job to its end.
func TestWalks(t *testing.T) {
	t.Parallel()
	walks, steps := 700, 60
	if testing.Short() {
		walks = 100
	}
	for seed := range uint64(walks) {
		if err := walk(seed, steps); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// FuzzWalk looks for a seed that the walks above do not have.
func FuzzWalk(f *testing.F) {
	f.Add(uint64(1) << 40)
	f.Fuzz(func(t *testing.T, seed uint64) {
		if err := walk(seed, 200); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	})
}

func walk(seed uint64, steps int) error {
	k := &walker{r: rand.New(rand.NewPCG(seed, 3)), w: newWorld(), now: began}
	k.shape()
	k.w.define(k.blueprint())
	for range steps {
		in := k.input()
		k.story = append(k.story, told{in, k.w.state})
		if _, err := k.w.step(in); err != nil {
			return fmt.Errorf("%w\n%s", err, k)
		}
	}
	if _, err := k.w.settle(k.now, 400); err != nil {
		return fmt.Errorf("settling: %w\n%s", err, k)
	}
	return nil
}

type walker struct {
	r         *rand.Rand
	w         *world
	now       time.Time
	lifecycle blueprint.Lifecycle
	verbs     []string
	versions  int
	requests  int
	commands  []resource.Command
	results   []resource.Result
	story     []told
}

// told is an input, and the state that it came to.
type told struct {
	in    resource.Input
	state resource.State
}

// String is what led to a failure.
func (k *walker) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "blueprint %+v", *k.w.blueprints[k.w.present])
	for _, t := range append(k.story[max(0, len(k.story)-12):], told{state: k.w.state}) {
		fmt.Fprintf(&b, "\n  %s>%s", t.state.State, t.state.Target)
		for i := range t.state.Phases {
			b.WriteString(" " + phaseText(&t.state, &t.state.Phases[i]))
		}
		for i := range t.state.Jobs {
			b.WriteString(", " + jobText(&t.state.Jobs[i]))
		}
		switch in := t.in; {
		case in.Command != nil:
			fmt.Fprintf(&b, "\n%s %s %s scope=%q polling=%v", since(in.At), in.Command.Verb, in.Command.JobID, in.Command.Scope, in.Polling)
		case in.Result != nil:
			fmt.Fprintf(&b, "\n%s %s of %s retryable=%t", since(in.At), in.Result.Outcome, fenceText(in.Result.Fence), in.Result.Retryable)
		case in.Lost != nil:
			fmt.Fprintf(&b, "\n%s lost %s", since(in.At), fenceText(*in.Lost))
		case in.Kind != 0:
			fmt.Fprintf(&b, "\n%s %s", since(in.At), map[resource.InputKind]string{resource.OnDue: "due", resource.OnContinue: "continue"}[in.Kind])
		}
	}
	return b.String()
}

func (k *walker) chance(percent int) bool { return k.r.IntN(100) < percent }

func pick[E any](r *rand.Rand, of []E) E { return of[r.IntN(len(of))] }

// shape draws the lifecycle, which all versions of the blueprint share.
func (k *walker) shape() {
	switch n := k.r.IntN(100); {
	case n < 20:
		k.lifecycle = blueprint.Service()
		k.lifecycle.OnFailure = pick(k.r, []blueprint.OnFailure{blueprint.Continue, blueprint.Drain})
	case n < 30:
		k.lifecycle = pick(k.r, []blueprint.Lifecycle{blueprint.Installation(), blueprint.Execution(), blueprint.DeployItem()})
	default:
		k.custom()
	}
	if k.chance(20) {
		k.lifecycle.OnTargetChange = blueprint.Reject
	} else if k.chance(20) {
		k.lifecycle.OnTargetChange = blueprint.Wait
	}
	for i := range k.lifecycle.Flows {
		f := &k.lifecycle.Flows[i]
		k.verbs = append(k.verbs, f.Verb, f.Verb, f.Verb)
	}
}

func (k *walker) custom() {
	up := []string{"A", "B", "C"}[:1+k.r.IntN(3)]
	down := []string{"D"}
	switch k.r.IntN(6) {
	case 0: // a way down that passes states of the way up
		down = []string{"D", up[0]}
	case 1:
		down = nil // nothing to do on the way
	}
	k.lifecycle = blueprint.Lifecycle{
		Name: "custom",
		Flows: []blueprint.Flow{
			{Verb: "start", Path: up, Target: "Started"},
			{Verb: "stop", Path: down, Target: "Off"},
		},
		OnTargetChange: blueprint.Cancel,
		OnFailure:      pick(k.r, []blueprint.OnFailure{blueprint.Continue, blueprint.Drain}),
	}
	if k.chance(85) {
		k.lifecycle.Delete = "stop"
	}
	if k.chance(30) { // another way to the same target
		k.lifecycle.Flows = append(k.lifecycle.Flows, blueprint.Flow{Verb: "restart", From: []string{"Started"}, Path: []string{"D", up[len(up)-1]}, Target: "Started"})
	}
	if k.chance(20) { // a target that lies on the way of another flow
		k.lifecycle.Flows = append(k.lifecycle.Flows, blueprint.Flow{Verb: "park", Path: []string{"D"}, Target: up[0]})
	}
	for i := range k.lifecycle.Flows {
		f := &k.lifecycle.Flows[i]
		if k.chance(25) {
			f.Failure = "Broken"
		}
		f.Undo, f.Reverse = k.chance(10), k.chance(20)
		f.WasDeployed = pick(k.r, []blueprint.WasDeployed{"", "", blueprint.WasNot, blueprint.WasIndeed, blueprint.ByItsPast})
	}
	if k.chance(20) {
		k.lifecycle.Rerun = blueprint.RerunAll
	}
	k.lifecycle.OnCreate, k.lifecycle.OnChange = "start", pick(k.r, []string{"", "start", "stop"})
}

// blueprint draws the phases of one version.
func (k *walker) blueprint() *blueprint.Blueprint {
	k.versions++
	bp := &blueprint.Blueprint{Project: "p", Kind: "node", Digest: "v" + strconv.Itoa(k.versions), Lifecycle: k.lifecycle}
	var states []string
	for _, f := range k.lifecycle.Flows {
		for _, s := range f.Path {
			if !slices.Contains(states, s) {
				states = append(states, s)
			}
		}
	}
	for i := range k.r.IntN(6) {
		ph := blueprint.Phase{Name: string(rune('a' + i)), States: []string{pick(k.r, states)}, Executor: blueprint.Executor{Kind: "plugin"}}
		if other := pick(k.r, states); k.chance(30) && !slices.Contains(ph.States, other) {
			ph.States = append(ph.States, other)
		}
		each := k.lifecycle.Walk == blueprint.Each
		if each {
			ph.States = nil
		}
		for _, earlier := range bp.Phases {
			if each && k.versions%2 == 0 && k.chance(30) || k.chance(40) && slices.ContainsFunc(earlier.States, func(s string) bool { return slices.Contains(ph.States, s) }) {
				ph.DependsOn = append(ph.DependsOn, earlier.Name)
			}
		}
		if k.chance(30) {
			ph.When = pick(k.r, []string{"true", "false", "has(x)", "has(y)", "error"})
		}
		if k.chance(40) {
			ph.Timeout = time.Duration(1+k.r.IntN(60)) * time.Second
		}
		if k.chance(40) {
			ph.Retry.Attempts = 1 + k.r.IntN(2)
		}
		ph.Idempotent, ph.Executor.Callback = k.chance(60), k.chance(25)
		if k.chance(80) {
			ph.Undo = &blueprint.Executor{Kind: "plugin", Callback: k.chance(25)}
		}
		if auto := k.chance(60); k.chance(30) {
			ph.AutoDeploy = &auto
		}
		bp.Phases = append(bp.Phases, ph)
	}
	k.r.Shuffle(len(bp.Phases), func(i, j int) { bp.Phases[i], bp.Phases[j] = bp.Phases[j], bp.Phases[i] })
	if wrong := blueprint.Validate(bp); len(wrong) > 0 {
		panic(fmt.Sprintf("%+v of %+v", wrong, bp))
	}
	return bp
}

func (k *walker) input() resource.Input {
	switch n := k.r.IntN(100); {
	case n < 70:
		k.now = k.now.Add(time.Duration(k.r.IntN(3000)) * time.Millisecond)
	case n < 75:
		k.now = k.now.Add(time.Duration(k.r.IntN(90)) * time.Second)
	case n < 80:
		if due := k.w.state.NextDue(); due.After(k.now) {
			k.now = due
		}
	}
	in := resource.Input{At: k.now}
	if k.chance(5) {
		in.At = in.At.Add(-time.Duration(k.r.IntN(120)) * time.Second) // a clock that was set back
	}
	if k.chance(3) {
		k.w.define(k.blueprint())
	}
	if k.w.more && k.chance(80) {
		in.Kind = resource.OnContinue
		return in
	}
	switch n := k.r.IntN(100); {
	case n < 22 || !k.w.state.Exists() && n < 80:
		in.Kind, in.Command = resource.OnCommand, k.command()
		for i := range k.w.state.Phases {
			if k.chance(50) {
				in.Polling = append(in.Polling, k.w.state.Phases[i].Name)
			}
		}
	case n < 78:
		in.Kind, in.Result = resource.OnResult, k.result()
	case n < 88:
		in.Kind = resource.OnDue
	case n < 94:
		in.Kind = resource.OnContinue
	default:
		in.Kind, in.Lost = resource.OnLost, k.fence()
	}
	return in
}

func (k *walker) command() *resource.Command {
	if len(k.commands) > 0 && k.chance(8) {
		c := pick(k.r, k.commands) // the same again
		if k.chance(30) {
			c.Digest += "!" // another body under its id
		}
		return &c
	}
	k.requests++
	id := "r" + strconv.Itoa(k.requests)
	verbs := append([]string{"retry", "retry", "retry", "cancel", "interrupt", "delete", "apply", "apply", "approve", "approve", "dance"}, k.verbs...)
	c := resource.Command{
		Key: resource.Key{Project: "p", Kind: "node", Name: "n"}, Verb: pick(k.r, verbs), RequestID: id, JobID: "j" + id,
		Digest: "d" + id, NewUID: "u" + id, SpecDigest: "s" + strconv.Itoa(k.r.IntN(3)), Scope: pick(k.r, []string{"", "failed", "all", "most"}),
	}
	if !k.w.state.Exists() && k.chance(80) {
		c.Verb = "apply"
	}
	if c.Verb == "approve" && k.chance(50) {
		c.Phase = string(rune('a' + k.r.IntN(4)))
	}
	if jobs := k.w.state.Jobs; (c.Verb == "cancel" || c.Verb == "interrupt") && len(jobs) > 0 && k.chance(50) {
		c.Job = pick(k.r, jobs).ID
	}
	k.commands = append(k.commands, c)
	return &c
}

// fence is mostly one that an answer is awaited for, else an old one, or one that never was.
func (k *walker) fence() *resource.Fence {
	var out []resource.Fence
	for i := range k.w.state.Phases {
		if f, ok := k.w.outstanding(k.w.state.Phases[i].Name); ok {
			out = append(out, f)
		}
	}
	switch {
	case len(out) > 0 && k.chance(80):
		f := pick(k.r, out)
		return &f
	case len(k.w.fences) > 0 && k.chance(70):
		f := pick(k.r, k.w.fences)
		return &f
	case len(out) > 0:
		f := pick(k.r, out)
		switch k.r.IntN(5) {
		case 0:
			f.UID += "x"
		case 1:
			f.JobID += "x"
		case 2:
			f.Phase += "x"
		case 3:
			f.Attempt++
		case 4:
			f.Call++
		}
		return &f
	}
	return &resource.Fence{}
}

func (k *walker) result() *resource.Result {
	if len(k.results) > 0 && k.chance(8) {
		// An answer that comes again. One that says "pending" cannot be told from a new one, as all polls of a call
		// share its fence; it may only repeat what it said.
		r := pick(k.r, k.results)
		return &r
	}
	f := k.fence()
	r := resource.Result{Fence: *f, Retryable: k.chance(50)}
	r.Outcome = pick(k.r, []resource.Outcome{
		resource.OutcomeCompleted, resource.OutcomeCompleted, resource.OutcomeCompleted, resource.OutcomeFailed,
		resource.OutcomePending, resource.OutcomeRunning, resource.OutcomeNotStarted,
	})
	if k.w.callsBack(&r) && k.chance(60) {
		r.Fence.Call = 0
	}
	if k.chance(20) {
		r.Attributes = map[string]string{pick(k.r, []string{"x", "y"}): pick(k.r, []string{"1", "null"})}
	}
	if k.chance(20) {
		r.Data = map[string]string{"op": pick(k.r, []string{"1", "2", "null"})}
	}
	if k.chance(3) {
		r.Outputs = map[string]string{"log": strings.Repeat("x", resource.OutputsBytesMax)}
	}
	if k.chance(20) {
		r.Message = pick(k.r, []string{"a", "b"})
	}
	if k.chance(20) {
		r.Delay = time.Duration(k.r.IntN(40)) * time.Second
	}
	k.results = append(k.results, r)
	return &r
}
