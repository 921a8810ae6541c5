package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

func TestAnswers(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "done", "failed", "retry", "pending", "silent")
		b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				var port, step int
				if ok, err := r.Attribute("port", &port); !ok || err != nil || port != 8080 {
					return fmt.Errorf("attribute: %v %d: %w", ok, port, err)
				}
				if ok, err := r.PhaseData("step", &step); !ok || err != nil || step != 1 {
					return fmt.Errorf("data: %v %d: %w", ok, step, err)
				}
				if ok, err := r.PhaseData("none", &step); ok || err != nil {
					return fmt.Errorf("data: %v: %w", ok, err)
				}
				if r.State() != "Configuration" || r.Target() != "Started" || r.Labels()["rack"] != "a" || r.Attempt() != 1 ||
					r.Phase() != phaseName || r.Job() != "job" || r.BlueprintDigest() != "b1" || r.Polled() {
					return errors.New("not what was handed out")
				}
				switch r.Key().Name {
				case "done":
					err := errors.Join(r.SetAttribute("id", "i-1"), r.SetAttribute("old", nil), r.SetPhaseData("step", 2),
						r.SetOutput("list", json.RawMessage(`[1, 2]`)))
					if err != nil {
						return err
					}
					if ok, err := r.PhaseData("step", &step); !ok || err != nil || step != 2 {
						return fmt.Errorf("data: %v %d: %w", ok, step, err)
					}
					batch.Failed(r, "overruled by the next")
					batch.Completed(r)
				case "failed":
					batch.Failed(r, "broken")
				case "retry":
					batch.FailedRetryable(r, strings.Repeat("é", resource.MessageBytesMax))
				case "pending":
					batch.Pending(r, time.Minute, "copying")
				}
			}
			return nil
		})
		done := b.await(t, "done", 1)[0]
		require.Equal(t, resource.Result{
			Fence: fence("done"), Outcome: resource.OutcomeCompleted,
			Attributes: map[string]string{"id": `"i-1"`, "old": "null"}, Data: map[string]string{"step": "2"},
			Outputs: map[string]string{"list": "[1,2]"},
		}, done)
		require.Equal(t, resource.Result{Fence: fence("failed"), Outcome: resource.OutcomeFailed, Message: "broken"}, b.await(t, "failed", 1)[0])
		retry := b.await(t, "retry", 1)[0]
		require.True(t, retry.Retryable)
		require.LessOrEqual(t, len(retry.Message), resource.MessageBytesMax)
		require.Equal(t, resource.Result{
			Fence: fence("pending"), Outcome: resource.OutcomePending, Message: "copying", Delay: time.Minute,
		}, b.await(t, "pending", 1)[0])
		// Neither completed nor failed: pending, after the phase's own interval.
		require.Equal(t, resource.Result{Fence: fence("silent"), Outcome: resource.OutcomePending}, b.await(t, "silent", 1)[0])
		b.settled(t)
	})
}

// A worker is told whether it is to do or to undo, in which state, and what was before.
func TestUndo(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "new")
		again := b.state("again", resource.Waiting)
		again.WasDeployed, again.State = true, "Updating"
		b.put(t, again, true)
		undo := b.state("undo", resource.Waiting)
		undo.WasDeployed, undo.State, undo.Phases[0].Undo = true, "Retiring", true
		b.put(t, undo, true)
		b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				if err := r.SetOutput("told", fmt.Sprint(r.State(), r.Undo(), r.WasDeployed())); err != nil {
					return err
				}
				batch.Completed(r)
			}
			return nil
		})
		for name, want := range map[string]string{
			"new": `"Configurationfalse false"`, "again": `"Updatingfalse true"`, "undo": `"Retiringtrue true"`,
		} {
			require.Equal(t, map[string]string{"told": want}, b.await(t, name, 1)[0].Outputs)
		}
	})
}

