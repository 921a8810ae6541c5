package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	agentv1 "github.com/droverproject/drover/proto/gen/drover/agent/v1"
	commandv1 "github.com/droverproject/drover/proto/gen/drover/command/v1"
	eventv1 "github.com/droverproject/drover/proto/gen/drover/event/v1"
	statev1 "github.com/droverproject/drover/proto/gen/drover/state/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

var at = time.Date(2026, 11, 20, 9, 30, 0, 123456789, time.UTC)

// example is an event of a usual size: a node in the middle of its first state.
func example() ResourceEvent {
	return ResourceEvent{
		Event: resource.Event{
			From: "Allocation", To: "Allocation",
			Cause: resource.Cause{Kind: "result", Phase: "create-volume", Outcome: "completed"},
			JobID: "jobjobjobjobjobjobjobjobjo",
			Dispatch: &resource.Dispatch{
				Fence: resource.Fence{UID: "uiduiduiduiduiduiduiduidui", JobID: "jobjobjobjobjobjobjobjobjo",
					Phase: "create-instance", Attempt: 1, Call: 1},
				State: "Allocation", Deadline: at.Add(10 * time.Minute),
			},
		},
		State: resource.State{
			Key: resource.Key{Project: "default", Kind: "node", Name: "web-1"}, MinReader: 1,
			UID: "uiduiduiduiduiduiduiduidui", Generation: 1, Revision: 42, SpecDigest: "0123456789abcdef0123456789abcdef",
			Labels: map[string]string{"rack": "a", "row": "7"}, Attributes: map[string]string{"volume": `"vol-1"`},
			State: "Allocation", Target: "Started",
			Phases: []resource.PhaseRun{
				{Name: "create-volume", Status: resource.Completed, State: "Allocation", JobID: "jobjobjobjobjobjobjobjobjo",
					Attempt: 1, Call: 1, Since: at, Outputs: map[string]string{"gb": "10"}},
				{Name: "create-instance", Status: resource.Waiting, State: "Allocation", JobID: "jobjobjobjobjobjobjobjobjo",
					Attempt: 1, Call: 1, InFlight: true, Since: at, Deadline: at.Add(10 * time.Minute)},
				{Name: "host-file", Status: resource.Blocked, State: "Allocation", JobID: "jobjobjobjobjobjobjobjobjo", Since: at},
			},
			Jobs: []job.Ref{{ID: "jobjobjobjobjobjobjobjobjo", RequestID: "r-1", Digest: "fedcba9876543210fedcba9876543210",
				Verb: "start", Target: "Started", Blueprint: "00112233445566778899aabbccddeeff", State: job.Running,
				AcceptedAt: at.Add(-time.Second), StartedAt: at.Add(-time.Second), RequestedBy: "ann"}},
			CreatedAt: at.Add(-time.Minute), UpdatedAt: at,
		},
		At: at, ResultSubject: "drover.result.7.default.node.web-1", Partition: 7,
	}
}

// TestGolden holds the bytes of one event still: what is in the log must be read for ever.
func TestGolden(t *testing.T) {
	t.Parallel()
	body, err := EncodeResource(example())
	require.NoError(t, err)
	file := filepath.Join("testdata", "resource_event.hex")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(hex.EncodeToString(body)+"\n"), 0o644))
	}
	golden, err := os.ReadFile(file)
	require.NoError(t, err)
	want, err := hex.DecodeString(strings.TrimSpace(string(golden)))
	require.NoError(t, err)
	e, err := DecodeResource(want)
	require.NoError(t, err, "an event that an earlier version wrote must be read")
	require.Equal(t, example(), e)
	require.Equal(t, want, body, "the bytes changed: old and new replicas share a log")
}

// TestEnums holds the tables to the engine's values and to the protobuf's, both whole.
func TestEnums(t *testing.T) {
	t.Parallel()
	require.Len(t, statuses, len(resource.Statuses()))
	require.Len(t, statuses, len(statev1.PhaseStatus_name))
	for _, s := range resource.Statuses() {
		require.Equal(t, "PHASE_STATUS_"+nameOf(s.String()), statuses[s].String())
	}
	require.Len(t, jobStates, len(job.States()))
	require.Len(t, jobStates, len(statev1.JobState_name))
	for _, s := range job.States()[1:] {
		require.Equal(t, "JOB_STATE_"+nameOf(s.String()), jobStates[s].String())
	}
	require.Len(t, stages, len(job.Stages()))
	require.Len(t, stages, len(statev1.SelectionStage_name))
	for _, s := range job.Stages()[1:] {
		require.Equal(t, "SELECTION_STAGE_"+nameOf(s.String()), stages[s].String())
	}
	require.Len(t, activities, len(phase.Activities())+1)
	require.Len(t, activities, len(statev1.PhaseActivity_name))
	for _, a := range phase.Activities() {
		require.Equal(t, "PHASE_ACTIVITY_"+nameOf(a.String()), activities[a].String())
	}
	require.Len(t, outcomes, len(resource.Outcomes())+1)
	require.Len(t, outcomes, len(commandv1.Outcome_name))
	for _, o := range resource.Outcomes() {
		require.Equal(t, "OUTCOME_"+nameOf(o.String()), outcomes[o].String())
	}
}

func nameOf(s string) string {
	if s == "" {
		return "UNSPECIFIED"
	}
	return strings.ToUpper(s)
}

