package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// points are the named places at which a process of a service may die; each names what it is about to do, or has just
// done (host.CrashPoint).
var points = map[string][]string{
	"orchestrator": {"orchestrator.before-append", "orchestrator.after-append", "orchestrator.before-ack", "orchestrator.before-reply"},
	"intake":       {"intake.before-ack", "intake.before-reply"},
	"runner":       {"runner.before-result", "runner.after-result"},
}

// killer ends processes of a house, as kill -9 does, in an order that its seed fixes. Whoever was killed is started
// again after a moment.
type killer struct {
	h      *house
	random *rand.Rand
	armed  map[string]int // by service: how many of its runs were armed
}

const (
	downMax  = 400 * time.Millisecond // that a service is left dead
	pauseMax = 600 * time.Millisecond // between two strokes
	nthMax   = 4                      // time that a crash point is met, at which it kills
	visitMax = 15 * time.Second       // for a process to come to its point
)

func newKiller(h *house, seed uint64) *killer {
	for i, p := range slices.Concat(h.services, h.servers) {
		// Each has its own chance, so that the killer's does not depend on when they die.
		random := rand.New(rand.NewPCG(seed, uint64(i)+1))
		p.slow(func() time.Duration { return time.Duration(random.Int64N(int64(downMax))) })
	}
	return &killer{h: h, random: rand.New(rand.NewPCG(seed, 0)), armed: map[string]int{}}
}

// run has a process die at each of the points, then kills at random until enough says so, and then has everything run
// again.
func (k *killer) run(ctx context.Context, enough func(deaths int) bool) {
	k.visit(ctx)
	for !enough(k.deaths()) {
		k.strike()
		if !pause(ctx, time.Duration(k.random.Int64N(int64(pauseMax)))) {
			break
		}
	}
	for _, p := range slices.Concat(k.h.services, k.h.servers) {
		p.calm()
	}
}

// visit has a process die at each of the points, one after another.
func (k *killer) visit(ctx context.Context) {
	for _, service := range slices.Sorted(maps.Keys(points)) {
		for i, point := range points[service] {
			all := k.h.service(service)
			p := all[i%len(all)]
			_, before, _ := p.deaths()
			p.kill(point + ":1")
			for end := time.Now().Add(visitMax); time.Now().Before(end); {
				if _, now, _ := p.deaths(); len(now) > len(before) || !pause(ctx, 10*time.Millisecond) {
					break
				}
			}
		}
	}
}

// strike kills one process, a few, the server, all services, or everything.
func (k *killer) strike() {
	switch n := k.random.IntN(100); {
	case n < 60:
		k.one()
	case n < 78:
		for range 2 + k.random.IntN(2) {
			k.one()
		}
	case n < 90:
		k.server()
	case n < 96:
		k.services()
	default:
		k.server()
		k.services()
	}
}

// one kills a service; the run after it may be armed with one of its points, in turn. One that is armed is mostly left
// to its point.
func (k *killer) one() {
	p := k.h.services[k.random.IntN(len(k.h.services))]
	arm, spare, nth := k.random.IntN(2) == 0, k.random.IntN(4) > 0, 1+k.random.IntN(nthMax)
	if spare && p.waits() {
		return
	}
	service, _, _ := strings.Cut(p.name, "-")
	point := ""
	if named := points[service]; len(named) > 0 && arm {
		point = fmt.Sprintf("%s:%d", named[k.armed[service]%len(named)], nth)
		k.armed[service]++
	}
	p.kill(point)
}

func (k *killer) server() { k.h.servers[k.random.IntN(len(k.h.servers))].kill("") }

func (k *killer) services() {
	var wg sync.WaitGroup
	for _, p := range k.h.services {
		wg.Go(func() { p.kill("") })
	}
	wg.Wait()
}

// deaths counts all of them.
func (k *killer) deaths() (n int) {
	for _, p := range slices.Concat(k.h.services, k.h.servers) {
		kills, crashes, _ := p.deaths()
		n += kills + len(crashes)
	}
	return n
}

// report says who died how often, and at which points.
func (k *killer) report(t *testing.T) {
	t.Helper()
	byPoint := map[string]int{}
	for _, p := range slices.Concat(k.h.services, k.h.servers) {
		kills, crashes, strange := p.deaths()
		for _, point := range crashes {
			name, _, _ := strings.Cut(point, ":")
			byPoint[name]++
		}
		t.Logf("%-16s killed %3d times, died at a point %2d times, ended otherwise: %v", p.name, kills, len(crashes), strange)
	}
	for _, name := range slices.Sorted(maps.Keys(byPoint)) {
		t.Logf("died at %-28s %d times", name, byPoint[name])
	}
	for _, named := range points {
		for _, name := range named {
			require.Positive(t, byPoint[name], "nobody has died at %s", name)
		}
	}
}
