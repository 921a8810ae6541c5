package bus_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestPermissionsGolden(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "deploy", "nats", "permissions.conf")
	want := bus.RenderPermissions(bus.Contracts())
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(have), "run: go test ./bus -run TestPermissionsGolden -update")
}

func TestOnlyTheOrchestratorAppends(t *testing.T) {
	t.Parallel()
	for _, c := range bus.Contracts() {
		for _, p := range c.Publish {
			log := strings.HasPrefix(p, "drover.log") || p == ">" || p == "drover.>" || p == "drover.*.>"
			require.Equal(t, log, log && c.Service == bus.Orchestrator, "%s may publish %s", c.Service, p)
			kv := strings.HasPrefix(p, "$KV")
			require.False(t, kv, "%s may write a bucket: %s", c.Service, p)
		}
	}
}

// house is a server with the permissions, and a connection of each service.
type house struct {
	url  string
	keys map[string]string // NKey files, by variable
}

func newHouse(t *testing.T) *house {
	dir := t.TempDir()
	h := &house{keys: map[string]string{}}
	contracts := bus.Contracts()
	project := bus.ProjectUser("team.a")
	var users strings.Builder
	conf := bus.RenderPermissions(contracts)
	mine := strings.Replace(bus.RenderPermissions([]bus.Contract{project}), project.Variable(), "DROVER_TEAM_A", 2)
	conf += mine[strings.LastIndex(mine, "\nDROVER_TEAM_A"):]
	variables := []string{"DROVER_TEAM_A"}
	for _, c := range contracts {
		variables = append(variables, c.Variable())
	}
	for _, v := range variables {
		key, err := nkeys.CreateUser()
		require.NoError(t, err)
		seed, err := key.Seed()
		require.NoError(t, err)
		public, err := key.PublicKey()
		require.NoError(t, err)
		h.keys[v] = filepath.Join(dir, v+".nk")
		require.NoError(t, os.WriteFile(h.keys[v], seed, 0o600))
		fmt.Fprintf(&users, "    {nkey: %s, permissions: $%s}\n", public, v)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "permissions.conf"), []byte(conf), 0o600))
	config := filepath.Join(dir, "server.conf")
	require.NoError(t, os.WriteFile(config, []byte("authorization {\n  include ./permissions.conf\n  users: [\n"+users.String()+"  ]\n}\n"), 0o600))
	server, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1, ConfigFile: config})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Shutdown()) })
	h.url = server.ClientURL()
	return h
}

