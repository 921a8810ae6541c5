//go:build unix

package process_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/examples/fleet/internal/flock"
	"github.com/droverproject/drover/examples/fleet/internal/process"
)

// TestMain is also the processes that are started: the test's own program, told by its first argument how to behave.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "as" {
		os.Exit(as(os.Args[2]))
	}
	os.Exit(m.Run())
}

func as(how string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch how {
	case "broken":
		fmt.Fprintln(os.Stderr, "the disk is made of cheese")
		return 3
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	}
	lock, err := process.Announce(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer lock.Close()
	select {
	case <-ctx.Done():
		return 0
	case <-time.After(time.Minute): // whatever becomes of the test
		return 1
	}
}

func launch(t *testing.T, folder, how string) (int, bool, error) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = process.Stop(context.Background(), folder, time.Second) })
	return process.Launch(t.Context(), folder, []string{self, "as", how}, nil)
}

func TestLaunchAndStop(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	pid, already, err := launch(t, folder, "well")
	require.NoError(t, err)
	require.False(t, already)
	running, err := process.Running(folder)
	require.NoError(t, err)
	require.Equal(t, pid, running)
	session, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	require.Equal(t, pid, session, "it has a session, and so a group, of its own")

	again, already, err := launch(t, folder, "well")
	require.NoError(t, err)
	require.True(t, already)
	require.Equal(t, pid, again)

	ended, err := process.Stop(t.Context(), folder, 5*time.Second)
	require.NoError(t, err)
	require.Equal(t, process.Ended{PID: pid}, ended)
	running, err = process.Running(folder)
	require.NoError(t, err)
	require.Zero(t, running)
	ended, err = process.Stop(t.Context(), folder, time.Second)
	require.NoError(t, err)
	require.Zero(t, ended, "to stop twice is no failure")

	next, already, err := launch(t, folder, "well")
	require.NoError(t, err)
	require.False(t, already, "the id that an earlier one has left is not believed")
	require.NotEqual(t, pid, next)
}

func TestOfManyLaunchesOneStarts(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	const launches = 8
	pids, started := make([]int, launches), make([]bool, launches)
	var wg sync.WaitGroup
	for i := range launches {
		wg.Go(func() {
			pid, already, err := launch(t, folder, "well")
			if err != nil {
				t.Error(err)
			}
			pids[i], started[i] = pid, !already
		})
	}
	wg.Wait()
	count := 0
	for i := range launches {
		require.Equal(t, pids[0], pids[i])
		if started[i] {
			count++
		}
	}
	require.Equal(t, 1, count)
}

func TestStopKillsWhatDoesNotHeed(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	pid, _, err := launch(t, folder, "stubborn")
	require.NoError(t, err)
	ended, err := process.Stop(t.Context(), folder, 50*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, process.Ended{PID: pid, Killed: true}, ended)
}

func TestStopHitsNoStranger(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	// A process has died, and its id is another's by now: this test's.
	require.NoError(t, os.WriteFile(filepath.Join(folder, process.PIDFile), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600))
	ended, err := process.Stop(t.Context(), folder, time.Millisecond)
	require.NoError(t, err)
	require.Zero(t, ended)
	running, err := process.Running(folder)
	require.NoError(t, err)
	require.Zero(t, running)
}

func TestLaunchSaysWhyAProcessEnds(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, process.LogFile), []byte("of another life\n"), 0o600))
	_, _, err := launch(t, folder, "broken")
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "the disk is made of cheese")
	require.NotContains(t, err.Error(), "another life")
	running, err := process.Running(folder)
	require.NoError(t, err)
	require.Zero(t, running)
}

// TestHalfStarted: whoever launched was killed before the process had said its id.
func TestHalfStarted(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	lock, err := flock.Take(filepath.Join(folder, process.PIDFile))
	require.NoError(t, err)
	defer lock.Close()
	_, err = process.Running(folder)
	require.ErrorContains(t, err, "no process id")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = process.Stop(ctx, folder, time.Second)
	require.ErrorContains(t, err, "no process id", "one that runs, and cannot be told, is not said to be stopped")

	type launched struct {
		pid     int
		already bool
		err     error
	}
	second := make(chan launched, 1)
	go func() {
		pid, already, err := process.Launch(t.Context(), folder, []string{"/nonexistent"}, nil)
		second <- launched{pid, already, err}
	}()
	_, err = lock.WriteString("12")
	require.NoError(t, err)
	_, err = lock.WriteString("345\n") // only with its end it is a number
	require.NoError(t, err)
	require.Equal(t, launched{12345, true, nil}, <-second)
}

func TestTailIsBounded(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	_, _, err := process.Launch(t.Context(), folder, []string{"/bin/sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exit 1"}, nil)
	require.ErrorContains(t, err, "line 1999")
	require.Less(t, len(err.Error()), 4<<10)
	require.Greater(t, strings.Count(err.Error(), "line"), 10)
}
