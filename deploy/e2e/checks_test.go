package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/wire"
)

const (
	checkNodes = 5
	checkStage = 90 * time.Second // for a stage of the story to come to its end, with processes dying all the while
)

// TestChecks plays seed 002 on real processes: a check configuration with inheritance is rolled out, changed (blocked,
// deprovisioned, unblocked, rolled out again), and deleted to the end; a monitoring system is poked and fetches within the
// poke, as real ones do; another one polls. Every service and the server are killed in the middle of each stage.
func TestChecks(t *testing.T) {
	t.Parallel()
	onServers(t, playChecks)
}

func playChecks(t *testing.T, on ground) {
	h := on.house(t, plan{intakes: 1, orchestrators: 2, lifecycles: 1, notifiers: 2, gateways: 2, guarded: true})
	ctx, cancel := context.WithTimeout(h.ctx, h.patience(6*time.Minute))
	defer cancel()
	nc := h.connect()
	t.Cleanup(nc.Close)
	eye := newEye(t, h)
	s := &checkStory{t: t, ctx: ctx, h: h, d: h.door(nc), eye: eye, ledger: newCheckLedger()}

	s.send("apply", "MonitoringSystem", "eye", object{"callback": eye.url + "/api/v1/notify"})
	var reading sync.WaitGroup
	following, stop := context.WithCancel(ctx)
	t.Cleanup(func() { stop(); reading.Wait() })
	reading.Go(func() { readFrom(following, nc, "EVENTS", "drover.log.>", h.from, s.ledger.take) })
	s.send("apply", "MonitoringSystem", "polls", object{})
	for _, system := range []string{"eye", "polls"} {
		s.send("apply", "Capability", system+".cpu", object{"system": system, "view": "local", "metric": object{"path": "cpu.usage", "unit": "%"}})
	}
	s.send("apply", "Repository", "prod", object{"team": "ops"})
	s.send("apply", "Bucket", "prod/live", object{"environment": "live"})
	s.send("apply", "Group", "prod/live/web", object{})
	for i := range checkNodes {
		s.send("apply", "Node", fmt.Sprint("prod/live/web/n", i), object{"assetId": i + 1})
	}
	config := func(system string, seconds int) object {
		return object{"on": "prod/live", "capability": system + ".cpu", "interval": fmt.Sprint(seconds, "s"), "objectTypes": list{"Node"},
			"thresholds": list{object{"predicate": ">=", "level": object{"name": "critical", "shortName": "crit", "numeric": 2}, "value": 95}}}
	}

	s.stage("rollout", func() { s.send("apply", "CheckConfiguration", "prod/cpu", config("eye", 60)) },
		func() bool { return s.ledger.all("prod/cpu", deployment.Active, 0) })
	require.Equal(t, map[uint64]int{60: checkNodes}, eye.intervals())

	s.stage("changed configuration", func() { s.send("apply", "CheckConfiguration", "prod/cpu", config("eye", 30)) },
		func() bool { return s.ledger.all("prod/cpu", deployment.Active, 1) })
	require.Equal(t, map[uint64]int{30: checkNodes}, eye.intervals())

	s.stage("lists", func() { s.send("apply", "CheckConfiguration", "prod/polled", config("polls", 60)) }, func() bool {
		return s.ledger.all("prod/polled", deployment.AwaitingRollout, 0)
	})
	s.lists()

	s.stage("deletion", func() {
		s.send("delete", "CheckConfiguration", "prod/cpu", nil)
		s.send("delete", "CheckConfiguration", "prod/polled", nil)
	}, func() bool {
		eye.poll("polls") // it was told of them: each is rolled out once, and taken back
		return s.ledger.all("prod/cpu", deployment.AwaitingDeletion, 1) && s.ledger.all("prod/polled", deployment.AwaitingDeletion, 0)
	})
	require.Empty(t, eye.intervals())
	s.ledger.check(t)
	for _, p := range append(h.services, h.servers...) {
		kills, crashes, strange := p.deaths()
		require.Positive(t, kills+len(crashes), "%s was never killed", p.name)
		require.Empty(t, strange, p.name)
	}
	pokes, doubled := eye.counts()
	t.Logf("%d pokes, of which %d for what was done before; %d events of deployments", pokes, doubled, s.ledger.count())
}

