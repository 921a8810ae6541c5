// Package process runs a program in a process group of its own, so that all of it can be ended, and ends it with the
// process that started it (on Linux). The runner's scripts and `drover plugin exec` stand on it.
//
// # Not covered
//
// A process that is killed takes its programs with it (on Linux), but not what those have started; and a child that has
// left the group (setsid) outlives the group's end. Both need control groups, which need rights that we may not have.
package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// outputGrace is how long output is read on after the program has ended.
const outputGrace = 500 * time.Millisecond

// Program is one run of one program. Its fields are set before Run, which is called once.
type Program struct {
	// Command is the program, as a path or as a name that is found in PATH, and its arguments.
	Command []string
	// Env is all of its environment.
	Env []string
	// Dir is the folder that it runs in; empty: the present one.
	Dir string
	// Stdin is what it reads. Run closes it, once the program has its own. Nil: nothing.
	Stdin *os.File
	// Grace is the time between SIGTERM and SIGKILL, by the cause of the end.
	Grace func(cause error) time.Duration
	// Stdout and Stderr are given its output, each in a goroutine of its own. What one of them leaves unread is read
	// and dropped, so that the program is not held up.
	Stdout, Stderr func(io.Reader)
}

// Run starts the program and waits for it, and for Stdout and Stderr to return. Where ctx ends first, the whole group is
// told to end, and made to after the grace; the error is then ctx's cause. A program that has ended by itself leaves its
// group alone: what it started may stay.
func (p *Program) Run(ctx context.Context) (*os.ProcessState, error) {
	// The kernel sends the parent-death signal when the thread that started the child ends, not the process. So this
	// thread is kept until the child is gone.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.Command(p.Command[0], p.Command[1:]...) //nolint:noctx // ctx must end the group, not the program alone: see end
	cmd.Env, cmd.Dir = p.Env, p.Dir
	cmd.SysProcAttr = groupAttributes()
	if p.Stdin != nil {
		cmd.Stdin = p.Stdin
		defer p.Stdin.Close() // a second time, where it started
	}
	// Own pipes: exec's would have Wait depend on whoever inherited them, and a program that stays inherits them.
	var readers sync.WaitGroup
	var pipes []*os.File
	var sources []*source
	closeAll := func() {
		for _, f := range pipes {
			_ = f.Close() // read ends, or ends of a program that did not start
		}
	}
	for _, stream := range []struct {
		read func(io.Reader)
		file *io.Writer
	}{{p.Stdout, &cmd.Stdout}, {p.Stderr, &cmd.Stderr}} {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("pipe: %w", err)
		}
		pipes = append(pipes, r)
		*stream.file = w
		defer w.Close() // a second time, where it started
		source := &source{file: r}
		sources = append(sources, source)
		readers.Go(func() {
			stream.read(source)
			_, _ = io.Copy(io.Discard, source) // until the end, or until it is closed
		})
	}
	err := cmd.Start()
	for _, w := range []io.Writer{cmd.Stdout, cmd.Stderr} {
		_ = w.(*os.File).Close() // the child has its own
	}
	if err != nil {
		closeAll()
		readers.Wait()
		return nil, err
	}
	if p.Stdin != nil {
		_ = p.Stdin.Close() // the child has its own
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		readers.Wait()
	}()
	exited := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-exited:
		case <-ctx.Done():
			end(cmd.Process.Pid, p.Grace(context.Cause(ctx)), exited, drained)
		}
	}()
	reap := awaitExit(cmd)
	close(exited)
	<-ended
	waitErr := reap()
	await(drained, sources)
	closeAll()
	<-drained
	if ctx.Err() != nil {
		return cmd.ProcessState, context.Cause(ctx)
	}
	var exit *exec.ExitError
	if waitErr != nil && !errors.As(waitErr, &exit) {
		return cmd.ProcessState, waitErr
	}
	return cmd.ProcessState, nil
}

// await waits until all output was read, or nobody has anything more to read: someone else holds the pipes and stays.
func await(drained <-chan struct{}, sources []*source) {
	patience := time.NewTicker(outputGrace)
	defer patience.Stop()
	for {
		select {
		case <-drained:
			return
		case <-patience.C:
			if !slices.ContainsFunc(sources, func(s *source) bool { return s.busy.Load() }) {
				return
			}
		}
	}
}

// source is the read end of a pipe.
type source struct {
	file *os.File
	busy atomic.Bool // what was read last is being looked at
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	s.busy.Store(false)
	n, err := s.file.Read(p)
	s.busy.Store(err == nil)
	return n, err
}

// end asks the group to end, and kills what is left of it after the grace, or when the program itself and all who held
// its pipes are gone.
func end(pid int, patience time.Duration, exited, drained <-chan struct{}) {
	_ = syscall.Kill(-pid, syscall.SIGTERM) // ESRCH: it is gone
	grace := time.NewTimer(patience)
	defer grace.Stop()
	for exited != nil || drained != nil {
		select {
		case <-exited:
			exited = nil
		case <-drained:
			drained = nil
		case <-grace.C:
			exited, drained = nil, nil
		}
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL) // ESRCH: it is gone
}

// Lines is a reader of output that hands on its lines, with their ends, each of at most bytesMax bytes; what is over is
// dropped, and the line marked as cut. A line is good until each returns.
func Lines(bytesMax int, each func(line []byte, cut bool)) func(io.Reader) {
	return func(r io.Reader) {
		in := bufio.NewReaderSize(r, bytesMax)
		for {
			line, err := in.ReadSlice('\n')
			cut := errors.Is(err, bufio.ErrBufferFull)
			if len(line) > 0 {
				each(line, cut)
			}
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = in.ReadSlice('\n')
			}
			if err != nil {
				return // end of file, or closed
			}
		}
	}
}
