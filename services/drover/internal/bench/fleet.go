package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/services/intake"
	"github.com/droverproject/drover/services/lifecycle"
	"github.com/droverproject/drover/services/notifier"
	"github.com/droverproject/drover/services/orchestrator"
)

// Roles of the processes that are measured. This program starts itself again in each of them.
const (
	roleUp       = "up" // server and services in one process, as in drover up
	roleServer   = "server"
	roleServices = "services"
	roleWorker   = "worker"
	roleDeployer = "deployer" // the worker of trees
)

// EnvRole tells a process of this program that it is one of a benchmark's; Child then is its whole life.
const EnvRole = "DROVER_BENCH_ROLE"

// fleet is the processes of one measurement.
type fleet struct {
	url       string
	processes map[string]*exec.Cmd
	pipes     map[string]io.Closer // closing them ends the processes
}

func newFleet() *fleet {
	return &fleet{processes: map[string]*exec.Cmd{}, pipes: map[string]io.Closer{}}
}

// startFleet starts server, services and a worker, in this order.
func startFleet(ctx context.Context, dir, sync string, apart bool, worker string, args ...string) (*fleet, error) {
	f := newFleet()
	first := roleUp
	if apart {
		first = roleServer
	}
	url, err := f.start(ctx, first, filepath.Join(dir, "data"), sync)
	f.url = url
	if err == nil && apart {
		_, err = f.start(ctx, roleServices, url, sync)
	}
	if err == nil {
		_, err = f.start(ctx, worker, append([]string{url}, args...)...)
	}
	if err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// start starts one process and waits for the line that says it is ready.
func (f *fleet) start(ctx context.Context, role string, args ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), EnvRole+"="+role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C reaches this process, which ends them in order
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	f.processes[role] = cmd
	f.pipes[role] = in
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(out).ReadString('\n') // an empty line says that it died
		line <- strings.TrimSpace(text)
		_, _ = io.Copy(io.Discard, out)
	}()
	select {
	case text := <-line:
		if text == "" {
			return "", fmt.Errorf("%s did not start", role)
		}
		return text, nil
	case <-time.After(30 * time.Second):
		return "", fmt.Errorf("%s was not ready in 30 s", role)
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// stop ends the processes, the last one first, and waits for each.
func (f *fleet) stop() {
	for _, role := range []string{roleWorker, roleDeployer, rolePlugin, roleServices, roleServer, roleUp, roleMachines} {
		f.end(role)
	}
}

// end ends one process, if it is there, and waits for it.
func (f *fleet) end(role string) {
	cmd := f.processes[role]
	if cmd == nil {
		return
	}
	delete(f.processes, role)
	_ = f.pipes[role].Close() // the process sees the end of its standard input
	kill := time.AfterFunc(15*time.Second, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	kill.Stop()
}

// ticksPerSecond is the kernel's USER_HZ, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// cpu is the CPU seconds that each process has used, this one included as "load".
func (f *fleet) cpu() map[string]float64 {
	used := map[string]float64{"load": cpuOf(os.Getpid())}
	for role, cmd := range f.processes {
		used[role] = cpuOf(cmd.Process.Pid)
	}
	return used
}

func cpuOf(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return float64(user+system) / ticksPerSecond
}

// memory is the resident memory of each process, in MiB.
func (f *fleet) memory() map[string]int {
	used := map[string]int{}
	for role, cmd := range f.processes {
		statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", cmd.Process.Pid))
		if err != nil {
			continue
		}
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			pages, _ := strconv.Atoi(fields[1])
			used[role] = pages * os.Getpagesize() >> 20
		}
	}
	return used
}

// peak is the most resident memory that each process has had so far, in MiB.
func (f *fleet) peak() map[string]int {
	most := map[string]int{}
	for role, cmd := range f.processes {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(status), "VmHWM:")
		if fields := strings.Fields(rest); len(fields) > 0 {
			kib, _ := strconv.Atoi(fields[0])
			most[role] = kib >> 10
		}
	}
	return most
}

