package jetstream

import (
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// recent remembers the results that were stored last, to send them again when the server was lost and is back: on one
// server RESULTS is acknowledged before it is written, so that a server that is killed forgets its last milliseconds.
// Without it such a phase would stand until a sweep finds its work lost. What is sent twice is fenced. Safe for concurrent
// use.
type recent struct {
	mu    sync.Mutex
	sent  []recentResult // oldest first
	bytes int
	down  time.Time // when the connection was lost; zero: it stands
}

type recentResult struct {
	at time.Time
	m  *nats.Msg
}

const (
	// recentFor is how long before the loss of the connection a result must have been stored to be on the disk by then.
	// The server writes after some ten milliseconds.
	recentFor = 2 * time.Second
	// recentBytes limits the bodies that are remembered; the oldest go.
	recentBytes = 16 << 20
	// recentTry is how long it is tried to send them again; what is left is found by a sweep.
	recentTry = 30 * time.Second
)

func (r *recent) add(m *nats.Msg) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, recentResult{now, m})
	r.bytes += len(m.Data)
	old := 0
	for ; old < len(r.sent)-1 && (r.bytes > recentBytes || now.Sub(r.sent[old].at) > recentFor); old++ {
		r.bytes -= len(r.sent[old].m.Data)
		r.sent[old] = recentResult{}
	}
	r.sent = r.sent[old:]
}

func (r *recent) lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down.IsZero() {
		r.down = time.Now()
	}
}

// doubtful are the results that the server may have forgotten.
func (r *recent) doubtful() []*nats.Msg {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := r.down.Add(-recentFor)
	r.down = time.Time{}
	var all []*nats.Msg
	for _, s := range r.sent {
		if s.at.After(since) {
			all = append(all, s.m)
		}
	}
	return all
}

// sayAgain sends the doubtful results again, until each was stored or recentTry is over.
func (b *Bus) sayAgain() {
	todo := b.recent.doubtful()
	for end := time.Now().Add(recentTry); len(todo) > 0 && time.Now().Before(end); {
		sent := make([]*call, len(todo))
		for i, m := range todo {
			sent[i] = b.calls.sendSure(&nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, nil)
		}
		for _, c := range sent {
			<-c.done // the calls' own time is up one day
		}
		i := 0
		todo = slices.DeleteFunc(todo, func(*nats.Msg) bool { i++; return sent[i-1].err == nil })
		if len(todo) == 0 {
			return
		}
		select {
		case <-b.ctx.Done():
			return
		case <-time.After(apiPause):
		}
	}
}
