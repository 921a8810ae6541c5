package partition_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/partition"
	"github.com/droverproject/drover/pkg/wire"
)

const blueprintPartitions = 3

// fleet is a system with an owner for each partition.
type fleet struct {
	t      *testing.T
	sys    *memory.System
	clock  time.Time
	slept  time.Duration
	owners []*fixture
	look   *memory.Conn
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, sys: memory.New(memory.Options{Partitions: blueprintPartitions}), clock: time.Now()}
	f.look = f.sys.Connect()
	t.Cleanup(func() { require.NoError(t, f.look.Close()) })
	for n := range blueprintPartitions {
		f.owners = append(f.owners, f.prepare(n))
		f.takeOver(n)
	}
	return f
}

func (f *fleet) now() time.Time { return f.clock }

// prepare makes another owner of a partition.
func (f *fleet) prepare(n int) *fixture {
	o := dormant(f.t, f.sys, f.now, n)
	o.shell.sleep = func(d time.Duration) { f.slept += d; f.clock = f.clock.Add(d) }
	return o
}

func (f *fleet) takeOver(n int) {
	_, err := f.owners[n].owner.TakeOver()
	require.NoError(f.t, err)
	f.owners[n].shell.run(f.owners[n].owner)
}

// ask sends a command to the owner of its partition. The answer is empty where there was none.
func (f *fleet) ask(kind, name, verb, id, spec string) (reply wire.Reply) {
	f.t.Helper()
	return f.askWith(nil, kind, name, verb, id, spec)
}

func (f *fleet) askWith(args map[string]string, kind, name, verb, id, spec string) (reply wire.Reply) {
	f.t.Helper()
	c := wire.Command{Args: args}
	if verb == "apply" {
		c.Manifest = &wire.Manifest{APIVersion: "drover/v1", Kind: kind, Name: name, Spec: []byte(spec)}
	}
	body, err := wire.EncodeCommand("", c)
	require.NoError(f.t, err)
	o := f.owners[bus.PartitionOf("p", kind, name, blueprintPartitions)]
	o.owner.Ask(bus.Request{Verb: "command", Header: map[string]string{
		"Drover-Subject": bus.CommandSubject("cmd", "p", kind, name, verb), bus.HeaderRequestID: id,
	}, Body: body}, func(_ map[string]string, body []byte) {
		reply, err = wire.DecodeReply("", body)
		require.NoError(f.t, err)
	})
	o.shell.run(o.owner)
	return reply
}

func (f *fleet) accept(kind, name, verb, id, spec string) string {
	f.t.Helper()
	r := f.ask(kind, name, verb, id, spec)
	require.Nil(f.t, r.Refused, "%+v", r.Refused)
	require.NotEmpty(f.t, r.JobID)
	return r.JobID
}

func (f *fleet) refused(kind, name, verb, id, spec string, code resource.Code, message string) {
	f.t.Helper()
	r := f.ask(kind, name, verb, id, spec)
	require.NotNil(f.t, r.Refused)
	require.Equal(f.t, code, r.Refused.Code, r.Refused.Message)
	require.Contains(f.t, r.Refused.Message, message)
}

func (f *fleet) sweep() {
	for _, o := range f.owners {
		o.sweep()
	}
}

// passed lets a time pass, and sweeps.
func (f *fleet) passed(d time.Duration) {
	f.clock = f.clock.Add(d)
	f.sweep()
}

func (f *fleet) home() int {
	return bus.PartitionOf("p", drive.BlueprintKind, "node", blueprintPartitions)
}

func (f *fleet) entity() bus.Entity {
	return bus.Entity{Partition: f.home(), Family: bus.Blueprint, Project: "p", Kind: "node"}
}

// job is a job's record.
func (f *fleet) job(n int, id string) (r job.Record) {
	f.t.Helper()
	last, err := f.look.Last(f.t.Context(), []bus.Entity{{Partition: n, Family: bus.Job, Project: "p", Name: id}})
	require.NoError(f.t, err)
	if last[0].Seq == 0 {
		return r
	}
	e, err := wire.DecodeJob(last[0].Body)
	require.NoError(f.t, err)
	return e.Record
}