func TestDecodeWork(t *testing.T) {
	t.Parallel()
	e := example()
	body, err := EncodeResource(e)
	require.NoError(t, err)
	w, err := DecodeWork(body, "")
	require.NoError(t, err)
	require.Equal(t, Work{
		Fence: e.Event.Dispatch.Fence, ResultSubject: e.ResultSubject, Deadline: at.Add(10 * time.Minute),
		SpecDigest: e.State.SpecDigest, BlueprintDigest: "00112233445566778899aabbccddeeff", Partition: 7,
		LifecycleState: "Allocation", State: e.State,
	}, w)
	raw := new(eventv1.Event)
	require.NoError(t, proto.Unmarshal(body, raw))
	require.Equal(t, w.BlueprintDigest, raw.Work.BlueprintDigest, "workers in other languages read it from the message")
	require.Equal(t, w.SpecDigest, raw.Work.SpecDigest)

	t.Run("poll", func(t *testing.T) {
		t.Parallel()
		e := example()
		e.Event.Dispatch = nil
		e.State.WasDeployed = true
		e.State.Phases[1].Status, e.State.Phases[1].InFlight = resource.Sleeping, false
		e.State.Phases[1].Attempt, e.State.Phases[1].Call = 2, 3
		body, err := EncodeResource(e)
		require.NoError(t, err)
		w, err := DecodeWork(body, "create-instance")
		require.NoError(t, err)
		require.Equal(t, Work{
			Fence:         resource.Fence{UID: e.State.UID, JobID: e.State.Jobs[0].ID, Phase: "create-instance", Attempt: 2, Call: 3},
			ResultSubject: e.ResultSubject, Deadline: at.Add(10 * time.Minute), SpecDigest: e.State.SpecDigest,
			BlueprintDigest: "00112233445566778899aabbccddeeff", Partition: 7, LifecycleState: "Allocation",
			WasDeployed: true, State: e.State, Poll: true,
		}, w)
		_, err = DecodeWork(body, "create-volume")
		require.ErrorContains(t, err, "the phase of the poll is not Sleeping")
		_, err = DecodeWork(body, "nothing")
		require.ErrorIs(t, err, ErrMalformed)
		_, err = DecodeWork(body, "")
		require.ErrorContains(t, err, "work: is missing")
		e.ResultSubject = ""
		body, err = EncodeResource(e)
		require.NoError(t, err)
		_, err = DecodeWork(body, "create-instance")
		require.ErrorContains(t, err, "poll.resultSubject: is missing", "a result without an address would reach nobody")
	})
	t.Run("a retry follows the blueprint of the flow", func(t *testing.T) {
		t.Parallel()
		e := example()
		e.State.Jobs[0].State, e.State.Jobs[0].EndedAt = job.Failed, at
		e.State.Jobs = append(e.State.Jobs, job.Ref{ID: "retry", Verb: "retry", State: job.Running, AcceptedAt: at})
		e.Event.Dispatch.Fence.JobID = "retry"
		body, err := EncodeResource(e)
		require.NoError(t, err)
		w, err := DecodeWork(body, "")
		require.NoError(t, err)
		require.Equal(t, "00112233445566778899aabbccddeeff", w.BlueprintDigest)
	})
}

func TestResultSubjectTravelsOnlyWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	e := example()
	e.Event.Dispatch = nil
	body, err := EncodeResource(e)
	require.NoError(t, err)
	require.NotContains(t, string(body), e.ResultSubject)
	got, err := DecodeResource(body)
	require.NoError(t, err)
	require.Empty(t, got.ResultSubject)
	require.Zero(t, got.Partition)
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*ResourceEvent)
		want   string
	}{
		"no time":        {func(e *ResourceEvent) { e.At = time.Time{} }, "time: is missing"},
		"year 10000":     {func(e *ResourceEvent) { e.At = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "time: is not a time"},
		"deadline":       {func(e *ResourceEvent) { e.Event.Dispatch.Deadline = time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC) }, "work.deadline: is not a time"},
		"no uid":         {func(e *ResourceEvent) { e.State.UID = "" }, "state.uid: is missing"},
		"no status":      {func(e *ResourceEvent) { e.State.Phases[1].Status = 0 }, "state.phases[1].status: is missing"},
		"status 99":      {func(e *ResourceEvent) { e.State.Phases[1].Status = 99 }, "state.phases[1].status: unknown to this version: number 99"},
		"phase name":     {func(e *ResourceEvent) { e.State.Phases[2].Name = "" }, "state.phases[2].name: is missing"},
		"phase due":      {func(e *ResourceEvent) { e.State.Phases[2].Due = time.Unix(1<<60, 0) }, "state.phases[2].times: is not a time"},
		"interval":       {func(e *ResourceEvent) { e.State.Phases[2].Interval = -1 }, "state.phases[2].interval: is negative"},
		"job state":      {func(e *ResourceEvent) { e.State.Jobs[0].State = 0 }, "state.jobs[0].state: is missing"},
		"job id":         {func(e *ResourceEvent) { e.State.Jobs[0].ID = "" }, "state.jobs[0].id: is missing"},
		"fence uid":      {func(e *ResourceEvent) { e.Event.Dispatch.Fence.UID = "" }, "work.fence.uid: is missing"},
		"result subject": {func(e *ResourceEvent) { e.ResultSubject = "" }, "work.resultSubject: is missing"},
		"partition":      {func(e *ResourceEvent) { e.Partition = -1 }, "partition: is out of range"},
		"name":           {func(e *ResourceEvent) { e.State.Name = "\xff" }, "invalid UTF-8"},
		"size":           {func(e *ResourceEvent) { e.State.Attributes = map[string]string{"a": strings.Repeat("x", BodyBytesMax)} }, "larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := example()
			c.change(&e)
			_, err := EncodeResource(e)
			require.ErrorContains(t, err, c.want)
			require.True(t, isWireError(err))
		})
	}
}

