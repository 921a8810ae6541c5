package up

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// RestoringFile is in the data folder while a backup is being made a system there. What it finds beside it is a part of one.
const RestoringFile = "restoring"

// storeDir is where the server keeps everything.
func storeDir(data string) string { return filepath.Join(data, "nats") }

// beginRestore marks a data folder without a store as one that is being restored into; done takes the mark away. The store of a
// restore that was cut short is removed by the next one, and nothing else is started on it: it lacks what was not restored yet.
func beginRestore(data, backup string) (done func() error, err error) {
	mark := filepath.Join(data, RestoringFile)
	_, err = os.Lstat(mark)
	switch {
	case err == nil && backup == "":
		return nil, fmt.Errorf("%w: a restore into %s was not completed: --restore FOLDER begins it anew; without it, remove the folder first", ErrOptions, data)
	case err == nil:
		if err := os.RemoveAll(storeDir(data)); err != nil {
			return nil, fmt.Errorf("restore: what is left of the last one: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("data folder: %w", err)
	case backup == "":
		return func() error { return nil }, nil
	}
	if _, err := os.Lstat(storeDir(data)); !errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }, err // whose store it is, is for Restore to say
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	return func() error { return os.Remove(mark) }, nil
}
