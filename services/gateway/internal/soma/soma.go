// Package soma is the deployment API of SOMA, in both generations: what configuration services of monitoring systems call to
// fetch deployments, to say how they went, and to list what there is (facts/soma.md section 3). Those that people run today
// work unmodified.
//
//	GET   /deployments/id/<id>                                0.8  fetch; it moves the deployment on
//	PATCH /deployments/id/<id>/success | /failed              0.8  feedback
//	GET   /deployments/monitoring/<system>                    0.8  list
//	GET   /deployments/monitoring/<system>/<any word>         0.8  list all
//	GET   /deployment/id/<id>                                 0.9  and so on below
//	PATCH /deployment/id/<id>/success | /failed
//	GET   /monitoringsystem/<system>/deployment/id/<id>       0.9  the system is ignored, as it was
//	PATCH /monitoringsystem/<system>/deployment/id/<id>/success | /failed
//	GET   /monitoringsystem/<system>/deployment/state         0.9  list
//	GET   /monitoringsystem/<system>/deployment               0.9  list all
//	HEAD  /                                                        who is here
//
// Slashes may be doubled (eye 2 does so) and may end a path. Results are in the envelope, with HTTP status 200 whatever they
// are, as upstream has it; 400 (0.8: a broken id or result), 404 (no such path), 405 and 503 are real ones.
//
// It holds no state. A deployment's id names its partition, so its owner is asked without a look-up; a list asks all owners.
// The reply follows the commit. A request that no owner takes is asked again for a while, because real clients send feedback
// once and never again.
//
// # Absent on purpose
//
// Authentication: neither generation has any here; who reaches the gateway's port acts with its rights. The host API and the
// user API (facts sections 3.6 and 5).
package soma

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/gateway/internal/httpapi"
	"github.com/droverproject/drover/services/gateway/internal/retry"
)

// Limits of one request.
const (
	Patience       = 8 * time.Second  // for an owner to answer; of a list, to take the question
	TryTimeout     = 2 * time.Second  // for one answer
	ListPatience   = 45 * time.Second // for a list; the listener grants an answer 60 s
	ListTryTimeout = 20 * time.Second // for one answer of a list: it follows the commits of 8,192 flags, at 2.2 ms each
	AsksMax        = 16               // owners that one list asks at once
	ListedMax      = 500_000          // ids of one list; past it the rest keeps its flag
	SystemBytes    = 253              // bytes of a monitoring system's name
)

// Bus is the part of the bus that is needed.
type Bus interface {
	AskDoor(ctx context.Context, partition int, r bus.Request) (bus.Request, error)
	Partitions() int
}

// Handler serves the paths above. Make one with New. Safe for concurrent use.
type Handler struct {
	bus     Bus
	log     *zap.Logger
	project string
	version string
}

// New returns a Handler for the instances of a project.
func New(b Bus, project, version string, log *zap.Logger) *Handler {
	return &Handler{bus: b, log: log, project: project, version: version}
}

// Serves reports whether a request is for this API, and under which route it is counted.
func (*Handler) Serves(r *http.Request) (route string, ok bool) {
	parts := split(r.URL.Path)
	if len(parts) == 0 {
		return "HEAD /", r.Method == http.MethodHead
	}
	switch parts[0] {
	case "deployments", "deployment", "monitoringsystem":
		return "/" + parts[0] + "/", true
	}
	return "", false
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

// Routes says what is served, for people.
func (*Handler) Routes() []httpapi.Route {
	return []httpapi.Route{
		{Method: "GET", Path: "/deployments/id/{id}", What: "SOMA 0.8: fetch a deployment; /deployment/id/{id} in 0.9"},
		{Method: "PATCH", Path: "/deployments/id/{id}/{success|failed}", What: "SOMA 0.8: feedback; /deployment/id/{id}/… in 0.9"},
		{Method: "GET", Path: "/deployments/monitoring/{system}[/all]", What: "SOMA 0.8: list, list all"},
		{Method: "GET", Path: "/monitoringsystem/{system}/deployment[/state|/id/{id}]", What: "SOMA 0.9: list all, list, fetch"},
	}
}

// generation of the API.
type generation bool

const (
	v08 generation = false
	v09 generation = true
)

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := split(r.URL.Path)
	switch {
	case len(parts) == 0:
		head := w.Header()
		head.Set("X-Powered-By", "SOMA Configuration System")
		head.Set("X-Version", h.version)
		head.Set("X-SOMA-Mode", "master")
		w.WriteHeader(http.StatusNoContent)
	case parts[0] == "deployments":
		h.old(w, r, parts[1:])
	case parts[0] == "deployment":
		h.deployment(w, r, parts[1:], v09)
	default:
		h.system(w, r, parts[1:])
	}
}

func (h *Handler) old(w http.ResponseWriter, r *http.Request, parts []string) {
	if len(parts) > 0 && parts[0] == "monitoring" {
		switch len(parts) {
		case 2:
			h.list(w, r, parts[1], "list", v08)
			return
		case 3:
			h.list(w, r, parts[1], "listall", v08)
			return
		}
	}
	h.deployment(w, r, parts, v08)
}

