package e2e_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/deploy/e2e/internal/journal"
	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/wire"
)

const (
	killTime    = 40 * time.Second // of strokes, unless DROVER_KILLS says how many
	killTimeMax = 2 * time.Minute  // of strokes, on a machine that is too busy for killsMin in killTime
	killsMin    = 150              // deaths
	killClients = 40
	settleTime  = 100 * time.Second // for all that was accepted to end, when nobody is killed any more
)

// TestKill9 kills every process of a house, at random and at named points, while clients drive resources through both
// doors: start, another target, cancel, delete, and the same name again. When it is over, every promise must hold.
func TestKill9(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	kills, _ := strconv.Atoi(os.Getenv("DROVER_KILLS"))

	h := newHouse(t, plan{intakes: 2, orchestrators: 2, runners: 2, lifecycles: 1, notifiers: 1})
	nc := h.connect()
	t.Cleanup(nc.Close)
	d, err := openDoor(nc)
	require.NoError(t, err)
	journalFile := filepath.Join(h.dir, "journal")
	starting, started := context.WithTimeout(t.Context(), time.Minute)
	defer started()
	c := chronicleAfter(t, starting, h, d, command{
		Kind: "Blueprint", Name: "node", Verb: "apply", ID: "node", Body: apply("Blueprint", "node", killBlueprint(journalFile), nil),
	})
	stopWorker := killWorker(t, h, journalFile)

	work := &workload{door: d, chronicle: c}
	asking, giveUp := context.WithCancel(t.Context()) // for the answers to what was asked last
	defer giveUp()
	living, stop := context.WithCancel(asking)
	var clients sync.WaitGroup
	for i := range killClients {
		clients.Go(func() {
			work.client(asking, living, fmt.Sprintf("n%d", i), rand.New(rand.NewPCG(seed, 1000+uint64(i))))
		})
	}
	k := newKiller(h, seed)
	began := time.Now()
	k.run(t.Context(), func(deaths int) bool {
		if kills > 0 {
			return deaths >= kills
		}
		return deaths >= killsMin && time.Since(began) > killTime || time.Since(began) > killTimeMax
	})
	calm := time.Now()
	stop()
	defer time.AfterFunc(settleTime, giveUp).Stop()
	clients.Wait()
	t.Logf("%d deaths in %s", k.deaths(), calm.Sub(began).Round(time.Second))

	v := &verdict{t: t, house: h, door: d, chronicle: c, work: work, journal: journalFile, least: 3 * killClients}
	v.settled(calm.Add(settleTime))
	t.Logf("all was over %s after the last of them", time.Since(calm).Round(100*time.Millisecond))
	stopWorker()
	v.pass()
	k.report(t)
	if kills == 0 {
		require.GreaterOrEqual(t, k.deaths(), killsMin)
	}
}

// killBlueprint has two phases at once, one behind both, automatic retries, pending scripts, an external worker, and a
// way back.
func killBlueprint(journalFile string) object {
	script := func(more ...any) object {
		return object{"script": object{
			"command": append(list{filepath.Join(bin, "witness"), "-journal", journalFile}, more...), "retryableExits": list{9},
		}}
	}
	return object{
		"lifecycle": "node", "states": list{"Allocation", "Configuration"}, "paths": object{"Terminated": list{"Release"}},
		"phases": list{
			object{"name": "volume", "states": list{"Allocation"}, "executor": script("-hold", "40ms")},
			object{"name": "instance", "states": list{"Allocation"}, "executor": script(),
				"retry": object{"attempts": 3, "delay": "100ms"}},
			object{"name": "attach", "states": list{"Allocation"}, "dependsOn": list{"volume", "instance"},
				"executor": object{"plugin": object{}}, "interval": "150ms"},
			object{"name": "configure", "states": list{"Configuration"}, "executor": script("-fail-first"),
				"retry": object{"attempts": 5, "delay": "100ms"}, "when": `resource.spec.size != "small"`},
			object{"name": "healthy", "states": list{"Configuration"}, "executor": script("-pending", "1"), "interval": "200ms"},
			object{"name": "release", "states": list{"Release"}, "executor": script("-hold", "20ms")},
		},
	}
}

// killWorker is the external worker of phase attach, in this process: it is never killed, and loses its server often.
func killWorker(t *testing.T, h *house, journalFile string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: h.url, Name: "e2e-worker"})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		phase := bus.Phase{Project: project, Kind: "node", Phase: "attach"}
		done <- plugin.Serve(ctx, b, phase, plugin.Options{BindEvery: 100 * time.Millisecond}, func(_ context.Context, batch *plugin.Batch) error {
			for _, r := range batch.Resources() {
				if err := attach(batch, r, journalFile); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, b.Close())
	})
	t.Cleanup(stop)
	return stop
}

