package jetstream

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// TestTheGrammarIsFrozen: what clients, stored streams and permissions are built on is as it was when it was frozen
// (ARCHITECTURE.md, "The freeze"). testdata/frozen.txt may grow; a line of it that changes is a break for them, and there is no
// flag that writes it.
func TestTheGrammarIsFrozen(t *testing.T) {
	t.Parallel()
	var is []string
	say := func(format string, args ...any) { is = append(is, fmt.Sprintf(format, args...)) }

	const p = 7
	phase := bus.Phase{Project: "team.a", Kind: "Cloud.Node", Phase: "Acme.CreateInstance"}
	for _, f := range bus.Families() {
		e := bus.Entity{Partition: p, Family: f, Project: phase.Project}
		if f.HasKind() {
			e.Kind = phase.Kind
		}
		if f.HasName() {
			e.Name = "web1.example.com/disk"
		}
		a := bus.Append{Entity: e}
		if f == bus.Spec || f == bus.Blueprint {
			a.Version = "d1"
		}
		say("%s: log %s, filter %s, bucket %s, key %s", f, a.Subject(), e.Filter(), f.Bucket(), e.Key())
		if f == bus.Resource {
			a.Dispatch = phase.Phase
			say("%s: hands out %s", f, a.Subject())
		}
	}
	say("command: %s, %s", bus.CommandSubject("cmd", phase.Project, phase.Kind, "-", "start"), bus.CommandSubject("api", phase.Project, phase.Kind, "a=b", "start"))
	say("result: %s", bus.ResultSubject(p, phase.Project, phase.Kind, "web-1"))
	say("callback: %s", bus.CallbackSubject(p, 123))
	say("work: %s, consumer %s", phase.WorkSubject(), phase.Consumer())
	say("phase: %s", phase.AskSubject(64))
	say("ask: %s", bus.AskSubject(p))
	say("door: %s", bus.DoorSubject(p, "machine"))
	say("output: %s", bus.OutSubject(phase.Project, phase.Kind, "web-1"))
	say("refused: %s", bus.RefusedSubject(phase.Project, "r-1"))
	say("partitions: %d %d", bus.PartitionOf("default", "node", "web1.example.com/disk", 64), bus.CommandPartition("default", "node", "web1.example.com", 64))
	for _, c := range (Options{Replicas: 1}).streams(64, "always") {
		line := fmt.Sprintf("stream %s: subjects %v, %v", c.Name, c.Subjects, c.Retention)
		if x := c.SubjectTransform; x != nil {
			line += fmt.Sprintf(", stored as %s", x.Destination)
		}
		for _, s := range c.Sources {
			for _, x := range s.SubjectTransforms {
				line += fmt.Sprintf(", from %s %s as %s", s.Name, x.Source, x.Destination)
			}
		}
		if x := c.RePublish; x != nil {
			line += fmt.Sprintf(", republished %s as %s", x.Source, x.Destination)
		}
		say("%s", line)
	}

	golden, err := os.ReadFile("testdata/frozen.txt")
	require.NoError(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(golden)), "\n") {
		require.Contains(t, is, line, "this is what is now:\n%s\n", strings.Join(is, "\n"))
	}
	require.Len(t, is, strings.Count(string(golden), "\n"), "what is new is added to testdata/frozen.txt by hand:\n%s\n", strings.Join(is, "\n"))
}
