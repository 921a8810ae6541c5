package plugin

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// specs keeps the specs used last, up to a number of bytes. A digest within a project is one spec, whichever resource
// brought it.
type specs struct {
	most int

	mu    sync.Mutex
	bytes int
	order *list.List // of *specEntry, the one used last in front
	byKey map[specKey]*list.Element
}

type specKey struct{ project, digest string }

type specEntry struct {
	key  specKey
	json json.RawMessage
}

func newSpecs(most int) *specs {
	return &specs{most: most, order: list.New(), byKey: map[specKey]*list.Element{}}
}

func (c *specs) get(key specKey) (json.RawMessage, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*specEntry).json, true
}

func (c *specs) put(key specKey, spec json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[key] != nil || len(spec) > c.most {
		return
	}
	c.byKey[key] = c.order.PushFront(&specEntry{key: key, json: spec})
	c.bytes += len(spec)
	for c.bytes > c.most {
		last := c.order.Back()
		entry := c.order.Remove(last).(*specEntry)
		delete(c.byKey, entry.key)
		c.bytes -= len(entry.json)
	}
}

const specTries = 5 // a follower may be behind for a moment

// spec loads the spec that a hand-out is for.
func (s *server) spec(ctx context.Context, r *Resource) (json.RawMessage, error) {
	key := specKey{r.work.State.Project, r.work.SpecDigest}
	if spec, ok := s.specs.get(key); ok {
		return spec, nil
	}
	ctx, cancel := context.WithTimeout(ctx, specTimeout)
	defer cancel()
	for tries := 1; ; tries++ {
		stored, err := s.bus.Version(ctx, r.entity(bus.Spec), key.digest)
		switch {
		case err == nil:
			spec, err := wire.DecodeSpec(stored.Body)
			if err != nil {
				return nil, err
			}
			s.specs.put(key, json.RawMessage(spec.JSON))
			return json.RawMessage(spec.JSON), nil
		case !errors.Is(err, bus.ErrNotFound):
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		case tries == specTries:
			return nil, err
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		}
	}
}

// answered remembers the last messages that were answered, so that a duplicate that was already on its way is not
// called again before the answer shows in the resource's state.
type answered struct {
	most  int
	next  int
	seqs  []uint64
	fence map[uint64]resource.Fence
}

func newAnswered(most int) *answered {
	return &answered{most: most, fence: map[uint64]resource.Fence{}}
}

func (a *answered) has(seq uint64, fence resource.Fence) bool {
	known, ok := a.fence[seq]
	return ok && known == fence
}

func (a *answered) add(seq uint64, fence resource.Fence) {
	if _, known := a.fence[seq]; !known {
		if len(a.seqs) < a.most {
			a.seqs = append(a.seqs, seq)
		} else {
			delete(a.fence, a.seqs[a.next])
			a.seqs[a.next] = seq
		}
		a.next = (a.next + 1) % a.most
	}
	a.fence[seq] = fence
}