// TestTextIsMended: what a process printed must not keep an event out of the log.
func TestTextIsMended(t *testing.T) {
	t.Parallel()
	e := example()
	e.State.Phases[0].Message = "cut in a r\xc3"
	e.State.Jobs[0].Message = "\xff"
	e.Event.Cause.Message = "a\xffb"
	body, err := EncodeResource(e)
	require.NoError(t, err)
	got, err := DecodeResource(body)
	require.NoError(t, err)
	require.Equal(t, "cut in a r\uFFFD", got.State.Phases[0].Message)
	require.Equal(t, "a\uFFFDb", got.Event.Cause.Message)

	long := OutputLine{Time: at, Stream: "stdout", Text: strings.Repeat("é", OutputTextBytesMax)}
	body, err = EncodeOutputLine(long)
	require.NoError(t, err)
	line, err := DecodeOutputLine(body)
	require.NoError(t, err)
	require.LessOrEqual(t, len(line.Text), OutputTextBytesMax)
	require.Greater(t, len(line.Text), OutputTextBytesMax-8)
	require.True(t, strings.HasSuffix(line.Text, "é"+cutMark))
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	valid := func() *eventv1.Event {
		body, err := EncodeResource(example())
		require.NoError(t, err)
		m := new(eventv1.Event)
		require.NoError(t, proto.Unmarshal(body, m))
		return m
	}
	for name, c := range map[string]struct {
		change func(*eventv1.Event)
		want   string
	}{
		"no family":     {func(m *eventv1.Event) { m.Family = "" }, "family: is missing"},
		"other family":  {func(m *eventv1.Event) { m.Family = "job" }, "family: is not resource"},
		"no state":      {func(m *eventv1.Event) { m.State = nil }, "state: is missing"},
		"other state":   {func(m *eventv1.Event) { m.State = &eventv1.Event_Spec{Spec: &statev1.Spec{}} }, "state: is missing"},
		"no time":       {func(m *eventv1.Event) { m.Time = nil }, "time: is missing"},
		"year 1":        {func(m *eventv1.Event) { m.Time.Seconds, m.Time.Nanos = secondsMin, 0 }, "time: is missing"},
		"time nanos":    {func(m *eventv1.Event) { m.Time.Nanos = -1 }, "time: is not a time"},
		"uid":           {func(m *eventv1.Event) { m.GetResource().Uid = "" }, "state.uid: is missing"},
		"created":       {func(m *eventv1.Event) { m.GetResource().CreatedTime.Seconds = secondsMax + 1 }, "state.createdTime: is not a time"},
		"status":        {func(m *eventv1.Event) { m.GetResource().Phases[2].Status = 77 }, "state.phases[2].status: unknown to this version: number 77"},
		"no status":     {func(m *eventv1.Event) { m.GetResource().Phases[2].Status = 0 }, "state.phases[2].status: is missing"},
		"job":           {func(m *eventv1.Event) { m.GetResource().Jobs[0].State = -1 }, "state.jobs[0].state: unknown to this version: number -1"},
		"fence":         {func(m *eventv1.Event) { m.Work.Fence = nil }, "work.fence.uid: is missing"},
		"work deadline": {func(m *eventv1.Event) { m.Work.Deadline.Nanos = 1e9 }, "work.deadline: is not a time"},
		"partition":     {func(m *eventv1.Event) { m.Work.Partition = 1 << 31 }, "partition: is out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := valid()
			c.change(m)
			body, err := proto.Marshal(m)
			require.NoError(t, err)
			_, err = DecodeResource(body)
			require.ErrorContains(t, err, c.want)
			require.True(t, isWireError(err))
		})
	}
	_, err := DecodeResource([]byte("nonsense"))
	require.ErrorIs(t, err, ErrMalformed)
	_, err = DecodeResource(make([]byte, BodyBytesMax+1))
	require.ErrorIs(t, err, ErrTooLarge)
}

// TestNewerWriter: an older reader passes over new fields, and sees from min_reader and key whose state it cannot read.
func TestNewerWriter(t *testing.T) {
	t.Parallel()
	e := example()
	e.State.MinReader = 9
	body, err := EncodeResource(e)
	require.NoError(t, err)
	got, err := DecodeResource(protowire.AppendVarint(protowire.AppendTag(body, 900, protowire.VarintType), 5))
	require.NoError(t, err)
	require.Equal(t, e, got)

	m := new(eventv1.Event)
	require.NoError(t, proto.Unmarshal(body, m))
	m.GetResource().Phases[0].Status = 50
	body, err = proto.Marshal(m)
	require.NoError(t, err)
	got, err = DecodeResource(body)
	require.ErrorIs(t, err, ErrUnknown)
	require.NotErrorIs(t, err, ErrMalformed)
	require.Equal(t, e.State.Key, got.State.Key)
	require.Equal(t, e.State.UID, got.State.UID)
	require.Equal(t, uint32(9), got.State.MinReader)

	body, err = proto.Marshal(&eventv1.Event{Family: "blueprint", Time: stamp(at), State: &eventv1.Event_Blueprint{
		Blueprint: &statev1.Blueprint{Digest: "d", MinReader: 2},
	}})
	require.NoError(t, err)
	_, err = DecodeBlueprint(body)
	require.ErrorIs(t, err, ErrUnknown)
}

