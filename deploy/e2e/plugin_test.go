package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// pluginResources is how many resources TestPlugins drives.
const pluginResources = 60

// slow is a plugin that takes a moment for each of its calls, and says whom it was called for.
const slow = `sleep 0.3
while IFS= read -r name; do
  echo "$DROVER_PHASE $name" >> calls
  printf '{"resource": "%s", "outcome": "completed", "attributes": {"%s": true}}\n' "$name" "$DROVER_PHASE"
done < "$DROVER_NAMES_FILE"`

// TestPlugins has plugins announce their phases and carry them out while each service, the server and the plugins' workers
// are killed in the middle, once on one server and once on three. A kill fails nothing: every phase is done at its first
// attempt. Everybody has a key, and the rights of deploy/nats/permissions.conf; the workers have the role PLUGIN. It takes
// a minute and more, since the work of a killed worker comes again after 30 s.
func TestPlugins(t *testing.T) {
	if !withThreads() {
		t.Skip("takes minutes: DROVER_THREADS=1 runs it")
	}
	t.Parallel()
	require.NoError(t, compile(bin, "", [][2]string{{"../../services/drover", "./cmd/drover"}}))
	onServers(t, plugins)
}

func plugins(t *testing.T, on ground) {
	h := on.house(t, plan{intakes: 1, orchestrators: 2, lifecycles: 1, notifiers: 1, guarded: true})
	ctx, cancel := context.WithTimeout(h.ctx, h.patience(5*time.Minute))
	defer cancel()
	nc := h.connect()
	t.Cleanup(nc.Close)
	d := h.door(nc)
	c := chronicleAfter(t, ctx, h, d, command{Kind: "Blueprint", Name: "box", Verb: "apply", ID: "box", Body: apply("Blueprint", "box", object{
		"lifecycle": "node", "states": list{"Allocation", "Configuration"},
	}, nil)})

	define := func(name, text string) string {
		file := filepath.Join(h.dir, name+".txt")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	first := define("first", "HandlesStates = Allocation\nResourceType = box\nPhaseName = first\n")
	second := define("second", "HandlesStates = Allocation\nResourceType = box\nPhaseName = second\nPhase.Dependencies = first\n")
	third := define("third", "HandlesStates = Configuration\nResourceType = box\nPhaseName = third\n")
	told := define("told", "ResourceStateListener = true\nResourceStates = Started\nResourceTypes = box\n")
	var workers []*process
	for i, definition := range []string{second, first, third, third, told} {
		script := "cd '" + h.dir + "'\n" + slow
		if definition == told {
			script = "cd '" + h.dir + "'\ncat \"$DROVER_NAMES_FILE\" >> told"
		}
		args := append([]string{"plugin", "exec", "-s", h.url, "--project", h.project, "--batch", "10", "--definition", definition}, h.key(bus.Plugin)...)
		workers = append(workers, h.run(fmt.Sprint("plugin-", i), "drover", append(args, "--", "sh", "-c", script)...))
	}
	h.services = append(h.services, workers...) // stopped with the others
	if h.cluster == nil {
		added := func(w *process) bool {
			log, err := os.ReadFile(w.log)
			return err == nil && strings.Contains(string(log), ": added")
		}
		require.Eventually(t, func() bool {
			// Of the two that announce the third phase, one may find it there.
			return added(workers[0]) && added(workers[1]) && (added(workers[2]) || added(workers[3]))
		}, time.Minute, 50*time.Millisecond)
	} else { // others kill already, and an answer to who announces may be lost
		require.True(t, c.wait(ctx, func() bool {
			for _, b := range c.blueprints {
				if !slices.ContainsFunc([]string{"first", "second", "third"}, func(name string) bool { return b.Phase(name) == nil }) {
					return true
				}
			}
			return false
		}), "not all phases are announced")
		// What is in the log holds 100 ms later, when its acceptance is answered (ARCHITECTURE.md).
		require.True(t, pause(ctx, 5*time.Second))
	}

	for i := range pluginResources {
		name := fmt.Sprint("r", i)
		for _, one := range []command{
			{Kind: "box", Name: name, Verb: "apply", ID: "apply", Body: apply("box", name, object{}, nil)},
			{Kind: "box", Name: name, Verb: "start", ID: "start"},
		} {
			_, err := d.publish(ctx, one)
			require.NoError(t, err)
		}
	}
	began := time.Now()
	victims := append([]*process{}, workers...)
	for _, name := range []string{"intake", "orchestrator", "lifecycle", "notifier"} {
		victims = append(victims, h.service(name)[0])
	}
	victims = append(victims, h.servers[0])
	for _, p := range victims {
		pause(ctx, 200*time.Millisecond)
		p.kill("")
	}
	require.True(t, c.wait(ctx, func() bool { return c.count("box", "Started") == pluginResources }), "not all have come to Started")
	for i := range pluginResources {
		s := c.state("box", fmt.Sprint("r", i))
		for _, name := range []string{"first", "second", "third"} {
			p := s.Phase(name)
			require.NotNil(t, p)
			require.Equal(t, resource.Completed, p.Status)
			require.EqualValues(t, 1, p.Attempt, "a kill is no failure: phase %s of r%d was begun anew", name, i)
			require.Equal(t, "true", s.Attributes[name])
		}
	}
	calls, err := os.ReadFile(filepath.Join(h.dir, "calls"))
	require.NoError(t, err)
	kills := func() (all int) {
		for _, p := range victims {
			n, _, _ := p.deaths()
			all += n
		}
		return all
	}
	require.Eventually(t, func() bool { return kills() == len(victims) }, time.Minute, 50*time.Millisecond, "not all were killed once")
	t.Logf("%d servers: %d resources through 3 phases in %s with %d kills; %d calls of a resource, of which %d came twice", len(h.servers),
		pluginResources, time.Since(began).Round(time.Millisecond), kills(), strings.Count(string(calls), "\n"), strings.Count(string(calls), "\n")-3*pluginResources)
}
