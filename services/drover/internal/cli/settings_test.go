package cli

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
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
	file := write(t, "config.yaml", "server: nats://file:4222\ncreds: /file.creds\nproject: file\noutput: yaml\ntimeout: 3s\n")
	env := map[string]string{"DROVER_CONFIG": file}
	s, err := read(t, env)
	require.NoError(t, err)
	require.Equal(t, settings{
		Connection: Connection{Server: "nats://file:4222", Creds: "/file.creds"}, project: "file", output: "yaml", color: "auto",
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
		Connection: Connection{Server: "nats://flag:4222", Creds: "/file.creds"}, project: "flag", output: "name", color: "always",
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
