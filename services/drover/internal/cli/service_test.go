package cli

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

const serviceBlueprint = `{"lifecycle":"service","phases":[
	{"name":"vlan","executor":{"script":{"command":["true"]}},"undo":{"script":{"command":["true"]}},"autoDeploy":true,"idempotent":true},
	{"name":"port","executor":{"script":{"command":["true"]}},"undo":{"http":{"url":"http://h"}},"autoDeploy":false},
	{"name":"billing","executor":{"script":{"command":["true"]}},"undo":{"script":{"command":["true"]}}}]}`

const itemBlueprint = `{"lifecycle":"deployitem","phases":[
	{"name":"install","states":["Progressing"],"executor":{"plugin":{}}},
	{"name":"remove","states":["Deleting"],"executor":{"plugin":{}}}]}`

// actor drives one resource of a shelf by the engine itself, so that what is shown can be.
type actor struct {
	shelf *shelf
	bp    *blueprint.Blueprint
	at    time.Time
	state resource.State
	jobs  map[string]job.State
}

func (s *shelf) actor(kind, name, spec string) *actor {
	s.t.Helper()
	s.blueprint(kind, spec)
	bp, wrong := manifest.Blueprint("default", kind, []byte(spec))
	require.Empty(s.t, wrong)
	bp.Digest = "d1"
	return (&actor{shelf: s, bp: bp}).sibling(name)
}

// sibling drives another resource of the same kind.
func (a *actor) sibling(name string) *actor {
	key := resource.Key{Project: "default", Kind: a.bp.Kind, Name: name}
	return &actor{shelf: a.shelf, bp: a.bp, at: at, state: resource.State{Key: key}, jobs: map[string]job.State{}}
}

func (a *actor) tell(in resource.Input) {
	a.shelf.t.Helper()
	for more := true; more; in = (resource.Input{Kind: resource.OnContinue}) {
		in.At = a.at
		var fx resource.Effects
		a.state, fx = resource.Step(a.state, in, resource.Env{Blueprint: a.bp})
		if in.Kind == resource.OnCommand {
			require.NotNil(a.shelf.t, fx.Reply)
			require.Nil(a.shelf.t, fx.Reply.Refused)
		}
		require.NotNil(a.shelf.t, fx.Event, "%v", fx.Notes)
		a.shelf.resource(wire.ResourceEvent{Event: *fx.Event, State: a.state, At: a.at})
		more = fx.More
	}
	for _, ref := range a.state.Jobs {
		if from := a.jobs[ref.ID]; from != ref.State {
			a.jobs[ref.ID] = ref.State
			a.shelf.job(wire.JobEvent{At: a.at, From: from, Record: job.Record{
				Ref: ref, Project: "default", Kind: a.state.Kind, Name: a.state.Name, UID: a.state.UID, ResourceRevision: a.state.Revision,
				Revision: 1, MinReader: 1,
			}})
		}
	}
	a.at = a.at.Add(time.Second)
}

func (a *actor) ask(verb, id string) {
	a.shelf.t.Helper()
	a.tell(resource.Input{Kind: resource.OnCommand, Command: &resource.Command{
		Key: a.state.Key, Verb: verb, RequestID: "r-" + id, JobID: id, Digest: id, NewUID: "uid-" + a.state.Name, SpecDigest: "spec-" + id,
		RequestedBy: "ann",
	}})
}

func (a *actor) answer(phase string, outcome resource.Outcome, message string) {
	a.shelf.t.Helper()
	run := a.state.Phase(phase)
	require.NotNil(a.shelf.t, run)
	a.tell(resource.Input{Kind: resource.OnResult, Result: &resource.Result{
		Fence:   resource.Fence{UID: a.state.UID, JobID: run.JobID, Phase: phase, Attempt: run.Attempt, Call: run.Call},
		Outcome: outcome, Message: message,
	}})
}

