package plugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/plugin/program"
	"github.com/droverproject/drover/pkg/wire"
)

// calls notes who came in which call.
type calls struct {
	mu    sync.Mutex
	names [][]string
}

func (c *calls) note(batch *plugin.Batch) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = append(c.names, names(batch))
	return len(c.names) == 1
}

// once requires that n resources came, each in one call, and returns the sizes of the calls.
func (c *calls) once(t *testing.T, n int) (sizes []int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]bool{}
	for _, call := range c.names {
		sizes = append(sizes, len(call))
		for _, name := range call {
			require.False(t, seen[name], "%s came twice", name)
			seen[name] = true
		}
	}
	require.Len(t, seen, n, "left behind")
	return sizes
}

// What enters a phase while it is called reaches the plugin in few, large calls: none twice, none left behind. With
// DROVER_THREADS (make threads) ten thousand do.
func TestManyReachThePluginInFewCalls(t *testing.T) {
	n := 1000
	if os.Getenv("DROVER_THREADS") != "" {
		n = 10_000
	}
	batch := n / 10
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		h := held{b, newDesk(1)}
		h.desk.lease = time.Minute // the machine may be busy, and a worker that loses the phase begins anew
		entered := make(chan struct{})
		var made calls
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- plugin.Serve(ctx, h, h.phase(), plugin.Options{Worker: "w", Batch: batch}, func(_ context.Context, batch *plugin.Batch) error {
				if made.note(batch) {
					<-entered
				}
				batch.Completed(batch.Resources()...)
				return nil
			})
		}()
		defer func() {
			cancel()
			require.NoError(t, <-done)
		}()
		b.handOut(t, "r0")
		require.Eventually(t, func() bool { made.mu.Lock(); defer made.mu.Unlock(); return len(made.names) == 1 }, 30*time.Second, time.Millisecond)
		for i := 1; i < n; i++ {
			b.handOut(t, fmt.Sprint("r", i))
		}
		require.Eventually(t, func() bool {
			out, _, err := b.Outstanding(t.Context(), b.phase())
			return err == nil && out == uint64(n)
		}, 30*time.Second, 10*time.Millisecond)
		close(entered)
		b.settled(t)
		sizes := made.once(t, n)
		t.Logf("%d resources in %d calls: %v", n, len(sizes), sizes)
		require.Equal(t, 1, sizes[0])
		require.LessOrEqual(t, len(sizes), 13, "one, and what came meanwhile in ten; a few more where a fetch was cut short")
	})
}

// A call is given no more bytes than it may be; what is left comes in the next.
func TestBatchBytes(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		const n, each = 12, 900 << 10
		for i := range n {
			s := b.state(fmt.Sprint("r", i), resource.Waiting)
			s.Attributes = map[string]string{"pad": strconv.Quote(strings.Repeat("x", each))}
			b.put(t, s, true)
		}
		require.Eventually(t, func() bool {
			out, _, err := b.Outstanding(t.Context(), b.phase())
			return err == nil && out == n
		}, 30*time.Second, 10*time.Millisecond)
		var made calls
		b.serve(t, plugin.Options{Batch: 100, BatchBytes: 4 << 20}, func(_ context.Context, batch *plugin.Batch) error {
			made.note(batch)
			batch.Completed(batch.Resources()...)
			return nil
		})
		b.settled(t)
		for _, size := range made.once(t, n) {
			require.LessOrEqual(t, size, 4, "of %d bytes each", each)
		}
	})
}

// A program is given lines of no more bytes than they may have, specs of the largest size among them; what is larger by
// itself comes alone.
func TestProgramBytes(t *testing.T) {
	t.Parallel()
	const n = 5
	for limit, each := range map[int]int{2 << 20: 2, 1 << 20: 1, 1: 1, 0: n} { // 0: 16 MiB
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			b := &recorder{Bus: memoryBus(t, 0), project: "p", changed: make(chan struct{}, 1)}
			b.ensure(t)
			for i := range n {
				b.withSpec(t, fmt.Sprint("r", i), `{"pad":"`+strings.Repeat("x", resource.SpecBytesMax-len(`{"pad":""}`))+`"}`)
			}
			dir := t.TempDir()
			p, err := program.New(program.Options{
				Command: []string{"sh", "-c", `wc -c >> bytes; wc -l < "$DROVER_NAMES_FILE" >> names
while IFS= read -r name; do printf '{"resource": "%s", "outcome": "completed"}\n' "$name"; done < "$DROVER_NAMES_FILE"`},
				Dir: dir, CallBytes: limit,
			})
			require.NoError(t, err)
			defer p.Close()
			b.serve(t, plugin.Options{Batch: 100}, p.Handle)
			for i := range n {
				require.Eventually(t, func() bool {
					got := b.of(fmt.Sprint("r", i)) // Running comes first, on a busy machine
					return len(got) > 0 && got[len(got)-1].Outcome == resource.OutcomeCompleted
				}, 30*time.Second, 10*time.Millisecond)
			}
			b.settled(t)
			called := 0
			for _, size := range numbers(t, filepath.Join(dir, "names")) {
				called += size
				require.LessOrEqual(t, size, each)
			}
			require.Equal(t, n, called, "each once")
			for _, size := range numbers(t, filepath.Join(dir, "bytes")) {
				require.True(t, size <= limit || each == 1 || limit == 0 && size <= program.CallBytesDefault, "a line of %d bytes", size)
			}
		})
	}
}

// withSpec hands out a resource with a spec.
func (b *recorder) withSpec(t *testing.T, name, spec string) {
	t.Helper()
	require.True(t, json.Valid([]byte(spec)))
	s := b.state(name, resource.Waiting)
	s.SpecDigest = fmt.Sprintf("%032x", len(name))[:31] + name[len(name)-1:]
	body, err := wire.EncodeSpec(wire.SpecEvent{Key: s.Key, Digest: s.SpecDigest, JSON: spec, At: time.Now()})
	require.NoError(t, err)
	e := b.entity(name)
	e.Family = bus.Spec
	_, err = b.Append(bus.Append{Entity: e, Version: s.SpecDigest, Body: body}).Result()
	require.NoError(t, err)
	b.put(t, s, true)
}

// numbers reads a file of them.
func numbers(t *testing.T, file string) (all []int) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, field := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(field)
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}
