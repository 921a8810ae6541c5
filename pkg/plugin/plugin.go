// Package plugin is the SDK for phase plugins: it pulls the resources that wait for a phase, hands them to a function
// in batches, and answers for each of them.
//
//	err := plugin.Serve(ctx, b, bus.Phase{Project: "default", Kind: "node", Phase: "create-instance"},
//		plugin.Options{}, func(ctx context.Context, batch *plugin.Batch) error {
//			for _, r := range batch.Resources() {
//				id, err := cloud.Create(ctx, r.Key().Name)
//				if err != nil {
//					batch.Failed(r, err.Error())
//					continue
//				}
//				if err := r.SetAttribute("instanceId", id); err != nil {
//					return err
//				}
//				batch.Completed(r)
//			}
//			return nil
//		})
//
// # What a function may rely on (seed 003, "Phase Plugins"; design.md section 3, "Executors")
//
//   - A resource that it neither completes nor fails is pending: it is called again after the phase's interval.
//   - If it returns an error or panics, all resources of the batch fail with that text, except those that it had
//     completed (and those that it had failed, which keep their own message).
//   - If ctx ends, or the bus is not reachable (ErrUnavailable), nothing fails: what was not answered is handed out
//     again, with its phase data.
//   - One call of the phase is out at a time, over all its workers, unless the blueprint allows more (calls); what comes
//     meanwhile waits for the next. In a failover two may be out for a moment.
//   - A phase that several kinds have is called once with the resources of all (ServeKinds).
//   - The group of resources differs from call to call: what it must remember belongs into the phase data.
//   - Calls are at least once. A worker that dies after the side effect and before the answer leads to a second call of
//     the same attempt; a function that must know keeps an id in the phase data, or uses the fence as a key.
//
// # What it does not do
//
// It holds no state that matters: an answer is stored durably before the work is acknowledged, and work that was not
// acknowledged comes again.
package plugin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Limits and times of the SDK. How old work is, and when its deadline is, is the server's clock against this machine's:
// one that runs fast looks at states without need, one that runs slow begins a little more that is out of date, which
// fences make harmless.
const (
	BatchMax          = 1000                   // resources per batch
	KindsMax          = 16                     // kinds of one ServeKinds: as many fetches of BatchBytesMin are no more than BatchBytesMax
	BatchBytesMin     = bus.FetchBytesMin      // bytes per batch: any one resource fits
	BatchBytesMax     = bus.FetchBytesMax      // bytes per batch
	ConcurrencyMax    = 1000                   // batches in flight per Serve
	RunningAfter      = 500 * time.Millisecond // a batch that lasts longer is reported as Running
	StaleAfter        = time.Second            // work that is older, or may be, is checked against the resource before it begins
	AnswersInFlight   = 64                     // results of one batch that are being stored at once
	AnswerGrace       = 5 * time.Second        // how long results may still be stored after handlers had to end
	SpecsBytesMax     = 16 << 20               // bytes of specs that one Serve keeps
	answeredMax       = 8192                   // answered deliveries that are remembered, to recognise their duplicates
	keepEvery         = 200 * time.Millisecond // how often leases are looked at
	fetchGrace        = 200 * time.Millisecond // how long a fetch may go on after Serve was told to stop
	retryFirst        = 100 * time.Millisecond // first wait after a failed call of the bus; doubles
	retryLast         = 500 * time.Millisecond // longest such wait: who has no leader says so at once, and has one a few seconds later
	releaseAfter      = time.Second            // wait before work that could not be begun is delivered again
	newerAfter        = 5 * time.Second        // wait before work that only a newer version can read is delivered again
	publishTimeout    = 5 * time.Second        // one try of storing a result
	checkTimeout      = 3 * time.Second        // one look at the present state of resources
	specTimeout       = 5 * time.Second        // one load of a spec
	defaultBatch      = 100
	defaultBatchBytes = 16 << 20
	defaultFlight     = 4
	defaultFetchWait  = 5 * time.Second
	defaultStopGrace  = 10 * time.Second
	defaultBindEvery  = time.Second
	leaseRenewalsEach = 3 // renewals per lease, so that two may be lost
)

