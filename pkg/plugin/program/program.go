package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/process"
)

// Limits and defaults of a program.
const (
	CallTimeoutDefault = time.Minute
	CallTimeoutMax     = time.Hour
	GraceDefault       = 5 * time.Second
	GraceMax           = time.Minute
	StderrLineBytesMax = 16 << 10    // bytes of a line of stderr; the rest of it is dropped
	stopSettle         = time.Second // how long it takes until a signal that ended a program is known to be for us too
)

// Options of a Program.
type Options struct {
	// Command is the program and its arguments. Required.
	Command []string
	// Dir is the folder that it runs in. Empty: the present one.
	Dir string
	// Env is its environment. Nil: this process's own, without DROVER_… and NATS_….
	Env []string
	// Resident says that one process serves many calls, one after another; else each call has a process of its own.
	Resident bool
	// CallTimeout is how long a call may last. Default CallTimeoutDefault, at most CallTimeoutMax.
	CallTimeout time.Duration
	// CallBytes is the most bytes of the line that a call is given. What is more than that is another call, and a resource that
	// is more than that by itself (at most some 2 MiB) is called alone. Default CallBytesDefault, at most CallBytesMax.
	CallBytes int
	// Grace is the time between SIGTERM and SIGKILL for a program that is to end. Default GraceDefault, at most GraceMax.
	Grace time.Duration
	// Stderr is given each line that it writes to stderr, without its end. It must be safe for concurrent use. Nil: nobody.
	Stderr func(line string)
	// Stopping, once closed, says that this process is being stopped: what ends a program then is no failure. Nil: never.
	Stopping <-chan struct{}
}

// Program calls a program. Safe for concurrent use: calls at the same time have processes of their own. Make one with
// New, and Close it.
type Program struct {
	o Options

	mu     sync.Mutex
	idle   []*child // resident, between two calls
	closed bool
}

// New returns a Program that has no process yet. The error names the option.
func New(o Options) (*Program, error) {
	if o.CallTimeout == 0 {
		o.CallTimeout = CallTimeoutDefault
	}
	if o.Grace == 0 {
		o.Grace = GraceDefault
	}
	if o.CallBytes == 0 {
		o.CallBytes = CallBytesDefault
	}
	switch {
	case len(o.Command) == 0 || o.Command[0] == "":
		return nil, errors.New("the command is missing")
	case o.CallTimeout < 0 || o.CallTimeout > CallTimeoutMax:
		return nil, fmt.Errorf("the limit of a call is %s, not up to %s", o.CallTimeout, CallTimeoutMax)
	case o.CallBytes < 0 || o.CallBytes > CallBytesMax:
		return nil, fmt.Errorf("the limit of a call's bytes is %d, not up to %d", o.CallBytes, CallBytesMax)
	case o.Grace < 0 || o.Grace > GraceMax:
		return nil, fmt.Errorf("the grace is %s, not up to %s", o.Grace, GraceMax)
	}
	if o.Env == nil {
		o.Env = Environment(os.Environ())
	}
	if o.Stderr == nil {
		o.Stderr = func(string) {}
	}
	return &Program{o: o}, nil
}

// Environment is one without the variables that say how this process reaches its server.
func Environment(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(v string) bool {
		return strings.HasPrefix(v, "DROVER_") || strings.HasPrefix(v, "NATS_")
	})
}

// Close ends resident processes: they are told by the end of their stdin, and have the grace to go. It waits for them.
// Calls must have ended.
func (p *Program) Close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range idle {
		wg.Go(func() { c.dismiss(p.o.Grace) })
	}
	wg.Wait()
}

// Ends of a call that are no exception.
var (
	// errUnwanted: no resource of the call is wanted any more.
	errUnwanted = errors.New("the call was canceled")
	// errStopping: the program was ended because this process is.
	errStopping = fmt.Errorf("the worker is being stopped: %w", context.Canceled)
)

// errEnded is a resident program that has ended by itself, without an error, before the call had.
var errEnded = errors.New("the program has ended within a call")

// Causes for which a program is ended.
var (
	errLimit   = errors.New("the call has passed its limit")
	errAnswers = errors.New("the program's answers cannot be taken")
	errDismiss = errors.New("the program is no longer needed")
)

// limitError is the exception of a call that lasted longer than CallTimeout.
type limitError struct {
	limit time.Duration
	tail  string // what the program said last
}

func (e *limitError) Error() string {
	return fmt.Sprintf("the call lasted longer than its limit of %s, and its process group was ended%s", e.limit, e.tail)
}

