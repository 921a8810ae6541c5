package jetstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	memberBeat = 500 * time.Millisecond
	memberDead = 2 * time.Second
	// memberLapse is after how long without a word of its own that came back a process must believe that others took it for dead: they
	// may have heard it later than itself, but not by a beat.
	memberLapse = memberDead - memberBeat
	// memberSettle is how long a process that joins listens before it takes its first share. The living answer a
	// newcomer's first beat at once, so it usually knows them sooner.
	memberSettle = 600 * time.Millisecond
	// memberAlone is how long it listens if nobody answers.
	memberAlone = 300 * time.Millisecond
)

// What a heartbeat says: one of these words, and behind a space the partitions that the member declines, with commas
// between them.
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
	lapses  chan struct{}
	echoed  time.Time // when a word of its own came back last
	settled bool      // it has a share
	stop    context.CancelFunc
	ended   chan struct{}

	mu       sync.Mutex
	living   map[string]time.Time // when last heard of; without this one
	declined map[string][]int     // by member, this one included
	told     chan struct{}        // this one declines something else
}

// Join implements bus.Members.
func (b *Bus) Join(_ context.Context, service, id string) (bus.Membership, error) {
	if service == "" || id == "" {
		return nil, errors.New("join: a service and an id are required")
	}
	m := &membership{
		b: b, prefix: "drover.member." + bus.Token(service) + ".", id: id, in: make(chan *nats.Msg, 1024),
		changes: make(chan []int, 1), lapses: make(chan struct{}, 1), ended: make(chan struct{}), living: map[string]time.Time{},
		declined: map[string][]int{}, told: make(chan struct{}, 1),
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
	m.mu.Lock()
	text := []byte(word)
	for i, partition := range m.declined[m.id] {
		text = append(text, " ,"[min(i, 1)])
		text = strconv.AppendInt(text, int64(partition), 10)
	}
	m.mu.Unlock()
	_ = m.b.nc.Publish(m.prefix+bus.Token(m.id), text) // the next beat says it again
}

// heard reads a heartbeat. What it does not understand, of another version, it leaves out.
func heard(text string) (word string, declined []int) {
	word, list, _ := strings.Cut(text, " ")
	for _, field := range strings.Split(list, ",") {
		if partition, err := strconv.Atoi(field); err == nil {
			declined = append(declined, partition)
		}
	}
	return word, declined
}

// Decline implements bus.Membership.
func (m *membership) Decline(partitions []int) {
	m.mu.Lock()
	m.declined[m.id] = slices.Clone(partitions)
	m.mu.Unlock()
	select {
	case m.told <- struct{}{}:
	default: // it is about to be told
	}
}

// Changes implements bus.Membership.
func (m *membership) Changes() <-chan []int { return m.changes }

// Lapses implements bus.Membership.
func (m *membership) Lapses() <-chan struct{} { return m.lapses }

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
	began := time.Now()
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
		case <-m.told:
			m.say(wordHere)
		case <-settle:
			if left := memberSettle - time.Since(began); left > 0 && len(m.Members()) > 1 {
				settle = time.After(left) // there are others: there may be more
				continue
			}
			m.settled = true
		}
		if !m.settled {
			continue
		}
		m.mu.Lock()
		now := bus.ShareOf(m.b.Partitions(), m.id, slices.Sorted(maps.Keys(m.all())), m.declined)
		m.mu.Unlock()
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
	if err != nil {
		return
	}
	if id == m.id {
		m.echo(time.Now())
		return
	}
	word, declined := heard(string(msg.Data))
	m.mu.Lock()
	_, known := m.living[id]
	if word == wordLeave {
		delete(m.living, id)
		delete(m.declined, id)
	} else {
		m.living[id] = time.Now()
		m.declined[id] = declined
	}
	m.mu.Unlock()
	if word == wordJoin || word == wordHere && !known {
		m.say(wordHere) // it need not wait for our next beat
	}
	if word == wordHere && !known && m.settled {
		m.lapse() // it has lived all the time, and has not heard this one either
	}
}

// echo notes that a word of this process has come back from the server.
func (m *membership) echo(now time.Time) {
	if !m.echoed.IsZero() && now.Sub(m.echoed) > memberLapse {
		m.lapse()
	}
	m.echoed = now
}

func (m *membership) lapse() {
	select {
	case m.lapses <- struct{}{}:
	default: // it is about to be known
	}
}

// bury drops members that are silent. While this process is cut off it hears nobody, not even itself: then it knows nothing, and
// keeps what it knew, for the others will have taken its share and the expected sequence decides. Once it is heard again, that is a
// lapse.
func (m *membership) bury(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.b.nc.IsConnected() || now.Sub(m.echoed) > memberLapse {
		for id := range m.living {
			m.living[id] = now
		}
		return
	}
	maps.DeleteFunc(m.living, func(id string, heard time.Time) bool {
		dead := now.Sub(heard) > memberDead
		if dead {
			delete(m.declined, id)
		}
		return dead
	})
}
