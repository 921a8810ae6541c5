// Package render fills in the templates of executors (Jinja2, by gonja) with what is known of a call.
//
// # What a template may do
//
// Templates come from blueprints, whose authors may run programs on the runner anyway; what fills them in comes from
// anyone who may apply a resource. So values are never templates: what is in a spec is text, however it looks. And one
// template must not take the runner down: it reads no files and includes nothing (gonja's own loader reads any file, and
// a template that includes itself ends the process), knows if, for (not recursive) and raw as its only statements, has
// no range, and is limited in source, output, nesting, time, and in what its expressions make on the way (growth.go).
//
// A name that is not defined is an error that says which, unless `default` or `is defined` asks for it.
package render

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	controlstructures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
)

// Limits of one template.
const (
	SourceBytesMax = 64 << 10        // bytes of a template, as manifest.TemplateBytesMax
	OutputBytesMax = 1 << 20         // bytes of what it renders to
	NestingMax     = 64              // brackets that are open at once in an expression
	TimeMax        = 2 * time.Second // looked at before every statement and every value that is written, after each that is made
	errorBytesMax  = 400             // bytes of an error's text, which quotes template and values
	madeMax        = 64 << 20        // bytes and items of all values that expressions make, together; of one OutputBytesMax
)

// Errors of templates.
var (
	// ErrTemplate: the template cannot be parsed, or names what is not defined.
	ErrTemplate = errors.New("template")
	// ErrLimit: a limit was passed.
	ErrLimit = errors.New("a template's limit was passed")
)

// Vars is what templates may name. Its values are those of encoding/json, with whole numbers as int: see Value.
type Vars map[string]any

// Value decodes JSON for templates: numbers are int where they are whole and fit, float64 where they are not, and text
// where an int would not hold them.
func Value(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, err
	}
	if decoder.More() {
		return nil, errors.New("more than one JSON value")
	}
	return numbers(v), nil
}

func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = numbers(v[name])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case json.Number:
		if n, err := strconv.Atoi(v.String()); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), ".eE") {
			return f
		}
		return v.String()
	}
	return v
}

// strict is gonja's configuration: undefined names are errors, and text stays as it is.
var strict = func() *config.Config {
	c := config.New()
	c.StrictUndefined = true
	c.KeepTrailingNewline = true
	return c
}()

// statements are those that a template may use.
var statements = exec.NewControlStructureSet(map[string]parser.ControlStructureParser{
	"if":  statement("if"),
	"for": statement("for"),
	"raw": statement("raw"),
})

// statement is gonja's own, with the limits looked at before each execution.
func statement(name string) parser.ControlStructureParser {
	parse, ok := builtins.ControlStructures.Get(name)
	if !ok {
		panic("gonja has no statement " + name) // a pinned version: tests see it
	}
	return func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		parsed, err := parse(p, args)
		if err != nil {
			return nil, err
		}
		// A recursive loop over a list that holds itself would not end.
		if loop, ok := parsed.(*controlstructures.ForControlStructure); ok && loop.Recursive {
			return nil, errors.New("a loop may not be recursive")
		}
		inner, ok := parsed.(exec.ControlStructure)
		if !ok {
			return parsed, nil
		}
		return &limited{ControlStructure: inner}, nil
	}
}

type limited struct{ exec.ControlStructure }

func (l *limited) Execute(r *exec.Renderer, block *nodes.ControlStructureBlock) error {
	if w, ok := r.Output.(*output); ok {
		if err := w.check(); err != nil {
			return err
		}
	}
	return l.ControlStructure.Execute(r, block)
}

// output is what a template writes to.
type output struct {
	bytes.Buffer
	ctx  context.Context
	made int // bytes and items of values that expressions made
}

func (o *output) check() error {
	if o.ctx.Err() != nil {
		return fmt.Errorf("%w: it takes longer than %s", ErrLimit, TimeMax)
	}
	return nil
}

// Write fails past the limits, which ends the rendering.
func (o *output) Write(p []byte) (int, error) {
	if o.Len()+len(p) > OutputBytesMax {
		return 0, fmt.Errorf("%w: it renders to more than %d bytes", ErrLimit, OutputBytesMax)
	}
	if err := o.check(); err != nil {
		return 0, err
	}
	return o.Buffer.Write(p)
}

