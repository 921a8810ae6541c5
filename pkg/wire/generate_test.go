package wire

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// generate draws a value of any type that travels, in its normal form. It walks the type, so that a field that is added
// to the engine is drawn from then on, and lost in a round trip unless the wire knows it. With full, nothing is empty.
func generate(t *rapid.T, typ reflect.Type, full bool) reflect.Value {
	v := reflect.New(typ).Elem()
	switch typ {
	case reflect.TypeFor[time.Time]():
		if full || rapid.Bool().Draw(t, "set") {
			seconds := rapid.Int64Range(secondsMin+1, secondsMax).Draw(t, "seconds")
			v.Set(reflect.ValueOf(time.Unix(seconds, rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")).UTC()))
		}
		return v
	case reflect.TypeFor[time.Duration]():
		v.SetInt(rapid.Int64Range(least(full), 1<<62).Draw(t, "duration"))
		return v
	case reflect.TypeFor[[]byte](): // a manifest's spec
		v.SetBytes([]byte(rapid.SampledFrom([]string{`{}`, `{"a":{"b":[1,2.50,"<x>"]}}`}).Draw(t, "object")))
		return v
	case reflect.TypeFor[resource.Status]():
		v.SetUint(uint64(rapid.SampledFrom(resource.Statuses()[1:]).Draw(t, "status")))
		return v
	case reflect.TypeFor[deployment.Status]():
		v.SetUint(uint64(rapid.SampledFrom(deployment.Statuses()[1:]).Draw(t, "deployment status")))
		return v
	case reflect.TypeFor[job.State]():
		v.SetUint(uint64(rapid.SampledFrom(job.States()[1:]).Draw(t, "job state")))
		return v
	case reflect.TypeFor[job.Stage]():
		v.SetUint(uint64(rapid.SampledFrom(job.Stages()[1:]).Draw(t, "stage")))
		return v
	case reflect.TypeFor[phase.Activity]():
		v.SetUint(uint64(rapid.SampledFrom(phase.Activities()).Draw(t, "activity")))
		return v
	case reflect.TypeFor[machine.RunState]():
		v.SetUint(uint64(rapid.SampledFrom(machine.RunStates()[1:]).Draw(t, "run state")))
		return v
	case reflect.TypeFor[resource.Outcome]():
		v.SetUint(uint64(rapid.SampledFrom(resource.Outcomes()).Draw(t, "outcome")))
		return v
	}
	switch typ.Kind() {
	case reflect.String:
		v.SetString(rapid.StringN(int(least(full)), 12, -1).Draw(t, "string"))
	case reflect.Bool:
		v.SetBool(full || rapid.Bool().Draw(t, "bool"))
	case reflect.Uint16:
		v.SetUint(uint64(rapid.Uint16Min(uint16(least(full))).Draw(t, "uint16")))
	case reflect.Int64:
		v.SetInt(rapid.Int64Min(least(full)).Draw(t, "int64"))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.Uint64Range(uint64(least(full)), 1<<32-1).Draw(t, "uint"))
	case reflect.Int:
		v.SetInt(rapid.Int64Range(least(full), partitionsMax).Draw(t, "int"))
	case reflect.Map:
		n := rapid.IntRange(int(least(full)), 3).Draw(t, "entries")
		if n > 0 {
			v.Set(reflect.MakeMap(typ))
		}
		for range n {
			v.SetMapIndex(generate(t, typ.Key(), full), generate(t, typ.Elem(), full))
		}
	case reflect.Slice:
		n := rapid.IntRange(int(least(full)), 3).Draw(t, "elements")
		for range n {
			v.Set(reflect.Append(v, generate(t, typ.Elem(), full)))
		}
	case reflect.Pointer:
		if full || rapid.Bool().Draw(t, "set") {
			v.Set(reflect.New(typ.Elem()))
			v.Elem().Set(generate(t, typ.Elem(), full))
		}
	case reflect.Struct:
		for i := range typ.NumField() {
			v.Field(i).Set(generate(t, typ.Field(i).Type, full))
		}
	default:
		t.Fatalf("the wire does not know how to carry a %s: teach it, and this test", typ)
	}
	return v
}

func least(full bool) int64 {
	if full {
		return 1
	}
	return 0
}

func draw[T any](t *rapid.T, full bool) T {
	return generate(t, reflect.TypeFor[T](), full).Interface().(T)
}

// required fills what a message cannot be without.
func required(s *string) {
	if *s == "" {
		*s = "x"
	}
}

func drawResourceEvent(t *rapid.T, full bool) ResourceEvent {
	e := draw[ResourceEvent](t, full)
	required(&e.State.UID)
	if e.At.IsZero() {
		e.At = time.Unix(1, 2).UTC()
	}
	for i := range e.State.Phases {
		required(&e.State.Phases[i].Name)
	}
	for i := range e.State.Jobs {
		required(&e.State.Jobs[i].ID)
	}
	for i := range e.State.Transactions {
		required(&e.State.Transactions[i].Phase)
	}
	if d := e.Event.Dispatch; d != nil {
		required(&e.ResultSubject)
		required(&d.Fence.UID)
		required(&d.Fence.JobID)
		required(&d.Fence.Phase)
	} else if !sleeping(&e.State) {
		e.ResultSubject, e.Partition = "", 0
	}
	return e
}

func drawJobEvent(t *rapid.T, full bool) JobEvent {
	e := draw[JobEvent](t, full)
	required(&e.Record.ID)
	if e.At.IsZero() {
		e.At = time.Unix(1, 2).UTC()
	}
	return e
}

// noneEmpty fails where a field of a full value is empty, which would prove nothing.
func noneEmpty(t require.TestingT, path string, v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]() || v.Kind() != reflect.Struct && v.Kind() != reflect.Slice && v.Kind() != reflect.Pointer:
		require.False(t, v.IsZero(), "%s is empty", path)
	case v.Kind() == reflect.Pointer:
		require.False(t, v.IsNil(), "%s is empty", path)
		noneEmpty(t, path, v.Elem())
	case v.Kind() == reflect.Slice:
		require.NotZero(t, v.Len(), "%s is empty", path)
		for i := range v.Len() {
			noneEmpty(t, index(path, i), v.Index(i))
		}
	default:
		for i := range v.NumField() {
			noneEmpty(t, path+"."+v.Type().Field(i).Name, v.Field(i))
		}
	}
}

