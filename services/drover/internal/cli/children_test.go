package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// orchard is a system with an execution of 40 items: one has failed, one is at work, four are done, the others wait.
func orchard(t *testing.T) *shelf {
	t.Helper()
	s := newShelf(t)
	ref := func(state job.State, handed bool) job.Ref {
		j := job.Ref{ID: "job-1", Verb: "reconcile", Target: "Succeeded", Blueprint: "d1", State: state, AcceptedAt: at, StartedAt: at, Handed: handed}
		if state.Final() {
			j.EndedAt = at.Add(time.Second)
		}
		if state == job.Failed {
			j.Message = "phase install failed: no such chart"
		}
		return j
	}
	put := func(state resource.State) {
		state.CreatedAt, state.UpdatedAt, state.MinReader, state.Revision, state.Generation = at, at, 1, 1, 1
		s.resource(wire.ResourceEvent{Event: resource.Event{JobID: "job-1", Cause: resource.Cause{Kind: "continue"}}, State: state, At: at})
	}
	s.blueprint("execution", `{"lifecycle":"execution","phases":[
		{"name":"make","states":["Init"],"executor":{"children":{"do":"apply","items":"items","kind":"deployitem"}}},
		{"name":"run","states":["Progressing"],"executor":{"children":{"do":"run"}}}]}`)
	oak := resource.Key{Project: "default", Kind: "execution", Name: "oak"}
	put(resource.State{
		Key: oak, UID: "uid-oak", State: "Progressing", Target: "Succeeded", SpecDigest: "s1", Jobs: []job.Ref{ref(job.Running, false)},
		Children: resource.Brood{Items: 40, Applied: true, Waiting: 34, Running: 1, Failed: 1, Succeeded: 4},
		Phases: []resource.PhaseRun{{
			Name: "run", Status: resource.Running, State: "Progressing", JobID: "job-1", Attempt: 1, Call: 1, InFlight: true, Children: true, Since: at,
			Message: "nothing more begins: 1 children failed: i0 failed",
		}},
	})
	var items strings.Builder
	for i := range 40 {
		name := fmt.Sprintf("i%d", i)
		fmt.Fprintf(&items, `,{"name":%q,"spec":{}}`, name)
		child := resource.State{
			Key: resource.Key{Project: "default", Kind: "deployitem", Name: "oak/" + name}, UID: "uid-" + name,
			Parent: resource.Parent{Kind: "execution", Name: "oak", UID: "uid-oak", RootKind: "execution", Item: name, Index: uint32(i)},
		}
		switch {
		case i == 0:
			child.State, child.Target, child.Jobs, child.PhaseFailed = "Failed", "Succeeded", []job.Ref{ref(job.Failed, true)}, true
		case i == 7:
			child.State, child.Target, child.Jobs = "Progressing", "Succeeded", []job.Ref{ref(job.Running, true)}
			child.Phases = []resource.PhaseRun{{Name: "install", Status: resource.Waiting, State: "Progressing", JobID: "job-1", Attempt: 1, Call: 1, InFlight: true, Since: at}}
		case i < 6:
			child.State, child.Target, child.Jobs = "Succeeded", "Succeeded", []job.Ref{ref(job.Succeeded, true)}
			if i == 5 { // it was there before, and waits for this job
				child.Jobs[0].ID = "job-0"
			}
		default:
			child.Parent.DependsOn = []string{"i0", "i7"}
		}
		put(child)
	}
	s.spec(oak, "s1", `{"items":[`+items.String()[1:]+`]}`)
	return s
}

// TestTreeOutput holds what is seen of an execution and its items against testdata.
func TestTreeOutput(t *testing.T) {
	t.Parallel()
	s := orchard(t)
	for name, args := range map[string]string{
		"tree-get":      "get execution",
		"tree-describe": "describe execution/oak",
		"tree-child":    "describe deployitem/oak/i9",
		"tree-failed":   "describe deployitem/oak/i0",
		"tree-graph":    "graph execution/oak --items 6",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, name, drover(t, app(s.system), strings.Fields(args)...))
		})
	}
	r := drover(t, app(s.system), "describe", "execution/oak", "-o", "yaml")
	require.Contains(t, r.out, "name: i39", "what is cut is there in another form")
}
