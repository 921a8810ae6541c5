package resource_test

import (
	"errors"
	"fmt"
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

// TestTwin drives Step and the twin with the same stories, and compares them after every input: the phases handed out and
// polled, the statuses, the state, the jobs, when time is due, and whether a command is accepted. DROVER_TWIN=n tells n
// stories instead; DROVER_TWIN_SEED=n tells that one alone.
func TestTwin(t *testing.T) {
	t.Parallel()
	stories := uint64(3000)
	if testing.Short() {
		stories = 500
	}
	first := uint64(0)
	if n, err := strconv.ParseUint(os.Getenv("DROVER_TWIN"), 10, 64); err == nil {
		stories = n
	}
	if n, err := strconv.ParseUint(os.Getenv("DROVER_TWIN_SEED"), 10, 64); err == nil {
		first, stories = n, 1
	}
	acts, accepted := 0, 0
	for seed := first; seed < first+stories; seed++ {
		s := newStory(seed)
		told, err := s.tell()
		acts, accepted = acts+told.acts, accepted+told.events
		if err == nil {
			continue
		}
		small := s.shrink()
		told, err = small.tell()
		t.Fatalf("seed %d (DROVER_TWIN_SEED=%d repeats it), shrunk from %d acts to %d: %v\n%s\n%s", seed, seed, len(s.acts), len(small.acts), err, small, told.log)
	}
	t.Logf("%d stories, %d acts, %d events", stories, acts, accepted)
}

// FuzzTwin looks for a story that the ones above do not have.
func FuzzTwin(f *testing.F) {
	f.Add(uint64(1) << 41)
	f.Fuzz(func(t *testing.T, seed uint64) {
		s := newStory(seed)
		if _, err := s.tell(); err != nil {
			small := s.shrink()
			told, err := small.tell()
			t.Fatalf("seed %d: %v\n%s\n%s", seed, err, small, told.log)
		}
	})
}

// act is one thing that happens, named so that it still means something when others are taken away.
type act struct {
	after    time.Duration
	kind     string // a verb, or answer, late, lost, again, define
	phase    string
	scope    string
	job      int // of those that are not final, counted from 1; 0: none named
	spec     string
	polling  bool // polls that sleep are out
	outcome  resource.Outcome
	retry    bool
	attr     string
	blue     int // for define: which version
	pastCall int // for late: how far back
}

func (a act) String() string {
	text := fmt.Sprintf("+%s %s", a.after, a.kind)
	if a.phase != "" {
		text += " " + a.phase
	}
	if a.kind == "answer" || a.kind == "late" {
		text += " " + a.outcome.String()
	}
	if a.retry {
		text += " retryable"
	}
	for name, value := range map[string]string{"scope": a.scope, "spec": a.spec, "attr": a.attr} {
		if value != "" {
			text += " " + name + "=" + value
		}
	}
	if a.job > 0 {
		text += " job=#" + strconv.Itoa(a.job)
	}
	if a.polling {
		text += " polling"
	}
	return text
}

// story is a blueprint, its later versions, and what happens.
type story struct {
	versions []*blueprint.Blueprint
	acts     []act
}

func (s *story) String() string {
	var b strings.Builder
	for _, bp := range s.versions {
		l := bp.Lifecycle
		fmt.Fprintf(&b, "blueprint %s: %s walk=%q on_target_change=%s on_failure=%s rerun=%q delete=%s\n", bp.Digest, l.Name, l.Walk, l.OnTargetChange, l.OnFailure, l.Rerun, l.Delete)
		for _, f := range l.Flows {
			fmt.Fprintf(&b, "  flow %+v\n", f)
		}
		for _, p := range bp.Phases {
			auto := "-"
			if p.AutoDeploy != nil {
				auto = strconv.FormatBool(*p.AutoDeploy)
			}
			fmt.Fprintf(&b, "  phase %s states=%v dependsOn=%v when=%s timeout=%s retry=%d idempotent=%t undo=%t auto=%s\n", p.Name, p.States, p.DependsOn, p.When, p.Timeout, p.Retry.Attempts, p.Idempotent, p.Undo != nil, auto)
		}
	}
	for _, a := range s.acts {
		fmt.Fprintf(&b, "  %s\n", a)
	}
	return b.String()
}

// newStory draws one.
func newStory(seed uint64) *story {
	k := &walker{r: rand.New(rand.NewPCG(seed, 9)), w: newWorld(), now: began}
	k.twinShape()
	s := &story{versions: []*blueprint.Blueprint{k.blueprint()}}
	for k.lifecycle.Walk == blueprint.Each && len(s.versions[0].Phases) == 0 { // where nothing walks there are no rules
		s.versions[0] = k.blueprint()
	}
	for _, bp := range s.versions {
		for i := range bp.Phases {
			if p := &bp.Phases[i]; p.Gated() || p.AutoDeploy == nil || k.lifecycle.Walk == blueprint.Each {
				continue
			}
			bp.Phases[i].AutoDeploy = nil
		}
	}
	s.acts = append(s.acts, act{kind: "apply", spec: "s0"})
	for range 40 {
		s.acts = append(s.acts, k.act(len(s.versions)))
	}
	return s
}

// twinShape draws the lifecycle.
func (k *walker) twinShape() {
	switch n := k.r.IntN(100); {
	case n < 35:
		k.lifecycle = blueprint.Service()
		k.lifecycle.OnFailure = pick(k.r, []blueprint.OnFailure{blueprint.Continue, blueprint.Drain})
		k.lifecycle.OnTargetChange = pick(k.r, []blueprint.OnTargetChange{blueprint.Reject, blueprint.Wait})
	case n < 50:
		k.lifecycle = pick(k.r, []blueprint.Lifecycle{blueprint.Installation(), blueprint.Execution(), blueprint.DeployItem()})
	default:
		k.custom()
		// A target that is a state of another way as well is left to the walks: whether its phases show there is a matter of taste.
		k.lifecycle.Flows = slices.DeleteFunc(k.lifecycle.Flows, func(f blueprint.Flow) bool { return f.Verb == "park" })
		k.lifecycle.OnTargetChange = pick(k.r, []blueprint.OnTargetChange{blueprint.Cancel, blueprint.Cancel, blueprint.Wait, blueprint.Reject})
	}
	for i := range k.lifecycle.Flows {
		f := &k.lifecycle.Flows[i]
		k.verbs = append(k.verbs, f.Verb)
		if i < 2 {
			k.verbs = append(k.verbs, f.Verb, f.Verb)
		}
	}
}

func (k *walker) act(versions int) act {
	a := act{phase: string(rune('a' + k.r.IntN(5)))}
	switch n := k.r.IntN(100); {
	case n < 50:
	case n < 80:
		a.after = time.Duration(1+k.r.IntN(8)) * time.Second
	default:
		a.after = time.Duration(k.r.IntN(40)) * time.Second
	}
	switch n := k.r.IntN(100); {
	case n < 62:
		a.kind, a.retry = "answer", k.chance(50)
		a.outcome = pick(k.r, []resource.Outcome{
			resource.OutcomeCompleted, resource.OutcomeCompleted, resource.OutcomeCompleted, resource.OutcomeCompleted, resource.OutcomeFailed,
			resource.OutcomePending, resource.OutcomeRunning, resource.OutcomeNotStarted,
		})
		begun := a.outcome != resource.OutcomeNotStarted && a.outcome != resource.OutcomeRunning // else it has nothing to keep
		if begun && k.chance(20) {
			a.attr = pick(k.r, []string{"x", "y"})
		}
	case n < 66:
		a.kind, a.pastCall, a.outcome = "late", 1+k.r.IntN(6), pick(k.r, resource.Outcomes())
	case n < 70:
		a.kind = "lost"
	case n < 73:
		a.kind = "again"
	case n < 75 && versions > 1:
		a.kind, a.blue = "define", k.r.IntN(versions)
	default:
		verbs := slices.Concat(k.verbs, k.verbs, []string{"retry", "retry", "retry", "cancel", "interrupt", "delete", "apply", "approve", "approve", "dance"})
		a.kind, a.polling = pick(k.r, verbs), k.chance(50)
		switch a.kind {
		case "retry":
			a.scope = pick(k.r, []string{"", "", "failed", "all", "most"})
		case "cancel", "interrupt":
			a.job = k.r.IntN(4)
		case "apply":
			a.spec = "s" + strconv.Itoa(k.r.IntN(3))
		case "approve":
			if k.chance(50) {
				a.phase = ""
			}
		}
		if a.kind != "approve" {
			a.phase = ""
		}
	}
	return a
}

// told is what came of a story.
type outcome struct {
	acts, events int
	log          string
}

// tell tells a story to both, and returns where they differ.
func (s *story) tell() (told outcome, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf("panic: %v", broken)
		}
	}()
	var log strings.Builder
	defer func() { told.log = log.String() }()
	w, m := newWorld(), &twin{blueprints: map[string]*blueprint.Blueprint{}}
	w.light = true
	define := func(bp *blueprint.Blueprint) {
		w.define(bp)
		m.blueprints[bp.Digest], m.present = bp, bp.Digest
	}
	define(s.versions[0])
	now, requests := began, 0
	var last *resource.Input
	for _, a := range s.acts {
		now = now.Add(a.after)
		if due := w.state.NextDue(); w.state.Exists() && !due.IsZero() && !due.After(now) {
			if err := both(w, m, resource.Input{Kind: resource.OnDue, At: now}, true, &log, &told); err != nil {
				return told, err
			}
		}
		if a.kind == "define" {
			define(s.versions[min(a.blue, len(s.versions)-1)])
			continue
		}
		in, counts := s.input(a, w, now, &requests, last)
		if in == nil {
			continue
		}
		fmt.Fprintf(&log, "%s %s\n", since(now), a)
		told.acts++
		if err := both(w, m, *in, counts, &log, &told); err != nil {
			return told, err
		}
		if counts && !m.refused && (a.kind != "answer" || a.outcome != resource.OutcomeRunning && a.outcome != resource.OutcomePending) {
			last = in
		}
	}
	return told, nil
}

