package webhook_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/services/notifier/internal/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func client(t *testing.T, secrets string) *webhook.Client {
	t.Helper()
	c := webhook.New(secrets, "drover-notifier/test")
	t.Cleanup(c.Close)
	return c
}

func TestPost(t *testing.T) {
	t.Parallel()
	secrets := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(secrets, "p"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(secrets, "p", "token"), []byte("Bearer abc\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(secrets, "p", "key"), []byte("whsec_"+base64.StdEncoding.EncodeToString([]byte("k"))), 0o600))
	var got *http.Request
	var body []byte
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
	err := client(t, secrets).Post(t.Context(), "p", &listener.Webhook{
		URL: base + "/hook?x=1", Headers: map[string]string{"X-Team": "fleet"},
		SecretHeaders: map[string]string{"Authorization": "token"}, Secret: "key",
	}, "p/k/n.x/u/1", map[string]string{"Drover-Event-Id": "p/k/n.x/u/1"}, []byte(`{"a":1}`))
	require.NoError(t, err)
	require.Equal(t, http.MethodPost, got.Method)
	require.Equal(t, "/hook?x=1", got.RequestURI)
	require.JSONEq(t, `{"a":1}`, string(body))
	require.Equal(t, "application/json", got.Header.Get("Content-Type"))
	require.Equal(t, "drover-notifier/test", got.Header.Get("User-Agent"))
	require.Equal(t, "fleet", got.Header.Get("X-Team"))
	require.Equal(t, "Bearer abc", got.Header.Get("Authorization"))
	require.Equal(t, "p/k/n.x/u/1", got.Header.Get("Drover-Event-Id"))

	id := got.Header.Get("Webhook-Id")
	require.NotContains(t, id, ".")
	mac := hmac.New(sha256.New, []byte("k"))
	mac.Write([]byte(id + "." + got.Header.Get("Webhook-Timestamp") + `.{"a":1}`))
	require.Equal(t, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)), got.Header.Get("Webhook-Signature"))
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]struct{ ok, forGood bool }{
		200: {true, false}, 204: {true, false}, 302: {false, true}, 400: {false, true}, 404: {false, true},
		408: {false, false}, 429: {false, false}, 500: {false, false}, 503: {false, false},
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			calls := 0
			base := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				calls++
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(status)
			})
			err := client(t, "").Post(t.Context(), "p", &listener.Webhook{URL: base}, "id", nil, nil)
			require.Equal(t, want.ok, err == nil)
			if want.forGood {
				require.ErrorIs(t, err, webhook.ErrRefused)
			} else if !want.ok {
				require.NotErrorIs(t, err, webhook.ErrRefused)
			}
			require.Equal(t, 1, calls, "a redirect is not followed")
		})
	}
}

func TestAddressesThatAreNotCalled(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"169.254.169.254", "0.0.0.0", "[::]", "[fe80::1]", "[::ffff:169.254.169.254]", "224.0.0.1", "[fd00:ec2::254]"} {
		err := client(t, "").Post(t.Context(), "p", &listener.Webhook{URL: "http://" + host + ":9/x"}, "id", nil, nil)
		require.ErrorIs(t, err, webhook.ErrAddress, host)
	}
}

func TestErrorsHoldNoSecret(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(nil)
	closed.Close()
	err := client(t, "").Post(t.Context(), "p", &listener.Webhook{URL: closed.URL + "/?token=hunter2"}, "id", nil, nil)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hunter2")

	base := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = client(t, "").Post(ctx, "p", &listener.Webhook{URL: base + "/?token=hunter2"}, "id", nil, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, err.Error(), "hunter2")
}