// forgotten: nothing is left but a trace that expires, and no phase has a consumer.
func (f *fleet) forgotten(phases ...string) {
	f.t.Helper()
	history, err := f.look.History(f.t.Context(), f.entity())
	require.NoError(f.t, err)
	require.LessOrEqual(f.t, len(history), 1)
	_, err = f.look.Get(f.t.Context(), f.entity())
	require.ErrorIs(f.t, err, bus.ErrNotFound)
	if len(history) == 1 {
		require.True(f.t, history[0].Deleted)
		require.NoError(f.t, f.look.Forget(f.t.Context(), f.entity(), history[0].Seq)) // it does nothing, where that was done
		again, err := f.look.History(f.t.Context(), f.entity())
		require.NoError(f.t, err)
		require.Equal(f.t, history, again, "its trace must expire already")
	}
	for _, phase := range phases {
		require.False(f.t, f.bound(phase), phase)
	}
}

// bound reports whether a phase has its consumer.
func (f *fleet) bound(phase string) bool {
	p, err := f.look.Pull(f.t.Context(), bus.Phase{Project: "p", Kind: "node", Phase: phase})
	if err == nil {
		p.Close()
	}
	return err == nil
}

// node is a blueprint with these phases.
func node(phases ...string) string {
	var all []string
	for _, p := range phases {
		all = append(all, fmt.Sprintf(`{"name":%q,"states":["A"],"executor":{"plugin":{}}}`, p))
	}
	return `{"lifecycle":"node","states":["A"],"phases":[` + strings.Join(all, ",") + `]}`
}

// elsewhere are names of resources, one in each partition.
func elsewhere() (names [blueprintPartitions]string) {
	for i, found := 0, 0; found < len(names); i++ {
		name := fmt.Sprint("n", i)
		if n := bus.PartitionOf("p", "node", name, blueprintPartitions); names[n] == "" {
			names[n] = name
			found++
		}
	}
	return names
}

func TestABlueprintIsDeletedWhenNothingUsesIt(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.refused("Blueprint", "node", "delete", "0", "", resource.NotFound, "no blueprint of kind node")
	f.accept("Blueprint", "node", "apply", "1", node("f"))
	f.accept("Blueprint", "nodes", "apply", "1", node("f"))
	names := elsewhere()
	for _, name := range names {
		f.accept("node", name, "apply", "2", `{}`)
	}
	f.accept("nodes", "x", "apply", "2", `{}`) // of another kind
	f.refused("Blueprint", "node", "delete", "3", "", resource.Conflict, "3 resources use it, such as node/"+names[0])
	f.accept("node", names[0], "delete", "3", "")
	f.accept("node", names[1], "delete", "3", "")
	f.refused("Blueprint", "node", "delete", "4", "", resource.Conflict, "1 resource uses it: node/"+names[2])
	require.True(t, f.bound("f"))
	f.accept("node", names[2], "delete", "3", "")
	require.Less(t, f.slept, drive.RetireWait, "who is refused at once does not wait")

	id := f.accept("Blueprint", "node", "delete", "5", "")
	require.GreaterOrEqual(t, f.slept, drive.RetireWait)
	r := f.job(f.home(), id)
	require.Equal(t, job.Succeeded, r.State)
	require.Equal(t, "delete", r.Verb)
	require.Equal(t, "node", r.Name)
	f.forgotten("f")
	require.Equal(t, id, f.accept("Blueprint", "node", "delete", "5", ""), "the same request again")
	f.refused("Blueprint", "node", "delete", "6", "", resource.NotFound, "no blueprint")
	f.refused("node", names[0], "apply", "6", `{}`, resource.Invalid, "no blueprint defines kind node")

	f.accept("Blueprint", "node", "apply", "7", node("f"))
	require.True(t, f.bound("f"))
	f.accept("node", names[0], "apply", "7", `{}`)
	f.sweep()
	f.refused("Blueprint", "node", "delete", "8", "", resource.Conflict, "1 resource uses it")
	f.refused("Blueprint", "node", "start", "9", "", resource.Invalid, "apply and delete only")
}

