//go:build unix

// Package process starts a node's process so that it outlives whoever started it, and ends it again, and no other.
//
// # Who is it?
//
// A process id in a file proves nothing: the process may be gone and its id another's. So the file is locked (package
// flock) by an open file that the process inherits: as long as the lock is held, the process lives, and the id in the file
// is its own. The id is written by the process itself, once it serves; so a starter that is killed half-way leaves
// nothing that could not be found again.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/droverproject/drover/examples/fleet/internal/flock"
)

// Files in a node's folder.
const (
	PIDFile = "pid"
	LogFile = "node.log" // what the process writes
)

// LockVariable names the environment variable that holds the number of the inherited file with the lock.
const LockVariable = "FLEET_LOCK_FD"

// Limits.
const (
	startTimeout = 20 * time.Second // from start until the process has said its id
	killTimeout  = 5 * time.Second  // from SIGKILL until the process is gone
	pause        = 5 * time.Millisecond
	tailBytesMax = 2 << 10 // bytes of the log in an error
)

// Launch starts a process in a session of its own and returns its id when it has said so by Announce. Where one runs in
// this folder already, it returns that one's id and true.
func Launch(ctx context.Context, folder string, command, env []string) (pid int, already bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	lock, pid, err := take(ctx, folder)
	if err != nil || lock == nil {
		return pid, err == nil, err
	}
	defer lock.Close() // the process has inherited it
	log, err := os.OpenFile(filepath.Join(folder, LogFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, false, err
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, false, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...) // it outlives the caller
	cmd.Dir, cmd.Env = folder, append(env, LockVariable+"=3")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, false, err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }() // in the short life of a script, it ends with the script
	for {
		if said, _ := readPID(folder); said == cmd.Process.Pid {
			return said, false, nil
		}
		select {
		case err := <-exited:
			return 0, false, fmt.Errorf("the process ended at once (%s)%s", ending(err), tail(log.Name(), begin))
		case <-ctx.Done():
			_ = cmd.Process.Kill() // it may have ended since
			return 0, false, fmt.Errorf("the process was started and did not serve: %w, %s%s",
				ctx.Err(), ending(<-exited), tail(log.Name(), begin))
		case <-time.After(pause):
		}
	}
}

func ending(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// take takes the lock of a folder, or returns the id of the process that has it. It waits for one that is about to say
// its id.
func take(ctx context.Context, folder string) (*os.File, int, error) {
	for {
		lock, err := flock.Take(filepath.Join(folder, PIDFile))
		if err == nil {
			if err := lock.Truncate(0); err != nil {
				lock.Close()
				return nil, 0, err
			}
			return lock, 0, nil
		}
		if !errors.Is(err, flock.ErrHeld) {
			return nil, 0, err
		}
		if pid, err := readPID(folder); err == nil {
			return nil, pid, nil
		}
		select {
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("another start of this process does not come to an end: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

// Announce is what a process calls when it serves: it writes its id into the locked file, which it keeps open until it
// ends. A process that was not started by Launch takes the lock itself.
func Announce(folder string) (*os.File, error) {
	lock, err := inherited()
	if err != nil {
		return nil, err
	}
	if lock == nil {
		if lock, err = flock.Take(filepath.Join(folder, PIDFile)); err != nil {
			return nil, err
		}
	}
	if err := lock.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, err
	}
	return lock, nil
}

func inherited() (*os.File, error) {
	text := os.Getenv(LockVariable)
	if text == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s: %q is no open file", LockVariable, text)
	}
	return os.NewFile(uintptr(fd), PIDFile), nil
}

// Running returns the id of the process that runs in a folder; 0 where none does. It is an error if one runs and has not
// said its id yet.
func Running(folder string) (int, error) {
	held, err := flock.Held(filepath.Join(folder, PIDFile))
	if err != nil || !held {
		return 0, err
	}
	return readPID(folder)
}

func readPID(folder string) (int, error) {
	text, err := os.ReadFile(filepath.Join(folder, PIDFile))
	if err != nil {
		return 0, err
	}
	// The line end says that the number is all there.
	digits, whole := strings.CutSuffix(string(text), "\n")
	pid, err := strconv.Atoi(digits)
	if err != nil || !whole || pid < 2 {
		return 0, fmt.Errorf("no process id in %s", filepath.Join(folder, PIDFile))
	}
	return pid, nil
}

// Ended is how a process was brought to its end.
type Ended struct {
	PID    int  // 0: none was running
	Killed bool // it did not heed SIGTERM within the grace
}

// Stop ends the process that runs in a folder: SIGTERM, and SIGKILL after the grace. It returns when the process is gone.
func Stop(ctx context.Context, folder string, grace time.Duration) (Ended, error) {
	file := filepath.Join(folder, PIDFile)
	startup, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var pid int
	for {
		held, err := flock.Held(file)
		if err != nil || !held {
			return Ended{}, err
		}
		if pid, err = readPID(folder); err == nil {
			break
		}
		select { // it was started a moment ago
		case <-startup.Done():
			return Ended{}, err
		case <-time.After(pause):
		}
	}
	// The handle first, then the question whether the lock is held still: where it is, the process that the handle was
	// made for is the one that holds it, and a handle (a pidfd on Linux) is not used again as an id is.
	p, err := os.FindProcess(pid)
	if err != nil {
		return Ended{}, err
	}
	defer p.Release() //nolint:errcheck // there is nothing to lose
	e := Ended{PID: pid}
	for _, s := range []struct {
		signal  os.Signal
		patient time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, killTimeout}} {
		if held, err := flock.Held(file); err != nil || !held {
			return e, err
		}
		e.Killed = s.signal == syscall.SIGKILL
		if err := p.Signal(s.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return e, fmt.Errorf("signal process %d: %w", pid, err)
		}
		if gone, err := awaitFree(ctx, file, s.patient); gone || err != nil {
			return e, err
		}
	}
	return e, fmt.Errorf("process %d does not end", pid)
}

// awaitFree waits until nobody holds a lock, and reports whether that came about in time.
func awaitFree(ctx context.Context, file string, patience time.Duration) (bool, error) {
	deadline := time.Now().Add(patience)
	for {
		held, err := flock.Held(file)
		if err != nil || !held {
			return err == nil, err
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// tail is the end of what a log holds from an offset on, for an error.
func tail(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil && end-from > tailBytesMax {
		from = end - tailBytesMax
	}
	text, err := io.ReadAll(io.NewSectionReader(f, from, tailBytesMax))
	if err != nil || len(strings.TrimSpace(string(text))) == 0 {
		return ""
	}
	return ": " + strings.TrimSpace(strings.ToValidUTF8(string(text), ""))
}
