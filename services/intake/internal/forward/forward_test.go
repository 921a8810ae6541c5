package forward_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/intake/internal/forward"
)

type owner func(ctx context.Context, partition int, r bus.Request) (bus.Request, error)

func (o owner) Ask(ctx context.Context, partition int, r bus.Request) (bus.Request, error) {
	return o(ctx, partition, r)
}

var command = forward.Command{
	Partition: 7, Subject: "drover.cmd.p.k.n.start", RequestID: "r", ContentType: "application/json", Body: []byte("{}"),
	Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}

func TestAskSaysEverything(t *testing.T) {
	t.Parallel()
	b := owner(func(_ context.Context, p int, r bus.Request) (bus.Request, error) {
		require.Equal(t, 7, p)
		require.Equal(t, bus.Request{Verb: "command", Body: []byte("{}"), Header: map[string]string{
			"Drover-Subject": "drover.cmd.p.k.n.start", "Drover-Request-Id": "r", "Content-Type": "application/json",
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		}}, r)
		return bus.Request{Body: []byte("answer")}, nil
	})
	reply, err := forward.Ask(t.Context(), b, &command)
	require.NoError(t, err)
	require.Equal(t, "answer", string(reply.Body))
}

func TestABrokenTraceIsDropped(t *testing.T) {
	t.Parallel()
	for _, trace := range []string{"x", "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"} {
		c := command
		c.Traceparent = trace
		_, err := forward.Ask(t.Context(), owner(func(_ context.Context, _ int, r bus.Request) (bus.Request, error) {
			require.NotContains(t, r.Header, "traceparent")
			return bus.Request{}, nil
		}), &c)
		require.NoError(t, err)
	}
}

func TestAskWaitsForAnOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		b := owner(func(context.Context, int, bus.Request) (bus.Request, error) {
			if time.Since(began) < 3*time.Second {
				return bus.Request{}, bus.ErrNoOwner
			}
			return bus.Request{}, nil
		})
		_, err := forward.Ask(t.Context(), b, &command)
		require.NoError(t, err)
		require.Less(t, time.Since(began), forward.Patience)
	})
}

func TestAskGivesUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ask  owner
		want error
		text string
	}{
		"nobody there": {
			func(context.Context, int, bus.Request) (bus.Request, error) { return bus.Request{}, bus.ErrNoOwner },
			bus.ErrNoOwner, "no orchestrator serves partition 7",
		},
		"no answer": {
			func(ctx context.Context, _ int, _ bus.Request) (bus.Request, error) {
				<-ctx.Done()
				return bus.Request{}, ctx.Err()
			},
			context.DeadlineExceeded, "may have been accepted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, tries := time.Now(), 0
				_, err := forward.Ask(t.Context(), owner(func(ctx context.Context, p int, r bus.Request) (bus.Request, error) {
					tries++
					return c.ask(ctx, p, r)
				}), &command)
				require.ErrorIs(t, err, c.want)
				require.Equal(t, forward.Patience, time.Since(began))
				require.Greater(t, tries, 1)
				require.Contains(t, forward.Reason(7, err), c.text)
			})
		})
	}
}

func TestAskDoesNotRepeatWhatWillNotPass(t *testing.T) {
	t.Parallel()
	tries := 0
	_, err := forward.Ask(t.Context(), owner(func(context.Context, int, bus.Request) (bus.Request, error) {
		tries++
		return bus.Request{}, bus.ErrDenied
	}), &command)
	require.ErrorIs(t, err, bus.ErrDenied)
	require.Equal(t, 1, tries)
}

func TestAskEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := forward.Ask(ctx, owner(func(context.Context, int, bus.Request) (bus.Request, error) {
		cancel()
		return bus.Request{}, errors.New("interrupted")
	}), &command)
	require.ErrorIs(t, err, context.Canceled)
	require.Contains(t, forward.Reason(7, err), "stopping")
}
