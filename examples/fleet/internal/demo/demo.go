//go:build unix

// Package demo is the director of `fleet demo`: it starts `drover up`, does with the `drover` command line what a user
// would do, shows how it gets on, and looks for itself whether it is true. It knows nothing of Drover but its commands,
// its manifests, and the JSON that it prints.
//
// # Nothing is left
//
// Whatever happens, Run ends what it has started before it returns: `drover up` first, so that nothing new is begun; then
// the nodes, by their locks (package process); then it looks for anything that still bears the mark of this fleet, and
// removes the folder. If the demo itself is killed, the kernel frees the lock of the home, for which every node waits,
// and on Linux sends SIGTERM to `drover up`; the folder of files is then removed by the next demo.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/droverproject/drover/examples/fleet"
	"github.com/droverproject/drover/examples/fleet/internal/flock"
	"github.com/droverproject/drover/examples/fleet/internal/home"
	"github.com/droverproject/drover/examples/fleet/internal/phase"
	"github.com/droverproject/drover/examples/fleet/internal/process"
	"github.com/droverproject/drover/examples/fleet/internal/site"
)

// homePrefix is how the temporary folders of demos are called.
const homePrefix = "drover-fleet-"

// exitJobFailed is the exit code of `drover` where a job that was waited for has failed (contract.md, "CLI").
const exitJobFailed = 5

// feedTimeout bounds the wait for the live feed to begin.
const feedTimeout = 10 * time.Second

// Options of Run.
type Options struct {
	Drover   string // path of the drover program
	Nodes    int    // fleet.NodesMin to fleet.NodesMax
	Keep     bool   // leave the folder with the manifests and logs
	Out      io.Writer
	Terminal bool // Out is a terminal
}

// demo is one run.
type demo struct {
	Options
	screen *screen
	site   *site.Site
	server *server
	cli    cli
	feed   *feed
	ports  []int // that the nodes had
	began  time.Time

	followed chan struct{} // closed when the feed has ended; nil before it began
}

// ErrLeft means that something that was started could not be ended, or is left.
var ErrLeft = errors.New("not all could be ended")

// Run drives a fleet to Started and back to nothing. It returns nil only if everything was as it should be, and nothing
// is left. Where ctx ends it, the error is ctx's cause.
func Run(ctx context.Context, o Options) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d := &demo{Options: o, feed: newFeed(), began: time.Now()}
	d.screen = &screen{out: o.Out, terminal: o.Terminal, broken: func(err error) { cancel(fmt.Errorf("nobody reads any more: %w", err)) }}
	if o.Drover, err = filepath.Abs(o.Drover); err != nil {
		return err
	}
	if _, err := os.Stat(o.Drover); err != nil {
		return fmt.Errorf("the drover program: %w", err)
	}
	sweep(os.TempDir())
	folder, err := os.MkdirTemp("", homePrefix)
	if err != nil {
		return err
	}
	if d.site, err = site.Open(ctx, folder, o.Nodes); err != nil {
		return errors.Join(err, os.RemoveAll(folder))
	}
	defer func() {
		if err != nil && ctx.Err() != nil { // what failed is what came of it
			err = context.Cause(ctx)
		}
		cancel(err)
		err = errors.Join(err, d.tearDown(err == nil))
	}()
	d.screen.say("%s", d.screen.bold(fmt.Sprintf("A fleet of %d nodes, each a process of its own with a port of its own", o.Nodes)))
	d.screen.say("Its home is %s, and its registry %s.", folder, d.site.URL)
	if err := d.up(ctx, o.Drover, cancel); err != nil {
		return err
	}
	return d.story(ctx)
}

