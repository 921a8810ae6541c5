package bus

import (
	"errors"
	"fmt"
	"strings"
)

// Token turns a name into one token of a subject or a key of a bucket: every byte outside [A-Za-z0-9_-] becomes =XX
// (hex, upper case). The empty name and the name "-" have no plain form, so that they cannot be mistaken for the
// grammar's own "-": they become "=" and "=2D".
func Token(name string) string {
	switch name {
	case "":
		return "="
	case "-":
		return "=2D"
	}
	plain := true
	for i := range len(name) {
		if !isPlain(name[i]) {
			plain = false
			break
		}
	}
	if plain {
		return name
	}
	var b strings.Builder
	b.Grow(len(name) + 8)
	for i := range len(name) {
		if c := name[i]; isPlain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('=')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String()
}

const hexDigits = "0123456789ABCDEF"

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// ErrToken is returned for a token that Token does not produce.
var ErrToken = errors.New("not a token of a name")

// Name is the inverse of Token. It accepts exactly what Token returns, so that one name has one token.
func Name(token string) (string, error) {
	if token == "=" {
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		c := token[i]
		if isPlain(c) {
			b.WriteByte(c)
			continue
		}
		if c != '=' || i+2 >= len(token) {
			return "", fmt.Errorf("%w: %q", ErrToken, token)
		}
		hi, lo := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("%w: %q", ErrToken, token)
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	name := b.String()
	if Token(name) != token {
		return "", fmt.Errorf("%w: %q is not the canonical form", ErrToken, token)
	}
	return name, nil
}
