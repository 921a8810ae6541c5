package strictjson

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Unmarshal fills the value that v points to. path is where data stands in the document that the user wrote (empty:
// data is the document). v must be a pointer to a type that the package doc lists; another one panics. Where it returns
// errors, v holds what could be read.
func Unmarshal(path string, data []byte, v any) Errors {
	n, errs := parse(path, data)
	if errs != nil {
		return errs
	}
	d := decoder{}
	d.value(path, &n, reflect.ValueOf(v).Elem())
	return d.errs
}

// Scalar is a type that reads itself from a string or a number, as written.
type Scalar interface {
	// SetScalar returns what is wrong with the text, or "".
	SetScalar(text string) (reason string)
}

var (
	typeScalar   = reflect.TypeFor[Scalar]()
	typeDuration = reflect.TypeFor[time.Duration]()
	typeRaw      = reflect.TypeFor[json.RawMessage]()
	typeObject   = reflect.TypeFor[Object]()
)

type decoder struct{ errs Errors }

func (d *decoder) fail(path string, n *node, reason string) {
	if len(d.errs) < ErrorsMax {
		d.errs = append(d.errs, Error{path, reason, n.offset})
	}
}

// want reports whether n is of the kind, and complains where it is not.
func (d *decoder) want(path string, n *node, kind byte) bool {
	if n.kind == kind {
		return true
	}
	hint := ""
	if kind == '"' && (n.kind == '0' || n.kind == 't') {
		hint = " (write it in quotes)"
	}
	d.fail(path, n, "must be "+kindNames[kind]+", not "+kindNames[n.kind]+hint)
	return false
}

func (d *decoder) value(path string, n *node, v reflect.Value) {
	switch v.Type() {
	case typeRaw:
		v.SetBytes(append([]byte(nil), n.raw...))
		return
	case typeObject:
		if d.want(path, n, '{') {
			v.SetBytes(append([]byte(nil), n.raw...))
		}
		return
	case typeDuration:
		d.duration(path, n, v)
		return
	}
	if reflect.PointerTo(v.Type()).Implements(typeScalar) {
		d.scalar(path, n, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(path, n, v.Elem())
	case reflect.String:
		if d.want(path, n, '"') {
			v.SetString(n.text)
		}
	case reflect.Bool:
		if d.want(path, n, 't') {
			v.SetBool(n.raw[0] == 't')
		}
	case reflect.Int, reflect.Int64:
		if d.want(path, n, '0') {
			i, err := strconv.ParseInt(string(n.raw), 10, v.Type().Bits())
			if err != nil {
				d.fail(path, n, "must be a whole number that fits")
				return
			}
			v.SetInt(i)
		}
	case reflect.Uint32, reflect.Uint64:
		if d.want(path, n, '0') {
			u, err := strconv.ParseUint(string(n.raw), 10, v.Type().Bits())
			if err != nil {
				d.fail(path, n, "must be a whole number, 0 or more, that fits")
				return
			}
			v.SetUint(u)
		}
	case reflect.Slice:
		if d.want(path, n, '[') {
			s := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
			for i := range n.items {
				d.value(Item(path, i), &n.items[i], s.Index(i))
			}
			v.Set(s)
		}
	case reflect.Map:
		if d.want(path, n, '{') {
			m := reflect.MakeMapWithSize(v.Type(), len(n.members))
			for i := range n.members {
				item := reflect.New(v.Type().Elem()).Elem()
				d.value(Field(path, n.members[i].name), &n.members[i].value, item)
				m.SetMapIndex(reflect.ValueOf(n.members[i].name), item)
			}
			v.Set(m)
		}
	case reflect.Struct:
		if d.want(path, n, '{') {
			d.object(path, n, v)
		}
	default:
		panic(fmt.Sprintf("strictjson: cannot fill %s", v.Type()))
	}
}

func (d *decoder) scalar(path string, n *node, v reflect.Value) {
	text := n.text
	switch n.kind {
	case '0':
		text = string(n.raw)
	case '"':
	default:
		d.fail(path, n, "must be a string or a number, not "+kindNames[n.kind])
		return
	}
	if reason := v.Addr().Interface().(Scalar).SetScalar(text); reason != "" {
		d.fail(path, n, reason)
	}
}

func (d *decoder) duration(path string, n *node, v reflect.Value) {
	if n.kind != '"' {
		d.fail(path, n, `must be a duration in quotes, as in "15s" or "10m", not `+kindNames[n.kind])
		return
	}
	t, err := time.ParseDuration(n.text)
	if err != nil {
		d.fail(path, n, `is not a duration, as in "15s" or "10m"`)
		return
	}
	v.SetInt(int64(t))
}

func (d *decoder) object(path string, n *node, v reflect.Value) {
	fields := fieldsOf(v.Type())
	set := make(map[int]bool, len(n.members))
	for i := range n.members {
		m := &n.members[i]
		field, known := fields[m.name]
		at := Field(path, m.name)
		switch {
		case !known:
			if len(d.errs) < ErrorsMax {
				d.errs = append(d.errs, Error{at, "no field of this name", m.offset})
			}
		case set[field]:
			d.fail(at, &m.value, "is given twice, under two names")
		case m.value.kind != 'n':
			set[field] = true
			d.value(at, &m.value, v.Field(field))
		}
	}
}

var fieldCache sync.Map // reflect.Type → map[string]int

// fieldsOf is the index of each field of a struct by the names that it goes by.
func fieldsOf(t reflect.Type) map[string]int {
	if known, ok := fieldCache.Load(t); ok {
		return known.(map[string]int)
	}
	fields := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		fields[name] = i
		if alias := f.Tag.Get("alias"); alias != "" {
			fields[alias] = i
		}
	}
	fieldCache.Store(t, fields)
	return fields
}
