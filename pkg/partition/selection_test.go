package partition_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/partition"
	"github.com/droverproject/drover/pkg/wire"
)

// estate stands for all owners: it answers what a selection asks, and writes what they would.
type estate struct {
	*memory.Conn
	t     *testing.T
	nodes map[string]*ship
	asked map[string]int // by name
	again int            // asks that the owners had answered already
	quiet bool           // jobs do not end by themselves
	crowd int            // resources beside nodes, which nobody is to ask
}

// ship is one resource: how it answers.
type ship struct {
	refuses string
	busy    int // asks that find its owner away or overloaded
	fails   bool
	job     string
	name    string
}

func newEstate(t *testing.T, conn *memory.Conn, n int) *estate {
	t.Helper()
	f := &estate{Conn: conn, t: t, nodes: map[string]*ship{}, asked: map[string]int{}}
	for i := range n {
		name := fmt.Sprintf("n%03d", i)
		f.nodes[name] = &ship{name: name}
		f.put(name, map[string]string{"rack": string(rune('a' + i%2))})
	}
	return f
}

func (f *estate) put(name string, labels map[string]string) {
	s := resource.State{Key: resource.Key{Project: "p", Kind: "node", Name: name}, UID: "u", Revision: 1, Labels: labels}
	body, err := wire.EncodeResource(wire.ResourceEvent{State: s, At: time.Now()})
	require.NoError(f.t, err)
	f.append(bus.Entity{Partition: 1, Family: bus.Resource, Project: "p", Kind: "node", Name: name}, body, false)
}

func (f *estate) append(e bus.Entity, body []byte, bury bool) {
	last, err := f.Conn.Last(f.t.Context(), []bus.Entity{e})
	require.NoError(f.t, err)
	a := bus.Append{Entity: e, Expect: last[0].Seq, Body: body}
	if bury {
		_, err = f.Bury(a).Result()
	} else {
		_, err = f.Append(a).Result()
	}
	require.NoError(f.t, err)
}

func (f *estate) record(s *ship, id, selection string, state job.State) {
	r := job.Record{Ref: job.Ref{ID: id, State: state, Selection: selection}, Project: "p", Kind: "node", Name: s.name}
	body, err := wire.EncodeJob(wire.JobEvent{Record: r, At: time.Now()})
	require.NoError(f.t, err)
	f.append(bus.Entity{Partition: 1, Family: bus.Job, Project: "p", Name: id}, body, false)
}

// List implements partition.Others.
func (f *estate) List(ctx context.Context, family bus.Family, project, kind string, each func(bus.Stored) error) error {
	var last bus.Stored
	err := f.Conn.List(ctx, family, project, kind, func(m bus.Stored) error {
		last = m
		return each(m)
	})
	for i := 0; i < f.crowd && family == bus.Resource && err == nil; i++ {
		last.Entity.Name = fmt.Sprint("x", i)
		err = each(last)
	}
	return err
}

// Ask implements partition.Others.
func (f *estate) Ask(_ context.Context, number int, r bus.Request) (bus.Request, error) {
	_, _, name, verb, err := bus.ParseCommandSubject(r.Header["Drover-Subject"])
	require.NoError(f.t, err)
	require.Equal(f.t, bus.PartitionOf("p", "node", name, f.Partitions()), number)
	key := resource.Key{Project: "p", Kind: "node", Name: name}
	id := wire.JobID(key, r.Header[bus.HeaderRequestID])
	reply := func(r wire.Reply) (bus.Request, error) {
		body, err := wire.EncodeReply("", r)
		return bus.Request{Body: body}, err
	}
	s := f.nodes[name]
	f.asked[name]++
	switch {
	case s.job == id:
		f.again++
		return reply(wire.Reply{JobID: id})
	case s.busy > 0:
		s.busy--
		if s.busy%2 == 0 {
			return bus.Request{}, bus.ErrNoOwner
		}
		return reply(wire.Reply{Refused: &resource.Refusal{Code: resource.Overloaded, Message: "later"}})
	case s.refuses != "":
		return reply(wire.Reply{Refused: &resource.Refusal{Code: resource.Conflict, Message: s.refuses}})
	case verb == "cancel":
		f.record(s, s.job, r.Header[bus.HeaderRequestID][:26], job.Canceled)
		return reply(wire.Reply{JobID: id})
	}
	s.job = id
	state := job.Running
	switch {
	case f.quiet:
	case s.fails:
		state = job.Failed
	default:
		state = job.Succeeded
	}
	f.record(s, id, r.Header["Drover-Selection"], state)
	if verb == "delete" && state == job.Succeeded {
		body, err := wire.EncodeResource(wire.ResourceEvent{State: resource.State{Key: key, UID: "u", Revision: 2, Gone: true}, At: time.Now()})
		require.NoError(f.t, err)
		f.append(bus.Entity{Partition: 1, Family: bus.Resource, Project: "p", Kind: "node", Name: name}, body, true)
	}
	return reply(wire.Reply{JobID: id})
}

