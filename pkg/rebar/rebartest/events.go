package rebartest

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455 asks for it
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Event is what the websocket brings.
type Event struct {
	Type, Action, Key string
	Object            json.RawMessage
}

// Events is one websocket (RFC 6455), as an agent uses it: text frames, no subprotocol. One goroutine uses it.
type Events struct {
	conn   net.Conn
	reader *bufio.Reader
	heard  chan Event
	broken chan struct{} // closed when nothing more is heard
	once   sync.Once
}

// Dial opens GET /api/v3/ws on its own connection, over HTTP/1.1.
func Dial(ctx context.Context, base, token string) (*Events, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // as the agents do (facts, 2.0)
	conn, err := dialer.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	e := &Events{conn: conn, reader: bufio.NewReader(conn), heard: make(chan Event, 1024), broken: make(chan struct{})}
	if err := e.upgrade(ctx, u.Host, token); err != nil {
		_ = conn.Close()
		return nil, err
	}
	go e.listen()
	return e, nil
}

func (e *Events) upgrade(ctx context.Context, host, token string) error {
	defer context.AfterFunc(ctx, func() { _ = e.conn.Close() })()
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // it never fails
	key := base64.StdEncoding.EncodeToString(nonce)
	_, err := fmt.Fprintf(e.conn, "GET /api/v3/ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: %s\r\nAuthorization: Bearer %s\r\n\r\n", host, key, token)
	if err != nil {
		return err
	}
	answer, err := http.ReadResponse(e.reader, nil) //nolint:bodyclose // it has none: the frames follow
	if err != nil {
		return err
	}
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455 asks for it
	if want := base64.StdEncoding.EncodeToString(sum[:]); answer.StatusCode != http.StatusSwitchingProtocols || answer.Header.Get("Sec-WebSocket-Accept") != want {
		return fmt.Errorf("no websocket: %s", answer.Status)
	}
	return nil
}

const (
	opText  = 1
	opClose = 8
	opPing  = 9
	opPong  = 10
)

func (e *Events) listen() {
	defer close(e.broken)
	for {
		op, body, err := e.frame()
		if err != nil || op == opClose {
			return
		}
		switch op {
		case opPing:
			if e.write(opPong, body) != nil {
				return
			}
		case opText:
			var event Event
			if json.Unmarshal(body, &event) != nil {
				return
			}
			e.heard <- event
		}
	}
}

// frame reads one; the server's are neither masked nor, as ours are short, in parts.
func (e *Events) frame() (op byte, body []byte, err error) {
	var head [2]byte
	if _, err = io.ReadFull(e.reader, head[:]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1] & 0x7f)
	switch size {
	case 126:
		var n [2]byte
		if _, err = io.ReadFull(e.reader, n[:]); err != nil {
			return 0, nil, err
		}
		size = uint64(binary.BigEndian.Uint16(n[:]))
	case 127:
		var n [8]byte
		if _, err = io.ReadFull(e.reader, n[:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(n[:])
	}
	if size > 8<<20 || head[0]&0x80 == 0 {
		return 0, nil, errors.New("a frame too large, or a part of one")
	}
	body = make([]byte, size)
	_, err = io.ReadFull(e.reader, body)
	return head[0] & 0x0f, body, err
}

// write sends one frame, masked as a client's must be.
func (e *Events) write(op byte, body []byte) error {
	frame := []byte{0x80 | op}
	switch {
	case len(body) < 126:
		frame = append(frame, 0x80|byte(len(body)))
	default:
		frame = binary.BigEndian.AppendUint16(append(frame, 0x80|126), uint16(len(body)))
	}
	var mask [4]byte
	_, _ = rand.Read(mask[:]) // it never fails
	frame = append(frame, mask[:]...)
	for i, b := range body {
		frame = append(frame, b^mask[i%4])
	}
	_, err := e.conn.Write(frame)
	return err
}

var errBroken = errors.New("the websocket is broken")

// Register says what is to be heard, and waits for as many acknowledgements as it said lines: what else comes meanwhile wakes
// the next Wait.
func (e *Events) Register(ctx context.Context, patterns ...string) error {
	return e.tell(ctx, "register", patterns)
}

// Deregister takes it back, and waits likewise.
func (e *Events) Deregister(ctx context.Context, patterns ...string) error {
	return e.tell(ctx, "deregister", patterns)
}

func (e *Events) tell(ctx context.Context, verb string, patterns []string) error {
	for _, p := range patterns {
		if err := e.write(opText, []byte(verb+" "+p)); err != nil {
			return err
		}
	}
	var others []Event
	for acks := 0; acks < len(patterns); {
		select {
		case event := <-e.heard:
			if event.Type != "websocket" {
				others = append(others, event)
				continue
			}
			if event.Action != verb || event.Key != patterns[acks] {
				return fmt.Errorf("%s %s was acknowledged as %s %s", verb, patterns[acks], event.Action, event.Key)
			}
			acks++
		case <-e.broken:
			return errBroken
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, event := range others {
		select {
		case e.heard <- event:
		default:
		}
	}
	return nil
}

// Wait waits for an event, at most so long.
func (e *Events) Wait(ctx context.Context, most time.Duration) error {
	_, err := e.Hear(ctx, most)
	return err
}

// Hear is the next event; the zero one when there was none in this time.
func (e *Events) Hear(ctx context.Context, most time.Duration) (Event, error) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case event := <-e.heard:
		return event, nil
	case <-timer.C:
		return Event{}, nil
	case <-e.broken:
		return Event{}, errBroken
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
}

// Close drops the connection.
func (e *Events) Close() {
	e.once.Do(func() { _ = e.conn.Close() })
	for {
		select {
		case <-e.heard:
		case <-e.broken:
			return
		}
	}
}
