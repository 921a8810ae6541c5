package deployment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// The model: one instance, up to so many versions, everything that can be said of it in every state that can be reached. After
// each step the audit holds; what is said again changes nothing; a fair world brings every state to an end, or Why names a
// dead end.

const versionsModeled = 3

var modelEnv = Env{ConfigurationID: func(_ string, version uint64) string { return fmt.Sprint("c", version) }}

// at is one time for everything but the last burial: time is no part of a state's identity.
var at = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func detailsOf(n uint64) *Details {
	return &Details{Repository: "r", CheckConfig: CheckConfig{Interval: n}, CheckInstance: CheckInstance{Version: n}}
}

// order is the order of a generation; the content of two generations differs unless same says otherwise.
func orderOf(generation, content uint64, p Policy) Input {
	return Input{Kind: OnOrder, At: at, Order: &Order{
		Project: "p", ID: "i", Key: Key{Check: "k", CheckUID: "ku", Object: "o", ObjectUID: "ou", System: "eye"},
		Generation: generation, ObjectRevision: 1, Policy: p, Details: detailsOf(content),
	}}
}

// inputs is everything that can be said in a state.
func inputs(s *State, p Policy) []Input {
	var all []Input
	for _, k := range Kinds() {
		switch k {
		case OnOrder:
			if s.ID != "" {
				all = append(all, orderOf(s.Generation, s.Generation+100, p)) // late: another content under a known number
			}
			if s.Versions < versionsModeled && s.Generation < versionsModeled+1 {
				all = append(all, orderOf(s.Generation+1, s.Generation+1, p))
				if c := s.last(); c != nil {
					again := orderOf(s.Generation+1, 0, p)
					again.Order.Details = c.Details
					all = append(all, again)
				}
			}
		case OnPoked:
			all = append(all, Input{Kind: k, At: at, Updates: s.Updates})
			if s.Updates > 0 {
				all = append(all, Input{Kind: k, At: at, Updates: s.Updates - 1})
			}
		default:
			all = append(all, Input{Kind: k, At: at})
		}
	}
	return all
}

// identity tells states apart by all that decides about them.
func identity(s *State) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %v %v %d %d", s.ID, s.Current, s.UpdateAvailable, s.Deleted, s.Versions, s.Generation)
	for i := range s.Configurations {
		c := &s.Configurations[i]
		fmt.Fprintf(&b, " %d:%s/%s<%s", c.Version, c.Status, c.Next, c.BlockedOn)
	}
	return b.String()
}

func policies() []Policy {
	return []Policy{{}, {Queued: true}, {TaskDelete: true}, {Queued: true, TaskDelete: true}}
}

func TestModel(t *testing.T) {
	t.Parallel()
	for _, p := range policies() {
		t.Run(fmt.Sprintf("%+v", p), func(t *testing.T) {
			t.Parallel()
			seen := map[string]bool{}
			queue := []State{{}}
			steps, dead := 0, map[Code]int{}
			for len(queue) > 0 {
				s := queue[0]
				queue = queue[1:]
				if s.ID != "" {
					for code := range fairEnd(t, s) {
						dead[code]++
					}
				}
				for _, in := range inputs(&s, p) {
					steps++
					kept := identity(&s)
					next, fx := Step(s, in, modelEnv)
					if identity(&s) != kept {
						t.Fatalf("%s changed the state before it: %s", in.Kind, kept)
					}
					if again, fx2 := Step(s, in, modelEnv); identity(&again) != identity(&next) || fx2.Changed != fx.Changed {
						t.Fatalf("%s is not decided twice alike", in.Kind)
					}
					if !fx.Changed {
						if identity(&next) != kept && fx.Bury == "" {
							t.Fatalf("%s changed %s to %s and says it did not", in.Kind, kept, identity(&next))
						}
						continue
					}
					if found := Audit(&s, &next); len(found) > 0 {
						t.Fatalf("%s in %s\n led to %s\n %v", in.Kind, kept, identity(&next), found)
					}
					checkMoves(t, &s, &next, &fx)
					if in.Kind == OnFetch && s.Pending() && !next.Pending() {
						t.Fatalf("%s was told, and fetched; if that was lost, nobody tells of %s again", kept, identity(&next))
					}
					checkAgain(t, &next, in)
					if id := identity(&next); !seen[id] {
						seen[id] = true
						queue = append(queue, next)
					}
				}
			}
			t.Logf("%d states, %d steps, dead ends %v", len(seen), steps, dead)
			if len(seen) < 200 {
				t.Errorf("only %d states", len(seen))
			}
			if p.Queued != (dead[BehindFailed] > 0) {
				t.Errorf("dead ends: %v", dead)
			}
		})
	}
}

