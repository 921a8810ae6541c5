package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
)

// VersionsKept is how many versions of a blueprint the log keeps beside the present one and those that resources pin.
const VersionsKept = 4

const keepTimeout = 2 * time.Minute // of one look at a kind, which reads all its resources

type kindKey struct{ project, kind string }

// keeper makes the consumers of phases as blueprints say, and removes versions and consumers that nothing needs any more.
// It belongs to the Owner's goroutine; what it does for one kind it does in order.
type keeper struct {
	p     *port
	kinds map[kindKey]*keptKind
}

type keptKind struct {
	tasks   []func()
	busy    bool
	present *blueprint.Blueprint
	at      time.Time // when to look at its versions; zero: there is nothing to look for
	after   time.Duration
	looking bool
}

func (k *keeper) kind(key kindKey) *keptKind {
	kind := k.kinds[key]
	if kind == nil {
		kind = &keptKind{}
		k.kinds[key] = kind
	}
	return kind
}

// do runs a task of a kind in the background, after those before it.
func (k *keeper) do(key kindKey, task func()) {
	kind := k.kind(key)
	kind.tasks = append(kind.tasks, task)
	k.next(kind)
}

func (k *keeper) next(kind *keptKind) {
	if kind.busy || len(kind.tasks) == 0 {
		return
	}
	task := kind.tasks[0]
	kind.tasks = kind.tasks[1:]
	kind.busy = true
	k.p.c.Shell.Background(func() {
		task()
		k.p.c.Shell.Later(func() {
			kind.busy = false
			k.next(kind)
		})
	})
}

// ensure has the consumers of a blueprint made, and its versions looked at when no owner pins an earlier one any more:
// lookFirst is more than drive.RetireWait.
func (k *keeper) ensure(bp *blueprint.Blueprint) {
	key := kindKey{bp.Project, bp.Kind}
	kind := k.kind(key)
	kind.present = bp
	kind.after = lookFirst
	kind.at = k.p.c.Now().Add(kind.after)
	k.do(key, func() { k.ensurePhases(bp) })
}

// ensurePhases tries until it is done: without its consumer a phase has no work.
func (k *keeper) ensurePhases(bp *blueprint.Blueprint) {
	p := k.p
	for _, phase := range phasesOf(bp) {
		for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
			ctx, cancel := context.WithTimeout(p.ctx, ensureTimeout)
			err := p.c.Bus.EnsurePhase(ctx, phase)
			cancel()
			if err == nil || p.ctx.Err() != nil {
				break
			}
			p.c.Log.Warn("a phase has no consumer yet", host.Kind(phase.Kind), host.Phase(phase.Phase), zap.Error(err))
			p.c.Shell.Sleep(wait)
		}
	}
}

// phasesOf are the phases that have consumers.
func phasesOf(bp *blueprint.Blueprint) []bus.Phase {
	var all []bus.Phase
	for i := range bp.Phases {
		if bp.Phases[i].Children == nil { // else there is never work of it
			all = append(all, bus.Phase{Project: bp.Project, Kind: bp.Kind, Phase: bp.Phases[i].Name})
		}
	}
	return all
}

// again makes the consumers of all kinds anew: another owner, late, may have removed what this one made.
func (k *keeper) again() {
	for _, key := range k.sorted() {
		if bp := k.kinds[key].present; bp != nil {
			k.do(key, func() { k.ensurePhases(bp) })
		}
	}
}

// sweep looks at the kinds whose time has come.
func (k *keeper) sweep(now time.Time) {
	for _, key := range k.sorted() {
		kind := k.kinds[key]
		if kind.present == nil || kind.looking || kind.at.IsZero() || now.Before(kind.at) {
			continue
		}
		kind.looking = true
		kind.after = min(2*kind.after, lookMost)
		bp := kind.present
		k.do(key, func() {
			ctx, cancel := context.WithTimeout(k.p.ctx, keepTimeout)
			defer cancel()
			left, err := k.look(ctx, bp)
			if err != nil && k.p.ctx.Err() == nil {
				k.p.c.Log.Warn("versions of a blueprint were not looked at; a later sweep tries again", host.Kind(key.kind), zap.Error(err))
			}
			k.p.c.Shell.Later(func() {
				kind.looking = false
				if kind.present != bp {
					return
				}
				if kind.at = k.p.c.Now().Add(kind.after); err == nil && !left {
					kind.at = k.p.c.Now().Add(lookIdle)
				}
			})
		})
	}
}

