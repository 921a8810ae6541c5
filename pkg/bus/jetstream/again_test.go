package jetstream

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	stored  = `{"stream":"EVENTS","seq":17}`
	lost    = `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 9"},"stream":"EVENTS"}`
	full    = `{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"EVENTS"}`
	strange = `{"error":{"code":500,"err_code":10001},"stream":"EVENTS"}`
	absent  = "no responders"
	again   = "sent again"
)

// TestWhatCopiesAreAnswered is never taken for more than it says: "stored" of any of them is, and a refusal only where each of them
// was refused.
func TestWhatCopiesAreAnswered(t *testing.T) {
	t.Parallel()
	unsettled := errors.New("it is not known yet")
	for _, c := range []struct {
		happens []string
		err     error // nil: stored as 17
	}{
		{happens: []string{stored}},
		{happens: []string{lost}, err: bus.ErrLost},
		{happens: []string{full}, err: bus.ErrFull},
		{happens: []string{strange}, err: bus.ErrUnknownOutcome},
		{happens: []string{absent}, err: unsettled},
		{happens: []string{absent, again, lost}, err: bus.ErrLost},
		{happens: []string{absent, again, stored}},
		{happens: []string{again}, err: unsettled},
		{happens: []string{again, stored}},
		{happens: []string{again, lost}, err: unsettled},
		{happens: []string{again, absent}, err: unsettled},
		{happens: []string{again, absent, lost}, err: bus.ErrLost},
		{happens: []string{again, lost, absent}, err: bus.ErrLost},
		{happens: []string{again, lost, stored}},
		{happens: []string{again, lost, lost}, err: bus.ErrLost},
		{happens: []string{again, full, lost}, err: bus.ErrLost},
		{happens: []string{again, strange, lost}, err: bus.ErrUnknownOutcome},
		{happens: []string{again, lost, strange}, err: bus.ErrUnknownOutcome},
		{happens: []string{again, again, lost, lost}, err: unsettled},
		{happens: []string{again, again, strange, lost, lost}, err: bus.ErrUnknownOutcome},
		{happens: []string{again, again, lost, lost, stored}},
	} {
		now := time.Now()
		k := &copies{out: 1, next: now.Add(appendAgain), gap: appendLater}
		p := &call{parse: parsePubAck, deadline: now.Add(appendTimeout), copies: k}
		settled := false
		for i, what := range c.happens {
			require.False(t, settled, "%q: before %d", c.happens, i)
			switch what {
			case again:
				require.False(t, k.next.IsZero(), "%q: what was refused is not sent again", c.happens)
				k.out++
			case absent:
				settled = k.settles(p, nil, errNoResponders, now)
			default:
				settled = k.settles(p, &nats.Msg{Data: []byte(what)}, nil, now)
			}
		}
		if c.err == unsettled { //nolint:errorlint // it is that one
			require.False(t, settled, "%q", c.happens)
			refused := slices.ContainsFunc(c.happens, func(what string) bool { return what == lost })
			require.Equal(t, refused, k.next.IsZero(), "%q: it is sent again", c.happens)
			require.Equal(t, refused, p.deadline.Before(now.Add(appendTimeout)), "%q: another answer is not waited for as long", c.happens)
			continue
		}
		require.True(t, settled, "%q", c.happens)
		if c.err == nil {
			require.NoError(t, p.err, "%q", c.happens)
			require.EqualValues(t, 17, p.seq)
			continue
		}
		require.ErrorIs(t, appendError(p.err), c.err, "%q", c.happens)
	}
}

