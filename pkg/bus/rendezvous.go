package bus

import (
	"hash/fnv"
	"slices"
	"strconv"
)

// Share is the partitions of 0 to n-1 that a member serves among members, by rendezvous hashing (highest random
// weight): each partition goes to the member with the highest weight for it, so that a member that joins or leaves
// moves only its own share. Members must be distinct; nil if id is not among them. It is pure: all who know the same
// members agree, in whatever order they list them.
func Share(n int, id string, members []string) []int {
	return ShareOf(n, id, members, nil)
}

// ShareOf is Share where members decline partitions that they cannot serve (Membership.Decline): those fall to the
// others. One that all of them decline is shared among all, so that somebody tries it again.
func ShareOf(n int, id string, members []string, declined map[string][]int) []int {
	var mine []int
	for partition := range n {
		able := members
		if len(declined) > 0 {
			able = slices.DeleteFunc(slices.Clone(members), func(m string) bool { return slices.Contains(declined[m], partition) })
		}
		if len(able) == 0 {
			able = members
		}
		if len(able) > 0 && owner(partition, able) == id {
			mine = append(mine, partition)
		}
	}
	return mine
}

// owner is the member with the highest weight; of equal weights the greater id, so that order does not matter.
func owner(partition int, members []string) string {
	best, bestWeight := "", uint64(0)
	for _, m := range members {
		if w := weight(partition, m); w > bestWeight || w == bestWeight && m > best {
			best, bestWeight = m, w
		}
	}
	return best
}

// weight is FNV-1a over partition and member, mixed so that near inputs do not give near weights.
func weight(partition int, member string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strconv.Itoa(partition) + "/" + member)) // a hash never fails
	w := h.Sum64()
	w = (w ^ w>>33) * 0xff51afd7ed558ccd
	w = (w ^ w>>33) * 0xc4ceb9fe1a85ec53
	return w ^ w>>33
}
