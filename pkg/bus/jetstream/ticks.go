package jetstream

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

// OnTick implements bus.Time.
func (b *Bus) OnTick(t bus.Tick, each func(at time.Time)) (func(), error) {
	if _, ok := schedules[t]; !ok {
		return nil, fmt.Errorf("no such tick: %q", t)
	}
	subject := "drover.ticked." + string(t)
	sub, err := b.nc.Subscribe(subject, func(m *nats.Msg) {
		if at, err := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp")); err == nil {
			each(at)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("tick %s: %w", t, b.explain(err))
	}
	stop := sync.OnceFunc(func() { _ = sub.Unsubscribe() }) // fails only if the connection is closed
	if err := b.subscribed(subject); err != nil {
		stop()
		return nil, fmt.Errorf("tick %s: %w", t, err)
	}
	return stop, nil
}