// Child is the life of one of the processes: it prints a line when it is ready, and ends with its standard input.
func Child(role string, args []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if role != roleUp { // a process of its own is tuned as its main does it
		host.TuneCollector()
	}
	heap, stopProfile, err := profile(role)
	if err == nil {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			heap()
			cancel()
		}()
		switch role {
		case roleUp:
			err = childUp(ctx, args)
		case roleMachines:
			err = childMachines(ctx, args)
		case roleServer:
			err = childServer(ctx, args)
		case roleServices:
			err = childServices(ctx, args)
		case roleWorker:
			err = childWorker(ctx, args)
		case roleDeployer:
			err = childDeployer(ctx, args)
		case rolePlugin:
			err = childPlugin(ctx, args)
		default:
			err = fmt.Errorf("unknown role %q", role)
		}
		stopProfile()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "drover bench %s: %v\n", role, err)
		return 1
	}
	return 0
}

func server(args []string) (*natsd.Server, error) {
	if len(args) != 2 {
		return nil, errors.New("a folder and a sync mode are needed")
	}
	return natsd.Start(natsd.Options{StoreDir: args[0], Port: -1, SyncAlways: args[1] == "always"})
}

func childServer(ctx context.Context, args []string) error {
	s, err := server(args)
	if err != nil {
		return err
	}
	fmt.Println(s.ClientURL())
	<-ctx.Done()
	return s.Shutdown()
}

func childUp(ctx context.Context, args []string) error {
	s, err := server(args)
	if err != nil {
		return err
	}
	err = runServices(ctx, jetstream.Options{InProcess: s, Partitions: partitions, Sync: args[1]}, s.ClientURL())
	return errors.Join(err, s.Shutdown())
}

func childServices(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("a URL and a sync mode are needed")
	}
	return runServices(ctx, jetstream.Options{URL: args[0], Partitions: partitions, Sync: args[1]}, "ready")
}

// named is one more service.
type named struct {
	name string
	run  func(context.Context, *host.Host, bus.Bus) error
}

// runServices runs them until ctx ends, and prints a line when the streams are there.
func runServices(ctx context.Context, o jetstream.Options, line string, more ...named) error {
	services := map[string]func(context.Context, *host.Host, bus.Bus) error{
		"intake": intake.Run, "orchestrator": orchestrator.Run, "lifecycle": lifecycle.Run, "notifier": notifier.Run,
	}
	for _, s := range more {
		services[s.name] = s.run
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(services))
	ready := make(chan struct{}, len(services))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for name, run := range services {
		wg.Go(func() {
			o := o
			o.Name = name
			b, err := jetstream.Connect(ctx, o)
			if err != nil {
				errs <- err
				return
			}
			defer func() { _ = b.Close() }()
			if _, err := b.Setup(ctx, false); err != nil {
				errs <- err
				return
			}
			ready <- struct{}{}
			h := host.New(host.Options{Name: name})
			errs <- h.Run(ctx, func(ctx context.Context, h *host.Host) error { return run(ctx, h, b) })
		})
	}
	for range services {
		select {
		case <-ready:
		case err := <-errs:
			cancel()
			wg.Wait()
			return err
		}
	}
	fmt.Println(line)
	wg.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return all
}

// childWorker is an external worker over NATS.
func childWorker(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("a URL and a size are needed")
	}
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	return connected(ctx, args[:1], func(b bus.Bus) { workUnits(ctx, b, size) })
}

// workUnits completes every phase of units at once, until ctx ends. The first one gives the state its size.
func workUnits(ctx context.Context, b bus.Bus, size int) {
	pad := strings.Repeat("x", size)
	work(ctx, b, kind, append(append([]string{}, there...), back...), func(phase string, batch *plugin.Batch, r *plugin.Resource) error {
		if phase == there[0] {
			if err := r.SetAttribute("pad", pad); err != nil {
				return err
			}
		}
		batch.Completed(r)
		return nil
	})
}

// connected connects to the URL that is the one argument, and says that it is ready.
func connected(ctx context.Context, args []string, do func(bus.Bus)) error {
	if len(args) != 1 {
		return errors.New("a URL is needed")
	}
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: args[0], Name: "worker"})
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	fmt.Println("ready")
	do(b)
	return nil
}

// work serves phases of a kind until ctx ends.
func work(ctx context.Context, b bus.Bus, kind string, phases []string, each func(phase string, batch *plugin.Batch, r *plugin.Resource) error) {
	var wg sync.WaitGroup
	for _, phase := range phases {
		wg.Go(func() {
			_ = plugin.Serve(ctx, b, bus.Phase{Project: project, Kind: kind, Phase: phase}, plugin.Options{}, func(_ context.Context, batch *plugin.Batch) error {
				for _, r := range batch.Resources() {
					if err := each(phase, batch, r); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
}
