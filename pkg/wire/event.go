package wire

import (
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	agentv1 "github.com/droverproject/drover/proto/gen/drover/agent/v1"
	eventv1 "github.com/droverproject/drover/proto/gen/drover/event/v1"
	statev1 "github.com/droverproject/drover/proto/gen/drover/state/v1"
)

// Families of events, as Event.family says them.
const (
	familyResource  = "resource"
	familyJob       = "job"
	familySpec      = "spec"
	familyBlueprint = "blueprint"
	familyPhase     = "phase"
)

// ResourceEvent is one transition of a resource, with the state after it.
type ResourceEvent struct {
	Event resource.Event
	State resource.State // after
	At    time.Time      // when the server stored the input
	// ResultSubject and Partition say where results go. Set them on every event: they travel where an executor will
	// need them, which is where the event hands out a phase, and where a phase is Sleeping, because a poll's body is
	// the resource's last event. Elsewhere they are dropped.
	ResultSubject string
	Partition     int
}

// EncodeResource returns the same bytes for the same event.
func EncodeResource(e ResourceEvent) ([]byte, error) {
	if err := timed(e.At); err != nil {
		return nil, err
	}
	state, err := resourceToProto(&e.State, e.Partition)
	if err != nil {
		return nil, err
	}
	if e.Partition < 0 || e.Partition > partitionsMax {
		return nil, malformed("partition", "is out of range")
	}
	m := &eventv1.Event{
		Family: familyResource, Project: e.State.Project, Kind: e.State.Kind, Name: e.State.Name,
		From: e.Event.From, To: e.Event.To, Cause: causeToProto(&e.Event.Cause), JobId: e.Event.JobID,
		Time: stamp(e.At), Revision: e.State.Revision, State: &eventv1.Event_Resource{Resource: state},
	}
	switch d := e.Event.Dispatch; {
	case d != nil:
		if err := complete("work.", e.ResultSubject, &d.Fence); err != nil {
			return nil, err
		}
		if err := inRange("work.deadline", d.Deadline); err != nil {
			return nil, err
		}
		m.Work = &agentv1.Work{
			Fence: fenceToProto(&d.Fence), ResultSubject: e.ResultSubject, Deadline: stamp(d.Deadline),
			SpecDigest: e.State.SpecDigest, BlueprintDigest: blueprintOf(&e.State, d.Fence.JobID),
			WasDeployed: e.State.WasDeployed, Partition: uint32(e.Partition), State: d.State,
		}
	case sleeping(&e.State):
		m.ResultSubject, m.Partition = e.ResultSubject, uint32(e.Partition)
	}
	return marshal(m)
}

// DecodeResource is the inverse of EncodeResource. Where the error is ErrUnknown, the event's key, uid and
// State.MinReader are set, so that the reader can see that it is the older one.
func DecodeResource(body []byte) (ResourceEvent, error) {
	m, err := decodeEvent(body, familyResource)
	if err != nil {
		return ResourceEvent{}, err
	}
	return resourceEvent(m)
}

func resourceEvent(m *eventv1.Event) (e ResourceEvent, err error) {
	state := m.GetResource()
	if state == nil {
		return e, missing("state")
	}
	if e.At, err = instant("time", m.Time); err != nil {
		return e, err
	}
	key := resource.Key{Project: m.Project, Kind: m.Kind, Name: m.Name}
	if e.State, err = resourceFromProto(key, state); err != nil {
		return e, err
	}
	e.Event = resource.Event{From: m.From, To: m.To, Cause: causeFromProto(m.Cause), JobID: m.JobId}
	partition := m.Partition
	e.ResultSubject = m.ResultSubject
	if w := m.Work; w != nil {
		d := &resource.Dispatch{Fence: fenceFromProto(w.Fence), State: w.State}
		if d.Deadline, err = instant("work.deadline", w.Deadline); err != nil {
			return e, err
		}
		if err := complete("work.", w.ResultSubject, &d.Fence); err != nil {
			return e, err
		}
		e.Event.Dispatch, e.ResultSubject, partition = d, w.ResultSubject, w.Partition
	} else if !sleeping(&e.State) {
		e.ResultSubject, partition = "", 0
	}
	if partition > partitionsMax {
		return e, malformed("partition", "is out of range")
	}
	e.Partition = int(partition)
	return e, nil
}

// partitionsMax is far above any system's number of partitions; it keeps the number within an int on all machines.
const partitionsMax = 1 << 16

