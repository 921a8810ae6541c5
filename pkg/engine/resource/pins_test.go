package resource_test

import (
	"slices"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

func TestPins(t *testing.T) {
	t.Parallel()
	state := func(digests ...string) resource.State {
		s := resource.State{UID: "u"}
		for i, d := range digests {
			s.Jobs = append(s.Jobs, job.Ref{ID: d, Blueprint: d, State: job.States()[1+i%5]})
		}
		return s
	}
	gone := state("a")
	gone.Gone = true
	for name, c := range map[string]struct {
		s    resource.State
		want []string
	}{
		"no job":                {state(), nil},
		"a verb without a flow": {state(""), nil},
		"in every state":        {state("a", "b", "c", "d", "e"), []string{"a", "b", "c", "d", "e"}},
		"two of one version":    {state("a", "b", "a"), []string{"a", "b"}},
		"gone":                  {gone, nil},
		"never there":           {resource.State{Jobs: state("a").Jobs}, nil},
	} {
		if got := c.s.Pins(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestNoResourceIsCreatedOfARetiredBlueprint: what is there is still driven.
func TestNoResourceIsCreatedOfARetiredBlueprint(t *testing.T) {
	t.Parallel()
	key := resource.Key{Project: "p", Kind: "node", Name: "n"}
	env := resource.Env{Retired: true, Blueprint: &blueprint.Blueprint{Digest: "d", Lifecycle: blueprint.Lifecycle{
		Flows: []blueprint.Flow{{Verb: "start", Target: "Started"}},
	}}}
	at := time.Unix(1, 0)
	apply := resource.Input{Kind: resource.OnCommand, At: at, Command: &resource.Command{
		Key: key, Verb: resource.VerbApply, RequestID: "1", JobID: "j1", NewUID: "u", SpecDigest: "s",
	}}
	_, fx := resource.Step(resource.State{Key: key}, apply, env)
	if fx.Event != nil || fx.Reply == nil || fx.Reply.Refused == nil || fx.Reply.Refused.Code != resource.Conflict {
		t.Fatalf("created: %+v", fx)
	}
	env.Retired = false
	s, _ := resource.Step(resource.State{Key: key}, apply, env)
	env.Retired = true
	apply.Command.RequestID, apply.Command.JobID, apply.Command.SpecDigest = "2", "j2", "s2"
	if s, fx = resource.Step(s, apply, env); fx.Event == nil || s.Generation != 2 {
		t.Fatalf("not changed: %+v", fx)
	}
}
