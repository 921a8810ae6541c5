package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
)

// Limits of an executor's configuration.
const (
	TemplateBytesMax = 64 << 10         // bytes of a body
	ArgumentBytesMax = 16 << 10         // bytes of a URL, a header, an argument or an environment variable
	ListMax          = 64               // headers, arguments, environment variables, captures or status rules
	RequestTimeMax   = 10 * time.Minute // of one HTTP request
	ScriptGraceMax   = 10 * time.Minute // of a script that is told to stop
	ScriptOutputMax  = 64 << 20         // bytes that a script may print before the rest is dropped
)

// Defaults of an executor's configuration.
const (
	HTTPTimeoutDefault   = 30 * time.Second
	PollTimeoutDefault   = 10 * time.Second
	ScriptGraceDefault   = 5 * time.Second
	ScriptOutputDefault  = 1 << 20
	ScriptPendingExit    = 75              // EX_TEMPFAIL: the script is not done yet, call again
	ScriptOutputVariable = "DROVER_RESULT" // names the file that a script may leave its ScriptOutput in
)

// Of templates: url, headers, body, command, env and dir may hold Jinja: {{ … }} over resource.{name, kind, project, uid, labels,
// spec, attributes, state, target}, phase.{name, attempt, undo, data} and job.{id}. The runner renders them at each call;
// here only their delimiters are checked.

// Plugin hands the phase to a worker of anyone's. It has no settings: the worker knows the phase by its name.
type Plugin struct{}

// HTTP sends one request. The answer's status decides (Judge): 2xx completed, 202 pending, 408, 429 and 5xx a failure
// that may pass, everything else a failure. A connection that fails is a failure that may pass.
//
// While it is pending, the next calls send the request of poll instead; without one they ask the answer's Location,
// and without that the request is sent again. Retry-After sets the delay until the next call.
type HTTP struct {
	Method  string            `json:"method" doc:"Method of the request. Default: POST."`
	URL     string            `json:"url" need:"true" doc:"URL, http or https. A template."`
	Headers map[string]string `json:"headers" doc:"Headers. The values are templates."`
	Body    string            `json:"body" doc:"Body. A template."`
	Timeout time.Duration     `json:"timeout" doc:"Time for the request and its answer. Default: 30s."`
	Expect  Expect            `json:"expect" doc:"What the statuses mean, where not the usual."`
	Capture Capture           `json:"capture" doc:"What to keep of the answer's JSON body."`
	Poll    *Poll             `json:"poll" doc:"What to ask while the answer was pending."`
	ExtAPI  *ExtAPI           `json:"extApi" alias:"ext_api" doc:"The request is that of NCAE to a module, which calls back when it is done."`
}

// Poll asks until it is answered as expected: then the phase is completed. Another status, and a connection that
// fails, is pending; a status in fail is a failure.
type Poll struct {
	Method   string            `json:"method" doc:"GET or HEAD. Default: GET."`
	URL      string            `json:"url" need:"true" doc:"URL, http or https. A template."`
	Headers  map[string]string `json:"headers" doc:"Headers. The values are templates."`
	Timeout  time.Duration     `json:"timeout" doc:"Time for the request and its answer. Default: 10s."`
	Interval time.Duration     `json:"interval" doc:"Delay until the next request. Default: the phase's interval."`
	Expect   []Status          `json:"expect" doc:"Statuses that complete the phase. Default: 200."`
	Fail     []Status          `json:"fail" doc:"Statuses that fail the phase at once. Default: none."`
	Capture  Capture           `json:"capture" doc:"What to keep of the JSON body of the answer that was expected."`
	ExtAPI   *ExtAPI           `json:"extApi" alias:"ext_api" doc:"The request is that of NCAE to a module, which answers polling, deployed or error."`
}