// sweep removes the homes of demos that were killed: those of this user that nobody keeps.
func sweep(folder string) {
	homes, err := filepath.Glob(filepath.Join(folder, homePrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range homes {
		h, err := home.Open(path)
		if err != nil {
			continue // one that is being made has no lock yet
		}
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() {
			continue
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Getuid() {
			continue
		}
		lock, err := flock.Take(h.LockFile())
		if err != nil {
			continue
		}
		_ = os.RemoveAll(path) // the next demo tries again
		lock.Close()
	}
}

// up starts Drover, and has the demo end when it does.
func (d *demo) up(ctx context.Context, program string, cancel context.CancelCauseFunc) error {
	d.screen.command(upArgs...)
	began := time.Now()
	var err error
	if d.server, err = startServer(ctx, program, d.site.Home); err != nil {
		return err
	}
	go func() {
		select {
		case <-d.server.done:
			cancel(fmt.Errorf("drover up has ended in the middle: %w%s", errors.Join(errors.New("it was not asked to"), d.server.err), d.server.tail()))
		case err := <-d.site.Served():
			cancel(fmt.Errorf("the registry has ended in the middle: %w", err))
		case <-ctx.Done():
		}
	}()
	d.cli = cli{program: program, server: d.server.url, env: environment(d.site.Home)}
	d.screen.say("  ready after %s: all services in process %d, on %s", since(began), d.server.pid, d.server.url)
	return nil
}

func since(t time.Time) string { return fmt.Sprintf("%.1f s", time.Since(t).Seconds()) }

// story is what a user would do, from nothing and back.
func (d *demo) story(ctx context.Context) error {
	for _, chapter := range []func(context.Context) error{d.apply, d.start, d.mend, d.look, d.terminate} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	// Deletion may take the way back once more, so the table is of what was seen before.
	seen := d.feed.tracks()
	states, err := d.states(ctx)
	if err != nil {
		return err
	}
	if err := d.remove(ctx); err != nil {
		return err
	}
	d.screen.say("\n%s", d.screen.bold("What became of each node (seconds from a phase's hand-out until it was completed; a dot was skipped)"))
	d.screen.say("%s", strings.TrimRight(table(d.site.Nodes, seen), "\n"))
	d.totals(seen, states)
	return nil
}

// do runs a command line, shown as a user would type it.
func (d *demo) do(ctx context.Context, code int, args ...string) (result, error) {
	r, err := d.cli.run(ctx, append(args, "-o", "json")...)
	if err != nil {
		return r, err
	}
	return r, r.expect(code)
}

func (d *demo) apply(ctx context.Context) error {
	d.screen.command("apply", "-f", "blueprint.yaml", "-f", "nodes.yaml")
	began := time.Now()
	if _, err := d.do(ctx, 0, "apply", "-f", d.site.Blueprint, "-f", d.site.Manifests); err != nil {
		return err
	}
	d.screen.say("  a blueprint and %d nodes after %s; applying starts nothing", len(d.site.Nodes), since(began))
	return d.follow(ctx)
}

// follow begins to follow the events, and waits until all nodes were seen.
func (d *demo) follow(ctx context.Context) error {
	cmd := d.cli.command(ctx, "events", "node", "-f", "--tail", "-1", "-o", "jsonl")
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout = in
	ended, err := start(cmd)
	in.Close()
	if err != nil {
		out.Close()
		return err
	}
	d.followed = make(chan struct{})
	go func() {
		defer close(d.followed)
		defer out.Close()
		err := d.feed.read(out)
		if err = errors.Join(err, <-ended); err != nil && ctx.Err() == nil { // else it was ended
			d.screen.say("  the live feed has ended: %v", err)
		}
	}()
	limit := time.NewTimer(feedTimeout)
	defer limit.Stop()
	for d.feed.count() < len(d.site.Nodes) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			return fmt.Errorf("`drover events -f` has shown %d of %d nodes after %s", d.feed.count(), len(d.site.Nodes), feedTimeout)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// outcome is what `drover VERB --wait -o json` prints of a resource; with --all, as the selection's resources.
type outcome struct {
	Resource     string `json:"resource"`
	Result       string `json:"result"`
	Message      string `json:"message"`
	FailedPhases []struct {
		Phase   string `json:"phase"`
		Message string `json:"message"`
	} `json:"failedPhases"`
}

func (d *demo) start(ctx context.Context) error {
	d.screen.command("start", "node", "--all", "--wait")
	began := time.Now()
	end := d.screen.follow(d.feed)
	r, err := d.do(ctx, exitJobFailed, "start", "node", "--all", "--wait")
	end()
	if err != nil {
		return err
	}
	var many struct {
		Selection struct {
			Resources []outcome `json:"resources"`
		} `json:"selection"`
	}
	if err := json.Unmarshal(r.stdout, &many); err != nil {
		return fmt.Errorf("what `drover start` prints: %w", err)
	}
	outcomes := many.Selection.Resources
	broken := "node/" + d.site.Nodes[d.site.Broken].Name
	var f findings
	if len(outcomes) != len(d.site.Nodes) {
		f.add("`drover start` tells of %d nodes, not %d", len(outcomes), len(d.site.Nodes))
	}
	for _, o := range outcomes {
		want := "succeeded"
		if o.Resource == broken {
			want = "failed"
		}
		if o.Result != want {
			f.add("%s: its job has %s, and should have %s %s %+v", o.Resource, o.Result, want, o.Message, o.FailedPhases)
		}
	}
	if err := f.err(); err != nil {
		return err
	}
	d.screen.say("  %d of %d nodes are Started after %s; %s has failed, as it was meant to",
		len(outcomes)-1, len(outcomes), since(began), broken)
	return nil
}

// mend has Drover say why a node has failed, mends its spec, and retries it.
func (d *demo) mend(ctx context.Context) error {
	n := d.site.Nodes[d.site.Broken]
	name := "node/" + n.Name
	d.screen.command("describe", name)
	r, err := d.cli.run(ctx, "describe", name)
	if err == nil {
		err = r.expect(0)
	}
	if err != nil {
		return err
	}
	why := section(string(r.stdout), "Why it is where it is")
	if reason := fmt.Sprintf("there is no page %q", n.Page); !strings.Contains(why, reason) {
		return fmt.Errorf("`drover describe %s` does not say why it has failed (%s):\n%s", name, reason, r.stdout)
	}
	d.screen.indented("…\n" + section(string(r.stdout), "Phases") + "…\n" + why)

	n.Page = fleet.PageMended
	mended, err := d.site.Write("mended.yaml", []fleet.Node{n})
	if err != nil {
		return err
	}
	d.screen.command("apply", "-f", "mended.yaml", " # page: "+fleet.PageBroken+" → "+fleet.PageMended)
	if _, err := d.do(ctx, 0, "apply", "-f", mended); err != nil {
		return err
	}
	d.screen.command("retry", name, "--wait")
	began := time.Now()
	if _, err := d.do(ctx, 0, "retry", name, "--wait"); err != nil {
		return err
	}
	d.site.Nodes[d.site.Broken] = n
	states, err := d.states(ctx)
	if err != nil {
		return err
	}
	if err := checkMended(states[n.Name]); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	d.screen.say("  %s is Started after %s: configure has run again, and nothing that had been completed", name, since(began))
	return nil
}

// section is a part of what describe prints: from its heading to the next empty line.
func section(text, heading string) string {
	_, rest, ok := strings.Cut("\n"+text, "\n"+heading+"\n")
	if !ok {
		return ""
	}
	rest, _, _ = strings.Cut(rest, "\n\n")
	return heading + "\n" + strings.TrimRight(rest, "\n") + "\n"
}

// states reads where the nodes stand.
func (d *demo) states(ctx context.Context) (map[string]state, error) {
	r, err := d.do(ctx, 0, "get", "node")
	if err != nil {
		return nil, err
	}
	var events []event
	if err := json.Unmarshal(r.stdout, &events); err != nil {
		return nil, fmt.Errorf("what `drover get` prints: %w", err)
	}
	states := make(map[string]state, len(events))
	for _, e := range events {
		states[e.Name] = e.State
	}
	return states, nil
}

// look asks the nodes themselves whether they are there.
func (d *demo) look(ctx context.Context) error {
	states, err := d.states(ctx)
	if err != nil {
		return err
	}
	d.ports = nil
	for _, st := range states {
		d.ports = append(d.ports, st.Attributes.Port)
	}
	if err := checkStarted(ctx, d.site, d.site.Nodes, states); err != nil {
		return err
	}
	n := len(d.site.Nodes)
	d.screen.say("\nSeen from outside: %d processes, each of which has answered on its port; %d entries in the registry.", n, n)
	return nil
}

func (d *demo) terminate(ctx context.Context) error {
	d.screen.command("terminate", "node", "--all", "--wait")
	began := time.Now()
	end := d.screen.follow(d.feed)
	_, err := d.do(ctx, 0, "terminate", "node", "--all", "--wait")
	end()
	if err != nil {
		return err
	}
	states, err := d.states(ctx)
	if err != nil {
		return err
	}
	if err := checkTerminated(d.site, d.site.Nodes, states, d.ports); err != nil {
		return err
	}
	d.screen.say("  all %d nodes are Terminated after %s, each withdrawn, stopped and released in this order", len(states), since(began))
	d.screen.say("\nSeen from outside: no process, no port, no folder, no entry in the registry.")
	return nil
}

// remove has Drover forget the nodes.
func (d *demo) remove(ctx context.Context) error {
	d.screen.command("delete", "node", "--all", "--wait")
	began := time.Now()
	end := d.screen.follow(d.feed)
	_, err := d.do(ctx, 0, "delete", "node", "--all", "--wait")
	end()
	if err != nil {
		return err
	}
	states, err := d.states(ctx)
	if err != nil {
		return err
	}
	if len(states) > 0 {
		return fmt.Errorf("drover still knows %d nodes after they were deleted", len(states))
	}
	d.screen.say("  Drover knows none of them any more after %s", since(began))
	return nil
}

// totals sums up what was done until the nodes were Terminated.
func (d *demo) totals(seen map[string]track, states map[string]state) {
	run, skipped, events, atOnce := 0, 0, uint64(0), 0
	for name, st := range states {
		events += st.Revision
		for _, p := range st.Phases {
			run += p.Attempt
			if p.Status == statusSkipped {
				skipped++
			}
		}
		if t, ok := seen[name]; ok && t.atOnce("allocate-folder", "allocate-port") {
			atOnce++
		}
	}
	d.screen.say("\n%d nodes · %d phases run, %d skipped · %d events · allocate-folder and allocate-port at once on %d nodes",
		len(d.site.Nodes), run, skipped, events, atOnce)
}

// tearDown ends all that was started and removes the home. It returns what could not be ended, or is left.
func (d *demo) tearDown(ok bool) error {
	h := d.site.Home
	var wrong []error
	if d.server != nil { // nothing new begins from here on
		wrong = append(wrong, d.server.stop())
	}
	if d.followed != nil {
		<-d.followed
	}
	wrong = append(wrong, stopNodes(h), d.site.Close())
	reserved, err := h.Reserved()
	wrong = append(wrong, err)
	for port := range reserved { // where it was interrupted
		d.ports = append(d.ports, port)
	}
	wrong = append(wrong, checkGone(h, d.ports, goneTimeout))
	if !d.Keep {
		wrong = append(wrong, os.RemoveAll(string(h)))
	}
	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	if !ok {
		return nil
	}
	if d.Keep {
		d.screen.say("Nothing is left after %s but the files in %s.", since(d.began), h)
	} else {
		d.screen.say("Nothing is left after %s: no process, no port, no folder.", since(d.began))
	}
	return nil
}

// stopNodes ends the nodes that still run, which only an interrupted or failed demo has.
func stopNodes(h home.Home) error {
	names, err := h.Folders()
	if err != nil {
		return err
	}
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			if _, err := process.Stop(context.Background(), h.Node(name), phase.StopGrace); err != nil {
				errs[i] = fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
