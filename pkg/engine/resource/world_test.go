package resource_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// began is second 0 of every test.
var began = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// world is one resource name and what the shell keeps beside it: blueprints by digest, the job records that follow, the
// fences that were handed out. Every input goes through step, which checks what must hold of any step at all.
type world struct {
	state      resource.State
	blueprints map[string]*blueprint.Blueprint
	present    string
	records    map[string]*job.Record
	fences     []resource.Fence // every hand-out, oldest first
	more       bool             // the last step asked to be continued
	shared     bool             // records are another's too
	light      bool             // steps are taken once: purity and repetition are looked at elsewhere
}

func newWorld() *world {
	return &world{blueprints: map[string]*blueprint.Blueprint{}, records: map[string]*job.Record{}}
}

func (w *world) define(bp *blueprint.Blueprint) {
	w.blueprints[bp.Digest] = bp
	w.present = bp.Digest
}

// pinned is the blueprint that the state's job follows.
func (w *world) pinned() *blueprint.Blueprint {
	j := w.state.Job()
	if j == nil || j.Blueprint == "" {
		j = w.state.FlowJob()
	}
	if j == nil {
		return nil
	}
	return w.blueprints[j.Blueprint]
}

// when is the tests' language of constraints: true, false, error, has(NAME) of an attribute.
func when(expression string, s *resource.State) (bool, error) {
	switch name, has := strings.CutPrefix(expression, "has("); {
	case has:
		_, ok := s.Attributes[strings.TrimSuffix(name, ")")]
		return ok, nil
	case expression == "true" || expression == "false":
		return expression == "true", nil
	}
	return false, errors.New("no such overload")
}

// prepare completes an input as the shell does.
func (w *world) prepare(in resource.Input) (resource.Input, resource.Env) {
	env := resource.Env{When: when, Blueprint: w.pinned()}
	if in.Kind == resource.OnCommand && in.Command != nil {
		env.Blueprint = w.blueprints[w.present]
		if r := w.records[in.Command.JobID]; r != nil && w.state.JobByID(in.Command.JobID) == nil {
			c := *in.Command
			c.Known = &resource.KnownJob{Digest: r.Digest}
			in.Command = &c
		}
	}
	return in, env
}

// step takes one step and commits it. The error names every promise that it broke.
func (w *world) step(in resource.Input) (resource.Effects, error) {
	in, env := w.prepare(in)
	before := w.state
	var broken []string
	blame := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	var copied resource.State
	var copiedIn resource.Input
	if !w.light {
		copied, copiedIn = deepCopy(before), copyInput(in)
	}
	after, fx := resource.Step(before, in, env)
	if w.light {
		w.checkEffects(before, after, in, fx, blame)
		w.commit(after, fx)
		if fx.Event != nil {
			w.checkState(blame)
		}
		return fx, joined(broken)
	}
	if !reflect.DeepEqual(before, copied) || !reflect.DeepEqual(in, copiedIn) {
		blame("the step modified what it was given")
	}
	if again, fxAgain := resource.Step(copied, in, env); !reflect.DeepEqual(after, again) || !reflect.DeepEqual(fx, fxAgain) {
		blame("equal arguments gave different results")
	}
	w.checkEffects(before, after, in, fx, blame)
	w.commit(after, fx)
	w.checkState(blame)
	if fx.Event != nil && (in.Kind == resource.OnResult || in.Kind == resource.OnCommand || in.Kind == resource.OnLost || in.Kind == resource.OnDue) {
		inAgain, envAgain := w.prepare(in)
		if _, second := resource.Step(w.state, inAgain, envAgain); second.Event != nil {
			blame("the same input had a second effect: %+v", *second.Event)
		} else if fx.Reply != nil && (second.Reply == nil || second.Reply.JobID != fx.Reply.JobID) {
			blame("the same command was answered differently: %+v, then %+v", fx.Reply, second.Reply)
		}
	}
	return fx, joined(broken)
}

func joined(broken []string) error {
	if len(broken) == 0 {
		return nil
	}
	return errors.New(strings.Join(broken, "\n"))
}

// checkState audits the state that was committed, and the records beside it.
func (w *world) checkState(blame func(string, ...any)) {
	for _, f := range audit.Resource(w.state, w.pinned()) {
		blame("audit: %s (%s)", f.Rule, f.Of)
	}
	w.checkRecords(blame)
}

