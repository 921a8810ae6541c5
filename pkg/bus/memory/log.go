package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// eventsPerSubject is how much history EVENTS keeps.
const eventsPerSubject = 8

// history is what EVENTS holds of an entity, oldest first.
type history struct {
	events []event
}

type event struct {
	bus.Stored
	subject string
	expires bool // it is a deletion with a TTL
}

func (h *history) last() uint64 {
	if h == nil || len(h.events) == 0 {
		return 0
	}
	return h.events[len(h.events)-1].Seq
}

// answered is a bus.Pending that is done.
type answered struct {
	seq uint64
	err error
}

var done = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (answered) Done() <-chan struct{}     { return done }
func (a answered) Result() (uint64, error) { return a.seq, a.err }

// Append implements bus.Log.
func (c *Conn) Append(a bus.Append) bus.Pending { return c.append(a, false) }

// Bury implements bus.Log.
func (c *Conn) Bury(a bus.Append) bus.Pending { return c.append(a, true) }

func (c *Conn) append(a bus.Append, bury bool) bus.Pending {
	if err := c.check(a, bury); err != nil {
		return answered{err: err}
	}
	s := c.s
	defer s.run()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entities[a.Entity].last() != a.Expect {
		return answered{err: bus.ErrLost}
	}
	return answered{seq: s.store(a, bury, false)}
}

func (c *Conn) check(a bus.Append, bury bool) error {
	if err := c.alive(); err != nil {
		return err
	}
	if len(a.Body) > bus.BodyBytesMax {
		return fmt.Errorf("%w: body of %d bytes, limit %d", bus.ErrTooLarge, len(a.Body), bus.BodyBytesMax)
	}
	return a.Check(c.Partitions(), bury)
}

// AppendBatch implements bus.Log.
func (c *Conn) AppendBatch(_ context.Context, batch []bus.Append) (uint64, error) {
	if err := bus.CheckBatch(batch); err != nil {
		return 0, err
	}
	for _, a := range batch {
		if err := c.check(a, false); err != nil {
			return 0, err
		}
	}
	s := c.s
	defer s.run()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range batch {
		if s.entities[a.Entity].last() != a.Expect {
			return 0, bus.ErrLost
		}
	}
	var seq uint64
	for _, a := range batch {
		seq = s.store(a, false, false)
	}
	return seq, nil
}

// store stores an event and derives from it: bucket, feed, work. The lock must be held.
func (s *System) store(a bus.Append, bury, expires bool) uint64 {
	s.seq++
	e := event{subject: a.Subject(), expires: expires, Stored: bus.Stored{
		Entity: a.Entity, Dispatch: a.Dispatch, Version: a.Version, Seq: s.seq, Time: s.clock.Now(), Header: a.Header,
		Body: slices.Clone(a.Body), Deleted: bury}}
	h := s.entities[a.Entity]
	if h == nil {
		h = &history{}
		s.entities[a.Entity] = h
	}
	h.events = append(h.events, e)
	kept := 0
	for _, x := range h.events {
		if x.subject == e.subject {
			kept++
		}
	}
	if kept > eventsPerSubject {
		i := slices.IndexFunc(h.events, func(x event) bool { return x.subject == e.subject })
		h.events = slices.Delete(h.events, i, i+1)
	}
	var bucket, work time.Duration
	if s.options.Trail != nil {
		bucket, work = s.options.Trail()
	}
	s.derive(&s.shown, bucket, func() {
		s.buckets[a.Entity.Family][a.Entity.Key()] = e.Stored
		s.feed(e.Stored)
	})
	if a.Dispatch != "" {
		p := bus.Phase{Project: a.Entity.Project, Kind: a.Entity.Kind, Phase: a.Dispatch}
		s.derive(&s.handed, work, func() {
			s.work.queue(p.WorkSubject()).put(p.WorkSubject(), eventHeader(a.Header), e.Body)
		})
	}
	return e.Seq
}

// eventHeader is an event's header as a delivery shows it.
func eventHeader(h bus.Header) map[string]string {
	m := map[string]string{bus.HeaderFrom: h.From, bus.HeaderTo: h.To, bus.HeaderJob: h.Job, bus.HeaderTraceparent: h.Traceparent}
	if h.Revision > 0 {
		m[bus.HeaderRevision] = fmt.Sprint(h.Revision)
	}
	return m
}

// Last implements bus.Log.
func (c *Conn) Last(_ context.Context, entities []bus.Entity) ([]bus.Stored, error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	if len(entities) > bus.LoadEntitiesMax {
		return nil, fmt.Errorf("last events of %d entities: the limit is %d", len(entities), bus.LoadEntitiesMax)
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]bus.Stored, len(entities))
	for i, e := range entities {
		out[i].Entity = e
		if h := s.entities[e]; h != nil {
			out[i] = h.events[len(h.events)-1].Stored
		}
	}
	return out, nil
}

