// Package wire turns the bodies of messages into the engine's types and back. Generated protobuf types stop here.
//
// # Total both ways
//
// Whatever the engine can hold has one encoding, and what was encoded decodes to the same value: an empty map and a
// missing one are the same, times are UTC, and text that is no UTF-8 (what a process printed) is mended on the way out.
// What arrives is either decoded whole or refused: ErrMalformed says which field is missing or wrong, ErrUnknown which
// enum holds a number that this version does not know. Encoding refuses what decoding would.
//
// # Who may be newer
//
// Events, work and results are exchanged between versions N-1 and N, so protobuf fields that this version does not know
// are passed over; state that must not be misread says so by min_reader. Commands come from people, so a field that is
// not known is refused there, in either form, rather than half obeyed; and so it is in results in JSON.
//
// All functions are safe for concurrent use. Decoded values own their memory.
package wire

import (
	"errors"
	"fmt"
	"mime"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/droverproject/drover/pkg/strictjson"
)

// Limits of bodies.
const (
	BodyBytesMax       = 1 << 20   // bytes of any body
	CommandBytesMax    = 960 << 10 // bytes of a command
	OutputTextBytesMax = 16 << 10  // bytes of one output line; longer ones are cut and marked
)

// ContentTypeJSON is the media type of bodies in JSON. Every other one, and none, means protobuf.
const ContentTypeJSON = "application/json"

// Errors that callers tell apart, with errors.Is.
var (
	// ErrMalformed: the body is not what it should be. A FieldError says where.
	ErrMalformed = errors.New("malformed")
	// ErrTooLarge: the body, or a field of it, is over its limit. It is ErrMalformed too.
	ErrTooLarge = errors.New("too large")
	// ErrUnknown: an enum or a variant holds a number that this version does not know.
	ErrUnknown = errors.New("unknown to this version")
)

// FieldError is one field that is missing or wrong; it is ErrMalformed.
type FieldError struct {
	Field  string // path as users write it; empty for the body as a whole
	Reason string
	large  bool
}

// Error is "field: reason".
func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

// Is makes it ErrMalformed, and ErrTooLarge where a limit was passed.
func (e *FieldError) Is(target error) bool {
	return target == ErrMalformed || target == ErrTooLarge && e.large
}

func malformed(field, reason string) error { return &FieldError{Field: field, Reason: reason} }

func missing(field string) error { return &FieldError{Field: field, Reason: "is missing"} }

func tooLarge(field string, limit int) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf("is larger than %d bytes", limit), large: true}
}

func unknown(field string, number int32) error {
	return fmt.Errorf("%s: %w: number %d", field, ErrUnknown, number)
}

// first is the first mistake of a JSON document.
func first(errs strictjson.Errors) error { return malformed(errs[0].Field, errs[0].Reason) }

func isJSON(contentType string) bool {
	if contentType == "" || contentType == ContentTypeJSON {
		return contentType != ""
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == ContentTypeJSON
}

// marshal writes the same bytes for the same message, whichever process does it.
func marshal(m proto.Message) ([]byte, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, malformed("", strings.TrimPrefix(err.Error(), "proto: "))
	}
	if len(body) > BodyBytesMax {
		return nil, tooLarge("", BodyBytesMax)
	}
	return body, nil
}

func unmarshal(body []byte, m proto.Message) error {
	if len(body) > BodyBytesMax {
		return tooLarge("", BodyBytesMax)
	}
	if err := (proto.UnmarshalOptions{RecursionLimit: 16}).Unmarshal(body, m); err != nil {
		// The library varies the space after "proto:" on purpose.
		reason := strings.TrimSpace(strings.TrimPrefix(err.Error(), "proto:"))
		return malformed("", "is not protobuf of the right type: "+reason)
	}
	return nil
}

// text makes any text fit for protobuf, which holds UTF-8 only.
func text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// stamp is nil for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: t.Unix(), Nanos: int32(t.Nanosecond())}
}

// The seconds that a Timestamp may hold: years 1 to 9999.
const (
	secondsMin = -62135596800
	secondsMax = 253402300799
)

// instant is the zero time for nil.
func instant(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if t.Seconds < secondsMin || t.Seconds > secondsMax || t.Nanos < 0 || t.Nanos > 999_999_999 {
		return time.Time{}, malformed(field, "is not a time of the years 1 to 9999")
	}
	return time.Unix(t.Seconds, int64(t.Nanos)).UTC(), nil
}

func inRange(field string, times ...time.Time) error {
	for i := range times {
		if s := times[i].Unix(); s < secondsMin || s > secondsMax {
			return malformed(field, "is not a time of the years 1 to 9999")
		}
	}
	return nil
}

// span is nil for zero.
func span(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// lasting is 0 for nil. It refuses negative ones and those over 292 years, which a time.Duration cannot hold.
func lasting(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	const secondsHeld = int64(1<<63-1)/int64(time.Second) - 1
	if d.Seconds < 0 || d.Nanos < 0 || d.Nanos > 999_999_999 || d.Seconds > secondsHeld {
		return 0, malformed(field, "is not a duration of 0 to 292 years")
	}
	return time.Duration(d.Seconds)*time.Second + time.Duration(d.Nanos), nil
}

func index(field string, i int) string { return strictjson.Item(field, i) }

// within puts a path before that of a field's error.
func within(path string, err error) error {
	if field := (*FieldError)(nil); errors.As(err, &field) {
		return &FieldError{Field: path + "." + field.Field, Reason: field.Reason, large: field.large}
	}
	return fmt.Errorf("%s.%w", path, err)
}

// moment is a time of a message, and where it goes.
type moment struct {
	field string
	from  *timestamppb.Timestamp
	to    *time.Time
}

// instants reads several times.
func instants(all ...moment) error {
	for _, m := range all {
		t, err := instant(m.field, m.from)
		if err != nil {
			return err
		}
		*m.to = t
	}
	return nil
}
