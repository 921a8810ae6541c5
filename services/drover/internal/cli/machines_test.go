package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const rebarManifests = `
apiVersion: drover/v1
kind: Machine
metadata: {name: m1}
spec: {workflow: install, params: {size: 3}}
---
apiVersion: drover/v1
kind: Workflow
metadata: {name: install}
spec: {stages: [first]}
---
apiVersion: drover/v1
kind: Stage
metadata: {name: first}
spec: {bootEnv: local, tasks: [hello]}
---
apiVersion: drover/v1
kind: Task
metadata: {name: hello}
spec: {templates: [{name: script, contents: "#!/bin/sh\necho hello\n"}]}
`

// TestMachines: manifests of Digital Rebar's kinds, in any order, and a machine that says why it waits.
func TestMachines(t *testing.T) {
	t.Parallel()
	system := house(t)
	file := filepath.Join(t.TempDir(), "rebar.yaml")
	require.NoError(t, os.WriteFile(file, []byte(rebarManifests), 0o600))
	do := func(code int, args string) run {
		t.Helper()
		r := drover(t, houseApp(system), strings.Fields(args)...)
		require.Equal(t, code, r.code, "%s\n%s%s", args, r.out, r.err)
		return r
	}
	do(ExitOK, "apply -f "+file)
	require.Eventually(t, func() bool {
		return strings.Contains(drover(t, houseApp(system), "get", "machines").out, "m1")
	}, 30*time.Second, 10*time.Millisecond)
	r := do(ExitOK, "get machines -o wide")
	require.Contains(t, r.out, "ready")
	require.Contains(t, r.out, "waits for its agent to ask for the next task")
	r = do(ExitOK, "describe machine/m1")
	require.Contains(t, r.out, "stage:first")
	require.Contains(t, r.out, "waits for its agent to ask for the next task")
	r = do(ExitOK, "get machine/m1 -o json")
	require.Contains(t, r.out, `"why": "waits for its agent to ask for the next task"`)
	r = do(ExitOK, "events --family machine")
	require.Contains(t, r.out, "machine/m1")
	require.Contains(t, r.out, "apply, at -1")
	do(ExitNotFound, "describe machine/m2")
	do(ExitUsage, "get machines -l a=b")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(rebarManifests, "workflow: install", "workflow: none", 1)), 0o600))
	r = do(ExitError, "apply -f "+file)
	require.Contains(t, r.err, "there is no workflow none")
}
