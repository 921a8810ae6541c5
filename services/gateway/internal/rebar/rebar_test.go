package rebar_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/rebar/rebartest"
	"github.com/droverproject/drover/services/gateway/internal/rebar"
)

func (h *house) login(c *rebartest.Client, name, password string) string {
	h.t.Helper()
	status, body, _ := h.raw("GET", "/users/"+rebar.Operator+"/token", func(r *http.Request) { r.SetBasicAuth(name, password) }, c.HTTP)
	require.Equal(h.t, http.StatusOK, status, body)
	var given struct{ Token string }
	require.NoError(h.t, json.Unmarshal([]byte(body), &given))
	return given.Token
}

func (h *house) raw(method, path string, with func(*http.Request), client *http.Client) (int, string, http.Header) {
	h.t.Helper()
	r, err := http.NewRequestWithContext(h.t.Context(), method, h.url+"/api/v3"+path, nil)
	require.NoError(h.t, err)
	with(r)
	answer, err := client.Do(r)
	require.NoError(h.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(h.t, err)
	return answer.StatusCode, string(body), answer.Header
}

func code(t *testing.T, err error) int {
	t.Helper()
	var e *rebartest.Error
	require.ErrorAs(t, err, &e)
	return e.Code
}

// TestAgent: an agent walks a workflow of two stages with three tasks, the second of which is incomplete first.
func TestAgent(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.definitions()
	h.accepted("Machine", "m1", `{"workflow":"install","params":{"size":3}}`)
	operator := h.operator()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var m rebartest.Machine
	_, err := operator.Do(ctx, "GET", "/machines/Name:m1", nil, &m)
	require.NoError(t, err)
	require.Equal(t, []string{"stage:first", "bootenv:local", "a", "b", "stage:second", "c"}, m.Tasks)
	require.Equal(t, -1, m.CurrentTask)

	var mu sync.Mutex
	var ran, said []string
	parked, waits := make(chan struct{}, 1), make(chan struct{}, 1)
	agent := &rebartest.Agent{
		Client: h.agentOf(operator, m.Uuid), Machine: m.Uuid, Pause: 50 * time.Millisecond, WaitMost: time.Hour,
		Run: func(_ context.Context, job rebartest.Job, actions []rebartest.Action) (string, int) {
			mu.Lock()
			defer mu.Unlock()
			ran, said = append(ran, job.Task), append(said, actions[0].Content)
			if job.Task == "b" && slices.Index(ran, "b") == len(ran)-1 {
				parked <- struct{}{}
				return "not yet\n", rebartest.ExitIncomplete
			}
			return "did " + job.Task + "\n", 0
		},
		Waits: func(m rebartest.Machine) {
			if !m.Runnable {
				select {
				case waits <- struct{}{}:
				default:
				}
			}
		},
		Note: func(err error) { t.Log(err) },
	}
	done := make(chan error, 1)
	go func() {
		done <- agent.Drive(ctx, func(m rebartest.Machine) bool { return m.CurrentTask >= len(m.Tasks) })
	}()
	<-parked
	require.Eventually(t, func() bool { // it waits until somebody lets it go on
		_, err := operator.Do(ctx, "GET", "/machines/"+m.Uuid, nil, &m)
		return err == nil && !m.Runnable
	}, 30*time.Second, 10*time.Millisecond)
	incomplete := rebartest.Job{Uuid: m.CurrentJob}
	require.Eventually(t, func() bool {
		_, err := operator.Do(ctx, "GET", "/jobs/"+incomplete.Uuid, nil, &incomplete)
		return err == nil && incomplete.State == "incomplete"
	}, 30*time.Second, 10*time.Millisecond)
	<-waits // from here on nothing but an event moves it
	_, err = operator.Do(ctx, "PATCH", "/machines/"+m.Uuid, []rebartest.Op{{Op: "replace", Path: "/Runnable", Value: true}}, &m)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Equal(t, []string{"a", "b", "b", "c"}, ran)
	require.Equal(t, "#!/bin/sh\necho m1 3\n", said[0])
	_, err = operator.Do(ctx, "GET", "/machines/"+m.Uuid, nil, &m)
	require.NoError(t, err)
	require.Equal(t, 6, m.CurrentTask)
	require.Equal(t, "second", m.Stage)
	require.Equal(t, "local", m.BootEnv)
	var log string
	_, err = operator.Do(ctx, "GET", "/jobs/"+incomplete.Uuid+"/log", nil, &log)
	require.NoError(t, err)
	require.Equal(t, "Log for Job: "+incomplete.Uuid+"\nnot yet\ntail\ndid b\ntail\n", log)
}

// TestAnswers: what is asked wrongly, and how that is said.
func TestAnswers(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.definitions()
	h.accepted("Machine", "m1", `{"workflow":"install","params":{"size":3}}`)
	h.accepted("Machine", "m2", `{}`)
	operator := h.operator()
	ctx := t.Context()
	var m, other rebartest.Machine
	_, err := operator.Do(ctx, "GET", "/machines/Name:m1", nil, &m)
	require.NoError(t, err)
	_, err = operator.Do(ctx, "GET", "/machines/Name:m2", nil, &other)
	require.NoError(t, err)
	agent := h.agentOf(operator, m.Uuid)

	status, body, header := h.raw("GET", "/info", func(*http.Request) {}, operator.HTTP)
	require.Equal(t, http.StatusUnauthorized, status)
	require.Empty(t, body)
	require.Equal(t, "dr-provision", header.Get("WWW-Authenticate"))
	for _, token := range []string{"x", "drover1.e30.x", agent.Token + "x", strings.Replace(agent.Token, "drover1", "drover2", 1)} {
		status, _, _ = h.raw("GET", "/info", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }, operator.HTTP)
		require.Equal(t, http.StatusForbidden, status)
	}
	status, _, _ = h.raw("GET", "/info", func(r *http.Request) { r.SetBasicAuth(rebar.Operator, "wrong") }, operator.HTTP)
	require.Equal(t, http.StatusForbidden, status)
	var info struct{ Features []string }
	_, err = agent.Do(ctx, "GET", "/info", nil, &info)
	require.NoError(t, err)
	require.Contains(t, info.Features, "auto-boot-target")
	require.NotContains(t, info.Features, "agent-auto-update")

	unknown := "0001c0de-0000-4000-8000-000000000000"
	job, status, err := agent.Next(ctx, m.Uuid, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, status, "the stage was taken on")
	require.Empty(t, job.State)
	_, err = operator.Do(ctx, "PATCH", "/machines/"+m.Uuid, []rebartest.Op{{Op: "replace", Path: "/Runnable", Value: true}}, nil)
	require.NoError(t, err)
	job, status, err = agent.Next(ctx, m.Uuid, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, status)
	again, status, err := agent.Next(ctx, m.Uuid, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, status, "an answer that was lost costs nothing")
	require.Equal(t, job, again)
	_, err = agent.Report(ctx, job, "running", "")
	require.NoError(t, err)

	state := func(from, to string) []rebartest.Op {
		return []rebartest.Op{{Op: "test", Path: "/State", Value: from}, {Op: "replace", Path: "/State", Value: to}}
	}
	for _, c := range []struct {
		name, method, path string
		body               any
		by                 rebartest.Client
		code               int
		says               string
	}{
		{"busy", "POST", "/jobs", map[string]string{"Machine": m.Uuid}, agent, 409, "already has a running job"},
		{"no machine", "POST", "/jobs", map[string]string{"Machine": unknown}, *operator, 422, "no such machine"},
		{"no machine's id", "POST", "/jobs", map[string]string{"Machine": "x"}, *operator, 422, "no such machine"},
		{"nothing", "POST", "/jobs", map[string]string{}, agent, 400, "Machine: is missing"},
		{"other's job", "POST", "/jobs", map[string]string{"Machine": other.Uuid}, agent, 403, "that machine alone"},
		{"other", "GET", "/machines/" + other.Uuid, nil, agent, 403, "that machine alone"},
		{"token of one's own", "GET", "/machines/" + m.Uuid + "/token", nil, agent, 403, "that machine alone"},
		{"unknown", "GET", "/machines/" + unknown, nil, *operator, 404, "Not Found"},
		{"unknown name", "GET", "/machines/Name:x", nil, *operator, 404, "Not Found"},
		{"no id", "GET", "/machines/x", nil, *operator, 404, "Not Found"},
		{"unknown job", "GET", "/jobs/" + unknown, nil, *operator, 404, "Not Found"},
		{"unknown job's log", "PUT", "/jobs/" + unknown + "/log", []byte("x"), *operator, 404, "Not Found"},
		{"log as JSON", "PUT", "/jobs/" + job.Uuid + "/log", "x", agent, 415, "octet-stream"},
		{"unknown task", "GET", "/tasks/x", nil, agent, 404, "Not Found"},
		{"unknown path", "GET", "/profiles/global", nil, agent, 404, "not served"},
		{"failed test", "PATCH", "/jobs/" + job.Uuid, state("created", "finished"), agent, 409, "Patch error at line 0: Test op failed."},
		{"bad state", "PATCH", "/jobs/" + job.Uuid, state("running", "sleeping"), agent, 422, "State: must be created"},
		{"back", "PATCH", "/jobs/" + job.Uuid, state("running", "created"), agent, 409, "cannot become created"},
		{"no patch", "PATCH", "/jobs/" + job.Uuid, map[string]string{}, agent, 400, "no JSON patch"},
		{"no such field", "PATCH", "/machines/" + m.Uuid, []rebartest.Op{{Op: "replace", Path: "/Colour", Value: "red"}}, agent, 400, "no such field"},
		{"read-only", "PATCH", "/machines/" + m.Uuid, []rebartest.Op{{Op: "replace", Path: "/Name", Value: "x"}}, agent, 422, "Name: is read-only"},
		{"under a workflow", "PATCH", "/machines/" + m.Uuid, []rebartest.Op{{Op: "replace", Path: "/Stage", Value: "second"}}, agent, 422, "read-only while workflow install"},
		{"unknown workflow", "PATCH", "/machines/" + m.Uuid, []rebartest.Op{{Op: "replace", Path: "/Workflow", Value: "x"}}, agent, 422, "there is no workflow x"},
		{"advanced", "PATCH", "/machines/" + m.Uuid, []rebartest.Op{{Op: "replace", Path: "/CurrentTask", Value: 5}}, agent, 422, "can only be set back"},
		{"move", "PATCH", "/machines/" + m.Uuid, []rebartest.Op{{Op: "move", Path: "/Stage"}}, agent, 400, "is not one of"},
	} {
		got, err := c.by.Do(ctx, c.method, c.path, c.body, nil)
		require.Error(t, err, c.name)
		require.Equal(t, c.code, got, "%s: %v", c.name, err)
		require.ErrorContains(t, err, c.says, c.name)
	}

	// The empty patch, a late log, a failure.
	var whole map[string]any
	_, err = agent.Do(ctx, "PATCH", "/machines/"+m.Uuid, []rebartest.Op{}, &whole)
	require.NoError(t, err)
	for _, field := range []string{"Uuid", "Runnable", "Available", "Meta", "Workflow", "BootEnv", "Context", "Params"} {
		require.Contains(t, whole, field)
	}
	running := job
	running.State = "running"
	failed, err := agent.Report(ctx, running, "failed", "failed")
	require.NoError(t, err)
	_, err = agent.Do(ctx, "GET", "/machines/"+m.Uuid, nil, &m)
	require.NoError(t, err)
	require.False(t, m.Runnable, "a failed task parks its machine in the same commit")
	status, err = agent.Do(ctx, "PUT", "/jobs/"+job.Uuid+"/log", bytes.Repeat([]byte("äöü"), 20_000), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, status)
	var log string
	_, err = agent.Do(ctx, "GET", "/jobs/"+job.Uuid+"/log", nil, &log)
	require.NoError(t, err)
	require.Equal(t, "Log for Job: "+job.Uuid+"\n"+strings.Repeat("äöü", 20_000), log)
	_, err = agent.Report(ctx, failed, "running", "")
	require.Equal(t, http.StatusConflict, code(t, err))
	_, _, err = agent.Next(ctx, m.Uuid, "")
	require.Equal(t, http.StatusConflict, code(t, err))

	// Parameters, with a slash in their name too.
	var value any
	_, err = agent.Do(ctx, "GET", "/machines/"+m.Uuid+"/params/change-stage/map?aggregate=true", nil, &value)
	require.NoError(t, err)
	require.Nil(t, value)
	_, err = agent.Do(ctx, "POST", "/machines/"+m.Uuid+"/params/a/b~c", map[string]int{"x": 1}, &value)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"x": 1.0}, value)
	_, err = agent.Do(ctx, "GET", "/machines/"+m.Uuid+"/params/a/b~c", nil, &value)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"x": 1.0}, value)
}

