package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

var update = flag.Bool("update", false, "write the table of TestScenario anew")

// TestScenario writes down what was asked of one resource and what happened: two phases at once, another target while
// one runs, retry, delete, the same name again, and a restart of everything in between. The table must be the same on
// one server and on three.
func TestScenario(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprintf("servers=%d", servers), func(t *testing.T) {
			t.Parallel()
			got := scenario(t, servers)
			golden := filepath.Join("testdata", "scenario.txt")
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o644)) //nolint:gosec // a file of the repository
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
}

func scenario(t *testing.T, servers int) string {
	h := newHouse(t, plan{servers: servers, intakes: 1, orchestrators: 2, lifecycles: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	nc := h.connect()
	t.Cleanup(nc.Close)
	d, err := openDoor(nc)
	require.NoError(t, err)
	phase := func(name, state string, dependsOn ...any) object {
		return object{"name": name, "states": list{state}, "dependsOn": append(list{}, dependsOn...), "executor": object{"plugin": object{}},
			"interval": "200ms", "lease": "10m"}
	}
	c := chronicleAfter(t, ctx, h, d, command{Kind: "Blueprint", Name: "box", Verb: "apply", ID: "box", Body: apply("Blueprint", "box", object{
		"lifecycle": "node", "states": list{"Allocation", "Configuration"}, "paths": object{"Terminated": list{"Release"}},
		"phases": list{
			phase("volume", "Allocation"), phase("instance", "Allocation"), phase("attach", "Allocation", "volume", "instance"),
			phase("config", "Configuration"), phase("release", "Release"),
		},
	}, nil)})
	s := &story{t: t, ctx: ctx, house: h, door: d, chronicle: c, workers: map[string]*worker{}, jobs: map[string]string{}, uids: map[string]string{}, buried: map[string]bool{}}

	s.ask("apply", "a1", apply("box", "b", object{"size": 1}, nil))
	s.note("two phases at once")
	s.ask("start", "s1", nil)
	volume, instance := s.take("volume"), s.take("instance")
	s.answer(instance, "completed", nil)
	s.answer(volume, "completed", object{"attributes": object{"disk": "d-1"}})
	s.note("another target while one runs")
	attach := s.take("attach")
	s.ask("terminate", "t1", nil)
	s.answer(attach, "completed", object{"attributes": object{"slot": 3}})
	release := s.take("release")
	s.answer(release, "completed", nil)
	s.note("the same again, with a restart while two are out")
	s.ask("start", "s2", nil)
	volume, instance = s.take("volume"), s.take("instance")
	s.restart()
	s.answer(volume, "completed", nil)
	s.answer(instance, "completed", nil)
	s.note("not done yet")
	attach = s.take("attach")
	s.answer(attach, "pending", object{"message": "the slot is busy", "data": object{"try": 1}})
	attach = s.take("attach")
	s.answer(attach, "completed", nil)
	s.note("failed, and retried; an answer to the attempt before comes late")
	config := s.take("config")
	s.answer(config, "failed", object{"message": "no such file"})
	s.ask("retry", "r1", nil)
	again := s.take("config")
	s.late(config, "completed")
	s.answer(again, "completed", nil)
	s.note("the same request once more")
	s.ask("retry", "r1", nil)
	s.note("deleted")
	s.ask("delete", "d1", nil)
	s.ask("start", "s3", nil)
	release = s.take("release")
	s.answer(release, "completed", nil)
	s.note("the same name again; answers for the one before come late")
	s.ask("start", "s4", nil)
	s.ask("apply", "a2", apply("box", "b", object{"size": 2}, nil))
	s.late(release, "completed")
	s.ask("start", "s5", nil)
	instance, volume = s.take("instance"), s.take("volume")
	s.late(config, "failed")
	s.answer(volume, "completed", nil)
	s.answer(instance, "completed", nil)
	s.answer(s.take("attach"), "completed", nil)
	s.answer(s.take("config"), "completed", nil)
	s.jobsEnded("s1", "t1", "s2", "r1", "d1", "s5")
	draining, drained := context.WithCancel(ctx)
	var drains sync.WaitGroup
	for _, w := range s.workers {
		drains.Go(func() { w.drain(draining) })
	}
	empty(t, d.js, "COMMANDS", "RESULTS", "WORK", "POISON")
	drained()
	drains.Wait()
	return s.text.String()
}

// story is the table while it is being written.
type story struct {
	t         *testing.T
	ctx       context.Context
	house     *house
	door      *door
	chronicle *chronicle
	workers   map[string]*worker
	jobs      map[string]string // request ids by job, so that the table has neither ids nor times
	uids      map[string]string // numbers of lives by uid

	told   int             // entries that were looked at
	buried map[string]bool // uids of those whose deletion is in the table
	text   strings.Builder
}

func (s *story) note(text string) { fmt.Fprintf(&s.text, "\n# %s\n", text) }

// ask sends a command and writes down the answer, and what happened.
func (s *story) ask(verb, id string, body any) {
	s.t.Helper()
	a, err := s.door.request(s.ctx, command{Kind: "box", Name: "b", Verb: verb, ID: id, Body: body})
	require.NoError(s.t, err)
	answer := "accepted"
	if a.Code != "" {
		answer = "refused, " + a.Code + ": " + s.plain(a.Message)
	} else {
		s.jobs[a.JobID] = id
	}
	s.line("%s by request %s: %s", verb, id, answer)
	s.happened()
}

// take takes the work of a phase.
func (s *story) take(phase string) order {
	s.t.Helper()
	w := s.workers[phase]
	if w == nil {
		w = newWorker(s.t, s.house, "box", phase)
		s.workers[phase] = w
	}
	for {
		o := w.next(s.ctx)
		if s.wanted(o) {
			kind := "work"
			if o.work.Poll {
				kind = "poll"
			}
			s.line("take %s of %s, attempt %d call %d", kind, phase, o.work.Fence.Attempt, o.work.Fence.Call)
			return o
		}
		require.NoError(s.t, o.msg.Ack()) // it came twice, as it may; a worker looks at the state before it begins
	}
}

// wanted reports whether a hand-out is still the one that an answer is awaited for.
func (s *story) wanted(o order) bool {
	now := s.chronicle.state("box", "b")
	p := now.Phase(o.work.Fence.Phase)
	return p != nil && o.work.Fence == resource.Fence{UID: now.UID, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt, Call: p.Call} &&
		(p.InFlight && !o.work.Poll || p.Status == resource.Sleeping && o.work.Poll)
}

// answer stores a result and writes down what happened.
func (s *story) answer(o order, outcome string, more object) {
	s.t.Helper()
	s.line("%s: %s", o.work.Fence.Phase, outcome)
	s.workers[o.work.Fence.Phase].answer(s.ctx, o, outcome, more)
	s.happened()
}

// late stores a result that must change nothing.
func (s *story) late(o order, outcome string) {
	s.t.Helper()
	s.line("%s: %s, for attempt %d of life %s", o.work.Fence.Phase, outcome, o.work.Fence.Attempt, s.uids[o.work.Fence.UID])
	s.workers[o.work.Fence.Phase].store(s.ctx, o, outcome, nil)
	s.happened()
}

// restart kills everything at once, and waits until all of it is back.
func (s *story) restart() {
	s.t.Helper()
	var wg sync.WaitGroup
	for _, p := range append(s.house.servers, s.house.services...) {
		wg.Go(func() { p.kill("") })
	}
	wg.Wait()
	s.house.ready()
	s.line("restart of everything")
}

func (s *story) line(format string, args ...any) { fmt.Fprintf(&s.text, format+"\n", args...) }

// unread is what the log says of the resource that is not in the table yet. A deletion is appended twice, and what was
// before the second is purged at once: whichever was read first counts.
func (s *story) unread() (events []entry) {
	all := s.chronicle.all()
	for _, e := range all[s.told:] {
		if e.Entity.Family != bus.Resource {
			continue
		}
		if e.Deleted && s.buried[e.Resource.State.UID] {
			continue
		}
		s.buried[e.Resource.State.UID] = e.Deleted
		events = append(events, e)
	}
	s.told = len(all)
	return events
}

// happened waits until the resource rests, and writes down its events since the last time.
func (s *story) happened() {
	s.t.Helper()
	// What was answered is committed, but more than one event may follow from it.
	rests := func() bool {
		now := s.chronicle.resources[resource.Key{Project: project, Kind: "box", Name: "b"}]
		for _, p := range now.Phases {
			if p.Status == resource.Waiting && !p.InFlight {
				return false
			}
		}
		return true
	}
	for last, now := uint64(0), s.position(); last != now; now = s.position() {
		last = now
		empty(s.t, s.door.js, "RESULTS")
		require.True(s.t, s.chronicle.wait(s.ctx, func() bool {
			n := len(s.chronicle.entries)
			return n > 0 && s.chronicle.entries[n-1].Seq >= now && rests()
		}), "the resource does not come to rest")
	}
	events := s.unread()
	for _, e := range events {
		s.event(e)
	}
	if len(events) == 0 {
		s.line("    nothing")
	}
}

// position is the last sequence of the resource's events in EVENTS.
func (s *story) position() (seq uint64) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
		defer cancel()
		events, err := s.door.js.Stream(ctx, "EVENTS")
		if err != nil {
			return false
		}
		seq = events.CachedInfo().State.LastSeq
		return true
	}, time.Minute, 20*time.Millisecond)
	return seq
}

