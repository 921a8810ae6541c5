// Package definition reads the definition files of plugins in the form of CycleCloud (seed 003, "Phase Plugins",
// "Conditional Phases", "Dependencies", "State Listeners"), and says what they make: phases of a blueprint, or a
// listener.
//
//	HandlesStates = Allocation
//	ResourceType = Cloud.Node
//	PhaseName = Acme.CreateInstance
//	Phase.Description = Starting Acme instance
//	Phase.Dependencies = Example.CreateVolume
//	ForProvider = acme
//	ResourceConstraint := FixedPublicIp isnt undefined
//
// # The file
//
// One definition: a line for each key, "Key = value" or "Key := expression"; blank lines, and lines that begin with #, are
// nothing. UTF-8, at most FileBytesMax bytes. A key stands once.
//
//	HandlesStates                     one or more states; makes it a phase plugin
//	ResourceType                      one or more kinds
//	PhaseName                         the phase
//	Phase.Description                 for people
//	Phase.Dependencies                phases of the same states
//	Phase.NAME                        anything else to be said of the phase: kept and shown
//	Phase_NAME                        the same, as it was written before CycleCloud 6.1
//	HandlesProvider, ForProvider      the provider whose resources it is for; two names of one thing
//	ResourceConstraint                an expression, with :=
//	ResourceStateListener             true makes it a state listener
//	ResourceStates, ResourceTypes     one or more states, and kinds, that it listens to
//
// A value is text up to the end of its line, or text in double quotes (with \" \\ \n \t \r). Several are separated by
// commas, and may stand in brackets, [ ] or { }. A Phase.NAME of true, false or a number is that and no text.
//
// # Expressions
//
// A part of CycleCloud's: names of values, "text", numbers, true, false; NAME is undefined, NAME isnt undefined; == != < <=
// > >= between values; && || ! and parentheses. Anything else is refused with its column. They are translated to CEL, the
// language of a phase's "when". A name is the resource's own (Name, Type, State, TargetState, ClusterName), else an
// attribute, else a field of its spec, else undefined. What compares an undefined value is neither true nor false, and a
// constraint that is not true skips the phase: with X undefined, X == 1, X != 1 and !(X == 1) all skip it. Text is compared
// with regard to case. Comparing by < what has no order with each other fails the phase.
//
// # Absent on purpose
//
// No files, no clock, no bus: text in, data out. Whether a kind and its states exist is its blueprint's to say.
package definition

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/droverproject/drover/pkg/manifest"
)

// Limits of a file.
const (
	FileBytesMax = 64 << 10 // bytes
	KeysMax      = 128      // keys
	ListMax      = 64       // values of a list
	ErrorsMax    = 32       // mistakes that are told
	NestingMax   = 16       // of parentheses and ! in an expression
	ExprBytesMax = 2 << 10  // bytes of an expression
)

// Definition is what a file says: of a phase plugin, of a state listener, or of both.
type Definition struct {
	Phase    *Phase
	Listener *Listener
}

// Phase is a phase plugin.
type Phase struct {
	Name        string
	Description string
	Kinds       []string // ResourceType; one or more
	States      []string // HandlesStates; one or more
	DependsOn   []string
	Provider    string
	When        string      // ResourceConstraint, in CEL
	Attributes  []Attribute // the other Phase.NAME, by name
}

// Attribute is a Phase.NAME.
type Attribute struct {
	Name string
	JSON string // its value
}

// Listener is a state listener.
type Listener struct {
	Kinds  []string // ResourceTypes; one or more
	States []string // ResourceStates; one or more
}

// Error is one mistake in a file.
type Error struct {
	Line, Column int // from 1, in characters
	Reason       string
}

func (e Error) Error() string {
	return strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Column) + ": " + e.Reason
}

// Errors are the mistakes of a file, in its order; ErrorsMax at most.
type Errors []Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Parse reads a file. The error is an Errors.
func Parse(file []byte) (Definition, error) {
	p := parser{at: map[string]entry{}}
	switch {
	case len(file) > FileBytesMax:
		p.fail(1, 1, "the file is larger than %d bytes", FileBytesMax)
	case !utf8.Valid(file):
		p.fail(1, 1, "the file is not UTF-8")
	default:
		p.entries(strings.TrimPrefix(string(file), "\ufeff"))
	}
	var d Definition
	if len(p.errs) == 0 {
		d = p.definition()
	}
	if len(p.errs) > 0 {
		slices.SortStableFunc(p.errs, func(a, b Error) int {
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Column - b.Column
		})
		return Definition{}, p.errs[:min(len(p.errs), ErrorsMax)]
	}
	return d, nil
}

// entry is one line that says something.
type entry struct {
	key        string // as it is meant: Phase.X also where it was written Phase_X
	written    string
	line       int
	column     int    // of the value
	text       string // of the value
	expression bool
}

type parser struct {
	errs    Errors
	ordered []entry
	at      map[string]entry
	used    map[string]bool
}

func (p *parser) fail(line, column int, format string, args ...any) {
	p.errs = append(p.errs, Error{Line: line, Column: column, Reason: fmt.Sprintf(format, args...)})
}

func (p *parser) entries(text string) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")
		p.entry(n, line)
		if len(p.errs) >= ErrorsMax {
			return
		}
	}
	if len(p.ordered) > KeysMax {
		p.fail(p.ordered[KeysMax].line, 1, "more than %d keys", KeysMax)
	}
}

