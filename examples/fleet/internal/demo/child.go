//go:build unix

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/droverproject/drover/examples/fleet/internal/home"
)

// childDelay is how long a child may take to end after SIGTERM, before it is killed.
const childDelay = 5 * time.Second

// start starts a command and returns a channel that says how it ended.
func start(cmd *exec.Cmd) (<-chan error, error) {
	cmd.SysProcAttr = group()
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// Linux sends the parent-death signal when the thread that started a child ends: this one stays until the child
		// is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return ended, nil
}

// environment is that of all children: the demo's, but nothing that would have `drover` do other than it is told here;
// `fleet` in the PATH, which scripts inherit; and temporary files within the home, which goes as a whole.
func environment(h home.Home) []string {
	var env []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case strings.HasPrefix(name, "DROVER_"), strings.HasPrefix(name, "NATS_"):
		case name == "PATH", name == "TMPDIR", name == "XDG_CONFIG_HOME", name == "NO_COLOR":
		default:
			env = append(env, variable)
		}
	}
	return append(env, "PATH="+h.Bin()+string(os.PathListSeparator)+os.Getenv("PATH"), mark(h),
		"XDG_CONFIG_HOME="+h.Tmp(), "NO_COLOR=1")
}

// mark is the variable by which all that was started for a home can be told from everything else.
func mark(h home.Home) string { return "TMPDIR=" + h.Tmp() }

// cli runs the command line as a user would.
type cli struct {
	program string
	server  string // URL
	env     []string
}

func (c *cli) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.program, append(args, "--server", c.server)...) //nolint:gosec // the user names it
	cmd.Env = c.env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = childDelay
	return cmd
}

// result is what a command line came to.
type result struct {
	args   []string
	code   int
	stdout []byte
	stderr []byte
}

// run runs a command line to its end. A command that has failed is a result, too.
func (c *cli) run(ctx context.Context, args ...string) (result, error) {
	r := result{args: args}
	var stdout, stderr bytes.Buffer
	cmd := c.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	ended, err := start(cmd)
	if err != nil {
		return r, err
	}
	err = <-ended
	r.stdout, r.stderr = stdout.Bytes(), stderr.Bytes()
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		r.code = exit.ExitCode()
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("drover %s: %w", strings.Join(args, " "), err)
	}
	return r, nil
}

// expect is an error unless the exit code was this.
func (r *result) expect(code int) error {
	if r.code == code {
		return nil
	}
	return fmt.Errorf("`drover %s` ended with exit code %d, not %d:\n%s", strings.Join(r.args, " "), r.code, code,
		lastLines(string(r.stderr), 12))
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
