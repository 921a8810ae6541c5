package process

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupAttributes puts a program into a group of its own, and has the kernel kill it when this process dies: it would
// otherwise go on beside its own next attempt. That signal reaches the program itself, not what it has started.
func groupAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit waits until the program has ended, and leaves it to be reaped by the function it returns: until then
// neither its pid nor the id of its group can be used again, so that a signal to the group hits no stranger.
func awaitExit(cmd *exec.Cmd) (reap func() error) {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return cmd.Wait
		}
	}
}
