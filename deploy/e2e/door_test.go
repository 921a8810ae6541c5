package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// door sends commands of one project in JSON, by one of the two ways that there are. Safe for concurrent use.
type door struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	looks   jetstream.JetStream // into streams, as an operator may
	project string
	shared  bool          // streams hold what is of other projects too, which is no matter of this door
	limit   time.Duration // for streams to be empty
}

func openDoor(nc *nats.Conn) (*door, error) {
	js, err := jetstream.New(nc)
	return &door{nc: nc, js: js, looks: js, project: project}, err
}

// command is one command. Names are such that each is its own token.
type command struct {
	Kind, Name, Verb, ID string
	Body                 any
}

// project is that of a house that is a test's own.
const project = "default"

func (c command) subject(door, project string) string {
	return "drover." + door + "." + project + "." + c.Kind + "." + c.Name + "." + c.Verb
}

func (c command) msg(door, project string) (*nats.Msg, error) {
	body, err := json.Marshal(c.Body)
	if err != nil {
		return nil, err
	}
	if c.Body == nil {
		body = []byte("{}")
	}
	m := nats.NewMsg(c.subject(door, project))
	m.Data = body
	m.Header["Content-Type"] = []string{"application/json"}
	m.Header["Drover-Request-Id"] = []string{c.ID}
	return m, nil
}

// answer is accepted or refused (contract.md).
type answer struct {
	JobID    string `json:"jobId"`
	Resource string `json:"resource"`

	Code       string `json:"code"`
	Message    string `json:"message"`
	RequestID  string `json:"requestId"`
	Violations []struct {
		Field  string `json:"field"`
		Reason string `json:"reason"`
	} `json:"violations"`
}

// onceTimeout is how long one request waits: a little longer than intake's patience.
const onceTimeout = 5 * time.Second

// once sends a request once.
func (d *door) once(ctx context.Context, c command) (a answer, err error) {
	m, err := c.msg("api", d.project)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, onceTimeout)
	defer cancel()
	reply, err := d.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(reply.Data, &a); err != nil {
		return a, fmt.Errorf("reply %q: %w", reply.Data, err)
	}
	return a, nil
}

// request sends a command with the same request id until it is decided.
func (d *door) request(ctx context.Context, c command) (answer, error) {
	for {
		a, err := d.once(ctx, c)
		if err == nil && a.Code != "overloaded" {
			return a, nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return a, errors.Join(ctx.Err(), err)
		}
	}
}

// publish sends a command for the stream to capture, again and again until that says that it has.
func (d *door) publish(ctx context.Context, c command) (*jetstream.PubAck, error) {
	m, err := c.msg("cmd", d.project)
	if err != nil {
		return nil, err
	}
	m.Header["Nats-Msg-Id"] = []string{d.project + "/" + c.Kind + "/" + c.Name + "/" + c.ID}
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		ack, err := d.js.PublishMsg(try, m)
		cancel()
		if err == nil {
			return ack, nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

// pause waits, and returns false if ctx ends meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// apply is the body of the verb apply.
func apply(kind, name string, spec any, labels map[string]string) map[string]any {
	return map[string]any{"resource": map[string]any{
		"apiVersion": "drover/v1", "kind": kind, "metadata": map[string]any{"name": name, "labels": labels}, "spec": spec,
	}}
}

type object = map[string]any
type list = []any
