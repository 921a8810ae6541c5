package resource_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// moving are the reasons that end by themselves; what waits for a person, or for nothing, is not among them.
var moving = []resource.ReasonCode{
	resource.ToHandOut, resource.ForWorker, resource.AtWork, resource.PollAt, resource.ForCallback, resource.RetryAt, resource.CancelingFor,
	resource.BehindCalls, resource.ToGoOn,
}

// checkReasons holds Why to the state: exactly the reasons that the statuses and the jobs call for, each with what it is
// about and since when; one that says that it moves has something that will move it; and a job that nothing moves waits for
// a person.
func (w *world) checkReasons() error {
	s := &w.state
	reasons := resource.Why(s)
	var got []string
	moves, gated := false, false
	for _, r := range reasons {
		got = append(got, string(r.Code)+" "+r.Of)
		moves, gated = moves || slices.Contains(moving, r.Code), gated || r.Code == resource.IsGated
		ofItself := slices.Contains([]resource.ReasonCode{resource.AtTarget, resource.NotAsked, resource.IsGone}, r.Code)
		switch {
		case r.Text == "" || r.Since.IsZero() || r.Since.After(s.UpdatedAt):
			return fmt.Errorf("reason without a text or a beginning: %+v", r)
		case r.Of == "" && !ofItself:
			return fmt.Errorf("reason of nothing: %+v", r)
		case r.Of != "" && s.Phase(r.Of) == nil && s.JobByID(r.Of) == nil:
			return fmt.Errorf("reason of what is not there: %+v", r)
		case slices.Contains(moving, r.Code) && !w.willMove(r):
			return fmt.Errorf("nothing will end the reason %+v", r)
		}
	}
	want := w.reasonsWanted()
	slices.Sort(got)
	slices.Sort(want)
	switch {
	case !slices.Equal(got, want):
		return fmt.Errorf("it says %q, and the state calls for %q", got, want)
	case s.Exists() && s.Job() != nil && !moves && !gated:
		return fmt.Errorf("job %s is driven, nothing moves it, and nobody is asked: %q", s.Job().ID, got)
	}
	return nil
}

// willMove reports whether something in the state ends a reason that says so: a call that is out, a time, or the next step.
func (w *world) willMove(r resource.Reason) bool {
	s := &w.state
	p := s.Phase(r.Of)
	due := s.NextDue()
	switch r.Code {
	case resource.ForWorker, resource.AtWork:
		return p.InFlight
	case resource.PollAt, resource.RetryAt, resource.CancelingFor:
		return !p.Due.IsZero() && !due.IsZero() && !due.After(p.Due)
	case resource.ForCallback:
		return p.Callback && p.Status == resource.Sleeping && !p.Retrying // it comes from outside
	case resource.BehindCalls:
		return slices.ContainsFunc(s.Phases, func(p resource.PhaseRun) bool { return p.Status == resource.Canceling && p.InFlight })
	}
	// The orchestrator's own: the next steps hand it out, or begin the job; or, held back by a failure, others are at work
	// whose end ends the job.
	next := w.fork()
	for range 20 {
		fx, err := next.step(resource.Input{Kind: resource.OnContinue, At: s.UpdatedAt})
		switch {
		case err != nil:
			return false
		case fx.Event == nil:
			return r.Code == resource.ToHandOut && s.PhaseFailed && slices.ContainsFunc(s.Phases, func(o resource.PhaseRun) bool {
				return o.InFlight || o.Status == resource.Sleeping
			})
		case r.Code == resource.ToGoOn || fx.Event.Dispatch != nil && fx.Event.Dispatch.Fence.Phase == r.Of:
			return true
		}
	}
	return false
}

// reasonsWanted is the table of the reasons, read the other way: from statuses and jobs.
func (w *world) reasonsWanted() []string {
	s := &w.state
	flow, driven := s.FlowJob(), s.Job()
	switch {
	case s.Gone:
		return []string{"gone "}
	case driven == nil && flow == nil:
		return []string{"not_asked "}
	case driven == nil && s.State == s.Target:
		return []string{"at_target "}
	}
	var want []string
	for i := range s.Phases {
		p := &s.Phases[i]
		here := s.Separate || p.State == s.State || p.Status == resource.Canceling
		code := map[resource.Status]string{
			resource.Blocked: "blocked_on", resource.Running: "at_work", resource.Sleeping: "poll_at", resource.Canceling: "canceling_for",
			resource.Failed: "phase_failed", resource.Gated: "gated", resource.Waiting: "to_hand_out",
		}[p.Status]
		switch {
		case p.Status == resource.Waiting && p.InFlight:
			code = "for_worker"
		case p.Status == resource.Waiting && (driven == nil || driven.State == job.Pending):
			code = "held_back"
		case p.Status == resource.Sleeping && p.Retrying:
			code = "retry_at"
		case p.Status == resource.Sleeping && p.Callback:
			code = "for_callback"
		}
		if here && code != "" {
			want = append(want, code+" "+p.Name)
		}
	}
	canceling := slices.ContainsFunc(s.Phases, func(p resource.PhaseRun) bool { return p.Status == resource.Canceling })
	if driven != nil && !slices.ContainsFunc(want, func(reason string) bool { return !strings.HasPrefix(reason, "blocked_on") }) {
		want = nil // what is blocked on nothing but the next step
	}
	switch {
	case driven == nil && len(want) == 0 && flow.State == job.Failed:
		want = append(want, "phase_failed "+flow.ID)
	case driven == nil && len(want) == 0:
		want = append(want, "canceled "+flow.ID)
	case driven == nil:
	case driven.State == job.Pending && canceling:
		want = append(want, "behind_calls "+driven.ID)
	case driven.State == job.Pending || len(want) == 0:
		want = append(want, "to_go_on "+driven.ID)
	}
	for i := range s.Jobs {
		if j := &s.Jobs[i]; driven != nil && j.ID != driven.ID && !j.State.Final() {
			want = append(want, "behind_job "+j.ID)
		}
	}
	return want
}
