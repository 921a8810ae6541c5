package partition

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/wire"
)

// SelectionsMax is how many selector commands of a partition may be under way, and so of a project, at least.
const SelectionsMax = 64

const (
	recordTriesMax = 20          // lost appends of one input, before it is handed back
	readAgain      = time.Second // before what could not be read, or was not taken, is tried again
)

// Others is the part of the bus over which a selection reaches resources, whosever they are. Safe for concurrent use.
type Others interface {
	Ask(ctx context.Context, partition int, r bus.Request) (bus.Request, error)
	List(ctx context.Context, f bus.Family, project, kind string, each func(bus.Stored) error) error
	Follow(f bus.Family, project, kind, name string, each func(bus.Stored)) (stop func(), err error)
}

// selections are the selector commands of a partition that have not ended. Decisions are package selection's; here they
// are recorded, each guarded by its record's sequence, and carried out (walk.go). It belongs to the Owner's goroutine.
type selections struct {
	o     *Owner
	live  map[drive.JobKey]*walk
	feeds map[string]func() // of job events, by project; nil while one is made
}

// told is one input of a selection on its way.
type told struct {
	in    selection.Input
	reply func(resource.Reply)
	tries int
	read  bool // the record was read from the log for it
}

func (t *told) answer(r *resource.Reply) {
	if t.reply != nil && r != nil {
		t.reply(*r)
	}
}

func (t *told) back(message string) {
	t.answer(&resource.Reply{Refused: &resource.Refusal{Code: resource.Overloaded, Message: message}})
}

// command takes a command whose name stands for a selector.
func (s *selections) command(c selection.Command, cancels string, cascade bool, reply func(resource.Reply)) {
	if s.o.c.Others == nil {
		reply(resource.Reply{Refused: &resource.Refusal{Code: resource.Overloaded, Message: "this orchestrator walks no selections"}})
		return
	}
	t := &told{in: selection.Input{At: s.o.c.Now()}, reply: reply}
	id := c.ID
	if cancels == "" {
		t.in.Command = &c
	} else {
		id = cancels
		t.in.Cancel = &selection.Cancel{Command: c, Message: c.Args["message"], Cascade: cascade}
	}
	key := drive.JobKey{Project: c.Project, ID: id}
	w := s.live[key]
	if w == nil {
		if len(s.live) >= SelectionsMax {
			t.back("too many selector commands are under way; send the command again in a while")
			return
		}
		w = s.add(key)
	}
	w.queue = append(w.queue, t)
	s.run(w)
}

func (s *selections) add(key drive.JobKey) *walk {
	w := &walk{key: key, jobs: map[string]started{}}
	s.live[key] = w
	return w
}

// adopt takes over one that the log holds, or what another owner wrote of it since.
func (s *selections) adopt(key drive.JobKey, j drive.LoadedJob) {
	r := &j.Record
	w := s.live[key]
	switch {
	case s.o.c.Others == nil || r.Selection == nil:
	case w != nil:
		if j.Seq > w.seq && !w.busy {
			w.loaded = false
		}
	case !r.Gone && !r.State.Final():
		w = s.add(key)
		w.record, w.seq, w.loaded = *r, j.Seq, true
	}
}

// resume goes on with all of them, after a takeover and after a look at the log.
func (s *selections) resume() {
	for _, w := range s.sorted() {
		s.run(w)
	}
}

func (s *selections) sorted() []*walk {
	return slices.SortedFunc(maps.Values(s.live), func(a, b *walk) int {
		return cmp.Or(cmp.Compare(a.key.Project, b.key.Project), cmp.Compare(a.key.ID, b.key.ID))
	})
}

// tell gives a selection an input of the Owner's own.
func (s *selections) tell(w *walk, in selection.Input) {
	in.At = s.o.c.Now()
	w.queue = append(w.queue, &told{in: in})
	s.run(w)
}

// run steps what a selection was told until something waits for its append; then it does what the record calls for.
func (s *selections) run(w *walk) {
	for !w.busy && (len(w.queue) > 0 || !w.loaded) {
		if !w.loaded && !s.load(w) {
			return
		}
		if len(w.queue) == 0 {
			break
		}
		t := w.queue[0]
		if t.tries++; t.tries > recordTriesMax {
			w.queue = w.queue[1:]
			t.back("other writers were first, again and again; send the command again")
			continue
		}
		s.step(w, t)
	}
	if !w.busy {
		s.act(w)
	}
}

// load reads the record of a selection. Where that fails, what was asked is handed back, and the rest waits for the tick.
func (s *selections) load(w *walk) bool {
	now := s.o.c.Now()
	err := errors.New("it could not be read a moment ago")
	var jobs []drive.LoadedJob
	if !w.retryAt.After(now) {
		_, jobs, err = s.o.port.Load(nil, []drive.JobKey{w.key}, true)
	}
	if err != nil {
		queue := w.queue
		w.queue = nil
		if !w.retryAt.After(now) {
			w.retryAt = now.Add(readAgain)
		}
		for _, t := range queue {
			t.back("the log could not be read; send the command again: " + err.Error())
		}
		if w.record.ID == "" {
			delete(s.live, w.key)
		}
		return false
	}
	w.record, w.seq, w.loaded = present(jobs[0]), jobs[0].Seq, true
	for _, t := range w.queue {
		t.read = true
	}
	return true
}

