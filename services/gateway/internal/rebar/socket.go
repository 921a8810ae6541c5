package rebar

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Limits of a websocket.
const (
	SocketLineBytesMax = 4096             // bytes of what a client says
	SocketEventsMax    = 256              // events that wait for a client; a slower one is disconnected
	SocketPatternsMax  = 64               // patterns that it registers for
	pingEvery          = 54 * time.Second // as Digital Rebar's server does
	writeWait          = 10 * time.Second
)

// socket is one websocket.
type socket struct {
	caller caller
	out    chan []byte
	slow   context.CancelFunc

	mu       sync.Mutex
	patterns map[string]pattern
}

// hear takes an event that the socket has registered for. It never waits: a client that is behind is disconnected, since an
// event that it misses would cost it an hour, and a connection that it loses five seconds (facts, 2.4).
func (s *socket) hear(h happening) {
	if s.caller.machine != "" && s.caller.machine != h.machine {
		return
	}
	s.mu.Lock()
	wanted := false
	for _, p := range s.patterns {
		wanted = wanted || p.matches(&h)
	}
	s.mu.Unlock()
	if wanted {
		s.send(h.body())
	}
}

func (s *socket) send(body []byte) {
	select {
	case s.out <- body:
	default:
		s.slow()
	}
}

// websocket answers GET /ws.
func (s *Server) websocket(w http.ResponseWriter, r *http.Request, c caller) {
	s.exchange.sockets.Add(1)
	defer s.exchange.sockets.Done()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // Origin is a browser's; a token is asked of everybody, and no cookie is one
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		return // Accept has answered
	}
	defer func() { _ = conn.CloseNow() }()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	one := &socket{caller: c, out: make(chan []byte, SocketEventsMax), slow: cancel, patterns: map[string]pattern{}}
	if !s.exchange.add(one) {
		_ = conn.Close(websocket.StatusTryAgainLater, "too many websockets")
		return
	}
	defer s.exchange.remove(one)
	conn.SetReadLimit(SocketLineBytesMax)
	var writer sync.WaitGroup
	writer.Go(func() {
		defer cancel()
		one.write(ctx, conn, s.pace)
	})
	s.listen(ctx, conn, one)
	cancel()
	writer.Wait()
}

// write sends what waits, and pings.
func (s *socket) write(ctx context.Context, conn *websocket.Conn, pace pace) {
	ping := time.NewTicker(pace.ping)
	defer ping.Stop()
	within := func(do func(ctx context.Context) error) error { // from now on, and not since the last time
		ctx, cancel := context.WithTimeout(ctx, pace.write)
		defer cancel()
		return do(ctx)
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case body := <-s.out:
			err = within(func(ctx context.Context) error { return conn.Write(ctx, websocket.MessageText, body) })
		case <-ping.C:
			err = within(conn.Ping)
		}
		if err != nil {
			return
		}
	}
}

// pace is how often a websocket is pinged, and how long one write may take.
type pace struct{ ping, write time.Duration }

// listen takes what a client registers for. Each line is acknowledged, once what it asks for holds: a client waits for as many
// answers as it sent lines, for ever (facts, 2.4).
func (s *Server) listen(ctx context.Context, conn *websocket.Conn, one *socket) {
	for {
		_, line, err := conn.Read(ctx)
		if err != nil {
			return
		}
		verb, text, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		p, ok := parsePattern(text)
		one.mu.Lock()
		switch {
		case !ok:
		case verb == "register" && len(one.patterns) < SocketPatternsMax:
			one.patterns[text] = p
		case verb == "deregister":
			delete(one.patterns, text)
		case verb == "register":
			ok = one.patterns[text] == p
		}
		one.mu.Unlock()
		if verb != "register" && verb != "deregister" || !ok {
			_ = conn.Close(websocket.StatusPolicyViolation, "a line is register or deregister TYPE.ACTION.KEY, and there are at most 64 patterns")
			return
		}
		ack, err := json.Marshal(event{Time: s.Now(), Type: "websocket", Action: verb, Key: text, Principal: one.caller.principal()})
		if err != nil {
			return
		}
		one.send(ack)
	}
}