// ErrUnavailable is what the SDK's own calls return when the bus does not answer. A function that returns it (wrapped
// or not) fails nothing: its unanswered resources are handed out again.
var ErrUnavailable = errors.New("the bus is not reachable at present")

// ErrCanceled is the cause of Resource.Context once the call is no longer wanted.
var ErrCanceled = errors.New("the call was canceled")

// Options of Serve. The zero value is ready for use.
type Options struct {
	// Worker is what this worker calls itself towards others of the phase, at most phase.WorkerBytesMax bytes. Default: made
	// up. Two that call themselves the same take themselves for one.
	Worker string
	// Batch is the most resources that one call is given. Default 100, at most BatchMax.
	Batch int
	// BatchBytes is the most bytes of resources that one call is given, as they are stored: state, attributes, labels, phase
	// data. Specs are not among them, they are loaded when they are asked for (Resource.Spec). Default 16 MiB, from
	// BatchBytesMin, into which any one resource fits, to BatchBytesMax. What is left waits for the next call.
	BatchBytes int
	// Concurrency is the most calls at the same time, where the blueprint allows any number of them (calls: 0); else one
	// call is out at a time. Default 4, at most ConcurrencyMax.
	Concurrency int
	// Limit, if set, bounds the resources in calls over all Serves that share it.
	Limit *Limit
	// FetchWait is how long one fetch waits for work. Default 5 s. It delays neither work nor stopping.
	FetchWait time.Duration
	// BindEvery is how often a phase that has no consumer yet is looked for. Default 1 s.
	BindEvery time.Duration
	// StopGrace is how long calls may go on after Serve's context ends, before their own context ends too.
	// Default 10 s; negative means not at all.
	StopGrace time.Duration
	// Lease is how long a call that is being canceled may be silent before it is given up. A third of it is the pace of
	// Running reports. Default the phase's lease, as the owner of its record says it with each report.
	Lease time.Duration
	// CheckEvery is how often a long call is checked against the present state of its resource, to end it when it is no
	// longer wanted (Resource.Context). Default a third of Lease.
	CheckEvery time.Duration
	// Drain, if set, ends Serve without an end to ctx: once it is closed nothing more is begun, and Serve returns when
	// the calls that are out have ended, however long that takes.
	Drain <-chan struct{}
	// Log is where the SDK logs. Default none.
	Log *zap.Logger
	// Observe, if set, is told of every settled hand-out. It must not block.
	Observe func(Answer)
}

// Answer is what became of one hand-out.
type Answer struct {
	Phase   bus.Phase
	Outcome resource.Outcome // 0: it was left for redelivery, or was malformed
	// Took is from the begin of the call, or of its refusal, until the answer was settled.
	Took time.Duration
}

// Handler carries out a phase for a batch. It must return soon after ctx ends: Serve waits for it.
type Handler func(ctx context.Context, batch *Batch) error

// complete fills in the defaults.
func (o Options) complete() (Options, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	wait := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Batch, defaultBatch)
	def(&o.BatchBytes, defaultBatchBytes)
	def(&o.Concurrency, defaultFlight)
	wait(&o.FetchWait, defaultFetchWait)
	wait(&o.BindEvery, defaultBindEvery)
	wait(&o.StopGrace, defaultStopGrace)
	if o.StopGrace < 0 {
		o.StopGrace = 0
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Observe == nil {
		o.Observe = func(Answer) {}
	}
	if o.Worker == "" {
		o.Worker = "worker-" + rand.Text()
	}
	switch {
	case len(o.Worker) > phase.WorkerBytesMax:
		return o, fmt.Errorf("plugin: Worker has more than %d bytes", phase.WorkerBytesMax)
	case o.Batch < 1 || o.Batch > BatchMax:
		return o, fmt.Errorf("plugin: Batch is %d, not 1 to %d", o.Batch, BatchMax)
	case o.BatchBytes < BatchBytesMin || o.BatchBytes > BatchBytesMax:
		return o, fmt.Errorf("plugin: BatchBytes is %d, not %d to %d", o.BatchBytes, BatchBytesMin, BatchBytesMax)
	case o.Concurrency < 1 || o.Concurrency > ConcurrencyMax:
		return o, fmt.Errorf("plugin: Concurrency is %d, not 1 to %d", o.Concurrency, ConcurrencyMax)
	case o.FetchWait < 0 || o.BindEvery < 0 || o.Lease < 0 || o.CheckEvery < 0:
		return o, errors.New("plugin: a duration is negative")
	}
	if o.Limit != nil {
		o.Batch = min(o.Batch, o.Limit.most)
	}
	return o, nil
}

