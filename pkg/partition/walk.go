package partition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/selector"
	"github.com/droverproject/drover/pkg/wire"
)

// AsksMax is how many resources of a selection are asked at once.
const AsksMax = 32

const (
	askTimeout  = 3 * time.Second
	askAgainMin = 100 * time.Millisecond // before those of a page that could not be asked are asked again
	askAgainMax = 5 * time.Second
	lookTimeout = time.Minute
)

// walk is one selection that has not ended. Its record is the truth; all else is rebuilt from the buckets by a look.
type walk struct {
	key          drive.JobKey
	record       job.Record
	seq          uint64
	loaded, busy bool
	fresh        bool // it began in this stint, so nothing of it is unknown
	queue        []*told
	retryAt      time.Time // the record could not be read; not before then

	jobs    map[string]started // what it started, by job id
	count   selection.Tally    // the same, counted
	said    selection.Tally    // what the record was told last
	known   bool               // jobs holds what the bucket held in this stint
	looking bool
	lookAt  time.Time

	names []string // that match, sorted
	named bool     // names was read
	page  *page

	undoing bool // undos was filled since the last look
	undos   []string
	undoOut int
}

// started is a job that a selection started.
type started struct {
	name  string
	state job.State
}

// page is at most selection.PageNamesMax names on their way.
type page struct {
	from    string
	names   []string
	end     bool
	answers []answer
	todo    []int // places to be asked now
	later   []int // places that were put off
	out     int
	wait    time.Duration
	waiting bool
	since   time.Time
	reason  string
}

// answer is what became of one name: a job, a refusal, or neither, where there is no such resource any more.
type answer struct {
	accepted bool
	refused  *resource.Refusal
}

// saw learns how a job of the selection stands. What has ended stays so.
func (w *walk) saw(id, name string, state job.State) {
	was, there := w.jobs[id]
	if there && (was.state.Final() || !state.Final()) {
		return
	}
	if there {
		w.count.Open--
	}
	w.jobs[id] = started{name, state}
	switch state {
	case job.Succeeded:
		w.count.Succeeded++
	case job.Failed:
		w.count.Failed++
	case job.Canceled:
		w.count.Canceled++
	default:
		w.count.Open++
	}
}

