// Package rebartest plays a machine agent of Digital Rebar against /api/v3: what it sends, what it waits for, and what it does
// when it gets no answer are those of the real ones, as facts/digitalrebar.md has them (sections 2 and 5). It is for tests and
// for measuring, carries nothing out, and has a websocket of its own making, so that both ends of the wire are not one library.
package rebartest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// Machine is what an agent reads of its machine.
type Machine struct {
	Uuid, Name, CurrentJob, Stage, BootEnv, Workflow, Context string
	Tasks                                                     []string
	CurrentTask                                               int
	Runnable, Available                                       bool
	Meta                                                      map[string]string
}

// Job is what it reads of a job.
type Job struct {
	Uuid, Machine, Task, State, ExitState, Context string
	CurrentIndex                                   int
}

// Action is one part of a task.
type Action struct{ Name, Path, Content string }

// Error is an answer that is an error.
type Error struct {
	Model, Key, Type string
	Messages         []string
	Code             int
}

// Error is the answer in one line.
func (e *Error) Error() string {
	return fmt.Sprintf("%s %s %s: %d %v", e.Type, e.Model, e.Key, e.Code, e.Messages)
}

// Exit codes of tasks (facts, 2.7).
const (
	ExitStop       = 16
	ExitPoweroff   = 32
	ExitReboot     = 64
	ExitIncomplete = 128
)

// outcome is what an exit code makes of a job.
func outcome(code int) (state, exitState string, parks bool) {
	state, exitState = "finished", "complete"
	if code&ExitIncomplete != 0 {
		state, parks = "incomplete", true
	}
	switch code &^ ExitIncomplete {
	case 0:
	case ExitStop:
		exitState, parks = "stop", true
	case ExitPoweroff:
		exitState, parks = "poweroff", true
	case ExitReboot:
		exitState, parks = "reboot", true
	default:
		state, exitState, parks = "failed", "failed", true
	}
	return state, exitState, parks
}

// Client speaks to /api/v3. Safe for concurrent use.
type Client struct {
	URL   string // https://host:port
	Token string // Bearer
	HTTP  *http.Client
}

// NewHTTP returns a client that takes any certificate, as agents do. HTTP/2 where both sides can.
func NewHTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as the agents do (facts, 2.0)
		TLSHandshakeTimeout: time.Second, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64,
	}}
}

// Do sends a request as agents do, and fills v with the answer. It returns the status; an *Error for 400 and above.
func (c *Client) Do(ctx context.Context, method, path string, body, v any) (int, error) {
	var reader io.Reader
	contentType := "application/json"
	switch b := body.(type) {
	case nil:
	case []byte:
		reader, contentType = bytes.NewReader(b), "application/octet-stream"
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return 0, err
		}
		reader = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.URL+"/api/v3"+path, reader)
	if err != nil {
		return 0, err
	}
	r.Host = "unix" // it comes through the agent's own proxy (facts, 2.0)
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Cache-Control", "no-store")
	r.Header.Set("Authorization", "Bearer "+c.Token)
	if body != nil {
		r.Header.Set("Content-Type", contentType)
	}
	answer, err := c.HTTP.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return answer.StatusCode, err
	}
	switch kind := answer.Header.Get("Content-Type"); {
	case kind == "application/octet-stream" && answer.StatusCode == http.StatusOK:
		if out, ok := v.(*string); ok {
			*out = string(text)
		}
		return answer.StatusCode, nil
	case kind != "application/json":
		return answer.StatusCode, fmt.Errorf("%s %s: cannot handle content-type %q", method, path, kind)
	case answer.StatusCode >= http.StatusBadRequest:
		e := &Error{}
		if err := json.Unmarshal(text, e); err != nil || e.Code != answer.StatusCode {
			return answer.StatusCode, fmt.Errorf("%s %s: raw response %d %q", method, path, answer.StatusCode, text)
		}
		return answer.StatusCode, e
	case v != nil && len(text) > 0:
		return answer.StatusCode, json.Unmarshal(text, v)
	}
	return answer.StatusCode, nil
}

// Send sends a request that is made already, and fills v with the answer.
func (c *Client) Send(r *http.Request, v any) error {
	answer, err := c.HTTP.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", r.Method, r.URL.Path, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(v)
}

