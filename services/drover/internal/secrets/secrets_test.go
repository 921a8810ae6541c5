package secrets_test

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/drover/internal/secrets"
)

// files are all files under a folder with their contents.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		name, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		if d.IsDir() {
			require.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), name)
			return nil
		}
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), name)
		body, err := os.ReadFile(path)
		require.NoError(t, err)
		all[name] = string(body)
		return nil
	}))
	return all
}

func verify(t *testing.T, all map[string]string, certificate, key, ca, host string, at time.Time) error {
	t.Helper()
	pair, err := tls.X509KeyPair([]byte(all[certificate]), []byte(all[key]))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM([]byte(all[ca])))
	use := x509.ExtKeyUsageClientAuth
	if host != "" {
		use = x509.ExtKeyUsageServerAuth
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{use}})
	return err
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	o := secrets.CertificateOptions{Out: filepath.Join(t.TempDir(), "out"), Hosts: []string{"nats-1", "127.0.0.1"}, Life: 30 * time.Hour, Now: now}
	_, err := secrets.Certificates(o)
	require.NoError(t, err)
	first := files(t, o.Out)
	for _, c := range bus.Contracts() {
		role := string(c.Service) + "/"
		require.NoError(t, verify(t, first, role+"tls.pem", role+"tls.key", "ca/ca.pem", "", now), role)
		require.Equal(t, first["ca/ca.pem"], first[role+"ca.pem"])
		require.Error(t, verify(t, first, role+"tls.pem", role+"tls.key", "nats/routes-ca.pem", "", now), "%s opens routes", role)
		if c.Service != bus.Gateway {
			require.Error(t, verify(t, first, role+"tls.pem", role+"tls.key", "ca/ca.pem", "nats-1", now), "%s passes for a server", role)
		}
	}
	for _, host := range o.Hosts {
		require.NoError(t, verify(t, first, "nats/tls.pem", "nats/tls.key", "ca/ca.pem", host, now))
		require.NoError(t, verify(t, first, "nats/routes.pem", "nats/routes.key", "nats/routes-ca.pem", host, now))
	}
	require.Error(t, verify(t, first, "nats/tls.pem", "nats/tls.key", "ca/ca.pem", "", now.Add(31*time.Hour)), "a short life")

	_, err = secrets.Certificates(o)
	require.ErrorIs(t, err, secrets.ErrExists)
	require.Equal(t, first, files(t, o.Out), "a refusal writes nothing")
	// Nor where just one of them is there.
	other := o
	other.Out = t.TempDir()
	require.NoError(t, os.Chmod(other.Out, 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(other.Out, "runner"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(other.Out, "runner", "tls.key"), nil, 0o600))
	_, err = secrets.Certificates(other)
	require.ErrorIs(t, err, secrets.ErrExists)
	require.Len(t, files(t, other.Out), 1)

	o.Existing = secrets.Keep
	written, err := secrets.Certificates(o)
	require.NoError(t, err)
	require.Empty(t, written)
	require.Equal(t, first, files(t, o.Out))
	require.NoError(t, os.Remove(filepath.Join(o.Out, "runner", "tls.key")))
	written, err = secrets.Certificates(o)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(o.Out, "runner")}, written, "what is missing, by the same authority")
	second := files(t, o.Out)
	require.Equal(t, first["ca/ca.pem"], second["runner/ca.pem"])
	require.NoError(t, verify(t, second, "runner/tls.pem", "runner/tls.key", "ca/ca.pem", "", now))

	o.Now = now.Add(21 * time.Hour) // less than a third is left
	_, err = secrets.Certificates(o)
	require.NoError(t, err)
	third := files(t, o.Out)
	require.NoError(t, verify(t, third, "user/tls.pem", "user/tls.key", "ca/ca.pem", "", now.Add(40*time.Hour)))
	require.NotEqual(t, second["user/tls.pem"], third["user/tls.pem"])
	require.Equal(t, first["ca/ca.pem"], third["ca/ca.pem"], "who runs goes on trusting who is new, and is trusted")
	require.Equal(t, first["ca/ca.pem"], third["user/ca.pem"])

	o.Existing = secrets.Overwrite
	_, err = secrets.Certificates(o)
	require.NoError(t, err)
	for name, body := range files(t, o.Out) {
		require.NotEqual(t, third[name], body, name)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	o := secrets.KeyOptions{Out: filepath.Join(t.TempDir(), "out")}
	_, err := secrets.Keys(o)
	require.NoError(t, err)
	first := files(t, o.Out)
	require.Len(t, first, len(bus.Contracts())+3)
	seen := map[string]bool{}
	for name, body := range first {
		require.False(t, seen[body], "%s is another's", name)
		seen[body] = true
		if filepath.Base(name) == "nkey" {
			require.True(t, strings.HasPrefix(body, "SU"), "a user's seed")
			require.NotContains(t, first["nats/authorization.conf"], strings.TrimSpace(body), "the servers know no seed")
		}
	}
	_, err = secrets.Keys(o)
	require.ErrorIs(t, err, secrets.ErrExists)
	require.Equal(t, first, files(t, o.Out))

	o.Existing = secrets.Keep
	require.NoError(t, os.Remove(filepath.Join(o.Out, "runner", "nkey")))
	require.NoError(t, os.WriteFile(filepath.Join(o.Out, "nats", "authorization.conf"), []byte("of an older version"), 0o600))
	_, err = secrets.Keys(o)
	require.NoError(t, err)
	second := files(t, o.Out)
	for name, body := range first {
		changed := name == "runner/nkey" || name == "nats/authorization.conf"
		require.Equal(t, changed, second[name] != body, name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(o.Out, "user", "nkey"), []byte("tops3cret"), 0o600))
	_, err = secrets.Keys(o)
	require.ErrorContains(t, err, "holds no NKey seed")
	require.NotContains(t, err.Error(), "tops3cret")

	o.Existing = secrets.Overwrite
	_, err = secrets.Keys(o)
	require.NoError(t, err)
	for name, body := range files(t, o.Out) {
		require.NotEqual(t, second[name], body, name)
	}
}
