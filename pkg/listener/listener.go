// Package listener is what the spec of a resource of kind Listener says: which kinds reaching which states are told, and
// to whom (seed 003, "State Listeners"; there the attributes are ResourceTypes and ResourceStates).
//
//	apiVersion: drover/v1
//	kind: Listener
//	metadata: {name: on-started}
//	spec:
//	  kinds: [node]             # or one, as a plain string
//	  states: [Started]         # or one, as a plain string
//	  project: default          # whose resources: the listener's own, and no other
//	  webhook:                  # either this …
//	    url: https://example.net/hook
//	    headers: {X-Team: fleet}                # stored in the log, so nothing secret
//	    secretHeaders: {Authorization: hook}    # names of secrets that the notifier is given
//	    secret: hook-key                        # name of the secret that signs the body
//	  subject: drover.notice.started            # … or this
//
// A spec travels in events and can be read by whoever may read the bucket, so it names secrets and never holds them.
//
// Intake decodes it when it is applied, so that what is wrong is refused with its field; the notifier decodes it again
// before it acts on it.
package listener

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
)

// Limits of one listener.
const (
	KindsMax            = 64               // kinds it listens to
	StatesMax           = 64               // states it listens to
	URLBytesMax         = 2 << 10          // bytes of a URL
	HeadersMax          = 16               // headers, and as many from secrets
	HeaderNameBytesMax  = 128              // bytes of a header's name
	HeaderValueBytesMax = 4 << 10          // bytes of a header's value
	SecretNameBytesMax  = 128              // bytes of a secret's name
	SubjectBytesMax     = 255              // bytes of a subject
	SubjectPrefix       = "drover.notice." // where notices may be published
)

// Spec is a listener's spec.
type Spec struct {
	Kinds   []string // one or more
	States  []string // one or more
	Project string   // empty: the listener's own
	Webhook *Webhook // exactly one of Webhook and Subject is set
	Subject string
}

// Webhook is an HTTP POST.
type Webhook struct {
	URL           string            `json:"url"`           // http or https, without user name and password
	Headers       map[string]string `json:"headers"`       // sent as they are
	SecretHeaders map[string]string `json:"secretHeaders"` // header by the name of the secret that holds its value
	Secret        string            `json:"secret"`        // name of the secret that signs; empty: unsigned
}

// Decode reads a spec's JSON. It returns every mistake, with paths below "spec".
func Decode(spec []byte) (Spec, []resource.Violation) {
	var raw struct {
		Kinds   json.RawMessage `json:"kinds"`
		States  json.RawMessage `json:"states"`
		Project *string         `json:"project"`
		Webhook *Webhook        `json:"webhook"`
		Subject *string         `json:"subject"`
	}
	c := checker{path: "spec"}
	c.add(strictjson.Unmarshal(c.path, spec, &raw))
	if len(c.found) > 0 {
		return Spec{}, c.found
	}
	s := Spec{
		Kinds:   c.names("kinds", raw.Kinds, KindsMax),
		States:  c.names("states", raw.States, StatesMax),
		Webhook: raw.Webhook,
	}
	if raw.Project != nil {
		s.Project = *raw.Project
		c.name(c.path+".project", s.Project)
	}
	if raw.Subject != nil {
		s.Subject = *raw.Subject
		c.subject(s.Subject)
	}
	switch {
	case raw.Webhook == nil && raw.Subject == nil:
		c.fail(c.path, "needs webhook or subject")
	case raw.Webhook != nil && raw.Subject != nil:
		c.fail(c.path+".subject", "not together with webhook")
	case raw.Webhook != nil:
		c.webhook(raw.Webhook)
	}
	if len(c.found) > 0 {
		return Spec{}, c.found
	}
	return s, nil
}

type checker struct {
	path  string
	found []resource.Violation
}

func (c *checker) fail(field, reason string) {
	if len(c.found) < strictjson.ErrorsMax {
		c.found = append(c.found, resource.Violation{Field: field, Reason: reason})
	}
}

func (c *checker) add(errs strictjson.Errors) {
	for _, e := range errs {
		c.fail(e.Field, e.Reason)
	}
}

// names reads a list of names, or one name as a plain string.
func (c *checker) names(field string, raw json.RawMessage, most int) []string {
	path := strictjson.Field(c.path, field)
	if len(raw) == 0 {
		c.fail(path, "is missing")
		return nil
	}
	if raw[0] == '"' {
		var one string
		c.add(strictjson.Unmarshal(path, raw, &one))
		c.name(path, one)
		return []string{one}
	}
	var list []string
	if errs := strictjson.Unmarshal(path, raw, &list); errs != nil {
		c.add(errs)
		return nil
	}
	switch {
	case len(list) == 0:
		c.fail(path, "must not be empty")
	case len(list) > most:
		c.fail(path, fmt.Sprintf("at most %d", most))
		return nil
	}
	for i, name := range list {
		c.name(strictjson.Item(path, i), name)
		if slices.Contains(list[:i], name) {
			c.fail(strictjson.Item(path, i), "is given twice")
		}
	}
	return list
}

