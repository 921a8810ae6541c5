package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/partition"
	"github.com/droverproject/drover/pkg/wire"
)

// checker sees every event as the log takes it, and holds it to what must be. It shares nothing with what it checks but
// the decoding of events.
type checker struct {
	w          *World
	blueprints map[string]*blueprint.Blueprint // by digest
	versions   map[bus.Entity][]version        // what each entity was, and since when
	states     map[resource.Key]resource.State
	records    map[drive.JobKey]job.Record
	jobs       map[string]*jobSeen
	buried     map[resource.Key]uint64 // when a resource was last deleted
	handed     map[resource.Fence]bool
	completed  map[entry]bool
	answers    map[answer]bool // what workers said
	applied    map[applied]int // by events, and not yet acknowledged
	polled     map[resource.Fence]int
	commands   []capturedCommand
	refusals   map[string]bool // by request id
	rubbish    int             // results that nobody can read, and that somebody sent
	kept       int             // of them, those of which he was told that they were stored
	asking     int             // users who wait for an answer
	events     int
	resting    bool // nothing moves any more
	healed     time.Time
	restarted  time.Time // owners took over in calm
	called     map[resource.Fence]bool
	seen       map[resource.Fence]bool // by a worker
	again      map[resource.Fence]bool // answered once more, later
	putOff     map[resource.Fence]bool // a pending answer came twice: who has not applied the first takes the second for that to a poll
	atWork     map[resource.Fence]int  // workers that carry it out, and those that died at it
	families   families
	holds      holds
}

type version struct {
	at time.Time
	bus.Stored
}

// jobSeen is a job that the log has shown.
type jobSeen struct {
	key      resource.Key
	shown    [job.Canceled + 1]bool // states that its resource showed
	accepted bool                   // somebody was told
	endedAt  time.Time
	buried   bool
}

// entry is a phase's one passage through a state for a job.
type entry struct{ uid, job, state, phase string }

// applied is an answer that an owner has made an event of.
type applied struct {
	who string
	answer
}

type answer struct {
	fence   resource.Fence
	outcome resource.Outcome
}

type capturedCommand struct {
	id  string // request
	job string
}

func newChecker(w *World) *checker {
	return &checker{
		w: w, blueprints: map[string]*blueprint.Blueprint{}, versions: map[bus.Entity][]version{}, states: map[resource.Key]resource.State{},
		records: map[drive.JobKey]job.Record{}, jobs: map[string]*jobSeen{}, buried: map[resource.Key]uint64{}, handed: map[resource.Fence]bool{},
		completed: map[entry]bool{}, answers: map[answer]bool{}, applied: map[applied]int{}, polled: map[resource.Fence]int{}, refusals: map[string]bool{}, called: map[resource.Fence]bool{},
		seen: map[resource.Fence]bool{}, again: map[resource.Fence]bool{}, putOff: map[resource.Fence]bool{}, atWork: map[resource.Fence]int{},
		families: newFamilies(), holds: newHolds(),
	}
}

// append is an append that has reached the server.
func (c *checker) append(who string, a bus.Append, bury bool) (uint64, error) {
	w := c.w
	last, err := w.server.Last(context.Background(), []bus.Entity{a.Entity})
	if err != nil {
		w.violate("the store does not answer: %v", err)
	}
	var p bus.Pending
	if bury {
		p = w.server.Bury(a)
	} else {
		p = w.server.Append(a)
	}
	w.poke = true
	seq, err := p.Result()
	if err != nil {
		w.mark("lost", a.Entity.Key(), a.Expect)
		return 0, err
	}
	w.mark(who, a.Entity.Key(), seq)
	if last[0].Seq != a.Expect {
		w.violate("%s appended to %v on sequence %d, and its last was %d", who, a.Entity, a.Expect, last[0].Seq)
	}
	c.stored(who, a, seq, bury)
	return seq, nil
}