// TestNothingIsCreatedWhileABlueprintIsRetired: from the mark on, whoever asks whomever, and what an owner had begun to
// create before it saw the mark takes the mark back.
func TestNothingIsCreatedWhileABlueprintIsRetired(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late=", late), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.accept("Blueprint", "node", "apply", "1", node("f"))
			names, looked := elsewhere(), false
			away := (f.home() + 1) % blueprintPartitions
			home := f.owners[f.home()]
			sleep := home.shell.sleep
			home.shell.sleep = func(d time.Duration) {
				sleep(d)
				if d < drive.RetireWait {
					return // an acceptance that is held back
				}
				looked = true
				// The owner waits beside its work: others ask meanwhile.
				f.refused("node", names[away], "apply", "2", `{}`, resource.Conflict, "is being deleted")
				if late {
					f.late()
				}
			}
			id := f.accept("Blueprint", "node", "delete", "3", "")
			require.True(t, looked)
			r := f.job(f.home(), id)
			if !late {
				require.Equal(t, job.Succeeded, r.State)
				f.forgotten("f")
				return
			}
			require.Equal(t, job.Failed, r.State)
			require.Equal(t, "1 resource uses it: node/late", r.Message)
			require.True(t, f.bound("f"))
			f.clock = f.clock.Add(2 * time.Second)
			f.accept("node", names[away], "apply", "4", `{}`)
			require.Equal(t, id, f.accept("Blueprint", "node", "delete", "3", ""), "the same request again")
			f.refused("Blueprint", "node", "delete", "5", "", resource.Conflict, "2 resources use it")
			f.accept("Blueprint", "node", "apply", "6", node("f", "g"))
		})
	}
}

// TestARetiredBlueprintIsLeftAlone: while its deletion is under way, other commands on it are refused, and the same again
// is known.
func TestARetiredBlueprintIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "1", node("f"))
	f.owners[f.home()].shell.sleep = func(d time.Duration) {
		if d >= drive.RetireWait {
			panic(errDied)
		}
	}
	dies(t, func() { f.ask("Blueprint", "node", "delete", "2", "") })
	// Another owner sees what the first had begun, before it has taken over.
	f.owners[f.home()] = f.prepare(f.home())
	f.refused("Blueprint", "node", "apply", "3", node("g"), resource.Conflict, "is deleting it")
	f.refused("Blueprint", "node", "delete", "4", "", resource.Conflict, "is deleting it")
	id := f.accept("Blueprint", "node", "delete", "2", "")
	f.takeOver(f.home())
	require.Equal(t, job.Succeeded, f.job(f.home(), id).State)
	f.forgotten("f")
}

var errDied = errors.New("the process died")

// dies runs what may end by the death of its process, and reports whether it did.
func dies(t *testing.T, f func()) (died bool) {
	t.Helper()
	defer func() {
		switch r := recover(); {
		case r == nil:
		case r == any(errDied):
			died = true
		default:
			panic(r)
		}
	}()
	f()
	return false
}

