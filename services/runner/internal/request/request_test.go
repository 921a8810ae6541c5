package request

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"

	"github.com/droverproject/drover/services/runner/internal/executor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func client(t *testing.T) *Client {
	t.Helper()
	c := NewClient()
	t.Cleanup(c.Close)
	return c
}

func server(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

// refusing is an address on which nobody listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return "http://" + l.Addr().String()
}

func call(data map[string]string) *executor.Call {
	return &executor.Call{
		Key: resource.Key{Project: "default", Kind: "node", Name: "web-1"}, Phase: "create",
		Fence: resource.Fence{UID: "uid1", JobID: "job1", Phase: "create", Attempt: 1, Call: 1},
		Data:  data, Attributes: map[string]string{"token": `"t0ken"`},
		Spec: json.RawMessage(`{"size": "small", "crlf": "x\r\nX-Evil: 1", "quote": "a\"b"}`),
		Log:  func(string, time.Time, string) {},
	}
}

func runHTTP(t *testing.T, config string, data map[string]string) executor.Outcome {
	t.Helper()
	decoded, err := manifest.DecodeHTTP(config)
	require.NoError(t, err)
	h, err := NewHTTP(client(t), decoded)
	require.NoError(t, err)
	o, err := h.Run(t.Context(), call(data))
	require.NoError(t, err)
	return o
}

func runPoll(t *testing.T, config string) executor.Outcome {
	t.Helper()
	decoded, err := manifest.DecodePoll(config)
	require.NoError(t, err)
	p, err := NewPoll(client(t), decoded)
	require.NoError(t, err)
	o, err := p.Run(t.Context(), call(nil))
	require.NoError(t, err)
	return o
}

func TestHTTPRequest(t *testing.T) {
	t.Parallel()
	url := server(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPut || r.URL.Path != "/instances/web-1" ||
			r.Header.Get("Authorization") != "Bearer t0ken" || r.Header.Get("Content-Type") != "application/json" ||
			r.Header.Get("Idempotency-Key") != "uid1-job1-create-1" || string(body) != `{"size":"small","q":"a\"b"}` {
			http.Error(w, fmt.Sprint("bad request: ", r.Header, string(body)), http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, `{"id": "i-1", "items": [{"n": 12345678901234567890}], "a/b": true}`)
	})
	o := runHTTP(t, `{"method": "PUT", "url": "`+url+`/instances/{{ resource.name }}", "headers": {"authorization": "Bearer {{ resource.attributes.token }}"},
		"body": "{\"size\":{{ resource.spec.size | tojson }},\"q\":{{ resource.spec.quote | tojson }}}",
		"capture": {"attributes": {"id": "/id", "none": "/none", "deep": "/id/x"}, "data": {"n": "/items/0/n", "out": "/items/1"}, "outputs": {"slash": "/a~1b", "all": ""}}}`, nil)
	require.Equal(t, resource.OutcomeCompleted, o.Kind, o.Message)
	require.Equal(t, map[string]string{"id": `"i-1"`}, o.Attributes)
	require.Equal(t, map[string]string{"n": "12345678901234567890", pendingData: "null"}, o.Data)
	require.Equal(t, "true", o.Outputs["slash"])
	require.JSONEq(t, `{"id": "i-1", "items": [{"n": 12345678901234567890}], "a/b": true}`, o.Outputs["all"])
}

func TestHTTPStatuses(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]executor.Outcome{
		200: {Kind: resource.OutcomeCompleted},
		204: {Kind: resource.OutcomeCompleted},
		202: {Kind: resource.OutcomePending, Message: "202 Accepted", Delay: 7 * time.Second},
		304: {Kind: resource.OutcomeFailed, Message: "304 Not Modified"},
		400: {Kind: resource.OutcomeFailed, Message: "400 Bad Request: why not"},
		408: {Kind: resource.OutcomeFailed, Message: "408 Request Timeout: why not", Retryable: true},
		429: {Kind: resource.OutcomeFailed, Message: "429 Too Many Requests: why not", Retryable: true},
		500: {Kind: resource.OutcomeFailed, Message: "500 Internal Server Error: why not", Retryable: true},
		503: {Kind: resource.OutcomeFailed, Message: "503 Service Unavailable: why not", Retryable: true},
	} {
		url := server(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(code)
			if code != 204 && code != 304 {
				_, _ = io.WriteString(w, "why\n  not")
			}
		})
		o := runHTTP(t, `{"url": "`+url+`"}`, nil)
		o.Kept = executor.Kept{}
		require.Equal(t, want, o, code)
	}
}

