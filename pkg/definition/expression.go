package definition

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/engine/blueprint"
)

// expression translates one to CEL.
func (p *parser) expression(e entry) string {
	if len(e.text) > ExprBytesMax {
		p.fail(e.line, e.column, "the expression is longer than %d bytes", ExprBytesMax)
		return ""
	}
	x := expr{text: e.text}
	root, err := x.parse()
	var wrong *exprError
	if errors.As(err, &wrong) {
		p.fail(e.line, e.place(wrong.offset), "%s", wrong.reason)
		return ""
	}
	when := root.holds(true)
	if len(when) > blueprint.WhenBytesMax {
		p.fail(e.line, e.column, "the expression is too long: in CEL it has %d bytes, and the limit is %d", len(when), blueprint.WhenBytesMax)
		return ""
	}
	if err := constraint.Compile(when); err != nil {
		p.fail(e.line, e.column, "the expression %s", err)
		return ""
	}
	return when
}

// exprError is a mistake in an expression.
type exprError struct {
	offset int // in bytes
	reason string
}

func (e *exprError) Error() string { return e.reason }

// node is a part of an expression that is true, false, or neither.
//
// holds is the CEL expression that is true where the part is true (want), or false (not want), and false otherwise; so
// that "neither", which CEL does not know, is where both are false. Its length grows with the part's, not faster.
type node interface{ holds(want bool) string }

type (
	// and is a conjunction, or with or set a disjunction.
	and struct {
		or    bool
		parts []node
	}
	not struct{ of node }
	// compare is a comparison of two values; op is CEL's.
	compare struct {
		a, b value
		op   string
	}
	// defined is NAME isnt undefined.
	defined struct{ of value }
	// truth is a value that stands for itself.
	truth struct{ of value }
	// literal is true or false.
	literal bool
)

// value is something that is compared: CEL that never fails, and is null where it is undefined.
type value struct {
	cel     string
	literal bool // which is never undefined
}

func (n and) holds(want bool) string {
	join := " && "
	if n.or == want { // not (a && b) is not a || not b
		join = " || "
	}
	parts := make([]string, len(n.parts))
	for i, p := range n.parts {
		parts[i] = p.holds(want)
	}
	return "(" + strings.Join(parts, join) + ")"
}

func (n not) holds(want bool) string { return n.of.holds(!want) }

func (n defined) holds(want bool) string {
	if want {
		return n.of.cel + " != null"
	}
	return n.of.cel + " == null"
}

func (n truth) holds(want bool) string { return n.of.cel + " == " + strconv.FormatBool(want) }

func (n literal) holds(want bool) string { return strconv.FormatBool(bool(n) == want) }

func (n compare) holds(want bool) string {
	a, b := n.a, n.b
	bind := func(v value, name, body string) (string, string) {
		if v.literal {
			return v.cel, body
		}
		return name, "[" + v.cel + "].exists(" + name + ", " + name + " != null && %s)"
	}
	left, outer := bind(a, "a", "%s")
	right, inner := bind(b, "b", "%s")
	// dyn: CEL would refuse to compare two literals of different kinds.
	test := "dyn(" + left + ") " + n.op + " " + right
	if !want {
		test = "!(" + test + ")"
	}
	// No format: values may hold anything.
	return strings.Replace(outer, "%s", strings.Replace(inner, "%s", test, 1), 1)
}

// own are the names of what a resource is itself.
var own = map[string]string{
	"Name": "dyn(resource.name)", "Type": "dyn(resource.kind)", "State": "dyn(resource.state)", "TargetState": "dyn(resource.target)",
	"ClusterName": "dyn(resource.cluster)",
}

func reference(name string) value {
	if cel, ok := own[name]; ok {
		return value{cel: cel}
	}
	q := strconv.Quote(name)
	return value{cel: fmt.Sprintf("(%[1]s in resource.attributes ? resource.attributes[%[1]s] : %[1]s in resource.spec ? resource.spec[%[1]s] : null)", q)}
}

// token is one word of an expression.
type token struct {
	kind   tokenKind
	text   string // as written; of a string, what it means
	offset int
}