// batch is a batch that has reached the server.
func (c *checker) batch(who string, batch []bus.Append) (uint64, error) {
	w := c.w
	expected := true
	for _, a := range batch {
		last, err := w.server.Last(context.Background(), []bus.Entity{a.Entity})
		if err != nil {
			w.violate("the store does not answer: %v", err)
		}
		expected = expected && last[0].Seq == a.Expect
	}
	seq, err := w.server.AppendBatch(context.Background(), batch)
	w.poke = true
	if err != nil {
		w.mark("lost batch", batch[0].Entity.Key(), uint64(len(batch)))
		return 0, err
	}
	w.mark(who+" batch", batch[0].Entity.Key(), seq)
	if !expected {
		w.violate("%s appended a batch of %v on what was not the last event", who, batch[0].Entity)
	}
	for i, a := range batch {
		c.stored(who, a, seq-uint64(len(batch)-1-i), false)
	}
	return seq, nil
}

// stored is an event that the log has taken.
func (c *checker) stored(who string, a bus.Append, seq uint64, bury bool) {
	c.events++
	c.keep(a.Entity)
	switch a.Entity.Family {
	case bus.Resource:
		c.resource(who, a, seq)
	case bus.Job:
		c.job(who, a, bury)
	case bus.PhaseRecord:
		c.record(who, a, bury)
	case bus.Spec, bus.Blueprint:
		if a.Entity.Family == bus.Spec {
			c.spec(a.Body)
		} else {
			c.holds.defined[a.Entity.Kind]++
		}
		c.w.say("%s %s %s version %s", who, a.Entity.Family, a.Entity.Name, a.Version)
	default:
		c.w.violate("%s stored an event of a family that the simulated house does not drive: %v", who, a.Entity)
	}
}

// keep remembers what an entity is now.
func (c *checker) keep(e bus.Entity) {
	last, err := c.w.server.Last(context.Background(), []bus.Entity{e})
	if err != nil {
		c.w.violate("the store does not answer: %v", err)
	}
	c.versions[e] = append(c.versions[e], version{c.w.now, last[0]})
}

// as is what an entity was at a time; false where that is not known.
func (c *checker) as(e bus.Entity, present uint64, at time.Time) (bus.Stored, bool) {
	all := c.versions[e]
	if len(all) == 0 || all[len(all)-1].Seq != present {
		return bus.Stored{}, false // its traces have expired meanwhile
	}
	for _, v := range slices.Backward(all) {
		if !v.at.After(at) {
			return v.Stored, true
		}
	}
	return bus.Stored{Entity: e}, true
}

