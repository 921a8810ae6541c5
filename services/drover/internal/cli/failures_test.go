package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
)

// forbidden is a bus whose server lets this user look, and ask nothing.
type forbidden struct{ *memory.Conn }

func (forbidden) Request(_ context.Context, subject string, _ map[string]string, _ []byte) (bus.Request, error) {
	return bus.Request{}, fmt.Errorf("request %s: %w: publish to %s", subject, bus.ErrDenied, subject)
}

func (forbidden) List(context.Context, bus.Family, string, string, func(bus.Stored) error) error {
	return fmt.Errorf("%w: publish to $JS.API.CONSUMER.CREATE.KV_drover_resources", bus.ErrDenied)
}

// TestCommonFailures: whatever goes wrong, the user is told what happened, to which object, and what to do.
func TestCommonFailures(t *testing.T) {
	t.Parallel()
	there := houseApp(house(t))
	require.Equal(t, ExitOK, drover(t, there, "apply", "-f", write(t, "boxes.yaml", fmt.Sprintf(boxes, "/nonexistent")), "--wait", "--timeout", "30s").code)
	away := app(nil)
	nobody := app(memory.New(memory.Options{}))
	denied := app(nil)
	denied.Connect = func(context.Context, Connection) (Bus, error) {
		return forbidden{memory.New(memory.Options{}).Connect()}, nil
	}
	refused := app(nil)
	refused.Connect = func(context.Context, Connection) (Bus, error) {
		return nil, fmt.Errorf("connect: %w: %w", bus.ErrDenied, errors.New("Authorization Violation"))
	}
	wrong := func(text string) string {
		return "apply -f " + write(t, "wrong.yaml", text)
	}
	for _, c := range []struct {
		about string
		app   *App
		args  string
		code  int
		says  []string // what happened, to what, what to do
	}{
		{"no server", away, "get box", ExitUnreachable, []string{"connect to nats://127.0.0.1:4222", "nobody listens", "`drover up` starts one"}},
		{"no user", refused, "get box", ExitUnreachable, []string{"connect to nats://127.0.0.1:4222", "forbid", "--nkey"}},
		{"no services", nobody, "start box/a --timeout 300ms", ExitUnreachable, []string{"drover.api.default.box.a.start", "`drover doctor`"}},
		{"no rights to ask", denied, "start box/a", ExitUnreachable, []string{"box/a", "publish to drover.api.default.box.a.start", "`drover doctor`"}},
		{"no rights to look", denied, "get box", ExitUnreachable, []string{"drover_resources", "publish to $JS.API.CONSUMER.CREATE.KV_drover_resources", "`drover doctor`"}},
		{"no such resource", there, "start box/none", ExitNotFound, []string{"box/none: start refused: not_found", "`drover get`", "--project"}},
		{"no such resource to see", there, "describe box/none", ExitNotFound, []string{"box/none in project default: not found", "`drover get box`"}},
		{"no such resource to read", there, "logs box/none", ExitNotFound, []string{"box/none in project default: not found", "`drover get box`"}},
		{"no such kind", there, "graph disk", ExitNotFound, []string{"blueprint/disk in project default: not found", "`drover get blueprints`"}},
		{"no such kind to apply", there, wrong("{apiVersion: drover/v1, kind: disk, metadata: {name: x}}\n"), ExitError, []string{"disk/x: apply refused", "wrong.yaml:1:", "apply a Blueprint of this name first"}},
		{"no such verb", there, "do fly box/good", ExitError, []string{"box/good: fly refused", "kind box has no verb fly", "not one of apply, ", "`drover get blueprints`"}},
		{"no such command", there, "fly box/good", ExitUsage, []string{`unknown command "fly"`, "`drover do VERB KIND/NAME`"}},
		{"no such flag", there, "start box/good --fast", ExitUsage, []string{"unknown flag: --fast", "`drover start --help`"}},
		{"no such job", there, "jobs show none", ExitNotFound, []string{"job none in project default: not found", "`drover jobs list`"}},
		{"no such phase", there, "describe phase/box.none", ExitNotFound, []string{"phase none of kind box: not found", "`drover phases box`"}},
		{"a bad manifest", there, wrong("apiVersion: drover/v1\nkind: box\nmetadata: {name: x, lables: {}}\n"), ExitError, []string{"wrong.yaml:3:", "metadata.lables: no field of this name", "nothing was sent"}},
		{"a bad blueprint", there, wrong("{apiVersion: drover/v1, kind: Blueprint, metadata: {name: x}, spec: {lifecycle: nodes}}\n"), ExitError, []string{"wrong.yaml:1:", "spec.lifecycle", "nothing was sent"}},
		{"no YAML", there, wrong("a: b: c\n"), ExitError, []string{"wrong.yaml:1:", "nothing was sent"}},
		{"no manifest", there, "apply -f /nonexistent.yaml", ExitError, []string{"/nonexistent.yaml: no such file"}},
		{"a conflict", there, "cancel box/good", ExitConflict, []string{"box/good: cancel refused: conflict", "`drover describe box/good`"}},
		{"too late", there, "wait box/good --for state=Started --timeout 200ms", ExitTimeout, []string{}},
	} {
		r := drover(t, c.app, strings.Fields(c.args)...)
		require.Equal(t, c.code, r.code, "%s: %s%s", c.about, r.out, r.err)
		for _, want := range c.says {
			require.Contains(t, r.err, want, c.about)
		}
		requireSafe(t, r, []string{c.about})
		require.NotContains(t, r.err, "%!", "%s: a message is not complete", c.about)
	}
}

