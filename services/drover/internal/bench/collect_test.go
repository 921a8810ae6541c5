package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFiguresOfCalls(t *testing.T) {
	t.Parallel()
	c := callsOf{sizes: []int{1, 1, 1, 100, 7, 90}, times: map[string]int{"a": 1, "b": 2}}
	require.Equal(t, CallFigure{Phase: "p", Calls: 6, Resources: 200, Largest: 100, Median: 100, Twice: 1}, c.figure("p"))
	c.sizes = append(c.sizes, 80) // 280: 100 and 90 bring half of them
	require.Equal(t, 90, c.figure("p").Median)
	require.Equal(t, CallFigure{Phase: "p"}, (&callsOf{}).figure("p"))
}
