package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/authority"
	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/gateway"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The whole way over a socket: a command that intake answers, a status, and the end.
func TestRun(t *testing.T) {
	t.Parallel()
	s := memory.New(memory.Options{})
	b := s.Connect()
	defer b.Close()
	stop, err := b.ServeAPI("1.0.0", func(subject string, _ bus.Request, reply func(map[string]string, []byte)) {
		body, err := wire.EncodeReply("application/json", wire.Reply{JobID: "job", Resource: subject})
		if err != nil {
			t.Error(err)
		}
		reply(map[string]string{"Content-Type": "application/json"}, body)
	})
	require.NoError(t, err)
	defer stop()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	base := "http://" + listener.Addr().String()
	config := host.DefaultConfig()
	config.Listen = ""
	h := host.New(host.Options{Name: gateway.Service, Config: config})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- h.Run(ctx, func(ctx context.Context, h *host.Host) error {
			return gateway.RunOptions{Listener: listener}.Run(ctx, h, b)
		})
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	do := func(method, path, body string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
	status, body := do("POST", "/v1/default/node/web-1/start", "{}")
	require.Equal(t, http.StatusAccepted, status)
	require.JSONEq(t, `{"jobId":"job","resource":"drover.api.default.node.web-1.start"}`, body)
	status, _ = do("GET", "/v1/default/node/web-1", "")
	require.Equal(t, http.StatusNotFound, status)
	require.NoError(t, h.Ready(t.Context()))

	stop()
	status, body = do("POST", "/v1/default/node/web-1/start", "{}")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "no intake is running")

	cancel()
	require.NoError(t, <-done)
	_, err = net.Dial("tcp", listener.Addr().String())
	require.Error(t, err)
}

func TestAnAddressThatIsTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	config := host.DefaultConfig()
	config.Listen = ""
	h := host.New(host.Options{Name: gateway.Service, Config: config})
	b := memory.New(memory.Options{}).Connect()
	defer b.Close()
	err = h.Run(t.Context(), func(ctx context.Context, h *host.Host) error {
		return gateway.RunOptions{HTTP: taken.Addr().String()}.Run(ctx, h, b)
	})
	require.ErrorContains(t, err, "listen for HTTP")
}

// TestHTTPSFollowsItsFiles: a certificate that is replaced on disk is served to whoever connects from then on.
func TestHTTPSFollowsItsFiles(t *testing.T) {
	t.Parallel()
	a, err := authority.New("test", time.Now(), time.Hour)
	require.NoError(t, err)
	dir := t.TempDir()
	certificate, key := filepath.Join(dir, "tls.pem"), filepath.Join(dir, "tls.key")
	issue := func(name string) {
		p, err := a.Issue(name, []string{"127.0.0.1"}, time.Now(), time.Hour)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(key, p.Key, 0o600))
		require.NoError(t, os.WriteFile(certificate, p.Certificate, 0o600))
	}
	issue("first")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	config := host.DefaultConfig()
	config.Listen = ""
	h := host.New(host.Options{Name: gateway.Service, Config: config})
	b := memory.New(memory.Options{}).Connect()
	defer b.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- h.Run(ctx, func(ctx context.Context, h *host.Host) error {
			return gateway.RunOptions{Listener: listener, Certificate: certificate, CertificateKey: key}.Run(ctx, h, b)
		})
	}()
	own, err := a.PEM()
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(own.Certificate))
	served := func() string {
		client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		}}
		response, err := client.Get("https://" + listener.Addr().String() + "/")
		require.NoError(t, err)
		defer response.Body.Close()
		require.Equal(t, http.StatusOK, response.StatusCode)
		return response.TLS.PeerCertificates[0].Subject.CommonName
	}
	require.Equal(t, "first", served())
	issue("second")
	require.Equal(t, "second", served())
	cancel()
	require.NoError(t, <-done)

	err = host.New(host.Options{Name: gateway.Service, Config: config}).Run(t.Context(), func(ctx context.Context, h *host.Host) error {
		return gateway.RunOptions{HTTP: "127.0.0.1:0", Certificate: certificate}.Run(ctx, h, b)
	})
	require.ErrorContains(t, err, "http-certificate", "half a pair is no plain HTTP")
}
