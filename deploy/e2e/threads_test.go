package e2e_test

import (
	"fmt"
	"os"
	"testing"
)

// withThreads says that there is time: each thread runs on three servers too, and plugins under kills (make threads).
func withThreads() bool { return os.Getenv("DROVER_THREADS") != "" }

// onServers runs a thread of a front door on one server and, where there is time, on three.
func onServers(t *testing.T, thread func(t *testing.T, servers int)) {
	t.Helper()
	counts := []int{1}
	if withThreads() {
		counts = []int{1, 3}
	}
	for _, servers := range counts {
		t.Run(fmt.Sprintf("servers=%d", servers), func(t *testing.T) {
			t.Parallel()
			thread(t, servers)
		})
	}
}
