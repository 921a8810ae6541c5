package sweep_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/sweep"
)

var at = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// running is a resource whose job drives the given phases.
func running(phases ...resource.PhaseRun) *resource.State {
	for i := range phases {
		p := &phases[i]
		p.State, p.JobID, p.Attempt = "A", "j1", 3
		if p.Since.IsZero() {
			p.Since = at
		}
	}
	return &resource.State{
		Key: resource.Key{Project: "p", Kind: "node", Name: "n"}, UID: "u", State: "A", Target: "Started", Phases: phases,
		Jobs: []job.Ref{{ID: "j1", Verb: "start", Target: "Started", Blueprint: "v1", State: job.Running, AcceptedAt: at, StartedAt: at}},
	}
}

func text(asks []sweep.Ask) string {
	var parts []string
	for _, a := range asks {
		switch {
		case a.Forget:
			parts = append(parts, "forget")
		case a.Input.Kind == resource.OnLost:
			f := a.Input.Lost
			parts = append(parts, fmt.Sprintf("lost %s/%s/%s/%d.%d", f.UID, f.JobID, f.Phase, f.Attempt, f.Call))
		case a.Input.Kind == resource.OnDue:
			parts = append(parts, "due")
		case a.Input.Kind == resource.OnContinue:
			parts = append(parts, "continue")
		}
		if !a.Forget && a.Input.At.IsZero() {
			parts = append(parts, "(without a time)")
		}
	}
	return strings.Join(parts, ", ")
}

