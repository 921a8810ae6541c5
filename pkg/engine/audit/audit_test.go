package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

var at = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func plan() *blueprint.Blueprint {
	return &blueprint.Blueprint{
		Project: "p", Kind: "node", Digest: "v1",
		Lifecycle: blueprint.Lifecycle{Flows: []blueprint.Flow{{Verb: "start", Path: []string{"A"}, Target: "Started"}}},
		Phases: []blueprint.Phase{
			{Name: "one", States: []string{"A"}},
			{Name: "two", States: []string{"A"}, DependsOn: []string{"one", "other"}},
			{Name: "other", States: []string{"B"}},
		},
	}
}

// sound is a running resource with one phase completed and one out.
func sound() resource.State {
	return resource.State{
		Key: resource.Key{Project: "p", Kind: "node", Name: "n"}, MinReader: 1, UID: "u", Generation: 1, Revision: 4,
		State: "A", Target: "Started", CreatedAt: at, UpdatedAt: at.Add(time.Second),
		Phases: []resource.PhaseRun{
			{Name: "one", Status: resource.Completed, State: "A", JobID: "j1", Attempt: 1, Call: 1, Since: at},
			{Name: "two", Status: resource.Waiting, State: "A", JobID: "j1", Attempt: 1, Call: 1, InFlight: true, Since: at},
		},
		Jobs: []job.Ref{
			{ID: "a1", Verb: "apply", State: job.Succeeded, AcceptedAt: at, StartedAt: at, EndedAt: at},
			{ID: "j1", Verb: "start", Target: "Started", Blueprint: "v1", State: job.Running, AcceptedAt: at, StartedAt: at},
		},
	}
}

// rest makes a state one whose job has ended.
func rest(s *resource.State) {
	s.Phases[1].Status, s.Phases[1].InFlight = resource.Completed, false
	s.Jobs[1].State, s.Jobs[1].EndedAt = job.Failed, at
}

func rules(found []audit.Finding) []string {
	var names []string
	for _, f := range found {
		if !slices.Contains(names, f.Rule) {
			names = append(names, f.Rule)
		}
	}
	return names
}

func TestSoundStates(t *testing.T) {
	t.Parallel()
	if found := audit.Resource(resource.State{}, nil); found != nil {
		t.Errorf("nothing: %v", found)
	}
	if found := audit.Resource(sound(), plan()); found != nil {
		t.Errorf("sound: %v", found)
	}
	s := sound()
	rest(&s)
	if found := audit.Resource(s, plan()); found != nil {
		t.Errorf("at rest: %v", found)
	}
}

// TestEveryRuleCanBreak breaks one thing at a time: the checker must name that rule, and may name others.
func TestEveryRuleCanBreak(t *testing.T) {
	t.Parallel()
	for rule, breaks := range map[string][]func(*resource.State){
		"a resource has a project, a kind and a name": {func(s *resource.State) { s.Name = "" }},
		"revision and generation begin at 1":          {func(s *resource.State) { s.Revision = 0 }, func(s *resource.State) { s.Generation = 0 }},
		"it was created before it was changed":        {func(s *resource.State) { s.UpdatedAt = at.Add(-1) }, func(s *resource.State) { s.CreatedAt = time.Time{} }},
		"min_reader is set":                           {func(s *resource.State) { s.MinReader = 0 }},
		"a phase that was entered has a name and a status": {
			func(s *resource.State) { s.Phases[0].Name = "" }, func(s *resource.State) { s.Phases[0].Status = resource.NoStatus },
		},
		"only a phase that waits, runs or is canceled is in flight": {func(s *resource.State) { s.Phases[1].Status = resource.Completed }},
		"what is in flight was handed out":                          {func(s *resource.State) { s.Phases[1].Call = 0 }},
		"what runs is in flight":                                    {func(s *resource.State) { s.Phases[1].Status, s.Phases[1].InFlight = resource.Running, false }},
		"a canceled call is given up some day":                      {func(s *resource.State) { s.Phases[1].Status = resource.Canceling }},
		"a sleeping phase has a due time, or waits for a callback":  {func(s *resource.State) { s.Phases[1].Status, s.Phases[1].InFlight = resource.Sleeping, false }},
		"only a sleeping phase waits for its automatic retry":       {func(s *resource.State) { s.Phases[1].Retrying = true }},
		"a deadline ends with its attempt":                          {func(s *resource.State) { s.Phases[0].Deadline = at }},
		"what is active belongs to the present state":               {func(s *resource.State) { s.Phases[1].State = "B" }},
		"a phase has one entry":                                     {func(s *resource.State) { s.Phases[1].Name = "one" }},
		"phase_failed says whether a phase of the present state failed": {
			func(s *resource.State) { s.PhaseFailed = true }, func(s *resource.State) { s.Phases[0].Status = resource.Failed },
		},
		"a job has an id, a state and a time": {
			func(s *resource.State) { s.Jobs[0].ID = "" }, func(s *resource.State) { s.Jobs[0].AcceptedAt = time.Time{} },
			func(s *resource.State) { s.Jobs[0].State, s.Jobs[0].EndedAt = job.None, time.Time{} },
		},
		"what is final has ended":             {func(s *resource.State) { s.Jobs[0].EndedAt = time.Time{} }, func(s *resource.State) { s.Jobs[1].EndedAt = at }},
		"what is final is not being canceled": {func(s *resource.State) { s.Jobs[0].Canceling = true }},
		"few ended jobs are kept":             {func(s *resource.State) { s.Jobs = append(slices.Repeat(s.Jobs[:1], 5), s.Jobs[1]) }},
		"what waits behind a job is pending":  {func(s *resource.State) { s.Jobs = append(s.Jobs, s.Jobs[1]) }},
		"few jobs wait": {func(s *resource.State) {
			waits := s.Jobs[1]
			waits.State = job.Pending
			s.Jobs = append(s.Jobs, slices.Repeat([]job.Ref{waits}, resource.QueuedJobsMax+1)...)
		}},
		"few transactions are remembered": {func(s *resource.State) {
			s.Transactions = make([]resource.Transaction, resource.TransactionsMax+1)
		}},
		"a transaction that has ended says how": {func(s *resource.State) { s.Transactions = []resource.Transaction{{Phase: "one", Ended: at}} }},
		"no call is out of an attempt whose transaction has ended": {func(s *resource.State) {
			s.Transactions = []resource.Transaction{{Phase: s.Phases[1].Name, Attempt: s.Phases[1].Attempt, JobID: s.Phases[1].JobID, Ended: at, Outcome: resource.Failed}}
		}},
		"an attempt is one transaction": {func(s *resource.State) {
			s.Transactions = []resource.Transaction{{Phase: "one", Attempt: 1}, {Phase: "one", Attempt: 1}}
		}},
		"work is out only for a job that is not final": {func(s *resource.State) { s.Jobs[1].State, s.Jobs[1].EndedAt = job.Failed, at }},
		"what is gone has no job":                      {func(s *resource.State) { s.Gone = true }},
		"what rests does not say that it moves": {
			func(s *resource.State) { s.Jobs[1].State, s.Jobs[1].EndedAt = job.Failed, at },
			func(s *resource.State) {
				rest(s)
				s.Phases[1].Status, s.Phases[1].Due = resource.Sleeping, at
			},
		},
		"no phase begins before what it depends on": {func(s *resource.State) { s.Phases[0].Status = resource.Blocked }},
		"a running job has something that will end": {func(s *resource.State) { s.Phases[1].Status, s.Phases[1].InFlight = resource.Blocked, false }},
	} {
		for _, breaks := range breaks {
			s := sound()
			breaks(&s)
			if found := rules(audit.Resource(s, plan())); !slices.Contains(found, rule) {
				t.Errorf("%q is not found: %q", rule, found)
			}
		}
	}
}

