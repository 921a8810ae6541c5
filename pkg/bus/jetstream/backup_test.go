package jetstream_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
)

const backupNodes = 64

// mover moves the entities 0 to 7 each by itself, and 8 and 9 together, by one batch that gives both the same body,
// until stop. It counts how often the slowest of the first has moved.
func mover(t *testing.T, b *jetstream.Bus) (moved func() uint64, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var counts [8]atomic.Uint64
	for i := range counts {
		wg.Go(func() {
			seq := uint64(0)
			for ctx.Err() == nil {
				var err error
				if seq, err = b.Append(bus.Append{Entity: node(i), Expect: seq}).Result(); err != nil {
					t.Errorf("append: %v", err)
					return
				}
				counts[i].Add(1)
			}
		})
	}
	for i := 8; i < 10; i += 2 {
		wg.Go(func() {
			var first, last uint64
			for n := 1; ctx.Err() == nil; n++ {
				body := []byte(strconv.Itoa(n))
				seq, err := b.AppendBatch(t.Context(), []bus.Append{
					{Entity: node(i), Expect: first, Body: body}, {Entity: node(i + 1), Expect: last, Body: body},
				})
				if err != nil {
					t.Errorf("batch: %v", err)
					return
				}
				first, last = seq-1, seq
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return func() uint64 {
		least := counts[0].Load()
		for i := range counts {
			least = min(least, counts[i].Load())
		}
		return least
	}, stop
}

// TestBackupWhileMoving: a copy of a log that moves faster than it is copied lacks no entity and tears no batch.
func TestBackupWhileMoving(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 4})
	// What is at rest makes the copy take its time.
	var pending []bus.Pending
	for i := backupNodes; i < 20*backupNodes; i++ {
		pending = append(pending, b.Append(bus.Append{Entity: node(i), Body: make([]byte, 32<<10)}))
	}
	for _, p := range pending {
		_, err := p.Result()
		require.NoError(t, err)
	}
	moved, stop := mover(t, b)
	require.Eventually(t, func() bool { return moved() > 10 }, 30*time.Second, time.Millisecond)
	before := make([]bus.Stored, 10)
	for i := range before {
		at, err := b.Current(t.Context(), []bus.Entity{node(i)})
		require.NoError(t, err)
		before[i] = at[0]
	}
	began := moved()
	dir := filepath.Join(t.TempDir(), "backup")
	var told []string
	backup, err := b.Backup(t.Context(), dir, func(c bus.Copied) { told = append(told, c.Stream) })
	require.NoError(t, err)
	during := moved() - began
	stop()
	require.Equal(t, []string{"COMMANDS", "RESULTS", "OUTPUT", "REFUSED", "POISON", "EVENTS"}, told)
	require.Equal(t, 4, backup.Partitions)
	t.Logf("each has moved at least %d times, while it was copied", during) // readStream's own test waits for none of it

	to := start(t)
	c, err := jetstream.Connect(t.Context(), jetstream.Options{URL: to.ClientURL()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	restored, err := c.Restore(t.Context(), dir, func([]byte) ([]string, error) { return nil, nil }, nil)
	require.NoError(t, err)
	require.Equal(t, backup, restored.Backup)
	require.Equal(t, 4, c.Partitions())
	for i := range before {
		at, err := c.Current(t.Context(), []bus.Entity{node(i)})
		require.NoError(t, err)
		require.GreaterOrEqual(t, at[0].Seq, before[i].Seq, "%s is as it was when the backup began, or younger", at[0].Entity.Name)
		if i < 8 {
			continue
		}
		other, err := c.Current(t.Context(), []bus.Entity{node(i ^ 1)})
		require.NoError(t, err)
		require.Equal(t, string(at[0].Body), string(other[0].Body), "both of a batch are there, or none")
	}
	for i := backupNodes; i < 20*backupNodes; i += 97 {
		got, err := c.Get(t.Context(), node(i))
		require.NoError(t, err, "the bucket is derived")
		require.Len(t, got.Body, 32<<10)
	}
	// The log goes on where it was, guarded as before.
	at, err := c.Current(t.Context(), []bus.Entity{node(0)})
	require.NoError(t, err)
	_, err = c.Append(bus.Append{Entity: node(0), Expect: at[0].Seq - 1}).Result()
	require.ErrorIs(t, err, bus.ErrLost)
	seq, err := c.Append(bus.Append{Entity: node(0), Expect: at[0].Seq}).Result()
	require.NoError(t, err)
	require.Greater(t, seq, at[0].Seq)
}

// system is one with a log, a command, a result, a line of output and work of two phases, of which one is out.
func backupSystem(t *testing.T, b *jetstream.Bus) {
	ctx := t.Context()
	p := bus.Phase{Project: "p", Kind: "node", Phase: "build"}
	require.NoError(t, b.EnsurePhase(ctx, p))
	for i := range 3 {
		first, err := b.Append(bus.Append{Entity: node(i), Dispatch: "build", Body: []byte(fmt.Sprint("earlier ", i))}).Result()
		require.NoError(t, err)
		_, err = b.Append(bus.Append{Entity: node(i), Dispatch: "build", Expect: first, Body: []byte(fmt.Sprint("work ", i)),
			Header: bus.Header{Job: fmt.Sprint("job-", i)}}).Result()
		require.NoError(t, err)
	}
	puller, err := b.Pull(ctx, p)
	require.NoError(t, err)
	defer puller.Close()
	for done := 0; done < 6; {
		got, err := puller.Fetch(ctx, 10, bus.FetchBytesMax, 5*time.Second)
		require.NoError(t, err)
		for _, d := range got {
			require.NoError(t, d.Ack())
			done++
		}
	}
	_, err = b.PublishCommand(ctx, bus.CommandSubject("cmd", "p", "node", "n1", "start"), nil, []byte("command"))
	require.NoError(t, err)
	require.NoError(t, b.PublishResult(ctx, bus.ResultSubject(1, "p", "node", "n1"), nil, []byte("result")))
	require.NoError(t, b.StoreOutput(ctx, "p", "node", "n1", []byte("line")))
}

// checkRestored looks for all of it, and for nothing else in WORK but what was out.
func checkRestored(t *testing.T, b *jetstream.Bus) {
	ctx := t.Context()
	p := bus.Phase{Project: "p", Kind: "node", Phase: "build"}
	require.NoError(t, b.EnsurePhase(ctx, p))
	puller, err := b.Pull(ctx, p)
	require.NoError(t, err)
	defer puller.Close()
	var got []bus.Delivery
	require.Eventually(t, func() bool {
		more, err := puller.Fetch(ctx, 10, bus.FetchBytesMax, time.Second)
		got = append(got, more...)
		return err == nil && len(got) > 0
	}, 30*time.Second, 10*time.Millisecond)
	require.Len(t, got, 1)
	require.Equal(t, "work 1", string(got[0].Body()), "the last hand-out")
	require.Equal(t, "job-1", got[0].Header(bus.HeaderJob))
	require.Empty(t, got[0].Header(bus.HeaderPoll))
	require.NoError(t, got[0].Ack())

	// What is handed out from now on is derived again, and what was is not.
	last, err := b.Current(ctx, []bus.Entity{node(2)})
	require.NoError(t, err)
	_, err = b.Append(bus.Append{Entity: node(2), Dispatch: "build", Expect: last[0].Seq, Body: []byte("new")}).Result()
	require.NoError(t, err)
	got = nil
	require.Eventually(t, func() bool {
		more, err := puller.Fetch(ctx, 10, bus.FetchBytesMax, time.Second)
		got = append(got, more...)
		return err == nil && len(got) > 0
	}, 30*time.Second, 10*time.Millisecond)
	require.Len(t, got, 1)
	require.Equal(t, "new", string(got[0].Body()))
	require.NoError(t, got[0].Ack())

	commands, err := b.Commands(ctx, bus.CommandPartition("p", "node", "n1", b.Partitions()))
	require.NoError(t, err)
	defer commands.Close()
	d := <-commands.C()
	require.Equal(t, "command", string(d.Body()))
	require.NoError(t, d.Ack())
	results, err := b.Results(ctx, 1)
	require.NoError(t, err)
	defer results.Close()
	d = <-results.C()
	require.Equal(t, "result", string(d.Body()))
	require.NoError(t, d.Ack())
	lines := 0
	require.NoError(t, b.ReadOutput(ctx, "p", "node", "n1", false, func(l bus.OutputLine) error {
		lines++
		require.Equal(t, "line", string(l.Body))
		return nil
	}))
	require.Equal(t, 1, lines)
	drift, err := b.Setup(ctx, false)
	require.NoError(t, err)
	require.Empty(t, drift, "where WORK began is no drift")
	drift, err = b.Check(ctx)
	require.NoError(t, err)
	require.Empty(t, drift)
}

// outIs says that what these bodies hand out is not answered.
func outIs(bodies ...string) func([]byte) ([]string, error) {
	return func(event []byte) ([]string, error) {
		if slices.Contains(bodies, string(event)) {
			return []string{"build"}, nil
		}
		return nil, nil
	}
}

// TestRestore: on one server and on three, and from one to three.
func TestRestore(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 4, Limits: jetstream.Limits{CommandMessages: 77}})
	backupSystem(t, b)
	dir := t.TempDir() // empty is as good as none
	_, err := b.Backup(t.Context(), dir, nil)
	require.NoError(t, err)
	_, err = b.Backup(t.Context(), dir, nil)
	require.ErrorContains(t, err, "not empty")

	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		to := start(t)
		c, err := jetstream.Connect(t.Context(), jetstream.Options{URL: to.ClientURL(), Limits: jetstream.Limits{CommandMessages: 77}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		restored, err := c.Restore(t.Context(), dir, outIs("work 1"), nil)
		require.NoError(t, err)
		require.Equal(t, 1, restored.HandedOut)
		checkRestored(t, c)
		_, err = c.Restore(t.Context(), dir, outIs("work 1"), nil)
		require.ErrorIs(t, err, bus.ErrExists)

		// It does not hand out the past after a restart either.
		require.NoError(t, to.Shutdown())
		to.up(t)
		require.Eventually(t, func() bool {
			n, caughtUp, err := c.Outstanding(t.Context(), bus.Phase{Project: "p", Kind: "node", Phase: "build"})
			require.Zero(t, n)
			return err == nil && caughtUp
		}, time.Minute, 50*time.Millisecond)
	})
	t.Run("three servers", func(t *testing.T) {
		t.Parallel()
		cluster, err := natsd.StartCluster(3, natsd.Options{StoreDir: t.TempDir()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cluster.Shutdown()) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := jetstream.Connect(ctx, jetstream.Options{URL: cluster.ClientURL(), Replicas: 3, Limits: jetstream.Limits{CommandMessages: 77}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = c.Restore(ctx, dir, outIs("work 1"), nil)
		require.NoError(t, err)
		checkRestored(t, c)
		// And a cluster's backup.
		again := filepath.Join(t.TempDir(), "again")
		_, err = c.Backup(ctx, again, nil)
		require.NoError(t, err)
		to := start(t)
		d, err := jetstream.Connect(ctx, jetstream.Options{URL: to.ClientURL()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = d.Close() })
		_, err = d.Restore(ctx, again, outIs(), nil)
		require.NoError(t, err)
		at, err := d.Get(ctx, node(2))
		require.NoError(t, err)
		require.Equal(t, "new", string(at.Body))
	})
}

// TestRestoreOfHalfABackup leaves nothing of a stream that is not whole, so that the whole one can be restored.
func TestRestoreOfHalfABackup(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 4})
	for i := range 40 {
		_, err := b.Append(bus.Append{Entity: node(i), Body: make([]byte, 8<<10)}).Result()
		require.NoError(t, err)
	}
	dir := filepath.Join(t.TempDir(), "backup")
	_, err := b.Backup(t.Context(), dir, nil)
	require.NoError(t, err)
	file := filepath.Join(dir, "EVENTS", "stream.tar.s2")
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, whole[:len(whole)-8], 0o600))

	to := start(t)
	c, err := jetstream.Connect(t.Context(), jetstream.Options{URL: to.ClientURL()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	none := func([]byte) ([]string, error) { return nil, nil }
	_, err = c.Restore(t.Context(), dir, none, nil)
	require.ErrorContains(t, err, "stream EVENTS")
	require.NoError(t, os.WriteFile(file, whole, 0o600))
	_, err = c.Restore(t.Context(), dir, none, nil)
	require.NoError(t, err)
	last, err := c.Current(t.Context(), []bus.Entity{node(39)})
	require.NoError(t, err)
	require.Len(t, last[0].Body, 8<<10)
}

// TestRestoreRefuses what is no backup, before it makes anything.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	s := start(t)
	c, err := jetstream.Connect(t.Context(), jetstream.Options{URL: s.ClientURL(), Partitions: 8})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	none := func([]byte) ([]string, error) { return nil, nil }
	_, err = c.Restore(t.Context(), t.TempDir(), none, nil)
	require.ErrorContains(t, err, "no backup")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "drover.json"), []byte(`{"partitions": 4, "streams": []}`), 0o600))
	_, err = c.Restore(t.Context(), dir, none, nil)
	require.ErrorContains(t, err, "4 partitions")
	drift, err := c.Check(t.Context())
	require.NoError(t, err)
	for _, d := range drift {
		require.True(t, d.Missing, "%+v", d)
	}
}

// TestLostWorkIsNotMadeOfThePast: who sets up a system that has lost WORK makes one that begins now.
func TestLostWorkIsNotMadeOfThePast(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s, jetstream.Options{Partitions: 4})
	_, err := b.Append(bus.Append{Entity: node(1), Dispatch: "build"}).Result()
	require.NoError(t, err)
	js := client(t, s)
	require.NoError(t, js.DeleteStream(t.Context(), "WORK"))
	_, err = b.Setup(t.Context(), false)
	require.NoError(t, err)
	last, err := b.Current(t.Context(), []bus.Entity{node(1)})
	require.NoError(t, err)
	_, err = b.Append(bus.Append{Entity: node(1), Dispatch: "build", Expect: last[0].Seq}).Result()
	require.NoError(t, err)
	work, err := js.Stream(t.Context(), "WORK")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := work.Info(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, info.State.Msgs, uint64(1))
		return info.State.Msgs == 1
	}, 30*time.Second, 10*time.Millisecond)
}
