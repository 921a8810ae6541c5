// Package render turns what the CLI knows into what a terminal, a pipe or a script reads: tables, JSON, YAML, ages.
//
// # Rule
//
// Names, messages and output lines come from other people. Nothing in them may move a cursor, recolour a screen or
// reverse a line: every text passes through Text or Line, and JSON and YAML are written with such runes escaped.
package render

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/text"
)

const hexDigits = "0123456789abcdef"

// Text makes s safe to print on one line: what is not printable (control and format characters, line ends, bytes that
// are no UTF-8) is shown as an escape.
func Text(s string) string { return escape(s, false) }

// Line is Text for a line of output: tabs stay.
func Line(s string) string { return escape(s, true) }

func escape(s string, tabs bool) string {
	if clean(s, tabs) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x`)
			b.WriteByte(hexDigits[s[i]>>4])
			b.WriteByte(hexDigits[s[i]&15])
		case unicode.IsPrint(r) || tabs && r == '\t':
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		default:
			writeEscape(&b, r)
		}
		i += size
	}
	return b.String()
}

func clean(s string, tabs bool) bool {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return false
			}
		}
		if !unicode.IsPrint(r) && (!tabs || r != '\t') {
			return false
		}
	}
	return true
}

// writeEscape writes \uXXXX, as a surrogate pair where it must be, so that it is also right inside a JSON string.
func writeEscape(b *strings.Builder, r rune) {
	unit := func(u rune) {
		b.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			b.WriteByte(hexDigits[u>>shift&15])
		}
	}
	if r > 0xFFFF {
		r -= 0x10000
		unit(0xD800 + r>>10)
		unit(0xDC00 + r&0x3FF)
		return
	}
	unit(r)
}

// Cut shortens a safe text to a width in terminal columns; what was cut shows as "…".
func Cut(s string, columns int) string {
	if columns <= 0 || text.StringWidthWithoutEscSequences(s) <= columns {
		return s
	}
	return text.Snip(s, columns, "…")
}
