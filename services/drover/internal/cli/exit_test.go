package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/up"
)

func TestExitCodesOfErrors(t *testing.T) {
	t.Parallel()
	refused := func(code resource.Code) error {
		return &refusedError{refusal: resource.Refusal{Code: code}}
	}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {errors.New("x"), 1}, {usage("x"), 2}, {bus.ErrNotFound, 3}, {bus.ErrLost, 4},
		{context.DeadlineExceeded, 7}, {bus.ErrNoOwner, 8}, {bus.ErrDenied, 8}, {bus.ErrFull, 8},
		{refused(resource.Invalid), 1}, {refused(resource.TooLarge), 1}, {refused(resource.NotFound), 3},
		{refused(resource.Conflict), 4}, {refused(resource.Overloaded), 8}, {fail(ExitFailed, "x"), 5}, {exitWith(ExitCanceled), 6},
	} {
		require.Equal(t, c.want, codeOf(c.err), "%v", c.err)
		if c.err != nil {
			require.Equal(t, c.want, codeOf(fmt.Errorf("wrapped: %w", c.err)), "%v", c.err)
		}
	}
	require.NoError(t, exitWith(ExitOK))
	require.Equal(t, ExitFailed, worse(ExitCanceled, ExitFailed))
	require.Equal(t, ExitFailed, worse(ExitFailed, ExitCanceled))
	require.Equal(t, ExitUnreachable, worse(ExitUnreachable, ExitNotFound))
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"frob", "get --frob", "start", "start node", "start node/a --all", "start node --all -l a=b", "start --all", "start -l a=b node/a",
		"start node -l a=", "start node/a --request-id a.b", "describe", "describe node", "events a b", "events --family spec",
		"history node", "jobs show", "jobs list --state odd", "jobs frob", "logs", "logs node --tail -2", "wait node/a", "wait node/a --for ready",
		"retry node/a --scope some", "do", "do reboot", "do apply node/a", "do x node/a --arg y", "do x node/a --arg y=1 --arg y=2",
		"get -o xml", "get node -l a=b=c", "decode --type event --subject a", "apply", "up extra", "up --sync sometimes", "up --nats here",
		"up --metrics there", "up --ephemeral --data x", "up --log-level loud", "version extra", "start --all blueprint", "events --tail -3", "--output",
	} {
		a := app(memory.New(memory.Options{}))
		data := filepath.Join(t.TempDir(), "data")
		a.Up = func(ctx context.Context, o up.Options) error {
			o.Data = data // and not where the test runs
			return up.Run(ctx, o)
		}
		r := drover(t, a, strings.Fields(args)...)
		if args == "start node -l a=" { // a label with an empty value is a selector
			require.Equal(t, ExitUnreachable, r.code, r.err)
			continue
		}
		require.Equal(t, ExitUsage, r.code, "%s: %s%s", args, r.out, r.err)
		require.Contains(t, r.err, "error: ", args)
		require.Empty(t, r.out, args)
		require.NoDirExists(t, data, "%s: what is refused leaves nothing", args)
	}
}

func TestHelpIsData(t *testing.T) {
	t.Parallel()
	root := newRoot(app(nil))
	for _, cmd := range append(root.Commands(), root) {
		name := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), "drover"), " ")
		if name == "help" || name == "completion" {
			continue
		}
		r := drover(t, app(nil), append(strings.Fields(name), "--help")...)
		require.Equal(t, ExitOK, r.code, name)
		require.Empty(t, r.err, name)
		require.Contains(t, r.out, "Usage:", name)
		require.Contains(t, r.out, "Examples:", "every command shows how it is used: %s", name)
	}
	require.Contains(t, drover(t, app(nil), "completion", "bash").out, "bash completion")
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	r := drover(t, app(nil), "get")
	require.Equal(t, ExitUnreachable, r.code)
	require.Contains(t, r.err, "connect to nats://127.0.0.1:4222: nobody listens")
	require.Contains(t, r.err, "hint: is a server running there?")
	r = drover(t, app(nil), "get", "--server", "nats://ann:s3cret@127.0.0.1:4222,nats://token@127.0.0.1:4223")
	require.Contains(t, r.err, "connect to nats://xxxxx@127.0.0.1:4222,nats://xxxxx@127.0.0.1:4223: nobody listens")
	denied := app(nil)
	denied.Connect = func(context.Context, Connection) (Bus, error) { return nil, bus.ErrDenied }
	r = drover(t, denied, "get")
	require.Equal(t, ExitUnreachable, r.code)
	require.Contains(t, r.err, "--creds")
}