// attach is pending for as many calls as the name's hash says.
func attach(batch *plugin.Batch, r *plugin.Resource, journalFile string) error {
	f := r.Fence()
	ran := journal.Ran{UID: f.UID, Job: f.JobID, Phase: f.Phase, Attempt: f.Attempt}
	if err := journal.Append(journalFile, journal.Line{At: time.Now(), Begin: true, Ran: ran}); err != nil {
		return err
	}
	calls := 0
	if _, err := r.PhaseData("calls", &calls); err != nil {
		return err
	}
	if err := r.SetOutput("ran", ran); err != nil {
		return err
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(r.Key().Name))
	if calls < int(hash.Sum32()%3) {
		batch.Pending(r, 0, "")
		return r.SetPhaseData("calls", calls+1)
	}
	batch.Completed(r)
	return journal.Append(journalFile, journal.Line{At: time.Now(), Ran: ran})
}

// workload is what the clients asked for, and how it was taken.
type workload struct {
	door      *door
	chronicle *chronicle

	mu    sync.Mutex
	asked []asked
}

// asked is one command that was decided, or captured.
type asked struct {
	command
	captured bool
	jobID    string // that an accepted one has
	code     string // of a refusal; empty for a captured one, whose refusal is stored
}

// client drives one resource through life after life until living ends. ctx bounds how long its last command may take
// to be decided.
func (w *workload) client(ctx, living context.Context, name string, random *rand.Rand) {
	number := 0
	do := func(verb string, body any) (accepted string) {
		number++
		c := command{Kind: "node", Name: name, Verb: verb, ID: fmt.Sprintf("%s-%d", name, number), Body: body}
		return w.ask(ctx, c, random.IntN(2) == 0)
	}
	await := func(id string) {
		if id != "" {
			w.chronicle.waitJob(living, id)
		}
	}
	nap := func(most time.Duration) { pause(living, time.Duration(random.Int64N(int64(most)))) }
	sizes := []string{"small", "large"}
	for living.Err() == nil {
		if do("apply", apply("node", name, object{"size": sizes[random.IntN(2)]}, nil)) == "" {
			nap(300 * time.Millisecond)
			continue // the one before is still being deleted
		}
		started := do("start", nil)
		switch random.IntN(6) {
		case 0: // another target while one runs
			nap(600 * time.Millisecond)
			await(do("terminate", nil))
			await(do("start", nil))
		case 1:
			nap(400 * time.Millisecond)
			do("cancel", nil)
			await(do("start", nil))
		case 2: // several at once
			for i := range 2 + random.IntN(4) {
				do("apply", apply("node", name, object{"size": "large", "n": i}, map[string]string{"n": strconv.Itoa(i)}))
			}
			await(started)
		default:
			await(started)
		}
		if living.Err() != nil {
			return
		}
		if s := w.chronicle.state("node", name); s.PhaseFailed && s.Job() == nil {
			await(do("retry", nil))
		}
		deleted := do("delete", nil)
		if deleted != "" && random.IntN(2) == 0 {
			await(deleted)
			continue
		}
		w.chronicle.wait(living, func() bool {
			return deleted == "" || w.chronicle.resources[resource.Key{Project: project, Kind: "node", Name: name}].Gone
		})
	}
}

// ask sends a command by one of the doors until it is decided, and returns the job of an accepted one.
func (w *workload) ask(ctx context.Context, c command, captured bool) string {
	id := wire.JobID(resource.Key{Project: project, Kind: c.Kind, Name: c.Name}, c.ID)
	if !captured {
		a, err := w.door.request(ctx, c)
		if err != nil {
			return ""
		}
		w.note(asked{command: c, jobID: a.JobID, code: a.Code})
		return a.JobID
	}
	if _, err := w.door.publish(ctx, c); err != nil {
		return ""
	}
	w.note(asked{command: c, captured: true})
	accepted := false
	w.chronicle.wait(ctx, func() bool {
		_, accepted = w.chronicle.jobs[id]
		_, refused := w.chronicle.refusals[bus.RefusedSubject(project, c.ID)]
		return accepted || refused
	})
	if accepted {
		return id
	}
	return ""
}

func (w *workload) note(a asked) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, a)
}
