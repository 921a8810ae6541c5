package httpapi

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"mime"
	"net/http"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
)

// command sends a command to intake and passes the answer on.
func (s *Server) command(w http.ResponseWriter, r *http.Request) {
	parts, ok := names(w, r, "project", "kind", "name", "verb")
	if !ok {
		return
	}
	if r.URL.RawQuery != "" {
		invalid(w, "query", "a command takes none")
		return
	}
	// Without it a page of another origin could send a command in a browser that knows no Sec-Fetch-Site.
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != bus.ContentTypeJSON {
		fail(w, http.StatusUnsupportedMediaType, "unsupported_media_type", "a command is sent with Content-Type: application/json")
		return
	}
	requestID := r.Header.Get(bus.HeaderRequestID)
	if requestID == "" {
		requestID = rand.Text() // 26 letters and digits, 128 bits
	} else if !validRequestID(requestID) {
		invalid(w, "header."+bus.HeaderRequestID, "must be 1 to 64 letters, digits, '-' and '_'")
		return
	}
	w.Header().Set(bus.HeaderRequestID, requestID)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, BodyBytesMax))
	if err != nil {
		if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
			respond(w, http.StatusRequestEntityTooLarge, problem{
				Code: string(resource.TooLarge), Message: "the body is larger than 960 KiB", RequestID: requestID,
			})
			return
		}
		fail(w, http.StatusBadRequest, string(resource.Invalid), "the body could not be read")
		return
	}

	header := map[string]string{bus.HeaderContentType: bus.ContentTypeJSON, bus.HeaderRequestID: requestID}
	if trace := r.Header.Get(bus.HeaderTraceparent); len(trace) == 55 { // W3C; intake looks closer
		header[bus.HeaderTraceparent] = trace
	}
	ctx, cancel := context.WithTimeout(r.Context(), CommandTimeout)
	defer cancel()
	reply, err := s.bus.Request(ctx, bus.CommandSubject("api", parts[0], parts[1], parts[2], parts[3]), header, body)
	if err != nil {
		s.unanswered(w, r, requestID, err)
		return
	}
	decoded, err := wire.DecodeReply(reply.Header[bus.HeaderContentType], reply.Body)
	if err == nil && len(reply.Body) > 0 && reply.Body[0] != '{' {
		err = errors.New("it is not JSON")
	}
	if err != nil {
		s.log.Error("intake's answer cannot be read", host.Resource(parts[0], parts[1], parts[2]), host.Verb(parts[3]), host.Request(requestID), zap.Error(err))
		respond(w, http.StatusInternalServerError, problem{
			Code: "internal", Message: "the answer cannot be read; the command may have been accepted", RequestID: requestID,
		})
		return
	}
	status := http.StatusAccepted
	if decoded.Refused != nil {
		status = statusOf(decoded.Refused.Code)
	}
	send(w, status, reply.Body)
}

// unanswered says why there is no answer. The command may be on its way all the same.
func (s *Server) unanswered(w http.ResponseWriter, r *http.Request, requestID string, err error) {
	p := problem{Code: string(resource.Overloaded), RequestID: requestID}
	status := http.StatusServiceUnavailable
	switch {
	case r.Context().Err() != nil:
		p.Message = "the request was given up" // by the client, who will not read this
	case errors.Is(err, bus.ErrNoOwner):
		p.Message = "no intake is running; nothing was stored"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, bus.ErrUnknownOutcome):
		p.Message = "no answer in time; the command may have been accepted: send it again with this request id to learn its job"
	case errors.Is(err, bus.ErrTooLarge):
		p.Code, p.Message, status = string(resource.TooLarge), "the command is larger than the server takes", http.StatusRequestEntityTooLarge
	case errors.Is(err, bus.ErrDenied):
		s.log.Error("gateway may not send commands", zap.Error(err))
		p.Code, p.Message, status = "internal", "the gateway's permissions do not allow this", http.StatusInternalServerError
	default:
		s.log.Warn("command could not be sent", zap.Error(err), host.Request(requestID))
		p.Message = "the server cannot be reached; the command may have been accepted: send it again with this request id"
	}
	respond(w, status, p)
}

func validRequestID(id string) bool {
	if len(id) > RequestIDBytesMax {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return id != ""
}