// An exception fails all resources of the batch but those that were completed, and says why (seed 003).
func TestExceptionFailsTheRest(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("the cloud said no") },
		"panic": func() error { panic("the cloud said no") },
		// A panic is an exception even if it is about the bus.
		"panic with an error": func() error { panic(fmt.Errorf("the cloud said no: %w", plugin.ErrUnavailable)) },
	} {
		t.Run(name, func(t *testing.T) {
			onBuses(t, func(t *testing.T, b *recorder) {
				b.ensure(t)
				b.handOut(t, "completed", "failed", "pending", "silent")
				b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
					for _, r := range batch.Resources() {
						switch r.Key().Name {
						case "completed":
							batch.Completed(r)
						case "failed":
							batch.Failed(r, "own reason")
						case "pending":
							batch.Pending(r, 0, "later")
						}
					}
					return fail()
				})
				require.Equal(t, resource.OutcomeCompleted, b.await(t, "completed", 1)[0].Outcome)
				require.Equal(t, "own reason", b.await(t, "failed", 1)[0].Message)
				for _, name := range []string{"pending", "silent"} {
					result := b.await(t, name, 1)[0]
					require.Equal(t, resource.OutcomeFailed, result.Outcome)
					require.Contains(t, result.Message, "the cloud said no")
				}
				b.settled(t)
			})
		})
	}
}

// A worker that stops fails nothing; another one gets what was left at once, and what was completed is not run again.
func TestStopFailsNothing(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "completed", "left")
		started := make(chan struct{})
		stop := b.serve(t, plugin.Options{Batch: 2, StopGrace: -1}, func(ctx context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				if r.Key().Name == "completed" {
					batch.Completed(r)
				}
			}
			if slices.Contains(names(batch), "left") {
				close(started)
				<-ctx.Done()
			}
			return ctx.Err()
		})
		<-started
		began := time.Now()
		stop()
		require.Equal(t, resource.OutcomeCompleted, b.await(t, "completed", 1)[0].Outcome)
		for _, r := range b.of("left") {
			require.Equal(t, resource.OutcomeRunning, r.Outcome)
		}
		again := make(chan []string, 10)
		b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
			again <- names(batch)
			batch.Completed(batch.Resources()...)
			return nil
		})
		require.Equal(t, []string{"left"}, <-again)
		require.Less(t, time.Since(began), 20*time.Second) // put back, not timed out, which takes 30 s
		b.settled(t)
	})
}

// A call that is about to end when the worker stops may end.
func TestStopGrace(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "slow")
		started, finish := make(chan struct{}), make(chan struct{})
		stop := b.serve(t, plugin.Options{StopGrace: time.Minute}, func(ctx context.Context, batch *plugin.Batch) error {
			close(started)
			<-finish
			if ctx.Err() != nil {
				return ctx.Err()
			}
			batch.Completed(batch.Resources()...)
			return nil
		})
		<-started
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop()
		}()
		close(finish)
		<-stopped
		results := b.await(t, "slow", 1)
		require.Equal(t, resource.OutcomeCompleted, results[len(results)-1].Outcome)
	})
}

// Draining begins nothing and ends nothing.
func TestDrain(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "one")
		drain, started, finish := make(chan struct{}), make(chan struct{}), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- plugin.Serve(t.Context(), b, b.phase(), plugin.Options{StopGrace: -1, Drain: drain}, func(ctx context.Context, batch *plugin.Batch) error {
				close(started)
				select {
				case <-finish:
					batch.Completed(batch.Resources()...)
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
		<-started
		close(drain)
		b.handOut(t, "two")
		select {
		case <-done:
			t.Fatal("it did not wait for its call")
		case <-time.After(500 * time.Millisecond): // what is tested is that nothing happens
		}
		close(finish)
		require.NoError(t, <-done)
		results := b.await(t, "one", 1)
		require.Equal(t, resource.OutcomeCompleted, results[len(results)-1].Outcome)
		require.Empty(t, b.of("two"))
	})
}

func TestUnavailableFailsNothing(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "one")
		var calls atomic.Int32
		b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
			if calls.Add(1) == 1 {
				return fmt.Errorf("spec: %w", plugin.ErrUnavailable)
			}
			batch.Completed(batch.Resources()...)
			return nil
		})
		results := b.await(t, "one", 1)
		require.Equal(t, resource.OutcomeCompleted, results[len(results)-1].Outcome)
		require.EqualValues(t, 2, calls.Load())
	})
}