func (f *estate) finish(state job.State) {
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		if s := f.nodes[name]; s.job != "" {
			m, err := f.Get(f.t.Context(), bus.Entity{Family: bus.Job, Project: "p", Name: s.job})
			require.NoError(f.t, err)
			e, err := wire.DecodeJob(m.Body)
			require.NoError(f.t, err)
			if !e.Record.State.Final() {
				f.record(s, s.job, e.Record.Ref.Selection, state)
			}
		}
	}
}

// walker is an owner that walks selections.
type walker struct {
	*fixture
	now *time.Time
}

func (f *estate) walker(sys *memory.System, now *time.Time) *walker {
	w := &walker{fixture: &fixture{t: f.t, link: &link{Conn: sys.Connect()}, shell: &shell{}}, now: now}
	f.t.Cleanup(func() { require.NoError(f.t, w.link.Close()) })
	clock := func() time.Time { return *now }
	books, err := catalog.New(w.link, clock, constraint.NewEvaluator())
	require.NoError(f.t, err)
	w.owner = partition.New(f.t.Context(), partition.Config{
		Bus: w.link, Others: f, Catalog: books, Now: clock, Log: zap.NewNop(), Observer: w.shell, Shell: w.shell,
	})
	_, err = w.owner.TakeOver()
	require.NoError(f.t, err)
	return w
}

// ask sends a command for a selection; the reply comes when the owner is run.
func (w *walker) ask(verb, id string, c wire.Command) *wire.Reply {
	w.t.Helper()
	body, err := wire.EncodeCommand("", c)
	require.NoError(w.t, err)
	reply := &wire.Reply{}
	w.owner.Ask(bus.Request{Verb: "command", Header: map[string]string{
		"Drover-Subject": bus.CommandSubject("cmd", "p", "node", "-", verb), bus.HeaderRequestID: id,
	}, Body: body}, func(_ map[string]string, body []byte) {
		*reply, err = wire.DecodeReply("", body)
		require.NoError(w.t, err)
	})
	return reply
}

// one lets the owner do the next thing; false where there is none.
func (w *walker) one() bool {
	w.owner.Answered()
	if len(w.shell.calls) == 0 {
		return w.owner.Out() > 0
	}
	f := w.shell.calls[0]
	w.shell.calls = w.shell.calls[1:]
	f()
	return true
}

func (w *walker) run() {
	for w.one() {
	}
}

// until passes the time, a second at once, until the job has ended.
func (w *walker) until(id string) job.Record {
	w.t.Helper()
	for range 200 {
		w.run()
		if r := w.record(id); r.State.Final() {
			return r
		}
		*w.now = w.now.Add(time.Second)
		w.owner.Tick()
	}
	require.Fail(w.t, "it does not end", "%+v %+v", w.record(id), w.record(id).Selection)
	return job.Record{}
}

func (w *walker) record(id string) job.Record {
	w.t.Helper()
	m, err := w.link.Get(w.t.Context(), bus.Entity{Family: bus.Job, Project: "p", Name: id})
	if errors.Is(err, bus.ErrNotFound) {
		return job.Record{}
	}
	require.NoError(w.t, err)
	e, err := wire.DecodeJob(m.Body)
	require.NoError(w.t, err)
	return e.Record
}

