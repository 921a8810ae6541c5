package definition

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/droverproject/drover/pkg/manifest"
)

// item is one value of a list: its text, and whether it stood in quotes.
type item struct {
	text   string
	quoted bool
	offset int // in the entry's text
}

// quoted reads a text in double quotes at the beginning of s. n is how many bytes it takes.
func quoted(s string) (text string, n int, err error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			return b.String(), i + 1, nil
		case '\\':
			i++
			if i == len(s) {
				return "", i, fmt.Errorf("the text ends within an escape")
			}
			plain, ok := map[byte]byte{'"': '"', '\\': '\\', 'n': '\n', 't': '\t', 'r': '\r'}[s[i]]
			if !ok {
				return "", i - 1, fmt.Errorf(`\%s is no escape: \" \\ \n \t \r are`, firstRune(s[i:]))
			}
			b.WriteByte(plain)
		default:
			b.WriteByte(c)
		}
	}
	return "", 0, fmt.Errorf("the text is not closed by a double quote")
}

func firstRune(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return s[:n]
}

// place is the column where a byte of an entry's value stands.
func (e *entry) place(offset int) int {
	return e.column + utf8.RuneCountInString(e.text[:offset])
}

// textOf is a value that is text, up to the end of its line or in quotes.
func (p *parser) textOf(e entry) (text string, ok bool) {
	if e.text[0] != '"' {
		return e.text, true
	}
	text, n, err := quoted(e.text)
	switch {
	case err != nil:
		p.fail(e.line, e.place(n), "%s", err)
	case n < len(e.text):
		p.fail(e.line, e.place(n), "nothing may follow the closing quote")
	default:
		return text, true
	}
	return "", false
}

// items are the values of a list, with or without brackets.
func (p *parser) items(e entry) (items []item) {
	text, base := e.text, 0
	if end := map[byte]string{'[': "]", '{': "}"}[text[0]]; end != "" {
		if !strings.HasSuffix(text, end) || len(text) < 2 {
			p.fail(e.line, e.place(len(text)), "the list is not closed by %s", end)
			return nil
		}
		text, base = text[1:len(text)-1], 1
	}
	for i := 0; ; {
		for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
			i++
		}
		it := item{offset: base + i}
		if i < len(text) && text[i] == '"' {
			value, n, err := quoted(text[i:])
			if err != nil {
				p.fail(e.line, e.place(base+i+n), "%s", err)
				return nil
			}
			it.text, it.quoted = value, true
			i += n
			for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
				i++
			}
			if i < len(text) && text[i] != ',' {
				p.fail(e.line, e.place(base+i), "a comma is missing between two values")
				return nil
			}
		} else {
			end := strings.IndexByte(text[i:], ',')
			if end < 0 {
				end = len(text) - i
			}
			it.text = strings.TrimRight(text[i:i+end], " \t")
			i += end
			if it.text == "" {
				p.fail(e.line, e.place(it.offset), "a value is missing")
				return nil
			}
		}
		if items = append(items, it); len(items) > ListMax {
			p.fail(e.line, e.place(it.offset), "more than %d values", ListMax)
			return nil
		}
		if i == len(text) {
			return items
		}
		i++ // the comma
	}
}

// names are the values of a key that lists names.
func (p *parser) names(key string) (names []string) {
	if _, ok := p.at[key]; !ok {
		p.missing(key)
		return nil
	}
	e, ok := p.take(key)
	if !ok {
		return nil
	}
	for _, it := range p.items(e) {
		if reason := nameIsWrong(it); reason != "" {
			p.fail(e.line, e.place(it.offset), "%s", reason)
		} else if slices.Contains(names, it.text) {
			p.fail(e.line, e.place(it.offset), "%s is in the list twice", it.text)
		}
		names = append(names, it.text)
	}
	return names
}

// name is the value of a key that is one name.
func (p *parser) name(key string, needed bool) string {
	if _, ok := p.at[key]; !ok {
		if needed {
			p.missing(key)
		}
		return ""
	}
	e, ok := p.take(key)
	if !ok {
		return ""
	}
	text, ok := p.textOf(e)
	if !ok {
		return ""
	}
	it := item{text: text, quoted: e.text[0] == '"'}
	if reason := nameIsWrong(it); reason != "" {
		p.fail(e.line, e.column, "%s", reason)
	}
	return it.text
}

func nameIsWrong(it item) string {
	if !it.quoted && strings.ContainsAny(it.text, `"'[]{}`) {
		return "a name with quotes or brackets in it stands in double quotes"
	}
	if reason := manifest.CheckName(it.text); reason != "" {
		return fmt.Sprintf("the name %q %s", it.text, reason)
	}
	return ""
}

func (p *parser) boolean(key string) bool {
	e, ok := p.take(key)
	if !ok {
		return false
	}
	switch strings.ToLower(e.text) {
	case "true":
		return true
	case "false":
		return false
	}
	p.fail(e.line, e.column, "%s is true or false", e.written)
	return false
}

// jsonOf is a value of any kind, as JSON.
func (p *parser) jsonOf(e entry) string {
	var value any
	switch e.text[0] {
	case '[', '{':
		list := []any{}
		for _, it := range p.items(e) {
			list = append(list, scalar(it))
		}
		value = list
	default:
		text, ok := p.textOf(e)
		if !ok {
			return ""
		}
		value = scalar(item{text: text, quoted: e.text[0] == '"'})
	}
	body, err := json.Marshal(value)
	if err != nil {
		p.fail(e.line, e.column, "%s", err)
	}
	return string(body)
}

// scalar is true, false, a number or text.
func scalar(it item) any {
	if it.quoted {
		return it.text
	}
	switch lower := strings.ToLower(it.text); lower {
	case "true", "false":
		return lower == "true"
	}
	if c := it.text[0]; (c == '-' || c >= '0' && c <= '9') && json.Valid([]byte(it.text)) {
		return json.Number(it.text)
	}
	return it.text
}
