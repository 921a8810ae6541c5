package demo

import "syscall"

// group puts a child into a process group of its own, so that Ctrl-C reaches the demo alone, which then ends things
// in order; and has the kernel end it when the demo is killed.
func group() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
