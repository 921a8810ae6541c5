// Package bench measures what Drover does on this machine, against what its server does alone. A NATS server with the
// services in its process (as in drover up), or apart, and a worker run as processes of their own; this process plays
// the users.
//
// Every figure comes from one run of it, and every rate stands beside raw JetStream's rate for messages of the same
// size on the same server in the same run.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// Options of Run. Zero values mean the defaults.
type Options struct {
	// StateBytes is the size of the attributes that each resource carries. Default 300 and 4096, one after the other.
	StateBytes []int
	// Sync lists the server's modes: "default" (two minutes) and "always". Default both.
	Sync []string
	// InFlight is how many jobs run at once in the steady measurement. Default 200.
	InFlight int
	// For is how long the steady measurement lasts. Default 8 s.
	For time.Duration
	// Burst is how many jobs are started at once. Default 10,000.
	Burst int
	// Idle is how many jobs of one idle resource are timed. Default 300.
	Idle int
	// Apart runs server and services as processes of their own, as on a cluster; else they are one process, as in
	// drover up. The worker and the users are processes of their own in both.
	Apart bool
	// Dir is where the server's data goes, on the disk to be measured. Default the system's temporary folder.
	Dir string
	// Progress is told what is being measured. Nil: nobody.
	Progress func(line string)
}

func (o Options) withDefaults() Options {
	if len(o.StateBytes) == 0 {
		o.StateBytes = []int{300, 4096}
	}
	if len(o.Sync) == 0 {
		o.Sync = []string{"default", "always"}
	}
	fillIn(map[*int]int{&o.InFlight: 200, &o.Burst: 10_000, &o.Idle: 300}, &o.For, &o.Progress)
	return o
}

// fillIn gives what is not said its default: numbers the ones beside them, a steady measurement 8 s, its progress to nobody.
func fillIn(numbers map[*int]int, steady *time.Duration, progress *func(line string)) {
	for v, d := range numbers {
		if *v <= 0 {
			*v = d
		}
	}
	if *steady <= 0 {
		*steady = 8 * time.Second
	}
	if *progress == nil {
		*progress = func(string) {}
	}
}

// Report is what was measured.
type Report struct {
	Machine string   `json:"machine"`
	Version string   `json:"version"`
	Rows    []Figure `json:"rows"`
}

// Figure is one combination of sync mode and state size.
type Figure struct {
	Sync       string `json:"sync"`
	StateBytes int    `json:"stateBytes"`
	EventBytes int    `json:"eventBytes"` // mean stored size of an event, headers included

	SteadyPhases float64 `json:"steadyPhasesPerSecond"`
	BurstPhases  float64 `json:"burstPhasesPerSecond"`
	RawMessages  float64 `json:"rawMessagesPerSecond"` // asynchronous publish of messages of EventBytes
	SteadyRatio  float64 `json:"steadyRatio"`          // steady phases per raw message
	BurstRatio   float64 `json:"burstRatio"`

	IdleP50 Millis `json:"idleP50Ms"` // a job of three phases, from the request to its end in the feed
	IdleP99 Millis `json:"idleP99Ms"`

	CPU    map[string]float64 `json:"cpuSecondsPer1000Resources"` // by process
	Memory map[string]int     `json:"memoryMiB"`                  // resident, by process, after the burst
	Lost   int                `json:"feedLost"`                   // job ends that the feed did not bring in time
}

// Millis is a duration as JSON and tables show it.
type Millis float64

func millis(d time.Duration) Millis { return Millis(float64(d.Microseconds()) / 1000) }

const (
	project    = "bench"
	kind       = "unit"
	partitions = bus.Partitions
	phasesEach = 3
)

// phases of the two ways: there and back, so that a resource can be driven again and again.
var there, back = []string{"one", "two", "three"}, []string{"four", "five", "six"}

const blueprintJSON = `{"lifecycle":"node","states":["A","B","C"],"paths":{"Terminated":["D","E","F"]},"phases":[
	{"name":"one","states":["A"],"executor":{"plugin":{}}},{"name":"two","states":["B"],"executor":{"plugin":{}}},
	{"name":"three","states":["C"],"executor":{"plugin":{}}},{"name":"four","states":["D"],"executor":{"plugin":{}}},
	{"name":"five","states":["E"],"executor":{"plugin":{}}},{"name":"six","states":["F"],"executor":{"plugin":{}}}]}`

