package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// process is a program that is kept running: whatever ends it, it is started again, as a supervisor would, until stop.
// Safe for concurrent use.
//
// Or it is a container that several threads share, as one of them sees it: it is killed and started again, and counted is
// what this thread has killed. It knows no crash points, since a container's environment is what it was made with.
type process struct {
	name   string
	member *member // the container, else nil
	path   string
	args   []string
	log    string // file
	temp   string // folder for what it leaves behind when it is killed

	mu      sync.Mutex
	pid     int    // 0 while it is down
	killed  bool   // by kill, and not yet seen to be dead
	armed   string // crash point of the present run
	next    string // crash point of the next run
	delay   func() time.Duration
	stopped bool

	kills   int      // by kill
	crashes []string // the points at which it died
	strange []string // ends that nobody asked for
	ended   chan struct{}
	strikes sync.WaitGroup // kills of a container that are under way
}

// again is the pause before a program that has ended is started again, where no other is set.
const again = 50 * time.Millisecond

// start runs the program until stop.
func (p *process) start() error {
	run, err := p.spawn()
	if err != nil {
		return err
	}
	p.ended = make(chan struct{})
	go p.supervise(run)
	return nil
}

func (p *process) supervise(run *exec.Cmd) {
	defer close(p.ended)
	for {
		err := run.Wait()
		if !p.seen(err) {
			return
		}
		if run, err = p.spawn(); err != nil {
			p.mu.Lock()
			p.strange = append(p.strange, err.Error())
			p.mu.Unlock()
			return
		}
	}
}

// spawn starts the program in a process group of its own.
func (p *process) spawn() (*exec.Cmd, error) {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the program has its own
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = deathAttributes()
	cmd.Env = append(environment(), "TMPDIR="+p.temp)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.next = p.next, ""
	if p.armed != "" {
		cmd.Env = append(cmd.Env, "DROVER_CRASH_AT="+p.armed)
	}
	started := make(chan error, 1)
	spawner <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	p.pid, p.killed = cmd.Process.Pid, false
	if p.stopped { // meanwhile
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	}
	return cmd, nil
}

// environment is what a program sees of the tests' own: nothing that could be read as one of its flags.
func environment() (env []string) {
	for _, name := range []string{"PATH", "HOME", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// spawner starts all programs from one thread that never ends: the kernel sends the parent-death signal when the
// thread that started a child ends, not when the process does.
var spawner = func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
}()

// seen takes note of an end, and waits for the next start. It returns false after stop.
func (p *process) seen(err error) (more bool) {
	p.mu.Lock()
	_ = syscall.Kill(-p.pid, syscall.SIGKILL) // what it has left behind in its group
	p.pid = 0
	signaled := false
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status, ok := exit.Sys().(syscall.WaitStatus)
		signaled = ok && status.Signaled() && status.Signal() == syscall.SIGKILL
	}
	switch {
	case p.stopped:
	case p.killed:
		p.kills++
	case p.armed != "" && signaled:
		p.crashes = append(p.crashes, p.armed)
	default:
		end := "exit status 0"
		if err != nil {
			end = err.Error()
		}
		p.strange = append(p.strange, end)
	}
	delay, stopped := again, p.stopped
	if p.delay != nil {
		delay = p.delay()
	}
	p.mu.Unlock()
	if stopped {
		return false
	}
	time.Sleep(delay)
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.stopped
}

// kill ends it as kill -9 does. The run after it is armed with a crash point, where one is given and it knows them.
func (p *process) kill(point string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.member != nil {
		p.strike()
		return
	}
	if point != "" {
		p.next = point
	}
	if p.pid != 0 {
		p.killed = true
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	}
}

// strike kills a container and starts it again, unless that is under way. The lock must be held.
func (p *process) strike() {
	if p.killed || p.stopped {
		return
	}
	p.killed = true
	delay := again
	if p.delay != nil {
		delay = p.delay()
	}
	p.strikes.Go(func() {
		err := p.member.kill(delay)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.killed = false
		if err != nil {
			p.strange = append(p.strange, err.Error())
			return
		}
		p.kills++
	})
}

// up reports whether it runs: a container, whether it was started again after all kills that were asked for.
func (p *process) up() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid != 0 || p.member != nil && !p.killed
}

// slow sets how long it is left dead.
func (p *process) slow(down func() time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = down
}

// waits reports whether it is on its way to a crash point.
func (p *process) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed != "" && p.pid != 0
}

// calm has it run without delay and without a crash point: one that is armed is started again.
func (p *process) calm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.next = nil, ""
	if p.pid != 0 && p.armed != "" {
		p.killed = true
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	}
}

// stop ends it for good: with SIGTERM where gentle, else as kill -9 does.
func (p *process) stop(gentle bool) {
	p.mu.Lock()
	p.stopped = true
	if p.pid != 0 {
		signal := syscall.SIGKILL
		if gentle {
			signal = syscall.SIGTERM
		}
		_ = syscall.Kill(-p.pid, signal)
	}
	p.mu.Unlock()
	if p.member != nil {
		p.strikes.Wait() // it belongs to others too
		return
	}
	<-p.ended
}

// deaths is how often it was killed, at which crash points it died, and how else it ended.
func (p *process) deaths() (kills int, crashes, strange []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kills, p.crashes, p.strange
}
