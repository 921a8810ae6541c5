package jetstream

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// TestAReaderIsNotDeceivedByACount: a consumer that was made while a message was removed may say that nothing is left to deliver,
// though it had something to deliver when it was made (seen of nats-server 2.15.2 where a deletion expired). The server here does
// so with the first consumer, always.
func TestAReaderIsNotDeceivedByACount(t *testing.T) {
	t.Parallel()
	nc, b := deaf(t)
	var made, delivered atomic.Int32
	var r *reader
	_, err := nc.Subscribe("$JS.API.CONSUMER.CREATE.FAKE.>", func(m *nats.Msg) {
		made.Add(1)
		_ = m.Respond(fmt.Appendf(nil, `{"num_pending": %d}`, 1-delivered.Load()))
	})
	require.NoError(t, err)
	_, err = nc.Subscribe("$JS.API.CONSUMER.MSG.NEXT.FAKE.*", func(m *nats.Msg) {
		if made.Load() > 1 && delivered.CompareAndSwap(0, 1) {
			consumer := m.Subject[strings.LastIndex(m.Subject, ".")+1:]
			// No client may publish under a reply like this.
			r.pulls.in <- &nats.Msg{Subject: m.Reply, Reply: "$JS.ACK.FAKE." + consumer + ".1.7.1.1700000000000000000.0", Data: []byte("there"), Sub: r.pulls.sub}
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"404"}, "Description": {"No Messages"}}})
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())

	r, err = b.newReader("FAKE", natsjs.DeliverAllPolicy, "x")
	require.NoError(t, err)
	defer r.close()
	m, err := r.next(t.Context(), true)
	require.NoError(t, err)
	require.EqualValues(t, 7, m.Seq)
	_, err = r.next(t.Context(), true)
	require.ErrorIs(t, err, errDrained)
	require.EqualValues(t, 2, made.Load())
}
