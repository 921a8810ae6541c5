package drive

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// modelWorld is one Loop over a log in memory, on which one thing happens at a time: act. Appends wait, in order, until they are
// told to arrive. A Loop cannot be copied, so a state is the way that leads to it: a world is made anew and led there.
type modelWorld struct {
	system   *modelSystem
	now      time.Time
	seq      uint64
	states   map[resource.Key]Loaded
	jobs     map[JobKey]LoadedJob
	specs    map[resource.Key]uint64
	loop     *Loop
	sent     []*sentOp
	version  int // of the items
	requests int
	asked    []job.Ref // every job that was accepted
	given    []answer  // results that were given, oldest first
	broken   []string
	owner    int
	lost     bool // some of it is left to a sweep: the answer of an append was lost
}

// modelSystem is what a search is of.
type modelSystem struct {
	name    string
	plans   map[string]*blueprint.Blueprint
	items   [][]children.Item // by version; an apply takes the next one
	roots   []resource.Key
	verbs   []string // that may be said to a root
	most    int      // so many of them once the prelude is over; 0: all
	prelude []action
	limits  Limits
}

// sentOp is what the Loop sent and the log has not seen yet.
type sentOp struct {
	text  func(*naming) string
	store func() (uint64, error)
	done  func(uint64, error)
}

type answer struct {
	key    resource.Key
	result resource.Result
}

// action is one thing that happens. Which one of its kind it is, is a place in an order that the state gives.
type action struct {
	kind actionKind
	n    int8
	root int8
}

type actionKind byte

const (
	arrive   actionKind = 'a' // the oldest append reaches the log, and its answer the Loop
	unheard  actionKind = 'l' // the same, and its answer is lost
	kill     actionKind = 'k' // the owner dies; of what it sent, n appends reach the log; another owner begins
	complete actionKind = 'r' // the n-th call that is out is completed
	failed   actionKind = 'f' // it failed
	belated  actionKind = 'd' // a result that was given comes again: the first one, or the last
	command  actionKind = 'c' // a user's
	tick     actionKind = 't' // what the Loop left for the next tick
	sweepNow actionKind = 's' // 20 s pass, and a sweep comes
)

func (a action) String() string {
	return fmt.Sprintf("%c%d.%d", a.kind, a.n, a.root)
}

func newModelWorld(s *modelSystem) *modelWorld {
	w := &modelWorld{
		system: s, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), states: map[resource.Key]Loaded{}, jobs: map[JobKey]LoadedJob{},
		specs: map[resource.Key]uint64{},
	}
	w.begin()
	return w
}

// begin is a takeover.
func (w *modelWorld) begin() {
	w.owner++
	w.loop = New(w, w.system.limits)
	for _, k := range slices.SortedFunc(maps.Keys(w.jobs), func(a, b JobKey) int { return cmp.Compare(a.ID, b.ID) }) {
		w.loop.AdoptJob(k, w.jobs[k])
	}
	w.read(w.loop.Adopt)
	w.loop.Begin(w.now)
}

func (w *modelWorld) read(each func(resource.State, uint64, func(string) (LoadedJob, bool))) {
	for _, k := range sortedKeys(w.states) {
		l := w.states[k]
		each(l.State, l.Seq, func(id string) (LoadedJob, bool) {
			j, ok := w.jobs[JobKey{k.Project, id}]
			return j, ok
		})
	}
	w.loop.Covered(w.seq)
}

