package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/gateway/internal/httpapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mediaType = "application/json"

// system is the bus behind the gateway.
type system struct {
	mu      sync.Mutex
	request func(ctx context.Context, subject string, header map[string]string, body []byte) (bus.Request, error)
	stored  []bus.Stored
	readErr error
}

func (s *system) Request(ctx context.Context, subject string, header map[string]string, body []byte) (bus.Request, error) {
	s.mu.Lock()
	request := s.request
	s.mu.Unlock()
	return request(ctx, subject, header, body)
}

func (s *system) Get(_ context.Context, e bus.Entity) (bus.Stored, error) {
	if s.readErr != nil {
		return bus.Stored{}, s.readErr
	}
	for _, stored := range s.stored {
		if stored.Entity == e {
			return stored, nil
		}
	}
	return bus.Stored{}, bus.ErrNotFound
}

func (s *system) List(_ context.Context, f bus.Family, project, kind string, each func(bus.Stored) error) error {
	if s.readErr != nil {
		return s.readErr
	}
	for _, stored := range s.stored {
		e := stored.Entity
		if e.Family != f || project != "" && e.Project != project || kind != "" && e.Kind != kind {
			continue
		}
		if err := each(stored); err != nil {
			return err
		}
	}
	return nil
}

type stage struct {
	*system
	*httpapi.Server
	logs     *observer.ObservedLogs
	registry *prometheus.Registry
}

func open(t *testing.T, change ...func(*httpapi.Options)) *stage {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	s := &stage{system: &system{}, logs: logs, registry: prometheus.NewRegistry()}
	o := httpapi.Options{Bus: s.system, Log: zap.New(core), Metrics: s.registry, Version: "1.2.3", Local: true}
	for _, c := range change {
		c(&o)
	}
	server, err := httpapi.New(o)
	require.NoError(t, err)
	s.Server = server
	return s
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// problem is an answer's error.
func (a answer) problem(t *testing.T) (p struct {
	Code, Message, RequestID string
	Violations               []struct{ Field, Reason string }
}) {
	t.Helper()
	require.Equal(t, mediaType, a.header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal(a.body, &p), "%s", a.body)
	require.NotEmpty(t, p.Code)
	require.NotEmpty(t, p.Message)
	return p
}

func (s *stage) do(method, path, body string, header ...string) answer {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "127.0.0.1:8092"
	if method == http.MethodPost {
		r.Header.Set("Content-Type", mediaType)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else {
			r.Header.Set(header[i], header[i+1])
		}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.Bytes()}
}

func replies(r wire.Reply) func(context.Context, string, map[string]string, []byte) (bus.Request, error) {
	return func(context.Context, string, map[string]string, []byte) (bus.Request, error) {
		body, err := wire.EncodeReply(mediaType, r)
		return bus.Request{Header: map[string]string{"Content-Type": mediaType}, Body: body}, err
	}
}

func TestACommandReachesIntake(t *testing.T) {
	t.Parallel()
	s := open(t)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	s.request = func(ctx context.Context, subject string, header map[string]string, body []byte) (bus.Request, error) {
		require.Equal(t, "drover.api.default.node.web1=2Eexample=2Ecom=2Fa.start", subject)
		require.Equal(t, map[string]string{"Content-Type": mediaType, "Drover-Request-Id": "mine", "traceparent": trace}, header)
		require.JSONEq(t, `{"args":{}}`, string(body))
		_, ok := ctx.Deadline()
		require.True(t, ok)
		return replies(wire.Reply{JobID: "j", Resource: "r"})(ctx, subject, header, body)
	}
	got := s.do("POST", "/v1/default/node/web1.example.com%2Fa/start", `{"args":{}}`, "Drover-Request-Id", "mine", "traceparent", trace)
	require.Equal(t, http.StatusAccepted, got.status)
	require.JSONEq(t, `{"jobId":"j","resource":"r"}`, string(got.body))
	require.Equal(t, "mine", got.header.Get("Drover-Request-Id"))
	for header, value := range map[string]string{
		"Content-Type": mediaType, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
		"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Referrer-Policy": "no-referrer",
	} {
		require.Equal(t, value, got.header.Get(header), header)
	}
}

func TestARequestIDIsMade(t *testing.T) {
	t.Parallel()
	s := open(t)
	sent := ""
	s.request = func(ctx context.Context, subject string, header map[string]string, body []byte) (bus.Request, error) {
		sent = header["Drover-Request-Id"]
		return replies(wire.Reply{JobID: "j"})(ctx, subject, header, body)
	}
	got := s.do("POST", "/v1/p/k/n/start", `{}`)
	require.Len(t, sent, 26)
	require.Equal(t, sent, got.header.Get("Drover-Request-Id"))
}

func TestRefusalsHaveTheirStatus(t *testing.T) {
	t.Parallel()
	for code, status := range map[resource.Code]int{
		resource.Invalid: 400, resource.NotFound: 404, resource.Conflict: 409, resource.TooLarge: 413, resource.Overloaded: 503,
	} {
		s := open(t)
		s.request = replies(wire.Reply{RequestID: "r", Refused: &resource.Refusal{
			Code: code, Message: "because", Violations: []resource.Violation{{Field: "spec.a", Reason: "b"}},
		}})
		got := s.do("POST", "/v1/p/k/n/start", `{}`)
		require.Equal(t, status, got.status)
		p := got.problem(t)
		require.Equal(t, string(code), p.Code)
		require.Equal(t, "spec.a", p.Violations[0].Field)
		require.Equal(t, status == 503, got.header.Get("Retry-After") != "")
	}
}

func TestNoAnswerFromIntake(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		status int
		text   string
	}{
		"no intake": {bus.ErrNoOwner, 503, "no intake"},
		"too late":  {context.DeadlineExceeded, 503, "may have been accepted"},
		"denied":    {bus.ErrDenied, 500, "permissions"},
		"too large": {bus.ErrTooLarge, 413, "larger"},
		"other":     {errors.New("secret detail"), 503, "may have been accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			s.request = func(context.Context, string, map[string]string, []byte) (bus.Request, error) {
				return bus.Request{}, fmt.Errorf("request: %w", c.err)
			}
			got := s.do("POST", "/v1/p/k/n/start", `{}`, "Drover-Request-Id", "mine")
			require.Equal(t, c.status, got.status)
			p := got.problem(t)
			require.Contains(t, p.Message, c.text)
			require.NotContains(t, p.Message, "secret detail")
			require.Equal(t, "mine", p.RequestID)
		})
	}
}

