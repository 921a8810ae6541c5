package rebar_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/services/gateway/internal/rebar"
)

var templateParams = map[string]string{
	"text": `"<é> it's \"so\" & \u0001"`, "list": `[1, "two", [3.5, null], {"four": true}]`, "map": `{"b": 1e300, "a": [], "c": {"d": "e"}}`, "n": `7`, "no": `false`,
}

// TestTemplatesAreThoseOfGo: what is within the limits renders as by text/template alone, errors too.
func TestTemplatesAreThoseOfGo(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "as it is", "{{.Machine.Name}} {{.Task.Name}}", `{{.Param "text"}} {{.Param "list"}} {{.Param "map"}}`,
		`{{if .ParamExists "n"}}yes{{else}}no{{end}}{{if .ParamExists "m"}}yes{{else if .Param "no"}}no{{else}}neither{{end}}`,
		`{{range $i, $x := .Param "list"}}{{$i}}={{$x}};{{end}}{{range $k, $v := .Param "map"}}{{$k}}={{$v}};{{else}}none{{end}}`,
		`{{range 5}}{{if eq . 1}}{{continue}}{{end}}{{if eq . 3}}{{break}}{{end}}{{.}}{{end}}`, `{{range (index (.Param "map") "a")}}x{{else}}none{{end}}`,
		`{{define "a"}}[{{.}}{{if gt . 0}}{{template "b" .}}{{end}}]{{end}}{{define "b"}}<{{.}}>{{end}}{{template "a" 1}}{{template "a" 0}}{{block "c" 3}}c{{.}}{{end}}`,
		`{{with .Param "map"}}{{.c.d}}{{else}}none{{end}}{{with .Param "no"}}x{{else with 4}}{{.}}{{end}}`,
		`{{$x := "a"}}{{range 3}}{{$x = printf "%s%s" $x $x}}{{end}}{{$x}}`,
		`{{print 1 "a" nil}}{{println 1 2}}{{html (.Param "text") 5}}{{js (.Param "text")}}{{urlquery (.Param "text") "x y"}}`,
		`{{printf "%5d|%-5s|%05.2f|%q|%x|%v|%#v|%T|%*d|%[1]v" 1 "a" 2.5 "q" "x" (.Param "map") (.Param "list") 3 4 5}}`, `{{.Param "text" | printf "%s!" | len}}`,
		"{{- 3 -}} a {{/* no */ -}} b", `{{index (.Param "list") 1}}{{slice (.Param "text") 1 2}}{{len (.Param "list")}}{{and 1 0}}{{or 0 2}}{{not 1}}`,
		`{{.Param "absent"}}`, `{{.Absent}}`, `{{.Machine.Absent}}`, `{{(.Param "map").absent}}`, `{{index (.Param "list") 9}}`, `{{template "none"}}`, `{{range 3}}`, `{{nofunction}}`,
		`{{_step 1}}`, `{{_enter}}`, `{{_leave}}`, "line\n{{.Param `absent`}}", `{{define "a"}}only{{end}}`,
	} {
		want, wantErr := rebar.Plainly(templateParams, text)
		got, err := rebar.Expand(t.Context(), templateParams, text)
		if wantErr != nil {
			require.ErrorContains(t, err, strings.TrimPrefix(wantErr.Error(), "template: "), text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

// TestATemplateTakesWhatItMay: each of these took the gateway, which serves every project, its memory or a processor for ever.
func TestATemplateTakesWhatItMay(t *testing.T) {
	t.Parallel()
	params := map[string]string{"big": `"` + strings.Repeat("x", 60_000) + `"`}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for text, limit := range map[string]string{
		`{{range 1000000000000}}{{end}}`:                                         "250000 steps",
		`{{range 1000000000000}}{{continue}}{{end}}`:                             "250000 steps",
		`{{range 1000000}}{{range 1000000}}{{end}}{{else}}{{end}}`:               "250000 steps",
		`{{if 1}}{{with 1}}{{range 1000000000}}{{$x := .}}{{end}}{{end}}{{end}}`: "250000 steps",
		`{{define "a"}}{{template "a"}}{{end}}{{template "a"}}`:                  "100 templates within each other",
		`{{define "a"}}{{if .}}{{template "b" .}}{{end}}{{end}}{{define "b"}}{{template "a" .}}{{template "a" .}}{{end}}{{template "a" 1}}`: "100 templates within each other",
		`{{$x := .Param "big"}}{{range 100}}{{$x = print $x $x}}{{end}}`:                                                                    "16777216 bytes of values",
		`{{$x := .Param "big"}}{{range 100}}{{$x = println $x $x}}{{end}}`:                                                                  "16777216 bytes of values",
		`{{$x := .Param "big"}}{{range 100}}{{$x = html $x $x}}{{end}}`:                                                                     "16777216 bytes of values",
		`{{$x := .Param "big"}}{{range 100}}{{$x = js $x $x}}{{end}}`:                                                                       "16777216 bytes of values",
		`{{$x := .Param "big"}}{{range 100}}{{$x = urlquery $x $x}}{{end}}`:                                                                 "16777216 bytes of values",
		`{{$x := printf "` + strings.Repeat("%999999d", 1000) + `" 1}}`:                                                                     "16777216 bytes of values",
		`{{$x := printf "` + strings.Repeat("%*d", 1000) + `" ` + strings.Repeat("999999 1 ", 1000) + `}}`:                                  "16777216 bytes of values",
		`{{$x := printf "` + strings.Repeat("%.999999f", 1000) + `" 1.0}}`:                                                                  "16777216 bytes of values",
		`{{$x := printf "` + strings.Repeat("%[1]s", 20_000) + `" (.Param "big")}}`:                                                         "16777216 bytes of values",
		`{{range 20}}{{$.Param "big"}}{{end}}`:                                                                                              "1048576 bytes",
	} {
		_, err := rebar.Expand(t.Context(), params, text)
		require.ErrorContains(t, err, limit, text)
		require.Less(t, len(err.Error()), 200)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2<<30))

	half := `{{range 100000}}{{end}}`
	_, err := rebar.Expand(t.Context(), nil, half, half)
	require.NoError(t, err)
	_, err = rebar.Expand(t.Context(), nil, half, half, half)
	require.ErrorContains(t, err, "250000 steps", "all templates of a task count together")
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	_, err = rebar.Expand(ctx, nil, "x")
	require.ErrorContains(t, err, "5 seconds")
	deep := strings.Repeat("{{if 1}}", 5000) + "x" + strings.Repeat("{{end}}", 5000)
	out, err := rebar.Expand(t.Context(), nil, deep)
	require.NoError(t, err)
	require.Equal(t, "x", out)
}

// FuzzTemplate: no template of anybody's takes more than it may, or brings the gateway down.
func FuzzTemplate(f *testing.F) {
	f.Add(`{{range $i, $x := .Param "list"}}{{printf "%*d %v" $i $x .}}{{else}}{{template "a" .}}{{end}}{{define "a"}}{{html .}}{{end}}`)
	f.Add(`{{$x := "a"}}{{range 99}}{{$x = print $x $x | js | urlquery}}{{if eq . 9}}{{break}}{{end}}{{end}}`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		out, err := rebar.Expand(t.Context(), templateParams, text)
		if err == nil && len(out) > rebar.ActionBytesMax {
			t.Fatalf("%d bytes", len(out))
		}
	})
}

// FuzzSizes: no estimate of what a function makes is too low.
func FuzzSizes(f *testing.F) {
	f.Add("%5d|%-5s|%05.2f|%q|%x|% #x|%+q|%U|%#v|%T|%*d|%[1]v|%!", "a\x00\xff\U0010ffff<", 1e308, 17)
	f.Add("%200000A", "0", -62.5, -33) // a width is that of each value within one
	f.Add("%.99f %b %99.99v %[3]*.[2]*[1]f", "", 5e-324, -1)
	f.Fuzz(func(t *testing.T, format, text string, number float64, n int) {
		values := []any{text, number, n, nil, true, map[string]any{text: number, "n": n}, []any{text, number, n, n, n, n, n, []any{}, map[string]any{}, nil}}
		for _, args := range [][]any{values, values[:3], values[5:6], values[6:], nil} {
			expected := rebar.Formatted(format, args...)
			if expected > rebar.TemplateMadeMax { // it is not made
				continue
			}
			if got := len(fmt.Sprintf(format, args...)); got > expected {
				t.Errorf("%q of %#v: %d bytes, and %d expected", format, args, got, expected)
			}
		}
		var decoded any // as parameters are
		if b, err := json.Marshal(map[string]any{text: []any{text, n, nil}}); err != nil || json.Unmarshal(b, &decoded) != nil {
			t.Fatal(err)
		}
		for _, args := range [][]any{values, {text}, {text, text}, {number}, {n, n}, {decoded, text}, nil} {
			made, expected := rebar.Texts(args...)
			for name, text := range made {
				if len(text) > expected[name] {
					t.Errorf("%s of %#v: %d bytes, and %d expected", name, args, len(text), expected[name])
				}
			}
		}
	})
}