func (k *keeper) sorted() []kindKey {
	keys := make([]kindKey, 0, len(k.kinds))
	for key := range k.kinds {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b kindKey) int {
		if a.project < b.project || a.project == b.project && a.kind < b.kind {
			return -1
		}
		return 1
	})
	return keys
}

// version is one that is not the present one.
type version struct {
	digest string
	seq    uint64 // of the last event that brought it
	phases []bus.Phase
}

// use is what the resources of a kind need.
type use struct {
	pins    map[string]bool // versions that a resource remembers
	running map[string]bool // versions that a job which has not ended walks by
	phases  map[string]bool // phases that are at something
}

// look removes what nothing needs: consumers of phases that have left the blueprint, and old versions. Of what is needed it makes
// the consumers, where they are missing. It reports whether anything was left that may go later.
func (k *keeper) look(ctx context.Context, bp *blueprint.Blueprint) (left bool, err error) {
	old, err := k.old(ctx, bp)
	if err != nil || len(old) == 0 {
		return false, err
	}
	present := phasesOf(bp)
	var surplus []bus.Phase
	for i := range old {
		for _, ph := range old[i].phases {
			if !slices.Contains(present, ph) && !slices.Contains(surplus, ph) {
				surplus = append(surplus, ph)
			}
		}
	}
	if len(surplus) == 0 && len(old) <= VersionsKept {
		return false, nil
	}
	used, err := k.used(ctx, bp)
	if err != nil {
		return true, err
	}
	for i := range old {
		for _, ph := range old[i].phases {
			used.phases[ph.Phase] = used.phases[ph.Phase] || used.running[old[i].digest]
		}
	}
	for _, ph := range surplus {
		if used.phases[ph.Phase] { // an owner that stood still between its reading and its appending may need what was removed
			if err := k.p.c.Bus.EnsurePhase(ctx, ph); err != nil {
				return true, err
			}
			left = true
			continue
		}
		switch nothing, err := k.removePhase(ctx, bp, ph); {
		case err != nil:
			return true, err
		case !nothing: // it is looked at once more: an owner whose time is over may still poll what it knows
			used.phases[ph.Phase], left = true, true
		}
	}
	for i := range old[min(VersionsKept, len(old)):] {
		v := &old[VersionsKept+i]
		// Nothing but a version tells of the phases that it had.
		if used.pins[v.digest] || slices.ContainsFunc(v.phases, func(ph bus.Phase) bool { return !slices.Contains(present, ph) && used.phases[ph.Phase] }) {
			left = true
			continue
		}
		host.CrashPoint("orchestrator.before-drop")
		if err := k.p.c.Bus.Drop(ctx, catalog.BlueprintEntity(bp.Project, bp.Kind, k.p.c.Bus.Partitions()), v.digest, v.seq); err != nil {
			return true, err
		}
		k.p.c.Log.Info("an old version of a blueprint is removed", host.Kind(bp.Kind), zap.String("digest", v.digest))
	}
	return left, nil
}

