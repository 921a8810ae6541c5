//go:build unix

package flock_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/examples/fleet/internal/flock"
)

func TestTakeIsForOne(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")

	held, err := flock.Held(path)
	require.NoError(t, err, "a file that is missing is held by nobody")
	require.False(t, held)

	first, err := flock.Take(path)
	require.NoError(t, err)
	_, err = flock.Take(path)
	require.ErrorIs(t, err, flock.ErrHeld)
	held, err = flock.Held(path)
	require.NoError(t, err)
	require.True(t, held)

	require.NoError(t, first.Close())
	held, err = flock.Held(path)
	require.NoError(t, err)
	require.False(t, held)
	second, err := flock.Take(path)
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

func TestAwaitReturnsWhenItIsFree(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	require.Error(t, flock.Await(path), "there is no such file")

	lock, err := flock.Take(path)
	require.NoError(t, err)
	free := make(chan error, 3)
	for range cap(free) { // many may wait, and none is in another's way
		go func() { free <- flock.Await(path) }()
	}
	select {
	case err := <-free:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	require.NoError(t, lock.Close())
	for range cap(free) {
		require.NoError(t, <-free)
	}
}
