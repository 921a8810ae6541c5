package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/follow"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// phaseLinesMax is how many resources at most are followed phase by phase; of more, only the jobs are shown.
const phaseLinesMax = 8

// settleTimeout bounds the wait for a bucket to catch up with what another one said.
const settleTimeout = 2 * time.Second

// waitFor follows the jobs of outcomes to their ends and fills in what became of them. It returns an error only where
// following itself failed; a time that is up is an outcome.
func (a *App) waitFor(ctx context.Context, b Bus, outcomes []*outcome) error {
	byProject := map[string]map[string][]*outcome{} // by job: the items of a tree have one
	p := newProgress(a)
	for _, o := range outcomes {
		if o.exit != ExitOK || !o.followed() {
			continue
		}
		if byProject[o.Project] == nil {
			byProject[o.Project] = map[string][]*outcome{}
		}
		byProject[o.Project][o.JobID] = append(byProject[o.Project][o.JobID], o)
		p.expect(o)
	}
	if p.total == 0 {
		return nil
	}
	phases, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	if p.total <= phaseLinesMax {
		for project, jobs := range byProject {
			wg.Go(func() { followPhases(phases, b, project, jobs, p) })
		}
	}
	var first error
	for project, jobs := range byProject {
		if err := a.waitForJobs(ctx, b, project, jobs, p); err != nil && first == nil {
			first = err
		}
	}
	p.end()
	for _, o := range outcomes {
		if o.Result == resultAccepted && o.followed() && o.exit == ExitOK {
			o.Result, o.exit = resultWaiting, ExitTimeout
		}
	}
	switch {
	case errors.Is(first, context.DeadlineExceeded):
		a.tell("the time is up; the jobs go on: `drover jobs wait ID` waits again, `drover jobs cancel ID` ends one")
		return nil
	case errors.Is(first, context.Canceled):
		return fail(ExitError, "interrupted; the jobs go on").withHint("`drover jobs wait ID` waits again, `drover jobs cancel ID` ends one")
	default:
		return first
	}
}

// followed reports whether there is a job to follow. A blueprint is there, or gone, when the command is answered.
func (o *outcome) followed() bool {
	return o.JobID != "" && (o.target.kind != kindBlueprint || o.Verb == resource.VerbDelete) // else it is over at once
}

