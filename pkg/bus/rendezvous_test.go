package bus_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/droverproject/drover/pkg/bus"
)

// owners is who serves each partition; it fails if that is not exactly one.
func owners(t require.TestingT, n int, members []string) []string {
	by := make([]string, n)
	for _, m := range members {
		for _, p := range bus.Share(n, m, members) {
			require.Empty(t, by[p], "partition %d has two owners", p)
			by[p] = m
		}
	}
	for p, m := range by {
		require.NotEmpty(t, m, "partition %d has no owner", p)
	}
	return by
}

func TestShareMovesOnlyWhatItMust(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 256).Draw(t, "partitions")
		members := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9.-]{1,12}`), 2, 12, rapid.ID[string]).Draw(t, "members")
		before := owners(t, n, members)
		require.Equal(t, before, owners(t, n, rapid.Permutation(members).Draw(t, "order")), "the order of members matters")
		// One leaves: only its partitions move. Read backwards: one joins, and takes only what becomes its own.
		leaver := members[rapid.IntRange(0, len(members)-1).Draw(t, "leaver")]
		after := owners(t, n, slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == leaver }))
		for p := range n {
			if before[p] != leaver {
				require.Equal(t, before[p], after[p], "partition %d moved from one who stayed", p)
			}
		}
		require.Nil(t, bus.Share(n, "NOBODY", members))
	})
}

// TestShareOf: whoever declines what, each partition has one owner, which declines it only if all do, and only what is
// declined by its owner moves.
func TestShareOf(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 64).Draw(t, "partitions")
		members := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9]{1,6}`), 1, 6, rapid.ID[string]).Draw(t, "members")
		declined := map[string][]int{}
		for _, m := range members {
			declined[m] = rapid.SliceOfDistinct(rapid.IntRange(0, n-1), rapid.ID[int]).Draw(t, m)
		}
		before, by := owners(t, n, members), make([]string, n)
		for _, m := range members {
			for _, p := range bus.ShareOf(n, m, members, declined) {
				require.Empty(t, by[p], "partition %d has two owners", p)
				by[p] = m
			}
		}
		for p := range n {
			able := slices.ContainsFunc(members, func(m string) bool { return !slices.Contains(declined[m], p) })
			require.NotEmpty(t, by[p], "partition %d has no owner", p)
			require.NotEqual(t, able, slices.Contains(declined[by[p]], p), "partition %d of %s", p, by[p])
			if !able || !slices.Contains(declined[before[p]], p) {
				require.Equal(t, before[p], by[p], "partition %d moved without need", p)
			}
		}
	})
}

func TestSharesAreEven(t *testing.T) {
	t.Parallel()
	for members := 2; members <= 8; members++ {
		ids := make([]string, members)
		for i := range ids {
			ids[i] = fmt.Sprintf("orchestrator-%d", i)
		}
		const n = 1024
		for _, id := range ids {
			share := len(bus.Share(n, id, ids))
			require.InDelta(t, n/members, share, float64(n/members)*0.35, "%s of %d members", id, members)
		}
	}
	require.Nil(t, bus.Share(64, "a", nil))
	require.Nil(t, bus.Share(64, "", nil))
}