func (h *Handler) system(w http.ResponseWriter, r *http.Request, parts []string) {
	if len(parts) < 2 || parts[1] != "deployment" {
		http.NotFound(w, r)
		return
	}
	switch rest := parts[2:]; {
	case len(rest) == 0:
		h.list(w, r, parts[0], "listall", v09)
	case len(rest) == 1 && rest[0] == "state":
		h.list(w, r, parts[0], "list", v09)
	case len(rest) == 2 && rest[0] == "state":
		h.send(w, v09, &envelope{StatusCode: http.StatusNotImplemented})
	default:
		h.deployment(w, r, rest, v09)
	}
}

// deployment is id/<id> and id/<id>/<result>.
func (h *Handler) deployment(w http.ResponseWriter, r *http.Request, parts []string, g generation) {
	if len(parts) < 2 || len(parts) > 3 || parts[0] != "id" {
		http.NotFound(w, r)
		return
	}
	verb, method := "fetch", http.MethodGet
	if len(parts) == 3 {
		verb, method = parts[2], http.MethodPatch
	}
	if r.Method != method {
		w.Header().Set("Allow", method)
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	bad := ""
	switch {
	case !uuid(parts[1]):
		bad = "not a UUID"
	case verb != "fetch" && verb != "success" && verb != "failed":
		bad = "unknown result"
	}
	if bad != "" {
		if g == v08 {
			http.Error(w, bad, http.StatusBadRequest)
			return
		}
		h.send(w, g, &envelope{StatusCode: http.StatusBadRequest, Errors: []string{bad}})
		return
	}
	partition, ok := wire.RoutedPartition(parts[1], h.bus.Partitions())
	if !ok {
		h.send(w, g, &envelope{StatusCode: http.StatusNotFound})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), Patience)
	defer cancel()
	a, tries, err := h.ask(ctx, &question{
		partition: partition, verb: verb, again: verb, most: TryTimeout, taken: time.Now().Add(Patience),
		CheckRequest: wire.CheckRequest{Project: h.project, ID: parts[1]},
	})
	if err != nil {
		h.unanswered(w, g, err)
		return
	}
	switch a.Code {
	case "":
	case resource.NotFound:
		h.send(w, g, &envelope{StatusCode: http.StatusNotFound})
		return
	case resource.Conflict:
		// Asked again because no answer came, it is what the first asking has done.
		if tries == 1 || !outcome(verb, a.Status) {
			h.send(w, g, &envelope{StatusCode: http.StatusInternalServerError, Errors: []string{a.Message}})
			return
		}
	default:
		h.send(w, g, &envelope{StatusCode: http.StatusInternalServerError, Errors: []string{a.Message}})
		return
	}
	d := a.Details
	if d == nil {
		d = &deployment.Details{Task: a.Task}
		if g == v09 {
			d.ID = parts[1]
		}
	}
	h.send(w, g, &envelope{StatusCode: http.StatusOK, Deployments: []*deployment.Details{d}})
}

// outcome reports whether feedback leads to a status.
func outcome(verb, status string) bool {
	if verb == "success" {
		return status == deployment.Active.String() || status == deployment.Deprovisioned.String()
	}
	return verb == "failed" && (status == deployment.RolloutFailed.String() || status == deployment.DeprovisionFailed.String())
}

// uuid is its form; whether there is such a thing the owner knows.
func uuid(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return false
			}
		}
	}
	return true
}

// list asks all owners.
func (h *Handler) list(w http.ResponseWriter, r *http.Request, system, verb string, g generation) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	if len(system) > SystemBytes {
		h.send(w, g, &envelope{StatusCode: http.StatusNotFound})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), ListPatience)
	defer cancel()
	q := question{
		verb: verb, again: "listall", most: ListTryTimeout, taken: time.Now().Add(Patience),
		CheckRequest: wire.CheckRequest{Project: h.project, System: system},
	}
	n := h.bus.Partitions()
	ids, errs := make([][]string, n), make([]error, n)
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(AsksMax, n) {
		workers.Go(func() {
			for p := range next {
				ids[p], errs[p] = h.listOf(ctx, p, q, ListedMax/n)
			}
		})
	}
	for p := range n {
		next <- p
	}
	close(next)
	workers.Wait()
	e := &envelope{StatusCode: http.StatusOK}
	for p := range n {
		e.ids = append(e.ids, ids[p]...)
	}
	// What was listed has its flag cleared: it is told even where another owner has not answered.
	if err := errors.Join(errs...); err != nil {
		if len(e.ids) == 0 {
			h.unanswered(w, g, err)
			return
		}
		h.log.Warn("a list is incomplete; list all has what is missing", zap.Error(err))
		e.StatusCode, e.Errors = http.StatusPartialContent, []string{"some partitions have not answered; list all"}
	}
	if g == v08 {
		if len(e.ids) == 0 {
			e.StatusCode = http.StatusNotFound
		}
		e.DeploymentsList = e.ids
	} else {
		for _, id := range e.ids {
			e.Deployments = append(e.Deployments, &deployment.Details{ID: id})
		}
	}
	h.send(w, g, e)
}

