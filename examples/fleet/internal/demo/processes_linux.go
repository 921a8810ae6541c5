package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/droverproject/drover/examples/fleet/internal/home"
)

// processes lists what runs and was started for a home: all that has its mark in its environment, whoever started it.
// One that ends meanwhile, and another user's, is passed over.
func processes(h home.Home) ([]running, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	marked := []byte("\x00" + mark(h) + "\x00")
	var found []running
	for _, folder := range folders {
		env, err := os.ReadFile(filepath.Join(folder, "environ"))
		if err != nil || !bytes.Contains(append([]byte{0}, env...), marked) {
			continue
		}
		line, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		found = append(found, running{pid: pid, line: strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))})
	}
	return found, nil
}