// Script runs a process on the runner's machine, in a process group of its own. Exit status 0 is completed, 75
// (EX_TEMPFAIL) pending, everything else a failure. What it prints is streamed to the phase's output. Into the file
// that the variable DROVER_RESULT names it may write a ScriptOutput.
type Script struct {
	Command        []string          `json:"command" need:"true" doc:"Program and arguments. Templates; no shell is involved."`
	Env            map[string]string `json:"env" doc:"Environment variables beside PATH, HOME and DROVER_…. The values are templates."`
	Dir            string            `json:"dir" doc:"Working folder. A template. Default: a folder made for the call."`
	Grace          time.Duration     `json:"grace" doc:"Time between SIGTERM and SIGKILL. Default: 5s."`
	OutputBytesMax int               `json:"outputBytesMax" doc:"Bytes of output to keep; the rest is dropped. Default: 1 MiB."`
	RetryableExits []int             `json:"retryableExits" doc:"Exit statuses of failures that may pass. Default: none."`
}

// ScriptOutput is what a script may write into the file that DROVER_RESULT names: values to set, null to remove.
type ScriptOutput struct {
	Attributes map[string]string
	Data       map[string]string
	Outputs    map[string]string
}

// Expect changes what a status means. A list that is given goes before all that are not.
type Expect struct {
	Completed []Status `json:"completed" doc:"Statuses of success. Default: 2xx but 202."`
	Pending   []Status `json:"pending" doc:"Statuses of work that goes on. Default: 202."`
	Retryable []Status `json:"retryable" doc:"Statuses of failures that may pass. Default: 408, 429, 5xx."`
	Failed    []Status `json:"failed" doc:"Statuses of failures. Default: all others."`
}

// Capture names values of a JSON body by JSON Pointers (RFC 6901), as in /items/0/id; the empty pointer is the whole
// body. A pointer that leads nowhere sets nothing.
type Capture struct {
	Attributes map[string]string `json:"attributes" doc:"Attributes of the resource, by JSON Pointer."`
	Data       map[string]string `json:"data" doc:"Data of the phase, for its next calls, by JSON Pointer."`
	Outputs    map[string]string `json:"outputs" doc:"Outputs of the phase, by JSON Pointer."`
}

// Status is a status of HTTP or a range of them, written 200, 2xx or 200-204.
type Status struct{ From, To int }

// SetScalar reads it.
func (s *Status) SetScalar(text string) string {
	const wrong = "is no HTTP status: as in 200, 2xx or 200-204"
	from, to, isRange := strings.Cut(text, "-")
	switch {
	case len(text) == 3 && strings.HasSuffix(text, "xx"):
		from, to = text[:1]+"00", text[:1]+"99"
	case !isRange:
		to = from
	}
	if len(from) != 3 || len(to) != 3 {
		return wrong
	}
	a, errA := strconv.Atoi(from)
	b, errB := strconv.Atoi(to)
	if errA != nil || errB != nil || a < 100 || b < a {
		return wrong
	}
	s.From, s.To = a, b
	return ""
}

// String is its short form.
func (s Status) String() string {
	switch {
	case s.From == s.To:
		return strconv.Itoa(s.From)
	case s.From%100 == 0 && s.To == s.From+99:
		return strconv.Itoa(s.From/100) + "xx"
	default:
		return strconv.Itoa(s.From) + "-" + strconv.Itoa(s.To)
	}
}

func holds(list []Status, code int) bool {
	return slices.ContainsFunc(list, func(s Status) bool { return s.From <= code && code <= s.To })
}

// Judge says what a status means, and, of a failure, whether it may pass.
func (h *HTTP) Judge(code int) (outcome resource.Outcome, retryable bool) {
	switch e := &h.Expect; {
	case holds(e.Completed, code):
		return resource.OutcomeCompleted, false
	case holds(e.Pending, code):
		return resource.OutcomePending, false
	case holds(e.Retryable, code):
		return resource.OutcomeFailed, true
	case holds(e.Failed, code):
		return resource.OutcomeFailed, false
	case e.Pending == nil && code == http.StatusAccepted:
		return resource.OutcomePending, false
	case e.Completed == nil && code >= 200 && code <= 299:
		return resource.OutcomeCompleted, false
	case e.Retryable == nil && (code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code >= 500 && code <= 599):
		return resource.OutcomeFailed, true
	default:
		return resource.OutcomeFailed, false
	}
}