// Only a call that lasts is reported as Running; and its work does not come again meanwhile.
func TestLongCall(t *testing.T) {
	onBusesWith(t, impatientAckWait, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "long", "short")
		var calls atomic.Int32
		b.serve(t, plugin.Options{Batch: 1, Lease: 1500 * time.Millisecond, CheckEvery: time.Hour}, func(_ context.Context, batch *plugin.Batch) error {
			if names(batch)[0] == "long" {
				calls.Add(1)
				time.Sleep(impatientAckWait + 500*time.Millisecond) // what is tested is the time itself
			}
			batch.Completed(batch.Resources()...)
			return nil
		})
		require.Equal(t, resource.OutcomeCompleted, b.await(t, "short", 1)[0].Outcome)
		var long []resource.Result
		require.Eventually(t, func() bool {
			long = b.of("long")
			return len(long) > 0 && long[len(long)-1].Outcome == resource.OutcomeCompleted
		}, 20*time.Second, 5*time.Millisecond)
		require.Greater(t, len(long), 2)
		for _, r := range long[:len(long)-1] {
			require.Equal(t, resource.Result{Fence: fence("long"), Outcome: resource.OutcomeRunning}, r)
		}
		b.settled(t)
		require.EqualValues(t, 1, calls.Load())
		require.Len(t, b.of("short"), 1)
	})
}

// Work that is out of date when it is fetched is not begun.
func TestStaleWorkIsNotBegun(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "fresh", "canceling", "moved", "reborn")
		canceling := b.state("canceling", resource.Canceling)
		canceling.Revision = 2
		b.put(t, canceling, false)
		moved := b.state("moved", resource.Waiting)
		moved.Revision, moved.Phases[0].Call = 2, 2
		b.put(t, moved, false)
		reborn := b.state("reborn", resource.Waiting)
		reborn.UID = "another"
		b.put(t, reborn, false)
		time.Sleep(plugin.StaleAfter + 200*time.Millisecond) // what is tested is the time itself

		called := make(chan []string, 10)
		b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
			called <- names(batch)
			batch.Completed(batch.Resources()...)
			return nil
		})
		for _, name := range []string{"canceling", "moved", "reborn"} {
			require.Equal(t, resource.OutcomeNotStarted, b.await(t, name, 1)[0].Outcome, name)
		}
		require.Equal(t, resource.OutcomeCompleted, b.await(t, "fresh", 1)[0].Outcome)
		b.settled(t)
		require.Equal(t, []string{"fresh"}, <-called)
		require.Empty(t, called)
	})
}

// A call that is no longer wanted is told so.
func TestCanceledCall(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "one")
		started, cause := make(chan struct{}), make(chan error, 1)
		b.serve(t, plugin.Options{CheckEvery: 50 * time.Millisecond}, func(_ context.Context, batch *plugin.Batch) error {
			ctx := batch.Resources()[0].Context()
			close(started)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return nil
		})
		<-started
		canceling := b.state("one", resource.Canceling)
		canceling.Revision = 2
		b.put(t, canceling, false)
		require.ErrorIs(t, <-cause, plugin.ErrCanceled)
		require.Eventually(t, func() bool {
			results := b.of("one")
			return len(results) > 0 && results[len(results)-1].Outcome == resource.OutcomeNotStarted
		}, 30*time.Second, 5*time.Millisecond)
		b.settled(t)
	})
}

func TestPoll(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		body := b.put(t, b.state("one", resource.Sleeping), false)
		require.NoError(t, b.PublishPoll(t.Context(), b.phase(), b.project+"/key", body)) // a key is remembered for two minutes
		b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				if !r.Polled() || r.Data()["step"] != "1" {
					return errors.New("not a poll")
				}
				batch.Completed(r)
			}
			return nil
		})
		require.Equal(t, resource.Result{Fence: fence("one"), Outcome: resource.OutcomeCompleted}, b.await(t, "one", 1)[0])
		b.settled(t)
	})
}

