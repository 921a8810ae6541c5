package wire

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	agentv1 "github.com/droverproject/drover/proto/gen/drover/agent/v1"
	eventv1 "github.com/droverproject/drover/proto/gen/drover/event/v1"
	statev1 "github.com/droverproject/drover/proto/gen/drover/state/v1"
)

// PhaseEvent is one transition of a phase's record, with the record after it.
type PhaseEvent struct {
	From  phase.Activity // phase.None for the first
	State phase.State
	At    time.Time
}

// EncodePhase returns the same bytes for the same event.
func EncodePhase(e PhaseEvent) ([]byte, error) {
	if err := timed(e.At); err != nil {
		return nil, err
	}
	s := &e.State
	if err := inRange("state", s.ActiveSince, s.LastCallAt, s.WakeAt, s.WakeUntil, s.UpdatedAt); err != nil {
		return nil, err
	}
	activity, err := toEnum("state.activity", activities[:], s.Activity)
	if err != nil {
		return nil, err
	}
	m := &statev1.PhaseRecord{
		Activity: activity, ActiveSince: stamp(s.ActiveSince), Before: countsToProto(s.Before), LastCallTime: stamp(s.LastCallAt),
		WakeTime: stamp(s.WakeAt), WakeUntilTime: stamp(s.WakeUntil), UpdatedTime: stamp(s.UpdatedAt), MinReader: resource.ReaderFirst, Lease: span(s.Lease),
	}
	for i := range s.Holders {
		h := &s.Holders[i]
		if err := inRange(index("state.holders", i)+".since", h.Since); err != nil {
			return nil, err
		}
		m.Holders = append(m.Holders, &statev1.PhaseHolder{
			Worker: h.Worker, Since: stamp(h.Since), Out: h.Out, Canceling: h.Canceling, Base: countsToProto(h.Base), Counts: countsToProto(h.Counts),
		})
	}
	return marshal(&eventv1.Event{
		Family: familyPhase, Project: s.Project, Kind: s.Kind, Name: s.Phase, From: e.From.String(), To: s.Activity.String(),
		Time: stamp(e.At), Revision: s.Revision, State: &eventv1.Event_Phase{Phase: m},
	})
}

// DecodePhase is the inverse of EncodePhase. ErrUnknown means that a newer Drover wrote it.
func DecodePhase(body []byte) (e PhaseEvent, err error) {
	m, err := decodeEvent(body, familyPhase)
	if err != nil {
		return e, err
	}
	state := m.GetPhase()
	if state == nil {
		return e, missing("state")
	}
	if state.MinReader > resource.ReaderVersion {
		return e, unknown("state.minReader", int32(min(state.MinReader, 1<<30)))
	}
	if e.At, err = instant("time", m.Time); err != nil {
		return e, err
	}
	s := phase.State{
		Project: m.Project, Kind: m.Kind, Phase: m.Name, Before: countsFromProto(state.Before), Revision: m.Revision,
	}
	if s.Activity, err = fromEnum[phase.Activity]("state.activity", activities[:], state.Activity); err != nil {
		return e, err
	}
	err = instants(
		moment{"state.activeSince", state.ActiveSince, &s.ActiveSince},
		moment{"state.lastCallTime", state.LastCallTime, &s.LastCallAt},
		moment{"state.wakeTime", state.WakeTime, &s.WakeAt},
		moment{"state.wakeUntilTime", state.WakeUntilTime, &s.WakeUntil},
		moment{"state.updatedTime", state.UpdatedTime, &s.UpdatedAt},
	)
	if err != nil {
		return e, err
	}
	if s.Lease, err = lasting("state.lease", state.Lease); err != nil {
		return e, err
	}
	if len(state.Holders) > phase.HoldersMax {
		return e, tooLarge("state.holders", phase.HoldersMax)
	}
	for i, h := range state.Holders {
		if h == nil || h.Worker == "" {
			return e, missing(index("state.holders", i) + ".worker")
		}
		since, err := instant(index("state.holders", i)+".since", h.Since)
		if err != nil {
			return e, err
		}
		s.Holders = append(s.Holders, phase.Holder{
			Worker: h.Worker, Since: since, Out: h.Out, Canceling: h.Canceling, Base: countsFromProto(h.Base), Counts: countsFromProto(h.Counts),
		})
	}
	if from := m.From; from != "" {
		found := false
		for _, a := range phase.Activities() {
			if a.String() == from {
				e.From, found = a, true
			}
		}
		if !found {
			return e, malformed("from", "is not the name of a phase's activity")
		}
	}
	e.State = s
	return e, nil
}

// PhaseReport is a worker's report. What it says of times is relative to now; 0: there is none.
type PhaseReport struct {
	Worker                           string
	Out, Canceling                   uint32
	Counts                           phase.Counts
	LastCallAgo, WakeIn, WakeUntilIn time.Duration
	// Order grows with each report under this name; a release that comes after a later report is not heard. 0: unknown.
	Order uint64
}

// At is the report as the engine takes it.
func (r *PhaseReport) At(now time.Time) phase.Report {
	e := phase.Report{Worker: r.Worker, Out: r.Out, Canceling: r.Canceling, Counts: r.Counts}
	if r.LastCallAgo > 0 {
		e.LastCallAt = now.Add(-r.LastCallAgo)
	}
	if r.WakeIn > 0 {
		e.WakeAt = now.Add(r.WakeIn)
	}
	if r.WakeUntilIn > 0 {
		e.WakeUntil = now.Add(r.WakeUntilIn)
	}
	return e
}

