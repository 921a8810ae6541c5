package selection_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
)

var (
	update = flag.Bool("update", false, "rewrite the table in doc.go")
	seed   = flag.Uint64("seed", 0, "repeat one story of TestStories")
)

var at = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// TestTableIsTotal walks every pair of stages.
func TestTableIsTotal(t *testing.T) {
	t.Parallel()
	for _, from := range job.Stages() {
		for _, to := range job.Stages() {
			may := selection.May(from, to)
			switch {
			case may && from == job.Ended, may && to < from, may && to == job.NoStage, may && to == job.Accepted && from != job.NoStage:
				t.Errorf("%s leads to %s", from, to)
			case from == job.NoStage && may != (to == job.Accepted):
				t.Errorf("none leads to %s: %t", to, may)
			case from >= job.Accepted && from < job.Ended && to == job.Ended && !may:
				t.Errorf("%s never ends", from)
			}
		}
	}
	if selection.May(job.Stage(9), job.Ended) || selection.May(job.NoStage, job.Stage(9)) || job.Stage(9).String() != "unknown" {
		t.Error("an unknown stage is in the table")
	}
}

// TestDocShowsTheTable holds the package comment to the table.
func TestDocShowsTheTable(t *testing.T) {
	t.Parallel()
	const begin, end = "//\tfrom       to\n", "//\n// As a job"
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(doc), begin)
	shown, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("doc.go has no table")
	}
	var want strings.Builder
	for _, from := range job.Stages() {
		var to []string
		for _, s := range job.Stages() {
			if selection.May(from, s) {
				to = append(to, s.String())
			}
		}
		if len(to) == 0 {
			to = []string{"- (final)"}
		}
		want.WriteString("//\t" + from.String() + strings.Repeat(" ", 11-len(from.String())) + strings.Join(to, ", ") + "\n")
	}
	switch {
	case shown == want.String():
	case *update:
		if err := os.WriteFile("doc.go", []byte(head+begin+want.String()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("doc.go shows\n%s\nthe table is (go test -update writes it)\n%s", shown, want.String())
	}
}

func accepted(t *testing.T) job.Record {
	t.Helper()
	r, fx := selection.Step(job.Record{}, selection.Input{At: at, Command: &selection.Command{
		Project: "p", Kind: "node", Verb: "start", ID: "job", RequestID: "r", Digest: "d", Selector: "a=b", Args: map[string]string{"x": "y"},
	}})
	if !fx.Changed || fx.Reply == nil || fx.Reply.JobID != "job" || r.State != job.Pending || r.Name != selection.Name {
		t.Fatalf("not accepted: %+v %+v", r, fx)
	}
	return r
}

// told is a step that must change something and be sound.
func told(t *testing.T, r job.Record, in selection.Input) job.Record {
	t.Helper()
	if in.At.IsZero() {
		in.At = at
	}
	next, fx := selection.Step(r, in)
	if !fx.Changed {
		t.Fatalf("nothing changed: %s", fx.Note)
	}
	sound(t, r, next)
	return next
}

func sound(t *testing.T, before, after job.Record) {
	t.Helper()
	for _, f := range selection.Audit(before, after) {
		t.Errorf("%s: %s (%s to %s)", f.Rule, f.Of, stageOf(before), stageOf(after))
	}
}

func stageOf(r job.Record) job.Stage {
	if r.Selection == nil {
		return job.NoStage
	}
	return r.Selection.Stage
}

func ends(t *testing.T, r job.Record, want job.State, message string) {
	t.Helper()
	if r.State != want || r.Message != message {
		t.Errorf("it %s with %q, not %s with %q", r.State, r.Message, want, message)
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	page := func(accepted, refused uint32, tally selection.Tally) selection.Input {
		return selection.Input{Page: &selection.Page{To: "n", Accepted: accepted, Refused: refused, End: true, Tally: tally}}
	}
	for name, c := range map[string]struct {
		page    selection.Input
		then    *selection.Tally
		want    job.State
		message string
	}{
		"nothing matched": {page: selection.Input{Page: &selection.Page{End: true}}, want: job.Succeeded, message: "no resource matched"},
		"all at once":     {page: page(2, 0, selection.Tally{Succeeded: 2}), want: job.Succeeded, message: "2 matched, 2 succeeded"},
		"later": {
			page: page(2, 0, selection.Tally{Open: 2}), then: &selection.Tally{Succeeded: 2},
			want: job.Succeeded, message: "2 matched, 2 succeeded",
		},
		"one failed": {
			page: page(2, 0, selection.Tally{Open: 2}), then: &selection.Tally{Succeeded: 1, Failed: 1},
			want: job.Failed, message: "2 matched, 1 succeeded, 1 failed",
		},
		"one canceled": {
			page: page(2, 0, selection.Tally{Open: 2}), then: &selection.Tally{Succeeded: 1, Canceled: 1},
			want: job.Failed, message: "2 matched, 1 succeeded, 1 canceled",
		},
		"one refused": {page: page(1, 1, selection.Tally{Succeeded: 1}), want: job.Failed, message: "2 matched, 1 succeeded, 1 refused"},
		"more were started than a crash remembers": {
			page: page(1, 0, selection.Tally{Open: 1, Succeeded: 2}), then: &selection.Tally{Succeeded: 3},
			want: job.Succeeded, message: "3 matched, 3 succeeded",
		},
		"a record that is not there yet": {
			page: page(2, 0, selection.Tally{Succeeded: 1}), then: &selection.Tally{Succeeded: 2},
			want: job.Succeeded, message: "2 matched, 2 succeeded",
		},
		"too many": {
			page: selection.Input{Page: &selection.Page{TooMany: 100_001}}, want: job.Failed,
			message: "100001 resources match, and one selector may match at most 100000; nothing was asked",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := told(t, accepted(t), c.page)
			if c.then != nil {
				if r.State != job.Running || selection.Next(&r) != selection.Watch {
					t.Fatalf("it does not wait: %s", r.State)
				}
				r = told(t, r, selection.Input{Tally: c.then, At: at.Add(time.Minute)})
			}
			ends(t, r, c.want, c.message)
		})
	}
}

// TestWhatIsForgotten: records that are kept no longer hold nothing up.
func TestWhatIsForgotten(t *testing.T) {
	t.Parallel()
	r := told(t, accepted(t), selection.Input{Page: &selection.Page{To: "n", Accepted: 3, End: true, Tally: selection.Tally{Open: 2, Succeeded: 1}}})
	if next, fx := selection.Step(r, selection.Input{At: at.Add(job.RetentionDefault - 1), Tally: &selection.Tally{Succeeded: 1}}); fx.Changed {
		t.Fatalf("it ended early: %+v", next)
	}
	r = told(t, r, selection.Input{At: at.Add(job.RetentionDefault), Tally: &selection.Tally{Succeeded: 1}})
	ends(t, r, job.Failed, "3 matched, 1 succeeded, 2 forgotten before they were seen to end")
}

func TestRequests(t *testing.T) {
	t.Parallel()
	r := accepted(t)
	again := func(r job.Record, digest string) selection.Effects {
		next, fx := selection.Step(r, selection.Input{At: at, Command: &selection.Command{ID: "job", RequestID: "r", Digest: digest}})
		if fx.Changed || !reflect.DeepEqual(next, r) {
			t.Errorf("the same request changed something: %+v", next)
		}
		return fx
	}
	ended := told(t, r, selection.Input{Page: &selection.Page{End: true}})
	for _, r := range []job.Record{r, ended} {
		if fx := again(r, "d"); fx.Reply.JobID != "job" {
			t.Errorf("%+v", fx.Reply)
		}
		if fx := again(r, "other"); fx.Reply.Refused == nil || fx.Reply.Refused.Code != resource.Conflict {
			t.Errorf("%+v", fx.Reply)
		}
	}
	cancel := func(known *job.Record) *selection.Cancel {
		return &selection.Cancel{Command: selection.Command{Project: "p", Kind: "node", Verb: "cancel", ID: "c", RequestID: "rc", Digest: "dc"}, Known: known}
	}
	next, fx := selection.Step(r, selection.Input{At: at, Cancel: cancel(nil)})
	sound(t, r, next)
	if fx.Beside == nil || fx.Beside.State != job.Succeeded || fx.Reply.JobID != "c" || next.Selection.Stage != job.Canceling {
		t.Fatalf("not canceled: %+v %+v", next, fx)
	}
	if same, fx2 := selection.Step(next, selection.Input{At: at, Cancel: cancel(fx.Beside)}); fx2.Changed || fx2.Reply.JobID != "c" || !reflect.DeepEqual(same, next) {
		t.Errorf("the same cancel again: %+v", fx2)
	}
	for want, r := range map[resource.Code]job.Record{resource.Conflict: ended, resource.NotFound: {}} {
		if _, fx := selection.Step(r, selection.Input{At: at, Cancel: cancel(nil)}); fx.Changed || fx.Reply.Refused.Code != want {
			t.Errorf("%s: %+v", want, fx.Reply)
		}
	}
}

func TestCancels(t *testing.T) {
	t.Parallel()
	walking := told(t, accepted(t), selection.Input{Page: &selection.Page{To: "m", Accepted: 2, Tally: selection.Tally{Open: 2}}})
	for cascade, message := range map[bool]string{false: "canceled: enough; 3 jobs that it started may go on", true: "canceled: enough"} {
		r := told(t, walking, selection.Input{Cancel: &selection.Cancel{Message: "enough", Cascade: cascade}})
		if want := map[bool]selection.Action{false: selection.Drop, true: selection.Undo}[cascade]; selection.Next(&r) != want {
			t.Errorf("next is %d", selection.Next(&r))
		}
		r = told(t, r, selection.Input{Page: &selection.Page{From: "m", To: "m", Accepted: 1, Tally: selection.Tally{Open: 3}}})
		if _, fx := selection.Step(r, selection.Input{At: at, Tally: &selection.Tally{Open: 3}}); fx.Changed {
			t.Error("it ended with an ask out")
		}
		tally := selection.Tally{Open: 3, Idle: true}
		if cascade {
			if _, fx := selection.Step(r, selection.Input{At: at, Tally: &tally}); fx.Changed {
				t.Error("it ended before what it started")
			}
			tally = selection.Tally{Succeeded: 1, Canceled: 2, Idle: true}
		}
		ends(t, told(t, r, selection.Input{Tally: &tally}), job.Canceled, message)
	}
}

func TestPagesAreFenced(t *testing.T) {
	t.Parallel()
	r := told(t, accepted(t), selection.Input{Page: &selection.Page{To: "m", Accepted: 2, Tally: selection.Tally{Open: 2}}})
	for _, p := range []selection.Page{{To: "m", Accepted: 2}, {From: "l", To: "z"}, {From: "m", To: "a"}} {
		if next, fx := selection.Step(r, selection.Input{At: at, Page: &p}); fx.Changed || fx.Note != resource.NoteFenced || !reflect.DeepEqual(next, r) {
			t.Errorf("%+v: %+v", p, fx)
		}
	}
}

// TestRefusalsAreFew: the first ones are kept, cut.
func TestRefusalsAreFew(t *testing.T) {
	t.Parallel()
	p := &selection.Page{To: "m", Refused: 20}
	for i := range 20 {
		p.Refusals = append(p.Refusals, job.Refusal{Name: "n" + strconv.Itoa(i), Code: "conflict", Message: strings.Repeat("é", 200)})
	}
	r := told(t, accepted(t), selection.Input{Page: p})
	kept := r.Selection.Refusals
	if len(kept) != selection.RefusalsMax || kept[7].Name != "n7" || len(kept[0].Message) > selection.RefusalBytesMax {
		t.Errorf("%d kept: %+v", len(kept), kept)
	}
}

func TestTakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verb, name string
		want       bool
	}{{"start", "a", true}, {"start", "a/b", false}, {"delete", "a/b", false}, {"approve", "a/b", true}, {"approve", "a", true}} {
		if selection.Takes(c.verb, c.name) != c.want {
			t.Errorf("%s %s", c.verb, c.name)
		}
	}
}

