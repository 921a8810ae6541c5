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
		require.Regexp(t, "^a template's limit was passed: (it|more) ", err.Error(), "which limit")
		require.Less(t, time.Since(begin), 5*TimeMax, name)
	}
}

// What an expression makes is limited before it is made: one template must not have the runner killed for its memory.
func TestGrowthIsLimited(t *testing.T) {
	t.Parallel()
	chain := func(step string) string { return "{{ ('aaaaaaaaaa'" + strings.Repeat(step, 40) + ")|length }}" }
	for _, source := range []string{
		`{{ "x" * 100000000000 }}`,
		`{{ ("x" * 100000000000)|length }}`,
		`{{ ("x" * 100000000000)|default("d") }}`,
		`{% if "x" * 100000000000 %}a{% endif %}`,
		`{% if false %}{% elif text * 100000000000 %}a{% endif %}`,
		`{% for c in "x" * 100000000000 %}{% endfor %}`,
		`{% for c in list if text * 100000000000 %}{% endfor %}`,
		`{% for c in list %}{% if true %}{{ text * n }}{% endif %}{% endfor %}`,
		`{{ text if "x" * 100000000000 else "b" }}`,
		`{{ ["x" * 100000000000][0] }}`,
		`{{ {"a": "x" * 100000000000}["a"] }}`,
		`{{ list[("x" * 100000000000)|length] }}`,
		`{{ ("x" * 100000000000) is defined }}`,
		`{{ not "x" * 100000000000 }}`,
		`{{ "a".replace("a", "x" * 100000000000, 1) }}`,
		`{{ ("x" * 100000000000).upper() }}`,
		`{{ "x"|center(100000000000) }}`,
		`{{ "x"|center(width=100000000000) }}`,
		`{{ "x"|center(n) }}`,
		`{{ list|map("center", 100000000000)|list }}`,
		`{{ lines|indent(1000000) }}`,
		`{{ lines|indent("xxxxxxxxxx" * 100000) }}`,
		`{{ list|batch(100000000000, "x") }}`,
		`{{ list|slice(100000000000) }}`,
		`{{ "%1000000d%1000000d%1000000d"|format(1, 2, 3) }}`,
		`{{ "%*d%*d"|format(900000, 1, 900000, 2) }}`,
		`{{ list|tojson(indent=100000000000) }}`,
		`{{ "x".center(100000000000) }}`,
		`{{ "x".ljust(100000000000) }}`,
		`{{ "x".rjust(width=100000000000) }}`,
		`{{ "1".zfill(100000000000) }}`,
		`{{ "\t".expandtabs("", 100000000000) }}`,
		`{{ "{:100000000000}".format("x") }}`,
		`{{ text.join(list) }}`,
		`{{ list|join(text) }}`,
		chain("|replace('a', 'aaaaaaaaaa')"),
		chain(".replace('a', 'aaaaaaaaaa', 1000000000)"),
		"{{ (" + strings.Repeat("text ~ ", 2000) + "'')|length }}",
		"{{ (" + strings.Repeat("text + ", 2000) + "'')|length }}",
		"{{ (" + strings.Repeat("list + ", 2000) + "list)|length }}",
		"{{ [" + strings.Repeat("text * 1000, ", 1000) + "]|length }}",
		"{{ [" + strings.Repeat("(text * 1000)|upper, ", 1000) + "]|length }}",
		"{{ [" + strings.Repeat("(text * 1000)[::-1], ", 1000) + "]|length }}",
		"{{ 'a'" + strings.Repeat(".upper()", 60) + " }}", // what a method is called on is evaluated twice
	} {
		t.Run(source[:min(len(source), 40)], func(t *testing.T) {
			t.Parallel()
			list := make([]any, 2000)
			for i := range list {
				list[i] = "0123456789"
			}
			_, err := parseAndRender(t.Context(), source, Vars{
				"list": list, "text": strings.Repeat("x", 1000), "lines": strings.Repeat("\n", 1000), "n": 100000000000,
			})
			require.ErrorIs(t, err, ErrLimit, source[:min(len(source), 80)])
		})
	}
}

// What stays within the limits is what gonja makes of it.
func TestGrowthWithinTheLimits(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		`{{ "ab" * 3 }}|{{ "ab" * 0 }}|{{ 2 * 3 }}|{{ 2 * 1.5 }}|{{ 2 + 3 * 4 - 1 }}`:                                        "ababab||6|3.0|13",
		`{{ "a" ~ 1 ~ resource.name }}|{{ "a" + "b" }}|{{ [1] + [2, "x"] }}|{{ 1 + 1.5 }}`:                                   "a1web-1|ab|[1, 2, 'x']|2.5",
		`{{ "a"|center(5) }}|{{ "a".center(5, " ") }}|{{ "a".ljust(3, "-") }}|{{ "7".zfill(3) }}`:                            "  a  |  a  |a--|007",
		`{{ "a-b"|replace("-", "--") }}|{{ "a-b".replace("-", "--", 1) }}|{{ [1, 2]|join("-") }}`:                            "a--b|a--b|1-2",
		`{{ "%s-%03d"|format("a", 7) }}|{{ "{}-{:>3}".format("a", "b") }}`:                                                   "a-007|a-  b",
		`{{ {"a": [1]}|tojson(indent=1) }}`:                                                                                  "{\n \"a\": [\n  1\n ]\n}",
		`{{ "abc"[::-1] }}|{{ "abc"[1:] }}|{{ " a ".strip().upper() }}`:                                                      "cba|bc|A",
		`{{ "a\nb"|indent(2) }}|{{ [1, 2, 3]|batch(2, 0)|list }}`:                                                            "a\n  b|[[1, 2], [3, 0]]",
		`{{ resource.spec.none ~ "x" if false else "y" }}|{{ (resource.spec.none ~ "x")|default("d") }}`:                     "y|d",
		`{% for x in resource.spec.list if loop is not defined %}{{ loop.index * 2 }}{{ loop.cycle("a", "b") }}{% endfor %}`: "2a4b",
	} {
		got, err := parseAndRender(t.Context(), source, vars(t))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
	_, err := parseAndRender(t.Context(), "{{ missing * 3 }}", vars(t))
	require.ErrorContains(t, err, "missing")

	// The operators of a long sum are within each other.
	long, err := parseAndRender(t.Context(), "{{ "+strings.Repeat("1+", 4000)+"1 }}", vars(t))
	require.NoError(t, err)
	require.Equal(t, "4001", long)
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