// resource holds a transition to the rules.
func (c *checker) resource(who string, a bus.Append, seq uint64) {
	w := c.w
	e, err := wire.DecodeResource(a.Body)
	if err != nil {
		w.violate("an event cannot be read: %v", err)
	}
	after := e.State
	key := after.Key
	before := c.states[key]
	if w.trace != nil {
		w.say("%s %s rev %d: %s", who, key, after.Revision, stateText(&e.Event, &after))
	}
	if want := (bus.Entity{Partition: bus.PartitionOf(key.Project, key.Kind, key.Name, w.server.Partitions()), Family: bus.Resource, Project: key.Project, Kind: key.Kind, Name: key.Name}); a.Entity != want {
		w.violate("the event of %s was appended to %v", key, a.Entity)
	}
	var bp *blueprint.Blueprint
	j := after.Job()
	if j == nil {
		j = after.FlowJob()
	}
	if j != nil {
		bp = c.blueprints[j.Blueprint]
	}
	for _, f := range append(audit.Transition(before, after), audit.Resource(after, bp)...) {
		w.violate("%s at sequence %d, written by %s: %s: %s\nbefore: %s\nafter:  %s", key, seq, who, f.Rule, f.Of, stateText(nil, &before), stateText(&e.Event, &after))
	}
	if before.UID != after.UID {
		before = resource.State{}
	}
	if a.Header.Revision != after.Revision {
		w.violate("%s: the header says revision %d, the state %d", key, a.Header.Revision, after.Revision)
	}
	c.result(who, &e.Event, &before)
	if e.Event.Cause.Kind == "lost" {
		c.lost(&before, e.Event.Cause.Phase)
	}
	if e.Event.Cause.Kind == "due" {
		if p := before.Phase(e.Event.Cause.Phase); p != nil {
			due := p.Due
			polled := p.Status == resource.Sleeping && !p.Retrying // whose due time is a poll's, and makes no event
			if p.Status != resource.Canceling && !p.Deadline.IsZero() && (due.IsZero() || polled || p.Deadline.Before(due)) {
				due = p.Deadline
			}
			c.timely(&before, due, p.Since, "its step")
		}
	}
	c.runs(&e.Event, &before, &after)
	c.child(&e.Event, &before, &after)
	for i := range after.Jobs {
		ref := &after.Jobs[i]
		if ref.Handed {
			continue // it is the root's
		}
		seen := c.jobs[ref.ID]
		switch {
		case before.JobByID(ref.ID) != nil:
		case seen != nil && !seen.buried:
			w.violate("%s: job %s (%s) was made a second time", key, ref.ID, ref.RequestID)
		default:
			seen = &jobSeen{key: key}
			c.jobs[ref.ID] = seen
		}
		seen.shown[ref.State] = true
		seen.endedAt = ref.EndedAt
	}
	if after.Gone {
		c.buried[key] = seq
	}
	c.states[key] = after
}

// result holds an event that a result caused to what workers said: the fence of the call that was out, no other.
func (c *checker) result(who string, e *resource.Event, before *resource.State) {
	if e.Cause.Kind != "result" {
		return
	}
	p := before.Phase(e.Cause.Phase)
	if p == nil || !p.InFlight && (p.Status != resource.Sleeping || p.Retrying) {
		c.w.violate("%s: a result of phase %s was applied, and no call was out", before.Key, e.Cause.Phase)
	}
	for _, o := range resource.Outcomes() {
		if a := (answer{fenceOf(before, p), o}); o.String() == e.Cause.Outcome && c.answers[a] {
			c.applied[applied{who, a}]++
			return
		}
	}
	c.w.violate("%s: a result %q was applied to the call %+v, and nobody said that", before.Key, e.Cause.Outcome, fenceOf(before, p))
}

func fenceOf(s *resource.State, p *resource.PhaseRun) resource.Fence {
	return resource.Fence{UID: s.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt, Call: p.Call}
}

// runs: a fence is handed out once, and what is completed is not handed out again for the same job and state.
func (c *checker) runs(e *resource.Event, before, after *resource.State) {
	for i := range after.Phases {
		p := &after.Phases[i]
		if was := before.Phase(p.Name); p.Status == resource.Completed && (was == nil || was.Status != resource.Completed) {
			c.completed[entry{after.UID, p.JobID, p.State, p.Name}] = true
		}
	}
	d := e.Dispatch
	if d == nil {
		return
	}
	if c.handed[d.Fence] {
		c.w.violate("%s: the call %+v was handed out twice", after.Key, d.Fence)
	}
	c.handed[d.Fence] = true
	if c.completed[entry{after.UID, d.Fence.JobID, d.State, d.Fence.Phase}] {
		c.w.violate("%s: phase %s runs again, though it was completed in state %s for job %s", after.Key, d.Fence.Phase, d.State, d.Fence.JobID)
	}
}

