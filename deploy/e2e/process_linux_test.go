package e2e_test

import "syscall"

// deathAttributes puts a program into a group of its own, and has the kernel kill it when the tests die, however.
func deathAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
