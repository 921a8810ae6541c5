package e2e_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

// TestPlainClient is a client that has read contract.md and the .proto files and has none of our code: it commands in
// JSON through both doors, follows the feed by headers alone, reads a bucket, and is the worker of a phase.
func TestPlainClient(t *testing.T) {
	t.Parallel()
	h := newHouse(t, plan{intakes: 1, orchestrators: 1})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nc, err := nats.Connect(h.url)
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)

	feed, err := nc.SubscribeSync("drover.evt.>")
	require.NoError(t, err)
	require.NoError(t, nc.Flush())

	// A request is answered after the commit. Until the services are there nobody answers: a client asks again.
	ask := func(subject, body string) (reply map[string]any) {
		t.Helper()
		m := nats.NewMsg(subject)
		m.Header.Set("Content-Type", "application/json")
		m.Data = []byte(body)
		require.Eventually(t, func() bool {
			answer, err := nc.RequestMsg(m, 5*time.Second)
			if err != nil {
				return false
			}
			require.Equal(t, "application/json", answer.Header.Get("Content-Type"))
			reply = map[string]any{}
			require.NoError(t, json.Unmarshal(answer.Data, &reply))
			return reply["code"] != "overloaded"
		}, 30*time.Second, 50*time.Millisecond)
		return reply
	}
	blueprint := `{"resource": {"apiVersion": "drover/v1", "kind": "Blueprint", "metadata": {"name": "box"}, "spec": {
		"lifecycle": "node", "states": ["Building"],
		"phases": [{"name": "build", "states": ["Building"], "executor": {"plugin": {}}}]}}}`
	reply := ask("drover.api.default.Blueprint.box.apply", blueprint)
	require.NotEmpty(t, reply["jobId"], "%v", reply)
	require.Equal(t, "default/Blueprint/box", reply["resource"])
	// host.example.com is the token host=2Eexample=2Ecom.
	const name, token = "host.example.com", "host=2Eexample=2Ecom"
	reply = ask("drover.api.default.box."+token+".apply",
		`{"resource": {"apiVersion": "drover/v1", "kind": "box", "metadata": {"name": "`+name+`"}, "spec": {"size": 3}}}`)
	require.Equal(t, "default/box/"+name, reply["resource"], "%v", reply)

	// A published command is durable with its PubAck, and its job is found under the id that the request made.
	m := nats.NewMsg("drover.cmd.default.box." + token + ".start")
	m.Header.Set("Content-Type", "application/json")
	m.Header.Set("Drover-Request-Id", "first-start")
	m.Data = []byte(`{}`)
	ack, err := js.PublishMsg(ctx, m)
	require.NoError(t, err)
	require.Equal(t, "COMMANDS", ack.Stream)

	// The worker: one consumer a phase, work in protobuf, the result in JSON.
	var work jetstream.Msg
	require.Eventually(t, func() bool {
		consumer, err := js.Consumer(ctx, "WORK", "default~box~build")
		if err != nil {
			return false // it is made when the blueprint is applied, in the background
		}
		work, err = consumer.Next(jetstream.FetchMaxWait(5 * time.Second))
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, "drover.work.default.box.build", work.Subject())
	order := field(t, work.Data(), 11) // Event.work
	fence := field(t, order, 1)        // Work.fence
	result, err := json.Marshal(map[string]any{
		"fence": map[string]any{
			"uid": string(field(t, fence, 1)), "jobId": string(field(t, fence, 2)), "phase": string(field(t, fence, 3)),
			"attempt": number(t, fence, 4), "call": number(t, fence, 5),
		},
		"outcome": "completed", "attributes": map[string]any{"address": "10.0.0.7"},
	})
	require.NoError(t, err)
	m = nats.NewMsg(string(field(t, order, 2))) // Work.result_subject
	m.Header.Set("Content-Type", "application/json")
	m.Data = result
	ack, err = js.PublishMsg(ctx, m)
	require.NoError(t, err)
	require.Equal(t, "RESULTS", ack.Stream)
	require.NoError(t, work.Ack())

	// The feed tells the story in its headers: what came from where to where, in which revision, for which job.
	type told struct{ Subject, From, To, Revision string }
	var story []told
	var job string
	for len(story) < 3 {
		m, err := feed.NextMsg(20 * time.Second)
		require.NoError(t, err, "the feed fell silent after %v", story)
		if m.Subject == "drover.evt.resource.default.box."+token {
			story = append(story, told{m.Subject, m.Header.Get("Drover-From"), m.Header.Get("Drover-To"), m.Header.Get("Drover-Revision")})
			job = m.Header.Get("Drover-Job")
		}
	}
	subject := "drover.evt.resource.default.box." + token
	require.Equal(t, []told{
		{subject, "", "", "1"},                // created
		{subject, "", "Building", "2"},        // the flow begins, build is handed out
		{subject, "Building", "Started", "3"}, // its result
	}, story)
	require.NotEmpty(t, job)

	// The bucket has the same, for whoever comes later.
	bucket, err := js.KeyValue(ctx, "drover_resources")
	require.NoError(t, err)
	entry, err := bucket.Get(ctx, "default.box."+token)
	require.NoError(t, err)
	require.Equal(t, "resource", string(field(t, entry.Value(), 1))) // Event.family
	require.Equal(t, "Started", string(field(t, entry.Value(), 6)))  // Event.to
	jobs, err := js.KeyValue(ctx, "drover_jobs")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		entry, err := jobs.Get(ctx, "default."+job)
		return err == nil && string(field(t, entry.Value(), 6)) == "succeeded"
	}, 30*time.Second, 20*time.Millisecond)
}

// field is one field of a protobuf message that is text, bytes or a message, by its number.
func field(t *testing.T, body []byte, number protowire.Number) []byte {
	t.Helper()
	value := find(t, body, number)
	if value == nil {
		return nil
	}
	text, n := protowire.ConsumeBytes(value)
	require.Positive(t, n)
	return text
}

// number is one field that is a whole number.
func number(t *testing.T, body []byte, number protowire.Number) uint64 {
	t.Helper()
	v, n := protowire.ConsumeVarint(find(t, body, number))
	require.Positive(t, n)
	return v
}

func find(t *testing.T, body []byte, number protowire.Number) []byte {
	t.Helper()
	for len(body) > 0 {
		n, kind, tag := protowire.ConsumeTag(body)
		require.Positive(t, tag, "not protobuf")
		size := protowire.ConsumeFieldValue(n, kind, body[tag:])
		require.Positive(t, size, "not protobuf")
		if n == number {
			return body[tag : tag+size]
		}
		body = body[tag+size:]
	}
	return nil
}
