package cli

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/services/drover/internal/follow"
)

// Times of settle.
const (
	settlePatience = time.Second
	settleAgain    = 2 * time.Millisecond
	settleAgainMax = 50 * time.Millisecond
)

// settle waits until the buckets show what was accepted. They trail the log by milliseconds, so that without it a
// script's `drover apply` and then `drover start --all` could miss what it has just applied. It gives up silently after
// settlePatience: what was accepted is accepted.
func settle(ctx context.Context, b Bus, outcomes []*outcome) {
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	places := make(chan struct{}, RequestsInFlight)
	var wg sync.WaitGroup
	defer wg.Wait()
	all := slices.Clone(outcomes)
	for _, o := range outcomes {
		if o.Selection != nil {
			all = append(all, o.Selection.Resources...)
		}
	}
	for _, o := range all {
		if o.Result == resultRefused || o.Result == resultError {
			continue
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			for pause := settleAgain; !o.shown(ctx, b); pause = min(2*pause, settleAgainMax) {
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause):
				}
			}
		})
	}
}

// shown reports whether the bucket has caught up with an order, or will not be seen to.
func (o *outcome) shown(ctx context.Context, b Bus) bool {
	if o.target.kind == kindBlueprint {
		return o.blueprintShown(ctx, b)
	}
	if o.target.name == selection.Name || check.IsKind(o.target.kind) {
		_, err := b.Get(ctx, follow.JobEntity(o.Project, o.JobID))
		return !errors.Is(err, bus.ErrNotFound)
	}
	e, err := getResource(ctx, b, o.Project, o.target)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return o.Verb != resource.VerbApply
	case err != nil:
		return true
	case o.uid != "": // its job was followed
		return e.State.UID != o.uid || e.State.Revision >= o.revision
	default:
		return e.State.JobByID(o.JobID) != nil
	}
}

func (o *outcome) blueprintShown(ctx context.Context, b Bus) bool {
	if o.Verb == resource.VerbDelete && o.Result == job.Succeeded.String() {
		_, err := getBlueprint(ctx, b, o.Project, o.target.name)
		return err != nil
	}
	if o.Verb != resource.VerbApply {
		return true
	}
	_, digest, err := manifest.Canonical(o.spec)
	if err != nil {
		return true
	}
	p, err := getBlueprint(ctx, b, o.Project, o.target.name)
	if errors.Is(err, bus.ErrNotFound) {
		return false
	}
	return err != nil || p.BlueprintEvent.Digest == digest
}