// job holds the record of a job to the rules.
func (c *checker) job(who string, a bus.Append, bury bool) {
	w := c.w
	e, err := wire.DecodeJob(a.Body)
	if err != nil {
		w.violate("a job's event cannot be read: %v", err)
	}
	r := e.Record
	w.say("%s job %s (%s) %s gone=%t", who, r.ID, r.RequestID, r.State, r.Gone)
	k := drive.JobKey{Project: r.Project, ID: r.ID}
	prior, known := c.records[k]
	if prior.Gone {
		known = false
	}
	seen := c.jobs[r.ID]
	if r.Kind == drive.BlueprintKind && seen == nil {
		seen = &jobSeen{key: resource.Key{Project: r.Project, Kind: r.Kind, Name: r.Name}, endedAt: r.EndedAt}
		seen.shown[r.State] = true
		c.jobs[r.ID] = seen
	}
	switch {
	case seen == nil || !seen.shown[r.State]:
		w.violate("job %s is recorded as %s, which its resource never showed", r.ID, r.State)
	case r.Kind != seen.key.Kind || r.Name != seen.key.Name:
		w.violate("the record of job %s is that of %s/%s, and the job %s's", r.ID, r.Kind, r.Name, seen.key)
	case bury != r.Gone:
		w.violate("job %s: buried %t, gone %t", r.ID, bury, r.Gone)
	case r.Gone && (!known || !prior.State.Final() || prior.State != r.State):
		w.violate("job %s was forgotten while it was %s", r.ID, prior.State)
	case r.Gone && w.now.Add(2*skewMax).Before(r.EndedAt.Add(job.RetentionDefault)):
		w.violate("job %s, which ended at %s, was forgotten at %s", r.ID, r.EndedAt, w.now)
	case r.Gone:
		seen.buried = true
	case !known && seen.buried:
		w.violate("job %s (%s), which was forgotten, has a record again", r.ID, r.RequestID)
	case known && !job.May(prior.State, r.State):
		w.violate("the record of job %s goes from %s to %s", r.ID, prior.State, r.State)
	}
	if known && r.Revision != prior.Revision+1 || !known && r.Revision != 1 {
		w.violate("the record of job %s has revision %d after %d", r.ID, r.Revision, prior.Revision)
	}
	c.records[k] = r
}

// forget is a Forget that has reached the server.
func (c *checker) forget(ctx context.Context, who string, e bus.Entity, seq uint64) error {
	err := c.w.server.Forget(ctx, e, seq)
	c.w.mark(who+" forgets", e.Key(), seq)
	if err == nil && e.Family == bus.Job {
		delete(c.records, drive.JobKey{Project: e.Project, ID: e.Name})
	}
	c.keep(e)
	return err
}

// replying looks at what an owner answers.
func (c *checker) replying(s *stint, r bus.Request, reply partition.Reply) partition.Reply {
	return func(header map[string]string, body []byte) {
		decoded, err := wire.DecodeReply(header[bus.HeaderContentType], body)
		if err != nil {
			c.w.violate("an owner's reply cannot be read: %v", err)
		}
		project, kind, name, _, _ := bus.ParseCommandSubject(r.Header["Drover-Subject"])
		id := wire.JobID(resource.Key{Project: project, Kind: kind, Name: name}, r.Header[bus.HeaderRequestID])
		if decoded.Refused == nil {
			if decoded.JobID != id {
				c.w.violate("%s accepts a request with job %s, which should be %s", s.p.name, decoded.JobID, id)
			}
			if c.jobs[id] == nil && kind != drive.BlueprintKind {
				c.w.violate("%s accepts job %s, which the log does not hold", s.p.name, id)
			}
		}
		if r := decoded.Refused; r != nil && r.Code != resource.Overloaded && !strings.Contains(r.Message, "was used before") {
			seen, f := c.jobs[id], &c.w.faults
			if seen != nil && !seen.buried && !f.overlap && !f.pauses { // else another owner may have been faster
				c.w.violate("%s refuses a request that made job %s: %s", s.p.name, id, r.Message)
			}
		}
		reply(header, body)
	}
}

// accepted is a command whose sender was told its job.
func (c *checker) accepted(id string, of fmt.Stringer) {
	c.w.mark("accepted", id, 0)
	seen := c.jobs[id]
	if seen == nil {
		c.w.violate("%s was accepted as job %s, which the log does not hold", of, id)
	}
	seen.accepted = true
}

