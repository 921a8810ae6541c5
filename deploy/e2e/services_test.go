package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/audit"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

// timeoutOf is how long an attempt has time, by the phases that ask a module.
var timeoutOf = map[string]time.Duration{"vlan": 20 * time.Second, "ready": 60 * time.Second, "port": 20 * time.Second}

// eventsKept is how many events of a subject EVENTS keeps.
const eventsKept = 8

// vpn is a service of three phases (seed 000): an ExtApiPhase, whose module calls back before it answers; a PollingPhase; and
// a ServiceManagementPhase, whose child is a service of another kind. All of them are idempotent, and can be undone.
func vpn(module, gateway string) []command {
	ext := object{"ncaeBaseUrl": gateway}
	post := func(path string) object {
		return object{"http": object{"url": module + path, "extApi": ext, "timeout": "30s"}}
	}
	poll := func(path string) object {
		return object{"poll": object{"url": module + path, "extApi": ext, "interval": "100ms"}}
	}
	return []command{
		{Kind: "Blueprint", Name: "access", Verb: "apply", ID: "access", Body: apply("Blueprint", "access", object{
			"lifecycle": "service", "phases": list{
				object{"name": "port", "idempotent": true, "timeout": timeoutOf["port"].String(), "executor": post("/port"), "undo": post("/port/decom")},
			},
		}, nil)},
		{Kind: "Blueprint", Name: "vpn", Verb: "apply", ID: "vpn", Body: apply("Blueprint", "vpn", object{
			"lifecycle": "service", "phases": list{
				object{"name": "vlan", "idempotent": true, "timeout": timeoutOf["vlan"].String(), "executor": post("/vlan"), "undo": post("/vlan/decom")},
				object{"name": "ready", "idempotent": true, "timeout": timeoutOf["ready"].String(), "executor": poll("/ready"), "undo": poll("/gone")},
				object{
					"name": "access", "idempotent": true, "executor": object{"children": object{
						"kind": "access", "spec": object{"vlan": "{{ resource.spec.vlan }}", "label": "vpn-{{ resource.spec.vlan }}"},
					}}, "undo": object{"children": object{}},
				},
			},
		}, nil)},
	}
}

// done says what became of an attempt, as ncae_sdk does at a piece of work's end, and looks at the answer.
func done(m *module, a launch) {
	word := "DE"
	if a.Vars.Decommission {
		word = "RE"
	}
	path := fmt.Sprintf("automation/v1/phase-instance/%d", a.Vars.PhaseInstance)
	status, answer := m.insist(a, "PATCH", path, object{"status": word})
	// 404 and 409: the attempt has ended, in time or by a kill's doing, or a later one has begun.
	if status != 200 && status != 202 && status != 404 && status != 409 {
		m.t.Errorf("%s answered %d %v", path, status, answer)
	}
}

// modules is what the module does: the first attempt to be ready fails, for every service instance.
func modules() map[string]func(*module, launch) string {
	var mu sync.Mutex
	polls := map[uint64]int{} // by attempt
	failed := map[uint64]uint64{}
	said := func(m *module, a launch) string { // the callback comes before the answer
		done(m, a)
		return ""
	}
	later := func(m *module, a launch) string { // the callback comes after it, and twice
		m.after.Go(func() {
			done(m, a)
			done(m, a)
		})
		return ""
	}
	return map[string]func(*module, launch) string{
		"/vlan": said, "/vlan/decom": said, "/port": later, "/port/decom": later,
		"/ready": func(_ *module, a launch) string {
			mu.Lock()
			defer mu.Unlock()
			if failed[a.Vars.ServiceInstance] == 0 {
				failed[a.Vars.ServiceInstance] = a.Vars.PhaseInstance
			}
			if failed[a.Vars.ServiceInstance] == a.Vars.PhaseInstance {
				return `{"status": "error", "message": "no route"}`
			}
			if polls[a.Vars.PhaseInstance]++; polls[a.Vars.PhaseInstance] < 3 {
				return `{"status": "polling"}`
			}
			return `"deployed"`
		},
		"/gone": func(*module, launch) string { return "retired" },
	}
}