func (w *modelWorld) blame(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

func (w *modelWorld) verdict() error {
	if len(w.broken) == 0 {
		return nil
	}
	return errors.New(strings.Join(w.broken, "\n"))
}

// out are the calls that the log shows to be out.
func (w *modelWorld) out() []answer {
	var all []answer
	for _, k := range sortedKeys(w.states) {
		s := w.states[k].State
		for i := range s.Phases {
			if p := &s.Phases[i]; p.InFlight && !p.Children {
				all = append(all, answer{k, resource.Result{Fence: resource.Fence{UID: s.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt, Call: p.Call}}})
			}
		}
	}
	return all
}

// awaited are those of them that were not answered yet.
func (w *modelWorld) awaited() []answer {
	return slices.DeleteFunc(w.out(), func(a answer) bool {
		return slices.ContainsFunc(w.given, func(g answer) bool { return g.result.Fence == a.result.Fence })
	})
}

// act does one thing.
func (w *modelWorld) act(a action) {
	switch a.kind {
	case arrive, unheard:
		op := w.sent[0]
		w.sent = w.sent[1:]
		seq, err := op.store()
		if a.kind == unheard {
			seq, err, w.lost = 0, ErrLost, true
		}
		op.done(seq, err)
	case kill:
		for i := range a.n {
			_, _ = w.sent[i].store()
		}
		w.sent = nil
		w.lost = w.lost || w.system.limits.CachedStates > 0 // what there was no room for at the takeover is the sweep's
		w.given = slices.DeleteFunc(w.given, w.isOut)       // what was not acknowledged comes again
		w.begin()
	case complete, failed:
		of := w.awaited()[a.n]
		of.result.Outcome = resource.OutcomeCompleted
		if a.kind == failed {
			of.result.Outcome = resource.OutcomeFailed
		}
		w.given = append(w.given, of)
		w.offer(of)
	case belated:
		of := w.given[0]
		if a.n == 1 {
			of = w.given[len(w.given)-1]
		}
		w.offer(of)
	case command:
		w.command(w.system.roots[a.root], w.system.verbs[a.n])
	case tick:
		w.loop.Tick(w.now)
	case sweepNow:
		w.now = w.now.Add(20 * time.Second)
		w.loop.Tick(w.now)
		w.loop.Sweep(w.now, func(string, string, resource.Key) bool { return false })
	}
	w.remember()
}

// remember keeps of the results that were given those whose calls are out, which are not given anew, and the first and the
// last, which may come again.
func (w *modelWorld) remember() {
	kept := make([]answer, 0, len(w.given))
	for i, a := range w.given {
		if i == 0 || i == len(w.given)-1 || w.isOut(a) {
			kept = append(kept, a)
		}
	}
	w.given = kept
}

func (w *modelWorld) isOut(a answer) bool {
	return slices.ContainsFunc(w.out(), func(o answer) bool { return o.result.Fence == a.result.Fence })
}

func (w *modelWorld) offer(of answer) {
	back := func(error) {
		w.given = slices.DeleteFunc(w.given, func(g answer) bool { return g.result.Fence == of.result.Fence })
	}
	owner := w.owner
	w.loop.Offer([]Input{{
		Key: of.key, Input: resource.Input{Kind: resource.OnResult, At: w.now, Result: &of.result},
		Settle: func() {
			if owner == w.owner && w.isOut(of) {
				w.blame("the result of %s, phase %s, is acknowledged, and its call is still awaited", of.key, of.result.Fence.Phase)
			}
		},
		Back: back, Aside: func(reason string) { w.blame("set aside: %s", reason) },
	}})
}

func (w *modelWorld) command(root resource.Key, verb string) {
	w.requests++
	id := "r" + strconv.Itoa(w.requests)
	if verb == "apply" && w.states[root].Seq > 0 && w.version < len(w.system.items)-1 {
		w.version++
	}
	w.loop.Offer([]Input{{
		Key: root, Input: resource.Input{Kind: resource.OnCommand, At: w.now, Command: &resource.Command{
			Key: root, Verb: verb, RequestID: id, JobID: id, Digest: id, NewUID: "uid-" + id, SpecDigest: "v" + strconv.Itoa(w.version),
		}},
		Spec: []byte(strconv.Itoa(w.version)),
		Reply: func(r resource.Reply) {
			if r.Refused != nil {
				return
			}
			at := w.states[root].State
			ref := at.JobByID(r.JobID)
			if ref == nil {
				w.blame("job %s of %s is accepted, and the log does not hold it", r.JobID, root)
				return
			}
			w.asked = append(w.asked, *ref)
		},
		Back: func(error) {}, Aside: func(reason string) { w.blame("set aside: %s", reason) },
	}})
}

// store applies a resource's event under compare and set, and holds it to the promises.
func (w *modelWorld) store(r *Record) (uint64, error) {
	switch {
	case r.Resource != nil:
		key, after := r.Resource.State.Key, r.Resource.State
		before := w.states[key]
		if before.Seq != r.Expect {
			return 0, ErrLost
		}
		prior := before.State
		if prior.Gone {
			prior = resource.State{UID: prior.UID, Gone: true, UpdatedAt: prior.UpdatedAt}
		}
		for _, f := range append(audit.Resource(after, w.system.plans[key.Kind]), audit.Transition(prior, after)...) {
			w.blame("%s: %s (%s)", key, f.Rule, f.Of)
		}
		w.family(before.State, after, &r.Resource.Event)
		w.seq++
		w.states[key] = Loaded{State: after, Seq: w.seq}
	case r.Job != nil:
		k := JobKey{r.Job.Record.Project, r.Job.Record.ID}
		if w.jobs[k].Seq != r.Expect {
			return 0, ErrLost
		}
		if !job.May(r.Job.From, r.Job.Record.State) || w.jobs[k].Record.State != r.Job.From {
			w.blame("the record of job %s goes from %s to %s", k.ID, w.jobs[k].Record.State, r.Job.Record.State)
		}
		w.seq++
		w.jobs[k] = LoadedJob{Record: r.Job.Record, Seq: w.seq}
	case r.Spec != nil:
		if w.specs[r.Spec.Key] != r.Expect {
			return 0, ErrLost
		}
		w.seq++
		w.specs[r.Spec.Key] = w.seq
	}
	return w.seq, nil
}

// family holds a step of a parent or of a child to seed 001: a child is made and marked only for a parent that is there, and a
// parent is gone only without children; what is triggered had its predecessors finished or, being deleted, its successors
// gone; a job leaves no child at work, unless it is interrupted; a job runs once in a child.
func (w *modelWorld) family(before, after resource.State, event *resource.Event) {
	if after.Parent.Name == "" {
		j := before.Job()
		for _, k := range sortedKeys(w.states) {
			c := w.states[k].State
			if c.Parent.Name != after.Name || c.Gone {
				continue
			}
			if after.Gone {
				w.blame("%s is gone before its child %s", after.Key, k)
			}
			of := c.AsChild()
			if j == nil || before.UID != after.UID || of.Job == "" || of.JobState.Final() {
				continue
			}
			now := after.JobByID(j.ID).State
			if now == job.Succeeded || now == job.Failed || now == job.Canceled && j.Canceling && event.Cause.Verb != resource.VerbInterrupt {
				w.blame("job %s ends before %s, which is at job %s", j.ID, k, of.Job)
			}
		}
		return
	}
	parent := w.states[parentOf(&after)].State
	if !parent.Exists() || parent.UID != after.Parent.UID {
		w.blame("%s moves without its parent", after.Key)
	}
	c := after.AsChild()
	if c.Job == "" || before.UID == after.UID && before.JobByID(c.Job) != nil {
		return
	}
	for _, k := range sortedKeys(w.states) {
		s := w.states[k].State
		if s.Parent.Name != after.Parent.Name || s.Gone || s.Key == after.Key {
			continue
		}
		o := s.AsChild()
		switch {
		case !c.Marked && o.Marked:
			w.blame("%s is triggered before the orphan %s is gone", c.Item, o.Item)
		case !c.Marked && slices.Contains(c.DependsOn, o.Item) && (o.Job != c.Job || !o.JobState.Final()):
			w.blame("%s is triggered before %s has finished", c.Item, o.Item)
		case c.Marked && o.Marked && slices.Contains(o.DependsOn, c.Item):
			w.blame("%s is deleted before %s, which depends on it", c.Item, o.Item)
		}
	}
}

// Append implements Port.
func (w *modelWorld) Append(r Record, done func(uint64, error)) {
	w.sent = append(w.sent, &sentOp{
		text: func(n *naming) string { return w.recordText(n, &r) }, store: func() (uint64, error) { return w.store(&r) }, done: done,
	})
}

// AppendBatch implements Port.
func (w *modelWorld) AppendBatch(rs []Record, done func(uint64, error)) {
	w.sent = append(w.sent, &sentOp{
		text: func(n *naming) string {
			var b strings.Builder
			for i := range rs {
				b.WriteString(w.recordText(n, &rs[i]) + "+")
			}
			return b.String()
		},
		store: func() (seq uint64, err error) {
			for i := range rs {
				if w.states[rs[i].Resource.State.Key].Seq != rs[i].Expect {
					return 0, ErrLost // nothing is stored
				}
			}
			for i := range rs {
				if seq, err = w.store(&rs[i]); err != nil {
					w.blame("a batch was stored in part: %v", err)
				}
			}
			return seq, err
		},
		done: done,
	})
}

// ForgetResource implements Port.
func (w *modelWorld) ForgetResource(key resource.Key, seq uint64, done func(error)) {
	w.sent = append(w.sent, &sentOp{
		text: func(*naming) string { return "forget " + key.Name + fmt.Sprint(w.states[key].Seq == seq) },
		store: func() (uint64, error) {
			if w.states[key].Seq != seq {
				return 0, ErrLost
			}
			delete(w.states, key)
			delete(w.specs, key)
			return 0, nil
		},
		done: func(_ uint64, err error) { done(err) },
	})
}

// Load implements Port, and so do the following.
func (w *modelWorld) Load(keys []resource.Key, jobs []JobKey, _ bool) ([]Loaded, []LoadedJob, error) {
	var l []Loaded
	for _, k := range keys {
		l = append(l, w.states[k])
	}
	var j []LoadedJob
	for _, k := range jobs {
		j = append(j, w.jobs[k])
	}
	return l, j, nil
}

func (w *modelWorld) Look() error {
	w.read(w.loop.Learn)
	return nil
}

func (w *modelWorld) Blueprint(_, kind, digest string) (*blueprint.Blueprint, error) {
	if bp := w.system.plans[kind]; bp != nil && bp.Digest == digest {
		return bp, nil
	}
	return nil, ErrNotFound
}

func (w *modelWorld) PresentBlueprint(_, kind string, _ bool) (LoadedBlueprint, error) {
	return LoadedBlueprint{Blueprint: w.system.plans[kind], Generation: 1, Seq: 1}, nil
}

func (w *modelWorld) Spec(key resource.Key, _ string) ([]byte, error) {
	return []byte(strings.TrimPrefix(w.states[key].State.SpecDigest, "v")), nil
}

func (w *modelWorld) SpecSeq(key resource.Key) (uint64, error) { return w.specs[key], nil }
func (w *modelWorld) TrimSpecs(resource.Key)                   {}

func (w *modelWorld) Items(_ *blueprint.Phase, spec []byte) ([]children.Item, error) {
	version, err := strconv.Atoi(string(spec))
	if err != nil {
		return nil, err
	}
	return w.system.items[version], nil
}

func (w *modelWorld) ChildUID(key resource.Key, jobID string, at time.Time) string {
	return "uid-" + key.Name + "-" + jobID + "-" + at.Format(time.RFC3339)
}

func (w *modelWorld) When(string, []byte, *resource.State) (bool, error)      { return true, nil }
func (w *modelWorld) Poll(*resource.State, resource.Fence, string)            {}
func (w *modelWorld) Users(string, string, time.Duration, func(Users, error)) {}
func (w *modelWorld) ForgetBlueprint(string, string, uint64, func(error))     {}
func (w *modelWorld) EnsurePhases(*blueprint.Blueprint)                       {}
func (w *modelWorld) ForgetJob(JobKey, uint64, func(error))                   {}
func (w *modelWorld) Note(_ resource.Key, _ resource.Input, notes []resource.Note) {
	for _, n := range notes {
		if n.Code == resource.NoteIllegal {
			w.blame("an illegal edge was tried: %s", n.Of)
		}
	}
}

// naming gives jobs names by the order in which they are met, so that two worlds which differ in ids alone look alike.
type naming struct{ ids, uids []string }

func place(all *[]string, id string) string {
	if id == "" {
		return "-"
	}
	i := slices.Index(*all, id)
	if i < 0 {
		*all = append(*all, id)
		i = len(*all) - 1
	}
	return strconv.Itoa(i)
}

func (n *naming) job(id string) string { return place(&n.ids, id) }
func (n *naming) uid(id string) string { return place(&n.uids, id) }

// stateText is all of a state that a rule reads.
func (w *modelWorld) stateText(n *naming, s *resource.State) string {
	if s.UID == "" {
		return "none"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s u%s %s>%s", s.Name, n.uid(s.UID), s.State, s.Target)
	if s.Gone {
		b.WriteString(" gone")
	}
	if !s.DeletedAt.IsZero() {
		b.WriteString(" marked")
	}
	fmt.Fprintf(&b, " %s %t %t %d.%d.%t", s.SpecDigest, s.ObservedGeneration == s.Generation, s.ObservedGeneration == 0, s.Children.Items, s.Children.Cursor, s.Children.Applied)
	if s.Children.Items > 0 { // what it has said of them decides whether it says it again
		fmt.Fprintf(&b, " %v", s.Children)
	}
	if s.Parent.Name != "" {
		p := w.states[parentOf(s)].State
		fmt.Fprintf(&b, " of %s %d %t", n.uid(s.Parent.UID), s.Parent.Index, s.Parent.Revision > p.Revision)
	}
	handed := s.AsChild().Job
	var begun, newest string
	for i := range s.Jobs {
		if j := &s.Jobs[i]; j.Blueprint != "" || j.Handed {
			newest = j.ID
			if !j.StartedAt.IsZero() {
				begun = j.ID
			}
		}
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		recorded := w.jobs[JobKey{s.Project, j.ID}].Record.State
		lags := s.Parent.Name == "" && recorded != j.State
		if j.State.Final() && j.ID != handed && j.ID != begun && j.ID != newest && !lags {
			continue
		}
		fmt.Fprintf(&b, " [j%s %s>%s %s %t%t%t%t%t", n.job(j.ID), j.Walks(), j.Target, j.State, j.Canceling, j.Verb == resource.VerbRetry,
			j.Verb == resource.VerbDelete, j.StartedAt.IsZero(), j.Handed)
		if lags {
			fmt.Fprintf(&b, " recorded %s", recorded)
		}
		b.WriteString("]")
	}
	for i := range s.Phases {
		p := &s.Phases[i]
		if p.State != s.State && !p.Status.Active() {
			continue
		}
		fmt.Fprintf(&b, " %s=%s%t%t%t j%s %d", p.Name, p.Status, p.InFlight, p.Children, p.Undo, n.job(p.JobID), w.ahead(p.Due))
	}
	return b.String()
}

// ahead is how long it is until a time, in seconds; 0 is past, -1 never.
func (w *modelWorld) ahead(t time.Time) int {
	if t.IsZero() {
		return -1
	}
	return max(0, int(t.Sub(w.now)/time.Second))
}

func (w *modelWorld) recordText(n *naming, r *Record) string {
	switch {
	case r.Resource != nil:
		return fmt.Sprintf("R%t %s", w.states[r.Resource.State.Key].Seq == r.Expect, w.stateText(n, &r.Resource.State))
	case r.Job != nil:
		k := JobKey{r.Job.Record.Project, r.Job.Record.ID}
		return fmt.Sprintf("J%t j%s %s", w.jobs[k].Seq == r.Expect, n.job(k.ID), r.Job.Record.State)
	case r.Spec != nil:
		return fmt.Sprintf("S%t %s", w.specs[r.Spec.Key] == r.Expect, r.Spec.Key.Name)
	}
	return "?"
}

// laneText is what the Loop keeps of a resource beside the log's last word; empty where that is nothing.
func (w *modelWorld) laneText(n *naming, k resource.Key, ln *lane) string {
	var b strings.Builder
	at := w.states[k]
	stale := ln.loaded && ln.seq != at.Seq
	if ln.busy || stale || len(ln.queue) > 0 || ln.news != 0 {
		fmt.Fprintf(&b, " loaded %t stale %t busy %t news %t", ln.loaded, stale, ln.busy, ln.news != 0)
	}
	if stale {
		b.WriteString(" " + w.stateText(n, &ln.state))
	}
	if ln.loaded && at.State.Gone {
		b.WriteString(" kept") // when its traces go, what is kept is old
	}
	for _, it := range ln.queue {
		b.WriteString(" {" + w.inputText(n, ln, it) + "}")
	}
	for _, ref := range at.State.Jobs {
		j, now := ln.jobs[ref.ID], w.jobs[JobKey{k.Project, ref.ID}]
		if j == nil || !j.busy && !j.stale && j.seq == now.Seq {
			continue
		}
		fmt.Fprintf(&b, " (j%s busy %t stale %t same %t none %t, may be dropped %t)", n.job(ref.ID), j.busy, j.stale, j.seq == now.Seq, j.none,
			w.system.limits.CachedStates > 0 && ln.idleAt != nil)
	}
	return b.String()
}

// form is the world and the Loop's memory without what only counts up. Looking at families may find classes anew, so a world
// whose form was asked for is led no further.
func (w *modelWorld) form() string {
	n := &naming{}
	var b strings.Builder
	fmt.Fprintf(&b, "items %d\n", w.version)
	for _, k := range sortedKeys(w.states) {
		l := w.states[k]
		b.WriteString(w.stateText(n, &l.State) + "\n")
	}
	for _, k := range sortedKeys(w.specs) {
		if at := w.states[k].State; !at.Exists() { // it is not sent once more
			fmt.Fprintf(&b, "spec of %s\n", k.Name)
		}
	}
	for i, op := range w.sent {
		fmt.Fprintf(&b, "sent %d %s\n", i, op.text(n))
	}
	l := w.loop
	for _, k := range sortedKeys(l.lanes) { // one that rests is told of sooner than one that is not there
		fmt.Fprintf(&b, "lane %s%s\n", k.Name, w.laneText(n, k, l.lanes[k]))
	}
	for _, k := range sortedKeys(w.states) {
		s := w.states[k].State
		if _, live := l.live[k]; live != (s.Exists() && s.Job() != nil) {
			fmt.Fprintf(&b, "live %s %t\n", k.Name, live)
		}
	}
	for _, k := range sortedKeys(l.gone) {
		fmt.Fprintf(&b, "gone %s %t\n", k.Name, l.gone[k] == w.states[k].Seq)
	}
	fmt.Fprintf(&b, "behind %d bury %d.%d again", len(l.behind), len(l.bury.under), l.bury.out)
	for _, k := range l.again {
		b.WriteString(" " + k.Name)
	}
	var due []string
	for _, d := range l.due {
		due = append(due, fmt.Sprintf("%s %d", d.key.Name, w.ahead(d.at)))
	}
	slices.Sort(due)
	fmt.Fprintf(&b, " due %v\n", slices.Compact(due))
	for _, k := range sortedKeys(l.broods) {
		br := l.broods[k]
		if br.family.Len() == 0 && len(br.unsure) == 0 {
			continue
		}
		fmt.Fprintf(&b, "brood %s told %t later %t", k.Name, br.told, br.later)
		if at := w.states[k].State.UpdatedAt.Add(resource.RecountEvery); w.now.Before(at) || br.count.After(w.now) { // when it is to say how they stand
			fmt.Fprintf(&b, " counts %d asked %d", w.ahead(at), w.ahead(br.count))
		}
		for _, u := range br.unsure {
			b.WriteString(" unsure " + u.Name)
		}
		at := w.states[k].State
		if j := at.Job(); j != nil {
			br.family.Begin(j.ID)
		}
		fmt.Fprintf(&b, " %+v %+v", br.family.Kept(), br.family.Marked())
		for _, marked := range []bool{false, true} {
			for _, c := range br.family.Runnable(marked, 9) {
				b.WriteString(" runnable " + c.Item)
			}
		}
		for _, c := range br.family.Begun(false, 9) {
			b.WriteString(" begun " + c.Item)
		}
		for _, item := range []string{"a", "b", "c", "d"} {
			c, ok := br.family.Get(item)
			if !ok {
				continue
			}
			at := resource.Key{Project: k.Project, Kind: c.Kind, Name: c.Name}
			if br.seqs[at] != w.states[at].Seq {
				fmt.Fprintf(&b, " %s u%s j%s %s %t", item, n.uid(c.UID), n.job(c.Job), c.JobState, c.Marked)
			}
		}
		b.WriteString("\n")
	}
	for _, a := range w.given {
		fmt.Fprintf(&b, "given %s u%s j%s %s %s out %t\n", a.key.Name, n.uid(a.result.Fence.UID), n.job(a.result.Fence.JobID), a.result.Fence.Phase, a.result.Outcome, w.isOut(a))
	}
	return b.String()
}

func (w *modelWorld) inputText(n *naming, ln *lane, it *item) string {
	in := &it.Input.Input
	text := fmt.Sprintf("%d own %t spec %t fresh %t", in.Kind, it.own, it.specSent, it.fresh)
	for _, k := range sortedKeys(it.specs) {
		text += " sent spec of " + k.Name
	}
	switch {
	case in.Command != nil:
		text += " " + in.Command.Verb + " " + in.Command.SpecDigest + " j" + n.job(in.Command.JobID)
	case in.Result != nil:
		text += fmt.Sprintf(" %s %t %s", in.Result.Fence.Phase, w.isOut(answer{ln.key, *in.Result}), in.Result.Outcome)
	case in.Parent != nil:
		p := in.Parent
		text += fmt.Sprintf(" %s u%s j%s %s %t", p.Ask, n.uid(p.Parent.UID), n.job(p.JobID), p.Verb, p.Parent.Revision < w.states[ln.key].State.Parent.Revision)
	}
	return text
}

// formID is a form in short: 16 bytes of its SHA-256.
type formID [16]byte

func (w *modelWorld) formID() formID {
	sum := sha256.Sum256([]byte(w.form()))
	return formID(sum[:16])
}