func TestOtherFamiliesRefuse(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", resource.SpecBytesMax+1)
	_, err := EncodeSpec(SpecEvent{Digest: "d", JSON: big, At: at})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = EncodeBlueprint(BlueprintEvent{Digest: "d", JSON: big, At: at})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = EncodeSpec(SpecEvent{At: at})
	require.ErrorContains(t, err, "state.digest: is missing")
	_, err = EncodeBlueprint(BlueprintEvent{At: at})
	require.ErrorContains(t, err, "state.digest: is missing")
	_, err = EncodeJob(JobEvent{At: at})
	require.ErrorContains(t, err, "state.job.state: is missing")
	_, err = EncodeJob(JobEvent{At: at, From: 9, Record: job.Record{Ref: job.Ref{ID: "i", State: job.Running}}})
	require.ErrorIs(t, err, ErrUnknown)
	_, err = EncodeOutputLine(OutputLine{})
	require.ErrorContains(t, err, "time: is missing")
	for _, decode := range []func([]byte) error{
		func(b []byte) error { _, err := DecodeJob(b); return err },
		func(b []byte) error { _, err := DecodeSpec(b); return err },
		func(b []byte) error { _, err := DecodeBlueprint(b); return err },
		func(b []byte) error { _, err := DecodePhase(b); return err },
	} {
		body, err := EncodeResource(example())
		require.NoError(t, err)
		require.ErrorContains(t, decode(body), "family: is not")
		require.ErrorContains(t, decode(nil), "family: is missing")
	}
}

func isWireError(err error) bool {
	return errors.Is(err, ErrMalformed) != errors.Is(err, ErrUnknown)
}

// TestContractCommands reads the bodies of contract.md as they stand there.
func TestContractCommands(t *testing.T) {
	t.Parallel()
	c, err := DecodeCommand(ContentTypeJSON, []byte(
		`{"resource": {"apiVersion": "drover/v1", "kind": "node", "metadata": {"name": "web-1", "labels": {}}, "spec": {}}}`))
	require.NoError(t, err)
	require.Equal(t, Command{Manifest: &Manifest{APIVersion: "drover/v1", Kind: "node", Name: "web-1", Spec: []byte("{}")}}, c)
	c, err = DecodeCommand(ContentTypeJSON, []byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, Command{}, c)
	c, err = DecodeCommand(ContentTypeJSON, []byte(`{"args": {"scope": "all"}}`))
	require.NoError(t, err)
	require.Equal(t, Command{Args: map[string]string{"scope": "all"}}, c)
	for _, contentType := range []string{"", ContentTypeJSON} {
		c, err = DecodeCommand(contentType, nil)
		require.NoError(t, err)
		require.Equal(t, Command{}, c)
	}
}

func TestContractReplies(t *testing.T) {
	t.Parallel()
	accepted := Reply{JobID: "j", Resource: "default/node/web-1"}
	body, err := EncodeReply(ContentTypeJSON, accepted)
	require.NoError(t, err)
	want := `{"jobId":"j","resource":"default/node/web-1"}`
	require.Equal(t, want, string(body))
	refused := Reply{Refused: &resource.Refusal{Code: resource.Invalid, Message: "…",
		Violations: []resource.Violation{{Field: "spec.phases[1].dependsOn[0]", Reason: "no phase of this name"}}}}
	body, err = EncodeReply(ContentTypeJSON, refused)
	require.NoError(t, err)
	want = `{"code":"invalid","message":"…","violations":[{"field":"spec.phases[1].dependsOn[0]","reason":"no phase of this name"}]}`
	require.Equal(t, want, string(body))
	got, err := DecodeReply(ContentTypeJSON, []byte(`{"jobId": "j", "resource": "r", "new": 1}`))
	require.NoError(t, err, "fields may be added")
	require.Equal(t, Reply{JobID: "j", Resource: "r"}, got)
	for body, want := range map[string]string{
		`{}`: "jobId: is missing", `{"code": "teapot"}`: "code: is none of", `{"jobId":"j","code":"invalid"}`: "together",
		`[]`: "is not a reply",
	} {
		_, err := DecodeReply(ContentTypeJSON, []byte(body))
		require.ErrorContains(t, err, want)
	}
	_, err = EncodeReply("", Reply{})
	require.ErrorIs(t, err, ErrMalformed)
	_, err = DecodeReply("", nil)
	require.ErrorIs(t, err, ErrMalformed)
	// BodyJSON shows the protobuf form in the same words.
	for _, r := range []Reply{accepted, refused} {
		asJSON, err := EncodeReply(ContentTypeJSON, r)
		require.NoError(t, err)
		asProto, err := EncodeReply("", r)
		require.NoError(t, err)
		shown, err := BodyJSON(TypeReply, asProto)
		require.NoError(t, err)
		require.JSONEq(t, string(asJSON), string(shown))
	}
}

