package drive_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestLoopsShareACache: one Loop takes what the others leave, each keeps a few in any case, and gives back when it is over.
func TestLoopsShareACache(t *testing.T) {
	t.Parallel()
	cache := drive.NewCache(20)
	begin := func() *shell {
		w := newWorld(t, 1)
		w.answers = true
		s := w.start()
		s.loop = drive.New(s, drive.Limits{CachedStates: 4, Cache: cache})
		return s
	}
	fill := func(s *shell, from, n int) int {
		for i := range n {
			name := "n" + strconv.Itoa(from+i)
			s.command(name, resource.VerbApply, name)
			s.settle()
		}
		return s.loop.Stats().Lanes
	}
	idle := func(string, string, resource.Key) bool { return true }
	a, b := begin(), begin()
	require.Equal(t, 20, fill(a, 0, 30), "one takes all")
	require.Equal(t, 4, fill(b, 0, 10), "the other has a few in any case")
	a.loop.Sweep(a.now, idle)
	a.settle()
	require.Equal(t, 16, a.loop.Stats().Lanes, "who has more than that makes room with the next sweep")
	a.loop.Close()
	require.Equal(t, 20, fill(b, 10, 30), "what one gave back is the other's")
	b.loop.Close()
	c := begin()
	require.Equal(t, 20, fill(c, 0, 30), "nothing was lost on the way")
}
