package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/droverproject/drover/pkg/strictjson"
	"github.com/droverproject/drover/pkg/wire"
)

// Limits of a file of manifests.
const (
	FileBytesMax = 64 << 20 // bytes of a file
	DocumentsMax = 50_000   // manifests in a file
)

// Document is one manifest of a file.
type Document struct {
	wire.Manifest
	Line   int // of its first line in the file, from 1
	places map[string]place
}

type place struct{ line, column int }

// Position says where a field stands in the file, by its path: spec.phases[1].dependsOn[0]. For a field that is not
// there it is the nearest one around it.
func (d *Document) Position(field string) (line, column int) {
	for {
		if p, ok := d.places[field]; ok {
			return p.line, p.column
		}
		cut := strings.LastIndexAny(field, ".[")
		if cut <= 0 {
			p := d.places[""]
			return p.line, p.column
		}
		field = field[:cut]
	}
}

// Error is one mistake in a file of manifests.
type Error struct {
	File          string // set by the caller, who knows it
	Line, Column  int    // from 1
	Field, Reason string // Field is empty where the text itself is wrong
}

// Error is "file:line:column: field: reason".
func (e Error) Error() string {
	text := e.Reason
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	text = strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Column) + ": " + text
	if e.File != "" {
		text = e.File + ":" + text
	}
	return text
}

// Errors is all mistakes of a file, in its order.
type Errors []Error

// Error is one line for each.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Parse reads a file of manifests: YAML with any number of documents, or JSON objects one after another. It checks
// everything but the content of the specs (Check); that of a Blueprint is Blueprint's to judge.
// The error is an Errors.
func Parse(r []byte) ([]Document, error) {
	if len(r) > FileBytesMax {
		return nil, Errors{{Line: 1, Column: 1, Reason: fmt.Sprintf("the file is larger than %d bytes", FileBytesMax)}}
	}
	if !utf8.Valid(r) {
		p := newLines(r).at(len(r) - len(bytes.TrimLeftFunc(r, func(c rune) bool { return c != utf8.RuneError })))
		return nil, Errors{{Line: p.line, Column: p.column, Reason: "the file is not UTF-8"}}
	}
	r = bytes.TrimPrefix(r, []byte("\ufeff"))
	raws, isJSON := splitJSON(r)
	if !isJSON {
		var errs Errors
		if raws, errs = splitYAML(r); errs != nil {
			return nil, errs
		}
	}
	if len(raws) > DocumentsMax {
		return nil, Errors{{Line: 1, Column: 1, Reason: fmt.Sprintf("the file has more than %d documents", DocumentsMax)}}
	}
	documents := make([]Document, 0, len(raws))
	var errs Errors
	for i := range raws {
		d, wrong := read(&raws[i])
		documents, errs = append(documents, d), append(errs, wrong...)
		if len(errs) > strictjson.ErrorsMax {
			break
		}
	}
	if errs != nil {
		return nil, errs
	}
	return documents, nil
}

// raw is a document as JSON, and where its values stand in the file.
type raw struct {
	json   []byte
	places map[string]place
	at     func(offset int) place // nil where the offsets are not the file's
}

// file is the shape of every manifest.
type file struct {
	APIVersion string `json:"apiVersion" need:"true"`
	Kind       string `json:"kind" need:"true"`
	Metadata   struct {
		Name    string            `json:"name" need:"true" doc:"Name; of a blueprint: the kind that it defines."`
		Project string            `json:"project" doc:"Project. Default: the one that the command is for."`
		Cluster string            `json:"cluster" doc:"Cluster that the resource belongs to."`
		Labels  map[string]string `json:"labels" doc:"Labels, by which selectors find it."`
	} `json:"metadata" need:"true"`
	Spec strictjson.Object `json:"spec"`
}

