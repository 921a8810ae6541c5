package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/services/drover/internal/cli"
)

// shop is a service (seed 000) whose phases leave a file, and item a deploy item (seed 001) that waits for one. Every call
// writes a line to the log: what it was told.
const shop = `
apiVersion: drover/v1
kind: Blueprint
metadata: {name: shop}
spec:
  lifecycle: service
  phases:
  - name: vlan
    autoDeploy: true
    idempotent: true
    executor: &make {script: {command: [sh, -c, 'echo "$DROVER_PHASE do $DROVER_STATE $DROVER_WAS_DEPLOYED" >> log; test ! -e broken && touch "$DROVER_NAME.$DROVER_PHASE"'], dir: DIRECTORY}}
    undo: &unmake {script: {command: [sh, -c, 'echo "$DROVER_PHASE undo $DROVER_STATE $DROVER_WAS_DEPLOYED" >> log; rm "$DROVER_NAME.{{ phase.name }}"'], dir: DIRECTORY}}
  - name: port
    autoDeploy: false
    executor: *make
    undo: *unmake
---
{apiVersion: drover/v1, kind: shop, metadata: {name: a}, spec: {size: SIZE}}
`

const item = `
apiVersion: drover/v1
kind: Blueprint
metadata: {name: item}
spec:
  lifecycle: deployitem
  phases:
  - name: install
    states: [Progressing]
    executor: {script: {command: [sh, -c, 'until test -e go; do sleep 0.01; done; echo install >> log'], dir: DIRECTORY}}
  - name: remove
    states: [Deleting]
    executor: {script: {command: [sh, -c, 'echo remove >> log'], dir: DIRECTORY}}
---
{apiVersion: drover/v1, kind: item, metadata: {name: b}}
`

// place is a folder in which scripts work, with a house beside it.
type place struct {
	*house
	folder string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{folder: t.TempDir()}
	p.house = newHouse(t, t.TempDir())
	return p
}

// manifest writes one, with pairs of words replaced.
func (p *place) manifest(text string, words ...string) string {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "m.yaml")
	text = strings.NewReplacer(append(words, "DIRECTORY", p.folder)...).Replace(text)
	require.NoError(p.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (p *place) touch(name string) {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(filepath.Join(p.folder, name), nil, 0o600))
}

