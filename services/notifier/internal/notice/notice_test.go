package notice_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/services/notifier/internal/notice"
)

func TestGroup(t *testing.T) {
	t.Parallel()
	require.Empty(t, notice.Group(nil))

	a := notice.Event{Kind: "node", Name: "a", State: "Started", Cluster: "c1"}
	b := notice.Event{Kind: "node", Name: "b", State: "Started", Cluster: "c2"}
	c := notice.Event{Kind: "node", Name: "c", State: "Started", Cluster: "c1"}
	d := notice.Event{Kind: "node", Name: "d", State: "Off", Cluster: "c1"}
	e := notice.Event{Kind: "host", Name: "e", State: "Started", Cluster: "c1"}
	require.Equal(t, []notice.Message{
		{Events: []notice.Event{a, c}}, {Events: []notice.Event{b}}, {Events: []notice.Event{d}}, {Events: []notice.Event{e}},
	}, notice.Group([]notice.Event{a, b, c, d, e}))

	many := make([]notice.Event, 2*notice.ResourcesMax+1)
	for i := range many {
		many[i] = notice.Event{Kind: "node", State: "Started", Revision: uint64(i)}
	}
	messages := notice.Group(many)
	require.Len(t, messages, 3)
	require.Len(t, messages[0].Events, notice.ResourcesMax)
	require.Len(t, messages[2].Events, 1)
	require.Equal(t, uint64(notice.ResourcesMax), messages[1].Events[0].Revision, "in order")
}

func TestJSON(t *testing.T) {
	t.Parallel()
	m := notice.Message{Events: []notice.Event{{
		Project: "default", Kind: "node", Name: "web1.example.com", UID: "u", Revision: 42, State: "Started", Cluster: "c",
		JobID: "j", Time: time.Date(2026, 11, 20, 9, 30, 0, 5, time.UTC),
	}, {Project: "default", Kind: "node", Name: "w2", Traceparent: "00-1"}}}
	body, err := m.JSON()
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"node","state":"Started","cluster":"c","resources":[
		{"project":"default","kind":"node","name":"web1.example.com","uid":"u","revision":"42","jobId":"j","time":"2026-11-20T09:30:00.000000005Z"},
		{"project":"default","kind":"node","name":"w2","uid":"","revision":"0","jobId":"","time":"0001-01-01T00:00:00Z"}]}`, string(body))
	require.Equal(t, "default/node/web1.example.com/u/42", m.ID())
	require.Equal(t, "00-1", m.Traceparent())
}
