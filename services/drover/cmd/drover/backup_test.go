package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/drover/internal/cli"
	"github.com/droverproject/drover/services/drover/internal/up"
)

// TestBackupAndRestore is an operator's session in one process: back up, lose all, make it again, go on.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	manifest := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(manifest, []byte(strings.ReplaceAll(fleet, "DIRECTORY", directory)), 0o600))
	h := newHouse(t, directory)
	h.run(cli.ExitOK, "apply", "-f", manifest)
	h.run(cli.ExitOK, "start", "--all", "node", "--wait")
	folder := filepath.Join(t.TempDir(), "backup")
	out := h.run(cli.ExitOK, "backup", folder)
	require.Contains(t, out, "all that was accepted until ")
	h.run(cli.ExitError, "backup", folder) // it is not empty
	h.run(cli.ExitConflict, "restore", folder)
	h.stop()

	h = newHouse(t, t.TempDir(), "--restore", folder)
	require.Contains(t, h.run(cli.ExitOK, "get", "node"), "node/web-1.example.com   Started   Started")
	require.Equal(t, "[host-file] configured\n", h.run(cli.ExitOK, "logs", "node/web-1.example.com"))
	h.run(cli.ExitOK, "terminate", "--all", "node", "--wait")

	// A second copy, as a program reads it.
	var made bus.Backup
	require.NoError(t, json.Unmarshal([]byte(h.run(cli.ExitOK, "backup", filepath.Join(t.TempDir(), "again"), "-o", "json")), &made))
	require.Equal(t, 4, made.Partitions)
	require.Equal(t, "EVENTS", made.Streams[len(made.Streams)-1].Stream)
	require.Positive(t, made.Streams[len(made.Streams)-1].Messages)
}

// TestRestoreOntoASystem is refused, and leaves the data folder as it was.
func TestRestoreOntoASystem(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	h := newHouse(t, directory)
	folder := filepath.Join(t.TempDir(), "backup")
	h.run(cli.ExitOK, "backup", folder)
	h.stop()
	told := &output{} // services write to it too
	a := &cli.App{Err: told, Getenv: func(string) string { return "" }, Connect: connect, Up: up.Run}
	code := cli.Main(context.Background(), a, []string{
		"up", "--data", filepath.Join(directory, ".drover"), "--nats", "127.0.0.1:0", "--http", "127.0.0.1:0", "--restore", folder})
	require.Equal(t, cli.ExitConflict, code, told.String())
	require.Contains(t, told.String(), "where there is no system")
	newHouse(t, directory).run(cli.ExitNotFound, "get", "blueprint/none")
}
