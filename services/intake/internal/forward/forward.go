// Package forward takes a command to the owner of its partition and brings back the answer.
//
// A partition may be between two owners for a moment, so a request that nobody takes, or nobody answers, is sent again:
// the request id makes that safe, because an owner answers the same request with the same job.
package forward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/droverproject/drover/pkg/bus"
)

// Limits of one command's way.
const (
	Patience   = 4 * time.Second // for an owner to appear and to answer, of a request
	TryTimeout = 2 * time.Second // for one answer
	BackoffMin = 20 * time.Millisecond
	BackoffMax = 500 * time.Millisecond
)

// Verb is the request that carries a command.
const Verb = "command"

// HeaderSubject says whom the command is for, and the verb.
const HeaderSubject = "Drover-Subject"

// Asker is the part of the bus that is needed.
type Asker interface {
	Ask(ctx context.Context, partition int, r bus.Request) (bus.Request, error)
}

// Command is a checked command.
type Command struct {
	Partition   int
	Subject     string // in its captured form
	RequestID   string
	ContentType string
	Traceparent string
	Body        []byte
}

func (c *Command) request() bus.Request {
	header := map[string]string{HeaderSubject: c.Subject, bus.HeaderRequestID: c.RequestID}
	if c.ContentType != "" {
		header[bus.HeaderContentType] = c.ContentType
	}
	if traceparent(c.Traceparent) {
		header[bus.HeaderTraceparent] = c.Traceparent
	}
	return bus.Request{Verb: Verb, Header: header, Body: c.Body}
}

// Once asks once, for at most TryTimeout.
func Once(ctx context.Context, b Asker, c *Command) (bus.Request, error) {
	ctx, cancel := context.WithTimeout(ctx, TryTimeout)
	defer cancel()
	return b.Ask(ctx, c.Partition, c.request())
}

// Ask asks until there is an answer, at most for Patience. The error is then the last one.
func Ask(ctx context.Context, b Asker, c *Command) (bus.Request, error) {
	patience, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	backoff := BackoffMin
	for {
		reply, err := Once(patience, b, c)
		switch {
		case err == nil:
			return reply, nil
		case ctx.Err() != nil:
			return bus.Request{}, ctx.Err()
		case !Passing(err):
			return bus.Request{}, err
		}
		wait := time.NewTimer(backoff)
		select {
		case <-wait.C:
		case <-patience.Done():
			wait.Stop()
			return bus.Request{}, err
		}
		backoff = min(2*backoff, BackoffMax)
	}
}

// Passing reports whether an error may pass by itself.
func Passing(err error) bool {
	return errors.Is(err, bus.ErrNoOwner) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, bus.ErrUnknownOutcome)
}

// Reason says to a person why a command got no answer.
func Reason(partition int, err error) string {
	switch {
	case errors.Is(err, bus.ErrNoOwner):
		return fmt.Sprintf("no orchestrator serves partition %d at present; nothing was stored; send the command again", partition)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, bus.ErrUnknownOutcome):
		return fmt.Sprintf("the orchestrator of partition %d did not answer in time; the command may have been accepted: "+
			"send it again with the same request id to learn its job", partition)
	case errors.Is(err, context.Canceled), errors.Is(err, bus.ErrClosed):
		return "this intake is stopping; the command may have been accepted: send it again with the same request id to learn its job"
	default:
		return fmt.Sprintf("the orchestrator of partition %d cannot be reached; send the command again with the same request id", partition)
	}
}

// traceparent reports whether text is a W3C trace context (version 00 or later, as it is on the wire). Another is
// dropped: it is a convenience, and no reason to refuse a command.
func traceparent(text string) bool {
	if len(text) != 55 {
		return false
	}
	for i := range len(text) {
		c := text[i]
		switch i {
		case 2, 35, 52:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}
