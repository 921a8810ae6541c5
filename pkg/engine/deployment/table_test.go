package deployment

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table into doc.go anew")

func rendered() string {
	var b strings.Builder
	for _, e := range edges {
		flags := "-"
		if e.flags {
			flags = "set"
		}
		fmt.Fprintf(&b, "//\t%-24s %-13s %-24s %-24s %s\n", e.from, e.event, e.to, e.next, flags)
	}
	return b.String()
}

// TestDocShowsTheTable holds the package comment to the table.
func TestDocShowsTheTable(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(doc), "update available\n")
	if !ok {
		t.Fatal("doc.go has no table")
	}
	_, tail, ok := strings.Cut(rest, "//\n// What is not listed")
	if !ok {
		t.Fatal("the table has no end")
	}
	want := head + "update available\n" + rendered() + "//\n// What is not listed" + tail
	if *update {
		if err := os.WriteFile("doc.go", []byte(want), 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
		return
	}
	if want != string(doc) {
		t.Error("doc.go does not show the table; run the test with -update")
	}
}

// TestTableIsTotal takes every event in every status: it is the one edge that the table has, or it is refused and nothing has
// changed.
func TestTableIsTotal(t *testing.T) {
	t.Parallel()
	listed := 0
	for _, from := range Statuses() {
		for _, event := range Events() {
			n := 0
			for _, e := range edges {
				if e.from == from && e.event == event {
					n++
				}
			}
			if n > 1 {
				t.Errorf("%s on %s has %d edges", from, event, n)
			}
			listed += n
			c := Configuration{ID: "c", Status: from}
			x := &step{}
			moved := x.move(&c, event)
			switch e, ok := lookup(from, event); {
			case ok != moved:
				t.Errorf("%s on %s: moved %v", from, event, moved)
			case !ok && (c != Configuration{ID: "c", Status: from} || x.fx.Changed):
				t.Errorf("%s on %s is refused, and changed something", from, event)
			case ok && (c.Status != e.to || x.s.UpdateAvailable != e.flags || e.to != from && c.Next != e.next):
				t.Errorf("%s on %s: %+v", from, event, c)
			}
		}
	}
	if listed != len(edges) {
		t.Errorf("%d of %d edges are between known statuses and events", listed, len(edges))
	}
	if len(Statuses()) != 13 {
		t.Errorf("seed 002 has 13 statuses, not %d", len(Statuses()))
	}
}

// TestEveryStatusIsReachedAndLeft: all are reached, and only awaiting_deletion is never left.
func TestEveryStatusIsReachedAndLeft(t *testing.T) {
	t.Parallel()
	seen := map[Status]bool{None: true}
	for range edges {
		for _, e := range edges {
			if seen[e.from] {
				seen[e.to] = true
			}
		}
	}
	for _, s := range Statuses() {
		left := false
		for _, e := range edges {
			left = left || e.from == s && e.to != s
		}
		if !seen[s] || left == (s == AwaitingDeletion) {
			t.Errorf("%s: reached %v, left %v", s, seen[s], left)
		}
	}
}
