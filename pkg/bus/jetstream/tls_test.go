package jetstream_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/authority"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
)

// TestTLSFilesAreReadAnew: all certificates are replaced by those of another authority while a client is connected; when
// its server comes back with the new ones, it shows its own new one, and trusts the new authority.
func TestTLSFilesAreReadAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, body []byte) { require.NoError(t, os.WriteFile(file(name), body, 0o600)) }
	issue := func() {
		a, err := authority.New("test", time.Now(), time.Hour)
		require.NoError(t, err)
		own, err := a.PEM()
		require.NoError(t, err)
		server, err := a.Issue("server", []string{"127.0.0.1"}, time.Now(), time.Hour)
		require.NoError(t, err)
		client, err := a.Issue("client", nil, time.Now(), time.Hour)
		require.NoError(t, err)
		write("ca.pem", own.Certificate)
		write("server.pem", server.Certificate)
		write("server.key", server.Key)
		write("client.pem", client.Certificate)
		write("client.key", client.Key)
	}
	issue()
	write("server.conf", fmt.Appendf(nil, "tls {cert_file: %q, key_file: %q, ca_file: %q, verify: true}\n", file("server.pem"), file("server.key"), file("ca.pem")))
	options := natsd.Options{StoreDir: t.TempDir(), Port: -1, ConfigFile: file("server.conf")}
	server, err := natsd.Start(options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Shutdown() })

	url := server.ClientURL()
	client := jetstream.Options{URL: url, TLSCAFile: file("ca.pem"), TLSCertFile: file("client.pem"), TLSKeyFile: file("client.key")}
	b, err := jetstream.Connect(t.Context(), client)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	require.NoError(t, b.Healthy(t.Context()))

	require.NoError(t, server.Shutdown())
	issue()
	_, err = fmt.Sscanf(url[len("tls://127.0.0.1:"):], "%d", &options.Port)
	require.NoError(t, err)
	server, err = natsd.Start(options)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.Healthy(t.Context()) == nil }, 30*time.Second, 20*time.Millisecond,
		"it must come back with what is in the files now")
}
