package constraint

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/resource"
)

var state = resource.State{
	Key: resource.Key{Project: "p", Kind: "node", Name: "web-1"}, UID: "u", Cluster: "c1", State: "Allocation",
	Target: "Started", WasDeployed: true, Labels: map[string]string{"rack": "a", "a.b/c": "d"},
	Attributes: map[string]string{"ip": `"10.0.0.1"`, "ports": `[80,443]`, "ready": "true"},
}

const spec = `{"size":"small","count":3,"ratio":0.5,"big":12345678901234567890,"disks":[{"gb":10},{"gb":200}],"none":null}`

func TestEval(t *testing.T) {
	t.Parallel()
	e := NewEvaluator()
	for expr, want := range map[string]bool{
		`true`:                          true,
		`has(resource.spec.size)`:       true,
		`has(resource.spec.color)`:      false,
		`has(resource.spec)`:            true,
		`resource.spec.size == "small"`: true,
		`resource.spec.count == 3 && resource.spec.count + 1 > 3`:   true,
		`resource.spec.count < 3.5 && resource.spec.ratio < 1`:      true,
		`resource.spec.big > 1000`:                                  true,
		`resource.spec.disks.exists(d, d.gb > 100)`:                 true,
		`resource.spec.none == null`:                                true,
		`resource.labels.rack in ["a", "b"]`:                        true,
		`resource.labels["a.b/c"] == "d"`:                           true,
		`has(resource.labels.floor)`:                                false,
		`resource.attributes.ip.startsWith("10.")`:                  true,
		`443 in resource.attributes.ports`:                          true,
		`resource.attributes.ready`:                                 true,
		`resource.wasDeployed && resource.cluster == "c1"`:          true,
		`resource.state == "Allocation" && resource.target != ""`:   true,
		`resource.project + "/" + resource.kind == "p/node"`:        true,
		`resource.name.matches("^web-[0-9]+$")`:                     true,
		`resource == resource && resource.uid == "u"`:               true,
		`type(resource) == type(resource)`:                          true,
		`resource.spec.disks.map(d, d.gb).filter(g, g > 5) == [10]`: false,
	} {
		t.Run(expr, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, Compile(expr))
			got, err := e.Eval(expr, []byte(spec), &state)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// A phase is for the resources of its provider only, and asks nothing of the others.
func TestForProvider(t *testing.T) {
	t.Parallel()
	e := NewEvaluator()
	for _, c := range []struct {
		attributes map[string]string
		spec, when string
		want       bool
	}{
		{nil, `{}`, "", false},
		{nil, `{"provider":"acme"}`, "", true},
		{nil, `{"Provider":"acme"}`, "", true},
		{nil, `{"Provider":"Acme"}`, "", false},
		{nil, `{"Provider":7}`, "", false},
		{map[string]string{"Provider": `"other"`}, `{"Provider":"acme"}`, "", false},
		{map[string]string{"provider": `"acme"`}, `{"Provider":"other"}`, "", true},
		{nil, `{"provider":"acme"}`, `resource.spec.size == "big"`, false},
		{nil, `{"provider":"acme","size":"big"}`, `resource.spec.size == "big" // that is all`, true},
		{nil, `{"provider":"other"}`, `resource.spec.size == "big"`, false},
	} {
		expr := ForProvider("acme", c.when)
		require.NoError(t, Compile(expr), expr)
		got, err := e.Eval(expr, []byte(c.spec), &resource.State{Attributes: c.attributes})
		if c.when == `resource.spec.size == "big"` && c.spec == `{"provider":"acme"}` {
			require.ErrorContains(t, err, "no such key: size")
			continue
		}
		require.NoError(t, err, "%+v", c)
		require.Equal(t, c.want, got, "%+v", c)
	}
}

func TestEmptyResource(t *testing.T) {
	t.Parallel()
	e := NewEvaluator()
	for _, expr := range []string{
		`has(resource.spec.size)`, `has(resource.labels.a)`, `has(resource.attributes.a)`, `resource.wasDeployed`,
		`"x" in resource.labels`,
	} {
		got, err := e.Eval(expr, nil, &resource.State{})
		require.NoError(t, err, expr)
		require.False(t, got, expr)
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		``:                   "does not compile",
		`resource.`:          "line 1, column",
		`resource.nme == ""`: "undefined field 'nme'",
		`nothing`:            "undeclared reference to 'nothing'",
		`now() > 1`:          "undeclared reference to 'now'",
		`timestamp("2026-01-01T00:00:00Z") > null`: "undeclared reference to 'timestamp'",
		`1 + 1`:         "is int, and must be true or false",
		`resource.name`: "is string, and must be true or false",
		`resource`:      "is drover.Resource, and must be true or false",
		strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200): "does not compile",
		strings.Repeat("!", 5000) + "true":                           "is longer than 4096 bytes",
	} {
		err := Compile(expr)
		require.ErrorContains(t, err, want, expr)
		require.NotContains(t, err.Error(), "\n")
		_, err = NewEvaluator().Eval(expr, nil, &state)
		require.ErrorContains(t, err, want, expr)
	}
}

func TestEvalRefuses(t *testing.T) {
	t.Parallel()
	e := NewEvaluator()
	for _, c := range []struct{ expr, spec, want string }{
		{`resource.spec.color == "red"`, spec, "no such key: color"},
		{`resource.spec.size`, spec, "is string, and must be true or false"},
		{`resource.spec.count + 0.5 > 1.0`, spec, "no such overload"},
		{`resource.spec.a`, `{"a":`, "spec: unexpected EOF"},
		{`resource.spec.count / 0 == 1`, spec, "division by zero"},
	} {
		_, err := e.Eval(c.expr, []byte(c.spec), &state)
		require.ErrorContains(t, err, c.want, c.expr)
		require.ErrorContains(t, err, c.expr)
	}
}

func TestCostLimit(t *testing.T) {
	t.Parallel()
	var items []string
	for i := range 1000 {
		items = append(items, fmt.Sprint(i))
	}
	spec := []byte(`{"l":[` + strings.Join(items, ",") + `]}`)
	e := NewEvaluator()
	got, err := e.Eval(`resource.spec.l.all(a, a >= 0)`, spec, &state)
	require.NoError(t, err)
	require.True(t, got)
	_, err = e.Eval(`resource.spec.l.all(a, resource.spec.l.all(b, a + b >= 0))`, spec, &state)
	require.ErrorIs(t, err, ErrCost)
}

func TestCacheIsBoundedAndShared(t *testing.T) {
	t.Parallel()
	e := NewEvaluator()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 50 {
				s := state
				s.Name = fmt.Sprint("n", g)
				got, err := e.Eval(fmt.Sprintf("resource.name == 'n%d' && %d == %d", g, i%10, i%10), []byte(spec), &s)
				if err != nil || !got {
					t.Errorf("%v %v", got, err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 40, e.programs.Len())
}

func FuzzCompile(f *testing.F) {
	f.Add(`has(resource.spec.size)`)
	f.Add(`resource.spec.l.all(a, a in resource.labels)`)
	f.Fuzz(func(t *testing.T, expr string) {
		e := NewEvaluator()
		first, err1 := e.Eval(expr, []byte(spec), &state)
		second, err2 := e.Eval(expr, []byte(spec), &state)
		if first != second || (err1 == nil) != (err2 == nil) {
			t.Fatalf("two answers: %v %v, %v %v", first, err1, second, err2)
		}
		if Compile(expr) != nil && err1 == nil {
			t.Fatal("what does not compile was evaluated")
		}
	})
}

func BenchmarkEval(b *testing.B) {
	e := NewEvaluator()
	for b.Loop() {
		if _, err := e.Eval(`has(resource.spec.size) && resource.spec.size == "small"`, []byte(spec), &state); err != nil {
			b.Fatal(err)
		}
	}
}
