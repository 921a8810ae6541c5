package resource_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestModel visits every state that small systems can be brought to (systems_test.go says which): one to four phases that
// depend on each other in every way there is, phases left out and gated ones, both policies of failure, all of target changes,
// both walks; and two states in a row. From each state all is said that can be said, as far as the bounds allow. What is
// counted must be what testdata/model holds, to the last state: one that is lost by a change of the engine, or of this model,
// is noticed.
//
// A run of go test takes a part, with tight bounds. DROVER_MODEL=all takes all (make model). DROVER_MODEL=more allows one
// more of everything that is bounded, and compares with nothing. DROVER_MODEL_SHAPE="3 each" takes the shapes whose names
// begin so. DROVER_MODEL_RECORD=1 writes what was counted.
func TestModel(t *testing.T) {
	t.Parallel()
	part := os.Getenv("DROVER_MODEL")
	plans := partPlans()
	switch part {
	case "":
		part = "part"
	case "all", "more":
		plans = allPlans()
	default:
		t.Fatalf("DROVER_MODEL=%s: neither all nor more", part)
	}
	if part == "more" {
		for i := range plans {
			plans[i].bounds = plans[i].bounds.more()
		}
	}
	table := newTable(t, "testdata/model/"+part+".txt", plans)
	for _, p := range plans {
		if !strings.HasPrefix(p.shape.String(), os.Getenv("DROVER_MODEL_SHAPE")) {
			continue
		}
		began := time.Now()
		c, err := p.run()
		if err != nil {
			t.Fatalf("%s: %v", p.shape, err)
		}
		table.row(p.shape.String(), p.bounds.String(), c, time.Since(began))
	}
	table.check()
}

// plan is one shape, and what may be done to its systems.
type plan struct {
	shape   shape
	systems []*blueprint.Blueprint
	bounds  bounds
}

// allPlans is the complete run. What one phase can do is finite, and taken as it is; so is what two do together, and by
// themselves where no job waits for another.
func allPlans() []plan {
	free := bounds{-1, -1, -1}
	var plans []plan
	for n := 1; n <= 4; n++ {
		for _, s := range shapes(n) {
			all := s.systems()
			take := func(b bounds, systems []*blueprint.Blueprint) { plans = append(plans, plan{s, systems, b}) }
			switch {
			case n == 1, n == 2 && s.walk == blueprint.Together:
				take(free, all)
			case n == 2:
				waits := func(bp *blueprint.Blueprint) bool { return bp.Lifecycle.OnTargetChange == blueprint.Wait }
				take(free, slices.DeleteFunc(slices.Clone(all), waits))
				take(bounds{3, 1, 1}, slices.DeleteFunc(all, func(bp *blueprint.Blueprint) bool { return !waits(bp) }))
			case n == 3:
				take(bounds{2, 1, 1}, all)
			default:
				take(bounds{2, 1, 0}, all)
			}
		}
	}
	return append(plans, plan{twoStates, twoStates.systems(), bounds{3, 1, 1}})
}

// partPlans is what every run of the tests takes: all shapes, of each the systems whose phases are all plain, with few
// commands; and one phase with more.
func partPlans() []plan {
	var plans []plan
	for n := 1; n <= 4; n++ {
		for _, s := range shapes(n) {
			systems := s.systems()
			b := map[int]bounds{1: {2, 1, 1}, 2: {2, 1, 0}, 3: {1, 1, 0}, 4: {1, 0, 0}}[n]
			if n > 1 {
				systems = systems[:len(systems)/len(phaseKinds(n))]
			}
			if n > 2 {
				systems = systems[:min(4, len(systems))]
			}
			plans = append(plans, plan{s, systems, b})
			if n == 1 {
				plans = append(plans, plan{s, systems, bounds{3, 0, 0}})
			}
		}
	}
	return plans
}

// run explores the systems, as many at once as there are processors.
func (p plan) run() (count, error) {
	counts, errs := make([]count, len(p.systems)), make([]error, len(p.systems))
	next := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range next {
				counts[i], errs[i] = newSearch(p.systems[i], true).run(p.bounds)
			}
		})
	}
	for i := range p.systems {
		next <- i
	}
	close(next)
	workers.Wait()
	var all count
	for _, c := range counts {
		all.add(c)
	}
	return all, errors.Join(errs...)
}

// table is what was counted, a row for each plan; rows are shown as they come, with their times.
type table struct {
	t     *testing.T
	file  string
	plans []plan
	rows  map[string]string // by system and bounds
	all   count
	took  time.Duration
}

