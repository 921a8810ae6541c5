package memory

import "time"

// Clock is the time of a system. A simulator brings its own: then nothing in this package waits for real time.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f once after d, on any goroutine, unless stop is called before.
	AfterFunc(d time.Duration, f func()) (stop func())
}

// realClock is the machine's.
type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) AfterFunc(d time.Duration, f func()) func() {
	t := time.AfterFunc(d, f)
	return func() { t.Stop() }
}
