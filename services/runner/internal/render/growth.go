package render

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/nikolalohinski/gonja/v2/builtins"
	controlstructures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// What an expression may make:
//
// gonja makes each value as a whole before anything of it is written, so the limit of the output comes too late for
// {{ "x" * 100000000000 }}. Here whatever makes a value larger than those that it is made of says beforehand how large it
// would be at most, and all that is made is counted:
//
//   - Filters and methods of text are gonja's own, by name, with that in front of them.
//   - The operators *, + and ~ are evaluated by gonja's evaluator itself, which has no place for a limit. So the parsed
//     tree is rewritten: an operator becomes the call of a function whose name no template can write, which looks at the
//     two sides and has gonja evaluate the operator upon them.
//   - Calls and slices are counted after they were made, and with them looked at the time, which nothing else does within
//     an expression.
//
// A limit that is passed is a panic, which guard makes an error again: the filter default would replace an error.

// filterNames are the filters that a template may use: all of gonja's.
var filterNames = []string{
	"abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape",
	"filesizeformat", "first", "float", "forceescape", "format", "groupby", "indent", "int", "items", "join", "last",
	"length", "list", "lower", "map", "max", "min", "pprint", "random", "reject", "rejectattr", "replace", "reverse",
	"round", "safe", "select", "selectattr", "slice", "sort", "string", "striptags", "sum", "title", "tojson", "trim",
	"truncate", "unique", "upper", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr",
}

// textMethodNames are the methods of text that a template may use: all of gonja's.
var textMethodNames = []string{
	"capitalize", "capwords", "casefold", "center", "count", "encode", "endswith", "expandtabs", "find", "format",
	"format_map", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isprintable",
	"isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix",
	"replace", "rfind", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
	"swapcase", "title", "upper", "zfill",
}

// Names of functions that rewriting has called, and of the output that filters count for. No template can write them.
const (
	made        = "()" // returns what it is given
	multiply    = "*"
	add         = "+"
	concatenate = "~"
	counted     = "#"
)

// estimate is the most bytes, or items, that would be made of a value and arguments.
type estimate func(in *exec.Value, args *exec.VarArgs) int

var (
	filterGrowth = map[string]estimate{
		"batch": padded, "center": padded, "format": formatted, "indent": indented, "join": joined, "replace": replaced, "slice": padded,
		"tojson": indentedJSON,
	}
	textGrowth = map[string]estimate{
		"center": padded, "expandtabs": expanded, "format": braced, "format_map": braced, "join": joinedBy, "ljust": padded,
		"replace": replaced, "rjust": padded, "zfill": padded,
	}
)

var filters = func() *exec.FilterSet {
	set := map[string]exec.FilterFunction{}
	for _, name := range filterNames {
		filter, ok := builtins.Filters.Get(name)
		if !ok {
			panic("gonja has no filter " + name) // a pinned version: tests see it
		}
		set[name] = func(e *exec.Evaluator, in *exec.Value, args *exec.VarArgs) *exec.Value {
			if growth := filterGrowth[name]; growth != nil && !in.IsError() {
				foresee(growth(in, args))
			}
			out := filter(e, in, args)
			if o, ok := e.Environment.Context.Get(counted); ok {
				o.(*output).count(out)
			}
			return out
		}
	}
	return exec.NewFilterSet(set)
}()

// methods are gonja's. Those of text alone can make more than they are given.
var methods = func() exec.Methods {
	set := map[string]exec.Method[string]{}
	for _, name := range textMethodNames {
		method, ok := builtins.Methods.Str.Get(name)
		if !ok {
			panic("gonja has no method of text " + name) // a pinned version: tests see it
		}
		set[name] = func(self string, in *exec.Value, args *exec.VarArgs) (any, error) {
			if growth := textGrowth[name]; growth != nil {
				foresee(growth(in, args))
			}
			return method(self, in, args)
		}
	}
	m := builtins.Methods
	m.Str = exec.NewMethodSet(set)
	return m
}()