// checkStory is the test while it goes on.
type checkStory struct {
	t      *testing.T
	ctx    context.Context
	h      *house
	d      *door
	eye    *eye
	ledger *checkLedger
	n      int
}

// send sends a command until it is decided; it must be accepted.
func (s *checkStory) send(verb, kind, name string, spec any) {
	s.t.Helper()
	s.n++
	id := fmt.Sprint("c", s.n)
	var body any = object{}
	if verb == "apply" {
		body = apply(kind, name, spec, nil)
	}
	encoded, err := json.Marshal(body)
	require.NoError(s.t, err)
	for {
		m := nats.NewMsg(bus.CommandSubject("api", s.d.project, kind, name, verb))
		m.Data = encoded
		m.Header["Content-Type"] = []string{"application/json"}
		m.Header["Drover-Request-Id"] = []string{id}
		ctx, cancel := context.WithTimeout(s.ctx, onceTimeout)
		reply, err := s.d.nc.RequestMsgWithContext(ctx, m)
		cancel()
		var a answer
		if err == nil {
			err = json.Unmarshal(reply.Data, &a)
		}
		if err == nil && a.Code != "overloaded" {
			require.Empty(s.t, a.Code, "%s %s %s: %s", verb, kind, name, a.Message)
			return
		}
		require.True(s.t, pause(s.ctx, 50*time.Millisecond), "%s %s %s is not answered: %v", verb, kind, name, err)
	}
}

// stage does something and waits for what must come of it, while every process is killed once.
func (s *checkStory) stage(name string, do func(), over func() bool) {
	s.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, s.h.patience(checkStage))
	defer cancel()
	var killing sync.WaitGroup
	killing.Go(func() {
		all := slices.Concat(s.h.services, s.h.servers)
		random := s.h.random
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, p := range all {
			point := ""
			switch service, _, _ := strings.Cut(p.name, "-"); {
			case service == "orchestrator" && random.IntN(2) == 0:
				point = []string{"orchestrator.before-batch:2", "orchestrator.after-batch:2", "orchestrator.before-reply:2"}[random.IntN(3)]
			case service == "notifier" && random.IntN(2) == 0:
				point = "notifier.after-poke:1"
			}
			p.kill(point)
			if !pause(ctx, time.Duration(100+random.IntN(250))*time.Millisecond) {
				return
			}
		}
	})
	do()
	for !over() {
		s.sweep()
		if !pause(ctx, 100*time.Millisecond) {
			s.ledger.tell(s.t)
			s.t.Fatalf("stage %q does not come to its end in %s", name, s.h.patience(checkStage))
		}
	}
	killing.Wait()
	for _, p := range slices.Concat(s.h.services, s.h.servers) {
		p.calm()
	}
	s.t.Logf("stage %q took %s", name, time.Since(began).Round(10*time.Millisecond))
}

// sweep asks for sweeps, as lifecycle does, which come by themselves every 20 s.
func (s *checkStory) sweep() {
	nc := s.h.connectAs(bus.Lifecycle)
	defer nc.Close()
	for p := range s.h.partitions {
		m := nats.NewMsg(bus.AskSubject(p))
		m.Header.Set(bus.HeaderVerb, "sweep")
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		_, _ = nc.RequestMsgWithContext(ctx, m) // one that nobody takes is one that was late
		cancel()
	}
}

// lists has the polling system ask: what is listed has its flag cleared; list all repeats it.
func (s *checkStory) lists() {
	s.t.Helper()
	ask := func(path string) (ids []string, code int) {
		s.t.Helper()
		for {
			e, err := s.eye.get(path)
			if err == nil && e.StatusCode != http.StatusServiceUnavailable && e.StatusCode != http.StatusPartialContent {
				for _, d := range e.Deployments {
					e.DeploymentsList = append(e.DeploymentsList, d.ID)
				}
				slices.Sort(e.DeploymentsList)
				return e.DeploymentsList, e.StatusCode
			}
			require.True(s.t, pause(s.ctx, 50*time.Millisecond), "%s: %v", path, err)
		}
	}
	all, code := ask("/deployments/monitoring/polls/all")
	require.Equal(s.t, 200, code)
	require.Len(s.t, all, checkNodes)
	pending, code := ask("/deployments/monitoring/polls")
	require.Equal(s.t, 404, code, "list all has cleared the flags: %v", pending)
	_, code = ask("/monitoringsystem/polls/deployment/state/")
	require.Equal(s.t, 200, code)
	again, code := ask("/monitoringsystem/polls/deployment/")
	require.Equal(s.t, 200, code)
	require.Equal(s.t, all, again)
	none, _ := ask("/monitoringsystem/nobody/deployment/")
	require.Empty(s.t, none)
}

