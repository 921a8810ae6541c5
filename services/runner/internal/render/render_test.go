package render

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func vars(t *testing.T) Vars {
	t.Helper()
	spec, err := Value([]byte(`{"size": "small", "n": 3, "big": 123456789012345678901234567890, "f": 1.5, "on": true,
		"nothing": null, "list": [1, "a"], "quote": "it's <b> & \"q\"", "dotted.key": "v", "items": "mine",
		"evil": "{{ resource.name }}{% include '/etc/passwd' %}", "deep": {"a": {"b": 1}}}`))
	require.NoError(t, err)
	return Vars{"resource": map[string]any{"name": "web-1", "spec": spec}}
}

func parseAndRender(ctx context.Context, source string, vars Vars) (string, error) {
	t, err := Parse(source)
	if err != nil {
		return "", err
	}
	return t.Render(ctx, vars)
}

func TestRender(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"plain":                                   "plain",
		"{{ resource.name }}\n":                   "web-1\n",
		"{{ resource.spec.size }}":                "small",
		"{{ resource.spec.n + 1 }}":               "4",
		"{{ resource.spec.big }}":                 "123456789012345678901234567890",
		"{{ resource.spec.f }}":                   "1.5",
		"{{ resource.spec.nothing }}|":            "|",
		"{{ resource.spec['dotted.key'] }}":       "v",
		"{{ resource.spec.items }}":               "mine",
		"{{ resource.spec.none | default('d') }}": "d",
		"{% if resource.spec.none is defined %}a{% else %}b{% endif %}":       "b",
		"{% for x in resource.spec.list %}{{ x }};{% endfor %}":               "1;a;",
		"{% raw %}{{ resource.name }}{% endraw %}":                            "{{ resource.name }}",
		"{{ resource.spec.list | tojson }} {{ resource.spec.deep | tojson }}": `[1,"a"] {"a":{"b":1}}`,
		"{{ resource.spec.quote }}":                                           `it's <b> & "q"`,
		// What is in a spec is text, however it looks.
		"{{ resource.spec.evil }}": "{{ resource.name }}{% include '/etc/passwd' %}",
	} {
		got, err := parseAndRender(t.Context(), source, vars(t))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
}

func TestUndefinedIsNamed(t *testing.T) {
	t.Parallel()
	for source, name := range map[string]string{
		"{{ missing }}":                             "missing",
		"{{ resource.spec.nope }}":                  "resource.spec.nope",
		"{{ resource.spec.deep.none.b }}":           "resource.spec.deep.none",
		"{% for x in absent %}{% endfor %}":         "absent",
		"{{ resource.spec.list[7] }}":               "resource.spec.list[7]",
		"{% if gone == 1 %}{% endif %}":             "gone",
		"{{ resource.spec.size | nosuchfilter }}":   "nosuchfilter",
		strings.Repeat("x", 9000) + "{{ missing }}": "missing",
	} {
		_, err := parseAndRender(t.Context(), source, vars(t))
		require.ErrorIs(t, err, ErrTemplate, source)
		require.Contains(t, err.Error(), name, source)
		require.Less(t, len(err.Error()), 2*errorBytesMax)
	}
}

func TestNoFilesAndNoPrograms(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("sesame"), 0o600))
	for _, source := range []string{
		"{% include '" + secret + "' %}",
		"{% extends '" + secret + "' %}",
		"{% import '" + secret + "' as x %}",
		"{% from '" + secret + "' import x %}",
		"{% include '" + root + "' %}", // itself: gonja would end the process
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"{% set a = 'x' %}",
		"{% block b %}{% endblock %}",
		"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"{{ range(1000000000) | list }}",
		"{{ lipsum(n=1000000) }}",
		"{{",
		"{% if %}",
		"{% endfor %}",
	} {
		out, err := parseAndRender(t.Context(), source, vars(t))
		require.ErrorIs(t, err, ErrTemplate, source)
		require.NotContains(t, out, "sesame")
		require.NotContains(t, err.Error(), "sesame")
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	list := make([]any, 1000)
	for i := range list {
		list[i] = "0123456789"
	}
	v := Vars{"list": list, "text": strings.Repeat("x", 1000)}
	nested := strings.Repeat("{% for x in list %}", 5) + "{{ x }}" + strings.Repeat("{% endfor %}", 5)
	quiet := strings.Repeat("{% for x in list %}", 5) + strings.Repeat("{% endfor %}", 5)
	for name, source := range map[string]string{
		"source":  strings.Repeat("x", SourceBytesMax+1),
		"output":  nested,
		"time":    quiet,
		"nesting": "{{ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}",
	} {
		begin := time.Now()
		_, err := parseAndRender(t.Context(), source, v)
		require.ErrorIs(t, err, ErrLimit, name)
		require.Less(t, time.Since(begin), 5*TimeMax, name)
	}
}

func FuzzParse(f *testing.F) {
	for _, source := range []string{"{{ a.b | tojson }}", "{% if a %}b{% endif %}", "{% for x in y %}{{ x }}{% endfor %}", "{#", "{{ a['b'][0] }}"} {
		f.Add(source)
	}
	f.Fuzz(func(t *testing.T, source string) {
		out, err := parseAndRender(t.Context(), source, Vars{"a": map[string]any{"b": "c"}, "y": []any{1, 2}})
		if err == nil && len(out) > OutputBytesMax {
			t.Fatalf("%d bytes", len(out))
		}
	})
}
