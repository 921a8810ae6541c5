package manifest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

func filled(t *testing.T, template, spec string) (string, error) {
	t.Helper()
	items, err := Items(&blueprint.Phase{Children: &blueprint.Children{Item: "i", Kind: "k", Template: template}}, []byte(spec))
	if err != nil {
		return "", err
	}
	require.Len(t, items, 1)
	require.Equal(t, []string{"i", "k"}, []string{items[0].Name, items[0].Kind})
	require.NotEmpty(t, items[0].SpecDigest)
	return items[0].Spec, nil
}

// TestManagedService: the spec of the one child is the template, with the parent's values in it.
func TestManagedService(t *testing.T) {
	t.Parallel()
	const spec = `{"vlan": 100, "big": 12345678901234567890, "sites": [{"name": "a"}, {"name": "b"}], "on": true, "none": null, "name": "x {{ resource.spec.vlan }}"}`
	for template, want := range map[string]string{
		`{}`:                                 `{}`,
		`{"v": "{{ resource.spec.vlan }}"}`:  `{"v":100}`,
		`{"v": "{{resource.spec.big}}"}`:     `{"v":12345678901234567890}`,
		`{"v": "{{ resource.spec.sites }}"}`: `{"v":[{"name":"a"},{"name":"b"}]}`,
		`{"v": ["{{ resource.spec.on }}", "{{ resource.spec.none }}", 1.0]}`:     `{"v":[true,null,1.0]}`,
		`{"v": "vpn-{{ resource.spec.vlan }}-{{ resource.spec.sites.1.name }}"}`: `{"v":"vpn-100-b"}`,
		`{"v": "{{ resource.spec.name }}"}`:                                      `{"v":"x {{ resource.spec.vlan }}"}`, // a value is never a template
		`{"v": "%} #} }} { {"}`:                                                  `{"v":"%} #} }} { {"}`,
		`{"all": "{{ resource.spec }}"}`:                                         `{"all":` + canonicalOf(t, spec) + `}`,
	} {
		got, err := filled(t, template, spec)
		require.NoError(t, err, template)
		require.Equal(t, canonicalOf(t, want), got, template)
		require.NoError(t, checkTemplate([]byte(template)))
	}
	for template, reason := range map[string]string{
		`{"v": "{{ resource.spec.vla }}"}`:                             "spec.vla is not in the spec",
		`{"v": "{{ resource.spec.sites.2.name }}"}`:                    "spec.sites.2 is not in the spec",
		`{"v": "{{ resource.spec.vlan.x }}"}`:                          "spec.vlan.x is not in the spec",
		`{"b": "{{ resource.spec.y }}", "a": "{{ resource.spec.x }}"}`: "a: spec.x is not in the spec", // the same each time
		`{"v": "a {{ resource.spec.sites }}"}`:                         "is no text, number or boolean",
	} {
		for range 4 {
			_, err := filled(t, template, spec)
			require.ErrorContains(t, err, reason, template)
		}
		require.NoError(t, checkTemplate([]byte(template)), "the parent's spec may come to hold it")
	}
	for template, reason := range map[string]string{
		`{"v": "{{ resource.name }}"}`:                              "only resource.spec",
		`{"v": "{{ resource.spec.a"}`:                               "not closed",
		`{"v": "{% if x %}"}`:                                       "no statements",
		`{"v": "{# no #}"}`:                                         "no statements",
		`{"v": "{{ resource.spec.a | tojson }}"}`:                   "no filters",
		`{"v": "{{ resource.spec.a() }}"}`:                          "no filters",
		`{"v": "{{ resource.spec..a }}"}`:                           "no filters",
		strings.Repeat(`{"v":`, 66) + `1` + strings.Repeat(`}`, 66): "nested deeper",
	} {
		require.ErrorContains(t, checkTemplate([]byte(template)), reason, template)
		_, err := filled(t, template, spec)
		require.Error(t, err)
	}
	// A small template does not become a large spec.
	large := `{"x": "` + strings.Repeat("x", 100<<10) + `"}`
	for _, each := range []string{`"{{ resource.spec.x }}"`, `" {{ resource.spec.x }}"`} {
		_, err := filled(t, `{"v": [`+strings.Repeat(each+", ", 8)+`1]}`, large)
		require.ErrorContains(t, err, "larger than")
	}
}

func canonicalOf(t *testing.T, text string) string {
	t.Helper()
	c, _, err := Canonical([]byte(text))
	require.NoError(t, err)
	return string(c)
}