func TestContractEvent(t *testing.T) {
	t.Parallel()
	e := example()
	e.Event.To = "Configuration"
	body, err := EncodeResource(e)
	require.NoError(t, err)
	shown, err := EventJSON(body)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"family": "resource", "project": "default", "kind": "node", "name": "web-1", "from": "Allocation", "to": "Configuration",
		"cause": {"result": {"phase": "create-volume", "outcome": "completed"}},
		"jobId": "jobjobjobjobjobjobjobjobjo", "time": "2026-11-20T09:30:00.123456789Z", "revision": "42",
		"work": {
			"fence": {"uid": "uiduiduiduiduiduiduiduidui", "jobId": "jobjobjobjobjobjobjobjobjo", "phase": "create-instance", "attempt": 1, "call": 1},
			"resultSubject": "drover.result.7.default.node.web-1", "deadline": "2026-11-20T09:40:00.123456789Z",
			"specDigest": "0123456789abcdef0123456789abcdef", "blueprintDigest": "00112233445566778899aabbccddeeff",
			"partition": 7, "state": "Allocation"},
		"state": {
			"minReader": 1, "uid": "uiduiduiduiduiduiduiduidui", "generation": "1", "revision": "42",
			"specDigest": "0123456789abcdef0123456789abcdef", "labels": {"rack": "a", "row": "7"},
			"attributes": {"volume": "vol-1"}, "state": "Allocation", "target": "Started",
			"phases": [
				{"name": "create-volume", "status": "Completed", "state": "Allocation", "jobId": "jobjobjobjobjobjobjobjobjo", "attempt": 1, "call": 1, "since": "2026-11-20T09:30:00.123456789Z", "outputs": {"gb": 10}},
				{"name": "create-instance", "status": "Waiting", "state": "Allocation", "jobId": "jobjobjobjobjobjobjobjobjo", "attempt": 1, "call": 1, "inFlight": true, "since": "2026-11-20T09:30:00.123456789Z", "deadline": "2026-11-20T09:40:00.123456789Z"},
				{"name": "host-file", "status": "Blocked", "state": "Allocation", "jobId": "jobjobjobjobjobjobjobjobjo", "since": "2026-11-20T09:30:00.123456789Z"}],
			"jobs": [{"id": "jobjobjobjobjobjobjobjobjo", "requestId": "r-1", "digest": "fedcba9876543210fedcba9876543210", "verb": "start", "target": "Started",
				"blueprintDigest": "00112233445566778899aabbccddeeff", "state": "running", "acceptedTime": "2026-11-20T09:29:59.123456789Z",
				"startedTime": "2026-11-20T09:29:59.123456789Z", "requestedBy": "ann"}],
			"createdTime": "2026-11-20T09:29:00.123456789Z", "updatedTime": "2026-11-20T09:30:00.123456789Z"}
	}`, string(shown))
	bySubject, err := BodyJSON("drover.evt.resource.default.node.web-1", body)
	require.NoError(t, err)
	require.Equal(t, string(shown), string(bySubject))
}

func TestBodyJSON(t *testing.T) {
	t.Parallel()
	fence := resource.Fence{UID: "u", JobID: "j", Phase: "p", Attempt: 1, Call: 2}
	result, err := EncodeResult("", resource.Result{Fence: fence, Outcome: resource.OutcomePending, Delay: 1500 * time.Millisecond,
		Data: map[string]string{"id": `{"n":1}`}})
	require.NoError(t, err)
	command, err := EncodeCommand("", Command{Manifest: &Manifest{Kind: "node", Name: "n", Spec: []byte(`{"b":1,"a":[]}`)}})
	require.NoError(t, err)
	line, err := EncodeOutputLine(OutputLine{Fence: fence, Time: at, Stream: "stdout", Text: "a \"b\"\n"})
	require.NoError(t, err)
	spec, err := EncodeSpec(SpecEvent{Key: resource.Key{Project: "p", Kind: "k", Name: "n"}, Digest: "d", JSON: `{"a":1}`, At: at})
	require.NoError(t, err)
	jobBody, err := EncodeJob(JobEvent{At: at, Record: job.Record{Ref: job.Ref{ID: "i", State: job.Pending}}})
	require.NoError(t, err)
	blueprint, err := EncodeBlueprint(BlueprintEvent{Project: "p", Kind: "k", Digest: "d", JSON: `{"a":1}`, Generation: 1 << 60, At: at})
	require.NoError(t, err)
	refused, err := proto.Marshal(&commandv1.Refused{Code: "invalid"})
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		body []byte
		want string
	}{
		{"drover.result.1.p.k.n", result, `{"fence":{"uid":"u","jobId":"j","phase":"p","attempt":1,"call":2},"outcome":"pending","delay":"1.5s","data":{"id":{"n":1}}}`},
		{"result", []byte(" {}")[1:], `{}`},
		{"drover.cmd.p.k.n.apply", command, `{"resource":{"kind":"node","metadata":{"name":"n"},"spec":{"a":[],"b":1}}}`},
		{"drover.api.p.k.n.apply", []byte(`{"a": 1}`), `{"a":1}`},
		{"drover.out.p.k.n", line, `{"fence":{"uid":"u","jobId":"j","phase":"p","attempt":1,"call":2},"time":"2026-11-20T09:30:00.123456789Z","stream":"stdout","text":"a \"b\"\n"}`},
		{"$KV.drover_specs.p.k.n", spec, `{"family":"spec","project":"p","kind":"k","name":"n","time":"2026-11-20T09:30:00.123456789Z","state":{"digest":"d","json":{"a":1}}}`},
		{"event", jobBody, `{"family":"job","name":"i","from":"none","to":"pending","cause":{"derived":{}},"jobId":"i","time":"2026-11-20T09:30:00.123456789Z","state":{"job":{"id":"i","state":"pending"}}}`},
		{"drover.log.3.blueprint.p.k.is.d", blueprint, `{"family":"blueprint","project":"p","kind":"k","time":"2026-11-20T09:30:00.123456789Z","revision":"1152921504606846976","state":{"digest":"d","json":{"a":1},"generation":"1152921504606846976","minReader":1}}`},
		{"refused", refused, `{"code":"invalid"}`},
	} {
		shown, err := BodyJSON(c.name, c.body)
		require.NoError(t, err, c.name)
		require.JSONEq(t, c.want, string(shown), c.name)
	}
	_, err = BodyJSON("weather", nil)
	require.ErrorContains(t, err, `"weather"`)
	_, err = BodyJSON("result", []byte(`{`))
	require.ErrorIs(t, err, ErrMalformed)
	_, err = BodyJSON("result", []byte("\xff"))
	require.ErrorIs(t, err, ErrMalformed)
	// What this version does not know is shown by number, and what is out of range as null.
	body, err := proto.Marshal(&commandv1.Result{Outcome: 99})
	require.NoError(t, err)
	shown, err := BodyJSON("result", body)
	require.NoError(t, err)
	require.JSONEq(t, `{"outcome":99}`, string(shown))
	body, err = proto.Marshal(&agentv1.OutputLine{Time: stamp(time.Unix(1<<50, 0))})
	require.NoError(t, err)
	shown, err = BodyJSON("output", body)
	require.NoError(t, err)
	require.JSONEq(t, `{"time":null}`, string(shown))
}

func TestCommandRefuses(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"resource": {"kind": "node", "metadata": {"nme": "x"}}}`: "resource.metadata.nme: no field of this name",
		`{"resource": {"kind": 7}}`:                                "resource.kind: must be a string, not a number",
		`{"resource": {"metadata": {"labels": {"a.b": 1}}}}`:       `resource.metadata.labels["a.b"]: must be a string, not a number`,
		`{"resource": {"spec": []}}`:                               "resource.spec: must be an object, not a list",
		`{"resource": {"spec": {"a": 1, "a": 2}}}`:                 "resource.spec.a: is given twice",
		`{"resource": {}, "resource": {}}`:                         "resource: is given twice",
		`{"args": {}} {}`:                                          "is not JSON",
		`{"args": {"scope": null}}`:                                "args.scope: must be a string, not null",
		`{"Args": {}}`:                                             "Args: no field of this name",
		`[]`:                                                       "must be an object, not a list",
		`{"resource": {"spec": {"a": ` + strings.Repeat("[", 80) + strings.Repeat("]", 80) + `}}}`: "is nested deeper than 64",
		"{\"requestedBy\": \"\xff\"}": "is not UTF-8",
	} {
		_, err := DecodeCommand(ContentTypeJSON, []byte(body))
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, ErrMalformed)
		require.NotErrorIs(t, err, ErrTooLarge)
	}
	large := `{"resource": {"spec": {"a": "` + strings.Repeat("x", resource.SpecBytesMax) + `"}}}`
	_, err := DecodeCommand(ContentTypeJSON, []byte(large))
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "resource.spec: is larger than 786432 bytes")
	_, err = DecodeCommand("", make([]byte, CommandBytesMax+1))
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = EncodeCommand("", Command{Manifest: &Manifest{Spec: []byte(`{`)}})
	require.ErrorIs(t, err, ErrMalformed)

	for want, m := range map[string]*commandv1.Command{
		"resource.spec: is not JSON":                     {Resource: &commandv1.Manifest{Spec: "{"}},
		"resource.spec: must be an object, not a string": {Resource: &commandv1.Manifest{Spec: `"x"`}},
		"resource.spec.a: is given twice":                {Resource: &commandv1.Manifest{Spec: `{"a":1,"a":1}`}},
	} {
		body, err := proto.Marshal(m)
		require.NoError(t, err)
		_, err = DecodeCommand("", body)
		require.ErrorContains(t, err, want)
	}
	newer := &commandv1.Command{Resource: &commandv1.Manifest{Metadata: &commandv1.Metadata{}}}
	newer.Resource.Metadata.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 42, protowire.VarintType), 1))
	body, err := proto.Marshal(newer)
	require.NoError(t, err)
	_, err = DecodeCommand("application/protobuf", body)
	require.ErrorContains(t, err, "resource.metadata.42: no field of this number")
	_, err = DecodeCommand("", []byte("{}"))
	require.ErrorIs(t, err, ErrMalformed, "JSON must say that it is")
}

