package job

import (
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the table in doc.go")

// TestTableIsTotal walks every pair: final states are left by nothing, nothing goes back in rank or stays, and every
// state is reached.
func TestTableIsTotal(t *testing.T) {
	t.Parallel()
	for _, from := range States() {
		for _, to := range States() {
			switch may := May(from, to); {
			case may && from.Final():
				t.Errorf("final state %s leads to %s", from, to)
			case may && to <= from:
				t.Errorf("%s leads back to %s", from, to)
			case !may && !from.Final() && to > from:
				t.Errorf("%s does not lead to %s", from, to)
			}
		}
		if from != None && !May(None, from) {
			t.Errorf("a record cannot begin in %s, and so be late", from)
		}
		if from.Final() != slices.Contains([]State{Succeeded, Failed, Canceled}, from) {
			t.Errorf("%s: final %t", from, from.Final())
		}
	}
	if May(State(9), Pending) || May(None, State(9)) || State(9).String() != "unknown" {
		t.Error("an unknown state is in the table")
	}
}

func TestNamesAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range States() {
		seen[s.String()] = true
	}
	if len(seen) != len(States()) || len(names) != len(States()) {
		t.Errorf("%d names for %d states", len(seen), len(States()))
	}
}

func TestDerive(t *testing.T) {
	t.Parallel()
	root := Root{Project: "p", Kind: "node", Name: "n", UID: "u", Revision: 7, MinReader: 1}
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	for _, from := range States() {
		for _, to := range States() {
			if to == None {
				continue
			}
			ref := Ref{ID: "j", State: to, AcceptedAt: at, Message: "new"}
			var prior *Record
			want := Record{Ref: ref, Project: "p", Kind: "node", Name: "n", UID: "u", ResourceRevision: 7, Revision: 1, MinReader: 1}
			if from != None {
				prior = &Record{Ref: Ref{ID: "j", State: from, AcceptedAt: at}, Project: "p", Kind: "node", Name: "n", UID: "u", ResourceRevision: 3, Revision: 4, MinReader: 1}
				want.Revision = 5
			}
			follows := May(from, to)
			if !follows {
				want = *prior
			}
			got, ok := Derive(root, ref, prior)
			if ok != follows || !reflect.DeepEqual(got, want) {
				t.Errorf("%s to %s: %t %+v", from, to, ok, got)
			}
			if again, ok := Derive(root, ref, &got); ok || !reflect.DeepEqual(again, got) {
				t.Errorf("%s to %s, repeated: %+v", from, to, again)
			}
		}
	}
}

// TestDocShowsTheTable holds the package comment to the table.
func TestDocShowsTheTable(t *testing.T) {
	t.Parallel()
	const begin, end = "//\tfrom       to\n", "//\n// A record may skip"
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
	for _, from := range States() {
		var to []string
		for _, s := range edges[from] {
			to = append(to, s.String())
		}
		if len(to) == 0 {
			to = []string{"- (final)"}
		}
		want.WriteString("//\t" + from.String() + strings.Repeat(" ", 11-len(from.String())) + strings.Join(to, ", ") + "\n")
	}
	if shown == want.String() {
		return
	}
	if *update {
		if err := os.WriteFile("doc.go", []byte(head+begin+want.String()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("doc.go shows\n%s\nthe table is (go test -update writes it)\n%s", shown, want.String())
}