// foresee ends the rendering where a value would be larger than what a template may render to.
func foresee(size int) {
	if size > OutputBytesMax {
		panic(fmt.Errorf("%w: an expression would make a value of more than %d bytes or items", ErrLimit, OutputBytesMax))
	}
}

// count counts a value that was made, and ends the rendering where it is one too many, or too late.
func (o *output) count(v *exec.Value) {
	switch {
	case v.IsString():
		o.made += len(v.String())
	case v.IsList():
		o.made += v.Len()
	}
	if o.made > madeMax {
		panic(fmt.Errorf("%w: its expressions make values of more than %d bytes and items together", ErrLimit, madeMax))
	}
	if err := o.check(); err != nil {
		panic(err)
	}
}

// names are those of a template's variables, and of what rewriting has put into it.
func (o *output) names(vars Vars) map[string]any {
	names := map[string]any{
		counted:     o,
		multiply:    o.operator(tokens.Multiply, multiply, multiplied),
		add:         o.operator(tokens.Addition, add, added),
		concatenate: o.operator(tokens.Tilde, concatenate, concatenated),
		made: func(args *exec.VarArgs) *exec.Value {
			o.count(args.First())
			return args.First()
		},
	}
	maps.Copy(names, vars)
	return names
}

// operator is a function that does what an operator does with its two arguments.
func (o *output) operator(kind tokens.Type, sign string, growth func(left, right *exec.Value) int) func(*exec.Evaluator, *exec.VarArgs) *exec.Value {
	const left, right = "left", "right"
	operation := &nodes.BinaryExpression{
		Left: name(left), Right: name(right), Operator: &nodes.BinOperator{Token: &tokens.Token{Type: kind, Val: sign}},
	}
	return func(e *exec.Evaluator, args *exec.VarArgs) *exec.Value {
		a, b := args.Args[0], args.Args[1]
		foresee(growth(a, b))
		sides := &exec.Environment{Context: exec.NewContext(map[string]any{left: a, right: b})}
		v := (&exec.Evaluator{Config: e.Config, Loader: e.Loader, Environment: sides}).Eval(operation)
		o.count(v)
		return v
	}
}

func name(text string) *nodes.Name {
	return &nodes.Name{Name: &tokens.Token{Type: tokens.Name, Val: text}}
}

func multiplied(left, right *exec.Value) int {
	if !left.IsString() || right.IsFloat() {
		return 0
	}
	return len(left.String()) * within(right.Integer())
}

func added(left, right *exec.Value) int {
	switch {
	case left.IsList() && right.IsList():
		return left.Len() + right.Len()
	case left.IsList(), left.IsFloat(), right.IsFloat():
		return 0
	case left.IsString(), right.IsString():
		return concatenated(left, right)
	}
	return 0
}

func concatenated(left, right *exec.Value) int { return len(left.String()) + len(right.String()) }

// within is n where it is below the limit, and just above where it is above: so products of two do not overflow.
func within(n int) int { return min(max(n, 0), OutputBytesMax+1) }

// arguments are all of them.
func arguments(args *exec.VarArgs) []*exec.Value {
	all := append([]*exec.Value(nil), args.Args...)
	for _, v := range args.KwArgs {
		all = append(all, v)
	}
	return all
}

// widest is the largest number among arguments, whichever of them is the width.
func widest(args *exec.VarArgs) (most int) {
	for _, v := range arguments(args) {
		if v.IsInteger() {
			most = max(most, within(v.Integer()))
		}
	}
	return most
}

// longest is the longest text that an argument has.
func longest(args *exec.VarArgs) (most int) {
	for _, v := range arguments(args) {
		most = max(most, len(v.String()))
	}
	return within(most)
}

// argument is one by its place or its name.
func argument(args *exec.VarArgs, i int, name string) *exec.Value {
	if v, ok := args.KwArgs[name]; ok {
		return v
	}
	if i < len(args.Args) {
		return args.Args[i]
	}
	return exec.AsValue(nil)
}