// Judge says what a status means; a failure does not pass.
func (p *Poll) Judge(code int) resource.Outcome {
	switch {
	case holds(p.Fail, code):
		return resource.OutcomeFailed
	case holds(p.Expect, code), p.Expect == nil && code == http.StatusOK:
		return resource.OutcomeCompleted
	default:
		return resource.OutcomePending
	}
}

// DecodeHTTP reads the configuration of a phase whose executor is http, with the defaults filled in.
func DecodeHTTP(config string) (HTTP, error) {
	var h HTTP
	if err := decode(config, &h, func(c *checks) { h.check(c, "") }); err != nil {
		return HTTP{}, err
	}
	return h, nil
}

// DecodePoll reads the configuration of a phase whose executor is poll, with the defaults filled in.
func DecodePoll(config string) (Poll, error) {
	var p Poll
	if err := decode(config, &p, func(c *checks) { p.check(c, "") }); err != nil {
		return Poll{}, err
	}
	return p, nil
}

// DecodeScript reads the configuration of a phase whose executor is script, with the defaults filled in.
func DecodeScript(config string) (Script, error) {
	var s Script
	if err := decode(config, &s, func(c *checks) { s.check(c, "") }); err != nil {
		return Script{}, err
	}
	return s, nil
}

func decode(config string, v any, check func(*checks)) error {
	if errs := strictjson.Unmarshal("", []byte(config), v); errs != nil {
		return errs
	}
	var c checks
	check(&c)
	if len(c.found) > 0 {
		return fmt.Errorf("%s: %s", c.found[0].Field, c.found[0].Reason)
	}
	return nil
}

// checks gathers what is wrong.
type checks struct{ found []resource.Violation }

func (c *checks) fail(field, format string, args ...any) {
	c.found = append(c.found, resource.Violation{Field: field, Reason: fmt.Sprintf(format, args...)})
}

// check judges the configuration at path and fills in the defaults.
func (h *HTTP) check(c *checks, path string) {
	if h.Method == "" {
		h.Method = http.MethodPost
	}
	if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}, h.Method) {
		c.fail(strictjson.Field(path, "method"), "is none of GET, HEAD, POST, PUT, PATCH, DELETE")
	}
	c.url(strictjson.Field(path, "url"), h.URL)
	c.headers(strictjson.Field(path, "headers"), h.Headers)
	c.template(strictjson.Field(path, "body"), h.Body, TemplateBytesMax)
	c.span(strictjson.Field(path, "timeout"), &h.Timeout, HTTPTimeoutDefault, RequestTimeMax)
	expect := strictjson.Field(path, "expect")
	c.statuses(strictjson.Field(expect, "completed"), h.Expect.Completed)
	c.statuses(strictjson.Field(expect, "pending"), h.Expect.Pending)
	c.statuses(strictjson.Field(expect, "retryable"), h.Expect.Retryable)
	c.statuses(strictjson.Field(expect, "failed"), h.Expect.Failed)
	h.Capture.check(c, strictjson.Field(path, "capture"))
	if h.ExtAPI != nil {
		own := []string{}
		for name, given := range map[string]bool{
			"body": h.Body != "", "poll": h.Poll != nil, "method": h.Method != http.MethodPost, "expect.completed": h.Expect.Completed != nil,
			"expect.pending": h.Expect.Pending != nil,
			"capture":        len(h.Capture.Attributes)+len(h.Capture.Data)+len(h.Capture.Outputs) > 0,
		} {
			if given {
				own = append(own, name)
			}
		}
		h.ExtAPI.check(c, path, own)
	}
	if h.Poll != nil {
		h.Poll.check(c, strictjson.Field(path, "poll"))
	}
}

