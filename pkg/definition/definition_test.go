package definition_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/definition"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

const whole = "\ufeff# Everything that a phase may say.\r\n" + `
HandlesStates = [Allocation, "Config, late"]
ResourceType=Cloud.Node , Cloud.Host
	PhaseName = "Acme.CreateInstance"
Phase.Description = Starting "Acme" instance, at once # not a comment
Phase_Dependencies = Example.CreateVolume, "b"
Phase.Weight = 7
Phase.Urgent = TRUE
Phase.Version = 1.2.3
Phase_Owner = "a \"b\" \\ \t"
Phase.Tags = {a, "b, c", 3, false}
HandlesProvider = acme
ResourceConstraint := FixedPublicIp isnt undefined
ResourceStateListener = True
ResourceStates = Started
ResourceTypes = {Cloud.Node}
`

func TestParse(t *testing.T) {
	t.Parallel()
	d, err := definition.Parse([]byte(whole))
	require.NoError(t, err)
	require.Equal(t, definition.Definition{
		Phase: &definition.Phase{
			Name: "Acme.CreateInstance", Description: `Starting "Acme" instance, at once # not a comment`,
			Kinds: []string{"Cloud.Node", "Cloud.Host"}, States: []string{"Allocation", "Config, late"},
			DependsOn: []string{"Example.CreateVolume", "b"}, Provider: "acme", When: d.Phase.When,
			Attributes: []definition.Attribute{
				{Name: "Owner", JSON: `"a \"b\" \\ \t"`}, {Name: "Tags", JSON: `["a","b, c",3,false]`}, {Name: "Urgent", JSON: "true"},
				{Name: "Version", JSON: `"1.2.3"`}, {Name: "Weight", JSON: "7"},
			},
		},
		Listener: &definition.Listener{Kinds: []string{"Cloud.Node"}, States: []string{"Started"}},
	}, d)
	require.Equal(t, `("FixedPublicIp" in resource.attributes ? resource.attributes["FixedPublicIp"] : "FixedPublicIp" in resource.spec ? resource.spec["FixedPublicIp"] : null) != null`, d.Phase.When)
}

