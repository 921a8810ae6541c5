package resource

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
)

// ReasonCode says why a resource stands where it stands.
type ReasonCode string

// The reasons. Moving ones end by themselves; the others wait for a person.
const (
	AtTarget     ReasonCode = "at_target"     // nothing is asked for
	NotAsked     ReasonCode = "not_asked"     // no flow was started yet
	IsGone       ReasonCode = "gone"          // it was deleted
	ToHandOut    ReasonCode = "to_hand_out"   // the orchestrator hands it out next
	ForWorker    ReasonCode = "for_worker"    // handed out; no worker has answered yet
	AtWork       ReasonCode = "at_work"       // a worker is at it
	PollAt       ReasonCode = "poll_at"       // sleeps between polls
	ForCallback  ReasonCode = "for_callback"  // who does it calls back
	RetryAt      ReasonCode = "retry_at"      // sleeps before an automatic retry
	BlockedOn    ReasonCode = "blocked_on"    // waits for other phases
	CancelingFor ReasonCode = "canceling_for" // a canceled call is still out
	BehindCalls  ReasonCode = "behind_calls"  // the job waits for canceled calls of an earlier one
	PhaseFailed  ReasonCode = "phase_failed"  // a person must retry, or choose another target
	WasCanceled  ReasonCode = "canceled"      // the job was canceled
	ToGoOn       ReasonCode = "to_go_on"      // the orchestrator takes the next step
	IsGated      ReasonCode = "gated"         // a person must approve
	BehindJob    ReasonCode = "behind_job"    // a job waits for another to end
	ForChildren  ReasonCode = "for_children"  // its children are at work
	ForParent    ReasonCode = "for_parent"    // its parent hands it a job when its turn comes
	HeldBack     ReasonCode = "held_back"     // not handed out, because another phase failed and the policy is drain
)

// Reason is one answer to "why is it not moving?".
type Reason struct {
	Code  ReasonCode
	Of    string    // phase or job
	Since time.Time // zero where it has no beginning
	Until time.Time // when it ends by itself, at the latest; zero: unknown
	Text  string    // one sentence for a person
}

// Why explains from the state alone why the resource is where it is (promise 7). It is never empty for a resource that
// exists or existed.
func Why(s *State) []Reason {
	switch {
	case s.UID == "":
		return nil
	case s.Gone:
		return []Reason{{Code: IsGone, Since: s.UpdatedAt, Text: "it was deleted"}}
	}
	flow := s.FlowJob()
	running := s.Job()
	switch {
	case running == nil && s.Parent.Name != "" && flow == nil:
		text := "its parent " + s.Parent.Name + " hands it a job when its turn comes"
		if len(s.Parent.DependsOn) > 0 {
			text += ", after " + strings.Join(s.Parent.DependsOn, ", ")
		}
		return []Reason{{Code: ForParent, Of: s.Parent.Name, Since: s.CreatedAt, Text: text}}
	case running == nil && flow == nil && s.Target == "":
		return []Reason{{Code: NotAsked, Since: s.CreatedAt, Text: "it was created, and no flow was started yet"}}
	case running == nil && s.State == s.Target:
		return []Reason{{Code: AtTarget, Since: s.UpdatedAt, Text: "it is at its target " + s.Target}}
	}
	reasons := phaseReasons(s)
	switch {
	case running != nil && running.State == job.Pending && s.canceling():
		reasons = append([]Reason{{
			Code: BehindCalls, Of: running.ID, Since: running.AcceptedAt,
			Text: "job " + running.ID + " (" + running.Verb + ") begins when the calls that are being canceled have ended",
		}}, reasons...)
	case running != nil && (running.State == job.Pending || onlyBlocked(reasons)):
		if onlyBlocked(reasons) {
			reasons = nil // on nothing but that step: where phases walk by themselves, what is wanted is an event of its own
		}
		reasons = append([]Reason{{
			Code: ToGoOn, Of: running.ID, Since: s.UpdatedAt, Text: "the orchestrator takes the next step of job " + running.ID,
		}}, reasons...)
	case running == nil && len(reasons) == 0:
		return []Reason{stopped(s, flow)}
	}
	return append(reasons, queued(s, running)...)
}

func (s *State) canceling() bool {
	for i := range s.Phases {
		if s.Phases[i].Status == Canceling {
			return true
		}
	}
	return false
}

func onlyBlocked(reasons []Reason) bool {
	return !slices.ContainsFunc(reasons, func(r Reason) bool { return r.Code != BlockedOn })
}

