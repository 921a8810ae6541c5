package machine

import (
	"strconv"

	"github.com/droverproject/drover/pkg/engine/audit"
)

// Audit lists what is wrong with a state, and with the step that led to it from before (the zero State: none). It knows
// nothing of Step.
func Audit(before, after State, fx Effects) []audit.Finding {
	var found []audit.Finding
	check := func(ok bool, rule, of string) {
		if !ok {
			found = append(found, audit.Finding{Rule: rule, Of: of})
		}
	}
	check(after.CurrentTask >= -1 && after.CurrentTask <= len(after.Tasks), "the place is within the list", strconv.Itoa(after.CurrentTask))
	check((after.Run == nil) == (after.CurrentJob == ""), "the current job has its run", after.CurrentJob)
	check(after.Run == nil || after.Run.ID == after.CurrentJob, "the run is that of the current job", after.CurrentJob)
	check(!after.UpdatedAt.Before(before.UpdatedAt), "time never runs backwards", after.UpdatedAt.String())
	grown := before.Revision
	if fx.Machine {
		grown++
	}
	check(after.Revision == grown, "revisions are contiguous", strconv.FormatUint(after.Revision, 10))
	if before.Exists() && after.Exists() {
		check(before.UUID == after.UUID && before.Key == after.Key, "a machine stays who it is", after.UUID)
		check(before.BootEnv == after.BootEnv || !after.Runnable, "another boot environment parks the machine", after.BootEnv)
	}
	found = append(found, auditRuns(before, after, fx)...)
	return found
}

func auditRuns(before, after State, fx Effects) []audit.Finding {
	var found []audit.Finding
	check := func(ok bool, rule, of string) {
		if !ok {
			found = append(found, audit.Finding{Rule: rule, Of: of})
		}
	}
	open := 0
	prior := map[string]*Run{}
	if before.Run != nil {
		prior[before.Run.ID] = before.Run
	}
	superseded := len(fx.Runs) > 1 || fx.Cause == "next" && len(fx.Runs) == 1 && before.Run != nil && fx.Runs[0].ID == before.Run.ID
	for i := range fx.Runs {
		r := &fx.Runs[i]
		from, revision := NoRun, uint64(0)
		if p := prior[r.ID]; p != nil {
			from, revision = p.State, p.Revision
			check(p.Task == r.Task && p.Index == r.Index && p.Machine == r.Machine, "a run stays what it is", r.ID)
		} else {
			check(r.ID == after.CurrentJob, "a new run is the current one", r.ID)
			check(r.Index == after.CurrentTask, "a new run is for the place", strconv.Itoa(r.Index))
			check(r.Previous == before.CurrentJob, "runs are a chain", r.Previous)
		}
		check(from == r.State || May(from, r.State), "a run follows its table", from.String()+" to "+r.State.String())
		check(r.Revision == revision+1, "revisions of a run are contiguous", r.ID)
		check(r.State.Final() == !r.EndedAt.IsZero(), "what is final has its time", r.State.String())
		check(r.State != Failed || !after.Runnable || superseded && i == 0, "a failed run parks its machine", r.ID)
		if !r.State.Final() {
			open++
		}
		delete(prior, r.ID)
	}
	if after.Run != nil && before.Run != nil && after.Run.ID != before.Run.ID {
		if p := prior[before.Run.ID]; p != nil {
			check(p.State.Final(), "the run before a new one is final", p.ID)
		}
	}
	check(open <= 1, "one run at most is open", strconv.Itoa(open))
	return found
}