// phaseSpanMax is the longest time that a report may speak of: longer than any phase may last (blueprint.TimeoutMax).
const phaseSpanMax = 40 * 24 * time.Hour

func (r *PhaseReport) check() error {
	switch {
	case r.Worker == "":
		return missing("worker")
	case len(r.Worker) > phase.WorkerBytesMax:
		return tooLarge("worker", phase.WorkerBytesMax)
	case !utf8.ValidString(r.Worker):
		return malformed("worker", "is not UTF-8")
	case r.Canceling > r.Out:
		return malformed("canceling", "is more than out")
	case r.Out > resourcesOutMax:
		return malformed("out", "is more than "+strconv.Itoa(resourcesOutMax))
	}
	for field, d := range map[string]time.Duration{"lastCallAgo": r.LastCallAgo, "wakeIn": r.WakeIn, "wakeUntilIn": r.WakeUntilIn} {
		if d < 0 || d > phaseSpanMax {
			return malformed(field, "is not a duration of 0 to 40 days")
		}
	}
	return nil
}

// resourcesOutMax is how many resources one worker may say that it has.
const resourcesOutMax = 1 << 20

// EncodePhaseReport returns the same bytes for the same report.
func EncodePhaseReport(r PhaseReport) ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	return marshal(&agentv1.PhaseReport{
		Worker: r.Worker, Out: r.Out, Canceling: r.Canceling, Counts: countsToProto(r.Counts),
		LastCallAgo: span(r.LastCallAgo), WakeIn: span(r.WakeIn), WakeUntilIn: span(r.WakeUntilIn), Order: r.Order,
	})
}

// DecodePhaseReport is the inverse of EncodePhaseReport.
func DecodePhaseReport(body []byte) (PhaseReport, error) {
	m := new(agentv1.PhaseReport)
	if err := unmarshal(body, m); err != nil {
		return PhaseReport{}, err
	}
	r := PhaseReport{Worker: m.Worker, Out: m.Out, Canceling: m.Canceling, Counts: countsFromProto(m.Counts), Order: m.Order}
	var err error
	if r.LastCallAgo, err = lasting("lastCallAgo", m.LastCallAgo); err != nil {
		return PhaseReport{}, err
	}
	if r.WakeIn, err = lasting("wakeIn", m.WakeIn); err != nil {
		return PhaseReport{}, err
	}
	if r.WakeUntilIn, err = lasting("wakeUntilIn", m.WakeUntilIn); err != nil {
		return PhaseReport{}, err
	}
	if err := r.check(); err != nil {
		return PhaseReport{}, err
	}
	return r, nil
}

// PhaseHold answers a worker's report.
type PhaseHold struct {
	Granted bool
	// Lease is how long it holds the phase without another word.
	Lease time.Duration
	// Calls is how many may hold it, each with one call at a time; 0: any number, with any number of calls.
	Calls int
	// Interval is after how long pending resources are called again.
	Interval time.Duration
	// CallLease is how long a call that is being canceled may be silent before it is given up; 0: an older owner said nothing.
	CallLease time.Duration
	// Holders and Reason: where it was not granted.
	Holders []string
	Reason  string
}

// EncodePhaseHold returns the same bytes for the same answer.
func EncodePhaseHold(h PhaseHold) ([]byte, error) {
	return marshal(&agentv1.PhaseHold{
		Granted: h.Granted, Lease: span(h.Lease), Calls: uint32(h.Calls), Interval: span(h.Interval), Holders: h.Holders, Reason: text(h.Reason),
		CallLease: span(h.CallLease),
	})
}

// DecodePhaseHold is the inverse of EncodePhaseHold.
func DecodePhaseHold(body []byte) (h PhaseHold, err error) {
	m := new(agentv1.PhaseHold)
	if err := unmarshal(body, m); err != nil {
		return h, err
	}
	if m.Calls > phase.CallsMax {
		return h, malformed("calls", "is more than "+strconv.Itoa(phase.CallsMax))
	}
	h = PhaseHold{Granted: m.Granted, Calls: int(m.Calls), Holders: m.Holders, Reason: m.Reason}
	if h.Lease, err = lasting("lease", m.Lease); err != nil {
		return h, err
	}
	if h.Interval, err = lasting("interval", m.Interval); err != nil {
		return h, err
	}
	h.CallLease, err = lasting("callLease", m.CallLease)
	return h, err
}

func countsToProto(c phase.Counts) *statev1.PhaseCounts {
	if c == (phase.Counts{}) {
		return nil
	}
	return &statev1.PhaseCounts{Calls: c.Calls, Resources: c.Resources, Completed: c.Completed, Failed: c.Failed, Pending: c.Pending, Exceeded: c.Exceeded}
}

func countsFromProto(m *statev1.PhaseCounts) phase.Counts {
	return phase.Counts{
		Calls: m.GetCalls(), Resources: m.GetResources(), Completed: m.GetCompleted(), Failed: m.GetFailed(), Pending: m.GetPending(),
		Exceeded: m.GetExceeded(),
	}
}
