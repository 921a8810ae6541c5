package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/droverproject/drover/pkg/bus"
)

// narrow is what a reader of a family wants to see.
type narrow struct {
	family              bus.Family
	project, kind, name string
}

func (n narrow) covers(e bus.Entity) bool {
	fits := func(want, have string) bool { return want == "" || want == have }
	return e.Family == n.family && fits(n.project, e.Project) && fits(n.name, e.Name) && (!n.family.HasKind() || fits(n.kind, e.Kind))
}

type follower struct {
	narrow
	each func(bus.Stored)
}

// feed tells those who follow and those who watch. The lock must be held.
func (s *System) feed(e bus.Stored) {
	for _, f := range s.followers {
		if f.covers(e.Entity) {
			s.callbacks = append(s.callbacks, func() { f.each(e) })
		}
	}
	for _, w := range s.watches {
		if w.covers(e.Entity) {
			w.put(e)
		}
	}
}

// Get implements bus.Readers.
func (c *Conn) Get(_ context.Context, e bus.Entity) (bus.Stored, error) {
	if err := c.alive(); err != nil {
		return bus.Stored{}, err
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.buckets[e.Family][e.Key()]; ok && !x.Deleted {
		return x, nil
	}
	return bus.Stored{}, fmt.Errorf("get %s %s: %w", e.Family, e.Key(), bus.ErrNotFound)
}

// entries lists a bucket, without order. The lock must be held.
func (s *System) entries(n narrow) []bus.Stored {
	var all []bus.Stored
	for _, e := range s.buckets[n.family] {
		if n.covers(e.Entity) {
			all = append(all, e)
		}
	}
	return all
}

// List implements bus.Readers.
func (c *Conn) List(_ context.Context, f bus.Family, project, kind string, each func(bus.Stored) error) error {
	if err := c.alive(); err != nil {
		return err
	}
	s := c.s
	s.mu.Lock()
	all := slices.DeleteFunc(s.entries(narrow{f, project, kind, ""}), func(e bus.Stored) bool { return e.Deleted })
	s.mu.Unlock()
	return inOrder(all, each)
}

// watch implements bus.Watch.
type watch struct {
	narrow
	out   chan bus.Stored
	stop  chan struct{}
	once  sync.Once
	ended chan struct{}
	leave func()

	mu    sync.Mutex
	queue []bus.Stored
	more  chan struct{} // one place: something was put
}

func (w *watch) put(e bus.Stored) {
	w.mu.Lock()
	w.queue = append(w.queue, e)
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// C implements bus.Watch.
func (w *watch) C() <-chan bus.Stored { return w.out }

// Close implements bus.Watch.
func (w *watch) Close() {
	w.end()
	<-w.ended
}

func (w *watch) end() { w.once.Do(func() { close(w.stop) }) }

func (w *watch) run() {
	defer close(w.ended)
	defer close(w.out)
	defer w.leave()
	for {
		w.mu.Lock()
		batch := w.queue
		w.queue = nil
		w.mu.Unlock()
		for _, e := range batch {
			select {
			case w.out <- e:
			case <-w.stop:
				return
			}
		}
		select {
		case <-w.more:
		case <-w.stop:
			return
		}
	}
}

// WatchBucket implements bus.Readers.
func (c *Conn) WatchBucket(_ context.Context, f bus.Family, project, kind, name string) (bus.Watch, error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	s := c.s
	w := &watch{narrow: narrow{f, project, kind, name}, out: make(chan bus.Stored), stop: make(chan struct{}),
		ended: make(chan struct{}), more: make(chan struct{}, 1)}
	w.leave = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watches = remove(s.watches, w)
	}
	s.mu.Lock()
	_ = inOrder(s.entries(w.narrow), func(e bus.Stored) error { w.put(e); return nil })
	w.put(bus.Stored{})
	s.watches = append(s.watches, w)
	s.mu.Unlock()
	c.ifKilled(w.end)
	go w.run()
	if err := c.onClose(w.Close); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Follow implements bus.Readers.
func (c *Conn) Follow(f bus.Family, project, kind, name string, each func(bus.Stored)) (func(), error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	s, x := c.s, &follower{narrow{f, project, kind, name}, each}
	s.mu.Lock()
	s.followers = append(s.followers, x)
	s.mu.Unlock()
	stop := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.followers = remove(s.followers, x)
	}
	c.ifKilled(func() { s.followers = remove(s.followers, x) })
	return stop, c.onClose(stop)
}