func TestResultRefuses(t *testing.T) {
	t.Parallel()
	const fence = `"fence":{"uid":"u","jobId":"j","phase":"p","attempt":1,"call":1}`
	r, err := DecodeResult(ContentTypeJSON, []byte(`{`+fence+`,"outcome":"OUTCOME_PENDING","delay":"15s","attributes":{"a":{"y":1,"x":null},"gone":null}}`))
	require.NoError(t, err)
	require.Equal(t, resource.Result{
		Fence: resource.Fence{UID: "u", JobID: "j", Phase: "p", Attempt: 1, Call: 1}, Outcome: resource.OutcomePending,
		Delay: 15 * time.Second, Attributes: map[string]string{"a": `{"x":null,"y":1}`, "gone": "null"},
	}, r)
	for body, want := range map[string]string{
		`{"outcome":"completed"}`:                               "fence.uid: is missing",
		`{"fence":{"uid":"u","jobId":"j"},"outcome":"failed"}`:  "fence.phase: is missing",
		`{` + fence + `}`:                                       "outcome: is missing",
		`{` + fence + `,"outcome":"done"}`:                      "outcome: is none of completed, failed, pending",
		`{` + fence + `,"outcome":"pending","delay":15}`:        "delay: must be a duration in quotes",
		`{` + fence + `,"outcome":"pending","delay":"-1s"}`:     "delay: is negative",
		`{` + fence + `,"outcome":"pending","delay":"soon"}`:    "delay: is not a duration",
		`{` + fence + `,"outcome":"completed","attributes":[]}`: "attributes: must be an object",
		`{` + fence + `,"outcom":"completed"}`:                  "outcom: no field of this name",
		`{"fence":{"attempt":-1}}`:                              "fence.attempt: must be a whole number",
		`{"fence":{"attempt":4294967296}}`:                      "fence.attempt: must be a whole number",
	} {
		_, err := DecodeResult(ContentTypeJSON, []byte(body))
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, ErrMalformed)
	}
	full := &agentv1.Fence{Uid: "u", JobId: "j", Phase: "p"}
	for want, m := range map[string]*commandv1.Result{
		"outcome: is missing":                        {Fence: full},
		"fence.uid: is missing":                      {Outcome: 1},
		"attributes.a: is not JSON":                  {Fence: full, Outcome: 1, Attributes: map[string]string{"a": "x"}},
		"data.a: is not JSON":                        {Fence: full, Outcome: 1, Data: map[string]string{"a": ""}},
		"outcome: unknown to this version: number 9": {Fence: full, Outcome: 9},
		"delay: is not a duration":                   {Fence: full, Outcome: 1, Delay: span(-time.Second)},
	} {
		body, err := proto.Marshal(m)
		require.NoError(t, err)
		_, err = DecodeResult("", body)
		require.ErrorContains(t, err, want)
	}
	_, err = DecodeResult("", make([]byte, BodyBytesMax+1))
	require.ErrorIs(t, err, ErrTooLarge)
	attributes := map[string]string{"a": ` { "b" : 1 } `}
	_, err = EncodeResult("", resource.Result{Fence: r.Fence, Outcome: 1, Attributes: attributes})
	require.NoError(t, err)
	require.Equal(t, ` { "b" : 1 } `, attributes["a"], "the caller's map is not changed")
	_, err = EncodeResult("", resource.Result{Fence: r.Fence, Outcome: 77})
	require.ErrorIs(t, err, ErrUnknown)
}

