// Package retry asks again while nobody answers: a partition whose owner is gone has another within seconds, and the clients
// of the front doors are not told of that.
package retry

import (
	"context"
	"time"
)

// Pauses between two tries: the first is PauseMin, each is twice the one before, and none longer than PauseMax.
const (
	PauseMin = 20 * time.Millisecond
	PauseMax = 500 * time.Millisecond
)

// Do tries until it works, until final says of an error that another try cannot help, or until ctx ends. It returns the
// error of the last try. Each try has most of time; final may be nil: then every error is tried again.
func Do(ctx context.Context, most time.Duration, final func(error) bool, try func(ctx context.Context) error) error {
	for pause := PauseMin; ; pause = min(2*pause, PauseMax) {
		one, end := context.WithTimeout(ctx, most)
		err := try(one)
		end()
		if err == nil || final != nil && final(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}
