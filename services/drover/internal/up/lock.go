package up

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// LockFile is the file in the data folder that one process holds at a time. It says who, and where it listens.
const LockFile = "up.lock"

// lockBytesMax bounds what is read of a lock file.
const lockBytesMax = 4 << 10

// ErrInUse means that another process runs on this data folder.
var ErrInUse = errors.New("another `drover up` runs on this data folder")

// lock is a held lock file. The operating system frees it when the process ends, however it ends.
type lock struct{ file *os.File }

// acquire takes the lock of a data folder, or fails with ErrInUse.
func acquire(folder string) (*lock, error) {
	path := filepath.Join(folder, LockFile)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer func() { _ = file.Close() }() // the error below says more
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, fmt.Errorf("%w: %s%s", ErrInUse, folder, holder(file))
	}
	return &lock{file: file}, nil
}

// holder says who holds a lock, as far as the file tells.
func holder(file io.Reader) string {
	a, err := readAddresses(file)
	if err != nil || a.PID == 0 {
		return ""
	}
	return " (process " + strconv.Itoa(a.PID) + ", " + a.NATS + ")"
}

// write says in the file who holds it.
func (l *lock) write(a Addresses) error {
	body, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if _, err := l.file.WriteAt(append(body, '\n'), 0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// release empties the file and frees it.
func (l *lock) release() error {
	return errors.Join(l.file.Truncate(0), l.file.Close())
}

// Running reads who runs on a data folder; fs.ErrNotExist means nobody, as far as is known.
func Running(folder string) (Addresses, error) {
	file, err := os.Open(filepath.Join(folder, LockFile))
	if err != nil {
		return Addresses{}, err
	}
	defer func() { _ = file.Close() }() // only read, and it frees the lock
	// Who was killed has left what it wrote, and the lock not.
	switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case err == nil:
		return Addresses{}, os.ErrNotExist
	case !errors.Is(err, syscall.EWOULDBLOCK):
		return Addresses{}, fmt.Errorf("lock: %w", err)
	}
	return readAddresses(file)
}

func readAddresses(r io.Reader) (Addresses, error) {
	body, err := io.ReadAll(io.LimitReader(r, lockBytesMax))
	if err != nil {
		return Addresses{}, err
	}
	if len(body) == 0 {
		return Addresses{}, os.ErrNotExist
	}
	var a Addresses
	if err := json.Unmarshal(body, &a); err != nil {
		return Addresses{}, fmt.Errorf("read %s: %w", LockFile, err)
	}
	return a, nil
}
