package python_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/plugin/python"
)

func module(t *testing.T, name, text string) string {
	t.Helper()
	if !python.Here("") {
		t.Skip("no python3 here: the shim is not tested")
	}
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// answers runs a module with calls, one a line, and returns what it answers.
func answers(t *testing.T, text string, calls ...string) (lines []string, stderr string) {
	t.Helper()
	command := python.Command("", module(t, "plug-in.py", text))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdin = strings.NewReader(strings.Join(calls, "\n") + "\n")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, said.String())
	return strings.Split(strings.TrimSpace(string(out)), "\n"), said.String()
}

// call is a call of a phase for resources of these names.
func call(names ...string) string {
	var rs []string
	for _, name := range names {
		rs = append(rs, fmt.Sprintf(`{"name": %q, "kind": "node", "uid": "u", "cluster": "c", "state": "S", "target": "T", "wasDeployed": false,
"labels": {"rack": "a"}, "spec": {"Pad": "`+strings.Repeat("x", 20_000)+`", "Name": "hidden", "Size": 3, "Both": "spec", "None": null}, "attributes": {"Both": "attribute", "List": [1, 2], "Yes": "TRUE"},
"data": {"Step": 1}}`, name))
	}
	return strings.ReplaceAll(`{"function": "handle", "project": "p", "kind": "node", "phase": "ph", "resources": [`+strings.Join(rs, ",")+`]}`, "\n", "")
}

// What a module can read, and what it saves; what it and its programs print is no answer, and they read no calls.
func TestHandle(t *testing.T) {
	t.Parallel()
	got, stderr := answers(t, `
import subprocess, sys
calls = 0
def handle(handler):
    global calls
    calls += 1
    print("printed", handler.getPhaseName(), handler.getProject())
    subprocess.check_call(["sh", "-c", "echo from sh; cat"])
    assert sys.stdin.read() == ""
    a, b, c = handler.getResources()
    assert [a.getAsString(n) for n in ("Name", "Type", "State", "TargetState", "ClusterName")] == ["a", "node", "S", "T", "c"]
    assert a.getAsString("Both") == "attribute" and a.getAsString("Size") == "3" and a.getAsInteger("Size") == 3
    assert a.getAsString("List") == "[1, 2]" and a.getAsList("List") == [1, 2] and a.getAsList("Size") == [3]
    assert a.getAsBoolean("Yes") is True and a.getAsFloat("Size") == 3.0
    assert not a.isDefined("None") and a.getAsString("Gone") is None and a.getAsString("Gone", "x") == "x" and a.get("None", 7) == 7
    assert a.getLabels() == {"rack": "a"} and not a.isUndo() and not a.wasDeployed()
    data = handler.getResourcePhaseData(a)
    assert data.getAsInteger("Step") == 1
    data.setInteger("Step", 2)
    assert data.getAsInteger("Step") == 2
    a.setString("Id", 5)
    a.undefine("Both")
    assert a.getAsString("Both") is None
    for wrong in (lambda: a.setString("Name", "x"), lambda: a.set("X", object()), lambda: a.set("X", float("nan")), lambda: a.set("", 1),
                  lambda: handler.setCompleted("a"), lambda: handler.getResourcePhaseData(object())):
        try:
            wrong()
        except (ValueError, TypeError):
            continue
        raise AssertionError("not refused")
    handler.setCompleted(a)
    handler.setFailed([b], "broken", retryable=True)
    handler.setPending(c, "later", delay=1.5)
    a.setInteger("Late", calls)
    handler.log(c, "line")
`, call("a", "b", "c"), call("a", "b", "c"))
	one := []string{
		`{"outcome": "completed", "attributes": {"Id": "5", "Both": null}, "data": {"Step": 2}, "resource": "a", "kind": "node"}`,
		`{"outcome": "failed", "message": "broken", "retryable": true, "resource": "b", "kind": "node"}`,
		`{"outcome": "pending", "message": "later", "delay": "1500ms", "resource": "c", "kind": "node"}`,
		`{"resource": "c", "kind": "node", "log": "line"}`,
		`{"attributes": {"Late": 1}, "resource": "a", "kind": "node"}`,
		`{"end": true}`,
	}
	require.Equal(t, one, got[:6], stderr)
	require.Equal(t, strings.Replace(one[4], "1}", "2}", 1), got[10], "the module stays loaded")
	require.Len(t, got, 12)
	require.Contains(t, stderr, "printed ph p\n")
	require.Contains(t, stderr, "from sh\n")
}

// An exception is told with its text, behind what was set before it; the next call is a new one.
func TestExceptions(t *testing.T) {
	t.Parallel()
	got, stderr := answers(t, `
import sys
class Silent(Exception): pass
def handle(handler):
    first = handler.getResources()[0]
    first.setString("Kept", "yes")
    if first.getAsString("Name") == "exit": sys.exit("over")
    if first.getAsString("Name") == "silent": raise Silent()
    raise ValueError("no cloud")
`, call("a"), call("exit"), call("silent"), strings.Replace(call("a"), `"handle"`, `"onStateTransition"`, 1))
	require.Equal(t, []string{
		`{"attributes": {"Kept": "yes"}, "resource": "a", "kind": "node"}`, `{"error": "no cloud"}`, `{"end": true}`,
		`{"attributes": {"Kept": "yes"}, "resource": "exit", "kind": "node"}`, `{"error": "over"}`, `{"end": true}`,
		`{"attributes": {"Kept": "yes"}, "resource": "silent", "kind": "node"}`, `{"error": "Silent"}`, `{"end": true}`,
		`{"error": "the module has no function onStateTransition"}`, `{"end": true}`,
	}, got)
	require.Contains(t, stderr, "ValueError: no cloud")
}

func TestOnStateTransition(t *testing.T) {
	t.Parallel()
	got, stderr := answers(t, `
def onStateTransition(event):
    print(event.getType(), event.getState(), event.getClusterName(), [r.getAsString("Name") for r in event.getResources()])
`, strings.Replace(call("a", "b"), `"handle"`, `"onStateTransition", "type": "node", "state": "Started", "cluster": ""`, 1))
	require.Equal(t, []string{`{"end": true}`}, got)
	require.Equal(t, "node Started  ['a', 'b']\n", stderr)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	check := func(text string) ([]string, error) {
		return python.Check(t.Context(), "", module(t, "m.py", text), append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1"))
	}
	functions, err := check("print('loaded')\ndef handle(handler): pass\nonStateTransition = handle\n")
	require.NoError(t, err)
	require.Equal(t, []string{python.Handle, python.OnStateTransition}, functions)
	for text, reason := range map[string]string{
		"handle = 1\n":                 "it has neither handle(handler) nor onStateTransition(event)",
		"import nothing_of_this_name":  "No module named 'nothing_of_this_name'",
		"try: pass\nexcept X, e: pass": "if this is Python 2",
		"import sys; sys.exit(3)":      "exit status 3",
	} {
		_, err := check(text)
		require.ErrorIs(t, err, python.ErrModule)
		require.ErrorContains(t, err, reason)
	}
	_, err = python.Check(t.Context(), "no-such-python", "m.py", nil)
	require.Error(t, err)
}
