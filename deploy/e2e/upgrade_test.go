package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// nextLabel is drive.NextLabel: only the next version decides on what it has decided on that has this label.
const nextLabel = "drover.next"

// upgrade is a fleet that two versions share.
type upgrade struct {
	t       *testing.T
	ctx     context.Context
	h       *house
	d       *door
	c       *chronicle
	started int // resources
	names   []string
}

// TestUpgrade rolls a version of the rules forward, back, and forward again under running jobs, with every service in
// both versions. What needs the next version is decided on by that alone: the older one hands partitions over that hold
// such states, and leaves them alone where no other is there.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	require.NoError(t, buildNext())
	h := newHouse(t, plan{unsynced: true})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	nc := h.connect()
	defer nc.Close()
	d, err := openDoor(nc)
	require.NoError(t, err)
	u := &upgrade{t: t, ctx: ctx, h: h, d: d}
	listen := ports(t, 2)
	old := make([]*process, 2)
	for i := range old {
		old[i] = u.run(oldID(i), "", fmt.Sprintf("127.0.0.1:%d", listen[i]))
	}
	for _, service := range []string{"intake", "runner", "lifecycle"} {
		u.run(service+"-0", "", "")
	}
	site := newSite(t)
	u.c = chronicleAfter(t, ctx, h, d, command{Kind: "Blueprint", Name: "box", Verb: "apply", ID: "box", Body: apply("Blueprint", "box", object{
		"lifecycle": "node", "states": list{"Fetching", "Building"}, "phases": list{
			object{"name": "fetch", "states": list{"Fetching"}, "executor": site.executor()},
			object{"name": "build", "states": list{"Building"}, "executor": site.executor()},
		},
	}, nil)})

	// Forward, and back before anything was written that needs it.
	u.start(80, nil)
	next := []*process{u.run(nextID(0), "next/", "")}
	for _, service := range []string{"intake", "runner", "lifecycle"} {
		next = append(next, u.run("next-"+service+"-0", "next/", ""))
	}
	u.start(80, nil)
	u.reach(100) // jobs of the second lot run in both versions
	for i, p := range next {
		p.stop(i%2 == 0)
	}
	u.start(40, nil)
	u.ended()
	for _, e := range u.c.all() {
		require.True(t, e.Resource == nil || e.Resource.State.MinReader == 1, "event %d needs more than the old version", e.Seq)
	}

	// Forward again, by two. The first dies: what it has written falls to an old one at first, which leaves it.
	both := append(u.ids(oldID, 2), u.ids(nextID, 2)...)
	marked := slices.Concat(bus.Share(partitionsOfUpgrade, nextID(0), both), bus.Share(partitionsOfUpgrade, nextID(1), both))
	survivors := append(u.ids(oldID, 2), nextID(1))
	require.True(t, slices.ContainsFunc(bus.Share(partitionsOfUpgrade, nextID(0), both), func(p int) bool {
		return !slices.Contains(bus.Share(partitionsOfUpgrade, nextID(1), survivors), p)
	}), "the ids must be such that a partition of the first falls to an old one")
	require.Less(t, len(marked), partitionsOfUpgrade)
	first, second := u.run(nextID(0), "next/", ""), u.run(nextID(1), "next/", "")
	for _, service := range []string{"intake", "runner", "lifecycle"} {
		u.run("next-"+service+"-1", "next/", "")
	}
	u.served(first, second)
	u.start(60, marked)
	u.start(80, nil)
	u.reach(250)
	require.NotEmpty(t, u.newer())
	first.stop(false)
	u.start(60, marked)
	u.ended()
	u.neverBack()
	require.Positive(t, u.declined(listen), "an old one must have said that it leaves a partition")

	// Without one of the next version, what needs it waits, and all else goes on.
	second.stop(false)
	needs := u.newer()
	waiting, going := u.inPartition(func(p int) bool { return needs[p] }), u.inPartition(func(p int) bool { return !needs[p] })
	a, err := d.request(ctx, command{Kind: "box", Name: going, Verb: "terminate", ID: "end"})
	require.NoError(t, err)
	r, ok := u.c.waitJob(ctx, a.JobID)
	require.True(t, ok)
	require.Equal(t, job.Succeeded, r.State)
	ack, err := d.publish(ctx, command{Kind: "box", Name: waiting, Verb: "terminate", ID: "end"})
	require.NoError(t, err)
	require.NotNil(t, ack)
	require.Eventually(t, func() bool { return u.declined(listen) >= len(needs) }, time.Minute, 100*time.Millisecond)
	_, err = d.once(ctx, command{Kind: "box", Name: waiting, Verb: "terminate", ID: "again"})
	if err == nil { // else nobody has answered
		require.Equal(t, "Started", u.c.state("box", waiting).State)
	}
	require.Nil(t, u.jobOf(waiting, "terminate"), "nobody may have decided it")

	u.run(nextID(2), "next/", "")
	require.True(t, u.c.wait(ctx, func() bool { j := u.jobOfLocked(waiting, "terminate"); return j != nil && j.State.Final() }))
	u.neverBack()
	for _, p := range old {
		log, err := os.ReadFile(p.log)
		require.NoError(t, err)
		if strings.Contains(string(log), "is left to a newer version of Drover") {
			return
		}
	}
	t.Fatal("no old orchestrator has logged that it leaves a partition")
}

const partitionsOfUpgrade = 8

func oldID(i int) string  { return fmt.Sprint("orchestrator-", i) }
func nextID(i int) string { return fmt.Sprint("newer-orchestrator-", i) }

func (u *upgrade) ids(of func(int) string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, of(i))
	}
	return ids
}