// WriteString is Write.
func (o *output) WriteString(s string) (int, error) { return o.Write([]byte(s)) }

// Template is one that was parsed. Safe for concurrent use.
type Template struct {
	text     string // where there is nothing to fill in
	template *exec.Template
}

const root = "/template" // the name under which the loader, which knows no other, holds the source

// Parse reads a template. The error is ErrTemplate or ErrLimit.
func Parse(source string) (*Template, error) {
	if len(source) > SourceBytesMax {
		return nil, fmt.Errorf("%w: it has %d bytes, not at most %d", ErrLimit, len(source), SourceBytesMax)
	}
	if !strings.Contains(source, "{{") && !strings.Contains(source, "{%") && !strings.Contains(source, "{#") {
		return &Template{text: source}, nil
	}
	if nesting(source) > NestingMax {
		return nil, fmt.Errorf("%w: more than %d brackets within each other", ErrLimit, NestingMax)
	}
	loader, err := loaders.NewMemoryLoader(map[string]string{root: source})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	t := &Template{}
	err = guard(func() error {
		t.template, err = exec.NewTemplate(root, strict, loader, &exec.Environment{
			Context: exec.EmptyContext(), Filters: filters, Tests: builtins.Tests, ControlStructures: statements, Methods: methods,
		})
		if err != nil {
			return err
		}
		_, err = rewriter{}.rewrite(t.template.Root())
		return err
	})
	if err != nil {
		return nil, explain(err)
	}
	return t, nil
}

// Render fills the template in. The error is ErrTemplate or ErrLimit, and names what is not defined.
func (t *Template) Render(ctx context.Context, vars Vars) (string, error) {
	if t.template == nil {
		return t.text, nil
	}
	ctx, cancel := context.WithTimeout(ctx, TimeMax)
	defer cancel()
	out := &output{ctx: ctx}
	err := guard(func() error { return t.template.Execute(out, exec.NewContext(out.names(vars))) })
	if err != nil {
		return "", explain(err)
	}
	return out.String(), nil
}

// guard turns a panic of gonja into an error, and that of a limit into what it says.
func guard(f func() error) (err error) {
	defer func() {
		p := recover()
		if limit, ok := p.(error); ok && errors.Is(limit, ErrLimit) {
			err = limit
		} else if p != nil {
			err = fmt.Errorf("gonja panicked: %v", p)
		}
	}()
	return f()
}

// explain keeps the innermost reason: what is around it repeats the whole template.
func explain(err error) error {
	inner := err
	for next := inner; next != nil; next = errors.Unwrap(next) {
		if next.Error() != "" {
			inner = next
		}
		if errors.Unwrap(next) == ErrLimit { //nolint:errorlint // the error that wraps it by itself is meant
			break // it says which
		}
	}
	text := inner.Error()
	if i := strings.LastIndex(text, "failed to parse template"); i >= 0 {
		text = text[i:]
	}
	if len(text) > errorBytesMax {
		text = strings.ToValidUTF8(text[:errorBytesMax], "") + "…"
	}
	if errors.Is(err, ErrLimit) {
		return fmt.Errorf("%w: %s", ErrLimit, strings.TrimPrefix(text, ErrLimit.Error()+": "))
	}
	return fmt.Errorf("%w: %s", ErrTemplate, text)
}

// nesting is the most brackets that are open at once within the expressions of a source.
func nesting(source string) (most int) {
	inside, open := false, 0
	for i := 0; i < len(source); i++ {
		two := source[i:min(i+2, len(source))]
		switch {
		case !inside && (two == "{{" || two == "{%"):
			inside, open = true, 0
			i++
		case inside && open == 0 && (two == "}}" || two == "%}"):
			inside = false
			i++
		case inside && strings.IndexByte("([{", source[i]) >= 0:
			open++
			most = max(most, open)
		case inside && open > 0 && strings.IndexByte(")]}", source[i]) >= 0:
			open--
		}
	}
	return most
}
