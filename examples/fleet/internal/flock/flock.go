//go:build unix

// Package flock is locks on whole files (flock(2)) as signs of life: a lock belongs to an open file, is shared with the
// processes that inherit it, and is freed by the kernel when the last of them has ended, however it ended. So a lock that
// is held proves that its holder lives, which a process id in a file does not: ids are used again.
//
// Only processes on one machine, and files on a local file system, are meant.
package flock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrHeld means that another open file holds the lock.
var ErrHeld = errors.New("the lock is held")

// Take makes the file where it is missing and takes its lock, or fails with ErrHeld. Closing the file frees it, once no
// other process has inherited it. The file is readable and writable.
func Take(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Held reports whether someone holds the lock by Take. A file that is missing is held by nobody. Others may ask at the
// same time, and are not in each other's way.
func Held(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = lock(f, syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, ErrHeld) {
		return true, nil
	}
	return false, err
}

// Await returns when nobody holds the lock. It cannot be interrupted, and occupies a thread.
func Await(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return lock(f, syscall.LOCK_SH)
}

func lock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrHeld
		default:
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
