package rebar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
	"time"
)

// What a template may use. Its author may write tasks in one project; the gateway serves all of them.
const (
	// ActionBytesMax is the bytes of one action once it is rendered.
	ActionBytesMax = 1 << 20
	// TemplateStepsMax is how many actions, texts and branches the templates of one task execute.
	TemplateStepsMax = 250_000
	// TemplateDepthMax is how deeply templates call each other.
	TemplateDepthMax = 100
	// TemplateMadeMax is the bytes of all text that functions make for the templates of one task, by estimates that are never
	// too low, and for printf mostly some ten times too high: any verb might print the largest value, as widely as any.
	TemplateMadeMax = 16 << 20
	// TemplateTimeMax is how long the templates of one task may take.
	TemplateTimeMax = 5 * time.Second
)

// Functions that are called where a list of nodes begins, and at the begin and the end of a template. What is parsed cannot name
// them.
const (
	stepName  = "_step"
	enterName = "_enter"
	leaveName = "_leave"
)

// expander renders the templates of one task. It bounds what text/template does not: `{{range 1000000000000}}{{end}}` never ends
// and writes nothing, and `{{$x = printf "%s%s" $x $x}}` in a small loop takes all of the memory. Not safe for concurrent use.
type expander struct {
	ctx   context.Context // the request, and TemplateTimeMax of it
	in    *scope
	steps int
	depth int
	made  int
}

// passed is a limit that a template would pass.
type passed struct {
	limit string
	of    int
}

func (p *passed) Error() string { return fmt.Sprintf("it takes more than %d %s", p.of, p.limit) }

// expand renders one template, as Go's text/template does.
func (x *expander) expand(name, text string) (string, error) {
	t, err := template.New(name).Option("missingkey=error").Funcs(x.functions()).Parse(text)
	if err != nil {
		return "", fmt.Errorf("template %s: %w", name, err)
	}
	x.depth = 0
	for _, defined := range t.Templates() {
		if defined.Tree != nil && defined.Root != nil {
			root := defined.Root
			count(root)
			root.Nodes = append(slices.Insert(root.Nodes, 0, call(enterName)), call(leaveName))
		}
	}
	out := &bounded{}
	if err := t.Funcs(x.counters()).Execute(out, x.in); err != nil {
		var limit *passed
		if errors.As(err, &limit) { // where it was noticed says nothing
			err = limit
		}
		return "", fmt.Errorf("template %s: %w", name, err)
	}
	return out.String(), nil
}

// count has the nodes of a list counted whenever it is executed, and those within it.
func count(list *parse.ListNode) {
	if list == nil {
		return
	}
	for _, n := range list.Nodes {
		var branch *parse.BranchNode
		switch n := n.(type) {
		case *parse.IfNode:
			branch = &n.BranchNode
		case *parse.WithNode:
			branch = &n.BranchNode
		case *parse.RangeNode:
			branch = &n.BranchNode
		default:
			continue
		}
		count(branch.List)
		count(branch.ElseList)
	}
	list.Nodes = slices.Insert(list.Nodes, 0, call(stepName+" "+strconv.Itoa(1+len(list.Nodes))))
}

// call is an action as the parser makes it of one of our own calls.
func call(action string) parse.Node {
	none := func(...int) string { return "" }
	t := template.Must(template.New("").Funcs(template.FuncMap{stepName: none, enterName: none, leaveName: none}).Parse("{{" + action + "}}"))
	return t.Root.Nodes[0]
}

// textual are the functions of text/template that make text of what they are given, and the most bytes that each makes of one: a
// quote is &#34; in html, < is \u003C in js.
var textual = map[string]struct {
	of    func(...any) string
	times int
}{
	"print": {fmt.Sprint, 1}, "println": {fmt.Sprintln, 1}, "html": {template.HTMLEscaper, 5}, "js": {template.JSEscaper, 6},
	"urlquery": {template.URLQueryEscaper, 3},
}

// functions are those that make text, as they are but for the limit.
func (x *expander) functions() template.FuncMap {
	functions := template.FuncMap{"printf": func(format string, args ...any) (string, error) {
		if err := x.make(formatted(format, args)); err != nil {
			return "", err
		}
		return fmt.Sprintf(format, args...), nil
	}}
	for name, f := range textual {
		functions[name] = func(args ...any) (string, error) {
			if err := x.make(f.times * listed(args)); err != nil {
				return "", err
			}
			return f.of(args...), nil
		}
	}
	return functions
}

