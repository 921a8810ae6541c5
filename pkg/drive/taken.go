package drive

// takenIDs are the ids of the jobs that have, or will have, a record: those that were read at the takeover and those
// that were sent, or met in a state, since. They spare a command the question whether its request was answered before, as long as
// nobody else has written to its resource: see cover.
type takenIDs struct {
	ids map[string]struct{} // nil: too many
	end uint64              // sequence up to which all records were read
}

// read takes the id of a record that was read at the takeover.
func (t *takenIDs) read(id string, seq uint64, most int) {
	t.end = max(t.end, seq)
	t.add(id, most)
}

func (t *takenIDs) add(id string, most int) {
	if t.ids == nil {
		return
	}
	t.ids[id] = struct{}{}
	if len(t.ids) > most {
		t.ids = nil
	}
}

func (t *takenIDs) forget(id string) { delete(t.ids, id) }

// cover reports whether the ids of all jobs of a resource are known whose last event has this sequence, as long as the
// only events after it are this Loop's own, which the expected sequence of each append proves.
//
// An event that is older than the last job record that was read had its own jobs' records before it, or still names
// them. A younger one is another writer's, who may have accepted and ended jobs that nobody here has heard of: then the
// log is asked. Where there is no event at all, another writer would have had to create, drive, delete and forget the
// resource meanwhile; its last trace stays for an hour (jetstream.Options.TombstoneTTL), and two owners do not.
func (t *takenIDs) cover(seq uint64) bool { return seq <= t.end }

// new reports whether a job of this id is certainly not recorded.
func (l *Loop) new(ln *lane, id string) bool {
	if !ln.sole || l.taken.ids == nil {
		return false
	}
	_, taken := l.taken.ids[id]
	return !taken
}