func sleeping(s *resource.State) bool {
	for i := range s.Phases {
		if s.Phases[i].Status == resource.Sleeping {
			return true
		}
	}
	return false
}

// blueprintOf is the digest that the job pinned, or, for a job that pinned none (a retry), the one that the phases
// follow.
func blueprintOf(s *resource.State, jobID string) string {
	if j := s.JobByID(jobID); j != nil && j.Blueprint != "" {
		return j.Blueprint
	}
	if j := s.FlowJob(); j != nil {
		return j.Blueprint
	}
	return ""
}

// JobEvent is one transition of a job's own record.
type JobEvent struct {
	From        job.State // job.None for the first
	Record      job.Record
	At          time.Time
	Traceparent string
}

// EncodeJob returns the same bytes for the same event.
func EncodeJob(e JobEvent) ([]byte, error) {
	if err := timed(e.At); err != nil {
		return nil, err
	}
	r := &e.Record
	state := &statev1.Job{
		Job: &statev1.JobRef{}, Kind: r.Kind, Name: r.Name, Uid: r.UID, ResourceRevision: r.ResourceRevision,
		MinReader: r.MinReader, Revision: r.Revision, Gone: r.Gone,
	}
	if err := refToProto(&r.Ref, state.Job); err != nil {
		return nil, within("state.job", err)
	}
	var err error
	if state.Selection, err = selectionToProto(r.Selection); err != nil {
		return nil, within("state.selection", err)
	}
	if int(e.From) >= len(jobStates) {
		return nil, unknown("from", int32(e.From))
	}
	return marshal(&eventv1.Event{
		Family: familyJob, Project: r.Project, Kind: r.Kind, Name: r.ID, From: e.From.String(), To: r.State.String(),
		Cause: &eventv1.Cause{Kind: "derived", Traceparent: e.Traceparent}, JobId: r.ID, Time: stamp(e.At),
		Revision: r.Revision, State: &eventv1.Event_Job{Job: state},
	})
}

// DecodeJob is the inverse of EncodeJob.
func DecodeJob(body []byte) (e JobEvent, err error) {
	m, err := decodeEvent(body, familyJob)
	if err != nil {
		return e, err
	}
	state := m.GetJob()
	if state == nil || state.Job == nil {
		return e, missing("state")
	}
	if e.At, err = instant("time", m.Time); err != nil {
		return e, err
	}
	if e.From, err = jobState("from", m.From); err != nil {
		return e, err
	}
	e.Record = job.Record{
		Project: m.Project, Kind: state.Kind, Name: state.Name, UID: state.Uid,
		ResourceRevision: state.ResourceRevision, Revision: state.Revision, MinReader: state.MinReader, Gone: state.Gone,
	}
	if err = refFromProto(state.Job, &e.Record.Ref); err != nil {
		return e, within("state.job", err)
	}
	if e.Record.Selection, err = selectionFromProto(state.Selection); err != nil {
		return e, within("state.selection", err)
	}
	e.Traceparent = m.GetCause().GetTraceparent()
	return e, nil
}

// SpecEvent brings one version of a resource's spec into the log.
type SpecEvent struct {
	Key          resource.Key
	Digest, JSON string
	At           time.Time
}

// EncodeSpec returns the same bytes for the same event.
func EncodeSpec(e SpecEvent) ([]byte, error) {
	if err := timed(e.At); err != nil {
		return nil, err
	}
	if e.Digest == "" {
		return nil, missing("state.digest")
	}
	if len(e.JSON) > resource.SpecBytesMax {
		return nil, tooLarge("state.json", resource.SpecBytesMax)
	}
	return marshal(&eventv1.Event{
		Family: familySpec, Project: e.Key.Project, Kind: e.Key.Kind, Name: e.Key.Name, Time: stamp(e.At),
		State: &eventv1.Event_Spec{Spec: &statev1.Spec{Digest: e.Digest, Json: e.JSON}},
	})
}

// DecodeSpec is the inverse of EncodeSpec.
func DecodeSpec(body []byte) (e SpecEvent, err error) {
	m, err := decodeEvent(body, familySpec)
	if err != nil {
		return e, err
	}
	state := m.GetSpec()
	if state == nil {
		return e, missing("state")
	}
	if state.Digest == "" {
		return e, missing("state.digest")
	}
	if len(state.Json) > resource.SpecBytesMax {
		return e, tooLarge("state.json", resource.SpecBytesMax)
	}
	e = SpecEvent{
		Key: resource.Key{Project: m.Project, Kind: m.Kind, Name: m.Name}, Digest: state.Digest, JSON: state.Json,
	}
	e.At, err = instant("time", m.Time)
	return e, err
}

