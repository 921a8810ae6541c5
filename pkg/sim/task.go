package sim

import (
	"iter"
	"slices"
	"time"
)

// task is what may block: a coroutine that runs only while the world waits for it to block again.
type task struct {
	p       *process
	next    func() (struct{}, bool)
	stop    func()
	yield   func(struct{}) bool
	parks   uint64 // number of the present wait
	waiting bool
	done    bool
}

// begin starts a task of a process. It first runs in an event of its own.
func (p *process) begin(f func()) *task {
	t := &task{p: p}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		f()
	})
	p.tasks = append(p.tasks, t)
	p.w.after(0, func() { t.resume(t.parks) })
	return t
}

// resume runs the task until it blocks or ends. It does nothing if the wait of this number is over.
func (t *task) resume(park uint64) {
	w := t.p.w
	switch {
	case t.p.dead, t.done, park != t.parks:
		return
	case w.now.Before(t.p.pausedUntil):
		w.after(t.p.pausedUntil.Sub(w.now), func() { t.resume(park) })
		return
	}
	t.parks++
	t.run(t.next)
}

func (t *task) run(next func() (struct{}, bool)) {
	w := t.p.w
	before := w.running
	w.running, t.waiting = t, false
	_, more := next()
	w.running = before
	if !more {
		t.done = true
		t.p.tasks = slices.DeleteFunc(t.p.tasks, func(x *task) bool { return x == t })
	}
}

// end ends the task: what it waits for returns false, now and ever after.
func (t *task) end() {
	if !t.done {
		t.run(func() (struct{}, bool) { t.stop(); return struct{}{}, false })
	}
}

// wait blocks until a wake, and returns false when the process has died.
func (t *task) wait() bool {
	if t.p.dead {
		return false
	}
	t.waiting = true
	return t.yield(struct{}{}) && !t.p.dead
}

// wake ends the present wait after a time, unless something else does before.
func (t *task) wake(after time.Duration) {
	park := t.parks
	t.p.w.after(after, func() { t.resume(park) })
}

// pause blocks the running task for a time; it returns false when the process has died. What runs in no task is not
// held up.
func (w *World) pause(d time.Duration) bool {
	t := w.running
	if t == nil {
		return true
	}
	if t.p.dead {
		return false
	}
	t.wake(d)
	return t.wait()
}