func padded(_ *exec.Value, args *exec.VarArgs) int { return widest(args) }

func indented(in *exec.Value, args *exec.VarArgs) int {
	text := in.String()
	return len(text) + (1+strings.Count(text, "\n"))*max(widest(args), longest(args))
}

func expanded(in *exec.Value, args *exec.VarArgs) int {
	text := in.String()
	return len(text) + strings.Count(text, "\t")*widest(args)
}

func joined(in *exec.Value, args *exec.VarArgs) int { return len(in.String()) + in.Len()*longest(args) }

func joinedBy(in *exec.Value, args *exec.VarArgs) int {
	list := argument(args, 0, "iterable")
	return len(list.String()) + list.Len()*within(len(in.String()))
}

func replaced(in *exec.Value, args *exec.VarArgs) int {
	text := in.String()
	return len(text) + strings.Count(text, argument(args, 0, "old").String())*within(len(argument(args, 1, "new").String()))
}

// formatted is of Go's verbs: each may show the longest argument, escaped where it quotes, as wide as its numbers say.
func formatted(in *exec.Value, args *exec.VarArgs) int {
	const numberBytesMax, escaped = 512, 8
	text := in.String()
	shown := longest(args) + numberBytesMax
	if strings.ContainsAny(text, "qxXU#") {
		shown *= escaped
	}
	if strings.Contains(text, "*") {
		shown += widest(args)
	}
	return len(text) + strings.Count(text, "%")*shown + numbersIn(text)
}

// braced is of Python's fields in braces. A width may be a field itself.
func braced(in *exec.Value, args *exec.VarArgs) int {
	const numberBytesMax, escaped = 512, 8
	text := in.String()
	shown := longest(args) + numberBytesMax
	if strings.Contains(text, "!") {
		shown *= escaped
	}
	if nested(text) {
		shown += widest(args)
	}
	return len(text) + strings.Count(text, "{")*shown + numbersIn(text)
}

func nested(text string) bool {
	open := 0
	for i := range len(text) {
		switch text[i] {
		case '{':
			open++
		case '}':
			open = 0
		}
		if open > 1 && text[i] != '{' {
			return true
		}
	}
	return false
}

// numbersIn is the sum of the numbers in a text, each of which may be a width.
func numbersIn(text string) (sum int) {
	number := 0
	for i := range len(text) {
		if c := text[i]; c >= '0' && c <= '9' {
			number = within(10*number + int(c-'0'))
			continue
		}
		sum, number = sum+number, 0
	}
	return sum + number
}

// indentedJSON counts what each line of the indented form has before it.
func indentedJSON(in *exec.Value, args *exec.VarArgs) int {
	width := widest(args)
	if width == 0 {
		return 0
	}
	compact, _ := builtins.Filters.Get("tojson")
	text := compact(nil, in, exec.NewVarArgs()).String()
	size, depth, quoted := len(text), 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			depth++
			size += depth * width
		case c == ',':
			size += depth * width
		case c == '}', c == ']':
			depth--
			size += depth * width
		}
		if size > OutputBytesMax {
			return size
		}
	}
	return size
}

// rewriter puts the limits into a parsed tree. A node that stands in two places, as what a method is called on does, is
// rewritten once.
type rewriter map[nodes.Node]nodes.Node

// rewrite returns what is to stand in a node's place. A kind of node that it does not know is an error: that may make anything.
func (r rewriter) rewrite(n nodes.Node) (nodes.Node, error) {
	if done, ok := r[n]; ok {
		return done, nil
	}
	out, err := n, r.inside(n)
	switch n := n.(type) {
	case *nodes.BinaryExpression:
		switch n.Operator.Token.Type {
		case tokens.Multiply:
			out = called(multiply, n, n.Left, n.Right)
		case tokens.Addition:
			out = called(add, n, n.Left, n.Right)
		case tokens.Tilde:
			out = called(concatenate, n, n.Left, n.Right)
		default: // makes a number, a truth or one of its sides
		}
	case *nodes.Call, *nodes.GetSlice:
		out = called(made, n, n)
	}
	r[n] = out
	return out, err
}

