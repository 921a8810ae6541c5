package rebar

import "sync"

// Limits of what is kept in memory; up to twice as many stand there.
const (
	runsMax      = 10_000   // runs, by id: whose they are
	specsMax     = 256      // specs of definitions, by digest
	specBytesMax = 64 << 10 // of each; a larger one is read each time
)

// memo remembers what never changes: it can be dropped at any time, and is never out of date. Safe for concurrent use.
type memo struct {
	most     int
	mu       sync.Mutex
	now, old map[string]string
}

func newMemo(most int) *memo {
	return &memo{most: most, now: map[string]string{}, old: map[string]string{}}
}

func (m *memo) put(key, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.now) >= m.most {
		m.old, m.now = m.now, map[string]string{}
	}
	m.now[key] = value
}

func (m *memo) get(key string) (value string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if value, ok = m.now[key]; !ok {
		value, ok = m.old[key]
	}
	return value, ok
}
