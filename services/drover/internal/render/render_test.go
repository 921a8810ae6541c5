package render_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/services/drover/internal/render"
)

func TestTextShowsWhatIsNotPrintable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"web-1":                 "web-1",
		"grün 東京":               "grün 東京",
		"a\nb\tc\rd":            `a\nb\tc\rd`,
		"\x1b[31mred\x1b[0m":    `\u001b[31mred\u001b[0m`,
		"csi \u009b31m":         `csi \u009b31m`,
		"rtl \u202egpj":         `rtl \u202egpj`,
		"zero\u200bwidth":       `zero\u200bwidth`,
		"tag \U000E0041":        `tag \udb40\udc41`,
		"bad \xff byte":         `bad \xff byte`,
		"real \uFFFD is kept":   "real \uFFFD is kept",
		"del \x7f and nul \x00": `del \u007f and nul \u0000`,
	} {
		require.Equal(t, want, render.Text(in), "%q", in)
	}
	require.Equal(t, "a\tb", render.Line("a\tb"), "a line keeps its tabs")
	require.Equal(t, `\u001b[2J`, render.Line("\x1b[2J"))
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b[0m\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		text := render.Text(s)
		require.NotContains(t, text, "\x1b")
		require.Equal(t, -1, strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", text)
		require.Equal(t, text, render.Text(text), "what is safe stays")
	})
}

func TestJSONIsSafeAndUnchanged(t *testing.T) {
	t.Parallel()
	in := []byte(`{ "a" : "csi \u009b and rtl ` + "\u202e" + `", "tag": "` + "\U000E0041" + `", "<b>": [1.50, 12345678901234567890] }`)
	compact, err := render.Compact(in)
	require.NoError(t, err)
	want := `{"a":"csi \u009b and rtl \u202e","tag":"\udb40\udc41","<b>":[1.50,12345678901234567890]}`
	require.Equal(t, want, string(compact), "byte for byte")
	require.JSONEq(t, string(in), string(compact))
	indented, err := render.Indent(in)
	require.NoError(t, err)
	require.JSONEq(t, string(in), string(indented))
	_, err = render.Compact([]byte(`{`))
	require.Error(t, err)
	body, err := render.Marshal(map[string]string{"a": "<&>"})
	require.NoError(t, err)
	want = `{"a":"<&>"}`
	require.Equal(t, want, string(body))
}

func TestYAML(t *testing.T) {
	t.Parallel()
	text, err := render.YAML([]byte(`{"kind":"node","n":3,"yes":"yes","empty":{},"none":[],"text":"a: b","list":[{"x":1,"y":[true,null]},[2,"3"],"s"],
		"deep":{"er":{"est":"end"}},"version":"1.10","escape":"\u001b[0m\u202e"}`))
	require.NoError(t, err)
	require.Equal(t, `kind: node
"n": 3
"yes": "yes"
empty: {}
none: []
text: "a: b"
list:
  - x: 1
    "y":
      - true
      - null
  - - 2
    - "3"
  - s
deep:
  er:
    est: end
version: "1.10"
escape: "\u001b[0m\u202e"
`, string(text))
	_, err = render.YAML([]byte(`{} {}`))
	require.Error(t, err)
}

var oddNumber = regexp.MustCompile(`-0|[0-9][eE]|[0-9]{15}`)

// FuzzYAMLReadsBack holds the writer against a reader that others wrote.
func FuzzYAMLReadsBack(f *testing.F) {
	for _, s := range []string{
		`{"a":[{"b":[[],[{}]]},[["x"]]],"c":{"d":"- e"}}`, `"plain"`, `[1,2.5,"~","0x1f","1e3","2026-01-01",":","#x"," x","x ","null","-"]`,
		`{"":"","a b":"c d","k: v":"x #y","multi":"a\nb\n"}`, `[[[{"a":{"b":[1]}}]]]`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want any
		if json.Unmarshal([]byte(s), &want) != nil || strings.ContainsAny(s, "\uFFFD") || len(s) > 300 {
			t.Skip()
		}
		if oddNumber.MatchString(s) {
			t.Skip("JSON and YAML readers differ over such numbers")
		}
		text, err := render.YAML([]byte(s))
		require.NoError(t, err)
		var got any
		err = yaml.Unmarshal(text, &got)
		if err != nil && (strings.Contains(s, `""`) || strings.Contains(err.Error(), "already defined")) {
			t.Skip("the reader takes no empty keys, and no key twice")
		}
		require.NoError(t, err, "%s", text)
		wantText, _ := json.Marshal(want)
		gotText, _ := json.Marshal(got)
		require.Equal(t, string(wantText), string(gotText), "%s", text)
	})
}

func TestAge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 20 * time.Millisecond: "0s", 300 * time.Millisecond: "0.3s", 2 * time.Second: "2s",
		9900 * time.Millisecond: "9.9s", 42 * time.Second: "42s", 3*time.Minute + 10*time.Second: "3m10s", 5 * time.Minute: "5m",
		5*time.Hour + 2*time.Minute: "5h2m", 99 * time.Hour: "4d3h", 48 * time.Hour: "2d",
	} {
		require.Equal(t, want, render.Age(now, now.Add(-d)), d.String())
	}
	require.Equal(t, "-", render.Age(now, time.Time{}))
	require.Equal(t, "2026-11-20T12:00:00.000Z", render.Time(now))
}

func TestTableAlignsByWidthAndWithoutColour(t *testing.T) {
	t.Parallel()
	table := render.NewTable("NAME", "STATE", "AGE")
	table.Row("node/web-1", render.Paint(true).Good("Started"), "3s")
	table.Row("node/東京", "", "1m")
	var b bytes.Buffer
	require.NoError(t, table.Write(&b, "  "))
	require.Equal(t, "  NAME         STATE     AGE\n"+
		"  node/web-1   \x1b[32mStarted\x1b[0m   3s\n"+
		"  node/東京    -         1m\n", b.String())
	require.Equal(t, "abc…", render.Cut("abcdef", 4))
	require.Equal(t, "abcd", render.Cut("abcd", 4))
	require.Equal(t, "abcd", render.Paint(false).Bad("abcd"))
}
