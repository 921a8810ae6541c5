package selection

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Name stands for a resource's name in the commands to selections and in their records.
const Name = "-"

// ArgCascade is an argument of the cancel of a selection's job: "true" cancels what it started, too.
const ArgCascade = "cascade"

// Limits.
const (
	PageNamesMax     = 256             // names a page, and so names that a crash makes asked again
	MatchedMax       = 100_000         // resources that one selector may match
	RefusalsMax      = 8               // refusals that are kept
	RefusalBytesMax  = 256             // bytes of a kept refusal's message
	SelectorBytesMax = 4096            // bytes of a selector
	ProgressEvery    = time.Second     // between two records that show nothing but counts
	LookEvery        = time.Minute     // between two looks at the records of what it started
	WaitsAfter       = 5 * time.Second // that a page stands still before the record says why
)

// edges is the table: what may follow what. What is not listed is refused.
var edges = map[job.Stage][]job.Stage{
	job.NoStage:   {job.Accepted},
	job.Accepted:  {job.Walking, job.Waiting, job.Canceling, job.Ended},
	job.Walking:   {job.Walking, job.Waiting, job.Canceling, job.Ended},
	job.Waiting:   {job.Waiting, job.Canceling, job.Ended},
	job.Canceling: {job.Canceling, job.Ended},
}

// May reports whether a selection may go from one stage to another.
func May(from, to job.Stage) bool { return slices.Contains(edges[from], to) }

// RequestID is that of the commands which a selection sends. Request ids are scoped to a resource, so one serves all.
func RequestID(id string) string { return id }

// CancelID is the request id under which a selection cancels what it started.
func CancelID(id string) string { return id + "-cancel" }

// Takes reports whether a selection with this verb means the resource of this name: the jobs of a tree start at its root,
// so children are meant only where they may be commanded themselves.
func Takes(verb, name string) bool {
	return verb == resource.VerbApprove || resource.RootName(name) == name
}

// Action is what the shell has to do for a selection.
type Action uint8

// The actions.
const (
	Nothing Action = iota
	Walk           // ask the resources after the cursor
	Watch          // follow the jobs that it started
	Drop           // let what is out be answered, and then look
	Undo           // the same, and cancel the jobs that it started
)

// Next is what has to be done, from the state alone.
func Next(r *job.Record) Action {
	if r.Selection == nil {
		return Nothing
	}
	switch r.Selection.Stage {
	case job.Accepted, job.Walking:
		return Walk
	case job.Waiting:
		return Watch
	case job.Canceling:
		if r.Selection.Cascade {
			return Undo
		}
		return Drop
	default:
		return Nothing
	}
}

// Command asks for a selection.
type Command struct {
	Project, Kind, Verb string
	ID                  string // of the job, derived from project, kind and request id by the shell
	RequestID, Digest   string
	RequestedBy         string
	Selector            string
	Args                map[string]string
}

// Cancel asks for the end of one.
type Cancel struct {
	Command
	Message string
	Cascade bool
	Known   *job.Record // that the same request made before; nil: none
}

// Page is what became of the names after a cursor.
type Page struct {
	From              string // cursor at which it begins
	To                string // last of its names; From where it has none, or was broken off
	Accepted, Refused uint32
	Refusals          []job.Refusal
	End               bool // nothing matches after To
	TooMany           int  // so many match, and that is over MatchedMax; nothing was asked
	Tally             Tally
}

// Tally is how the jobs stand that a selection started, as far as the shell knows them.
type Tally struct {
	Open, Succeeded, Failed, Canceled uint32
	Idle                              bool // nothing is asked or read at present
}

func (t *Tally) total() uint32 { return t.Open + t.ended() }

func (t *Tally) ended() uint32 { return t.Succeeded + t.Failed + t.Canceled }

// Input is one thing that a selection is told. Exactly one of the pointers is set, or Waits.
type Input struct {
	At      time.Time
	Command *Command
	Cancel  *Cancel
	Page    *Page
	Tally   *Tally
	Waits   string // why the walk stands still
}

// Effects is what follows from a step. Where Changed, the record is appended, in one batch with Beside where that is set,
// before the reply.
type Effects struct {
	Changed bool
	Beside  *job.Record // the record of the command itself, which has ended
	Reply   *resource.Reply
	Note    resource.NoteCode // why nothing changed
}

