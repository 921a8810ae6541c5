package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
)

// TestBlueprintDeletion deletes blueprints while the orchestrator dies at each point of it that has a name; once for each.
// Whoever is started next ends it: the same request is the same job, and nothing is left.
func TestBlueprintDeletion(t *testing.T) {
	t.Parallel()
	h := newHouse(t, plan{intakes: 1, orchestrators: 1, lifecycles: 1, unsynced: true})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	nc := h.connect()
	defer nc.Close()
	d, err := openDoor(nc)
	require.NoError(t, err)
	owner := h.service("orchestrator")[0]
	blueprint := func(kind, phase string) command {
		return command{Kind: "Blueprint", Name: kind, Verb: "apply", ID: "apply-" + phase, Body: apply("Blueprint", kind, object{
			"lifecycle": "node", "states": list{"On"},
			"phases": list{object{"name": phase, "states": list{"On"}, "executor": object{"plugin": object{}}}},
		}, nil)}
	}
	c := chronicleAfter(t, ctx, h, d, blueprint("used", "one"))
	for _, one := range []command{
		{Kind: "used", Name: "a", Verb: "apply", ID: "a", Body: apply("used", "a", object{}, nil)},
		{Kind: "used", Name: "b", Verb: "apply", ID: "b", Body: apply("used", "b", object{}, nil)},
	} {
		_, err := d.request(ctx, one)
		require.NoError(t, err)
	}
	a, err := d.request(ctx, command{Kind: "Blueprint", Name: "used", Verb: "delete", ID: "delete"})
	require.NoError(t, err)
	require.Equal(t, "conflict", a.Code)
	require.Regexp(t, "^2 resources use it, such as used/[ab]$", a.Message)

	for i, point := range []string{
		"orchestrator.before-append:1", "orchestrator.after-append:1", "orchestrator.after-append:2", "orchestrator.before-append:3",
		"orchestrator.after-append:3", "orchestrator.before-remove-phase:2", "orchestrator.before-forget-blueprint:1",
	} {
		kind := fmt.Sprint("kind", i)
		for _, phase := range []string{"one", "two"} {
			_, err := d.request(ctx, blueprint(kind, phase))
			require.NoError(t, err)
		}
		owner.kill(point)
		a, err := d.request(ctx, command{Kind: "Blueprint", Name: kind, Verb: "delete", ID: "delete"})
		require.NoError(t, err)
		require.NotEmpty(t, a.JobID, "%s: %+v", point, a)
		r, ok := c.waitJob(ctx, a.JobID)
		require.True(t, ok, point)
		require.Equal(t, job.Succeeded, r.State, point)
		again, err := d.request(ctx, command{Kind: "Blueprint", Name: kind, Verb: "delete", ID: "delete"})
		require.NoError(t, err)
		require.Equal(t, a.JobID, again.JobID, point)
		require.Eventually(t, func() bool { return forgotten(ctx, d.js, kind) }, 30*time.Second, 50*time.Millisecond, "%s: something is left", point)
		_, crashes, strange := owner.deaths()
		require.Contains(t, crashes, point)
		require.Empty(t, strange)
	}
	a, err = d.request(ctx, command{Kind: "used", Name: "c", Verb: "apply", ID: "c", Body: apply("used", "c", object{}, nil)})
	require.NoError(t, err)
	require.NotEmpty(t, a.JobID, "%+v", a)
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.problems)
}

// forgotten reports whether nothing is left of a blueprint but a last trace that expires.
func forgotten(ctx context.Context, js jetstream.JetStream, kind string) bool {
	for _, where := range [][2]string{
		{"EVENTS", "drover.log.*.blueprint." + project + "." + kind + ".>"}, {"KV_drover_blueprints", "$KV.drover_blueprints." + project + "." + kind},
	} {
		s, err := js.Stream(ctx, where[0])
		if err != nil {
			return false
		}
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(where[1]))
		if err != nil {
			return false
		}
		for subject, n := range info.State.Subjects {
			last, err := s.GetLastMsgForSubject(ctx, subject)
			if err != nil || n > 1 || last.Header.Get("KV-Operation") != "DEL" || last.Header.Get("Nats-TTL") == "" {
				return false
			}
		}
	}
	for _, phase := range []string{"one", "two"} {
		_, err := js.Consumer(ctx, "WORK", bus.Phase{Project: project, Kind: kind, Phase: phase}.Consumer())
		if !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return false
		}
	}
	return true
}