func TestHTTPFailures(t *testing.T) {
	t.Parallel()
	o := runHTTP(t, `{"url": "`+refusing(t)+`/secret-token"}`, nil)
	require.Equal(t, executor.Retryable("the connection was refused"), o)

	slow := server(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	o = runHTTP(t, `{"url": "`+slow+`", "timeout": "50ms"}`, nil)
	require.Equal(t, executor.Retryable("no answer within 50ms"), o)

	large := server(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", ResponseBytesMax+1))
	})
	o = runHTTP(t, `{"url": "`+large+`"}`, nil)
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.Contains(t, o.Message, "bytes")

	var hops atomic.Int32
	loop := server(t, func(w http.ResponseWriter, r *http.Request) {
		hops.Add(1)
		http.Redirect(w, r, "/again", http.StatusFound)
	})
	o = runHTTP(t, `{"method": "GET", "url": "`+loop+`"}`, nil)
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.Contains(t, o.Message, "redirects")
	require.EqualValues(t, RedirectsMax+1, hops.Load())

	for field, config := range map[string]string{
		"url":       `{"url": "{{ resource.spec.size }}"}`,
		"headers.X": `{"url": "http://127.0.0.1:1", "headers": {"X": "{{ resource.spec.crlf }}"}}`,
		"body":      `{"url": "http://127.0.0.1:1", "body": "{{ resource.spec.nope }}"}`,
	} {
		o = runHTTP(t, config, nil)
		require.Equal(t, resource.OutcomeFailed, o.Kind, field)
		require.False(t, o.Retryable)
		require.Contains(t, o.Message, field)
	}
}

