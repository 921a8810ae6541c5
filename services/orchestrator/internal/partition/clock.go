package partition

import (
	"sync/atomic"
	"time"
)

// Clock is the server's clock as its ticks show it: the local clock, corrected by the last tick's difference. Before
// the first tick it is the local clock. Safe for concurrent use.
type Clock struct {
	offset atomic.Int64 // nanoseconds
}

// NewClock returns a clock without a correction.
func NewClock() *Clock { return &Clock{} }

// Set corrects the clock by a tick that the server stored at this time.
func (c *Clock) Set(at time.Time) { c.offset.Store(int64(time.Until(at))) }

// Now is the server's time, late by what a tick takes to arrive.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())).UTC() }
