// Package binding serves the phases whose executor is one of the runner's: it follows the blueprints, binds to the work
// of each such phase, and carries out calls with the executor that the pinned blueprint has for it, or for undoing it.
//
// A phase that leaves its blueprint is served until its consumer is gone: jobs that pinned an earlier blueprint still
// need it. A phase whose executor becomes another's (plugin) is left to that one at once; calls that are out end as they
// would have.
package binding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/runner/internal/executor"
	"github.com/droverproject/drover/services/runner/internal/request"
)

const (
	fetchWait   = 15 * time.Second // of one fetch of a phase; an idle phase costs four a minute
	checkEvery  = 2 * time.Second  // how soon a canceled call ends
	rewatchWait = time.Second      // after a watch was lost
	retryServe  = 30 * time.Second // after the server forbade to pull a phase
)

// Config is what a Binder needs.
type Config struct {
	Bus bus.Bus
	// Worker is what this runner calls itself towards others.
	Worker  string
	Log     *zap.Logger
	Metrics prometheus.Registerer
	// Concurrency is the most calls at the same time, for each executor.
	Concurrency int
	// StopGrace is how long calls may go on when the runner stops.
	StopGrace time.Duration
	// UnbindEvery is how often a phase without a blueprint is looked at.
	UnbindEvery time.Duration
}

// Binder serves phases. Make one with New; Run it once.
type Binder struct {
	Config
	catalog *catalog
	client  *request.Client
	metrics *metrics
	limits  map[string]*plugin.Limit // by executor
	loaded  atomic.Bool

	kinds  map[kindKey]map[string]*blueprint.Phase // phases of the runner's executors, by kind and name
	served map[bus.Phase]*served
	wg     sync.WaitGroup
}

type kindKey struct{ project, kind string }

type served struct {
	executor string
	drain    chan struct{} // closed: begin nothing more, and let calls end
	leaving  bool          // it is no longer in its blueprint
}

// New returns a Binder that serves nothing yet.
func New(c Config) (*Binder, error) {
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	client := request.NewClient()
	books, err := newCatalog(c.Bus, client)
	if err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	b := &Binder{
		Config: c, catalog: books, client: client, metrics: m, limits: map[string]*plugin.Limit{},
		kinds: map[kindKey]map[string]*blueprint.Phase{}, served: map[bus.Phase]*served{},
	}
	for _, kind := range Kinds() {
		b.limits[kind] = plugin.NewLimit(c.Concurrency)
	}
	return b, nil
}

// Ready is nil once all present blueprints are known.
func (b *Binder) Ready(context.Context) error {
	if !b.loaded.Load() {
		return errors.New("the blueprints are not loaded yet")
	}
	return nil
}

// Run follows the blueprints until ctx ends, and then waits for the calls that are out. It fails when the bus was
// closed.
func (b *Binder) Run(ctx context.Context) error {
	defer b.client.Close()
	defer b.wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	warned := false
	for {
		err := b.follow(ctx, cancel)
		if ctx.Err() != nil {
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				return cause
			}
			return nil
		}
		if errors.Is(err, bus.ErrClosed) {
			return err
		}
		if !warned {
			b.Log.Warn("blueprints cannot be followed; trying on", zap.Error(err))
			warned = true
		}
		select {
		case <-time.After(rewatchWait):
		case <-ctx.Done():
		}
	}
}

// follow applies the bucket's entries, the present ones first, until the watch is lost.
func (b *Binder) follow(ctx context.Context, fail context.CancelCauseFunc) error {
	watch, err := b.Bus.WatchBucket(ctx, bus.Blueprint, "", "", "")
	if err != nil {
		return err
	}
	defer watch.Close()
	unbind := time.NewTicker(b.UnbindEvery)
	defer unbind.Stop()
	seen := map[kindKey]bool{} // nil after the last present entry
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-unbind.C:
			b.unbind(ctx)
		case stored, ok := <-watch.C():
			switch {
			case !ok:
				return errors.New("the watch was closed")
			case stored.Entity.Family == "":
				for key := range maps.Clone(b.kinds) {
					if seen != nil && !seen[key] {
						b.apply(ctx, fail, key, nil)
					}
				}
				seen = nil
				b.loaded.Store(true)
				continue
			}
			key := kindKey{stored.Entity.Project, stored.Entity.Kind}
			phases, err := phasesOf(stored)
			if err != nil {
				b.Log.Error("a blueprint cannot be read; its phases stay as they are", host.Kind(key.kind),
					zap.String("project", key.project), zap.Error(err))
				phases = b.kinds[key]
			}
			if seen != nil {
				seen[key] = true
			}
			b.apply(ctx, fail, key, phases)
		}
	}
}

