package host

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThePaceOfTheCollector(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{
		0: 400, 1 << 20: 400, 256 << 20: 400, 512 << 20: 200, 1 << 30: 100, 4 << 30: 100,
	} {
		require.Equal(t, want, gcPercentOf(live, garbageMax), "%d bytes", live)
	}
}

// The pace is told after a collection in which it has changed: down with what is held, and up again without.
func TestThePaceFollowsTheHeap(t *testing.T) {
	t.Parallel()
	told := make(chan int)
	ended := make(chan struct{})
	const garbage = 64 << 20
	followHeap(garbage, func(percent int) bool {
		select {
		case told <- percent:
			return true
		case <-ended:
			return false
		}
	})
	defer close(ended)
	await := func(what string, reached func(percent int) bool) {
		t.Helper()
		for within := time.After(30 * time.Second); ; {
			runtime.GC()
			select {
			case percent := <-told:
				if reached(percent) {
					return
				}
			case <-within:
				require.Fail(t, what)
			case <-time.After(time.Millisecond):
			}
		}
	}
	held := make([]byte, garbage/2)
	await("down", func(percent int) bool { return percent <= 200 })
	runtime.KeepAlive(held)
	await("up", func(percent int) bool { return percent > 200 })
}