func (p *parser) entry(n int, line string) {
	rest := strings.TrimLeft(line, " \t")
	if rest == "" || rest[0] == '#' {
		return
	}
	column := func(i int) int { return utf8.RuneCountInString(line[:i]) + 1 }
	start := len(line) - len(rest)
	end := start
	for end < len(line) && isKey(line[end]) {
		end++
	}
	key := line[start:end]
	i := end
	for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
		i++
	}
	e := entry{key: key, written: key, line: n}
	switch {
	case key == "":
		p.fail(n, column(start), "a key is letters, digits, _ and dots: Key = value, or Key := expression")
		return
	case strings.HasPrefix(line[i:], ":="):
		e.expression = true
		i += 2
	case strings.HasPrefix(line[i:], "="):
		i++
	default:
		p.fail(n, column(i), "= or := is missing behind the key %s", key)
		return
	}
	for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
		i++
	}
	e.column, e.text = column(i), strings.TrimRight(line[i:], " \t")
	if name, legacy := strings.CutPrefix(key, "Phase_"); legacy {
		e.key = "Phase." + name
	}
	if e.key == "HandlesProvider" {
		e.key = "ForProvider"
	}
	if !known(e.key) {
		p.fail(n, column(start), "%s is not a key of plugins: those are %s", key, strings.Join(keys, ", "))
		return
	}
	if first, twice := p.at[e.key]; twice {
		p.fail(n, column(start), "%s is said already in line %d, as %s; a file holds one definition", key, first.line, first.written)
		return
	}
	if e.text == "" {
		p.fail(n, e.column, "the value of %s is missing", key)
		return
	}
	p.at[e.key] = e
	p.ordered = append(p.ordered, e)
}

func isKey(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.'
}

var keys = []string{
	"HandlesStates", "ResourceType", "PhaseName", "Phase.Description", "Phase.Dependencies", "Phase.NAME",
	"HandlesProvider", "ForProvider", "ResourceConstraint", "ResourceStateListener", "ResourceStates", "ResourceTypes",
}

func known(key string) bool {
	name, phase := strings.CutPrefix(key, "Phase.")
	return phase && name != "" || slices.Contains(keys, key)
}

// definition is what the entries say.
func (p *parser) definition() Definition {
	p.used = map[string]bool{}
	var d Definition
	listens := p.boolean("ResourceStateListener")
	if _, ok := p.at["HandlesStates"]; ok {
		d.Phase = p.phase()
	}
	if listens {
		d.Listener = &Listener{States: p.names("ResourceStates"), Kinds: p.names("ResourceTypes")}
	}
	if d.Phase == nil && d.Listener == nil && len(p.errs) == 0 {
		p.fail(1, 1, "neither HandlesStates, which makes a phase plugin, nor ResourceStateListener = true, which makes a state listener, is there")
		return d
	}
	for _, e := range p.ordered {
		if !p.used[e.key] {
			p.fail(e.line, 1, "%s is not for %s", e.written, d.what())
		}
	}
	return d
}

func (d *Definition) what() string {
	switch {
	case d.Phase == nil:
		return "a state listener alone"
	case d.Listener == nil:
		return "a phase plugin alone; a listener says ResourceStateListener = true"
	default:
		return "this"
	}
}

func (p *parser) phase() *Phase {
	d := &Phase{States: p.names("HandlesStates"), Kinds: p.names("ResourceType"), Name: p.name("PhaseName", true)}
	d.Provider = p.name("ForProvider", false)
	if e, ok := p.take("Phase.Description"); ok {
		d.Description, _ = p.textOf(e)
	}
	if _, ok := p.at["Phase.Dependencies"]; ok {
		d.DependsOn = p.names("Phase.Dependencies")
	}
	if e, ok := p.at["ResourceConstraint"]; ok {
		p.used[e.key] = true
		if !e.expression {
			p.fail(e.line, e.column, "%s is an expression: write := before it", e.written)
		} else {
			d.When = p.expression(e)
		}
	}
	for _, e := range p.ordered {
		name, ok := strings.CutPrefix(e.key, "Phase.")
		if !ok || p.used[e.key] {
			continue
		}
		if _, ok := p.take(e.key); ok {
			d.Attributes = append(d.Attributes, Attribute{Name: name, JSON: p.jsonOf(e)})
		}
	}
	if len(d.Attributes) > manifest.PhaseAttributesMax {
		p.fail(1, 1, "more than %d attributes of the phase", manifest.PhaseAttributesMax)
	}
	slices.SortFunc(d.Attributes, func(a, b Attribute) int { return strings.Compare(a.Name, b.Name) })
	return d
}

// take is the entry of a key whose value is no expression.
func (p *parser) take(key string) (entry, bool) {
	e, ok := p.at[key]
	if !ok {
		return e, false
	}
	p.used[key] = true
	if e.expression {
		p.fail(e.line, e.column, "an expression is not supported for %s: write = and a value", e.written)
		return e, false
	}
	return e, true
}

// missing tells that a key is not there.
func (p *parser) missing(key string) {
	if len(p.ordered) > 0 {
		p.fail(p.ordered[0].line, 1, "%s is missing", key)
	}
}
