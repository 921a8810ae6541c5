package partition_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/partition"
	"github.com/droverproject/drover/pkg/wire"
)

// manifest applies one; the reply is there when it returns.
func (f *fixture) manifest(kind, name, spec, id string) wire.Reply {
	f.t.Helper()
	return f.command(kind, name, "apply", id, wire.Command{
		Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: kind, Name: name, Spec: []byte(spec)},
	})
}

// machine asks what a gateway asks.
func (f *fixture) machine(verb string, a wire.MachineAsk) wire.MachineAnswer {
	f.t.Helper()
	a.Project = "p"
	body, err := wire.EncodeMachineAsk(a)
	require.NoError(f.t, err)
	var answer wire.MachineAnswer
	answered := false
	f.owner.Ask(bus.Request{Verb: verb, Body: body}, func(_ map[string]string, body []byte) {
		require.False(f.t, answered, "two answers")
		answered = true
		answer, err = wire.DecodeMachineAnswer(body)
		require.NoError(f.t, err)
	})
	f.shell.run(f.owner)
	require.True(f.t, answered, "no answer to %s", verb)
	return answer
}

// clock is one that is set by hand; what cannot be decided now is asked again a second later, as a gateway does.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func (c *clock) machine(f *fixture, verb string, a wire.MachineAsk) wire.MachineAnswer {
	for {
		answer := f.machine(verb, a)
		if answer.Code != string(resource.Overloaded) {
			return answer
		}
		c.at = c.at.Add(time.Second)
	}
}

func (f *fixture) defineMachines(tasks string) {
	f.t.Helper()
	for _, d := range [][3]string{
		{"Task", "a", `{}`}, {"Task", "b", `{}`}, {"Stage", "s", `{"tasks":[` + tasks + `]}`}, {"Workflow", "w", `{"stages":["s"]}`},
		{"Machine", "m", `{"workflow":"w"}`},
	} {
		reply := f.manifest(d[0], d[1], d[2], "1")
		require.Nil(f.t, reply.Refused, "%s: %+v", d[0], reply.Refused)
	}
}

func (f *fixture) state() machine.State {
	f.t.Helper()
	answer := f.machine(wire.MachineGet, wire.MachineAsk{Name: "m"})
	require.Empty(f.t, answer.Code, answer.Message)
	e, err := wire.DecodeMachine(answer.Machine)
	require.NoError(f.t, err)
	if answer.Run != nil {
		r, err := wire.DecodeTaskRun(answer.Run)
		require.NoError(f.t, err)
		e.State.Run = &r.Run
	}
	return e.State
}

func patchTo(path string, value any) []wire.PatchOp {
	text, _ := json.Marshal(value)
	return []wire.PatchOp{{Op: "replace", Path: path, Value: text}}
}

func stateOps(from, to machine.RunState) []wire.PatchOp {
	return []wire.PatchOp{
		{Op: "test", Path: "/State", Value: json.RawMessage(`"` + from.String() + `"`)}, {Op: "replace", Path: "/State", Value: json.RawMessage(`"` + to.String() + `"`)},
	}
}

// TestMachineCommands: what is wrong is refused with its field and leaves nothing; the same request is the same job.
func TestMachineCommands(t *testing.T) {
	t.Parallel()
	c := &clock{time.Now()}
	f := serve(t, memory.New(memory.Options{Partitions: 1}), c.now)
	require.Contains(t, f.manifest("Machine", "m", `{"workflow":"w"}`, "0").Refused.Message, "there is no workflow w")
	require.Equal(t, string(machine.NotFound), f.machine(wire.MachineGet, wire.MachineAsk{Name: "m"}).Code)
	f.defineMachines(`"a"`)
	first := f.manifest("Machine", "m", `{"workflow":"w"}`, "1")
	require.NotEmpty(t, first.JobID)
	require.Equal(t, uint64(1), f.state().Revision, "the same request has no second effect")
	require.Equal(t, resource.Conflict, f.manifest("Machine", "m", `{}`, "1").Refused.Code)
	second := f.manifest("Machine", "m", `{"params":{"a":{"b":1}}}`, "2")
	require.Nil(t, second.Refused)
	require.Equal(t, first.JobID, f.manifest("Machine", "m", `{"workflow":"w"}`, "1").JobID, "an older request too")
	s := f.state()
	require.Equal(t, uint64(2), s.Revision)
	require.Equal(t, "w", s.Workflow, "what a manifest does not say stays")
	require.Equal(t, `{"b":1}`, s.Params["a"])
	m, err := f.link.Get(t.Context(), bus.Entity{Family: bus.Job, Project: "p", Name: second.JobID})
	require.NoError(t, err)
	j, err := wire.DecodeJob(m.Body)
	require.NoError(t, err)
	require.Equal(t, "Machine", j.Record.Kind)
	other := f.command("Machine", "m", "delete", "1", wire.Command{}).Refused
	require.Equal(t, resource.Conflict, other.Code, "whether the request is known is asked first")
	require.Equal(t, "a Machine knows apply only", f.command("Machine", "m", "delete", "3", wire.Command{}).Refused.Message)
	nothing := f.command("Machine", "m", "apply", "1", wire.Command{}).Refused
	require.Equal(t, []resource.Violation{{Field: "resource", Reason: "apply needs a resource"}}, nothing.Violations, "but not of what says nothing")
	unknown := wire.MachineAsk{UUID: wire.RoutedUUID(0, "x")}
	require.Equal(t, string(resource.Overloaded), f.machine(wire.MachineGet, unknown).Code, "the log was read a moment ago")
	c.at = c.at.Add(time.Second)
	require.Equal(t, string(machine.NotFound), f.machine(wire.MachineGet, unknown).Code)
	require.Nil(t, f.manifest("Stage", "t", `{"tasks":["nobody"]}`, "1").Refused)
	require.Contains(t, f.machine(wire.MachinePatch, wire.MachineAsk{Name: "m", Ops: patchTo("/Stage", "t")}).Message, "task nobody is named by a stage")
}