// event writes one down.
func (s *story) event(e entry) {
	r := e.Resource
	cause := r.Event.Cause
	parts := []string{cause.Kind}
	for _, part := range []string{cause.Verb, cause.Phase, cause.Outcome} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	life := s.uids[r.State.UID]
	if life == "" {
		life = fmt.Sprint(len(s.uids) + 1)
		s.uids[r.State.UID] = life
	}
	var phases []string
	for _, p := range r.State.Phases {
		text := p.Name + " " + p.Status.String()
		if p.InFlight {
			text += ", out"
		}
		phases = append(phases, text)
	}
	gone := ""
	if e.Deleted {
		gone = ", gone"
	}
	s.line("    %s.%d %s → %s%s, %s, for %s", life, r.State.Revision, or(r.Event.From, "-"), or(r.Event.To, "-"), gone, strings.Join(parts, " "), or(s.jobs[r.Event.JobID], "?"))
	if d := r.Event.Dispatch; d != nil {
		s.line("         hands out %s, attempt %d call %d", d.Fence.Phase, d.Fence.Attempt, d.Fence.Call)
	}
	if len(phases) > 0 {
		s.line("         %s", strings.Join(phases, "; "))
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// plain replaces job ids by request ids.
func (s *story) plain(text string) string {
	for id, request := range s.jobs {
		text = strings.ReplaceAll(text, id, "of "+request)
	}
	return text
}

// jobsEnded writes down how the jobs of these requests have ended, when all have.
func (s *story) jobsEnded(requests ...string) {
	s.t.Helper()
	s.note("the jobs")
	for _, request := range requests {
		id := wire.JobID(resource.Key{Project: project, Kind: "box", Name: "b"}, request)
		r, over := s.chronicle.waitJob(s.ctx, id)
		require.True(s.t, over, "the job of %s does not end", request)
		s.line("%s by request %s: %s", r.Verb, request, strings.TrimSpace(r.State.String()+" "+s.plain(r.Message)))
	}
}