// TestForeignBlueprint: what began under one blueprint is not judged by another.
func TestForeignBlueprint(t *testing.T) {
	t.Parallel()
	s := sound()
	s.Phases[0].Status = resource.Blocked
	s.Jobs[1].Blueprint = "v0"
	if found := audit.Resource(s, plan()); found != nil {
		t.Errorf("%v", found)
	}
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	next := func() resource.State { s := sound(); s.Revision++; return s }
	if found := audit.Transition(sound(), next()); found != nil {
		t.Errorf("sound: %v", found)
	}
	gone := sound()
	gone.Gone = true
	fresh := sound()
	fresh.UID, fresh.Revision = "u2", 1
	if found := audit.Transition(gone, fresh); found != nil {
		t.Errorf("the name again: %v", found)
	}
	for rule, breaks := range map[string][]func(before, after *resource.State){
		"revisions are contiguous":              {func(_, s *resource.State) { s.Revision++ }, func(_, s *resource.State) { s.Revision-- }},
		"time never runs backwards":             {func(_, s *resource.State) { s.UpdatedAt = at }},
		"the generation never goes back":        {func(b, _ *resource.State) { b.Generation = 2 }},
		"the dead stay dead":                    {func(b, _ *resource.State) { b.Gone = true }},
		"attempts never go back":                {func(_, s *resource.State) { s.Phases[1].Attempt = 0 }},
		"calls never go back within an attempt": {func(b, _ *resource.State) { b.Phases[1].Call = 2 }},
		"no completed phase runs again in its attempt": {func(_, s *resource.State) {
			s.Phases[0].Status, s.Phases[0].InFlight = resource.Waiting, true
		}},
		"a transaction that has ended stays as it is": {func(b, a *resource.State) {
			t := resource.Transaction{Phase: "one", Attempt: 1, Ended: at, Outcome: resource.Failed}
			b.Transactions = []resource.Transaction{t}
			t.Outcome = resource.Completed
			a.Transactions = []resource.Transaction{t}
		}},
		"jobs move by their table":                             {func(b, _ *resource.State) { b.Jobs[1].State = job.Failed }},
		"a job is forgotten only when it has ended":            {func(_, s *resource.State) { s.Jobs = s.Jobs[:1] }},
		"a name is taken again only when its resource is gone": {func(_, s *resource.State) { s.UID, s.Revision = "u2", 1 }},
		"revisions begin at 1":                                 {func(b, s *resource.State) { b.Gone, s.UID = true, "u2" }},
	} {
		for _, breaks := range breaks {
			before, after := sound(), next()
			breaks(&before, &after)
			if found := rules(audit.Transition(before, after)); !slices.Contains(found, rule) {
				t.Errorf("%q is not found: %q", rule, found)
			}
		}
	}
}
