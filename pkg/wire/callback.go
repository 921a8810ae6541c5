package wire

import (
	"encoding/binary"
	"encoding/json"
	"strconv"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
	commandv1 "github.com/droverproject/drover/proto/gen/drover/command/v1"
)

// Ids of what calls back. They are whole numbers, because those who hold them have them so (ncae_sdk: phase_instance_id,
// service_instance_id and ncae_cmdb_entry_id are int), and at most 53 bits long, because JSON numbers are exact no further
// (RFC 8259, section 6): the first 10 bits are the partition, so that who holds nothing but the id finds the owner without a
// look-up, the rest is a digest. Two ids in a partition may be the same (of 100,000 in one, once in 1,800): the owner then
// knows of two, and takes neither without the transaction's id.

const (
	numberPartitionBits = 10 // jetstream.PartitionsMax
	numberDigestBits    = 43
)

// PhaseInstanceID is the id of one attempt of a phase towards who carries it out: another attempt has another one, so that
// what is said of an earlier one is known to be late (facts/common-ground.md, conflict 6). Of the fence only the call is not in
// it: the calls of an attempt are one piece of work.
func PhaseInstanceID(partition int, f resource.Fence) uint64 {
	return routedNumber(partition, "phase-instance", f.UID, f.JobID, f.Phase, strconv.FormatUint(uint64(f.Attempt), 10))
}

// ServiceInstanceID is the id of a resource towards those who carry its phases out; the same for its life.
func ServiceInstanceID(partition int, uid string) uint64 {
	return routedNumber(partition, "service-instance", uid)
}

// ServiceID is the id of a kind towards those who carry its phases out.
func ServiceID(project, kind string) uint64 { return routedNumber(0, "service", project, kind) }

// TransactionID is the id of the transaction of one attempt (seed 000: "all communication between NCAE and the external APIs
// is grouped in a Transaction"), a UUID.
func TransactionID(partition int, f resource.Fence) string {
	return RoutedUUID(partition, "transaction", f.UID, f.JobID, f.Phase, strconv.FormatUint(uint64(f.Attempt), 10))
}

func routedNumber(partition int, parts ...string) uint64 {
	sum := sumOf(append([]string{"number"}, parts...))
	digest := binary.BigEndian.Uint64(sum[:8]) >> (64 - numberDigestBits)
	return uint64(partition)<<numberDigestBits | digest
}

// NumberPartition is the partition that an id of PhaseInstanceID or ServiceInstanceID names; false where it is none, or not
// one of n partitions. Ids come from outside: that an id has the form does not say that there is such a thing.
func NumberPartition(id uint64, n int) (partition int, ok bool) {
	if id == 0 || id >= 1<<(numberPartitionBits+numberDigestBits) {
		return 0, false
	}
	partition = int(id >> numberDigestBits)
	return partition, partition < n
}

// Statuses that a callback may set (ncae_sdk: PhaseStatus; facts/ncae.md B1). The others are Drover's to set.
const (
	CallbackDeployed = "DE"
	CallbackRetired  = "RE"
	CallbackError    = "ER"
)

// Limits of a callback.
const (
	CallbackMessageBytesMax = 1 << 10 // bytes of a message
	CallbackDataBytesMax    = 32 << 10
)

// Callback is what somebody says of a piece of work that he was asked for, who holds an id and no fence. Exactly one of the
// two ids is set.
type Callback struct {
	PhaseInstance   uint64 // of an attempt
	ServiceInstance uint64 // of a resource
	Transaction     string // that the caller says it belongs to; empty: he does not
	Status          string // DE, RE or ER; empty: only Attributes
	Message         string
	Attributes      map[string]string // JSON text by name; null removes
}

// PhaseInstanceQuery asks a partition's owner for what an id stands for. Exactly one of the two ids is set.
type PhaseInstanceQuery struct {
	PhaseInstance   uint64 `json:"phaseInstance,omitempty"`
	ServiceInstance uint64 `json:"serviceInstance,omitempty"`
	Transaction     string `json:"transaction,omitempty"` // as in Callback
}