// Run measures every combination.
func Run(ctx context.Context, o Options) (Report, error) {
	o = o.withDefaults()
	r := Report{Machine: fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())}
	for _, sync := range o.Sync {
		for _, size := range o.StateBytes {
			f, err := measure(ctx, o, sync, size)
			if err != nil {
				return r, fmt.Errorf("sync %s, states of %d bytes: %w", sync, size, err)
			}
			r.Rows = append(r.Rows, f)
		}
	}
	return r, nil
}

func measure(ctx context.Context, o Options, sync string, size int) (f Figure, err error) {
	f = Figure{Sync: sync, StateBytes: size, CPU: map[string]float64{}, Memory: map[string]int{}}
	say := func(format string, args ...any) {
		o.Progress(fmt.Sprintf("sync %s, %d bytes: ", sync, size) + fmt.Sprintf(format, args...))
	}
	dir, err := os.MkdirTemp(o.Dir, "drover-bench-")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	say("starting")
	fleet, err := startFleet(ctx, dir, sync, o.Apart, roleWorker, strconv.Itoa(size))
	if err != nil {
		return f, err
	}
	defer fleet.stop()
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: fleet.url, Name: "bench"})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	l, err := newLoad(b)
	if err != nil {
		return f, err
	}
	defer l.stop()
	if err := l.apply(ctx, "Blueprint", kind, blueprintJSON, "bp"); err != nil {
		return f, err
	}

	n := max(o.InFlight, o.Burst)
	say("creating %d resources", n)
	if err := l.create(ctx, n); err != nil {
		return f, err
	}

	say("one idle resource")
	times, err := l.idle(ctx, o.Idle)
	if err != nil {
		return f, err
	}
	f.IdleP50, f.IdleP99 = millis(quantile(times, 0.50)), millis(quantile(times, 0.99))

	say("%d in flight for %s", o.InFlight, o.For)
	before := fleet.cpu()
	jobs, took, err := l.steady(ctx, o.InFlight, o.For)
	if err != nil {
		return f, err
	}
	f.SteadyPhases = float64(jobs*phasesEach) / took.Seconds()
	for name, seconds := range fleet.cpu() {
		f.CPU[name] = round((seconds - before[name]) / float64(jobs) * 1000)
	}

	say("a burst of %d", o.Burst)
	took, err = l.burst(ctx, o.Burst)
	if err != nil {
		return f, err
	}
	f.BurstPhases = float64(o.Burst*phasesEach) / took.Seconds()
	f.Memory = fleet.memory()
	f.Lost = int(l.lost.Load())

	raw, err := measureRaw(ctx, jetstream.Options{URL: fleet.url, Name: "bench"}, say)
	if err != nil {
		return f, err
	}
	f.RawMessages, f.EventBytes = raw.perSecond, raw.bytes
	f.SteadyRatio, f.BurstRatio = round(f.SteadyPhases/f.RawMessages), round(f.BurstPhases/f.RawMessages)
	f.SteadyPhases, f.BurstPhases, f.RawMessages = math.Round(f.SteadyPhases), math.Round(f.BurstPhases), math.Round(f.RawMessages)
	return f, nil
}

func round(v float64) float64 { return math.Round(v*1000) / 1000 }

func quantile(times []time.Duration, q float64) time.Duration {
	slices.Sort(times)
	return times[int(float64(len(times)-1)*q)]
}

// load plays the users: it sends commands and follows the jobs in the feed.
type load struct {
	bus   bus.Bus
	run   string // before each request id, so that it is no other run's
	unsub func()
	lost  atomic.Int64

	mu    sync.Mutex
	wait  map[string]chan<- string // job id: told how it ended
	place []int                    // of each resource: how many jobs it has had
}

const jobWait = 30 * time.Second

func newLoad(b bus.Bus) (*load, error) {
	l := &load{bus: b, wait: map[string]chan<- string{}}
	var err error
	l.unsub, err = b.Follow(bus.Job, project, "", "", func(s bus.Stored) {
		switch s.Header.To {
		case "succeeded", "failed", "canceled":
		default:
			return
		}
		l.mu.Lock()
		c := l.wait[s.Header.Job]
		delete(l.wait, s.Header.Job)
		l.mu.Unlock()
		if c != nil {
			c <- s.Header.To
		}
	})
	return l, err
}

func (l *load) stop() { l.unsub() }

