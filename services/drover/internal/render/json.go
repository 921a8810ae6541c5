package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Compact is a JSON text on one line, safe to print.
func Compact(body []byte) ([]byte, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, body); err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return safeJSON(b.Bytes()), nil
}

// Indent is a JSON text over several lines, safe to print.
func Indent(body []byte) ([]byte, error) { return IndentWithin(body, "") }

// IndentWithin is Indent for a part of a longer text, whose lines but the first begin with prefix.
func IndentWithin(body []byte, prefix string) ([]byte, error) {
	compact, err := Compact(body)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, compact, prefix, "  "); err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return b.Bytes(), nil
}

// Marshal is json.Marshal without the escaping that is meant for web pages.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// safeJSON escapes what is not printable. In compact JSON that can only stand inside strings.
func safeJSON(compact []byte) []byte {
	if clean(string(compact), false) {
		return compact
	}
	var b strings.Builder
	b.Grow(len(compact) + 32)
	for i := 0; i < len(compact); {
		r, size := utf8.DecodeRune(compact[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\ufffd`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			writeEscape(&b, r)
		}
		i += size
	}
	return []byte(b.String())
}
