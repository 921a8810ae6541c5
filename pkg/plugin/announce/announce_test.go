package announce_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/definition"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/plugin/announce"
	"github.com/droverproject/drover/pkg/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk is an intake and a bucket of blueprints, which trails by some versions.
type desk struct {
	mu      sync.Mutex
	specs   map[string][]string // versions of each kind's blueprint
	stale   int                 // how many versions the bucket is behind at most
	behind  *rand.Rand
	applied int
	refuse  *resource.Refusal
	silent  int // requests that nobody answers yet
}

func (d *desk) Get(_ context.Context, e bus.Entity) (bus.Stored, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	versions := d.specs[e.Kind]
	if len(versions) == 0 {
		return bus.Stored{}, bus.ErrNotFound
	}
	at := len(versions) - 1
	if d.stale > 0 {
		at = max(0, at-d.behind.IntN(d.stale+1)) // by a count of reads, the last plugin could be behind each time
	}
	_, digest, err := manifest.Canonical([]byte(versions[at]))
	if err != nil {
		return bus.Stored{}, err
	}
	body, err := wire.EncodeBlueprint(wire.BlueprintEvent{Project: e.Project, Kind: e.Kind, Digest: digest, JSON: versions[at], Generation: 1, At: time.Now()})
	return bus.Stored{Entity: e, Seq: 1, Body: body}, err
}

func (d *desk) Request(_ context.Context, subject string, header map[string]string, body []byte) (bus.Request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.silent > 0 {
		d.silent--
		return bus.Request{}, bus.ErrNoOwner
	}
	_, kind, name, verb, err := bus.ParseCommandSubject(strings.Replace(subject, "drover.api.", "drover.cmd.", 1))
	if err != nil || kind != "Blueprint" || verb != "apply" || header[bus.HeaderRequestID] == "" {
		return bus.Request{}, fmt.Errorf("%s: %w", subject, err)
	}
	c, err := wire.DecodeCommand("", body)
	if err != nil {
		return bus.Request{}, err
	}
	reply := wire.Reply{JobID: "job"}
	versions := d.specs[name]
	_, present, err := manifest.Canonical([]byte(versions[len(versions)-1]))
	if err != nil {
		return bus.Request{}, err
	}
	switch {
	case d.refuse != nil:
		reply = wire.Reply{Refused: d.refuse}
	case c.Args[drive.ArgIfDigest] != present:
		reply = wire.Reply{Refused: &resource.Refusal{Code: resource.Conflict, Message: "changed", Violations: []resource.Violation{{Field: drive.IfDigestField, Reason: "x"}}}}
	default:
		d.specs[name] = append(versions, string(c.Manifest.Spec))
		d.applied++
	}
	out, err := wire.EncodeReply("", reply)
	return bus.Request{Body: out}, err
}

func (d *desk) phases(t *testing.T, kind string) (names []string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	bp, found := manifest.Blueprint("p", kind, []byte(d.specs[kind][len(d.specs[kind])-1]))
	require.Empty(t, found)
	for _, p := range bp.Phases {
		names = append(names, p.Name)
	}
	return names
}

const empty = `{"lifecycle":"node","states":["A","B"]}`

func newDesk() *desk {
	return &desk{specs: map[string][]string{"node": {empty}}, behind: rand.New(rand.NewPCG(1, 2))}
}

func phase(name string, dependsOn ...string) *definition.Phase {
	return &definition.Phase{Name: name, Kinds: []string{"node"}, States: []string{"A"}, DependsOn: dependsOn}
}

// However many announce at once, on a bucket that is behind, no phase is lost; and the next time nothing changes.
func TestNobodysPhaseIsLost(t *testing.T) {
	t.Parallel()
	const plugins = 8
	d := newDesk()
	d.stale = 2
	round := func(want announce.Outcome) {
		var wg sync.WaitGroup
		for i := range plugins {
			wg.Go(func() {
				// Each depends on the one before it, in whatever order they come.
				p := phase(fmt.Sprint("p", i))
				if i > 0 {
					p.DependsOn = []string{fmt.Sprint("p", i-1)}
				}
				got, err := announce.Phase(t.Context(), d, "p", "node", p, announce.Options{})
				if err != nil || want == announce.Unchanged && got != want {
					t.Errorf("%v, %v", got, err)
				}
			})
		}
		wg.Wait()
	}
	round(announce.Added)
	names := d.phases(t, "node")
	slices.Sort(names)
	require.Len(t, slices.Compact(names), plugins)
	d.mu.Lock()
	d.stale = 0
	applied := d.applied
	d.mu.Unlock()
	require.Equal(t, plugins, applied)
	round(announce.Unchanged)
	require.Equal(t, applied, d.applied)
}