// TestCompletion: shells are told kinds, names, phases and jobs by the server, and nothing where there is none.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		r := drover(t, app(nil), "completion", shell)
		require.Equal(t, ExitOK, r.code, shell)
		require.Contains(t, r.out, "drover", shell)
	}
	s := fleet(t)
	for args, want := range map[string][]string{
		"get ":                      {"node", "blueprints", "jobs"},
		"get node/w":                {"node/web-2", "node/web-10.example.com"},
		"start ":                    {"node/"},
		"start node ":               {"web-2", "db-1"},
		"describe phase/":           {"phase/node/create-volume", "phase/node/host-file"},
		"describe blueprint/":       {"blueprint/node"},
		"phases ":                   {"node", "node/create-volume"},
		"graph ":                    {"node"},
		"jobs show ":                {"job-web-2", "job-db-1"},
		"do ":                       {"start", "terminate"},
		"wait node/web-2 --for ":    {"state=", "deleted", "job="},
		"graph node --format ":      {"mermaid", "dot"},
		"get -o ":                   {"table", "yaml"},
		"get --color ":              {"auto", "never"},
		"retry node/web-2 --scope ": {"failed", "all"},
	} {
		words := append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(args, " ")...)
		r := drover(t, app(s.system), words...)
		require.Equal(t, ExitOK, r.code, "%s: %s", args, r.err)
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		for _, w := range want {
			require.Contains(t, lines, w, args)
		}
		require.NotContains(t, r.out, "\x1b", "%s: a name that no shell should read", args)
		for _, gone := range []*App{app(nil), app(memory.New(memory.Options{}))} {
			require.Equal(t, ExitOK, drover(t, gone, words...).code, "%s: TAB never fails", args)
		}
	}
}

// TestVerbsTakeManyResources: whatever acts on resources takes --all and -l.
func TestVerbsTakeManyResources(t *testing.T) {
	t.Parallel()
	root := newRoot(app(nil))
	verbs := []string{"do", "approve", "retry", "cancel", "interrupt", "delete", "wait"}
	for _, f := range flows {
		verbs = append(verbs, f.verb)
	}
	for _, verb := range verbs {
		cmd, _, err := root.Find([]string{verb})
		require.NoError(t, err)
		require.NotNil(t, cmd.Flags().Lookup("all"), verb)
		require.NotNil(t, cmd.Flags().ShorthandLookup("l"), verb)
	}
}
