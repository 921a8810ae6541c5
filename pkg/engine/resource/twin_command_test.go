package resource_test

import (
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// command reports whether it was accepted. What is refused changes nothing.
func (m *twin) command(in resource.Input) bool {
	c := in.Command
	l := &m.blueprints[m.present].Lifecycle
	if c.Verb != resource.VerbApply && (!m.exists || m.gone) {
		return false
	}
	switch c.Verb {
	case resource.VerbApply:
		return m.apply(in, l)
	case resource.VerbRetry:
		return m.retry(in, l)
	case resource.VerbCancel, resource.VerbInterrupt:
		return m.cancel(in)
	case resource.VerbApprove:
		return m.approve(c)
	case resource.VerbDelete:
		return m.remove(in, l)
	}
	if _, known := l.Flow(c.Verb); !known || m.marked && !l.ByMark {
		return false
	}
	return m.start(in, l, &task{id: c.JobID, verb: c.Verb, flow: c.Verb})
}

func (m *twin) done(c *resource.Command) bool {
	m.jobs = append(m.jobs, &task{id: c.JobID, verb: c.Verb, state: job.Succeeded})
	return true
}

// apply creates, or changes the spec; where the first phase deploys itself, it starts a flow as well.
func (m *twin) apply(in resource.Input, l *blueprint.Lifecycle) bool {
	c := in.Command
	verbs, changed := []string{l.OnChange, l.OnCreate}, m.spec != c.SpecDigest // what cannot be updated is deployed
	if !m.exists || m.gone {
		*m = twin{blueprints: m.blueprints, present: m.present, exists: true, state: l.Initial, attributes: map[string]string{}}
		verbs, changed = []string{l.OnCreate}, true
		if l.Walk == blueprint.Each {
			for _, ph := range m.blueprints[m.present].Phases {
				m.parts = append(m.parts, &part{name: ph.Name, place: l.Initial})
			}
		}
	}
	if m.marked {
		return false
	}
	behind := m.head() != nil && l.OnTargetChange != blueprint.Cancel
	for _, verb := range verbs {
		if !changed || verb == "" || !m.deploysItself(l, verb) {
			continue
		}
		j := &task{id: c.JobID, verb: c.Verb, flow: verb, digest: m.present}
		if f := m.row(j); !behind && !m.mayBegin(j, f) {
			continue
		}
		if !m.start(in, l, j) {
			return false
		}
		m.spec = c.SpecDigest
		return true
	}
	m.spec = c.SpecDigest
	return m.done(c)
}

// deploysItself reports whether the first phase of a flow has auto_deploy set.
func (m *twin) deploysItself(l *blueprint.Lifecycle, verb string) bool {
	f, _ := l.Flow(verb)
	bp := m.blueprints[m.present]
	states := f.Path
	if m.each() {
		states = []string{""}
	}
	for _, state := range states {
		if in := bp.In(state); len(in) > 0 {
			return in[0].AutoDeploy != nil && *in[0].AutoDeploy
		}
	}
	return false
}

// start is a flow that is asked for.
func (m *twin) start(in resource.Input, l *blueprint.Lifecycle, j *task) bool {
	j.digest, j.state = m.present, job.Pending
	if l.ByMark && m.marked {
		j.flow = l.Delete
	}
	running := m.head()
	f, _ := l.Flow(j.flow)
	switch {
	case running != nil && l.OnTargetChange == blueprint.Reject:
		return false
	case running != nil && l.OnTargetChange == blueprint.Wait:
		return m.queue(j)
	case !m.mayBegin(j, &f):
		return false
	case running != nil:
		m.supersede(in, l, running, &f)
	}
	m.jobs = append(m.jobs, j)
	return true
}

// queue puts a job behind those that are there. Whether it can begin is seen when its turn comes.
func (m *twin) queue(j *task) bool {
	waiting := 0
	for _, o := range m.jobs {
		if !o.state.Final() {
			waiting++
		}
	}
	if waiting-1 >= resource.QueuedJobsMax {
		return false
	}
	m.jobs = append(m.jobs, j)
	return true
}

// mayBegin reports whether a flow may start now: from where the resource, or any phase, is; nobody is asked to undo what
// cannot be undone; and what must be idempotent is.
func (m *twin) mayBegin(j *task, f *blueprint.Flow) bool {
	bp := m.bp(j)
	if !m.undoable(bp, f) {
		return false
	}
	if m.each() {
		_, ok := m.starting(j)
		return ok
	}
	if j.verb == resource.VerbRetry || j.verb == resource.VerbDelete {
		return true // from wherever it is
	}
	row, ok := bp.Lifecycle.FlowFrom(j.flow, m.state)
	return ok && !(row.Idempotent && slices.ContainsFunc(bp.Phases, func(ph blueprint.Phase) bool { return !ph.Idempotent && m.onTheWay(&ph, f) }))
}

// undoable: a partial decom is not supported (seed 000, "isDecommissionable").
func (m *twin) undoable(bp *blueprint.Blueprint, f *blueprint.Flow) bool {
	return !f.Undo || !slices.ContainsFunc(bp.Phases, func(ph blueprint.Phase) bool { return ph.Undo == nil && m.onTheWay(&ph, f) })
}

func (m *twin) onTheWay(ph *blueprint.Phase, f *blueprint.Flow) bool {
	return m.each() || slices.ContainsFunc(ph.States, func(s string) bool { return slices.Contains(f.Path, s) })
}

// supersede is policy cancel: another target cancels what is out; the same goes on, where its way leads through this
// state and would have let begin what is at work.
func (m *twin) supersede(in resource.Input, l *blueprint.Lifecycle, old *task, f *blueprint.Flow) {
	same := m.target == f.Target && l.Rerun != blueprint.RerunAll && old.state == job.Running && !old.cancel && slices.Contains(f.Path, m.state)
	among, was := m.concerned(old), old.flow
	for _, p := range among {
		old.flow = f.Verb
		same = same && (!m.status(p).Active() || m.free(p, among))
		old.flow = was
	}
	if !same {
		m.stop(in, false)
	}
	old.state = job.Canceled
}

// stop cancels what is out, and drops what is not done. At once: calls are given up.
func (m *twin) stop(in resource.Input, atOnce bool) {
	j := m.head()
	for _, p := range m.concerned(j) {
		s := m.status(p)
		out := p.out || p.asleep && !p.again && (p.called || slices.Contains(in.Polling, p.name))
		switch {
		case p.stopping && !atOnce:
		case s.Done() || s == resource.Failed || s == resource.Canceled:
		case out && !atOnce:
			p.stopping, p.out, p.asleep, p.deadline = true, true, false, time.Time{}
			p.wake = in.At.Add(m.bp(j).Phase(p.name).CancelLease())
		default:
			m.drop(p)
		}
	}
}

// cancel ends a job: the one that is driven when its calls have ended, one that waits at once.
func (m *twin) cancel(in resource.Input) bool {
	c := in.Command
	j := m.head()
	if c.Job != "" {
		i := slices.IndexFunc(m.jobs, func(o *task) bool { return o.id == c.Job && !o.state.Final() })
		if i < 0 {
			return false
		}
		j = m.jobs[i]
	}
	if j == nil {
		return false
	}
	atOnce := c.Verb == resource.VerbInterrupt
	if j != m.head() {
		j.state = job.Canceled
		m.unmark()
		return m.done(c)
	}
	m.stop(in, atOnce)
	j.cancel = true
	return m.done(c)
}

func (m *twin) approve(c *resource.Command) bool {
	j, found := m.head(), false
	if j == nil || j.state != job.Running || j.cancel {
		return false
	}
	for _, p := range m.concerned(j) {
		if m.status(p) == resource.Gated && (c.Phase == "" || c.Phase == p.name) {
			p.verdict, found = "true", true
		}
	}
	return found && m.done(c)
}

// retry goes on with what failed or was canceled, under a job of its own.
func (m *twin) retry(in resource.Input, l *blueprint.Lifecycle) bool {
	c, last, running := in.Command, m.lastFlow(), m.head()
	if l.OnTargetChange == blueprint.Wait && running == nil { // what waited in vain has left nothing to retry
		last = nil
		for _, j := range m.jobs {
			if j.begun {
				last = j
			}
		}
	}
	if c.Scope != "" && c.Scope != "failed" && c.Scope != "all" || last == nil {
		return false
	}
	j := &task{id: c.JobID, verb: c.Verb, flow: last.flow, digest: m.present, state: job.Pending, all: c.Scope == "all"}
	if running != nil && l.OnTargetChange == blueprint.Wait {
		return !(j.all && l.Rerun == blueprint.RerunFailed) && m.queue(j) // which phases all are is not known before it has ended
	}
	failed, active, stopped := false, false, false
	for _, p := range m.concerned(last) {
		s := m.status(p)
		failed, active = failed || s == resource.Failed, active || s.Active()
		stopped = stopped || s == resource.Failed || s == resource.Canceled
	}
	switch f := m.row(j); {
	case running != nil && (running.cancel || running.state == job.Pending || !failed || m.each()):
		return false
	case m.place() == f.Target && l.Rerun != blueprint.RerunAll:
		return false
	case !j.all && running == nil && !stopped && last.state == job.Succeeded:
		return false
	case !m.mayBegin(j, f), !m.each() && j.all && active:
		return false
	}
	if running != nil {
		if l.Rerun == blueprint.RerunAll { // it begins at the beginning, so nothing goes on
			m.stop(in, false)
		}
		running.state = job.Failed // as it had
	}
	m.jobs = append(m.jobs, j)
	return true
}

// remove is a mark, and the flow of deletion.
func (m *twin) remove(in resource.Input, l *blueprint.Lifecycle) bool {
	c, running := in.Command, m.head()
	f, walks := l.Flow(l.Delete)
	switch {
	case m.marked && running != nil, !walks && running != nil:
		return false
	case !walks, running == nil && m.nothingToUndo(l, &f):
		m.marked, m.gone = true, true
		return m.done(c)
	case !m.undoable(m.blueprints[m.present], &f): // it never could: then it is not marked
		return false
	}
	was := m.marked
	m.marked = true
	if !m.start(in, l, &task{id: c.JobID, verb: c.Verb, flow: l.Delete}) {
		m.marked = was
		return false
	}
	return true
}

// nothingToUndo reports whether no flow was ever walked, or it stands where deletion would lead.
func (m *twin) nothingToUndo(l *blueprint.Lifecycle, f *blueprint.Flow) bool {
	if !m.each() {
		return m.state == l.Initial || m.state == f.Target
	}
	return !slices.ContainsFunc(m.parts, func(p *part) bool { return p.place != l.Initial && p.place != f.Target })
}

// starting are the phases that a flow starts where each walks by itself, of a retry those alone that failed or were
// canceled; and whether it may start at all.
func (m *twin) starting(j *task) ([]*part, bool) {
	bp := m.bp(j)
	may := false
	var of []*part
	for _, p := range m.parts {
		f, ok := bp.Lifecycle.FlowFrom(j.flow, p.place)
		if !ok {
			continue
		}
		if f.Idempotent && !bp.Phase(p.name).Idempotent {
			return nil, false
		}
		may = true
		if s := m.status(p); j.verb != resource.VerbRetry || j.all || s == resource.Failed || s == resource.Canceled {
			of = append(of, p)
		}
	}
	return of, may
}

// beginEach sends the phases that a flow starts on their way. The flag of the past is one for all of them: it is set where
// any of them was deployed.
func (m *twin) beginEach(j *task, f *blueprint.Flow) {
	of, _ := m.starting(j)
	m.target = f.Target
	told := len(of) == 0 && m.wasDeployed
	for _, p := range of {
		row, _ := m.bp(j).Lifecycle.FlowFrom(j.flow, p.place)
		if row.Undo && m.status(p) == resource.Skipped && !p.ran {
			p.place = f.Target // there is nothing to undo
			continue
		}
		told = told || m.told(&row)
		if n := len(f.Path); n == 0 {
			p.place = f.Target
			continue
		} else if n > 1 {
			p.place = f.Path[n-2]
		}
		m.anew(p, j)
	}
	m.wasDeployed = told
}
