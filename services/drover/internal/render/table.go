package render

import (
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

const gutter = "   "

// Table is columns aligned by spaces, as kubectl and nats users know them. Cells must be safe texts (Text); they may
// carry colour. A Table is not safe for concurrent use.
type Table struct {
	header []string
	rows   [][]string
	widths []int // of what was written
}

// NewTable makes a table; with no header it prints none.
func NewTable(header ...string) *Table { return &Table{header: header} }

// Row adds one. An empty cell shows as "-", so that columns can be cut apart by scripts.
func (t *Table) Row(cells ...string) {
	row := make([]string, len(cells))
	for i, c := range cells {
		if c == "" {
			c = "-"
		}
		row[i] = c
	}
	t.rows = append(t.rows, row)
}

// Len is the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write prints it. indent stands before each line. What is written again is what was added since, under the same columns as
// far as it fits: the rows are gone with it, so that a table can go on for ever.
func (t *Table) Write(w io.Writer, indent string) error {
	lines := t.rows
	if len(t.header) > 0 {
		lines = append([][]string{t.header}, t.rows...)
	}
	t.header, t.rows = nil, nil
	for _, line := range lines {
		for i, cell := range line {
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], text.StringWidthWithoutEscSequences(cell))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(indent)
		for i, cell := range line {
			b.WriteString(cell)
			if i < len(line)-1 {
				b.WriteString(strings.Repeat(" ", t.widths[i]-text.StringWidthWithoutEscSequences(cell)))
				b.WriteString(gutter)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
