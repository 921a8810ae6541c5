//go:build !linux

package e2e_test

import "syscall"

// deathAttributes puts a program into a group of its own. A test process that is itself killed leaves it behind.
func deathAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
