package sim

import (
	"container/heap"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/droverproject/drover/pkg/bus/memory"
)

// World is one simulated house. It belongs to one goroutine.
type World struct {
	seed   uint64
	r      *rand.Rand
	now    time.Time
	events events
	order  uint64 // of events that were made
	count  int    // events that happened

	sys     *memory.System
	server  *memory.Conn // what reached the server acts through this one, whoever sent it and lives no more
	running *task
	poke    bool // something may be there to be received

	faults   faults
	calm     bool // no fault any more
	house    *house
	scenario *scenario
	check    *checker

	hash  uint64 // of the trace
	trace io.Writer
}

// violation ends a run.
type violation struct{ text string }

func (w *World) violate(format string, args ...any) {
	panic(violation{fmt.Sprintf(format, args...)})
}

// event is something that happens at a time.
type event struct {
	at    time.Time
	order uint64
	f     func() // nil: it was called off
}

type events []*event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if e[i].at.Equal(e[j].at) {
		return e[i].order < e[j].order
	}
	return e[i].at.Before(e[j].at)
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *events) Push(x any) { *e = append(*e, x.(*event)) }

// Pop implements heap.Interface.
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*e = old[:len(old)-1]
	return last
}

// after makes an event; it happens after those of the same time that were made before.
func (w *World) after(d time.Duration, f func()) *event {
	w.order++
	e := &event{at: w.now.Add(max(d, 0)), order: w.order, f: f}
	heap.Push(&w.events, e)
	return e
}

// step lets the next event happen. It returns false when there is none before end.
func (w *World) step(end time.Time) bool {
	for len(w.events) > 0 {
		e := w.events[0]
		if e.f == nil {
			heap.Pop(&w.events)
			continue
		}
		if e.at.After(end) {
			return false
		}
		heap.Pop(&w.events)
		w.now = e.at
		if w.count++; w.count > eventsMax {
			w.violate("%d events, and no end", eventsMax)
		}
		e.f()
		if w.poke {
			w.poke = false
			w.house.wake()
		}
		return true
	}
	return false
}

// eventsMax ends a world that runs in circles: most come to rest after some thousands.
const eventsMax = 500_000

// until lets everything happen up to a time.
func (w *World) until(end time.Time) {
	for w.step(end) {
		continue
	}
	if end.After(w.now) {
		w.now = end
	}
}

// Now implements memory.Clock: the server's time.
func (w *World) Now() time.Time { return w.now }

// AfterFunc implements memory.Clock.
func (w *World) AfterFunc(d time.Duration, f func()) func() {
	e := w.after(d, func() {
		f()
		w.poke = true
	})
	return func() { e.f = nil }
}

func (w *World) percent(p int) bool { return w.r.IntN(100) < p }

// fault draws a fault of a kind that this seed has.
func (w *World) fault(has bool, percent int) bool { return has && !w.calm && w.percent(percent) }

// up to is a duration below d.
func (w *World) upTo(d time.Duration) time.Duration { return time.Duration(w.r.Int64N(int64(d))) }

func pick[E any](w *World, of []E) E { return of[w.r.IntN(len(of))] }

// latency is how long a message is under way.
func (w *World) latency() time.Duration {
	d := 100*time.Microsecond + w.upTo(2*time.Millisecond)
	if w.faults.slow && !w.calm {
		switch n := w.r.IntN(100); {
		case n < 1:
			d += w.upTo(8 * time.Second)
		case n < 6:
			d += w.upTo(time.Second)
		}
	}
	return d
}

const prime = 1099511628211 // of FNV-1a, 64 bit

// mark adds to the trace: what happened to what, and a number.
func (w *World) mark(what, of string, n uint64) {
	h := w.hash
	for i := range len(what) {
		h = (h ^ uint64(what[i])) * prime
	}
	for i := range len(of) {
		h = (h ^ uint64(of[i])) * prime
	}
	h = (h ^ n) * prime
	w.hash = (h ^ uint64(w.now.UnixNano())) * prime
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%s %s %s %d\n", w.clockText(w.now), what, of, n)
	}
}

// say adds a line to the trace that people read; it draws nothing.
func (w *World) say(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%s   %s\n", w.clockText(w.now), fmt.Sprintf(format, args...))
	}
}

func (w *World) clockText(at time.Time) string {
	return fmt.Sprintf("%11.4fs", at.Sub(began).Seconds())
}

var began = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
