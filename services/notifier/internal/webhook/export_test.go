package webhook

import (
	"context"
	"net"
	"net/http"
)

// DialBy has connections made by dial, for tests in which time is not the clock's.
func (c *Client) DialBy(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	c.http.Transport.(*http.Transport).DialContext = dial
}
