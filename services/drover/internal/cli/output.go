package cli

import (
	"bufio"

	"github.com/droverproject/drover/services/drover/internal/render"
)

// item is one thing to print: its name for -o name, and its JSON for all forms but tables.
type item struct {
	name string
	json func() ([]byte, error)
}

// jsonOf is an item's JSON from a Go value.
func jsonOf(v any) func() ([]byte, error) { return func() ([]byte, error) { return render.Marshal(v) } }

// human reports whether tables were asked for.
func (a *App) human() bool { return a.output == "table" || a.output == "wide" }

// wide reports whether they were asked for with all columns.
func (a *App) wide() bool { return a.output == "wide" }

// printItems prints things in the form that was asked for. one says that exactly one was asked for: then JSON is an
// object, and else an array.
func (a *App) printItems(items []item, one bool, table func() error) error {
	switch a.output {
	case "name":
		for _, it := range items {
			if err := a.printf("%s\n", render.Text(it.name)); err != nil {
				return err
			}
		}
		return nil
	case "json":
		if !one {
			return a.printArray(items)
		}
		fallthrough
	case "jsonl", "yaml":
		for i, it := range items {
			if err := a.printDocument(it, i == 0); err != nil {
				return err
			}
		}
		return nil
	default:
		return table()
	}
}

// printDocument prints one thing of a stream or list that has no end yet: a line of JSON for jsonl.
func (a *App) printDocument(it item, first bool) error {
	body, err := it.json()
	if err != nil {
		return err
	}
	switch a.output {
	case "yaml":
		if body, err = render.YAML(body); err != nil {
			return err
		}
		if !first {
			body = append([]byte("---\n"), body...)
		}
		_, err = a.Out.Write(body)
		return err
	case "json":
		body, err = render.Indent(body)
	default:
		body, err = render.Compact(body)
	}
	if err != nil {
		return err
	}
	_, err = a.Out.Write(append(body, '\n'))
	return err
}

// printStreamed prints one thing of a stream: JSON always on a line of its own, so that it can be read as it comes.
func (a *App) printStreamed(it item, first bool, line func() error) error {
	switch a.output {
	case "name":
		return a.printf("%s\n", render.Text(it.name))
	case "json", "jsonl":
		body, err := it.json()
		if err != nil {
			return err
		}
		if body, err = render.Compact(body); err != nil {
			return err
		}
		_, err = a.Out.Write(append(body, '\n'))
		return err
	case "yaml":
		return a.printDocument(it, first)
	default:
		return line()
	}
}

// printArray prints one thing after another: the text of all of them together is several times what they are.
func (a *App) printArray(items []item) error {
	out := bufio.NewWriterSize(a.Out, 64<<10)
	before := "[\n  "
	for _, it := range items {
		body, err := it.json()
		if err != nil {
			return err
		}
		if body, err = render.IndentWithin(body, "  "); err != nil {
			return err
		}
		_, _ = out.WriteString(before) // what cannot be written is Flush's error
		_, _ = out.Write(body)
		before = ",\n  "
	}
	end := "\n]\n"
	if len(items) == 0 {
		end = "[]\n"
	}
	_, _ = out.WriteString(end)
	return out.Flush()
}