// checkEffects holds a step to the contract of Effects.
func (w *world) checkEffects(before, after resource.State, in resource.Input, fx resource.Effects, blame func(string, ...any)) {
	switch {
	case fx.Event == nil && !w.light && !reflect.DeepEqual(before, after):
		blame("the state changed without an event")
	case fx.Event == nil && fx.More:
		blame("no event, and yet it wants to be continued")
	case fx.Event == nil && fx.Reply == nil && len(fx.Notes) == 0 && len(fx.Polls) == 0:
		blame("nothing happened, and no note says why")
	case fx.Event != nil && fx.Event.Cause.Kind == "":
		blame("an event without a cause")
	case fx.Event != nil && (fx.Event.To != after.State || before.UID == after.UID && fx.Event.From != before.State):
		blame("the event says %q to %q, the states %q to %q", fx.Event.From, fx.Event.To, before.State, after.State)
	}
	limited := false
	for _, n := range fx.Notes {
		limited = limited || n.Code == resource.NoteLimit
		if n.Code == resource.NoteIllegal {
			blame("an illegal edge was tried: %s", n.Of)
		}
	}
	if (in.Kind == resource.OnCommand) != (fx.Reply != nil) {
		blame("reply %+v", fx.Reply)
	}
	if r := fx.Reply; r != nil && (r.JobID == "") == (r.Refused == nil) {
		blame("a reply is a job or a refusal: %+v", r)
	}
	if r := fx.Reply; r != nil && r.Refused != nil && fx.Event != nil {
		blame("a refused command left something behind")
	}
	if fx.Event == nil {
		return
	}
	fence := in.Lost
	if in.Result != nil {
		fence = &in.Result.Fence
	}
	if fence != nil {
		f, out := w.outstanding(fence.Phase)
		if in.Result != nil && fence.Call == 0 && w.callsBack(in.Result) {
			f.Call = 0 // it is of the attempt
		}
		if !out || f != *fence {
			blame("an answer with fence %+v counted, where %+v was awaited", *fence, f)
		}
	}
	if r := in.Result; r != nil && !limited && r.Outcome != resource.OutcomeRunning && r.Outcome != resource.OutcomeNotStarted {
		for _, name := range slices.Sorted(maps.Keys(r.Attributes)) {
			if kept, ok := after.Attributes[name]; ok == (r.Attributes[name] == "null") || ok && kept != r.Attributes[name] {
				blame("attribute %s was not kept", name)
			}
		}
	}
	if bp := w.pinned(); fx.Event.Dispatch != nil && bp != nil && bp.Lifecycle.OnFailure == blueprint.Drain {
		for i := range after.Phases {
			if p := &after.Phases[i]; p.Status == resource.Failed && (p.State == after.State && !after.Separate || p.JobID == fx.Event.JobID) {
				blame("phase %s goes out after a failure of %s that drains", fx.Event.Dispatch.Fence.Phase, p.Name)
			}
		}
	}
	for _, f := range audit.Transition(before, after) {
		blame("transition: %s (%s)", f.Rule, f.Of)
	}
	if d := fx.Event.Dispatch; d != nil {
		p := after.Phase(d.Fence.Phase)
		switch {
		case p == nil || !p.InFlight || p.Attempt != d.Fence.Attempt || p.Call != d.Fence.Call || p.JobID != d.Fence.JobID || after.UID != d.Fence.UID:
			blame("the fence %+v is not that of the phase %+v", d.Fence, p)
		case slices.Contains(w.fences, d.Fence):
			blame("the fence %+v was handed out before", d.Fence)
		}
		if n := len(after.Transactions); after.Separate && !slices.ContainsFunc(after.Transactions, func(t resource.Transaction) bool {
			return t.Phase == d.Fence.Phase && t.Attempt == d.Fence.Attempt && t.JobID == d.Fence.JobID && t.Calls == d.Fence.Call && t.Ended.IsZero()
		}) {
			blame("no transaction under way, of %d, is of the hand-out %+v", n, d.Fence)
		}
	}
	for i := range after.Phases {
		p, was := &after.Phases[i], before.Phase(after.Phases[i].Name)
		out := p.InFlight && p.Status != resource.Canceling
		handed := fx.Event.Dispatch != nil && fx.Event.Dispatch.Fence.Phase == p.Name
		if out && !handed && (was == nil || !was.InFlight || was.Call != p.Call || was.Attempt != p.Attempt) {
			blame("phase %s is in flight, but nothing was handed out", p.Name)
		}
	}
}

// commit does what the shell does with a step: the state, the records of its jobs, the hand-out.
func (w *world) commit(after resource.State, fx resource.Effects) {
	w.more = fx.More
	if fx.Event == nil {
		return
	}
	if w.shared { // the records of jobs that the state had forgotten have ended: checkRecords
		shared := w.records
		w.records, w.shared = make(map[string]*job.Record, len(after.Jobs)), false
		for i := range w.state.Jobs {
			if id := w.state.Jobs[i].ID; shared[id] != nil {
				w.records[id] = shared[id]
			}
		}
	}
	w.state = after
	if fx.Event.Dispatch != nil {
		w.fences = append(w.fences, fx.Event.Dispatch.Fence)
	}
	for i := range after.Jobs {
		ref := after.Jobs[i]
		prior := w.records[ref.ID]
		if record, follows := job.Derive(after.Root(), ref, prior); follows {
			w.records[ref.ID] = &record
		}
	}
}

