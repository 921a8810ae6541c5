package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
)

// Many answers of one call are stored together, in order of magnitude one sync instead of many; where the server does not
// take them together they are stored one by one, and none is lost or doubled either way.
func TestManyAnswersAreStoredTogether(t *testing.T) {
	for name, apart := range map[string]error{"together": nil, "apart": errors.New("no batches here")} {
		t.Run(name, func(t *testing.T) {
			onBuses(t, func(t *testing.T, b *recorder) {
				b.apart = apart
				b.ensure(t)
				const n = bus.ResultsBatchMin + 8
				names := make([]string, n)
				for i := range names {
					names[i] = fmt.Sprint("r", i)
				}
				b.handOut(t, names...)
				require.Eventually(t, func() bool { // so that one fetch brings them all
					out, caughtUp, err := b.Outstanding(t.Context(), b.phase())
					return err == nil && caughtUp && out == n
				}, 20*time.Second, 10*time.Millisecond)
				b.serve(t, plugin.Options{Batch: 2 * n}, func(_ context.Context, batch *plugin.Batch) error {
					for _, r := range batch.Resources() {
						if r.Key().Name == "r3" {
							batch.Failed(r, "broken")
							continue
						}
						batch.Completed(r)
					}
					return nil
				})
				for _, name := range names {
					results := b.await(t, name, 1)
					require.Len(t, results, 1)
					want := resource.OutcomeCompleted
					if name == "r3" {
						want = resource.OutcomeFailed
					}
					require.Equal(t, want, results[0].Outcome)
				}
				b.settled(t)
				b.mu.Lock()
				defer b.mu.Unlock()
				require.Equal(t, apart == nil, b.together >= bus.ResultsBatchMin, "%d together", b.together)
			})
		})
	}
}
