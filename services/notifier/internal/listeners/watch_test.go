package listeners_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/notifier/internal/listeners"
)

type bucket chan bus.Stored

func (b bucket) C() <-chan bus.Stored { return b }
func (bucket) Close()                 {}

func entity(f bus.Family, name string) bus.Entity {
	return bus.Entity{Family: f, Project: "default", Kind: "Listener", Name: name}
}

func resourceEvent(t *testing.T, name, digest string) bus.Stored {
	t.Helper()
	body, err := wire.EncodeResource(wire.ResourceEvent{
		State: resource.State{Key: key(name), MinReader: 1, UID: "u", Revision: 1, SpecDigest: digest}, At: time.Unix(1, 0),
	})
	require.NoError(t, err)
	return bus.Stored{Entity: entity(bus.Resource, name), Body: body}
}

func specEvent(t *testing.T, name, digest, json string) bus.Stored {
	t.Helper()
	body, err := wire.EncodeSpec(wire.SpecEvent{Key: key(name), Digest: digest, JSON: json, At: time.Unix(1, 0)})
	require.NoError(t, err)
	return bus.Stored{Entity: entity(bus.Spec, name), Body: body}
}

const (
	specStarted = `{"kinds":"node","states":"Started","subject":"drover.notice.x"}`
	specOff     = `{"kinds":"node","states":"Off","subject":"drover.notice.x"}`
)

type watched struct {
	*stage
	resources, specs bucket
	loaded           chan struct{}
	done             chan error
}

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{stage: open(t), resources: make(bucket), specs: make(bucket), loaded: make(chan struct{}), done: make(chan error, 1)}
	watcher := listeners.NewWatcher(w.Roster, w.log, w.metrics)
	go func() { w.done <- watcher.Run(t.Context(), w.resources, w.specs, func() { close(w.loaded) }) }()
	return w
}

// settle returns when everything that was sent is applied: the channels hold nothing.
func (w *watched) settle() {
	w.resources <- bus.Stored{Entity: entity(bus.Resource, "none"), Deleted: true}
}

func TestAListenerIsServedOnceResourceAndSpecAgree(t *testing.T) {
	t.Parallel()
	w := watch(t)
	w.resources <- resourceEvent(t, "a", "d1")
	w.settle()
	require.Empty(t, w.Keys())
	w.specs <- specEvent(t, "a", "d1", specStarted)
	w.settle()
	require.True(t, w.Listened("default", "node", "Started"))

	// The spec of the next version comes first: the earlier one holds.
	w.specs <- specEvent(t, "a", "d2", specOff)
	w.settle()
	require.True(t, w.Listened("default", "node", "Started"))
	w.resources <- resourceEvent(t, "a", "d2")
	w.settle()
	require.False(t, w.Listened("default", "node", "Started"))
	require.True(t, w.Listened("default", "node", "Off"))

	w.resources <- bus.Stored{Entity: entity(bus.Resource, "a"), Deleted: true}
	w.settle()
	require.Empty(t, w.Keys())

	// The same name again.
	w.specs <- bus.Stored{Entity: entity(bus.Spec, "a"), Deleted: true}
	w.resources <- resourceEvent(t, "a", "d1")
	w.settle()
	require.Empty(t, w.Keys())
	w.specs <- specEvent(t, "a", "d1", specStarted)
	w.settle()
	require.True(t, w.Listened("default", "node", "Started"))
}

func TestAListenerThatCannotBeServed(t *testing.T) {
	t.Parallel()
	w := watch(t)
	w.resources <- resourceEvent(t, "a", "d1")
	w.specs <- specEvent(t, "a", "d1", specStarted)
	w.settle()
	require.Len(t, w.Keys(), 1)
	w.specs <- specEvent(t, "a", "d2", `{"kinds":"node"}`)
	w.resources <- resourceEvent(t, "a", "d2")
	w.settle()
	require.Empty(t, w.Keys())
	require.Equal(t, 1.0, testutil.ToFloat64(w.metrics.Invalid))
	w.specs <- specEvent(t, "a", "d3", specOff)
	w.resources <- resourceEvent(t, "a", "d3")
	w.settle()
	require.Len(t, w.Keys(), 1)
	require.Zero(t, testutil.ToFloat64(w.metrics.Invalid))

	w.resources <- bus.Stored{Entity: entity(bus.Resource, "a"), Body: []byte("no event")}
	w.settle()
	require.Empty(t, w.Keys())
	require.Equal(t, 1.0, testutil.ToFloat64(w.metrics.Invalid))
}

// Who may write in one project alone must not be told of another's resources.
func TestAListenerOfAnotherProjectIsNotServed(t *testing.T) {
	t.Parallel()
	w := watch(t)
	const nosy = `{"kinds":"node","states":"Started","project":"other","subject":"drover.notice.x"}`
	w.specs <- specEvent(t, "a", "d1", nosy)
	w.resources <- resourceEvent(t, "a", "d1")
	w.resources <- resourceEvent(t, "a", "d1") // its state moves on
	w.settle()
	require.Empty(t, w.Keys())
	require.False(t, w.Listened("other", "node", "Started"))
	require.Equal(t, 1.0, testutil.ToFloat64(w.metrics.Invalid))
	told := w.logs.FilterMessage("listener cannot be served").All()
	require.Len(t, told, 1, "once")
	require.Equal(t, map[string]any{
		"listener": "default/Listener/a", "reason": "spec.project: a listener is told of its own project only",
	}, told[0].ContextMap())

	// Its own may be said.
	w.specs <- specEvent(t, "a", "d2", `{"kinds":"node","states":"Started","project":"default","subject":"drover.notice.x"}`)
	w.resources <- resourceEvent(t, "a", "d2")
	w.settle()
	require.True(t, w.Listened("default", "node", "Started"))
	require.Zero(t, testutil.ToFloat64(w.metrics.Invalid))

	// And what is refused again is told again.
	w.specs <- specEvent(t, "a", "d3", nosy)
	w.resources <- resourceEvent(t, "a", "d3")
	w.settle()
	require.Empty(t, w.Keys())
	require.Equal(t, 2, w.logs.FilterMessage("listener cannot be served").Len())
}

func TestLoadedWhenBothBucketsAre(t *testing.T) {
	t.Parallel()
	w := watch(t)
	w.specs <- bus.Stored{}
	w.settle()
	select {
	case <-w.loaded:
		t.Fatal("loaded before the resources were")
	default:
	}
	w.resources <- bus.Stored{}
	<-w.loaded
}

func TestAWatchThatEndsIsAnError(t *testing.T) {
	t.Parallel()
	w := watch(t)
	close(w.specs)
	require.ErrorIs(t, <-w.done, listeners.ErrWatchEnded)
}
