package memory

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// memberDead is how long a silent member is taken for living.
const memberDead = 2 * time.Second

// membership implements bus.Membership. The system's lock guards it.
type membership struct {
	c           *Conn
	service, id string
	share       []int
	declined    []int
	changes     chan []int
}

// Join implements bus.Members.
func (c *Conn) Join(_ context.Context, service, id string) (bus.Membership, error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	if service == "" || id == "" {
		return nil, errors.New("join: a service and an id are required")
	}
	s := c.s
	m := &membership{c: c, service: service, id: id, changes: make(chan []int, 1)}
	s.mu.Lock()
	// A process that comes back under its name takes its old place.
	s.members[service] = slices.DeleteFunc(slices.Clone(s.members[service]), func(x *membership) bool { return x.id == id })
	s.members[service] = append(s.members[service], m)
	s.shareOut(service)
	s.mu.Unlock()
	return m, c.onClose(m.Leave)
}

// Changes implements bus.Membership.
func (m *membership) Changes() <-chan []int { return m.changes }

// Lapses implements bus.Membership: in memory everybody is heard.
func (m *membership) Lapses() <-chan struct{} { return nil }

// Members implements bus.Membership.
func (m *membership) Members() []string {
	s := m.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids(m.service)
}

// Decline implements bus.Membership.
func (m *membership) Decline(partitions []int) {
	s := m.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	m.declined = slices.Clone(partitions)
	if slices.Contains(s.members[m.service], m) {
		s.shareOut(m.service)
	}
}

// Leave implements bus.Membership.
func (m *membership) Leave() {
	s := m.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[m.service] = remove(s.members[m.service], m)
	s.shareOut(m.service)
}

// ids lists the members of a service, sorted. The lock must be held.
func (s *System) ids(service string) []string {
	var ids []string
	for _, m := range s.members[service] {
		ids = append(ids, m.id)
	}
	slices.Sort(ids)
	return ids
}

// shareOut tells each member its share, if it changed. The lock must be held.
func (s *System) shareOut(service string) {
	ids, declined := s.ids(service), map[string][]int{}
	for _, m := range s.members[service] {
		declined[m.id] = m.declined
	}
	for _, m := range s.members[service] {
		share := bus.ShareOf(s.options.Partitions, m.id, ids, declined)
		if m.share != nil && slices.Equal(share, m.share) {
			continue
		}
		if m.share = share; m.share == nil {
			m.share = []int{}
		}
		select {
		case <-m.changes:
		default:
		}
		m.changes <- slices.Clone(m.share) // only holders of the lock fill it, and it is empty
	}
}
