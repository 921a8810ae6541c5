package jetstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// Error codes of the server that nats.go has no name for.
const (
	codeNoPeers               natsjs.ErrorCode = 10005
	codeInsufficientResources natsjs.ErrorCode = 10023
	codeMemoryExceeded        natsjs.ErrorCode = 10028
	codeStorageExceeded       natsjs.ErrorCode = 10047
	codeStoreFailed           natsjs.ErrorCode = 10077 // "maximum messages exceeded", "maximum bytes exceeded"
	codeTooManyInflight       natsjs.ErrorCode = 10167
	codeTooManyBatches        natsjs.ErrorCode = 10210
)

// apiError turns the server's refusal of a message into one of the bus's errors.
func apiError(e *natsjs.APIError) error {
	if e == nil {
		return nil
	}
	switch e.ErrorCode {
	case natsjs.JSErrCodeStreamWrongLastSequence, natsjs.JSErrCodeStreamWrongLastSequenceConstant:
		return bus.ErrLost
	case natsjs.JSErrCodeStreamMessageExceedsMaximum:
		return fmt.Errorf("%w: %s", bus.ErrTooLarge, e.Description)
	case codeStoreFailed, codeTooManyInflight, codeTooManyBatches,
		codeInsufficientResources, codeMemoryExceeded, codeStorageExceeded:
		return fmt.Errorf("%w: %s", bus.ErrFull, e.Description)
	case natsjs.JSErrCodeMessageNotFound, natsjs.JSErrCodeStreamNotFound, natsjs.JSErrCodeConsumerNotFound:
		return fmt.Errorf("%w: %s", bus.ErrNotFound, e.Description)
	}
	return e
}

var ackStart = []byte(`{"stream":"`)
var ackSeq = []byte(`"seq":`)

// parsePubAck reads the server's answer to a publish into p.seq or p.err. The common answer,
// {"stream":"EVENTS","seq":17}, is read without a JSON parser.
func parsePubAck(p *call) {
	data := p.msg.Data
	if bytes.HasPrefix(data, ackStart) {
		if i := bytes.Index(data, ackSeq); i > 0 {
			digits := data[i+len(ackSeq):]
			n := 0
			for n < len(digits) && digits[n] >= '0' && digits[n] <= '9' {
				n++
			}
			if seq, err := strconv.ParseUint(string(digits[:n]), 10, 64); err == nil && seq > 0 {
				p.seq = seq
				return
			}
		}
	}
	var ack struct {
		Stream string           `json:"stream"`
		Seq    uint64           `json:"seq"`
		Error  *natsjs.APIError `json:"error"`
	}
	switch err := json.Unmarshal(data, &ack); {
	case err != nil:
		p.err = fmt.Errorf("the answer to a publish is not readable: %w", err)
	case ack.Error != nil:
		p.err = apiError(ack.Error)
	case ack.Stream == "":
		p.err = errors.New("the answer to a publish names no stream; another service answers on this subject")
	default:
		p.seq = ack.Seq
	}
}
