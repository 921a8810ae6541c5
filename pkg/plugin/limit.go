package plugin

import (
	"context"
	"sync"
)

// Limit bounds how many resources are in calls at once, over all Serves that share it. Safe for concurrent use.
type Limit struct {
	most int

	mu      sync.Mutex
	used    int
	changed chan struct{} // closed, and replaced, when something was released
}

// NewLimit returns a Limit of most resources, at least 1.
func NewLimit(most int) *Limit {
	return &Limit{most: max(most, 1), changed: make(chan struct{})}
}

// free waits until at least one more resource may begin, and says how many may. It reserves nothing: several Serves
// share the limit, and one that reserved room while no work is there would keep the others from theirs.
func (l *Limit) free(ctx context.Context) (int, error) {
	if l == nil {
		return BatchMax * ConcurrencyMax, nil
	}
	for {
		l.mu.Lock()
		n, changed := l.most-l.used, l.changed
		l.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// acquire waits for room for n resources, at most the whole limit.
func (l *Limit) acquire(ctx context.Context, n int) error {
	if l == nil {
		return nil
	}
	for {
		l.mu.Lock()
		fits, changed := l.used+n <= l.most, l.changed
		if fits {
			l.used += n
		}
		l.mu.Unlock()
		if fits {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// setMost changes how many there may be; what is out stays out.
func (l *Limit) setMost(most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.most == most {
		return
	}
	l.most = most
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Limit) release(n int) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used -= n
	close(l.changed)
	l.changed = make(chan struct{})
}