func TestSecretsThatAreNotToBeHad(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	secrets := filepath.Join(folder, "secrets")
	own := filepath.Join(secrets, "p")
	require.NoError(t, os.MkdirAll(own, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "outside"), []byte("x"), 0o600))
	require.NoError(t, os.Symlink("../../outside", filepath.Join(own, "link")))
	require.NoError(t, os.WriteFile(filepath.Join(own, "empty"), []byte("\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(own, "lines"), []byte("a\nb"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(own, "large"), []byte(strings.Repeat("x", 5000)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(own, "bad64"), []byte("whsec_!"), 0o600))
	calls := 0
	base := serve(t, func(http.ResponseWriter, *http.Request) { calls++ })
	for _, name := range []string{"missing", "link", "empty", "lines", "large", "../outside", "."} {
		err := client(t, secrets).Post(t.Context(), "p", &listener.Webhook{URL: base, SecretHeaders: map[string]string{"X": name}}, "id", nil, nil)
		require.ErrorIs(t, err, webhook.ErrSecret, name)
		err = client(t, secrets).Post(t.Context(), "p", &listener.Webhook{URL: base, Secret: name}, "id", nil, nil)
		require.ErrorIs(t, err, webhook.ErrSecret, name)
	}
	require.ErrorIs(t, client(t, secrets).Post(t.Context(), "p", &listener.Webhook{URL: base, Secret: "bad64"}, "id", nil, nil), webhook.ErrSecret)
	require.ErrorIs(t, client(t, "").Post(t.Context(), "p", &listener.Webhook{URL: base, Secret: "key"}, "id", nil, nil), webhook.ErrSecret)
	require.Zero(t, calls)
}

// Who may apply a listener in one project chooses the host, so it gets that project's secrets alone.
func TestSecretsAreTheProjects(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	secrets := filepath.Join(folder, "secrets")
	for _, file := range []string{"secrets/flat", "secrets/theirs/token", "secrets/mine/token", "secrets/mine/sub/token", "outside/token"} {
		path := filepath.Join(folder, filepath.FromSlash(file))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	}
	var got []string
	base := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = append(got, r.Header.Get("X")) })
	post := func(project, name string) error {
		return client(t, secrets).Post(t.Context(), project, &listener.Webhook{URL: base, SecretHeaders: map[string]string{"X": name}}, "id", nil, nil)
	}
	require.NoError(t, post("mine", "token"))
	require.Equal(t, []string{"secrets/mine/token"}, got)

	require.EqualError(t, post("mine", "flat"), "secret not available: flat of project mine: no such file")
	for _, project := range []string{"", ".", "..", "../outside", "mine/../theirs", "mine/sub", "/", "theirs/", filepath.Join(folder, "outside"), "none"} {
		for _, name := range []string{"token", "flat"} {
			require.ErrorIs(t, post(project, name), webhook.ErrSecret, project)
		}
	}
	require.Len(t, got, 1, "nothing was sent")
}

// A call takes as long as its Client allows, which for pokes is more than for webhooks.
func TestTheTimeOfACall(t *testing.T) {
	t.Parallel()
	// post makes a call that is answered after a while, and says how long it took.
	post := func(t *testing.T, c *webhook.Client, answered time.Duration) (time.Duration, error) {
		var server sync.WaitGroup
		defer server.Wait()
		defer c.Close()
		c.DialBy(func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			server.Go(func() {
				defer far.Close()
				if _, err := http.ReadRequest(bufio.NewReader(far)); err == nil {
					time.Sleep(answered)
					_, _ = io.WriteString(far, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
				}
			})
			return near, nil
		})
		began := time.Now()
		err := c.Post(t.Context(), "p", &listener.Webhook{URL: "http://127.0.0.1/"}, "id", nil, []byte("{}"))
		return time.Since(began), err
	}
	synctest.Test(t, func(t *testing.T) {
		took, err := post(t, webhook.NewFor("", "test", 1, 3*webhook.CallTimeout), 2*webhook.CallTimeout)
		require.NoError(t, err)
		require.Equal(t, 2*webhook.CallTimeout, took)

		took, err = post(t, webhook.New("", "test"), 2*webhook.CallTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, webhook.CallTimeout, took)
	})
}
