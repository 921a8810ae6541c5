package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/plugin/announce"
	"github.com/droverproject/drover/pkg/plugin/program"
	"github.com/droverproject/drover/pkg/plugin/python"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newPlugin(a *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Run phase plugins and state listeners that are programs in any language",
		Long: `A phase plugin carries out one phase of a kind, for all resources that wait for it; a state listener is told when
resources reach a state. They may be written in Go (package pkg/plugin), in Python as they are for CycleCloud, or in
any other language, over lines of JSON on stdin and stdout: see docs/plugins.md.`,
		Example: `  drover plugin exec --phase node/create-instance -- ./create-instance
  drover plugin exec --definition create_instance.txt --python create_instance.py
  drover plugin announce --definition create_instance.txt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPluginExec(a), newPluginAnnounce(a))
	return cmd
}

// pluginExec is the flags of `plugin exec`.
type pluginExec struct {
	app    *App
	phases []string
	files  []string // definitions
	quiet  bool     // announce nothing
	python string
	// interpreter of python; empty: python3
	interpreter string
	resident    bool
	batch       int
	bytes       int
	parallel    int
	limit       time.Duration
	grace       time.Duration
	stop        time.Duration
	log         *zap.Logger
}

func newPluginExec(a *App) *cobra.Command {
	p := &pluginExec{app: a}
	var logLevel, logFormat, bytes string
	cmd := &cobra.Command{
		Use:   "exec (--definition FILE... | --phase KIND/PHASE...) (--python MODULE | -- COMMAND [ARGUMENT...])",
		Short: "Carry out phases, or listen to states, with a program",
		Long: `Carry out phases with a program, until this process is stopped. Each call gives the program, on stdin, one line of
JSON with all resources that wait; it answers in lines of JSON on stdout. See docs/plugins.md.

What it neither completes nor fails is called again after the phase's interval. An exit status other than 0, a line that
is not understood and a call that passes --call-timeout fail the resources of the call, but for those that were completed
before. When this process is killed, nothing fails: the work is handed out again.

A phase of the same name of several kinds is one phase: a call has the resources of all of them.

A definition file says which phase it is, in the form of CycleCloud; the phase is then added to the blueprints of its
kinds. One with ResourceStateListener makes a state listener, which is told when resources reach a state. The user that
this process connects as needs the rights of DROVER_PLUGIN.`,
		Example: `  drover plugin exec --definition create_instance.txt --python create_instance.py
  drover plugin exec --phase node/create-instance -- ./create-instance
  drover plugin exec --phase node/create-instance --resident -- ruby worker.rb
  drover plugin exec --phase Cloud.Node/Acme.CreateInstance --python create_instance.py`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.endless(cmd.Flags(), "--timeout is not for `plugin exec`, which runs until it is stopped; --call-timeout limits a call"); err != nil {
				return err
			}
			a.Err = &together{w: a.Err} // the program, the log and the announcement speak at once
			log, err := host.NewLogger(a.Err, logLevel, logFormat)
			if err != nil {
				return usage("%w", err)
			}
			p.log = log
			if p.bytes, err = parseBytes(bytes); err != nil || p.bytes < 1 || p.bytes > program.CallBytesMax {
				return usage("--batch-bytes: %q is not a size of 1 to %s, as in 512KiB or 16MiB", bytes, formatBytes(program.CallBytesMax))
			}
			return p.run(cmd.Context(), args)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&p.phases, "phase", nil, "phase to carry out, `KIND/PHASE`, or KIND.PHASE where neither holds a dot; may be given again")
	f.StringArrayVar(&p.files, "definition", nil, "definition `FILE` of a phase or a state listener; may be given again")
	f.BoolVar(&p.quiet, "no-announce", false, "leave blueprints and listeners as they are: what --definition says is there already")
	f.StringVar(&p.python, "python", "", "Python `MODULE` with a function handle(handler), instead of a command; needs python3")
	f.StringVar(&p.interpreter, "interpreter", "", "`PROGRAM` that runs the Python module (default "+python.Interpreter+")")
	f.BoolVar(&p.resident, "resident", false, "one process of the command serves many calls (always so with --python)")
	f.IntVar(&p.batch, "batch", plugin.BatchMax, "most resources of a call, a `NUMBER`")
	f.StringVar(&bytes, "batch-bytes", formatBytes(program.CallBytesDefault), "most bytes of a call, a `SIZE` as in 512KiB or 16MiB, up to "+formatBytes(program.CallBytesMax)+"; a resource that is larger by itself is called alone")
	f.IntVar(&p.parallel, "concurrency", 1, "most calls of a phase at the same time where its blueprint has calls: 0, a `NUMBER`, each with a process of its own")
	f.DurationVar(&p.limit, "call-timeout", program.CallTimeoutDefault, "limit of a call: one that lasts longer is ended, and fails")
	f.DurationVar(&p.grace, "grace", program.GraceDefault, "time between SIGTERM and SIGKILL for a program that is to end")
	f.DurationVar(&p.stop, "stop-grace", 10*time.Second, "how long calls may go on when this process is stopped")
	f.StringVar(&logLevel, "log-level", "warn", "debug|info|warn|error")
	f.StringVar(&logFormat, "log-format", host.FormatAuto, "json|console|auto (console on a terminal)")
	return cmd
}

// command is the program that is to be called.
func (p *pluginExec) command(ctx context.Context, command []string, duties *duties) ([]string, error) {
	switch {
	case p.python == "" && len(command) == 0:
		return nil, usage("name the program: -- COMMAND [ARGUMENT...], or --python MODULE")
	case p.python == "":
		return command, nil
	case len(command) > 0:
		return nil, usage("--python and a command exclude each other")
	}
	p.resident = true
	functions, err := python.Check(ctx, p.interpreter, p.python, program.Environment(os.Environ()))
	if err != nil {
		return nil, fail(ExitError, "%w", err)
	}
	for _, f := range []struct {
		name   string
		needed bool
	}{{python.Handle, len(duties.phases) > 0}, {python.OnStateTransition, len(duties.listeners) > 0}} {
		if f.needed && !slices.Contains(functions, f.name) {
			return nil, fail(ExitError, "%s has no function %s", p.python, f.name)
		}
	}
	return python.Command(p.interpreter, p.python), nil
}

// together is a writer for several.
type together struct {
	mu sync.Mutex
	w  io.Writer
}

func (t *together) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.w.Write(b)
}

// parsePhase reads KIND/PHASE, or KIND.PHASE.
func (a *App) parsePhase(text string) (bus.Phase, error) {
	kind, phase, found := strings.Cut(text, "/")
	if !found && strings.Count(text, ".") == 1 {
		kind, phase, found = strings.Cut(text, ".")
	}
	if !found {
		return bus.Phase{}, usage("--phase: %q is not of the form KIND/PHASE", text)
	}
	for _, name := range []string{kind, phase} {
		if reason := manifest.CheckName(name); reason != "" {
			return bus.Phase{}, usage("--phase: %q: %q %s", text, name, reason)
		}
	}
	return bus.Phase{Project: a.project, Kind: kind, Phase: phase}, nil
}

func (p *pluginExec) run(ctx context.Context, command []string) error {
	a := p.app
	duties, err := a.duties(p.phases, p.files)
	if err != nil {
		return err
	}
	if p.batch < 1 || p.batch > plugin.BatchMax {
		return usage("--batch: is not 1 to %d", plugin.BatchMax)
	}
	if p.parallel < 1 || p.parallel > plugin.ConcurrencyMax {
		return usage("--concurrency: is not 1 to %d", plugin.ConcurrencyMax)
	}
	command, err = p.command(ctx, command, duties)
	if err != nil {
		return err
	}
	caller, err := program.New(program.Options{
		Command: command, Resident: p.resident, CallBytes: p.bytes, CallTimeout: p.limit, Grace: p.grace, Stopping: ctx.Done(),
		Stderr: func(line string) { a.tell("%s", render.Text(line)) },
	})
	if err != nil {
		return usage("%w", err)
	}
	defer caller.Close()
	b, err := a.worker(ctx)
	if err != nil {
		return err
	}
	return p.serve(ctx, b, duties, caller)
}

// worker opens the bus for one who pulls work.
func (a *App) worker(ctx context.Context) (bus.Bus, error) {
	a.Role = bus.Plugin
	opened, err := a.bus(ctx)
	if err != nil {
		return nil, err
	}
	b, ok := opened.(bus.Bus)
	if !ok {
		return nil, errors.New("this connection cannot pull work")
	}
	return b, nil
}

// byPhase puts together the kinds that have a phase of the same name, which are called together.
func byPhase(phases []bus.Phase) (together [][]bus.Phase) {
	for _, phase := range phases {
		i := slices.IndexFunc(together, func(of []bus.Phase) bool { return of[0].Phase == phase.Phase })
		if i < 0 {
			together = append(together, nil)
			i = len(together) - 1
		}
		together[i] = append(together[i], phase)
	}
	return together
}

// checkEvery is how soon a call that is canceled ends.
const checkEvery = 2 * time.Second

// serve carries out phases and listens until ctx ends, or one of these cannot be done at all.
func (p *pluginExec) serve(ctx context.Context, b bus.Bus, d *duties, caller *program.Program) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	grace := p.stop
	if grace == 0 {
		grace = -1 // the SDK's way to say none
	}
	var serving sync.WaitGroup
	do := func(what string, f func() error) {
		serving.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	for _, phases := range byPhase(d.phases) {
		var kinds []string
		for _, phase := range phases {
			kinds = append(kinds, phase.Kind)
		}
		do("phase "+phases[0].Phase+" of kind "+strings.Join(kinds, ", "), func() error {
			return plugin.ServeKinds(ctx, b, phases, plugin.Options{
				Batch: p.batch, BatchBytes: min(max(p.bytes, plugin.BatchBytesMin), plugin.BatchBytesMax), Concurrency: p.parallel, StopGrace: grace, CheckEvery: checkEvery, Log: p.log,
			}, caller.Handle)
		})
	}
	for _, l := range d.listeners {
		do("listener "+l.name, func() error { return p.listen(ctx, b, l, caller) })
	}
	if !p.quiet {
		do("announce", func() error {
			return p.app.announce(ctx, b, d, func(o announced) {
				if o.Outcome != announce.Unchanged.String() {
					p.app.tell("%s: %s", render.Text(o.text()), o.Outcome)
				}
			})
		})
	}
	serving.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
