//go:build unix

// Command fleet is the example fleet: its director, its nodes, and the phases by which Drover makes and removes them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/droverproject/drover/examples/fleet"
	"github.com/droverproject/drover/examples/fleet/internal/demo"
	"github.com/droverproject/drover/examples/fleet/internal/node"
	"github.com/droverproject/drover/examples/fleet/internal/phase"
	"github.com/droverproject/drover/examples/fleet/internal/site"
)

// Exit codes.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitInterrupted = 130
)

const usageText = `fleet is an example for Drover: a fleet of nodes, each a real process that serves HTTP on a port of its own.

  fleet demo     [--drover FILE] [--nodes N] [--timeout D] [--keep]    drive a fleet to Started and back, and check it
  fleet registry [--home FOLDER] [--nodes N]                           what a fleet needs around it, to play by hand
  fleet phase    NAME                                                  what Drover's runner calls (see blueprint.yaml)
  fleet node     --folder FOLDER                                       a node
`

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	if len(args) > 0 && args[0] == "demo" {
		signals = append(signals, syscall.SIGPIPE) // it has things to end when nobody reads any more
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	var err error
	switch command {
	case "demo":
		err = runDemo(ctx, args)
	case "registry":
		err = runRegistry(ctx, args)
	case "phase":
		err = runPhase(ctx, args)
	case "node":
		err = runNode(ctx, args)
	case "help", "-h", "--help":
		fmt.Print(usageText)
	default:
		fmt.Fprint(os.Stderr, usageText)
		return exitUsage
	}
	var wrong usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &wrong):
		fmt.Fprintf(os.Stderr, "fleet %s: %v\n", command, err)
		return exitUsage
	case errors.Is(err, errInterrupted) && !errors.Is(err, demo.ErrLeft):
		fmt.Fprintln(os.Stderr, "interrupted; nothing is left running")
		return exitInterrupted
	default:
		fmt.Fprintf(os.Stderr, "fleet %s: %v\n", command, err)
		return exitError
	}
}

type usageError struct{ error }

// errInterrupted: a signal ended the demo.
var errInterrupted = errors.New("interrupted")

// parse reads flags; positional is how many arguments follow them.
func parse(fs *flag.FlagSet, args []string, positional int) error {
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(os.Stdout)
		fs.Usage()
		return err
	}
	if err == nil && fs.NArg() != positional {
		err = fmt.Errorf("%d arguments, not %d", fs.NArg(), positional)
	}
	if err != nil {
		return usageError{err}
	}
	return nil
}

// nodesDefault is how many nodes a fleet has.
const nodesDefault = 48

// demoTimeout is when a demo is given up. It takes a tenth of it on a machine that has nothing else to do.
const demoTimeout = 3 * time.Minute

func runDemo(ctx context.Context, args []string) error {
	o := demo.Options{Out: os.Stdout, Terminal: isTerminal(os.Stdout)}
	fs := flag.NewFlagSet("fleet demo", flag.ContinueOnError)
	fs.StringVar(&o.Drover, "drover", "", "the drover program (default: the one beside this one, or else in the PATH)")
	fs.IntVar(&o.Nodes, "nodes", nodesDefault, fmt.Sprintf("how many nodes, %d to %d", fleet.NodesMin, fleet.NodesMax))
	fs.BoolVar(&o.Keep, "keep", false, "leave the folder with the manifests and the log of drover up")
	timeout := fs.Duration("timeout", demoTimeout, "give up after this long")
	if err := parse(fs, args, 0); err != nil {
		return err
	}
	if o.Nodes < fleet.NodesMin || o.Nodes > fleet.NodesMax {
		return usageError{fmt.Errorf("--nodes: %d is not %d to %d", o.Nodes, fleet.NodesMin, fleet.NodesMax)}
	}
	if o.Drover == "" {
		var err error
		if o.Drover, err = findDrover(); err != nil {
			return err
		}
	}
	// Not a child of ctx: its cause is to be ours.
	interruptible, interrupt := context.WithCancelCause(context.WithoutCancel(ctx))
	defer interrupt(nil)
	stop := context.AfterFunc(ctx, func() { interrupt(errInterrupted) })
	defer stop()
	bounded, cancel := context.WithTimeoutCause(interruptible, *timeout, fmt.Errorf("it was not done after %s", *timeout))
	defer cancel()
	return demo.Run(bounded, o)
}

// findDrover finds the drover program that belongs to this one.
func findDrover() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "drover")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("drover")
	if err != nil {
		return "", fmt.Errorf("no drover program beside this one or in the PATH; --drover names it: %w", err)
	}
	return path, nil
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

func runRegistry(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("fleet registry", flag.ContinueOnError)
	path := fs.String("home", ".fleet", "folder that the fleet lives in; made where it is not there")
	nodes := fs.Int("nodes", 8, fmt.Sprintf("how many nodes the manifests hold, %d to %d", fleet.NodesMin, fleet.NodesMax))
	if err := parse(fs, args, 0); err != nil {
		return err
	}
	s, err := site.Open(ctx, *path, *nodes)
	if err != nil {
		return err
	}
	fmt.Printf(`The registry serves on %s/nodes. Ctrl-C ends it, and the nodes with it.

In a second terminal, with fleet in the PATH of the runner:

  PATH=%s:$PATH drover up

In a third one:

  drover apply -f %s -f %s
  drover start node --all --wait
  drover describe node/%s
`, s.URL, s.Home.Bin(), s.Blueprint, s.Manifests, s.Nodes[s.Broken].Name)
	select {
	case err = <-s.Served():
	case <-ctx.Done():
	}
	return errors.Join(err, s.Close())
}

func runPhase(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("fleet phase", flag.ContinueOnError)
	if err := parse(fs, args, 1); err != nil {
		return err
	}
	return phase.Run(ctx, fs.Arg(0), os.Getenv, os.Stdout)
}

func runNode(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("fleet node", flag.ContinueOnError)
	folder := fs.String("folder", "", "folder with its configuration")
	if err := parse(fs, args, 0); err != nil {
		return err
	}
	if *folder == "" {
		return usageError{errors.New("--folder is missing")}
	}
	return node.Run(ctx, *folder, os.Stderr)
}
