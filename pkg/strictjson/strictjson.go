// Package strictjson reads JSON from outside: nothing is guessed, dropped or rounded.
//
// It refuses what encoding/json lets pass (unknown fields, duplicate keys, other cases of a name, text after the value,
// text that is no UTF-8, deep nesting) and names the place of each mistake as users write it: spec.phases[1].dependsOn[0].
// All mistakes are reported, not only the first, up to ErrorsMax.
//
// Types it fills: string, bool, int, uint32, time.Duration ("15s"), json.RawMessage (any value), Object, Scalar,
// structs, pointers, slices, and maps by string of these. A field's name is its json tag; an alias tag allows a second one. In
// structs, null means not set.
package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of a document.
const (
	DepthMax  = 64 // objects and arrays within each other
	ErrorsMax = 32 // mistakes reported at once
)

// Error is one mistake.
type Error struct {
	Field  string // path of the value; empty for the document itself
	Reason string
	Offset int // of the value or the mistake in the document, in bytes
}

// Error is "field: reason".
func (e Error) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

// Errors is every mistake found, in the order of the document.
type Errors []Error

// Error joins them by "; ".
func (e Errors) Error() string {
	text := make([]string, len(e))
	for i := range e {
		text[i] = e[i].Error()
	}
	return strings.Join(text, "; ")
}

// Object is JSON text that is an object.
type Object []byte

// MarshalJSON is the text itself.
func (o Object) MarshalJSON() ([]byte, error) {
	if o == nil {
		return []byte("null"), nil
	}
	return o, nil
}

// Canonical returns the compact form with the keys of every object sorted by their bytes, so that equal documents have
// equal bytes. Numbers keep their digits as written. The error is an Errors.
func Canonical(data []byte) ([]byte, error) {
	n, errs := parse("", data)
	if errs != nil {
		return nil, errs
	}
	return n.append(make([]byte, 0, len(data))), nil
}

// Visit parses data and calls each with the path and the offset of every value, outer ones first. The error is an
// Errors; then each was not called.
func Visit(data []byte, each func(path string, offset int)) error {
	n, errs := parse("", data)
	if errs != nil {
		return errs
	}
	n.visit("", each)
	return nil
}

// Field is the path of a member of the object at path. Names over 128 bytes are cut.
func Field(path, name string) string {
	const nameBytesMax = 128
	if len(name) > nameBytesMax {
		name = strings.ToValidUTF8(name[:nameBytesMax], "") + "…"
	}
	switch {
	case !plain(name):
		return path + "[" + strconv.Quote(name) + "]"
	case path == "":
		return name
	default:
		return path + "." + name
	}
}

// Item is the path of an element of the array at path.
func Item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func plain(name string) bool {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return name != ""
}

// node is one value.
type node struct {
	kind    byte // '{' '[' '"' '0' 't' 'n'
	offset  int
	raw     []byte // as written
	text    string // of a string
	members []member
	items   []node
}

type member struct {
	name   string
	offset int
	value  node
}

var kindNames = map[byte]string{'{': "an object", '[': "a list", '"': "a string", '0': "a number", 't': "true or false", 'n': "null"}

func parse(path string, data []byte) (node, Errors) {
	if !utf8.Valid(data) {
		return node{}, Errors{{Field: path, Reason: "is not UTF-8", Offset: invalidAt(data)}}
	}
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		e := Error{Field: path, Reason: "is not JSON: " + err.Error()}
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			e.Offset = int(syntax.Offset)
		}
		return node{}, Errors{e}
	}
	p := parser{data: data, root: path}
	n := p.value()
	return n, p.errs
}

func invalidAt(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(data)
}

// parser walks a document that is known to be JSON. The path is written out only where there is a mistake: with long
// names, doing it for each value would be quadratic.
type parser struct {
	data []byte
	at   int
	root string
	path []step
	errs Errors
}

// step is one turn of the path: a member, or an element where name is nil.
type step struct {
	name *string
	item int
}

func (p *parser) fail(reason string, offset int) {
	if len(p.errs) >= ErrorsMax {
		return
	}
	path := p.root
	for _, s := range p.path {
		if s.name != nil {
			path = Field(path, *s.name)
		} else {
			path = Item(path, s.item)
		}
	}
	p.errs = append(p.errs, Error{path, reason, offset})
}