// captured is a command that COMMANDS holds.
func (c *checker) captured(seq uint64, subject string, header map[string]string) {
	project, kind, name, _, _ := bus.ParseCommandSubject(subject)
	id := header[bus.HeaderRequestID]
	if id == "" {
		id = madeID(seq)
	}
	c.commands = append(c.commands, capturedCommand{id, wire.JobID(resource.Key{Project: project, Kind: kind, Name: name}, id)})
}

// settling looks at how an owner settles a result.
func (c *checker) settling(s *stint, d *delivery) bus.Delivery { return &settled{d, s} }

type settled struct {
	*delivery
	s *stint
}

// Ack implements bus.Delivery: what was acknowledged must be applied, or mean nothing.
func (d *settled) Ack() error {
	c := d.w.check
	e, err := bus.ParseResultSubject(d.Subject())
	if err != nil {
		d.w.violate("a result has no subject: %v", err)
	}
	r, err := wire.DecodeResult("", d.Body())
	if err != nil {
		d.w.violate("a result that cannot be read was acknowledged: %v", err)
	}
	s := c.states[resource.Key{Project: e.Project, Kind: e.Kind, Name: e.Name}]
	// Where this owner has applied it, another, who does not know that it was the answer to his poll, may await it still: he has
	// canceled the phase since, and waits for its lease.
	by := applied{d.s.p.name, answer{r.Fence, r.Outcome}}
	if c.applied[by] == 0 && r.Outcome == resource.OutcomePending {
		c.putOff[r.Fence] = true
	}
	if c.applied[by] > 0 {
		c.applied[by]--
	} else if p := s.Phase(r.Fence.Phase); p != nil && s.Exists() && p.InFlight && fenceOf(&s, p) == r.Fence && r.Outcome != resource.OutcomeRunning {
		d.w.violate("%s acknowledged the result %s of %+v, which is still awaited", d.s.p.name, r.Outcome, r.Fence)
	}
	return d.delivery.Ack()
}

// lost holds a call that a sweep found nowhere to what is there: a worker had its work, and neither that nor an answer is
// under way.
func (c *checker) lost(s *resource.State, phase string) {
	f := fenceOf(s, s.Phase(phase))
	if c.again[f] {
		return // somebody answers once more, at any time
	}
	if !c.seen[f] {
		c.w.violate("%s: the call %+v was called lost, and no worker has seen it yet", s.Key, f)
	}
	for _, m := range c.w.sys.Unsettled() {
		if r, err := wire.DecodeResult("", m.Body); err == nil && strings.HasPrefix(m.Subject, "drover.result.") && r.Fence == f {
			c.w.violate("%s: the call %+v was called lost, and its answer %s waits in RESULTS", s.Key, f, r.Outcome)
		}
		if work, err := wire.DecodeWork(m.Body, ""); err == nil && strings.HasPrefix(m.Subject, "drover.work.") && work.Fence == f {
			c.w.violate("%s: the call %+v was called lost, and is in WORK", s.Key, f)
		}
	}
}

const (
	lateMax      = 5 * time.Second  // of what is due in calm; a sweep would come to it later than that, most often
	ownersSettle = 10 * time.Second // until owners know their partitions
)

// timely holds what is due to its time, in calm, where its owner has known it for long enough.
func (c *checker) timely(s *resource.State, due, since time.Time, what string) {
	w := c.w
	if w.faults.skew && due.Before(c.healed.Add(2*skewMax)) {
		return // time never runs backwards (promise 3): a state that a clock ahead has written waits until the others are there
	}
	known := !c.restarted.IsZero() && due.After(c.restarted.Add(ownersSettle)) || since.After(c.healed.Add(ownersSettle)) && c.restarted.IsZero()
	if w.calm && known && w.now.After(due.Add(lateMax)) {
		w.violate("%s: %s was due at %s and came %s later", s.Key, what, w.clockText(due), w.now.Sub(due))
	}
}