// present is a record that the log holds; the zero Record where it holds none.
func present(j drive.LoadedJob) job.Record {
	if j.Seq == 0 || j.Record.Gone {
		return job.Record{}
	}
	return j.Record
}

// step takes one step, and appends what it decided.
func (s *selections) step(w *walk, t *told) {
	var besideSeq uint64
	if c := t.in.Cancel; c != nil {
		_, jobs, err := s.o.port.Load(nil, []drive.JobKey{{Project: c.Project, ID: c.ID}}, true)
		if err != nil {
			w.queue = w.queue[1:]
			t.back("the log could not be read; send the command again: " + err.Error())
			return
		}
		besideSeq, c.Known = jobs[0].Seq, nil
		if known := present(jobs[0]); known.ID != "" {
			c.Known = &known
		}
	}
	next, fx := selection.Step(w.record, t.in)
	if !fx.Changed {
		if fx.Reply != nil && fx.Reply.Refused != nil && !t.read {
			w.loaded = false // no append proves what was refused; it is read first
			return
		}
		w.queue = w.queue[1:]
		t.answer(fx.Reply)
		return
	}
	record := drive.Record{Expect: w.seq, Job: &drive.JobRecord{From: w.record.State, Record: next, At: next.Selection.UpdatedAt}}
	w.busy = true
	done := func(seq uint64, err error) {
		w.busy = false
		switch {
		case errors.Is(err, drive.ErrRefused):
			s.o.c.Log.Error("a selection's record was refused", zap.String("job", w.key.ID), zap.Error(err))
			w.queue, w.loaded, w.retryAt = w.queue[1:], false, s.o.c.Now().Add(readAgain)
			t.answer(&resource.Reply{Refused: &resource.Refusal{Code: resource.TooLarge, Message: err.Error()}})
		case err != nil:
			w.loaded = false
		default:
			w.fresh = w.fresh || w.record.ID == ""
			w.record, w.seq = next, seq
			w.queue = w.queue[1:]
			t.answer(fx.Reply)
		}
		s.run(w)
	}
	if fx.Beside == nil {
		s.o.port.Append(record, done)
		return
	}
	beside := drive.Record{Expect: besideSeq, Job: &drive.JobRecord{From: job.None, Record: *fx.Beside, At: fx.Beside.EndedAt}}
	s.o.port.AppendBatch([]drive.Record{beside, record}, func(seq uint64, err error) {
		if err == nil {
			s.o.loop.AdoptJob(drive.JobKey{Project: w.key.Project, ID: fx.Beside.ID}, drive.LoadedJob{Record: *fx.Beside, Seq: seq - 1})
		}
		done(seq, err)
	})
}

// drop lets go of a selection that has ended, or never was.
func (s *selections) drop(w *walk) {
	delete(s.live, w.key)
	if w.record.Selection != nil && w.record.State.Final() {
		s.o.loop.AdoptJob(w.key, drive.LoadedJob{Record: w.record, Seq: w.seq})
	}
	for other := range s.live {
		if other.Project == w.key.Project {
			return
		}
	}
	if stop := s.feeds[w.key.Project]; stop != nil {
		delete(s.feeds, w.key.Project)
		s.o.c.Shell.Background(stop)
	}
}

// nextDue is when tick has something to do; zero: no time is known.
func (s *selections) nextDue() (next time.Time) {
	for _, w := range s.live {
		if due := w.due(); !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	return next
}

// tick looks at the clock.
func (s *selections) tick() {
	if len(s.live) == 0 {
		return
	}
	now := s.o.c.Now()
	for _, w := range s.sorted() {
		if due := w.due(); due.IsZero() || due.After(now) {
			continue
		}
		w.said = selection.Tally{} // the counts are told again
		s.run(w)
	}
}

// follow hears of the jobs of a project, once for all of its selections. It blocks; Background runs it. What it misses is
// read from the records.
func (s *selections) follow(project string) {
	o := s.o
	stop, err := o.c.Others.Follow(bus.Job, project, "", "", func(m bus.Stored) {
		e, err := wire.DecodeJob(m.Body)
		if err != nil || e.Record.Ref.Selection == "" {
			return
		}
		r := &e.Record
		o.c.Shell.Later(func() {
			if w := s.live[drive.JobKey{Project: project, ID: r.Ref.Selection}]; w != nil {
				w.saw(r.ID, r.Name, r.State)
				s.run(w)
			}
		})
	})
	if err != nil {
		o.c.Log.Warn("events of jobs are not followed; their records are read every minute", zap.String("project", project), zap.Error(err))
	}
	if stop != nil {
		context.AfterFunc(o.ctx, stop)
	}
	o.c.Shell.Later(func() {
		if _, wanted := s.feeds[project]; !wanted || stop == nil {
			delete(s.feeds, project)
			if stop != nil {
				o.c.Shell.Background(stop)
			}
			return
		}
		s.feeds[project] = stop
	})
}
