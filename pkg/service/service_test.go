package service_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/service"
)

// TestWorkersReadTheWaitForWork: what an orchestrator is told with --work-ack-wait stands in the consumers that it makes.
func TestWorkersReadTheWaitForWork(t *testing.T) {
	t.Parallel()
	server, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Shutdown()) })
	c := host.DefaultConfig()
	c.NATS, c.Partitions, c.WorkAckWait = server.ClientURL(), 1, 17*time.Second
	b, err := service.Connect(t.Context(), "orchestrator", host.New(host.Options{Name: "orchestrator", Config: c}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	p := bus.Phase{Project: "p", Kind: "node", Phase: "disk"}
	require.NoError(t, b.EnsurePhase(t.Context(), p))
	puller, err := b.Pull(t.Context(), p)
	require.NoError(t, err)
	t.Cleanup(puller.Close)
	require.Equal(t, c.WorkAckWait, puller.AckWait())
}
