package selector_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/selector"
)

func TestMatches(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"rack": "a", "size": "small", "drover/os": "linux", "empty": ""}
	for text, want := range map[string]bool{
		"":                            true,
		"rack=a":                      true,
		"rack==a":                     true,
		" rack = a , size = small ":   true,
		"rack=b":                      false,
		"rack!=b":                     true,
		"rack!=a":                     false,
		"row!=a":                      true, // as in kubectl: no such label is not that value
		"rack":                        true,
		"row":                         false,
		"!row":                        true,
		"!rack":                       false,
		"empty=":                      true,
		"drover/os=linux":             true,
		"rack in (a, b)":              true,
		"rack in (b,c),size=small":    false,
		"rack notin (b, c)":           true,
		"row notin (a)":               true,
		"rack in (a),size in (small)": true,
	} {
		s, err := selector.Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, s.Matches(labels), text)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{",", "a=b,", "=a", "a=b=c", "a in b", "a in (b", "a) b", "a within (b)", "a b", "!", "a in (b) c", "a in ((b))"} {
		_, err := selector.Parse(text)
		require.Error(t, err, text)
		require.ErrorContains(t, err, "selector", text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a in (b,c),!d,e=f")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := selector.Parse(text)
		if err != nil {
			require.True(t, s.Empty())
			return
		}
		s.Matches(map[string]string{"a": "b"})
	})
}