type tokenKind uint8

const (
	tokenEnd tokenKind = iota
	tokenName
	tokenText
	tokenNumber
	tokenOp // also parentheses
)

// expr reads one expression.
type expr struct {
	text  string
	i     int
	next  token
	depth int
}

func fail(offset int, format string, args ...any) error {
	return &exprError{offset: offset, reason: fmt.Sprintf(format, args...)}
}

// ops are the operators, the longer ones first.
var ops = []string{"&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")", "-"}

func (x *expr) advance() error {
	for x.i < len(x.text) && (x.text[x.i] == ' ' || x.text[x.i] == '\t') {
		x.i++
	}
	start := x.i
	x.next = token{offset: start}
	if start == len(x.text) {
		return nil
	}
	rest := x.text[start:]
	switch c := rest[0]; {
	case c == '"':
		text, n, err := quoted(rest)
		if err != nil {
			return fail(start+n, "%s", err)
		}
		x.next.kind, x.next.text, x.i = tokenText, text, start+n
		return nil
	case isLetter(c):
		n := 1
		for n < len(rest) && (isLetter(rest[n]) || isDigit(rest[n])) {
			n++
		}
		if n < len(rest) && rest[n] == '.' {
			return fail(start+n, "a value within a value (with a dot) is not supported")
		}
		if n < len(rest) && rest[n] == '(' {
			return fail(start, "functions are not supported")
		}
		x.next.kind, x.next.text, x.i = tokenName, rest[:n], start+n
		return nil
	case isDigit(c):
		n := 1
		for n < len(rest) && (isDigit(rest[n]) || isLetter(rest[n]) || rest[n] == '.' || (rest[n] == '-' || rest[n] == '+') && (rest[n-1] == 'e' || rest[n-1] == 'E')) {
			n++
		}
		x.next.kind, x.next.text, x.i = tokenNumber, rest[:n], start+n
		return nil
	}
	for _, op := range ops {
		if strings.HasPrefix(rest, op) {
			x.next.kind, x.next.text, x.i = tokenOp, op, start+len(op)
			return nil
		}
	}
	return fail(start, "%q is not supported here; an expression has names, \"text\", numbers, is undefined, isnt undefined, == != < <= > >= && || ! and parentheses", firstRune(rest))
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }

func (x *expr) op(text string) bool { return x.next.kind == tokenOp && x.next.text == text }

func (x *expr) word(text string) bool {
	return x.next.kind == tokenName && strings.EqualFold(x.next.text, text)
}

func (x *expr) parse() (node, error) {
	if err := x.advance(); err != nil {
		return nil, err
	}
	n, err := x.or()
	if err != nil {
		return nil, err
	}
	if x.next.kind != tokenEnd {
		return nil, fail(x.next.offset, "%s is not expected here", x.shown())
	}
	return n, nil
}

func (x *expr) shown() string {
	if x.next.kind == tokenEnd {
		return "the end"
	}
	if x.next.kind == tokenText {
		return strconv.Quote(x.next.text)
	}
	return x.next.text
}

func (x *expr) or() (node, error) { return x.series("||", x.and) }

func (x *expr) and() (node, error) { return x.series("&&", x.unary) }

func (x *expr) series(op string, part func() (node, error)) (node, error) {
	first, err := part()
	if err != nil {
		return nil, err
	}
	parts := []node{first}
	for x.op(op) {
		if err := x.advance(); err != nil {
			return nil, err
		}
		n, err := part()
		if err != nil {
			return nil, err
		}
		parts = append(parts, n)
	}
	if len(parts) == 1 {
		return first, nil
	}
	return and{or: op == "||", parts: parts}, nil
}