// The definitions of the examples, which are those of the seed.
func TestExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/phases/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		body, err := os.ReadFile(file)
		require.NoError(t, err)
		_, err = definition.Parse(body)
		require.NoError(t, err, file)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	const phase = "HandlesStates = A\nResourceType = node\nPhaseName = p\n"
	const listener = "ResourceStateListener = true\nResourceStates = A\nResourceTypes = node\n"
	for file, want := range map[string]string{
		"":                                 "1:1: neither HandlesStates",
		"# nothing\n":                      "1:1: neither HandlesStates",
		"\xff":                             "1:1: the file is not UTF-8",
		strings.Repeat("#", 70_000):        "1:1: the file is larger than 65536 bytes",
		"ResourceStateListener = false\n":  "1:1: neither HandlesStates",
		phase + "é = 1":                    "4:1: a key is letters",
		phase + "Phase.X 1":                "4:9: = or := is missing behind the key Phase.X",
		phase + "Phase.X =  ":              "4:12: the value of Phase.X is missing",
		phase + "Priority = 1":             "4:1: Priority is not a key of plugins",
		phase + "Phase. = 1":               "4:1: Phase. is not a key of plugins",
		phase + "PhaseName = q":            "4:1: PhaseName is said already in line 3, as PhaseName",
		phase + "Phase.A = 1\nPhase_A = 1": "5:1: Phase_A is said already in line 4, as Phase.A",
		phase + "ForProvider = a\nHandlesProvider = b":                                       "5:1: HandlesProvider is said already in line 4, as ForProvider",
		phase + "ResourceStates = A":                                                         "4:1: ResourceStates is not for a phase plugin alone",
		listener + "PhaseName = p":                                                           "4:1: PhaseName is not for a state listener alone",
		listener + "Phase.X = p":                                                             "4:1: Phase.X is not for a state listener alone",
		"ResourceStateListener = maybe":                                                      "1:25: ResourceStateListener is true or false",
		"ResourceStateListener = true\nResourceStates = A":                                   "1:1: ResourceTypes is missing",
		"HandlesStates = A\nPhaseName = p":                                                   "1:1: ResourceType is missing",
		"HandlesStates = A\nResourceType = n":                                                "1:1: PhaseName is missing",
		"HandlesStates = A, A\nResourceType = n\nPhaseName = p":                              "1:20: A is in the list twice",
		"HandlesStates = A,, B\nResourceType = n\nPhaseName = p":                             "1:19: a value is missing",
		"HandlesStates = [A, B\nResourceType = n\nPhaseName = p":                             "1:22: the list is not closed by ]",
		"HandlesStates = ü, \"A\" B\nResourceType = n\nPhaseName = p":                        "1:24: a comma is missing",
		"HandlesStates = 'A'\nResourceType = n\nPhaseName = p":                               "1:17: a name with quotes or brackets",
		"HandlesStates := A\nResourceType = n\nPhaseName = p":                                "1:18: an expression is not supported for HandlesStates",
		"HandlesStates = A\nResourceType = n\nPhaseName = \"p\" q":                           "3:16: nothing may follow the closing quote",
		"HandlesStates = A\nResourceType = n\nPhaseName = \"p":                               "3:13: the text is not closed",
		"HandlesStates = A\nResourceType = n\nPhaseName = \"\\x\"":                           `3:14: \x is no escape`,
		"HandlesStates = A\nResourceType = n\nPhaseName = \"\"":                              "3:13: the name \"\" ",
		phase + "ResourceConstraint = X is undefined":                                        "4:22: ResourceConstraint is an expression: write :=",
		phase + "Phase.X := 1":                                                               "4:12: an expression is not supported for Phase.X",
		"HandlesStates = " + strings.Repeat("s,", 70) + "s\nResourceType = n\nPhaseName = p": "1:18: s is in the list twice",
	} {
		_, err := definition.Parse([]byte(file))
		var errs definition.Errors
		require.ErrorAs(t, err, &errs, file)
		require.True(t, strings.HasPrefix(errs[0].Error(), want) || strings.Contains(want, "s is in") && strings.Contains(err.Error(), "more than 64"), "%q: %s", file, err)
	}
	// All of them are told, in order.
	_, err := definition.Parse([]byte("A = 1\nHandlesStates = x\nB\nC = 2"))
	require.Equal(t, 3, strings.Count(err.Error(), "\n")+1, err)
}

func constraintOf(t *testing.T, expression string) (string, error) {
	t.Helper()
	d, err := definition.Parse([]byte("HandlesStates = A\nResourceType = node\nPhaseName = p\nResourceConstraint := " + expression))
	if err != nil {
		return "", err
	}
	return d.Phase.When, nil
}

func TestExpressions(t *testing.T) {
	t.Parallel()
	e := constraint.NewEvaluator()
	state := &resource.State{
		Key: resource.Key{Kind: "Cloud.Node", Name: "web-1"}, Cluster: "c", State: "Allocation", Target: "Started",
		Attributes: map[string]string{"Ip": `"10.0.0.1"`, "Ready": "true", "package": "1"},
	}
	const spec = `{"Ip": "hidden", "Size": 4, "Ratio": 0.5, "Off": false, "None": null, "Title": "a \"b\" %s"}`
	for expression, want := range map[string]bool{
		`Ip isnt undefined`:             true,
		`Ip is undefined`:               false,
		`Gone is undefined`:             true,
		`None IS Undefined`:             true,
		`Ip == "10.0.0.1"`:              true,
		`Ip == "hidden"`:                false,
		`Size >= 4 && Size < 4.5`:       true,
		`5 > Size`:                      true,
		`-1 < Size`:                     true,
		`Ratio == 0.5 && Ratio != 5e-2`: true,
		`Ready`:                         true,
		`!Off`:                          true,
		`!!Ready`:                       true,
		`Off || Ready`:                  true,
		`!(Off || Ready)`:               false,
		`Gone == 1`:                     false,
		`Gone != 1`:                     false,
		`!(Gone == 1)`:                  false,
		`!(Gone == 1) || Ready`:         true,
		`Gone < 5`:                      false,
		`!Gone`:                         false,
		`!(Gone is undefined)`:          false,
		`Gone == Size || Size == Gone`:  false,
		`Size == Size`:                  true,
		`Size > Ratio`:                  true,
		`Name == "web-1" && Type == "Cloud.Node" && State == "Allocation" && TargetState == "Started" && ClusterName == "c"`: true,
		`package == 1`:           true, // a word that CEL reserves
		`in is undefined`:        true,
		`Title == "a \"b\" %s"`:  true,
		`"a" == "a"`:             true,
		`"a" == 1`:               false,
		`1 == 1.0`:               true,
		`true`:                   true,
		`false || true && false`: false,
		`(true)`:                 true,
	} {
		when, err := constraintOf(t, expression)
		require.NoError(t, err, expression)
		got, err := e.Eval(when, []byte(spec), state)
		require.NoError(t, err, "%s: %s", expression, when)
		require.Equal(t, want, got, "%s: %s", expression, when)
	}
	when, err := constraintOf(t, `Ip < 5`)
	require.NoError(t, err)
	_, err = e.Eval(when, []byte(spec), state)
	require.ErrorContains(t, err, "no such overload", "what has no order fails the phase")
}

