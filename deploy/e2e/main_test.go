package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

// bin is the folder of the programs, which TestMain builds once for all tests.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "drover-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	// These tests mostly wait for processes: four at once are no more work for a processor than two.
	if err := flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build makes the programs as `make build` does, so that it finds in the cache what that has compiled. Each in its own
// module, so that it works with go.work and without.
func build(into string) error {
	if os.Getenv(containersVariable) != "" { // the programs are in images
		return compile(into, "", [][2]string{{".", "./cmd/witness"}, {"../../services/drover", "./cmd/drover"}})
	}
	return compile(into, "", append(services, [2]string{".", "github.com/nats-io/nats-server/v2"}, [2]string{".", "./cmd/witness"},
		[2]string{".", "./cmd/deployer"}, [2]string{"../../examples/services", "./cmd/module"}))
}

// buildNext makes the services of the pretended next version (pkg/drive/rules_next.go), in the folder next.
var buildNext = sync.OnceValue(func() error { return compile(filepath.Join(bin, "next"), "drover_next", services) })

// services are the modules and mains of what a house runs.
var services = [][2]string{
	{"../../services/intake", "./cmd/drover-intake"}, {"../../services/orchestrator", "./cmd/drover-orchestrator"},
	{"../../services/lifecycle", "./cmd/drover-lifecycle"}, {"../../services/notifier", "./cmd/drover-notifier"},
	{"../../services/runner", "./cmd/drover-runner"}, {"../../services/gateway", "./cmd/drover-gateway"},
}

func compile(into, tags string, programs [][2]string) error {
	for _, p := range programs {
		name := filepath.Base(p[1])
		if name == "v2" {
			name = "nats-server"
		}
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", tags,
			"-o", filepath.Join(into, name), p[1])
		cmd.Dir, cmd.Env = p[0], append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
}