// BlueprintEvent brings one version of a kind's blueprint into the log, or says that the blueprint is gone.
type BlueprintEvent struct {
	Project, Kind, Digest, JSON string
	Generation                  uint64
	// Deletion is the job that was last asked to delete it; nil: none since this version came.
	Deletion *job.Ref
	Gone     bool
	At       time.Time
}

// EncodeBlueprint returns the same bytes for the same event.
func EncodeBlueprint(e BlueprintEvent) ([]byte, error) {
	if err := timed(e.At); err != nil {
		return nil, err
	}
	if e.Digest == "" {
		return nil, missing("state.digest")
	}
	if len(e.JSON) > resource.SpecBytesMax {
		return nil, tooLarge("state.json", resource.SpecBytesMax)
	}
	var deletion *statev1.JobRef
	if e.Deletion != nil {
		deletion = &statev1.JobRef{}
		if err := refToProto(e.Deletion, deletion); err != nil {
			return nil, within("state.deletion", err)
		}
	}
	return marshal(&eventv1.Event{
		Family: familyBlueprint, Project: e.Project, Kind: e.Kind, Time: stamp(e.At), Revision: e.Generation,
		State: &eventv1.Event_Blueprint{Blueprint: &statev1.Blueprint{
			Digest: e.Digest, Json: e.JSON, Generation: e.Generation, MinReader: resource.ReaderFirst, Gone: e.Gone,
			Deletion: deletion,
		}},
	})
}

// DecodeBlueprint is the inverse of EncodeBlueprint. ErrUnknown means that a newer Drover wrote it, and that this one
// must not decide with it.
func DecodeBlueprint(body []byte) (e BlueprintEvent, err error) {
	m, err := decodeEvent(body, familyBlueprint)
	if err != nil {
		return e, err
	}
	state := m.GetBlueprint()
	if state == nil {
		return e, missing("state")
	}
	if state.MinReader > resource.ReaderVersion {
		return e, unknown("state.minReader", int32(min(state.MinReader, 1<<30)))
	}
	if state.Digest == "" {
		return e, missing("state.digest")
	}
	if len(state.Json) > resource.SpecBytesMax {
		return e, tooLarge("state.json", resource.SpecBytesMax)
	}
	e = BlueprintEvent{
		Project: m.Project, Kind: m.Kind, Digest: state.Digest, JSON: state.Json, Generation: state.Generation,
		Gone: state.Gone,
	}
	if state.Deletion != nil {
		e.Deletion = &job.Ref{}
		if err = refFromProto(state.Deletion, e.Deletion); err != nil {
			return e, within("state.deletion", err)
		}
	}
	e.At, err = instant("time", m.Time)
	return e, err
}

func decodeEvent(body []byte, family string) (*eventv1.Event, error) {
	m := new(eventv1.Event)
	if err := unmarshal(body, m); err != nil {
		return nil, err
	}
	switch {
	case m.Family == "":
		return nil, missing("family")
	case m.Family != family:
		return nil, malformed("family", "is not "+family)
	case m.Time == nil || m.Time.Seconds == secondsMin && m.Time.Nanos == 0:
		return nil, missing("time")
	}
	return m, nil
}

func timed(at time.Time) error {
	if at.IsZero() {
		return missing("time")
	}
	return inRange("time", at)
}

func causeToProto(c *resource.Cause) *eventv1.Cause {
	if *c == (resource.Cause{}) {
		return nil
	}
	return &eventv1.Cause{
		Kind: c.Kind, Verb: c.Verb, Phase: c.Phase, Outcome: c.Outcome, Message: text(c.Message),
		RequestedBy: text(c.RequestedBy), Traceparent: text(c.Traceparent),
	}
}

func causeFromProto(m *eventv1.Cause) resource.Cause {
	return resource.Cause{
		Kind: m.GetKind(), Verb: m.GetVerb(), Phase: m.GetPhase(), Outcome: m.GetOutcome(), Message: m.GetMessage(),
		RequestedBy: m.GetRequestedBy(), Traceparent: m.GetTraceparent(),
	}
}
