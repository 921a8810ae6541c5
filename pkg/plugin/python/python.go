// Package python runs plugin modules in the form of CycleCloud (seed 003, "Phase Plugins", "State Listeners"), by a shim
// of Python 3 that needs nothing but its standard library. The shim is in this binary and goes to the interpreter as an
// argument, so that nothing must be installed and nothing is left behind.
package python

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Interpreter is what is looked up in PATH, where no other is named.
const Interpreter = "python3"

// The functions that a module may have.
const (
	Handle            = "handle"
	OnStateTransition = "onStateTransition"
)

// checkTimeout is how long a module may take to be loaded.
const checkTimeout = 30 * time.Second

// ErrModule says that a module cannot be loaded, or is no plugin.
var ErrModule = errors.New("not a plugin module")

//go:embed shim.py
var shim string

// Command is the program that serves a module (the path of a .py file, or a module's name) as package program wants it,
// resident. interpreter may be empty.
func Command(interpreter, module string) []string {
	return command(interpreter, module)
}

func command(interpreter string, arguments ...string) []string {
	if interpreter == "" {
		interpreter = Interpreter
	}
	return append([]string{interpreter, "-u", "-c", shim}, arguments...)
}

// Check loads a module as a call would, in the given environment, and returns which of the functions it has. The error is
// ErrModule with what the interpreter said, or that of an interpreter that cannot be run.
func Check(ctx context.Context, interpreter, module string, env []string) (functions []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	all := command(interpreter, "--check", module)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Env = env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second // what a module leaves running does not hold this up
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return nil, fmt.Errorf("%w: %s: %s", ErrModule, module, last(errs.String(), exit))
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, err
	}
	for _, name := range strings.Fields(out.String()) {
		if slices.Contains([]string{Handle, OnStateTransition}, name) {
			functions = append(functions, name)
		}
	}
	if functions == nil {
		return nil, fmt.Errorf("%w: %s: it has neither %s(handler) nor %s(event)", ErrModule, module, Handle, OnStateTransition)
	}
	return functions, nil
}

// last is the end of what was said.
func last(said string, exit *exec.ExitError) string {
	const linesMax, bytesMax = 4, 1 << 10
	lines := strings.Split(strings.TrimSpace(said), "\n")
	text := strings.Join(lines[max(0, len(lines)-linesMax):], "\n")
	if len(text) > bytesMax {
		text = strings.ToValidUTF8(text[len(text)-bytesMax:], "")
	}
	if text == "" {
		return exit.Error()
	}
	return text
}

// Here reports whether the interpreter can be found.
func Here(interpreter string) bool {
	if interpreter == "" {
		interpreter = Interpreter
	}
	_, err := exec.LookPath(interpreter)
	return err == nil
}