// removePhase removes the consumer of a phase that nothing needs, and its work, and reports whether there was neither. Work
// of a phase that has a consumer is left to a worker. That of one without is taken by nobody: a poll, sent by an owner that
// did not know yet how the resource has gone on.
func (k *keeper) removePhase(ctx context.Context, bp *blueprint.Blueprint, ph bus.Phase) (nothing bool, err error) {
	bound, err := k.bound(ctx, ph)
	if err != nil {
		return false, err
	}
	n, caughtUp, err := k.p.c.Bus.Outstanding(ctx, ph)
	if err != nil || !caughtUp || bound && n > 0 {
		return false, err
	}
	if !bound && n == 0 {
		return true, nil
	}
	now, err := k.p.c.Catalog.Present(ctx, bp.Project, bp.Kind, true)
	if err != nil || now.Blueprint == nil || now.Blueprint.Digest != bp.Digest {
		return false, err
	}
	host.CrashPoint("orchestrator.before-remove-phase")
	if err := k.p.c.Bus.RemovePhase(ctx, ph); err != nil {
		return false, err
	}
	k.p.c.Log.Info("a phase that has left its blueprint has no consumer any more", host.Kind(ph.Kind), host.Phase(ph.Phase), zap.Uint64("dropped", n))
	return false, nil
}

// dismiss removes the consumer of a phase that no version of its blueprint has, and its work, which no job can be at: an owner whose
// time was over has made it anew, and has sent a poll. Then it calls done; where that came to nothing it does not.
func (k *keeper) dismiss(ph bus.Phase, done func()) {
	k.do(kindKey{ph.Project, ph.Kind}, func() {
		ctx, cancel := context.WithTimeout(k.p.ctx, keepTimeout)
		defer cancel()
		known, err := k.removeUnknown(ctx, ph)
		switch {
		case err != nil && k.p.ctx.Err() == nil:
			k.p.c.Log.Warn("the consumer of a phase that no blueprint has was not removed; a later sweep tries again", host.Kind(ph.Kind), host.Phase(ph.Phase), zap.Error(err))
		case err == nil && !known:
			k.p.c.Shell.Later(done)
		}
	})
}

func (k *keeper) removeUnknown(ctx context.Context, ph bus.Phase) (known bool, err error) {
	bound, err := k.bound(ctx, ph)
	if err != nil {
		return false, err
	}
	n, _, err := k.p.c.Bus.Outstanding(ctx, ph)
	if err != nil || !bound && n == 0 {
		return false, err
	}
	now, err := k.p.c.Catalog.Present(ctx, ph.Project, ph.Kind, true)
	if err != nil || now.Blueprint != nil && now.Blueprint.Phase(ph.Phase) != nil {
		return true, err
	}
	return false, k.p.c.Bus.RemovePhase(ctx, ph)
}

// bound reports whether a phase has its consumer.
func (k *keeper) bound(ctx context.Context, ph bus.Phase) (bool, error) {
	puller, err := k.p.c.Bus.Pull(ctx, ph)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	puller.Close()
	return true, nil
}

// old are the versions that are not present, the newest first.
func (k *keeper) old(ctx context.Context, bp *blueprint.Blueprint) ([]version, error) {
	history, err := k.p.c.Bus.History(ctx, catalog.BlueprintEntity(bp.Project, bp.Kind, k.p.c.Bus.Partitions()))
	if err != nil {
		return nil, err
	}
	if len(history) == 0 || history[len(history)-1].Version != bp.Digest {
		return nil, errors.New("the blueprint has changed meanwhile")
	}
	var old []version
	for _, m := range slices.Backward(history) {
		if m.Version == "" || m.Version == bp.Digest || slices.ContainsFunc(old, func(v version) bool { return v.digest == m.Version }) {
			continue
		}
		v := version{digest: m.Version, seq: m.Seq}
		was, err := k.p.c.Catalog.Blueprint(ctx, bp.Project, bp.Kind, m.Version)
		switch {
		case errors.Is(err, drive.ErrNotFound):
			continue // a follower was behind
		case err != nil:
			return nil, fmt.Errorf("version %s: %w", m.Version, err)
		}
		v.phases = phasesOf(was)
		old = append(old, v)
	}
	return old, nil
}