// checkMoves: the documents that will be stored are those that changed, each once, old versions first.
func checkMoves(t *testing.T, before, after *State, fx *Effects) {
	t.Helper()
	var want []Move
	for i := range after.Configurations {
		c := &after.Configurations[i]
		from := None
		if b := before.find(c.ID); b != nil {
			from = b.Status
		}
		if c.Status != from {
			want = append(want, Move{ID: c.ID, From: from, To: c.Status})
		}
	}
	if !slices.Equal(fx.Moves, want) {
		t.Fatalf("moves %v, want %v", fx.Moves, want)
	}
	if len(fx.Moves) > 0 {
		flagged := false
		for _, m := range fx.Moves {
			flagged = flagged || m.To == AwaitingRollout || m.To == AwaitingDeprovision || m.To == Blocked
		}
		if flagged && !after.UpdateAvailable || after.Updates > before.Updates && !after.UpdateAvailable {
			t.Fatalf("%v without update_available", fx.Moves)
		}
	}
}

// checkAgain: what was applied changes nothing when it comes again. An operator's retry may be repeated after a failure.
func checkAgain(t *testing.T, s *State, in Input) {
	t.Helper()
	if next, fx := Step(*s, in, modelEnv); fx.Changed && in.Kind != OnSweep {
		t.Fatalf("%s again led from %s to %s", in.Kind, identity(s), identity(&next))
	}
	if in.Kind == OnSweep {
		for range versionsModeled {
			next, fx := Step(*s, in, modelEnv)
			if !fx.Changed {
				return
			}
			s = &next
		}
		t.Fatal("sweeps do not come to an end")
	}
}

// fairEnd plays a monitoring system that does its duty: it is poked, fetches, and answers success; sweeps come. Then every state
// comes to rest with its newest version active, or, deleted, with all awaiting_deletion; or Why names a dead end. It returns
// the reasons with which it rests.
func fairEnd(t *testing.T, s State) map[Code]bool {
	t.Helper()
	start := identity(&s)
	for range 40 {
		before := identity(&s)
		told := s.Pending()
		said := []Input{{Kind: OnSweep, At: at}}
		// A poke has it fetched. What was fetched is answered. What was told before, and not fetched, is fetched after a list all.
		if c := s.Present(); told || c.Status == RolloutInProgress || c.Status == DeprovisionInProgress || s.Outstanding() {
			said = append(said, Input{Kind: OnFetch, At: at}, Input{Kind: OnPoked, At: at, Updates: s.Updates}, Input{Kind: OnSuccess, At: at})
		}
		for _, in := range said {
			next, fx := Step(s, in, modelEnv)
			if fx.Changed {
				if found := Audit(&s, &next); len(found) > 0 {
					t.Fatalf("%v", found)
				}
			}
			s = next
		}
		if identity(&s) == before {
			break
		}
	}
	reasons := map[Code]bool{}
	for _, r := range Why(&s) {
		reasons[r.Code] = true
		if r.Text == "" || r.Of == "" {
			t.Fatalf("a reason without words: %+v", r)
		}
	}
	switch c := s.Present(); {
	case s.Ended():
		if !reasons[KeptUntil] {
			t.Fatalf("%s ended, and does not say so", identity(&s))
		}
	case !s.Deleted && c.Status == Active && c == s.last():
		if len(reasons) > 0 {
			t.Fatalf("%s is where it should be, and says %v", identity(&s), reasons)
		}
	case reasons[RolloutHasFailed] || reasons[TakingBackFailed] || reasons[DeletedUnreachable]:
	default:
		t.Fatalf("from %s\nit rests at %s, which no reason names a dead end: %v", start, identity(&s), reasons)
	}
	return reasons
}