func TestExpressionsAreRefusedWithTheirColumn(t *testing.T) {
	t.Parallel()
	const before = len("ResourceConstraint := ")
	for expression, want := range map[string]struct {
		column int
		reason string
	}{
		`X is 1`:                    {6, "only undefined may follow"},
		`X isnt`:                    {7, "only undefined may follow"},
		`"a" is undefined`:          {5, "is and isnt ask for a name"},
		`X == undefined`:            {6, "write NAME is undefined"},
		`X` + ` ==`:                 {5, "a value is missing before the end"},
		`X == 1 Y`:                  {8, "Y is not expected here"},
		`X = 1`:                     {3, `"=" is not supported here`},
		`X == 'a'`:                  {6, `"'" is not supported here`},
		`é == "a" && Y ~ 1`:         {1, `"é" is not supported here`},
		`X == "é" && Y ~ 1`:         {15, `"~" is not supported here`},
		`A.B == 1`:                  {2, "with a dot"},
		`size(X) == 1`:              {1, "functions are not supported"},
		`(X == 1`:                   {8, ") is missing before the end"},
		`(X) == 1`:                  {5, "a comparison is between values"},
		`!X == 1`:                   {1, "put in parentheses what ! is for"},
		`1 < X < 3`:                 {7, "cannot be chained"},
		`5`:                         {1, "neither true nor false"},
		`"a" || X`:                  {1, "neither true nor false"},
		`X == 99999999999999999999`: {6, "not a number that fits"},
		`X == 1e999`:                {6, "not a number that fits"},
		`X == 0x10`:                 {6, "not a number that fits"},
		`X == -Y`:                   {7, "a number is missing"},
		`X == "a`:                   {6, "not closed"},
		`X ? 1 : 2`:                 {3, `"?" is not supported here`},
		`X == 1 & Y`:                {8, `"&" is not supported here`},
		strings.Repeat("(", 20) + "X" + strings.Repeat(")", 20): {17, "nested deeper than 16"},
		strings.Repeat("X == 1 && ", 200) + "X == 1":            {1, "is too long"},
		strings.Repeat("X == 1 && ", 250) + "X == 1":            {1, "longer than 2048 bytes"},
	} {
		_, err := constraintOf(t, expression)
		var errs definition.Errors
		require.ErrorAs(t, err, &errs, expression)
		require.Equal(t, 4, errs[0].Line)
		require.Equal(t, before+want.column, errs[0].Column, "%s: %s", expression, errs[0].Reason)
		require.Contains(t, errs[0].Reason, want.reason, expression)
	}
}

// truth is true, false or neither.
type truth int8

const (
	no      truth = -1
	neither truth = 0
	yes     truth = 1
)