// TestServices leads service instances through NCAE's life: deployed, failed, deployed again out of Error, updated,
// decommissioned; on one server and on three, while each service and a server is killed in the middle. The module's ledger and
// the log must agree: each attempt that the log knows was asked for at least once, or timed out before, nothing was asked for that it does not
// know, and no attempt has ended twice.
func TestServices(t *testing.T) {
	t.Parallel()
	onServers(t, serveServices)
}

func serveServices(t *testing.T, on ground) {
	const n = 4
	h := on.house(t, plan{intakes: 1, orchestrators: 2, runners: 1, lifecycles: 1, gateways: 1, partitions: 4, guarded: true})
	c := chronicleOf(t, h)
	ctx, cancel := context.WithTimeout(h.ctx, h.patience(3*time.Minute))
	defer cancel()
	nc := h.connect()
	defer nc.Close()
	d := h.door(nc)
	m := newModule(t, h, modules())
	for _, cmd := range vpn(m.url, h.http[0]) {
		a, err := d.request(ctx, cmd)
		require.NoError(t, err)
		require.Empty(t, a.Message, "%v", a)
	}

	struck := make(chan struct{})
	go func() {
		defer close(struck)
		killServices(ctx, h)
	}()
	var wg sync.WaitGroup
	timeouts := make([]int, n)
	for i := range n {
		wg.Go(func() { timeouts[i] = liveService(ctx, t, d, c, fmt.Sprint("v", i), struck) })
	}
	wg.Wait()
	<-struck
	if t.Failed() {
		return
	}
	all := 0
	for _, times := range timeouts {
		all += times
	}
	verifyServices(t, c, m, n, all)
	d.empty(t, "COMMANDS", "RESULTS", "WORK", "POISON")
	died := map[string]int{}
	for _, p := range append(h.services, h.servers...) {
		kills, crashes, strange := p.deaths()
		t.Logf("%-16s killed %d times, died at %v, ended otherwise: %v", p.name, kills, crashes, strange)
		require.Empty(t, strange)
		for _, point := range crashes {
			died[point]++
		}
		if p.member != nil && !strings.HasPrefix(p.name, "nats-") || p.name == "intake-0" || p.name == "lifecycle-0" || p.name == "nats-0" {
			require.Positive(t, kills, p.name)
		}
	}
	for _, s := range strokes {
		require.True(t, s[1] == "" || h.cluster != nil || died[s[1]] > 0, "nobody has died at %s", s[1])
	}
	t.Logf("attempts that timed out, because a callback was lost with both its keepers: %v", timeouts)
}

// strokes are who is killed, and the place at which the run after that dies.
var strokes = [][2]string{
	{"gateway", "gateway.before-callback:1"}, {"runner", "runner.before-result:1"}, {"orchestrator", "orchestrator.after-append:2"},
	{"intake", ""}, {"nats", ""}, {"lifecycle", ""}, {"gateway", "gateway.after-callback:1"}, {"runner", "runner.after-result:1"},
	{"orchestrator", "orchestrator.before-ack:1"},
}

// killServices kills each service once at each place where it leaves most behind, and a server, one after another; where
// processes know no such places, as often at any time. All orchestrators are killed at once: which of them owns the
// partitions of these few resources is chance.
func killServices(ctx context.Context, h *house) {
	pause(ctx, 500*time.Millisecond)
	for _, s := range strokes {
		struck := h.servers[:1]
		if s[0] != "nats" {
			struck = h.service(s[0])
		}
		died := func() bool { // one of them, where it was to
			return slices.ContainsFunc(struck, func(p *process) bool {
				_, at, _ := p.deaths()
				return slices.Contains(at, s[1]) || p.member != nil && p.up()
			})
		}
		if h.cluster != nil {
			pause(ctx, time.Duration(h.random.Int64N(int64(time.Second))))
		}
		for _, p := range struck {
			p.kill(s[1])
		}
		pause(ctx, 500*time.Millisecond)
		for s[1] != "" && !died() && pause(ctx, 10*time.Millisecond) { // the instances live until then
		}
	}
	for _, p := range append(h.services, h.servers...) {
		p.calm()
	}
}

