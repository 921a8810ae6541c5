package cli

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// dripping is a bus whose lists take a while for each entry.
type dripping struct {
	Bus
	each time.Duration
}

func (d dripping) List(ctx context.Context, _ bus.Family, _, _ string, each func(bus.Stored) error) error {
	for range 10 {
		select {
		case <-time.After(d.each):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := each(bus.Stored{}); err != nil {
			return err
		}
	}
	return nil
}

func (dripping) Close() error { return nil }

// A list may take as long as it goes on, unless --timeout says otherwise; one that stands still is a timeout.
func TestListsTakeAsLongAsTheyGoOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		each, timeout time.Duration
		seen          int
		err           string
	}{
		{each: RequestTimeout / 2, seen: 10},
		{each: RequestTimeout + time.Second, err: "nothing more came for 10s"},
		{each: RequestTimeout / 2, timeout: RequestTimeout + time.Second, seen: 2, err: context.DeadlineExceeded.Error()},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := app(nil)
			a.timeout = c.timeout
			a.Connect = func(context.Context, Connection) (Bus, error) { return dripping{each: c.each}, nil }
			ctx, b, cancel, err := a.patiently(t.Context())
			defer cancel()
			require.NoError(t, err)
			seen := 0
			err = b.List(ctx, bus.Resource, "p", "", func(bus.Stored) error { seen++; return nil })
			require.Equal(t, c.seen, seen)
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.err)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}
