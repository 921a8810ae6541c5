package cli

import (
	"context"
	"errors"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/drover/internal/follow"
)

// awaitResources follows resources of one project until done has said true for each of them. done is called from one
// goroutine, with nil while there is no such resource, and not again for one that is done.
func awaitResources(
	ctx context.Context, b bus.Readers, project string, targets []target, done func(t target, e *entry) (bool, error),
) error {
	left := make(map[target]bool, len(targets))
	for _, t := range targets {
		left[t] = true
	}
	tell := func(t target, e *entry) error {
		ended, err := done(t, e)
		if ended {
			delete(left, t)
		}
		return err
	}
	return follow.Bucket(ctx, b, scopeOf(project, targets), func(stored bus.Stored, ok bool) (bool, error) {
		if !ok {
			for t := range left {
				if err := readAgain(ctx, b, project, t, tell); err != nil {
					return false, err
				}
			}
			return len(left) == 0, nil
		}
		t := target{kind: stored.Entity.Kind, name: stored.Entity.Name}
		if !left[t] {
			return len(left) == 0, nil
		}
		if stored.Deleted {
			err := tell(t, nil)
			return len(left) == 0, err
		}
		e, err := decodeEntry(stored)
		if err == nil {
			err = tell(t, &e)
		}
		return len(left) == 0, err
	})
}

// readAgain reads one resource beside the watch.
func readAgain(ctx context.Context, b bus.Readers, project string, t target, tell func(target, *entry) error) error {
	tryCtx, cancel := context.WithTimeout(ctx, follow.TryTimeout)
	defer cancel()
	e, err := getResource(tryCtx, b, project, t)
	switch {
	case err == nil:
		return tell(t, &e)
	case errors.Is(err, bus.ErrNotFound):
		return tell(t, nil)
	case errors.Is(err, bus.ErrDenied), errors.Is(err, bus.ErrClosed):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return nil // the server may be away for a moment; it is asked again
	}
}

// awaitResource is awaitResources for one.
func awaitResource(ctx context.Context, b bus.Readers, project string, t target, done func(e *entry) (bool, error)) error {
	return awaitResources(ctx, b, project, []target{t}, func(_ target, e *entry) (bool, error) { return done(e) })
}

// scopeOf is the smallest scope that holds all targets.
func scopeOf(project string, targets []target) follow.Scope {
	scope := follow.Scope{Family: bus.Resource, Project: project}
	if len(targets) == 0 {
		return scope
	}
	scope.Kind = targets[0].kind
	for _, t := range targets {
		if t.kind != scope.Kind {
			scope.Kind = ""
		}
	}
	if len(targets) == 1 {
		scope.Name = targets[0].name
	}
	return scope
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