// input makes an act one of the engine's inputs; nil where it means nothing now. counts: the twin is told as well; what is
// late or repeated it need not hear of, as nothing may come of it.
func (s *story) input(a act, w *world, now time.Time, requests *int, last *resource.Input) (in *resource.Input, counts bool) {
	in = &resource.Input{At: now}
	out, isOut := w.outstanding(a.phase)
	for i := 0; !isOut && i < len(w.state.Phases); i++ { // that one is not out: another
		out, isOut = w.outstanding(w.state.Phases[i].Name)
	}
	switch a.kind {
	case "again":
		if last == nil {
			return nil, false
		}
		again := *last
		again.At = now
		return &again, false
	case "late":
		if len(w.fences) < a.pastCall {
			return nil, false
		}
		f := w.fences[len(w.fences)-a.pastCall]
		if live, ok := w.outstanding(f.Phase); ok && live == f {
			return nil, false
		}
		in.Kind, in.Result = resource.OnResult, &resource.Result{Fence: f, Outcome: a.outcome, Attributes: map[string]string{"late": "1"}}
		return in, false
	case "lost":
		if !isOut {
			return nil, false
		}
		in.Kind, in.Lost = resource.OnLost, &out
		return in, true
	case "answer":
		if !isOut {
			return nil, false
		}
		in.Kind, in.Result = resource.OnResult, &resource.Result{Fence: out, Outcome: a.outcome, Retryable: a.retry}
		if w.callsBack(in.Result) && a.retry { // by the attempt: it makes no difference
			in.Result.Fence.Call = 0
		}
		if a.attr != "" {
			in.Result.Attributes = map[string]string{a.attr: "1"}
		}
		return in, true
	}
	*requests++
	id := "r" + strconv.Itoa(*requests)
	in.Kind = resource.OnCommand
	in.Command = &resource.Command{
		Key: resource.Key{Project: "p", Kind: "node", Name: "n"}, Verb: a.kind, RequestID: id, JobID: "j" + id, Digest: "d" + id,
		NewUID: "u" + id, SpecDigest: a.spec, Scope: a.scope, Phase: a.phase,
	}
	if a.polling {
		for i := range w.state.Phases {
			in.Polling = append(in.Polling, w.state.Phases[i].Name)
		}
	}
	n := 0
	for i := range w.state.Jobs {
		if !w.state.Jobs[i].State.Final() {
			if n++; n == a.job {
				in.Command.Job = w.state.Jobs[i].ID
			}
		}
	}
	return in, true
}

