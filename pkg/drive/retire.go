package drive

import (
	"errors"
	"strconv"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// The deletion of a blueprint spans partitions: its users may be in any. So it goes in steps, and each is an event of the
// blueprint's own that holds the job, from which whoever serves the partition goes on:
//
//	retired   nobody uses it; the job runs, and no owner creates a resource of the kind once it has seen this
//	(wait)    RetireWait: then whoever had read the version before has appended what it was about to, and it is seen
//	gone      still nobody uses it; the job has succeeded. The record of the job follows, then all of it is forgotten
//	present   somebody uses it after all; the job has failed, and its record follows
//
// An owner that stood still for more than RetireWait between its reading and its appending (a stopped process, say) may
// still create a resource of a kind that is gone then. Such a resource can be deleted, or its kind be defined again.

// deletion is one that is under way.
type deletion struct {
	seq      uint64 // of the event that holds it
	ref      job.Ref
	gone     bool
	recorded job.State // which the job's record shows
	busy     bool
}

// users is what a look at all partitions has found, for the deletion of this event.
type users struct {
	Users
	seq uint64
}

// deleteBlueprint begins a deletion, or refuses it.
func (l *Loop) deleteBlueprint(ln *lane, it *item, present LoadedBlueprint) {
	c := it.Input.Input.Command
	if present.Blueprint == nil {
		l.refuseBlueprint(ln, it, resource.NotFound, "there is no blueprint of kind "+c.Key.Name)
		return
	}
	ln.busy = true
	l.port.Users(c.Key.Project, c.Key.Name, 0, func(u Users, err error) {
		ln.busy = false
		switch {
		case err != nil:
			l.pop(ln)
			it.back(err)
		case u.Count > 0:
			l.refuseBlueprint(ln, it, resource.Conflict, inUse(u))
		default:
			at := it.Input.Input.At
			ref := job.Ref{
				ID: c.JobID, RequestID: c.RequestID, Digest: c.Digest, Verb: c.Verb, State: job.Running,
				AcceptedAt: at, StartedAt: at, RequestedBy: c.RequestedBy,
			}
			l.appendBlueprint(ln, it, present.Seq, BlueprintRecord{
				Blueprint: present.Blueprint, JSON: present.JSON, Generation: present.Generation, Deletion: &ref, At: at,
			}, func(seq uint64) {
				l.pop(ln)
				it.Reply(resource.Reply{JobID: c.JobID})
				l.deletions[ln.key] = &deletion{seq: seq, ref: ref}
				l.tendDeletion(ln.key)
			})
			return
		}
		l.run(ln)
	})
}

func inUse(u Users) string {
	if u.Count == 1 {
		return "1 resource uses it: " + u.Example.Kind + "/" + u.Example.Name
	}
	return strconv.Itoa(u.Count) + " resources use it, such as " + u.Example.Kind + "/" + u.Example.Name
}

// AdoptBlueprint takes over one blueprint that the log holds, as Adopt does a resource; at any time.
func (l *Loop) AdoptBlueprint(key resource.Key, b LoadedBlueprint) {
	d := l.deletions[key]
	if b.Deletion == nil || d != nil && (d.busy || d.seq >= b.Seq) {
		return
	}
	l.deletions[key] = &deletion{seq: b.Seq, ref: *b.Deletion, gone: b.Gone}
}

// tendDeletions goes on with all of them.
func (l *Loop) tendDeletions() {
	for _, key := range sortedKeys(l.deletions) {
		l.tendDeletion(key)
	}
}

// tendDeletion does the next that follows from the event that holds a deletion. What fails is done by the next sweep.
func (l *Loop) tendDeletion(key resource.Key) {
	d := l.deletions[key]
	if d == nil || d.busy {
		return
	}
	again := func(err error) {
		d.busy = false
		if err == nil && l.deletions[key] == d {
			l.tendDeletion(key)
		}
	}
	switch {
	case d.recorded != d.ref.State:
		l.recordDeletion(key, d, again)
	case !d.ref.State.Final():
		d.busy = true
		l.port.Users(key.Project, key.Name, RetireWait, func(u Users, err error) {
			d.busy = false
			if err == nil && l.deletions[key] == d {
				ln := l.lane(key)
				ln.queue = append(ln.queue, &item{
					Input: Input{Key: key, Input: resource.Input{Kind: resource.OnContinue, At: l.now}}, own: true, users: &users{u, d.seq},
				})
				l.run(ln)
			}
		})
	case d.gone:
		d.busy = true
		l.port.ForgetBlueprint(key.Project, key.Name, d.seq, func(err error) {
			d.busy = false
			if (err == nil || errors.Is(err, ErrLost)) && l.deletions[key] == d { // lost: it is there again
				delete(l.deletions, key)
			}
		})
	default:
		delete(l.deletions, key)
	}
}

// recordDeletion brings the job's record up to its blueprint.
func (l *Loop) recordDeletion(key resource.Key, d *deletion, done func(error)) {
	k := JobKey{key.Project, d.ref.ID}
	_, loaded, err := l.port.Load(nil, []JobKey{k}, true)
	if err != nil {
		return
	}
	record, due := l.deletionRecord(key, &d.ref, loaded[0])
	if !due {
		d.recorded = d.ref.State
		done(nil)
		return
	}
	from := job.None
	if prior := known(loaded[0]); prior != nil {
		from = prior.State
	}
	d.busy = true
	at := d.ref.StartedAt
	if d.ref.State.Final() {
		at = d.ref.EndedAt
	}
	l.send(Record{Expect: loaded[0].Seq, Job: &JobRecord{From: from, Record: record, At: at}}, func(seq uint64, err error) {
		if err == nil || errors.Is(err, ErrRefused) { // the store will never take it; nothing is to wait for it
			d.recorded, err = d.ref.State, nil
		}
		if err == nil && d.ref.State.Final() {
			l.ended.add(d.ref.EndedAt.Add(l.limits.JobRetention), k, seq)
		}
		done(err)
	})
}

// deletionRecord is the record that follows, and whether one does: not where its retention is over.
func (l *Loop) deletionRecord(key resource.Key, ref *job.Ref, loaded LoadedJob) (job.Record, bool) {
	prior := known(loaded)
	record, due := job.Derive(blueprintRoot(key), *ref, prior)
	return record, due && (prior != nil || !ref.State.Final() || l.now.Before(ref.EndedAt.Add(l.limits.JobRetention)))
}

// deletionRecorded reports whether the record of the deletion that a blueprint's last event holds has followed.
func (l *Loop) deletionRecorded(key resource.Key, b *LoadedBlueprint) (bool, error) {
	if b.Deletion == nil {
		return true, nil
	}
	_, loaded, err := l.port.Load(nil, []JobKey{{key.Project, b.Deletion.ID}}, true)
	if err != nil {
		return false, err
	}
	_, due := l.deletionRecord(key, b.Deletion, loaded[0])
	return !due, nil
}

// concludeDeletion buries a blueprint that nobody has come to use meanwhile, or takes the mark back.
func (l *Loop) concludeDeletion(ln *lane, it *item) {
	d := l.deletions[ln.key]
	if d == nil || d.busy || it.users == nil || d.seq != it.users.seq {
		l.pop(ln)
		return
	}
	present, err := l.port.PresentBlueprint(ln.key.Project, ln.key.Name, true)
	switch {
	case err != nil, present.Seq < d.seq: // a follower may be behind
		l.pop(ln)
		return
	case present.Seq > d.seq: // another owner was first, or an answer was lost
		l.pop(ln)
		delete(l.deletions, ln.key)
		l.AdoptBlueprint(ln.key, present)
		l.tendDeletion(ln.key)
		return
	}
	ref, gone := d.ref, it.users.Count == 0
	ref.State, ref.EndedAt = job.Succeeded, l.now
	if ref.EndedAt.Before(ref.StartedAt) {
		ref.EndedAt = ref.StartedAt
	}
	if !gone {
		ref.State, ref.Message = job.Failed, inUse(it.users.Users)
	}
	l.appendBlueprint(ln, it, d.seq, BlueprintRecord{
		Blueprint: present.Blueprint, JSON: present.JSON, Generation: present.Generation, Deletion: &ref, Gone: gone, At: ref.EndedAt,
	}, func(seq uint64) {
		l.pop(ln)
		l.deletions[ln.key] = &deletion{seq: seq, ref: ref, gone: gone, recorded: d.recorded}
		l.tendDeletion(ln.key)
	})
}
