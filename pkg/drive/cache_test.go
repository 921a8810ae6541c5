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

// TestAGoneResourceStaysGone (simulator, seed 31957408701017): a follower that is behind shows a resource that is gone as one that
// lives, when it is not in memory any more. Its traces still go.
func TestAGoneResourceStaysGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.answers = true
	s := &shell{world: w}
	s.loop = drive.New(s, drive.Limits{CachedStates: 1})
	key := resource.Key{Project: "p", Kind: "node", Name: "a"}
	require.Nil(t, s.command("a", resource.VerbApply, "1").Refused)
	s.settle()
	before := w.states[key]
	w.lost = true // the answer to the deletion: what was stored is found, and nothing is removed for it yet
	deleted := func() { require.Nil(t, s.command("a", resource.VerbDelete, "2").Refused) }
	s.loop.Offer([]drive.Input{{Key: key, Input: resource.Input{Kind: resource.OnCommand, At: w.now, Command: &resource.Command{
		Key: key, Verb: resource.VerbDelete, RequestID: "2", JobID: "job-a-2", Digest: resource.VerbDelete,
	}}, Reply: func(resource.Reply) {}, Back: func(error) {}}})
	require.True(t, s.answer())
	w.lost = false
	require.True(t, w.states[key].State.Gone)
	deleted()
	s.settle()
	require.Nil(t, s.command("b", resource.VerbApply, "3").Refused) // a makes room
	s.settle()
	w.old = map[resource.Key]drive.Loaded{key: before}
	deleted()
	s.settle()
	require.Contains(t, w.states, key)
	s.loop.Sweep(w.now, func(string, string, resource.Key) bool { return true })
	s.settle()
	require.NotContains(t, w.states, key)
}