// both tells one input to both, the engine until it asks for no more, and compares.
func both(w *world, m *twin, in resource.Input, counts bool, log *strings.Builder, told *outcome) error {
	var handed, polled []string
	refused := false
	next := in
	for n := 0; ; n++ {
		fx, err := w.step(next)
		if err != nil {
			return fmt.Errorf("the engine's own checks: %w", err)
		}
		if fx.Event != nil {
			told.events++
			if fx.Event.Dispatch != nil {
				handed = append(handed, fx.Event.Dispatch.Fence.Phase)
			}
		}
		for _, f := range fx.Polls {
			polled = append(polled, f.Phase)
		}
		refused = refused || fx.Reply != nil && fx.Reply.Refused != nil
		if !fx.More {
			break
		}
		if n > 300 {
			return errors.New("the engine wants to be continued for ever")
		}
		next = resource.Input{Kind: resource.OnContinue, At: in.At}
	}
	before := m.text() + m.jobText(w)
	if counts {
		m.tell(in)
	} else {
		m.handed, m.polled, m.refused = nil, nil, refused
	}
	slices.Sort(handed)
	slices.Sort(polled)
	slices.Sort(m.handed)
	slices.Sort(m.polled)
	engine := fmt.Sprintf("%s%s handed=%v polled=%v refused=%t", engineText(&w.state), recordText(w), handed, polled, refused)
	twins := fmt.Sprintf("%s%s handed=%v polled=%v refused=%t", m.text(), m.jobText(w), m.handed, m.polled, m.refused)
	fmt.Fprintf(log, "      %s\n", engine)
	if engine != twins {
		return fmt.Errorf("they differ:\n before %s\n engine %s\n twin   %s", before, engine, twins)
	}
	return nil
}