// liveService leads one service instance through its life, again and again until everybody was killed. It returns how many
// attempts timed out.
func liveService(ctx context.Context, t *testing.T, d *door, c *chronicle, name string, struck <-chan struct{}) (timeouts int) {
	fail := func(format string, args ...any) {
		t.Errorf(name+": "+format, args...)
	}
	run := func(verb, id string, body any) (job.Record, bool) {
		a, err := d.request(ctx, command{Kind: "vpn", Name: name, Verb: verb, ID: id, Body: body})
		if err != nil || a.JobID == "" {
			fail("%s was not accepted: %v %+v", verb, err, a)
			return job.Record{}, false
		}
		r, ok := c.waitJob(ctx, a.JobID)
		if !ok {
			fail("%s has not ended: %+v", verb, resource.Why(ptr(c.state("vpn", name))))
		}
		return r, ok
	}
	// reach does it again, as a person would, where a kill has cost a callback.
	life := 0
	reach := func(verb, state string) bool {
		for try := range 5 {
			r, ok := run(verb, fmt.Sprint(verb, life, "-", try), nil)
			if !ok {
				return false
			}
			s := c.state("vpn", name)
			if r.State == job.Succeeded && s.State == state {
				return true
			}
			if s.State != "Error" {
				fail("%s led to %s: %s", verb, s.State, r.Message)
				return false
			}
			timeouts++
		}
		fail("%s does not reach %s", verb, state)
		return false
	}
	if _, ok := run("apply", "new", apply("vpn", name, object{"vlan": 100}, nil)); !ok {
		return 0
	}
	r, ok := run("deploy", "first", nil)
	if !ok {
		return 0
	}
	if s := c.state("vpn", name); r.State != job.Failed || s.State != "Error" {
		fail("the first deployment is to fail, and it is %s, in state %s", r.State, s.State)
		return 0
	}
	for ; ; life++ {
		if !reach("deploy", "Deployed") {
			return timeouts
		}
		if _, ok := run("apply", fmt.Sprint("changed", life), apply("vpn", name, object{"vlan": 200 - 100*(life%2)}, nil)); !ok {
			return timeouts
		}
		if !reach("update", "Deployed") {
			return timeouts
		}
		if s := c.state("access", name+"/access"); s.State != "Deployed" {
			fail("its child is in state %s", s.State)
		}
		if !reach("decom", "Retired") {
			return timeouts
		}
		if s := c.state("access", name+"/access"); !s.Gone {
			fail("its child is not gone: %s", s.State)
		}
		select {
		case <-struck:
			return timeouts
		default:
		}
		if !reach("reactivate", "Ready") {
			return timeouts
		}
	}
}

func ptr[T any](v T) *T { return &v }