// A poison message is set aside and holds up nothing.
func TestMalformedWorkIsSetAside(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		require.NoError(t, b.PublishPoll(t.Context(), b.phase(), "garbage", []byte("\xff\xff garbage")))
		other := b.state("stray", resource.Sleeping)
		other.Phases[0].Name = "another"
		body, err := wire.EncodeResource(wire.ResourceEvent{State: other, At: time.Now(), ResultSubject: "drover.result.1.x.y.z", Partition: 1})
		require.NoError(t, err)
		require.NoError(t, b.PublishPoll(t.Context(), b.phase(), "stray", body))
		b.handOut(t, "good")
		var malformed atomic.Int32
		b.serve(t, plugin.Options{Observe: func(a plugin.Answer) {
			if a.Outcome == 0 {
				malformed.Add(1)
			}
		}}, func(_ context.Context, batch *plugin.Batch) error {
			batch.Completed(batch.Resources()...)
			return nil
		})
		require.Equal(t, resource.OutcomeCompleted, b.await(t, "good", 1)[0].Outcome)
		b.settled(t)
		require.EqualValues(t, 2, malformed.Load())
	})
}

func TestSpecIsLoadedOnce(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		const digest = "0123456789abcdef0123456789abcdef"
		for _, name := range []string{"one", "two", "none", "lost"} {
			s := b.state(name, resource.Waiting)
			switch name {
			case "one", "two":
				s.SpecDigest = digest
				body, err := wire.EncodeSpec(wire.SpecEvent{Key: s.Key, Digest: digest, JSON: `{"size":"small"}`, At: time.Now()})
				require.NoError(t, err)
				e := b.entity(name)
				e.Family = bus.Spec
				_, err = b.Append(bus.Append{Entity: e, Version: digest, Body: body}).Result()
				require.NoError(t, err)
			case "lost":
				s.SpecDigest = strings.Repeat("0", 32)
			}
			b.put(t, s, true)
		}
		b.serve(t, plugin.Options{Batch: 1, Concurrency: 1}, func(ctx context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				spec, err := r.Spec(ctx)
				if err != nil {
					return err
				}
				if err := r.SetOutput("spec", spec); err != nil {
					return err
				}
				batch.Completed(r)
			}
			return nil
		})
		require.JSONEq(t, `{"size":"small"}`, b.await(t, "one", 1)[0].Outputs["spec"])
		require.JSONEq(t, `{"size":"small"}`, b.await(t, "two", 1)[0].Outputs["spec"])
		require.JSONEq(t, `{}`, b.await(t, "none", 1)[0].Outputs["spec"])
		lost := b.await(t, "lost", 1)[0]
		require.Equal(t, resource.OutcomeFailed, lost.Outcome)
		require.Contains(t, lost.Message, "not found")
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Equal(t, 1+5, b.versions) // once for both, and five tries for the one that is not there
	})
}

// The result is stored before the work is acknowledged, however long that takes.
func TestResultIsStoredFirst(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "one")
		var tries, calls atomic.Int32
		b.refuse = func(r resource.Result) error {
			if r.Outcome == resource.OutcomeCompleted && tries.Add(1) < 4 {
				return bus.ErrFull
			}
			return nil
		}
		b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
			calls.Add(1)
			batch.Completed(batch.Resources()...)
			return nil
		})
		require.Eventually(t, func() bool { return tries.Load() >= 2 }, 30*time.Second, time.Millisecond)
		n, _, err := b.Outstanding(t.Context(), b.phase())
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		results := b.await(t, "one", 1)
		require.Equal(t, resource.OutcomeCompleted, results[len(results)-1].Outcome)
		b.settled(t)
		require.EqualValues(t, 1, calls.Load())
	})
}

// A result that can never be stored becomes a failure that says so.
func TestResultTooLarge(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "one")
		b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				if err := r.SetOutput("big", strings.Repeat("x", bus.BodyBytesMax)); err != nil {
					return err
				}
				batch.Completed(r)
			}
			return nil
		})
		result := b.await(t, "one", 1)[0]
		require.Equal(t, resource.OutcomeFailed, result.Outcome)
		require.Contains(t, result.Message, "large")
		b.settled(t)
	})
}