const tableHead = "%-34s %-38s %8s %9s %12s %10s"

func newTable(t *testing.T, file string, plans []plan) *table {
	t.Helper()
	t.Log(strings.TrimSpace(fmt.Sprintf(tableHead, "system", "bounds", "systems", "states", "transitions", "held back") + "     time"))
	return &table{t: t, file: file, plans: plans, rows: map[string]string{}}
}

func rowName(name, bounds string) string { return fmt.Sprintf("%-34s %-38s", name, bounds) }

func (t *table) row(name, bounds string, c count, took time.Duration) {
	row := fmt.Sprintf("%s %8d %9d %12d %10d", rowName(name, bounds), c.systems, c.states, c.transitions, c.held)
	t.rows[rowName(name, bounds)] = row
	t.t.Logf("%s %7.1fs", row, took.Seconds())
	t.all.add(c)
	t.took += took
	if os.Getenv("DROVER_MODEL_RECORD") != "" {
		t.record()
	}
}

// keep reads the rows that are kept.
func (t *table) keep() map[string]string {
	t.t.Helper()
	text, err := os.ReadFile(t.file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.t.Fatal(err)
	}
	kept := map[string]string{}
	for row := range strings.Lines(string(text)) {
		kept[row[:len(rowName("", ""))]] = strings.TrimSuffix(row, "\n")
	}
	return kept
}

// record writes the rows that there are, beside those that were kept.
func (t *table) record() {
	t.t.Helper()
	kept := t.keep()
	text := fmt.Sprintf(tableHead, "system", "bounds", "systems", "states", "transitions", "held back") + "\n"
	for _, p := range t.plans {
		name := rowName(p.shape.String(), p.bounds.String())
		if row := cmp.Or(t.rows[name], kept[name]); row != "" {
			text += row + "\n"
		}
	}
	if err := os.WriteFile(t.file, []byte(text), 0o600); err != nil {
		t.t.Fatal(err)
	}
}

// check compares the rows with those that are kept.
func (t *table) check() {
	t.t.Helper()
	t.t.Logf("%s %8d %9d %12d %10d %7.1fs", rowName("all", ""), t.all.systems, t.all.states, t.all.transitions, t.all.held, t.took.Seconds())
	if strings.HasSuffix(t.file, "/more.txt") {
		return
	}
	if os.Getenv("DROVER_MODEL_RECORD") != "" {
		return
	}
	kept := t.keep()
	for _, name := range slices.Sorted(maps.Keys(t.rows)) {
		if kept[name] != t.rows[name] {
			t.t.Errorf("what can be reached has changed (%s; DROVER_MODEL_RECORD=1 writes it anew):\n  was %s\n  is  %s", t.file, kept[name], t.rows[name])
		}
	}
	if all := len(kept) - 1; all != len(t.plans) { // but the head
		t.t.Errorf("%s has %d rows for %d plans", t.file, all, len(t.plans))
	}
}

// bounds are what the world may do to a system, from its creation on: a bound on inputs, never on states. -1: as often as it
// likes.
type bounds struct {
	commands int // of users
	failures int // failed, failed and retryable, not started, lost; a timeout is none: time passes as it likes
	delays   int // pending, running: answers that end nothing
}

func (b bounds) String() string {
	text := func(n int, what string) string {
		if n < 0 {
			return "any " + what
		}
		return "<=" + strconv.Itoa(n) + " " + what
	}
	return text(b.commands, "commands") + ", " + text(b.failures, "failures") + ", " + text(b.delays, "delays")
}

// spend takes one input off the bounds; false: they do not allow it.
func (b bounds) spend(in *resource.Input) (bounds, bool) {
	of := (*int)(nil)
	switch {
	case in.Kind == resource.OnCommand:
		of = &b.commands
	case in.Kind == resource.OnLost:
		of = &b.failures
	case in.Kind == resource.OnResult && (in.Result.Outcome == resource.OutcomeFailed || in.Result.Outcome == resource.OutcomeNotStarted):
		of = &b.failures
	case in.Kind == resource.OnResult && (in.Result.Outcome == resource.OutcomePending || in.Result.Outcome == resource.OutcomeRunning):
		of = &b.delays
	}
	if of == nil || *of < 0 {
		return b, true
	}
	*of--
	return b, *of >= 0
}

// more allows one more of everything that is bounded.
func (b bounds) more() bounds {
	for _, n := range []*int{&b.commands, &b.failures, &b.delays} {
		if *n >= 0 {
			*n++
		}
	}
	return b
}

