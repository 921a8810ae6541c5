// Package request runs the executors "http" and "poll": one HTTP request per call, rendered from templates.
//
// Nothing waits in here: work that goes on elsewhere is a pending phase, which is called again (seed 003, "Asynchronous
// Example"; seed 002, 202 and asynchronous). A request is repeated where the runner died between sending it and storing
// the answer; so what changes something carries an Idempotency-Key that is the same for all requests of one attempt.
package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"

	"github.com/droverproject/drover/services/runner/internal/executor"
	"github.com/droverproject/drover/services/runner/internal/render"
)

// Limits of one request.
const (
	ResponseBytesMax = 1 << 20          // bytes of a response's body
	HeaderBytesMax   = 64 << 10         // bytes of a response's header
	RedirectsMax     = 5                // redirects that are followed
	RetryAfterMax    = 24 * time.Hour   // longest Retry-After that is heeded
	excerptBytesMax  = 200              // bytes of a response's body in a message
	dialTimeout      = 10 * time.Second // of a connection
	idleTimeout      = 30 * time.Second // of a connection that is not used
	idlePerHostMax   = 64               // connections kept per host
	pendingData      = "_http"          // name in the phase data under which a pending request is remembered
)

// Client sends requests. Safe for concurrent use.
type Client struct{ http http.Client }

// NewClient returns a Client with connections of its own.
func NewClient() *Client {
	dialer := &net.Dialer{Timeout: dialTimeout}
	return &Client{http: http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: dialTimeout,
			MaxResponseHeaderBytes: HeaderBytesMax, MaxIdleConnsPerHost: idlePerHostMax, IdleConnTimeout: idleTimeout,
			ForceAttemptHTTP2: true,
		},
		CheckRedirect: checkRedirect,
	}}
}

// checkRedirect lets a redirect be followed where the same request goes to the same host. Go's own rule makes a GET without a
// body of a POST, whose 200 would count as success of what was never carried out; and of the headers it keeps only a few
// of its own from another host, so that a key in one of the blueprint's would be told to a stranger. What is not followed
// is judged by its own status.
func checkRedirect(next *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case next.Method != first.Method, next.ContentLength != first.ContentLength, !sameHost(next.URL, first.URL):
		return http.ErrUseLastResponse
	case len(via) > RedirectsMax:
		return fmt.Errorf("more than %d redirects", RedirectsMax)
	}
	return nil
}

// sameHost reports whether two URLs lead to the same host in the same way, so that what the one may know, the other may.
func sameHost(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// Close closes the connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// template is a request of which nothing is rendered yet.
type template struct {
	method  string
	url     *render.Template
	headers map[string]*render.Template // by canonical name
	body    *render.Template
	timeout time.Duration
	keyed   bool // it changes something, so it carries an Idempotency-Key
}

func newTemplate(method, url string, headers map[string]string, body string, timeout time.Duration) (t template, err error) {
	t = template{method: method, timeout: timeout, headers: make(map[string]*render.Template, len(headers))}
	if t.url, err = render.Parse(url); err != nil {
		return t, fmt.Errorf("url: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if t.headers[http.CanonicalHeaderKey(name)], err = render.Parse(headers[name]); err != nil {
			return t, fmt.Errorf("headers.%s: %w", name, err)
		}
	}
	if t.body, err = render.Parse(body); err != nil {
		return t, fmt.Errorf("body: %w", err)
	}
	return t, nil
}

// request is one that was rendered.
type request struct {
	method  string
	url     *url.URL
	header  http.Header
	body    string
	timeout time.Duration
}

func (t *template) render(ctx context.Context, c *executor.Call, vars render.Vars) (*request, error) {
	r := &request{method: t.method, header: http.Header{}, timeout: t.timeout}
	text, err := t.url.Render(ctx, vars)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	if r.url, err = parseURL(text); err != nil {
		return nil, err
	}
	for name, value := range t.headers {
		text, err := value.Render(ctx, vars)
		if err != nil {
			return nil, fmt.Errorf("headers.%s: %w", name, err)
		}
		if strings.ContainsAny(text, "\r\n\x00") {
			return nil, fmt.Errorf("headers.%s: renders to text with a line end", name)
		}
		r.header.Set(name, text)
	}
	if r.body, err = t.body.Render(ctx, vars); err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	if r.body != "" && r.header.Get("Content-Type") == "" {
		r.header.Set("Content-Type", "application/json")
	}
	identify(r.header, c, t.keyed)
	return r, nil
}

// identify says who asks, and, of what changes something, for which attempt.
func identify(header http.Header, c *executor.Call, keyed bool) {
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "drover-runner")
	}
	if keyed && header.Get("Idempotency-Key") == "" {
		f := c.Fence
		header.Set("Idempotency-Key", strings.Join([]string{
			f.UID, f.JobID, url.QueryEscape(f.Phase), strconv.FormatUint(uint64(f.Attempt), 10),
		}, "-"))
	}
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		// The text may hold a password, and an error of url.Parse repeats it.
		return nil, errors.New("url: renders to what is no URL of http or https")
	}
	return u, nil
}

