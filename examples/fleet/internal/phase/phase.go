//go:build unix

// Package phase carries out the phases of blueprint.yaml whose executor is a script: the runner starts `fleet phase NAME`
// and tells it by its environment for which node (services/runner, package script).
//
// Each may run twice: a runner that is killed between the work and its answer is followed by one that does the work
// again. So each finds what is done already, and undoing what is not there is no failure. Failures are one line on
// stderr, which `drover describe` shows.
package phase

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/droverproject/drover/examples/fleet/internal/home"
	"github.com/droverproject/drover/examples/fleet/internal/node"
	"github.com/droverproject/drover/examples/fleet/internal/process"
)

// Limits.
const (
	SpecBytesMax = 256 << 10
	// StopGrace is how long a node may take to end by itself. The timeout of the phase must exceed it.
	StopGrace = 3 * time.Second
)

// spec is a node's spec, as nodes.yaml gives it.
type spec struct {
	Home     string     `json:"home"`     // folder that the fleet lives in
	Registry string     `json:"registry"` // URL; the phases announce and withdraw use it
	Ports    home.Range `json:"ports"`    // from which the node's port is taken
	Page     string     `json:"page"`     // which of the pages it shows
	Greeting string     `json:"greeting"`
	Motd     string     `json:"motd"`
	Warmup   string     `json:"warmup"` // how long it takes until it is healthy, as in 150ms
}

// attributes are what the phases keep of a node from call to call.
type attributes struct {
	Folder string `json:"folder"`
	Port   int    `json:"port"`
}

// call is one call of a phase.
type call struct {
	home       home.Home
	name       string // of the node
	rack       string
	spec       spec
	attributes attributes
	out        io.Writer
	set        map[string]any // attributes to set; nil removes one
}

// phases are all there are, by name.
var phases = map[string]func(context.Context, *call) error{
	"allocate-folder": allocateFolder,
	"allocate-port":   allocatePort,
	"configure":       configure,
	"motd":            motd,
	"launch":          launch,
	"stop":            stop,
	"release-port":    releasePort,
	"release-folder":  releaseFolder,
}

// Names lists the phases.
func Names() []string { return slices.Sorted(maps.Keys(phases)) }

// ErrUnknown means that no phase has this name.
var ErrUnknown = errors.New("no phase of this name")

// Run carries out one phase for the node that getenv tells of. It says on out what it has done.
func Run(ctx context.Context, name string, getenv func(string) string, out io.Writer) error {
	carryOut, ok := phases[name]
	if !ok {
		return fmt.Errorf("%q: %w; there are %s", name, ErrUnknown, strings.Join(Names(), ", "))
	}
	c, err := read(getenv)
	if err != nil {
		return err
	}
	c.out = out
	if err := carryOut(ctx, c); err != nil {
		return err
	}
	return c.write(getenv("DROVER_RESULT"))
}

// read reads what the runner tells.
func read(getenv func(string) string) (*call, error) {
	c := &call{name: getenv("DROVER_NAME"), set: map[string]any{}}
	if err := home.CheckName(c.name); err != nil {
		return nil, fmt.Errorf("DROVER_NAME: %w", err)
	}
	path := getenv("DROVER_SPEC_FILE")
	if path == "" {
		return nil, errors.New("DROVER_SPEC_FILE is not set: phases are started by Drover's runner")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d := json.NewDecoder(io.LimitReader(f, SpecBytesMax))
	d.DisallowUnknownFields()
	if err := d.Decode(&c.spec); err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	if c.home, err = home.Open(c.spec.Home); err != nil {
		return nil, fmt.Errorf("spec.home: %w", err)
	}
	if text := getenv("DROVER_ATTRIBUTES"); text != "" {
		if err := json.Unmarshal([]byte(text), &c.attributes); err != nil {
			return nil, fmt.Errorf("DROVER_ATTRIBUTES: %w", err)
		}
	}
	c.rack = getenv("RACK")
	return c, nil
}

// write hands the attributes to the runner.
func (c *call) write(path string) error {
	if len(c.set) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"attributes": c.set})
	if err != nil {
		return err
	}
	if path == "" {
		return errors.New("DROVER_RESULT is not set: phases are started by Drover's runner")
	}
	return os.WriteFile(path, body, 0o600)
}

func (c *call) folder() string { return c.home.Node(c.name) }

func allocateFolder(_ context.Context, c *call) error {
	if err := os.MkdirAll(c.folder(), 0o700); err != nil {
		return err
	}
	fmt.Fprintln(c.out, "folder", c.folder())
	c.set["folder"] = c.folder()
	return nil
}