// poll looks at the first poll of a call.
func (c *checker) poll(p bus.Phase, body []byte) {
	work, err := wire.DecodeWork(body, p.Phase)
	if err != nil {
		c.w.violate("a poll cannot be read: %v", err)
	}
	if c.called[work.Fence] {
		return
	}
	c.called[work.Fence] = true
	if c.again[work.Fence] || c.putOff[work.Fence] {
		return // an answer that came once more put it off
	}
	run := work.State.Phase(p.Phase)
	c.timely(&work.State, run.Due, run.Since, "its poll")
}

// worked looks at what is handed out by WORK.
func (c *checker) worked(work *wire.Work) {
	if work.Poll {
		return
	}
	c.seen[work.Fence] = true
	if !c.handed[work.Fence] {
		c.w.violate("work was handed out under the fence %+v, which no event holds", work.Fence)
	}
}

// polls counts the calls of a fence.
func (c *checker) polls(f resource.Fence) int {
	c.polled[f]++
	return c.polled[f]
}

// moving are the reasons that end by themselves.
var moving = []resource.ReasonCode{
	resource.ToHandOut, resource.ForWorker, resource.AtWork, resource.PollAt, resource.ForCallback, resource.RetryAt, resource.CancelingFor,
	resource.BehindCalls, resource.ToGoOn,
}

// unfinished says what is not at its end, or "".
func (c *checker) unfinished() string {
	if c.asking > 0 {
		return fmt.Sprint(c.asking, " users wait for an answer")
	}
	for _, key := range slices.SortedFunc(maps.Keys(c.states), compareKeys) {
		s := c.states[key]
		j := s.Job()
		if !s.Exists() || j == nil {
			continue
		}
		reasons := resource.Why(&s)
		if slices.ContainsFunc(reasons, func(r resource.Reason) bool {
			return slices.Contains(moving, r.Code) || r.Code == resource.ForChildren && !c.waitsForAPerson(&s)
		}) {
			return fmt.Sprintf("job %s of %s is %s: %+v\n%s", j.ID, key, j.State, reasons, stateText(nil, &s))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		r, ok := c.records[drive.JobKey{Project: project, ID: id}]
		if !c.jobs[id].buried && (!ok || !r.State.Final()) {
			return fmt.Sprintf("the record of job %s of %s does not follow (exists: %t)", id, c.jobs[id].key, ok)
		}
	}
	for _, stream := range []string{"COMMANDS", "RESULTS"} {
		for n := range c.w.server.Partitions() {
			if left, _, _ := c.w.server.Backlog(context.Background(), stream, n); left > 0 {
				return fmt.Sprintf("%s holds %d messages of partition %d", stream, left, n)
			}
		}
	}
	if text := c.held(); text != "" {
		return text
	}
	for _, p := range c.w.scenario.phases {
		if left, caughtUp, _ := c.w.server.Outstanding(context.Background(), p); left > 0 || !caughtUp {
			return fmt.Sprintf("WORK holds %d messages of phase %s of %s", left, p.Phase, p.Kind)
		}
	}
	return ""
}

func compareKeys(a, b resource.Key) int {
	if a.Kind != b.Kind {
		if a.Kind < b.Kind {
			return -1
		}
		return 1
	}
	switch {
	case a.Name < b.Name:
		return -1
	case a.Name > b.Name:
		return 1
	}
	return 0
}

// atRest holds a house in which nothing moves any more to the rules.
func (c *checker) atRest() {
	w := c.w
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		seen := c.jobs[id]
		r, ok := c.records[drive.JobKey{Project: project, ID: id}]
		switch {
		case !ok:
			w.violate("job %s of %s (accepted: %t) has no record", id, seen.key, seen.accepted)
		case !r.State.Final():
			s := c.states[seen.key]
			w.violate("the record of job %s of %s says %s and nothing moves: %s", id, seen.key, r.State, stateText(nil, &s))
		case !seen.shown[r.State]:
			w.violate("the record of job %s says %s, which its resource never showed", id, r.State)
		}
	}
	for _, cmd := range c.commands {
		if c.jobs[cmd.job] == nil && !c.refusals[cmd.id] {
			w.violate("the captured command %s has neither a job nor a refusal", cmd.id)
		}
	}
	if aside := len(w.sys.Poison()); aside > c.rubbish || c.kept > 0 && aside == 0 {
		w.violate("%d messages were set aside, of %d that nobody can read", aside, c.rubbish)
	}
	c.trees()
	c.counted()
	c.buckets()
}

