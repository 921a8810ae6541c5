package listeners

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/services/notifier/internal/notice"
)

// Limits.
const (
	ListenersMax  = 1024                  // listeners of a system; those above it are not served
	QueueMax      = 4096                  // events that wait for one listener
	CallsMax      = 64                    // calls under way, all listeners together
	AttemptsMax   = 4                     // calls of one message
	GroupFor      = 50 * time.Millisecond // events of this span become one message
	BackoffMin    = 250 * time.Millisecond
	BackoffMax    = 4 * time.Second
	DrainTimeout  = 3 * time.Second // for what is queued when the service stops
	eventsPerTake = notice.ResourcesMax
)

// Sender delivers one message once.
type Sender interface {
	// Send returns nil when the message was delivered. Permanent tells errors that no repetition will mend.
	Send(ctx context.Context, key resource.Key, s listener.Spec, m *notice.Message) error
	Permanent(err error) bool
}

// transition is what a listener may listen to.
type transition struct{ project, kind, state string }

// Roster is the listeners that are served. Safe for concurrent use. Make one with NewRoster, and Close it.
type Roster struct {
	sender  Sender
	log     *zap.Logger
	metrics *Metrics
	calls   *semaphore.Weighted

	// ctx ends the workers; drain ends what they still send after that.
	ctx, drain             context.Context
	stop, abandon          context.CancelFunc
	workers                sync.WaitGroup
	mu                     sync.RWMutex
	byKey                  map[resource.Key]*worker
	byTransition           map[transition][]*worker
	closed, tooManyWasTold bool
}

// NewRoster returns an empty one.
func NewRoster(sender Sender, log *zap.Logger, m *Metrics) *Roster {
	r := &Roster{
		sender: sender, log: log, metrics: m, calls: semaphore.NewWeighted(CallsMax),
		byKey: map[resource.Key]*worker{}, byTransition: map[transition][]*worker{},
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.drain, r.abandon = context.WithCancel(context.Background())
	return r
}

// Set adds a listener or changes it. It is told of its own project, whichever its spec says. What waits for it stays.
func (r *Roster) Set(key resource.Key, s listener.Spec) {
	s.Project = key.Project
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	w, ok := r.byKey[key]
	switch {
	case ok:
		w.spec.Store(&s)
	case len(r.byKey) >= ListenersMax:
		r.metrics.Ignored.Inc()
		if !r.tooManyWasTold {
			r.tooManyWasTold = true
			r.log.Warn("more listeners than are served; the others are ignored", zap.Int("limit", ListenersMax), zap.Stringer("first", key))
		}
		return
	default:
		w = newWorker(r, key, s)
		r.byKey[key] = w
		r.workers.Go(w.run)
	}
	r.index()
}

// Remove ends a listener. What waits for it is dropped.
func (r *Roster) Remove(key resource.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, ok := r.byKey[key]
	if !ok {
		return
	}
	delete(r.byKey, key)
	w.remove()
	r.index()
}

// index rebuilds who listens to what. Listeners change seldom; there are at most ListenersMax.
func (r *Roster) index() {
	r.byTransition = make(map[transition][]*worker, len(r.byTransition))
	for _, w := range r.byKey {
		s := w.spec.Load()
		for _, kind := range s.Kinds {
			for _, state := range s.States {
				t := transition{s.Project, kind, state}
				r.byTransition[t] = append(r.byTransition[t], w)
			}
		}
	}
	r.metrics.Listeners.Set(float64(len(r.byKey)))
}

// Listened reports whether anybody listens to a transition into this state.
func (r *Roster) Listened(project, kind, state string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.byTransition[transition{project, kind, state}]) > 0
}

// Offer hands an event to everybody who listens to it. It never blocks.
func (r *Roster) Offer(e notice.Event) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, w := range r.byTransition[transition{e.Project, e.Kind, e.State}] {
		w.offer(e)
	}
}

// Keys lists the listeners that are served, sorted.
func (r *Roster) Keys() []resource.Key {
	r.mu.RLock()
	defer r.mu.RUnlock()
	keys := make([]resource.Key, 0, len(r.byKey))
	for key := range r.byKey {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b resource.Key) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

// Close sends what is queued, each message once, for at most DrainTimeout, and returns when nothing is under way.
func (r *Roster) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	late := time.AfterFunc(DrainTimeout, r.abandon)
	defer late.Stop()
	r.workers.Wait()
	r.abandon()
}
