package machine

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestTablesAreTotal walks every pair of states, and every state for its answer.
func TestTablesAreTotal(t *testing.T) {
	t.Parallel()
	for _, from := range RunStates() {
		for _, to := range RunStates() {
			switch may := May(from, to); {
			case may && from.Final(), may && to == NoRun, may && to == Created && from != NoRun, may && from == to:
				t.Errorf("%s leads to %s", from, to)
			case !may && to == Failed && !from.Final():
				t.Errorf("%s cannot fail", from)
			}
		}
		if answers[from] == 0 {
			t.Errorf("who asks while the current run is %s gets no answer", from)
		}
		if name, ok := ParseRunState(from.String()); from != NoRun && (!ok || name != from) {
			t.Errorf("%s is not read back", from)
		}
	}
	if len(answers) != len(RunStates()) || len(answerTexts) != int(beginAnew) {
		t.Error("an answer too many, or without its text")
	}
}

// TestTablesAreInTheDoc holds the package doc to the data.
func TestTablesAreInTheDoc(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var edges, told strings.Builder
	edges.WriteString("//\tfrom        to\n")
	told.WriteString("//\tcurrent run  answer\n")
	for _, from := range RunStates() {
		var names []string
		for _, to := range RunStates() {
			if slices.Contains(runEdges[from], to) {
				names = append(names, to.String())
			}
		}
		line := strings.Join(names, ", ")
		if from.Final() {
			line = "- (final)"
		}
		edges.WriteString("//\t" + (from.String() + "            ")[:12] + line + "\n")
		told.WriteString("//\t" + (from.String() + "             ")[:13] + answerTexts[answers[from]] + "\n")
	}
	for _, want := range []string{edges.String(), told.String()} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("doc.go does not hold this table:\n%s", want)
		}
	}
	for _, c := range Conditions() {
		if c != NoMachine && !strings.Contains(string(doc), "//\t"+c.String()+" ") {
			t.Errorf("doc.go does not explain %s", c)
		}
	}
}
