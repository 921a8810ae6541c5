package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/services/drover/internal/cli"
)

// guarded is a server that knows its users by NKeys and certificates, and lets each do what contract.go says.
type guarded struct {
	t      *testing.T
	url    string
	folder string
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{t: t, folder: t.TempDir()}
	g.certificates()
	var users strings.Builder
	for _, c := range bus.Contracts() {
		key, err := nkeys.CreateUser()
		require.NoError(t, err)
		seed, err := key.Seed()
		require.NoError(t, err)
		public, err := key.PublicKey()
		require.NoError(t, err)
		g.write(string(c.Service)+".nk", string(seed))
		fmt.Fprintf(&users, "{nkey: %s, permissions: $%s}\n", public, c.Variable())
	}
	config := g.write("server.conf", fmt.Sprintf("authorization {\n%s\nusers: [\n%s]\n}\ntls {cert_file: %q, key_file: %q, ca_file: %q, verify: true}\n",
		bus.RenderPermissions(bus.Contracts()), users.String(), g.file("server.crt"), g.file("server.key"), g.file("ca.crt")))
	server, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1, ConfigFile: config})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Shutdown()) })
	g.url = server.ClientURL()
	return g
}

func (g *guarded) file(name string) string { return filepath.Join(g.folder, name) }

func (g *guarded) write(name, text string) string {
	g.t.Helper()
	require.NoError(g.t, os.WriteFile(g.file(name), []byte(text), 0o600))
	return g.file(name)
}