func read(r *raw) (Document, Errors) {
	d := Document{places: r.places}
	d.Line, _ = d.Position("")
	var f file
	var errs Errors
	fail := func(field, reason string) {
		line, column := d.Position(field)
		errs = append(errs, Error{Line: line, Column: column, Field: field, Reason: reason})
	}
	for _, e := range strictjson.Unmarshal("", r.json, &f) {
		fail(e.Field, e.Reason)
		if r.at != nil {
			p := r.at(e.Offset)
			errs[len(errs)-1].Line, errs[len(errs)-1].Column = p.line, p.column
		}
	}
	d.Manifest = wire.Manifest{
		APIVersion: f.APIVersion, Kind: f.Kind, Name: f.Metadata.Name, Project: f.Metadata.Project,
		Cluster: f.Metadata.Cluster, Labels: f.Metadata.Labels, Spec: f.Spec,
	}
	if errs == nil {
		for _, v := range Check(&d.Manifest) {
			fail(v.Field, v.Reason)
		}
	}
	return d, errs
}

// splitJSON reads JSON objects one after another. It reports false for everything else, which is then read as YAML: a
// flow mapping of YAML may begin in the same way.
func splitJSON(r []byte) ([]raw, bool) {
	if !bytes.HasPrefix(bytes.TrimLeft(r, " \t\r\n"), []byte("{")) {
		return nil, false
	}
	lines := newLines(r)
	decoder := json.NewDecoder(bytes.NewReader(r))
	var raws []raw
	for len(raws) <= DocumentsMax {
		var text json.RawMessage
		err := decoder.Decode(&text)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false
		}
		start := int(decoder.InputOffset()) - len(text)
		d := raw{json: text, places: make(map[string]place), at: func(offset int) place { return lines.at(start + offset) }}
		d.places[""] = d.at(0)
		// A document that is not strict is reported when it is read.
		_ = strictjson.Visit(text, func(path string, offset int) { d.places[path] = d.at(offset) })
		raws = append(raws, d)
	}
	return raws, true
}

// lines finds the line and column of ascending offsets.
type lines struct {
	text               []byte
	offset, line, from int // from is where the line begins
}

func newLines(text []byte) *lines { return &lines{text: text, line: 1} }

func (l *lines) at(offset int) place {
	if offset < l.offset {
		l.offset, l.line, l.from = 0, 1, 0
	}
	for ; l.offset < offset && l.offset < len(l.text); l.offset++ {
		if l.text[l.offset] == '\n' {
			l.line++
			l.from = l.offset + 1
		}
	}
	return place{l.line, offset - l.from + 1}
}

func splitYAML(r []byte) (raws []raw, errs Errors) {
	f, err := parser.ParseBytes(r, 0)
	if err != nil {
		e := Error{Line: 1, Column: 1, Reason: "is not YAML: " + err.Error()}
		if y := yaml.Error(nil); errors.As(err, &y) {
			e.Reason = "is not YAML: " + y.GetMessage()
			if t := y.GetToken(); t != nil && t.Position != nil {
				e.Line, e.Column = t.Position.Line, t.Position.Column
			}
		}
		return nil, Errors{e}
	}
	for _, d := range f.Docs {
		if isEmpty(d.Body) {
			continue
		}
		c := converter{places: make(map[string]place), anchors: make(map[string]ast.Node)}
		c.value("", d.Body, 1)
		if c.wrong != nil {
			errs = append(errs, *c.wrong)
			if len(errs) > strictjson.ErrorsMax {
				break
			}
			continue
		}
		raws = append(raws, raw{json: c.json, places: c.places})
	}
	return raws, errs
}

func isEmpty(n ast.Node) bool {
	switch n.(type) {
	case nil, *ast.NullNode, *ast.CommentNode, *ast.CommentGroupNode:
		return true
	}
	return false
}

// converter turns the tree of a YAML document into JSON and notes where each value stands. It stops at the first
// mistake.
type converter struct {
	json    []byte
	places  map[string]place
	anchors map[string]ast.Node
	wrong   *Error
}

func (c *converter) fail(n ast.Node, field, reason string) {
	if c.wrong == nil {
		p := placeOf(n)
		c.wrong = &Error{Line: p.line, Column: p.column, Field: field, Reason: reason}
	}
}

