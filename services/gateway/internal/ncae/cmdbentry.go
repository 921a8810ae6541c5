package ncae

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/strictjson"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/gateway/internal/httpapi"
)

// cmdbEntry is a resource's data as NCAE shows it (facts/ncae.md B2). Its id is that of the service instance.
type cmdbEntry struct {
	ID           uint64          `json:"id"`
	Created      time.Time       `json:"created"`
	Modified     time.Time       `json:"modified"`
	Data         json.RawMessage `json:"data"`
	CallbackData json.RawMessage `json:"callback_data"`
}

func (d *Door) getCmdbEntry(w http.ResponseWriter, r *http.Request) {
	d.look(w, r, func(id uint64) wire.PhaseInstanceQuery { return wire.PhaseInstanceQuery{ServiceInstance: id} }, func(partition int, v wire.PhaseInstance) {
		d.showEntry(r.Context(), w, http.StatusOK, partition, v)
	})
}

func (d *Door) showEntry(ctx context.Context, w http.ResponseWriter, status, partition int, v wire.PhaseInstance) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	stored, err := d.bus.Version(ctx, bus.Entity{
		Partition: partition, Family: bus.Spec, Project: v.Project, Kind: v.Kind, Name: v.Name,
	}, v.SpecDigest)
	var spec wire.SpecEvent
	if err == nil {
		spec, err = wire.DecodeSpec(stored.Body)
	}
	if err != nil {
		d.log.Warn("a spec could not be read", zap.Error(err))
		unanswered(w)
		return
	}
	entry := cmdbEntry{ID: v.ServiceInstance, Created: v.Created, Modified: v.Updated, Data: json.RawMessage(spec.JSON), CallbackData: v.CallbackData}
	if entry.CallbackData == nil {
		entry.CallbackData = json.RawMessage("{}")
	}
	httpapi.Respond(w, status, entry)
}

// patchCmdbEntry takes callback_data, which the phases that follow are given. It is the attempt's that awaits a callback: when
// none does, there is nobody whose word it could be.
func (d *Door) patchCmdbEntry(w http.ResponseWriter, r *http.Request) {
	id, partition, ok := d.pathID(w, r)
	if !ok {
		return
	}
	transaction, ok := transaction(w, r)
	if !ok {
		return
	}
	var patch struct {
		Data         json.RawMessage `json:"data"`
		CallbackData json.RawMessage `json:"callback_data"`
	}
	if !read(w, r, &patch) {
		return
	}
	if patch.Data != nil {
		httpapi.Invalid(w, "data", "is the resource's spec, which is changed by apply")
		return
	}
	data, err := strictjson.Canonical(patch.CallbackData)
	if err != nil || data[0] != '{' && string(data) != "null" {
		httpapi.Invalid(w, "callback_data", "is to be an object, or null")
		return
	}
	if len(data) > wire.CallbackDataBytesMax-len(wire.AttributeCallbackData) {
		httpapi.Fail(w, http.StatusRequestEntityTooLarge, "too_large", "callback_data: is larger than 32 KiB")
		return
	}
	v, err := d.find(r.Context(), partition, wire.PhaseInstanceQuery{ServiceInstance: id, Transaction: transaction})
	switch {
	case err != nil: // the word is of whichever attempt is under way, so it is not stored for a later one
		unanswered(w)
		return
	case !v.Found:
		unknown(w)
		return
	case another(w, transaction, v):
		return
	case !v.Awaited:
		httpapi.Fail(w, http.StatusConflict, "conflict", "no phase of this service instance awaits its module")
		return
	}
	now, seen, err := d.say(r.Context(), partition, wire.Callback{
		ServiceInstance: id, Transaction: v.Transaction, Attributes: map[string]string{wire.AttributeCallbackData: string(data)},
	}, func(v wire.PhaseInstance) bool {
		return bytes.Equal(v.CallbackData, data) || v.CallbackData == nil && string(data) == "null"
	})
	switch {
	case err != nil:
		d.unstored(w, err)
	case seen:
		d.showEntry(r.Context(), w, http.StatusOK, partition, now)
	default:
		v.CallbackData = data
		d.showEntry(r.Context(), w, http.StatusAccepted, partition, v)
	}
}
