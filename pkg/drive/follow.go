package drive

import (
	"cmp"
	"container/heap"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// jobLane is a job whose record may have to follow its resource.
type jobLane struct {
	record *job.Record // nil: none yet
	seq    uint64
	busy   bool
	stale  bool // to be loaded before it is decided on
	none   bool // the leader said that there is none, and this resource has been written by nobody else since
}

// own are the jobs whose records follow from a resource. The record of one that was handed down is the root's.
func own(s *resource.State) []job.Ref {
	if s.Parent.Name == "" {
		return s.Jobs
	}
	return slices.DeleteFunc(slices.Clone(s.Jobs), func(j job.Ref) bool { return j.Handed })
}

// following reports whether records are out.
func (ln *lane) following() bool {
	for _, j := range ln.jobs {
		if j.busy {
			return true
		}
	}
	return false
}

// follow appends the records that the jobs of a committed state call for. It returns how many.
func (l *Loop) follow(ln *lane) int {
	n := 0
	for _, ref := range own(&ln.state) {
		j := ln.jobs[ref.ID]
		if j == nil {
			j = &jobLane{stale: true}
			ln.jobs[ref.ID] = j
		}
		if l.followOne(ln, j, ref, ln.state.Root(), ln.state.UpdatedAt) {
			n++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ln.jobs)) {
		if j := ln.jobs[id]; !j.busy && ln.state.JobByID(id) == nil {
			delete(ln.jobs, id)
		}
	}
	return n
}

// followOne appends the record of one job, and tries again on what the log holds when it was not the first.
func (l *Loop) followOne(ln *lane, j *jobLane, ref job.Ref, root job.Root, at time.Time) bool {
	if j.busy {
		return false // its answer looks again
	}
	if j.stale {
		_, loaded, err := l.port.Load(nil, []JobKey{{ln.key.Project, ref.ID}}, false)
		if err != nil {
			l.behind[ln.key] = struct{}{}
			return false // the sweep comes back to it
		}
		j.record, j.seq, j.stale = known(loaded[0]), loaded[0].Seq, false
	}
	record, due := job.Derive(root, ref, j.record)
	if !due || l.forgotten(&ref, j) {
		return false
	}
	from := job.None
	if j.record != nil {
		from = j.record.State
	}
	j.busy = true
	l.send(Record{Expect: j.seq, Job: &JobRecord{From: from, Record: record, At: at}}, func(seq uint64, err error) {
		j.busy = false
		switch {
		case errors.Is(err, ErrRefused):
			j.record = &record // the store will never take it; nothing is to wait for it
		case err != nil:
			j.stale = true
			l.followOne(ln, j, ref, root, at)
		default:
			j.record, j.seq = &record, seq
			if record.State.Final() {
				l.ended.add(record.EndedAt.Add(l.limits.JobRetention), JobKey{ln.key.Project, ref.ID}, seq)
			}
		}
		if ln.loaded && !ln.busy {
			l.follow(ln) // the state may have moved on meanwhile
		}
		l.run(ln) // a step may wait for it
	})
	return true
}

// forgotten reports whether a job's record is gone because its retention is over, though its resource remembers it.
func (l *Loop) forgotten(ref *job.Ref, j *jobLane) bool {
	return j.record == nil && ref.State.Final() && !l.now.Before(ref.EndedAt.Add(l.limits.JobRetention))
}

// owes reports whether a step has to wait: a job that ended would be dropped from the state before its record has
// followed. Nothing else remembers it, so a crash would lose it, and its request would be a new one.
func (l *Loop) owes(ln *lane, after *resource.State) bool {
	if !l.unrecorded(ln, after) {
		return false
	}
	l.follow(ln)
	if !l.unrecorded(ln, after) {
		return false
	}
	if !ln.following() { // it could not be read: the sweep tries again, and with it what waits
		l.behind[ln.key] = struct{}{}
	}
	return true
}

// unrecorded reports whether after drops a job that has no record of its end yet.
func (l *Loop) unrecorded(ln *lane, after *resource.State) bool {
	for _, ref := range own(&ln.state) {
		if after.UID == ln.state.UID && after.JobByID(ref.ID) != nil {
			continue
		}
		j := ln.jobs[ref.ID]
		if j == nil || j.stale || !l.forgotten(&ref, j) && (j.record == nil || !j.record.State.Final()) {
			return true
		}
	}
	return false
}

// repair brings the records of just loaded resources up to their states, before anything is decided on them: a crash
// may have come between a resource's event and its job's.
func (l *Loop) repair(lanes []*lane) {
	var keys []JobKey
	for _, ln := range lanes {
		for _, ref := range own(&ln.state) {
			keys = append(keys, JobKey{ln.key.Project, ref.ID})
		}
	}
	if len(keys) == 0 {
		return
	}
	for start := 0; start < len(keys); start += loadTogether {
		end := min(start+loadTogether, len(keys))
		_, loaded, err := l.port.Load(nil, keys[start:end], false)
		if err != nil {
			continue // follow loads each when it needs it
		}
		at := 0
		for _, ln := range lanes {
			for _, ref := range own(&ln.state) {
				if at >= start && at < end {
					id := ref.ID
					if j := ln.jobs[id]; j == nil || !j.busy {
						ln.jobs[id] = &jobLane{record: known(loaded[at-start]), seq: loaded[at-start].Seq}
					}
				}
				at++
			}
		}
	}
	for _, ln := range lanes {
		l.follow(ln)
	}
}

// Adopt takes over one resource that the log holds. jobs looks up the records of the partition, which the shell read
// beforehand (AdoptJob). Call it for every resource of the partition before the first Offer, then Begin.
func (l *Loop) Adopt(s resource.State, seq uint64, jobs func(id string) (LoadedJob, bool)) {
	l.see(s.UpdatedAt)
	l.track(s.Key, &s, seq)
	if !s.Gone {
		l.due.add(s.NextDue(), s.Key)
	}
	behind := false
	for _, ref := range s.Jobs {
		l.taken.add(ref.ID, l.limits.TakenIDs) // its record may be yet to come
	}
	for _, ref := range own(&s) {
		j, ok := jobs(ref.ID)
		prior := known(j)
		if !ok {
			prior = nil
		}
		if _, due := job.Derive(s.Root(), ref, prior); due {
			behind = true
		}
	}
	if behind {
		l.behind[s.Key] = struct{}{} // its lane may have to make room for others before Begin
	}
	if !behind && (s.Gone || s.Job() == nil) {
		return
	}
	ln := l.lane(s.Key)
	ln.doubt()
	ln.state, ln.seq, ln.loaded, ln.sole = s, seq, true, l.taken.cover(seq)
	ln.polls.begin(s.UID)
	for _, ref := range own(&s) {
		j, _ := jobs(ref.ID)
		ln.jobs[ref.ID] = &jobLane{record: known(j), seq: j.Seq}
	}
	l.rest(ln)
}

// Learn is Adopt at any later time, for what the log has shown since: an owner whose time overlapped with this one's may
// have written it, and nothing else tells this one. What this one knows better is left alone.
func (l *Loop) Learn(s resource.State, seq uint64, jobs func(id string) (LoadedJob, bool)) {
	if ln := l.lanes[s.Key]; ln != nil {
		if ln.busy || len(ln.queue) > 0 || ln.following() || ln.loaded && ln.seq >= seq {
			if !ln.loaded || ln.seq < seq {
				l.observe(s.Key, &s, seq)
				l.heard(ln, seq)
			}
			return
		}
		ln.loaded = false
	}
	l.Adopt(s, seq, jobs)
	if ln := l.lanes[s.Key]; ln != nil && ln.loaded {
		l.follow(ln)
		l.rest(ln)
	}
}

// heard notes that the log holds an event of a resource that this one has not read, and cannot take now: its lane is at
// work. The log is not read from before that event again, and a step that changes nothing leaves the lane where it was, so
// without a note nobody would hear of it: of a parent, say, that is at a job, and whose owner is gone.
func (l *Loop) heard(ln *lane, seq uint64) {
	if seq > ln.news {
		ln.news = seq
		l.due.add(l.now.Add(ownAgain), ln.key)
	}
}

// outdated reports whether the log holds a later event than the state's, as far as is known. Where an append is out, its
// answer decides.
func (ln *lane) outdated() bool { return ln.news > ln.seq && !ln.busy }

// AdoptJob takes over one job record: when it has ended long enough ago it is forgotten. Call it for every record of the
// partition before the first Adopt, as the log held them before the resources were read.
func (l *Loop) AdoptJob(k JobKey, j LoadedJob) {
	l.taken.read(k.ID, j.Seq, l.limits.TakenIDs)
	if j.Record.Gone || j.Record.State.Final() {
		l.ended.add(j.Record.EndedAt.Add(l.limits.JobRetention), k, j.Seq)
	}
}

// Begin takes the first steps after a takeover, or after a Learn that stands for one: records that are behind, jobs that can go on,
// times that are past.
func (l *Loop) Begin(now time.Time) {
	l.see(now)
	for _, key := range sortedKeys(l.live) {
		if ln := l.lanes[key]; ln != nil && ln.loaded {
			l.follow(ln)
		}
		l.tell(key, resource.Input{Kind: resource.OnContinue, At: l.now})
	}
	for _, key := range sortedKeys(l.lanes) {
		if ln := l.lanes[key]; ln.loaded {
			l.follow(ln)
			l.rest(ln)
		}
	}
	for _, key := range sortedKeys(l.gone) {
		l.forget(key)
	}
	l.tendDeletions()
	l.Tick(now)
}

func sortedKeys[V any](m map[resource.Key]V) []resource.Key {
	return slices.SortedFunc(maps.Keys(m), compareKeys)
}

func compareKeys(a, b resource.Key) int {
	return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// endedJobs is a heap of final jobs by the time at which they are forgotten.
type endedJobs []endedJob

type endedJob struct {
	at  time.Time
	key JobKey
	seq uint64
}

func (e endedJobs) Len() int           { return len(e) }
func (e endedJobs) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e endedJobs) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *endedJobs) Push(x any) { *e = append(*e, x.(endedJob)) }

// Pop implements heap.Interface.
func (e *endedJobs) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

func (e *endedJobs) add(at time.Time, key JobKey, seq uint64) { heap.Push(e, endedJob{at, key, seq}) }

// forgetJobs removes the jobs whose retention is over; a sweep does at most forgetTogether of them.
func (l *Loop) forgetJobs(now time.Time) int {
	n := 0
	for ; n < forgetTogether && len(l.ended) > 0 && !l.ended[0].at.After(now); n++ {
		e := heap.Pop(&l.ended).(endedJob)
		l.out++
		l.port.ForgetJob(e.key, e.seq, func(err error) {
			l.out--
			switch {
			case err == nil:
				l.taken.forget(e.key.ID)
			case !errors.Is(err, ErrLost):
				l.ended.add(now.Add(time.Minute), e.key, e.seq)
			}
		})
	}
	return n
}

const forgetTogether = 64
