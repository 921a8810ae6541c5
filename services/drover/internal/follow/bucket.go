package follow

import (
	"context"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// Recheck is how often the bucket is read again beside the watch.
const Recheck = 5 * time.Second

// reopen is the wait before a lost watch is opened again.
const reopen = 250 * time.Millisecond

// Scope narrows what is followed: empty fields are any.
type Scope struct {
	Family              bus.Family
	Project, Kind, Name string
}

// Bucket follows entries of a bucket until ctx ends or see returns true, or an error. see is called from one goroutine:
// with every entry as the watch delivers it, and with ok false whenever the time has come to read what is still
// outstanding by oneself: after the present entries, at every Recheck, and after a watch was lost.
func Bucket(ctx context.Context, b bus.Readers, s Scope, see func(stored bus.Stored, ok bool) (done bool, err error)) error {
	recheck := time.NewTicker(Recheck)
	defer recheck.Stop()
	for {
		done, err := once(ctx, b, s, recheck.C, see)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(reopen):
		}
	}
}

// once follows one watch to its end.
func once(
	ctx context.Context, b bus.Readers, s Scope, recheck <-chan time.Time, see func(bus.Stored, bool) (bool, error),
) (done bool, err error) {
	watch, err := b.WatchBucket(ctx, s.Family, s.Project, s.Kind, s.Name)
	if err != nil {
		if permanent(err) || ctx.Err() != nil {
			return false, orContext(ctx, err)
		}
		return see(bus.Stored{}, false) // the server may be away for a moment
	}
	defer watch.Close()
	for {
		var stored bus.Stored
		entry := false
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-recheck:
		case got, open := <-watch.C():
			if !open {
				if done, err := see(bus.Stored{}, false); done || err != nil {
					return done, err
				}
				return false, ctx.Err()
			}
			stored, entry = got, got.Entity.Family != ""
		}
		if done, err := see(stored, entry); done || err != nil {
			return done, orContext(ctx, err)
		}
	}
}

// orContext is the end of ctx where that is the reason of err.
func orContext(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
