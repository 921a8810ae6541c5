package wire

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/droverproject/drover/pkg/engine/machine"
)

// TestMachinesTravel: whatever the engine can hold of a machine and a run comes back, each field of it.
func TestMachinesTravel(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{true, false} {
		rapid.Check(t, func(t *rapid.T) {
			e := MachineEvent{From: "parked", Cause: "next", At: at}
			e.State = generate(t, reflect.TypeFor[machine.State](), full).Interface().(machine.State)
			e.State.UUID, e.State.Run = "u", nil
			e.State.CurrentTask = rapid.IntRange(-1, machine.TasksMax).Draw(t, "place")
			body, err := EncodeMachine(e)
			require.NoError(t, err)
			back, err := DecodeMachine(body)
			require.NoError(t, err)
			require.Equal(t, e, back)

			r := TaskRunEvent{From: machine.Created, At: at}
			r.Run = generate(t, reflect.TypeFor[machine.Run](), full).Interface().(machine.Run)
			r.Run.ID = "r"
			r.Run.Index = rapid.IntRange(0, machine.TasksMax).Draw(t, "index")
			body, err = EncodeTaskRun(r)
			require.NoError(t, err)
			run, err := DecodeTaskRun(body)
			require.NoError(t, err)
			require.Equal(t, r, run)
		})
	}
}

// TestMachineJSON is how people see the two.
func TestMachineJSON(t *testing.T) {
	t.Parallel()
	text, err := EventJSON(machineSeed(t))
	require.NoError(t, err)
	require.JSONEq(t, `{"family":"machine","project":"p","name":"m","to":"ready","cause":{"apply":{}},"time":"`+at.Format("2006-01-02T15:04:05.999999999Z07:00")+`",
		"revision":"1","state":{"uuid":"u","revision":"1","params":{"a":[1]},"tasks":["stage:s","t"],"currentTask":-1,"runnable":true,"available":true}}`, string(text))
	body, err := EncodeTaskRun(TaskRunEvent{At: at, Run: machine.Run{ID: "r", Machine: machine.Key{Project: "p", Name: "m"}, State: machine.Incomplete}})
	require.NoError(t, err)
	text, err = EventJSON(body)
	require.NoError(t, err)
	var shown struct {
		State struct{ State, Machine string }
	}
	require.NoError(t, json.Unmarshal(text, &shown))
	require.Equal(t, "incomplete", shown.State.State)
	require.Equal(t, "m", shown.State.Machine)
}

func machineSeed(t require.TestingT) []byte {
	body, err := EncodeMachine(MachineEvent{Cause: "apply", At: at, State: machine.State{
		Key: machine.Key{Project: "p", Name: "m"}, UUID: "u", Revision: 1, Runnable: true, Available: true, CurrentTask: -1,
		Tasks: []string{"stage:s", "t"}, Params: map[string]string{"a": "[1]"},
	}})
	require.NoError(t, err)
	return body
}

// FuzzMachineOps: whatever an agent sends as a patch is refused or can be stepped, of a machine and of a run, and what a step
// makes of it can be written and read again.
func FuzzMachineOps(f *testing.F) {
	f.Add([]byte(`[{"op":"test","path":"/State","from":"","value":"created"},{"op":"replace","path":"/State","from":"","value":"running"}]`))
	f.Add([]byte(`[{"op":"replace","path":"/Runnable","value":false},{"op":"add","path":"/Params/a~1b","value":{"x":[1.0]}}]`))
	f.Add([]byte(`[{"op":"replace","path":"/Tasks","value":["stage:s","t"]},{"op":"remove","path":"/Meta/a"},{"op":"replace","path":"/CurrentTask","value":-1}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var sent []PatchOp
		if json.Unmarshal(body, &sent) != nil {
			return
		}
		ops, refused := MachineOps(sent)
		if refused != nil {
			require.NotEmpty(t, refused.Message)
			return
		}
		s := machine.State{
			Key: machine.Key{Project: "p", Name: "m"}, UUID: "u", Revision: 3, Runnable: true, Available: true, CurrentTask: 1, CurrentJob: "r",
			Tasks: []string{"stage:s", "t", "u"}, Meta: map[string]string{"a": "b"}, CreatedAt: at, UpdatedAt: at,
			Run: &machine.Run{ID: "r", Machine: machine.Key{Project: "p", Name: "m"}, Task: "t", Index: 1, State: machine.Created, Revision: 1, CreatedAt: at},
		}
		for _, in := range []machine.Input{
			{At: at, Patch: &machine.Patch{Ops: ops}}, {At: at, Report: &machine.Report{RunID: "r", Ops: ops}},
		} {
			after, fx := machine.Step(s, in)
			require.Empty(t, machine.Audit(s, after, fx))
			if fx.Machine {
				written, err := EncodeMachine(MachineEvent{State: after, At: at})
				require.NoError(t, err)
				read, err := DecodeMachine(written)
				require.NoError(t, err)
				require.Equal(t, after.CurrentTask, read.State.CurrentTask)
			}
			for _, run := range fx.Runs {
				_, err := EncodeTaskRun(TaskRunEvent{Run: run, At: at})
				require.NoError(t, err)
			}
		}
	})
}
