package listeners

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/pkg/wire"
)

// ErrWatchEnded means that a bucket can no longer be followed.
var ErrWatchEnded = errors.New("the watch of the listeners ended")

// Watcher keeps a roster as the buckets say. Only Run's goroutine uses it.
type Watcher struct {
	roster  *Roster
	log     *zap.Logger
	metrics *Metrics

	wanted  map[resource.Key]string // digest of the spec that each listener has now
	specs   map[resource.Key]version
	invalid map[resource.Key]string // why
}

// version is a spec as it last arrived, which may be before or after the resource that has it.
type version struct {
	digest  string
	spec    listener.Spec
	invalid string // why it cannot be acted upon; empty: it can
}

// NewWatcher returns a Watcher of a roster.
func NewWatcher(r *Roster, log *zap.Logger, m *Metrics) *Watcher {
	return &Watcher{
		roster: r, log: log, metrics: m,
		wanted: map[resource.Key]string{}, specs: map[resource.Key]version{}, invalid: map[resource.Key]string{},
	}
}

// Run follows both buckets, narrowed to the kind Listener, until ctx ends. It calls loaded once, when the roster holds
// what is there already.
func (w *Watcher) Run(ctx context.Context, resources, specs bus.Watch, loaded func()) error {
	missing := 2 // buckets whose present entries have not all arrived
	for {
		var s bus.Stored
		var ok bool
		var apply func(bus.Stored)
		select {
		case <-ctx.Done():
			return nil
		case s, ok = <-resources.C():
			apply = w.resource
		case s, ok = <-specs.C():
			apply = w.spec
		}
		switch {
		case !ok:
			if ctx.Err() == nil {
				return ErrWatchEnded
			}
			return nil
		case s.Entity.Family == "":
			if missing--; missing == 0 {
				loaded()
			}
		default:
			apply(s)
		}
	}
}

func keyOf(e bus.Entity) resource.Key {
	return resource.Key{Project: e.Project, Kind: e.Kind, Name: e.Name}
}

func (w *Watcher) resource(s bus.Stored) {
	key := keyOf(s.Entity)
	if s.Deleted {
		w.gone(key)
		return
	}
	event, err := wire.DecodeResource(s.Body)
	if err != nil {
		w.reject(key, err.Error())
		return
	}
	if event.State.Gone {
		w.gone(key)
		return
	}
	w.wanted[key] = event.State.SpecDigest
	w.join(key)
}

func (w *Watcher) spec(s bus.Stored) {
	key := keyOf(s.Entity)
	if s.Deleted {
		delete(w.specs, key)
		return
	}
	event, err := wire.DecodeSpec(s.Body)
	if err != nil {
		w.reject(key, err.Error())
		return
	}
	v := version{digest: event.Digest}
	spec, found := listener.Decode([]byte(event.JSON))
	if len(found) > 0 {
		v.invalid = found[0].Field + ": " + found[0].Reason
	} else if spec.Project != "" && spec.Project != key.Project {
		// Who may write in one project alone would be told of all others, where it is not told anything by the bus.
		v.invalid = "spec.project: a listener is told of its own project only"
	}
	v.spec = spec
	w.specs[key] = v
	w.join(key)
}

// join puts a listener into the roster once its resource and its spec agree.
func (w *Watcher) join(key resource.Key) {
	digest, ok := w.wanted[key]
	have := w.specs[key]
	if !ok || have.digest != digest {
		return
	}
	if have.invalid != "" {
		w.reject(key, have.invalid)
		return
	}
	w.accept(key)
	w.roster.Set(key, have.spec)
	w.log.Debug("listener is served", zap.Stringer("listener", key))
}

func (w *Watcher) gone(key resource.Key) {
	delete(w.wanted, key)
	w.accept(key)
	w.roster.Remove(key)
}

// reject has a listener served no longer. What it was before is not what it is now. A reason is told once: a listener's
// resource and its spec come by themselves, and again.
func (w *Watcher) reject(key resource.Key, reason string) {
	w.roster.Remove(key)
	told := w.invalid[key] == reason
	w.invalid[key] = reason
	w.metrics.Invalid.Set(float64(len(w.invalid)))
	if told {
		return
	}
	w.log.Warn("listener cannot be served", zap.Stringer("listener", key), zap.String("reason", reason))
}

func (w *Watcher) accept(key resource.Key) {
	delete(w.invalid, key)
	w.metrics.Invalid.Set(float64(len(w.invalid)))
}
