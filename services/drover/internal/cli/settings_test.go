package cli

import (
	"cmp"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/drover/internal/bench"
)

func read(t *testing.T, env map[string]string, args ...string) (settings, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addSettings(flags)
	require.NoError(t, flags.Parse(args))
	return readSettings(flags, func(name string) string { return env[name] })
}

func TestSettingsDefaults(t *testing.T) {
	t.Parallel()
	s, err := read(t, nil)
	require.NoError(t, err)
	require.Equal(t, settings{
		Connection: Connection{Server: DefaultServer}, project: "default", output: "table", color: "auto",
	}, s)
}

func TestFlagOverEnvironmentOverFile(t *testing.T) {
	t.Parallel()
	file := write(t, "config.yaml", "server: nats://file:4222\ncreds: /file.creds\ntlsca: /ca\ninbox-prefix: _INBOX_a\nproject: file\noutput: yaml\ntimeout: 3s\n")
	env := map[string]string{"DROVER_CONFIG": file}
	s, err := read(t, env)
	require.NoError(t, err)
	require.Equal(t, settings{
		Connection: Connection{Server: "nats://file:4222", Creds: "/file.creds", TLSCA: "/ca", InboxPrefix: "_INBOX_a"}, project: "file", output: "yaml", color: "auto",
		timeout: 3 * time.Second,
	}, s)

	env["NATS_URL"], env["DROVER_PROJECT"], env["DROVER_OUTPUT"], env["NO_COLOR"] = "nats://nats:4222", "env", "json", "1"
	s, err = read(t, env)
	require.NoError(t, err)
	require.Equal(t, "nats://nats:4222", s.Server)
	require.Equal(t, "env", s.project)
	require.Equal(t, "json", s.output)
	require.Equal(t, "never", s.color)

	env["DROVER_SERVER"] = "nats://drover:4222"
	s, err = read(t, env)
	require.NoError(t, err)
	require.Equal(t, "nats://drover:4222", s.Server, "DROVER_SERVER is stronger than NATS_URL")

	s, err = read(t, env, "-s", "nats://flag:4222", "-p", "flag", "-o", "name", "--timeout", "1m", "--color", "always")
	require.NoError(t, err)
	require.Equal(t, settings{
		Connection: Connection{Server: "nats://flag:4222", Creds: "/file.creds", TLSCA: "/ca", InboxPrefix: "_INBOX_a"}, project: "flag", output: "name", color: "always",
		timeout: time.Minute,
	}, s)
}

func TestConnectionComesFromOnePlace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want Connection
	}{
		"context of the environment": {
			map[string]string{"NATS_CONTEXT": "prod"}, nil, Connection{Context: "prod"},
		},
		"a server flag is not mixed with another place's context": {
			map[string]string{"NATS_CONTEXT": "prod"}, []string{"-s", "nats://a"}, Connection{Server: "nats://a"},
		},
		"a context flag is not mixed with another place's server": {
			map[string]string{"NATS_URL": "nats://a", "NATS_CREDS": "/c"}, []string{"--context", "prod"}, Connection{Context: "prod"},
		},
		"a server over the context of the same place": {
			nil, []string{"--context", "prod", "-s", "nats://a"}, Connection{Context: "prod", Server: "nats://a"},
		},
		"credentials flag with a server of the environment": {
			map[string]string{"NATS_URL": "nats://a"}, []string{"--creds", "/c"}, Connection{Server: "nats://a", Creds: "/c"},
		},
		"a key is stronger than another place's credentials": {
			map[string]string{"NATS_CREDS": "/c"}, []string{"--nkey", "/k"}, Connection{Server: DefaultServer, NKey: "/k"},
		},
		"a key of this place for the context of another": {
			map[string]string{"NATS_CONTEXT": "prod", "DROVER_NKEY": "/k", "NATS_CA": "/ca", "DROVER_INBOX_PREFIX": "_INBOX_user"}, nil,
			Connection{Context: "prod", NKey: "/k", TLSCA: "/ca", InboxPrefix: "_INBOX_user"},
		},
		"a context flag with its own user, whatever the environment says": {
			map[string]string{"NATS_NKEY": "/k", "NATS_CA": "/ca", "NATS_CERT": "/cert", "NATS_KEY": "/key", "DROVER_INBOX_PREFIX": "x"},
			[]string{"--context", "prod"}, Connection{Context: "prod"},
		},
		"certificates of the nats CLI's variables": {
			map[string]string{"NATS_URL": "tls://a", "NATS_NKEY": "/k", "NATS_CA": "/ca", "NATS_CERT": "/cert", "NATS_KEY": "/key"}, nil,
			Connection{Server: "tls://a", NKey: "/k", TLSCA: "/ca", TLSCert: "/cert", TLSKey: "/key"},
		},
		"a certificate and its key from one place": {
			map[string]string{"NATS_CERT": "/cert", "NATS_KEY": "/key"}, []string{"--tlscert", "/c2", "--tlskey", "/k2", "--tlsca", "/ca2"},
			Connection{Server: DefaultServer, TLSCA: "/ca2", TLSCert: "/c2", TLSKey: "/k2"},
		},
		"credentials alone": {
			map[string]string{"DROVER_CREDS": "/c"}, nil, Connection{Server: DefaultServer, Creds: "/c"},
		},
	} {
		s, err := read(t, c.env, c.args...)
		require.NoError(t, err, name)
		require.Equal(t, c.want, s.Connection, name)
	}
}

