package memory

import "time"

// trail is what follows from the log and is not there yet, in the log's order. The system's lock guards it.
type trail struct {
	waiting []func()
	until   time.Time // when the last of them is there
}

// derive runs f after a time, and after what went before it. The lock is held, and held again when f runs.
func (s *System) derive(t *trail, after time.Duration, f func()) {
	if after <= 0 && len(t.waiting) == 0 {
		f()
		return
	}
	now := s.clock.Now()
	if at := now.Add(after); at.After(t.until) {
		t.until = at
	}
	t.waiting = append(t.waiting, f)
	s.clock.AfterFunc(t.until.Sub(now), func() {
		s.mu.Lock()
		first := t.waiting[0]
		t.waiting = t.waiting[1:]
		first()
		s.mu.Unlock()
		s.run()
	})
}