// shops is a system with services, whose phases walk by themselves, and with an item whose jobs wait.
func shops(t *testing.T) *shelf {
	t.Helper()
	s := newShelf(t)
	gated := s.actor("service", "gated", serviceBlueprint)
	gated.ask("apply", "apply-1")
	gated.answer("vlan", resource.OutcomeCompleted, "")
	require.Equal(t, resource.Gated, gated.state.Phase("port").Status)

	for _, kind := range []struct{ name, end string }{{"deployed", ""}, {"broken", "port"}, {"retiring", "decom"}} {
		a := gated.sibling(kind.name)
		a.ask("apply", "apply-"+kind.name)
		a.answer("vlan", resource.OutcomeCompleted, "")
		a.ask("approve", "approve-"+kind.name)
		if kind.end == "port" {
			a.answer("port", resource.OutcomeFailed, "no such switch")
			continue
		}
		a.answer("port", resource.OutcomeCompleted, "")
		a.answer("billing", resource.OutcomeCompleted, "")
		if kind.end == "decom" {
			a.ask("decom", "decom-"+kind.name)
			a.answer("billing", resource.OutcomeCompleted, "")
		}
	}

	item := s.actor("item", "busy", itemBlueprint)
	item.ask("apply", "apply-i")
	item.ask("reconcile", "reconcile-1")
	item.ask("reconcile", "reconcile-2")
	item.ask("delete", "delete-1")
	return s
}

// TestServiceOutput holds what is seen of services and of queued jobs against testdata.
func TestServiceOutput(t *testing.T) {
	t.Parallel()
	s := shops(t)
	for name, args := range map[string]string{
		"service-get":           "get",
		"service-get-wide":      "get -o wide",
		"service-describe":      "describe service/gated",
		"service-broken":        "describe service/broken",
		"service-retiring":      "describe service/retiring",
		"service-describe-json": "describe service/gated item/busy -o json",
		"service-kind":          "describe blueprint/service",
		"service-blueprints":    "get blueprints",
		"service-graph":         "graph service",
		"service-graph-broken":  "graph service/broken",
		"queue-describe":        "describe item/busy",
		"queue-jobs":            "jobs list item/busy",
		"approve-help":          "approve --help",
		"decom-help":            "decom --help",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, name, drover(t, app(s.system), strings.Fields(args)...))
		})
	}
}

// TestEveryFlowHasACommand: the verbs of the presets are commands, but for those by which only deletion walks.
func TestEveryFlowHasACommand(t *testing.T) {
	t.Parallel()
	a := app(nil)
	a.fill()
	root := newRoot(a)
	for _, name := range manifest.Presets() {
		preset, _ := manifest.Preset(name)
		for _, f := range preset.Flows {
			if f.Verb == "uninstall" {
				continue
			}
			found, _, err := root.Find([]string{f.Verb})
			require.NoError(t, err, "verb %s of preset %s", f.Verb, name)
			require.Equal(t, f.Verb, found.Name())
		}
	}
	for _, f := range flows {
		require.True(t, slices.ContainsFunc(manifest.Presets(), func(name string) bool {
			preset, _ := manifest.Preset(name)
			_, ok := preset.Flow(f.verb)
			return ok && strings.Contains(f.of, name)
		}), "no preset that it names has verb %s", f.verb)
	}
}

// TestEveryReasonIsRendered: whatever the engine says of why, describe shows it and JSON has its code.
func TestEveryReasonIsRendered(t *testing.T) {
	t.Parallel()
	s := shops(t)
	for of, want := range map[string][]string{
		"service/gated": {
			"phase port waits for a person's approval", "next: approve with: drover approve service/gated --phase port\n",
			"phase billing is blocked on port (Gated)",
		},
		"item/busy": {
			"job reconcile-2 (reconcile) begins when job reconcile-1 has ended", "next: take it out with: drover jobs cancel reconcile-2\n",
			"job delete-1 (delete) begins when", "drover jobs cancel delete-1",
		},
	} {
		r := drover(t, app(s.system), "describe", of)
		for _, text := range want {
			require.Contains(t, r.out, text)
		}
	}
	r := drover(t, app(s.system), "describe", "service/gated", "item/busy", "-o", "json")
	require.Contains(t, r.out, `"code": "gated"`)
	require.Contains(t, r.out, `"code": "behind_job"`)
}

func TestServiceCompletions(t *testing.T) {
	t.Parallel()
	s := shops(t)
	for args, want := range map[string]string{
		"approve service/gated --phase ":    "port\n:4\n",
		"approve service/deployed --phase ": ":4\n",
		"approve --all service --phase ":    "port\n:4\n",
		"approve service/g":                 "service/broken\nservice/deployed\nservice/gated\nservice/retiring\n:4\n",
		"do ":                               "deploy\ndecom\nreactivate\nreconcile\nredeploy\nuninstall\nupdate\n:4\n",
	} {
		r := drover(t, app(s.system), append([]string{"__complete"}, strings.Split(args, " ")...)...)
		lines := strings.Split(strings.TrimSpace(want), "\n")
		require.ElementsMatch(t, lines, strings.Split(strings.TrimSpace(r.out), "\n"), args)
	}
	r := drover(t, app(s.system), "__complete", "app")
	require.Contains(t, r.out, "approve\t")
}