// listOf lists what one partition has.
func (h *Handler) listOf(ctx context.Context, partition int, q question, most int) (ids []string, err error) {
	q.partition = partition
	for len(ids) < max(most, 1) {
		a, _, failed := h.ask(ctx, &q)
		if failed == nil && a.Code != "" {
			failed = errors.New(a.Message)
		}
		if failed != nil {
			return ids, failed
		}
		if ids = append(ids, a.IDs...); a.Missed > 0 {
			err = errors.New("some instances were not reached")
		}
		if !a.More || len(a.IDs) == 0 {
			break
		}
		q.After = a.IDs[len(a.IDs)-1]
	}
	return ids, err
}

// errOverloaded is an owner's word that it cannot decide now.
var errOverloaded = errors.New("overloaded")

// question is what an owner is asked.
type question struct {
	wire.CheckRequest
	partition int
	verb      string
	// again takes the verb's place, for good, once somebody may have taken the question and no answer has come. An owner clears
	// flags before it answers a list, so a second list lacks what the first has cleared; list all has it, and more.
	again string
	most  time.Duration // for one answer
	taken time.Time     // when somebody must have taken it
}

// ask asks an owner, again and again while nobody takes it. tries is how often it was sent.
func (h *Handler) ask(ctx context.Context, q *question) (a wire.CheckAnswer, tries int, err error) {
	body, err := wire.EncodeCheckRequest(q.CheckRequest)
	if err != nil {
		return a, 0, err
	}
	inVain := func(error) bool { return tries == 0 && !time.Now().Before(q.taken) }
	err = retry.Do(ctx, q.most, inVain, func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err // nobody waits for the answer, and the bus would send it all the same
		}
		if tries > 0 {
			q.verb = q.again
		}
		tries++
		request := bus.Request{Verb: "check." + q.verb, Header: map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, Body: body}
		reply, err := h.bus.AskDoor(ctx, q.partition, request)
		if errors.Is(err, bus.ErrNoOwner) {
			tries-- // nobody has seen it
		}
		if err != nil {
			return err
		}
		if a, err = wire.DecodeCheckAnswer(reply.Body); err == nil && a.Code == resource.Overloaded {
			err = errOverloaded
		}
		return err
	})
	return a, tries, err
}

// unanswered is real: a client that looks at the status tries again.
func (h *Handler) unanswered(w http.ResponseWriter, g generation, err error) {
	h.log.Warn("no owner has answered a monitoring system", zap.Error(err))
	h.write(w, http.StatusServiceUnavailable, g, &envelope{StatusCode: http.StatusServiceUnavailable, Errors: []string{"not now; try again"}})
}

// envelope is upstream's proto.Result, as far as it is used here.
type envelope struct {
	StatusCode      uint16
	StatusText      string
	Errors          []string
	Deployments     []*deployment.Details
	DeploymentsList []string

	ids []string
}

// The texts of statuses (facts/soma.md section 3.5).
var statusTexts = map[uint16]string{
	200: "OK", 206: "Partial result", 400: "Bad Request", 404: "Not found", 500: "Server error", 501: "Not implemented", 503: "Service unavailable",
}

func (h *Handler) send(w http.ResponseWriter, g generation, e *envelope) {
	h.write(w, http.StatusOK, g, e)
}

func (h *Handler) write(w http.ResponseWriter, status int, g generation, e *envelope) {
	if e.Deployments == nil {
		e.Deployments = []*deployment.Details{}
	}
	e.StatusText = statusTexts[e.StatusCode]
	var v any
	if g == v09 {
		if e.Errors == nil {
			e.Errors = []string{}
		}
		v = struct {
			StatusCode  uint16                `json:"statusCode"`
			StatusText  string                `json:"statusText"`
			RequestID   string                `json:"requestID"`
			Errors      []string              `json:"errors"`
			Deployments []*deployment.Details `json:"deployments"`
		}{e.StatusCode, e.StatusText, requestID(), e.Errors, e.Deployments}
	} else {
		v = struct {
			StatusCode      uint16                `json:"statusCode"`
			StatusText      string                `json:"statusText"`
			Errors          []string              `json:"errors,omitempty"`
			DeploymentsList []string              `json:"deploymentsList,omitempty"`
			Deployments     []*deployment.Details `json:"deployments"`
		}{e.StatusCode, e.StatusText, e.Errors, e.DeploymentsList, e.Deployments}
	}
	body, err := json.Marshal(v)
	if err != nil {
		h.log.Error("an answer to a monitoring system could not be written", zap.Error(err))
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client has gone
}

// requestID is a random UUID.
func requestID() string {
	return wire.RoutedUUID(0, rand.Text())
}
