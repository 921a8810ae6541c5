// Package script runs the executor "script": a program on the runner's machine, in a process group of its own.
//
// # The program
//
// Its command, environment and folder are templates (package render); no shell is involved unless the command names
// one, so a value of a spec is never more than one argument. Of the runner's own environment it sees PATH, HOME, LANG
// and TMPDIR, so that no secret of the runner leaks into it. What it is told, in variables:
//
//	DROVER_PROJECT, _KIND, _NAME, _UID, _PHASE, _JOB, _ATTEMPT, _STATE, _TARGET, _CLUSTER
//	DROVER_WAS_DEPLOYED                 true or false: whether it was deployed before
//	DROVER_UNDO                         true where the phase is to be undone, else false
//	DROVER_DEADLINE                     RFC 3339, by the server's clock; empty without a timeout
//	DROVER_SPEC_FILE                    path of the spec as JSON
//	DROVER_SPEC                         the spec as JSON, where it has at most VariableBytesMax bytes; else unset
//	DROVER_ATTRIBUTES, DROVER_DATA      JSON objects, within the same limit
//	DROVER_RESULT                       path of a file that it may write {"attributes":{},"data":{},"outputs":{}} to
//
// The files are gone when it has ended.
//
// # Its end
//
// Exit status 0 is completed, 75 (EX_TEMPFAIL) pending, any other a failure whose message ends with what it last wrote
// to stderr. When the phase times out, is canceled, or the runner stops, the whole group gets SIGTERM, and SIGKILL after
// the grace (at most StopGraceMax when the runner stops). After an end of its own accord the group is left alone: what it launched may stay, if it has pointed its
// output elsewhere (the pipes of the program are closed when it has ended, and who writes to them gets SIGPIPE).
//
// # Not covered
//
// A runner that is killed takes its programs with it (on Linux), but not what those have started; and a child that has
// left the group (setsid) outlives a timeout. Both need control groups, which need rights that a runner may not have.
package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/process"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/runner/internal/executor"
	"github.com/droverproject/drover/services/runner/internal/render"
)

// Limits of one run.
const (
	LineBytesMax       = wire.OutputTextBytesMax // bytes of one line of output
	VariableBytesMax   = 64 << 10                // bytes of a variable that holds JSON; the kernel's own limit is 128 KiB
	OutputFileBytesMax = 128 << 10               // bytes of the file that DROVER_RESULT names
	StopGraceMax       = 3 * time.Second         // between SIGTERM and SIGKILL where the runner itself stops
)

// inherited are the variables of the runner's environment that a program sees.
var inherited = []string{"PATH", "HOME", "LANG", "TMPDIR"}

// errDeadline is the cause of a context that ended with the phase's deadline.
var errDeadline = errors.New("the phase's deadline has passed")

// Script is a phase's configuration, with its templates parsed. Safe for concurrent use.
type Script struct {
	config  manifest.Script
	command []*render.Template
	env     map[string]*render.Template
	dir     *render.Template
}

var _ executor.Executor = (*Script)(nil)

// New parses the templates of a configuration. The error names the field.
func New(config manifest.Script) (*Script, error) {
	s := &Script{config: config, env: make(map[string]*render.Template, len(config.Env))}
	for i, text := range config.Command {
		t, err := render.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("command[%d]: %w", i, err)
		}
		s.command = append(s.command, t)
	}
	for name, text := range config.Env {
		t, err := render.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("env.%s: %w", name, err)
		}
		s.env[name] = t
	}
	var err error
	if s.dir, err = render.Parse(config.Dir); err != nil {
		return nil, fmt.Errorf("dir: %w", err)
	}
	return s, nil
}