// queued says of each job that waits behind the running one that it does.
func queued(s *State, running *job.Ref) []Reason {
	var reasons []Reason
	for i := range s.Jobs {
		if j := &s.Jobs[i]; running != nil && j.ID != running.ID && !j.State.Final() {
			reasons = append(reasons, Reason{
				Code: BehindJob, Of: j.ID, Since: j.AcceptedAt,
				Text: "job " + j.ID + " (" + j.Verb + ") begins when job " + running.ID + " has ended",
			})
		}
	}
	return reasons
}

func stopped(s *State, flow *job.Ref) Reason {
	if flow == nil {
		return Reason{Code: WasCanceled, Since: s.UpdatedAt, Text: "its job has ended short of target " + s.Target + "; retry it, or start another flow"}
	}
	text := "job " + flow.ID + " (" + flow.Verb + ") was " + flow.State.String()
	if flow.Message != "" {
		text += ": " + flow.Message
	}
	code := WasCanceled
	if flow.State == job.Failed {
		code = PhaseFailed
	}
	next := "; retry it, or start another flow"
	if s.Parent.Name != "" {
		next = "; its jobs begin at the root of its tree, " + s.Parent.RootKind + "/" + RootName(s.Name)
	}
	return Reason{Code: code, Of: flow.ID, Since: flow.EndedAt, Text: text + next}
}

func phaseReasons(s *State) []Reason {
	var reasons []Reason
	for i := range s.Phases {
		p := &s.Phases[i]
		if !s.Separate && p.State != s.State && p.Status != Canceling {
			continue
		}
		r := Reason{Of: p.Name, Since: p.Since}
		switch p.Status {
		case Blocked:
			r.Code, r.Text = BlockedOn, "phase "+p.Name+" is blocked on "+blockers(s, p)
		case Waiting:
			switch {
			case p.InFlight:
				r.Code, r.Until = ForWorker, p.Deadline
				r.Text = "phase " + p.Name + " was handed out and waits for a worker's answer"
			case s.Job() == nil || s.Job().State == job.Pending: // the next job takes it up, or drops it
				r.Code, r.Text = HeldBack, "phase "+p.Name+" is held back until what failed is retried"
			case s.PhaseFailed:
				r.Code, r.Text = ToHandOut, "phase "+p.Name+" is handed out next, or held back until a retry where failures drain"
			default:
				r.Code, r.Text = ToHandOut, "phase "+p.Name+" is handed out next"
			}
		case Running:
			if p.Children {
				b := &s.Children
				r.Code, r.Until = ForChildren, p.Deadline
				r.Text = fmt.Sprintf("phase %s waits for its children: %d of %d succeeded, %d running, %d waiting, %d failed, %d to be deleted",
					p.Name, b.Succeeded, b.Items, b.Running+b.Runnable, b.Waiting, b.Failed, b.Marked)
				break
			}
			r.Code, r.Until, r.Text = AtWork, p.Deadline, "a worker is at phase "+p.Name
		case Sleeping:
			r.Until = p.Due
			switch {
			case p.Retrying:
				r.Code, r.Text = RetryAt, "phase "+p.Name+" failed and is tried again"
			case p.Callback:
				r.Code, r.Until, r.Text = ForCallback, p.Deadline, "phase "+p.Name+" was asked for and waits for the callback"
			default:
				r.Code, r.Text = PollAt, "phase "+p.Name+" is pending and is called every "+p.Interval.String()
				r.Until = p.Deadline
			}
		case Canceling:
			r.Code, r.Until, r.Text = CancelingFor, p.Due, "phase "+p.Name+" is being canceled, and its call is still out"
		case Failed:
			r.Code, r.Text = PhaseFailed, "phase "+p.Name+" failed"
		case Gated:
			r.Code, r.Text = IsGated, "phase "+p.Name+" waits for a person's approval"
		case NoStatus, Completed, Skipped, Undone, Canceled:
			continue
		}
		if p.Message != "" {
			r.Text += ": " + p.Message
		}
		reasons = append(reasons, r)
	}
	return reasons
}

// blockers names the phases of the same state that are not done; the blueprint, which knows the dependencies, is not at
// hand, and they are among these.
func blockers(s *State, blocked *PhaseRun) string {
	var names []string
	for i := range s.Phases {
		if p := &s.Phases[i]; p.Name != blocked.Name && (s.Separate || p.State == s.State) && !p.Status.Done() && p.Status != Blocked {
			names = append(names, p.Name+" ("+p.Status.String()+")")
		}
	}
	if len(names) == 0 {
		return "other phases of state " + s.State
	}
	return strings.Join(names, ", ")
}