// Op is one operation of a patch; From is always sent, and always empty.
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// Next asks for the next job, with the body that agents send. Its State is empty where there is none.
func (c *Client) Next(ctx context.Context, machine, taskContext string) (job Job, status int, err error) {
	const empty = `{"Validated":false,"Available":false,"Errors":null,"ReadOnly":false,"Meta":null,"Endpoint":"","Bundle":"","Uuid":"",` +
		`"Previous":"","Machine":%q,"Task":"","Stage":"","Context":%q,"State":"","ExitState":"","StartTime":"0001-01-01T00:00:00Z",` +
		`"EndTime":"0001-01-01T00:00:00Z","Archived":false,"Current":false,"CurrentIndex":0,"NextIndex":0,"Workflow":"","BootEnv":""}`
	status, err = c.Do(ctx, "POST", "/jobs", json.RawMessage(fmt.Sprintf(empty, machine, taskContext)), &job)
	return job, status, err
}

// Report patches a job's state, testing the one that the agent knows; exitState is left out where it is empty.
func (c *Client) Report(ctx context.Context, job Job, state, exitState string) (Job, error) {
	ops := []Op{{Op: "test", Path: "/State", Value: job.State}, {Op: "replace", Path: "/State", Value: state}}
	if exitState != "" {
		ops = append(ops, Op{Op: "replace", Path: "/ExitState", Value: exitState})
	}
	var after Job
	_, err := c.Do(ctx, "PATCH", "/jobs/"+job.Uuid, ops, &after)
	if err == nil && (after.Uuid != job.Uuid || after.State != state) {
		err = fmt.Errorf("the job came back as %+v", after)
	}
	return after, err
}

// Agent drives one machine.
type Agent struct {
	Client
	Machine string // uuid
	Context string
	// Pause is what it sleeps after an error: 5 s in the real one.
	Pause time.Duration
	// WaitMost is how long it waits for an event before it reads its machine again: an hour in the real one.
	WaitMost time.Duration
	// Run carries a task out: what it prints, and its exit code.
	Run func(ctx context.Context, job Job, actions []Action) (output string, code int)
	// Waits is called when it begins to wait for an event. Nil: nobody is told.
	Waits func(m Machine)
	// Note is told what went wrong. Nil: nobody.
	Note func(err error)

	known  Machine // as it was read last; the real one remembers it, too
	events *Events
}

// errBoot says that the machine is to boot into another environment.
var errBoot = errors.New("the boot environment has changed")