// Step is all that a selection can do. A record without a Selection stands for none, or for another job of this id.
func Step(r job.Record, in Input) (job.Record, Effects) {
	switch {
	case in.Command != nil:
		return command(r, in.Command, in.At)
	case in.Cancel != nil:
		return cancel(r, in.Cancel, in.At)
	case r.Selection == nil || r.State.Final():
		return r, Effects{Note: resource.NoteNothing}
	case in.Page != nil:
		return page(r, in.Page, in.At)
	case in.Tally != nil:
		return tally(r, in.Tally, in.At)
	case in.Waits != "" && Next(&r) == Walk && r.Selection.Waits != in.Waits:
		next := advance(r, in.At)
		begin(&next)
		next.Selection.Stage = job.Walking
		next.Selection.Waits = cut(in.Waits, resource.MessageBytesMax)
		return next, Effects{Changed: true}
	default:
		return r, Effects{Note: resource.NoteNothing}
	}
}

func command(r job.Record, c *Command, at time.Time) (job.Record, Effects) {
	if r.ID != "" {
		return r, again(&r, c)
	}
	return job.Record{
		Ref: job.Ref{
			ID: c.ID, RequestID: c.RequestID, Digest: c.Digest, Verb: c.Verb, State: job.Pending, AcceptedAt: at, RequestedBy: c.RequestedBy,
		},
		Project: c.Project, Kind: c.Kind, Name: Name, Revision: 1, MinReader: resource.ReaderVersion,
		Selection: &job.Selection{Selector: c.Selector, Args: c.Args, Stage: job.Accepted, UpdatedAt: at},
	}, Effects{Changed: true, Reply: &resource.Reply{JobID: c.ID}}
}

// again answers a request that made a job before.
func again(r *job.Record, c *Command) Effects {
	if r.Digest == c.Digest {
		return Effects{Reply: &resource.Reply{JobID: r.ID}, Note: resource.NoteDuplicate}
	}
	return refuse(resource.Conflict, "request id "+c.RequestID+" was used before for another command on this kind")
}

func refuse(code resource.Code, message string) Effects {
	return Effects{Reply: &resource.Reply{Refused: &resource.Refusal{Code: code, Message: message}}}
}

// cancel begins the end of a selection. A second one may only ask for more.
func cancel(r job.Record, c *Cancel, at time.Time) (job.Record, Effects) {
	switch {
	case c.Known != nil:
		return r, again(c.Known, &c.Command)
	case r.Selection == nil:
		return r, refuse(resource.NotFound, "there is no job of a selector command of this id")
	case r.State.Final():
		return r, refuse(resource.Conflict, "job "+r.ID+" has ended already: "+r.State.String())
	}
	next := advance(r, at)
	s := next.Selection
	s.Stage, s.Waits, next.Canceling = job.Canceling, "", true
	s.Cascade = s.Cascade || c.Cascade
	if s.CancelMessage == "" {
		s.CancelMessage = cut(c.Message, resource.MessageBytesMax)
	}
	begin(&next)
	at = s.UpdatedAt
	return next, Effects{
		Changed: true,
		Beside: &job.Record{
			Ref: job.Ref{
				ID: c.ID, RequestID: c.RequestID, Digest: c.Digest, Verb: c.Verb, State: job.Succeeded, RequestedBy: c.RequestedBy,
				AcceptedAt: at, StartedAt: at, EndedAt: at, Message: "cancels job " + r.ID,
			},
			Project: c.Project, Kind: c.Kind, Name: Name, Revision: 1, MinReader: resource.ReaderVersion,
		},
		Reply: &resource.Reply{JobID: c.ID},
	}
}

func page(r job.Record, p *Page, at time.Time) (job.Record, Effects) {
	from := r.Selection
	if p.From != from.Cursor || p.To < p.From || from.Stage == job.Waiting {
		return r, Effects{Note: resource.NoteFenced}
	}
	next := advance(r, at)
	s := next.Selection
	begin(&next)
	if p.TooMany > 0 && from.Stage != job.Canceling {
		end(&next, job.Failed, strconv.Itoa(p.TooMany)+" resources match, and one selector may match at most "+strconv.Itoa(MatchedMax)+
			"; nothing was asked")
		return next, Effects{Changed: true}
	}
	s.Waits, s.Cursor = "", p.To
	s.Accepted += p.Accepted
	s.Refused += p.Refused
	for i := range p.Refusals {
		if len(s.Refusals) == RefusalsMax {
			break
		}
		kept := p.Refusals[i]
		kept.Message = cut(kept.Message, RefusalBytesMax)
		s.Refusals = append(s.Refusals, kept)
	}
	if p.Accepted+p.Refused > 0 {
		s.WalkedAt = s.UpdatedAt
	}
	s.Matched = s.Accepted + s.Refused
	switch {
	case s.Stage == job.Canceling:
		count(s, &p.Tally)
		dropped(&next, &p.Tally)
	case p.End:
		s.Stage = job.Waiting
		count(s, &p.Tally)
		settle(&next, &p.Tally)
	default:
		s.Stage = job.Walking
		if p.Tally.total() <= s.Accepted { // else it knows of jobs after the cursor, whose page has its turn
			count(s, &p.Tally)
		}
	}
	return next, Effects{Changed: true}
}