// atLeast reports whether b allows all that o allows.
func (b bounds) atLeast(o bounds) bool {
	return b.commands >= o.commands && b.failures >= o.failures && b.delays >= o.delays
}

// count is what an exploration found.
type count struct {
	systems, states, transitions int
	held                         int // inputs that the bounds did not allow
	gone                         int // times that it was deleted, and made again under the same name
}

func (c *count) add(o count) {
	c.systems += o.systems
	c.states += o.states
	c.transitions += o.transitions
	c.held += o.held
	c.gone += o.gone
}

// node is a state that was reached, and what may still be done to it.
type node struct {
	world *world
	left  bounds
}

// search explores one system.
type search struct {
	bp     *blueprint.Blueprint
	verbs  []string
	former former
	// seen holds of each form with how much left it was come to. What is come to again with no more left can do nothing that
	// is not seen; as those that have spent the least go first, that is the rule.
	seen  map[formID][]bounds
	ends  map[formID]struct{} // states from which a fair world was seen to end every job
	stack []node              // to be expanded
	later []node              // those that have spent one more
	count count
	// visit, if set, sees every step that leads to a state, before it is known whether that one is new.
	visit func(from node, in *resource.Input, to node)
}

func newSearch(bp *blueprint.Blueprint, symmetric bool) *search {
	s := &search{bp: bp, verbs: verbsOf(bp), seen: map[formID][]bounds{}, ends: map[formID]struct{}{}}
	s.former = former{bp: bp, names: symmetries(bp)}
	if !symmetric {
		s.former.names = s.former.names[:1]
	}
	return s
}

func verbsOf(bp *blueprint.Blueprint) []string {
	verbs := []string{"start", "stop"}
	if bp.Lifecycle.Walk == blueprint.Each {
		verbs = []string{"deploy", "redeploy", "update", "decom", "reactivate"}
	}
	return append(verbs, "retry", "retry all", "cancel", "interrupt", "delete", "approve", "apply")
}

// run visits every state that the bounds allow. In each: the audit, the reasons, a fair world that ends every job. At each
// step: the checks of world.step, and the same input again, which must have no effect.
func (s *search) run(b bounds) (count, error) {
	if wrong := blueprint.Validate(s.bp); len(wrong) > 0 {
		return count{}, fmt.Errorf("%+v: %+v", wrong, s.bp)
	}
	first := newWorld()
	first.define(s.bp)
	first.light = true
	if _, err := first.step(commandInput("apply", 0, began)); err != nil {
		return count{}, err
	}
	root := node{first, b}
	s.count.systems = 1
	s.reach(root, b)
	for len(s.stack) > 0 {
		n := s.stack[len(s.stack)-1]
		s.stack[len(s.stack)-1] = node{}
		s.stack = s.stack[:len(s.stack)-1]
		if err := s.expand(n); err != nil {
			return s.count, err
		}
		if len(s.stack) == 0 {
			s.stack, s.later = s.later, s.stack
		}
	}
	s.count.states = len(s.seen)
	return s.count, nil
}

func (s *search) blame(w *world, on string, err error) error {
	return fmt.Errorf("%w\nsystem\n%safter %s>%s\nphases %s\njobs %s\non %s", err, &story{versions: []*blueprint.Blueprint{s.bp}},
		w.state.State, w.state.Target, phasesText(&w.state), jobsText(&w.state), on)
}

func phasesText(s *resource.State) string {
	var all []string
	for i := range s.Phases {
		all = append(all, phaseText(s, &s.Phases[i]))
	}
	return strings.Join(all, ", ")
}

func jobsText(s *resource.State) string {
	var all []string
	for i := range s.Jobs {
		j := &s.Jobs[i]
		all = append(all, fmt.Sprintf("%s begun %t", jobText(j), !j.StartedAt.IsZero()))
	}
	return strings.Join(all, ", ")
}