func TestFind(t *testing.T) {
	t.Parallel()
	out := resource.PhaseRun{Name: "one", Status: resource.Waiting, Call: 2, InFlight: true}
	with := func(p resource.PhaseRun, change func(*resource.PhaseRun)) resource.PhaseRun { change(&p); return p }
	rests := func(s *resource.State) *resource.State {
		s.Jobs[0].State, s.Jobs[0].EndedAt = job.Failed, at
		return s
	}
	pending := func(s *resource.State) *resource.State { s.Jobs[0].State = job.Pending; return s }
	gone := running()
	gone.Gone = true
	canceling := running(resource.PhaseRun{Name: "one", Status: resource.Canceled})
	canceling.Jobs[0].Canceling = true
	apply := rests(running())
	apply.Jobs[0].Blueprint = ""
	for _, c := range []struct {
		name  string
		state *resource.State
		after time.Duration
		grace time.Duration
		busy  string // phases of which work is under way
		want  string
	}{
		{"nothing is there", &resource.State{}, time.Hour, 0, "", ""},
		{"gone", gone, 0, 0, "", "forget"},

		{"just handed out", running(out), 9 * time.Second, 0, "", ""},
		{"handed out long ago", running(out), 10 * time.Second, 0, "", "lost u/j1/one/3.2"},
		{"handed out long ago, and under way", running(out), time.Hour, 0, "one", ""},
		{"another grace", running(out), 59 * time.Second, time.Minute, "", ""},
		{"another grace, over", running(out), time.Minute, time.Minute, "", "lost u/j1/one/3.2"},
		{"running", running(with(out, func(p *resource.PhaseRun) { p.Status = resource.Running })), time.Minute, 0, "", "lost u/j1/one/3.2"},
		{"two, one of them under way", running(out, with(out, func(p *resource.PhaseRun) { p.Name = "two" })), time.Minute, 0, "one", "lost u/j1/two/3.2"},
		{"canceling: the lease ends it", running(with(out, func(p *resource.PhaseRun) {
			p.Status, p.Due = resource.Canceling, at.Add(time.Hour)
		})), time.Minute, 0, "", ""},
		{"the lease is over", running(with(out, func(p *resource.PhaseRun) {
			p.Status, p.Due = resource.Canceling, at.Add(30*time.Second)
		})), 30 * time.Second, 0, "one", "due"},
		{"timed out: due, and not lost", running(with(out, func(p *resource.PhaseRun) { p.Deadline = at.Add(time.Minute) })), time.Minute, 0, "", "due"},
		{"not timed out, but lost", running(with(out, func(p *resource.PhaseRun) { p.Deadline = at.Add(time.Minute) })), 59 * time.Second, 0, "", "lost u/j1/one/3.2"},

		{"a retry waits", running(resource.PhaseRun{Name: "one", Status: resource.Sleeping, Retrying: true, Due: at.Add(5 * time.Second)}), 4 * time.Second, 0, "", ""},
		{"a retry is due", running(resource.PhaseRun{Name: "one", Status: resource.Sleeping, Retrying: true, Due: at.Add(5 * time.Second)}), 5 * time.Second, 0, "one", "due"},
		{"a poll is due: the owner's heap has it", running(resource.PhaseRun{Name: "one", Status: resource.Sleeping, Call: 1, Due: at.Add(5 * time.Second)}), 14 * time.Second, 0, "", ""},
		{"a poll is overdue", running(resource.PhaseRun{Name: "one", Status: resource.Sleeping, Call: 1, Due: at.Add(5 * time.Second)}), 15 * time.Second, 0, "", "due"},
		{"a poll is out", running(resource.PhaseRun{Name: "one", Status: resource.Sleeping, Call: 1, Due: at.Add(5 * time.Second)}), time.Hour, 0, "one", ""},
		{"a poll is out, and the deadline has passed", running(resource.PhaseRun{Name: "one", Status: resource.Sleeping, Call: 1, Due: at, Deadline: at.Add(time.Minute)}), time.Hour, 0, "one", "due"},

		{"a phase waits", running(resource.PhaseRun{Name: "one", Status: resource.Waiting}), 0, 0, "", "continue"},
		{"a phase waits beside one that is out", running(out, resource.PhaseRun{Name: "two", Status: resource.Waiting}), 0, 0, "", "continue"},
		{"nothing is active", running(resource.PhaseRun{Name: "one", Status: resource.Completed}), 0, 0, "", "continue"},
		{"a state without phases", running(), 0, 0, "", "continue"},
		{"the job's turn", pending(running(resource.PhaseRun{Name: "one", Status: resource.Canceled})), 0, 0, "", "continue"},
		{"not yet the job's turn", pending(running(resource.PhaseRun{Name: "one", Status: resource.Canceling, InFlight: true, Due: at.Add(time.Minute)})), 0, 0, "", ""},
		{"a cancel can end", canceling, 0, 0, "", "continue"},
		{"all at once", running(out, resource.PhaseRun{Name: "two", Status: resource.Waiting},
			resource.PhaseRun{Name: "three", Status: resource.Sleeping, Retrying: true, Due: at}), time.Minute, 0, "", "due, lost u/j1/one/3.2, continue"},

		{"at rest", rests(running(resource.PhaseRun{Name: "one", Status: resource.Failed})), time.Hour, 0, "", ""},
		{"at rest, held back", rests(running(resource.PhaseRun{Name: "one", Status: resource.Waiting})), time.Hour, 0, "", ""},
		{"never asked for a flow", apply, time.Hour, 0, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := sweep.Observation{At: at.Add(c.after), Grace: c.grace, Drained: func(phase string) bool { return phase != c.busy }}
			if got := text(sweep.Find(c.state, o)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestNobodyKnows: without word of what is under way, nothing is lost; time still passes.
func TestNobodyKnows(t *testing.T) {
	t.Parallel()
	s := running(
		resource.PhaseRun{Name: "one", Status: resource.Waiting, Call: 1, InFlight: true},
		resource.PhaseRun{Name: "two", Status: resource.Sleeping, Call: 1, Due: at},
	)
	if got := text(sweep.Find(s, sweep.Observation{At: at.Add(time.Hour)})); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestSweepsAlone: a shell that forgets everything. Timers do not fire, nobody continues, most work and most answers are
// lost. Sweeps, every 20 seconds, bring every job to its end, and in the end ask nothing more.
func TestSweepsAlone(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		if err := sweepsAlone(seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func sweepsAlone(seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 20))
	bp := &blueprint.Blueprint{
		Project: "p", Kind: "node", Digest: "v1",
		Lifecycle: blueprint.Lifecycle{
			Delete: "stop", OnTargetChange: blueprint.Cancel, OnFailure: []blueprint.OnFailure{blueprint.Continue, blueprint.Drain}[seed%2],
			Flows: []blueprint.Flow{
				{Verb: "start", Path: []string{"A", "none", "B"}, Target: "Started"}, {Verb: "stop", Path: []string{"D"}, Target: "Off"},
			},
		},
		Phases: []blueprint.Phase{
			{Name: "one", States: []string{"A"}, Retry: blueprint.Retry{Attempts: 3}},
			{Name: "two", States: []string{"A"}},
			{Name: "three", States: []string{"A"}, DependsOn: []string{"one"}, Timeout: time.Hour},
			{Name: "four", States: []string{"B"}, Timeout: time.Duration(r.IntN(120)) * time.Second},
			{Name: "down", States: []string{"D"}},
		},
	}
	now := at
	var s resource.State
	underWay := map[string]resource.Fence{} // by phase: a worker has it
	step := func(in resource.Input) error {
		in.At = now
		after, fx := resource.Step(s, in, resource.Env{Blueprint: bp})
		if fx.Event != nil {
			if d := fx.Event.Dispatch; d != nil && r.IntN(100) < 40 {
				underWay[d.Fence.Phase] = d.Fence
			}
		}
		for _, f := range fx.Polls {
			if r.IntN(100) < 40 {
				underWay[f.Phase] = f
			}
		}
		s = after
		if broken := audit.Resource(s, bp); len(broken) > 0 {
			return fmt.Errorf("%+v", broken)
		}
		return nil
	}
	command := func(verb string) error {
		id := fmt.Sprintf("%s-%d", verb, r.Uint32())
		return step(resource.Input{Kind: resource.OnCommand, Command: &resource.Command{
			Key: resource.Key{Project: "p", Kind: "node", Name: "n"}, Verb: verb, RequestID: id, JobID: id, Digest: id, NewUID: "u",
		}})
	}
	if err := command("apply"); err != nil {
		return err
	}
	if err := command("start"); err != nil {
		return err
	}
	verbs := []string{"stop", "start", "retry", "cancel", "delete"}
	for sweeps := range 2000 {
		now = now.Add(20 * time.Second)
		for _, name := range []string{"one", "two", "three", "four", "down"} {
			f, ok := underWay[name]
			if !ok || r.IntN(2) == 0 {
				continue
			}
			delete(underWay, name)
			outcome := resource.Outcomes()[r.IntN(len(resource.Outcomes()))]
			if r.IntN(2) == 0 {
				outcome = resource.OutcomeCompleted
			}
			if r.IntN(100) < 30 {
				continue // the answer is lost
			}
			if outcome == resource.OutcomeRunning {
				underWay[name] = f
			}
			if err := step(resource.Input{Kind: resource.OnResult, Result: &resource.Result{Fence: f, Outcome: outcome, Retryable: r.IntN(2) == 0}}); err != nil {
				return err
			}
		}
		if sweeps < 30 && r.IntN(10) == 0 {
			if err := command(verbs[r.IntN(len(verbs))]); err != nil {
				return err
			}
		}
		asks := sweep.Find(&s, sweep.Observation{At: now, Drained: func(phase string) bool { _, busy := underWay[phase]; return !busy }})
		if s.Job() == nil && sweeps > 30 {
			if got := text(asks); got != "" && !(s.Gone && got == "forget") {
				return fmt.Errorf("a resource at rest is asked to %s: %+v", got, s.Phases)
			}
			return nil
		}
		for _, a := range asks {
			if a.Forget {
				continue
			}
			if err := step(a.Input); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("no end: %+v, %+v", s.Phases, s.Jobs)
}
