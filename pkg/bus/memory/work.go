package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// dedupeWindow is how long a poll's key is remembered.
const dedupeWindow = 2 * time.Minute

// EnsurePhase implements bus.Work.
func (c *Conn) EnsurePhase(_ context.Context, p bus.Phase) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phases[p.Consumer()] = struct{}{}
	return c.alive()
}

// RemovePhase implements bus.Work.
func (c *Conn) RemovePhase(_ context.Context, p bus.Phase) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.phases, p.Consumer())
	q := s.work.queue(p.WorkSubject())
	for _, i := range slices.Collect(maps.Values(q.items)) {
		q.drop(i)
	}
	for _, w := range q.waiters { // they find that the phase is gone
		close(w)
	}
	q.waiters = nil
	return c.alive()
}

// puller implements bus.Puller.
type puller struct {
	c     *Conn
	phase bus.Phase
}

// Pull implements bus.Work.
func (c *Conn) Pull(_ context.Context, p bus.Phase) (bus.Puller, error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return &puller{c: c, phase: p}, s.bound(p)
}

// bound says whether a phase has its consumer. The lock must be held.
func (s *System) bound(p bus.Phase) error {
	if _, ok := s.phases[p.Consumer()]; !ok {
		return fmt.Errorf("consumer of phase %s: %w", p.Consumer(), bus.ErrNotFound)
	}
	return nil
}

// AckWait implements bus.Puller.
func (p *puller) AckWait() time.Duration { return p.c.s.options.WorkAckWait }

// Close implements bus.Puller.
func (p *puller) Close() {}

// Fetch implements bus.Puller. With no wait it returns at once.
func (p *puller) Fetch(ctx context.Context, most, mostBytes int, wait time.Duration) ([]bus.Delivery, error) {
	s := p.c.s
	mostBytes = min(max(mostBytes, bus.FetchBytesMin), bus.FetchBytesMax)
	end := make(chan struct{})
	if wait > 0 {
		stop := s.clock.AfterFunc(wait, func() { close(end) })
		defer stop()
	} else {
		close(end)
	}
	for {
		if err := p.c.alive(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if err := s.bound(p.phase); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		q := s.work.queue(p.phase.WorkSubject())
		var got []bus.Delivery
		for left := mostBytes; len(q.ready) > 0 && len(got) < max(most, 1); {
			if left -= q.ready[0].bytes(); left < 0 {
				break
			}
			got = append(got, q.take())
		}
		if len(got) > 0 {
			s.mu.Unlock()
			return got, nil
		}
		woken := make(chan struct{})
		if wait > 0 {
			q.waiters = append(q.waiters, woken)
		}
		s.mu.Unlock()
		select {
		case <-woken:
			continue
		case <-end:
		case <-ctx.Done():
		case <-p.c.done:
		}
		s.mu.Lock()
		q.waiters = remove(q.waiters, woken)
		s.mu.Unlock()
		select {
		case <-p.c.done:
			return nil, bus.ErrClosed
		default:
			return nil, ctx.Err()
		}
	}
}

// PublishPoll implements bus.Work.
func (c *Conn) PublishPoll(_ context.Context, p bus.Phase, key string, body []byte) error {
	if err := c.alive(); err != nil {
		return err
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	maps.DeleteFunc(s.polls, func(_ string, used time.Time) bool { return now.Sub(used) > dedupeWindow })
	id := p.Consumer() + "/" + key
	if _, ok := s.polls[id]; ok {
		return nil
	}
	s.polls[id] = now
	s.work.queue(p.WorkSubject()).put(p.WorkSubject(), map[string]string{bus.HeaderPoll: key}, body)
	return nil
}

// Outstanding implements bus.Work.
func (c *Conn) Outstanding(_ context.Context, p bus.Phase) (uint64, bool, error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return uint64(len(s.work.queue(p.WorkSubject()).items)), len(s.handed.waiting) == 0, c.alive()
}
