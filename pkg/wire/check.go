package wire

import (
	"encoding/json"
	"time"

	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	eventv1 "github.com/droverproject/drover/proto/gen/drover/event/v1"
	statev1 "github.com/droverproject/drover/proto/gen/drover/state/v1"
)

const (
	familyCheck      = "check"
	familyInstance   = "instance"
	familyDeployment = "deployment"
)

// DetailsBytesMax is how large the deployment details of one configuration may be, in bytes of JSON.
const DetailsBytesMax = 256 << 10

// CheckEvent is one transition of a check configuration or of what it stands on.
type CheckEvent struct {
	State check.State // after
	Gone  bool
	JobID string
	Cause resource.Cause
	At    time.Time
}

// EncodeCheck returns the same bytes for the same event.
func EncodeCheck(e CheckEvent) ([]byte, error) {
	s := &e.State
	if err := timed(e.At); err != nil {
		return nil, err
	}
	if err := inRange("times", s.DeletedAt, s.CreatedAt, s.UpdatedAt); err != nil {
		return nil, err
	}
	if len(s.Spec)+len(s.Pins) > resource.SpecBytesMax {
		return nil, tooLarge("state.spec", resource.SpecBytesMax)
	}
	m := &statev1.Check{
		Kind: s.Kind, Name: s.Name, Uid: s.UID, Spec: s.Spec, Pins: s.Pins, Generation: s.Generation, Observed: s.Observed,
		DeletedTime: stamp(s.DeletedAt), CreatedTime: stamp(s.CreatedAt), UpdatedTime: stamp(s.UpdatedAt),
		MinReader: check.ReaderFirst, Gone: e.Gone,
	}
	for i := range s.Jobs {
		ref := &statev1.JobRef{}
		if err := refToProto(&s.Jobs[i], ref); err != nil {
			return nil, within(index("state.jobs", i), err)
		}
		m.Jobs = append(m.Jobs, ref)
	}
	return marshal(&eventv1.Event{
		Family: familyCheck, Project: s.Project, Kind: s.Kind, Name: s.ID(), Cause: causeToProto(&e.Cause), JobId: e.JobID,
		Time: stamp(e.At), Revision: s.Revision, State: &eventv1.Event_Check{Check: m},
	})
}

// DecodeCheck is the inverse of EncodeCheck. ErrUnknown means that a newer Drover wrote it, and that this one must not decide
// with it.
func DecodeCheck(body []byte) (e CheckEvent, err error) {
	m, err := decodeEvent(body, familyCheck)
	if err != nil {
		return e, err
	}
	s := m.GetCheck()
	if s == nil {
		return e, missing("state")
	}
	if s.MinReader > check.ReaderVersion {
		return e, unknown("state.minReader", int32(min(s.MinReader, 1<<30)))
	}
	if len(s.Spec)+len(s.Pins) > resource.SpecBytesMax {
		return e, tooLarge("state.spec", resource.SpecBytesMax)
	}
	e = CheckEvent{Gone: s.Gone, JobID: m.JobId, Cause: causeFromProto(m.Cause), State: check.State{
		Project: m.Project, Kind: s.Kind, Name: s.Name, UID: s.Uid, Spec: s.Spec, Pins: s.Pins, Generation: s.Generation,
		Observed: s.Observed, Revision: m.Revision,
	}}
	if m.Name != e.State.ID() {
		return CheckEvent{}, malformed("name", "is not kind and name of the state")
	}
	for i, ref := range s.Jobs {
		var r job.Ref
		if err := refFromProto(ref, &r); err != nil {
			return CheckEvent{}, within(index("state.jobs", i), err)
		}
		e.State.Jobs = append(e.State.Jobs, r)
	}
	return e, instants(
		moment{"time", m.Time, &e.At}, moment{"state.deletedTime", s.DeletedTime, &e.State.DeletedAt},
		moment{"state.createdTime", s.CreatedTime, &e.State.CreatedAt}, moment{"state.updatedTime", s.UpdatedTime, &e.State.UpdatedAt})
}

// InstanceEvent is one transition of a check instance. Of its configurations only ID, Version, Status, BlockedOn and Revision
// travel: each has events of its own.
type InstanceEvent struct {
	State deployment.State // after
	Gone  bool
	// From and To are the statuses of the present configuration.
	From, To deployment.Status
	Cause    resource.Cause
	At       time.Time
}

