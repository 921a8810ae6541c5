package bus

import (
	"hash/fnv"
	"strconv"
)

// Share is the partitions of 0 to n-1 that a member serves among members, by rendezvous hashing (highest random
// weight): each partition goes to the member with the highest weight for it, so that a member that joins or leaves
// moves only its own share. Members must be distinct; nil if id is not among them. It is pure: all who know the same
// members agree, in whatever order they list them.
func Share(n int, id string, members []string) []int {
	var mine []int
	for partition := range n {
		if owner(partition, members) == id && len(members) > 0 {
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