func (x *expr) unary() (node, error) {
	at := x.next.offset
	if x.depth++; x.depth > NestingMax {
		return nil, fail(at, "the expression is nested deeper than %d", NestingMax)
	}
	defer func() { x.depth-- }()
	switch {
	case x.op("!"):
		if err := x.advance(); err != nil {
			return nil, err
		}
		// ! binds closer than a comparison: what it is meant for stands in parentheses.
		n, err := x.unary()
		if err != nil {
			return nil, err
		}
		switch n.(type) {
		case compare, defined:
			return nil, fail(at, "put in parentheses what ! is for")
		}
		return not{n}, nil
	case x.op("("):
		if err := x.advance(); err != nil {
			return nil, err
		}
		n, err := x.or()
		if err != nil {
			return nil, err
		}
		if !x.op(")") {
			return nil, fail(x.next.offset, ") is missing before %s", x.shown())
		}
		if err := x.advance(); err != nil {
			return nil, err
		}
		if _, ok := x.comparison(); ok {
			return nil, fail(x.next.offset, "a comparison is between values, and not with what stands in parentheses")
		}
		return group{n}, nil
	default:
		return x.primary()
	}
}

// group is what stood in parentheses.
type group struct{ node }

// primary is a comparison, or a value by itself.
func (x *expr) primary() (node, error) {
	start := x.next
	a, err := x.value()
	if err != nil {
		return nil, err
	}
	if op, ok := x.comparison(); ok {
		if err := x.advance(); err != nil {
			return nil, err
		}
		b, err := x.value()
		if err != nil {
			return nil, err
		}
		if _, again := x.comparison(); again {
			return nil, fail(x.next.offset, "comparisons cannot be chained")
		}
		return compare{a, b, op}, nil
	}
	if x.word("is") || x.word("isnt") {
		isnt := x.word("isnt")
		if start.kind != tokenName {
			return nil, fail(x.next.offset, "is and isnt ask for a name")
		}
		if err := x.advance(); err != nil {
			return nil, err
		}
		if !x.word("undefined") {
			return nil, fail(x.next.offset, "only undefined may follow is and isnt")
		}
		if err := x.advance(); err != nil {
			return nil, err
		}
		if isnt {
			return defined{a}, nil
		}
		return group{not{defined{a}}}, nil
	}
	switch {
	case start.kind == tokenName && a.literal:
		return literal(a.cel == "true"), nil
	case start.kind == tokenName:
		return truth{a}, nil
	default:
		return nil, fail(start.offset, "a text or a number is neither true nor false: compare it")
	}
}

// comparison is CEL's operator for the next token, where it is one.
func (x *expr) comparison() (string, bool) {
	if x.next.kind == tokenOp {
		switch x.next.text {
		case "==", "!=", "<", "<=", ">", ">=":
			return x.next.text, true
		}
	}
	return "", false
}

// value is a name, a text, a number, true or false.
func (x *expr) value() (v value, err error) {
	t := x.next
	negative := false
	if x.op("-") {
		if err := x.advance(); err != nil {
			return v, err
		}
		if t, negative = x.next, true; t.kind != tokenNumber {
			return v, fail(t.offset, "a number is missing behind -")
		}
	}
	switch {
	case t.kind == tokenText:
		v = value{cel: strconv.Quote(t.text), literal: true}
	case t.kind == tokenNumber:
		cel, ok := number(t.text, negative)
		if !ok {
			return v, fail(t.offset, "%s is not a number that fits", t.text)
		}
		v = value{cel: cel, literal: true}
	case x.word("undefined"):
		return v, fail(t.offset, "nothing equals undefined: write NAME is undefined, or NAME isnt undefined")
	case x.word("is"), x.word("isnt"):
		return v, fail(t.offset, "a name is missing before %s", t.text)
	case x.word("true"), x.word("false"):
		v = value{cel: strings.ToLower(t.text), literal: true}
	case t.kind == tokenName:
		v = reference(t.text)
	default:
		return v, fail(t.offset, "a value is missing before %s", x.shown())
	}
	return v, x.advance()
}

// number is a number as CEL writes it: whole ones of 64 bits, others with a point or an exponent.
func number(text string, negative bool) (string, bool) {
	if negative {
		text = "-" + text
	}
	if !strings.ContainsAny(text, ".eE") {
		n, ok := new(big.Int).SetString(text, 10)
		if !ok || !n.IsInt64() {
			return "", false
		}
		return n.String(), true
	}
	if strings.ContainsAny(text, "xXpP_") {
		return "", false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return "", false
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	return s, true
}