// TestCrashesOfADeletion: wherever the owner dies, before or after each thing that it changes, the next one brings the
// deletion to its end, and the same request is the same job.
func TestCrashesOfADeletion(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		for point := 0; ; point++ {
			f := newFleet(t)
			f.accept("Blueprint", "node", "apply", "1", node("f"))
			f.accept("Blueprint", "node", "apply", "2", node("g", "h"))
			home := f.owners[f.home()]
			if sleep := home.shell.sleep; late {
				home.shell.sleep = func(d time.Duration) {
					if sleep(d); d >= drive.RetireWait { // not that before an acceptance
						f.late()
					}
				}
			}
			left := point
			home.link.dies = func() {
				if left--; left < 0 {
					panic(errDied)
				}
			}
			died := dies(t, func() { f.ask("Blueprint", "node", "delete", "3", "") })
			f.owners[f.home()] = f.prepare(f.home())
			f.takeOver(f.home())
			f.sweep()
			id := ""
			if r := f.ask("Blueprint", "node", "delete", "3", ""); r.Refused == nil { // else it was late before the mark
				id = r.JobID
			} else {
				require.Equal(t, resource.Conflict, r.Refused.Code, "point %d: %s", point, r.Refused.Message)
				require.True(t, late)
			}
			for range 3 {
				f.passed(time.Minute)
			}
			if got := f.job(f.home(), id); id != "" && got.State == job.Failed {
				require.True(t, late, "point %d", point)
				require.True(t, f.bound("g"))
				f.clock = f.clock.Add(time.Minute)
				f.refused("Blueprint", "node", "delete", "9", "", resource.Conflict, "1 resource uses it")
			} else if id != "" {
				require.Equal(t, job.Succeeded, got.State, "point %d", point)
				f.forgotten("f", "g", "h")
			}
			if !died {
				require.Greater(t, point, 6)
				break
			}
		}
	}
}

// late creates a resource as an owner does that has read the blueprint before it was retired.
func (f *fleet) late() {
	body, err := wire.EncodeResource(wire.ResourceEvent{At: f.clock, State: resource.State{
		Key: resource.Key{Project: "p", Kind: "node", Name: "late"}, MinReader: 1, UID: "u", Generation: 1, Revision: 1,
	}})
	require.NoError(f.t, err)
	_, err = f.look.Append(bus.Append{Entity: bus.Entity{
		Partition: bus.PartitionOf("p", "node", "late", blueprintPartitions), Family: bus.Resource, Project: "p", Kind: "node", Name: "late",
	}, Body: body}).Result()
	require.NoError(f.t, err)
}

// TestTwoOwnersDeleteABlueprint: the second takes over while the first waits, and both end it.
func TestTwoOwnersDeleteABlueprint(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "1", node("f"))
	first, both := f.owners[f.home()], false
	first.shell.sleep = func(d time.Duration) {
		if !both && d >= drive.RetireWait {
			both = true
			f.owners[f.home()] = f.prepare(f.home())
			f.takeOver(f.home())
			f.accept("Blueprint", "node", "apply", "3", node("g")) // the kind comes back at once
		}
	}
	id := f.accept("Blueprint", "node", "delete", "2", "")
	require.True(t, both)
	require.Equal(t, job.Succeeded, f.job(f.home(), id).State)
	for range 3 {
		first.sweep()
		f.passed(time.Minute)
	}
	require.False(t, f.bound("f"))
	require.True(t, f.bound("g"), "what came after stays")
	f.accept("node", "n", "apply", "4", `{}`)
}

// versions are the digests that the log holds.
func (f *fleet) versions() (digests []string) {
	f.t.Helper()
	history, err := f.look.History(f.t.Context(), f.entity())
	require.NoError(f.t, err)
	for _, m := range history {
		digests = append(digests, m.Version)
	}
	return digests
}

func (f *fleet) pinned(name string) string {
	f.t.Helper()
	return f.state(name).FlowJob().Blueprint
}

func (f *fleet) state(name string) *resource.State {
	f.t.Helper()
	last, err := f.look.Last(f.t.Context(), []bus.Entity{{
		Partition: bus.PartitionOf("p", "node", name, blueprintPartitions), Family: bus.Resource, Project: "p", Kind: "node", Name: name,
	}})
	require.NoError(f.t, err)
	e, err := wire.DecodeResource(last[0].Body)
	require.NoError(f.t, err)
	return &e.State
}

// complete answers all work of a phase that is out.
func (f *fleet) complete(phase string) (n int) {
	f.t.Helper()
	return f.answer(phase, resource.OutcomeCompleted)
}

