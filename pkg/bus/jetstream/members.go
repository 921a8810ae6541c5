package jetstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	memberBeat = 500 * time.Millisecond
	memberDead = 2 * time.Second
	// memberSettle is how long a process that joins listens before it takes its first share. The living answer a
	// newcomer's first beat at once, so it usually knows them sooner.
	memberSettle = 600 * time.Millisecond
	// memberAlone is how long it listens if nobody answers.
	memberAlone = 300 * time.Millisecond
)

// What a heartbeat says.
const (
	wordHere  = "here"
	wordJoin  = "join"
	wordLeave = "leave"
)

// membership implements bus.Membership.
type membership struct {
	b       *Bus
	prefix  string // drover.member.<service>.
	id      string
	sub     *nats.Subscription
	in      chan *nats.Msg
	changes chan []int
	stop    context.CancelFunc
	ended   chan struct{}

	mu     sync.Mutex
	living map[string]time.Time // when last heard of; without this one
}

// Join implements bus.Members.
func (b *Bus) Join(_ context.Context, service, id string) (bus.Membership, error) {
	if service == "" || id == "" {
		return nil, errors.New("join: a service and an id are required")
	}
	m := &membership{
		b: b, prefix: "drover.member." + bus.Token(service) + ".", id: id, in: make(chan *nats.Msg, 1024),
		changes: make(chan []int, 1), ended: make(chan struct{}), living: map[string]time.Time{},
	}
	var err error
	if m.sub, err = b.nc.ChanSubscribe(m.prefix+"*", m.in); err != nil {
		return nil, fmt.Errorf("join %s: %w", service, b.explain(err))
	}
	if err := b.subscribed(m.prefix + "*"); err != nil {
		_ = m.sub.Unsubscribe() // fails only if the connection is closed
		return nil, fmt.Errorf("join %s: %w", service, err)
	}
	ctx, stop := context.WithCancel(b.ctx)
	m.stop = stop
	m.say(wordJoin)
	b.wg.Go(func() { m.run(ctx) })
	return m, nil
}

func (m *membership) say(word string) {
	_ = m.b.nc.Publish(m.prefix+bus.Token(m.id), []byte(word)) // the next beat says it again
}

// Changes implements bus.Membership.
func (m *membership) Changes() <-chan []int { return m.changes }

// Members implements bus.Membership.
func (m *membership) Members() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.all()))
}

// all lists the living and this one. The lock must be held.
func (m *membership) all() map[string]struct{} {
	all := map[string]struct{}{m.id: {}}
	for id := range m.living {
		all[id] = struct{}{}
	}
	return all
}

// Leave implements bus.Membership.
func (m *membership) Leave() {
	m.stop()
	<-m.ended
}

func (m *membership) run(ctx context.Context) {
	defer close(m.ended)
	defer func() {
		_ = m.sub.Unsubscribe() // fails only if the connection is closed
		m.say(wordLeave)
	}()
	beat := time.NewTicker(memberBeat)
	defer beat.Stop()
	settle := time.After(memberAlone)
	began, settled := time.Now(), false
	var share []int
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-m.in:
			m.hear(msg)
		case <-beat.C:
			m.say(wordHere)
			m.bury(time.Now())
		case <-settle:
			if left := memberSettle - time.Since(began); left > 0 && len(m.Members()) > 1 {
				settle = time.After(left) // there are others: there may be more
				continue
			}
			settled = true
		}
		if !settled {
			continue
		}
		now := bus.Share(m.b.Partitions(), m.id, m.Members())
		if share == nil || !slices.Equal(now, share) {
			if share = now; share == nil {
				share = []int{}
			}
			m.offer(slices.Clone(share))
		}
	}
}

// offer puts the newest share in the place of one that was not taken.
func (m *membership) offer(share []int) {
	select {
	case <-m.changes:
	default:
	}
	m.changes <- share // only this goroutine fills it, and it is empty
}

func (m *membership) hear(msg *nats.Msg) {
	id, err := bus.Name(strings.TrimPrefix(msg.Subject, m.prefix))
	if err != nil || id == m.id {
		return
	}
	word := string(msg.Data)
	m.mu.Lock()
	_, known := m.living[id]
	if word == wordLeave {
		delete(m.living, id)
	} else {
		m.living[id] = time.Now()
	}
	m.mu.Unlock()
	if word == wordJoin || word == wordHere && !known {
		m.say(wordHere) // it need not wait for our next beat
	}
}

// bury drops members that are silent. While this process is cut off it hears nobody: then it knows nothing, and keeps
// what it knew, for the others will have taken its share and the expected sequence decides.
func (m *membership) bury(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.b.nc.IsConnected() {
		for id := range m.living {
			m.living[id] = now
		}
		return
	}
	maps.DeleteFunc(m.living, func(_ string, heard time.Time) bool { return now.Sub(heard) > memberDead })
}