// TestHeld: while nobody decides a request waits, and is then answered as if nothing had been.
func TestHeld(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.definitions()
	h.accepted("Machine", "m1", `{"workflow":"install"}`)
	operator := h.operator()
	var m rebartest.Machine
	_, err := operator.Do(t.Context(), "GET", "/machines/Name:m1", nil, &m)
	require.NoError(t, err)
	for _, stop := range h.owners {
		stop()
	}
	type answer struct {
		status int
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		_, status, err := operator.Next(t.Context(), m.Uuid, "")
		answered <- answer{status, err}
	}()
	select {
	case a := <-answered:
		t.Fatalf("it was not held: %+v", a)
	case <-time.After(200 * time.Millisecond):
	}
	for n := range h.owners {
		h.owners[n] = h.own(n)
	}
	a := <-answered
	require.NoError(t, a.err)
	require.Equal(t, http.StatusNoContent, a.status)
}

// TestEvents: who registers is acknowledged, also twice, and hears of its own machine and of no other.
func TestEvents(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.accepted("Machine", "m1", `{}`)
	h.accepted("Machine", "m2", `{}`)
	operator := h.operator()
	ctx := t.Context()
	var m, other rebartest.Machine
	_, err := operator.Do(ctx, "GET", "/machines/Name:m1", nil, &m)
	require.NoError(t, err)
	_, err = operator.Do(ctx, "GET", "/machines/Name:m2", nil, &other)
	require.NoError(t, err)
	agent := h.agentOf(operator, m.Uuid)
	e, err := rebartest.Dial(ctx, h.url, agent.Token)
	require.NoError(t, err)
	defer e.Close()
	require.NoError(t, e.Register(ctx, "machines.update,save."+m.Uuid, "machines.*.*", "machines.*.*"))
	touch := func(uuid, text string) {
		_, err := operator.Do(ctx, "PATCH", "/machines/"+uuid, []rebartest.Op{{Op: "replace", Path: "/Description", Value: text}}, nil)
		require.NoError(t, err)
	}
	touch(other.Uuid, "one")
	touch(m.Uuid, "two")
	got, err := e.Hear(ctx, 10*time.Second)
	require.NoError(t, err)
	require.Equal(t, "machines update "+m.Uuid, got.Type+" "+got.Action+" "+got.Key)
	var object struct{ Description string }
	require.NoError(t, json.Unmarshal(got.Object, &object))
	require.Equal(t, "two", object.Description)
	require.NoError(t, e.Deregister(ctx, "machines.*.*", "machines.update,save."+m.Uuid))
	touch(m.Uuid, "three")
	require.NoError(t, e.Register(ctx, "jobs.*.*")) // what came before it would have been heard before its acknowledgement
	got, err = e.Hear(ctx, 50*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, got.Type)

	_, err = rebartest.Dial(ctx, h.url, "no token")
	require.ErrorContains(t, err, "403")
	require.Error(t, e.Register(ctx, "nonsense"))
}