func called(function string, place nodes.Node, args ...nodes.Expression) nodes.Node {
	return &nodes.Call{Location: place.Position(), Func: name(function), Args: args}
}

// inside rewrites what a node consists of.
func (r rewriter) inside(n nodes.Node) error {
	switch n := n.(type) {
	case *nodes.Template:
		return all(r, n.Nodes)
	case *nodes.Wrapper:
		return all(r, n.Nodes)
	case *nodes.Output:
		return each(r, &n.Expression, &n.Condition, &n.Alternative)
	case *nodes.ControlStructureBlock:
		return r.statement(n.ControlStructure)
	case *nodes.List:
		return all(r, n.Val)
	case *nodes.Tuple:
		return all(r, n.Val)
	case *nodes.Dict:
		return all(r, n.Pairs)
	case *nodes.Pair:
		return each(r, &n.Key, &n.Value)
	case *nodes.Call:
		return errors.Join(each(r, &n.Func, &n.Parent), all(r, n.Args), values(r, n.Kwargs))
	case *nodes.GetItem:
		return each(r, &n.Node, &n.Arg)
	case *nodes.GetAttribute:
		return each(r, &n.Node)
	case *nodes.GetSlice:
		return each(r, &n.Node, &n.Start, &n.End, &n.Step)
	case *nodes.Negation:
		return each(r, &n.Term)
	case *nodes.UnaryExpression:
		return each(r, &n.Term)
	case *nodes.BinaryExpression:
		return each(r, &n.Left, &n.Right)
	case *nodes.TestExpression:
		return errors.Join(each(r, &n.Expression), all(r, n.Test.Args), values(r, n.Test.Kwargs))
	case *nodes.FilteredExpression:
		err := each(r, &n.Expression)
		for _, f := range n.Filters {
			err = errors.Join(err, all(r, f.Args), values(r, f.Kwargs))
		}
		return err
	case *nodes.Comment, *nodes.Data, *nodes.None, *nodes.String, *nodes.Integer, *nodes.Float, *nodes.Bool, *nodes.Name:
		return nil
	}
	return fmt.Errorf("%T is not for templates", n)
}

// statement rewrites what is in one of the statements.
func (r rewriter) statement(s nodes.ControlStructure) error {
	if l, ok := s.(*limited); ok {
		s = l.ControlStructure
	}
	switch s := s.(type) {
	case *controlstructures.IfControlStructure:
		return errors.Join(all(r, s.Conditions), all(r, s.Wrappers))
	case *controlstructures.ForControlStructure:
		return errors.Join(each(r, &s.ObjectEvaluator, &s.IfCondition), each(r, &s.BodyWrapper, &s.EmptyWrapper))
	case *controlstructures.RawControlStructure:
		return nil
	}
	return fmt.Errorf("%T is not for templates", s)
}

// each rewrites nodes where they stand; one that is missing stays so.
func each[N nodes.Node](r rewriter, places ...*N) error {
	for _, place := range places {
		if v := reflect.ValueOf(*place); !v.IsValid() || v.IsNil() {
			continue
		}
		out, err := r.rewrite(*place)
		if err != nil {
			return err
		}
		*place = out.(N) // only expressions are replaced, by expressions
	}
	return nil
}

func all[N nodes.Node](r rewriter, list []N) error {
	for i := range list {
		if err := each(r, &list[i]); err != nil {
			return err
		}
	}
	return nil
}

func values(r rewriter, named map[string]nodes.Expression) error {
	for name, n := range named {
		if err := each(r, &n); err != nil {
			return err
		}
		named[name] = n
	}
	return nil
}
