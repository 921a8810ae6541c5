package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// following runs a command until stop, and shows what it has printed so far.
func following(t *testing.T, a *App, args ...string) (out, err *syncBuffer, stop func() int) {
	t.Helper()
	copied := *a
	out, err = &syncBuffer{}, &syncBuffer{}
	copied.Out, copied.Err = out, err
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- Main(ctx, &copied, args) }()
	stop = func() int {
		cancel()
		return <-done
	}
	t.Cleanup(cancel)
	return out, err, stop
}

func until(t *testing.T, b *syncBuffer, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(b.String(), text) }, 30*time.Second, time.Millisecond, text)
}

func (s *shelf) moved(name string, revision uint64, to string) {
	s.t.Helper()
	st := state(name)
	st.Revision, st.State, st.Target = revision, to, "Started"
	s.resource(wire.ResourceEvent{State: st, At: at, Event: resource.Event{To: to, Cause: resource.Cause{Kind: "continue"}}})
}

// TestGapsAreTold: revisions are contiguous, so what is missing can be told; a name used again is another life.
func TestGapsAreTold(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.moved("a", 1, "One")
	s.moved("b", 7, "Seven")
	out, told, stop := following(t, app(s.system), "events", "-f", "node")
	until(t, out, "Seven")
	s.moved("a", 2, "Two")
	s.moved("a", 5, "Five")
	s.moved("b", 9, "Nine")
	s.moved("a", 4, "Four") // the feed repeats itself
	s.moved("a", 6, "Six")
	until(t, out, "Six")
	require.Equal(t, ExitOK, stop())
	require.NotContains(t, out.String(), "Four")
	require.Equal(t, "gap: node/a: revisions 3 to 4 not seen\ngap: node/b: revision 8 not seen\n", told.String())
}

func TestEventsOfOneThatComesLater(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	require.Equal(t, ExitNotFound, drover(t, app(s.system), "events", "node/a").code)
	out, _, stop := following(t, app(s.system), "events", "-f", "node/a", "-o", "name")
	s.moved("b", 1, "One")
	for revision := uint64(1); !strings.Contains(out.String(), "node/a\n"); revision++ { // it may not be listening yet
		s.moved("a", revision, "One")
		time.Sleep(time.Millisecond)
		require.Less(t, revision, uint64(10_000))
	}
	require.Equal(t, ExitOK, stop())
	require.NotContains(t, out.String(), "node/b")
}

func TestEventsTimeout(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	require.Equal(t, ExitTimeout, drover(t, app(s.system), "events", "-f", "--timeout", "20ms").code)
	require.Equal(t, ExitTimeout, drover(t, app(s.system), "logs", "-f", "node/a", "--timeout", "20ms").code)
}

func TestTail(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	for _, name := range []string{"a", "b", "c"} {
		s.moved(name, 1, "One")
	}
	require.Equal(t, "node/b\nnode/c\n", drover(t, app(s.system), "events", "--tail", "2", "-o", "name").out)
	require.Empty(t, drover(t, app(s.system), "events", "--tail", "0", "-o", "name").out)
	require.Equal(t, "node/a\nnode/b\nnode/c\n", drover(t, app(s.system), "events", "-o", "name").out)
}

func TestLogsFollow(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.line("a", "p", "stdout", "one", 1)
	s.line("a", "p", "stdout", "two", 1)
	out, _, stop := following(t, app(s.system), "logs", "-f", "node/a", "--tail", "1")
	until(t, out, "two")
	s.line("a", "p", "stdout", "three", 1)
	s.line("b", "p", "stdout", "other", 1)
	until(t, out, "three")
	require.Equal(t, ExitOK, stop())
	require.Equal(t, "[p] two\n[p] three\n", out.String())
	require.Equal(t, "[p] one\n[p] two\n[p] three\n", drover(t, app(s.system), "logs", "node/a").out)
	require.Equal(t, "[p] three\n", drover(t, app(s.system), "logs", "node/a", "--tail", "1").out)
	require.Empty(t, drover(t, app(s.system), "logs", "node/a", "--phase", "q").out)
	require.Empty(t, drover(t, app(s.system), "logs", "node/a", "--since", "10s").out, "the clock stands 90 s later")
	require.Contains(t, drover(t, app(s.system), "logs", "node/a", "--since", "2m").out, "three")
	s.line("a", "q", "stdout", "\x1b[1mbold", 1)
	require.Equal(t, "\x1b[1mbold\n", drover(t, app(s.system), "logs", "node/a", "--phase", "q", "--raw").out)
}
