package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/services/gateway/internal/retry"
)

var errNobody = errors.New("nobody")

func TestPausesGrowToALimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var pauses []time.Duration
		last := time.Now()
		err := retry.Do(t.Context(), time.Second, nil, func(context.Context) error {
			pauses, last = append(pauses, time.Since(last)), time.Now()
			if len(pauses) < 8 {
				return errNobody
			}
			return nil
		})
		require.NoError(t, err)
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 20 * ms, 40 * ms, 80 * ms, 160 * ms, 320 * ms, 500 * ms, 500 * ms}, pauses)
	})
}

func TestEachTryEndsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries, began := 0, time.Now()
		err := retry.Do(t.Context(), time.Second, nil, func(ctx context.Context) error {
			if tries++; tries == 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		require.NoError(t, err)
		require.Equal(t, 3, tries)
		require.Equal(t, 2*time.Second+60*time.Millisecond, time.Since(began))
	})
}

func TestAFinalErrorIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	tries := 0
	denied := errors.New("denied")
	err := retry.Do(t.Context(), time.Second, func(err error) bool { return errors.Is(err, denied) }, func(context.Context) error {
		switch tries++; tries {
		case 1:
			return errNobody
		case 2:
			return denied
		default:
			return nil
		}
	})
	require.ErrorIs(t, err, denied)
	require.Equal(t, 2, tries)
}

// TestTheEndIsTheCallers: what the last try came to is told, and not that time is up.
func TestTheEndIsTheCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		began := time.Now()
		require.Equal(t, errNobody, retry.Do(ctx, time.Second, nil, func(context.Context) error { return errNobody }))
		require.Equal(t, 8*time.Second, time.Since(began))
	})
}