// child is one process of the program.
type child struct {
	stdin  *os.File
	lines  chan outLine // closed at the end of its output
	cancel context.CancelCauseFunc
	used   bool // a call was made
	tail   process.Tail
	done   chan struct{} // closed when it is gone; then state and err are set
	state  *os.ProcessState
	err    error
}

type outLine struct {
	text []byte
	cut  bool
}

func (p *Program) start(env []string) (*child, error) {
	stdin, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &child{stdin: ours, lines: make(chan outLine), cancel: cancel, done: make(chan struct{})}
	program := &process.Program{
		Command: p.o.Command, Dir: p.o.Dir, Env: env, Stdin: stdin,
		Grace: func(error) time.Duration { return p.o.Grace },
		Stdout: func(r io.Reader) {
			defer close(c.lines)
			process.Lines(AnswerBytesMax, func(line []byte, cut bool) {
				select {
				case c.lines <- outLine{bytes.Clone(line), cut}:
				case <-ctx.Done(): // nobody listens any more
				}
			})(r)
		},
		Stderr: process.Lines(StderrLineBytesMax, func(line []byte, _ bool) {
			c.tail.Add(line)
			p.o.Stderr(strings.ToValidUTF8(strings.TrimRight(string(line), "\r\n"), "\uFFFD"))
		}),
	}
	go func() {
		defer close(c.done)
		c.state, c.err = program.Run(ctx)
	}()
	return c, nil
}

// end ends the process and all of its group, and waits for it.
func (c *child) end(cause error) {
	c.cancel(cause)
	_ = c.stdin.Close() // a second time, where its call was its only one
	<-c.done
}

// dismiss tells a process that waits for a call that there will be none, and waits for it to go.
func (c *child) dismiss(grace time.Duration) {
	_ = c.stdin.Close() // it may be gone already
	timer := time.AfterFunc(grace, func() { c.cancel(errDismiss) })
	defer timer.Stop()
	go func() {
		for range c.lines { // what it still writes is nobody's
		}
	}()
	<-c.done
	c.cancel(nil)
}

// take returns a process for one call.
func (p *Program) take(env []string) (*child, error) {
	for p.o.Resident {
		p.mu.Lock()
		if len(p.idle) == 0 {
			p.mu.Unlock()
			break
		}
		c := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		p.mu.Unlock()
		select {
		case <-c.done: // it went, which between two calls is its own affair
			c.end(errDismiss)
		case line, more := <-c.lines:
			if more {
				p.o.Stderr(fmt.Sprintf("drover: the program wrote to stdout when nothing was asked, and is started again: %.80q", line.text))
			}
			c.end(errAnswers)
		default:
			return c, nil
		}
	}
	return p.start(env)
}

// giveBack keeps a resident process for the next call.
func (p *Program) giveBack(c *child) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.idle = append(p.idle, c)
	}
	p.mu.Unlock()
	if closed {
		c.dismiss(p.o.Grace)
	}
}

// call carries out one call: it writes the request and hands each answer to each, until the call has ended. The error is
// the exception; or errUnwanted once unwanted is closed, errStopping, or ctx's cause.
func (p *Program) call(ctx context.Context, request []byte, about []resource.Key, vars []string, unwanted <-chan struct{}, each func(*Answer) error) error {
	env := p.o.Env
	if !p.o.Resident {
		folder, err := os.MkdirTemp("", "drover-plugin-")
		if err != nil {
			return fmt.Errorf("a folder for the call: %w", err)
		}
		defer os.RemoveAll(folder) //nolint:errcheck // what is left is in the system's folder for such
		names, kinds := filepath.Join(folder, "names"), filepath.Join(folder, "kinds")
		if err := errors.Join(
			os.WriteFile(names, lines(about, func(k resource.Key) string { return k.Name }), 0o600),
			os.WriteFile(kinds, lines(about, func(k resource.Key) string { return k.Kind }), 0o600),
		); err != nil {
			return fmt.Errorf("a file for the call: %w", err)
		}
		env = append(append(slices.Clip(env), vars...), "DROVER_NAMES_FILE="+names, "DROVER_KINDS_FILE="+kinds)
	}
	for {
		c, err := p.take(env)
		if err != nil {
			return err
		}
		used := c.used
		unread, err := p.callChild(ctx, c, request, unwanted, each)
		if !used || !unread {
			return err
		}
		// It went between two calls, which had not shown yet when it was taken: another one is asked.
	}
}