// Run carries out one call.
func (s *Script) Run(ctx context.Context, c *executor.Call) (executor.Outcome, error) {
	scratch, err := os.MkdirTemp("", "drover-script-")
	if err != nil {
		return executor.Retryable("a folder for the call: %v", err), nil
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // what is left is in the system's folder for such
	p, err := s.prepare(ctx, c, scratch)
	if err != nil {
		return executor.Failed("%v", err), nil
	}
	out := &transcript{log: c.Log, left: s.config.OutputBytesMax}
	p.Stdout = process.Lines(LineBytesMax, func(line []byte, cut bool) { out.line("stdout", line, cut) })
	p.Stderr = process.Lines(LineBytesMax, func(line []byte, cut bool) { out.line("stderr", line, cut) })

	if !c.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, c.Deadline, errDeadline)
		defer cancel()
	}
	began := time.Now()
	state, err := p.Run(ctx)
	out.close()
	switch {
	case errors.Is(err, errDeadline):
		return executor.Retryable("timed out after %s; its process group was ended%s",
			time.Since(began).Round(time.Millisecond), out.tail()), nil
	case ctx.Err() != nil:
		return executor.Outcome{}, context.Cause(ctx)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return executor.Retryable("%s cannot be started now: %v", p.Command[0], err), nil
	case err != nil:
		return executor.Failed("%s cannot be started: %v", p.Command[0], err), nil
	}
	kept, err := readOutput(filepath.Join(scratch, outputFile))
	if err != nil {
		return executor.Failed("%s: %v", manifest.ScriptOutputVariable, err), nil
	}
	o := s.judge(state, out)
	o.Kept = kept
	return o, nil
}

// judge says what the end of the program means.
func (s *Script) judge(state *os.ProcessState, out *transcript) executor.Outcome {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return executor.Failed("ended by signal %d (%s)%s", int(status.Signal()), status.Signal(), out.tail())
	}
	code := state.ExitCode()
	switch {
	case code == 0:
		return executor.Completed()
	case code == manifest.ScriptPendingExit:
		return executor.Pending(0, "%s", out.last())
	case slices.Contains(s.config.RetryableExits, code):
		return executor.Retryable("exit status %d%s", code, out.tail())
	default:
		return executor.Failed("exit status %d%s", code, out.tail())
	}
}

// grace is what the blueprint grants a program that is to end, but no more than StopGraceMax where the runner stops.
func (s *Script) grace(cause error) time.Duration {
	if errors.Is(cause, errDeadline) || errors.Is(cause, plugin.ErrCanceled) {
		return s.config.Grace
	}
	return min(s.config.Grace, StopGraceMax)
}

const (
	specFile   = "spec.json"
	outputFile = "output.json"
	workDir    = "work"
)

// prepare renders the templates and lays out the files of a call.
func (s *Script) prepare(ctx context.Context, c *executor.Call, scratch string) (*process.Program, error) {
	vars, err := c.Vars()
	if err != nil {
		return nil, err
	}
	p := &process.Program{Grace: s.grace, Dir: filepath.Join(scratch, workDir)}
	for i, t := range s.command {
		argument, err := render1(ctx, t, vars)
		if err != nil {
			return nil, fmt.Errorf("command[%d]: %w", i, err)
		}
		p.Command = append(p.Command, argument)
	}
	dir, err := render1(ctx, s.dir, vars)
	if err != nil {
		return nil, fmt.Errorf("dir: %w", err)
	}
	if dir != "" {
		if p.Dir, err = filepath.Abs(dir); err != nil {
			return nil, fmt.Errorf("dir: %w", err)
		}
	} else if err := os.Mkdir(p.Dir, 0o700); err != nil {
		return nil, err
	}
	spec := filepath.Join(scratch, specFile)
	if err := os.WriteFile(spec, c.Spec, 0o600); err != nil {
		return nil, err
	}
	p.Env = environment(c, spec, filepath.Join(scratch, outputFile))
	for name, t := range s.env {
		value, err := render1(ctx, t, vars)
		if err != nil {
			return nil, fmt.Errorf("env.%s: %w", name, err)
		}
		p.Env = append(p.Env, name+"="+value)
	}
	// The program is looked up in the PATH that it will see itself, relative to the folder that it will run in.
	p.Command[0], err = lookup(p.Command[0], p.Dir, p.Env)
	return p, err
}

// render1 renders what the operating system takes as a string: without zero bytes, and not too long for the kernel.
func render1(ctx context.Context, t *render.Template, vars render.Vars) (string, error) {
	text, err := t.Render(ctx, vars)
	switch {
	case err != nil:
		return "", err
	case strings.ContainsRune(text, 0):
		return "", errors.New("renders to text with a zero byte")
	case len(text) > VariableBytesMax:
		return "", fmt.Errorf("renders to %d bytes; the limit is %d", len(text), VariableBytesMax)
	}
	return text, nil
}

