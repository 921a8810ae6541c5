//go:build unix

package home_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/examples/fleet/internal/flock"
	"github.com/droverproject/drover/examples/fleet/internal/home"
)

func make1(t *testing.T) home.Home {
	t.Helper()
	h, lock, err := home.Make(filepath.Join(t.TempDir(), "home"))
	require.NoError(t, err)
	t.Cleanup(func() { lock.Close() })
	return h
}

func TestNamesCannotLeadOutOfTheHome(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"web-01", "a", "web1.example.com", strings.Repeat("a", 63)} {
		require.NoError(t, home.CheckName(name), name)
	}
	for _, name := range []string{
		"", ".", "..", "../x", "a/b", "/etc", ".hidden", "-x", "x-", "x.", "A", "a b", "a\x00", "a\nb", "ä", strings.Repeat("a", 64),
	} {
		require.Error(t, home.CheckName(name), name)
	}
}

func TestOpenWantsAHome(t *testing.T) {
	t.Parallel()
	h := make1(t)
	opened, err := home.Open(string(h) + "/./")
	require.NoError(t, err)
	require.Equal(t, h, opened)

	_, err = home.Open("relative")
	require.ErrorContains(t, err, "not an absolute path")
	_, err = home.Open(t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist, "a folder without a lock is no home")
}

func TestAHomeIsKeptByOne(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "home")
	_, lock, err := home.Make(path)
	require.NoError(t, err)
	_, _, err = home.Make(path)
	require.ErrorIs(t, err, flock.ErrHeld)
	require.NoError(t, lock.Close())
	_, lock, err = home.Make(path)
	require.NoError(t, err, "one that nobody keeps is taken over")
	require.NoError(t, lock.Close())
}

// ports is a range in which nobody listens but a test: those of nodes lie below.
var ports = home.Range{From: 15_000, To: 15_999}

func TestReserveGivesEachPortOnce(t *testing.T) {
	t.Parallel()
	const nodes = 200
	h := make1(t)
	got := make([]int, nodes)
	errs := make([]error, nodes)
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() { got[i], errs[i] = h.Reserve(fmt.Sprintf("web-%d", i), ports) })
	}
	wg.Wait()
	seen := map[int]bool{}
	for i, port := range got {
		require.NoError(t, errs[i])
		require.False(t, seen[port], "port %d twice", port)
		seen[port] = true
		require.True(t, port >= ports.From && port <= ports.To)
	}
	reserved, err := h.Reserved()
	require.NoError(t, err)
	require.Len(t, reserved, nodes)
	for i, port := range got {
		require.Equal(t, fmt.Sprintf("web-%d", i), reserved[port])
		again, err := h.Reserve(fmt.Sprintf("web-%d", i), ports)
		require.NoError(t, err)
		require.Equal(t, port, again, "who has one gets it again")
	}
	for i := range nodes {
		n, err := h.Release(fmt.Sprintf("web-%d", i))
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	reserved, err = h.Reserved()
	require.NoError(t, err)
	require.Empty(t, reserved)
	n, err := h.Release("web-1")
	require.NoError(t, err)
	require.Zero(t, n, "to release twice is no failure")
}

func TestReservePassesOverWhatIsTaken(t *testing.T) {
	t.Parallel()
	h := make1(t)
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer stranger.Close()
	taken := stranger.Addr().(*net.TCPAddr).Port

	_, err = h.Reserve("web-1", home.Range{From: taken, To: taken})
	require.ErrorIs(t, err, home.ErrNoPort)
	reserved, err := h.Reserved()
	require.NoError(t, err)
	require.Empty(t, reserved, "nothing is left of the attempt")

	one := home.Range{From: 16_000, To: 16_000}
	port, err := h.Reserve("web-1", one)
	require.NoError(t, err)
	require.Equal(t, one.From, port)
	_, err = h.Reserve("web-2", one)
	require.ErrorIs(t, err, home.ErrNoPort)
}

func TestReserveRefusesBadInput(t *testing.T) {
	t.Parallel()
	h := make1(t)
	_, err := h.Reserve("../x", ports)
	require.Error(t, err)
	for _, r := range []home.Range{{}, {From: 80, To: 90}, {From: 2000, To: 1999}, {From: 60_000, To: 70_000}} {
		_, err := h.Reserve("web-1", r)
		require.ErrorContains(t, err, "not a range of ports", "%v", r)
	}
}