// callChild carries out a call with one process. unread: that had ended before it could read what it was asked.
func (p *Program) callChild(ctx context.Context, c *child, request []byte, unwanted <-chan struct{}, each func(*Answer) error) (unread bool, err error) {
	if c.used { // else it may have said why it ends already
		c.tail.Reset()
	}
	c.used = true
	written := make(chan struct{})
	var refused error
	go func() {
		defer close(written)
		_, refused = c.stdin.Write(request) // a program that does not read it may still answer; one that is gone says why by its end
		if !p.o.Resident {
			_ = c.stdin.Close() // there is nothing else to be read
		}
	}()
	r := reading{p: p, c: c, each: each}
	err = r.until(ctx, unwanted)
	if err == nil && p.o.Resident {
		<-written // it has answered, so it has read
		p.giveBack(c)
		return false, nil
	}
	_ = c.stdin.Close() // a second time, perhaps; whoever else holds the other end does not hold this up
	<-written
	c.cancel(nil)
	return errors.Is(err, errEnded) && errors.Is(refused, syscall.EPIPE) && r.count == 0, err
}

// lines is what is said of each resource, a line each.
func lines(about []resource.Key, say func(resource.Key) string) []byte {
	var b bytes.Buffer
	for i := range about {
		b.WriteString(say(about[i]))
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// reading is the answers of one call.
type reading struct {
	p     *Program
	c     *child
	each  func(*Answer) error
	count int
	bytes int
	raise string // the exception that the program has told
	ended bool
}

// until reads until the call has ended. Where it returns an error, the process is gone.
func (r *reading) until(ctx context.Context, unwanted <-chan struct{}) error {
	limit := time.NewTimer(r.p.o.CallTimeout)
	defer limit.Stop()
	lines, done := r.c.lines, (<-chan struct{})(nil)
	for {
		select {
		case line, more := <-lines:
			if !more { // it has closed its output, and is gone or about to be
				lines, done = nil, r.c.done
				continue
			}
			if err := r.line(line); err != nil {
				r.c.end(errAnswers)
				return err
			}
			if r.ended && r.p.o.Resident {
				return r.exception()
			}
		case <-done:
			return r.gone()
		case <-limit.C:
			r.c.end(errLimit)
			return &limitError{limit: r.p.o.CallTimeout, tail: r.c.tail.String()}
		case <-unwanted:
			r.c.end(errUnwanted)
			return errUnwanted
		case <-ctx.Done():
			r.c.end(context.Cause(ctx))
			return context.Cause(ctx)
		}
	}
}

// line takes one line of answers.
func (r *reading) line(line outLine) error {
	r.count++
	r.bytes += len(line.text)
	what := fmt.Sprintf("line %d of the call's answers", r.count)
	switch {
	case line.cut:
		return fmt.Errorf("%s: %w: it has more than %d bytes", what, ErrAnswer, AnswerBytesMax)
	case r.count > AnswersMax:
		return fmt.Errorf("%s: more than %d lines", what, AnswersMax)
	case r.bytes > AnswerBytesTotalMax:
		return fmt.Errorf("%s: more than %d bytes in all", what, AnswerBytesTotalMax)
	case len(bytes.TrimSpace(line.text)) == 0:
		return nil
	case r.ended:
		return fmt.Errorf("%s: it comes after the end of the call", what)
	}
	a, err := DecodeAnswer(line.text)
	if err != nil {
		return fmt.Errorf("%s: %w: %.80q", what, err, line.text)
	}
	if a.Err != "" && r.raise == "" {
		r.raise = a.Err
	}
	r.ended = a.End
	if err := r.each(&a); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// exception is what the program has told.
func (r *reading) exception() error {
	if r.raise != "" {
		return errors.New(r.raise)
	}
	return nil
}

// gone says what the end of the process means.
func (r *reading) gone() error {
	if r.c.err != nil {
		return fmt.Errorf("%s cannot be run: %w", r.p.o.Command[0], r.c.err)
	}
	if status, ok := r.c.state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		if asked(status.Signal()) && r.p.stopping() {
			return errStopping
		}
		return fmt.Errorf("ended by signal %d (%s)%s", int(status.Signal()), status.Signal(), r.c.tail.String())
	}
	switch code := r.c.state.ExitCode(); {
	case r.raise != "":
		return r.exception()
	case code != 0:
		return fmt.Errorf("exit status %d%s", code, r.c.tail.String())
	case r.p.o.Resident:
		return fmt.Errorf("%w%s", errEnded, r.c.tail.String())
	}
	return nil
}

// asked reports whether a signal is one by which people and supervisors end programs.
func asked(s syscall.Signal) bool {
	return s == syscall.SIGTERM || s == syscall.SIGINT || s == syscall.SIGHUP
}

// stopping reports whether this process is being stopped too: who signals all processes of a service at once may have
// reached the program first.
func (p *Program) stopping() bool {
	select {
	case <-p.o.Stopping:
		return true
	case <-time.After(stopSettle):
		return false
	}
}

var _ plugin.Handler = (*Program)(nil).Handle
