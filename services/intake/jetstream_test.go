package intake_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/intake"
)

// A client without our code, on a real server: what it publishes, in whatever shape, is applied, refused or set aside.
func TestOnJetStream(t *testing.T) {
	t.Parallel()
	server, err := natsd.Start(natsd.Options{Ephemeral: true, StoreDir: t.TempDir(), Port: -1})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Shutdown()) }()
	b, err := jetstream.Connect(t.Context(), jetstream.Options{URL: server.ClientURL(), Partitions: 4})
	require.NoError(t, err)
	defer b.Close()
	_, err = b.Setup(t.Context(), false)
	require.NoError(t, err)
	o := serveOwners(t, b)
	config := host.DefaultConfig()
	config.Listen = ""
	h := host.New(host.Options{Name: intake.Service, Config: config})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- h.Run(ctx, func(ctx context.Context, h *host.Host) error { return intake.Run(ctx, h, b) })
	}()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	require.Eventually(t, func() bool { return h.Ready(t.Context()) == nil }, 30*time.Second, 5*time.Millisecond)

	nc, err := nats.Connect(server.ClientURL())
	require.NoError(t, err)
	defer nc.Close()
	refused, err := nc.SubscribeSync("drover.refused.>")
	require.NoError(t, err)
	poison, err := nc.SubscribeSync("drover.poison.>")
	require.NoError(t, err)
	type answer struct {
		Seq         uint64 // of a captured command
		JobID, Code string // of a request
	}
	say := func(subject, id, messageID, body string) (a answer) {
		m := &nats.Msg{Subject: subject, Header: nats.Header{"Content-Type": {jsonType}}, Data: []byte(body)}
		if id != "" {
			m.Header.Set("Drover-Request-Id", id)
		}
		if messageID != "" {
			m.Header.Set("Nats-Msg-Id", messageID)
		}
		reply, err := nc.RequestMsg(m, 5*time.Second)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(reply.Data, &a), "%s", reply.Data)
		return a
	}
	const subject, cmd = "drover.api.default.node.web1=2Eexample=2Ecom.start", "drover.cmd.default.node.web1=2Eexample=2Ecom.start"
	require.Equal(t, "job-mine", say(subject, "mine", "", `{}`).JobID)
	require.Equal(t, "invalid", say(subject, "mine", "", `{`).Code)
	require.Equal(t, "invalid", say("drover.api.default.node.-.start", "", "", `{}`).Code)
	require.Equal(t, "invalid", say("drover.api.default", "", "", `{}`).Code)

	made := say(cmd, "", "", `{}`).Seq
	say("drover.cmd.default.node.-.start", "selector", "", `{}`)
	say("drover.cmd.default.node.=zz.start", "poison", "", `{}`)
	say(cmd, "foreign", "not/what/it/says", `{}`)
	say(cmd, "last", "default/node/web1.example.com/last", `{}`)
	require.Eventually(t, func() bool { return len(o.of(cmd)) == 3 }, 30*time.Second, 5*time.Millisecond)
	require.Equal(t, []string{"mine", fmt.Sprint("c", made), "last"}, o.of(cmd))
	ids := map[string]bool{}
	for range 2 {
		m, err := refused.NextMsg(5 * time.Second)
		require.NoError(t, err)
		var r struct{ Code, RequestID string }
		require.NoError(t, json.Unmarshal(m.Data, &r))
		require.Equal(t, "invalid", r.Code)
		require.Equal(t, "drover.refused.default."+r.RequestID, m.Subject)
		ids[r.RequestID] = true
	}
	require.Equal(t, map[string]bool{"selector": true, "foreign": true}, ids)
	m, err := poison.NextMsg(5 * time.Second)
	require.NoError(t, err)
	require.Contains(t, m.Header.Get("Drover-Reason"), "not a subject of a command")
	settled(t, b)
}