// certificates makes an authority, and a certificate of it for the server and one for its clients.
func (g *guarded) certificates() {
	g.t.Helper()
	var authority *x509.Certificate
	var authorityKey *ecdsa.PrivateKey
	for i, name := range []string{"ca", "server", "client"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(g.t, err)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			IsCA:        i == 0, BasicConstraintsValid: true,
		}
		if i == 0 {
			authority, authorityKey = c, key
		}
		signed, err := x509.CreateCertificate(rand.Reader, c, authority, &key.PublicKey, authorityKey)
		require.NoError(g.t, err)
		private, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(g.t, err)
		g.write(name+".crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})))
		g.write(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	}
}

// context writes a context of the nats CLI for a role, and returns its path, by which it is named.
func (g *guarded) context(role bus.Service) string {
	g.t.Helper()
	body, err := json.Marshal(map[string]string{
		"url": g.url, "nkey": g.file(string(role) + ".nk"), "inbox_prefix": bus.InboxPrefix(role),
		"ca": g.file("ca.crt"), "cert": g.file("client.crt"), "key": g.file("client.key"),
	})
	require.NoError(g.t, err)
	return g.write(string(role)+".json", string(body))
}

// run runs a command line with nothing but its flags and env.
func (g *guarded) run(env map[string]string, args ...string) (code int, out, errs string) {
	var outs, told strings.Builder
	a := &cli.App{Out: &outs, Err: &told, Connect: connect, Server: server, Streams: streams, Getenv: func(name string) string { return env[name] }}
	code = cli.Main(context.Background(), a, args)
	return code, outs.String(), told.String()
}

// TestIdentities: a server that wants an NKey and a certificate is reached by flags, by variables and by contexts of the nats
// CLI, and each user may what its role may.
func TestIdentities(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	tls := []string{"-s", g.url, "--tlsca", g.file("ca.crt"), "--tlscert", g.file("client.crt"), "--tlskey", g.file("client.key")}
	with := func(args ...string) []string { return append(args, tls...) }
	key := func(role bus.Service) string { return g.file(string(role) + ".nk") }

	code, _, errs := g.run(nil, with("setup", "--nkey", key(bus.Operator), "--partitions", "4")...)
	require.Equal(t, cli.ExitOK, code, errs)
	code, out, errs := g.run(nil, with("get", "--nkey", key(bus.User), "-o", "name")...)
	require.Equal(t, cli.ExitOK, code, errs)
	require.Empty(t, out)
	code, _, errs = g.run(map[string]string{
		"NATS_URL": g.url, "NATS_NKEY": key(bus.User), "NATS_CA": g.file("ca.crt"), "NATS_CERT": g.file("client.crt"), "NATS_KEY": g.file("client.key"),
	}, "get", "-o", "name")
	require.Equal(t, cli.ExitOK, code, errs)
	code, _, errs = g.run(map[string]string{"NATS_CONTEXT": g.context(bus.User)}, "get", "-o", "name")
	require.Equal(t, cli.ExitOK, code, errs)
	code, _, errs = g.run(nil, "get", "--context", g.context(bus.Runner), "--nkey", key(bus.User), "--inbox-prefix", bus.InboxPrefix(bus.User))
	require.Equal(t, cli.ExitOK, code, "a key takes the place of the context's: %s", errs)

	creds := g.write("creds.json", fmt.Sprintf(`{"url": %q, "creds": %q, "ca": %q, "cert": %q, "key": %q}`,
		g.url, g.write("other.creds", "whoever this is"), g.file("ca.crt"), g.file("client.crt"), g.file("client.key")))
	code, _, errs = g.run(nil, "get", "--context", creds, "--nkey", key(bus.User), "--inbox-prefix", bus.InboxPrefix(bus.User))
	require.Equal(t, cli.ExitOK, code, "and that of its credentials: %s", errs)

	// doctor looks as the user, and finds all that a user needs but services.
	code, out, errs = g.run(nil, with("doctor", "--nkey", key(bus.User), "--data", t.TempDir())...)
	require.Equal(t, cli.ExitUnreachable, code, errs)
	require.Regexp(t, `streams +ok `, out)
	require.Regexp(t, `ask +failed +.*no intake answers`, out)
	require.NotContains(t, out, "forbid", "a user's rights are enough")
	// A worker may do less, and is told what.
	_, out, _ = g.run(nil, with("doctor", "--nkey", key(bus.Runner), "--inbox-prefix", bus.InboxPrefix(bus.Runner), "--data", t.TempDir())...)
	require.Regexp(t, `logs +failed +.*forbid it: publish to \$JS\.API\.CONSUMER\.CREATE\.OUTPUT`, out)
	require.Regexp(t, `ask +failed +.*forbid it: publish to drover\.api\.default\.`, out)

	for about, c := range map[string]struct {
		args []string
		want []string
	}{
		"nobody": {with("get"), []string{"Authorization Violation", "--nkey"}},
		"another's inbox": {
			with("get", "--nkey", key(bus.User), "--inbox-prefix", "_INBOX_operator"), []string{"_INBOX_operator", "--inbox-prefix"},
		},
		"another's work": {
			with("start", "node/a", "--nkey", key(bus.Runner), "--inbox-prefix", "_INBOX_runner"),
			[]string{"publish to drover.api.default.node.a.start", "`drover doctor`"},
		},
		"no authority": {
			[]string{"get", "-s", g.url, "--nkey", key(bus.User)}, []string{"certificate", "--tlsca"},
		},
		"no certificate": {[]string{"get", "-s", g.url, "--nkey", key(bus.User), "--tlsca", g.file("ca.crt")}, []string{"certificate required", "--tlscert"}},
		"no file":        {with("get", "--nkey", g.file("none.nk")), []string{"none.nk: no such file"}},
		"no context":     {[]string{"get", "--context", "drover-none-of-this-name"}, []string{`unknown context "drover-none-of-this-name"`, "`nats context ls`"}},
	} {
		code, out, errs := g.run(nil, append(c.args, "--timeout", "20s")...)
		require.Equal(t, cli.ExitUnreachable, code, "%s: %s%s", about, out, errs)
		for _, want := range c.want {
			require.Contains(t, errs, want, about)
		}
		require.NotContains(t, errs, "SU", "%s: no seed is told", about)
	}
}
