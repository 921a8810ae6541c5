package host

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// The garbage collector's pace, in percent of the live heap, where neither GOGC nor GOMEMLIMIT is set. A service's live heap is
// mostly small (tens of MiB) and its garbage is large: at Go's own 100 a fifth of an orchestrator's CPU went into collecting it.
// An owner of 100,000 resources has a live heap of half a GiB, and a pace of 400 made that a process of 2.5 GiB. At 100 it was
// one of 1.2 GiB, and a third of its CPU went into collecting: garbageMax is between the two (docs/measurements.md).
const (
	gcPercentMost  = 400
	gcPercentLeast = 100
	// garbageMax is how many bytes of garbage may gather, or as many as are in use, where that is more.
	garbageMax = 1 << 30
)

// TuneCollector sets the garbage collector's pace of this process as Main does; for programs that run services without
// it. From then on the pace follows the size of the live heap.
func TuneCollector() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(gcPercentMost)
		followHeap(garbageMax, func(percent int) bool {
			debug.SetGCPercent(percent)
			return true
		})
	}
}

// gcPercentOf is the pace for a live heap of so many bytes, beside which so many may be garbage.
func gcPercentOf(live, garbage uint64) int {
	return int(min(max(garbage*100/max(live, 1), gcPercentLeast), gcPercentMost))
}

// followHeap tells set the pace after each collection that has changed it, until set returns false.
func followHeap(garbage uint64, set func(percent int) bool) {
	last := gcPercentMost
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	type collected struct{ _ *byte } // with a pointer: what has none and is small shares its memory with others, and is kept by them
	var again func(*collected)
	again = func(c *collected) { // each collection finds it unreachable, and it comes back for the next
		metrics.Read(sample)
		if percent := gcPercentOf(sample[0].Value.Uint64(), garbage); percent != last {
			last = percent
			if !set(percent) {
				return
			}
		}
		runtime.SetFinalizer(c, again)
	}
	runtime.SetFinalizer(new(collected), again)
}
