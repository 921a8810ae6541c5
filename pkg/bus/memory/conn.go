package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// Conn is one connection to a System. It implements bus.Bus.
type Conn struct {
	s    *System
	done chan struct{} // closed by Close

	abandon []func() // what Kill ends; the system's lock guards it

	mu      sync.Mutex
	closers []func()
	closed  bool
}

var _ bus.Bus = (*Conn)(nil)

// alive says whether the connection may be used.
func (c *Conn) alive() error {
	select {
	case <-c.done:
		return bus.ErrClosed
	default:
		return nil
	}
}

// onClose has f called by Close, unless the connection is closed already. f must be idempotent.
func (c *Conn) onClose(f func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return bus.ErrClosed
	}
	c.closers = append(c.closers, f)
	return nil
}

// Partitions implements bus.Bus.
func (c *Conn) Partitions() int { return c.s.options.Partitions }

// Setup implements bus.Bus. There is nothing to make and nothing drifts.
func (c *Conn) Setup(context.Context, bool) ([]bus.Drift, error) { return nil, c.alive() }

// Check implements bus.Bus: everything is there.
func (c *Conn) Check(context.Context) ([]bus.Drift, error) { return nil, c.alive() }

// Rederive implements bus.Bus: what is derived here never stands still.
func (c *Conn) Rederive(context.Context) ([]string, error) { return nil, c.alive() }

// Healthy implements bus.Bus.
func (c *Conn) Healthy(context.Context) error { return c.alive() }

// Close implements bus.Bus: it leaves, and puts back what was not taken.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	closers := c.closers
	c.closers = nil
	close(c.done)
	c.mu.Unlock()
	for _, f := range closers {
		f()
	}
	return nil
}

// Kill ends the connection as kill -9 would: its members are dead to the others only after 2 s of silence, and what it
// held comes again after the ack wait.
func (c *Conn) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed, c.closers = true, nil
	close(c.done)
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range c.abandon {
		f()
	}
	s.clock.AfterFunc(memberDead, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for service := range s.members {
			s.members[service] = slices.DeleteFunc(slices.Clone(s.members[service]), func(m *membership) bool { return m.c == c })
			s.shareOut(service)
		}
	})
}

// ifKilled has f called by Kill, under the system's lock.
func (c *Conn) ifKilled(f func()) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.abandon = append(c.abandon, f)
}

// OnTick implements bus.Time.
func (c *Conn) OnTick(t bus.Tick, each func(at time.Time)) (func(), error) {
	if t != bus.TickSecond && t != bus.TickSweep {
		return nil, fmt.Errorf("no such tick: %q", t)
	}
	k := &ticker{tick: t, each: func(at time.Time) {
		if c.alive() == nil {
			each(at)
		}
	}}
	s := c.s
	s.mu.Lock()
	s.ticks = append(s.ticks, k)
	s.mu.Unlock()
	stop := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ticks = remove(s.ticks, k)
	}
	c.ifKilled(func() { s.ticks = remove(s.ticks, k) })
	return stop, c.onClose(stop)
}
