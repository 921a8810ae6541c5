package e2e_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
)

// worker is the worker of one phase in the hand of a test: it takes work when it is told to, and answers when and what
// it is told to.
type worker struct {
	t     *testing.T
	js    jetstream.JetStream
	phase bus.Phase
}

// order is work that was taken.
type order struct {
	msg  jetstream.Msg
	work wire.Work
}

func newWorker(t *testing.T, h *house, kind, phase string) *worker {
	t.Helper()
	nc := h.connect()
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return &worker{t: t, js: js, phase: bus.Phase{Project: project, Kind: kind, Phase: phase}}
}

// next takes one piece of work.
func (w *worker) next(ctx context.Context) order {
	w.t.Helper()
	for {
		o, err := w.try(ctx, 2*time.Second)
		if err == nil {
			return o
		}
		require.NoError(w.t, ctx.Err(), "no work of %s came: %v", w.phase.Phase, err)
		pause(ctx, 20*time.Millisecond)
	}
}

func (w *worker) try(ctx context.Context, wait time.Duration) (order, error) {
	try, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	consumer, err := w.js.Consumer(try, "WORK", w.phase.Consumer())
	if err != nil {
		return order{}, err
	}
	m, err := consumer.Next(jetstream.FetchMaxWait(wait))
	if err != nil {
		return order{}, err
	}
	poll := ""
	if m.Headers().Get(bus.HeaderPoll) != "" {
		poll = w.phase.Phase
	}
	work, err := wire.DecodeWork(m.Data(), poll)
	return order{msg: m, work: work}, err
}

// answer stores a result, and then acknowledges the work. A server that was killed in between may not remember that it
// handed it out; then it comes again, see drain.
func (w *worker) answer(ctx context.Context, o order, outcome string, more object) {
	w.t.Helper()
	w.store(ctx, o, outcome, more)
	for range 2 {
		try, cancel := context.WithTimeout(ctx, time.Second)
		err := o.msg.DoubleAck(try)
		cancel()
		if err == nil {
			return
		}
	}
}

// drain acknowledges what comes again although it was answered, until ctx ends.
func (w *worker) drain(ctx context.Context) {
	for ctx.Err() == nil {
		if o, err := w.try(ctx, time.Second); err == nil {
			_ = o.msg.Ack()
		} else {
			pause(ctx, 20*time.Millisecond)
		}
	}
}

// store stores a result.
func (w *worker) store(ctx context.Context, o order, outcome string, more object) {
	w.t.Helper()
	result := object{"outcome": outcome, "fence": object{
		"uid": o.work.Fence.UID, "jobId": o.work.Fence.JobID, "phase": o.work.Fence.Phase,
		"attempt": o.work.Fence.Attempt, "call": o.work.Fence.Call,
	}}
	for name, value := range more {
		result[name] = value
	}
	body, err := json.Marshal(result)
	require.NoError(w.t, err)
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := w.js.PublishMsg(try, &nats.Msg{
			Subject: o.work.ResultSubject, Header: nats.Header{"Content-Type": []string{"application/json"}}, Data: body,
		})
		cancel()
		if err == nil {
			return
		}
		require.NoError(w.t, ctx.Err(), "the result was not stored: %v", err)
		pause(ctx, 50*time.Millisecond)
	}
}
