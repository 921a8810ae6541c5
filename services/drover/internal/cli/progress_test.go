package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

func stored(t *testing.T, s resource.State) bus.Stored {
	t.Helper()
	body, err := wire.EncodeResource(wire.ResourceEvent{State: s, At: at, ResultSubject: "drover.result.0.a.b.c"})
	require.NoError(t, err)
	return bus.Stored{Entity: bus.Entity{Family: bus.Resource, Project: s.Project, Kind: s.Kind, Name: s.Name}, Body: body}
}

func see(t *testing.T, p *progress, s resource.State) {
	t.Helper()
	done, err := p.resource(stored(t, s), true)
	require.NoError(t, err)
	require.False(t, done)
}

// story shows one job from its acceptance to its failure.
func story(t *testing.T, a *App) string {
	t.Helper()
	var b bytes.Buffer
	a.Err = &b
	p := newProgress(a)
	o := &outcome{Resource: "node/a\x1b", Verb: "start", JobID: "j", target: target{"node", "a\x1b"}}
	p.expect(o)
	p.job(o, job.Running)
	s := state("a\x1b")
	s.State, s.Target = "Allocation", "Started"
	s.Jobs = []job.Ref{ref("j", "start", "Started", job.Running)}
	s.Phases = []resource.PhaseRun{
		{Name: "p", Status: resource.Waiting, State: "Allocation", JobID: "j", Attempt: 1},
		{Name: "q", Status: resource.Blocked, State: "Allocation", JobID: "j"},
		{Name: "old", Status: resource.Completed, State: "Allocation", JobID: "before"},
	}
	see(t, p, s)
	see(t, p, s) // nothing new
	s.Phases = []resource.PhaseRun{{Name: "p", Status: resource.Failed, State: "Allocation", JobID: "j", Attempt: 2, Message: "odd"}}
	see(t, p, s)
	o.FailedPhases = []failedPhase{{Phase: "p", State: "Allocation", Attempt: 2, Message: "odd\x1b"}}
	p.job(o, job.Failed)
	p.end()
	p.say("nothing is said after the end")
	return b.String()
}

func TestProgressInLines(t *testing.T) {
	t.Parallel()
	require.Equal(t, `node/a\u001b: start running
node/a\u001b: in Allocation, p Waiting
node/a\u001b: p Failed (attempt 2)
node/a\u001b: start failed
  phase p failed in state Allocation, attempt 2: odd\u001b
  see: drover describe node/a\u001b, drover logs node/a\u001b; once it is mended: drover retry node/a\u001b --wait
`, story(t, &App{OutTerminal: false, ErrTerminal: true}))
}

func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	text := story(t, &App{OutTerminal: true, ErrTerminal: true, Width: 60})
	require.Contains(t, text, "[........................] 0/1  running 1")
	require.True(t, strings.HasPrefix(text, "["), "the live line is drawn at once")
	require.Contains(t, text, "\r\x1b[Knode/a\\u001b: start failed\n", "whole lines replace it")
	require.NotContains(t, text, "odd\x1b")
	require.NotContains(t, text, "p Waiting\n", "phases are on the live line only")
	require.True(t, strings.HasSuffix(text, "\r\x1b[K"), "and it is removed at the end")
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\r\x1b[K", "\n"), "\n") {
		if strings.HasPrefix(line, "[") {
			require.Less(t, len(line), 60+len("…"))
		}
	}
}

func TestProgressOfMany(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := newProgress(&App{Err: &b})
	var all []*outcome
	for i := range phaseLinesMax + 1 {
		o := &outcome{Resource: "node/" + string(rune('a'+i)), Verb: "start", JobID: "j" + string(rune('a'+i))}
		all = append(all, o)
		p.expect(o)
	}
	p.job(all[0], job.Running)
	p.job(all[0], job.Succeeded)
	p.job(all[1], job.Canceled)
	require.Equal(t, "node/a: start succeeded\nnode/b: start canceled\n", b.String(), "of many only what they came to")
	require.Equal(t, "[#####...................] 2/9  canceled 1", p.summary())
}

// TestProgressOfASelection: its resources are what is counted.
func TestProgressOfASelection(t *testing.T) {
	t.Parallel()
	for live, want := range map[bool]string{
		false: "node/-: start: 8 matched so far, 1 refused, 3 succeeded, 1 failed, 3 under way; it waits: partition 3\\u001b\n",
		true:  "[###############.........] 5/8  running 1  node/-: start: 8 matched so far",
	} {
		var b bytes.Buffer
		p := newProgress(&App{Err: &b, OutTerminal: live, ErrTerminal: live, Width: 80})
		o := &outcome{Resource: "node/-", Verb: "start", JobID: "j"}
		p.expect(o)
		r := &job.Record{Ref: job.Ref{ID: "j", State: job.Running}, Kind: "node", Name: "-", Selection: &job.Selection{
			Stage: job.Walking, Matched: 8, Accepted: 7, Refused: 1, Succeeded: 3, Failed: 1, Waits: "partition 3\x1b",
			Refusals: []job.Refusal{{Name: "b", Code: "conflict", Message: "not\x1bnow"}},
		}}
		p.selection(o, r)
		p.selection(o, r) // too soon to be said again
		require.Contains(t, b.String(), want)
		if !live {
			require.Equal(t, want, b.String())
		}
		o.Selection, o.Message = selectedOf(r), "2 of them are bad"
		o.Selection.Resources = []*outcome{
			{Resource: "node/a", Verb: "start", record: job.Record{Ref: job.Ref{State: job.Failed}}, FailedPhases: []failedPhase{{Phase: "p", State: "S", Attempt: 1}}},
			{Resource: "node/c", Verb: "start", record: job.Record{Ref: job.Ref{State: job.Succeeded}}},
		}
		b.Reset()
		p.job(o, job.Failed)
		require.Contains(t, b.String(), `node/-: start failed: 2 of them are bad
node/b: start refused: conflict: not\u001bnow
node/a: start failed
  phase p failed in state S, attempt 1
  see: drover describe node/a`)
	}
}