func (p *Poll) check(c *checks, path string) {
	if p.Method == "" {
		p.Method = http.MethodGet
	}
	if p.ExtAPI != nil {
		own := []string{}
		for name, given := range map[string]bool{
			"expect": p.Expect != nil, "fail": p.Fail != nil, "method": p.Method != http.MethodGet,
			"capture": len(p.Capture.Attributes)+len(p.Capture.Data)+len(p.Capture.Outputs) > 0,
		} {
			if given {
				own = append(own, name)
			}
		}
		p.ExtAPI.check(c, path, own)
	}
	if p.Method != http.MethodGet && p.Method != http.MethodHead {
		c.fail(strictjson.Field(path, "method"), "is none of GET, HEAD")
	}
	c.url(strictjson.Field(path, "url"), p.URL)
	c.headers(strictjson.Field(path, "headers"), p.Headers)
	c.span(strictjson.Field(path, "timeout"), &p.Timeout, PollTimeoutDefault, RequestTimeMax)
	c.span(strictjson.Field(path, "interval"), &p.Interval, 0, 24*time.Hour)
	c.statuses(strictjson.Field(path, "expect"), p.Expect)
	c.statuses(strictjson.Field(path, "fail"), p.Fail)
	p.Capture.check(c, strictjson.Field(path, "capture"))
}

func (s *Script) check(c *checks, path string) {
	field := strictjson.Field(path, "command")
	switch {
	case len(s.Command) == 0:
		c.fail(field, "is missing: the program and its arguments, as in [sh, -c, \"…\"]")
	case len(s.Command) > ListMax:
		c.fail(field, "has more than %d elements", ListMax)
	case s.Command[0] == "":
		c.fail(strictjson.Item(field, 0), "is empty: the program")
	}
	for i, argument := range s.Command {
		c.template(strictjson.Item(field, i), argument, ArgumentBytesMax)
		c.noNUL(strictjson.Item(field, i), argument)
	}
	if field = strictjson.Field(path, "env"); len(s.Env) > ListMax {
		c.fail(field, "has more than %d variables", ListMax)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		at := strictjson.Field(field, name)
		switch {
		case !isVariable(name):
			c.fail(at, "is not the name of a variable: letters, digits and _, not beginning with a digit")
		case strings.HasPrefix(name, "DROVER_"):
			c.fail(at, "is set by Drover: names that begin with DROVER_ are reserved")
		}
		c.template(at, s.Env[name], ArgumentBytesMax)
		c.noNUL(at, s.Env[name])
	}
	c.template(strictjson.Field(path, "dir"), s.Dir, ArgumentBytesMax)
	c.noNUL(strictjson.Field(path, "dir"), s.Dir)
	c.span(strictjson.Field(path, "grace"), &s.Grace, ScriptGraceDefault, ScriptGraceMax)
	if s.OutputBytesMax == 0 {
		s.OutputBytesMax = ScriptOutputDefault
	}
	if s.OutputBytesMax < 0 || s.OutputBytesMax > ScriptOutputMax {
		c.fail(strictjson.Field(path, "outputBytesMax"), "is not 1 to %d", ScriptOutputMax)
	}
	field = strictjson.Field(path, "retryableExits")
	if len(s.RetryableExits) > ListMax {
		c.fail(field, "has more than %d statuses", ListMax)
	}
	for i, status := range s.RetryableExits {
		if status < 1 || status > 255 || status == ScriptPendingExit {
			c.fail(strictjson.Item(field, i), "is not an exit status of a failure: 1 to 255, but %d", ScriptPendingExit)
		}
	}
}