func allocatePort(_ context.Context, c *call) error {
	port, err := c.home.Reserve(c.name, c.spec.Ports)
	if err != nil {
		return fmt.Errorf("spec.ports: %w", err)
	}
	fmt.Fprintln(c.out, "port", port)
	c.set["port"] = port
	return nil
}

// pages are the pages that a node may show.
var pages = map[string]*template.Template{
	"plain":   template.Must(template.New("plain").Parse("{{.Greeting}}\n")),
	"welcome": template.Must(template.New("welcome").Parse("Welcome to {{.Name}}{{with .Rack}} in rack {{.}}{{end}}, on port {{.Port}}.\n{{.Greeting}}\n")),
}

func configure(_ context.Context, c *call) error {
	page, ok := pages[c.spec.Page]
	if !ok {
		return fmt.Errorf("spec.page: there is no page %q; there are %s", c.spec.Page, strings.Join(slices.Sorted(maps.Keys(pages)), ", "))
	}
	var warmup time.Duration
	if c.spec.Warmup != "" {
		var err error
		if warmup, err = time.ParseDuration(c.spec.Warmup); err != nil {
			return fmt.Errorf("spec.warmup: %w", err)
		}
	}
	config := node.Config{
		Name: c.name, Rack: c.rack, Port: c.attributes.Port, WarmupMillis: warmup.Milliseconds(), Lifeline: c.home.LockFile(),
	}
	if err := config.Check(); err != nil {
		return err
	}
	body, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := page.Execute(&text, struct {
		node.Config
		Greeting string
	}{config, c.spec.Greeting}); err != nil {
		return err
	}
	if c.spec.Motd == "" { // of an earlier spec; the phase motd is skipped
		if err := os.Remove(filepath.Join(c.folder(), node.MotdFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := c.writeFile(node.PageFile, text.Bytes()); err != nil {
		return err
	}
	return c.writeFile(node.ConfigFile, append(body, '\n'))
}

func motd(_ context.Context, c *call) error {
	return c.writeFile(node.MotdFile, []byte(c.spec.Motd+"\n"))
}

// writeFile writes a file in the node's folder whole or not at all.
func (c *call) writeFile(name string, body []byte) error {
	if len(body) > node.FileBytesMax {
		return fmt.Errorf("%s has more than %d bytes", name, node.FileBytesMax)
	}
	path := filepath.Join(c.folder(), name)
	fresh, err := os.CreateTemp(c.folder(), name+".*")
	if err != nil {
		return err
	}
	_, err = fresh.Write(body)
	err = errors.Join(err, fresh.Close())
	if err == nil {
		err = os.Rename(fresh.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(fresh.Name()))
	}
	fmt.Fprintln(c.out, "wrote", path)
	return nil
}

func launch(ctx context.Context, c *call) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	pid, already, err := process.Launch(ctx, c.folder(), []string{self, "node", "--folder", c.folder()}, environment())
	if err != nil {
		return err
	}
	if already {
		fmt.Fprintln(c.out, "it runs already, as process", pid)
	} else {
		fmt.Fprintln(c.out, "process", pid)
	}
	c.set["pid"] = pid
	return nil
}

// environment is what a node gets of the runner's.
func environment() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "LANG", "TMPDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func stop(ctx context.Context, c *call) error {
	ended, err := process.Stop(ctx, c.folder(), StopGrace)
	switch {
	case err != nil:
		return err
	case ended.PID == 0:
		fmt.Fprintln(c.out, "no process runs")
	case ended.Killed:
		fmt.Fprintf(c.out, "process %d was killed: it did not end within %s\n", ended.PID, StopGrace)
	default:
		fmt.Fprintf(c.out, "process %d has ended\n", ended.PID)
	}
	c.set["pid"] = nil
	return nil
}

func releasePort(_ context.Context, c *call) error {
	n, err := c.home.Release(c.name)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%d ports released\n", n)
	c.set["port"] = nil
	return nil
}

func releaseFolder(_ context.Context, c *call) error {
	pid, err := process.Running(c.folder())
	if err != nil {
		return err
	}
	if pid != 0 {
		return fmt.Errorf("process %d runs in %s", pid, c.folder())
	}
	if err := os.RemoveAll(c.folder()); err != nil {
		return err
	}
	fmt.Fprintln(c.out, "removed", c.folder())
	c.set["folder"] = nil
	return nil
}
