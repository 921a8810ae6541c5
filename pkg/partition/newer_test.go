package partition_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/partition"
	"github.com/droverproject/drover/pkg/wire"
)

// newer puts something into the log that a newer version of Drover wrote.
func (f *fixture) newer(family bus.Family) {
	f.t.Helper()
	e := bus.Entity{Family: family, Project: "p", Kind: resource.ListenerKind, Name: "n"}
	at := time.Now()
	var body []byte
	var err error
	if family == bus.Job {
		e.Kind, e.Name = "", "job"
		body, err = wire.EncodeJob(wire.JobEvent{At: at, Record: job.Record{
			Ref:     job.Ref{ID: "job", RequestID: "r", State: job.Succeeded, AcceptedAt: at, EndedAt: at},
			Project: "p", Kind: resource.ListenerKind, Name: "n", Revision: 1, MinReader: resource.ReaderVersion + 1,
		}})
	} else {
		body, err = wire.EncodeResource(wire.ResourceEvent{At: at, State: resource.State{
			Key: resource.Key{Project: "p", Kind: resource.ListenerKind, Name: "n"}, UID: "u", Revision: 1, MinReader: resource.ReaderVersion + 1,
		}})
	}
	require.NoError(f.t, err)
	last, err := f.link.Conn.Last(f.t.Context(), []bus.Entity{e})
	require.NoError(f.t, err)
	_, err = f.link.Conn.Append(bus.Append{Entity: e, Expect: last[0].Seq, Body: body}).Result()
	require.NoError(f.t, err)
}

// ask sends a command and returns the answer.
func (f *fixture) ask(name, verb, id string, c wire.Command) wire.Reply {
	f.t.Helper()
	return f.command(resource.ListenerKind, name, verb, id, c)
}

// command sends a command; the reply is there when it returns.
func (f *fixture) command(kind, name, verb, id string, c wire.Command) (reply wire.Reply) {
	f.t.Helper()
	body, err := wire.EncodeCommand("", c)
	require.NoError(f.t, err)
	f.owner.Ask(bus.Request{Verb: "command", Header: map[string]string{
		"Drover-Subject": bus.CommandSubject("cmd", "p", kind, name, verb), bus.HeaderRequestID: id,
	}, Body: body}, func(_ map[string]string, body []byte) {
		reply, err = wire.DecodeReply("", body)
		require.NoError(f.t, err)
	})
	f.shell.run(f.owner)
	return reply
}

// TestAPartitionOfANewerVersionIsLeftAlone: whatever is newer, and whenever it is met, nothing is decided on it.
func TestAPartitionOfANewerVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, family := range []bus.Family{bus.Resource, bus.Job} {
		t.Run("takeover/"+string(family), func(t *testing.T) {
			t.Parallel()
			sys := memory.New(memory.Options{Partitions: 1})
			f := serve(t, sys, time.Now)
			f.newer(family)
			books, err := catalog.New(f.link, time.Now, constraint.NewEvaluator())
			require.NoError(t, err)
			again := partition.New(t.Context(), partition.Config{
				Bus: f.link, Catalog: books, Now: time.Now, Log: zap.NewNop(), Observer: f.shell, Shell: f.shell,
			})
			_, err = again.TakeOver()
			require.ErrorIs(t, err, partition.ErrNewer)
			require.ErrorIs(t, again.Newer(), partition.ErrNewer)
		})
	}
	t.Run("a command", func(t *testing.T) {
		t.Parallel()
		f := start(t)
		f.newer(bus.Resource)
		require.NoError(t, f.owner.Newer())
		require.Equal(t, resource.Overloaded, f.ask("n", "delete", "1", wire.Command{}).Refused.Code)
		require.ErrorIs(t, f.owner.Newer(), partition.ErrNewer)
		require.ErrorContains(t, f.owner.Newer(), "resource p.Listener.n needs version 2")
	})
	t.Run("a look", func(t *testing.T) {
		t.Parallel()
		sys, now := memory.New(memory.Options{Partitions: 1}), time.Now()
		f := serve(t, sys, func() time.Time { return now })
		f.newer(bus.Resource)
		f.sweep()
		require.NoError(t, f.owner.Newer())
		now = now.Add(31 * time.Second)
		f.sweep()
		require.ErrorIs(t, f.owner.Newer(), partition.ErrNewer)
	})
}
