package natsd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Cluster is several servers on loopback that replicate streams among themselves. It is made for tests: members are
// stopped and started again on the same ports and stores. Not safe for concurrent use.
type Cluster struct {
	options []Options
	members []*Server // nil while stopped
}

// StartCluster starts n servers with routes between them and returns when their JetStream has a leader. Each member's
// store is a folder under o.StoreDir; o.Port and o.Name are not used.
func StartCluster(n int, o Options) (*Cluster, error) {
	if o.StoreDir == "" || o.Ephemeral {
		return nil, errors.New("nats cluster: StoreDir is required, and members are not ephemeral")
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	ports, err := freePorts(o.Host, 2*n)
	if err != nil {
		return nil, err
	}
	c := &Cluster{members: make([]*Server, n)}
	for i := range n {
		m := o
		m.Name = fmt.Sprintf("n%d", i)
		m.StoreDir = filepath.Join(o.StoreDir, m.Name)
		m.cluster, m.Port, m.routesPort, m.routes = "drover", ports[i], ports[n+i], ports[n:]
		c.options = append(c.options, m)
	}
	for i := range n {
		if c.members[i], err = start(c.options[i]); err != nil {
			return nil, errors.Join(err, c.Shutdown())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), startWait)
	defer cancel()
	if err := c.wait(ctx); err != nil {
		return nil, errors.Join(err, c.Shutdown())
	}
	return c, nil
}

// freePorts finds ports that nobody listens on at this moment.
func freePorts(host string, n int) (ports []int, err error) {
	listeners := make([]net.Listener, 0, n)
	defer func() {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
	}()
	for range n {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, fmt.Errorf("nats cluster: free port: %w", err)
		}
		listeners = append(listeners, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// wait waits until every running member serves and has caught up, and one of them leads.
func (c *Cluster) wait(ctx context.Context) error {
	for {
		led, ready, why := false, true, "no leader"
		for _, m := range c.members {
			if m == nil {
				continue
			}
			led = led || m.server.JetStreamIsLeader()
			if !m.server.ReadyForConnections(10 * time.Millisecond) {
				ready, why = false, m.server.Name()+" takes no connections"
			} else if h := m.server.Healthz(nil); h.Status != "ok" {
				ready, why = false, m.server.Name()+": "+h.Error
			}
		}
		if led && ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nats cluster: %s: %w", why, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ClientURL lists all members, running or not, for a client that fails over.
func (c *Cluster) ClientURL() string {
	urls := make([]string, len(c.options))
	for i, o := range c.options {
		urls[i] = serverURL(o.Host, o.Port)
	}
	return strings.Join(urls, ",")
}

// Stop ends one member.
func (c *Cluster) Stop(i int) error {
	m := c.members[i]
	c.members[i] = nil
	if m == nil {
		return nil
	}
	return m.Shutdown()
}

// Start starts a member again that was stopped, and returns when all running members are up to date.
func (c *Cluster) Start(ctx context.Context, i int) error {
	m, err := start(c.options[i])
	if err != nil {
		return err
	}
	c.members[i] = m
	return c.wait(ctx)
}

// Roll stops and starts each member, one after another, as an upgrade does.
func (c *Cluster) Roll(ctx context.Context) error {
	for i := range c.members {
		if err := c.Stop(i); err != nil {
			return err
		}
		if err := c.Start(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// Leader is the index of the member that leads a stream, or -1.
func (c *Cluster) Leader(stream string) int {
	for i, m := range c.members {
		if m != nil && m.server.JetStreamIsStreamLeader("$G", stream) {
			return i
		}
	}
	return -1
}

// StepDown asks the leader of a stream to hand over to another member, and returns when another leads. It asks again until then: a
// request that meets an election is answered by nobody, and who stepped down may be elected once more.
func (c *Cluster) StepDown(ctx context.Context, stream string) error {
	nc, err := nats.Connect(c.ClientURL())
	if err != nil {
		return fmt.Errorf("nats cluster: %w", err)
	}
	defer nc.Close()
	before, asked := -1, time.Time{}
	why := errors.New("nobody leads it")
	for {
		switch now := c.Leader(stream); {
		case now >= 0 && before >= 0 && now != before:
			return nil
		case now >= 0 && time.Since(asked) > stepDownAgain:
			before, asked = now, time.Now()
			if why = askStepDown(ctx, nc, stream); why == nil {
				why = errors.New("no other leads it")
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nats cluster: stepdown of %s: %w: %w", stream, ctx.Err(), why)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

const (
	stepDownTry   = 2 * time.Second // for an answer
	stepDownAgain = 5 * time.Second // for another leader
)

func askStepDown(ctx context.Context, nc *nats.Conn, stream string) error {
	ctx, cancel := context.WithTimeout(ctx, stepDownTry)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil)
	if err != nil {
		return err
	}
	var answer struct {
		Success bool `json:"success"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil || !answer.Success {
		return fmt.Errorf("it was refused: %s", m.Data)
	}
	return nil
}

// Shutdown ends all members.
func (c *Cluster) Shutdown() error {
	var errs []error
	for i := range c.members {
		errs = append(errs, c.Stop(i))
	}
	return errors.Join(errs...)
}