func TestManagedServiceManifest(t *testing.T) {
	t.Parallel()
	for children, field := range map[string]string{
		`{"spec": {}}`:                                        "spec.phases[0].executor.children.kind",
		`{"kind": "k", "item": "i"}`:                          "spec.phases[0].executor.children.item",
		`{"kind": "k", "spec": {}, "items": "x"}`:             "spec.phases[0].executor.children.items",
		`{"kind": "k", "spec": {}, "item": "a/b"}`:            "spec.phases[0].executor.children.item",
		`{"kind": "k", "spec": {"v": "{{ resource.name }}"}}`: "spec.phases[0].executor.children.spec",
	} {
		_, wrong := Blueprint("p", "parent", []byte(`{"lifecycle": "service", "phases": [{"name": "a", "executor": {"children": `+children+`}}]}`))
		require.NotEmpty(t, wrong, children)
		require.Equal(t, field, wrong[0].Field, "%+v", wrong)
	}
	b, wrong := Blueprint("p", "parent", []byte(`{"lifecycle": "service", "phases": [{"name": "a", "executor": {"children": {"kind": "k", "spec": {"b": 1, "a": 2}}}}]}`))
	require.Empty(t, wrong)
	require.Equal(t, &blueprint.Children{Kind: "k", Item: "k", Template: `{"a":2,"b":1}`}, b.Phases[0].Children)
}

// TestExtAPI: what extApi says itself is not said beside it, and its answer is called back, of http alone.
func TestExtAPI(t *testing.T) {
	t.Parallel()
	const ext = `"extApi": {"ncaeBaseUrl": "http://d"}`
	for executor, field := range map[string]string{
		`{"http": {"url": "http://m", "body": "x", ` + ext + `}}`:                              "http.body",
		`{"http": {"url": "http://m", "method": "PUT", ` + ext + `}}`:                          "http.method",
		`{"http": {"url": "http://m", "poll": {"url": "http://m"}, ` + ext + `}}`:              "http.poll",
		`{"http": {"url": "http://m", "capture": {"data": {"a": ""}}, ` + ext + `}}`:           "http.capture",
		`{"http": {"url": "http://m", "expect": {"pending": [200]}, ` + ext + `}}`:             "http.expect.pending",
		`{"poll": {"url": "http://m", "expect": [200], ` + ext + `}}`:                          "poll.expect",
		`{"poll": {"url": "http://m", "method": "HEAD", ` + ext + `}}`:                         "poll.method",
		`{"http": {"url": "http://m", "extApi": {}}}`:                                          "http.extApi.ncaeBaseUrl",
		`{"http": {"url": "http://m", "extApi": {"ncaeBaseUrl": "d"}}}`:                        "http.extApi.ncaeBaseUrl",
		`{"http": {"url": "http://m", "extApi": {"ncaeBaseUrl": "http://d", "data": "{{"}}}`:   "http.extApi.data",
		`{"http": {"url": "http://m", "extApi": {"ncaeBaseUrl": "http://d", "tenantId": -1}}}`: "http.extApi.tenantId",
	} {
		_, wrong := Blueprint("p", "k", []byte(`{"lifecycle": "service", "phases": [{"name": "a", "executor": `+executor+`}]}`))
		require.NotEmpty(t, wrong, executor)
		require.Equal(t, "spec.phases[0].executor."+field, wrong[0].Field, "%+v", wrong)
	}
	b, wrong := Blueprint("p", "k", []byte(module))
	require.Empty(t, wrong)
	require.True(t, b.Phases[0].CallsBack(false) && b.Phases[0].CallsBack(true))
	require.False(t, b.Phases[1].CallsBack(false) || b.Phases[1].CallsBack(true), "a poll is answered at once")
	h, err := DecodeHTTP(b.Phases[0].Undo.Config)
	require.NoError(t, err)
	require.Equal(t, 3, h.ExtAPI.TenantID)
	p, err := DecodePoll(b.Phases[1].Executor.Config)
	require.NoError(t, err)
	require.Equal(t, TenantIDDefault, p.ExtAPI.TenantID)
}

// FuzzTemplate: whatever the template, filling it in is a function, and what comes out is JSON within the limit.
func FuzzTemplate(f *testing.F) {
	f.Add(`{"v": "{{ resource.spec.vlan }}"}`, `{"vlan": 1}`)
	f.Add(`{"v": "a {{resource.spec.a.0}} b {{ resource.spec }}"}`, `{"a": ["x"]}`)
	f.Fuzz(func(t *testing.T, template, spec string) {
		if !json.Valid([]byte(template)) || !json.Valid([]byte(spec)) {
			return
		}
		ph := &blueprint.Phase{Children: &blueprint.Children{Item: "i", Kind: "k", Template: template}}
		items, err := Items(ph, []byte(spec))
		again, errAgain := Items(ph, []byte(spec))
		require.Equal(t, fmt.Sprint(err), fmt.Sprint(errAgain))
		require.Equal(t, items, again)
		if err == nil {
			require.NoError(t, checkTemplate([]byte(template)))
			require.True(t, json.Valid([]byte(items[0].Spec)))
			require.LessOrEqual(t, len(items[0].Spec), resource.SpecBytesMax)
		}
	})
}