// phasesOf are the phases of a blueprint that are the runner's, by name.
func phasesOf(stored bus.Stored) (map[string]*blueprint.Phase, error) {
	if stored.Deleted {
		return nil, nil
	}
	event, err := wire.DecodeBlueprint(stored.Body)
	if err != nil || event.Gone {
		return nil, err
	}
	bp, violations := manifest.Blueprint(event.Project, event.Kind, []byte(event.JSON))
	if len(violations) > 0 {
		return nil, fmt.Errorf("%s: %s", violations[0].Field, violations[0].Reason)
	}
	phases := map[string]*blueprint.Phase{}
	for i := range bp.Phases {
		phases[bp.Phases[i].Name] = &bp.Phases[i]
	}
	return phases, nil
}

// apply makes what is served of a kind as its present phases say. All phases are given, the runner's and others'.
func (b *Binder) apply(ctx context.Context, fail context.CancelCauseFunc, key kindKey, phases map[string]*blueprint.Phase) {
	b.kinds[key] = phases
	if phases == nil {
		delete(b.kinds, key)
	}
	for p, s := range b.served {
		if p.Project != key.project || p.Kind != key.kind {
			continue
		}
		phase, there := phases[p.Phase]
		switch {
		case !there:
			s.leaving = true
		case phase.Executor.Kind != s.executor:
			b.stop(p, "its executor is now "+phase.Executor.Kind)
		default:
			s.leaving = false
		}
	}
	for name, phase := range phases {
		p := bus.Phase{Project: key.project, Kind: key.kind, Phase: name}
		if b.limits[phase.Executor.Kind] != nil && b.served[p] == nil {
			b.start(ctx, fail, p, phase)
		}
	}
}

// unbind stops serving phases that have left their blueprint and whose consumer is gone.
func (b *Binder) unbind(ctx context.Context) {
	for p, s := range b.served {
		if !s.leaving {
			continue
		}
		puller, err := b.Bus.Pull(ctx, p)
		if err == nil {
			puller.Close()
		} else if errors.Is(err, bus.ErrNotFound) {
			b.stop(p, "it has left its blueprint")
		}
	}
}

func (b *Binder) stop(p bus.Phase, reason string) {
	s := b.served[p]
	delete(b.served, p)
	close(s.drain)
	b.metrics.phases.WithLabelValues(s.executor).Dec()
	b.Log.Info("phase unbound", phaseFields(p, s.executor, host.Reason(reason))...)
}

func (b *Binder) start(ctx context.Context, fail context.CancelCauseFunc, p bus.Phase, phase *blueprint.Phase) {
	kind := phase.Executor.Kind
	drain := make(chan struct{})
	b.served[p] = &served{executor: kind, drain: drain}
	b.metrics.phases.WithLabelValues(kind).Inc()
	grace := b.StopGrace
	if grace == 0 {
		grace = -1 // the SDK's way to say none
	}
	options := plugin.Options{
		Worker: b.Worker, Batch: 1, Concurrency: min(b.Concurrency, plugin.ConcurrencyMax), Limit: b.limits[kind], FetchWait: fetchWait,
		StopGrace: grace, Drain: drain, Lease: phase.CancelLease(), CheckEvery: checkEvery, Log: b.Log,
		Observe: func(a plugin.Answer) {
			outcome := leftForRedelivery
			if a.Outcome != 0 {
				outcome = a.Outcome.String()
			}
			b.metrics.calls.WithLabelValues(kind, outcome).Inc()
		},
	}
	b.wg.Go(func() {
		for {
			err := plugin.Serve(ctx, b.Bus, p, options, func(_ context.Context, batch *plugin.Batch) error {
				return b.handle(kind, batch)
			})
			switch {
			case err == nil:
				return
			case !errors.Is(err, bus.ErrDenied):
				fail(fmt.Errorf("phase %s of kind %s: %w", p.Phase, p.Kind, err))
				return
			}
			b.Log.Error("phase not served", phaseFields(p, kind, zap.Error(err))...)
			select {
			case <-time.After(retryServe):
			case <-drain:
				return
			case <-ctx.Done():
				return
			}
		}
	})
}