// Current implements bus.Log.
func (c *Conn) Current(ctx context.Context, entities []bus.Entity) ([]bus.Stored, error) {
	return c.Last(ctx, entities)
}

// Version implements bus.Log.
func (c *Conn) Version(_ context.Context, e bus.Entity, version string) (bus.Stored, error) {
	if err := c.alive(); err != nil {
		return bus.Stored{}, err
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.entities[e]; h != nil {
		for _, x := range slices.Backward(h.events) {
			if x.Version == version && !x.Deleted {
				return x.Stored, nil
			}
		}
	}
	return bus.Stored{}, fmt.Errorf("version %s of %s: %w", version, e.Key(), bus.ErrNotFound)
}

// Scan implements bus.Log.
func (c *Conn) Scan(_ context.Context, partition int, family bus.Family, each func(bus.Stored) error) error {
	return c.scan(func(e bus.Entity) bool { return e.Partition == partition && e.Family == family }, each)
}

// ScanAfter implements bus.Log.
func (c *Conn) ScanAfter(_ context.Context, partition int, family bus.Family, after uint64, each func(bus.Stored) error) error {
	if err := c.alive(); err != nil {
		return err
	}
	c.s.mu.Lock()
	var all []bus.Stored
	for e, h := range c.s.entities {
		if e.Partition != partition || e.Family != family {
			continue
		}
		for i := range h.events {
			if h.events[i].Seq > after {
				all = append(all, h.events[i].Stored)
			}
		}
	}
	c.s.mu.Unlock()
	return inOrder(all, each)
}

// ScanKind implements bus.Log.
func (c *Conn) ScanKind(_ context.Context, partition int, project, kind string, each func(bus.Stored) error) error {
	return c.scan(func(e bus.Entity) bool {
		return e.Partition == partition && e.Family == bus.Resource && e.Project == project && e.Kind == kind
	}, each)
}

func (c *Conn) scan(of func(bus.Entity) bool, each func(bus.Stored) error) error {
	if err := c.alive(); err != nil {
		return err
	}
	s := c.s
	s.mu.Lock()
	var all []bus.Stored
	for e, h := range s.entities {
		if of(e) {
			all = append(all, h.events[len(h.events)-1].Stored)
		}
	}
	s.mu.Unlock()
	return inOrder(all, each)
}

// inOrder calls each in the order of the log.
func inOrder(all []bus.Stored, each func(bus.Stored) error) error {
	slices.SortFunc(all, func(a, b bus.Stored) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, e := range all {
		if err := each(e); err != nil {
			return err
		}
	}
	return nil
}

// Forget implements bus.Log.
func (c *Conn) Forget(_ context.Context, e bus.Entity, seq uint64) error {
	if err := c.alive(); err != nil {
		return err
	}
	s := c.s
	defer s.run()
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.entities[e]
	if h == nil {
		return nil
	}
	last := h.events[len(h.events)-1]
	if !last.Deleted || last.Seq < seq {
		return fmt.Errorf("forget %s %s: %w", e.Family, e.Key(), bus.ErrLost)
	}
	if last.expires {
		return nil
	}
	again := s.store(bus.Append{Entity: e, Header: last.Header, Body: last.Body}, true, true)
	h.events = h.events[len(h.events)-1:]
	s.clock.AfterFunc(s.options.TombstoneTTL, func() { s.expire(e, again) })
	return nil
}

// Drop implements bus.Log.
func (c *Conn) Drop(_ context.Context, e bus.Entity, version string, upTo uint64) error {
	if err := c.alive(); err != nil {
		return err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if h := c.s.entities[e]; h != nil {
		h.events = slices.DeleteFunc(h.events, func(x event) bool { return x.Version == version && x.Seq <= upTo && !x.Deleted })
		if len(h.events) == 0 {
			delete(c.s.entities, e)
		}
	}
	return nil
}

// Trim implements bus.Log.
func (c *Conn) Trim(_ context.Context, e bus.Entity, keep int) error {
	if err := c.alive(); err != nil {
		return err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if h := c.s.entities[e]; h != nil {
		h.events = h.events[max(0, len(h.events)-max(keep, 1)):]
	}
	return nil
}

// expire removes a deletion whose time is over.
func (s *System) expire(e bus.Entity, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.entities[e]
	if h == nil {
		return
	}
	h.events = slices.DeleteFunc(h.events, func(x event) bool { return x.Seq == seq })
	if len(h.events) == 0 {
		delete(s.entities, e)
	}
	if b := s.buckets[e.Family]; b[e.Key()].Seq == seq {
		delete(b, e.Key())
	}
}

// History implements bus.Readers.
func (c *Conn) History(_ context.Context, e bus.Entity) ([]bus.Stored, error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []bus.Stored
	if h := s.entities[e]; h != nil {
		for _, x := range h.events {
			all = append(all, x.Stored)
		}
	}
	return all, nil
}