func (f *fleet) answer(phase string, outcome resource.Outcome) (n int) {
	f.t.Helper()
	puller, err := f.look.Pull(f.t.Context(), bus.Phase{Project: "p", Kind: "node", Phase: phase})
	require.NoError(f.t, err)
	defer puller.Close()
	work, err := puller.Fetch(f.t.Context(), 100, bus.FetchBytesMax, 0)
	require.NoError(f.t, err)
	for _, d := range work {
		poll := ""
		if d.Header(bus.HeaderPoll) != "" {
			poll = phase
		}
		w, err := wire.DecodeWork(d.Body(), poll)
		require.NoError(f.t, err)
		o := f.owners[w.Partition]
		body, err := wire.EncodeResult("", resource.Result{Fence: w.Fence, Outcome: outcome})
		require.NoError(f.t, err)
		inbox, err := o.link.Results(f.t.Context(), w.Partition)
		require.NoError(f.t, err)
		require.NoError(f.t, f.look.PublishResult(f.t.Context(), w.ResultSubject, nil, body))
		o.owner.Offer([]bus.Delivery{<-inbox.C()})
		o.shell.run(o.owner)
		inbox.Close()
		require.NoError(f.t, d.Ack())
		n++
	}
	return n
}

// TestOldVersionsGo: of the versions that are not present, the newest stay, and those that a resource remembers; and the
// consumer of a phase stays as long as anything is, or may come to be, at it.
func TestOldVersionsGo(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	name := elsewhere()[(f.home()+1)%blueprintPartitions]
	apply := func(i int, phases ...string) {
		t.Helper()
		f.accept("Blueprint", "node", "apply", fmt.Sprint("v", i), node(phases...))
	}
	apply(0, "always", "old")
	f.accept("node", name, "apply", "1", `{}`)
	f.accept("node", name, "start", "2", "")
	first := f.pinned(name)
	for i := range 2 * partition.VersionsKept {
		apply(i+1, "always", fmt.Sprint("then", i))
	}
	f.passed(drive.RetireWait)
	f.passed(time.Second)
	require.Len(t, f.versions(), 1+2*partition.VersionsKept, "an owner may still have read any of them")
	for range 4 {
		f.passed(time.Hour)
	}
	require.Len(t, f.versions(), 1+partition.VersionsKept+1)
	require.Contains(t, f.versions(), first)
	require.True(t, f.bound("old"), "its job runs")
	require.True(t, f.bound("always"))
	for i := range 2*partition.VersionsKept - 1 {
		require.False(t, f.bound(fmt.Sprint("then", i)))
	}
	require.True(t, f.bound(fmt.Sprint("then", 2*partition.VersionsKept-1)))

	require.Equal(t, 1, f.complete("old"))
	require.Equal(t, 1, f.complete("always"))
	for range 4 {
		f.passed(time.Hour)
	}
	require.Contains(t, f.versions(), first, "a job that has ended is remembered, and tells how its phases stand")
	require.False(t, f.bound("old"), "nothing will come to be at it")
	f.accept("node", name, "terminate", "3", "")
	f.accept("node", name, "start", "4", "")
	require.NotEqual(t, first, f.pinned(name))
	f.complete("always")
	f.complete(fmt.Sprint("then", 2*partition.VersionsKept-1))
	for i := range resource.FinishedJobsMax + 1 {
		f.accept("node", name, "terminate", fmt.Sprint("t", i), "")
	}
	for range 4 {
		f.passed(time.Hour)
	}
	require.NotContains(t, f.versions(), first, "the resource remembers others")
	require.Len(t, f.versions(), 1+partition.VersionsKept)

	apply(99, "always", "old")
	require.True(t, f.bound("old"), "a blueprint has brought it back")
	for range 4 {
		f.passed(time.Hour)
	}
	require.True(t, f.bound("old"))
}

// thenLeaves has a job walk by a version with the phases now and then, of which the next version has now alone.
func (f *fleet) thenLeaves() {
	f.t.Helper()
	f.accept("Blueprint", "node", "apply", "1", `{"lifecycle":"node","states":["A","B"],"phases":[
		{"name":"now","states":["A"],"executor":{"plugin":{}}},{"name":"then","states":["B"],"executor":{"plugin":{}}}]}`)
	f.accept("node", "n", "apply", "1", `{}`)
	f.accept("node", "n", "start", "2", "")
	f.accept("Blueprint", "node", "apply", "2", node("now"))
}

