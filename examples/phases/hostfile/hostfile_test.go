package hostfile

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/intake"
	"github.com/droverproject/drover/services/orchestrator"
)

// TestHostFile drives a box to Started with the plugin: one file is made, and one cannot be.
func TestHostFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOST_FILES", dir)
	system := memory.New(memory.Options{Partitions: 1})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	for name, run := range map[string]func(context.Context, *host.Host, bus.Bus) error{
		intake.Service: intake.Run, orchestrator.Service: orchestrator.Run,
	} {
		config := host.DefaultConfig()
		config.Listen = ""
		h, conn := host.New(host.Options{Name: name, Config: config}), system.Connect()
		running.Go(func() {
			if err := h.Run(ctx, func(ctx context.Context, h *host.Host) error { return run(ctx, h, conn) }); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		require.Eventually(t, func() bool { return h.Ready(ctx) == nil }, 30*time.Second, 5*time.Millisecond)
	}
	b := system.Connect()
	running.Go(func() {
		if err := plugin.Serve(ctx, b, Phase, plugin.Options{BindEvery: 10 * time.Millisecond}, Handle); err != nil {
			t.Error(err)
		}
	})

	ask := func(kind, name, verb, spec string) {
		t.Helper()
		c := wire.Command{}
		if verb == "apply" {
			c.Manifest = &wire.Manifest{APIVersion: "drover/v1", Kind: kind, Name: name, Spec: []byte(spec)}
		}
		body, err := wire.EncodeCommand("", c)
		require.NoError(t, err)
		reply, err := b.Request(ctx, bus.CommandSubject("api", "default", kind, name, verb), map[string]string{bus.HeaderRequestID: verb + kind}, body)
		require.NoError(t, err)
		r, err := wire.DecodeReply("", reply.Body)
		require.NoError(t, err)
		require.Nil(t, r.Refused)
	}
	ask("Blueprint", "box", "apply", `{"lifecycle": "node", "states": ["Configuration"], "phases": [
		{"name": "host-file", "states": ["Configuration"], "executor": {"plugin": {}}}]}`)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	for _, name := range []string{"web-1", "folder"} {
		ask("box", name, "apply", "{}")
		ask("box", name, "start", "")
	}
	look := func(name string) (state, message string) {
		stored, err := b.Get(ctx, bus.Entity{Family: bus.Resource, Project: "default", Kind: "box", Name: name})
		require.NoError(t, err)
		event, err := wire.DecodeResource(stored.Body)
		require.NoError(t, err)
		return event.State.State, event.State.Phase("host-file").Message
	}
	require.Eventually(t, func() bool { state, _ := look("web-1"); return state == "Started" }, 30*time.Second, 5*time.Millisecond)
	require.FileExists(t, filepath.Join(dir, "web-1"))
	require.Eventually(t, func() bool { _, message := look("folder"); return message != "" }, 30*time.Second, 5*time.Millisecond)
}
