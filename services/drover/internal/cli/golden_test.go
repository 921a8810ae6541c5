package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutput holds what people and scripts see against testdata.
func TestOutput(t *testing.T) {
	t.Parallel()
	s := fleet(t)
	s.line("web-2", "create-volume", "stdout", "made\tvolume", 1)
	s.line("web-2", "create-volume", "stderr", "\x1b[31mwarning\x1b[0m", 2)
	s.line("web-2", "host-file", "runner", "the script ended", 1)
	for name, args := range map[string]string{
		"get":               "get",
		"get-wide":          "get node -o wide",
		"get-names":         "get node web-2 db-1",
		"get-json":          "get node/web-2 -o json",
		"get-yaml":          "get node/db-1 -o yaml",
		"get-jsonl":         "get -l rack=a -o jsonl",
		"get-name":          "get -o name",
		"get-selector":      "get node -l rack=b",
		"get-none":          "get disk",
		"get-not-found":     "get node/none",
		"get-one-not-found": "get node web-2 none",
		"get-blueprints":    "get blueprints -o wide",
		"describe":          "describe node/web-10.example.com",
		"describe-sleeping": "describe node/db-1",
		"describe-json":     "describe node/web-10.example.com -o json",
		"describe-kind":     "describe blueprint/node",
		"history":           "history node/web-10.example.com",
		"events":            "events",
		"events-json":       "events node/web-10.example.com -o jsonl",
		"events-jobs":       "events --family job node",
		"jobs":              "jobs list",
		"jobs-wide":         "jobs list -o wide --state failed,succeeded",
		"jobs-of":           "jobs list node/db-1",
		"jobs-show":         "jobs show job-web-10",
		"jobs-not-found":    "jobs show none",
		"logs":              "logs node/web-2",
		"logs-phase":        "logs node/web-2 --phase host-file -t",
		"logs-tail":         "logs node/web-2 --tail 1",
		"logs-json":         "logs node/web-2 -o jsonl",
		"doctor":            "doctor --data /nonexistent",
		"project":           "get -p other",
		"graph-kind":        "graph node",
		"graph-failed":      "graph node/web-10.example.com",
		"graph-dot":         "graph blueprint/node --format dot",
		"graph-none":        "graph disk",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, name, drover(t, app(s.system), strings.Fields(args)...))
		})
	}
}

// TestNothingReachesTheTerminalUnescaped looks at every command that shows names and messages that came from outside.
func TestNothingReachesTheTerminalUnescaped(t *testing.T) {
	t.Parallel()
	s := fleet(t)
	evil := "evil\u202e\x1b[31m"
	s.line(evil, "p\x1b[0m", "stdout", "\x1b[2J\u009b31m\u202e", 1)
	for _, args := range [][]string{
		{"get"}, {"get", "-o", "wide"}, {"get", "-o", "name"}, {"get", "-o", "json"}, {"get", "-o", "jsonl"}, {"get", "-o", "yaml"},
		{"events"}, {"events", "--family", "job"}, {"events", "-o", "json"}, {"jobs", "list", "-o", "wide"}, {"jobs", "show", "job-evil"},
		{"jobs", "list", "-o", "yaml"},
	} {
		r := drover(t, app(s.system), args...)
		require.Equal(t, ExitOK, r.code, "%v: %s", args, r.err)
		requireSafe(t, r, args)
		require.Contains(t, r.out, `evil\u202e\u001b[31m`, "%v", args)
	}
	// A name that no manifest may have is refused before it is asked for, and is not printed as it is either.
	for _, args := range [][]string{{"describe", "node/" + evil}, {"start", "node/" + evil}, {"logs", "node/" + evil}, {"do", "\x1b[0m", "node/a"}} {
		r := drover(t, app(s.system), args...)
		require.Equal(t, ExitUsage, r.code, "%v", args)
		requireSafe(t, r, args)
	}
}

func requireSafe(t *testing.T, r run, args []string) {
	t.Helper()
	for _, text := range []string{r.out, r.err} {
		for _, bad := range []string{"\x1b", "\u202e", "\u009b", "\x07", "\r"} {
			require.NotContains(t, text, bad, "%v", args)
		}
	}
}

func TestJSONIsJSON(t *testing.T) {
	t.Parallel()
	s := fleet(t)
	for _, args := range []string{
		"get -o json", "get node -o json", "get disk -o json", "get blueprints -o json", "get blueprint/node -o json", "jobs list -o json",
		"jobs show job-db-1 job-evil -o json", "describe node/web-2 -o json", "describe node web-2 db-1 -o json", "version -o json", "schema",
		"history node/web-2 -o json", "doctor -o json --data /nonexistent",
	} {
		r := drover(t, app(s.system), strings.Fields(args)...)
		require.True(t, json.Valid([]byte(r.out)), "%s: %s", args, r.out)
	}
	for _, args := range []string{"get -o jsonl", "events -o json", "jobs list -o jsonl"} {
		r := drover(t, app(s.system), strings.Fields(args)...)
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		require.Greater(t, len(lines), 1, args)
		for _, line := range lines {
			require.True(t, json.Valid([]byte(line)), "%s: %s", args, line)
		}
	}
}

func TestColour(t *testing.T) {
	t.Parallel()
	s := fleet(t)
	r := drover(t, app(s.system), "get", "--color", "always")
	require.Contains(t, r.out, "\x1b[31mAllocation\x1b[0m", "what failed is red")
	require.Contains(t, r.out, "\x1b[32mStarted\x1b[0m")
	require.NotContains(t, drover(t, app(s.system), "get").out, "\x1b", "no colour where no terminal is")
	onTerminal := app(s.system)
	onTerminal.OutTerminal = true
	require.Contains(t, drover(t, onTerminal, "get").out, "\x1b[31m")
	onTerminal.Getenv = func(name string) string { return map[string]string{"TERM": "dumb"}[name] }
	require.NotContains(t, drover(t, onTerminal, "get").out, "\x1b")
	onTerminal.Getenv = func(name string) string { return map[string]string{"NO_COLOR": "1"}[name] }
	require.NotContains(t, drover(t, onTerminal, "get").out, "\x1b")
	require.Contains(t, drover(t, onTerminal, "get", "--color", "always").out, "\x1b", "a flag is stronger than NO_COLOR")
}
