package host

import "go.uber.org/zap"

// Keys of log fields. One thing has one key everywhere, so that a line of one service can be found from another's.
const (
	KeyService   = "service"
	KeyID        = "id"
	KeyComponent = "component"
	KeyAddress   = "address"
	KeyPartition = "partition"
	KeyResource  = "resource"
	KeyJob       = "job"
	KeyPhase     = "phase"
	KeyKind      = "kind"
	KeyVerb      = "verb"
	KeyRevision  = "revision"
	KeyAttempt   = "attempt"
	KeyRequest   = "request"
	KeySubject   = "subject"
	KeyStream    = "stream"
	KeySequence  = "sequence"
	KeyReason    = "reason"
)

// Component names a part of a service.
func Component(name string) zap.Field { return zap.String(KeyComponent, name) }

// Address is a host and port.
func Address(address string) zap.Field { return zap.String(KeyAddress, address) }

// Partition is a partition's number.
func Partition(partition int) zap.Field { return zap.Int(KeyPartition, partition) }

// Resource is project/kind/name, as people write it.
func Resource(project, kind, name string) zap.Field {
	return zap.String(KeyResource, project+"/"+kind+"/"+name)
}

// Job is a job's id.
func Job(id string) zap.Field { return zap.String(KeyJob, id) }

// Phase is a phase's name.
func Phase(name string) zap.Field { return zap.String(KeyPhase, name) }

// Kind is a kind of resource.
func Kind(kind string) zap.Field { return zap.String(KeyKind, kind) }

// Verb is a command's verb.
func Verb(verb string) zap.Field { return zap.String(KeyVerb, verb) }

// Revision is a resource's revision.
func Revision(revision uint64) zap.Field { return zap.Uint64(KeyRevision, revision) }

// Attempt counts from 1.
func Attempt(attempt uint32) zap.Field { return zap.Uint32(KeyAttempt, attempt) }

// Request is a request's id.
func Request(id string) zap.Field { return zap.String(KeyRequest, id) }

// Subject is a subject as it is on the wire.
func Subject(subject string) zap.Field { return zap.String(KeySubject, subject) }

// Stream is a stream's name.
func Stream(name string) zap.Field { return zap.String(KeyStream, name) }

// Sequence is a sequence in a stream.
func Sequence(sequence uint64) zap.Field { return zap.Uint64(KeySequence, sequence) }

// Reason says why, from a closed set or in words.
func Reason(reason string) zap.Field { return zap.String(KeyReason, reason) }
