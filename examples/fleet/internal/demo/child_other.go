//go:build unix && !linux

package demo

import "syscall"

// group puts a child into a process group of its own, so that Ctrl-C reaches the demo alone, which then ends things
// in order. Here nothing ends a child when the demo is killed.
func group() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
