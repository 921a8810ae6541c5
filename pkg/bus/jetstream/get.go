package jetstream

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

// getRequest asks for a stored message, by one of its fields, or for the next of a subject from Seq on.
type getRequest struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
}

// message is a stored message, whichever way it was read.
type message struct {
	Subject string
	Seq     uint64
	Time    time.Time
	Header  nats.Header
	Data    []byte
}

// leaderGet reads from the stream's leader: what was acknowledged is seen.
func (b *Bus) leaderGet(ctx context.Context, stream string, r getRequest) (message, error) {
	var answer struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := b.api(ctx, "STREAM.MSG.GET."+stream, r, &answer); err != nil {
		return message{}, err
	}
	m := answer.Message
	out := message{Subject: m.Subject, Seq: m.Seq, Time: m.Time, Data: m.Data}
	if len(m.Header) > 0 {
		var err error
		if out.Header, err = nats.DecodeHeadersMsg(m.Header); err != nil {
			return message{}, fmt.Errorf("header of message %d of %s: %w", m.Seq, stream, err)
		}
	}
	return out, nil
}

// directGet reads from any replica; it may be behind.
func (b *Bus) directGet(ctx context.Context, stream string, r getRequest) (message, error) {
	var out message
	err := b.retry(ctx, func(ctx context.Context) error {
		reply, err := b.calls.repeat(ctx, directGetMsg(stream, r))
		if err == nil {
			out, err = directGot(reply)
		}
		return err
	})
	return out, err
}

// directGetMsg asks for the last message of a subject by a subject of its own, so that permissions can tell keys apart.
func directGetMsg(stream string, r getRequest) *nats.Msg {
	var body []byte
	switch {
	case r.LastFor != "" && !strings.ContainsAny(r.LastFor, "*>"):
		return &nats.Msg{Subject: "$JS.API.DIRECT.GET." + stream + "." + r.LastFor}
	case r.LastFor != "": // subjects hold nothing that JSON would escape, see bus.Token
		body = append(append(append(make([]byte, 0, len(r.LastFor)+20), `{"last_by_subj":"`...), r.LastFor...), `"}`...)
	case r.NextFor != "":
		body = []byte(`{"seq":` + strconv.FormatUint(r.Seq, 10) + `,"next_by_subj":"` + r.NextFor + `"}`)
	default:
		body = []byte(`{"seq":` + strconv.FormatUint(r.Seq, 10) + `}`)
	}
	return &nats.Msg{Subject: "$JS.API.DIRECT.GET." + stream, Data: body}
}

// directGot reads the answer of a direct get.
func directGot(m *nats.Msg) (message, error) {
	switch status := m.Header.Get("Status"); status {
	case "":
	case "404":
		return message{}, bus.ErrNotFound
	default:
		return message{}, fmt.Errorf("direct get: the server answers %s %s", status, m.Header.Get("Description"))
	}
	seq, err := strconv.ParseUint(m.Header.Get(nats.JSSequence), 10, 64)
	if err != nil {
		return message{}, fmt.Errorf("direct get: header %s: %w", nats.JSSequence, err)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(nats.JSTimeStamp))
	if err != nil {
		return message{}, fmt.Errorf("direct get: header %s: %w", nats.JSTimeStamp, err)
	}
	return message{Subject: m.Header.Get(nats.JSSubject), Seq: seq, Time: at, Header: m.Header, Data: m.Data}, nil
}

const (
	headerOperation = "KV-Operation"
	headerSource    = "Nats-Stream-Source"
	headerTTL       = "Nats-TTL"
	operationDelete = "DEL"
)

// fill sets what the headers and the body say.
func fill(s *bus.Stored, m message) {
	s.Time, s.Body = m.Time, m.Data
	s.Header = bus.Header{From: first(m.Header, bus.HeaderFrom), To: first(m.Header, bus.HeaderTo), Job: first(m.Header, bus.HeaderJob),
		Traceparent: first(m.Header, bus.HeaderTraceparent)}
	if r := first(m.Header, bus.HeaderRevision); r != "" {
		s.Header.Revision, _ = strconv.ParseUint(r, 10, 64) // zero if it is no number: the body is what counts
	}
	s.Deleted = first(m.Header, headerOperation) == operationDelete
}

// first is a header's value as it was sent: nats.Header.Get would look for another spelling.
func first(h nats.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// logged is a message of EVENTS.
func logged(m message) (bus.Stored, error) {
	s := bus.Stored{Seq: m.Seq}
	var err error
	if s.Entity, s.Dispatch, s.Version, err = bus.ParseLogSubject(m.Subject); err != nil {
		return bus.Stored{}, err
	}
	fill(&s, m)
	return s, nil
}

// derived is a message of a bucket or of the feed. The server says in a header where it came from:
// "EVENTS <sequence> <filter> <transform> <subject>".
func derived(f bus.Family, key string, m message) (bus.Stored, error) {
	e, err := bus.ParseKey(f, key)
	if err != nil {
		return bus.Stored{}, err
	}
	s := bus.Stored{Entity: e}
	fill(&s, m)
	if source := strings.Split(first(m.Header, headerSource), " "); len(source) >= 5 {
		if s.Seq, err = strconv.ParseUint(source[1], 10, 64); err != nil {
			return bus.Stored{}, fmt.Errorf("header %s of %s: %w", headerSource, m.Subject, err)
		}
		if e, dispatch, version, err := bus.ParseLogSubject(source[4]); err == nil {
			s.Entity, s.Dispatch, s.Version = e, dispatch, version
		}
	} else {
		// A marker that the server or a person left: it says that the entity is gone.
		s.Deleted = s.Deleted || first(m.Header, headerOperation) != "" || first(m.Header, "Nats-Marker-Reason") != ""
	}
	return s, nil
}
