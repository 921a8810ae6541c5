package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// Times of Rederive.
const (
	// sourceSilence is how long a stream may hear nothing of the log: the log's server says every second that it is there.
	sourceSilence = 2500 * time.Millisecond
	// sourceUnsaid is how long a new leader may take to be heard: it asks the log's server within 0.8 s.
	sourceUnsaid = 1500 * time.Millisecond
	// rederiveAgain is how long a stream that was handed over is left alone: its new leader begins after up to a second. It is
	// doubled each time that did not help, up to rederiveSeldom: another leader is not what it lacks.
	rederiveAgain  = 3 * time.Second
	rederiveSeldom = time.Minute
	// rederiveTry is how long one question may take: one that meets an election is never answered.
	rederiveTry = 500 * time.Millisecond
)

var errNoLeader = errors.New("the log has no leader")

// deriving is what Rederive remembers of a stream.
type deriving struct {
	leader string
	unsaid time.Time // since when this leader has not said when it heard of the log last
	moved  time.Time
	again  time.Duration // after moved
}

// Rederive implements bus.Bus. A leader of a derived stream that loses the leader of EVENTS notices after 10 to 20 seconds, and one
// that begins while EVENTS has none waits for its answer for 30 (nats-server 2.15.2, sourceHealthCheckInterval and
// srcConsumerWaitTime); a new one asks at once. So where EVENTS has a leader and a derived stream does not hear of it, that one's
// leader steps down.
func (b *Bus) Rederive(ctx context.Context) ([]string, error) {
	layout := b.layout()
	if layout.Replicas == 1 {
		return nil, nil
	}
	if _, led, err := b.led(ctx, streamEvents); err != nil || !led {
		return nil, fmt.Errorf("rederive: %w", cmp.Or(err, errNoLeader))
	}
	b.rederive.mu.Lock()
	defer b.rederive.mu.Unlock()
	var streams []string
	for _, c := range layout.streams(b.Partitions(), b.noted()) {
		if len(c.Sources) > 0 {
			streams = append(streams, c.Name)
		}
	}
	moved, errs := make([]string, len(streams)), make([]error, len(streams))
	var all sync.WaitGroup
	for i, name := range streams {
		known := b.rederive.streams[name]
		if known == nil {
			known = &deriving{}
			b.rederive.streams[name] = known
		}
		all.Go(func() {
			if stepped, err := b.rederiveOne(ctx, name, known); err != nil {
				errs[i] = fmt.Errorf("rederive %s: %w", name, err)
			} else if stepped {
				moved[i] = name
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(moved, func(name string) bool { return name == "" }), errors.Join(errs...)
}

// rederiveOne hands one stream over, where its leader hears nothing of the log.
func (b *Bus) rederiveOne(ctx context.Context, name string, known *deriving) (moved bool, err error) {
	info, led, err := b.led(ctx, name)
	if err != nil || !led {
		return false, err // whoever leads it next begins anew
	}
	if !known.due(info.Cluster.Leader, info.Sources, time.Now()) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, rederiveTry)
	defer cancel()
	// Asked once: a second one would be for who leads it then.
	return true, b.apiBy(ctx, b.calls.request, "STREAM.LEADER.STEPDOWN."+name, nil, nil)
}

// led asks after a stream, and reports whether it has a leader; who is asked between two leaders does not answer.
func (b *Bus) led(ctx context.Context, name string) (*natsjs.StreamInfo, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, rederiveTry)
	defer cancel()
	info, err := b.streamInfo(ctx, name, "")
	if errors.Is(err, bus.ErrNotFound) || err != nil && passing(err) {
		return nil, false, nil
	}
	return info, err == nil && info.Cluster != nil && info.Cluster.Leader != "", err
}

// due reports whether a stream is to be handed over now.
func (d *deriving) due(leader string, sources []*natsjs.StreamSourceInfo, now time.Time) bool {
	silent, said := d.silent(leader, sources, now)
	if said && !silent {
		d.again = 0
	}
	if !silent || now.Sub(d.moved) < d.again {
		return false
	}
	d.moved, d.again = now, min(max(2*d.again, rederiveAgain), rederiveSeldom)
	return true
}

// silent reports whether a stream's leader hears nothing of the log, and whether it has said when it heard of it last.
func (d *deriving) silent(leader string, sources []*natsjs.StreamSourceInfo, now time.Time) (silent, said bool) {
	for _, s := range sources {
		if s.Active > sourceSilence {
			return true, true
		}
		said = said || s.Active >= 0
	}
	switch {
	case said:
		d.unsaid = time.Time{}
	case d.unsaid.IsZero() || d.leader != leader:
		d.unsaid = now
	}
	d.leader = leader
	return !said && now.Sub(d.unsaid) > sourceUnsaid, said
}