// checkRecords holds the jobs' own records to promise 5: each ends, or the resource still drives it.
func (w *world) checkRecords(blame func(string, ...any)) {
	for _, id := range slices.Sorted(maps.Keys(w.records)) {
		r, ref := w.records[id], w.state.JobByID(id)
		switch {
		case ref == nil && !r.State.Final():
			blame("the resource forgot job %s, whose record is %s", id, r.State)
		case ref != nil && ref.State != r.State:
			blame("job %s is %s, its record %s", id, ref.State, r.State)
		}
	}
}

// callsBack reports whether a result may be that of an attempt, without its call.
func (w *world) callsBack(r *resource.Result) bool {
	p := w.state.Phase(r.Fence.Phase)
	return p != nil && p.Callback && (r.Outcome == resource.OutcomeCompleted || r.Outcome == resource.OutcomeFailed || r.Outcome == resource.OutcomePending)
}

// fence of the hand-out that an answer is awaited for; false: none is.
func (w *world) outstanding(phase string) (resource.Fence, bool) {
	p := w.state.Phase(phase)
	if p == nil || !p.InFlight && (p.Status != resource.Sleeping || p.Retrying) {
		return resource.Fence{}, false
	}
	return resource.Fence{UID: w.state.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt, Call: p.Call}, true
}

// settle is a fair world: what is out is answered "completed", what is due is done, what can go on goes on. It returns
// the number of steps until no job is left to drive, or an error after the bound.
func (w *world) settle(at time.Time, bound int) (int, error) {
	for n := range bound {
		if w.state.Job() == nil || !w.state.Exists() {
			return n, nil
		}
		in := w.fair(at, n)
		at = in.At
		if _, err := w.step(in); err != nil {
			return n, err
		}
	}
	return bound, fmt.Errorf("no end after %d steps: %+v", bound, w.state)
}

// fair is what a fair world says next.
func (w *world) fair(at time.Time, n int) resource.Input {
	in := resource.Input{Kind: resource.OnContinue, At: at}
	if w.more {
		return in
	}
	if due := w.state.NextDue(); !due.IsZero() {
		in.Kind = resource.OnDue
		if due.After(at) {
			in.At = due
		}
	}
	for i := range w.state.Phases {
		if p := &w.state.Phases[i]; p.Status == resource.Gated {
			id := "settle" + strconv.Itoa(n)
			in = resource.Input{Kind: resource.OnCommand, At: at, Command: &resource.Command{
				Key: w.state.Key, Verb: resource.VerbApprove, RequestID: id, JobID: id, Digest: id, Phase: p.Name,
			}}
		}
	}
	for i := range w.state.Phases {
		if f, ok := w.outstanding(w.state.Phases[i].Name); ok {
			return resource.Input{Kind: resource.OnResult, At: at, Result: &resource.Result{Fence: f, Outcome: resource.OutcomeCompleted}}
		}
	}
	return in
}

// fork is a light copy that goes its own way. States are values, and what else it has is copied when it changes.
func (w *world) fork() *world {
	c := *w
	c.light, c.shared = true, true
	c.fences = w.fences[max(0, len(w.fences)-8):]
	c.fences = c.fences[:len(c.fences):len(c.fences)]
	return &c
}

func copyInput(in resource.Input) resource.Input {
	in.Polling = slices.Clone(in.Polling)
	if in.Command != nil {
		c := *in.Command
		c.Labels = maps.Clone(c.Labels)
		in.Command = &c
	}
	if in.Result != nil {
		r := *in.Result
		r.Attributes, r.Data, r.Outputs = maps.Clone(r.Attributes), maps.Clone(r.Data), maps.Clone(r.Outputs)
		in.Result = &r
	}
	if in.Lost != nil {
		f := *in.Lost
		in.Lost = &f
	}
	return in
}

func deepCopy(s resource.State) resource.State {
	s.Labels, s.Attributes = maps.Clone(s.Labels), maps.Clone(s.Attributes)
	s.Phases, s.Jobs, s.Transactions = slices.Clone(s.Phases), slices.Clone(s.Jobs), slices.Clone(s.Transactions)
	for i := range s.Phases {
		s.Phases[i].Data, s.Phases[i].Outputs = maps.Clone(s.Phases[i].Data), maps.Clone(s.Phases[i].Outputs)
	}
	return s
}