func TestAnAnswerThatCannotBeRead(t *testing.T) {
	t.Parallel()
	protobuf, err := wire.EncodeReply("", wire.Reply{JobID: "j"})
	require.NoError(t, err)
	for _, body := range [][]byte{nil, []byte("no"), protobuf} {
		s := open(t)
		s.request = func(context.Context, string, map[string]string, []byte) (bus.Request, error) {
			return bus.Request{Body: body}, nil
		}
		require.Equal(t, 500, s.do("POST", "/v1/p/k/n/start", `{}`).status)
	}
}

func TestCommandsThatAreNotSent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, body string
		header     []string
		status     int
		field      string
	}{
		"a long name":       {"/v1/p/k/" + strings.Repeat("n", 254) + "/start", "{}", nil, 400, "path.name"},
		"an unprintable":    {"/v1/p/k/a%07/start", "{}", nil, 400, "path.name"},
		"no UTF-8":          {"/v1/p/%FF/a/start", "{}", nil, 400, "path.kind"},
		"a query":           {"/v1/p/k/n/start?x=1", "{}", nil, 400, "query"},
		"a bad request id":  {"/v1/p/k/n/start", "{}", []string{"Drover-Request-Id", "a b"}, 400, "header.Drover-Request-Id"},
		"a long request id": {"/v1/p/k/n/start", "{}", []string{"Drover-Request-Id", strings.Repeat("a", 65)}, 400, "header.Drover-Request-Id"},
		"no JSON type":      {"/v1/p/k/n/start", "{}", []string{"Content-Type", "text/plain"}, 415, ""},
		"no type":           {"/v1/p/k/n/start", "{}", []string{"Content-Type", ""}, 415, ""},
		"a large body":      {"/v1/p/k/n/start", strings.Repeat("x", 961<<10), nil, 413, ""},
		"another origin":    {"/v1/p/k/n/start", "{}", []string{"Origin", "http://evil.example"}, 403, ""},
		"another site":      {"/v1/p/k/n/start", "{}", []string{"Sec-Fetch-Site", "cross-site"}, 403, ""},
		"a foreign host":    {"/v1/p/k/n/start", "{}", []string{"Host", "evil.example:8092"}, 421, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			s.request = func(context.Context, string, map[string]string, []byte) (bus.Request, error) {
				t.Error("it was sent")
				return bus.Request{}, nil
			}
			got := s.do("POST", c.path, c.body, c.header...)
			require.Equal(t, c.status, got.status)
			p := got.problem(t)
			if c.field != "" {
				require.Equal(t, c.field, p.Violations[0].Field)
			}
		})
	}
}