func tally(r job.Record, t *Tally, at time.Time) (job.Record, Effects) {
	next := advance(r, at)
	s := next.Selection
	count(s, t)
	switch s.Stage {
	case job.Waiting:
		settle(&next, t)
	case job.Canceling:
		dropped(&next, t)
	default:
		return r, Effects{Note: resource.NoteNothing} // the next page says it
	}
	same := s.Accepted == r.Selection.Accepted && s.Succeeded == r.Selection.Succeeded && s.Failed == r.Selection.Failed &&
		s.Canceled == r.Selection.Canceled
	if s.Stage == r.Selection.Stage && (same || at.Before(r.Selection.UpdatedAt.Add(ProgressEvery))) {
		return r, Effects{Note: resource.NoteNothing}
	}
	return next, Effects{Changed: true}
}

// Due is when a tally that differs from the record may be recorded.
func Due(r *job.Record) time.Time { return r.Selection.UpdatedAt.Add(ProgressEvery) }

// count takes a tally into the counts. A job that was counted stays counted: its record may be forgotten meanwhile.
func count(s *job.Selection, t *Tally) {
	s.Accepted = max(s.Accepted, t.total())
	s.Matched = s.Accepted + s.Refused
	s.Succeeded, s.Failed, s.Canceled = max(s.Succeeded, t.Succeeded), max(s.Failed, t.Failed), max(s.Canceled, t.Canceled)
}

// settle ends a selection whose jobs have all ended. Jobs that were accepted and are nowhere to be found are waited for as
// long as their records are kept: a record follows its resource, whoever crashed.
func settle(r *job.Record, t *Tally) {
	s := r.Selection
	missing := s.Accepted - min(s.Accepted, t.total())
	if t.Open > 0 || missing > 0 && s.UpdatedAt.Before(s.WalkedAt.Add(job.RetentionDefault)) {
		return
	}
	missing = s.Accepted - min(s.Accepted, s.Succeeded+s.Failed+s.Canceled)
	state := job.Failed
	if s.Refused == 0 && s.Failed == 0 && s.Canceled == 0 && missing == 0 {
		state = job.Succeeded
	}
	end(r, state, summary(s, missing))
}

// dropped ends a canceled selection once nothing of it is under way.
func dropped(r *job.Record, t *Tally) {
	s := r.Selection
	missing := s.Accepted - min(s.Accepted, t.total())
	if !t.Idle || s.Cascade && (t.Open > 0 || missing > 0 && s.UpdatedAt.Before(s.WalkedAt.Add(job.RetentionDefault))) {
		return
	}
	message := "canceled"
	if s.CancelMessage != "" {
		message += ": " + s.CancelMessage
	}
	if open := s.Accepted - min(s.Accepted, s.Succeeded+s.Failed+s.Canceled); open > 0 {
		message += "; " + jobs(open) + " it started may go on"
	}
	end(r, job.Canceled, message)
}

func jobs(n uint32) string {
	if n == 1 {
		return "1 job that"
	}
	return strconv.FormatUint(uint64(n), 10) + " jobs that"
}

// summary is the sentence that an ended selection leaves.
func summary(s *job.Selection, missing uint32) string {
	if s.Matched == 0 {
		return "no resource matched"
	}
	parts := []string{strconv.FormatUint(uint64(s.Matched), 10) + " matched"}
	for _, c := range []struct {
		n    uint32
		what string
	}{
		{s.Succeeded, "succeeded"}, {s.Failed, "failed"}, {s.Canceled, "canceled"}, {s.Refused, "refused"}, {missing, "forgotten before they were seen to end"},
	} {
		if c.n > 0 {
			parts = append(parts, strconv.FormatUint(uint64(c.n), 10)+" "+c.what)
		}
	}
	return strings.Join(parts, ", ")
}

// advance is a copy of a record with its next revision and time.
func advance(r job.Record, at time.Time) job.Record {
	s := *r.Selection
	s.Refusals = slices.Clone(s.Refusals)
	if at.After(s.UpdatedAt) {
		s.UpdatedAt = at
	}
	r.Selection = &s
	r.Revision++
	return r
}

func begin(r *job.Record) {
	if r.State == job.Pending {
		r.State, r.StartedAt = job.Running, r.Selection.UpdatedAt
	}
}

func end(r *job.Record, state job.State, message string) {
	r.State, r.EndedAt, r.Message = state, r.Selection.UpdatedAt, cut(message, resource.MessageBytesMax)
	r.Selection.Stage, r.Selection.Waits = job.Ended, ""
}

func cut(message string, most int) string {
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most-3], "") + "..."
}
