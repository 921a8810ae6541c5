package cli

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/wire"
)

func decode(t *testing.T, in string, args ...string) run {
	t.Helper()
	a := app(nil)
	a.In = strings.NewReader(in)
	return drover(t, a, append([]string{"decode"}, args...)...)
}

func TestDecode(t *testing.T) {
	t.Parallel()
	event := string(stored(t, state("a\x1b")).Body)
	r := decode(t, event)
	require.Equal(t, ExitOK, r.code, r.err)
	require.True(t, strings.HasPrefix(r.out, `{"family":"resource","project":"default","kind":"node","name":"a\u001b",`), r.out)
	require.Equal(t, 1, strings.Count(r.out, "\n"), "a line where nobody looks on")
	require.Equal(t, r.out, decode(t, event, "--subject", "drover.evt.resource.default.node.a=1B").out)
	require.Equal(t, r.out, decode(t, event, "--subject", "$KV.drover_resources.default.node.a=1B").out)
	require.Contains(t, decode(t, event, "-o", "json").out, "\n  \"family\"")
	require.True(t, strings.HasPrefix(decode(t, event, "-o", "yaml").out, "family: resource\n"))

	command, err := wire.EncodeCommand("", wire.Command{Args: map[string]string{"scope": "all"}, RequestedBy: "ann"})
	require.NoError(t, err)
	want := `{"args":{"scope":"all"},"requestedBy":"ann"}` + "\n"
	require.Equal(t, want, decode(t, string(command), "--type", "command").out)
	require.Equal(t, want, decode(t, string(command), "--subject", "drover.cmd.default.node.a.retry").out)
	require.Equal(t, want, decode(t, want, "--type", "command").out, "JSON is passed on")

	lines := base64.StdEncoding.EncodeToString(command) + "\n\n" + base64.StdEncoding.EncodeToString(command)
	require.Equal(t, want+want, decode(t, lines, "--lines", "--type", "command").out)
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for in, args := range map[string][]string{
		"\xff\xff":                 nil,
		"":                         nil,
		"x":                        {"--type", "poem"},
		"y":                        {"--subject", "other.subject"},
		"no base64!":               {"--lines"},
		"AAAA\nstill no base64":    {"--lines", "--type", "command"},
		strings.Repeat("a", 2<<20): nil,
	} {
		r := decode(t, in, args...)
		require.Equal(t, ExitError, r.code, "%.20q: %s", in, r.out)
		require.NotEmpty(t, r.err)
	}
	require.Contains(t, decode(t, "AAAA", "--lines").err, "line 1: ")
	good, err := wire.EncodeCommand("", wire.Command{RequestedBy: "ann"})
	require.NoError(t, err)
	r := decode(t, base64.StdEncoding.EncodeToString(good)+"\nno base64!\n", "--lines", "--type", "command")
	require.Contains(t, r.err, "line 2: ")
	require.JSONEq(t, `{"requestedBy":"ann"}`, r.out, "what came before is there, whole")
}