// door is another system's API whose reads change something.
type door struct{ asked int }

func (d *door) ServeHTTP(http.ResponseWriter, *http.Request) { d.asked++ }
func (d *door) Serves(r *http.Request) (string, bool)        { return "/door/", r.URL.Path == "/door/list" }
func (d *door) Routes() []httpapi.Route                      { return nil }

// TestReadsOfAnotherOrigin: a page of another origin has nothing read either, behind no door.
func TestReadsOfAnotherOrigin(t *testing.T) {
	t.Parallel()
	d := &door{}
	s := open(t, func(o *httpapi.Options) { o.Doors = []httpapi.Door{d} })
	for _, path := range []string{"/door/list", "/"} {
		for _, method := range []string{"GET", "HEAD"} {
			for _, site := range []string{"cross-site", "same-site", "anything"} {
				got := s.do(method, path, "", "Sec-Fetch-Site", site)
				require.Equal(t, 403, got.status, site)
				require.Equal(t, "forbidden", got.problem(t).Code)
			}
		}
		for _, site := range []string{"same-origin", "none", ""} {
			require.Equal(t, 200, s.do("GET", path, "", "Sec-Fetch-Site", site).status, site)
		}
	}
	require.Equal(t, 3, d.asked)
}

func TestHosts(t *testing.T) {
	t.Parallel()
	status := func(s *stage, host string) int { return s.do("GET", "/", "", "Host", host).status }
	local := open(t)
	for _, host := range []string{"127.0.0.1:8092", "localhost", "LOCALHOST:1", "localhost.", "[::1]:8092", "[::1]"} {
		require.Equal(t, 200, status(local, host), host)
	}
	for _, host := range []string{"evil.example", "localhost.evil.example", ""} {
		require.Equal(t, 421, status(local, host), host)
	}
	named := open(t, func(o *httpapi.Options) { o.Hosts = []string{"Drover.example"} })
	require.Equal(t, 200, status(named, "drover.example:443"))
	require.Equal(t, 421, status(named, "evil.example"))
	public := open(t, func(o *httpapi.Options) { o.Local = false })
	require.Equal(t, 200, status(public, "anything.example"))
	publicNamed := open(t, func(o *httpapi.Options) { o.Local, o.Hosts = false, []string{"drover.example"} })
	require.Equal(t, 421, status(publicNamed, "anything.example"))
}

func resourceEvent(t *testing.T, name string) bus.Stored {
	t.Helper()
	key := resource.Key{Project: "default", Kind: "node", Name: name}
	body, err := wire.EncodeResource(wire.ResourceEvent{
		Event: resource.Event{From: "", To: "Started"},
		State: resource.State{Key: key, MinReader: 1, UID: "u", Revision: 42, State: "Started"}, At: time.Unix(1, 0),
	})
	require.NoError(t, err)
	return bus.Stored{Entity: bus.Entity{Family: bus.Resource, Project: "default", Kind: "node", Name: name}, Body: body}
}