// log takes the lines that calls have written since it was asked before.
func (p *place) log() []string {
	p.t.Helper()
	path := filepath.Join(p.folder, "log")
	text, err := os.ReadFile(path)
	require.NoError(p.t, err)
	require.NoError(p.t, os.Truncate(path, 0))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// files are what phases have made of a resource.
func (p *place) files(name string) []string {
	p.t.Helper()
	paths, err := filepath.Glob(filepath.Join(p.folder, name+".*"))
	require.NoError(p.t, err)
	for i := range paths {
		paths[i] = filepath.Base(paths[i])
	}
	return paths
}

type shown struct {
	State struct {
		State              string
		Generation         string
		ObservedGeneration string
		WasDeployed        bool
		Phases             []struct{ Name, State, Status string }
		Jobs               []struct{ ID, Verb, State string }
	}
}

func (p *place) get(of string) (s shown) {
	p.t.Helper()
	require.NoError(p.t, json.Unmarshal([]byte(p.run(cli.ExitOK, "get", of, "-o", "json")), &s))
	return s
}

// phases is where each phase of a service is.
func (p *place) phases(of string) string {
	p.t.Helper()
	s := p.get(of)
	text := s.State.State + ":"
	for _, run := range s.State.Phases {
		text += " " + run.Name + " " + run.State
	}
	return text
}

// approved runs a command line that waits at a gate, and approves when it does.
func (p *place) approved(args ...string) {
	p.t.Helper()
	type ended struct {
		code int
		errs string
	}
	done := make(chan ended, 1)
	go func() {
		code, _, errs := p.do(args...)
		done <- ended{code, errs}
	}()
	require.Eventually(p.t, func() bool {
		_, out, _ := p.do("describe", "shop/a")
		return strings.Contains(out, "approve with: drover approve shop/a --phase port")
	}, 20*time.Second, 10*time.Millisecond)
	p.run(cli.ExitConflict, "approve", "shop/a", "--phase", "vlan")
	require.Contains(p.t, p.run(cli.ExitOK, "approve", "shop/a", "--phase", "port", "--wait"), "approve succeeded")
	end := <-done
	require.Equal(p.t, cli.ExitOK, end.code, end.errs)
	require.Contains(p.t, end.errs, "approve with: drover approve shop/a --phase port")
}

// TestService is the life of a service: deployed by apply with a gate, updated, broken and mended, decommissioned in
// reverse, reactivated, deleted. Scripts tell which state and which past they were told of.
func TestService(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.approved("apply", "-f", p.manifest(shop, "SIZE", "1"), "--wait")
	require.Equal(t, []string{"vlan do Ordered false", "port do Ordered false"}, p.log())
	require.Equal(t, "Deployed: vlan Deployed port Deployed", p.phases("shop/a"))

	p.run(cli.ExitOK, "apply", "-f", p.manifest(shop, "SIZE", "1"), "--wait") // the same again starts nothing
	p.approved("apply", "-f", p.manifest(shop, "SIZE", "2"), "--wait")
	require.Equal(t, []string{"vlan do Updating true", "port do Updating true"}, p.log())
	s := p.get("shop/a")
	require.Equal(t, []string{"2", "2"}, []string{s.State.Generation, s.State.ObservedGeneration})
	require.True(t, s.State.WasDeployed)

	p.touch("broken")
	require.Contains(t, p.run(cli.ExitFailed, "redeploy", "shop/a", "--wait"), "redeploy failed")
	require.Equal(t, "Error: vlan Error port Deployed", p.phases("shop/a"))
	require.Contains(t, p.run(cli.ExitOK, "get", "shop"), "vlan=Error/Failed,port=Deployed")
	p.run(cli.ExitConflict, "reactivate", "shop/a")
	require.NoError(t, os.Remove(filepath.Join(p.folder, "broken")))
	p.run(cli.ExitOK, "deploy", "shop/a", "--wait") // vlan alone is in Error, and is idempotent
	require.Equal(t, []string{"vlan do Ordered true", "vlan do Ordered true"}, p.log())
	require.Equal(t, "Deployed: vlan Deployed port Deployed", p.phases("shop/a"))

	require.Equal(t, []string{"a.port", "a.vlan"}, p.files("a"))
	p.run(cli.ExitOK, "decom", "shop/a", "--wait")
	require.Equal(t, []string{"port undo Retiring true", "vlan undo Retiring true"}, p.log())
	require.Empty(t, p.files("a"))
	require.Equal(t, "Retired: vlan Retired port Retired", p.phases("shop/a"))
	p.run(cli.ExitConflict, "deploy", "shop/a")
	p.run(cli.ExitOK, "reactivate", "shop/a", "--wait")
	require.Equal(t, "Ready: vlan Ready port Ready", p.phases("shop/a"))

	// Deletion of what is deployed walks decom first.
	p.approved("deploy", "shop/a", "--wait")
	require.Equal(t, []string{"vlan do Ordered false", "port do Ordered false"}, p.log())
	p.run(cli.ExitOK, "delete", "shop/a", "--wait")
	require.Equal(t, []string{"port undo Retiring true", "vlan undo Retiring true"}, p.log())
	require.Empty(t, p.run(cli.ExitOK, "get", "shop", "-o", "name"))
}

// TestQueue is the life of a deploy item: jobs wait behind the one that runs, one is taken out, and one of what is marked
// deleted deletes it.
func TestQueue(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	t.Cleanup(func() { p.touch("go") }) // or a script would outlive a test that has failed
	p.run(cli.ExitOK, "apply", "-f", p.manifest(item))
	for range 3 {
		p.run(cli.ExitOK, "reconcile", "item/b")
	}
	states := func() (states []string) {
		for _, j := range p.get("item/b").State.Jobs {
			states = append(states, j.Verb+" "+j.State)
		}
		return states
	}
	require.Equal(t, []string{"apply succeeded", "reconcile running", "reconcile pending", "reconcile pending"}, states())
	jobs := p.get("item/b").State.Jobs
	require.Contains(t, p.run(cli.ExitOK, "get", "item"), "reconcile:running +2")
	require.Contains(t, p.run(cli.ExitOK, "jobs", "cancel", jobs[3].ID, "--wait"), "cancel canceled")
	require.Contains(t, p.run(cli.ExitOK, "describe", "item/b"), "job "+jobs[2].ID+" (reconcile) begins when job "+jobs[1].ID+" has ended")
	p.run(cli.ExitConflict, "jobs", "cancel", jobs[3].ID)

	deleted := make(chan int, 1)
	go func() {
		code, _, _ := p.do("delete", "item/b", "--wait")
		deleted <- code
	}()
	require.Eventually(t, func() bool {
		_, out, _ := p.do("get", "item")
		return strings.Contains(out, "reconcile:running +2") && strings.Contains(out, "(deleted)")
	}, 20*time.Second, 10*time.Millisecond)
	p.touch("go")
	require.Equal(t, cli.ExitOK, <-deleted)
	require.Equal(t, []string{"install", "remove"}, p.log())
	require.Empty(t, p.run(cli.ExitOK, "get", "item", "-o", "name"))
	out := p.run(cli.ExitOK, "jobs", "wait", jobs[1].ID, jobs[2].ID)
	require.Contains(t, out, "succeeded")
	require.NotContains(t, out, "failed")
	p.run(cli.ExitCanceled, "jobs", "wait", jobs[3].ID)
}
