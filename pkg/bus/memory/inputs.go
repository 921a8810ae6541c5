package memory

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// PublishCommand implements bus.Inputs.
func (c *Conn) PublishCommand(_ context.Context, subject string, header map[string]string, body []byte) (uint64, error) {
	if err := c.alive(); err != nil {
		return 0, err
	}
	t := strings.Split(subject, ".")
	if len(t) != 6 || !strings.HasPrefix(subject, "drover.cmd.") {
		return 0, fmt.Errorf("not a subject of a captured command: %q", subject)
	}
	if len(body) > bus.CommandBytesMax {
		return 0, fmt.Errorf("%w: command of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.CommandBytesMax)
	}
	project, kind, name, _, err := bus.ParseCommandSubject(subject)
	if err != nil {
		return 0, err
	}
	return c.put(c.s.commands, bus.CommandPartition(project, kind, name, c.Partitions()), subject, header, body)
}

func (c *Conn) put(st *stream, partition int, subject string, header map[string]string, body []byte) (uint64, error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := st.full(); err != nil {
		return 0, err
	}
	return st.queue(fmt.Sprint(partition)).put(subject, maps.Clone(header), body), nil
}

// Commands implements bus.Inputs.
func (c *Conn) Commands(_ context.Context, partition int) (bus.Inbox, error) {
	return c.open(c.s.commands, partition)
}

// PublishResult implements bus.Inputs.
func (c *Conn) PublishResult(_ context.Context, subject string, header map[string]string, body []byte) error {
	if err := c.alive(); err != nil {
		return err
	}
	partition, err := bus.ResultPartition(subject)
	if err != nil {
		return err
	}
	if len(body) > bus.BodyBytesMax {
		return fmt.Errorf("%w: result of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.BodyBytesMax)
	}
	_, err = c.put(c.s.results, partition, subject, header, body)
	return err
}

// Results implements bus.Inputs.
func (c *Conn) Results(_ context.Context, partition int) (bus.Inbox, error) {
	return c.open(c.s.results, partition)
}

// Backlog implements bus.Inputs.
func (c *Conn) Backlog(_ context.Context, stream string, partition int) (uint64, time.Time, error) {
	st := c.s.commands
	switch stream {
	case "COMMANDS":
	case "RESULTS":
		st = c.s.results
	default:
		return 0, time.Time{}, fmt.Errorf("backlog: no stream of inputs: %q", stream)
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	n, oldest := st.queue(fmt.Sprint(partition)).backlog()
	return n, oldest, c.alive()
}

// PublishRefusal implements bus.Inputs.
func (c *Conn) PublishRefusal(_ context.Context, project, requestID string, header map[string]string, body []byte) error {
	if err := c.alive(); err != nil {
		return err
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = append(s.refusals, Message{Subject: bus.RefusedSubject(project, requestID), Header: maps.Clone(header), Body: slices.Clone(body)})
	return nil
}

var noticeSubject = regexp.MustCompile(`^drover\.notice(\.[^\s.*>]+)+$`)

// Notify implements bus.Inputs.
func (c *Conn) Notify(subject string, header map[string]string, body []byte) error {
	if err := c.alive(); err != nil {
		return err
	}
	if !noticeSubject.MatchString(subject) {
		return fmt.Errorf("%w: notices go to drover.notice.>, not to %q", bus.ErrDenied, subject)
	}
	if len(body) > bus.BodyBytesMax {
		return fmt.Errorf("%w: notice of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.BodyBytesMax)
	}
	s := c.s
	s.mu.Lock()
	m := Message{Subject: subject, Header: maps.Clone(header), Body: slices.Clone(body)}
	s.notices = append(s.notices, m)
	served := map[string]bool{}
	for _, l := range slices.Clone(s.listeners) {
		if l.subject != subject || served[l.group] {
			continue
		}
		served[l.group] = true
		s.listeners = append(remove(s.listeners, l), l)
		s.callbacks = append(s.callbacks, func() { l.each(maps.Clone(m.Header), slices.Clone(m.Body)) })
	}
	s.mu.Unlock()
	s.run()
	return nil
}

// listener is one Notices.
type listener struct {
	subject, group string
	each           func(header map[string]string, body []byte)
}

// noticeGroup is what a group may be called.
var noticeGroup = regexp.MustCompile(`^[A-Za-z0-9_=-]+$`)

// Notices implements bus.Inputs.
func (c *Conn) Notices(subject, group string, each func(header map[string]string, body []byte)) (func(), error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	if !noticeSubject.MatchString(subject) || !noticeGroup.MatchString(group) {
		return nil, fmt.Errorf("%w: notices come on drover.notice.>, not on %q for %q", bus.ErrDenied, subject, group)
	}
	s, l := c.s, &listener{subject, group, each}
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	stop := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listeners = remove(s.listeners, l)
	}
	c.ifKilled(func() { s.listeners = remove(s.listeners, l) })
	return stop, c.onClose(stop)
}

// askServer serves the requests of a partition, one after another.
type askServer struct {
	partition int
	mu        sync.Mutex
	handle    bus.RequestHandler
}

// apiServer serves drover.api.
type apiServer struct{ handle bus.APIHandler }

// replies keeps the first reply.
type replies chan bus.Request

func (r replies) send(verb string, header map[string]string, body []byte) {
	if header = maps.Clone(header); header == nil {
		header = map[string]string{}
	}
	select {
	case r <- bus.Request{Verb: verb, Header: header, Body: slices.Clone(body)}:
	default: // another was first
	}
}

func (r replies) wait(ctx context.Context, done <-chan struct{}) (bus.Request, error) {
	select {
	case reply := <-r:
		return reply, nil
	default:
	}
	select {
	case reply := <-r:
		return reply, nil
	case <-done:
		return bus.Request{}, bus.ErrClosed
	case <-ctx.Done():
		return bus.Request{}, ctx.Err()
	}
}

func received(r bus.Request) bus.Request {
	r.Header, r.Body = maps.Clone(r.Header), slices.Clone(r.Body)
	if r.Header == nil {
		r.Header = map[string]string{}
	}
	return r
}

// Ask implements bus.Inputs. All who serve the partition are asked, on the caller's goroutine.
func (c *Conn) Ask(ctx context.Context, partition int, r bus.Request) (bus.Request, error) {
	if err := c.alive(); err != nil {
		return bus.Request{}, err
	}
	s := c.s
	s.mu.Lock()
	var servers []*askServer
	for _, a := range slices.Backward(s.asks) {
		if a.partition == partition {
			servers = append(servers, a)
		}
	}
	s.mu.Unlock()
	if len(servers) == 0 {
		return bus.Request{}, fmt.Errorf("ask partition %d: %w", partition, bus.ErrNoOwner)
	}
	first := make(replies, 1)
	for _, a := range servers {
		func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.handle(received(r), func(h map[string]string, body []byte) { first.send(r.Verb, h, body) })
		}()
	}
	reply, err := first.wait(ctx, c.done)
	if err != nil {
		return bus.Request{}, fmt.Errorf("ask partition %d: %w", partition, err)
	}
	return reply, nil
}

// AskPhase implements bus.Inputs.
func (c *Conn) AskPhase(ctx context.Context, p bus.Phase, r bus.Request) (bus.Request, error) {
	return c.Ask(ctx, p.Partition(c.Partitions()), r.Of(p))
}

// AskDoor implements bus.Inputs.
func (c *Conn) AskDoor(ctx context.Context, partition int, r bus.Request) (bus.Request, error) {
	if door, verb := r.Door(); door == "" || verb == "" || door == string(bus.PhaseRecord) {
		return bus.Request{}, fmt.Errorf("ask partition %d: no front door has the verb %q", partition, r.Verb)
	}
	return c.Ask(ctx, partition, r)
}

// ServeAsks implements bus.Inputs.
func (c *Conn) ServeAsks(partition int, h bus.RequestHandler) (func(), error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	s, a := c.s, &askServer{partition: partition, handle: h}
	s.mu.Lock()
	s.asks = append(s.asks, a)
	s.mu.Unlock()
	stop := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asks = remove(s.asks, a)
	}
	c.ifKilled(func() { s.asks = remove(s.asks, a) })
	return stop, c.onClose(stop)
}

// Request implements bus.Inputs. Those who serve take turns.
func (c *Conn) Request(ctx context.Context, subject string, header map[string]string, body []byte) (bus.Request, error) {
	if err := c.alive(); err != nil {
		return bus.Request{}, err
	}
	if !strings.HasPrefix(subject, "drover.api.") {
		return bus.Request{}, fmt.Errorf("not a subject of a request: %q", subject)
	}
	if len(body) > bus.CommandBytesMax {
		return bus.Request{}, fmt.Errorf("%w: command of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.CommandBytesMax)
	}
	s := c.s
	s.mu.Lock()
	var a *apiServer
	if len(s.apis) > 0 {
		a = s.apis[s.apiNext%len(s.apis)]
		s.apiNext++
	}
	s.mu.Unlock()
	if a == nil {
		return bus.Request{}, fmt.Errorf("no intake answers: %w", bus.ErrNoOwner)
	}
	first := make(replies, 1)
	a.handle(subject, received(bus.Request{Header: header, Body: body}), func(h map[string]string, body []byte) { first.send("", h, body) })
	reply, err := first.wait(ctx, c.done)
	if err != nil {
		return bus.Request{}, fmt.Errorf("request %s: %w", subject, err)
	}
	return reply, nil
}

// ServeAPI implements bus.Inputs.
func (c *Conn) ServeAPI(_ string, h bus.APIHandler) (func(), error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	s, a := c.s, &apiServer{handle: h}
	s.mu.Lock()
	s.apis = append(s.apis, a)
	s.mu.Unlock()
	stop := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.apis = remove(s.apis, a)
	}
	c.ifKilled(func() { s.apis = remove(s.apis, a) })
	return stop, c.onClose(stop)
}