// sound audits what the log still holds of a selection.
func (w *walker) sound(id string) {
	w.t.Helper()
	events, err := w.link.History(w.t.Context(), bus.Entity{Family: bus.Job, Project: "p", Name: id})
	require.NoError(w.t, err)
	before := job.Record{}
	for i, m := range events {
		e, err := wire.DecodeJob(m.Body)
		require.NoError(w.t, err)
		if i > 0 || e.Record.Revision == 1 {
			require.Equal(w.t, []audit.Finding(nil), selection.Audit(before, e.Record))
		}
		before = e.Record
	}
}

func pages(t *testing.T, n int) (*memory.System, *estate, *walker) {
	t.Helper()
	sys, now := memory.New(memory.Options{Partitions: 16}), time.Now()
	f := newEstate(t, sys.Connect(), n)
	return sys, f, f.walker(sys, &now)
}

// partition 0 is what the test's owner serves; the request is said to be for it, whatever the name's is.

func TestASelectionWalksAndWaits(t *testing.T) {
	t.Parallel()
	_, f, w := pages(t, 600)
	f.quiet = true
	f.put("n000/child", map[string]string{"rack": "a"})
	for _, i := range []int{0, 2, 598} {
		f.nodes[fmt.Sprintf("n%03d", i)].refuses = "not now"
	}
	f.nodes["n004"].busy, f.nodes["n300"].busy = 3, 4
	reply := w.ask("start", "r1", wire.Command{Selector: "rack=a"})
	w.run()
	require.Nil(t, reply.Refused)
	r := w.record(reply.JobID)
	require.Equal(t, job.Running, r.State)
	require.Equal(t, job.Waiting, r.Selection.Stage)
	require.Equal(t, "n598", r.Selection.Cursor)
	require.Equal(t, []uint32{300, 297, 3}, []uint32{r.Selection.Matched, r.Selection.Accepted, r.Selection.Refused})
	var refused []string
	for _, f := range r.Selection.Refusals {
		refused = append(refused, f.Name+" "+f.Code+" "+f.Message)
	}
	require.Equal(t, []string{"n000 conflict not now", "n002 conflict not now", "n598 conflict not now"}, refused)
	require.Less(t, r.Revision, uint64(8), "a page is an append, and not a resource")
	require.NotContains(t, f.asked, "n001", "its rack is b")

	again := w.ask("start", "r1", wire.Command{Selector: "rack=a"})
	other := w.ask("start", "r1", wire.Command{Selector: "rack=b"})
	w.run()
	require.Equal(t, reply.JobID, again.JobID)
	require.Equal(t, resource.Conflict, other.Refused.Code)

	f.finish(job.Succeeded)
	r = w.until(reply.JobID)
	require.Equal(t, job.Failed, r.State)
	require.Equal(t, "300 matched, 297 succeeded, 3 refused", r.Message)
	w.sound(reply.JobID)
	again = w.ask("start", "r1", wire.Command{Selector: "rack=a"})
	w.run()
	require.Equal(t, reply.JobID, again.JobID, "after its end")
	require.True(t, w.owner.NextDue().IsZero(), "nothing is left to do")
}

func TestASelectionSaysWhyItStandsStill(t *testing.T) {
	t.Parallel()
	_, f, w := pages(t, 4)
	f.nodes["n002"].busy = 100
	reply := w.ask("start", "r1", wire.Command{All: true})
	for range 60 {
		w.one()
	}
	*w.now = w.now.Add(selection.WaitsAfter)
	for range 10 {
		w.one()
	}
	waits := w.record(reply.JobID).Selection.Waits
	require.Contains(t, waits, `1 resources after "" could not be asked yet: `)
	r := w.until(reply.JobID)
	require.Equal(t, "4 matched, 4 succeeded", r.Message)
	require.Empty(t, r.Selection.Waits)
	w.sound(reply.JobID)
}

