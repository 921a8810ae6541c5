//go:build unix && !linux

package process

import (
	"os/exec"
	"syscall"
)

// groupAttributes puts a program into a group of its own. These systems have no parent-death signal: a program outlives
// a parent that is killed.
func groupAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit waits until the program has ended, and reaps it: there is no portable way to wait without.
func awaitExit(cmd *exec.Cmd) (reap func() error) {
	err := cmd.Wait()
	return func() error { return err }
}