func TestIDs(t *testing.T) {
	t.Parallel()
	key := resource.Key{Project: "default", Kind: "node", Name: "web-1"}
	id := JobID(key, "r-1")
	require.Regexp(t, `^[a-z2-7]{26}$`, id)
	require.Equal(t, "my6kl7pubhtjpcitfirmgsx5ay", id, "ids are for ever: another function would apply requests twice")
	seen := map[string]bool{id: true}
	for _, other := range []string{
		JobID(key, "r-2"), JobID(resource.Key{Project: "default", Kind: "nodew", Name: "eb-1"}, "r-1"),
		JobID(resource.Key{Project: "defaultn", Kind: "ode", Name: "web-1"}, "r-1"), UID(key, "r-1", at), UID(key, "r-1", at.Add(1)),
		UID(key, "r-1", at.Add(time.Second)),
	} {
		require.Regexp(t, `^[a-z2-7]{26}$`, other)
		require.False(t, seen[other])
		seen[other] = true
	}
	require.Equal(t, UID(key, "r-1", at), UID(key, "r-1", at.In(time.FixedZone("x", 3600))))
}

func TestBodyDigest(t *testing.T) {
	t.Parallel()
	manifest := func(spec string) Command {
		return Command{Manifest: &Manifest{Kind: "node", Name: "n", Labels: map[string]string{"a": "b"}, Spec: []byte(spec)}}
	}
	digest := BodyDigest("apply", manifest(`{"a":1,"b":[true]}`))
	require.Regexp(t, `^[0-9a-f]{32}$`, digest)
	require.Equal(t, digest, BodyDigest("apply", manifest(" {\"b\" : [true],\n \"a\" : 1}")), "the same, written otherwise")
	asked := manifest(`{"a":1,"b":[true]}`)
	asked.RequestedBy = "ann"
	require.Equal(t, digest, BodyDigest("apply", asked), "who asks is a label")
	seen := map[string]bool{digest: true}
	for _, c := range []struct {
		verb string
		c    Command
	}{
		{"start", manifest(`{"a":1,"b":[true]}`)}, {"apply", manifest(`{"a":2,"b":[true]}`)}, {"apply", manifest(`{`)}, {"apply", Command{}},
		{"retry", Command{Args: map[string]string{"scope": "all"}}}, {"retry", Command{Args: map[string]string{"scop": "eall"}}},
		{"retry", Command{}}, {"apply", Command{Manifest: &Manifest{}}},
		{"retry", Command{All: true}}, {"retry", Command{Selector: "a"}}, {"retry", Command{Selector: "b"}},
	} {
		d := BodyDigest(c.verb, c.c)
		require.False(t, seen[d], "%v", c)
		seen[d] = true
	}
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	for contentType, want := range map[string]bool{
		"": false, "application/json": true, "Application/JSON; charset=utf-8": true, "application/protobuf": false, ";": false,
	} {
		require.Equal(t, want, isJSON(contentType), contentType)
	}
}

