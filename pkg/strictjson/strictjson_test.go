package strictjson

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type inner struct {
	Name string `json:"name"`
	N    uint32 `json:"n"`
}

type everything struct {
	S    string                     `json:"s"`
	B    bool                       `json:"b"`
	I    int                        `json:"i"`
	U    uint32                     `json:"u"`
	D    time.Duration              `json:"d"`
	Raw  json.RawMessage            `json:"raw"`
	O    Object                     `json:"o"`
	In   inner                      `json:"in"`
	P    *inner                     `json:"p"`
	L    []inner                    `json:"l"`
	M    map[string]string          `json:"m"`
	MR   map[string]json.RawMessage `json:"mr"`
	Long string                     `json:"longName" alias:"long_name"`
	Skip string                     `json:"-"`
	Up   upper                      `json:"up"`
}

type upper string

func (u *upper) SetScalar(text string) string {
	if text == "bad" {
		return "is bad"
	}
	*u = upper(strings.ToUpper(text))
	return ""
}

func TestUnmarshal(t *testing.T) {
	t.Parallel()
	var v everything
	errs := Unmarshal("", []byte(`{"s":"a\"\u00e9","b":true,"i":-3,"u":4294967295,"d":"1m30s","raw": [1, 2.0] ,"o":{ "x" : null },
		"in":{"name":"n","n":1},"p":{"name":"p"},"l":[{"name":"x"},{"n":2}],"m":{"a":"b"},"mr":{"a":null},"long_name":"z","up":"abc"}`), &v)
	require.Nil(t, errs)
	require.Equal(t, everything{
		S: `a"é`, B: true, I: -3, U: 1<<32 - 1, D: 90 * time.Second, Raw: json.RawMessage(`[1, 2.0]`), O: Object(`{ "x" : null }`),
		In: inner{"n", 1}, P: &inner{Name: "p"}, L: []inner{{Name: "x"}, {N: 2}}, M: map[string]string{"a": "b"},
		MR: map[string]json.RawMessage{"a": json.RawMessage("null")}, Long: "z", Up: "ABC",
	}, v)
	v = everything{}
	require.Nil(t, Unmarshal("", []byte(`{"s":null,"p":null,"l":null,"o":null,"up":12}`), &v))
	require.Equal(t, everything{Up: "12"}, v)
}

func TestUnmarshalRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                               "is not JSON: unexpected end of JSON input",
		`{"s":"a"} x`:                    "is not JSON: invalid character 'x' after top-level value",
		`{"s":"a",}`:                     "is not JSON: invalid character '}'",
		"{\"s\":\"\xff\"}":               "is not UTF-8",
		`{"S":"a"}`:                      "S: no field of this name",
		`{"skip":"a"}`:                   "skip: no field of this name",
		`{"-":"a"}`:                      "-: no field of this name",
		`{"a b":1}`:                      `["a b"]: no field of this name`,
		`{"s":1}`:                        "s: must be a string, not a number (write it in quotes)",
		`{"s":true}`:                     "s: must be a string, not true or false (write it in quotes)",
		`{"s":[]}`:                       "s: must be a string, not a list",
		`{"b":"true"}`:                   "b: must be true or false, not a string",
		`{"i":1.0}`:                      "i: must be a whole number that fits",
		`{"i":1e3}`:                      "i: must be a whole number that fits",
		`{"i":9223372036854775808}`:      "i: must be a whole number that fits",
		`{"u":-1}`:                       "u: must be a whole number, 0 or more, that fits",
		`{"d":5}`:                        `d: must be a duration in quotes, as in "15s" or "10m", not a number`,
		`{"d":"5"}`:                      `d: is not a duration, as in "15s" or "10m"`,
		`{"o":[]}`:                       "o: must be an object, not a list",
		`{"in":[]}`:                      "in: must be an object, not a list",
		`{"in":{"x":1}}`:                 "in.x: no field of this name",
		`{"l":{}}`:                       "l: must be a list, not an object",
		`{"l":[{},{"name":7}]}`:          "l[1].name: must be a string, not a number (write it in quotes)",
		`{"l":[null]}`:                   "l[0]: must be an object, not null",
		`{"m":{"a.b":1}}`:                `m["a.b"]: must be a string, not a number (write it in quotes)`,
		`{"m":{"a":null}}`:               "m.a: must be a string, not null",
		`{"s":"a","s":"b"}`:              "s: is given twice",
		`{"raw":{"a":{"b":1,"b":2}}}`:    "raw.a.b: is given twice",
		`{"longName":"","long_name":""}`: "long_name: is given twice, under two names",
		`{"up":"bad"}`:                   "up: is bad",
		`{"up":{}}`:                      "up: must be a string or a number, not an object",
		`"x"`:                            "must be an object, not a string",
		`null`:                           "must be an object, not null",
		strings.Repeat("[", 65) + strings.Repeat("]", 65): "is nested deeper than 64",
	} {
		errs := Unmarshal("", []byte(text), new(everything))
		require.NotEmpty(t, errs, text)
		require.Contains(t, errs[0].Error(), want, text)
		prefixed := Unmarshal("spec", []byte(text), new(everything))
		require.True(t, strings.HasPrefix(prefixed[0].Field, "spec"), prefixed[0].Field)
	}
	deep := strings.Repeat("[", 64) + strings.Repeat("]", 64)
	_, err := Canonical([]byte(deep))
	require.NoError(t, err)
}

