// Package audit checks what must hold of every state, whatever led to it. It knows nothing of Step: the checker is not
// the maker. It runs after every step in tests and in the simulator.
package audit

import (
	"slices"
	"strconv"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Finding is one broken promise.
type Finding struct {
	Rule string // name of the rule
	Of   string // what breaks it
}

// Resource lists every broken rule of a state; empty means sound. bp is the blueprint that its job pinned, or nil.
func Resource(s resource.State, bp *blueprint.Blueprint) []Finding {
	if s.UID == "" {
		return nil
	}
	a := &auditor{s: s}
	a.identity()
	a.phases()
	a.jobs()
	a.transactions()
	if bp != nil && !s.Gone {
		a.blueprint(bp)
	}
	if s.Exists() {
		a.why()
	}
	return a.found
}

// Transition lists what is wrong with a step from one state to the next.
func Transition(before, after resource.State) []Finding {
	a := &auditor{s: after}
	if before.UID == after.UID {
		a.check(after.Revision == before.Revision+1, "revisions are contiguous", strconv.FormatUint(after.Revision, 10))
		a.check(!after.UpdatedAt.Before(before.UpdatedAt), "time never runs backwards", after.UpdatedAt.String())
		a.check(after.Generation >= before.Generation, "the generation never goes back", "")
		a.check(!before.Gone || after.Gone, "the dead stay dead", "")
		for i := range before.Phases {
			p := &before.Phases[i]
			if q := after.Phase(p.Name); q != nil {
				a.check(q.Attempt >= p.Attempt, "attempts never go back", p.Name)
				a.check(q.Attempt > p.Attempt || q.Call >= p.Call || q.Call == 0, "calls never go back within an attempt", p.Name)
				a.check(!(p.Status == resource.Completed && q.Attempt == p.Attempt && q.InFlight), "no completed phase runs again in its attempt", p.Name)
			}
		}
		for i := range before.Transactions {
			t := before.Transactions[i]
			for _, now := range after.Transactions {
				same := now.Phase == t.Phase && now.Attempt == t.Attempt && now.JobID == t.JobID
				a.check(!same || t.Ended.IsZero() || now == t, "a transaction that has ended stays as it is", t.Phase)
			}
		}
		for i := range before.Jobs {
			if j, k := &before.Jobs[i], after.JobByID(before.Jobs[i].ID); k != nil {
				a.check(j.State == k.State || job.May(j.State, k.State) || j.State == job.Pending && k.State.Final(), "jobs move by their table", j.ID)
			} else {
				a.check(j.State.Final(), "a job is forgotten only when it has ended", j.ID)
			}
		}
	} else {
		a.check(!before.Exists(), "a name is taken again only when its resource is gone", before.UID)
		a.check(after.Revision == 1, "revisions begin at 1", strconv.FormatUint(after.Revision, 10))
	}
	return a.found
}

type auditor struct {
	s     resource.State
	found []Finding
}

func (a *auditor) check(holds bool, rule, of string) {
	if !holds {
		a.found = append(a.found, Finding{Rule: rule, Of: of})
	}
}

// transactions checks the record of the attempts against the phases.
func (a *auditor) transactions() {
	a.check(len(a.s.Transactions) <= resource.TransactionsMax, "few transactions are remembered", strconv.Itoa(len(a.s.Transactions)))
	for i := range a.s.Transactions {
		t := &a.s.Transactions[i]
		of := t.Phase + " " + strconv.FormatUint(uint64(t.Attempt), 10)
		a.check(t.Ended.IsZero() == (t.Outcome == resource.NoStatus), "a transaction that has ended says how", of)
		p := a.s.Phase(t.Phase)
		a.check(t.Ended.IsZero() || p == nil || p.Attempt != t.Attempt || p.JobID != t.JobID || !p.InFlight, "no call is out of an attempt whose transaction has ended", of)
		for k := range i {
			a.check(a.s.Transactions[k].Phase != t.Phase || a.s.Transactions[k].Attempt != t.Attempt || a.s.Transactions[k].JobID != t.JobID, "an attempt is one transaction", of)
		}
	}
}

func (a *auditor) identity() {
	s := &a.s
	a.check(s.Project != "" && s.Kind != "" && s.Name != "", "a resource has a project, a kind and a name", s.Key.String())
	a.check(s.Revision > 0 && s.Generation > 0, "revision and generation begin at 1", "")
	a.check(!s.CreatedAt.IsZero() && !s.UpdatedAt.Before(s.CreatedAt), "it was created before it was changed", "")
	a.check(s.MinReader >= 1, "min_reader is set", "")
}

func (a *auditor) phases() {
	failed := false
	for i := range a.s.Phases {
		p := &a.s.Phases[i]
		a.check(p.Name != "" && p.Status != resource.NoStatus, "a phase that was entered has a name and a status", p.Name)
		a.check(!p.InFlight || p.Status == resource.Waiting || p.Status == resource.Running || p.Status == resource.Canceling, "only a phase that waits, runs or is canceled is in flight", p.Name)
		a.check(!p.InFlight || p.Call > 0, "what is in flight was handed out", p.Name)
		a.check(p.Status != resource.Running || p.InFlight, "what runs is in flight", p.Name)
		a.check(p.Status != resource.Canceling || !p.Due.IsZero(), "a canceled call is given up some day", p.Name)
		a.check(p.Status != resource.Sleeping || !p.Due.IsZero() || p.Callback && !p.Retrying, "a sleeping phase has a due time, or waits for a callback", p.Name)
		a.check(!p.Retrying || p.Status == resource.Sleeping, "only a sleeping phase waits for its automatic retry", p.Name)
		a.check(p.Status.Active() || p.Status == resource.Blocked || p.Deadline.IsZero(), "a deadline ends with its attempt", p.Name)
		a.check(!p.Status.Active() || p.Status == resource.Canceling || a.s.Separate || p.State == a.s.State, "what is active belongs to the present state", p.Name)
		failed = failed || p.Status == resource.Failed && (a.s.Separate || p.State == a.s.State)
		for k := range i {
			a.check(a.s.Phases[k].Name != p.Name, "a phase has one entry", p.Name)
		}
	}
	a.check(a.s.PhaseFailed == failed, "phase_failed says whether a phase of the present state failed", "")
}

func (a *auditor) jobs() {
	ended, active, waiting := 0, 0, 0
	for i := range a.s.Jobs {
		j := &a.s.Jobs[i]
		a.check(j.ID != "" && j.State != job.None && !j.AcceptedAt.IsZero(), "a job has an id, a state and a time", j.ID)
		a.check(j.State.Final() == !j.EndedAt.IsZero(), "what is final has ended", j.ID)
		a.check(!j.Canceling || !j.State.Final(), "what is final is not being canceled", j.ID)
		switch {
		case j.State.Final():
			ended++
		case active > 0:
			waiting++
			a.check(j.State == job.Pending, "what waits behind a job is pending", j.ID)
		default:
			active++
		}
	}
	// Two that ended with the last event, whose records are yet to follow: a cancel and what it canceled. The last flow and,
	// where that one never began, the one whose phases these are. The event that ends a resource ends all.
	a.check(ended <= resource.FinishedJobsMax+2 || a.s.Gone, "few ended jobs are kept", strconv.Itoa(ended))
	a.check(waiting <= resource.QueuedJobsMax, "few jobs wait", strconv.Itoa(waiting))
	inFlight := false
	for i := range a.s.Phases {
		inFlight = inFlight || a.s.Phases[i].InFlight
	}
	a.check(!inFlight || active == 1 || a.s.Gone, "work is out only for a job that is not final", "")
	a.check(!a.s.Gone || active == 0, "what is gone has no job", "")
}

// why checks promise 7: there is a reason, and without a job none that ends by itself.
func (a *auditor) why() {
	reasons := resource.Why(&a.s)
	a.check(len(reasons) > 0, "it says why it waits", "no reason")
	if a.s.Job() != nil {
		return
	}
	for _, r := range reasons {
		switch r.Code {
		case resource.ToHandOut, resource.ForWorker, resource.AtWork, resource.PollAt, resource.ForCallback, resource.RetryAt,
			resource.CancelingFor, resource.BehindCalls, resource.ToGoOn, resource.ForChildren:
			a.check(false, "what rests does not say that it moves", string(r.Code)+" "+r.Of)
		case resource.AtTarget, resource.NotAsked, resource.IsGone, resource.BlockedOn, resource.PhaseFailed,
			resource.WasCanceled, resource.HeldBack, resource.IsGated, resource.BehindJob, resource.ForParent:
		}
	}
}

// blueprint checks what only the blueprint can tell: order inside a state, and that a running job can go on. What began
// under another blueprint is not judged by this one.
func (a *auditor) blueprint(bp *blueprint.Blueprint) {
	s := &a.s
	j := s.Job()
	for i := range bp.Phases {
		ph := &bp.Phases[i]
		p := s.Phase(ph.Name)
		if p == nil || !s.Separate && (p.State != s.State || !bp.Has(ph, s.State)) {
			continue
		}
		under := s.JobByID(p.JobID)
		if under == nil || under.Blueprint != bp.Digest {
			continue
		}
		f, ok := bp.Lifecycle.Flow(under.Walks())
		if !ok || f.Target != under.Target {
			continue
		}
		begun := p.InFlight || p.Status == resource.Completed || p.Status == resource.Undone
		for _, name := range bp.Before(i, &f) {
			if on := bp.Phase(name); on == nil || !bp.Has(on, s.State) {
				continue
			}
			d := s.Phase(name)
			apart := s.Separate && (d == nil || d.JobID != p.JobID) // it has no part in this job
			a.check(!begun || p.Status == resource.Canceling || apart || d != nil && d.Status.Done(), "no phase begins before what it depends on", p.Name+" before "+name)
		}
	}
	if s.Separate {
		a.separate(bp)
	}
	if j == nil || j.Blueprint != bp.Digest || j.State != job.Running || j.Canceling {
		return
	}
	canMove := s.State == "" || s.Separate && len(s.Phases) == 0
	for i := range s.Phases {
		canMove = canMove || s.Phases[i].Status.Active() || s.Phases[i].Status == resource.Gated
	}
	a.check(canMove || a.toContinue(bp), "a running job has something that will end", j.ID)
}

// separate checks where phases are that walk by themselves: each in a state of the lifecycle, and at work only in the last
// state of a path.
func (a *auditor) separate(bp *blueprint.Blueprint) {
	for i := range a.s.Phases {
		p := &a.s.Phases[i]
		if bp.Phase(p.Name) == nil {
			continue
		}
		a.check(slices.Contains(bp.Lifecycle.Precedence, p.State), "a phase is in a state of its lifecycle", p.Name+" in "+p.State)
		at := false
		for _, f := range bp.Lifecycle.Flows {
			at = at || len(f.Path) > 0 && f.Path[len(f.Path)-1] == p.State
		}
		a.check(!p.InFlight || at, "a phase is at work in the last state of a path", p.Name+" in "+p.State)
	}
}

// toContinue reports whether the orchestrator itself has the next step: a state without anything left to do; or, where
// phases walk by themselves, one that nothing holds back.
func (a *auditor) toContinue(bp *blueprint.Blueprint) bool {
	if a.s.Separate {
		return slices.ContainsFunc(a.s.Phases, func(p resource.PhaseRun) bool {
			return p.Status == resource.Blocked && p.JobID == a.s.Job().ID
		}) && !slices.ContainsFunc(a.s.Phases, func(p resource.PhaseRun) bool {
			return p.Status == resource.Failed && p.JobID == a.s.Job().ID
		})
	}
	for _, ph := range bp.In(a.s.State) {
		if p := a.s.Phase(ph.Name); p == nil || !p.Status.Done() {
			return false
		}
	}
	return true
}