// engineText renders the engine's state as the twin renders itself.
func engineText(s *resource.State) string {
	if !s.Exists() {
		return "gone"
	}
	var b strings.Builder
	b.WriteString("state=" + s.State)
	if !s.DeletedAt.IsZero() {
		b.WriteString(" deleted")
	}
	if s.WasDeployed {
		b.WriteString(" deployed")
	}
	var phases []string
	for i := range s.Phases {
		if p := &s.Phases[i]; s.Separate || p.Status == resource.Canceling || p.State == s.State && (s.State != s.Target || s.Job() != nil) {
			phases = append(phases, partText(p.Name, p.Status, p.InFlight, p.State))
		}
	}
	slices.Sort(phases)
	b.WriteString(" " + strings.Join(phases, " "))
	if due := s.NextDue(); !due.IsZero() {
		b.WriteString(" due=" + since(due))
	}
	return b.String()
}

// recordText is the jobs that the state remembers, as their records say.
func recordText(w *world) string {
	var b strings.Builder
	for i := range w.state.Jobs {
		b.WriteString(" " + w.state.Jobs[i].ID + "=" + w.state.Jobs[i].State.String())
	}
	for i := range w.state.Jobs {
		if r := w.records[w.state.Jobs[i].ID]; r.State != w.state.Jobs[i].State {
			b.WriteString(" record of " + r.ID + "=" + r.State.String())
		}
	}
	return b.String()
}