// due is when the clock has something for the selection; zero: never.
func (w *walk) due() time.Time {
	switch {
	case w.busy:
		return time.Time{}
	case !w.loaded:
		return w.retryAt
	case w.record.Selection == nil:
		return time.Time{}
	}
	var due time.Time
	if !w.looking && w.wantsLook() {
		due = w.lookAt
	}
	if w.unrecorded() {
		if at := selection.Due(&w.record); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due
}

// wantsLook reports whether the buckets are to be read once lookAt has come.
func (w *walk) wantsLook() bool {
	return !w.known || selection.Next(&w.record) != selection.Walk || !w.named
}

// unrecorded reports whether more jobs have ended than the record says.
func (w *walk) unrecorded() bool {
	s := w.record.Selection
	return selection.Next(&w.record) != selection.Walk &&
		(w.count.Succeeded > s.Succeeded || w.count.Failed > s.Failed || w.count.Canceled > s.Canceled)
}

// act does what the record calls for. It is safe to repeat.
func (s *selections) act(w *walk) {
	next := selection.Next(&w.record)
	if next == selection.Nothing {
		s.drop(w)
		return
	}
	if !w.looking && w.wantsLook() && !w.lookAt.After(s.o.c.Now()) {
		s.look(w)
	}
	switch {
	case !w.known:
	case next == selection.Walk:
		if w.named && w.page == nil {
			s.begin(w)
		}
	case w.page != nil:
		s.pump(w, w.page) // it breaks off
	default:
		if next == selection.Undo {
			s.undo(w)
		}
		t := w.count
		t.Idle = !w.looking && w.undoOut == 0 && len(w.undos) == 0
		if t != w.said {
			w.said = t
			s.tell(w, selection.Input{Tally: &t})
		}
	}
}

// found is what a look saw.
type found struct {
	jobs  map[string]started
	names []string
	named bool
	match int // names that match, where they were counted
}

// look reads the buckets: the jobs that the selection started, and for a walk the names after the cursor. What appears
// later than that is not walked.
func (s *selections) look(w *walk) {
	w.looking = true
	record, jobs := w.record, w.known || !w.fresh
	names := selection.Next(&record) == selection.Walk && !w.named
	_, followed := s.feeds[record.Project]
	if !followed {
		s.feeds[record.Project] = nil
	}
	s.o.c.Shell.Background(func() {
		if !followed {
			s.follow(record.Project) // before the look, so that nothing falls between the two
		}
		ctx, cancel := context.WithTimeout(s.o.ctx, lookTimeout)
		defer cancel()
		var f found
		var err error
		if jobs {
			f.jobs, err = s.listJobs(ctx, &record)
		}
		if names && err == nil {
			f.names, f.match, err = s.listNames(ctx, &record)
			f.named = err == nil
		}
		s.o.c.Shell.Later(func() { s.looked(w, f, err) })
	})
}

func (s *selections) listJobs(ctx context.Context, r *job.Record) (map[string]started, error) {
	jobs := map[string]started{}
	err := s.o.c.Others.List(ctx, bus.Job, r.Project, "", func(m bus.Stored) error {
		e, err := wire.DecodeJob(m.Body)
		if err != nil {
			return fmt.Errorf("job %s: %w", m.Entity.Name, err)
		}
		if e.Record.Ref.Selection == r.ID && !e.Record.Gone {
			jobs[e.Record.ID] = started{e.Record.Name, e.Record.State}
		}
		return nil
	})
	return jobs, err
}

func (s *selections) listNames(ctx context.Context, r *job.Record) (names []string, match int, err error) {
	sel, err := selector.Parse(r.Selection.Selector)
	if err != nil {
		return nil, 0, err
	}
	err = s.o.c.Others.List(ctx, bus.Resource, r.Project, r.Kind, func(m bus.Stored) error {
		if !selection.Takes(r.Verb, m.Entity.Name) || m.Entity.Name <= r.Selection.Cursor {
			return nil
		}
		e, err := wire.DecodeResource(m.Body)
		if err != nil {
			return fmt.Errorf("resource %s/%s: %w", m.Entity.Kind, m.Entity.Name, err)
		}
		if e.State.Gone || !sel.Matches(e.State.Labels) {
			return nil
		}
		if match++; match <= selection.MatchedMax {
			names = append(names, m.Entity.Name)
		}
		return nil
	})
	return names, match, err
}

// looked takes what a look saw.
func (s *selections) looked(w *walk, f found, err error) {
	if s.live[w.key] != w {
		return
	}
	w.looking = false
	if err != nil {
		s.o.c.Log.Warn("a selection's resources or jobs could not be read; they are read again", host.Job(w.key.ID), zap.Error(err))
		w.lookAt = s.o.c.Now().Add(readAgain)
		if w.loaded && selection.Next(&w.record) == selection.Walk {
			s.tell(w, selection.Input{Waits: err.Error()})
		}
		return
	}
	w.lookAt = s.o.c.Now().Add(selection.LookEvery)
	w.known, w.undoing, w.said = true, false, selection.Tally{}
	for _, id := range slices.Sorted(maps.Keys(f.jobs)) {
		w.saw(id, f.jobs[id].name, f.jobs[id].state)
	}
	if f.named {
		slices.Sort(f.names)
		w.names, w.named = f.names, true
		if f.match > selection.MatchedMax {
			cursor := ""
			if w.record.Selection != nil {
				cursor = w.record.Selection.Cursor
			}
			s.tell(w, selection.Input{Page: &selection.Page{From: cursor, To: cursor, TooMany: f.match}})
			return
		}
	}
	s.run(w)
}

// begin asks the next page of names.
func (s *selections) begin(w *walk) {
	cursor := w.record.Selection.Cursor
	first, there := slices.BinarySearch(w.names, cursor)
	if there {
		first++
	}
	last := min(first+selection.PageNamesMax, len(w.names))
	p := &page{
		from: cursor, names: w.names[first:last], end: last == len(w.names), answers: make([]answer, last-first),
		wait: askAgainMin, since: s.o.c.Now(),
	}
	for i, name := range p.names {
		id := wire.JobID(resource.Key{Project: w.key.Project, Kind: w.record.Kind, Name: name}, selection.RequestID(w.key.ID))
		if _, known := w.jobs[id]; known {
			p.answers[i].accepted = true
		} else {
			p.todo = append(p.todo, i)
		}
	}
	w.page = p
	s.pump(w, p)
}

// pump asks as many as may be asked at once, and ends the page when all have answered. What was put off waits until the
// others have.
func (s *selections) pump(w *walk, p *page) {
	broken := selection.Next(&w.record) != selection.Walk
	for !broken && p.out < AsksMax && len(p.todo) > 0 {
		i := p.todo[0]
		p.todo = p.todo[1:]
		p.out++
		c := wire.Command{Args: w.record.Selection.Args, RequestedBy: w.record.RequestedBy}
		s.ask(w, p.names[i], w.record.Verb, selection.RequestID(w.key.ID), w.key.ID, c, func(r wire.Reply, err error) {
			p.out--
			s.answered(w, p, i, r, err)
		})
	}
	switch {
	case p.out > 0 || p.waiting && !broken:
	case !broken && len(p.later) > 0:
		s.putOff(w, p)
	default:
		s.finish(w, p, broken && len(p.todo)+len(p.later) > 0)
	}
}

func (s *selections) answered(w *walk, p *page, i int, r wire.Reply, err error) {
	if w.page != p {
		return
	}
	a := &p.answers[i]
	switch {
	case err != nil:
		p.later, p.reason = append(p.later, i), err.Error()
	case r.Refused == nil:
		a.accepted = true
		w.saw(r.JobID, p.names[i], job.Pending)
	case r.Refused.Code == resource.Overloaded:
		p.later, p.reason = append(p.later, i), r.Refused.Message
	case r.Refused.Code != resource.NotFound: // else it has vanished, and matches no more
		a.refused = r.Refused
	}
	s.pump(w, p)
}

// putOff asks what was put off again after a while, and says why the walk stands still once it does.
func (s *selections) putOff(w *walk, p *page) {
	wait := p.wait
	p.waiting, p.wait = true, min(2*p.wait, askAgainMax)
	s.o.c.Shell.Background(func() {
		s.o.c.Shell.Sleep(wait)
		s.o.c.Shell.Later(func() {
			if w.page != p {
				return
			}
			p.todo, p.later, p.waiting = p.later, nil, false
			s.pump(w, p)
		})
	})
	if s.o.c.Now().Sub(p.since) >= selection.WaitsAfter {
		s.tell(w, selection.Input{Waits: strconv.Itoa(len(p.later)) + " resources after " + strconv.Quote(p.from) + " could not be asked yet: " + p.reason})
	}
}

// finish tells what became of a page.
func (s *selections) finish(w *walk, p *page, broken bool) {
	w.page = nil
	told := &selection.Page{From: p.from, To: p.from, End: p.end && !broken, Tally: w.count}
	told.Tally.Idle = !w.looking
	for i, a := range p.answers {
		switch {
		case a.accepted:
			told.Accepted++
		case a.refused != nil:
			told.Refused++
			if len(told.Refusals) < selection.RefusalsMax {
				told.Refusals = append(told.Refusals, job.Refusal{Name: p.names[i], Code: string(a.refused.Code), Message: a.refused.Message})
			}
		}
	}
	if !broken && len(p.names) > 0 {
		told.To = p.names[len(p.names)-1]
	}
	host.CrashPoint("orchestrator.before-page")
	s.tell(w, selection.Input{Page: told})
}

// undo cancels the jobs that were started; what could not be asked is asked again after the next look.
func (s *selections) undo(w *walk) {
	if !w.undoing {
		w.undoing = true
		for _, id := range slices.Sorted(maps.Keys(w.jobs)) {
			if !w.jobs[id].state.Final() && !slices.Contains(w.undos, id) {
				w.undos = append(w.undos, id)
			}
		}
	}
	for w.undoOut < AsksMax && len(w.undos) > 0 {
		id := w.undos[0]
		w.undos = w.undos[1:]
		w.undoOut++
		c := wire.Command{Args: map[string]string{"job": id}, RequestedBy: w.record.RequestedBy}
		if m := w.record.Selection.CancelMessage; m != "" {
			c.Args["message"] = m
		}
		s.ask(w, w.jobs[id].name, resource.VerbCancel, selection.CancelID(w.key.ID), "", c, func(r wire.Reply, err error) {
			w.undoOut--
			if again := s.o.c.Now().Add(readAgain); (err != nil || r.Refused != nil) && again.Before(w.lookAt) {
				w.lookAt = again // it may have ended, which a look shows
			}
			s.run(w)
		})
	}
}

// ask sends one command to the owner of its resource. selected is the selection that the job belongs to.
func (s *selections) ask(w *walk, name, verb, requestID, selected string, c wire.Command, done func(wire.Reply, error)) {
	project, kind, o := w.key.Project, w.record.Kind, s.o
	o.c.Shell.Background(func() {
		r, err := o.askOther(project, kind, name, verb, requestID, selected, c)
		o.c.Shell.Later(func() {
			if s.live[w.key] == w {
				done(r, err)
			}
		})
	})
}

func (o *Owner) askOther(project, kind, name, verb, requestID, selected string, c wire.Command) (wire.Reply, error) {
	body, err := wire.EncodeCommand("", c)
	if err != nil {
		return wire.Reply{}, err
	}
	header := map[string]string{headerSubject: bus.CommandSubject("cmd", project, kind, name, verb), bus.HeaderRequestID: requestID}
	if selected != "" {
		header[headerSelection] = selected
	}
	partition := bus.PartitionOf(project, kind, name, o.c.Bus.Partitions())
	ctx, cancel := context.WithTimeout(o.ctx, askTimeout)
	defer cancel()
	reply, err := o.c.Others.Ask(ctx, partition, bus.Request{Verb: "command", Header: header, Body: body})
	switch {
	case errors.Is(err, bus.ErrNoOwner):
		return wire.Reply{}, fmt.Errorf("no orchestrator serves partition %d at present", partition)
	case err != nil:
		return wire.Reply{}, fmt.Errorf("partition %d: %w", partition, err)
	}
	return wire.DecodeReply(reply.Header[bus.HeaderContentType], reply.Body)
}
