package drive

import "sync/atomic"

// CachedStatesAll is how many idle resources the Loops of one process keep in memory together, where they share a Cache: some
// 10 KB of resident memory each, of deploy items (docs/measurements.md: 60 MiB for 6,000), so 1.3 GB at the most.
const CachedStatesAll = 131_072

// Cache is what the Loops of one process share of its memory (Limits.Cache): one that is busy takes what others leave. A
// bound for each alone is too much for all of them and too little for one: a tree lives in one partition, and a walk over
// more items than are kept finds none of them there when it comes back (docs/measurements.md, "Trees").
//
// Safe for concurrent use. It holds no states, only their number; each Loop drops its own.
type Cache struct {
	most int64
	kept atomic.Int64
}

// NewCache returns one for so many states.
func NewCache(states int) *Cache { return &Cache{most: int64(states)} }

// keep counts n more states, or fewer.
func (c *Cache) keep(n int) {
	if c != nil {
		c.kept.Add(int64(n))
	}
}

// crowded reports whether a Loop that keeps n idle states must drop one.
func (l *Limits) crowded(n int) bool {
	return n > l.CachedStates && (l.Cache == nil || l.Cache.kept.Load() > l.Cache.most)
}

// trim forgets the idle resources that are over the limit, oldest first.
func (l *Loop) trim() {
	for l.limits.crowded(l.idle.Len()) {
		oldest := l.idle.Remove(l.idle.Front()).(*lane)
		l.limits.Cache.keep(-1)
		delete(l.lanes, oldest.key)
		if len(oldest.polls.of) > 0 {
			l.asleep[oldest.key] = oldest.polls // else every load would find its poll due again
		}
	}
}

// Close gives back what the Loop has of a shared Cache. It is called once, when the Loop is not used any more.
func (l *Loop) Close() { l.limits.Cache.keep(-l.idle.Len()) }