func (p *Capture) check(c *checks, path string) {
	for _, m := range []struct {
		name     string
		pointers map[string]string
	}{{"attributes", p.Attributes}, {"data", p.Data}, {"outputs", p.Outputs}} {
		field := strictjson.Field(path, m.name)
		if len(m.pointers) > ListMax {
			c.fail(field, "has more than %d names", ListMax)
		}
		for _, name := range slices.Sorted(maps.Keys(m.pointers)) {
			if pointer := m.pointers[name]; pointer != "" && pointer[0] != '/' || len(pointer) > ArgumentBytesMax {
				c.fail(strictjson.Field(field, name), `is not a JSON Pointer, as in "/items/0/id"`)
			}
		}
	}
}

func (c *checks) url(field, text string) {
	if text == "" {
		c.fail(field, "is missing")
		return
	}
	if !c.template(field, text, ArgumentBytesMax) || isTemplate(text) {
		return // what it becomes is seen when it is rendered
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		c.fail(field, "is not a URL of http or https")
	}
}

func (c *checks) headers(field string, headers map[string]string) {
	if len(headers) > ListMax {
		c.fail(field, "has more than %d headers", ListMax)
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		at := strictjson.Field(field, name)
		if !isHeader(name) {
			c.fail(at, "is not the name of a header")
		}
		c.template(at, headers[name], ArgumentBytesMax)
		if strings.ContainsAny(headers[name], "\r\n\x00") {
			c.fail(at, "holds a line end")
		}
	}
}

func (c *checks) statuses(field string, list []Status) {
	if len(list) > ListMax {
		c.fail(field, "has more than %d statuses", ListMax)
	}
}

func (c *checks) span(field string, d *time.Duration, unset, most time.Duration) {
	switch {
	case *d == 0:
		*d = unset
	case *d < 0:
		c.fail(field, "is negative")
	case *d > most:
		c.fail(field, "is longer than %s", most)
	}
}

func (c *checks) noNUL(field, text string) {
	if strings.ContainsRune(text, 0) {
		c.fail(field, "holds a zero byte")
	}
}

// template checks the length and the delimiters of a template.
func (c *checks) template(field, text string, bytesMax int) bool {
	if len(text) > bytesMax {
		c.fail(field, "is longer than %d bytes", bytesMax)
		return false
	}
	for rest := text; ; {
		i := strings.IndexByte(rest, '{')
		if i < 0 || i+1 >= len(rest) {
			return true
		}
		closing, ok := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[rest[i+1]]
		if !ok {
			rest = rest[i+1:]
			continue
		}
		end := strings.Index(rest[i+2:], closing)
		if end < 0 {
			c.fail(field, "is not a template: %q at byte %d is not closed by %q", rest[i:i+2], len(text)-len(rest)+i, closing)
			return false
		}
		rest = rest[i+2+end+2:]
	}
}

func isTemplate(text string) bool {
	return strings.Contains(text, "{{") || strings.Contains(text, "{%")
}

func isVariable(name string) bool {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '_' && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func isHeader(name string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return false
		}
	}
	return name != "" && len(name) <= 256
}

// DecodeScriptOutput reads what a script left in its output file: {"attributes": {…}, "data": {…}, "outputs": {…}}. An
// empty file sets nothing.
func DecodeScriptOutput(file []byte) (ScriptOutput, error) {
	var out ScriptOutput
	if strings.TrimSpace(string(file)) == "" {
		return out, nil
	}
	var j struct {
		Attributes map[string]json.RawMessage `json:"attributes"`
		Data       map[string]json.RawMessage `json:"data"`
		Outputs    map[string]json.RawMessage `json:"outputs"`
	}
	if errs := strictjson.Unmarshal("", file, &j); errs != nil {
		return out, errs
	}
	return ScriptOutput{Attributes: textsOf(j.Attributes), Data: textsOf(j.Data), Outputs: textsOf(j.Outputs)}, nil
}

func textsOf(m map[string]json.RawMessage) map[string]string {
	if len(m) == 0 {
		return nil
	}
	t := make(map[string]string, len(m))
	for name, value := range m {
		canonical, _ := strictjson.Canonical(value) // it is part of a document that was read
		t[name] = string(canonical)
	}
	return t
}