// eye is a configuration service of a monitoring system: it fetches within the poke, applies, answers, and sends feedback.
type eye struct {
	t      *testing.T
	url    string
	bases  []string
	client *http.Client

	mu       sync.Mutex
	deployed map[string]uint64 // interval by instance
	lose     int               // answers of fetches that do not arrive, though they have moved the deployment on
	pokes    int
	doubled  int
	feedback sync.WaitGroup
}

func newEye(t *testing.T, h *house) *eye {
	t.Helper()
	e := &eye{t: t, bases: h.http, client: h.client(3 * time.Second), deployed: map[string]uint64{}, lose: 1}
	t.Cleanup(e.feedback.Wait)
	e.url = h.serveHTTP(http.HandlerFunc(e.notify))
	return e
}

// eyeEnvelope is as much of an answer as it reads.
type eyeEnvelope struct {
	StatusCode      int
	Errors          []string
	DeploymentsList []string
	Deployments     []struct {
		ID, Task      string
		CheckConfig   struct{ Interval uint64 }
		CheckInstance struct {
			InstanceID string
			Version    uint64
		}
		Node             struct{ Name string }
		MonitoringSystem struct{ Name string }
	}
}

func (e *eye) do(method, path string) (answer eyeEnvelope, err error) {
	for i := range e.bases { // one of the gateways may be down
		var request *http.Request
		request, err = http.NewRequestWithContext(e.t.Context(), method, e.bases[(i+len(path))%len(e.bases)]+path, nil)
		if err != nil {
			return answer, err
		}
		var response *http.Response
		if response, err = e.client.Do(request); err != nil {
			continue
		}
		var body []byte
		body, err = io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			continue
		}
		answer = eyeEnvelope{}
		if err = json.Unmarshal(body, &answer); err == nil && answer.StatusCode == http.StatusServiceUnavailable {
			err = errors.New("not now")
		}
		if err == nil {
			return answer, nil
		}
	}
	return answer, err
}

func (e *eye) get(path string) (eyeEnvelope, error) { return e.do(http.MethodGet, path) }