func (s *search) expand(n node) error {
	if known := s.seen[s.former.id(&n.world.state)]; !slices.Contains(known, n.left) {
		return nil // it was come to with more left meanwhile
	}
	if err := n.world.checkReasons(); err != nil {
		return s.blame(n.world, "what it is", err)
	}
	if err := n.world.checkMark(); err != nil {
		return s.blame(n.world, "what it is", err)
	}
	if err := s.fairEnd(n.world); err != nil {
		return s.blame(n.world, "a fair world", err)
	}
	inputs := append(everything(n.world, s.verbs), late(n.world)...)
	for i := range inputs {
		in := &inputs[i]
		left, ok := n.left.spend(in)
		if !ok {
			s.count.held++
			continue
		}
		next := node{n.world.fork(), left}
		fx, err := next.world.step(*in)
		s.count.transitions++
		if err != nil {
			return s.blame(n.world, inputText(in), err)
		}
		if fx.Event == nil {
			continue // the state is what it was: checkEffects
		}
		if in.Kind != resource.OnContinue {
			if err := next.world.again(*in); err != nil {
				return s.blame(n.world, inputText(in), err)
			}
		}
		if s.visit != nil {
			s.visit(n, in, next)
		}
		if next.world.state.Gone {
			s.count.gone++
			if err := s.reborn(next.world); err != nil {
				return s.blame(n.world, inputText(in), err)
			}
		}
		if !next.world.state.Gone {
			s.reach(next, n.left)
		}
	}
	return nil
}

// reach notes a node, which came from one that had so much left, and has it expanded in its turn unless that means nothing
// new.
func (s *search) reach(n node, from bounds) {
	id := s.former.id(&n.world.state)
	known := s.seen[id]
	if slices.ContainsFunc(known, func(b bounds) bool { return b.atLeast(n.left) }) {
		return
	}
	s.seen[id] = append(slices.DeleteFunc(known, n.left.atLeast), n.left)
	if n.left == from {
		s.stack = append(s.stack, n)
	} else {
		s.later = append(s.later, n)
	}
}

// checkMark: a deletion that was canceled is no deletion; one that failed is (package doc, "Policies").
func (w *world) checkMark() error {
	canceled := false
	for i := range w.state.Jobs {
		if j := &w.state.Jobs[i]; j.Verb == resource.VerbDelete {
			canceled = j.State == job.Canceled
		}
	}
	if canceled && !w.state.DeletedAt.IsZero() {
		return errors.New("it is marked, and its deletion was canceled")
	}
	return nil
}

// again gives a world an input that it was just given: nothing may follow from it.
func (w *world) again(in resource.Input) error {
	in, env := w.prepare(in)
	if _, fx := resource.Step(w.state, in, env); fx.Event != nil {
		return fmt.Errorf("the same again had an effect: %+v", fx.Event)
	}
	return nil
}

// reborn makes a resource of the name of one that is gone: it must begin where any begins, and what is said of the earlier
// one must not reach it.
func (s *search) reborn(w *world) error {
	next := w.fork()
	in := commandInput("apply", int(w.state.Revision)+1000, w.state.UpdatedAt)
	if _, err := next.step(in); err != nil {
		return err
	}
	fresh := newWorld()
	fresh.define(s.bp)
	if _, err := fresh.step(commandInput("apply", 0, began)); err != nil {
		return err
	}
	if s.former.id(&next.state) != s.former.id(&fresh.state) {
		return fmt.Errorf("a resource of a name used again does not begin as any other: %+v", next.state)
	}
	start := commandInput(s.verbs[0], int(w.state.Revision)+1001, w.state.UpdatedAt)
	if _, err := next.step(start); err != nil {
		return err
	}
	for _, f := range w.fences {
		for _, late := range []resource.Input{
			{Kind: resource.OnResult, At: w.state.UpdatedAt, Result: &resource.Result{Fence: f, Outcome: resource.OutcomeCompleted}},
			{Kind: resource.OnLost, At: w.state.UpdatedAt, Lost: &f},
		} {
			if fx, err := next.fork().step(late); err != nil || fx.Event != nil {
				return fmt.Errorf("what was said of the earlier resource of this name counts: %s %w", inputText(&late), err)
			}
		}
	}
	return nil
}

// fairEnd walks on from a state as a fair world does, until it has ended or comes to where others have ended.
func (s *search) fairEnd(w *world) error {
	var way []formID
	f, at := w.fork(), w.state.UpdatedAt
	for n := range 200 {
		id := s.former.id(&f.state)
		_, ends := s.ends[id]
		if ends || f.state.Job() == nil || !f.state.Exists() {
			for _, id := range append(way, id) {
				s.ends[id] = struct{}{}
			}
			return nil
		}
		way = append(way, id)
		f.more = false // what one process remembers is no reason to go on; the state is
		in := f.fair(at, n)
		if more := (resource.Input{Kind: resource.OnContinue, At: at}); f.would(more) {
			in = more
		}
		at = in.At
		if _, err := f.step(in); err != nil {
			return err
		}
	}
	return fmt.Errorf("its jobs do not end: %+v", f.state)
}