// response is what is known of an answer.
type response struct {
	status int
	header http.Header
	body   []byte
	url    *url.URL // that answered, after redirects
}

// errTooLarge: the response passed a limit.
var errTooLarge = fmt.Errorf("the response has more than %d bytes", ResponseBytesMax)

// send sends a request and reads the whole answer.
func (c *Client) send(ctx context.Context, r *request) (*response, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, r.url.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header = r.header.Clone()
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, plain(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, ResponseBytesMax+1))
	if err != nil {
		return nil, plain(err)
	}
	if len(text) > ResponseBytesMax {
		return nil, errTooLarge
	}
	return &response{status: res.StatusCode, header: res.Header, body: text, url: res.Request.URL}, nil
}

// plain takes the URL out of an error: it may hold a password or a token.
func plain(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// reason says in short why no answer came.
func reason(err error, timeout time.Duration) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %s", timeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	}
	// Without the addresses: a poll whose message differs each time would be a change each time.
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// describeStatus is the status in words. Of a redirect it says the host that it leads to, and no more: the rest of such a
// URL may hold a token.
func (r *response) describeStatus() string {
	text := strconv.Itoa(r.status)
	if name := http.StatusText(r.status); name != "" {
		text += " " + name
	}
	if to := r.redirect(); to != nil {
		host := strings.ToValidUTF8(to.Host[:min(len(to.Host), excerptBytesMax)], "")
		text += ": a redirect to " + host + ", which is not followed"
	}
	return text
}

// redirect is where an answer that was not followed leads to; nil: nowhere.
func (r *response) redirect() *url.URL {
	location := r.header.Get("Location")
	if location == "" || r.status < 300 || r.status > 399 {
		return nil
	}
	to, err := r.url.Parse(location)
	if err != nil {
		return nil
	}
	return to
}

// describe is the status and the begin of the body, for a message; but of a redirect, whose body mostly repeats the URL.
func (r *response) describe() string {
	text := r.describeStatus()
	if r.redirect() != nil {
		return text
	}
	excerpt := strings.Join(strings.Fields(strings.ToValidUTF8(string(r.body[:min(len(r.body), excerptBytesMax)]), "")), " ")
	if excerpt != "" {
		text += ": " + excerpt
	}
	return text
}

// retryAfter is the delay that the answer asks for; 0 if it asks for none.
func (r *response) retryAfter(now time.Time) time.Duration {
	value := r.header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, RetryAfterMax)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), RetryAfterMax)
	}
	return 0
}

// capture picks the values that are named out of a JSON body. What is no JSON, or leads nowhere, sets nothing.
func capture(pointers manifest.Capture, body []byte) executor.Kept {
	if len(pointers.Attributes)+len(pointers.Data)+len(pointers.Outputs) == 0 {
		return executor.Kept{}
	}
	var document any
	decoder := json.NewDecoder(strings.NewReader(string(body)))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		return executor.Kept{}
	}
	pick := func(pointers map[string]string) map[string]string {
		kept := make(map[string]string, len(pointers))
		for name, pointer := range pointers {
			if value, ok := follow(document, pointer); ok {
				if text, err := json.Marshal(value); err == nil {
					kept[name] = string(text)
				}
			}
		}
		return kept
	}
	return executor.Kept{
		Attributes: pick(pointers.Attributes), Data: pick(pointers.Data), Outputs: pick(pointers.Outputs),
	}
}

// follow follows a JSON Pointer (RFC 6901).
func follow(value any, pointer string) (any, bool) {
	if pointer == "" {
		return value, true
	}
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for _, token := range strings.Split(pointer, "/")[1:] {
		switch v := value.(type) {
		case map[string]any:
			member, ok := v[unescape.Replace(token)]
			if !ok {
				return nil, false
			}
			value = member
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v) || strconv.Itoa(i) != token {
				return nil, false
			}
			value = v[i]
		default:
			return nil, false
		}
	}
	return value, true
}

// outcome is the answer to a call, but for what is kept. A pending phase does not quote the body, which may differ each
// time: a poll that changes nothing costs no event.
func outcome(kind resource.Outcome, retryable bool, delay time.Duration, res *response) executor.Outcome {
	o := executor.Outcome{Kind: kind, Retryable: retryable}
	switch kind {
	case resource.OutcomeFailed:
		o.Message = res.describe()
	case resource.OutcomePending:
		o.Message, o.Delay = res.describeStatus(), delay
	default: // nothing to explain
	}
	return o
}
