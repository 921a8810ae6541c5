package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// TestKindsCalledLikeWords: "machines", "instances", "checks" and "jobs" mean what is no resource, but where the project has a kind
// of that name.
func TestKindsCalledLikeWords(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"machine", "instances", "check", wordJobs} {
		s := newShelf(t)
		require.NotContains(t, drover(t, app(s.system), "get", kind).err, "no resource of kind", kind)
		require.Equal(t, ExitUsage, drover(t, app(s.system), "get", kind, "--watch").code, kind)

		s.blueprint(kind, strings.Replace(nodeBlueprint, "create-volume", "volume", 2))
		own := state("web-1")
		own.Kind, own.State = kind, "Started"
		s.resource(wire.ResourceEvent{State: own, At: at, Event: resource.Event{To: "Started"}})
		for _, args := range [][]string{{"get", kind}, {"get", kind, "-l", "rack=a"}, {"get", kind + "/web-1"}, {"describe", kind + "/web-1"}} {
			r := drover(t, app(s.system), args...)
			require.Equal(t, ExitOK, r.code, "%v: %s", args, r.err)
			require.Contains(t, r.out, kind+"/web-1", "%v: %s", args, r.err)
		}
	}
}

// TestWhatHasNoLabels: a selector that is not heeded would choose everything.
func TestWhatHasNoLabels(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	for _, kind := range []string{"jobs", "blueprints", "machines", "instances", "checks", "Node"} {
		r := drover(t, app(s.system), "get", kind, "-l", "rack=a", "-o", "name")
		require.Equal(t, ExitUsage, r.code, kind)
		require.Contains(t, r.err, kind+" have no labels")
	}
	require.Equal(t, ExitUsage, drover(t, app(s.system), "get", "jobs", "j1").code)
}

// TestInstancesByName: each of several names is shown, and one that is not there is told.
func TestInstancesByName(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	for _, id := range []string{"a", "b", "c"} {
		body, err := wire.EncodeInstance(wire.InstanceEvent{
			State: deployment.State{Project: "default", ID: id, Key: deployment.Key{Check: "ping", Object: "Node/x", System: "eye"}, Revision: 1, CreatedAt: at, UpdatedAt: at}, At: at,
		})
		require.NoError(t, err)
		s.put(bus.Entity{Family: bus.Instance, Project: "default", Name: id}, "", bus.Header{Revision: 1}, body)
	}
	for _, args := range [][]string{{"instance/a", "instance/b"}, {"instances", "a", "b"}} {
		r := drover(t, app(s.system), append([]string{"get", "-o", "name"}, args...)...)
		require.Equal(t, ExitOK, r.code, r.err)
		require.Equal(t, "instance/a\ninstance/b\n", r.out)
	}
	r := drover(t, app(s.system), "get", "instances", "a", "none")
	require.Equal(t, ExitNotFound, r.code)
	require.Contains(t, r.err, "instance/none")
}