func (c *checker) name(path, name string) {
	switch {
	case name == "":
		c.fail(path, "must not be empty")
	case len(name) > blueprint.NameBytesMax:
		c.fail(path, fmt.Sprintf("at most %d bytes", blueprint.NameBytesMax))
	case !utf8.ValidString(name) || strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0:
		c.fail(path, "must be printable")
	}
}

func (c *checker) subject(subject string) {
	path := c.path + ".subject"
	rest, ok := strings.CutPrefix(subject, SubjectPrefix)
	switch {
	case !ok:
		c.fail(path, "must begin with "+SubjectPrefix)
	case len(subject) > SubjectBytesMax:
		c.fail(path, fmt.Sprintf("at most %d bytes", SubjectBytesMax))
	default:
		for token := range strings.SplitSeq(rest, ".") {
			if token == "" || strings.IndexFunc(token, func(r rune) bool { return !tokenRune(r) }) >= 0 {
				c.fail(path, "tokens between the dots are letters, digits, '-', '_' and '='")
				return
			}
		}
	}
}

func tokenRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '='
}

func (c *checker) webhook(w *Webhook) {
	path := c.path + ".webhook"
	c.url(path+".url", w.URL)
	c.headers(path+".headers", w.Headers)
	c.headers(path+".secretHeaders", w.SecretHeaders)
	for name, value := range w.Headers {
		if len(value) > HeaderValueBytesMax || strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) >= 0 {
			c.fail(strictjson.Field(path+".headers", name), fmt.Sprintf("a value is at most %d bytes without control characters", HeaderValueBytesMax))
		}
		if strings.EqualFold(name, "Authorization") {
			c.fail(strictjson.Field(path+".headers", name), "holds a secret: use secretHeaders")
		}
	}
	for name, secret := range w.SecretHeaders {
		if !SecretName(secret) {
			c.fail(strictjson.Field(path+".secretHeaders", name), secretRule)
		}
		for other := range w.Headers {
			if strings.EqualFold(name, other) {
				c.fail(strictjson.Field(path+".secretHeaders", name), "is among headers too")
			}
		}
	}
	if w.Secret != "" && !SecretName(w.Secret) {
		c.fail(path+".secret", secretRule)
	}
	slices.SortStableFunc(c.found, func(a, b resource.Violation) int { return strings.Compare(a.Field, b.Field) })
}

func (c *checker) url(path, text string) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		c.fail(path, "is missing")
	case len(text) > URLBytesMax:
		c.fail(path, fmt.Sprintf("at most %d bytes", URLBytesMax))
	case err != nil: // its text repeats the URL
		c.fail(path, "is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		c.fail(path, "must begin with http:// or https://")
	case u.Hostname() == "":
		c.fail(path, "has no host")
	case u.User != nil:
		c.fail(path, "must not hold a user name or password: use secretHeaders")
	case u.Fragment != "":
		c.fail(path, "must not have a fragment")
	case u.Port() != "" && !port(u.Port()):
		c.fail(path, "has a port that is not 1 to 65535")
	}
}

func port(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

func (c *checker) headers(path string, headers map[string]string) {
	if len(headers) > HeadersMax {
		c.fail(path, fmt.Sprintf("at most %d", HeadersMax))
		return
	}
	for name := range headers {
		field := strictjson.Field(path, name)
		switch {
		case name == "" || len(name) > HeaderNameBytesMax || strings.IndexFunc(name, func(r rune) bool { return !tokenRune(r) || r == '=' }) >= 0:
			c.fail(field, "a header's name is letters, digits, '-' and '_'")
		case reserved(name):
			c.fail(field, "is set by Drover")
		}
		for other := range headers {
			if other < name && strings.EqualFold(name, other) {
				c.fail(field, "is given twice")
			}
		}
	}
}

// reserved headers say how the message travels, or what Drover says of it.
func reserved(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "host", "connection", "content-length", "content-type", "content-encoding", "transfer-encoding", "te", "trailer",
		"upgrade", "keep-alive", "expect", "user-agent", "traceparent":
		return true
	}
	return strings.HasPrefix(name, "drover-") || strings.HasPrefix(name, "webhook-") || strings.HasPrefix(name, "proxy-")
}

const secretRule = "a secret's name is 1 to 128 letters, digits, '-', '_' and '.', and begins with a letter or digit"

// SecretName reports whether name can name a secret, which is a file of that name in the notifier's folder of secrets.
func SecretName(name string) bool {
	if name == "" || len(name) > SecretNameBytesMax {
		return false
	}
	for i := range len(name) {
		c := name[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !plain && (i == 0 || c != '-' && c != '_' && c != '.') {
			return false
		}
	}
	return true
}
