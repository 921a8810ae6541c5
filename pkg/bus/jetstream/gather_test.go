package jetstream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
)

// Where every write is synced, appends that wait go out together. One that lost a race costs its neighbours their batch,
// and nothing else; each learns its own sequence.
func TestAppendsThatWaitGoOutTogether(t *testing.T) {
	t.Parallel()
	s := start(t)
	for sync, together := range map[string]bool{jetstream.SyncAlways: true, jetstream.SyncDefault: false} {
		// What one process notes, another one acts on.
		open(t, s, jetstream.Options{Partitions: 4, Sync: sync})
		b := open(t, s, jetstream.Options{})
		for _, lost := range []int{-1, 57} {
			const n = 200
			appends := make([]bus.Pending, n)
			for i := range appends {
				e := node(i)
				e.Project = fmt.Sprint(sync, lost)
				a := bus.Append{Entity: e, Body: fmt.Append(nil, i)}
				if i == lost {
					a.Expect = 1 << 40
				}
				appends[i] = b.Append(a)
			}
			for i, p := range appends {
				seq, err := p.Result()
				if i == lost {
					require.ErrorIs(t, err, bus.ErrLost)
					continue
				}
				require.NoError(t, err)
				e := node(i)
				e.Project = fmt.Sprint(sync, lost)
				last, err := b.Last(t.Context(), []bus.Entity{e})
				require.NoError(t, err)
				require.Equal(t, last[0].Seq, seq)
				require.Equal(t, fmt.Sprint(i), string(last[0].Body))
			}
		}
		require.Equal(t, together, batched(t, s) > 0, "%d events came in batches", batched(t, s))
		js := client(t, s)
		events, err := js.Stream(t.Context(), "EVENTS")
		require.NoError(t, err)
		require.Equal(t, sync, events.CachedInfo().Config.Metadata["drover.sync"])
		require.NoError(t, events.Purge(t.Context()))
	}
}

// batched counts the events that were stored as a part of a batch.
func batched(t *testing.T, s *server) (n int) {
	t.Helper()
	js := client(t, s)
	events, err := js.Stream(t.Context(), "EVENTS")
	require.NoError(t, err)
	state := events.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := events.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		if m.Header.Get("Nats-Batch-Id") != "" {
			n++
		}
	}
	return n
}

// A server that was killed may have forgotten the results that it acknowledged last: they are sent again.
func TestResultsThatTheServerForgotAreSentAgain(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 4})
	subject := bus.ResultSubject(1, "p", "node", "a")
	require.NoError(t, b.PublishResult(t.Context(), subject, map[string]string{bus.HeaderTraceparent: "t"}, []byte("done")))
	js := client(t, s)
	results, err := js.Stream(t.Context(), "RESULTS")
	require.NoError(t, err)
	require.NoError(t, results.Purge(t.Context())) // in the place of a write that never reached the disk
	require.NoError(t, s.Shutdown())
	s.up(t)
	in, err := b.Results(t.Context(), 1)
	require.NoError(t, err)
	defer in.Close()
	select {
	case d := <-in.C():
		require.Equal(t, subject, d.Subject())
		require.Equal(t, "done", string(d.Body()))
		require.Equal(t, "t", d.Header(bus.HeaderTraceparent))
		require.NoError(t, d.Ack())
	case <-time.After(20 * time.Second):
		t.Fatal("it is lost")
	}
}
