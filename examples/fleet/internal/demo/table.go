//go:build unix

package demo

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/droverproject/drover/examples/fleet"
)

// columns are the phases of blueprint.yaml, with short headings.
var columns = []struct{ heading, phase string }{
	{"folder", "allocate-folder"},
	{"port", "allocate-port"},
	{"config", "configure"},
	{"motd", "motd"},
	{"launch", "launch"},
	{"healthy", "healthy"},
	{"announce", "announce"},
	{"withdraw", "withdraw"},
	{"stop", "stop"},
	{"-port", "release-port"},
	{"-folder", "release-folder"},
}

// table shows what became of each node. Times are seconds from a phase's hand-out until it was completed; a dot is a
// phase that was skipped.
func table(nodes []fleet.Node, seen map[string]track) string {
	rows := [][]string{{"NODE", "RACK", "STATE", "PID", "PORT"}}
	for _, c := range columns {
		rows[0] = append(rows[0], strings.ToUpper(c.heading))
	}
	for _, n := range nodes {
		t := seen[n.Name]
		row := []string{n.Name, n.Rack, t.state.State, number(t.pid), number(t.port)}
		for _, c := range columns {
			text := "-"
			if took, ok := t.took(c.phase); ok {
				text = fmt.Sprintf("%.2f", took.Seconds())
			}
			if p := t.state.phase(c.phase); p != nil && p.Status == statusSkipped {
				text = "."
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return align(rows, 3)
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// align sets cells in columns: the first ones to the left, the others, which are numbers, to the right.
func align(rows [][]string, left int) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < left {
				line.WriteString(cell + pad)
			} else {
				line.WriteString(pad + cell)
			}
			line.WriteString("  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
