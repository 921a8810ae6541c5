// Package answer writes refusals in the form in which the command came.
package answer

import (
	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// ContentTypeProtobuf marks replies that are not JSON.
const ContentTypeProtobuf = "application/protobuf"

// Refusal is the reply to a command of this content type: JSON to JSON, protobuf to everything else. A request id that
// is none is left out: it may be of any size.
func Refusal(contentType, requestID string, r resource.Refusal) (header map[string]string, body []byte, err error) {
	header = map[string]string{bus.HeaderContentType: ContentTypeProtobuf}
	if check.RequestID(requestID) {
		header[bus.HeaderRequestID] = requestID
	} else {
		requestID = ""
	}
	body, err = wire.EncodeReply(contentType, wire.Reply{RequestID: requestID, Refused: &r})
	if err != nil {
		return nil, nil, err
	}
	if body[0] == '{' { // no reply begins with this byte as protobuf
		header[bus.HeaderContentType] = bus.ContentTypeJSON
	}
	return header, body, nil
}
