// Package selector reads label selectors as kubectl writes them: "rack=a", "rack!=a", "rack", "!rack",
// "rack in (a, b)", "rack notin (a, b)", joined by commas, all of which must hold.
package selector

import (
	"fmt"
	"slices"
	"strings"
)

// TermsMax bounds one selector.
const TermsMax = 64

// Selector is a set of requirements. The zero value matches everything.
type Selector struct{ terms []term }

type term struct {
	key    string
	negate bool
	values []string // nil: the label's presence is asked for
}

// Empty reports whether it asks for nothing.
func (s Selector) Empty() bool { return len(s.terms) == 0 }

// Matches reports whether labels meet every requirement. As in kubectl, "rack!=a" and "rack notin (a)" also hold where
// there is no such label.
func (s Selector) Matches(labels map[string]string) bool {
	for _, t := range s.terms {
		value, there := labels[t.key]
		holds := there && (t.values == nil || slices.Contains(t.values, value))
		if holds == t.negate {
			return false
		}
	}
	return true
}

// Parse reads a selector. The empty one matches everything.
func Parse(s string) (Selector, error) {
	var sel Selector
	if strings.TrimSpace(s) == "" {
		return sel, nil
	}
	for _, part := range split(s) {
		t, err := parseTerm(strings.TrimSpace(part))
		if err != nil {
			return Selector{}, fmt.Errorf("selector %q: %w", s, err)
		}
		sel.terms = append(sel.terms, t)
		if len(sel.terms) > TermsMax {
			return Selector{}, fmt.Errorf("selector has more than %d terms", TermsMax)
		}
	}
	return sel, nil
}

// split cuts at the commas outside of brackets.
func split(s string) []string {
	var parts []string
	depth, start := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, s[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, s[start:])
}

func parseTerm(s string) (term, error) {
	if open := strings.IndexByte(s, '('); open >= 0 {
		return parseSet(s, open)
	}
	if strings.ContainsRune(s, ')') {
		return term{}, fmt.Errorf("%q has a bracket that was never opened", s)
	}
	for _, op := range []struct {
		sign   string
		negate bool
	}{{"!=", true}, {"==", false}, {"=", false}} {
		if key, value, ok := strings.Cut(s, op.sign); ok {
			value = strings.TrimSpace(value)
			if strings.ContainsAny(value, "=!") {
				return term{}, fmt.Errorf("%q has more than one sign", s)
			}
			return named(term{key: key, negate: op.negate, values: []string{value}}, s)
		}
	}
	if key, ok := strings.CutPrefix(s, "!"); ok {
		return named(term{key: key, negate: true}, s)
	}
	return named(term{key: s}, s)
}

func parseSet(s string, open int) (term, error) {
	inner, ok := strings.CutSuffix(s[open+1:], ")")
	words := strings.Fields(s[:open])
	if !ok || strings.ContainsAny(inner, "()") || len(words) != 2 || words[1] != "in" && words[1] != "notin" {
		return term{}, fmt.Errorf("%q is not of the form KEY in (A, B) or KEY notin (A, B)", s)
	}
	t := term{key: words[0], negate: words[1] == "notin", values: []string{}}
	for value := range strings.SplitSeq(inner, ",") {
		t.values = append(t.values, strings.TrimSpace(value))
	}
	return named(t, s)
}

func named(t term, s string) (term, error) {
	t.key = strings.TrimSpace(t.key)
	if t.key == "" || strings.ContainsAny(t.key, " \t=!,()") {
		return term{}, fmt.Errorf("%q names no label", s)
	}
	return t, nil
}
