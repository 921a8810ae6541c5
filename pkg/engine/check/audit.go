package check

import (
	"slices"
	"strconv"

	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/job"
)

// Audit lists what is wrong with an object, and with the step that led to it from before (the zero State: none). It knows
// nothing of Step.
func Audit(before, after *State) []audit.Finding {
	var found []audit.Finding
	check := func(ok bool, rule, of string) {
		if !ok {
			found = append(found, audit.Finding{Rule: rule, Of: of})
		}
	}
	u := func(n uint64) string { return strconv.FormatUint(n, 10) }
	check(after.UID != "" && after.Spec != "", "an object has a uid and a spec", after.ID())
	check(after.Observed <= after.Generation, "what is observed was there", u(after.Observed))
	check(len(after.Jobs) <= OpenJobsMax, "open jobs have a limit", after.ID())
	check(after.Observed < after.Generation || len(after.Jobs) == 0, "jobs end when all is observed", after.ID())
	for i := range after.Jobs {
		r := &after.Jobs[i]
		check(!slices.ContainsFunc(after.Jobs[:i], func(o job.Ref) bool { return o.ID == r.ID }), "a job is there once", r.ID)
		check(r.State == job.Running && r.Generation > after.Observed && r.Generation <= after.Generation, "an open job waits for its generation", r.ID)
	}
	if before.UID == "" {
		check(after.Revision == 1 && after.Generation == 1, "it begins with generation 1", u(after.Generation))
		return found
	}
	check(before.UID == after.UID && before.Kind == after.Kind && before.Name == after.Name, "what it is stays", after.ID())
	check(after.Revision == before.Revision+1, "revisions are contiguous", u(after.Revision))
	check(after.Generation >= before.Generation && after.Observed >= before.Observed, "generations never go back", u(after.Generation))
	check(!after.UpdatedAt.Before(before.UpdatedAt), "time never runs backwards", after.UpdatedAt.String())
	check(!before.Deleted() || after.DeletedAt.Equal(before.DeletedAt), "a deletion is not taken back", after.ID())
	return found
}
