package ncae

import (
	"errors"
	"net/http"
	"strings"

	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/gateway/internal/httpapi"
)

// phaseInstance is an attempt as NCAE shows a phase instance (facts/ncae.md B2; ncae_sdk: PhaseInstance).
type phaseInstance struct {
	ID              uint64 `json:"id"`
	Status          string `json:"status"`
	Phase           phase  `json:"phase"`
	ServiceInstance uint64 `json:"service_instance"`
	CanRunManually  bool   `json:"can_run_manually"`
	IsRunning       bool   `json:"is_running"`
	Transaction     string `json:"transaction,omitempty"`
}

type phase struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func shown(v wire.PhaseInstance) phaseInstance {
	return phaseInstance{
		ID: v.ID, Status: v.Status, Phase: phase{ID: v.Project + "/" + v.Kind + "/" + v.Phase, Name: v.Phase},
		ServiceInstance: v.ServiceInstance, IsRunning: running(v.Status), Transaction: v.Transaction,
	}
}

// running is ncae_sdk's set of statuses that are not final (facts/ncae.md B1).
func running(status string) bool { return status == "OR" || status == "UP" || status == "RI" }

func (d *Door) getPhaseInstance(w http.ResponseWriter, r *http.Request) {
	d.look(w, r, func(id uint64) wire.PhaseInstanceQuery { return wire.PhaseInstanceQuery{PhaseInstance: id} }, func(_ int, v wire.PhaseInstance) {
		httpapi.Respond(w, http.StatusOK, shown(v))
	})
}

// patchPhaseInstance takes what became of an attempt. Said twice it is the same; said of an attempt that has ended otherwise,
// or of an earlier one, it has no effect, and the answer says so.
func (d *Door) patchPhaseInstance(w http.ResponseWriter, r *http.Request) {
	id, partition, ok := d.pathID(w, r)
	if !ok {
		return
	}
	transaction, ok := transaction(w, r)
	if !ok {
		return
	}
	var patch struct {
		Status  string `json:"status"`
		Message string `json:"message"` // ours: why, where it is ER
	}
	if !read(w, r, &patch) {
		return
	}
	switch patch.Status {
	case wire.CallbackDeployed, wire.CallbackRetired, wire.CallbackError, "OR", "UP", "RI":
	case "RA", "PU":
		httpapi.Fail(w, http.StatusConflict, "conflict", "status "+patch.Status+" is not a module's to set: an attempt ends in DE, RE or ER")
		return
	default:
		httpapi.Invalid(w, "status", "is none of DE, RE, ER")
		return
	}
	if len(patch.Message) > wire.CallbackMessageBytesMax {
		patch.Message = strings.ToValidUTF8(patch.Message[:wire.CallbackMessageBytesMax-3], "") + "..."
	}
	v, err := d.find(r.Context(), partition, wire.PhaseInstanceQuery{PhaseInstance: id, Transaction: transaction})
	switch {
	case errors.Is(err, errNoAnswer) && running(patch.Status):
		unanswered(w)
		return
	case errors.Is(err, errNoAnswer): // it is stored all the same: who calls back does not call twice
	case err != nil:
		unanswered(w) // the caller is gone
		return
	case !v.Found:
		unknown(w)
		return
	case another(w, transaction, v):
		return
	case v.Status == patch.Status:
		httpapi.Respond(w, http.StatusOK, shown(v))
		return
	case !v.Awaited:
		httpapi.Fail(w, http.StatusConflict, "conflict", "the attempt has ended: its status is "+v.Status)
		return
	case running(patch.Status), patch.Status != wire.CallbackError && (patch.Status == wire.CallbackRetired) != v.Undo:
		httpapi.Fail(w, http.StatusConflict, "conflict", "the attempt is in status "+v.Status+", and cannot become "+patch.Status)
		return
	}
	now, seen, err := d.say(r.Context(), partition, wire.Callback{
		PhaseInstance: id, Transaction: transaction, Status: patch.Status, Message: patch.Message,
	}, func(v wire.PhaseInstance) bool { return !v.Awaited })
	switch {
	case err != nil:
		d.unstored(w, err)
	case seen && now.Status != patch.Status: // another word, or the timeout, was first
		httpapi.Fail(w, http.StatusConflict, "conflict", "the attempt has ended: its status is "+now.Status)
	case seen:
		httpapi.Respond(w, http.StatusOK, shown(now))
	default:
		if v.Found {
			now = v
		}
		now.ID, now.Status = id, patch.Status
		httpapi.Respond(w, http.StatusAccepted, shown(now))
	}
}
