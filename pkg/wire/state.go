package wire

import (
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	statev1 "github.com/droverproject/drover/proto/gen/drover/state/v1"
)

// resourceToProto does not write the Key: it is in the event. The partition is a part of the ids of transactions.
func resourceToProto(s *resource.State, partition int) (*statev1.Resource, error) {
	if s.UID == "" {
		return nil, missing("state.uid")
	}
	if err := inRange("state.times", s.DeletedAt, s.CreatedAt, s.UpdatedAt); err != nil {
		return nil, err
	}
	m := &statev1.Resource{
		MinReader: s.MinReader, Uid: s.UID, Generation: s.Generation, Revision: s.Revision, SpecDigest: s.SpecDigest,
		Labels: s.Labels, Attributes: s.Attributes, State: s.State, Target: s.Target, PhaseFailed: s.PhaseFailed,
		WasDeployed: s.WasDeployed, DeletionTime: stamp(s.DeletedAt), CreatedTime: stamp(s.CreatedAt),
		UpdatedTime: stamp(s.UpdatedAt), Cluster: s.Cluster, Gone: s.Gone, Separate: s.Separate,
		SucceededOnce: s.SucceededOnce, ObservedGeneration: s.ObservedGeneration,
		Parent: parentToProto(&s.Parent), Children: broodToProto(&s.Children),
	}
	if len(s.Phases) > 0 {
		runs := make([]statev1.PhaseRun, len(s.Phases)) // one allocation for all
		m.Phases = make([]*statev1.PhaseRun, len(s.Phases))
		for i := range s.Phases {
			m.Phases[i] = &runs[i]
			if err := phaseToProto(&s.Phases[i], &runs[i]); err != nil {
				return nil, within(index("state.phases", i), err)
			}
		}
	}
	if len(s.Jobs) > 0 {
		refs := make([]statev1.JobRef, len(s.Jobs))
		m.Jobs = make([]*statev1.JobRef, len(s.Jobs))
		for i := range s.Jobs {
			m.Jobs[i] = &refs[i]
			if err := refToProto(&s.Jobs[i], &refs[i]); err != nil {
				return nil, within(index("state.jobs", i), err)
			}
		}
	}
	for i := range s.Transactions {
		t, err := transactionToProto(&s.Transactions[i], s.UID, partition)
		if err != nil {
			return nil, within(index("state.transactions", i), err)
		}
		m.Transactions = append(m.Transactions, t)
	}
	return m, nil
}

func resourceFromProto(key resource.Key, m *statev1.Resource) (s resource.State, err error) {
	s = resource.State{
		Key: key, MinReader: m.MinReader, UID: m.Uid, Generation: m.Generation, Revision: m.Revision,
		SpecDigest: m.SpecDigest, Cluster: m.Cluster, Labels: present(m.Labels), Attributes: present(m.Attributes),
		State: m.State, Target: m.Target, PhaseFailed: m.PhaseFailed, WasDeployed: m.WasDeployed, Gone: m.Gone,
		Separate: m.Separate, SucceededOnce: m.SucceededOnce, ObservedGeneration: m.ObservedGeneration,
		Parent: parentFromProto(m.Parent), Children: broodFromProto(m.Children),
	}
	if s.UID == "" {
		return s, missing("state.uid")
	}
	if s.DeletedAt, err = instant("state.deletionTime", m.DeletionTime); err != nil {
		return s, err
	}
	if s.CreatedAt, err = instant("state.createdTime", m.CreatedTime); err != nil {
		return s, err
	}
	if s.UpdatedAt, err = instant("state.updatedTime", m.UpdatedTime); err != nil {
		return s, err
	}
	if len(m.Phases) > 0 {
		s.Phases = make([]resource.PhaseRun, len(m.Phases))
		for i, p := range m.Phases {
			if err := phaseFromProto(p, &s.Phases[i]); err != nil {
				return s, within(index("state.phases", i), err)
			}
		}
	}
	if len(m.Jobs) > 0 {
		s.Jobs = make([]job.Ref, len(m.Jobs))
		for i, r := range m.Jobs {
			if err := refFromProto(r, &s.Jobs[i]); err != nil {
				return s, within(index("state.jobs", i), err)
			}
		}
	}
	if len(m.Transactions) > 0 {
		s.Transactions = make([]resource.Transaction, len(m.Transactions))
		for i, t := range m.Transactions {
			if err := transactionFromProto(t, &s.Transactions[i]); err != nil {
				return s, within(index("state.transactions", i), err)
			}
		}
	}
	return s, nil
}

