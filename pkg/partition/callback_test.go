package partition_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// line is a service whose two phases are a module's.
const line = `{"lifecycle": "service", "phases": [
	{"name": "one", "idempotent": true, "executor": {"http": {"url": "http://m/one", "extApi": {"ncaeBaseUrl": "http://d"}}}, "undo": {"http": {"url": "http://m/one", "extApi": {"ncaeBaseUrl": "http://d"}}}},
	{"name": "two", "idempotent": true, "executor": {"http": {"url": "http://m/two", "extApi": {"ncaeBaseUrl": "http://d"}}}, "undo": {"http": {"url": "http://m/two", "extApi": {"ncaeBaseUrl": "http://d"}}}}]}`

// module is what a module sees: the ids that it was told, and what it says.
type module struct {
	*fixture
	clock *time.Time
	inbox bus.Inbox
}

func newModule(t *testing.T, sys *memory.System, clock *time.Time) *module {
	t.Helper()
	m := &module{fixture: serve(t, sys, func() time.Time { return *clock }), clock: clock}
	m.open()
	return m
}

func (m *module) open() {
	m.t.Helper()
	inbox, err := m.link.Results(m.t.Context(), 0)
	require.NoError(m.t, err)
	m.inbox = inbox
	m.t.Cleanup(inbox.Close)
}

func (m *module) state() resource.State {
	m.t.Helper()
	last, err := m.link.Last(m.t.Context(), []bus.Entity{{Family: bus.Resource, Project: "p", Kind: "line", Name: "l"}})
	require.NoError(m.t, err)
	e, err := wire.DecodeResource(last[0].Body)
	require.NoError(m.t, err)
	return e.State
}

func (m *module) fence(phase string) resource.Fence {
	m.t.Helper()
	s := m.state()
	p := s.Phase(phase)
	require.NotNil(m.t, p)
	return resource.Fence{UID: s.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt}
}

func (m *module) id(phase string) uint64 { return wire.PhaseInstanceID(0, m.fence(phase)) }

// say publishes a callback, and delivers it.
func (m *module) say(c wire.Callback) {
	m.t.Helper()
	body, err := wire.EncodeCallback(c)
	require.NoError(m.t, err)
	require.NoError(m.t, m.link.PublishResult(m.t.Context(), bus.CallbackSubject(0, max(c.PhaseInstance, c.ServiceInstance)), nil, body))
	m.deliver()
}

// deliver gives the owner what waits for it.
func (m *module) deliver() (n int) {
	m.t.Helper()
	for {
		select {
		case d := <-m.inbox.C():
			m.owner.Offer([]bus.Delivery{d})
			m.shell.run(m.owner)
			n++
		case <-time.After(20 * time.Millisecond): // nothing more waits: the bus in memory delivers at once
			return n
		}
	}
}

func (m *module) find(q wire.PhaseInstanceQuery) (v wire.PhaseInstance) {
	m.t.Helper()
	body, err := json.Marshal(q)
	require.NoError(m.t, err)
	m.owner.Ask(bus.Request{
		Verb: wire.VerbPhaseInstance, Header: map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, Body: body,
	}, func(_ map[string]string, body []byte) {
		require.NoError(m.t, json.Unmarshal(body, &v))
	})
	return v
}

func (m *module) left() uint64 {
	m.t.Helper()
	n, _, err := m.link.Backlog(m.t.Context(), "RESULTS", 0)
	require.NoError(m.t, err)
	return n
}

func (m *module) begin() {
	m.t.Helper()
	manifest := func(kind, name, spec string) wire.Command {
		return wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: kind, Name: name, Spec: []byte(spec)}}
	}
	for _, c := range []struct {
		kind, name, verb string
		body             wire.Command
	}{
		{"Blueprint", "line", "apply", manifest("Blueprint", "line", line)}, {"line", "l", "apply", manifest("line", "l", `{"vlan": 7}`)},
		{"line", "l", "deploy", wire.Command{}},
	} {
		m.command(c.kind, c.name, c.verb, c.verb+c.kind, c.body)
	}
}

func (m *module) command(kind, name, verb, id string, c wire.Command) {
	m.t.Helper()
	r := m.fixture.command(kind, name, verb, id, c)
	require.Nil(m.t, r.Refused, "%+v", r.Refused)
	require.NotEmpty(m.t, r.JobID)
}

