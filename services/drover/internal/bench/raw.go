package bench

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
)

const (
	rawStream   = "DROVER_BENCH_RAW"
	rawMessages = 60_000
	rawFor      = 4 * time.Second // or so long, where the disk is slow
	rawPending  = 4_000           // asynchronous publishes without an answer
)

type rawFigure struct {
	perSecond float64
	bytes     int
}

// measureRaw publishes messages of the mean size of an event to a stream of its own, asynchronously, as fast as the
// server takes them: what any user of JetStream could do at best.
// The stream has as many replicas as EVENTS.
func measureRaw(ctx context.Context, o jetstream.Options, say func(string, ...any)) (figure rawFigure, err error) {
	nc, err := jetstream.Dial(ctx, o)
	if err != nil {
		return rawFigure{}, err
	}
	defer nc.Close()
	js, err := natsjs.New(nc, natsjs.WithPublishAsyncMaxPending(rawPending))
	if err != nil {
		return rawFigure{}, err
	}
	events, err := js.Stream(ctx, "EVENTS")
	if err != nil {
		return rawFigure{}, err
	}
	info, err := events.Info(ctx)
	if err != nil {
		return rawFigure{}, err
	}
	size := 300
	if info.State.Msgs > 0 {
		size = int(info.State.Bytes / info.State.Msgs)
	}
	if _, err := js.CreateStream(ctx, natsjs.StreamConfig{
		Name: rawStream, Subjects: []string{bus.BenchSubjects}, Storage: natsjs.FileStorage, Replicas: info.Config.Replicas,
	}); err != nil {
		return rawFigure{}, err
	}
	defer func() { // also where the measurement was interrupted
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, js.DeleteStream(ctx, rawStream))
	}()
	say("raw JetStream, messages of %d bytes", size)
	// One subject for each of 10,000 resources, as in the log.
	subjects := make([]string, 10_000)
	for i := range subjects {
		subjects[i] = strings.ReplaceAll(bus.BenchSubjects, "*", strconv.Itoa(i))
	}
	body := make([]byte, max(1, size-100)) // the rest is subject and headers
	began := time.Now()
	n := 0
	for ; n < rawMessages && time.Since(began) < rawFor; n++ {
		if _, err := js.PublishAsync(subjects[n%len(subjects)], body, natsjs.WithStallWait(time.Minute)); err != nil {
			return rawFigure{}, err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return rawFigure{}, ctx.Err()
	}
	took := time.Since(began)
	return rawFigure{perSecond: float64(n) / took.Seconds(), bytes: size}, nil
}