func (h *house) connect(t *testing.T, variable, inbox string) *jetstream.Bus {
	b, err := jetstream.Connect(t.Context(), jetstream.Options{
		URL: h.url, NKeyFile: h.keys[variable], InboxPrefix: inbox, Partitions: 4, Replicas: 1, SourceSettle: 100 * time.Millisecond,
		Notice: func(event string, err error) {
			if errors.Is(err, context.Canceled) {
				t.Log(event, err)
			}
		}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func (h *house) as(t *testing.T, s bus.Service) *jetstream.Bus {
	return h.connect(t, bus.Contract{Service: s}.Variable(), bus.InboxPrefix(s))
}

// TestPermissions: the server lets everybody do their job, and nothing else.
func TestPermissions(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h := newHouse(t)
	operator := h.as(t, bus.Operator)
	drift, err := operator.Setup(ctx, false)
	require.NoError(t, err)
	require.Empty(t, drift)

	orchestrator, intake, runner, user := h.as(t, bus.Orchestrator), h.as(t, bus.Intake), h.as(t, bus.Runner), h.as(t, bus.User)
	lifecycle, notifier, gateway := h.as(t, bus.Lifecycle), h.as(t, bus.Notifier), h.as(t, bus.Gateway)
	plugin := h.as(t, bus.Plugin)
	teamA := h.connect(t, "DROVER_TEAM_A", bus.InboxPrefix(bus.User)+"_"+bus.Token("team.a"))
	all := map[string]*jetstream.Bus{"operator": operator, "orchestrator": orchestrator, "intake": intake, "runner": runner,
		"user": user, "lifecycle": lifecycle, "notifier": notifier, "gateway": gateway, "team a": teamA, "plugin": plugin}

	const kind = "node"
	e := bus.Entity{Partition: 1, Family: bus.Resource, Project: "team.a", Kind: kind, Name: "web1.example.com"}
	other := bus.Entity{Partition: 1, Family: bus.Resource, Project: "team-b", Kind: kind, Name: "x"}
	phase := bus.Phase{Project: "team.a", Kind: kind, Phase: "launch"}

	// The log: one writer.
	for name, b := range all {
		require.NoError(t, b.Healthy(ctx), name)
		if name == "orchestrator" {
			continue
		}
		_, err := b.Append(bus.Append{Entity: e}).Result()
		require.ErrorIs(t, err, bus.ErrDenied, "%s appends", name)
		_, err = b.AppendBatch(ctx, []bus.Append{{Entity: e}, {Entity: other}})
		require.ErrorIs(t, err, bus.ErrDenied, "%s appends", name)
	}
	for _, b := range []*jetstream.Bus{orchestrator, intake, runner, lifecycle, notifier, gateway} {
		drift, err := b.Setup(ctx, false) // finds that all is as it should be
		require.NoError(t, err)
		require.Empty(t, drift)
	}

	// A user's watch ends at once.
	nc, err := jetstream.Dial(ctx, jetstream.Options{
		URL: h.url, NKeyFile: h.keys[bus.Contract{Service: bus.User}.Variable()], InboxPrefix: bus.InboxPrefix(bus.User),
	})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	require.NoError(t, err)
	for _, stream := range []string{"KV_" + bus.Resource.Bucket(), "EVENTS", "OUTPUT"} {
		_, err = js.CreateConsumer(ctx, stream, natsjs.ConsumerConfig{Name: "watch", AckPolicy: natsjs.AckNonePolicy, MemoryStorage: true})
		require.NoError(t, err)
		require.NoError(t, js.DeleteConsumer(ctx, stream, "watch"))
	}

	// The orchestrator's job.
	seq, err := orchestrator.Append(bus.Append{Entity: e, Dispatch: phase.Phase, Body: []byte("x")}).Result()
	require.NoError(t, err)
	_, err = orchestrator.AppendBatch(ctx, []bus.Append{{Entity: other}, {Entity: bus.Entity{Family: bus.Blueprint, Project: "team.a", Kind: kind}, Version: "v1"}})
	require.NoError(t, err)
	last, err := orchestrator.Last(ctx, []bus.Entity{e})
	require.NoError(t, err)
	require.Equal(t, seq, last[0].Seq)
	require.NoError(t, orchestrator.Scan(ctx, 1, bus.Resource, func(bus.Stored) error { return nil }))
	require.NoError(t, orchestrator.EnsurePhase(ctx, phase))
	require.NoError(t, orchestrator.PublishPoll(ctx, phase, "key", []byte("y")))
	_, _, err = orchestrator.Outstanding(ctx, phase)
	require.NoError(t, err)
	results, err := orchestrator.Results(ctx, 1)
	require.NoError(t, err)
	defer results.Close()
	_, _, err = orchestrator.Backlog(ctx, "RESULTS", 1)
	require.NoError(t, err)
	stop, err := orchestrator.ServeAsks(1, func(r bus.Request, reply func(map[string]string, []byte)) { reply(nil, []byte("re "+r.Verb)) })
	require.NoError(t, err)
	defer stop()
	for name, b := range map[string]*jetstream.Bus{"orchestrator": orchestrator, "intake": intake, "runner": runner, "notifier": notifier} {
		m, err := b.Join(ctx, name, "x")
		require.NoError(t, err)
		require.Len(t, <-m.Changes(), 4, name)
		m.Leave()
	}
	ticked := make(chan time.Time, 10)
	stopTicks, err := orchestrator.OnTick(bus.TickSecond, func(at time.Time) { ticked <- at })
	require.NoError(t, err)
	defer stopTicks()
	<-ticked

	// The runner's.
	stopPhases, err := orchestrator.ServeAsks(phase.Partition(orchestrator.Partitions()), func(r bus.Request, reply func(map[string]string, []byte)) { reply(nil, []byte("re "+r.Verb)) })
	require.NoError(t, err)
	defer stopPhases()
	held, err := runner.AskPhase(ctx, phase, bus.Request{Verb: "hold"})
	require.NoError(t, err)
	require.Equal(t, "re phase.hold", string(held.Body))
	puller, err := runner.Pull(ctx, phase)
	require.NoError(t, err)
	defer puller.Close()
	for got := 0; got < 2; {
		ds, err := puller.Fetch(ctx, 10, bus.FetchBytesMax, time.Second)
		require.NoError(t, err)
		for _, d := range ds {
			if got == 0 {
				require.NoError(t, d.Ack())
			} else {
				require.NoError(t, d.Reject(ctx, "no use"))
			}
			got++
		}
	}
	subject := bus.ResultSubject(1, e.Project, e.Kind, e.Name)
	require.NoError(t, runner.PublishResult(ctx, subject, nil, []byte("done")))
	d := <-results.C()
	require.Equal(t, "done", string(d.Body()))
	require.NoError(t, d.Ack())
	require.NoError(t, gateway.PublishResult(ctx, bus.CallbackSubject(1, 1<<43|7), nil, []byte("DE")))
	d = <-results.C()
	require.Equal(t, bus.CallbackSubject(1, 1<<43|7), d.Subject())
	require.NoError(t, d.Ack())
	require.ErrorIs(t, gateway.PublishResult(ctx, subject, nil, []byte("forged")), bus.ErrDenied, "only runners answer for their work")
	asked, err := gateway.AskDoor(ctx, phase.Partition(orchestrator.Partitions()), bus.Request{Verb: "callback.find"})
	require.NoError(t, err)
	require.Equal(t, "re callback.find", string(asked.Body), "whatever it asks is asked of callbacks")
	_, err = gateway.Ask(ctx, 1, bus.Request{Verb: "command"})
	require.ErrorIs(t, err, bus.ErrDenied, "commands go through intake")
	for _, verb := range []string{"machine.next", "callback.find"} {
		_, err = notifier.AskDoor(ctx, phase.Partition(orchestrator.Partitions()), bus.Request{Verb: verb})
		require.ErrorIs(t, err, bus.ErrDenied, "it asks which check instances are pending, and no %s", verb)
	}
	asked, err = notifier.AskDoor(ctx, phase.Partition(orchestrator.Partitions()), bus.Request{Verb: "check.pokes"})
	require.NoError(t, err)
	require.Equal(t, "re check.pokes", string(asked.Body))
	for _, verb := range []string{"machine.next", "check.pokes", "callback.find"} {
		_, err = runner.AskDoor(ctx, phase.Partition(orchestrator.Partitions()), bus.Request{Verb: verb})
		require.ErrorIs(t, err, bus.ErrDenied, "a runner asks %s", verb)
	}
	require.NoError(t, gateway.PublishOutput(e.Project, e.Kind, e.Name, []byte("a module's line")))
	last, err = runner.Last(ctx, []bus.Entity{e}) // whether old work is still wanted
	require.NoError(t, err)
	require.Equal(t, seq, last[0].Seq)
	require.NoError(t, runner.PublishOutput(e.Project, e.Kind, e.Name, []byte("line")))
	_, err = runner.Version(ctx, bus.Entity{Family: bus.Blueprint, Project: "team.a", Kind: kind}, "v1")
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := runner.Get(ctx, e); return err == nil }, 20*time.Second, 20*time.Millisecond)

	// Intake's, and those who ask it.
	stopAPI, err := intake.ServeAPI("1.0.0", func(_ string, _ bus.Request, reply func(map[string]string, []byte)) { reply(nil, []byte("accepted")) })
	require.NoError(t, err)
	defer stopAPI()
	command, request := bus.CommandSubject("cmd", e.Project, e.Kind, e.Name, "start"), bus.CommandSubject("api", e.Project, e.Kind, e.Name, "start")
	for name, b := range map[string]*jetstream.Bus{"user": user, "gateway": gateway, "team a": teamA, "operator": operator} {
		got, err := b.Request(ctx, request, nil, nil)
		require.NoError(t, err, name)
		require.Equal(t, "accepted", string(got.Body))
		_, err = b.PublishCommand(ctx, command, nil, nil)
		require.NoError(t, err, name)
	}
	// A plugin's worker announces its phases and listeners, hears notices, pulls and answers; it commands nothing else.
	for _, kind := range []string{"Blueprint", "Listener"} {
		_, err = plugin.Request(ctx, bus.CommandSubject("api", e.Project, kind, "Cloud.Node", "apply"), nil, nil)
		require.NoError(t, err)
		_, err = plugin.Request(ctx, bus.CommandSubject("api", e.Project, kind, "Cloud.Node", "delete"), nil, nil)
		require.ErrorIs(t, err, bus.ErrDenied)
	}
	_, err = plugin.Request(ctx, request, nil, nil)
	require.ErrorIs(t, err, bus.ErrDenied)
	_, err = runner.Request(ctx, bus.CommandSubject("api", e.Project, "Blueprint", "Cloud.Node", "apply"), nil, nil)
	require.ErrorIs(t, err, bus.ErrDenied)
	pluginPulls, err := plugin.Pull(ctx, phase)
	require.NoError(t, err)
	pluginPulls.Close()
	_, err = plugin.AskPhase(ctx, phase, bus.Request{Verb: "hold"})
	require.NoError(t, err)
	require.NoError(t, plugin.PublishOutput(e.Project, e.Kind, e.Name, []byte("line")))
	stopNotices, err := plugin.Notices("drover.notice.plugin.x", "x", func(map[string]string, []byte) {})
	require.NoError(t, err)
	stopNotices()
	_, err = runner.Notices("drover.notice.plugin.x", "x", func(map[string]string, []byte) {})
	require.ErrorIs(t, err, bus.ErrDenied)
	inbox, err := intake.Commands(ctx, bus.CommandPartition(e.Project, e.Kind, e.Name, 4))
	require.NoError(t, err)
	defer inbox.Close()
	for range 4 {
		d := <-inbox.C()
		require.Equal(t, command, d.Subject())
		require.NoError(t, d.Ack())
	}
	_, _, err = intake.Backlog(ctx, "COMMANDS", 0)
	require.NoError(t, err)
	require.NoError(t, intake.PublishRefusal(ctx, e.Project, "id", nil, nil))
	for name, b := range map[string]*jetstream.Bus{"intake": intake, "lifecycle": lifecycle} {
		got, err := b.Ask(ctx, 1, bus.Request{Verb: "sweep"})
		require.NoError(t, err, name)
		require.Equal(t, "re sweep", string(got.Body))
	}
	require.NoError(t, notifier.Notify("drover.notice.a", nil, nil))

	// Those who look on.
	count := func(b *jetstream.Bus, project string) (int, error) {
		n := 0
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		return n, b.List(short, bus.Resource, project, "", func(bus.Stored) error { n++; return nil })
	}
	for name, b := range all {
		_, err := count(b, "team.a")
		require.NoError(t, err, name)
	}
	_, err = user.History(ctx, e)
	require.NoError(t, err)
	require.NoError(t, user.ReadOutput(ctx, e.Project, e.Kind, e.Name, false, func(bus.OutputLine) error { return nil }))
	seen := make(chan bus.Stored, 10)
	stopFollow, err := teamA.Follow(bus.Resource, "team.a", kind, "", func(s bus.Stored) { seen <- s })
	require.NoError(t, err)
	defer stopFollow()
	gone, err := orchestrator.Bury(bus.Append{Entity: e, Expect: seq}).Result()
	require.NoError(t, err)
	require.Equal(t, gone, (<-seen).Seq)
	require.NoError(t, orchestrator.Forget(ctx, e, gone))
	require.NoError(t, orchestrator.RemovePhase(ctx, phase))

	// What the others may not.
	for name, b := range map[string]*jetstream.Bus{"user": user, "gateway": gateway, "intake": intake, "operator": operator, "team a": teamA, "notifier": notifier} {
		require.ErrorIs(t, b.PublishResult(ctx, subject, nil, nil), bus.ErrDenied, "%s publishes a result", name)
		require.ErrorIs(t, b.PublishPoll(ctx, phase, "k", nil), bus.ErrDenied, "%s publishes work", name)
	}
	require.ErrorIs(t, runner.PublishPoll(ctx, phase, "k", nil), bus.ErrDenied)
	for name, b := range map[string]*jetstream.Bus{"runner": runner, "user": user, "team a": teamA} {
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		require.ErrorIs(t, b.EnsurePhase(short, phase), bus.ErrDenied, "%s makes a consumer", name)
		cancel()
		_, err := b.Ask(ctx, 1, bus.Request{Verb: "sweep"})
		require.ErrorIs(t, err, bus.ErrDenied, "%s asks an owner", name)
	}
	_, err = runner.PublishCommand(ctx, command, nil, nil)
	require.ErrorIs(t, err, bus.ErrDenied)

	// One project's user sees and commands no other.
	_, err = teamA.PublishCommand(ctx, bus.CommandSubject("cmd", "team-b", kind, "x", "start"), nil, nil)
	require.ErrorIs(t, err, bus.ErrDenied)
	_, err = teamA.Request(ctx, bus.CommandSubject("api", "team-b", kind, "x", "start"), nil, nil)
	require.ErrorIs(t, err, bus.ErrDenied)
	for _, project := range []string{"team-b", ""} {
		n, err := count(teamA, project)
		require.ErrorIs(t, err, bus.ErrDenied)
		require.Zero(t, n)
	}
	_, err = teamA.Get(ctx, other)
	require.ErrorIs(t, err, bus.ErrDenied)
	_, err = teamA.Follow(bus.Resource, "", "", "", func(bus.Stored) {})
	require.ErrorIs(t, err, bus.ErrDenied)
	_, err = user.ServeAsks(1, func(bus.Request, func(map[string]string, []byte)) {})
	require.ErrorIs(t, err, bus.ErrDenied)
	_, err = runner.ServeAPI("1.0.0", func(string, bus.Request, func(map[string]string, []byte)) {})
	require.ErrorIs(t, err, bus.ErrDenied)
	_, err = user.Join(ctx, "orchestrator", "x")
	require.ErrorIs(t, err, bus.ErrDenied)
}