// log plays the stream of the log, which drops as many appends as it is told, and stores the next one. Negative: it drops all.
func log(t *testing.T, nc *nats.Conn, drops int32) (came *atomic.Int32) {
	t.Helper()
	came = new(atomic.Int32)
	_, err := nc.Subscribe("drover.log.>", func(m *nats.Msg) {
		if n := came.Add(1); drops >= 0 && n > drops {
			_ = m.Respond([]byte(stored))
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return came
}

func anAppend() bus.Append {
	return bus.Append{Entity: bus.Entity{Family: bus.Resource, Project: "default", Kind: "node", Name: "a"}, Body: []byte("x")}
}

// TestAnAppendIsSentAgain while nothing answers it.
func TestAnAppendIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, drops := range []int32{1, 2, -1} {
		t.Run(fmt.Sprint(drops), func(t *testing.T) {
			t.Parallel()
			nc, b := deaf(t)
			came := log(t, nc, drops)
			seq, err := b.Append(anAppend()).Result()
			if drops < 0 {
				require.ErrorIs(t, err, bus.ErrUnknownOutcome)
				require.Greater(t, came.Load(), int32(2))
				require.LessOrEqual(t, came.Load(), int32(2+(appendTimeout-appendAgain)/appendLater))
				return
			}
			require.NoError(t, err)
			require.EqualValues(t, 17, seq)
			require.Greater(t, came.Load(), drops)
		})
	}
}

// TestAnAppendWaitsForALeader: where nobody takes it, it is sent until somebody does, and is no load meanwhile.
func TestAnAppendWaitsForALeader(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	began, before := time.Now(), b.nc.Stats().OutMsgs
	p := b.Append(anAppend())
	select {
	case <-p.Done():
		t.Fatal("it is given up at once")
	case <-time.After(4 * nobodyAgain): // a leader is elected meanwhile
	}
	sent := b.nc.Stats().OutMsgs - before
	require.LessOrEqual(t, sent, uint64(1+time.Since(began)/nobodyAgain))
	log(t, nc, 0)
	seq, err := p.Result()
	require.NoError(t, err)
	require.EqualValues(t, 17, seq)
}

// TestABatchIsSentAgain as another batch, of which only one is stored.
func TestABatchIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		commits []string // what the copies' last messages are answered
		err     error
	}{
		{commits: []string{"", stored}},
		{commits: []string{"", lost}, err: bus.ErrUnknownOutcome},
	} {
		t.Run(fmt.Sprint(c.commits), func(t *testing.T) {
			t.Parallel()
			nc, b := deaf(t)
			var began []string
			var committed [][]string
			open := map[string][]string{}
			_, err := nc.Subscribe("drover.log.>", func(m *nats.Msg) {
				id := m.Header[headerBatchID][0]
				open[id] = append(open[id], string(m.Data))
				switch {
				case m.Header[headerBatchCommit] != nil:
					committed = append(committed, open[id])
					if n := len(committed); n <= len(c.commits) && c.commits[n-1] != "" {
						_ = m.Respond([]byte(c.commits[n-1]))
					}
				case m.Header[headerBatchSeq][0] == "1":
					began = append(began, id)
					if m.Reply != "" {
						_ = m.Respond(nil)
					}
				}
			})
			require.NoError(t, err)
			require.NoError(t, nc.Flush())
			var batch []bus.Append
			var bodies []string
			for i := range 3 {
				a := anAppend()
				a.Entity.Name, a.Body = fmt.Sprint("n", i), fmt.Append(nil, i)
				batch, bodies = append(batch, a), append(bodies, fmt.Sprint(i))
			}
			seq, err := b.AppendBatch(t.Context(), batch)
			if c.err == nil {
				require.NoError(t, err)
				require.EqualValues(t, 17, seq)
			} else {
				require.ErrorIs(t, err, c.err)
			}
			require.NoError(t, nc.Drain()) // the handler has ended: what it keeps can be read
			require.Eventually(t, nc.IsClosed, deafPatience, time.Millisecond)
			require.GreaterOrEqual(t, len(committed), len(c.commits))
			for _, of := range committed {
				require.Equal(t, bodies, of)
			}
			require.Len(t, open, len(began), "each copy is a batch of its own")
		})
	}
}

// TestWhatMayNotBeStoredTwiceIsSentOnce: a captured command, a line of output.
func TestWhatMayNotBeStoredTwiceIsSentOnce(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	var came atomic.Int32
	for _, subject := range []string{"drover.cmd.>", "drover.out.>"} {
		_, err := nc.Subscribe(subject, func(*nats.Msg) { came.Add(1) })
		require.NoError(t, err)
	}
	require.NoError(t, nc.Flush())
	_, err := b.PublishCommand(t.Context(), bus.CommandSubject("cmd", "default", "node", "a", "start"), nil, nil)
	require.ErrorIs(t, err, errTimeout)
	require.ErrorIs(t, b.StoreOutput(t.Context(), "default", "node", "a", []byte("x")), errTimeout)
	require.EqualValues(t, 2, came.Load())
}