// TestWhyNamesTheDeadEnds: facts/soma.md section 2, "Dead ends".
func TestWhyNamesTheDeadEnds(t *testing.T) {
	t.Parallel()
	first := orderOf(1, 1, Policy{Queued: true})
	play := func(in ...Input) *State {
		s := State{}
		for _, i := range append([]Input{first}, in...) {
			s, _ = Step(s, i, modelEnv)
		}
		return &s
	}
	say := func(kinds ...Kind) (in []Input) {
		for _, k := range kinds {
			in = append(in, Input{Kind: k, At: at})
		}
		return in
	}
	has := func(s *State, want Code) {
		t.Helper()
		for _, r := range Why(s) {
			if r.Code == want {
				return
			}
		}
		t.Errorf("%s does not say %s: %v", identity(s), want, Why(s))
	}
	second := orderOf(2, 2, Policy{Queued: true})
	has(play(append(say(OnFetch, OnFailed), second)...), BehindFailed)
	has(play(say(OnFetch, OnFailed)...), RolloutHasFailed)
	has(play(say(OnFetch, OnSuccess, OnDelete, OnSweep, OnFetch, OnFailed)...), DeletedUnreachable)
	has(play(say(OnList, OnDelete)...), DeletedAfterPoke)
	has(play(), WaitsForPoke)
	has(play(say(OnList)...), WaitsForFetch)
	has(play(say(OnFetch)...), WaitsForFeedback)
	has(play(append(say(OnFetch, OnSuccess), second)...), BlockedOn)
	has(play(say(OnDelete)...), WaitsForSweep)
}

// TestBurial: a deleted instance is kept for DeletedKept and then buried, one entity at a time; superseded versions go earlier.
func TestBurial(t *testing.T) {
	t.Parallel()
	s, now := State{}, at
	say := func(in Input) Effects {
		in.At = now
		next, fx := Step(s, in, modelEnv)
		s = next
		return fx
	}
	for n := range uint64(DoneKept + 4) {
		say(orderOf(n+1, n+1, Policy{}))
		for range 4 {
			say(Input{Kind: OnSweep})
			say(Input{Kind: OnFetch})
			say(Input{Kind: OnSuccess})
		}
	}
	for s.Sweepable() {
		say(Input{Kind: OnSweep})
	}
	if n := len(s.Configurations); n != DoneKept+1 || s.last().Status != Active {
		t.Fatalf("%d versions are kept: %s", n, identity(&s))
	}
	say(Input{Kind: OnDelete})
	for range 3 {
		say(Input{Kind: OnSweep})
		say(Input{Kind: OnFetch})
		say(Input{Kind: OnSuccess})
	}
	if !s.Ended() || s.Sweepable() || s.Due() != now.Add(DeletedKept) {
		t.Fatalf("%s, due %s", identity(&s), s.Due())
	}
	now = s.Due()
	var buried []string
	for {
		fx := say(Input{Kind: OnSweep})
		if fx.Gone {
			break
		}
		if fx.Bury == "" || !fx.Again || len(buried) > VersionsMax {
			t.Fatalf("%+v", fx)
		}
		buried = append(buried, fx.Bury)
	}
	if len(buried) != DoneKept+1 || len(s.Configurations) != 0 {
		t.Fatalf("%v, %s", buried, identity(&s))
	}
}

// TestTasks: facts/soma.md, rows 8 to 12.
func TestTasks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p       Policy
		changed bool
		want    Task
	}{
		{Policy{}, false, Deprovision}, {Policy{}, true, Deprovision}, {Policy{TaskDelete: true}, true, Deprovision}, {Policy{TaskDelete: true}, false, Delete},
	} {
		s := State{}
		said := []Input{orderOf(1, 1, c.p), {Kind: OnFetch}, {Kind: OnSuccess}, {Kind: OnDelete}, {Kind: OnSweep}}
		if c.changed {
			said = []Input{orderOf(1, 1, c.p), {Kind: OnFetch}, {Kind: OnSuccess}, orderOf(2, 2, c.p)}
		}
		for _, in := range said {
			s, _ = Step(s, in, modelEnv)
		}
		if _, fx := Step(s, Input{Kind: OnFetch}, modelEnv); fx.Task != c.want || fx.Fetched.Version != 0 {
			t.Errorf("%+v, changed %v: task %s", c.p, c.changed, fx.Task)
		}
	}
}

