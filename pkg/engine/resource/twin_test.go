package resource_test

import (
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// twin is the rules of a resource a second time: written from the seeds and the package docs, not from Step; slow and
// obvious. It remembers what was said (of each phase: asked, answered, approved, given up), and reads statuses, states and
// hand-outs off that, all of them anew after each input. It knows no revisions, attempts, calls, fences, messages or data.
type twin struct {
	blueprints  map[string]*blueprint.Blueprint
	present     string
	exists      bool
	gone        bool
	marked      bool // deletion was asked for
	spec        string
	state       string // where the resource stands; where each phase walks by itself it is computed (place)
	target      string
	jobs        []*task // all that ever were of this uid
	parts       []*part // phases that it ever had to do with, in no order that matters
	attributes  map[string]string
	succeeded   bool // a phase of it ever was
	wasDeployed bool
	handed      []string // phases handed out by the last input
	polled      []string // phases polled by the last input
	refused     bool     // the last input was a command, and was refused
}

// task is a job.
type task struct {
	id, verb, flow string
	digest         string // of its blueprint; empty: it walks nothing
	state          job.State
	cancel         bool // asked to end
	all            bool
	begun          bool
}

// part is one phase: what was said about it since it was last asked for.
type part struct {
	name     string
	place    string // state it was asked for in, or where it is by itself
	task     *task
	verdict  string // when its turn came: "", "true", "false", "error", "gate"
	out      bool   // a call is out
	reported bool   // the worker said that it is at it
	stopping bool   // the call that is out is to end
	asleep   bool
	again    bool // asleep before another attempt; else between polls
	called   bool // who was asked calls back: asleep, nobody is asked again
	forgiven int
	end      resource.Status // how it ended
	deadline time.Time
	wake     time.Time // when to call, poll, or give up
	ran      bool      // it was handed out at any time
}

func (m *twin) bp(j *task) *blueprint.Blueprint { return m.blueprints[j.digest] }

func (m *twin) head() *task {
	for _, j := range m.jobs {
		if !j.state.Final() {
			return j
		}
	}
	return nil
}

// lastFlow is the job that the phases follow, or followed last.
func (m *twin) lastFlow() *task {
	if j := m.head(); j != nil {
		return j
	}
	for _, j := range slices.Backward(m.jobs) {
		if j.digest != "" {
			return j
		}
	}
	return nil
}

func (m *twin) each() bool { return m.blueprints[m.present].Lifecycle.Walk == blueprint.Each }

func (m *twin) part(name string) *part {
	for _, p := range m.parts {
		if p.name == name {
			return p
		}
	}
	return nil
}

// row is the flow of a job.
func (m *twin) row(j *task) *blueprint.Flow {
	f, ok := m.bp(j).Lifecycle.Flow(j.flow)
	if !ok {
		return nil
	}
	return &f
}

// concerned are the phases that the job that is driven has to do with now, by the blueprint.
func (m *twin) concerned(j *task) []*part {
	var in []*part
	bp := m.bp(j)
	for i := range bp.Phases {
		p := m.part(bp.Phases[i].Name)
		switch {
		case m.each() && p != nil && p.task == j:
			in = append(in, p)
		case !m.each() && slices.Contains(bp.Phases[i].States, m.state):
			if p == nil {
				p = &part{name: bp.Phases[i].Name, place: m.state, task: j}
				m.parts = append(m.parts, p)
			}
			in = append(in, p)
		}
	}
	return in
}

// status of a phase, from all that was said.
func (m *twin) status(p *part) resource.Status {
	switch {
	case p.stopping:
		return resource.Canceling
	case p.out && p.reported:
		return resource.Running
	case p.out:
		return resource.Waiting
	case p.end != 0:
		return p.end
	case p.asleep:
		return resource.Sleeping
	case p.verdict == "false":
		return resource.Skipped
	case p.verdict == "error":
		return resource.Failed
	case p.verdict == "":
		return resource.Blocked
	case p.verdict == "gate":
		return resource.Gated
	}
	return resource.Waiting
}

// free reports whether all that a phase depends on is done. What has no part in this job, or is of another state, counts
// not.
func (m *twin) free(p *part, among []*part) bool {
	bp := m.bp(p.task)
	i := slices.IndexFunc(bp.Phases, func(ph blueprint.Phase) bool { return ph.Name == p.name })
	for _, on := range bp.Before(i, m.row(p.task)) {
		for _, q := range among {
			if q.name == on && !m.status(q).Done() {
				return false
			}
		}
	}
	return true
}

// tell is all that can be said to a resource.
func (m *twin) tell(in resource.Input) {
	m.handed, m.polled, m.refused = nil, nil, false
	if in.Kind == resource.OnCommand {
		m.refused = !m.command(in)
	} else if m.exists && !m.gone {
		m.fact(in)
	}
	for m.exists && !m.gone && m.goOn(in.At) {
	}
}

// fact is what is no command.
func (m *twin) fact(in resource.Input) {
	switch in.Kind {
	case resource.OnResult:
		m.answer(m.part(in.Result.Fence.Phase), in)
	case resource.OnLost:
		m.lost(m.part(in.Lost.Phase))
	case resource.OnDue:
		for _, p := range m.parts {
			m.due(p, in.At)
		}
	}
}

// due is what time does to a phase.
func (m *twin) due(p *part, at time.Time) {
	passed := func(t time.Time) bool { return !t.IsZero() && !t.After(at) }
	switch {
	case p.stopping:
		if passed(p.wake) {
			m.ended(p, resource.Canceled)
		}
	case (p.out || p.asleep) && passed(p.deadline):
		m.ended(p, resource.Failed)
	case p.asleep && p.again && passed(p.wake):
		p.asleep, p.again, p.wake = false, false, time.Time{}
	case p.asleep && passed(p.wake):
		m.polled = append(m.polled, p.name)
	}
}

func (m *twin) lost(p *part) {
	switch {
	case p.stopping:
		m.ended(p, resource.Canceled)
	case p.out:
		p.out, p.reported = false, false
	}
}

func (m *twin) answer(p *part, in resource.Input) {
	r, ph := in.Result, m.bp(p.task).Phase(p.name)
	news := false
	if r.Outcome != resource.OutcomeRunning && r.Outcome != resource.OutcomeNotStarted {
		for name, value := range r.Attributes {
			news = news || m.attributes[name] != value
			m.attributes[name] = value
		}
	}
	done := resource.Completed
	if m.row(p.task).Undo {
		done = resource.Undone
	}
	switch r.Outcome {
	case resource.OutcomeNotStarted:
		m.lost(p)
	case resource.OutcomeRunning:
		if p.stopping {
			p.wake = in.At.Add(ph.CancelLease())
		} else if p.out {
			p.reported = true
		}
	case resource.OutcomeCompleted:
		m.ended(p, done)
		m.succeeded = true
	case resource.OutcomePending:
		switch {
		case p.stopping:
			m.ended(p, resource.Canceled)
		case !p.asleep || news: // a poll that brings nothing new changes nothing
			p.out, p.reported, p.asleep, p.wake = false, false, true, in.At.Add(ph.PendingInterval())
			if p.called {
				p.wake = time.Time{}
			}
		}
	case resource.OutcomeFailed:
		switch {
		case p.stopping:
			m.ended(p, resource.Canceled)
		case r.Retryable && p.forgiven < ph.Retry.Attempts:
			p.forgiven++
			p.out, p.reported, p.asleep, p.again = false, false, true, true
			p.wake, p.deadline = in.At.Add(ph.RetryDelay()), time.Time{}
		default:
			m.ended(p, resource.Failed)
		}
	}
}

// ended is the end of an attempt; a phase that walks by itself goes where that leads.
func (m *twin) ended(p *part, how resource.Status) {
	p.end, p.out, p.reported, p.stopping, p.asleep, p.again = how, false, false, false, false, false
	p.deadline, p.wake = time.Time{}, time.Time{}
	if !m.each() {
		return
	}
	if f := m.row(p.task); how.Done() {
		p.place = f.Target
	} else {
		p.place = f.Failure
	}
}

// anew forgets what was said of a phase.
func (m *twin) anew(p *part, j *task) { *p = part{name: p.name, place: p.place, task: j, ran: p.ran} }

// goOn takes one step that follows from what was said, and reports whether there was one.
func (m *twin) goOn(at time.Time) bool {
	j := m.head()
	if j == nil {
		return false
	}
	for _, p := range m.parts {
		if p.stopping && (j.state == job.Pending || j.cancel) {
			return false
		}
	}
	if j.cancel {
		m.end(j, job.Canceled)
		return true
	}
	if j.state == job.Pending {
		m.begin(j)
		return true
	}
	in := m.concerned(j)
	for _, p := range in {
		if m.status(p) == resource.Blocked && m.free(p, in) {
			m.judge(p)
			return true
		}
	}
	if !slices.ContainsFunc(in, func(p *part) bool { return !m.status(p).Done() }) {
		m.leave(j)
		return true
	}
	failed := slices.ContainsFunc(in, func(p *part) bool { return m.status(p) == resource.Failed })
	held := failed && m.bp(j).Lifecycle.OnFailure == blueprint.Drain
	moving := false
	for _, p := range in {
		ready := m.status(p) == resource.Waiting && !p.out
		if ready && held {
			p.deadline = time.Time{} // what comes next is another attempt
		}
		if ready && !held {
			m.handOut(p, j, at)
			return true
		}
		moving = moving || p.out || p.asleep
	}
	if failed && !moving {
		m.end(j, job.Failed)
		return true
	}
	return false
}

func (m *twin) handOut(p *part, j *task, at time.Time) {
	p.out, p.task, p.ran = true, j, true
	by := m.bp(j).Phase(p.name).Executor
	if m.row(j).Undo {
		by = *m.bp(j).Phase(p.name).Undo
	}
	p.called = by.Callback
	if t := m.bp(j).Phase(p.name).Timeout; t > 0 && p.deadline.IsZero() {
		p.deadline = at.Add(t)
	}
	if f := m.row(j); m.each() {
		p.place = f.Path[len(f.Path)-1]
	}
	m.handed = append(m.handed, p.name)
}

// judge asks a phase's constraint, once for each time that the phase is asked for.
func (m *twin) judge(p *part) {
	w, f := m.bp(p.task).Phase(p.name).When, m.row(p.task)
	holds, err := true, error(nil)
	if w != "" {
		holds, err = when(w, &resource.State{Attributes: m.attributes})
	}
	switch {
	case err != nil:
		p.verdict = "error"
		m.ended(p, resource.Failed)
	case !holds:
		p.verdict = "false"
		if m.each() {
			p.place = f.Target
		}
	case m.bp(p.task).Phase(p.name).Gated() && !f.Undo: // what is taken back asks for no approval
		p.verdict = "gate"
	default:
		p.verdict = "true"
	}
}

// leave is what happens when all phases of a state are done.
func (m *twin) leave(j *task) {
	f := m.row(j)
	if i := slices.Index(f.Path, m.state); !m.each() && i >= 0 && i+1 < len(f.Path) {
		m.enter(j, f.Path[i+1])
		return
	}
	m.state = f.Target
	m.end(j, job.Succeeded)
}

// enter begins every phase of a state anew.
func (m *twin) enter(j *task, state string) {
	m.state = state
	for _, p := range m.parts {
		if ph := m.bp(j).Phase(p.name); ph != nil && slices.Contains(ph.States, state) {
			m.anew(p, j)
			p.place = state
		}
	}
}

// begin starts the walk of a job.
func (m *twin) begin(j *task) {
	j.state = job.Running
	l := &m.bp(j).Lifecycle
	if l.ByMark && m.marked {
		j.flow = l.Delete
	}
	f := m.row(j)
	if m.each() && j.verb == resource.VerbDelete && m.nothingToUndo(l, f) {
		j.begun, m.target = true, f.Target
		m.end(j, job.Succeeded) // what it waited behind has left nothing to do
		return
	}
	if l.OnTargetChange == blueprint.Wait && !m.mayBegin(j, f) { // where it was waited for has led elsewhere
		m.end(j, job.Failed)
		return
	}
	j.begun = true
	if m.each() {
		m.beginEach(j, f)
		return
	}
	m.wasDeployed = m.told(f)
	goesOn := m.target == f.Target
	m.target = f.Target
	switch {
	case l.Rerun == blueprint.RerunAll && len(f.Path) > 0:
		m.enter(j, f.Path[0])
	case m.state == f.Target || len(f.Path) == 0:
		m.state = f.Target
		m.end(j, job.Succeeded)
	case !slices.Contains(f.Path, m.state):
		m.enter(j, f.Path[0])
	case !goesOn || j.all:
		m.enter(j, m.state)
	default:
		in := m.concerned(j)
		for _, p := range in {
			s := m.status(p)
			if p.task = j; s == resource.Failed || s == resource.Canceled {
				m.anew(p, j)
			}
		}
		for again := true; again; { // what is done before what it depends on, as another way has it, is done again
			again = false
			for _, p := range in {
				if s := m.status(p); (s.Done() || s == resource.Gated) && !m.free(p, in) {
					m.anew(p, j)
					again = true
				}
			}
		}
	}
}

// told is the was_deployed flag of seed 000, where a flow has a rule for it.
func (m *twin) told(f *blueprint.Flow) bool {
	switch f.WasDeployed {
	case blueprint.WasNot:
		return false
	case blueprint.WasIndeed:
		return true
	case blueprint.ByItsPast:
		return m.succeeded
	case blueprint.DontChange:
	}
	return m.wasDeployed
}

// end is the end of a job.
func (m *twin) end(j *task, how job.State) {
	j.state = how
	f := m.row(j)
	deletion, walks := m.bp(j).Lifecycle.Flow(m.bp(j).Lifecycle.Delete)
	leadsOut := walks && deletion.Target == f.Target
	switch {
	case how == job.Canceled:
		m.unmark()
	case how == job.Succeeded && f.WasDeployed == blueprint.DontChange:
		m.wasDeployed = !leadsOut
	}
	if how == job.Succeeded && m.marked && (leadsOut || !walks) {
		m.gone = true
		for _, other := range m.jobs {
			switch {
			case other.state.Final():
			case other.verb == resource.VerbDelete: // it has what it was for
				other.state = job.Succeeded
			default:
				other.state = job.Canceled
			}
		}
	}
	if how == job.Succeeded || !j.begun {
		return
	}
	for _, p := range m.concerned(j) {
		if s := m.status(p); !m.each() && f.Failure == "" {
			p.deadline = time.Time{} // what was held back is another attempt
		} else if !s.Done() && s != resource.Failed && s != resource.Canceled {
			m.drop(p)
		}
	}
	if !m.each() && f.Failure != "" && slices.Contains(f.Path, m.state) {
		m.state = f.Failure
	}
}

// drop ends a phase whose call, if any, is not waited for.
func (m *twin) drop(p *part) {
	place := p.place
	f := m.row(p.task)
	m.ended(p, resource.Canceled)
	if !m.each() || place != f.Path[len(f.Path)-1] {
		p.place = place // it had not begun
	}
}

// unmark: a deletion that was canceled is no deletion.
func (m *twin) unmark() {
	m.marked = slices.ContainsFunc(m.jobs, func(j *task) bool { return j.verb == resource.VerbDelete && !j.state.Final() })
}

// place is the resource's state.
func (m *twin) place() string {
	if !m.each() {
		return m.state
	}
	l := &m.blueprints[m.present].Lifecycle
	if len(m.parts) == 0 {
		return m.state
	}
	for _, state := range l.Precedence {
		if slices.ContainsFunc(m.parts, func(p *part) bool { return p.place == state }) {
			return state
		}
	}
	return ""
}

// nextDue is when time will do something.
func (m *twin) nextDue() time.Time {
	var next time.Time
	for _, p := range m.parts {
		for _, t := range []time.Time{p.wake, p.deadline} {
			if !t.IsZero() && (next.IsZero() || t.Before(next)) {
				next = t
			}
		}
	}
	return next
}

// text is all that the twin says of the resource, as the engine's state is rendered by it (engineText).
func (m *twin) text() string {
	if m.gone || !m.exists {
		return "gone"
	}
	var b strings.Builder
	b.WriteString("state=" + m.place())
	if m.marked {
		b.WriteString(" deleted")
	}
	if m.wasDeployed {
		b.WriteString(" deployed")
	}
	var phases []string
	for _, p := range m.parts {
		switch {
		case m.each():
			if p.task != nil { // untouched ones have no run
				phases = append(phases, partText(p.name, m.status(p), p.out, p.place))
			}
		case p.place == m.state && (m.state != m.target || m.head() != nil): // at its target it is in no phase
			phases = append(phases, partText(p.name, m.status(p), p.out, p.place))
		}
	}
	slices.Sort(phases)
	b.WriteString(" " + strings.Join(phases, " "))
	if due := m.nextDue(); !due.IsZero() {
		b.WriteString(" due=" + since(due))
	}
	return b.String()
}

func partText(name string, s resource.Status, out bool, place string) string {
	text := name + "=" + s.String()
	if out {
		text += "*"
	}
	return text + "/" + place
}
