package e2e_test

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// relayed are the connections that the containers of a cluster open to a port of its relay (cmd/relay): a listener of the
// test that is on no address which they would have to reach.
type relayed struct {
	control string // address of the relay, from here
	port    int    // where the containers connect to
	ctx     context.Context
	close   context.CancelFunc
	given   chan net.Conn
	waits   sync.WaitGroup
}

// relayWaits is how many connections wait to be given away.
const relayWaits = 8

func listenAt(ctx context.Context, control string, port int) *relayed {
	ctx, cancel := context.WithCancel(ctx)
	l := &relayed{control: control, port: port, ctx: ctx, close: cancel, given: make(chan net.Conn)}
	for range relayWaits {
		l.waits.Go(func() {
			for l.ctx.Err() == nil {
				l.wait()
			}
		})
	}
	return l
}

// wait has one connection wait at the relay until it is given to somebody.
func (l *relayed) wait() {
	conn, err := new(net.Dialer).DialContext(l.ctx, "tcp", l.control)
	if err != nil {
		pause(l.ctx, again)
		return
	}
	ended := context.AfterFunc(l.ctx, func() { conn.Close() })
	_, err = fmt.Fprintln(conn, l.port)
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if !ended() || err != nil {
		conn.Close()
		pause(l.ctx, again)
		return
	}
	select {
	case l.given <- conn:
	case <-l.ctx.Done():
		conn.Close()
	}
}

// Accept implements net.Listener.
func (l *relayed) Accept() (net.Conn, error) {
	select {
	case conn := <-l.given:
		return conn, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *relayed) Close() error {
	l.close()
	l.waits.Wait()
	return nil
}

// Addr implements net.Listener: as the containers see it.
func (l *relayed) Addr() net.Addr { return relayAddress(fmt.Sprintf("relay:%d", l.port)) }

type relayAddress string

func (relayAddress) Network() string  { return "tcp" }
func (a relayAddress) String() string { return string(a) }
