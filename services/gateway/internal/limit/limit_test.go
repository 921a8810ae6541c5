package limit

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := Listener(inner, 1)
	accepted := make(chan net.Conn)
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	first := <-accepted
	dial() // the system's queue takes it; the server does not
	select {
	case <-accepted:
		t.Fatal("a second connection was taken while the first is open")
	default:
	}
	require.NoError(t, first.Close())
	_ = first.Close() // a place is given back once
	second := <-accepted
	require.Len(t, l.(*limited).places, 1)
	require.NoError(t, l.Close()) // while Accept waits for a place
	require.ErrorIs(t, <-ended, net.ErrClosed)
	require.NoError(t, second.Close())
}