// command sends one command and waits for its acceptance, and until it is final where c is given. c must have room.
func (l *load) command(ctx context.Context, kind, name, verb, id string, cmd wire.Command, c chan<- string) error {
	id = l.run + id
	key := resource.Key{Project: project, Kind: kind, Name: name}
	jobID := wire.JobID(key, id)
	if c != nil {
		l.mu.Lock()
		l.wait[jobID] = c
		l.mu.Unlock()
	}
	body, err := wire.EncodeCommand("", cmd)
	if err != nil {
		return err
	}
	for try := 0; ; try++ {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		answer, err := l.bus.Request(ctx, bus.CommandSubject("api", project, kind, name, verb), map[string]string{bus.HeaderRequestID: id}, body)
		cancel()
		if err == nil {
			var reply wire.Reply
			if reply, err = wire.DecodeReply("", answer.Body); err == nil && reply.Refused != nil {
				err = fmt.Errorf("%s %s/%s was refused: %s", verb, kind, name, reply.Refused.Message)
				if reply.Refused.Code != resource.Overloaded {
					return err
				}
			}
		}
		if err == nil {
			return nil
		}
		if try == 20 {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (l *load) apply(ctx context.Context, kind, name, spec, id string) error {
	return l.command(ctx, kind, name, resource.VerbApply, id, wire.Command{Manifest: &wire.Manifest{
		APIVersion: "drover/v1", Kind: kind, Name: name, Spec: []byte(spec),
	}}, nil)
}

// create makes n resources, and drives none.
func (l *load) create(ctx context.Context, n int) error {
	l.place = make([]int, n)
	return parallel(128, n, func(i int) error { return l.apply(ctx, kind, unit(i), `{"n":1}`, "create") })
}

func unit(i int) string { return fmt.Sprintf("u%05d", i) }

// drive sends resource i on its next way, there or back.
func (l *load) drive(ctx context.Context, i int, c chan<- string) error {
	verb := "start"
	if l.place[i]%2 == 1 {
		verb = "terminate"
	}
	l.place[i]++
	return l.command(ctx, kind, unit(i), verb, fmt.Sprintf("j%d", l.place[i]), wire.Command{}, c)
}

// end waits for the end of a job. The feed is at most once: where it is silent, the bucket is asked.
func (l *load) end(ctx context.Context, i int, c <-chan string) error {
	select {
	case state := <-c:
		if state != "succeeded" {
			return fmt.Errorf("a job of %s %s", unit(i), state)
		}
		return nil
	case <-time.After(jobWait):
	case <-ctx.Done():
		return ctx.Err()
	}
	id := wire.JobID(resource.Key{Project: project, Kind: kind, Name: unit(i)}, l.run+fmt.Sprintf("j%d", l.place[i]))
	m, err := l.bus.Get(ctx, bus.Entity{Family: bus.Job, Project: project, Name: id})
	if err != nil {
		return err
	}
	if m.Header.To != "succeeded" {
		return fmt.Errorf("a job of %s is %s after %s", unit(i), m.Header.To, jobWait)
	}
	l.lost.Add(1)
	return nil
}

func (l *load) idle(ctx context.Context, n int) ([]time.Duration, error) {
	times := make([]time.Duration, 0, n)
	for k := range n + n/10 {
		c := make(chan string, 1)
		began := time.Now()
		if err := l.drive(ctx, 0, c); err != nil {
			return nil, err
		}
		if err := l.end(ctx, 0, c); err != nil {
			return nil, err
		}
		if k >= n/10 { // the first ones warm the caches
			times = append(times, time.Since(began))
		}
	}
	return times, nil
}

// steady keeps n resources on their way, each its own, and counts the jobs that ended in the time.
func (l *load) steady(ctx context.Context, n int, lasts time.Duration) (jobs int, took time.Duration, err error) {
	var ended atomic.Int64
	began := time.Now()
	err = parallel(n, n, func(i int) error {
		for time.Since(began) < lasts {
			c := make(chan string, 1)
			if err := l.drive(ctx, i, c); err != nil {
				return err
			}
			if err := l.end(ctx, i, c); err != nil {
				return err
			}
			ended.Add(1)
		}
		return nil
	})
	return int(ended.Load()), time.Since(began), err
}

// burst starts n jobs as fast as they are accepted, and waits for the last to end.
func (l *load) burst(ctx context.Context, n int) (time.Duration, error) {
	ends := make([]chan string, n)
	for i := range ends {
		ends[i] = make(chan string, 1)
	}
	began := time.Now()
	if err := parallel(512, n, func(i int) error { return l.drive(ctx, i, ends[i]) }); err != nil {
		return 0, err
	}
	for i, c := range ends {
		if err := l.end(ctx, i, c); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// parallel calls f for 0 to n-1, at most width at once, and returns the first error.
func parallel(width, n int, f func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, width)
	for range min(width, n) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					next.Store(int64(n))
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}