// used reads the resources of a kind in all partitions.
func (k *keeper) used(ctx context.Context, bp *blueprint.Blueprint) (use, error) {
	u := use{pins: map[string]bool{}, running: map[string]bool{}, phases: map[string]bool{}}
	err := k.p.eachUser(ctx, bp.Project, bp.Kind, func(s *resource.State) {
		for _, digest := range s.Pins() {
			u.pins[digest] = true
		}
		for i := range s.Jobs {
			if !s.Jobs[i].State.Final() {
				u.running[s.Jobs[i].Blueprint] = true
			}
		}
		for i := range s.Phases {
			if s.Phases[i].InFlight || s.Phases[i].Status.Active() {
				u.phases[s.Phases[i].Name] = true
			}
		}
	})
	return u, err
}

// eachUser calls each with every resource of a kind that exists, in all partitions.
func (p *port) eachUser(ctx context.Context, project, kind string, each func(s *resource.State)) error {
	for n := range p.c.Bus.Partitions() {
		err := p.c.Bus.ScanKind(ctx, n, project, kind, func(m bus.Stored) error {
			if m.Deleted {
				return nil
			}
			r, err := decodeResource(m)
			if err != nil {
				return fmt.Errorf("resource %s/%s/%s: %w", m.Entity.Project, m.Entity.Kind, m.Entity.Name, err)
			}
			if r.State.Exists() {
				each(&r.State)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Users implements drive.Port. What only a newer version can read is a user too.
func (p *port) Users(project, kind string, wait time.Duration, done func(drive.Users, error)) {
	p.c.Shell.Background(func() {
		if wait > 0 {
			p.c.Shell.Sleep(wait)
		}
		ctx, cancel := context.WithTimeout(p.ctx, keepTimeout)
		defer cancel()
		var u drive.Users
		var err error
		for n := 0; n < p.c.Bus.Partitions() && err == nil; n++ {
			err = p.c.Bus.ScanKind(ctx, n, project, kind, func(m bus.Stored) error {
				if !m.Deleted {
					if u.Count++; u.Count == 1 {
						u.Example = resource.Key{Project: project, Kind: kind, Name: m.Entity.Name}
					}
				}
				return nil
			})
		}
		if err != nil && p.ctx.Err() == nil {
			p.c.Log.Warn("the users of a blueprint could not be counted", host.Kind(kind), zap.Error(err))
		}
		p.c.Shell.Later(func() { done(u, err) })
	})
}

// ForgetBlueprint implements drive.Port.
func (p *port) ForgetBlueprint(project, kind string, seq uint64, done func(error)) {
	key := kindKey{project, kind}
	p.keeper.kind(key).present = nil
	p.keeper.do(key, func() {
		ctx, cancel := context.WithTimeout(p.ctx, keepTimeout)
		defer cancel()
		err := p.forgetBlueprint(ctx, key, seq)
		switch {
		case errors.Is(err, bus.ErrLost):
			err = errors.Join(drive.ErrLost, err)
		case err != nil && p.ctx.Err() == nil:
			p.c.Log.Warn("a blueprint that is gone was not forgotten; the next sweep tries again", host.Kind(kind), zap.Error(err))
		}
		p.c.Shell.Later(func() { done(err) })
	})
}

func (p *port) forgetBlueprint(ctx context.Context, key kindKey, seq uint64) error {
	e := catalog.BlueprintEntity(key.project, key.kind, p.c.Bus.Partitions())
	history, err := p.c.Bus.History(ctx, e)
	if err != nil {
		return err
	}
	if n := len(history); n > 0 && !history[n-1].Deleted && history[n-1].Seq > seq {
		return bus.ErrLost // a new blueprint of the kind
	}
	var gone []bus.Phase
	for _, m := range history {
		bp, err := p.c.Catalog.Decode(m)
		if err != nil {
			return err
		}
		for _, ph := range phasesOf(bp) {
			if !slices.Contains(gone, ph) {
				gone = append(gone, ph)
			}
		}
	}
	for _, ph := range gone {
		host.CrashPoint("orchestrator.before-remove-phase")
		if err := p.c.Bus.RemovePhase(ctx, ph); err != nil {
			return err
		}
	}
	host.CrashPoint("orchestrator.before-forget-blueprint")
	return p.c.Bus.Forget(ctx, e, seq)
}
