package script

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// process is one program in a process group of its own.
type process struct {
	command []string
	env     []string
	dir     string
	// grace is the time between SIGTERM and SIGKILL, by the cause of the end.
	grace func(cause error) time.Duration
	// line is given each line of output, from two goroutines.
	line func(stream string, line []byte, cut bool)
}

// run starts the program and waits for it. Where ctx ends first, the whole group is told to end, and made to after
// the grace; the error is then ctx's cause. A program that has ended by itself leaves its group alone: what it started
// may stay.
func (p *process) run(ctx context.Context) (*os.ProcessState, error) {
	// The kernel sends the parent-death signal when the thread that started the child ends, not the process. So this
	// thread is kept until the child is gone.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.Command(p.command[0], p.command[1:]...) //nolint:noctx // ctx must end the group, not the program alone: see end
	cmd.Env, cmd.Dir = p.env, p.dir
	cmd.SysProcAttr = groupAttributes()
	// Own pipes: exec's would have Wait depend on whoever inherited them, and a program that stays inherits them.
	var readers sync.WaitGroup
	var pipes []*os.File
	closeAll := func() {
		for _, f := range pipes {
			_ = f.Close() // read ends, or ends of a program that did not start
		}
	}
	for _, stream := range []struct {
		name string
		file *io.Writer
	}{{"stdout", &cmd.Stdout}, {"stderr", &cmd.Stderr}} {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("pipe: %w", err)
		}
		pipes = append(pipes, r)
		*stream.file = w
		defer w.Close() // a second time, where it started
		readers.Go(func() { p.read(stream.name, r) })
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
			p.end(cmd.Process.Pid, p.grace(context.Cause(ctx)), exited, drained)
		}
	}()
	reap := awaitExit(cmd)
	close(exited)
	<-ended
	waitErr := reap()
	patience := time.NewTimer(outputGrace)
	defer patience.Stop()
	select {
	case <-drained:
	case <-patience.C: // someone else holds the pipes and stays
	}
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

// end asks the group to end, and kills what is left of it after the grace, or when the program itself and all who held
// its pipes are gone.
func (p *process) end(pid int, patience time.Duration, exited, drained <-chan struct{}) {
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

// read hands on lines of at most LineBytesMax bytes; what is over is dropped, and the line marked as cut.
func (p *process) read(stream string, r io.Reader) {
	in := bufio.NewReaderSize(r, LineBytesMax)
	for {
		line, err := in.ReadSlice('\n')
		cut := errors.Is(err, bufio.ErrBufferFull)
		if len(line) > 0 {
			p.line(stream, line, cut)
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		if err != nil {
			return // end of file, or closed
		}
	}
}