func TestReads(t *testing.T) {
	t.Parallel()
	s := open(t)
	blueprint, err := wire.EncodeBlueprint(wire.BlueprintEvent{Project: "default", Kind: "node", Digest: "d", JSON: "{}", Generation: 1, At: time.Unix(1, 0)})
	require.NoError(t, err)
	record, err := wire.EncodeJob(wire.JobEvent{At: time.Unix(1, 0), Record: job.Record{
		Ref: job.Ref{ID: "j1", State: job.Succeeded, AcceptedAt: time.Unix(1, 0)}, Project: "default", Kind: "node", Name: "web-1", Revision: 1,
	}})
	require.NoError(t, err)
	deleted := resourceEvent(t, "gone")
	deleted.Deleted = true
	s.stored = []bus.Stored{
		resourceEvent(t, "web-1"), deleted, resourceEvent(t, "web.2"),
		{Entity: bus.Entity{Family: bus.Blueprint, Project: "default", Kind: "node"}, Body: blueprint},
		{Entity: bus.Entity{Family: bus.Job, Project: "default", Name: "j1"}, Body: record},
		{Entity: bus.Entity{Family: bus.Resource, Project: "default", Kind: "broken", Name: "b"}, Body: []byte("\xff")},
	}
	type event struct {
		Family, Kind, Name, Revision, To string
	}
	one := func(path string) event {
		got := s.do("GET", path, "")
		require.Equal(t, 200, got.status, path)
		var e event
		require.NoError(t, json.Unmarshal(got.body, &e))
		return e
	}
	require.Equal(t, event{"resource", "node", "web-1", "42", "Started"}, one("/v1/default/node/web-1"))
	require.Equal(t, event{"resource", "node", "web.2", "42", "Started"}, one("/v1/default/node/web.2"))
	require.Equal(t, event{Family: "blueprint", Kind: "node", Revision: "1"}, one("/v1/default/Blueprint/node"))
	require.Equal(t, event{"job", "node", "j1", "1", "succeeded"}, func() event { e := one("/v1/jobs/default/j1"); e.Kind = "node"; return e }())

	for path, status := range map[string]int{
		"/v1/default/node/none": 404, "/v1/default/node/gone": 404, "/v1/jobs/default/none": 404, "/v1/default/node/web-1?x=1": 400,
		"/v1/default/broken/b": 500, "/v1/default/broken": 500, "/v1/default/node?limit=0": 400, "/v1/default/node?limit=1001": 400,
		"/v1/default/node?limit=x": 400, "/v1/default/node?limit=1&limit=2": 400, "/v1/default/node?page=2": 400, "/v1/default/node?%zz": 400,
		"/v1/default": 404, "/v1": 404, "/api/v3/info": 404, "/deployments/x": 404, "/v1/a/b/c/d/e": 404,
	} {
		got := s.do("GET", path, "")
		require.Equal(t, status, got.status, path)
		got.problem(t)
	}

	list := func(path string) (items []event, truncated bool) {
		got := s.do("GET", path, "")
		require.Equal(t, 200, got.status, path)
		var l struct {
			Items     []event
			Truncated *bool
		}
		require.NoError(t, json.Unmarshal(got.body, &l))
		require.NotNil(t, l.Items)
		return l.Items, *l.Truncated
	}
	items, truncated := list("/v1/default/node")
	require.Len(t, items, 2)
	require.False(t, truncated)
	items, truncated = list("/v1/default/node?limit=1")
	require.Len(t, items, 1)
	require.True(t, truncated)
	items, truncated = list("/v1/default/node?limit=2")
	require.Len(t, items, 2)
	require.False(t, truncated)
	items, _ = list("/v1/default/nothing")
	require.Empty(t, items)
	items, _ = list("/v1/default/Blueprint")
	require.Len(t, items, 1)

	head := s.do("HEAD", "/v1/default/node/web-1", "")
	require.Equal(t, 200, head.status)

	s.readErr = errors.New("secret detail")
	for _, path := range []string{"/v1/default/node/web-1", "/v1/default/node"} {
		got := s.do("GET", path, "")
		require.Equal(t, 503, got.status)
		require.NotContains(t, string(got.body), "secret detail")
	}
}