// TestNoIntake: a request is repeated while nobody listens, and in the end the user is told what to do.
func TestNoIntake(t *testing.T) {
	t.Parallel()
	system := memory.New(memory.Options{})
	r := drover(t, app(system), "start", "node/a", "--timeout", "250ms")
	require.Equal(t, ExitUnreachable, r.code, r.err)
	require.Contains(t, r.err, "nobody answers on drover.api.default.node.a.start")
	require.Contains(t, r.err, "`drover up`")
}

// api answers requests as intake would.
func api(t *testing.T, system *memory.System, answer func(subject, requestID string, c wire.Command) (wire.Reply, bool)) {
	t.Helper()
	conn := system.Connect()
	stop, err := conn.ServeAPI("0.0.0", func(subject string, r bus.Request, reply func(map[string]string, []byte)) {
		c, err := wire.DecodeCommand(r.Header[bus.HeaderContentType], r.Body)
		if err != nil {
			t.Errorf("command: %v", err)
			return
		}
		said, ok := answer(subject, r.Header[bus.HeaderRequestID], c)
		if !ok {
			return
		}
		body, err := wire.EncodeReply("", said)
		if err != nil {
			t.Errorf("reply: %v", err)
			return
		}
		reply(nil, body)
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		stop()
		require.NoError(t, conn.Close())
	})
}

func TestNoAnswerInTime(t *testing.T) {
	t.Parallel()
	system := memory.New(memory.Options{})
	api(t, system, func(string, string, wire.Command) (wire.Reply, bool) { return wire.Reply{}, false })
	r := drover(t, app(system), "start", "node/a", "--timeout", "250ms")
	require.Equal(t, ExitTimeout, r.code, r.err)
	require.Contains(t, r.err, "whether it was accepted is not known")
	require.Contains(t, r.err, "--request-id REQUEST", "how to ask again without a second effect")
}

func TestRefusalsAreToldWithTheirFields(t *testing.T) {
	t.Parallel()
	for code, want := range map[resource.Code]int{
		resource.Invalid: ExitError, resource.NotFound: ExitNotFound, resource.Conflict: ExitConflict, resource.TooLarge: ExitError,
		resource.Overloaded: ExitUnreachable,
	} {
		system := memory.New(memory.Options{})
		api(t, system, func(subject, id string, c wire.Command) (wire.Reply, bool) {
			if subject != "drover.api.default.node.a=2Eb.retry" || id != "mine" || c.Args["scope"] != "all" || c.RequestedBy != "drover" {
				t.Errorf("unexpected: %s %s %v", subject, id, c)
			}
			return wire.Reply{RequestID: id, Refused: &resource.Refusal{
				Code: code, Message: "no\x1b[0m", Violations: []resource.Violation{{Field: "args.scope", Reason: "is \u202eodd"}},
			}}, true
		})
		r := drover(t, app(system), "retry", "node/a.b", "--scope", "all", "--request-id", "mine")
		require.Equal(t, want, r.code, string(code))
		require.Contains(t, r.err, "node/a.b: retry refused: "+string(code)+`: no\u001b[0m`)
		require.Contains(t, r.err, `args.scope: is \u202eodd`)
	}
}

func TestInterruptedWait(t *testing.T) {
	t.Parallel()
	system := memory.New(memory.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	api(t, system, func(string, string, wire.Command) (wire.Reply, bool) {
		time.AfterFunc(50*time.Millisecond, cancel)
		return wire.Reply{JobID: "j1", Resource: "default/node/a"}, true
	})
	r := droverCtx(ctx, t, app(system), "start", "node/a", "--wait", "-o", "json")
	require.Equal(t, ExitError, r.code, r.err)
	require.Contains(t, r.err, "interrupted; the jobs go on")
	var o outcome
	require.NoError(t, json.Unmarshal([]byte(r.out), &o), "what was accepted is told: %s", r.out)
	require.Equal(t, "j1", o.JobID)
	require.Equal(t, resultWaiting, o.Result)
}
