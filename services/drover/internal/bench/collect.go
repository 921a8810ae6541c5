package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/plugin"
)

// rolePlugin is the worker of fleets.
const rolePlugin = "plugin"

// callsOf is what reached the plugin in one phase.
type callsOf struct {
	mu    sync.Mutex
	sizes []int
	times map[string]int // by resource and attempt
}

func (c *callsOf) note(batch *plugin.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sizes = append(c.sizes, len(batch.Resources()))
	for _, r := range batch.Resources() {
		c.times[fmt.Sprintf("%s %s %d", r.UID(), r.Job(), r.Attempt())]++
	}
}

func (c *callsOf) figure(phase string) CallFigure {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := CallFigure{Phase: phase, Calls: len(c.sizes)}
	for _, n := range c.sizes {
		f.Resources += n
		f.Largest = max(f.Largest, n)
	}
	slices.Sort(c.sizes)
	for seen, i := 0, len(c.sizes)-1; i >= 0 && 2*seen < f.Resources; i-- {
		seen += c.sizes[i]
		f.Median = c.sizes[i]
	}
	for _, n := range c.times {
		if n > 1 {
			f.Twice++
		}
	}
	return f
}

// childPlugin completes what it is given, in calls of all that wait, each of which lasts as long as it was told. In the end it
// writes its calls to a file.
func childPlugin(ctx context.Context, args []string) (err error) {
	if len(args) != 3 {
		return errors.New("a URL, a file and a duration are needed")
	}
	lasts, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: args[0], Name: "plugin"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	fmt.Println("ready")
	calls := make([]callsOf, len(there))
	var wg sync.WaitGroup
	for i, phase := range there {
		calls[i].times = map[string]int{}
		wg.Go(func() {
			// It ends with ctx, and there is nobody to be told of anything else.
			_ = plugin.Serve(ctx, b, bus.Phase{Project: project, Kind: kind, Phase: phase}, plugin.Options{Batch: plugin.BatchMax},
				func(ctx context.Context, batch *plugin.Batch) error {
					calls[i].note(batch)
					if lasts > 0 {
						if err := pause(ctx, lasts); err != nil {
							return err
						}
					}
					batch.Completed(batch.Resources()...)
					return nil
				})
		})
	}
	wg.Wait()
	figures := make([]CallFigure, len(there))
	for i, phase := range there {
		figures[i] = calls[i].figure(phase)
	}
	body, err := json.Marshal(figures)
	if err != nil {
		return err
	}
	return os.WriteFile(args[1], body, 0o600)
}