func TestACanceledSelection(t *testing.T) {
	t.Parallel()
	for _, cascade := range []bool{false, true} {
		t.Run(fmt.Sprintf("cascade=%t", cascade), func(t *testing.T) {
			t.Parallel()
			_, f, w := pages(t, 600)
			f.quiet = true
			f.nodes["n200"].busy = 1 << 30 // it is in the middle of a page
			reply := w.ask("start", "r1", wire.Command{All: true})
			for len(f.asked) < 200 {
				require.True(t, w.one())
			}
			args := map[string]string{"job": reply.JobID, "message": "enough", "cascade": fmt.Sprint(cascade)}
			canceled := w.ask("cancel", "c1", wire.Command{Args: args})
			r := w.until(reply.JobID)
			require.Nil(t, canceled.Refused)
			require.Equal(t, job.Canceled, r.State)
			require.Equal(t, job.Succeeded, w.record(canceled.JobID).State)
			require.Less(t, len(f.asked), 256, "nothing more was asked")
			accepted := r.Selection.Accepted
			require.Greater(t, accepted, uint32(150))
			if cascade {
				require.Equal(t, accepted, r.Selection.Canceled)
				require.Equal(t, "canceled: enough", r.Message)
			} else {
				require.Zero(t, r.Selection.Canceled)
				require.Equal(t, fmt.Sprintf("canceled: enough; %d jobs that it started may go on", accepted), r.Message)
			}
			w.sound(reply.JobID)
			again := w.ask("cancel", "c1", wire.Command{Args: args})
			late := w.ask("cancel", "c2", wire.Command{Args: args})
			args = map[string]string{"job": strings.Repeat("a", 26)}
			none := w.ask("cancel", "c3", wire.Command{Args: args})
			w.run()
			require.Equal(t, canceled.JobID, again.JobID)
			require.Equal(t, resource.Conflict, late.Refused.Code)
			require.Equal(t, resource.NotFound, none.Refused.Code)
		})
	}
}

// TestSelectionsSurviveTheirOwners ends an owner after any number of things that it did, and lets another go on; the first
// may live on beside it. Every resource is asked once in effect, and the counts are those of the estate.
func TestSelectionsSurviveTheirOwners(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"start", "delete"} {
		for _, zombie := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/zombie=%t", verb, zombie), func(t *testing.T) {
				t.Parallel()
				for after, did := 1, true; did; after += 37 {
					did = survives(t, verb, zombie, after)
				}
			})
		}
	}
}

func survives(t *testing.T, verb string, zombie bool, after int) (reached bool) {
	t.Helper()
	sys, f, first := pages(t, 280)
	f.nodes["n005"].refuses, f.nodes["n260"].refuses, f.nodes["n010"].fails, f.nodes["n100"].busy = "no", "no", true, 2
	reply := first.ask(verb, "r1", wire.Command{All: true})
	reached = true
	for range after {
		reached = first.one() && reached
	}
	second := f.walker(sys, first.now)
	again := second.ask(verb, "r1", wire.Command{All: true})
	for moved := zombie; moved; {
		moved = first.one()
		moved = second.one() || moved
	}
	second.run()
	require.Nil(t, again.Refused)
	if reply.JobID != "" {
		require.Equal(t, reply.JobID, again.JobID)
	}
	r := second.until(again.JobID)
	require.Equal(t, "280 matched, 277 succeeded, 1 failed, 2 refused", r.Message, "dropped after %d things", after)
	require.Equal(t, job.Failed, r.State)
	require.Len(t, r.Selection.Refusals, 2)
	second.sound(again.JobID)
	for name, s := range f.nodes {
		require.Equal(t, s.refuses == "", s.job != "", name)
	}
	return reached
}

// TestSelectionsHaveALimit: past it they are put off.
func TestSelectionsHaveALimit(t *testing.T) {
	t.Parallel()
	_, f, w := pages(t, 2)
	f.quiet = true
	for i := range partition.SelectionsMax {
		reply := w.ask("start", fmt.Sprint("r", i), wire.Command{All: true})
		w.run()
		require.Nil(t, reply.Refused)
	}
	reply := w.ask("start", "more", wire.Command{All: true})
	w.run()
	require.Equal(t, resource.Overloaded, reply.Refused.Code)

	_, f, w = pages(t, 2)
	f.crowd = selection.MatchedMax - 1
	reply = w.ask("start", "r1", wire.Command{All: true})
	w.run()
	r := w.until(reply.JobID)
	require.Equal(t, "100001 resources match, and one selector may match at most 100000; nothing was asked", r.Message)
	require.Equal(t, job.Failed, r.State)
	require.Empty(t, f.asked)
}