// TestApproveAndCancelAreAskedAs looks at what is sent.
func TestApproveAndCancelAreAskedAs(t *testing.T) {
	t.Parallel()
	s := shops(t)
	type asked struct {
		subject, request string
		args             map[string]string
		selector         string
		all              bool
	}
	var got []asked
	api(t, s.system, func(subject, request string, c wire.Command) (wire.Reply, bool) {
		got = append(got, asked{subject, request, c.Args, c.Selector, c.All})
		return wire.Reply{JobID: "j", Resource: "r"}, true
	})
	for _, args := range []string{
		"approve service/gated", "approve service/gated --phase port", "jobs cancel reconcile-2 -m no", "deploy service/gated", "retry item/busy --scope all",
		"delete service -l rack=a", "deploy --all service --request-id mine",
	} {
		r := drover(t, app(s.system), strings.Fields(args)...)
		require.Equal(t, ExitOK, r.code, "%s: %s", args, r.err)
	}
	require.Len(t, got, 7)
	require.Equal(t, asked{subject: "drover.api.default.service.=2D.delete", request: "REQUEST", selector: "rack=a"}, got[5])
	require.Equal(t, asked{subject: "drover.api.default.service.=2D.deploy", request: "mine", all: true}, got[6])
	require.Empty(t, got[0].args)
	require.Equal(t, map[string]string{"phase": "port"}, got[1].args)
	require.Equal(t, asked{
		subject: got[2].subject, request: "REQUEST-reconcile-", args: map[string]string{"job": "reconcile-2", "message": "no"},
	}, got[2])
	require.Empty(t, got[3].args)
	require.Equal(t, map[string]string{"scope": "all"}, got[4].args)

	for _, args := range [][]string{{"approve", "service/gated", "--phase", ""}, {"approve", "service/gated", "--phase", "a\n"}, {"approve"}} {
		require.Equal(t, ExitUsage, drover(t, app(s.system), args...).code, "%q", args)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	r := droverCtx(ctx, t, app(s.system), "approve", "service/gated", "--wait")
	require.Equal(t, ExitTimeout, r.code, r.err)
	require.Contains(t, r.out, "job apply-1", "it waits for the job that was held up")
	many, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	r = droverCtx(many, t, app(s.system), "approve", "--all", "service", "--wait")
	require.Equal(t, ExitTimeout, r.code, r.err)
	require.Contains(t, r.out, "job apply-1", "and so of many")
	require.NotContains(t, r.out, "service/broken", "and not for jobs that no gate holds up")
}

// TestManyOfOneJob: the items of a tree have the job of its root.
func TestManyOfOneJob(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.blueprint("node", nodeBlueprint)
	for _, name := range []string{"a", "b"} {
		item := state(name)
		item.State, item.Target = "Allocation", "Started"
		item.Jobs = []job.Ref{ref("tree", "start", "Started", job.Running)}
		item.Phases = []resource.PhaseRun{{Name: "create-volume", Status: resource.Gated, State: "Allocation", JobID: "tree", Since: at}}
		s.resource(wire.ResourceEvent{State: item, At: at})
	}
	record := job.Record{Project: "default", Kind: "node", Name: "root", Ref: ref("tree", "start", "Started", job.Running), Revision: 1}
	s.job(wire.JobEvent{Record: record, At: at})
	var approved atomic.Int32
	api(t, s.system, func(string, string, wire.Command) (wire.Reply, bool) {
		if approved.Add(1) == 2 {
			record.Ref, record.Revision = ref("tree", "start", "Started", job.Succeeded), 2
			s.job(wire.JobEvent{Record: record, From: job.Running, At: at})
		}
		return wire.Reply{JobID: "approve", Resource: "r"}, true
	})
	r := drover(t, app(s.system), "approve", "node/a", "node/b", "--wait", "-o", "json", "--timeout", "30s")
	require.Equal(t, ExitOK, r.code, "%s%s", r.out, r.err)
	var all []outcome
	require.NoError(t, json.Unmarshal([]byte(r.out), &all))
	require.Len(t, all, 2)
	for _, o := range all {
		require.Equal(t, "tree", o.JobID)
		require.Equal(t, job.Succeeded.String(), o.Result)
	}
}