func (a *App) waitForJobs(ctx context.Context, b Bus, project string, jobs map[string][]*outcome, p *progress) error {
	err := follow.Jobs(ctx, b, project, slices.Collect(maps.Keys(jobs)), func(e wire.JobEvent) error {
		for _, o := range jobs[e.Record.ID] {
			if err := a.sawJob(ctx, b, o, &e.Record, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("follow jobs in bucket %s: %w", bus.Job.Bucket(), err)
	}
	var first error
	for _, o := range slices.Concat(slices.Collect(maps.Values(jobs))...) {
		settled := waitSettled
		if o.Selection != nil {
			settled = waitSelected
		}
		if err := settled(ctx, b, project, o); err != nil {
			o.Result, o.exit = resultWaiting, ExitTimeout
			if first == nil {
				first = fmt.Errorf("follow %s in bucket %s: %w", o.Resource, bus.Resource.Bucket(), err)
			}
		}
	}
	return first
}

// sawJob takes a record of a job.
func (a *App) sawJob(ctx context.Context, b Bus, o *outcome, r *job.Record, p *progress) error {
	if r.Selection != nil {
		return a.sawSelection(ctx, b, o, r, p)
	}
	o.uid, o.revision = r.UID, r.ResourceRevision
	if !r.State.Final() {
		p.job(o, r.State)
		return nil
	}
	o.Result, o.Message, o.exit = r.State.String(), r.Message, o.exitOf(r.State)
	if !r.AcceptedAt.IsZero() {
		o.Seconds = r.EndedAt.Sub(r.AcceptedAt).Seconds()
	}
	if r.State == job.Failed {
		o.FailedPhases = failedPhases(ctx, b, *r)
	}
	p.job(o, r.State)
	return nil
}

// sawSelection takes a record of a selector command's job.
func (a *App) sawSelection(ctx context.Context, b Bus, o *outcome, r *job.Record, p *progress) error {
	if !r.State.Final() {
		p.selection(o, r)
		return nil
	}
	if err := gather(ctx, b, o, r); err != nil {
		return err
	}
	o.Result, o.Message, o.exit = r.State.String(), r.Message, o.exitOf(r.State)
	o.Seconds = r.EndedAt.Sub(r.AcceptedAt).Seconds()
	p.job(o, r.State)
	return nil
}

// waitSettled waits for what a user means by a verb that is over before its effect is.
func waitSettled(ctx context.Context, b Bus, project string, o *outcome) error {
	switch {
	case o.Verb == resource.VerbDelete && o.Result == job.Succeeded.String():
		return waitGone(ctx, b, project, o)
	case o.Verb == resource.VerbCancel && o.Result == job.Succeeded.String():
		return awaitResource(ctx, b, project, o.target, func(e *entry) (bool, error) {
			return e == nil || !slices.ContainsFunc(e.State.Jobs, func(r job.Ref) bool { return r.Canceling }), nil
		})
	}
	return nil
}

// waitGone waits until the resource that a delete was for is gone.
func waitGone(ctx context.Context, b Bus, project string, o *outcome) error {
	return awaitResource(ctx, b, project, o.target, func(e *entry) (bool, error) {
		return e == nil || o.uid != "" && e.State.UID != o.uid, nil
	})
}

// exitOf is the exit code of a job's end. A job that was asked to be canceled has done what was asked.
func (o *outcome) exitOf(s job.State) int {
	if s == job.Canceled && o.Verb == resource.VerbCancel {
		return ExitOK
	}
	return exitOfJob(s)
}

func exitOfJob(s job.State) int {
	switch s {
	case job.Succeeded:
		return ExitOK
	case job.Canceled:
		return ExitCanceled
	case job.Failed:
		return ExitFailed
	default:
		return ExitError
	}
}

// failedPhases reads why a job failed from its resource, once the bucket has what the job's record is derived from. It
// is empty where that cannot be read.
func failedPhases(ctx context.Context, b Bus, record job.Record) []failedPhase {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	t := target{kind: record.Kind, name: record.Name}
	var failed []failedPhase
	_ = awaitResource(ctx, b, record.Project, t, func(e *entry) (bool, error) { // what was read until then will do
		if e == nil || e.State.UID != record.UID {
			return true, nil
		}
		failed = failed[:0]
		for i := range e.State.Phases {
			if run := &e.State.Phases[i]; run.Status == resource.Failed && (!e.State.Separate || run.JobID == record.ID) {
				failed = append(failed, failedPhase{Phase: run.Name, State: run.State, Attempt: run.Attempt, Message: run.Message})
			}
		}
		return e.State.Revision >= record.ResourceRevision, nil
	})
	return failed
}

// followPhases shows how resources get on until ctx ends. It is for display only, so its errors are not told.
func followPhases(ctx context.Context, b Bus, project string, jobs map[string][]*outcome, p *progress) {
	targets := make([]target, 0, len(jobs))
	for _, outcomes := range jobs {
		for _, o := range outcomes {
			targets = append(targets, o.target)
		}
	}
	_ = follow.Bucket(ctx, b, scopeOf(project, targets), p.resource)
}

// progress shows on stderr how jobs get on: on a terminal one line that is drawn again, and otherwise a line for every
// change. Safe for concurrent use.
type progress struct {
	app  *App
	live bool

	mu      sync.Mutex
	total   int                       // jobs
	jobs    map[string]*outcome       // by resource
	states  map[string]job.State      // by job
	seen    map[string]resource.State // by resource, as last shown
	drawn   time.Time
	told    time.Time // when counts were said last
	line    string    // what is on the live line
	current string    // the latest change, for the live line of few
	ended   bool
}

// redraw is the least time between two drawings of the live line.
const redraw = 100 * time.Millisecond

func newProgress(a *App) *progress {
	return &progress{
		app: a, live: a.OutTerminal && a.ErrTerminal, jobs: map[string]*outcome{}, states: map[string]job.State{},
		seen: map[string]resource.State{},
	}
}

func (p *progress) expect(o *outcome) {
	if _, twice := p.states[o.JobID]; !twice {
		p.states[o.JobID] = job.None
		p.total++
	}
	p.jobs[o.Resource] = o
}

// job tells a job's state.
func (p *progress) job(o *outcome, s job.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states[o.JobID] = s
	switch {
	case s == job.Failed, s == job.Canceled:
		p.say(p.verdict(o, s))
	case !p.live && (s == job.Succeeded || p.total <= phaseLinesMax):
		p.say(fmt.Sprintf("%s: %s %s", render.Text(o.Resource), render.Text(o.Verb), s))
	}
	p.draw(s.Final() && p.done() == p.total)
}

// selectionEvery is how often the counts of a selection are told where no terminal is.
const selectionEvery = 5 * time.Second

// selection tells how the job of a selector command gets on.
func (p *progress) selection(o *outcome, r *job.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states[o.JobID] = r.State
	o.counts = selectedOf(r)
	p.current = fmt.Sprintf("%s: %s: %s", render.Text(o.Resource), render.Text(o.Verb), countsText(r.Selection))
	if p.live {
		p.draw(false)
	} else if time.Since(p.told) >= selectionEvery {
		p.told = time.Now()
		p.say(p.current)
	}
}

// verdict is what a person needs to know of a job that did not succeed.
func (p *progress) verdict(o *outcome, s job.State) string {
	paint := p.app.errPaint
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %s", render.Text(o.Resource), render.Text(o.Verb), paint.Bad(s.String()))
	if o.Message != "" && len(o.FailedPhases) == 0 { // or it would be said twice
		b.WriteString(": " + render.Text(o.Message))
	}
	for _, f := range o.FailedPhases {
		fmt.Fprintf(&b, "\n  phase %s failed in state %s, attempt %d", render.Text(f.Phase), render.Text(f.State), f.Attempt)
		if f.Message != "" {
			b.WriteString(": " + render.Text(f.Message))
		}
	}
	if o.Selection != nil {
		b.WriteString(p.selectedVerdict(o))
		return b.String()
	}
	if s == job.Failed {
		fmt.Fprintf(&b, "\n  %s drover describe %s, drover logs %s; once it is mended: drover retry %s --wait",
			paint.Dim("see:"), render.Text(o.Resource), render.Text(o.Resource), render.Text(o.Resource))
	}
	return b.String()
}

// resource tells a resource's state; it is what follow.Bucket calls.
func (p *progress) resource(stored bus.Stored, ok bool) (bool, error) {
	if !ok || stored.Deleted {
		return false, nil
	}
	e, err := decodeEntry(stored)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	name := e.target().String()
	o := p.jobs[name]
	if o == nil || e.State.JobByID(o.JobID) == nil {
		return false, nil
	}
	before := p.seen[name]
	p.seen[name] = e.State
	var changes, gated []string
	switch {
	case e.State.State == before.State || e.State.State == "":
	case before.UID == "":
		changes = append(changes, "in "+render.Text(e.State.State))
	default:
		changes = append(changes, "→ "+render.Text(e.State.State))
	}
	for i := range e.State.Phases {
		run := &e.State.Phases[i]
		if run.JobID != o.JobID || run.Status == resource.Blocked {
			continue
		}
		if was := before.Phase(run.Name); was == nil || was.Status != run.Status || was.Attempt != run.Attempt && run.Attempt > 1 {
			changes = append(changes, phaseText(run))
			if run.Status == resource.Gated {
				gated = append(gated, fmt.Sprintf("drover approve %s --phase %s", render.Text(name), render.Text(run.Name)))
			}
		}
	}
	if len(changes) == 0 {
		return false, nil
	}
	p.current = fmt.Sprintf("%s: %s", render.Text(name), strings.Join(changes, ", "))
	if !p.live {
		p.say(p.current)
	}
	for _, command := range gated {
		p.say(fmt.Sprintf("%s: a phase waits for a person's approval; approve with: %s", render.Text(name), command))
	}
	p.draw(false)
	return false, nil
}

func phaseText(run *resource.PhaseRun) string {
	s := render.Text(run.Name) + " " + run.Status.String()
	if run.Attempt > 1 {
		s += fmt.Sprintf(" (attempt %d)", run.Attempt)
	}
	return s
}

// say prints whole lines, above the live line.
func (p *progress) say(lines string) {
	if p.ended {
		return
	}
	p.clear()
	p.app.tell("%s", lines)
}

func (p *progress) clear() {
	if p.line != "" {
		_, _ = fmt.Fprint(p.app.Err, "\r\x1b[K") // our own escape, on a terminal only
		p.line = ""
	}
}

func (p *progress) draw(now bool) {
	if !p.live || p.ended || !now && time.Since(p.drawn) < redraw {
		return
	}
	width := p.app.Width
	if width <= 0 {
		width = 80
	}
	line := render.Cut(p.summary(), width-1)
	p.clear()
	p.line, p.drawn = line, time.Now()
	_, _ = fmt.Fprint(p.app.Err, line)
}

// barWidth is the bar's, in columns.
const barWidth = 24

func (p *progress) summary() string {
	done, total := p.done(), p.total
	if o := p.only(); o != nil && o.counts != nil { // its resources are what is counted
		done, total = int(o.counts.ended()), max(int(o.counts.Matched), 1)
	}
	filled := barWidth * min(done, total) / total
	line := fmt.Sprintf("[%s%s] %d/%d", strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), done, total)
	counts := map[job.State]int{}
	for _, s := range p.states {
		counts[s]++
	}
	for _, s := range []job.State{job.Pending, job.Running, job.Failed, job.Canceled} {
		if counts[s] > 0 {
			line += fmt.Sprintf("  %s %d", s, counts[s])
		}
	}
	if p.current != "" {
		line += "  " + p.current
	}
	return line
}

// only is the one outcome that is waited for; nil where there are more.
func (p *progress) only() *outcome {
	if p.total != 1 {
		return nil
	}
	for _, o := range p.jobs {
		return o
	}
	return nil
}

func (p *progress) done() int {
	done := 0
	for _, s := range p.states {
		if s.Final() {
			done++
		}
	}
	return done
}

// end removes the live line.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.ended = true
}
