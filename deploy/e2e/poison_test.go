package e2e_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// TestPoison publishes what nobody can read, where services read: it is set aside with its reason, and what is behind
// it, of the same resource and in the same partition, is applied.
func TestPoison(t *testing.T) {
	t.Parallel()
	const partitions = 4
	h := newHouse(t, plan{intakes: 1, orchestrators: 1, partitions: partitions})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nc := h.connect()
	defer nc.Close()
	d, err := openDoor(nc)
	require.NoError(t, err)
	c := chronicleAfter(t, ctx, h, d, command{Kind: "Blueprint", Name: "box", Verb: "apply", ID: "box", Body: apply("Blueprint", "box", object{
		"lifecycle": "node", "states": list{"Building"},
		"phases": list{object{"name": "build", "states": list{"Building"}, "executor": object{"plugin": object{}}}},
	}, nil)})
	for _, verb := range []string{"apply", "start"} {
		body := any(object{})
		if verb == "apply" {
			body = apply("box", "b", object{}, nil)
		}
		a, err := d.request(ctx, command{Kind: "box", Name: "b", Verb: verb, ID: verb, Body: body})
		require.NoError(t, err)
		require.NotEmpty(t, a.JobID, "%+v", a)
	}
	w := newWorker(t, h, "box", "build")
	order := w.next(ctx)

	results := bus.ResultSubject(bus.PartitionOf(project, "box", "b", partitions), project, "box", "b")
	require.Equal(t, results, order.work.ResultSubject)
	asJSON := nats.Header{"Content-Type": []string{"application/json"}}
	fence := `"fence": {"uid": "u", "jobId": "j", "phase": "build", "attempt": 1, "call": 1}`
	poison := []struct {
		stream, subject string
		header          nats.Header
		body, reason    string
	}{
		{"RESULTS", results, nil, "\xff\xff\xff", "protobuf"},
		{"RESULTS", results, asJSON, `{"fence": `, "JSON"},
		{"RESULTS", results, asJSON, `{` + fence + `, "outcome": "perhaps"}`, "outcome"},
		{"RESULTS", results, asJSON, `{` + fence + `, "outcome": "completed", "colour": "red"}`, "colour"},
		{"RESULTS", results, asJSON, `{"outcome": "completed"}`, "fence"},
		{"RESULTS", strings.TrimSuffix(results, "b") + "=2", asJSON, `{` + fence + `, "outcome": "completed"}`, "subject"},
		// A subject whose tokens are no names: nobody could be told under which name it was refused.
		{"COMMANDS", "drover.cmd.default.box.=2.start", asJSON, `{}`, "subject"},
	}
	for _, p := range poison {
		ack, err := d.js.PublishMsg(ctx, &nats.Msg{Subject: p.subject, Header: p.header, Data: []byte(p.body)})
		require.NoError(t, err)
		require.Equal(t, p.stream, ack.Stream)
	}
	for _, subject := range []string{"drover.cmd.default.box.b", "drover.cmd.default.box.b.start.now", "drover.result.1.default.box"} {
		_, err := d.js.PublishMsg(ctx, &nats.Msg{Subject: subject}, jetstream.WithRetryAttempts(0))
		require.ErrorIs(t, err, jetstream.ErrNoStreamResponse, "%s: no stream takes what no reader would find", subject)
	}
	// What is good comes behind.
	_, err = d.publish(ctx, command{Kind: "box", Name: "b", Verb: "apply", ID: "again", Body: apply("box", "b", object{"n": 2}, nil)})
	require.NoError(t, err)
	w.answer(ctx, order, "completed", nil)
	require.True(t, c.wait(ctx, func() bool {
		s := c.resources[order.work.State.Key]
		return s.State == "Started" && s.Generation == 2
	}), "what was behind the poison was not applied")

	var found []stored
	require.Eventually(t, func() bool {
		found, err = batch(ctx, nc, "POISON", "drover.poison.>", 1)
		return err == nil && len(found) == len(poison)
	}, 20*time.Second, 20*time.Millisecond)
	for _, p := range poison {
		match := 0
		for _, m := range found {
			if m.Header.Get("Drover-Original-Subject") == p.subject && string(m.Body) == p.body {
				match++
				require.Equal(t, "drover.poison."+p.stream, m.Subject)
				require.Contains(t, m.Header.Get("Drover-Reason"), p.reason, "%q", p.body)
				require.NotEmpty(t, m.Header.Get("Drover-Original-Sequence"))
			}
		}
		require.Equal(t, 1, match, "%s %q", p.subject, p.body)
	}
	empty(t, d.js, "RESULTS", "COMMANDS", "WORK")
}

// chronicleAfter begins to read after the first command was accepted: before that there may be no streams.
func chronicleAfter(t *testing.T, ctx context.Context, h *house, d *door, first command) *chronicle {
	t.Helper()
	a, err := d.request(ctx, first)
	require.NoError(t, err)
	require.NotEmpty(t, a.JobID, "%+v", a)
	return chronicleOf(t, h)
}
