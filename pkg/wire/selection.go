package wire

import (
	"github.com/droverproject/drover/pkg/engine/job"
	statev1 "github.com/droverproject/drover/proto/gen/drover/state/v1"
)

// selectionToProto is nil for a job that is none.
func selectionToProto(s *job.Selection) (*statev1.Selection, error) {
	if s == nil {
		return nil, nil
	}
	stage, err := toEnum("stage", stages[:], s.Stage)
	if err != nil {
		return nil, err
	}
	if err := inRange("times", s.WalkedAt, s.UpdatedAt); err != nil {
		return nil, err
	}
	m := &statev1.Selection{
		Selector: s.Selector, Args: s.Args, Stage: stage, Cursor: s.Cursor, Matched: s.Matched, Accepted: s.Accepted,
		Refused: s.Refused, Succeeded: s.Succeeded, Failed: s.Failed, Canceled: s.Canceled, Cascade: s.Cascade,
		CancelMessage: text(s.CancelMessage), Waits: text(s.Waits), WalkedTime: stamp(s.WalkedAt), UpdatedTime: stamp(s.UpdatedAt),
	}
	for _, r := range s.Refusals {
		m.Refusals = append(m.Refusals, &statev1.SelectionRefusal{Name: r.Name, Code: r.Code, Message: text(r.Message)})
	}
	return m, nil
}

func selectionFromProto(m *statev1.Selection) (*job.Selection, error) {
	if m == nil {
		return nil, nil
	}
	stage, err := fromEnum[job.Stage]("stage", stages[:], m.Stage)
	if err != nil {
		return nil, err
	}
	s := &job.Selection{
		Selector: m.Selector, Args: present(m.Args), Stage: stage, Cursor: m.Cursor, Matched: m.Matched, Accepted: m.Accepted,
		Refused: m.Refused, Succeeded: m.Succeeded, Failed: m.Failed, Canceled: m.Canceled, Cascade: m.Cascade,
		CancelMessage: m.CancelMessage, Waits: m.Waits,
	}
	for _, r := range m.Refusals {
		s.Refusals = append(s.Refusals, job.Refusal{Name: r.GetName(), Code: r.GetCode(), Message: r.GetMessage()})
	}
	if s.WalkedAt, err = instant("walkedTime", m.WalkedTime); err != nil {
		return nil, err
	}
	s.UpdatedAt, err = instant("updatedTime", m.UpdatedTime)
	return s, err
}
