package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// YAML turns one JSON text into one YAML document with the order of its fields kept. Strings that YAML could read as
// something else are quoted as in JSON, which YAML also reads.
func YAML(body []byte) ([]byte, error) {
	body, err := Compact(body)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var y yamlWriter
	if err := y.value(dec, 0, startOfDocument); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("write YAML: more than one JSON value")
	}
	return y.b.Bytes(), nil
}

// where a value stands decides what separates it from what is before it.
type place int

const (
	startOfDocument place = iota
	afterKey
	afterDash
)

type yamlWriter struct{ b bytes.Buffer }

func (y *yamlWriter) value(dec *json.Decoder, depth int, at place) error {
	token, err := dec.Token()
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	switch t := token.(type) {
	case json.Delim:
		return y.composite(dec, t, depth, at)
	case string:
		y.scalar(yamlString(t), at)
	case json.Number:
		y.scalar(t.String(), at)
	case bool:
		y.scalar(fmt.Sprint(t), at)
	case nil:
		y.scalar("null", at)
	}
	return nil
}

func (y *yamlWriter) scalar(s string, at place) {
	if at == afterKey {
		y.b.WriteByte(' ')
	}
	y.b.WriteString(s)
	y.b.WriteByte('\n')
}

func (y *yamlWriter) composite(dec *json.Decoder, open json.Delim, depth int, at place) error {
	if !dec.More() {
		y.scalar(map[json.Delim]string{'{': "{}", '[': "[]"}[open], at)
		_, err := dec.Token()
		return err
	}
	if at == afterKey {
		y.b.WriteByte('\n')
	}
	first := at == afterDash // the first field stands on the dash's line
	for dec.More() {
		if !first {
			y.b.WriteString(strings.Repeat("  ", depth))
		}
		first = false
		if open == '[' {
			y.b.WriteString("- ")
			if err := y.value(dec, depth+1, afterDash); err != nil {
				return err
			}
			continue
		}
		key, err := dec.Token()
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		y.b.WriteString(yamlString(key.(string)) + ":")
		if err := y.value(dec, depth+1, afterKey); err != nil {
			return err
		}
	}
	_, err := dec.Token() // the closing one
	return err
}

var (
	plainYAML = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*$`)
	wordYAML  = regexp.MustCompile(`(?i)^(true|false|null|yes|no|on|off|y|n|nan|inf)$`)
)

func yamlString(s string) string {
	if plainYAML.MatchString(s) && !wordYAML.MatchString(s) {
		return s
	}
	quoted, err := Marshal(s)
	if err != nil { // a string always marshals
		return `""`
	}
	return string(safeJSON(quoted))
}
