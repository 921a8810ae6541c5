package partition

import (
	"sync/atomic"
	"time"
)

// Clock is the server's clock as its ticks show it: the local clock, corrected by the last tick's difference. Before
// the first tick it is the local clock. Safe for concurrent use.
type Clock struct {
	local  func() time.Time
	offset atomic.Int64 // nanoseconds
}

// NewClock returns a clock without a correction; local is the machine's.
func NewClock(local func() time.Time) *Clock { return &Clock{local: local} }

// Set corrects the clock by a tick that the server stored at this time.
func (c *Clock) Set(at time.Time) { c.offset.Store(int64(at.Sub(c.local()))) }

// Now is the server's time, late by what a tick takes to arrive.
func (c *Clock) Now() time.Time { return c.local().Add(time.Duration(c.offset.Load())).UTC() }
