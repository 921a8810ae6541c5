package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What cannot be meant is refused before anything is connected or run.
func TestPluginExecUsage(t *testing.T) {
	t.Parallel()
	wrong := write(t, "wrong.txt", "HandlesStates = A\nResourceType = node\nPhaseName = p\nResourceConstraint := X ~ 1\nPriority = 7\n")
	listener := write(t, "told.txt", "ResourceStateListener = true\nResourceStates = A\nResourceTypes = node\n")
	for _, c := range []struct {
		code    int
		message string
		args    []string
	}{
		{ExitUsage, "name what to do: --definition FILE, or --phase KIND/PHASE", []string{"exec", "--", "true"}},
		{ExitUsage, `"Cloud.Node.Create" is not of the form KIND/PHASE`, []string{"exec", "--phase", "Cloud.Node.Create", "--", "true"}},
		{ExitUsage, `"node" is not of the form`, []string{"exec", "--phase", "node", "--", "true"}},
		{ExitUsage, `is missing`, []string{"exec", "--phase", "node/", "--", "true"}},
		{ExitUsage, "name the program", []string{"exec", "--phase", "node/p"}},
		{ExitUsage, "exclude each other", []string{"exec", "--phase", "node/p", "--python", "x.py", "--", "true"}},
		{ExitUsage, "--batch: is not 1 to 1000", []string{"exec", "--phase", "node/p", "--batch", "1001", "--", "true"}},
		{ExitUsage, `--batch-bytes: "1MB" is not a size of 1 to 64MiB`, []string{"exec", "--phase", "node/p", "--batch-bytes", "1MB", "--", "true"}},
		{ExitUsage, `--batch-bytes: "65MiB" is not`, []string{"exec", "--phase", "node/p", "--batch-bytes", "65MiB", "--", "true"}},
		{ExitUsage, "--concurrency", []string{"exec", "--phase", "node/p", "--concurrency", "0", "--", "true"}},
		{ExitUsage, "the limit of a call is 2h0m0s", []string{"exec", "--phase", "node/p", "--call-timeout", "2h", "--", "true"}},
		{ExitUsage, "--timeout is not for `plugin exec`", []string{"exec", "--phase", "node/p", "--timeout", "1s", "--", "true"}},
		{ExitUsage, "name what to announce", []string{"announce"}},
		{ExitUsage, "two files name the listener", []string{"announce", "--definition", listener, "--definition", listener}},
		{ExitError, "no such file", []string{"announce", "--definition", filepath.Join(t.TempDir(), "none.txt")}},
		{ExitError, wrong + ":5:1: Priority is not a key of plugins", []string{"announce", "--definition", wrong}},
		{ExitUnreachable, "nobody listens", []string{"exec", "--phase", "node/p", "--", "true"}},
	} {
		r := drover(t, app(nil), append([]string{"plugin"}, c.args...)...)
		require.Equal(t, c.code, r.code, "%v: %s", c.args, r.err)
		require.Contains(t, r.err, c.message)
		require.Empty(t, r.out)
	}
}

// TestPluginHouse announces and carries out with the services behind it, all in memory but the program.
func TestPluginHouse(t *testing.T) {
	t.Parallel()
	a := houseApp(house(t))
	dir := t.TempDir()
	define := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	made := define("made.txt", "HandlesStates = Allocation\nResourceType = box\nPhaseName = Box.Make\nPhase.Owner = ops\n")
	after := define("after.txt", "HandlesStates = Allocation\nResourceType = box\nPhaseName = Box.After\nPhase.Dependencies = Box.Make\n")

	r := drover(t, a, "plugin", "announce", "--definition", made, "--timeout", "20s")
	require.Equal(t, ExitNotFound, r.code, r.err)
	require.Contains(t, r.err, "kind box: the kind has no blueprint: apply one with its lifecycle and its states first")

	manifest := write(t, "box.yaml", `
apiVersion: drover/v1
kind: Blueprint
metadata: {name: box}
spec:
  lifecycle: node
  states: [Allocation]
  phases:
  - {name: Box.Else, states: [Allocation], executor: {script: {command: ["true"]}}}
---
{apiVersion: drover/v1, kind: box, metadata: {name: b1}}
`)
	require.Equal(t, ExitOK, drover(t, a, "apply", "-f", manifest).code)
	r = drover(t, a, "plugin", "announce", "--definition", define("else.txt", "HandlesStates = Allocation\nResourceType = box\nPhaseName = Box.Else\n"), "--timeout", "20s")
	require.Equal(t, ExitConflict, r.code, r.err)
	require.Contains(t, r.err, "the blueprint has a phase of this name with another executor")
	r = drover(t, a, "plugin", "announce", "--definition", define("state.txt", "HandlesStates = Nowhere\nResourceType = box\nPhaseName = Box.X\n"), "--timeout", "20s")
	require.Equal(t, ExitError, r.code, r.err)
	require.Contains(t, r.err, "no path of the lifecycle leads through this state")

	// The dependant first: they are announced in the order in which they depend.
	r = drover(t, a, "plugin", "announce", "--definition", after, "--definition", made, "--timeout", "20s")
	require.Equal(t, ExitOK, r.code, r.err)
	require.Equal(t, "phase box/Box.Make  added\nphase box/Box.After  added\n", r.out)
	r = drover(t, a, "plugin", "announce", "--definition", made, "-o", "jsonl", "--timeout", "20s")
	require.JSONEq(t, `{"what": "phase", "kind": "box", "name": "Box.Make", "project": "default", "outcome": "unchanged"}`, r.out)
	require.Contains(t, drover(t, a, "describe", "blueprint/box").out, "Owner: ops")

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan run, 1)
	go func() {
		ended <- droverCtx(ctx, t, a, "plugin", "exec", "--definition", after, "--phase", "box/Box.Make", "--", "sh", "-c",
			`while IFS= read -r name; do printf '{"resource": "%s", "outcome": "completed", "log": "%s done"}\n' "$name" "$DROVER_PHASE"; done < "$DROVER_NAMES_FILE"`)
	}()
	r = drover(t, a, "start", "box/b1", "--wait", "--timeout", "30s")
	require.Equal(t, ExitOK, r.code, r.err)
	require.Eventually(t, func() bool {
		out := drover(t, a, "logs", "box/b1").out
		return strings.Contains(out, "Box.Make done") && strings.Contains(out, "Box.After done")
	}, 30*time.Second, 10*time.Millisecond)
	cancel()
	r = <-ended
	require.Equal(t, ExitOK, r.code, r.err)
}
