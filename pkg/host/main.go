package host

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// Exit codes of Main (contract.md, "CLI"). A second signal exits with 128 and its number.
const (
	ExitOK    = 0
	ExitError = 1
	ExitUsage = 2
	exitKill  = 128
)

// stopGrace is what Main waits beyond Config.StopTimeout for a run that does not return.
const stopGrace = 2 * time.Second

// Main is the whole of a service's main: it reads flags and environment, runs the service until it fails or a signal
// asks it to stop, and returns the process's exit code. flags declare the service's own flags, beside those of Config;
// each can also be given as DROVER_<NAME>.
//
// With --healthcheck it runs nothing: it asks the process that runs with the same settings whether it is ready, for
// supervisors that know a command and no address (see Healthcheck).
//
// SIGINT and SIGTERM begin a graceful stop, which may take Config.StopTimeout. A second one ends it at once.
func Main(name string, run func(ctx context.Context, h *Host) error, flags ...func(*flag.FlagSet)) int {
	TuneCollector()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	p := process{
		program: filepath.Base(os.Args[0]), args: os.Args[1:], getenv: os.Getenv,
		stdout: os.Stdout, stderr: os.Stderr, signals: signals,
	}
	return p.main(name, run, flags...)
}

// process is what Main takes from the operating system.
type process struct {
	program        string
	args           []string
	getenv         func(string) string
	stdout, stderr io.Writer
	signals        <-chan os.Signal

	healthcheck bool // ask whether it is ready, instead of running it
}

func (p *process) main(name string, run func(ctx context.Context, h *Host) error, flags ...func(*flag.FlagSet)) int {
	config, code, done := p.configure(flags)
	if done {
		return code
	}
	if p.healthcheck {
		if err := Healthcheck(context.Background(), config.Listen); err != nil {
			fmt.Fprintf(p.stderr, "%s: %v\n", p.program, err)
			return ExitError
		}
		return ExitOK
	}
	log, err := NewLogger(p.stderr, config.LogLevel, config.LogFormat)
	if err != nil {
		fmt.Fprintln(p.stderr, err)
		return ExitUsage
	}
	h := New(Options{Name: name, Config: config, Log: log})
	h.log.Info("starting", zap.String("version", Version()), zap.Object("config", config))
	if crash != nil {
		h.log.Warn("a crash point is armed: this process will kill itself", zap.String("point", crash.name))
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- h.Run(ctx, run) }()

	var overdue <-chan time.Time // nil until the first signal
	for {
		select {
		case err := <-result:
			if err != nil {
				h.log.Error("failed", zap.Error(err))
				return ExitError
			}
			h.log.Info("stopped")
			return ExitOK
		case s := <-p.signals:
			if overdue != nil {
				h.log.Warn("stopping at once", zap.Stringer("signal", s))
				return exitCode(s)
			}
			h.log.Info("stopping", zap.Stringer("signal", s), zap.Duration("timeout", config.StopTimeout))
			timer := time.NewTimer(config.StopTimeout + stopGrace)
			defer timer.Stop()
			overdue = timer.C
			cancel()
		case <-overdue:
			h.log.Error("failed", zap.Error(fmt.Errorf("%w: the service does not return", ErrStopTimeout)))
			return ExitError
		}
	}
}

// configure reads flags over environment over defaults. done means that the process must end with code.
func (p *process) configure(flags []func(*flag.FlagSet)) (config Config, code int, done bool) {
	config = DefaultConfig()
	fs := flag.NewFlagSet(p.program, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	config.Flags(fs)
	fs.BoolVar(&p.healthcheck, "healthcheck", false, "ask the running service at --listen whether it is ready, and exit")
	showVersion := fs.Bool("version", false, "print the version and exit")
	for _, declare := range flags {
		declare(fs)
	}
	refuse := func(err error) (Config, int, bool) {
		fmt.Fprintf(p.stderr, "%s: %v\nSee %s --help.\n", p.program, err, p.program)
		return config, ExitUsage, true
	}
	err := fs.Parse(p.args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		p.help(fs)
		return config, ExitOK, true
	case err != nil:
		return refuse(err)
	case fs.NArg() > 0:
		return refuse(fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	case *showVersion:
		fmt.Fprintln(p.stdout, Version())
		return config, ExitOK, true
	}
	if err := errors.Join(applyEnvironment(fs, p.getenv), config.Validate(), errCrash); err != nil {
		return refuse(err)
	}
	return config, ExitOK, false
}

// help prints every flag with the variables that stand in for it.
func (p *process) help(fs *flag.FlagSet) {
	fmt.Fprintf(p.stdout, "Usage: %s [flags]\n\nFlags, and the environment variables that stand in for them:\n", p.program)
	fs.VisitAll(func(f *flag.Flag) {
		if _, ok := aliases[f.Name]; ok || action(f.Name) {
			return
		}
		value, usage := flag.UnquoteUsage(f)
		names := "--" + f.Name
		for alias, of := range aliases {
			if of == f.Name {
				names += ", -" + alias
			}
		}
		fmt.Fprintf(p.stdout, "  %s %s\n        %s\n        ", names, value, usage)
		if f.DefValue != "" {
			fmt.Fprintf(p.stdout, "default %s; ", f.DefValue)
		}
		fmt.Fprintln(p.stdout, strings.Join(environment(f.Name), ", "))
	})
	fmt.Fprint(p.stdout, "  --healthcheck\n        ask the running service at --listen whether it is ready, and exit: 0 if it is, else 1\n"+
		"  --version\n        print the version and exit\n")
}

// action reports whether a flag says what to do, not how: no variable stands in for it.
func action(flagName string) bool { return flagName == "healthcheck" || flagName == "version" }

func exitCode(s os.Signal) int {
	if number, ok := s.(syscall.Signal); ok {
		return exitKill + int(number)
	}
	return ExitError
}
