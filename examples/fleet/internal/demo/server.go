//go:build unix

package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/droverproject/drover/examples/fleet/internal/home"
)

// Limits of `drover up`.
const (
	upTimeout   = 60 * time.Second // until it is ready
	downTimeout = 20 * time.Second // until it has stopped; it is killed then
	logLines    = 15               // of its log in an error
)

// upArgs is how it is run.
var upArgs = []string{"up", "--ephemeral", "--nats", "127.0.0.1:0", "--http", "127.0.0.1:0"}

// server is a `drover up` that runs.
type server struct {
	url   string // of NATS
	pid   int
	log   string // path of its log
	done  chan struct{}
	err   error // how it ended, once done is closed
	input *os.Process
}

// startServer starts `drover up` and waits until it is ready. Where it returns an error, nothing runs.
func startServer(ctx context.Context, program string, h home.Home) (*server, error) {
	s := &server{log: filepath.Join(string(h), "drover.log"), done: make(chan struct{})}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, append(upArgs, "-o", "json")...) //nolint:gosec // the user names it; stop ends it
	cmd.Env, cmd.Dir, cmd.Stderr = environment(h), string(h), log
	stdout, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	cmd.Stdout = in
	ended, err := start(cmd)
	in.Close()
	if err != nil {
		return nil, fmt.Errorf("start drover up: %w", err)
	}
	s.pid, s.input = cmd.Process.Pid, cmd.Process
	go func() {
		s.err = <-ended
		close(s.done)
	}()
	ready := make(chan error, 1)
	go func() { ready <- s.read(stdout) }()
	limit := time.NewTimer(upTimeout)
	defer limit.Stop()
	select {
	case err = <-ready:
	case <-limit.C:
		err = fmt.Errorf("it was not ready after %s", upTimeout)
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), s.stop())
	}
	if err != nil {
		err = errors.Join(err, s.stop())
		return nil, fmt.Errorf("drover up: %w%s", err, s.tail())
	}
	return s, nil
}

// read reads the line with the addresses.
func (s *server) read(r io.Reader) error {
	line, err := bufio.NewReader(io.LimitReader(r, 64<<10)).ReadBytes('\n')
	if err != nil {
		return errors.New("it ended before it was ready")
	}
	var at struct {
		NATS string `json:"nats"`
	}
	if err := json.Unmarshal(line, &at); err != nil || at.NATS == "" {
		return fmt.Errorf("it says %q, and no line of JSON with its addresses", line)
	}
	s.url = at.NATS
	return nil
}

// stop stops it gracefully, or kills it when that takes too long. It may be called again.
func (s *server) stop() error {
	for _, step := range []struct {
		signal  os.Signal
		patient time.Duration
	}{{syscall.SIGTERM, downTimeout}, {syscall.SIGKILL, childDelay}} {
		select {
		case <-s.done:
			return nil
		default:
		}
		if err := s.input.Signal(step.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		limit := time.NewTimer(step.patient)
		select {
		case <-s.done:
			limit.Stop()
			if step.signal == syscall.SIGKILL {
				return fmt.Errorf("drover up did not stop within %s and was killed", downTimeout)
			}
			if s.err != nil {
				return fmt.Errorf("drover up ended with %w%s", s.err, s.tail())
			}
			return nil
		case <-limit.C:
		}
	}
	return fmt.Errorf("drover up (process %d) does not end", s.pid)
}

// tail is the end of its log, for an error.
func (s *server) tail() string {
	text, err := os.ReadFile(s.log)
	if err != nil || len(text) == 0 {
		return ""
	}
	return "; the end of its log:\n" + lastLines(string(text), logLines)
}
