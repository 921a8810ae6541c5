// Package ncae is what an NCAE module calls back (seed 000; facts/ncae.md B2 and B3): the status of a phase instance,
// callback_data for the phases that follow, and log lines.
//
//	phaseinstance.go  GET and PATCH /api/automation/v1/phase-instance/{id}
//	cmdbentry.go      GET and PATCH /api/automation/v1/cmdb-entry/{id}
//	log.go            POST and GET  /api/logger/v1/service-instance-log
//	owner.go          what the partition's owner knows of an id
//
// # Durable before it is answered
//
// Modules do not say things twice: ncae_sdk raises where a call fails, and the phase's work is over. So what is taken here is
// published to RESULTS first, where no owner of a partition need be there for it; then the gateway waits until the owner has
// applied it, so that who reads what he has written reads it, and answers. Where the owner does not apply it in time, the
// answer is 202: it is stored, and decided later.
//
// # Ids
//
// The id of a phase instance is that of one attempt (wire.PhaseInstanceID): it leads to the partition without a look-up, and
// what comes late, for an earlier attempt, finds nothing. X-Transaction-Id, where it comes with a call, must be the attempt's.
//
// # Absent on purpose
//
// No login: whoever reaches the gateway acts with its permissions (package gateway), and ncae_sdk logs in only after a 401. No
// lists and no other paths of NCAE: what is not served is 404. No state but the log lines that were written last, for those
// who read what they have written.
package ncae

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/gateway/internal/httpapi"
)

// Limits of a request.
const (
	BodyBytesMax        = 64 << 10        // bytes of a body
	TransactionBytesMax = 64              // bytes of a transaction's id
	PublishTimeout      = 5 * time.Second // until a callback is stored
	AppliedWait         = 3 * time.Second // for the owner to apply it, before the answer is 202
	OwnerPatience       = 6 * time.Second // for an owner that answers
	StrangerPatience    = 3 * time.Second // for an owner that knows the id: one that has just taken over may have to read it
	askTimeout          = 2 * time.Second // of one question
	askPause            = 50 * time.Millisecond
	appliedPause        = 5 * time.Millisecond
)

// Bus is the part of the bus that is needed.
type Bus interface {
	Partitions() int
	AskDoor(ctx context.Context, partition int, r bus.Request) (bus.Request, error)
	PublishResult(ctx context.Context, subject string, header map[string]string, body []byte) error
	PublishOutput(project, kind, name string, body []byte) error
	Version(ctx context.Context, e bus.Entity, version string) (bus.Stored, error)
}

// Door serves the paths. Make one with New. Safe for concurrent use.
type Door struct {
	bus   Bus
	log   *zap.Logger
	lines *lines
}

// New returns a Door.
func New(b Bus, log *zap.Logger) *Door { return &Door{bus: b, log: log, lines: newLines()} }

// Routes are the paths.
func (d *Door) Routes() []httpapi.Route {
	return []httpapi.Route{
		{Method: "GET", Path: "/api/automation/v1/phase-instance/{id}", What: "NCAE: an attempt of a phase", Handle: d.getPhaseInstance},
		{Method: "PATCH", Path: "/api/automation/v1/phase-instance/{id}", What: "NCAE: what became of an attempt of a phase", Handle: d.patchPhaseInstance},
		{Method: "GET", Path: "/api/automation/v1/cmdb-entry/{id}", What: "NCAE: the data of a service instance", Handle: d.getCmdbEntry},
		{Method: "PATCH", Path: "/api/automation/v1/cmdb-entry/{id}", What: "NCAE: callback_data for the phases that follow", Handle: d.patchCmdbEntry},
		{Method: "POST", Path: "/api/logger/v1/service-instance-log", What: "NCAE: a line of a phase's output", Handle: d.postLog},
		{Method: "GET", Path: "/api/logger/v1/service-instance-log/{id}", What: "NCAE: a line that was written here shortly before", Handle: d.getLog},
	}
}

// pathID reads the id of a path. Where it can be none it answers, and returns false.
func (d *Door) pathID(w http.ResponseWriter, r *http.Request) (id uint64, partition int, ok bool) {
	text := r.PathValue("id")
	id, err := strconv.ParseUint(text, 10, 64)
	if err == nil && strconv.FormatUint(id, 10) == text {
		if partition, ok = wire.NumberPartition(id, d.bus.Partitions()); ok {
			return id, partition, true
		}
	}
	unknown(w)
	return 0, 0, false
}

func unknown(w http.ResponseWriter) {
	httpapi.Fail(w, http.StatusNotFound, "not_found", "there is no such id, or not any more: an attempt's id is known until the next attempt begins")
}

// transaction reads X-Transaction-Id. Where it is none it answers, and returns false.
func transaction(w http.ResponseWriter, r *http.Request) (id string, ok bool) {
	id = r.Header.Get("X-Transaction-Id")
	if len(id) > TransactionBytesMax {
		httpapi.Invalid(w, "header.X-Transaction-Id", "at most "+strconv.Itoa(TransactionBytesMax)+" bytes")
		return "", false
	}
	return id, true
}

// another answers where the id is known and the call's transaction is another one: it is late, or for somebody else.
func another(w http.ResponseWriter, said string, v wire.PhaseInstance) bool {
	if said == "" || said == v.Transaction {
		return false
	}
	httpapi.Fail(w, http.StatusConflict, "conflict", "this belongs to another transaction: the attempt that X-Transaction-Id is of has ended, or never was")
	return true
}

// read reads a body that is one JSON object into v, without the fields that v does not know. Where it is none it answers, and
// returns false.
func read(w http.ResponseWriter, r *http.Request, v any) bool {
	// Without it a page of another origin could call back in a browser that knows no Sec-Fetch-Site.
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != bus.ContentTypeJSON {
		httpapi.Fail(w, http.StatusUnsupportedMediaType, "unsupported_media_type", "the body is sent with Content-Type: application/json")
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, BodyBytesMax))
	if err != nil {
		if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
			httpapi.Fail(w, http.StatusRequestEntityTooLarge, "too_large", "the body is larger than 64 KiB")
			return false
		}
		httpapi.Fail(w, http.StatusBadRequest, "invalid", "the body could not be read")
		return false
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil || object == nil {
		httpapi.Invalid(w, "body", "is no JSON object")
		return false
	}
	if err := json.Unmarshal(body, v); err != nil {
		field := "body"
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Field != "" {
			field = wrong.Field
		}
		httpapi.Invalid(w, field, "is of another type")
		return false
	}
	return true
}