// A redirect is followed by the same request to the same host. Whatever else would be answered has nothing to do with what
// was asked, and whoever else would be asked learns what is not meant for them.
func TestRedirects(t *testing.T) {
	t.Parallel()
	var elsewhere, got atomic.Int32
	other := server(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	mux := http.NewServeMux()
	mux.HandleFunc("/away/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.PathValue("code"))
		if err != nil {
			code = http.StatusNotFound
		}
		http.Redirect(w, r, other+"/login?token=hunter2", code)
	})
	mux.HandleFunc("/here/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.PathValue("code"))
		if err != nil {
			code = http.StatusNotFound
		}
		http.Redirect(w, r, "/there?token=hunter2", code)
	})
	mux.HandleFunc("/there", func(w http.ResponseWriter, r *http.Request) {
		got.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method == http.MethodPost && string(body) != "{}" || r.Header.Get("X-Api-Key") != "secret" {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	url := server(t, mux.ServeHTTP)
	host := strings.TrimPrefix(url, "http://")
	config := func(method, path, body string) string {
		return fmt.Sprintf(`{"method": %q, "url": "%s%s", "headers": {"X-Api-Key": "secret"}, "body": %q}`, method, url, path, body)
	}
	for path, followed := range map[string]bool{
		"POST /here/301": false, "POST /here/302": false, "POST /here/303": false, "PUT /here/302": false, "DELETE /here/301": false,
		"POST /here/307": true, "POST /here/308": true, "GET /here/301": true, "GET /here/302": true, "GET /here/303": true,
		"GET /away/302": false, "POST /away/302": false, "POST /away/307": false,
	} {
		method, path, _ := strings.Cut(path, " ")
		body := ""
		if method == http.MethodPost {
			body = "{}"
		}
		before := got.Load()
		o := runHTTP(t, config(method, path, body), nil)
		if followed {
			require.Equal(t, resource.OutcomeCompleted, o.Kind, method+path+o.Message)
			require.Equal(t, before+1, got.Load())
			continue
		}
		require.Equal(t, resource.OutcomeFailed, o.Kind, method+path)
		require.False(t, o.Retryable)
		to := host
		if strings.HasPrefix(path, "/away") {
			to = strings.TrimPrefix(other, "http://")
		}
		require.Contains(t, o.Message, ": a redirect to "+to+", which is not followed", method+path)
		require.NotContains(t, o.Message, "hunter2")
		require.Equal(t, before, got.Load(), method+path)
	}
	// What goes without its body is another request, though its method is the same.
	require.Equal(t, resource.OutcomeFailed, runHTTP(t, config("GET", "/here/302", "{}"), nil).Kind)

	// A poll that is sent away is pending, as any status that it does not expect.
	o := runPoll(t, `{"url": "`+url+`/here/302", "headers": {"X-Api-Key": "secret"}}`)
	require.Equal(t, resource.OutcomeCompleted, o.Kind, o.Message)
	o = runPoll(t, `{"url": "`+url+`/away/302", "headers": {"X-Api-Key": "secret"}}`)
	require.Equal(t, executor.Pending(0, "302 Found: a redirect to %s, which is not followed", strings.TrimPrefix(other, "http://")), o)
	o = runPoll(t, `{"url": "`+url+`/away/302", "fail": ["300-399"]}`)
	require.Equal(t, resource.OutcomeFailed, o.Kind)
	require.Contains(t, o.Message, "a redirect to ")
	require.Zero(t, elsewhere.Load())
}

// A default port is the same, said or not; another scheme is another way, which others may read.
func TestSameHost(t *testing.T) {
	t.Parallel()
	for pair, want := range map[[2]string]bool{
		{"http://a/x", "http://A:80/y"}:     true,
		{"https://a", "https://a:443"}:      true,
		{"http://u:p@a/", "http://a/"}:      true,
		{"https://a/", "http://a/"}:         false,
		{"http://a/", "http://a:8080/"}:     false,
		{"http://a/", "http://a.example/"}:  false,
		{"https://a:80/", "https://a:443/"}: false,
	} {
		a, err := parseURL(pair[0])
		require.NoError(t, err)
		b, err := parseURL(pair[1])
		require.NoError(t, err)
		require.Equal(t, want, sameHost(a, b), pair)
	}
}

func TestHTTPStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	url := server(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	decoded, err := manifest.DecodeHTTP(`{"url": "` + url + `"}`)
	require.NoError(t, err)
	h, err := NewHTTP(client(t), decoded)
	require.NoError(t, err)
	_, err = h.Run(ctx, call(nil))
	require.ErrorIs(t, err, context.Canceled)
}

// A request that is pending is asked about at its Location, or by poll, or sent again.
func TestHTTPPending(t *testing.T) {
	t.Parallel()
	var posts, asks atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jobs", func(w http.ResponseWriter, _ *http.Request) {
		posts.Add(1)
		w.Header().Set("Location", "/jobs/7")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"id": 7}`)
	})
	mux.HandleFunc("GET /jobs/7", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "secret" || r.Header.Get("Idempotency-Key") != "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if asks.Add(1) == 1 {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		_, _ = io.WriteString(w, `{"result": "done"}`)
	})
	mux.HandleFunc("POST /again", func(w http.ResponseWriter, _ *http.Request) {
		if posts.Add(1) < 4 {
			w.WriteHeader(http.StatusAccepted)
		}
	})
	url := server(t, mux.ServeHTTP)

	config := `{"url": "` + url + `/jobs", "headers": {"Authorization": "secret"}, "capture": {"data": {"id": "/id"}, "outputs": {"r": "/result"}}}`
	first := runHTTP(t, config, nil)
	require.Equal(t, resource.OutcomePending, first.Kind, first.Message)
	require.Equal(t, "7", first.Data["id"])
	second := runHTTP(t, config, first.Data)
	require.Equal(t, resource.OutcomePending, second.Kind, second.Message)
	third := runHTTP(t, config, second.Data)
	require.Equal(t, resource.OutcomeCompleted, third.Kind, third.Message)
	require.Equal(t, `"done"`, third.Outputs["r"])
	require.Equal(t, "null", third.Data[pendingData])
	require.EqualValues(t, 1, posts.Load())

	// With poll: its own rules.
	asks.Store(0)
	config = `{"url": "` + url + `/jobs", "poll": {"url": "` + url + `/jobs/{{ phase.data.id }}", "headers": {"Authorization": "other"}, "interval": "3s", "fail": ["401"]}, "capture": {"data": {"id": "/id"}}}`
	first = runHTTP(t, config, nil)
	require.Equal(t, resource.OutcomePending, first.Kind)
	second = runHTTP(t, config, first.Data)
	require.Equal(t, resource.OutcomeFailed, second.Kind, second.Message)
	require.EqualValues(t, 2, posts.Load())

	// Neither: the request is sent again.
	config = `{"url": "` + url + `/again"}`
	first = runHTTP(t, config, nil)
	require.Equal(t, resource.OutcomePending, first.Kind)
	second = runHTTP(t, config, first.Data)
	require.Equal(t, resource.OutcomeCompleted, second.Kind)
	require.EqualValues(t, 4, posts.Load())
}

// Credentials stay with the host that they were meant for.
func TestLocationElsewhereGetsNoHeaders(t *testing.T) {
	t.Parallel()
	var leaked atomic.Bool
	other := server(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Token") != "" || r.Header.Get("Authorization") != "" {
			leaked.Store(true)
		}
	})
	url := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", other+"/status")
		w.WriteHeader(http.StatusAccepted)
	})
	config := `{"url": "` + url + `", "headers": {"X-Token": "secret", "Authorization": "secret"}}`
	first := runHTTP(t, config, nil)
	require.Equal(t, resource.OutcomePending, first.Kind)
	require.Equal(t, resource.OutcomeCompleted, runHTTP(t, config, first.Data).Kind)
	require.False(t, leaked.Load())
}

func TestPoll(t *testing.T) {
	t.Parallel()
	o := runPoll(t, `{"url": "`+refusing(t)+`", "interval": "2s"}`)
	require.Equal(t, executor.Pending(2*time.Second, "the connection was refused"), o)

	var code atomic.Int32
	url := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/healthz/web-1" || r.Header.Get("Idempotency-Key") != "" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.WriteHeader(int(code.Load()))
		_, _ = io.WriteString(w, `{"version": "1.2"}`)
	})
	config := `{"url": "` + url + `/healthz/{{ resource.name }}", "expect": ["200-201"], "fail": ["410"], "capture": {"attributes": {"version": "/version"}}}`
	for status, want := range map[int]executor.Outcome{
		200: {Kind: resource.OutcomeCompleted, Kept: executor.Kept{
			Attributes: map[string]string{"version": `"1.2"`}, Data: map[string]string{}, Outputs: map[string]string{},
		}},
		503: {Kind: resource.OutcomePending, Message: "503 Service Unavailable"},
		404: {Kind: resource.OutcomePending, Message: "404 Not Found"},
		410: {Kind: resource.OutcomeFailed, Message: `410 Gone: {"version": "1.2"}`},
	} {
		code.Store(int32(status))
		require.Equal(t, want, runPoll(t, config), status)
	}

	slow := server(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	o = runPoll(t, `{"url": "`+slow+`", "timeout": "50ms"}`)
	require.Equal(t, executor.Pending(0, "no answer within 50ms"), o)

	// The messages of two failures of one kind are equal: no event for nothing.
	cutOff := server(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	})
	first, second := runPoll(t, `{"url": "`+cutOff+`"}`), runPoll(t, `{"url": "`+cutOff+`"}`)
	require.Equal(t, resource.OutcomePending, first.Kind)
	require.Equal(t, first, second)
}
