package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// Get implements bus.Readers.
func (b *Bus) Get(ctx context.Context, e bus.Entity) (bus.Stored, error) {
	m, err := b.directGet(ctx, bucketStream(e.Family), getRequest{LastFor: "$KV." + e.Family.Bucket() + "." + e.Key()})
	if err == nil {
		var s bus.Stored
		if s, err = derived(e.Family, e.Key(), m); err == nil && !s.Deleted {
			return s, nil
		}
		if err == nil {
			err = bus.ErrNotFound
		}
	}
	return bus.Stored{}, fmt.Errorf("get %s %s: %w", e.Family, e.Key(), err)
}

// keyFilter covers the keys of a family, narrowed by the names that are not empty, as far as the family has them.
func keyFilter(f bus.Family, project, kind, name string) string {
	filter := tokenOrAny(project)
	if f.HasKind() {
		filter += "." + tokenOrAny(kind)
	}
	if f.HasName() {
		filter += "." + tokenOrAny(name)
	}
	return filter
}

// openBucket reads a bucket: the present entries first, oldest change first.
func (b *Bus) openBucket(f bus.Family, project, kind, name string) (r *reader, prefix string, err error) {
	prefix = "$KV." + f.Bucket() + "."
	r, err = b.newReader(bucketStream(f), natsjs.DeliverLastPerSubjectPolicy, prefix+keyFilter(f, project, kind, name))
	return r, prefix, err
}

// List implements bus.Readers.
func (b *Bus) List(ctx context.Context, f bus.Family, project, kind string, each func(bus.Stored) error) error {
	r, prefix, err := b.openBucket(f, project, kind, "")
	if err != nil {
		return fmt.Errorf("list %s: %w", f.Bucket(), err)
	}
	defer r.close()
	listed := map[string]struct{}{} // the server sends what changes on the way once more
	for {
		m, err := r.next(ctx, true)
		if errors.Is(err, errDrained) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", f.Bucket(), err)
		}
		s, err := derived(f, strings.TrimPrefix(m.Subject, prefix), m)
		if err != nil {
			return fmt.Errorf("list %s: %w", f.Bucket(), err)
		}
		if _, again := listed[m.Subject]; s.Deleted || again {
			continue
		}
		listed[m.Subject] = struct{}{}
		if err := each(s); err != nil {
			return err
		}
	}
}

// watch implements bus.Watch.
type watch struct {
	out   chan bus.Stored
	stop  context.CancelFunc
	ended chan struct{}
}

// C implements bus.Watch.
func (w *watch) C() <-chan bus.Stored { return w.out }

// Close implements bus.Watch.
func (w *watch) Close() {
	w.stop()
	<-w.ended
}

// WatchBucket implements bus.Readers. The receiver may be slow: nothing is dropped, the server waits.
func (b *Bus) WatchBucket(ctx context.Context, f bus.Family, project, kind, name string) (bus.Watch, error) {
	r, prefix, err := b.openBucket(f, project, kind, name)
	if err == nil {
		if err = r.bind(ctx); err != nil {
			r.close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", f.Bucket(), err)
	}
	run, stop := context.WithCancel(b.ctx)
	w := &watch{out: make(chan bus.Stored), stop: stop, ended: make(chan struct{})}
	b.wg.Go(func() {
		defer close(w.ended)
		defer close(w.out)
		defer r.close()
		initial := true
		for {
			m, err := r.next(run, initial)
			var s bus.Stored
			switch {
			case errors.Is(err, errDrained):
				initial = false // s says so: its family is empty
			case err != nil:
				return
			default:
				if s, err = derived(f, strings.TrimPrefix(m.Subject, prefix), m); err != nil {
					continue // a key that is not ours, put by hand
				}
			}
			select {
			case w.out <- s:
			case <-run.Done():
				return
			}
		}
	})
	return w, nil
}

// Follow implements bus.Readers.
func (b *Bus) Follow(f bus.Family, project, kind, name string, each func(bus.Stored)) (func(), error) {
	prefix := "drover.evt." + string(f) + "."
	subject := prefix + keyFilter(f, project, kind, name)
	sub, err := b.nc.Subscribe(subject, func(m *nats.Msg) {
		at, _ := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp")) // zero if the server says none
		key := strings.TrimPrefix(m.Subject, prefix)
		if s, err := derived(f, key, message{Subject: m.Subject, Time: at, Header: m.Header, Data: m.Data}); err == nil {
			each(s)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", f, b.explain(err))
	}
	stop := sync.OnceFunc(func() { _ = sub.Unsubscribe() }) // fails only if the connection is closed
	if err := b.subscribed(subject); err != nil {
		stop()
		return nil, fmt.Errorf("follow %s: %w", f, err)
	}
	return stop, nil
}

// History implements bus.Readers.
func (b *Bus) History(ctx context.Context, e bus.Entity) ([]bus.Stored, error) {
	var all []bus.Stored
	r, err := b.newReader(streamEvents, natsjs.DeliverAllPolicy, e.Filter())
	if err != nil {
		return nil, fmt.Errorf("history of %s: %w", e.Key(), err)
	}
	defer r.close()
	for {
		m, err := r.next(ctx, true)
		if errors.Is(err, errDrained) {
			behind, err := b.behind(ctx, e, r.last)
			if err != nil {
				return nil, fmt.Errorf("history of %s: %w", e.Key(), err)
			}
			if !behind {
				return all, nil
			}
			if err := r.anew(ctx); err != nil {
				return nil, err
			}
			continue
		}
		var s bus.Stored
		if err == nil {
			s, err = logged(m)
		}
		if err != nil {
			return nil, fmt.Errorf("history of %s: %w", e.Key(), err)
		}
		all = append(all, s)
	}
}

// behind reports whether the log has later events of an entity than the last that was read: a reader's consumer may sit on a
// replica that has not caught up. Who may not ask the leader (bus.ProjectUser) has to believe the replica.
func (b *Bus) behind(ctx context.Context, e bus.Entity, last uint64) (bool, error) {
	newest, err := b.leaderGet(ctx, streamEvents, getRequest{LastFor: e.Filter()})
	if errors.Is(err, bus.ErrNotFound) || errors.Is(err, bus.ErrDenied) {
		return false, nil
	}
	return newest.Seq > last, err
}