// Serve hands out the work of one phase to handle until ctx ends, and then waits for the calls that are out (see
// Options.StopGrace and Options.Drain). It waits for a phase that has no consumer yet, and for one that was removed. It returns nil when
// ctx ended, and an error if the options are not valid, the bus was closed, or its server forbids to pull.
func Serve(ctx context.Context, b bus.Bus, ph bus.Phase, opts Options, handle Handler) error {
	return ServeKinds(ctx, b, []bus.Phase{ph}, opts, handle)
}

// ServeKinds is Serve for a phase that several kinds have: phases are of one project and one name, at most KindsMax. A call
// has the resources of all kinds that wait (seed 003, "ResourceType": "the type or types of resources this plugin handles").
//
// One call is out at a time over all kinds, unless all of their blueprints allow more. A worker holds the phase of every kind
// that has it, in the order of the kinds' names, and calls nothing before; so workers of the same phase should serve the same
// kinds: one that serves fewer keeps the others waiting, as long as it holds one of theirs.
func ServeKinds(ctx context.Context, b bus.Bus, phases []bus.Phase, opts Options, handle Handler) error {
	opts, err := opts.complete()
	if err != nil {
		return err
	}
	phases, err = inOrder(phases)
	if err != nil {
		return err
	}
	// Calls and answers outlive ctx, each by its own grace.
	answering, stopAnswering := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAnswering()
	working, stopWorking := context.WithCancel(answering)
	defer stopWorking()
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	s := &server{
		Options: opts, bus: b, handle: handle,
		ctx: ctx, stopping: stopping, working: working, answering: answering,
		slots: NewLimit(opts.Concurrency), specs: newSpecs(SpecsBytesMax),
		out: map[resource.Fence]*Resource{}, answered: newAnswered(answeredMax),
		log:   opts.Log.With(zap.String("project", phases[0].Project), zap.String("phase", phases[0].Phase)),
		holds: holds{bell: newBell()},
	}
	for _, ph := range phases {
		l := &line{phase: ph, log: s.log.With(zap.String("kind", ph.Kind)), asks: make(chan ask, 1)}
		l.hold = s.holds.add(newHold(b, ph, opts.Worker, l.log))
		s.lines = append(s.lines, l)
	}
	idle := make(chan struct{})
	var keeping sync.WaitGroup
	keeping.Go(func() { s.keep(idle) })
	for _, l := range s.lines {
		keeping.Go(func() {
			l.hold.keep(context.WithoutCancel(ctx), idle, func() (resources, canceling int) { return s.inCalls(l) })
		})
	}
	go func() {
		select {
		case <-opts.Drain:
			stop()
		case <-stopping.Done():
		}
	}()
	err = s.fetch(stopping)
	stop()

	done := make(chan struct{})
	go func() {
		defer close(done)
		s.calls.Wait()
	}()
	if err == nil {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	after(done, opts.StopGrace, stopWorking)
	after(done, AnswerGrace, stopAnswering)
	<-done
	close(idle)
	keeping.Wait()
	return err
}

// inOrder returns the phases in the order of their kinds, once each.
func inOrder(phases []bus.Phase) ([]bus.Phase, error) {
	if len(phases) == 0 || len(phases) > KindsMax {
		return nil, fmt.Errorf("plugin: a phase of %d kinds, not 1 to %d", len(phases), KindsMax)
	}
	for _, ph := range phases {
		if ph.Project != phases[0].Project || ph.Phase != phases[0].Phase {
			return nil, fmt.Errorf("plugin: %s/%s and %s/%s are not the same phase", phases[0].Project, phases[0].Phase, ph.Project, ph.Phase)
		}
	}
	sorted := slices.SortedFunc(slices.Values(phases), func(a, b bus.Phase) int { return strings.Compare(a.Kind, b.Kind) })
	return slices.Compact(sorted), nil
}

// after waits for done, and calls stop if that takes longer than grace.
func after(done <-chan struct{}, grace time.Duration, stop func()) {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		stop()
	}
}
