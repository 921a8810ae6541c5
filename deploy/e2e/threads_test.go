package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// withThreads says that there is time: each thread runs on three servers too, and plugins under kills (make threads).
func withThreads() bool { return os.Getenv("DROVER_THREADS") != "" }

// ground is what the house of a thread stands on: servers of its own, or a cluster of containers, in which it has a project
// of its own.
type ground struct {
	servers int
	cluster *cluster
	project string
}

// seedOf is what a test draws from: DROVER_SEED, or one of its own, which it tells.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("DROVER_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("DROVER_SEED=%d", seed)
	return seed
}

// house builds it. DROVER_SEED fixes what is left to chance in the thread.
func (g ground) house(t *testing.T, p plan) *house {
	t.Helper()
	seed := seedOf(t)
	var h *house
	if g.cluster != nil {
		h = g.cluster.house(t, g.project, p)
	} else {
		p.servers = g.servers
		h = newHouse(t, p)
	}
	h.seed, h.random = seed, rand.New(rand.NewPCG(seed, 1<<33))
	return h
}

// onServers runs a thread of a front door on one server and, where there is time, on three.
func onServers(t *testing.T, thread func(t *testing.T, on ground)) {
	t.Helper()
	counts := []int{1}
	if withThreads() {
		counts = []int{1, 3}
	}
	for _, servers := range counts {
		t.Run(fmt.Sprintf("servers=%d", servers), func(t *testing.T) {
			t.Parallel()
			thread(t, ground{servers: servers})
		})
	}
}
