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
	sourceUnsaid = time.Second
	// rederiveAgain is how long a stream that was handed over is left alone: its new leader begins after up to a second. It is
	// doubled each time that did not help, up to rederiveSeldom: another leader is not what it lacks.
	rederiveAgain  = 3 * time.Second
	rederiveSeldom = time.Minute
	// rederiveTry is how long one question may take: one that meets an election is never answered.
	rederiveTry = 500 * time.Millisecond
)

var (
	errNoLeader   = errors.New("the log has no leader")
	errLeaderless = errors.New("the servers have no leader")
)

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
// leader steps down. They are looked at before EVENTS has one, too: who leads since then has asked in vain, and is known by it. What a
// new leader asks for is a consumer of EVENTS, which the leader of all servers makes: none is handed over before that is there.
func (b *Bus) Rederive(ctx context.Context) ([]string, error) {
	layout := b.layout()
	if layout.Replicas == 1 {
		return nil, nil
	}
	b.rederive.mu.Lock()
	defer b.rederive.mu.Unlock()
	var streams []string
	for _, c := range layout.streams(b.Partitions(), b.noted()) {
		if len(c.Sources) > 0 {
			streams = append(streams, c.Name)
		}
	}
	for _, name := range streams {
		if b.rederive.streams[name] == nil {
			b.rederive.streams[name] = &deriving{}
		}
	}
	var cannot error // be handed over now: what a new one needs is not there
	known := make(chan struct{})
	go func() {
		defer close(known)
		var meta error
		var asked sync.WaitGroup
		asked.Go(func() { meta = b.leaderless(ctx) })
		_, led, err := b.led(ctx, streamEvents)
		if err == nil && !led {
			err = errNoLeader
		}
		asked.Wait()
		cannot = cmp.Or(err, meta)
	}()
	moved, errs := make([]string, len(streams)), make([]error, len(streams))
	each(streams, func(i int, name string) { // one without a leader is long in answering, and holds up no other
		moved[i], errs[i] = b.handOver(ctx, name, known, &cannot)
	})
	<-known
	if cannot != nil {
		return nil, fmt.Errorf("rederive: %w", cannot)
	}
	return slices.DeleteFunc(moved, func(name string) bool { return name == "" }), errors.Join(errs...)
}

// handOver has a stream's leader step down if it hears nothing of the log, once it is known that the next one can. It returns the
// stream's name, if it did.
func (b *Bus) handOver(ctx context.Context, name string, known <-chan struct{}, cannot *error) (string, error) {
	info, led, err := b.led(ctx, name)
	if err != nil {
		return "", fmt.Errorf("rederive %s: %w", name, err)
	}
	d := b.rederive.streams[name]
	if !led || !d.silent(info.Cluster.Leader, info.Sources, time.Now()) {
		return "", nil // whoever leads it next begins anew
	}
	if <-known; *cannot != nil || !d.move(time.Now()) {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, rederiveTry)
	defer cancel()
	// Asked once: a second one would be for who leads it then.
	if err := b.apiBy(ctx, b.calls.request, "STREAM.LEADER.STEPDOWN."+name, nil, nil); err != nil {
		return "", fmt.Errorf("rederive %s: %w", name, err)
	}
	return name, nil
}

// each does something with all streams at the same time.
func each(streams []string, do func(i int, name string)) {
	var all sync.WaitGroup
	for i, name := range streams {
		all.Go(func() { do(i, name) })
	}
	all.Wait()
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

// leaderless is an error where nobody leads all servers, as far as that can be asked: nobody else answers this.
func (b *Bus) leaderless(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rederiveTry)
	defer cancel()
	if err := b.api(ctx, "INFO", nil, nil); err != nil {
		return fmt.Errorf("%w: %w", errLeaderless, err)
	}
	return nil
}

// silent reports whether a stream's leader hears nothing of the log, as far as that can be known by now.
func (d *deriving) silent(leader string, sources []*natsjs.StreamSourceInfo, now time.Time) bool {
	said := false
	for _, s := range sources {
		if s.Active > sourceSilence {
			return true
		}
		said = said || s.Active >= 0
	}
	switch {
	case said:
		d.unsaid, d.again = time.Time{}, 0
	case d.unsaid.IsZero() || d.leader != leader:
		d.unsaid = now
	}
	d.leader = leader
	return !said && now.Sub(d.unsaid) > sourceUnsaid
}

// move reports whether a stream whose leader is silent is to be handed over now.
func (d *deriving) move(now time.Time) bool {
	if now.Sub(d.moved) < d.again {
		return false
	}
	d.moved, d.again = now, min(max(2*d.again, rederiveAgain), rederiveSeldom)
	return true
}