// TestAConsumerStaysForWhatIsToCome: a job that runs needs the phases of states that it has not entered.
func TestAConsumerStaysForWhatIsToCome(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.thenLeaves()
	for range 4 {
		f.passed(time.Hour)
	}
	require.True(t, f.bound("then"))
	f.complete("now")
	f.complete("then")
	for range 4 {
		f.passed(time.Hour)
	}
	require.False(t, f.bound("then"))
}

// TestAConsumerThatIsNeededComesBack (simulator, seed 174936135537345): an owner that stood still for long has begun a job by an earlier
// version, of which a phase had no consumer any more.
func TestAConsumerThatIsNeededComesBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.thenLeaves()
	require.NoError(t, f.look.RemovePhase(t.Context(), bus.Phase{Project: "p", Kind: "node", Phase: "then"}))
	f.complete("now")
	for range 2 {
		f.passed(time.Hour)
	}
	require.True(t, f.bound("then"))
	require.Equal(t, 1, f.complete("then"))
	require.Equal(t, job.Succeeded, f.state("n").FlowJob().State)
	for range 4 {
		f.passed(time.Hour)
	}
	require.False(t, f.bound("then"))
}

// TestAConsumerStaysAsLongAsItsWork: what was handed out and is wanted no more is still taken by a worker; and the version
// that tells of the phase stays as long.
func TestAConsumerStaysAsLongAsItsWork(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "first", node("old"))
	f.accept("node", "n", "apply", "1", `{}`)
	f.accept("node", "n", "start", "2", "")
	first := f.pinned("n")
	f.accept("node", "n", "interrupt", "3", "")
	for i := range partition.VersionsKept + 1 {
		f.accept("Blueprint", "node", "apply", fmt.Sprint(i), node("always", fmt.Sprint("then", i)))
	}
	f.accept("node", "n", "delete", "4", "")
	last, err := f.look.Last(t.Context(), []bus.Entity{{
		Partition: bus.PartitionOf("p", "node", "n", blueprintPartitions), Family: bus.Resource, Project: "p", Kind: "node", Name: "n",
	}})
	require.NoError(t, err)
	require.True(t, last[0].Deleted)
	for range 4 {
		f.passed(time.Hour)
	}
	require.True(t, f.bound("old"))
	require.Contains(t, f.versions(), first)
	f.complete("old")
	for range 4 {
		f.passed(time.Hour)
	}
	require.False(t, f.bound("old"))
	require.NotContains(t, f.versions(), first)
}

// TestAConsumerThatIsMadeAgainGoes (simulator, seed 54763307855278): an owner whose time is over may make the consumers of a blueprint
// that it still takes for the present one, when the next one has removed what nothing needs.
func TestAConsumerThatIsMadeAgainGoes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.accept("Blueprint", "node", "apply", "first", node("old"))
	f.accept("Blueprint", "node", "apply", "second", node("new"))
	for i := 0; f.bound("old"); i++ {
		require.Less(t, i, 10)
		f.passed(time.Minute)
	}
	for range 10 {
		f.passed(time.Minute) // it is sure that nothing is left
	}
	require.NoError(t, f.look.EnsurePhase(t.Context(), bus.Phase{Project: "p", Kind: "node", Phase: "old"}))
	for range 3 {
		f.passed(time.Hour)
	}
	require.False(t, f.bound("old"))
	require.True(t, f.bound("new"))
}

