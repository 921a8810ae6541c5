package selection

import (
	"strconv"

	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Audit lists what is wrong with a record of a selection, and with the step that led to it from before (the zero Record:
// none). It knows nothing of Step.
func Audit(before, after job.Record) []audit.Finding {
	var found []audit.Finding
	check := func(ok bool, rule, of string) {
		if !ok {
			found = append(found, audit.Finding{Rule: rule, Of: of})
		}
	}
	s := after.Selection
	if s == nil {
		check(before.Selection == nil, "a selection stays one", after.ID)
		return found
	}
	u := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	check(s.Matched == s.Accepted+s.Refused, "what matched was accepted or refused", u(s.Matched))
	check(s.Succeeded+s.Failed+s.Canceled <= s.Accepted, "no more end than were accepted", u(s.Succeeded+s.Failed+s.Canceled))
	check(len(s.Refusals) <= RefusalsMax && uint32(len(s.Refusals)) <= s.Refused, "refusals are kept up to a limit", u(uint32(len(s.Refusals))))
	check(len(after.Message) <= resource.MessageBytesMax && len(s.Waits) <= resource.MessageBytesMax, "messages have a limit", after.ID)
	check((s.Stage == job.Ended) == after.State.Final(), "ended is final", s.Stage.String())
	check((s.Stage == job.Accepted) == (after.State == job.Pending), "accepted is pending", s.Stage.String())
	check(after.State.Final() != after.EndedAt.IsZero(), "what is final has its time", after.State.String())
	check(s.Stage != job.Canceling || after.Canceling, "a canceling one says so", s.Stage.String())
	check(after.State != job.Canceled || after.Canceling, "only a canceled one is", after.State.String())
	check(s.Waits == "" || Next(&after) == Walk, "only a walk stands still", s.Stage.String())
	if after.State == job.Succeeded {
		check(s.Refused+s.Failed+s.Canceled == 0 && s.Succeeded == s.Accepted, "success is that of all", after.Message)
	}
	if before.Selection == nil {
		check(after.Revision == 1 && s.Stage == job.Accepted, "it begins accepted", s.Stage.String())
		return found
	}
	b := before.Selection
	check(after.ID == before.ID && after.Digest == before.Digest && s.Selector == b.Selector, "what was asked stays", after.ID)
	check(after.Revision == before.Revision+1, "revisions are contiguous", strconv.FormatUint(after.Revision, 10))
	check(May(b.Stage, s.Stage), "stages follow the table", b.Stage.String()+" to "+s.Stage.String())
	check(before.State == after.State || job.May(before.State, after.State), "the job follows its table", after.State.String())
	check(!s.UpdatedAt.Before(b.UpdatedAt), "time never runs backwards", s.UpdatedAt.String())
	check(s.Cursor >= b.Cursor, "the cursor never goes back", s.Cursor)
	check(s.Accepted >= b.Accepted && s.Refused >= b.Refused && s.Succeeded >= b.Succeeded && s.Failed >= b.Failed && s.Canceled >= b.Canceled,
		"counts never go back", u(s.Matched))
	check(!b.Cascade || s.Cascade, "a cascade is not taken back", "")
	return found
}
