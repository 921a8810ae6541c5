package bustest_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/bustest"
	"github.com/droverproject/drover/pkg/bus/memory"
)

func TestMain(m *testing.M) {
	// A server that is shut down while it waits for a source leaves this behind, for up to 30 s (nats-server 2.15.2).
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*stream).trySetupSourceConsumer.func3"))
}

func messages(all []memory.Message, subject string) (out []bustest.Message) {
	for _, m := range all {
		if m.Subject == subject {
			out = append(out, bustest.Message(m))
		}
	}
	return out
}

func TestMemory(t *testing.T) {
	t.Parallel()
	bustest.Exercise(t, func(*testing.T) bustest.Fixture {
		sys := memory.New(memory.Options{
			Partitions: bustest.Partitions, CommandMessages: bustest.CommandMessages, TombstoneTTL: bustest.TombstoneTTL,
			InputAckWait: bustest.InputAckWait, WorkAckWait: bustest.WorkAckWait,
		})
		return bustest.Fixture{
			Connect: func(t *testing.T) bus.Bus {
				b := sys.Connect()
				t.Cleanup(func() { require.NoError(t, b.Close()) })
				return b
			},
			Stored: func(_ *testing.T, stream, subject string) []bustest.Message {
				return messages(map[string][]memory.Message{"POISON": sys.Poison(), "REFUSED": sys.Refusals()}[stream], subject)
			},
			OnNotice: func(t *testing.T, each func(bustest.Message)) {
				var wg sync.WaitGroup
				stop := make(chan struct{})
				t.Cleanup(func() { close(stop); wg.Wait() })
				wg.Go(func() {
					seen := 0
					for {
						for _, m := range slices.Clip(sys.Notices())[seen:] {
							seen++
							each(bustest.Message(m))
						}
						select {
						case <-stop:
							return
						case <-time.After(time.Millisecond):
						}
					}
				})
			},
			Tick:    sys.Tick,
			Kill:    func(_ *testing.T, b bus.Bus) { b.(*memory.Conn).Kill() },
			Restart: func(*testing.T) {}, // a system in memory has nothing that could restart: what was acknowledged stays
		}
	})
}
