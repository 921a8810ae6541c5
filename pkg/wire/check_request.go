package wire

import (
	"encoding/json"

	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// PokedMax is how many instances one request "poked" may name.
const PokedMax = 1024

// CheckRequest is what gateway and notifier ask a partition's owner under the verbs check.fetch, check.success, check.failed,
// check.retry (Project, ID), check.list, check.listall (Project, System, After), check.pokes (nothing) and check.poked (Project,
// Poked). It travels as JSON.
type CheckRequest struct {
	Project string `json:"project,omitempty"`
	ID      string `json:"id,omitempty"`
	System  string `json:"system,omitempty"`
	// After is the last id of the answer before, where that said More.
	After string      `json:"after,omitempty"`
	Poked []CheckPoke `json:"poked,omitempty"`
}

// CheckPoke is one instance that a monitoring system has to hear of, and how often there was news of it when this was said.
type CheckPoke struct {
	ID      string `json:"id"`
	Updates uint64 `json:"updates,string"`
}

// CheckPokes is what one monitoring system has to hear of; there is More than what is named.
type CheckPokes struct {
	Project string      `json:"project"`
	System  string      `json:"system"`
	Pokes   []CheckPoke `json:"pokes"`
	More    bool        `json:"more,omitempty"`
}

// CheckAnswer answers a CheckRequest. Code is empty where it was carried out.
type CheckAnswer struct {
	Code    resource.Code `json:"code,omitempty"`
	Message string        `json:"message,omitempty"`
	// Of fetch and feedback: what is to be done, and with which version.
	Task          string              `json:"task,omitempty"`
	Configuration string              `json:"configuration,omitempty"`
	Version       uint64              `json:"version,string,omitempty"`
	Status        string              `json:"status,omitempty"`
	Details       *deployment.Details `json:"details,omitempty"`
	// Of lists: ids, whether there are More after the last, and how many were not reached and stay pending.
	IDs    []string     `json:"ids,omitempty"`
	More   bool         `json:"more,omitempty"`
	Missed int          `json:"missed,omitempty"`
	Pokes  []CheckPokes `json:"pokes,omitempty"`
}

// EncodeCheckRequest is the inverse of DecodeCheckRequest.
func EncodeCheckRequest(q CheckRequest) ([]byte, error) { return marshalJSON(q) }

// DecodeCheckRequest reads a request. It comes from a service of this house, of this version or the one beside it, so a field
// that is not known is passed over.
func DecodeCheckRequest(body []byte) (q CheckRequest, err error) {
	if len(body) > BodyBytesMax {
		return q, tooLarge("", BodyBytesMax)
	}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &q); err != nil {
			return CheckRequest{}, malformed("", "is not a request in JSON: "+err.Error())
		}
	}
	if len(q.Poked) > PokedMax {
		return CheckRequest{}, malformed("poked", "names too many")
	}
	return q, nil
}

// DecodeCheckAnswer reads an answer.
func DecodeCheckAnswer(body []byte) (a CheckAnswer, err error) {
	if len(body) > BodyBytesMax {
		return a, tooLarge("", BodyBytesMax)
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return CheckAnswer{}, malformed("", "is not an answer in JSON: "+err.Error())
	}
	return a, nil
}

// Fetched is the document that a monitoring system reads: the details of a configuration with what belongs to this version.
func Fetched(c *deployment.Configuration, task deployment.Task) *deployment.Details {
	d := *c.Details
	d.Task = string(task)
	d.CheckInstance.InstanceConfigID, d.CheckInstance.Version = c.ID, c.Version
	return &d
}