// verifyServices holds the log to itself, and the module's ledger to the log. timeouts is how often one who drove a service found
// it in Error without the module having said so.
//
// The log may have gaps for who reads along: EVENTS keeps 8 of a subject, what is gone is purged at once, and the only server, or
// the one that is read, is killed. What must hold all the same is held across a gap.
func verifyServices(t *testing.T, c *chronicle, m *module, n, timeouts int) {
	t.Helper()
	type gap struct {
		key resource.Key
		uid string
		to  uint64 // the last revision that was not seen
	}
	var gaps []gap
	steps := 0
	known := map[string]resource.Transaction{} // by id
	ends := map[string]int{}
	before := map[resource.Key]resource.State{}
	vlans := map[string]map[string]bool{}
	for _, e := range c.all() {
		if e.Resource == nil || e.Deleted && e.Resource.Event.Cause.Kind == "" {
			continue
		}
		s := e.Resource.State
		was := before[s.Key]
		if was.UID == s.UID && s.Revision <= was.Revision {
			require.True(t, was.Gone && s.Revision == was.Revision, "%s revision %d is there twice, and no trace that is written again while it is forgotten", s.Key, s.Revision)
			continue
		}
		if j := s.JobByID(jobOf(&s)); j != nil {
			require.Empty(t, audit.Resource(s, c.blueprints[j.Blueprint]), "%s revision %d", s.Key, s.Revision)
		}
		steps++
		switch another := was.UID != s.UID; {
		case another && s.Revision > 1, !another && s.Revision > was.Revision+1:
			gaps = append(gaps, gap{s.Key, s.UID, s.Revision - 1})
			if !another { // jobs may have come and gone; nothing else goes back
				was.Revision, was.Jobs = s.Revision-1, nil
				require.Empty(t, audit.Transition(was, s), "%s revision %d, after a gap", s.Key, s.Revision)
			}
		case another && was.Exists(): // its last events were purged
			gaps = append(gaps, gap{s.Key, was.UID, was.Revision + 1})
		case was.UID != "":
			require.Empty(t, audit.Transition(was, s), "%s revision %d", s.Key, s.Revision)
		}
		for _, tr := range s.Transactions {
			id := wire.TransactionID(e.Entity.Partition, resource.Fence{UID: s.UID, JobID: tr.JobID, Phase: tr.Phase, Attempt: tr.Attempt})
			old, there := known[id]
			if tr.Ended.IsZero() || there && !old.Ended.IsZero() {
				require.False(t, there && !old.Ended.IsZero() && tr != old, "transaction %s changed after its end: %+v, %+v", id, old, tr)
			} else {
				ends[id]++
			}
			known[id] = tr
		}
		if s.Kind == "access" {
			if vlans[s.Name] == nil {
				vlans[s.Name] = map[string]bool{}
			}
			vlans[s.Name][c.specs[s.SpecDigest]] = true
		}
		before[s.Key] = s
	}
	for _, g := range gaps {
		last := before[g.key]
		require.True(t, last.UID != g.uid || last.Gone || last.Revision >= g.to+eventsKept,
			"%s revision %d is not in the log, and neither was it too old to be kept, nor is its resource gone", g.key, g.to)
	}
	require.Less(t, len(gaps), steps/10, "too much was purged before it was read to judge the rest")
	times := map[string]int{}
	for _, a := range m.asked() {
		tr, ok := known[a.Vars.Transaction]
		require.True(t, ok, "the module was asked for %s under %s, and the log does not know it", a.Path, a.Vars.Transaction)
		require.Equal(t, a.Vars.Transaction, a.Header.Get("X-Transaction-Id"))
		require.Equal(t, tr.Verb == "decom", a.Vars.Decommission)
		times[a.Vars.Transaction]++
		switch {
		case tr.Verb == "update" || tr.Verb == "decom":
			require.True(t, a.Vars.WasDeployed, "%s of %s, attempt %d", tr.Verb, tr.Phase, tr.Attempt)
		case tr.Phase == "vlan" && tr.Attempt == 1:
			require.False(t, a.Vars.WasDeployed, "an initial deployment")
		case tr.Phase == "ready" && tr.Attempt == 2:
			require.True(t, a.Vars.WasDeployed, "out of Error, where vlan had succeeded")
		}
		require.Equal(t, c.project, a.Vars.TenantSlug)
	}
	asked, early, late := 0, 0, 0
	for id, tr := range known {
		require.False(t, tr.Ended.IsZero(), "a transaction is under way: %+v", tr)
		require.Equal(t, 1, ends[id], "a transaction ends once: %+v", tr)
		if tr.Phase == "access" {
			continue // a child's work, which is its parent's attempt too
		}
		asked++
		expired := false
		if tr.Outcome == resource.Failed {
			if expired = tr.Ended.Sub(tr.Began) >= timeoutOf[tr.Phase]; expired {
				late++
			} else {
				require.Equal(t, "ready", tr.Phase, "an attempt failed before its time, and the module had not said so: %+v", tr)
				early++
			}
		}
		// The work of a killed runner is handed out again when its lease ends, which may be later than the attempt has time:
		// then nobody was asked. No other attempt may end unasked.
		require.True(t, times[id] > 0 || expired, "the module was never asked for %+v", tr)
	}
	require.LessOrEqual(t, early, n, "the module says of one attempt of each service that it failed")
	require.LessOrEqual(t, early+late, n+timeouts, "each failed attempt leads its service to Error once, where who drives it finds it")
	for i := range n {
		require.Equal(t, map[string]bool{`{"label":"vpn-100","vlan":100}`: true, `{"label":"vpn-200","vlan":200}`: true}, vlans[fmt.Sprintf("v%d/access", i)])
	}
	t.Logf("%d events, %d gaps; %d transactions in the log, %d of them a module's, which was asked %d times; %d failed by its word, %d by time", steps, len(gaps), len(known), asked, len(m.asked()), early, late)
}