// EncodeInstance returns the same bytes for the same event.
func EncodeInstance(e InstanceEvent) ([]byte, error) {
	s := &e.State
	if err := timed(e.At); err != nil {
		return nil, err
	}
	if err := inRange("times", s.CreatedAt, s.UpdatedAt, s.NotifiedAt); err != nil {
		return nil, err
	}
	m := &statev1.Instance{
		Check: s.Check, CheckUid: s.CheckUID, Object: s.Object, ObjectUid: s.ObjectUID, System: s.System, Generation: s.Generation,
		ObjectRevision: s.ObjectRevision, Current: s.Current, UpdateAvailable: s.UpdateAvailable, Updates: s.Updates,
		Deleted: s.Deleted, Queued: s.Policy.Queued, TaskDelete: s.Policy.TaskDelete, Versions: s.Versions,
		CreatedTime: stamp(s.CreatedAt), UpdatedTime: stamp(s.UpdatedAt), NotifiedTime: stamp(s.NotifiedAt),
		MinReader: deployment.ReaderFirst, Gone: e.Gone,
	}
	for i := range s.Configurations {
		c := &s.Configurations[i]
		status, err := toEnum(index("state.configurations", i)+".status", deploymentStatuses[:], c.Status)
		if err != nil {
			return nil, err
		}
		m.Configurations = append(m.Configurations, &statev1.InstanceConfiguration{
			Id: c.ID, Version: c.Version, Status: status, BlockedOn: c.BlockedOn, Revision: c.Revision,
		})
	}
	return marshal(&eventv1.Event{
		Family: familyInstance, Project: s.Project, Name: s.ID, From: e.From.String(), To: e.To.String(),
		Cause: causeToProto(&e.Cause), Time: stamp(e.At), Revision: s.Revision, State: &eventv1.Event_Instance{Instance: m},
	})
}

// DecodeInstance is the inverse of EncodeInstance; errors as for DecodeCheck. The state's Configurations have only
// what travels.
func DecodeInstance(body []byte) (e InstanceEvent, err error) {
	m, err := decodeEvent(body, familyInstance)
	if err != nil {
		return e, err
	}
	s := m.GetInstance()
	if s == nil {
		return e, missing("state")
	}
	if s.MinReader > deployment.ReaderVersion {
		return e, unknown("state.minReader", int32(min(s.MinReader, 1<<30)))
	}
	e = InstanceEvent{Gone: s.Gone, Cause: causeFromProto(m.Cause), State: deployment.State{
		Project: m.Project, ID: m.Name,
		Key:        deployment.Key{Check: s.Check, CheckUID: s.CheckUid, Object: s.Object, ObjectUID: s.ObjectUid, System: s.System},
		Generation: s.Generation, ObjectRevision: s.ObjectRevision, Current: s.Current, UpdateAvailable: s.UpdateAvailable,
		Updates: s.Updates, Deleted: s.Deleted, Policy: deployment.Policy{Queued: s.Queued, TaskDelete: s.TaskDelete},
		Versions: s.Versions, Revision: m.Revision,
	}}
	for i, ref := range s.Configurations {
		c := deployment.Configuration{ID: ref.GetId(), Version: ref.GetVersion(), BlockedOn: ref.GetBlockedOn(), Revision: ref.GetRevision()}
		if c.Status, err = fromEnum[deployment.Status](index("state.configurations", i)+".status", deploymentStatuses[:], ref.GetStatus()); err != nil {
			return InstanceEvent{}, err
		}
		e.State.Configurations = append(e.State.Configurations, c)
	}
	if e.From, err = deploymentStatus("from", m.From); err != nil {
		return e, err
	}
	if e.To, err = deploymentStatus("to", m.To); err != nil {
		return e, err
	}
	return e, instants(
		moment{"time", m.Time, &e.At}, moment{"state.createdTime", s.CreatedTime, &e.State.CreatedAt},
		moment{"state.updatedTime", s.UpdatedTime, &e.State.UpdatedAt}, moment{"state.notifiedTime", s.NotifiedTime, &e.State.NotifiedAt})
}

// DeploymentEvent is one transition of a configuration of a check instance.
type DeploymentEvent struct {
	Project, Instance string
	Configuration     deployment.Configuration // after
	Gone              bool
	From              deployment.Status
	Cause             resource.Cause
	At                time.Time
}

