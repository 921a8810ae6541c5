package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
)

// oneWatch is the number of jobs up to which a watch is narrowed to a job; more share one over their project.
const oneWatch = 1

// ErrForgotten is what a job ends with whose record is gone before it was seen to end.
var ErrForgotten = errors.New("the job was forgotten: its record is no longer kept")

// JobEntity is a job's place in its bucket.
func JobEntity(project, id string) bus.Entity {
	return bus.Entity{Family: bus.Job, Project: project, Name: id}
}

// Jobs follows jobs of one project until each is final, or ctx ends. changed is called from one goroutine with every
// state of a job that was not seen before. A record that is not there yet is waited for: it follows the answer by
// milliseconds. A job whose record is removed while it is followed ends Jobs with ErrForgotten.
func Jobs(ctx context.Context, b bus.Readers, project string, ids []string, changed func(wire.JobEvent) error) error {
	f := jobFollower{b: b, project: project, left: make(map[string]uint64, len(ids)), changed: changed}
	for _, id := range ids {
		f.left[id] = 0
	}
	if len(f.left) == 0 {
		return nil
	}
	scope := Scope{Family: bus.Job, Project: project}
	if len(f.left) <= oneWatch {
		scope.Name = ids[0]
	}
	return Bucket(ctx, b, scope, func(stored bus.Stored, ok bool) (bool, error) {
		if ok {
			err := f.saw(stored)
			return len(f.left) == 0, err
		}
		return f.read(ctx)
	})
}

type jobFollower struct {
	b       bus.Readers
	project string
	left    map[string]uint64 // id: the revision that was last seen, 0 for none
	changed func(wire.JobEvent) error
}

func (f *jobFollower) saw(stored bus.Stored) error {
	id := stored.Entity.Name
	seen, wanted := f.left[id]
	if !wanted {
		return nil
	}
	if stored.Deleted {
		return fmt.Errorf("job %s: %w", id, ErrForgotten)
	}
	event, err := wire.DecodeJob(stored.Body)
	if err != nil {
		return fmt.Errorf("decode job %s: %w", id, err)
	}
	if event.Record.Revision <= seen {
		return nil
	}
	f.left[id] = event.Record.Revision
	if event.Record.State.Final() {
		delete(f.left, id)
	}
	return f.changed(event)
}

// read asks for those that are outstanding.
func (f *jobFollower) read(ctx context.Context) (bool, error) {
	for id, seen := range f.left {
		tryCtx, cancel := context.WithTimeout(ctx, TryTimeout)
		stored, err := f.b.Get(tryCtx, JobEntity(f.project, id))
		cancel()
		switch {
		case err == nil:
			err = f.saw(stored)
		case errors.Is(err, bus.ErrNotFound) && seen > 0:
			return false, fmt.Errorf("job %s: %w", id, ErrForgotten)
		case permanent(err):
			return false, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		default:
			err = nil // it is not there yet, or the server is away for a moment
		}
		if err != nil {
			return false, err
		}
	}
	return len(f.left) == 0, nil
}

// TryTimeout bounds one read of a bucket.
const TryTimeout = 3 * time.Second

// permanent reports whether asking again is of no use.
func permanent(err error) bool { return errors.Is(err, bus.ErrDenied) || errors.Is(err, bus.ErrClosed) }
