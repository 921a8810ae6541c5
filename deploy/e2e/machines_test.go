package e2e_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/rebar/rebartest"
	"github.com/droverproject/drover/pkg/wire"
)

// silentMost is after how many looks at a parked machine whose task goes on a person lets it go on.
const silentMost = 50

// agentFlags have a gateway serve machine agents, with a certificate for this test.
func (h *house) agentFlags() []string {
	h.t.Helper()
	if h.secrets == nil {
		h.password = "the password of a test"
		h.secrets = h.forgeSecrets()
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports(h.t, 1)[0])
	h.rebar = append(h.rebar, "https://"+address)
	return append([]string{"--rebar", address}, h.secrets...)
}

// forgeSecrets makes the files with a certificate, the key that signs tokens and the operator's password: all gateways of a
// house have the same.
func (h *house) forgeSecrets() []string {
	h.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(h.t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(h.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(h.t, err)
	file := func(name string, body []byte) string {
		path := filepath.Join(h.dir, name)
		require.NoError(h.t, os.WriteFile(path, body, 0o600))
		return path
	}
	return []string{
		"--rebar-certificate", file("rebar.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})),
		"--rebar-certificate-key", file("rebar-key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		"--rebar-token-key", file("rebar-token-key", []byte(rand.Text()+rand.Text())),
		"--rebar-password", file("rebar-password", []byte(h.password+"\n")),
	}
}

// TestMachines: agents of several machines walk a workflow of two stages with three tasks, one of which is incomplete first,
// while the gateway, the orchestrators, the server and everything at once are killed in the middle of a task, and orchestrators
// die at their crash points. A person lets parked machines go on. In the end every task was finished once and in order, and the
// log passes the audit.
func TestMachines(t *testing.T) {
	t.Parallel()
	onServers(t, machines)
}

func machines(t *testing.T, on ground) {
	h := on.house(t, plan{intakes: 1, orchestrators: 2, lifecycles: 1, gateways: 1, guarded: true})
	ctx, cancel := context.WithTimeout(h.ctx, h.patience(3*time.Minute))
	defer cancel()
	nc := h.connect()
	t.Cleanup(nc.Close)
	site := &yard{t: t, ctx: ctx, house: h, door: h.door(nc), killed: map[string]bool{}, ran: map[string][]string{}}
	site.define()
	site.log = site.follow()
	site.operator = rebartest.Client{URL: h.rebar[0], HTTP: rebartest.NewHTTP()}
	t.Cleanup(site.operator.HTTP.CloseIdleConnections)
	site.login()

	type stroke struct {
		task string
		kill func()
	}
	everything := func() { site.killServers(); site.kill("orchestrator", ""); site.kill("gateway", "") }
	strokes := []stroke{
		{"", func() {}},
		{"a", func() { site.kill("gateway", "") }},
		{"b", func() { site.kill("orchestrator", "") }},
		{"a", func() { site.killServers() }},
		{"c", everything},
		{"c", func() { site.kill("orchestrator", "orchestrator.after-batch:1") }},
		{"b", func() { site.kill("orchestrator", "orchestrator.before-reply:2") }},
		{"a", func() { site.kill("orchestrator", "orchestrator.before-append:1") }},
	}
	if len(h.servers) > 1 { // what a cluster adds: one of its servers, and all of it
		strokes = []stroke{{"", func() {}}, {"a", func() { h.servers[0].kill("") }}, {"b", func() { site.kill("gateway", "") }}, {"c", everything}}
	}
	minding, mind := context.WithCancel(ctx)
	var people, agents sync.WaitGroup
	for i, stroke := range strokes {
		m := site.add(fmt.Sprintf("m%d", i))
		people.Go(func() { site.mind(minding, m.Uuid) })
		agents.Go(func() { site.drive(m, stroke.task, stroke.kill) })
	}
	agents.Wait()
	mind()
	people.Wait()
	if t.Failed() {
		return
	}
	require.Len(t, site.killed, len(strokes)-1, "every stroke fell in the middle of its task")
	for _, p := range slices.Concat(h.services, h.servers) {
		kills, crashes, strange := p.deaths()
		t.Log(p.name, "killed", kills, "crashed at", crashes, "ended otherwise", strange)
	}
	site.audit(len(strokes))
}

// yard is where machines stand.
type yard struct {
	t        *testing.T
	ctx      context.Context
	house    *house
	door     *door
	operator rebartest.Client
	log      *machineLog

	mu     sync.Mutex
	killed map[string]bool
	ran    map[string][]string // tasks by machine, as its agent was told to run them
}

func (y *yard) kill(service, point string) {
	for _, p := range y.house.service(service) {
		p.kill(point)
	}
}

func (y *yard) killServers() {
	for _, p := range y.house.servers {
		p.kill("")
	}
}

// apply sends a manifest until it is accepted.
func (y *yard) apply(kind, name string, spec any) {
	y.t.Helper()
	a, err := y.door.request(y.ctx, command{Kind: kind, Name: name, Verb: "apply", ID: "apply-" + name, Body: apply(kind, name, spec, nil)})
	require.NoError(y.t, err)
	require.Empty(y.t, a.Code, "%s %s: %s", kind, name, a.Message)
}

func (y *yard) define() {
	y.t.Helper()
	for _, name := range []string{"a", "b", "c"} {
		y.apply("Task", name, object{"templates": list{object{"name": "script", "contents": "#!/bin/sh\necho {{.Machine.Name}} " + name + "\n"}}})
	}
	y.apply("Stage", "first", object{"bootEnv": "local", "tasks": list{"a", "b"}})
	y.apply("Stage", "second", object{"tasks": list{"c"}})
	y.apply("Workflow", "install", object{"stages": list{"first", "second"}})
}

// eventually tries again what an outage may break.
func (y *yard) eventually(what string, try func() error) {
	y.t.Helper()
	var err error
	for y.ctx.Err() == nil {
		if err = try(); err == nil {
			return
		}
		pause(y.ctx, 50*time.Millisecond)
	}
	y.t.Errorf("%s: %v", what, err)
}

func (y *yard) login() {
	y.t.Helper()
	y.eventually("login", func() error {
		r, err := http.NewRequestWithContext(y.ctx, http.MethodGet, y.operator.URL+"/api/v3/users/rocketskates/token", nil)
		require.NoError(y.t, err)
		r.SetBasicAuth("rocketskates", y.house.password)
		answer, err := y.operator.HTTP.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var given struct{ Token string }
		err = json.NewDecoder(answer.Body).Decode(&given)
		y.operator.Token = given.Token
		return err
	})
}

func (y *yard) add(name string) (m rebartest.Machine) {
	y.t.Helper()
	y.apply("Machine", name, object{"workflow": "install"})
	y.eventually("machine "+name, func() error {
		_, err := y.operator.Do(y.ctx, "GET", "/machines/Name:"+name, nil, &m)
		return err
	})
	return m
}

// mind is a person who lets a parked machine go on, once its run says why it is parked; or where it says nothing for long: an
// agent that was cut off between its two last words (not runnable, and how the task ended) waits for somebody (facts, section
// 2.1: it then asks for its next run, is told that it has one, and fails that).
func (y *yard) mind(ctx context.Context, uuid string) {
	silent := 0
	for pause(ctx, 100*time.Millisecond) {
		var m rebartest.Machine
		var job rebartest.Job
		if _, err := y.operator.Do(ctx, "GET", "/machines/"+uuid, nil, &m); err != nil || m.Runnable || m.CurrentJob == "" {
			continue
		}
		if _, err := y.operator.Do(ctx, "GET", "/jobs/"+m.CurrentJob, nil, &job); err != nil {
			continue
		}
		if silent++; job.State != "failed" && job.State != "incomplete" && silent < silentMost {
			continue
		}
		silent = 0
		ops := []rebartest.Op{{Op: "test", Path: "/Runnable", Value: false}, {Op: "replace", Path: "/Runnable", Value: true}}
		_, _ = y.operator.Do(ctx, "PATCH", "/machines/"+uuid, ops, nil) // it tries again
	}
}

// drive plays the agent of a machine; the stroke falls while it runs the task for the first time.
func (y *yard) drive(m rebartest.Machine, task string, stroke func()) {
	var given struct{ Token string }
	y.eventually("token", func() error {
		_, err := y.operator.Do(y.ctx, "GET", "/machines/"+m.Uuid+"/token", nil, &given)
		return err
	})
	agent := &rebartest.Agent{
		Client: rebartest.Client{URL: y.operator.URL, HTTP: y.operator.HTTP, Token: given.Token}, Machine: m.Uuid,
		Pause: 200 * time.Millisecond, WaitMost: time.Hour,
		Run: func(ctx context.Context, job rebartest.Job, actions []rebartest.Action) (string, int) {
			y.mu.Lock()
			first := !slices.Contains(y.ran[m.Name], job.Task)
			y.ran[m.Name] = append(y.ran[m.Name], job.Task)
			strike := job.Task == task && !y.killed[m.Name]
			if strike {
				y.killed[m.Name] = true
			}
			y.mu.Unlock()
			if len(actions) != 1 || actions[0].Content != "#!/bin/sh\necho "+m.Name+" "+job.Task+"\n" {
				y.t.Errorf("%s was told to do %+v for %s", m.Name, actions, job.Task)
			}
			if strike {
				stroke()
			}
			pause(ctx, 20*time.Millisecond)
			if job.Task == "b" && first {
				return "not yet\n", rebartest.ExitIncomplete
			}
			return "did it\n", 0
		},
		Note: func(err error) { y.t.Logf("%s: %v", m.Name, err) },
	}
	if err := agent.Drive(y.ctx, func(m rebartest.Machine) bool { return m.CurrentTask >= len(m.Tasks) }); err != nil {
		y.t.Errorf("%s does not come to its end: %v", m.Name, err)
	}
}

// machineLog is all that the log was told of machines and their runs, in its order.
type machineLog struct {
	mu      sync.Mutex
	entries []machineEntry
}

type machineEntry struct {
	seq     uint64
	at      time.Time // when the server stored it
	read    time.Time
	machine *wire.MachineEvent
	run     *wire.TaskRunEvent
}

// follow reads along: EVENTS keeps eight events of a machine.
func (y *yard) follow() *machineLog {
	y.t.Helper()
	l := &machineLog{}
	nc := y.house.connect()
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	for _, family := range []bus.Family{bus.Machine, bus.TaskRun} {
		readers.Go(func() {
			readFrom(ctx, nc, "EVENTS", "drover.log.*."+string(family)+"."+y.house.project+".>", y.house.from, func(got []stored) {
				for _, m := range got {
					l.add(y.t, family, m)
				}
			})
		})
	}
	y.t.Cleanup(func() {
		cancel()
		readers.Wait()
		nc.Close()
	})
	return l
}

func (l *machineLog) add(t *testing.T, family bus.Family, m stored) {
	e := machineEntry{seq: m.Seq, at: m.At, read: time.Now()}
	var err error
	if family == bus.Machine {
		e.machine = &wire.MachineEvent{}
		*e.machine, err = wire.DecodeMachine(m.Body)
	} else {
		e.run = &wire.TaskRunEvent{}
		*e.run, err = wire.DecodeTaskRun(m.Body)
	}
	if err != nil {
		t.Error(err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
}

// overtaken reports whether the events between a machine's revision before and the one of e had gone when e was read: EVENTS keeps
// eight of a machine, so that the seventh after e was there by then. Who reads along is cut off with the server. The lock must be held.
func (l *machineLog) overtaken(e machineEntry) bool {
	const kept = 8
	return slices.ContainsFunc(l.entries, func(later machineEntry) bool {
		return later.machine != nil && later.machine.State.Name == e.machine.State.Name &&
			later.machine.State.Revision == e.machine.State.Revision+kept-1 && !later.at.After(e.read)
	})
}

// audit holds the log to the promises: revisions without a gap, runs by their table and one at a time, failures that park,
// every task finished once and in order; and the buckets to the log.
func (y *yard) audit(machines int) {
	t := y.t
	t.Helper()
	done := func() bool {
		y.log.mu.Lock()
		defer y.log.mu.Unlock()
		at := map[string]int{}
		for _, e := range y.log.entries {
			if e.machine != nil {
				at[e.machine.State.Name] = e.machine.State.CurrentTask
			}
		}
		n := 0
		for _, place := range at {
			if place == 6 {
				n++
			}
		}
		return n == machines
	}
	require.Eventually(t, done, time.Minute, 20*time.Millisecond, "what the agents were told is in the log")
	y.log.mu.Lock()
	defer y.log.mu.Unlock()
	slices.SortFunc(y.log.entries, func(a, b machineEntry) int { return cmp.Compare(a.seq, b.seq) })
	states, runs := map[string]machine.State{}, map[string]machine.Run{}
	open, finished, gaps := map[string]string{}, map[string][]string{}, 0
	for i, e := range y.log.entries {
		if m := e.machine; m != nil {
			before := states[m.State.Name]
			if before.Revision+1 != m.State.Revision && y.log.overtaken(e) {
				gaps++
			} else {
				require.Equal(t, before.Revision+1, m.State.Revision, "revisions of %s", m.State.Name)
			}
			require.False(t, m.State.UpdatedAt.Before(before.UpdatedAt), "time of %s", m.State.Name)
			states[m.State.Name] = m.State
			continue
		}
		r := e.run.Run
		before := runs[r.ID]
		require.Equal(t, before.Revision+1, r.Revision, "revisions of run %s", r.ID)
		require.Equal(t, before.State, e.run.From)
		require.True(t, before.State == r.State || machine.May(before.State, r.State), "%s to %s", before.State, r.State)
		runs[r.ID] = r
		of := r.Machine.Name
		switch {
		case !r.State.Final():
			require.Contains(t, []string{"", r.ID}, open[of], "two runs of %s at once", of)
			open[of] = r.ID
		default:
			if open[of] == r.ID {
				delete(open, of)
			}
		}
		switch r.State {
		case machine.Finished:
			if !strings.ContainsRune(r.Task, ':') {
				finished[of] = append(finished[of], r.Task)
			}
		case machine.Failed:
			if states[of].Runnable { // then the same commit says otherwise: the next entry
				rest := y.log.entries[i+1:]
				k := slices.IndexFunc(rest, func(n machineEntry) bool { return n.machine != nil && n.machine.State.Name == of })
				require.GreaterOrEqual(t, k, 0)
				next := rest[k]
				if next.machine.State.Revision != states[of].Revision+1 {
					break // the log keeps eight events of an entity, and this reader was cut off for more than that
				}
				require.Equal(t, e.seq+1, next.seq, "a failure and the parking of its machine are one batch")
				require.NotNil(t, next.machine)
				require.Equal(t, of, next.machine.State.Name)
				require.False(t, next.machine.State.Runnable)
			}
		default:
		}
	}
	require.Empty(t, open)
	require.Less(t, gaps, 2*machines, "too much had gone before it was read to judge the rest")
	for name, s := range states {
		require.Equal(t, []string{"a", "b", "c"}, finished[name], name)
		require.Equal(t, 6, s.CurrentTask, name)
		require.Equal(t, "second", s.Stage, name)
		require.Equal(t, machine.Done, s.Condition(), name)
		require.Equal(t, "c", runs[s.CurrentJob].Task, name)
		t.Logf("%s ran %v, %d revisions", name, y.ran[name], s.Revision)
	}
	for name, s := range states {
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(y.ctx, onceTimeout) // an answer is lost with the server that owed it
			defer cancel()
			kv, err := y.door.js.KeyValue(ctx, bus.Machine.Bucket())
			if err != nil {
				return false
			}
			entry, err := kv.Get(ctx, y.house.project+"."+name)
			if err != nil {
				return false
			}
			m, err := wire.DecodeMachine(entry.Value())
			return err == nil && m.State.Revision == s.Revision
		}, time.Minute, 20*time.Millisecond, "the bucket has %s", name)
	}
}