// jobOf is the job that drives a resource, or that did last.
func jobOf(s *resource.State) string {
	if j := s.Job(); j != nil {
		return j.ID
	}
	if j := s.FlowJob(); j != nil {
		return j.ID
	}
	return ""
}

// TestCallbacks is a module that does what it should not: it calls back late, for an attempt that has ended or for an earlier
// one; never; with words that the attempt cannot become; and under another transaction.
func TestCallbacks(t *testing.T) {
	t.Parallel()
	callBack(t, ground{servers: 1})
}

func callBack(t *testing.T, on ground) {
	h := on.house(t, plan{intakes: 1, orchestrators: 1, runners: 1, gateways: 1, partitions: 4, guarded: true})
	c := chronicleOf(t, h)
	ctx, cancel := context.WithTimeout(h.ctx, h.patience(time.Minute))
	defer cancel()
	nc := h.connect()
	defer nc.Close()
	d := h.door(nc)
	attempts := make(chan launch, 8)
	m := newModule(t, h, map[string]func(*module, launch) string{"/do": func(_ *module, a launch) string {
		attempts <- a
		return ""
	}})
	phase := func(name string) object {
		do := object{"http": object{"url": m.url + "/do", "extApi": object{"ncaeBaseUrl": h.http[0] + "/", "tenantId": 7}}}
		return object{"name": name, "idempotent": true, "timeout": "6s", "executor": do, "undo": do}
	}
	for _, cmd := range []command{
		{Kind: "Blueprint", Name: "line", Verb: "apply", ID: "bp", Body: apply("Blueprint", "line", object{"lifecycle": "service", "phases": list{phase("one"), phase("two")}}, nil)},
		{Kind: "line", Name: "l", Verb: "apply", ID: "apply", Body: apply("line", "l", object{"vlan": 7}, nil)},
	} {
		a, err := d.request(ctx, cmd)
		require.NoError(t, err)
		require.NotEmpty(t, a.JobID, "%v", a)
	}
	deploy := func(id string) string {
		a, err := d.request(ctx, command{Kind: "line", Name: "l", Verb: "deploy", ID: id})
		require.NoError(t, err)
		require.NotEmpty(t, a.JobID, "%v", a)
		return a.JobID
	}
	end := func(id string, want job.State) {
		t.Helper()
		r, ok := c.waitJob(ctx, id)
		require.True(t, ok, "%+v", resource.Why(ptr(c.state("line", "l"))))
		require.Equal(t, want, r.State, r.Message)
	}
	say := func(a launch, id uint64, body any) (int, object) {
		t.Helper()
		status, answer, err := m.call(ctx, a, "PATCH", "automation/v1/phase-instance/"+strconv.FormatUint(id, 10), body)
		require.NoError(t, err)
		return status, answer
	}
	get := func(a launch, path string) (int, object) {
		t.Helper()
		status, answer, err := m.call(ctx, a, "GET", path, nil)
		require.NoError(t, err)
		return status, answer
	}
	next := func() launch {
		t.Helper()
		select {
		case a := <-attempts:
			return a
		case <-ctx.Done():
			require.FailNow(t, "the module was not asked")
		}
		return launch{}
	}

	// Never: the attempt times out, and what comes then is too late.
	first := deploy("never")
	never := next()
	require.Equal(t, 7, never.Vars.TenantID)
	require.Less(t, never.Vars.PhaseInstance, uint64(1)<<53, "exact in JSON")
	require.JSONEq(t, `{"vlan": 7}`, string(never.Vars.Data))
	status, answer := get(never, fmt.Sprintf("automation/v1/phase-instance/%d", never.Vars.PhaseInstance))
	require.Equal(t, 200, status)
	require.Equal(t, "OR", answer["status"])
	require.Equal(t, true, answer["is_running"])
	status, answer = say(never, never.Vars.PhaseInstance, object{"status": "RE"})
	require.Equal(t, 409, status, "%v", answer)
	status, answer = say(never, never.Vars.PhaseInstance, object{"status": "XX"})
	require.Equal(t, 400, status, "%v", answer)
	end(first, job.Failed)
	require.Equal(t, "Error", c.state("line", "l").State)
	status, answer = say(never, never.Vars.PhaseInstance, object{"status": "DE"})
	require.Equal(t, 409, status, "%v", answer)

	// Late: the word for an earlier attempt, while the next one is under way.
	second := deploy("late")
	one := next()
	require.NotEqual(t, never.Vars.PhaseInstance, one.Vars.PhaseInstance)
	require.NotEqual(t, never.Vars.Transaction, one.Vars.Transaction)
	require.Equal(t, never.Vars.ServiceInstance, one.Vars.ServiceInstance, "the service instance keeps its id")
	require.False(t, one.Vars.WasDeployed, "nothing has ever succeeded")
	status, answer = say(one, never.Vars.PhaseInstance, object{"status": "DE"})
	require.Equal(t, 404, status, "%v", answer)
	status, answer = say(never, one.Vars.PhaseInstance, object{"status": "DE"})
	require.Equal(t, 409, status, "another transaction: %v", answer)

	// What the first phase leaves the second is given; twice is once; and the lines are in the output.
	status, answer, err := m.call(ctx, one, "PATCH", fmt.Sprintf("automation/v1/cmdb-entry/%d", one.Vars.CmdbEntry), object{"callback_data": object{"port": 3}})
	require.NoError(t, err)
	require.Equal(t, 200, status, "%v", answer)
	require.Equal(t, object{"vlan": 7.0}, answer["data"])
	require.Equal(t, object{"port": 3.0}, answer["callback_data"])
	status, answer, err = m.call(ctx, one, "POST", "logger/v1/service-instance-log", object{
		"service_instance_id": one.Vars.ServiceInstance, "log_title": "vlan", "log_hostname": "sw1", "log_text": "made\nvlan 7", "status": "WA",
	})
	require.NoError(t, err)
	require.Equal(t, 201, status, "%v", answer)
	status, answer = get(one, "logger/v1/service-instance-log/"+strconv.FormatUint(uint64(answer["id"].(float64)), 10))
	require.Equal(t, 200, status)
	require.Equal(t, one.Vars.Transaction, answer["transaction"])
	for range 2 {
		status, answer = say(one, one.Vars.PhaseInstance, object{"status": "DE"})
		require.Equal(t, 200, status, "%v", answer)
		require.Equal(t, "DE", answer["status"])
	}
	status, answer = say(one, one.Vars.PhaseInstance, object{"status": "ER"})
	require.Equal(t, 409, status, "%v", answer)
	two := next()
	require.Equal(t, object{"port": 3.0}, two.Vars.CallbackData)
	status, answer = say(two, two.Vars.PhaseInstance, object{"status": "ER", "message": "no such port"})
	require.Equal(t, 200, status, "%v", answer)
	require.Equal(t, "ER", answer["status"])
	end(second, job.Failed)
	s := c.state("line", "l")
	require.Equal(t, "Error", s.State)
	require.Equal(t, "no such port", s.Phase("two").Message)

	// Out of Error, with a word that nobody was there to hear: it is stored, and decided when an owner is there again.
	third := deploy("stored")
	again := next()
	require.True(t, again.Vars.WasDeployed, "phase one has succeeded")
	for _, p := range h.service("orchestrator") {
		p.slow(func() time.Duration { return 500 * time.Millisecond })
		p.kill("")
	}
	status, answer = m.insist(again, "PATCH", fmt.Sprintf("automation/v1/phase-instance/%d", again.Vars.PhaseInstance), object{"status": "DE"})
	require.Contains(t, []int{200, 202}, status, "%v", answer)
	end(third, job.Succeeded)
	require.Equal(t, "Deployed", c.state("line", "l").State)

	for _, path := range []string{"automation/v1/phase-instance/0", "automation/v1/phase-instance/01", "automation/v1/phase-instance/x", "automation/v1/phase-instance/9007199254740993", "automation/v1/cmdb-entry/1", "logger/v1/service-instance-log/1"} {
		status, _ = get(two, path)
		require.Equal(t, 404, status, path)
	}
	var lines []string
	soon, stop := context.WithTimeout(ctx, 500*time.Millisecond)
	defer stop()
	read(soon, nc, "OUTPUT", "drover.out."+h.project+".>", func(got []stored) {
		for _, o := range got {
			if l, err := wire.DecodeOutputLine(o.Body); err == nil && l.Stream == "module" {
				lines = append(lines, l.Text)
			}
		}
	})
	require.Equal(t, []string{"WA sw1 vlan: made", "WA sw1 vlan: vlan 7"}, lines)
	text, err := json.Marshal(c.state("line", "l").Transactions)
	require.NoError(t, err)
	t.Logf("transactions: %s", text)
}