func TestAllMistakesUpToALimit(t *testing.T) {
	t.Parallel()
	errs := Unmarshal("", []byte("{\n \"s\": 1, \"x\": 2,\n \"b\": 3}"), new(everything))
	require.Equal(t, Errors{
		{"s", "must be a string, not a number (write it in quotes)", 8},
		{"x", "no field of this name", 11},
		{"b", "must be true or false, not a number", 25},
	}, errs)
	require.Equal(t, "s: must be a string, not a number (write it in quotes); x: no field of this name; b: must be true or false, not a number", errs.Error())
	errs = nil
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf(`"x%d":1`, i))
	}
	require.Len(t, Unmarshal("", []byte("{"+strings.Join(many, ",")+"}"), new(everything)), ErrorsMax)
	twice := strings.Join(many, ",")
	_, err := Canonical([]byte("{" + twice + "," + twice + "}"))
	require.ErrorAs(t, err, &errs)
	require.Len(t, errs, ErrorsMax)
}

// TestLongNames: a name is no way to make an error, or the work, large. It counts what the whole process allocates, so it
// runs beside no other test.
func TestLongNames(t *testing.T) {
	name := strings.Repeat("é", 200_000)
	errs := Unmarshal("", []byte(`{"`+name+`":1}`), new(everything))
	require.Less(t, len(errs[0].Field), 300)
	text := []byte(`{"` + name + `":[` + strings.Repeat("0,", 20_000) + `0]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Canonical(text)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(256<<20), "the path of each of 20,000 values must not be written out")
}

func TestVisit(t *testing.T) {
	t.Parallel()
	var seen []string
	require.NoError(t, Visit([]byte(` {"a": [1, {"b c": 2}]}`), func(path string, offset int) {
		seen = append(seen, fmt.Sprint(path, "@", offset))
	}))
	require.Equal(t, []string{"@1", "a@7", "a[0]@8", "a[1]@11", `a[1]["b c"]@19`}, seen)
	require.Error(t, Visit([]byte(`{`), func(string, int) { t.Error("called") }))
}

func TestWrongTypePanics(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { Unmarshal("", []byte(`1`), new(chan int)) })
}

func FuzzCanonical(f *testing.F) {
	f.Add([]byte(`{"b": [1.50, "x\u0041\n", {"z": null}], "a": true}`))
	f.Add([]byte(`"\ud800"`))
	f.Add([]byte(strings.Repeat("[", 70)))
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = Unmarshal("", data, new(everything))
		canonical, err := Canonical(data)
		if err != nil {
			return
		}
		if !json.Valid(canonical) {
			t.Fatalf("not JSON: %s", canonical)
		}
		again, err := Canonical(canonical)
		if err != nil || string(again) != string(canonical) {
			t.Fatalf("not canonical: %s, %s, %v", canonical, again, err)
		}
		var a, b any
		if err := decode(data, &a); err != nil {
			t.Fatal(err)
		}
		if err := decode(canonical, &b); err != nil {
			t.Fatal(err)
		}
		require.Equal(t, a, b)
	})
}

func decode(data []byte, v any) error {
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	return d.Decode(v)
}
