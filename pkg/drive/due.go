package drive

import (
	"container/heap"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
)

// dueTimes is a heap of the times at which resources ask for a step. A resource may stand in it more than once: a timer
// that is out of date does nothing (promise 4).
type dueTimes []dueTime

type dueTime struct {
	at  time.Time
	key resource.Key
}

func (d dueTimes) Len() int           { return len(d) }
func (d dueTimes) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d dueTimes) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push implements heap.Interface.
func (d *dueTimes) Push(x any) { *d = append(*d, x.(dueTime)) }

// Pop implements heap.Interface.
func (d *dueTimes) Pop() any {
	old := *d
	last := old[len(old)-1]
	old[len(old)-1] = dueTime{}
	*d = old[:len(old)-1]
	return last
}

func (d *dueTimes) add(at time.Time, key resource.Key) {
	if !at.IsZero() {
		heap.Push(d, dueTime{at, key})
	}
}

// past takes the next key whose time has come.
func (d *dueTimes) past(now time.Time) (resource.Key, bool) {
	if len(*d) == 0 || (*d)[0].at.After(now) {
		return resource.Key{}, false
	}
	return heap.Pop(d).(dueTime).key, true
}

// next is the earliest time; zero if there is none.
func (d dueTimes) next() time.Time {
	if len(d) == 0 {
		return time.Time{}
	}
	return d[0].at
}