func transactionToProto(t *resource.Transaction, uid string, partition int) (*statev1.Transaction, error) {
	if t.Phase == "" {
		return nil, missing("phase")
	}
	if err := inRange("times", t.Began, t.Ended); err != nil {
		return nil, err
	}
	m := &statev1.Transaction{
		Id: TransactionID(partition, resource.Fence{UID: uid, JobID: t.JobID, Phase: t.Phase, Attempt: t.Attempt}), Phase: t.Phase, Attempt: t.Attempt, JobId: t.JobID, Verb: t.Verb,
		Calls: t.Calls, BeganTime: stamp(t.Began), EndedTime: stamp(t.Ended),
	}
	if t.Outcome != resource.NoStatus {
		var err error
		if m.Outcome, err = toEnum("outcome", statuses[:], t.Outcome); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func transactionFromProto(m *statev1.Transaction, t *resource.Transaction) (err error) {
	if m.Phase == "" {
		return missing("phase")
	}
	*t = resource.Transaction{Phase: m.Phase, Attempt: m.Attempt, JobID: m.JobId, Verb: m.Verb, Calls: m.Calls}
	if m.Outcome != statev1.PhaseStatus_PHASE_STATUS_UNSPECIFIED {
		if t.Outcome, err = fromEnum[resource.Status]("outcome", statuses[:], m.Outcome); err != nil {
			return err
		}
	}
	if t.Began, err = instant("beganTime", m.BeganTime); err != nil {
		return err
	}
	t.Ended, err = instant("endedTime", m.EndedTime)
	return err
}

// parentToProto is nil for a root.
func parentToProto(p *resource.Parent) *statev1.Parent {
	if p.Kind == "" && p.Name == "" && p.UID == "" && p.RootKind == "" && p.Item == "" && p.Index == 0 && len(p.DependsOn) == 0 && !p.OnChangeOnly && p.Revision == 0 {
		return nil
	}
	return &statev1.Parent{
		Kind: p.Kind, Name: p.Name, Uid: p.UID, RootKind: p.RootKind, Item: p.Item, Index: p.Index, DependsOn: p.DependsOn,
		OnChangeOnly: p.OnChangeOnly, Revision: p.Revision,
	}
}

func parentFromProto(m *statev1.Parent) resource.Parent {
	if m == nil {
		return resource.Parent{}
	}
	p := resource.Parent{
		Kind: m.Kind, Name: m.Name, UID: m.Uid, RootKind: m.RootKind, Item: m.Item, Index: m.Index, OnChangeOnly: m.OnChangeOnly,
		Revision: m.Revision,
	}
	if len(m.DependsOn) > 0 {
		p.DependsOn = m.DependsOn
	}
	return p
}

// broodToProto is nil where there are no children.
func broodToProto(b *resource.Brood) *statev1.Brood {
	if *b == (resource.Brood{}) {
		return nil
	}
	return &statev1.Brood{
		Items: b.Items, Cursor: b.Cursor, Applied: b.Applied, Waiting: b.Waiting, Runnable: b.Runnable, Running: b.Running,
		Failed: b.Failed, Succeeded: b.Succeeded, Marked: b.Marked,
	}
}

func broodFromProto(m *statev1.Brood) resource.Brood {
	return resource.Brood{
		Items: m.GetItems(), Cursor: m.GetCursor(), Applied: m.GetApplied(), Waiting: m.GetWaiting(), Runnable: m.GetRunnable(),
		Running: m.GetRunning(), Failed: m.GetFailed(), Succeeded: m.GetSucceeded(), Marked: m.GetMarked(),
	}
}

func phaseToProto(p *resource.PhaseRun, m *statev1.PhaseRun) (err error) {
	if m.Status, err = toEnum("status", statuses[:], p.Status); err != nil {
		return err
	}
	if p.Name == "" {
		return missing("name")
	}
	if p.Interval < 0 {
		return malformed("interval", "is negative")
	}
	if err := inRange("times", p.Since, p.Due, p.Deadline); err != nil {
		return err
	}
	m.Name, m.State, m.JobId = p.Name, p.State, p.JobID
	m.Attempt, m.Call, m.InFlight = p.Attempt, p.Call, p.InFlight
	m.Since, m.Due, m.Deadline = stamp(p.Since), stamp(p.Due), stamp(p.Deadline)
	m.Message, m.Data, m.Outputs = text(p.Message), p.Data, p.Outputs
	m.Retrying, m.Retries, m.Interval = p.Retrying, p.Retries, span(p.Interval)
	m.Undo, m.Children, m.Callback = p.Undo, p.Children, p.Callback
	return nil
}

func phaseFromProto(m *statev1.PhaseRun, p *resource.PhaseRun) (err error) {
	if p.Status, err = fromEnum[resource.Status]("status", statuses[:], m.Status); err != nil {
		return err
	}
	if m.Name == "" {
		return missing("name")
	}
	p.Name, p.State, p.JobID = m.Name, m.State, m.JobId
	p.Attempt, p.Call, p.InFlight = m.Attempt, m.Call, m.InFlight
	p.Message, p.Data, p.Outputs = m.Message, present(m.Data), present(m.Outputs)
	p.Retrying, p.Retries, p.Undo, p.Children, p.Callback = m.Retrying, m.Retries, m.Undo, m.Children, m.Callback
	if p.Since, err = instant("since", m.Since); err != nil {
		return err
	}
	if p.Due, err = instant("due", m.Due); err != nil {
		return err
	}
	if p.Deadline, err = instant("deadline", m.Deadline); err != nil {
		return err
	}
	p.Interval, err = lasting("interval", m.Interval)
	return err
}

func refToProto(r *job.Ref, m *statev1.JobRef) (err error) {
	if m.State, err = toEnum("state", jobStates[:], r.State); err != nil {
		return err
	}
	if r.ID == "" {
		return missing("id")
	}
	if err := inRange("times", r.AcceptedAt, r.StartedAt, r.EndedAt); err != nil {
		return err
	}
	m.Id, m.RequestId, m.Digest, m.Verb = r.ID, r.RequestID, r.Digest, r.Verb
	m.Target, m.BlueprintDigest, m.Flow = r.Target, r.Blueprint, r.Flow
	m.Generation, m.Handed, m.Selection = r.Generation, r.Handed, r.Selection
	m.AcceptedTime, m.StartedTime, m.EndedTime = stamp(r.AcceptedAt), stamp(r.StartedAt), stamp(r.EndedAt)
	m.Message, m.RequestedBy, m.Canceling = text(r.Message), text(r.RequestedBy), r.Canceling
	return nil
}

func refFromProto(m *statev1.JobRef, r *job.Ref) (err error) {
	if r.State, err = fromEnum[job.State]("state", jobStates[:], m.State); err != nil {
		return err
	}
	if m.Id == "" {
		return missing("id")
	}
	r.ID, r.RequestID, r.Digest, r.Verb = m.Id, m.RequestId, m.Digest, m.Verb
	r.Target, r.Blueprint, r.Flow = m.Target, m.BlueprintDigest, m.Flow
	r.Generation, r.Handed, r.Selection = m.Generation, m.Handed, m.Selection
	r.Message, r.RequestedBy, r.Canceling = m.Message, m.RequestedBy, m.Canceling
	if r.AcceptedAt, err = instant("acceptedTime", m.AcceptedTime); err != nil {
		return err
	}
	if r.StartedAt, err = instant("startedTime", m.StartedTime); err != nil {
		return err
	}
	r.EndedAt, err = instant("endedTime", m.EndedTime)
	return err
}

// present makes the empty map and the missing one the same.
func present(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return m
}