func TestLimitIsShared(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		const n = 40
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("r%d", i))
		}
		b.handOut(t, all...)
		limit := plugin.NewLimit(3)
		var running, most atomic.Int32
		handle := func(_ context.Context, batch *plugin.Batch) error {
			now := running.Add(int32(len(batch.Resources())))
			for {
				seen := most.Load()
				if now <= seen || most.CompareAndSwap(seen, now) {
					break
				}
			}
			time.Sleep(5 * time.Millisecond) // so that calls overlap
			running.Add(-int32(len(batch.Resources())))
			batch.Completed(batch.Resources()...)
			return nil
		}
		for range 2 {
			b.serve(t, plugin.Options{Batch: 10, Concurrency: 5, Limit: limit}, handle)
		}
		for _, name := range all {
			require.Equal(t, resource.OutcomeCompleted, b.await(t, name, 1)[0].Outcome)
		}
		require.LessOrEqual(t, most.Load(), int32(3))
		require.Greater(t, most.Load(), int32(1))
	})
}

// A worker may start before the blueprint is there, and outlive one.
func TestWaitsForThePhase(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.serve(t, plugin.Options{BindEvery: 10 * time.Millisecond}, func(_ context.Context, batch *plugin.Batch) error {
			batch.Completed(batch.Resources()...)
			return nil
		})
		b.ensure(t)
		b.handOut(t, "one")
		b.await(t, "one", 1)
		b.settled(t)
		require.NoError(t, b.RemovePhase(t.Context(), b.phase()))
		require.NoError(t, b.EnsurePhase(t.Context(), b.phase()))
		b.handOut(t, "two")
		b.await(t, "two", 1)
	})
}

func TestLog(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		b.handOut(t, "one")
		b.serve(t, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				if err := r.Log("first\nsecond\r\n" + strings.Repeat("x", 2*wire.OutputTextBytesMax)); err != nil {
					return err
				}
				batch.Completed(r)
			}
			return nil
		})
		b.await(t, "one", 1)
		var lines []wire.OutputLine
		require.Eventually(t, func() bool {
			lines = nil
			err := b.ReadOutput(t.Context(), b.project, "node", "one", false, func(l bus.OutputLine) error {
				line, err := wire.DecodeOutputLine(l.Body)
				lines = append(lines, line)
				return err
			})
			return err == nil && len(lines) == 3
		}, 30*time.Second, 10*time.Millisecond)
		require.Equal(t, fence("one"), lines[0].Fence)
		require.Equal(t, "stdout", lines[0].Stream)
		require.Equal(t, "first", lines[0].Text)
		require.Equal(t, "second", lines[1].Text)
		require.LessOrEqual(t, len(lines[2].Text), wire.OutputTextBytesMax)
	})
}

// Several workers share the work, each resource once.
func TestWorkersShare(t *testing.T) {
	onBuses(t, func(t *testing.T, b *recorder) {
		b.ensure(t)
		const n = 300
		var mu sync.Mutex
		calls := map[string]int{}
		handle := func(_ context.Context, batch *plugin.Batch) error {
			mu.Lock()
			defer mu.Unlock()
			for _, name := range names(batch) {
				calls[name]++
			}
			batch.Completed(batch.Resources()...)
			return nil
		}
		for range 3 {
			b.serve(t, plugin.Options{Batch: 7, Concurrency: 2}, handle)
		}
		for i := range n {
			b.handOut(t, fmt.Sprintf("r%d", i))
		}
		for i := range n {
			b.await(t, fmt.Sprintf("r%d", i), 1)
		}
		b.settled(t)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, calls, n)
		for name, count := range calls {
			require.Equal(t, 1, count, name)
		}
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []plugin.Options{
		{Batch: -1}, {Batch: plugin.BatchMax + 1}, {BatchBytes: plugin.BatchBytesMin - 1}, {BatchBytes: plugin.BatchBytesMax + 1}, {Concurrency: -1}, {Concurrency: plugin.ConcurrencyMax + 1}, {FetchWait: -1}, {Lease: -1},
	} {
		require.Error(t, plugin.Serve(t.Context(), nil, bus.Phase{}, o, nil))
	}
}