func roundTrip[T any](t require.TestingT, want T, encode func(T) ([]byte, error), decode func([]byte) (T, error)) {
	body, err := encode(want)
	require.NoError(t, err)
	got, err := decode(body)
	require.NoError(t, err)
	require.Equal(t, want, got)
	again, err := encode(got)
	require.NoError(t, err)
	require.Equal(t, body, again, "one event has one encoding")
}

// TestEveryFieldSurvives is what notices that a field of the engine's types was forgotten here.
func TestEveryFieldSurvives(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := drawResourceEvent(t, true)
		noneEmpty(t, "ResourceEvent", reflect.ValueOf(e))
		roundTrip(t, e, EncodeResource, DecodeResource)
		j := drawJobEvent(t, true)
		noneEmpty(t, "JobEvent", reflect.ValueOf(j))
		roundTrip(t, j, EncodeJob, DecodeJob)
		s := draw[SpecEvent](t, true)
		roundTrip(t, s, EncodeSpec, DecodeSpec)
		b := draw[BlueprintEvent](t, true)
		roundTrip(t, b, EncodeBlueprint, DecodeBlueprint)
		p := draw[PhaseEvent](t, true)
		noneEmpty(t, "PhaseEvent", reflect.ValueOf(p))
		roundTrip(t, p, EncodePhase, DecodePhase)
		r := draw[PhaseReport](t, true)
		r.Canceling, r.Out = r.Canceling%resourcesOutMax, resourcesOutMax
		for _, d := range []*time.Duration{&r.LastCallAgo, &r.WakeIn, &r.WakeUntilIn} {
			*d = 1 + *d%phaseSpanMax
		}
		roundTrip(t, r, EncodePhaseReport, DecodePhaseReport)
		h := draw[PhaseHold](t, true)
		h.Calls = 1 + h.Calls%phase.CallsMax
		roundTrip(t, h, EncodePhaseHold, DecodePhaseHold)
		l := draw[OutputLine](t, true)
		roundTrip(t, l, EncodeOutputLine, DecodeOutputLine)
	})
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		roundTrip(t, drawResourceEvent(t, false), EncodeResource, DecodeResource)
		roundTrip(t, drawJobEvent(t, false), EncodeJob, DecodeJob)
	})
}

func drawResult(t *rapid.T, full bool) resource.Result {
	r := draw[resource.Result](t, full)
	required(&r.Fence.UID)
	required(&r.Fence.JobID)
	required(&r.Fence.Phase)
	for _, m := range []map[string]string{r.Attributes, r.Data, r.Outputs} {
		for name := range m {
			m[name] = rapid.SampledFrom([]string{`null`, `1.50`, `"<&>"`, `{"a":[true,{"b":12345678901234567890}]}`}).Draw(t, "value")
		}
	}
	return r
}

func TestResultRoundTrip(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"", ContentTypeJSON} {
		for _, full := range []bool{false, true} {
			rapid.Check(t, func(t *rapid.T) {
				r := drawResult(t, full)
				roundTrip(t, r,
					func(r resource.Result) ([]byte, error) { return EncodeResult(contentType, r) },
					func(b []byte) (resource.Result, error) { return DecodeResult(contentType, b) })
			})
		}
	}
}

func TestCommandRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := draw[Command](t, rapid.Bool().Draw(t, "full"))
		digests := make(map[string]bool)
		for _, contentType := range []string{"", ContentTypeJSON, "application/json; charset=utf-8"} {
			roundTrip(t, c,
				func(c Command) ([]byte, error) { return EncodeCommand(contentType, c) },
				func(b []byte) (Command, error) { return DecodeCommand(contentType, b) })
			digests[BodyDigest("apply", c)] = true
		}
		require.Len(t, digests, 1)
	})
}

func TestReplyRoundTrip(t *testing.T) {
	t.Parallel()
	codes := []resource.Code{resource.Invalid, resource.NotFound, resource.Conflict, resource.TooLarge, resource.Overloaded}
	rapid.Check(t, func(t *rapid.T) {
		r := draw[Reply](t, rapid.Bool().Draw(t, "full"))
		if r.Refused != nil {
			r.Refused.Code = rapid.SampledFrom(codes).Draw(t, "code")
			r.JobID, r.Resource = "", ""
		} else {
			required(&r.JobID)
			r.RequestID = ""
		}
		for _, contentType := range []string{"", ContentTypeJSON} {
			roundTrip(t, r,
				func(r Reply) ([]byte, error) { return EncodeReply(contentType, r) },
				func(b []byte) (Reply, error) { return DecodeReply(contentType, b) })
		}
	})
}