// TestServicesExample runs examples/services as it is, but for the addresses.
func TestServicesExample(t *testing.T) {
	t.Parallel()
	h := newHouse(t, plan{intakes: 1, orchestrators: 1, runners: 1, gateways: 1, partitions: 4, guarded: true})
	c := chronicleOf(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nc := h.connect()
	defer nc.Close()
	d, err := openDoor(nc)
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", ports(t, 1)[0])
	h.services = append(h.services, h.run("module-0", "module", "--listen", address, "--takes", "50ms"))
	text, err := os.ReadFile("../../examples/services/vpn.yaml")
	require.NoError(t, err)
	documents, err := manifest.Parse([]byte(strings.NewReplacer("127.0.0.1:9000", address, "http://127.0.0.1:8092", h.http[0], "interval: 1s", "interval: 50ms").Replace(string(text))))
	require.NoError(t, err)
	require.Len(t, documents, 3)
	for i, doc := range documents {
		var spec object
		require.NoError(t, json.Unmarshal(doc.Manifest.Spec, &spec))
		a, err := d.request(ctx, command{Kind: doc.Manifest.Kind, Name: doc.Manifest.Name, Verb: "apply", ID: fmt.Sprint(i), Body: apply(doc.Manifest.Kind, doc.Manifest.Name, spec, nil)})
		require.NoError(t, err)
		require.NotEmpty(t, a.JobID, "%+v", a)
	}
	for _, step := range [][2]string{{"deploy", "Deployed"}, {"update", "Deployed"}, {"redeploy", "Deployed"}, {"decom", "Retired"}, {"reactivate", "Ready"}, {"deploy", "Deployed"}, {"delete", "Retired"}} {
		a, err := d.request(ctx, command{Kind: "vpn", Name: "acme", Verb: step[0], ID: step[0] + step[1] + fmt.Sprint(len(c.all()))})
		require.NoError(t, err)
		require.NotEmpty(t, a.JobID, "%s: %+v", step[0], a)
		r, ok := c.waitJob(ctx, a.JobID)
		require.True(t, ok, "%s: %+v", step[0], resource.Why(ptr(c.state("vpn", "acme"))))
		require.Equal(t, job.Succeeded, r.State, "%s: %s", step[0], r.Message)
		s := c.state("vpn", "acme")
		require.Equal(t, step[1], s.State, step[0])
		child := c.state("access", "acme/access")
		require.Equal(t, step[1] == "Retired" || step[0] == "reactivate", child.Gone, step[0])
		if step[0] == "redeploy" || step[0] == "update" || step[0] == "deploy" {
			require.Equal(t, step[0], child.FlowJob().Walks(), "the child follows")
		}
	}
	require.True(t, c.state("vpn", "acme").Gone)
	verifySpecs(t, c)
}

// verifySpecs: the child's spec is the template with the parent's values.
func verifySpecs(t *testing.T, c *chronicle) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Contains(t, slices.Collect(maps.Values(c.specs)), `{"label":"customer acme","vlan":100}`)
}
