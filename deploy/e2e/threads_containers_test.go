package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// threadsTime is for all threads in containers, on the slowest machine.
const threadsTime = 15 * time.Minute

// TestThreadsInContainers runs the threads of the front doors on one cluster of the compose file, each in a project of its
// own, while each kills in its middle what it kills of bare processes too: containers, and so for all others as well. What a
// thread holds to be true is what it holds of bare processes; only crash points there are none, where a container is killed
// at any moment instead. No container may have died by itself.
//
// TestCallbacks is alone: it holds single answers of the gateway to account, and could not tell one that was killed for
// another thread. Deployers and plugins run on this machine, as somebody's workers, with the keys of their roles. TestTrees' one
// with 1,000 items, and TestMachines' one of one server, with the crash points, are for bare processes alone.
func TestThreadsInContainers(t *testing.T) {
	ctx, tag := inContainers(t, threadsTime)

	c := newCluster(ctx, t, tag)
	began := time.Now()
	run := func(t *testing.T, name, project string, thread func(*testing.T, ground)) {
		t.Run(name, func(t *testing.T) {
			if name != "TestCallbacks" {
				t.Parallel()
			}
			began := time.Now()
			thread(t, ground{cluster: c, project: project})
			t.Logf("%s took %s", name, time.Since(began).Round(time.Second))
		})
	}
	run(t, "TestCallbacks", "callbacks", callBack)
	t.Run("together", func(t *testing.T) {
		run(t, "TestTrees", "trees", func(t *testing.T, on ground) { newTree(t, on, 60, 0).live() })
		run(t, "TestServices", "services", serveServices)
		run(t, "TestPlugins", "plugins", plugins)
		run(t, "TestChecks", project, playChecks) // the gateway's project
		run(t, "TestMachines", project, machines) // also, and they have no kind in common
		run(t, "TestGrove", "grove", growGrove)
	})
	if t.Failed() {
		return
	}
	c.healthy()
	c.died()
	require.Empty(t, c.leaks(nil), "secrets in logs, command lines or images")
	t.Logf("all threads took %s", time.Since(began).Round(time.Second))
}