func TestPhaseErrors(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.specs["taken"] = []string{`{"lifecycle":"node","states":["A"],"phases":[{"name":"p","states":["A"],"executor":{"script":{"command":["true"]}}}]}`}
	for want, f := range map[error]func() error{
		announce.ErrNoBlueprint: func() error {
			_, err := announce.Phase(t.Context(), d, "p", "none", phase("p"), announce.Options{})
			return err
		},
		announce.ErrTaken: func() error {
			_, err := announce.Phase(t.Context(), d, "p", "taken", phase("p"), announce.Options{})
			return err
		},
		announce.ErrInvalid: func() error {
			p := phase("p")
			p.States = []string{"Nowhere"}
			_, err := announce.Phase(t.Context(), d, "p", "node", p, announce.Options{})
			require.ErrorContains(t, err, "spec.phases[0].states[0]: no path of the lifecycle leads through this state")
			return err
		},
		announce.ErrRefused: func() error {
			refusing := newDesk()
			refusing.refuse = &resource.Refusal{Code: resource.Invalid, Message: "no"}
			_, err := announce.Phase(t.Context(), refusing, "p", "node", phase("p"), announce.Options{})
			return err
		},
	} {
		require.ErrorIs(t, f(), want)
	}
	require.Zero(t, d.applied)
}

// What is not there yet is waited for, and said once.
func TestWaiting(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.silent = 3
	told := make(chan string, 100)
	o := announce.Options{Waiting: func(reason string) { told <- reason }}
	done := make(chan error, 1)
	go func() {
		_, err := announce.Phase(t.Context(), d, "p", "node", phase("second", "first"), o)
		done <- err
	}()
	require.Equal(t, "phase second of kind node waits for phase first, on which it depends, to be announced", <-told)
	got, err := announce.Phase(t.Context(), d, "p", "node", phase("first"), o)
	require.NoError(t, err)
	require.Equal(t, announce.Added, got)
	require.NoError(t, <-done)
	require.Equal(t, []string{"first", "second"}, d.phases(t, "node"))
	require.Contains(t, <-told, bus.ErrNoOwner.Error())

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = announce.Phase(ctx, d, "p", "node", phase("third", "never"), announce.Options{})
	require.ErrorIs(t, err, context.Canceled)
}

// The definition says what it can say; what only a blueprint can say stays.
func TestMerge(t *testing.T) {
	t.Parallel()
	spec := []byte(`{"lifecycle":"node","states":["A","B"],"phases":[
		{"name":"other","states":["A"],"executor":{"script":{"command":["true"]}},"depends_on":[]},
		{"name":"p","states":["B"],"description":"old","depends_on":["other"],"timeout":"5m","executor":{"plugin":{}},"attributes":{"X":1}}]}`)
	p := phase("p", "other")
	p.When, p.Provider = "true", "acme"
	p.Attributes = []definition.Attribute{{Name: "Y", JSON: `[2]`}}
	merged, outcome, err := announce.Merge(spec, p)
	require.NoError(t, err)
	require.Equal(t, announce.Changed, outcome)
	var got map[string]any
	require.NoError(t, json.Unmarshal(merged, &got))
	require.Equal(t, map[string]any{
		"lifecycle": "node", "states": []any{"A", "B"}, "phases": []any{
			map[string]any{"name": "other", "states": []any{"A"}, "executor": map[string]any{"script": map[string]any{"command": []any{"true"}}}, "depends_on": []any{}},
			map[string]any{"name": "p", "states": []any{"A"}, "dependsOn": []any{"other"}, "timeout": "5m", "executor": map[string]any{"plugin": map[string]any{}},
				"when": "true", "provider": "acme", "attributes": map[string]any{"Y": []any{2.0}}},
		},
	}, got)
	again, outcome, err := announce.Merge(merged, p)
	require.NoError(t, err)
	require.Equal(t, announce.Unchanged, outcome)
	require.Equal(t, merged, again)
	for _, broken := range []string{`[]`, `{"phases":1}`, `{"phases":[1]}`} {
		_, _, err := announce.Merge([]byte(broken), p)
		require.Error(t, err, broken)
	}
}