func TestIndexSaysWhatIsServed(t *testing.T) {
	t.Parallel()
	s := open(t)
	got := s.do("GET", "/", "")
	require.Equal(t, 200, got.status)
	var index struct {
		Name, Version string
		Serves        []struct{ Method, Path, What string }
	}
	require.NoError(t, json.Unmarshal(got.body, &index))
	require.Equal(t, "1.2.3", index.Version)
	require.Len(t, index.Serves, 5)
	s.request = replies(wire.Reply{JobID: "j"})
	for _, r := range index.Serves { // every path that is listed is there
		path := strings.NewReplacer("{", "", "}", "").Replace(r.Path)
		got := s.do(r.Method, path, "{}")
		require.NotContains(t, string(got.body), "nothing is served", path)
		require.NotEqual(t, http.StatusMethodNotAllowed, got.status, path)
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, c := range []struct{ method, path, allow string }{
		{"DELETE", "/v1/p/k/n", "GET"}, {"POST", "/v1/p/k", "GET"}, {"GET", "/v1/p/k/n/start", "POST"},
		{"PUT", "/", "GET"}, {"OPTIONS", "/v1/p/k/n/start", "POST"}, {"BREW", "/v1/p/k/n", "GET"},
	} {
		got := s.do(c.method, c.path, "", "Sec-Fetch-Site", "same-origin")
		require.Equal(t, http.StatusMethodNotAllowed, got.status, c.path)
		require.Equal(t, c.allow, got.header.Get("Allow"))
		require.Equal(t, "method_not_allowed", got.problem(t).Code)
	}
}

func TestAPanicIsContained(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.request = func(context.Context, string, map[string]string, []byte) (bus.Request, error) { panic("boom") }
	got := s.do("POST", "/v1/p/k/n/start", "{}")
	require.Equal(t, 500, got.status)
	require.NotContains(t, string(got.body), "boom")
	require.Equal(t, 1, s.logs.FilterMessage("request panicked").Len())
	s.request = replies(wire.Reply{JobID: "j"})
	require.Equal(t, 202, s.do("POST", "/v1/p/k/n/start", "{}").status)
}

func TestTooManyAtOnce(t *testing.T) {
	t.Parallel()
	s := open(t)
	release, inside := make(chan struct{}), make(chan struct{}, httpapi.RequestsMax)
	s.request = func(ctx context.Context, subject string, h map[string]string, b []byte) (bus.Request, error) {
		inside <- struct{}{}
		<-release
		return replies(wire.Reply{JobID: "j"})(ctx, subject, h, b)
	}
	var wg sync.WaitGroup
	for range httpapi.RequestsMax {
		wg.Go(func() { s.do("POST", "/v1/p/k/n/start", "{}") })
	}
	for range httpapi.RequestsMax {
		<-inside
	}
	got := s.do("POST", "/v1/p/k/n/start", "{}")
	require.Equal(t, 503, got.status)
	require.Equal(t, "overloaded", got.problem(t).Code)
	close(release)
	wg.Wait()
	require.Equal(t, 202, s.do("POST", "/v1/p/k/n/start", "{}").status)
}

func TestServeStopsWhenAskedAndAnswersWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	s := open(t)
	inside, release := make(chan struct{}), make(chan struct{})
	s.request = func(ctx context.Context, subject string, h map[string]string, b []byte) (bus.Request, error) {
		close(inside)
		<-release
		return replies(wire.Reply{JobID: "j"})(ctx, subject, h, b)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	status := make(chan int, 1)
	go func() {
		response, err := client.Post("http://"+l.Addr().String()+"/v1/p/k/n/start", mediaType, bytes.NewReader([]byte("{}")))
		if err != nil {
			status <- 0
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		status <- response.StatusCode
	}()
	<-inside
	cancel()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, 30*time.Second, time.Millisecond, "new connections are refused")
	close(release)
	require.Equal(t, 202, <-status)
	require.NoError(t, <-served)
}

func TestMetricsHaveNoLabelsOfCallers(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.do("GET", "/some/path", "")
	s.do("BREW", "/", "")
	s.do("GET", "/v1/p/k/n", "", "Host", "evil.example")
	families, err := s.registry.Gather()
	require.NoError(t, err)
	text := fmt.Sprint(families)
	require.NotContains(t, text, "some")
	require.NotContains(t, text, "BREW")
	require.NotContains(t, text, "evil")
}