// TestAMachineMadeDuringATakeoverIsFound: a machine that is written after the machines were read, and before its run is, is one
// that the next read tells of.
func TestAMachineMadeDuringATakeoverIsFound(t *testing.T) {
	t.Parallel()
	c := &clock{time.Now()}
	sys := memory.New(memory.Options{Partitions: 1})
	first, second := serve(t, sys, c.now), dormant(t, sys, c.now, 0)
	require.Nil(t, first.manifest("Machine", "earlier", `{}`, "1").Refused)
	var uuid string
	second.link.scan = func(f bus.Family) {
		if f != bus.TaskRun || uuid != "" {
			return
		}
		first.defineMachines(`"a"`)
		uuid = first.state().UUID
		require.Equal(t, wire.OutcomeNothing, first.machine(wire.MachineNext, wire.MachineAsk{UUID: uuid, RequestID: "1"}).Outcome, "it enters the stage")
		made := first.machine(wire.MachineNext, wire.MachineAsk{UUID: uuid, RequestID: "2"})
		require.Equal(t, wire.OutcomeNew, made.Outcome)
		run, err := wire.DecodeTaskRun(made.Run)
		require.NoError(t, err)
		report := wire.MachineAsk{Run: run.Run.ID, Ops: stateOps(machine.Created, machine.Running)}
		require.Empty(t, first.machine(wire.MachineReport, report).Code, "the last event is the run's")
	}
	_, err := second.owner.TakeOver()
	require.NoError(t, err)
	require.NotEmpty(t, uuid)
	c.at = c.at.Add(time.Second)
	require.Empty(t, second.machine(wire.MachineGet, wire.MachineAsk{UUID: uuid}).Code)
}

// TestAReportWhoseAnswerIsLost is taken once, and its agent, which sends no request id, is told that it was.
func TestAReportWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	c := &clock{time.Now()}
	f := serve(t, memory.New(memory.Options{Partitions: 1}), c.now)
	f.defineMachines(`"a"`)
	f.link.unheard = func() bool { return true }
	uuid := f.state().UUID
	require.Equal(t, wire.OutcomeNothing, f.machine(wire.MachineNext, wire.MachineAsk{UUID: uuid, RequestID: "1"}).Outcome, "it enters the stage")
	made := f.machine(wire.MachineNext, wire.MachineAsk{UUID: uuid, RequestID: "2"})
	require.Equal(t, wire.OutcomeNew, made.Outcome)
	run, err := wire.DecodeTaskRun(made.Run)
	require.NoError(t, err)
	for _, step := range [][2]machine.RunState{{machine.Created, machine.Running}, {machine.Running, machine.Finished}} {
		answer := f.machine(wire.MachineReport, wire.MachineAsk{Run: run.Run.ID, Ops: stateOps(step[0], step[1])})
		require.Empty(t, answer.Code, "%v: %s", step, answer.Message)
	}
	changed := f.machine(wire.MachinePatch, wire.MachineAsk{UUID: uuid, Ops: []wire.PatchOp{
		{Op: "test", Path: "/Runnable", Value: json.RawMessage("true")}, {Op: "replace", Path: "/Runnable", Value: json.RawMessage("false")},
	}})
	require.Empty(t, changed.Code, changed.Message)
}

