//go:build unix && !linux

package demo

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/droverproject/drover/examples/fleet/internal/home"
)

// processes lists what runs and was started for a home, as far as its command line tells: the nodes.
func processes(h home.Home) ([]running, error) {
	out, err := exec.CommandContext(context.Background(), "ps", "-axo", "pid=,args=").Output()
	if err != nil {
		return nil, fmt.Errorf("ps: %w", err)
	}
	var found []running
	for line := range strings.Lines(string(out)) {
		text, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		pid, err := strconv.Atoi(text)
		if err == nil && strings.Contains(args, string(h)+"/") {
			found = append(found, running{pid: pid, line: strings.TrimSpace(args)})
		}
	}
	return found, nil
}