// twin is an expression and what it should be, written down from the package doc.
func twin(r *rand.Rand, depth int, values map[string]int) (string, truth) {
	names := []string{"A", "B", "C", "D"}
	value := func() (string, int, bool) {
		if r.IntN(3) == 0 {
			n := r.IntN(4)
			return strconv.Itoa(n), n, true
		}
		name := names[r.IntN(len(names))]
		v, ok := values[name]
		return name, v, ok
	}
	of := func(b bool) truth {
		if b {
			return yes
		}
		return no
	}
	choice := r.IntN(8)
	if depth == 0 {
		choice %= 3
	}
	switch choice {
	case 0, 1:
		a, av, aok := value()
		b, bv, bok := value()
		op := []string{"==", "!=", "<", "<=", ">", ">="}[r.IntN(6)]
		text := a + " " + op + " " + b
		if !aok || !bok {
			return text, neither
		}
		return text, of(map[string]bool{"==": av == bv, "!=": av != bv, "<": av < bv, "<=": av <= bv, ">": av > bv, ">=": av >= bv}[op])
	case 2:
		name := names[r.IntN(len(names))]
		_, ok := values[name]
		if r.IntN(2) == 0 {
			return name + " is undefined", of(!ok)
		}
		return name + " isnt undefined", of(ok)
	case 3, 4:
		a, at := twin(r, depth-1, values)
		b, bt := twin(r, depth-1, values)
		return "(" + a + ") && (" + b + ")", min(at, bt)
	case 5, 6:
		a, at := twin(r, depth-1, values)
		b, bt := twin(r, depth-1, values)
		return "(" + a + ") || (" + b + ")", max(at, bt)
	default:
		a, at := twin(r, depth-1, values)
		return "!(" + a + ")", -at
	}
}

// Three values in CEL, which has two: against a slow and obvious twin.
func TestTwin(t *testing.T) {
	t.Parallel()
	e := constraint.NewEvaluator()
	stories := uint64(60)
	if more, err := strconv.ParseUint(os.Getenv("DROVER_TWIN"), 10, 32); err == nil {
		stories = more
	}
	tried := uint64(0)
	for seed := range stories {
		r := rand.New(rand.NewPCG(seed, 1))
		values, attributes, spec := map[string]int{}, map[string]string{}, map[string]any{}
		for _, name := range []string{"A", "B", "C", "D"} {
			v := r.IntN(4)
			switch r.IntN(4) {
			case 0:
				attributes[name] = strconv.Itoa(v)
				spec[name] = 17 // hidden
			case 1:
				spec[name] = v
			case 2:
				spec[name] = nil
				continue
			default:
				continue
			}
			values[name] = v
		}
		body, err := json.Marshal(spec)
		require.NoError(t, err)
		text, want := twin(r, 3, values)
		when, err := constraintOf(t, text)
		if err != nil {
			require.ErrorContains(t, err, "is too long", text)
			continue
		}
		got, err := e.Eval(when, body, &resource.State{Attributes: attributes})
		require.NoError(t, err, "seed %d: %s: %s", seed, text, when)
		require.Equal(t, want == yes, got, "seed %d: %s with %v: %s", seed, text, values, when)
		tried++
	}
	require.Greater(t, tried, stories*2/3)
}

// Whatever the bytes are: a definition that can be acted upon, or mistakes with their places.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("HandlesStates = A\nResourceType = n\nPhaseName = p\nResourceConstraint := !(A < -1.5e3) && (B isnt undefined || \"x\\\"\" == C)\n"))
	f.Add([]byte("ResourceStateListener = true\nResourceStates = [a, \"b\"]\nResourceTypes = {x}\r\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		d, err := definition.Parse(file)
		var errs definition.Errors
		if err != nil {
			if !errors.As(err, &errs) || len(errs) == 0 || len(errs) > definition.ErrorsMax {
				t.Fatal(err)
			}
			for _, e := range errs {
				if e.Line < 1 || e.Column < 1 || e.Reason == "" {
					t.Fatalf("%+v", e)
				}
			}
			return
		}
		if d.Phase == nil && d.Listener == nil {
			t.Fatal("nothing")
		}
		if p := d.Phase; p != nil {
			if p.Name == "" || len(p.Kinds) == 0 || len(p.States) == 0 || len(p.When) > blueprint.WhenBytesMax {
				t.Fatalf("%+v", p)
			}
			if p.When != "" {
				if err := constraint.Compile(p.When); err != nil {
					t.Fatal(err)
				}
			}
			for _, a := range p.Attributes {
				if !json.Valid([]byte(a.JSON)) {
					t.Fatal(a.JSON)
				}
			}
		}
		if l := d.Listener; l != nil && (len(l.Kinds) == 0 || len(l.States) == 0) {
			t.Fatalf("%+v", l)
		}
	})
}