// buckets holds the buckets to the log.
func (c *checker) buckets() {
	w, ctx := c.w, context.Background()
	for _, f := range bus.Families() {
		last := map[bus.Entity]uint64{}
		for n := range w.server.Partitions() {
			_ = w.server.Scan(ctx, n, f, func(s bus.Stored) error {
				if !s.Deleted {
					last[s.Entity] = s.Seq
				}
				return nil
			})
		}
		_ = w.server.List(ctx, f, "", "", func(s bus.Stored) error {
			if last[s.Entity] != s.Seq {
				w.violate("bucket %s holds sequence %d of %v, the log %d", f.Bucket(), s.Seq, s.Entity, last[s.Entity])
			}
			delete(last, s.Entity)
			return nil
		})
		for e := range last {
			w.violate("bucket %s lacks %v", f.Bucket(), e)
		}
	}
}

// forgotten holds the log, long after the last job has ended, to what may remain: what lives, and its specs.
func (c *checker) forgotten() {
	w, ctx := c.w, context.Background()
	for n := range w.server.Partitions() {
		for _, f := range bus.Families() {
			_ = w.server.Scan(ctx, n, f, func(s bus.Stored) error {
				e := s.Entity
				state, known := c.states[resource.Key{Project: e.Project, Kind: e.Kind, Name: e.Name}]
				switch {
				case f == bus.PhaseRecord && !s.Deleted && c.named(e):
				case f == bus.Blueprint || (f == bus.Resource || f == bus.Spec) && known && state.Exists():
				case f == bus.Spec && !s.Deleted && s.Seq > c.buried[resource.Key{Project: e.Project, Kind: e.Kind, Name: e.Name}]:
					// Known: an apply that would have created a resource brought it, and came to nothing when its owner died.
				case f == bus.PhaseRecord:
					w.violate("the record of phase %s, which no blueprint names, is still in the log (gone: %t)", e.Key(), s.Deleted)
				case f == bus.Job:
					w.violate("job %s is still in the log (gone: %t)", e.Name, s.Deleted)
				default:
					w.violate("%s %s of a deleted resource is still in the log (gone: %t)", f, e.Key(), s.Deleted)
				}
				return nil
			})
		}
	}
	c.buckets()
}

func stateText(e *resource.Event, s *resource.State) string {
	text := fmt.Sprintf("%s %q to %q gone=%t deleted=%t", s.UID, s.State, s.Target, s.Gone, !s.DeletedAt.IsZero())
	if e != nil {
		text = fmt.Sprintf("(%s %s%s%s) ", e.Cause.Kind, e.Cause.Verb, e.Cause.Phase, " "+e.Cause.Outcome) + text
		if d := e.Dispatch; d != nil {
			text += fmt.Sprintf(" hands out %s %d.%d", d.Fence.Phase, d.Fence.Attempt, d.Fence.Call)
		}
	}
	for i := range s.Phases {
		p := &s.Phases[i]
		text += fmt.Sprintf(" [%s@%s %s %d.%d out=%t", p.Name, p.State, p.Status, p.Attempt, p.Call, p.InFlight)
		if !p.Due.IsZero() {
			text += fmt.Sprintf(" due %.1fs", p.Due.Sub(began).Seconds())
		}
		text += "]"
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		text += fmt.Sprintf(" {%s %s %s %s}", j.RequestID, j.ID[:min(6, len(j.ID))], j.Verb, j.State)
	}
	return text
}
