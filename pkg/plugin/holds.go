package plugin

import (
	"sync"
	"time"
)

// holds are a worker's rights to call one phase of several kinds, in the order of the kinds.
//
// # Deadlock
//
// A call needs all of them, and each is given by another owner, so two workers could wait for each other. They do not: who
// waits for a kind holds none that comes after it. A kind is asked for once all before it are held or absent; who then finds
// an earlier one in other hands (a blueprint has come, an owner was away) gives the later ones up as soon as no call is out.
type holds struct {
	all  []*hold
	bell *bell // rings when one is granted, lost or refused
}

// add puts a hold behind the others.
func (hs *holds) add(h *hold) *hold {
	if n := len(hs.all); n > 0 {
		h.before = hs.all[n-1]
		h.before.after = h
	}
	h.bell = hs.bell
	hs.all = append(hs.all, h)
	return h
}

// ready reports whether the phase may be called: every kind that has it is held, and one has it.
func (hs *holds) ready() bool {
	some := false
	for _, h := range hs.all {
		held, s := h.how()
		if !held && s != absent {
			return false
		}
		some = some || held
	}
	return some
}

// alone reports whether a kind that is held allows a limited number of calls.
func (hs *holds) alone() bool {
	for _, h := range hs.all {
		h.mu.Lock()
		limited := h.calls > 0 && time.Now().Before(h.until)
		h.mu.Unlock()
		if limited {
			return true
		}
	}
	return false
}

// begin reports whether the phase may be called, and if so keeps what is held from being given up until end.
func (hs *holds) begin() bool {
	hs.call()
	if hs.ready() {
		return true
	}
	hs.end()
	return false
}

// call keeps what is held from being given up until end.
func (hs *holds) call() { hs.count(1) }

func (hs *holds) end() { hs.count(-1) }

func (hs *holds) count(n int) {
	for _, h := range hs.all {
		h.mu.Lock()
		h.calling += n
		h.mu.Unlock()
	}
}

// began counts a call for each kind that has a resource in it.
func (hs *holds) began(rs []*Resource) {
	for h, n := range perHold(rs) {
		h.began(n)
	}
}

// exceeded counts a call that has passed its limit, likewise.
func (hs *holds) exceeded(rs []*Resource) {
	for h := range perHold(rs) {
		h.exceeded()
	}
}

func perHold(rs []*Resource) map[*hold]int {
	resources := map[*hold]int{}
	for _, r := range rs {
		resources[r.line.hold]++
	}
	return resources
}

// bell wakes all who listen. Safe for concurrent use.
type bell struct {
	mu   sync.Mutex
	next chan struct{}
}

func newBell() *bell { return &bell{next: make(chan struct{})} }

// heard is closed when it rings next.
func (b *bell) heard() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.next)
	b.next = make(chan struct{})
}
