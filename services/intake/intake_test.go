package intake_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/intake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const jsonType = "application/json"

// owners answers for every partition of a system, and remembers the requests that it accepted.
type owners struct {
	mu       sync.Mutex
	accepted map[string][]string // request ids, by subject, in order
	refuse   *resource.Refusal
}

func serveOwners(t *testing.T, b bus.Bus) *owners {
	t.Helper()
	o := &owners{accepted: map[string][]string{}}
	for p := range b.Partitions() {
		stop, err := b.ServeAsks(p, func(r bus.Request, reply func(map[string]string, []byte)) {
			form := r.Header["Content-Type"]
			answer := wire.Reply{JobID: "job-" + r.Header["Drover-Request-Id"], Resource: "r"}
			o.mu.Lock()
			if o.refuse != nil {
				answer = wire.Reply{RequestID: r.Header["Drover-Request-Id"], Refused: o.refuse}
			} else {
				subject := r.Header["Drover-Subject"]
				o.accepted[subject] = append(o.accepted[subject], r.Header["Drover-Request-Id"])
			}
			o.mu.Unlock()
			body, err := wire.EncodeReply(form, answer)
			if err != nil {
				t.Error(err)
			}
			reply(map[string]string{"Content-Type": form}, body)
		})
		require.NoError(t, err)
		t.Cleanup(stop)
	}
	return o
}

func (o *owners) of(subject string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.accepted[subject]...)
}

// start runs an intake of its own; stop returns when it has ended.
func start(t *testing.T, s *memory.System, id string) (stop func()) {
	t.Helper()
	b := s.Connect()
	config := host.DefaultConfig()
	config.ID, config.Listen = id, ""
	h := host.New(host.Options{Name: intake.Service, Config: config})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- h.Run(ctx, func(ctx context.Context, h *host.Host) error { return intake.Run(ctx, h, b) })
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, b.Close())
	})
	t.Cleanup(stop)
	require.Eventually(t, func() bool { return h.Ready(t.Context()) == nil }, 30*time.Second, time.Millisecond)
	return stop
}

func TestRequests(t *testing.T) {
	t.Parallel()
	s := memory.New(memory.Options{})
	client := s.Connect()
	defer client.Close()
	o := serveOwners(t, client)
	start(t, s, "a")
	ask := func(subject, body string) wire.Reply {
		reply, err := client.Request(t.Context(), subject, map[string]string{"Content-Type": jsonType, "Drover-Request-Id": "mine"}, []byte(body))
		require.NoError(t, err)
		r, err := wire.DecodeReply(reply.Header["Content-Type"], reply.Body)
		require.NoError(t, err)
		return r
	}
	require.Equal(t, "job-mine", ask("drover.api.default.node.web-1.start", `{}`).JobID)
	require.Equal(t, []string{"mine"}, o.of("drover.cmd.default.node.web-1.start"))

	refused := ask("drover.api.default.node.web-1.start", `{"what":1}`)
	require.Equal(t, resource.Invalid, refused.Refused.Code)
	require.Equal(t, "what", refused.Refused.Violations[0].Field)
	require.Len(t, o.of("drover.cmd.default.node.web-1.start"), 1, "it did not reach the owner")
}

func TestCapturedCommands(t *testing.T) {
	t.Parallel()
	s := memory.New(memory.Options{})
	client := s.Connect()
	defer client.Close()
	o := serveOwners(t, client)
	publish := func(subject, id, body string) uint64 {
		seq, err := client.PublishCommand(t.Context(), subject, map[string]string{"Content-Type": jsonType, "Drover-Request-Id": id}, []byte(body))
		require.NoError(t, err)
		return seq
	}
	const subject = "drover.cmd.default.node.web-1.start"
	publish(subject, "before", `{}`) // stored before any intake runs
	start(t, s, "a")
	seq := publish(subject, "", `{}`)
	publish(subject, "r2", `{`)
	publish(subject, "r3", `{}`)
	require.Eventually(t, func() bool { return len(o.of(subject)) == 3 }, 30*time.Second, time.Millisecond)
	require.Equal(t, []string{"before", fmt.Sprint("c", seq), "r3"}, o.of(subject))
	require.Eventually(t, func() bool { return len(s.Refusals()) == 1 }, 30*time.Second, time.Millisecond)
	refusal := s.Refusals()[0]
	require.Equal(t, "drover.refused.default.r2", refusal.Subject)
	r, err := wire.DecodeReply(refusal.Header["Content-Type"], refusal.Body)
	require.NoError(t, err)
	require.Equal(t, resource.Invalid, r.Refused.Code)
	settled(t, client)
}

// settled waits until nothing is left in any inbox.
func settled(t *testing.T, b bus.Bus) {
	t.Helper()
	require.Eventually(t, func() bool {
		for p := range b.Partitions() {
			if n, _, err := b.Backlog(t.Context(), "COMMANDS", p); err != nil || n > 0 {
				return false
			}
		}
		return true
	}, 20*time.Second, 5*time.Millisecond)
}

// Three processes share a flood; one stops in the middle and one more comes. Every command is applied, in the order of
// its resource.
func TestProcessesComeAndGo(t *testing.T) {
	t.Parallel()
	s := memory.New(memory.Options{InputAckWait: 500 * time.Millisecond})
	client := s.Connect()
	defer client.Close()
	o := serveOwners(t, client)
	start(t, s, "a")
	stopB := start(t, s, "b")
	start(t, s, "c")
	const resources, commands = 40, 25
	for i := range commands {
		for r := range resources {
			_, err := client.PublishCommand(t.Context(), fmt.Sprintf("drover.cmd.default.node.n%d.start", r),
				map[string]string{"Content-Type": jsonType, "Drover-Request-Id": fmt.Sprintf("%03d", i)}, []byte(`{}`))
			require.NoError(t, err)
		}
		switch i {
		case 10:
			stopB()
		case 15:
			start(t, s, "d")
		}
	}
	settled(t, client)
	for r := range resources {
		got := o.of(fmt.Sprintf("drover.cmd.default.node.n%d.start", r))
		seen := map[string]bool{}
		var first []string
		for _, id := range got { // what comes again is answered again, which its owner makes harmless
			if !seen[id] {
				seen[id] = true
				first = append(first, id)
			}
		}
		require.Len(t, first, commands)
		for i, id := range first {
			require.Equal(t, fmt.Sprintf("%03d", i), id, "%s", strings.Join(got, " "))
		}
	}
}
