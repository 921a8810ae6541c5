package rebar

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/gateway/internal/retry"
)

const tryTimeout = 5 * time.Second // for one answer of an owner; shorter than StopTimeout, so that what stops gets it

// errHeld is for a request that was held as long as it may be.
var errHeld = errors.New("nobody decides on this machine at present")

// hold tries until it works, at most HoldMax, and not once the caller has gone. Where the service stops no other try is made, but
// the one under way runs out: its answer is milliseconds away as a rule, and an agent that gets 503 instead gives its task up.
func (s *Server) hold(ctx context.Context, try func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, HoldMax)
	defer cancel()
	waiting, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(s.stopping, end)()
	err := retry.Do(waiting, tryTimeout, final, func(context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		return try(ctx)
	})
	if err != nil && !final(err) {
		err = errors.Join(errHeld, err)
	}
	return err
}

// final reports whether another try cannot help.
func final(err error) bool { return errors.Is(err, bus.ErrDenied) || errors.Is(err, bus.ErrTooLarge) }

// decide asks the owner of a partition until it answers.
func (s *Server) decide(ctx context.Context, partition int, verb string, a wire.MachineAsk) (answer wire.MachineAnswer, err error) {
	body, err := wire.EncodeMachineAsk(a)
	if err != nil {
		return answer, err
	}
	request := bus.Request{Verb: verb, Header: map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, Body: body}
	err = s.hold(ctx, func(ctx context.Context) error {
		reply, err := s.Bus.AskDoor(ctx, partition, request)
		if err != nil {
			return err
		}
		if answer, err = wire.DecodeMachineAnswer(reply.Body); err == nil && answer.Code == string(resource.Overloaded) {
			err = errors.New(answer.Message)
		}
		return err
	})
	return answer, err
}

// unanswered says that a request was held in vain.
func (s *Server) unanswered(w http.ResponseWriter, r *http.Request, model string, err error) {
	if r.Context().Err() != nil {
		return // nobody listens any more
	}
	s.Log.Warn("a request was held in vain", zap.String("method", r.Method), zap.String("model", model), zap.Error(err))
	fail(w, problem{Model: model, Key: r.PathValue("id"), Type: r.Method, Code: http.StatusServiceUnavailable, Messages: []string{err.Error()}})
}
