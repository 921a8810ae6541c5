package drive

import (
	"container/heap"
	"time"
)

// dueTimes is a heap of the times at which resources or aggregates ask for a step. One may stand in it more than once: a
// timer that is out of date does nothing (promise 4).
type dueTimes[K any] []dueTime[K]

type dueTime[K any] struct {
	at  time.Time
	key K
}

func (d dueTimes[K]) Len() int           { return len(d) }
func (d dueTimes[K]) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d dueTimes[K]) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push implements heap.Interface.
func (d *dueTimes[K]) Push(x any) { *d = append(*d, x.(dueTime[K])) }

// Pop implements heap.Interface.
func (d *dueTimes[K]) Pop() any {
	old := *d
	last := old[len(old)-1]
	old[len(old)-1] = dueTime[K]{}
	*d = old[:len(old)-1]
	return last
}

func (d *dueTimes[K]) add(at time.Time, key K) {
	if !at.IsZero() {
		heap.Push(d, dueTime[K]{at, key})
	}
}

// past takes the next key whose time has come.
func (d *dueTimes[K]) past(now time.Time) (key K, ok bool) {
	if len(*d) == 0 || (*d)[0].at.After(now) {
		return key, false
	}
	return heap.Pop(d).(dueTime[K]).key, true
}

// next is the earliest time; zero if there is none.
func (d dueTimes[K]) next() time.Time {
	if len(d) == 0 {
		return time.Time{}
	}
	return d[0].at
}
