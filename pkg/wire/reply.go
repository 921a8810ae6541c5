package wire

import (
	"encoding/json"

	"github.com/droverproject/drover/pkg/engine/resource"
	commandv1 "github.com/droverproject/drover/proto/gen/drover/command/v1"
)

// Reply answers a command: accepted, with the job and the resource ("project/kind/name"), or refused.
type Reply struct {
	JobID, Resource string
	RequestID       string // of a refused command
	Refused         *resource.Refusal
}

// The JSON forms of contract.md: "accepted" and "refused" in one.
type replyJSON struct {
	JobID      string          `json:"jobId,omitempty"`
	Resource   string          `json:"resource,omitempty"`
	Code       string          `json:"code,omitempty"`
	Message    string          `json:"message,omitempty"`
	Violations []violationJSON `json:"violations,omitempty"`
	RequestID  string          `json:"requestId,omitempty"`
}

type violationJSON struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// EncodeReply writes a reply in JSON or protobuf.
func EncodeReply(contentType string, r Reply) ([]byte, error) {
	if err := checkReply(r); err != nil {
		return nil, err
	}
	if isJSON(contentType) {
		if r.Refused == nil {
			return marshalJSON(replyJSON{JobID: r.JobID, Resource: r.Resource})
		}
		j := replyJSON{Code: string(r.Refused.Code), Message: text(r.Refused.Message), RequestID: r.RequestID}
		for _, v := range r.Refused.Violations {
			j.Violations = append(j.Violations, violationJSON{Field: text(v.Field), Reason: text(v.Reason)})
		}
		return marshalJSON(j)
	}
	if r.Refused == nil {
		return marshal(&commandv1.Reply{Answer: &commandv1.Reply_Accepted{
			Accepted: &commandv1.Accepted{JobId: r.JobID, Resource: r.Resource},
		}})
	}
	m := &commandv1.Refused{Code: string(r.Refused.Code), Message: text(r.Refused.Message), RequestId: r.RequestID}
	for _, v := range r.Refused.Violations {
		m.Violations = append(m.Violations, &commandv1.Violation{Field: text(v.Field), Reason: text(v.Reason)})
	}
	return marshal(&commandv1.Reply{Answer: &commandv1.Reply_Refused{Refused: m}})
}

// DecodeReply is the inverse of EncodeReply. An accepted reply carries no request id.
func DecodeReply(contentType string, body []byte) (r Reply, err error) {
	if len(body) > BodyBytesMax {
		return r, tooLarge("", BodyBytesMax)
	}
	if isJSON(contentType) {
		var j replyJSON
		if err := json.Unmarshal(body, &j); err != nil { // not strict: a newer server may say more
			return r, malformed("", "is not a reply in JSON: "+err.Error())
		}
		if j.JobID != "" && j.Code != "" {
			return r, malformed("code", "is given together with jobId")
		}
		if j.Code != "" {
			r.RequestID, r.Refused = j.RequestID, &resource.Refusal{Code: resource.Code(j.Code), Message: j.Message}
			for _, v := range j.Violations {
				r.Refused.Violations = append(r.Refused.Violations, resource.Violation(v))
			}
		} else {
			r.JobID, r.Resource = j.JobID, j.Resource
		}
	} else {
		m := new(commandv1.Reply)
		if err := unmarshal(body, m); err != nil {
			return r, err
		}
		if f := m.GetRefused(); f != nil {
			r.RequestID, r.Refused = f.RequestId, &resource.Refusal{Code: resource.Code(f.Code), Message: f.Message}
			for _, v := range f.Violations {
				r.Refused.Violations = append(r.Refused.Violations, resource.Violation{Field: v.Field, Reason: v.Reason})
			}
		} else {
			r.JobID, r.Resource = m.GetAccepted().GetJobId(), m.GetAccepted().GetResource()
		}
	}
	if err := checkReply(r); err != nil {
		return Reply{}, err
	}
	return r, nil
}

// checkReply keeps the codes closed. A job id is the mark of an accepted command.
func checkReply(r Reply) error {
	if r.Refused == nil {
		if r.JobID == "" {
			return missing("jobId")
		}
		return nil
	}
	switch r.Refused.Code {
	case resource.Invalid, resource.NotFound, resource.Conflict, resource.TooLarge, resource.Overloaded:
		return nil
	case "":
		return missing("code")
	default:
		return malformed("code", "is none of invalid, not_found, conflict, too_large, overloaded")
	}
}