func TestSeconds(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 90 * time.Minute: "5400s", 1500 * time.Millisecond: "1.5s", 1: "0.000000001s",
	} {
		require.Equal(t, want, seconds(d))
	}
}

func FuzzEvents(f *testing.F) {
	body, err := EncodeResource(example())
	require.NoError(f, err)
	f.Add(body)
	job, err := EncodeJob(JobEvent{At: at, Record: job.Record{Ref: job.Ref{ID: "i", State: job.Pending}}})
	require.NoError(f, err)
	f.Add(job)
	f.Add(machineSeed(f))
	f.Fuzz(func(t *testing.T, body []byte) {
		stable(t, body, DecodeResource, EncodeResource)
		stable(t, body, DecodeJob, EncodeJob)
		stable(t, body, DecodeSpec, EncodeSpec)
		stable(t, body, DecodeBlueprint, EncodeBlueprint)
		stable(t, body, DecodePhase, EncodePhase)
		stable(t, body, DecodePhaseReport, EncodePhaseReport)
		stable(t, body, DecodePhaseHold, EncodePhaseHold)
		stable(t, body, DecodeMachine, EncodeMachine)
		stable(t, body, DecodeTaskRun, EncodeTaskRun)
		stable(t, body, DecodeOutputLine, EncodeOutputLine)
		_, _ = DecodeWork(body, "")
		_, _ = DecodeWork(body, "create-instance")
		for _, name := range Types() {
			if shown, err := BodyJSON(name, body); err == nil && !json.Valid(shown) {
				t.Fatalf("%s is shown as what is not JSON: %s", name, shown)
			}
		}
	})
}

// stable: what can be decoded can be encoded, and then decodes to the same.
func stable[T any](t *testing.T, body []byte, decode func([]byte) (T, error), encode func(T) ([]byte, error)) {
	v, err := decode(body)
	if err != nil {
		return
	}
	again, err := encode(v)
	if err != nil {
		t.Fatalf("decoded but not encoded: %v", err)
	}
	w, err := decode(again)
	require.NoError(t, err)
	require.Equal(t, v, w)
}

func FuzzInputs(f *testing.F) {
	f.Add(ContentTypeJSON, []byte(`{"resource": {"apiVersion": "drover/v1", "kind": "node", "metadata": {"name": "web-1", "labels": {"a":"b"}}, "spec": {"a":[1.0]}}}`))
	f.Add(ContentTypeJSON, []byte(`{"fence":{"uid":"u","jobId":"j","phase":"p"},"outcome":"pending","delay":"15s","data":{"a":{"y":1}}}`))
	f.Add(ContentTypeJSON, []byte(`{"code":"invalid","violations":[{"field":"a","reason":"b"}]}`))
	f.Add("", []byte("\x12\x03\x0a\x01a"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		stable(t, body,
			func(b []byte) (Command, error) { return DecodeCommand(contentType, b) },
			func(c Command) ([]byte, error) { return EncodeCommand(contentType, c) })
		stable(t, body,
			func(b []byte) (resource.Result, error) { return DecodeResult(contentType, b) },
			func(r resource.Result) ([]byte, error) { return EncodeResult(contentType, r) })
		stable(t, body,
			func(b []byte) (Reply, error) { return DecodeReply(contentType, b) },
			func(r Reply) ([]byte, error) { return EncodeReply(contentType, r) })
	})
}

// sizes are an event of about 300 bytes, and the example.
func sizes() map[string]ResourceEvent {
	small := example()
	small.Event.Dispatch, small.State.Phases, small.State.Attributes = nil, small.State.Phases[:1], nil
	return map[string]ResourceEvent{"small": small, "usual": example()}
}

func BenchmarkEncodeResource(b *testing.B) {
	for name, e := range sizes() {
		b.Run(name, func(b *testing.B) { benchmarkEncode(b, e) })
	}
}

func BenchmarkDecodeResource(b *testing.B) {
	for name, e := range sizes() {
		b.Run(name, func(b *testing.B) { benchmarkDecode(b, e) })
	}
}

func benchmarkEncode(b *testing.B, e ResourceEvent) {
	body, _ := EncodeResource(e)
	b.ReportMetric(float64(len(body)), "bytes")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EncodeResource(e); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkDecode(b *testing.B, e ResourceEvent) {
	body, _ := EncodeResource(e)
	b.ReportMetric(float64(len(body)), "bytes")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeResource(body); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzRoutedUUID: an id leads back to its partition, parts that differ make ids that differ, and nothing from outside leads
// out of range.
func FuzzRoutedUUID(f *testing.F) {
	f.Add(uint16(3), "a", "b", "0003c0de-0000-4000-8000-000000000000")
	f.Add(uint16(65535), "", "", "0003C0DE-0000-4000-8000-000000000000")
	f.Fuzz(func(t *testing.T, partition uint16, a, b, foreign string) {
		id := RoutedUUID(int(partition), a, b)
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, id)
		got, ok := RoutedPartition(id, 1<<16)
		require.True(t, ok)
		require.Equal(t, int(partition), got)
		_, ok = RoutedPartition(id, int(partition))
		require.False(t, ok)
		require.NotEqual(t, id, RoutedUUID(int(partition), a+"x", b))
		require.NotEqual(t, id, RoutedUUID(int(partition), a, b, ""))
		if p, ok := RoutedPartition(foreign, 64); ok {
			require.Less(t, p, 64)
			require.Len(t, foreign, 36)
		}
	})
}