// environment is all of it, but for what the blueprint adds.
func environment(c *executor.Call, specPath, outputPath string) []string {
	var env []string
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	deadline := ""
	if !c.Deadline.IsZero() {
		deadline = c.Deadline.UTC().Format(time.RFC3339Nano)
	}
	env = append(env,
		"DROVER_PROJECT="+c.Key.Project, "DROVER_KIND="+c.Key.Kind, "DROVER_NAME="+c.Key.Name,
		"DROVER_UID="+c.Fence.UID, "DROVER_PHASE="+c.Phase, "DROVER_JOB="+c.Fence.JobID,
		"DROVER_ATTEMPT="+strconv.FormatUint(uint64(c.Fence.Attempt), 10),
		"DROVER_STATE="+c.State, "DROVER_TARGET="+c.Target, "DROVER_CLUSTER="+c.Cluster,
		"DROVER_UNDO="+strconv.FormatBool(c.Undo),
		"DROVER_WAS_DEPLOYED="+strconv.FormatBool(c.WasDeployed), "DROVER_DEADLINE="+deadline,
		"DROVER_SPEC_FILE="+specPath, manifest.ScriptOutputVariable+"="+outputPath,
	)
	for name, value := range map[string][]byte{
		"DROVER_SPEC": c.Spec, "DROVER_ATTRIBUTES": executor.Object(c.Attributes), "DROVER_DATA": executor.Object(c.Data),
	} {
		if len(value) <= VariableBytesMax {
			env = append(env, name+"="+string(value))
		}
	}
	return env
}

// lookup finds a program as a shell in dir would.
func lookup(program, dir string, env []string) (string, error) {
	if filepath.IsAbs(program) {
		return program, nil
	}
	if strings.ContainsRune(program, filepath.Separator) {
		return filepath.Join(dir, program), nil
	}
	path := ""
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = value // the last one counts
		}
	}
	for _, folder := range filepath.SplitList(path) {
		if !filepath.IsAbs(folder) {
			continue // as os/exec: nothing is run from the present folder by chance
		}
		if found, err := exec.LookPath(filepath.Join(folder, program)); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("command[0]: no program %q in PATH", program)
}

// readOutput reads the file that the program may have written.
func readOutput(path string) (executor.Kept, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return executor.Kept{}, nil
	}
	if err != nil {
		return executor.Kept{}, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return executor.Kept{}, errors.New("is not a regular file")
	}
	body, err := io.ReadAll(io.LimitReader(file, OutputFileBytesMax+1))
	if err != nil {
		return executor.Kept{}, err
	}
	if len(body) > OutputFileBytesMax {
		return executor.Kept{}, fmt.Errorf("has more than %d bytes", OutputFileBytesMax)
	}
	out, err := manifest.DecodeScriptOutput(body)
	if err != nil {
		return executor.Kept{}, err
	}
	return executor.Kept{Attributes: out.Attributes, Data: out.Data, Outputs: out.Outputs}, nil
}

// transcript hands on the lines of a run up to a number of bytes, and remembers the last of stderr.
type transcript struct {
	log  func(stream string, at time.Time, line string)
	errs process.Tail

	mu      sync.Mutex
	left    int
	dropped int // lines
	latest  string
}

const cutMark = " …[cut]"

func (t *transcript) line(stream string, line []byte, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimRight(string(line), "\r\n")
	if strings.TrimSpace(text) != "" {
		t.latest = short(text)
	}
	if stream == "stderr" {
		t.errs.Add(line)
	}
	switch t.left -= len(line); {
	case t.left < 0 && t.dropped == 0:
		t.log("runner", time.Now(), "output limit reached; the rest is dropped")
		fallthrough
	case t.left < 0:
		t.dropped++
	case cut:
		t.log(stream, time.Now(), text[:min(len(text), LineBytesMax-len(cutMark))]+cutMark)
	default:
		t.log(stream, time.Now(), text)
	}
}

// close says how much was dropped.
func (t *transcript) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped > 0 {
		t.log("runner", time.Now(), fmt.Sprintf("%d lines were dropped", t.dropped))
	}
}

// tail is what was last written to stderr, as the end of a message.
func (t *transcript) tail() string { return t.errs.String() }

// last is the line that was written last.
func (t *transcript) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.latest
}

func short(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), process.TailBytesMax)], "")
}