// EncodeDeployment returns the same bytes for the same event.
func EncodeDeployment(e DeploymentEvent) ([]byte, error) {
	c := &e.Configuration
	if err := timed(e.At); err != nil {
		return nil, err
	}
	if err := inRange("times", c.CreatedAt, c.Since, c.ActivatedAt, c.DeprovisionedAt); err != nil {
		return nil, err
	}
	if int(c.Status) >= len(deploymentStatuses) || int(c.Next) >= len(deploymentStatuses) {
		return nil, unknown("state.status", int32(max(c.Status, c.Next)))
	}
	details, err := EncodeDetails(c.Details)
	if err != nil {
		return nil, err
	}
	return marshal(&eventv1.Event{
		Family: familyDeployment, Project: e.Project, Name: c.ID, From: e.From.String(), To: c.Status.String(),
		Cause: causeToProto(&e.Cause), Time: stamp(e.At), Revision: c.Revision,
		State: &eventv1.Event_Deployment{Deployment: &statev1.Deployment{
			Instance: e.Instance, Version: c.Version, Status: deploymentStatuses[c.Status], NextStatus: deploymentStatuses[c.Next],
			BlockedOn: c.BlockedOn, Details: string(details), CreatedTime: stamp(c.CreatedAt), SinceTime: stamp(c.Since),
			ActivatedTime: stamp(c.ActivatedAt), DeprovisionedTime: stamp(c.DeprovisionedAt), Gone: e.Gone,
		}},
	})
}

// DecodeDeployment is the inverse of EncodeDeployment.
func DecodeDeployment(body []byte) (e DeploymentEvent, err error) {
	m, err := decodeEvent(body, familyDeployment)
	if err != nil {
		return e, err
	}
	s := m.GetDeployment()
	if s == nil {
		return e, missing("state")
	}
	e = DeploymentEvent{Project: m.Project, Instance: s.Instance, Gone: s.Gone, Cause: causeFromProto(m.Cause)}
	c := &e.Configuration
	c.ID, c.Version, c.BlockedOn, c.Revision = m.Name, s.Version, s.BlockedOn, m.Revision
	if c.Status, err = fromEnum[deployment.Status]("state.status", deploymentStatuses[:], s.Status); err != nil {
		return e, err
	}
	if s.NextStatus != 0 {
		if c.Next, err = fromEnum[deployment.Status]("state.nextStatus", deploymentStatuses[:], s.NextStatus); err != nil {
			return e, err
		}
	}
	if e.From, err = deploymentStatus("from", m.From); err != nil {
		return e, err
	}
	if c.Details, err = DecodeDetails([]byte(s.Details)); err != nil {
		return e, err
	}
	return e, instants(
		moment{"time", m.Time, &e.At}, moment{"state.createdTime", s.CreatedTime, &c.CreatedAt}, moment{"state.sinceTime", s.SinceTime, &c.Since},
		moment{"state.activatedTime", s.ActivatedTime, &c.ActivatedAt}, moment{"state.deprovisionedTime", s.DeprovisionedTime, &c.DeprovisionedAt})
}

// EncodeDetails writes deployment details as a monitoring system reads them. nil is an empty document.
func EncodeDetails(d *deployment.Details) ([]byte, error) {
	if d == nil {
		return nil, nil
	}
	body, err := marshalJSON(d)
	if err != nil {
		return nil, err
	}
	if len(body) > DetailsBytesMax {
		return nil, tooLarge("state.details", DetailsBytesMax)
	}
	return body, nil
}

// DecodeDetails is the inverse of EncodeDetails. It passes over fields that it does not know: a newer Drover may add some.
func DecodeDetails(body []byte) (*deployment.Details, error) {
	if len(body) == 0 {
		return nil, nil
	}
	if len(body) > DetailsBytesMax {
		return nil, tooLarge("state.details", DetailsBytesMax)
	}
	d := new(deployment.Details)
	if err := json.Unmarshal(body, d); err != nil {
		return nil, malformed("state.details", "is not JSON of the right type: "+err.Error())
	}
	return d, nil
}

func deploymentStatus(field, name string) (deployment.Status, error) {
	for _, s := range deployment.Statuses() {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, malformed(field, "is no status of a deployment")
}
