package binding

import (
	"context"
	"errors"
	"fmt"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/runner/internal/executor"
	"github.com/droverproject/drover/services/runner/internal/request"
	"github.com/droverproject/drover/services/runner/internal/script"
)

// The executors that a runner serves, as blueprint.Executor.Kind says them.
const (
	Script = "script"
	HTTP   = "http"
	Poll   = "poll"
)

// Kinds lists them.
func Kinds() []string { return []string{Script, HTTP, Poll} }

const (
	blueprintsMax    = 256 // blueprints in memory, each at most 768 KiB as text
	blueprintTries   = 5   // a follower may be behind for a moment
	blueprintPause   = 50 * time.Millisecond
	blueprintTimeout = 5 * time.Second
)

// errForeign: the phase's executor is not one of a runner's.
var errForeign = errors.New("not an executor of the runner")

// catalog keeps the executors of the blueprints that jobs have pinned. Safe for concurrent use.
type catalog struct {
	bus        bus.Bus
	client     *request.Client
	blueprints *lru.Cache[pin, map[string]phase]
}

// pin names a blueprint for good.
type pin struct{ project, kind, digest string }

// phase is who carries a phase out, and who undoes it.
type phase struct{ do, undo prepared }

// prepared is an executor, or why there is none.
type prepared struct {
	executor executor.Executor
	err      error
}

func newCatalog(b bus.Bus, client *request.Client) (*catalog, error) {
	blueprints, err := lru.New[pin, map[string]phase](blueprintsMax)
	if err != nil {
		return nil, err
	}
	return &catalog{bus: b, client: client, blueprints: blueprints}, nil
}

// executor returns the executor of a phase as the pinned blueprint has it, or the one that undoes it. The error is plugin.ErrUnavailable where the
// bus does not answer, and errForeign where the phase is another's.
func (c *catalog) executor(ctx context.Context, p pin, name string, undo bool) (executor.Executor, error) {
	phases, ok := c.blueprints.Get(p)
	if !ok {
		var err error
		if phases, err = c.load(ctx, p); err != nil {
			return nil, fmt.Errorf("blueprint %s of kind %s: %w", p.digest, p.kind, err)
		}
	}
	found, ok := phases[name]
	if !ok {
		return nil, fmt.Errorf("blueprint %s of kind %s has no phase %q", p.digest, p.kind, name)
	}
	if undo {
		return found.undo.executor, found.undo.err
	}
	return found.do.executor, found.do.err
}

func (c *catalog) load(ctx context.Context, p pin) (map[string]phase, error) {
	ctx, cancel := context.WithTimeout(ctx, blueprintTimeout)
	defer cancel()
	entity := bus.Entity{
		Partition: bus.PartitionOf(p.project, manifest.KindBlueprint, p.kind, c.bus.Partitions()),
		Family:    bus.Blueprint, Project: p.project, Kind: p.kind,
	}
	for tries := 1; ; tries++ {
		stored, err := c.bus.Version(ctx, entity, p.digest)
		switch {
		case err == nil:
			event, err := wire.DecodeBlueprint(stored.Body)
			if err != nil {
				return nil, err
			}
			return c.prepare(p, event.JSON)
		case !errors.Is(err, bus.ErrNotFound):
			return nil, fmt.Errorf("%w: %w", plugin.ErrUnavailable, err)
		case tries == blueprintTries:
			return nil, err
		}
		select {
		case <-time.After(blueprintPause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", plugin.ErrUnavailable, ctx.Err())
		}
	}
}

// prepare parses all templates of a blueprint, once.
func (c *catalog) prepare(p pin, spec string) (map[string]phase, error) {
	b, violations := manifest.Blueprint(p.project, p.kind, []byte(spec))
	if len(violations) > 0 {
		return nil, fmt.Errorf("is not valid: %s: %s", violations[0].Field, violations[0].Reason)
	}
	phases := make(map[string]phase, len(b.Phases))
	for i := range b.Phases {
		ph := &b.Phases[i]
		prepare := phase{do: c.build("executor", &ph.Executor), undo: prepared{err: fmt.Errorf("phase %q has no undo executor", ph.Name)}}
		if ph.Undo != nil {
			prepare.undo = c.build("undo", ph.Undo)
		}
		phases[ph.Name] = prepare
	}
	c.blueprints.Add(p, phases)
	return phases, nil
}

// build parses the templates of the executor that stands in a field of the phase.
func (c *catalog) build(field string, from *blueprint.Executor) prepared {
	var e executor.Executor
	var err error
	config := from.Config
	switch from.Kind {
	case Script:
		var s manifest.Script
		if s, err = manifest.DecodeScript(config); err == nil {
			e, err = script.New(s)
		}
	case HTTP:
		var h manifest.HTTP
		if h, err = manifest.DecodeHTTP(config); err == nil {
			e, err = request.NewHTTP(c.client, h)
		}
	case Poll:
		var q manifest.Poll
		if q, err = manifest.DecodePoll(config); err == nil {
			e, err = request.NewPoll(c.client, q)
		}
	default:
		return prepared{err: fmt.Errorf("the executor is %q: %w", from.Kind, errForeign)}
	}
	if err != nil {
		return prepared{err: fmt.Errorf("%s.%s: %w", field, from.Kind, err)}
	}
	return prepared{executor: e}
}
