package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/droverproject/drover/pkg/bus"
)

// Forget implements bus.Log. With several messages kept per subject, a deletion that expires would make an older,
// living event the last one again. So: what is older than the deletion goes first; then the deletion is appended again
// with a TTL; then the first one goes. Whatever step it dies after, the last event stays a deletion, and the next
// Forget goes on (design, section 4, "What is gone stays gone").
func (b *Bus) Forget(ctx context.Context, e bus.Entity, seq uint64) error {
	if err := b.forget(ctx, e, seq); err != nil {
		return fmt.Errorf("forget %s %s: %w", e.Family, e.Key(), err)
	}
	return nil
}

func (b *Bus) forget(ctx context.Context, e bus.Entity, seq uint64) error {
	// The bucket is read before the log: what it holds then of an entity that the log does not hold is stale.
	entry, entryErr := b.leaderGet(ctx, bucketStream(e.Family), getRequest{LastFor: "$KV." + e.Family.Bucket() + "." + e.Key()})
	if entryErr != nil && !errors.Is(entryErr, bus.ErrNotFound) {
		return entryErr
	}
	last, err := b.leaderGet(ctx, streamEvents, getRequest{LastFor: e.Filter()})
	if errors.Is(err, bus.ErrNotFound) {
		if entryErr == nil && first(entry.Header, headerTTL) == "" {
			return b.purge(ctx, bucketStream(e.Family), entry.Subject, entry.Seq+1)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if first(last.Header, headerOperation) != operationDelete || last.Seq < seq {
		return bus.ErrLost
	}
	if first(last.Header, headerTTL) != "" { // a Forget before this one came so far
		return b.purge(ctx, streamEvents, e.Filter(), last.Seq)
	}
	if err := b.purge(ctx, streamEvents, e.Filter(), last.Seq); err != nil {
		return err
	}
	stored, err := logged(last)
	if err != nil {
		return err
	}
	m, err := b.appendMsg(bus.Append{Entity: stored.Entity, Expect: last.Seq, Header: stored.Header, Body: last.Data}, true)
	if err != nil {
		return err
	}
	m.Header[headerTTL] = []string{strconv.FormatInt(int64(b.options.TombstoneTTL.Seconds()), 10) + "s"}
	again, err := b.publish(ctx, m)
	if err != nil {
		return appendError(err)
	}
	return b.purge(ctx, streamEvents, e.Filter(), again)
}

// Drop implements bus.Log.
func (b *Bus) Drop(ctx context.Context, e bus.Entity, version string, upTo uint64) error {
	if err := b.purge(ctx, streamEvents, e.VersionSubject(version), upTo+1); err != nil {
		return fmt.Errorf("drop version %s of %s %s: %w", version, e.Family, e.Key(), err)
	}
	return nil
}

// Trim implements bus.Log.
func (b *Bus) Trim(ctx context.Context, e bus.Entity, keep int) error {
	err := b.api(ctx, "STREAM.PURGE."+streamEvents, struct {
		Filter string `json:"filter"`
		Keep   int    `json:"keep"`
	}{e.Filter(), max(keep, 1)}, nil)
	if err != nil {
		return fmt.Errorf("trim %s %s: %w", e.Family, e.Key(), err)
	}
	return nil
}
