package resource

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
)

// TestPhaseTableIsTotal takes every event in every status: it is either the one edge that the table has, or it is refused
// and nothing has changed but the note that says so.
func TestPhaseTableIsTotal(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	edges := 0
	for _, from := range Statuses() {
		for _, event := range PhaseEvents() {
			var listed []Status
			for _, e := range phaseTable {
				if e.from == from && e.event == event {
					listed = append(listed, e.to)
				}
			}
			if len(listed) > 1 {
				t.Errorf("%s on %s leads to %v", from, event, listed)
			}
			edges += len(listed)
			p := PhaseRun{Name: "p", Status: from, Attempt: 2, Call: 1, Since: at.Add(-time.Hour)}
			before := p
			x := &step{at: at}
			moved := x.move(&p, event)
			switch {
			case len(listed) == 0:
				if moved || !x.broken || x.dirty || !samePhase(p, before) || len(x.fx.Notes) != 1 || x.fx.Notes[0].Code != NoteIllegal {
					t.Errorf("%s on %s is not refused: %+v, %+v", from, event, p, x.fx.Notes)
				}
				s, fx := x.finish()
				if fx.Event != nil || s.Revision != 0 {
					t.Errorf("%s on %s is refused, and recorded", from, event)
				}
			case !moved || x.broken || !x.dirty || p.Status != listed[0]:
				t.Errorf("%s on %s leads to %s, not to %s", from, event, p.Status, listed[0])
			case p.Since.Equal(at) != (p.Status != from):
				t.Errorf("%s on %s: since %s", from, event, p.Since)
			}
		}
	}
	if edges != len(phaseTable) {
		t.Errorf("the table has %d edges, of which %d are between known statuses and events", len(phaseTable), edges)
	}
}

func samePhase(a, b PhaseRun) bool {
	return a.Status == b.Status && a.Since.Equal(b.Since) && a.Attempt == b.Attempt && a.Call == b.Call && a.InFlight == b.InFlight
}

func TestEveryStatusIsReached(t *testing.T) {
	t.Parallel()
	reached := []Status{NoStatus}
	for n := 0; n < len(reached); n++ {
		for _, e := range phaseTable {
			if e.from == reached[n] && !slices.Contains(reached, e.to) {
				reached = append(reached, e.to)
			}
		}
	}
	for _, s := range Statuses() {
		if !slices.Contains(reached, s) {
			t.Errorf("status %s is not reached", s)
		}
		if s.String() == "Unknown" || s.String() == "" && s != NoStatus {
			t.Errorf("status %d has no name", s)
		}
	}
}

// TestWhatRestsIsLeftByEntryOrRetryOnly: no status is final, because a resource may enter the phase's state again; and what rests (is
// neither active nor blocked) is left by nothing but that, or by a person.
func TestWhatRestsIsLeftByEntryOrRetryOnly(t *testing.T) {
	t.Parallel()
	for _, s := range Statuses() {
		enter, _ := nextStatus(s, Enter)
		if rests := !s.Active() && s != Blocked; rests && enter != Blocked {
			t.Errorf("%s cannot be entered again", s)
		}
		if s.Active() {
			if _, ok := nextStatus(s, Enter); ok {
				t.Errorf("%s is active, and would be entered again", s)
			}
			if _, ok := nextStatus(s, Drop); !ok {
				t.Errorf("%s cannot be interrupted", s)
			}
		}
	}
	for _, e := range phaseTable {
		if !e.from.Active() && e.from != Blocked && e.event != Enter && e.event != Retry && (e.from != Gated || e.event != Approve && e.event != Drop) {
			t.Errorf("%s rests, and is left by %s", e.from, e.event)
		}
	}
}

// TestNamesAreDistinct: a status, an event or an outcome without a name would show as nothing.
func TestNamesAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range Statuses() {
		seen["status "+s.String()] = true
	}
	for _, e := range PhaseEvents() {
		seen["event "+e.String()] = true
	}
	for _, o := range Outcomes() {
		seen["outcome "+o.String()] = true
	}
	if want := len(Statuses()) + len(PhaseEvents()) + len(Outcomes()); len(seen) != want {
		t.Errorf("%d names for %d values", len(seen), want)
	}
	if Status(200).String() != "Unknown" || PhaseEvent(200).String() != "Unknown" || Outcome(200).String() != "unknown" {
		t.Error("what is not known is not called so")
	}
}

// TestJobTableIsTotal takes every pair of job states through moveJob: an edge, or refused.
func TestJobTableIsTotal(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	for _, from := range job.States() {
		for _, to := range job.States() {
			j := job.Ref{ID: "j", State: from, Canceling: true}
			x := &step{at: at}
			x.moveJob(&j, to, "why")
			switch {
			case !job.May(from, to):
				if !x.broken || x.dirty || j.State != from || !j.EndedAt.IsZero() || j.Message != "" {
					t.Errorf("%s to %s is not refused: %+v", from, to, j)
				}
			case x.broken || j.State != to || j.EndedAt.IsZero() == to.Final() || j.Canceling == to.Final() || j.StartedAt.Equal(at) != (to == job.Running):
				t.Errorf("%s to %s: %+v", from, to, j)
			}
		}
	}
}

// TestDocShowsTheTable holds the package comment to the table.
func TestDocShowsTheTable(t *testing.T) {
	t.Parallel()
	const begin, end = "//\n//\tfrom       event → to\n", "//\n// Gated waits"
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(doc), begin)
	shown, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("doc.go has no table")
	}
	want := renderTable()
	if shown == want {
		return
	}
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile("doc.go", []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("doc.go shows\n%s\nthe table is (go test -update writes it)\n%s", shown, want)
}

// renderTable is one paragraph for each status, edges in the order of the table.
func renderTable() string {
	var b strings.Builder
	for _, from := range Statuses() {
		var edges []string
		for _, e := range phaseTable {
			if e.from == from {
				edges = append(edges, e.event.String()+" → "+e.to.String())
			}
		}
		name := from.String()
		if from == NoStatus {
			name = "(none)"
		}
		for len(edges) > 0 {
			n := min(4, len(edges))
			b.WriteString("//\t" + name + strings.Repeat(" ", 11-len(name)) + strings.Join(edges[:n], " · ") + "\n")
			edges, name = edges[n:], ""
		}
	}
	return b.String()
}
