package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamedTargets(t *testing.T) {
	t.Parallel()
	for args, want := range map[string][]target{
		"node/a":           {{"node", "a"}},
		"node/a disk/b":    {{"node", "a"}, {"disk", "b"}},
		"node a b":         {{"node", "a"}, {"node", "b"}},
		"node/a node/a":    {{"node", "a"}},
		"node/a/b":         {{"node", "a/b"}},
		"Cloud.Node/web.1": {{"Cloud.Node", "web.1"}},
		"blueprint/node":   {{"Blueprint", "node"}},
		"blueprints node":  {{"Blueprint", "node"}},
		"node":             nil,
	} {
		got, err := namedTargets(strings.Fields(args))
		require.NoError(t, err, args)
		require.Equal(t, want, got, args)
	}
	for _, args := range [][]string{{"node/"}, {"/a"}, {"node/a", "b"}, {"node/a\n"}, {"node/" + strings.Repeat("a", 254)}, {"node", ""}, {""}} {
		_, err := namedTargets(args)
		require.Error(t, err, "%q", args)
		require.Equal(t, ExitUsage, codeOf(err), "%q", args)
	}
}

func TestNaturalOrder(t *testing.T) {
	t.Parallel()
	want := []string{"a", "a01", "a1", "a1b", "a2", "a10", "a10.b", "b", "web-1", "web-2", "web-10", "web-10-1"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, natural)
	require.Equal(t, want, got)
}

func FuzzNatural(f *testing.F) {
	f.Add("a01", "a1", "a1b")
	f.Fuzz(func(t *testing.T, x, y, z string) {
		require.Equal(t, natural(x, y), -natural(y, x))
		require.Equal(t, x == y, natural(x, y) == 0)
		if natural(x, y) < 0 && natural(y, z) < 0 {
			require.Negative(t, natural(x, z), "%q < %q < %q", x, y, z)
		}
	})
}
