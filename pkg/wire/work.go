package wire

import (
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
	agentv1 "github.com/droverproject/drover/proto/gen/drover/agent/v1"
)

// Work is the order to carry out one phase of one resource.
type Work struct {
	Fence           resource.Fence // what the result must repeat
	ResultSubject   string         // where the result goes
	Deadline        time.Time      // of the attempt; zero: none
	SpecDigest      string         // spec that the hand-out is for
	BlueprintDigest string         // blueprint that the job pinned
	WasDeployed     bool           // the same target was reached before
	Partition       int
	LifecycleState  string         // state that the phase runs for
	State           resource.State // of the resource
	Poll            bool           // a repeated call of a Sleeping phase
}

// DecodeWork reads a work item. With an empty poll, body is the event that handed it out. Otherwise poll is the name of
// a Sleeping phase and body is the resource's last event, whose PhaseRun says the fence.
func DecodeWork(body []byte, poll string) (Work, error) {
	e, err := DecodeResource(body)
	if err != nil {
		return Work{}, err
	}
	w := Work{
		ResultSubject: e.ResultSubject, SpecDigest: e.State.SpecDigest, WasDeployed: e.State.WasDeployed,
		Partition: e.Partition, Poll: poll != "",
	}
	if w.Poll {
		run := e.State.Phase(poll)
		if run == nil {
			return Work{}, malformed("state.phases", "no phase of the name of the poll")
		}
		if run.Status != resource.Sleeping {
			return Work{}, malformed("state.phases", "the phase of the poll is not Sleeping")
		}
		w.Fence = resource.Fence{
			UID: e.State.UID, JobID: run.JobID, Phase: run.Name, Attempt: run.Attempt, Call: run.Call,
		}
		w.Deadline, w.LifecycleState = run.Deadline, run.State
		if err := complete("poll.", w.ResultSubject, &w.Fence); err != nil {
			return Work{}, err
		}
	} else {
		d := e.Event.Dispatch
		if d == nil {
			return Work{}, missing("work")
		}
		w.Fence, w.Deadline, w.LifecycleState = d.Fence, d.Deadline, d.State
	}
	w.BlueprintDigest = blueprintOf(&e.State, w.Fence.JobID)
	w.State = e.State
	return w, nil
}

// HandedOut names the phases that wait for a worker's answer, by a resource's last event: what WORK must hold, but for polls,
// which their owner hands out when they are due.
func HandedOut(event []byte) ([]string, error) {
	e, err := DecodeResource(event)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range e.State.Phases {
		p := &e.State.Phases[i]
		if p.InFlight && !p.Children && (p.Status == resource.Waiting || p.Status == resource.Running) {
			names = append(names, p.Name)
		}
	}
	return names, nil
}

// complete says what a hand-out lacks. An answer to it would reach nobody, or be refused.
func complete(path, subject string, f *resource.Fence) error {
	if subject == "" {
		return missing(path + "resultSubject")
	}
	return fenced(path+"fence", f)
}

func fenced(path string, f *resource.Fence) error {
	switch {
	case f.UID == "":
		return missing(path + ".uid")
	case f.JobID == "":
		return missing(path + ".jobId")
	case f.Phase == "":
		return missing(path + ".phase")
	}
	return nil
}

func fenceToProto(f *resource.Fence) *agentv1.Fence {
	return &agentv1.Fence{Uid: f.UID, JobId: f.JobID, Phase: f.Phase, Attempt: f.Attempt, Call: f.Call}
}

func fenceFromProto(m *agentv1.Fence) resource.Fence {
	return resource.Fence{
		UID: m.GetUid(), JobID: m.GetJobId(), Phase: m.GetPhase(), Attempt: m.GetAttempt(), Call: m.GetCall(),
	}
}

// OutputLine is one line that a phase printed.
type OutputLine struct {
	Fence  resource.Fence
	Time   time.Time // clock of the runner
	Stream string    // "stdout", "stderr", or "runner" for what the runner itself says
	Text   string    // without its line end
}

// cutMark ends a line that was cut.
const cutMark = " …[cut]"

// EncodeOutputLine cuts the text at OutputTextBytesMax, and marks that it did.
func EncodeOutputLine(l OutputLine) ([]byte, error) {
	if err := timed(l.Time); err != nil {
		return nil, err
	}
	line := text(l.Text)
	if len(line) > OutputTextBytesMax {
		line = strings.ToValidUTF8(line[:OutputTextBytesMax-len(cutMark)], "") + cutMark
	}
	return marshal(&agentv1.OutputLine{
		Fence: fenceToProto(&l.Fence), Time: stamp(l.Time), Stream: l.Stream, Text: line,
	})
}

// DecodeOutputLine is the inverse of EncodeOutputLine.
func DecodeOutputLine(body []byte) (l OutputLine, err error) {
	m := new(agentv1.OutputLine)
	if err := unmarshal(body, m); err != nil {
		return l, err
	}
	if len(m.Text) > OutputTextBytesMax {
		return l, tooLarge("text", OutputTextBytesMax)
	}
	l = OutputLine{Fence: fenceFromProto(m.Fence), Stream: m.Stream, Text: m.Text}
	if l.Time, err = instant("time", m.Time); err != nil {
		return l, err
	}
	if l.Time.IsZero() {
		return l, missing("time")
	}
	return l, nil
}