// Drive plays the agent until its machine has nothing more to do and enough says so, or ctx ends. A reboot is a new start.
func (a *Agent) Drive(ctx context.Context, enough func(Machine) bool) error {
	defer func() { a.disconnect() }()
	for started := false; ctx.Err() == nil; {
		var err error
		if !started {
			err = a.start(ctx)
			started = err == nil
		}
		if err == nil {
			err = a.begin(ctx)
		}
		for err == nil {
			if err = a.waitRunnable(ctx); err == nil {
				var idle bool
				if idle, err = a.task(ctx); err == nil && idle {
					if enough(a.known) {
						return nil
					}
					err = a.waitChange(ctx)
				}
			}
		}
		a.disconnect()
		if errors.Is(err, errBoot) {
			started = false
			continue
		}
		if a.Note != nil && ctx.Err() == nil {
			a.Note(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(a.Pause):
		}
	}
	return ctx.Err()
}

func (a *Agent) disconnect() {
	if a.events != nil {
		a.events.Close()
		a.events = nil
	}
}

// start is what the service does once.
func (a *Agent) start(ctx context.Context) error {
	if err := a.read(ctx); err != nil {
		return err
	}
	_, err := a.Do(ctx, "PATCH", "/machines/"+a.Machine, []Op{{Op: "replace", Path: "/Runnable", Value: true}}, &a.known)
	if err == nil {
		_, err = a.Do(ctx, "GET", "/machines/"+a.Machine+"/params/runner-tmpdir?aggregate=true", nil, nil)
	}
	return err
}

func (a *Agent) read(ctx context.Context) error {
	var m Machine
	_, err := a.Do(ctx, "GET", "/machines/"+a.Machine, nil, &m)
	if err == nil {
		a.known = m
	}
	return err
}

// begin is AGENT_INIT: the job that the agent remembers is failed if it is not over.
func (a *Agent) begin(ctx context.Context) error {
	if a.known.CurrentJob != "" {
		var job Job
		if _, err := a.Do(ctx, "GET", "/jobs/"+a.known.CurrentJob, nil, &job); err == nil &&
			(job.State == "running" || job.State == "created") && job.Context == a.Context {
			if _, err := a.Report(ctx, job, "failed", ""); err != nil {
				return err
			}
		}
	}
	var err error
	a.events, err = Dial(ctx, a.URL, a.Token)
	return err
}

// wait registers, reads the machine until the condition holds, and deregisters.
func (a *Agent) wait(ctx context.Context, holds func(Machine) bool) error {
	names := []string{"machines.update." + a.Machine, "machines.save." + a.Machine}
	if err := a.events.Register(ctx, names...); err != nil {
		return err
	}
	for {
		if err := a.read(ctx); err != nil {
			return err
		}
		if holds(a.known) {
			return a.events.Deregister(ctx, names...)
		}
		if a.Waits != nil {
			a.Waits(a.known)
		}
		if err := a.events.Wait(ctx, a.WaitMost); err != nil {
			return err
		}
	}
}

func (a *Agent) waitRunnable(ctx context.Context) error {
	before := a.known.BootEnv
	err := a.wait(ctx, func(m Machine) bool {
		return m.BootEnv != before || m.Runnable && m.Available && m.Context == a.Context
	})
	if err == nil && a.known.BootEnv != before && a.Context == "" {
		return errBoot
	}
	return err
}

func (a *Agent) waitChange(ctx context.Context) error {
	was := a.known
	err := a.wait(ctx, func(m Machine) bool {
		return m.Available && (m.CurrentTask != was.CurrentTask || !slices.Equal(m.Tasks, was.Tasks) || m.Runnable != was.Runnable ||
			m.BootEnv != was.BootEnv || m.Stage != was.Stage || m.Context != was.Context)
	})
	if err == nil && a.known.BootEnv != was.BootEnv && a.Context == "" {
		return errBoot
	}
	return err
}

// task is AGENT_RUN_TASK. It returns true where there was no job.
func (a *Agent) task(ctx context.Context) (idle bool, err error) {
	job, status, err := a.Next(ctx, a.Machine, a.Context)
	switch {
	case err != nil:
		return false, err
	case job.State == "":
		if status != http.StatusNoContent {
			return false, fmt.Errorf("no job, and status %d", status)
		}
		if a.known.Workflow == "" {
			_, err = a.Do(ctx, "GET", "/machines/"+a.Machine+"/params/change-stage/map?aggregate=true", nil, nil)
		}
		return true, err
	}
	var task struct {
		Name string
		Meta map[string]string
	}
	if _, err := a.Do(ctx, "GET", "/tasks/"+job.Task, nil, &task); err != nil {
		return false, err
	}
	if task.Meta["feature-flags"] != "sane-exit-codes" {
		return false, fmt.Errorf("task %s has no sane exit codes: %v", task.Name, task.Meta)
	}
	if job, err = a.Report(ctx, job, "running", ""); err != nil {
		return false, err
	}
	var actions []Action
	code := 1
	if _, err := a.Do(ctx, "GET", "/jobs/"+job.Uuid+"/actions?os=linux", nil, &actions); err == nil {
		var output string
		output, code = a.Run(ctx, job, actions)
		if _, err := a.Do(ctx, "PUT", "/jobs/"+job.Uuid+"/log", []byte(output), nil); err != nil {
			code = 1 // the script gets a SIGPIPE (facts, 4.2)
		}
	}
	state, exitState, parks := outcome(code)
	if parks {
		ops := []Op{{Op: "test", Path: "/Runnable", Value: true}, {Op: "replace", Path: "/Runnable", Value: false}}
		if !a.known.Runnable {
			ops = []Op{}
		}
		if _, err := a.Do(ctx, "PATCH", "/machines/"+a.Machine, ops, &a.known); err != nil {
			return false, err
		}
	}
	if _, err = a.Report(ctx, job, state, exitState); err != nil {
		return false, err
	}
	_, err = a.Do(ctx, "PUT", "/jobs/"+job.Uuid+"/log", []byte("tail\n"), nil) // it comes after the end (facts, 4.1)
	return false, err
}