// TestMachinesSurviveTheirOwners: three owners at once, each of which may be dropped and made anew, and is told what the others
// were told. Whatever overlaps, a request is answered as once decided, runs follow their table, and revisions have no gap.
func TestMachinesSurviveTheirOwners(t *testing.T) {
	t.Parallel()
	made := 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		c := &clock{time.Now()}
		sys := memory.New(memory.Options{Partitions: 1})
		owners := []*fixture{serve(t, sys, c.now), serve(t, sys, c.now), serve(t, sys, c.now)}
		owners[0].defineMachines(`"a","b","a"`)
		uuid := owners[0].state().UUID
		owner := func() *fixture {
			n := rng.IntN(len(owners))
			if rng.IntN(8) == 0 {
				owners[n] = serve(t, sys, c.now)
			}
			return owners[n]
		}
		for step := range 120 {
			s := owner().state()
			switch n := rng.IntN(10); {
			case n < 5:
				ask := wire.MachineAsk{UUID: uuid, RequestID: fmt.Sprint("r", step)}
				first := c.machine(owner(), wire.MachineNext, ask)
				again := c.machine(owner(), wire.MachineNext, ask)
				require.Equal(t, first.Outcome, again.Outcome, "seed %d: the same request is answered again", seed)
				if first.Outcome != wire.OutcomeNew {
					continue
				}
				r1, err := wire.DecodeTaskRun(first.Run)
				require.NoError(t, err)
				r2, err := wire.DecodeTaskRun(again.Run)
				require.NoError(t, err)
				require.Equal(t, r1.Run.ID, r2.Run.ID, "seed %d: the same request is the same run", seed)
				made++
			case n < 8 && s.Run != nil:
				to := machine.RunStates()[1+rng.IntN(5)]
				ask := wire.MachineAsk{Run: s.Run.ID, RequestID: fmt.Sprint("p", step), Ops: stateOps(s.Run.State, to)}
				first := c.machine(owner(), wire.MachineReport, ask)
				if machine.May(s.Run.State, to) {
					require.Empty(t, first.Code, "seed %d: %s", seed, first.Message)
				}
				if first.Code == "" {
					again := c.machine(owner(), wire.MachineReport, ask)
					require.Empty(t, again.Code, "seed %d: the same report is answered again: %s", seed, again.Message)
				}
			case n == 8:
				require.Empty(t, c.machine(owner(), wire.MachinePatch, wire.MachineAsk{UUID: uuid, Ops: patchTo("/CurrentTask", -1)}).Code)
			default:
				require.Empty(t, c.machine(owner(), wire.MachinePatch, wire.MachineAsk{UUID: uuid, Ops: patchTo("/Runnable", true)}).Code)
			}
		}
		f := owners[0]
		events, err := f.link.History(t.Context(), bus.Entity{Family: bus.Machine, Project: "p", Name: "m"})
		require.NoError(t, err)
		for i, stored := range events {
			m, err := wire.DecodeMachine(stored.Body)
			require.NoError(t, err)
			first, err := wire.DecodeMachine(events[0].Body)
			require.NoError(t, err)
			require.Equal(t, first.State.Revision+uint64(i), m.State.Revision, "seed %d", seed)
		}
		open := 0
		err = f.link.Scan(t.Context(), 0, bus.TaskRun, func(stored bus.Stored) error {
			history, err := f.link.History(t.Context(), stored.Entity)
			require.NoError(t, err)
			before, revision := machine.NoRun, uint64(0)
			for i, stored := range history { // the log keeps eight
				r, err := wire.DecodeTaskRun(stored.Body)
				require.NoError(t, err)
				if i > 0 || r.Run.Revision == 1 {
					require.Equal(t, revision+1, r.Run.Revision)
					require.Equal(t, before, r.From)
				}
				require.True(t, r.From == r.Run.State || machine.May(r.From, r.Run.State), "seed %d: %s to %s", seed, r.From, r.Run.State)
				before, revision = r.Run.State, r.Run.Revision
			}
			if !before.Final() {
				open++
			}
			return nil
		})
		require.NoError(t, err)
		require.LessOrEqual(t, open, 1, "seed %d: one run at most is open", seed)
	}
	require.Greater(t, made, 100)
}

// TestRunsAreForgotten: of a machine's runs the last are kept, and those for a while; the current one for ever.
func TestRunsAreForgotten(t *testing.T) {
	t.Parallel()
	now := time.Now()
	sys := memory.New(memory.Options{Partitions: 1})
	f := serve(t, sys, func() time.Time { return now })
	f.defineMachines(`"a"`)
	uuid := f.state().UUID
	for i := range partition.RunsKept + 20 {
		answer := f.machine(wire.MachineNext, wire.MachineAsk{UUID: uuid, RequestID: fmt.Sprint(i)})
		if answer.Outcome == wire.OutcomeNew {
			r, err := wire.DecodeTaskRun(answer.Run)
			require.NoError(t, err)
			require.Empty(t, f.machine(wire.MachineReport, wire.MachineAsk{Run: r.Run.ID, Ops: stateOps(machine.Created, machine.Failed)}).Code)
			require.Empty(t, f.machine(wire.MachinePatch, wire.MachineAsk{UUID: uuid, Ops: patchTo("/Runnable", true)}).Code)
		}
	}
	sweep := func(f *fixture) (left []string) {
		f.owner.Ask(bus.Request{Verb: "sweep"}, func(map[string]string, []byte) {})
		f.shell.run(f.owner)
		require.NoError(t, f.link.Scan(t.Context(), 0, bus.TaskRun, func(m bus.Stored) error {
			if !m.Deleted {
				left = append(left, m.Entity.Name)
			}
			return nil
		}))
		return left
	}
	require.Len(t, sweep(f), partition.RunsKept+1)
	current := f.state().CurrentJob
	now = now.Add(partition.RunsKeptFor + time.Hour)
	heir := serve(t, sys, func() time.Time { return now }) // who takes over knows what is old
	require.Equal(t, []string{current}, sweep(heir))
	require.Equal(t, current, heir.state().CurrentJob)
}