// run starts one process; folder is empty or that of the next version.
func (u *upgrade) run(id, folder, listen string) *process {
	u.t.Helper()
	parts := strings.Split(id, "-")
	p := u.h.run(id, folder+"drover-"+parts[len(parts)-2], "--nats", u.h.url, "--id", id, "--listen", listen,
		"--partitions", strconv.Itoa(partitionsOfUpgrade), "--log-format", "json")
	u.h.services = append(u.h.services, p)
	return p
}

// served waits until processes have a share.
func (u *upgrade) served(all ...*process) {
	u.t.Helper()
	for _, p := range all {
		require.Eventually(u.t, func() bool {
			log, err := os.ReadFile(p.log)
			return err == nil && regexp.MustCompile(`"partitions changed".*"owned":[1-9]`).Match(log)
		}, 20*time.Second, 20*time.Millisecond, p.name)
	}
}

// start applies and starts more resources; with partitions, only in these, and with the label of the next version.
func (u *upgrade) start(n int, partitions []int) {
	u.t.Helper()
	var labels map[string]string
	if partitions != nil {
		labels = map[string]string{nextLabel: "true"}
	}
	var clients sync.WaitGroup
	places := make(chan struct{}, 16)
	for range n {
		name := ""
		for name == "" || partitions != nil && !slices.Contains(partitions, bus.PartitionOf(project, "box", name, partitionsOfUpgrade)) {
			u.started++
			name = fmt.Sprint("b", u.started)
		}
		u.names = append(u.names, name)
		places <- struct{}{}
		clients.Go(func() {
			defer func() { <-places }()
			// It is applied before it is started: an intake that dies may have let what it held come after what followed.
			a, err := u.d.request(u.ctx, command{Kind: "box", Name: name, Verb: "apply", ID: "apply", Body: apply("box", name, object{}, labels)})
			if err != nil || a.JobID == "" {
				u.t.Errorf("apply %s: %v %+v", name, err, a)
			}
			if _, err := u.d.publish(u.ctx, command{Kind: "box", Name: name, Verb: "start", ID: "start"}); err != nil {
				u.t.Errorf("start %s: %v", name, err)
			}
		})
	}
	clients.Wait()
}

// reach waits until so many resources are started.
func (u *upgrade) reach(n int) {
	u.t.Helper()
	require.True(u.t, u.c.wait(u.ctx, func() bool { return u.c.count("box", "Started") >= n }), "%d resources at their target", n)
}

// ended waits until every job of start has succeeded.
func (u *upgrade) ended() {
	u.t.Helper()
	done := 0
	if u.c.wait(u.ctx, func() bool {
		done = 0
		for _, r := range u.c.jobs {
			if r.Verb == "start" && r.State == job.Succeeded {
				done++
			}
		}
		return done == len(u.names)
	}) {
		return
	}
	for _, name := range u.names {
		s, j := u.c.state("box", name), u.jobOf(name, "start")
		if j == nil || j.State != job.Succeeded {
			u.t.Logf("%s: job %+v, state %+v", name, j, s)
		}
	}
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	for subject, body := range u.c.refusals {
		u.t.Logf("%s: %q", subject, body)
	}
	u.t.Fatalf("of %d jobs %d have succeeded", len(u.names), done)
}

// newer are the partitions that hold states which need the next version.
func (u *upgrade) newer() map[int]bool {
	found := map[int]bool{}
	for _, e := range u.c.all() {
		if e.Resource != nil && e.Resource.State.MinReader > 1 {
			found[e.Entity.Partition] = true
		}
	}
	return found
}

// inPartition is a started resource in such a partition.
func (u *upgrade) inPartition(is func(int) bool) string {
	u.t.Helper()
	for _, name := range u.names {
		if is(bus.PartitionOf(project, "box", name, partitionsOfUpgrade)) {
			return name
		}
	}
	u.t.Fatal("there is no such resource")
	return ""
}

// declined is how many partitions the old orchestrators say that they leave to the next version.
func (u *upgrade) declined(listen []int) (n int) {
	u.t.Helper()
	for _, port := range listen {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
		require.NoError(u.t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(u.t, response.Body.Close())
		require.NoError(u.t, err)
		found := regexp.MustCompile(`(?m)^drover_orchestrator_partitions_newer(?:\{.*\})? (\d+)$`).FindSubmatch(body)
		require.NotNil(u.t, found, "no such metric")
		one, err := strconv.Atoi(string(found[1]))
		require.NoError(u.t, err)
		n += one
	}
	return n
}

func (u *upgrade) jobOf(name, verb string) *job.Record {
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	return u.jobOfLocked(name, verb)
}

func (u *upgrade) jobOfLocked(name, verb string) *job.Record {
	for _, r := range u.c.jobs {
		if r.Name == name && r.Verb == verb {
			return &r
		}
	}
	return nil
}

// neverBack: an old version that had decided on a state of the next one would have written that it needs no more than the
// first.
func (u *upgrade) neverBack() {
	u.t.Helper()
	seen, newer := map[resource.Key]uint32{}, 0
	for _, e := range u.c.all() {
		if e.Resource == nil {
			continue
		}
		s := &e.Resource.State
		require.GreaterOrEqual(u.t, s.MinReader, seen[s.Key], "event %d: an old version decided on %s", e.Seq, s.Key)
		if seen[s.Key] = s.MinReader; s.MinReader > 1 {
			newer++
		}
	}
	u.t.Logf("%d events, %d of states that need the next version", len(u.c.all()), newer)
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	require.Empty(u.t, u.c.problems)
}
