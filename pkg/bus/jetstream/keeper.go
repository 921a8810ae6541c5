package jetstream

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

// keep puts one message that nobody takes into each work queue, in place of the one before it. The server makes a new
// file, and removes the old one, whenever the last message of a stream's latest file is settled: for a queue that is
// empty more often than not that was a tenth of the server's work. Kept company, the file stays until it is full. The
// owner of the first partition does it; what is missed costs time and nothing else.
func (b *Bus) keep() {
	for _, subject := range []string{bus.KeepResults, bus.KeepWork} {
		m := &nats.Msg{Subject: subject, Header: nats.Header{headerRollup: {"sub"}}}
		_ = b.calls.send(m, callTimeout, nil)
	}
}

const (
	headerRollup = "Nats-Rollup"
	// keepEvery is how long a new file may be without one.
	keepEvery = time.Second
)