// A callback finds its attempt by the id alone, whoever owns the partition, and is applied once.
func TestACallbackFindsItsAttempt(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	sys := memory.New(memory.Options{Partitions: 1})
	m := newModule(t, sys, &clock)
	m.begin()
	one, service := m.id("one"), wire.ServiceInstanceID(0, m.state().UID)
	v := m.find(wire.PhaseInstanceQuery{PhaseInstance: one})
	require.True(t, v.Found && v.Awaited, "%+v", v)
	require.Equal(t, "OR", v.Status)
	require.Equal(t, wire.TransactionID(0, m.fence("one")), v.Transaction)
	require.Equal(t, service, v.ServiceInstance)
	require.Equal(t, []any{"p", "line", "l", "one", uint32(1), false}, []any{v.Project, v.Kind, v.Name, v.Phase, v.Attempt, v.Undo})

	// What it leaves is the attempt's that is under way, and decides nothing.
	m.say(wire.Callback{ServiceInstance: service, Attributes: map[string]string{"callback_data": `{"port":3}`}})
	require.Equal(t, map[string]string{"callback_data": `{"port":3}`}, m.state().Attributes)
	require.JSONEq(t, `{"port": 3}`, string(m.find(wire.PhaseInstanceQuery{ServiceInstance: service}).CallbackData))
	require.True(t, m.find(wire.PhaseInstanceQuery{PhaseInstance: one}).Awaited)

	// A word that it cannot become, and one under another transaction, have no effect.
	m.say(wire.Callback{PhaseInstance: one, Status: "RE"})
	m.say(wire.Callback{PhaseInstance: one, Status: "DE", Transaction: "another"})
	require.True(t, m.find(wire.PhaseInstanceQuery{PhaseInstance: one}).Awaited)
	clock = clock.Add(20 * time.Second)
	m.deliver()

	// An owner that has just taken over knows it from the log.
	m.inbox.Close()
	next := newModule(t, sys, &clock)
	next.say(wire.Callback{PhaseInstance: one, Status: "DE"})
	v = next.find(wire.PhaseInstanceQuery{PhaseInstance: one})
	require.Equal(t, "DE", v.Status)
	require.False(t, v.Awaited)
	two := next.id("two")
	require.True(t, next.find(wire.PhaseInstanceQuery{PhaseInstance: two}).Awaited)

	// The owner before it does not know of the second attempt: it reads the log before it says so.
	clock = clock.Add(time.Minute)
	v = m.find(wire.PhaseInstanceQuery{PhaseInstance: two})
	require.True(t, v.Found && v.Awaited, "%+v", v)

	before := next.state().Revision
	next.say(wire.Callback{PhaseInstance: one, Status: "DE"})
	next.say(wire.Callback{PhaseInstance: one, Status: "ER"})
	require.Equal(t, before, next.state().Revision, "twice is once, and another word is too late")
	next.say(wire.Callback{PhaseInstance: two, Status: "ER", Message: "no such port"})
	s := next.state()
	require.Equal(t, "Error", s.State)
	require.Equal(t, "no such port", s.Phase("two").Message)
	require.Equal(t, job.Failed, s.FlowJob().State)
	require.Equal(t, "ER", next.find(wire.PhaseInstanceQuery{PhaseInstance: two}).Status)

	// Another attempt has another id, and the earlier one is known to nobody.
	next.command("line", "l", "deploy", "again", wire.Command{})
	require.NotEqual(t, two, next.id("two"))
	require.False(t, next.find(wire.PhaseInstanceQuery{PhaseInstance: two}).Found)
	next.say(wire.Callback{PhaseInstance: two, Status: "DE"})
	require.True(t, next.find(wire.PhaseInstanceQuery{PhaseInstance: next.id("two")}).Awaited, "what is late has no effect")
	next.say(wire.Callback{PhaseInstance: next.id("two"), Status: "DE"})
	require.Equal(t, "Deployed", next.state().State)

	// Undone, it becomes RE and not DE; what is gone is known a while longer to who reads what he has said.
	next.command("line", "l", "delete", "delete", wire.Command{})
	two = next.id("two")
	require.Equal(t, "RI", next.find(wire.PhaseInstanceQuery{PhaseInstance: two}).Status)
	next.say(wire.Callback{PhaseInstance: two, Status: "RE"})
	one = next.id("one")
	next.say(wire.Callback{PhaseInstance: one, Status: "RE"})
	require.Equal(t, "RE", next.find(wire.PhaseInstanceQuery{PhaseInstance: one}).Status)
	clock = clock.Add(6 * time.Minute)
	next.sweep()
	require.False(t, next.find(wire.PhaseInstanceQuery{PhaseInstance: one}).Found)
}

// What no attempt is known for comes again for a while, and then never more; what cannot be read is set aside.
func TestACallbackOfNothingEnds(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	m := newModule(t, memory.New(memory.Options{Partitions: 1}), &clock)
	m.begin()
	m.say(wire.Callback{PhaseInstance: 42, Status: "DE"})
	require.EqualValues(t, 1, m.left(), "another owner may have handed it out")
	clock = clock.Add(time.Minute)
	require.Eventually(t, func() bool { m.deliver(); return m.left() == 0 }, 30*time.Second, 50*time.Millisecond)

	body, err := wire.EncodeCallback(wire.Callback{PhaseInstance: 42, Status: "DE"})
	require.NoError(t, err)
	require.NoError(t, m.link.PublishResult(t.Context(), bus.CallbackSubject(0, 43), nil, body))
	require.NoError(t, m.link.PublishResult(t.Context(), bus.CallbackSubject(0, 43), nil, []byte{0xff}))
	require.Equal(t, 2, m.deliver())
	require.Zero(t, m.left())
	require.False(t, m.find(wire.PhaseInstanceQuery{}).Found)
}
