// Package catalog is what a step consults: blueprints and specs by digest, and constraints. What is immutable is kept
// in memory; what is present is asked of the log.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

const (
	blueprintsMax = 1024            // blueprints in memory
	specsMax      = 1024            // specs in memory
	specBytesMax  = 64 << 10        // of each of them: a larger one is read each time, so that all take 64 MiB at most
	readTimeout   = 3 * time.Second // of one read
)

// PresentFor is how long a present blueprint is taken from memory. So long is the acceptance of a blueprint held back
// after its event is in the log: then no process takes an earlier one from memory any more. See also drive.RetireWait.
const PresentFor = 100 * time.Millisecond

// Catalog is shared by the partitions of one process. Safe for concurrent use.
type Catalog struct {
	bus         Bus
	now         func() time.Time
	constraints *constraint.Evaluator
	blueprints  *lru.Cache[string, *blueprint.Blueprint] // by digest, project and kind
	specs       *lru.Cache[specKey, []byte]

	mu      sync.Mutex
	present map[bus.Entity]presentEntry
}

type specKey struct {
	key    resource.Key
	digest string
}

type presentEntry struct {
	loaded drive.LoadedBlueprint
	at     time.Time
}

// Bus is the part of the bus that is needed.
type Bus interface {
	Last(ctx context.Context, entities []bus.Entity) ([]bus.Stored, error)
	Version(ctx context.Context, e bus.Entity, version string) (bus.Stored, error)
	Partitions() int
}

// New returns an empty catalog. now ages what is present, and is a clock that nobody sets: by one that was set back, a version would
// look new again that the process read before. The readings of time.Now are of one. constraints may be shared.
func New(b Bus, now func() time.Time, constraints *constraint.Evaluator) (*Catalog, error) {
	blueprints, err := lru.New[string, *blueprint.Blueprint](blueprintsMax)
	if err != nil {
		return nil, err
	}
	specs, err := lru.New[specKey, []byte](specsMax)
	if err != nil {
		return nil, err
	}
	return &Catalog{
		bus: b, now: now, constraints: constraints, blueprints: blueprints, specs: specs, present: map[bus.Entity]presentEntry{},
	}, nil
}

// BlueprintEntity is where the blueprint of a kind stands in the log.
func BlueprintEntity(project, kind string, partitions int) bus.Entity {
	return bus.Entity{
		Partition: bus.PartitionOf(project, drive.BlueprintKind, kind, partitions),
		Family:    bus.Blueprint, Project: project, Kind: kind,
	}
}

// Blueprint returns the blueprint of a digest, or drive.ErrNotFound.
func (c *Catalog) Blueprint(ctx context.Context, project, kind, digest string) (*blueprint.Blueprint, error) {
	id := project + "\x00" + kind + "\x00" + digest
	if bp, ok := c.blueprints.Get(id); ok {
		return bp, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	stored, err := c.bus.Version(ctx, BlueprintEntity(project, kind, c.bus.Partitions()), digest)
	if errors.Is(err, bus.ErrNotFound) {
		return nil, fmt.Errorf("blueprint %s of kind %s: %w", digest, kind, drive.ErrNotFound)
	} else if err != nil {
		return nil, fmt.Errorf("blueprint %s of kind %s: %w", digest, kind, err)
	}
	return c.decode(id, stored)
}

func (c *Catalog) decode(id string, stored bus.Stored) (*blueprint.Blueprint, error) {
	event, err := wire.DecodeBlueprint(stored.Body)
	if err != nil {
		return nil, err
	}
	bp, violations := manifest.Blueprint(event.Project, event.Kind, []byte(event.JSON))
	if len(violations) > 0 {
		return nil, fmt.Errorf("blueprint %s of kind %s is no longer valid: %s: %s", event.Digest, event.Kind, violations[0].Field, violations[0].Reason)
	}
	bp.Digest = event.Digest
	c.blueprints.Add(id, bp)
	return bp, nil
}

// Present returns the blueprint that new jobs of a kind pin. fresh asks the log; else an answer may be PresentFor old,
// but for one that there is none.
func (c *Catalog) Present(ctx context.Context, project, kind string, fresh bool) (drive.LoadedBlueprint, error) {
	e := BlueprintEntity(project, kind, c.bus.Partitions())
	if !fresh {
		c.mu.Lock()
		entry, ok := c.present[e]
		c.mu.Unlock()
		if ok && c.now().Sub(entry.at) < PresentFor {
			return entry.loaded, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	asked := c.now() // it is as old as the question, not as the answer
	last, err := c.bus.Last(ctx, []bus.Entity{e})
	if err != nil {
		return drive.LoadedBlueprint{}, fmt.Errorf("blueprint of kind %s: %w", kind, err)
	}
	loaded, err := c.Load(last[0])
	if err != nil {
		return loaded, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if loaded.Blueprint == nil {
		delete(c.present, e)
	} else if !asked.Before(c.present[e].at) {
		c.present[e] = presentEntry{loaded, asked}
	}
	return loaded, nil
}

// Load is the blueprint that an event of the log says is present.
func (c *Catalog) Load(stored bus.Stored) (loaded drive.LoadedBlueprint, err error) {
	if stored.Seq == 0 {
		return loaded, nil
	}
	event, err := wire.DecodeBlueprint(stored.Body)
	if err != nil {
		return loaded, err
	}
	loaded = drive.LoadedBlueprint{
		Generation: event.Generation, Deletion: event.Deletion, Gone: event.Gone || stored.Deleted, Seq: stored.Seq,
	}
	if !loaded.Gone {
		loaded.JSON = event.JSON
		loaded.Blueprint, err = c.Decode(stored)
	}
	return loaded, err
}

// Decode is the blueprint that an event holds, a last one too.
func (c *Catalog) Decode(stored bus.Stored) (*blueprint.Blueprint, error) {
	event, err := wire.DecodeBlueprint(stored.Body)
	if err != nil {
		return nil, err
	}
	id := event.Project + "\x00" + event.Kind + "\x00" + event.Digest
	if bp, ok := c.blueprints.Get(id); ok {
		return bp, nil
	}
	return c.decode(id, stored)
}

// Spec returns the JSON of a spec. The log holds it before any state names it, but a follower may be behind.
func (c *Catalog) Spec(ctx context.Context, key resource.Key, digest string, partition int) ([]byte, error) {
	id := specKey{key, digest}
	if spec, ok := c.specs.Get(id); ok {
		return spec, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	stored, err := c.bus.Version(ctx, bus.Entity{
		Partition: partition, Family: bus.Spec, Project: key.Project, Kind: key.Kind, Name: key.Name,
	}, digest)
	if err != nil {
		return nil, fmt.Errorf("spec %s of %s: %w", digest, key, err)
	}
	event, err := wire.DecodeSpec(stored.Body)
	if err != nil {
		return nil, err
	}
	if len(event.JSON) <= specBytesMax {
		c.specs.Add(id, []byte(event.JSON))
	}
	return []byte(event.JSON), nil
}

// When evaluates a constraint.
func (c *Catalog) When(expression string, spec []byte, s *resource.State) (bool, error) {
	return c.constraints.Eval(expression, spec, s)
}