func TestSettingsThatAreWrongNameTheirPlace(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]struct {
		env  map[string]string
		args []string
	}{
		`--output: "xml" is none of table, wide, json`: {nil, []string{"-o", "xml"}},
		`DROVER_OUTPUT: "xml"`:                         {map[string]string{"DROVER_OUTPUT": "xml"}, nil},
		`DROVER_COLOR: "pink"`:                         {map[string]string{"DROVER_COLOR": "pink"}, nil},
		`DROVER_TIMEOUT: "soon" is no duration`:        {map[string]string{"DROVER_TIMEOUT": "soon"}, nil},
		`--timeout: "-1s" is no duration`:              {nil, []string{"--timeout", "-1s"}},
		`--creds and --nkey exclude each other`:        {nil, []string{"--creds", "/c", "--nkey", "/k"}},
		`NATS_CREDS and NATS_NKEY exclude each other`:  {map[string]string{"NATS_CREDS": "/c", "NATS_NKEY": "/k"}, nil},
		`--tlscert and --tlskey need each other`:       {map[string]string{"NATS_KEY": "/k"}, []string{"--tlscert", "/c"}},
		`no such file`:                                 {nil, []string{"--config", "/nonexistent"}},
		`unknown field "colour"`:                       {map[string]string{"DROVER_CONFIG": write(t, "a.yaml", "colour: never\n")}, nil},
		`larger than 65536 bytes`:                      {map[string]string{"DROVER_CONFIG": write(t, "b.yaml", "#"+string(make([]byte, configBytesMax)))}, nil},
	} {
		_, err := read(t, c.env, c.args...)
		require.ErrorContains(t, err, text)
		require.Equal(t, ExitUsage, codeOf(err), text)
	}
	_, err := read(t, map[string]string{"HOME": t.TempDir()})
	require.NoError(t, err, "the default file need not be there")
}

// TestEverySettingHasItsPlaces: each flag can be said by a variable and in the file, and --help names the variables.
func TestEverySettingHasItsPlaces(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addSettings(flags)
	values := map[string]string{"output": "json", "color": "never", "timeout": "3s"}
	flags.VisitAll(func(f *pflag.Flag) {
		for _, variable := range []string{ownVariable(f.Name), natsVariable(f.Name)} {
			require.True(t, variable == "" || strings.Contains(f.Usage, variable), "--%s: %s", f.Name, f.Usage)
		}
		if f.Name == "config" {
			return
		}
		value := cmp.Or(values[f.Name], "/"+f.Name)
		other := map[string]string{"tlscert": "tlskey", "tlskey": "tlscert"}[f.Name]
		env, text, args := map[string]string{ownVariable(f.Name): value}, f.Name+": "+value+"\n", []string{"--" + f.Name, value}
		if other != "" {
			env[ownVariable(other)], text, args = "/x", text+other+": /x\n", append(args, "--"+other, "/x")
		}
		unset, err := read(t, nil)
		require.NoError(t, err)
		byFlag, err := read(t, nil, args...)
		require.NoError(t, err)
		byVariable, err := read(t, env)
		require.NoError(t, err)
		byFile, err := read(t, nil, "--config", write(t, "c.yaml", text))
		require.NoError(t, err)
		require.NotEqual(t, unset, byFlag, f.Name)
		require.Equal(t, byFlag, byVariable, f.Name)
		require.Equal(t, byFlag, byFile, f.Name)
	})
}

func TestRepliesComeToTheRolesInbox(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Connection{
		"":                {Server: "nats://a", Creds: "/c"},
		"_INBOX_user":     {Server: "nats://a", NKey: "/k"},
		"_INBOX_plugin":   {Server: "nats://a", NKey: "/k", Role: bus.Plugin},
		"_INBOX_mine":     {Server: "nats://a", NKey: "/k", Role: bus.Plugin, InboxPrefix: "_INBOX_mine"},
		"_INBOX_contexts": {Context: "prod", NKey: "/k", InboxPrefix: "_INBOX_contexts"},
	} {
		require.Equal(t, want, c.Inbox())
	}
	require.Empty(t, Connection{Context: "prod", NKey: "/k", Role: bus.Plugin}.Inbox(), "the context says it")
}

// TestALimitForOthers: what runs until it is stopped refuses a limit of its own, and does without the one that is for all commands.
func TestALimitForOthers(t *testing.T) {
	t.Parallel()
	a := app(nil)
	var began atomic.Int32
	a.Up = func(ctx context.Context, _ UpOptions) error {
		_, limited := ctx.Deadline()
		require.False(t, limited)
		began.Add(1)
		return nil
	}
	require.Equal(t, ExitUsage, drover(t, a, "up", "--timeout", "1h").code)
	require.Zero(t, began.Load())
	a.Getenv = func(name string) string { return map[string]string{"DROVER_TIMEOUT": "1ms"}[name] }
	require.Equal(t, ExitOK, drover(t, a, "up").code)
	require.EqualValues(t, 1, began.Load())
	r := drover(t, a, "plugin", "exec", "--phase", "node/p", "--", "true")
	require.Equal(t, ExitUnreachable, r.code, "it has got as far as the server: %s", r.err)
}

// TestReports: what is measured is told in every form.
func TestReports(t *testing.T) {
	t.Parallel()
	a := app(nil)
	a.BenchSystem = func(context.Context, Connection, Connection, bench.SystemOptions) (bench.SystemReport, error) {
		return bench.SystemReport{Server: "2.15.2", Partitions: 16}, nil
	}
	for form, want := range map[string]string{
		"json": "\n  \"partitions\": 16,\n", "jsonl": `"partitions":16,`, "yaml": "\npartitions: 16\n", "table": "nats-server 2.15.2,", "name": "bench\n",
	} {
		r := drover(t, a, "bench", "system", "-o", form)
		require.Equal(t, ExitOK, r.code, r.err)
		require.Contains(t, r.out, want, form)
	}
}