// TestStories tells random stories of a shell that crashes, repeats and is told everything twice, over a fleet whose
// resources accept, refuse and vanish; every step is sound, taken twice it is the same, and the story ends with the truth.
func TestStories(t *testing.T) {
	t.Parallel()
	if *seed != 0 {
		story(t, *seed)
		return
	}
	for s := range uint64(3000) {
		if story(t, s+1); t.Failed() {
			t.Fatalf("repeat with: go test ./engine/selection -run TestStories -seed %d", s+1)
		}
	}
}

type node struct {
	refuses, gone bool
	job           job.State // None: none was started
}

func story(t *testing.T, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	fleet, names := map[string]*node{}, []string(nil)
	for i := range rng.IntN(12) {
		name := fmt.Sprintf("n%02d", i)
		fleet[name], names = &node{refuses: rng.IntN(5) == 0}, append(names, name)
	}
	r, now := accepted(t), at
	canceled, cascade := false, false
	tally := func(idle bool) (out selection.Tally) {
		out.Idle = idle
		for _, n := range names {
			switch fleet[n].job {
			case job.Running:
				out.Open++
			case job.Succeeded:
				out.Succeeded++
			case job.Failed:
				out.Failed++
			case job.Canceled:
				out.Canceled++
			}
		}
		return out
	}
	step := func(in selection.Input) {
		in.At = now
		next, fx := selection.Step(r, in)
		if again, fx2 := selection.Step(r, in); !reflect.DeepEqual(again, next) || !reflect.DeepEqual(fx, fx2) {
			t.Errorf("the same step twice is not the same")
		}
		if !fx.Changed {
			if !reflect.DeepEqual(next, r) {
				t.Errorf("a step that changed nothing did")
			}
			return
		}
		if rng.IntN(6) == 0 {
			return // the append is lost in a crash
		}
		sound(t, r, next)
		r = next
		if in.Page != nil { // told again
			if _, fx := selection.Step(r, in); fx.Changed && in.Page.To != in.Page.From {
				t.Errorf("a page was applied twice: %+v", in.Page)
			}
		}
	}
	ask := func(broken bool) *selection.Page {
		p := &selection.Page{From: r.Selection.Cursor, To: r.Selection.Cursor}
		size := 1 + rng.IntN(4)
		after := slices.DeleteFunc(slices.Clone(names), func(n string) bool {
			return n <= p.From || fleet[n].gone && fleet[n].job == job.None
		})
		for _, n := range after[:min(size, len(after))] {
			switch c := fleet[n]; {
			case c.job == job.None && c.refuses:
				p.Refused++
				p.Refusals = append(p.Refusals, job.Refusal{Name: n, Code: "conflict", Message: "no"})
			case c.job == job.None:
				c.job = job.Running
				p.Accepted++
			default:
				p.Accepted++
			}
			if broken {
				return p
			}
			p.To = n
		}
		p.End = size >= len(after)
		p.Tally = tally(true)
		return p
	}
	for range 2000 {
		now = now.Add(time.Duration(rng.IntN(1500)) * time.Millisecond)
		for _, n := range names {
			if c := fleet[n]; c.job == job.Running && rng.IntN(6) == 0 {
				c.job = []job.State{job.Succeeded, job.Succeeded, job.Succeeded, job.Failed}[rng.IntN(4)]
				c.gone = rng.IntN(2) == 0
			}
		}
		switch action := selection.Next(&r); {
		case rng.IntN(60) == 0 && !r.State.Final():
			cascade = cascade || rng.IntN(2) == 0
			step(selection.Input{Cancel: &selection.Cancel{Command: selection.Command{ID: "c", Digest: "c"}, Message: "stop", Cascade: cascade}})
			canceled = canceled || r.Canceling
		case rng.IntN(20) == 0:
			step(selection.Input{Waits: "partition 3 has no owner"})
		case action == selection.Walk:
			step(selection.Input{Page: ask(false)})
		case action == selection.Watch:
			tl := tally(true)
			step(selection.Input{Tally: &tl})
		case action == selection.Drop, action == selection.Undo:
			if rng.IntN(4) == 0 {
				step(selection.Input{Page: ask(true)})
			}
			if action == selection.Undo {
				for _, n := range names {
					if fleet[n].job == job.Running {
						fleet[n].job = job.Canceled
					}
				}
			}
			tl := tally(true)
			step(selection.Input{Tally: &tl})
		default:
			judge(t, &r, tally(true), names, fleet, canceled)
			return
		}
	}
	t.Errorf("seed %d: it never ends: %s", seed, stageOf(r))
}

func judge(t *testing.T, r *job.Record, truth selection.Tally, names []string, fleet map[string]*node, canceled bool) {
	t.Helper()
	if canceled != (r.State == job.Canceled) {
		t.Errorf("canceled %t, and it ended as %s", canceled, r.State)
	}
	if canceled {
		return
	}
	s := r.Selection
	refused := uint32(0)
	for _, n := range names {
		if fleet[n].refuses {
			refused++
		}
	}
	if s.Succeeded != truth.Succeeded || s.Failed != truth.Failed || s.Refused != refused || int(s.Matched) != len(names) || truth.Open != 0 {
		t.Errorf("it says %+v, the truth is %+v and %d refused of %d", *s, truth, refused, len(names))
	}
	if want := truth.Failed+truth.Canceled+refused == 0; want != (r.State == job.Succeeded) {
		t.Errorf("%s: %s", r.State, r.Message)
	}
}
