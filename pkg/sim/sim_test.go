package sim_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/droverproject/drover/pkg/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Environment of long runs and of replays; see docs/testing.md.
const (
	seedsVariable = "DROVER_SIM_SEEDS" // number of fresh seeds
	forVariable   = "DROVER_SIM_FOR"   // how long to run fresh seeds, such as 1h
	seedVariable  = "DROVER_SIM_SEED"  // one seed, whose trace is printed
)

// TestFixedSeeds runs the same seeds every time, so that a change that breaks one is seen by whoever makes it.
func TestFixedSeeds(t *testing.T) {
	t.Parallel()
	if chosen() {
		t.Skip("another run was chosen")
	}
	var next atomic.Uint64
	run(t, func() (uint64, bool) { n := next.Add(1); return n - 1, n <= 60 })
}

// TestFreshSeeds runs seeds that nobody has run before, or the one that is asked for.
func TestFreshSeeds(t *testing.T) {
	t.Parallel()
	if v := os.Getenv(seedVariable); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		require.NoError(t, err)
		if r := sim.Run(seed, os.Stdout); r.Violation != "" {
			t.Fatalf("seed %d: %s", seed, r.Violation)
		}
		return
	}
	first, seeds, until := rand.Uint64()>>16, uint64(30), time.Time{}
	if v := os.Getenv(seedsVariable); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		require.NoError(t, err)
		seeds = n
	}
	if v := os.Getenv(forVariable); v != "" {
		d, err := time.ParseDuration(v)
		require.NoError(t, err)
		until, seeds = time.Now().Add(d), 1<<62
	}
	t.Logf("seeds from %d", first)
	var next atomic.Uint64
	run(t, func() (uint64, bool) {
		n := next.Add(1)
		return first + n - 1, n <= seeds && (until.IsZero() || time.Now().Before(until))
	})
}

func chosen() bool {
	return os.Getenv(seedsVariable)+os.Getenv(forVariable)+os.Getenv(seedVariable) != ""
}

// failuresMax ends a run: more failures say nothing more.
const failuresMax = 10

// run runs seeds on all processors, each world on one goroutine, and reports what was covered.
func run(t *testing.T, next func() (seed uint64, more bool)) {
	began := time.Now()
	var mu sync.Mutex
	var years float64
	var seeds, appends, jobs, events, failures int
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for {
				seed, more := next()
				mu.Lock()
				enough := failures >= failuresMax
				mu.Unlock()
				if !more || enough {
					return
				}
				r := sim.Run(seed, nil)
				mu.Lock()
				years += r.Simulated.Hours() / (365 * 24)
				seeds, appends, jobs, events = seeds+1, appends+r.Appends, jobs+r.Jobs, events+r.Events
				if r.Violation != "" {
					failures++
					t.Errorf("seed %d: %s\n%s\nreplay: %s=%d go test ./sim -run TestFreshSeeds -v", seed, r.Violation, tail(seed), seedVariable, seed)
				}
				if chosen() && seeds%20_000 == 0 {
					fmt.Fprintf(os.Stderr, "%d seeds, %d failures, %s\n", seeds, failures, time.Since(began).Round(time.Second))
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	took := time.Since(began)
	report := fmt.Sprintf("%d seeds in %s: %.0f seeds/h, %.2f simulated years, %d events, %d appends to the log, %d jobs, %d failures",
		seeds, took.Round(time.Millisecond), float64(seeds)/took.Hours(), years, events, appends, jobs, failures)
	t.Log(report)
	if chosen() {
		fmt.Fprintln(os.Stderr, report)
	}
}

// tail is the end of a seed's trace.
func tail(seed uint64) string {
	var trace bytes.Buffer
	sim.Run(seed, &trace)
	lines := strings.Split(strings.TrimSpace(trace.String()), "\n")
	for i, l := range lines {
		if len(l) > 400 {
			lines[i] = l[:400] + "…"
		}
	}
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// TestTheSameSeedIsTheSameHistory: every failure can be looked at again.
func TestTheSameSeedIsTheSameHistory(t *testing.T) {
	t.Parallel()
	hashes := map[uint64]bool{}
	for seed := range uint64(6) {
		a := sim.Run(seed, nil)
		var told bytes.Buffer
		b := sim.Run(seed, &told) // whoever listens changes nothing
		require.Equal(t, a, b, "seed %d", seed)
		require.NotEmpty(t, told.String())
		hashes[a.Hash] = true
	}
	require.Len(t, hashes, 6, "different seeds are different histories")
}