// would reports whether an input has an effect.
func (w *world) would(in resource.Input) bool {
	in, env := w.prepare(in)
	_, fx := resource.Step(w.state, in, env)
	return fx.Event != nil
}

func commandInput(verb string, n int, at time.Time) resource.Input {
	id := verb + strconv.Itoa(n)
	verb, scope, _ := strings.Cut(verb, " ")
	c := resource.Command{
		Key: resource.Key{Project: "p", Kind: "node", Name: "n"}, Verb: verb, RequestID: id, JobID: id, Digest: id, NewUID: "u" + id,
	}
	if verb == resource.VerbApprove {
		c.Phase = scope
	} else {
		c.Scope = scope
	}
	return resource.Input{Kind: resource.OnCommand, At: at, Command: &c}
}

func inputText(in *resource.Input) string {
	switch {
	case in.Command != nil:
		return fmt.Sprintf("%+v polling %v", *in.Command, in.Polling)
	case in.Result != nil:
		return fmt.Sprintf("result %+v", *in.Result)
	case in.Lost != nil:
		return fmt.Sprintf("lost %+v", *in.Lost)
	}
	return fmt.Sprintf("input of kind %d at %s", in.Kind, since(in.At))
}

// late is an answer to the latest call that is over, if there was one: to one that was canceled and given up, too.
func late(w *world) []resource.Input {
	for _, late := range slices.Backward(w.fences) {
		if f, out := w.outstanding(late.Phase); !out || f != late {
			r := resource.Result{Fence: late, Outcome: resource.OutcomeCompleted}
			return []resource.Input{{Kind: resource.OnResult, At: w.state.UpdatedAt, Result: &r}}
		}
	}
	return nil
}

// everything is all that can be said to a resource now and that it may heed: every answer of every call that is out, its
// loss, every command, every time that the state names, a look (which is what an owner that begins anew does).
func everything(w *world, verbs []string) []resource.Input {
	s := &w.state
	at := s.UpdatedAt
	var inputs []resource.Input
	var polls, gated []string
	var times []time.Time
	for i := range s.Phases {
		p := &s.Phases[i]
		if p.Status == resource.Gated {
			gated = append(gated, p.Name)
		}
		for _, t := range []time.Time{p.Due, p.Deadline} {
			if t.Before(at) {
				t = at
			}
			if p.Status.Active() && (!p.Due.IsZero() || !p.Deadline.IsZero()) && !slices.Contains(times, t) {
				times = append(times, t)
			}
		}
		f, out := w.outstanding(p.Name)
		if !out {
			continue
		}
		polls = append(polls, p.Name)
		for _, r := range []resource.Result{
			{Outcome: resource.OutcomeCompleted}, {Outcome: resource.OutcomeFailed}, {Outcome: resource.OutcomeFailed, Retryable: true},
			{Outcome: resource.OutcomePending}, {Outcome: resource.OutcomeRunning}, {Outcome: resource.OutcomeNotStarted},
		} {
			r.Fence = f
			inputs = append(inputs, resource.Input{Kind: resource.OnResult, At: at, Result: &r})
		}
		inputs = append(inputs, resource.Input{Kind: resource.OnLost, At: at, Lost: &f})
	}
	command := func(verb string) { inputs = append(inputs, commandInput(verb, int(s.Revision), at)) }
	for _, verb := range verbs {
		_, starts := w.blueprints[w.present].Lifecycle.Flow(verb)
		starts = starts || strings.HasPrefix(verb, resource.VerbRetry)
		if n := s.Queued(); starts && n > 0 || n > 1 && verb == resource.VerbDelete {
			continue // one that waits shows what waiting is, and a deletion behind it
		}
		command(verb)
		if len(polls) > 0 && (verb == "cancel" || verb == "stop") {
			polled := commandInput(verb, int(s.Revision), at)
			polled.Polling = polls
			inputs = append(inputs, polled)
		}
	}
	if len(gated) > 1 {
		for _, name := range gated {
			command("approve " + name)
		}
	}
	if s.Queued() > 0 {
		c := commandInput("cancel", int(s.Revision), at)
		for i := range s.Jobs {
			if !s.Jobs[i].State.Final() {
				c.Command.Job = s.Jobs[i].ID // the last one that waits
			}
		}
		inputs = append(inputs, c)
	}
	for _, t := range times {
		inputs = append(inputs, resource.Input{Kind: resource.OnDue, At: t})
	}
	return append(inputs, resource.Input{Kind: resource.OnContinue, At: at})
}
