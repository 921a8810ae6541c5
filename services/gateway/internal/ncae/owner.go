package ncae

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/gateway/internal/httpapi"
)

// errNoAnswer: the partition has no owner that answers.
var errNoAnswer = errors.New("the partition's owner does not answer")

// find asks the partition's owner what an id stands for. It is patient: a partition without an owner gets one within seconds,
// and an owner that does not know the id may only have taken over. The error is errNoAnswer, or the context's.
func (d *Door) find(ctx context.Context, partition int, q wire.PhaseInstanceQuery) (wire.PhaseInstance, error) {
	began := time.Now()
	known := wire.PhaseInstance{}
	answered := time.Time{}
	for {
		v, err := d.ask(ctx, partition, q)
		switch {
		case err == nil && v.Found:
			return v, nil
		case err == nil && answered.IsZero():
			answered = time.Now()
		case ctx.Err() != nil:
			return known, ctx.Err()
		case err != nil && time.Since(began) > OwnerPatience:
			d.log.Warn("the owner of a partition does not answer a callback", zap.Int("partition", partition), zap.Error(err))
			return known, errNoAnswer
		}
		if !answered.IsZero() && time.Since(answered) > StrangerPatience {
			return known, nil
		}
		pause := askPause
		if err == nil {
			pause *= 10
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return known, ctx.Err()
		}
	}
}

// look answers a call that only asks what the id of its path stands for: show is called with it, where that is known.
func (d *Door) look(w http.ResponseWriter, r *http.Request, query func(id uint64) wire.PhaseInstanceQuery, show func(partition int, v wire.PhaseInstance)) {
	id, partition, ok := d.pathID(w, r)
	if !ok {
		return
	}
	v, err := d.find(r.Context(), partition, query(id))
	switch {
	case err != nil:
		unanswered(w)
	case !v.Found:
		unknown(w)
	default:
		show(partition, v)
	}
}

func (d *Door) ask(ctx context.Context, partition int, q wire.PhaseInstanceQuery) (v wire.PhaseInstance, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return v, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	reply, err := d.bus.AskDoor(ctx, partition, bus.Request{
		Verb: wire.VerbPhaseInstance, Header: map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, Body: body,
	})
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(reply.Body, &v); err != nil {
		return v, fmt.Errorf("the owner's answer: %w", err)
	}
	var refused struct{ Code, Message string }
	if err := json.Unmarshal(reply.Body, &refused); err == nil && refused.Code != "" {
		return v, fmt.Errorf("the owner refused: %s", refused.Message) // it has too much to do
	}
	return v, nil
}

// say stores a callback, and waits until the owner has applied it, as the given condition tells. Applied is false where that
// was not seen in time.
func (d *Door) say(ctx context.Context, partition int, c wire.Callback, applied func(wire.PhaseInstance) bool) (now wire.PhaseInstance, seen bool, err error) {
	body, err := wire.EncodeCallback(c)
	if err != nil {
		return now, false, err
	}
	id := max(c.PhaseInstance, c.ServiceInstance)
	within, cancel := context.WithTimeout(ctx, PublishTimeout)
	defer cancel()
	if err := d.bus.PublishResult(within, bus.CallbackSubject(partition, id), nil, body); err != nil {
		return now, false, err
	}
	q := wire.PhaseInstanceQuery{PhaseInstance: c.PhaseInstance, ServiceInstance: c.ServiceInstance, Transaction: c.Transaction}
	for end := time.Now().Add(AppliedWait); time.Now().Before(end); {
		if now, err := d.ask(ctx, partition, q); err == nil && now.Found && applied(now) {
			return now, true, nil
		}
		select {
		case <-time.After(appliedPause):
		case <-ctx.Done():
			return now, false, nil
		}
	}
	return now, false, nil
}

// unstored answers where a callback could not be stored.
func (d *Door) unstored(w http.ResponseWriter, err error) {
	var field *wire.FieldError
	switch {
	case errors.As(err, &field):
		httpapi.Invalid(w, field.Field, field.Error())
	case errors.Is(err, bus.ErrDenied):
		d.log.Error("gateway may not store callbacks", zap.Error(err))
		httpapi.Fail(w, http.StatusInternalServerError, "internal", "the gateway's permissions do not allow this")
	default:
		d.log.Warn("a callback could not be stored", zap.Error(err))
		httpapi.Fail(w, http.StatusServiceUnavailable, "overloaded", "the callback could not be stored; say it again")
	}
}

// unanswered answers where nobody knows what the id stands for.
func unanswered(w http.ResponseWriter) {
	httpapi.Fail(w, http.StatusServiceUnavailable, "overloaded", "the owner of this id's partition does not answer; try again in a while")
}
