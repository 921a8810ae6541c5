package deployment

import (
	"maps"
	"slices"

	"github.com/droverproject/drover/pkg/engine/audit"
)

// Audit lists what is wrong with an instance, and with the step that led to it from before (the zero State: none). It knows
// nothing of Step.
func Audit(before, after *State) []audit.Finding {
	var found []audit.Finding
	check := func(ok bool, rule, of string) {
		if !ok {
			found = append(found, audit.Finding{Rule: rule, Of: of})
		}
	}
	unique := map[Status]int{}
	blocked := map[string]int{}
	for i := range after.Configurations {
		c := &after.Configurations[i]
		of := "version " + number(c.Version)
		if c.Status.Unique() {
			unique[c.Status]++
		}
		check(c.Status != None && c.Status != AwaitingComputation && c.Status != Computed, "what is stored was ordered", of)
		check(c.ID != "" && c.Version < after.Versions, "a version has a number that was given out", of)
		check(i == 0 || after.Configurations[i-1].Version < c.Version, "versions are in their order", of)
		check((c.Status == Blocked) == (c.BlockedOn != ""), "what is blocked says on what, and nothing else does", of)
		if c.BlockedOn != "" {
			blocked[c.BlockedOn]++
			on := slices.IndexFunc(after.Configurations, func(o Configuration) bool { return o.ID == c.BlockedOn })
			check(on >= 0 && on < i, "what is blocked is blocked on an earlier version", of)
		}
		want := map[Status]Status{
			AwaitingRollout: RolloutInProgress, RolloutInProgress: Active, AwaitingDeprovision: DeprovisionInProgress,
			DeprovisionInProgress: Deprovisioned, Blocked: AwaitingRollout,
		}[c.Status]
		check(c.Next == want, "the next status is that of the status", of)
		// Only the one that the monitoring system deals with is on its way.
		still := c.Status == Blocked || c.Status == Deprovisioned || c.Status == AwaitingDeletion
		check(c.ID == after.Current || still, "only the present configuration is deployed", of)
	}
	for _, status := range slices.Sorted(maps.Keys(unique)) {
		check(unique[status] <= 1, "at most one configuration is "+status.String(), number(uint64(unique[status])))
	}
	for _, on := range slices.Sorted(maps.Keys(blocked)) {
		check(blocked[on] == 1, "at most one configuration is blocked on another", on)
	}
	check(len(after.Configurations) <= VersionsMax, "configurations have a limit", after.ID)
	check(after.ID == "" || after.Current != "", "an instance has a present configuration", after.ID)
	if before.ID == "" {
		check(after.Revision == 1 && after.Versions == 1, "it begins with version 0", after.ID)
		return found
	}
	check(after.ID == before.ID && after.Key == before.Key, "what it is an instance of stays", after.ID)
	check(after.Revision == before.Revision+1, "revisions are contiguous", number(after.Revision))
	check(after.Versions == before.Versions || after.Versions == before.Versions+1, "versions grow by one", number(after.Versions))
	check(!after.UpdatedAt.Before(before.UpdatedAt), "time never runs backwards", after.UpdatedAt.String())
	check(!before.Deleted || after.Deleted, "a deletion is not taken back", after.ID)
	check(after.Updates >= before.Updates, "updates never go back", number(after.Updates))
	check(after.Generation >= before.Generation && after.ObjectRevision >= before.ObjectRevision, "orders never go back", after.ID)
	for i := range before.Configurations {
		b := &before.Configurations[i]
		a := after.find(b.ID)
		if a == nil {
			check(b.Status == Deprovisioned || b.Status == AwaitingDeletion, "only what is done is buried", b.Status.String())
			continue
		}
		check(a.Status == b.Status || May(b.Status, a.Status), "statuses follow the table", b.Status.String()+" to "+a.Status.String())
		check(a.Revision == b.Revision || a.Revision == b.Revision+1, "revisions of configurations are contiguous", number(a.Version))
		check((a.Status != b.Status) == (a.Revision != b.Revision), "a move is a revision", number(a.Version))
		check(Same(a.Details, b.Details), "what a monitoring system was told is not changed", number(a.Version))
	}
	return found
}