// notify takes a poke.
func (e *eye) notify(w http.ResponseWriter, r *http.Request) {
	var poke struct{ UUID, Path string }
	if r.Header.Get("Content-Type") != "application/json; charset=utf-8" || json.NewDecoder(r.Body).Decode(&poke) != nil || poke.Path != "/deployments/id" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	e.pokes++
	e.mu.Unlock()
	if !e.fetch(poke.Path, poke.UUID) { // the poke comes again, whatever the fetch has moved on
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// fetch fetches and applies a deployment, and sends feedback. It is stateless towards the order of what it fetches.
func (e *eye) fetch(path, id string) bool {
	got, err := e.get(path + "/" + id)
	if err != nil || got.StatusCode != http.StatusOK || len(got.Deployments) != 1 {
		return false
	}
	d := got.Deployments[0]
	if d.CheckInstance.InstanceID != id || d.Node.Name == "" || d.MonitoringSystem.Name == "" {
		e.t.Errorf("a deployment that no client could use: %+v", d)
	}
	e.mu.Lock()
	if e.lose > 0 {
		e.lose--
		e.mu.Unlock()
		return false
	}
	have, ok := e.deployed[id]
	switch d.Task {
	case "rollout":
		if ok && have == d.CheckConfig.Interval {
			e.doubled++
		} else if ok {
			e.t.Errorf("%s is to be rolled out with %d, and has %d: an update was sent", id, d.CheckConfig.Interval, have)
		}
		e.deployed[id] = d.CheckConfig.Interval
	case "deprovision":
		switch {
		case !ok:
			e.doubled++
		case have != d.CheckConfig.Interval:
			e.t.Errorf("%s is to be taken back with %d, and has %d", id, d.CheckConfig.Interval, have)
		}
		delete(e.deployed, id)
	default:
		e.t.Errorf("task %q", d.Task)
	}
	e.mu.Unlock()
	e.feedback.Go(func() {
		for {
			if _, err := e.do(http.MethodPatch, "/deployments/id/"+id+"/success"); err == nil || !pause(e.t.Context(), 20*time.Millisecond) {
				return
			}
		}
	})
	return true
}

// poll has a system that is not poked fetch what is outstanding.
func (e *eye) poll(system string) {
	if got, err := e.get("/deployments/monitoring/" + system + "/all"); err == nil {
		for _, id := range got.DeploymentsList {
			e.fetch("/deployments/id", id)
		}
	}
}

// intervals is how many instances are deployed with each interval.
func (e *eye) intervals() map[uint64]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	counts := map[uint64]int{}
	for _, interval := range e.deployed {
		counts[interval]++
	}
	return counts
}

func (e *eye) counts() (pokes, doubled int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pokes, e.doubled
}

// checkLedger is the whole history of instances and deployments, audited as it is read. Safe for concurrent use.
type checkLedger struct {
	mu          sync.Mutex
	deployments map[string]deployment.Configuration
	instances   map[string]deployment.State
	wrong       []string
	events      int
}

func newCheckLedger() *checkLedger {
	return &checkLedger{deployments: map[string]deployment.Configuration{}, instances: map[string]deployment.State{}}
}

func (l *checkLedger) fail(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

func (l *checkLedger) take(messages []stored) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		entity, _, _, err := bus.ParseLogSubject(m.Subject)
		switch {
		case err != nil:
			l.fail("%s: %v", m.Subject, err)
		case entity.Family == bus.Deployment:
			e, err := wire.DecodeDeployment(m.Body)
			if err != nil {
				l.fail("%s: %v", m.Subject, err)
				continue
			}
			l.events++
			if before := l.deployments[e.Configuration.ID]; before.Revision+1 != e.Configuration.Revision || before.Status != e.From {
				l.fail("%s: revision %d after %d, from %s after %s", m.Subject, e.Configuration.Revision, before.Revision, e.From, before.Status)
			}
			l.deployments[e.Configuration.ID] = e.Configuration
		case entity.Family == bus.Instance:
			e, err := wire.DecodeInstance(m.Body)
			if err != nil {
				l.fail("%s: %v", m.Subject, err)
				continue
			}
			s := e.State
			for i, c := range s.Configurations {
				s.Configurations[i] = l.deployments[c.ID] // stored right before it, or unchanged
				if full := &s.Configurations[i]; full.Status != c.Status || full.Revision != c.Revision {
					l.fail("%s says %s of version %d, which is %s", m.Subject, c.Status, c.Version, full.Status)
				}
			}
			before := l.instances[s.ID]
			for _, f := range deployment.Audit(&before, &s) {
				l.fail("%s revision %d: %s: %s", m.Subject, s.Revision, f.Rule, f.Of)
			}
			l.instances[s.ID] = s
		}
	}
}

// all reports whether there is one instance a node of a check, each with its present configuration in a status and version.
func (l *checkLedger) all(name string, status deployment.Status, version uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, s := range l.instances {
		if s.Check != name {
			continue
		}
		if c := s.Present(); c == nil || c.Status != status || c.Version != version {
			return false
		}
		n++
	}
	return n == checkNodes
}

func (l *checkLedger) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(t, l.wrong)
	for id, s := range l.instances {
		require.Len(t, s.Configurations, int(s.Versions), id)
		require.True(t, s.Ended(), id)
	}
}

func (l *checkLedger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events
}

// tell prints where all of them stand, and why.
func (l *checkLedger) tell(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Log(strings.Join(l.wrong, "\n"))
	for id, s := range l.instances {
		t.Logf("%s of %s on %s: present %+v, update available %v, deleted %v", id, s.Check, s.Object, s.Present().Status, s.UpdateAvailable, s.Deleted)
		for _, r := range deployment.Why(&s) {
			t.Logf("    %s: %s", r.Code, r.Text)
		}
	}
}