// jobText is the same of the twin, which forgets no job, for those that the engine remembers; and all that are not final.
func (m *twin) jobText(w *world) string {
	var b strings.Builder
	for _, j := range m.jobs {
		if w.state.JobByID(j.id) != nil || !j.state.Final() {
			b.WriteString(" " + j.id + "=" + j.state.String())
		}
	}
	return b.String()
}

// shrink takes away what is not needed for the two to differ.
func (s *story) shrink() *story {
	fails := func(c *story) bool {
		for _, bp := range c.versions {
			if len(blueprint.Validate(bp)) > 0 || bp.Lifecycle.Walk == blueprint.Each && len(bp.Phases) == 0 {
				return false
			}
		}
		_, err := c.tell()
		return err != nil
	}
	best := s
	for smaller := true; smaller; {
		smaller = false
		for n := len(best.acts) / 2; n > 0; n /= 2 {
			for i := 0; i+n <= len(best.acts); {
				c := &story{versions: best.versions, acts: slices.Concat(best.acts[:i], best.acts[i+n:])}
				if fails(c) {
					best, smaller = c, true
				} else {
					i += n
				}
			}
		}
		for _, c := range best.simpler() {
			if fails(c) {
				best, smaller = c, true
				break
			}
		}
	}
	return best
}

// simpler are the stories with one thing less in a blueprint or an act.
func (s *story) simpler() []*story {
	var all []*story
	with := func(v int, change func(*blueprint.Blueprint)) {
		c := &story{versions: slices.Clone(s.versions), acts: s.acts}
		bp := *c.versions[v]
		bp.Phases, bp.Lifecycle.Flows = slices.Clone(bp.Phases), slices.Clone(bp.Lifecycle.Flows)
		change(&bp)
		c.versions[v] = &bp
		all = append(all, c)
	}
	if len(s.versions) > 1 {
		all = append(all, &story{versions: s.versions[:1], acts: s.acts})
	}
	for v, bp := range s.versions {
		for i, p := range bp.Phases {
			with(v, func(b *blueprint.Blueprint) {
				b.Phases = slices.Delete(b.Phases, i, i+1)
				for k := range b.Phases {
					b.Phases[k].DependsOn = slices.DeleteFunc(slices.Clone(b.Phases[k].DependsOn), func(n string) bool { return n == p.Name })
				}
			})
			set := func(needed bool, change func(*blueprint.Phase)) {
				if needed {
					with(v, func(b *blueprint.Blueprint) { change(&b.Phases[i]) })
				}
			}
			set(len(p.DependsOn) > 0, func(p *blueprint.Phase) { p.DependsOn = nil })
			set(len(p.States) > 1, func(p *blueprint.Phase) { p.States = p.States[:1] })
			set(p.When != "", func(p *blueprint.Phase) { p.When = "" })
			set(p.Timeout > 0, func(p *blueprint.Phase) { p.Timeout = 0 })
			set(p.Retry.Attempts > 0, func(p *blueprint.Phase) { p.Retry.Attempts = 0 })
			set(p.AutoDeploy != nil, func(p *blueprint.Phase) { p.AutoDeploy = nil })
			set(!p.Idempotent, func(p *blueprint.Phase) { p.Idempotent = true })
		}
		for i, f := range bp.Lifecycle.Flows {
			if bp.Lifecycle.Name == "custom" {
				if f.Undo || f.Reverse || f.WasDeployed != "" {
					with(v, func(b *blueprint.Blueprint) {
						f := &b.Lifecycle.Flows[i]
						f.Undo, f.Reverse, f.WasDeployed = false, false, ""
					})
				}
				if f.Failure != "" {
					with(v, func(b *blueprint.Blueprint) { b.Lifecycle.Flows[i].Failure = "" })
				}
			}
		}
	}
	for i, a := range s.acts {
		if a.after > 0 {
			c := &story{versions: s.versions, acts: slices.Clone(s.acts)}
			c.acts[i].after = 0
			all = append(all, c)
		}
	}
	return all
}