func (x *expander) counters() template.FuncMap {
	return template.FuncMap{
		stepName:  func(n int) (string, error) { return "", x.step(n) },
		enterName: func() (string, error) { return "", x.enter() },
		leaveName: func() string { x.depth--; return "" },
	}
}

func (x *expander) step(n int) error {
	if x.steps += n; x.steps > TemplateStepsMax {
		return &passed{"steps", TemplateStepsMax}
	}
	if x.ctx.Err() != nil {
		return &passed{"seconds", int(TemplateTimeMax.Seconds())}
	}
	return nil
}

func (x *expander) enter() error {
	if x.depth++; x.depth > TemplateDepthMax {
		return &passed{"templates within each other", TemplateDepthMax}
	}
	return nil
}

func (x *expander) make(n int) error {
	if x.made += n; x.made > TemplateMadeMax {
		return &passed{"bytes of values", TemplateMadeMax}
	}
	return nil
}

// listed is at least the bytes of values that are printed one after the other.
func listed(args []any) int {
	size := 1
	for _, arg := range args {
		size += 1 + extentOf(reflect.ValueOf(arg)).bytes
	}
	return size
}

// formatted is at least the bytes of what Sprintf makes. Verbs may name arguments again, and take widths from them; a width is
// that of each value within one.
func formatted(format string, args []any) int {
	var largest extent
	width := 0
	wide := func(n uint64) { width = max(width, int(min(n, widthMax))) }
	stars := strings.Contains(format, "*")
	for _, arg := range args {
		v := reflect.ValueOf(arg)
		e := extentOf(v)
		largest = extent{max(largest.bytes, e.bytes), max(largest.values, e.values)}
		switch {
		case !stars:
		case v.CanInt():
			wide(uint64(max(v.Int(), -v.Int())))
		case v.CanUint():
			wide(v.Uint())
		}
	}
	for digits := range strings.FieldsFuncSeq(format, func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			n = widthMax
		}
		wide(n)
	}
	verbs := strings.Count(format, "%")
	// A byte is at most eight: \U0010ffff of four, "0x00 " of one. Arguments that no verb takes are named at the end.
	return len(format) + (verbs+len(args))*(2*width*max(largest.values, 1)+8*largest.bytes+64)
}

// widthMax is what package fmt takes as a width or a precision: it looks whether a number is over a million before each digit.
const widthMax = 10_000_009

// extent is at least the bytes of a value as package fmt prints it with %v, with %#v nearly so, and how many values it holds, itself
// too.
type extent struct{ bytes, values int }

// extentOf is for what templates get at: text, numbers, truth, and lists and maps of such.
func extentOf(v reflect.Value) extent {
	e := extent{64, 1}
	add := func(v reflect.Value) {
		of := extentOf(v)
		e.bytes += of.bytes + 32
		e.values += of.values
	}
	switch v.Kind() {
	case reflect.String:
		e.bytes = v.Len() + 2
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() {
			add(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			add(v.Index(i))
		}
	case reflect.Map:
		for of := v.MapRange(); of.Next(); {
			add(of.Key())
			add(of.Value())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			e.bytes += len(v.Type().Field(i).Name)
			add(v.Field(i))
		}
	default: // %v of a number has at most 24, and eight times 64 are more than %f of any
	}
	return e
}

// scope is what a template sees.
type scope struct {
	Machine machineScope
	Task    taskScope
	params  map[string]string
	read    map[string]any // of params, those that were asked for: a value is made once
}

type machineScope struct {
	Name, UUID, Uuid, Stage, BootEnv, Workflow, Description string
}

type taskScope struct{ Name string }

// Param is the value of a parameter; one that is not set is an error.
func (s *scope) Param(name string) (any, error) {
	if v, ok := s.read[name]; ok {
		return v, nil
	}
	text, ok := s.params[name]
	if !ok {
		return nil, fmt.Errorf("parameter %s is not set", name)
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, err
	}
	s.read[name] = v
	return v, nil
}

// ParamExists reports whether a parameter is set.
func (s *scope) ParamExists(name string) bool {
	_, ok := s.params[name]
	return ok
}

// bounded refuses what is over the limit, so that no template fills the memory.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > ActionBytesMax {
		return 0, errors.New("it renders to more than " + strconv.Itoa(ActionBytesMax) + " bytes")
	}
	return b.Buffer.Write(p)
}
