package host

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// The garbage collector's pace, in percent of the live heap, where neither GOGC nor GOMEMLIMIT is set. A service's live heap is
// mostly small (tens of MiB) and its garbage is large: at Go's own 100 a fifth of an orchestrator's CPU went into collecting it.
// An owner of 100,000 resources has a live heap of half a GiB, and a pace of 400 made that a process of 2.5 GiB; there the
// collector costs little at 100, since its garbage is as much as before.
const (
	gcPercentMost  = 400
	gcPercentLeast = 100
	// garbageMax is how many bytes of garbage may gather before the pace falls from the most towards the least.
	garbageMax = 256 << 20
)

// TuneCollector sets the garbage collector's pace of this process as Main does; for programs that run services without
// it. From then on the pace follows the size of the live heap.
func TuneCollector() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(gcPercentMost)
		followHeap(func(percent int) bool {
			debug.SetGCPercent(percent)
			return true
		})
	}
}

// gcPercentOf is the pace for a live heap of so many bytes.
func gcPercentOf(live uint64) int {
	return int(min(max(garbageMax*100/max(live, 1), gcPercentLeast), gcPercentMost))
}

// followHeap tells set the pace after each collection that has changed it, until set returns false.
func followHeap(set func(percent int) bool) {
	last := gcPercentMost
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	type collected struct{ _ *byte } // with a pointer: what has none and is small shares its memory with others, and is kept by them
	var again func(*collected)
	again = func(c *collected) { // each collection finds it unreachable, and it comes back for the next
		metrics.Read(sample)
		if percent := gcPercentOf(sample[0].Value.Uint64()); percent != last {
			last = percent
			if !set(percent) {
				return
			}
		}
		runtime.SetFinalizer(c, again)
	}
	runtime.SetFinalizer(new(collected), again)
}