// TestAPollOfAPhaseThatHasLeftIsDropped (simulator, seeds 273045513987998 and 273045514045174): an owner that does not know yet
// that a resource is done with a phase polls it, when the phase has left its blueprint and has no consumer any more.
func TestAPollOfAPhaseThatHasLeftIsDropped(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	began := f.clock
	f.accept("Blueprint", "node", "apply", "first", node("old"))
	for i := range partition.VersionsKept + 1 {
		f.accept("Blueprint", "node", "apply", fmt.Sprint(i), node("always", fmt.Sprint("then", i)))
	}
	for f.bound("old") {
		require.Less(t, f.clock.Sub(began), time.Hour)
		f.passed(20 * time.Second)
	}
	old := bus.Phase{Project: "p", Kind: "node", Phase: "old"}
	require.NoError(t, f.look.PublishPoll(t.Context(), old, "late", []byte("x")))
	for range 4 {
		f.passed(time.Hour)
	}
	left, _, err := f.look.Outstanding(t.Context(), old)
	require.NoError(t, err)
	require.Zero(t, left)
	require.Len(t, f.versions(), 1+partition.VersionsKept, "nothing tells of it any more")
}

// TestCrashesWhileOldVersionsGo: wherever the owner dies, the next one goes on, and nothing is lost that is needed.
func TestCrashesWhileOldVersionsGo(t *testing.T) {
	t.Parallel()
	for point := 0; ; point++ {
		f := newFleet(t)
		f.accept("Blueprint", "node", "apply", "first", node("old"))
		f.accept("node", "n", "apply", "1", `{}`)
		f.accept("node", "n", "start", "2", "")
		first := f.pinned("n")
		for i := range partition.VersionsKept + 2 {
			f.accept("Blueprint", "node", "apply", fmt.Sprint(i), node("always", fmt.Sprint("then", i)))
		}
		left := point
		f.owners[f.home()].link.dies = func() {
			if left--; left < 0 {
				panic(errDied)
			}
		}
		died := dies(t, func() {
			for range 4 {
				f.passed(time.Hour)
			}
		})
		f.owners[f.home()] = f.prepare(f.home())
		f.takeOver(f.home())
		for range 4 {
			f.passed(time.Hour)
		}
		require.Len(t, f.versions(), 1+partition.VersionsKept+1)
		require.Contains(t, f.versions(), first)
		for _, phase := range []string{"old", "always", fmt.Sprint("then", partition.VersionsKept+1)} {
			require.True(t, f.bound(phase), phase)
		}
		for i := range partition.VersionsKept + 1 {
			require.False(t, f.bound(fmt.Sprint("then", i)))
		}
		if !died {
			require.Greater(t, point, 4)
			return
		}
	}
}

// Who changes what they have read loses nothing that came in between, and is told so.
func TestABlueprintIsChangedAsItWasRead(t *testing.T) {
	f := newFleet(t)
	const empty = `{"lifecycle":"node","states":["A"]}`
	with := func(names ...string) string {
		phases := make([]string, len(names))
		for i, name := range names {
			phases[i] = `{"name":"` + name + `","states":["A"],"executor":{"plugin":{}}}`
		}
		return `{"lifecycle":"node","states":["A"],"phases":[` + strings.Join(phases, ",") + `]}`
	}
	digest := func() string {
		last, err := f.look.Last(f.t.Context(), []bus.Entity{f.entity()})
		require.NoError(t, err)
		event, err := wire.DecodeBlueprint(last[0].Body)
		require.NoError(t, err)
		return event.Digest
	}
	apply := func(read, id, spec string) wire.Reply {
		return f.askWith(map[string]string{"ifDigest": read}, "Blueprint", "node", "apply", id, spec)
	}
	r := apply("0123", "r0", empty)
	require.NotNil(t, r.Refused, "there is none")
	require.Equal(t, resource.Conflict, r.Refused.Code)

	f.accept("Blueprint", "node", "apply", "r1", empty)
	read := digest()
	require.Nil(t, apply(read, "r2", with("a")).Refused)
	r = apply(read, "r3", with("b"))
	require.NotNil(t, r.Refused, "the phase a would be lost")
	require.Equal(t, resource.Conflict, r.Refused.Code)
	require.Equal(t, []resource.Violation{{Field: drive.IfDigestField, Reason: "is not the present digest"}}, r.Refused.Violations)
	require.Nil(t, apply(read, "r4", with("a")).Refused, "it is so already")
	require.Nil(t, apply(digest(), "r5", with("a", "b")).Refused)
	require.Nil(t, apply(read, "r2", with("a")).Refused, "the same request again")
}