// TestIdleSocket: a websocket on which nothing happens for longer than a write may take is pinged, and still brings what comes.
func TestIdleSocket(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.server.SetPace(300*time.Millisecond, 100*time.Millisecond)
	h.accepted("Machine", "m1", `{}`)
	operator := h.operator()
	e, err := rebartest.Dial(t.Context(), h.url, operator.Token)
	require.NoError(t, err)
	defer e.Close()
	require.NoError(t, e.Register(t.Context(), "machines.*.*"))
	got, err := e.Hear(t.Context(), time.Second)
	require.NoError(t, err, "the websocket was dropped")
	require.Empty(t, got.Type)
	_, err = operator.Do(t.Context(), "PATCH", "/machines/Name:m1", []rebartest.Op{{Op: "replace", Path: "/Description", Value: "x"}}, nil)
	require.NoError(t, err)
	got, err = e.Hear(t.Context(), 10*time.Second)
	require.NoError(t, err)
	require.Equal(t, "machines", got.Type)
}

// FuzzToken: no token but those that were given is one.
func FuzzToken(f *testing.F) {
	f.Add("drover1.eyJlIjoxfQ.AAAA")
	f.Add("drover1..")
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		s, err := rebar.New(rebar.Options{Key: bytes.Repeat([]byte("k"), 32), Password: "p", Now: time.Now})
		require.NoError(t, err)
		w := &recorder{header: http.Header{}}
		r, err := http.NewRequest(http.MethodGet, "/api/v3/info", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		s.ServeHTTP(w, r)
		require.Equal(t, http.StatusForbidden, w.status)
	})
}

type recorder struct {
	header http.Header
	status int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *recorder) WriteHeader(status int)      { r.status = status }
