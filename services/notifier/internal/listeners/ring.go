package listeners

import "github.com/droverproject/drover/services/notifier/internal/notice"

// ring is a queue of at most QueueMax events; a full one gives up its oldest. Its zero value is empty.
type ring struct {
	events []notice.Event
	head   int // index of the oldest
	n      int
}

// push reports whether the oldest was dropped.
func (r *ring) push(e notice.Event) (dropped bool) {
	if r.n == QueueMax {
		r.events[r.head] = e
		r.head = (r.head + 1) % QueueMax
		return true
	}
	if r.n == len(r.events) {
		grown := make([]notice.Event, min(max(16, 2*r.n), QueueMax))
		r.copyTo(grown)
		r.events, r.head = grown, 0
	}
	r.events[(r.head+r.n)%len(r.events)] = e
	r.n++
	return false
}

// take removes up to most events, the oldest first. An empty ring keeps no memory.
func (r *ring) take(most int) []notice.Event {
	taken := make([]notice.Event, min(most, r.n))
	r.copyTo(taken)
	r.n -= len(taken)
	if r.n == 0 {
		*r = ring{}
		return taken
	}
	r.head = (r.head + len(taken)) % len(r.events)
	return taken
}

func (r *ring) copyTo(to []notice.Event) {
	for i := range min(len(to), r.n) {
		to[i] = r.events[(r.head+i)%len(r.events)]
	}
}
