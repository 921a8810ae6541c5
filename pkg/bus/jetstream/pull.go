package jetstream

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// pulls asks a consumer for messages, over one subscription for all requests. It exists beside nats.go's consumers for
// two reasons: those can stall for half a minute after a leader has moved, and they report neither when a reconnect
// has made a request void nor when there is nothing more at present. Not safe for concurrent use.
type pulls struct {
	b      *Bus
	sub    *nats.Subscription
	in     chan *nats.Msg
	prefix string // of reply subjects, with the dot
	number uint64 // of the latest request
	open   bool   // the latest request may still bring messages
	left   int    // as many as these
	heard  time.Time
	// reconnected is closed when the connection that the latest request was sent over is gone; nil after lose.
	reconnected <-chan struct{}
}

const (
	pullHeartbeat = time.Second
	// pullSilence is how long an open request with heartbeats may be silent before it is taken for lost.
	pullSilence = 2*pullHeartbeat + 200*time.Millisecond
)

// newPulls subscribes; room is the most messages that may be asked for at once.
func (b *Bus) newPulls(room int) (*pulls, error) {
	// Room for one request that was taken for lost and was not, and for statuses.
	p := &pulls{b: b, in: make(chan *nats.Msg, 2*room+16), prefix: b.nc.NewInbox() + "."}
	var err error
	if p.sub, err = b.nc.ChanSubscribe(p.prefix+"*", p.in); err != nil {
		return nil, fmt.Errorf("inbox of pulls: %w", err)
	}
	return p, nil
}

// ask sends a request for up to batch messages, of up to maxBytes together; 0: of any number of bytes. With noWait it ends as soon as nothing is left to deliver; with wait
// too, not before a first message. A wait of two seconds or more brings heartbeats, see lost. While the connection is
// down nothing is sent, and the request is not open.
func (p *pulls) ask(stream, consumer string, batch, maxBytes int, wait time.Duration, noWait bool) error {
	p.reconnected = p.b.onceReconnected()
	if !p.b.nc.IsConnected() {
		return nil // what is published now would be sent, together with all its like, after the reconnect
	}
	p.number++
	p.open, p.left, p.heard = true, batch, time.Now()
	body := make([]byte, 0, 128)
	body = append(body, `{"batch":`...)
	body = strconv.AppendInt(body, int64(batch), 10)
	if maxBytes > 0 {
		body = append(body, `,"max_bytes":`...)
		body = strconv.AppendInt(body, int64(maxBytes), 10)
	}
	if wait > 0 {
		body = append(body, `,"expires":`...)
		body = strconv.AppendInt(body, int64(wait), 10)
	}
	if noWait {
		body = append(body, `,"no_wait":true`...)
	}
	if wait >= 2*pullHeartbeat {
		body = append(body, `,"idle_heartbeat":`...)
		body = strconv.AppendInt(body, int64(pullHeartbeat), 10)
	}
	body = append(body, '}')
	return sendError(p.b.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+stream+"."+consumer, p.prefix+strconv.FormatUint(p.number, 10), body))
}

// lost says whether an open request with heartbeats has been silent for too long.
func (p *pulls) lost(now time.Time) bool { return p.open && now.Sub(p.heard) > pullSilence }

// lose gives up the latest request: the connection that it was sent over is gone.
func (p *pulls) lose() { p.open, p.reconnected = false, nil }

// outcome is what a reply means.
type outcome int

const (
	delivered outcome = iota // a message
	noise                    // nothing to act on
	alive                    // a heartbeat: nothing is there to be delivered yet
	ended                    // the latest request is over; nothing is wrong
	drained                  // the same, because nothing was left to deliver
	nobody                   // nobody takes requests for this consumer at present; it may be gone
	gone                     // the consumer was deleted
)

// read says what a reply means, and keeps count.
func (p *pulls) read(m *nats.Msg) outcome {
	status := ""
	if len(m.Data) == 0 && strings.HasPrefix(m.Subject, p.prefix) { // what is delivered has its own subject, and any header
		status = m.Header.Get("Status")
	}
	if status == "" {
		p.heard = time.Now()
		if p.left--; p.left <= 0 {
			p.open = false
		}
		return delivered
	}
	if m.Subject != p.prefix+strconv.FormatUint(p.number, 10) {
		return noise // of an earlier request
	}
	p.heard = time.Now()
	if status == "100" {
		return alive
	}
	description := m.Header.Get("Description")
	if owed := p.owed(m, description); owed > 0 {
		p.left = owed
		return noise // it is over when they are there
	}
	p.open = false
	switch {
	case status == "404":
		return drained
	case status == "503":
		return nobody
	case status == "409" && strings.Contains(description, "Consumer Deleted"):
		return gone
	case status == "409" && strings.Contains(description, "Server Shutdown"), status == "400":
		return nobody
	}
	return ended // expired, or the next would have passed its bytes, or its leader moved
}

// owed is how many messages a request that the server calls full has still to bring: on several servers they come when a
// majority has noted that they are delivered, and the word of it, which only requests with a limit of bytes get, comes at
// once (nats-server 2.15.2).
func (p *pulls) owed(m *nats.Msg, description string) int {
	if description != "Batch Completed" && !strings.Contains(description, "Exceeds MaxBytes") {
		return 0
	}
	undelivered, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
	if err != nil {
		return 0
	}
	return p.left - undelivered
}

func (p *pulls) close() { _ = p.sub.Unsubscribe() } // fails only if the connection is closed, which does the same
