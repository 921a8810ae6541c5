package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/services/drover/internal/cli"
)

// TestCertsAndKeys makes all that a guarded server needs, and looks who gets in: who has a key and a certificate of the
// authority, and may then do what its role may.
func TestCertsAndKeys(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "secrets")
	run := func(code int, args ...string) (string, string) {
		t.Helper()
		var outs, errs bytes.Buffer
		a := &cli.App{Out: &outs, Err: &errs, Connect: connect, Server: server}
		require.Equal(t, code, cli.Main(t.Context(), a, args), "%v: %s%s", args, outs.String(), errs.String())
		return outs.String(), errs.String()
	}
	run(cli.ExitUsage, "certs")
	run(cli.ExitUsage, "certs", "--out", out, "--life", "0s")
	run(cli.ExitUsage, "certs", "--out", out, "--keep", "--overwrite")
	told, _ := run(cli.ExitOK, "certs", "--out", out, "--life", "1h")
	require.Contains(t, told, "wrote "+filepath.Join(out, "nats"))
	told, _ = run(cli.ExitOK, "keys", "--out", out)
	require.NotContains(t, told, "SU", "a seed is shown to nobody")
	for _, command := range []string{"certs", "keys"} {
		_, said := run(cli.ExitConflict, command, "--out", out)
		require.Contains(t, said, "--overwrite makes everything anew")
		run(cli.ExitOK, command, "--out", out, "--keep")
	}

	nats := func(name string) string { return filepath.Join(out, "nats", name) }
	config := filepath.Join(out, "nats", "server.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"include ./authorization.conf\ntls {cert_file: %q, key_file: %q, ca_file: %q, verify: true}\n",
		nats("tls.pem"), nats("tls.key"), nats("ca.pem")), 0o600))
	n, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1, ConfigFile: config})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Shutdown()) })
	as := func(role string) []string {
		file := func(name string) string { return filepath.Join(out, role, name) }
		return []string{"-s", n.ClientURL(), "--nkey", file("nkey"), "--tlsca", file("ca.pem"), "--tlscert", file("tls.pem"), "--tlskey", file("tls.key")}
	}
	run(cli.ExitOK, append([]string{"setup", "--partitions", "4"}, as("operator")...)...)
	run(cli.ExitOK, append([]string{"get", "node"}, as("user")...)...)
	looked, _ := run(cli.ExitUnreachable, append([]string{"doctor"}, as("user")...)...)
	require.Regexp(t, `streams +ok `, looked, "a user may look at the streams; only intake is not there")
	_, said := run(cli.ExitUnreachable, append([]string{"get", "node"}, as("user")[:4]...)...)
	require.Contains(t, said, "certificate", "nobody gets in without one")
	_, said = run(cli.ExitUnreachable, append([]string{"get", "node"}, as("user")[:2]...)...)
	require.NotEmpty(t, said)
	anonymous := append(as("user")[:2:2], as("user")[4:]...)
	_, said = run(cli.ExitUnreachable, append([]string{"get", "node"}, anonymous...)...)
	require.Contains(t, said, "the server refused this user", "a certificate is not enough")
}
