package e2e_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/deploy/e2e/internal/journal"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestGrove is a tree of three levels: an installation with executions that depend on each other, and their items. It is
// deployed, fails in an item, names the way down to it, is retried after all was killed, and is deleted in reverse.
func TestGrove(t *testing.T) {
	t.Parallel()
	growGrove(t, ground{servers: 1})
}

func growGrove(t *testing.T, on ground) {
	x := newTree(t, on, 0, 0)
	own := func(name, state, do string) object {
		return object{"name": name, "states": list{state}, "executor": object{"children": object{"do": do, "kind": treeKind}}}
	}
	x.request(command{Kind: "Blueprint", Name: "Installation", Verb: "apply", ID: "grove", Body: apply("Blueprint", "Installation", object{
		"lifecycle": "installation", "phases": list{
			own("objects", "Init", "apply"), own("run", "Progressing", "run"), own("mark", "InitDelete", "mark"), own("remove", "Deleting", "delete"),
		},
	}, nil)})
	execution := func(name string, on list, items ...string) object {
		of := list{}
		for i, item := range items {
			it := object{"name": item}
			if i > 0 {
				it["dependsOn"] = list{items[i-1]}
			}
			of = append(of, it)
		}
		return object{"name": name, "dependsOn": on, "spec": object{"items": of}}
	}
	// What the ledger must show: each of these before the next.
	order := []string{"base-a", "base-b", "mid-a", "mid-b", "top-a"}
	x.request(command{Kind: "Installation", Name: "grove", Verb: "apply", ID: "grove", Body: apply("Installation", "grove", object{"items": list{
		execution("top", list{"mid"}, "top-a"), execution("mid", list{"base"}, "mid-a", "mid-b"), execution("base", list{}, "base-a", "base-b"),
		execution("empty", list{}),
	}}, nil)})
	ask := func(verb string, want job.State) job.Record {
		t.Helper()
		id := x.request(command{Kind: "Installation", Name: "grove", Verb: verb, ID: verb})
		x.wait(verb+" has ended", func() bool { return x.chronicle.jobs[id].State.Final() })
		record := x.record(id)
		require.Equal(t, want, record.State, record.Message)
		return record
	}
	ledger := func(id, phase string, order []string) {
		t.Helper()
		done := map[string]int{}
		for i, l := range x.lines() {
			if l.Job == id && l.Phase == phase && !l.Begin {
				done[l.Item] = i + 1
			}
		}
		require.Len(t, done, len(order))
		for i := 1; i < len(order); i++ {
			begun := slices.IndexFunc(x.lines(), func(l journal.Line) bool {
				return l.Job == id && l.Phase == phase && l.Begin && l.Item == order[i]
			})
			require.Less(t, done[order[i-1]]-1, begun, "%s: %s is done before %s begins", phase, order[i-1], order[i])
		}
	}

	x.put("fail", "deploy", "mid-b")
	failed := ask("reconcile", job.Failed)
	require.Contains(t, failed.Message, "mid failed", "the root names the execution")
	mid := x.chronicle.state(treeKind, "grove/mid")
	require.Contains(t, mid.FlowJob().Message, "mid-b failed", "and that one the item")
	require.Equal(t, job.None, func() job.State {
		if j := ref(x.chronicle.state(treeKind, "grove/top")).JobByID(failed.ID); j != nil {
			return j.State
		}
		return job.None
	}(), "what depends on it was not begun")
	a, err := x.door.request(x.ctx, command{Kind: treeKind, Name: "grove=2Fmid", Verb: "retry", ID: "child"})
	require.NoError(t, err)
	require.Equal(t, "conflict", a.Code, "jobs begin at the root: %+v", a)

	x.lift("fail", "deploy", "mid-b")
	x.killEach() // at rest: what follows is known from the log alone
	ledger(ask("retry", job.Succeeded).ID, "deploy", order)
	x.killEach()
	slices.Reverse(order)
	ledger(ask("delete", job.Succeeded).ID, "uninstall", order)
	x.nothingLeft()
}

func ref(s resource.State) *resource.State { return &s }