// PhaseInstance is one attempt of a phase as those see it who hold its id; the answer to a PhaseInstanceQuery. Asked for a
// resource it is the attempt that awaits a callback, or the newest that did; Status and what follows are then of that one.
// Where no attempt has the transaction that the query says, it is the one that the id alone stands for: compare Transaction.
type PhaseInstance struct {
	Found bool `json:"found"` // false: no such attempt is known, or more than one and the query does not say which
	// Awaited says that a callback still decides the attempt.
	Awaited         bool            `json:"awaited,omitempty"`
	ID              uint64          `json:"id,omitempty"`
	ServiceInstance uint64          `json:"serviceInstance,omitempty"`
	Transaction     string          `json:"transaction,omitempty"`
	Project         string          `json:"project,omitempty"`
	Kind            string          `json:"kind,omitempty"`
	Name            string          `json:"name,omitempty"`
	UID             string          `json:"uid,omitempty"`
	JobID           string          `json:"jobId,omitempty"`
	Phase           string          `json:"phase,omitempty"`
	Attempt         uint32          `json:"attempt,omitempty"`
	Undo            bool            `json:"undo,omitempty"`
	Status          string          `json:"status,omitempty"` // two letters (facts/ncae.md B1)
	SpecDigest      string          `json:"specDigest,omitempty"`
	CallbackData    json.RawMessage `json:"callbackData,omitempty"`
	Created         time.Time       `json:"created,omitzero"`
	Updated         time.Time       `json:"updated,omitzero"`
}

// VerbPhaseInstance is the verb of a PhaseInstanceQuery (bus.Inputs.AskDoor).
const VerbPhaseInstance = "callback.find"

// AttributeCallbackData is the attribute in which callback_data is kept (facts/ncae.md B3: "State from one phase to the next:
// PATCH cmdb-entry {callback_data}").
const AttributeCallbackData = "callback_data"

// EncodeCallback writes a callback.
func EncodeCallback(c Callback) ([]byte, error) {
	c.Attributes = copied(c.Attributes)
	if err := checkCallback(&c); err != nil {
		return nil, err
	}
	return marshal(&commandv1.Callback{
		PhaseInstance: c.PhaseInstance, ServiceInstance: c.ServiceInstance, Transaction: text(c.Transaction), Status: c.Status,
		Message: text(c.Message), Attributes: c.Attributes,
	})
}

// DecodeCallback is the inverse of EncodeCallback.
func DecodeCallback(body []byte) (Callback, error) {
	if len(body) > BodyBytesMax {
		return Callback{}, tooLarge("", BodyBytesMax)
	}
	m := new(commandv1.Callback)
	if err := unmarshal(body, m); err != nil {
		return Callback{}, err
	}
	c := Callback{
		PhaseInstance: m.PhaseInstance, ServiceInstance: m.ServiceInstance, Transaction: m.Transaction, Status: m.Status,
		Message: m.Message, Attributes: present(m.Attributes),
	}
	if err := checkCallback(&c); err != nil {
		return Callback{}, err
	}
	return c, nil
}

func checkCallback(c *Callback) error {
	switch {
	case (c.PhaseInstance == 0) == (c.ServiceInstance == 0):
		return malformed("phaseInstance", "is to be set, or serviceInstance, and not both")
	case len(c.Message) > CallbackMessageBytesMax:
		return tooLarge("message", CallbackMessageBytesMax)
	}
	switch c.Status {
	case CallbackDeployed, CallbackRetired, CallbackError:
		if c.PhaseInstance == 0 {
			return malformed("status", "is of an attempt, and the callback is of a resource")
		}
	case "":
		if len(c.Attributes) == 0 {
			return missing("status")
		}
	default:
		return malformed("status", "is none of DE, RE, ER")
	}
	size := 0
	for name, value := range c.Attributes {
		if size += len(name) + len(value); size > CallbackDataBytesMax {
			return tooLarge("attributes", CallbackDataBytesMax)
		}
		canonical, err := strictjson.Canonical([]byte(value))
		if err != nil {
			return malformed(strictjson.Field("attributes", name), err.Error())
		}
		c.Attributes[name] = string(canonical)
	}
	return nil
}