// TestSame: facts/soma.md section 4.
func TestSame(t *testing.T) {
	t.Parallel()
	full := func() *Details {
		return &Details{
			Task: "rollout", Repository: "r", Properties: []Property{{"a", "1"}, {"b", "2"}}, Node: &Node{Name: "n"},
			Service:     &Service{ID: "x", Name: "s", Attributes: []ServiceAttribute{{"fs", "/"}}},
			CheckConfig: CheckConfig{Thresholds: []Threshold{{Predicate{">="}, Level{"critical", "crit", 2}, 95}, {Predicate{">="}, Level{"warning", "warn", 1}, 80}}},
		}
	}
	for name, c := range map[string]struct {
		change func(d *Details)
		same   bool
	}{
		"nothing":        {func(*Details) {}, true},
		"task":           {func(d *Details) { d.Task = "delete" }, true},
		"version":        {func(d *Details) { d.CheckInstance.Version, d.CheckInstance.InstanceConfigID = 3, "x" }, true},
		"order":          {func(d *Details) { slices.Reverse(d.Properties); slices.Reverse(d.CheckConfig.Thresholds) }, true},
		"doubled":        {func(d *Details) { d.Properties = append(d.Properties, d.Properties[0]) }, true},
		"level's number": {func(d *Details) { d.CheckConfig.Thresholds[0].Level.Numeric = 9 }, true},
		"service's id":   {func(d *Details) { d.Service.ID = "" }, true},
		"one less":       {func(d *Details) { d.Properties = d.Properties[:1] }, false},
		"one more":       {func(d *Details) { d.Properties = append(d.Properties, Property{"c", ""}) }, false},
		"value":          {func(d *Details) { d.CheckConfig.Thresholds[0].Value++ }, false},
		"callback":       {func(d *Details) { d.MonitoringSystem.Callback = "x" }, false},
		"no service":     {func(d *Details) { d.Service = nil }, false},
		"instance":       {func(d *Details) { d.CheckInstance.InstanceID = "x" }, false},
		"node":           {func(d *Details) { d.Node.Online = true }, false},
	} {
		a, b := full(), full()
		c.change(b)
		if Same(a, b) != c.same || Same(b, a) != c.same {
			t.Errorf("%s: same %v and %v", name, Same(a, b), Same(b, a))
		}
	}
	if !Same(nil, nil) || Same(nil, full()) || !Same(&Details{Properties: []Property{}}, &Details{}) {
		t.Error("nothing, and an empty list")
	}
}

// TestWhatTheModelCannotTell: rules that two ways of breaking them lead back to, or whose breach only shows in what is told.
func TestWhatTheModelCannotTell(t *testing.T) {
	t.Parallel()
	say := func(s State, kinds ...Kind) State {
		for _, k := range kinds {
			s, _ = Step(s, Input{Kind: k, At: at}, modelEnv)
		}
		return s
	}
	first, _ := Step(State{}, orderOf(1, 1, Policy{}), modelEnv)

	// What is blocked in a deleted instance is discarded, not released first: the monitoring system is left with what it had.
	changed, _ := Step(say(first, OnFetch, OnSuccess), orderOf(2, 2, Policy{}), modelEnv)
	ended := say(changed, OnFetch, OnSuccess, OnDelete, OnSweep)
	if ended.Current != "c0" || !ended.Ended() || ended.Updates != changed.Updates {
		t.Errorf("%s, current %s", identity(&ended), ended.Current)
	}
	// A ghost is one that the monitoring system has not heard of (facts/soma.md, row 17, "Dead ends").
	if s := say(first, OnDelete, OnSweep); !s.Ended() {
		t.Errorf("%s", identity(&s))
	}
	if s := say(first, OnList, OnDelete, OnSweep); s.Present().Status != AwaitingRollout {
		t.Errorf("%s", identity(&s))
	}
	// A poke clears the news that it was for, and no later one.
	poked := func(s State, updates uint64) bool {
		s, _ = Step(s, Input{Kind: OnPoked, At: at, Updates: updates}, modelEnv)
		return !s.UpdateAvailable
	}
	if changed.Updates == first.Updates || poked(changed, first.Updates) || !poked(changed, changed.Updates) || !poked(first, first.Updates) {
		t.Errorf("updates %d and %d", first.Updates, changed.Updates)
	}
	// The details that are fetched to be taken back are those that were rolled out.
	if _, fx := Step(changed, Input{Kind: OnFetch}, modelEnv); fx.Fetched.Details != first.Present().Details || fx.Task != Deprovision {
		t.Errorf("%+v", fx.Fetched)
	}
}
