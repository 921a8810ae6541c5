package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/wire"
)

// SystemOptions of RunSystem. Zero values mean the defaults.
type SystemOptions struct {
	// User is who sends the commands, reads the buckets, and publishes raw messages; Worker is who carries the phases out.
	User, Worker jetstream.Options
	InFlight     int           // jobs at once, each of a resource of its own. Default 200
	For          time.Duration // how long the steady measurement lasts. Default 8 s
	Idle         int           // jobs of one idle resource that are timed. Default 100
	StateBytes   int           // of attributes in each state. Default 300
	// Progress is told what is being measured. Nil: nobody.
	Progress func(line string)
}

func (o SystemOptions) withDefaults() SystemOptions {
	fillIn(map[*int]int{&o.InFlight: 200, &o.Idle: 100, &o.StateBytes: 300}, &o.For, &o.Progress)
	return o
}

// SystemReport is what was measured of a system that is there.
type SystemReport struct {
	Version    string `json:"version"`
	Server     string `json:"server"` // version of nats-server
	Replicas   int    `json:"replicas"`
	Partitions int    `json:"partitions"`
	InFlight   int    `json:"inFlight"`
	StateBytes int    `json:"stateBytes"`

	SteadyPhases float64 `json:"steadyPhasesPerSecond"`
	IdleP50      Millis  `json:"idleP50Ms"` // a job of three phases, from the request to its end in the feed
	IdleP99      Millis  `json:"idleP99Ms"`
	Lost         int     `json:"feedLost"`

	// Raw JetStream: an asynchronous publish of messages of EventBytes to a stream of as many replicas. 0 where it may not
	// be measured; NoRaw then says why.
	RawMessages float64 `json:"rawMessagesPerSecond"`
	SteadyRatio float64 `json:"steadyRatio"`
	EventBytes  int     `json:"eventBytes"`
	NoRaw       string  `json:"noRaw,omitempty"`
}

// systemCleanup is how long the removal of what was made may take.
const systemCleanup = 2 * time.Minute

// RunSystem measures the system that the options name, as its users and workers meet it. It makes resources of kind unit in
// project bench, and removes them, also where it is interrupted. Their blueprint stays: it would be in the way of the next run
// until it is gone.
func RunSystem(ctx context.Context, o SystemOptions) (r SystemReport, err error) {
	o = o.withDefaults()
	say := func(format string, args ...any) { o.Progress(fmt.Sprintf(format, args...)) }
	user, err := jetstream.Connect(ctx, o.User)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, user.Close()) }()
	worker, err := jetstream.Connect(ctx, o.Worker)
	if err != nil {
		return r, fmt.Errorf("worker: %w", err)
	}
	defer func() { err = errors.Join(err, worker.Close()) }()
	server, err := user.Server(ctx)
	if err != nil {
		return r, err
	}
	r = SystemReport{Server: server.Version, Replicas: user.Replicas(), Partitions: user.Partitions(), InFlight: o.InFlight, StateBytes: o.StateBytes}

	l, err := newLoad(user)
	if err != nil {
		return r, err
	}
	defer l.stop()
	l.run = rand.Text() + "-"
	if err := l.apply(ctx, "Blueprint", kind, blueprintJSON, "blueprint"); err != nil {
		return r, err
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx)) // it carries out the deletion, too
	var workers sync.WaitGroup
	workers.Go(func() { workUnits(working, worker, o.StateBytes) })
	defer func() {
		say("removing %d resources", o.InFlight)
		err = errors.Join(err, l.remove(context.WithoutCancel(ctx), o.InFlight))
		stop()
		workers.Wait()
	}()
	say("creating %d resources", o.InFlight)
	if err := l.create(ctx, o.InFlight); err != nil {
		return r, err
	}
	say("one idle resource")
	times, err := l.idle(ctx, o.Idle)
	if err != nil {
		return r, err
	}
	r.IdleP50, r.IdleP99 = millis(quantile(times, 0.50)), millis(quantile(times, 0.99))
	say("%d in flight for %s", o.InFlight, o.For)
	jobs, took, err := l.steady(ctx, o.InFlight, o.For)
	if err != nil {
		return r, err
	}
	r.SteadyPhases, r.Lost = math.Round(float64(jobs*phasesEach)/took.Seconds()), int(l.lost.Load())
	raw, err := measureRaw(ctx, o.User, say)
	if err != nil {
		if ctx.Err() != nil {
			return r, err
		}
		r.NoRaw = err.Error()
		return r, nil
	}
	r.RawMessages, r.EventBytes, r.SteadyRatio = math.Round(raw.perSecond), raw.bytes, round(r.SteadyPhases/raw.perSecond)
	return r, nil
}

// remove deletes the resources that create has made.
func (l *load) remove(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, systemCleanup)
	defer cancel()
	return parallel(128, min(n, len(l.place)), func(i int) error {
		c := make(chan string, 1)
		if err := l.command(ctx, kind, unit(i), "delete", "delete", wire.Command{}, c); err != nil {
			return err
		}
		select {
		case <-c:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%s is not deleted after %s", unit(i), systemCleanup)
		}
	})
}
