//go:build unix

package site_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/examples/fleet"
	"github.com/droverproject/drover/examples/fleet/internal/flock"
	"github.com/droverproject/drover/examples/fleet/internal/site"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpenAndClose(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "home")
	s, err := site.Open(t.Context(), path, 20)
	require.NoError(t, err)
	require.Equal(t, path, string(s.Home))

	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(s.URL + "/nodes")
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)

	target, err := os.Readlink(filepath.Join(s.Home.Bin(), "fleet"))
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	require.Equal(t, self, target)
	body, err := os.ReadFile(s.Blueprint)
	require.NoError(t, err)
	require.Equal(t, fleet.Blueprint, body)
	body, err = os.ReadFile(s.Manifests)
	require.NoError(t, err)
	require.Equal(t, 20, strings.Count(string(body), "\n---\n"))
	require.Equal(t, 1, strings.Count(string(body), "page: "+fleet.PageBroken+"\n"))
	require.Equal(t, 4, strings.Count(string(body), "motd: "))
	require.Contains(t, string(body), `home: "`+path+`"`)

	held, err := flock.Held(s.Home.LockFile())
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, s.Close())
	held, err = flock.Held(s.Home.LockFile())
	require.NoError(t, err)
	require.False(t, held)
	require.ErrorIs(t, <-s.Served(), http.ErrServerClosed)
}

func TestFleetsDoNotShare(t *testing.T) {
	t.Parallel()
	var open []*site.Site
	for range 5 {
		s, err := site.Open(t.Context(), t.TempDir(), fleet.NodesMax)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		require.GreaterOrEqual(t, s.Ports.To-s.Ports.From+1, fleet.NodesMax)
		for _, other := range open {
			require.True(t, s.Ports.To < other.Ports.From || other.Ports.To < s.Ports.From, "%v and %v", s.Ports, other.Ports)
		}
		open = append(open, s)
	}
	_, err := site.Open(t.Context(), string(open[0].Home), 2)
	require.ErrorIs(t, err, flock.ErrHeld)
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, fleet.NodesMax + 1} {
		_, err := site.Open(t.Context(), t.TempDir(), n)
		require.ErrorContains(t, err, "nodes: there may be")
	}
}