func (p *parser) space() {
	for p.at < len(p.data) && strings.IndexByte(" \t\r\n,:", p.data[p.at]) >= 0 {
		p.at++
	}
}

func (p *parser) value() node {
	p.space()
	start := p.at
	n := node{offset: start}
	switch c := p.data[p.at]; c {
	case '{', '[':
		n.kind = c
		if len(p.path) >= DepthMax {
			p.fail(fmt.Sprintf("is nested deeper than %d", DepthMax), start)
			p.at = len(p.data)
			return n
		}
		p.at++
		if c == '{' {
			p.object(&n)
		} else {
			p.array(&n)
		}
	case '"':
		n.kind, n.text = '"', p.string()
	case 't', 'f', 'n':
		n.kind = 't'
		if c == 'n' {
			n.kind = 'n'
		}
		p.word()
	default:
		n.kind = '0'
		p.word()
	}
	n.raw = p.data[start:min(p.at, len(p.data))]
	return n
}

func (p *parser) object(n *node) {
	var seen map[string]bool
	for p.space(); p.at < len(p.data) && p.data[p.at] != '}'; p.space() {
		m := member{offset: p.at}
		m.name = p.string()
		p.path = append(p.path, step{name: &m.name})
		if seen == nil && len(n.members) == 16 { // small objects are searched, large ones indexed
			seen = make(map[string]bool, 64)
			for i := range n.members {
				seen[n.members[i].name] = true
			}
		}
		twice := seen[m.name]
		if seen == nil {
			twice = slices.ContainsFunc(n.members, func(o member) bool { return o.name == m.name })
		} else {
			seen[m.name] = true
		}
		if twice {
			p.fail("is given twice", m.offset)
		}
		m.value = p.value()
		p.path = p.path[:len(p.path)-1]
		n.members = append(n.members, m)
	}
	p.at++
}

func (p *parser) array(n *node) {
	for p.space(); p.at < len(p.data) && p.data[p.at] != ']'; p.space() {
		p.path = append(p.path, step{item: len(n.items)})
		n.items = append(n.items, p.value())
		p.path = p.path[:len(p.path)-1]
	}
	p.at++
}

func (p *parser) word() {
	for p.at < len(p.data) && strings.IndexByte(" \t\r\n,:]}", p.data[p.at]) < 0 {
		p.at++
	}
}

func (p *parser) string() string {
	start := p.at
	escaped := false
	for p.at++; p.data[p.at] != '"'; p.at++ {
		if p.data[p.at] == '\\' {
			escaped = true
			p.at++
		}
	}
	p.at++
	if !escaped {
		return string(p.data[start+1 : p.at-1])
	}
	var s string
	if err := json.Unmarshal(p.data[start:p.at], &s); err != nil { // it is known to be JSON
		p.fail("is not a string: "+err.Error(), start)
	}
	return s
}

func (n *node) visit(path string, each func(string, int)) {
	each(path, n.offset)
	for i := range n.members {
		n.members[i].value.visit(Field(path, n.members[i].name), each)
	}
	for i := range n.items {
		n.items[i].visit(Item(path, i), each)
	}
}

func (n *node) append(b []byte) []byte {
	switch n.kind {
	case '{':
		sorted := make([]*member, len(n.members))
		for i := range n.members {
			sorted[i] = &n.members[i]
		}
		slices.SortFunc(sorted, func(a, b *member) int { return strings.Compare(a.name, b.name) })
		b = append(b, '{')
		for i, m := range sorted {
			if i > 0 {
				b = append(b, ',')
			}
			b = AppendString(b, m.name)
			b = append(b, ':')
			b = m.value.append(b)
		}
		return append(b, '}')
	case '[':
		b = append(b, '[')
		for i := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = n.items[i].append(b)
		}
		return append(b, ']')
	case '"':
		return AppendString(b, n.text)
	default:
		return append(b, n.raw...)
	}
}

// AppendString appends s as a JSON string with the fewest escapes. Bytes that are no UTF-8 become U+FFFD.
func AppendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, '\\', 'n')
		case r == '\r':
			b = append(b, '\\', 'r')
		case r == '\t':
			b = append(b, '\\', 't')
		case r < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