func phaseFields(p bus.Phase, executor string, more ...zap.Field) []zap.Field {
	return append([]zap.Field{
		zap.String("project", p.Project), host.Kind(p.Kind), host.Phase(p.Phase), zap.String("executor", executor),
	}, more...)
}

// handle carries out one call: the batches of the runner hold one resource each.
func (b *Binder) handle(kind string, batch *plugin.Batch) error {
	running := b.metrics.running.WithLabelValues(kind)
	running.Inc()
	defer running.Dec()
	began := time.Now()
	defer func() { b.metrics.seconds.WithLabelValues(kind).Observe(time.Since(began).Seconds()) }()
	for _, r := range batch.Resources() {
		if err := b.carryOut(r.Context(), batch, r); err != nil {
			return err
		}
	}
	return nil
}

func (b *Binder) carryOut(ctx context.Context, batch *plugin.Batch, r *plugin.Resource) error {
	key := r.Key()
	e, err := b.catalog.executor(ctx, pin{key.Project, key.Kind, r.BlueprintDigest()}, r.Phase(), r.Undo())
	if errors.Is(err, errForeign) {
		// The job pinned a blueprint in which the phase was a plugin's. That worker finds it at one of the next calls.
		batch.Pending(r, 0, "in the blueprint that the job pinned, "+err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	spec, err := r.Spec(ctx)
	if err != nil {
		return err
	}
	o, err := e.Run(ctx, &executor.Call{
		Key: key, Fence: r.Fence(), Partition: r.Partition(), Phase: r.Phase(), State: r.State(), Target: r.Target(), Cluster: r.Cluster(),
		Undo: r.Undo(), WasDeployed: r.WasDeployed(), Deadline: r.Deadline(), Labels: r.Labels(), Attributes: r.Attributes(), Data: r.Data(),
		Spec: spec,
		Log: func(stream string, at time.Time, line string) {
			if err := r.LogStream(stream, at, line); err != nil {
				b.Log.Debug("a line of output is lost", zap.Stringer(host.KeyResource, key), zap.Error(err))
			}
		},
	})
	if err != nil {
		return nil //nolint:nilerr // ctx ended and nothing was decided: what is not answered is handed out again
	}
	if err := keep(r, o.Kept); err != nil {
		return err
	}
	switch {
	case o.Kind == resource.OutcomeCompleted:
		batch.Completed(r)
	case o.Kind == resource.OutcomePending:
		batch.Pending(r, o.Delay, o.Message)
	case o.Retryable:
		batch.FailedRetryable(r, o.Message)
	default:
		batch.Failed(r, o.Message)
	}
	if o.Kind == resource.OutcomeFailed {
		b.Log.Info("phase failed", zap.Stringer(host.KeyResource, key), host.Phase(r.Phase()), host.Job(r.Job()),
			host.Attempt(r.Fence().Attempt), zap.Bool("retryable", o.Retryable))
	}
	return nil
}

// keep hands what a call sets to its answer.
func keep(r *plugin.Resource, kept executor.Kept) error {
	for _, part := range []struct {
		values map[string]string
		set    func(name string, v any) error
	}{{kept.Attributes, r.SetAttribute}, {kept.Data, r.SetPhaseData}, {kept.Outputs, r.SetOutput}} {
		for name, text := range part.values {
			if err := part.set(name, json.RawMessage(text)); err != nil {
				return err
			}
		}
	}
	return nil
}