func placeOf(n ast.Node) place {
	switch m := n.(type) { // a mapping in blocks has no sign of its own but its first ":"
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return placeOf(m.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return placeOf(m.Key)
	}
	if n != nil {
		if t := n.GetToken(); t != nil && t.Position != nil {
			return place{t.Position.Line, t.Position.Column}
		}
	}
	return place{1, 1}
}

func (c *converter) value(path string, n ast.Node, depth int) {
	if c.wrong != nil {
		return
	}
	if depth > strictjson.DepthMax {
		c.fail(n, path, fmt.Sprintf("is nested deeper than %d", strictjson.DepthMax))
		return
	}
	if len(c.json) > wire.CommandBytesMax { // also what ends an explosion of aliases
		c.fail(n, path, fmt.Sprintf("the document is larger than %d bytes", wire.CommandBytesMax))
		return
	}
	if _, known := c.places[path]; !known {
		c.places[path] = placeOf(n)
	}
	switch n := n.(type) {
	case nil, *ast.NullNode, *ast.CommentNode, *ast.CommentGroupNode:
		c.json = append(c.json, "null"...)
	case *ast.BoolNode:
		c.json = strconv.AppendBool(c.json, n.Value)
	case *ast.StringNode:
		// YAML's integers have no limit and 1e3 is a number; the library takes both for strings.
		if n.Token.Type == token.StringType && isNumber(n.Value) {
			c.json = append(c.json, n.Value...)
			return
		}
		c.json = strictjson.AppendString(c.json, n.Value)
	case *ast.LiteralNode:
		c.json = strictjson.AppendString(c.json, n.Value.Value)
	case *ast.IntegerNode:
		c.number(n.Token.Value, fmt.Sprint(n.Value))
	case *ast.FloatNode:
		c.number(n.Token.Value, strconv.FormatFloat(n.Value, 'g', -1, 64))
	case *ast.MappingNode:
		c.mapping(path, n.Values, depth)
	case *ast.MappingValueNode:
		c.mapping(path, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		c.json = append(c.json, '[')
		for i, item := range n.Values {
			if i > 0 {
				c.json = append(c.json, ',')
			}
			c.value(strictjson.Item(path, i), item, depth+1)
		}
		c.json = append(c.json, ']')
	case *ast.AnchorNode:
		c.anchors[n.Name.GetToken().Value] = n.Value
		c.value(path, n.Value, depth)
	case *ast.AliasNode:
		c.alias(path, n, depth)
	case *ast.TagNode:
		if s, ok := n.Value.(ast.ScalarNode); ok && n.Start.Value == "!!str" {
			c.json = strictjson.AppendString(c.json, s.GetToken().Value)
			return
		}
		c.fail(n, path, "the tag "+n.Start.Value+" is not supported")
	case *ast.InfinityNode, *ast.NanNode:
		c.fail(n, path, "is no number that JSON can hold")
	default:
		c.fail(n, path, "this form of YAML is not supported: "+n.Type().String())
	}
}

// number writes the digits as they are where JSON has the same form.
func (c *converter) number(written, value string) {
	if isNumber(written) {
		value = written
	}
	c.json = append(c.json, value...)
}

// isNumber reports whether JSON would read the text as a number.
func isNumber(s string) bool {
	return s != "" && (s[0] == '-' || s[0] >= '0' && s[0] <= '9') && json.Valid([]byte(s)) && strings.TrimSpace(s) == s
}

func (c *converter) mapping(path string, values []*ast.MappingValueNode, depth int) {
	c.json = append(c.json, '{')
	for i, v := range values {
		key, ok := v.Key.(ast.Node).(*ast.StringNode)
		if !ok {
			switch {
			case v.Key.IsMergeKey():
				c.fail(v.Key, path, "merge keys (<<) are not supported")
			default:
				c.fail(v.Key, path, "a key must be a string: write "+strconv.Quote(v.Key.GetToken().Value)+" in quotes")
			}
			return
		}
		if i > 0 {
			c.json = append(c.json, ',')
		}
		field := strictjson.Field(path, key.Value)
		c.places[field] = placeOf(key)
		c.json = append(strictjson.AppendString(c.json, key.Value), ':')
		c.value(field, v.Value, depth+1)
	}
	c.json = append(c.json, '}')
}

func (c *converter) alias(path string, n *ast.AliasNode, depth int) {
	name := n.Value.GetToken().Value
	target, ok := c.anchors[name]
	if !ok {
		c.fail(n, path, "no anchor of the name "+name+" stands before")
		return
	}
	c.value(path, target, depth+1)
}
