package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// isMachine reports whether a kind on the command line means machines, which are no resources.
func isMachine(kind string) bool {
	return kind == "machine" || kind == "machines" || kind == resource.MachineKind
}

// machineEntry is a machine with its current run, as their buckets hold them. A bucket trails the log, so the run may be one
// that the machine has left, or is yet to come.
type machineEntry struct {
	state machine.State
	body  []byte // the machine's event
}

func (e *machineEntry) item() item {
	return item{name: "machine/" + e.state.Name, json: func() ([]byte, error) {
		event, err := wire.EventJSON(e.body)
		if err != nil {
			return nil, err
		}
		why, err := render.Marshal(machine.Why(&e.state).Text)
		if err != nil {
			return nil, err
		}
		return append(append(append(event[:len(event)-1], `,"why":`...), why...), '}'), nil
	}}
}

func readMachineEntry(ctx context.Context, b bus.Readers, s bus.Stored) (machineEntry, error) {
	e, err := wire.DecodeMachine(s.Body)
	if err != nil {
		return machineEntry{}, fmt.Errorf("decode machine %s: %w", s.Entity.Name, err)
	}
	entry := machineEntry{state: e.State, body: s.Body}
	if e.State.CurrentJob == "" {
		return entry, nil
	}
	run, err := b.Get(ctx, bus.Entity{Family: bus.TaskRun, Project: s.Entity.Project, Name: e.State.CurrentJob})
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return entry, nil
	case err != nil:
		return entry, err
	}
	r, err := wire.DecodeTaskRun(run.Body)
	if err != nil {
		return entry, fmt.Errorf("decode task run %s: %w", e.State.CurrentJob, err)
	}
	entry.state.Run = &r.Run
	return entry, nil
}

// readMachines reads machines by their names, or all of the project.
func (a *App) readMachines(ctx context.Context, b Bus, names []string) (entries []machineEntry, err error) {
	if names == nil {
		err = b.List(ctx, bus.Machine, a.project, "", func(s bus.Stored) error {
			if s.Deleted {
				return nil
			}
			e, err := readMachineEntry(ctx, b, s)
			entries = append(entries, e)
			return err
		})
		slices.SortFunc(entries, func(x, y machineEntry) int { return natural(x.state.Name, y.state.Name) })
		return entries, err
	}
	for _, name := range names {
		s, err := b.Get(ctx, bus.Entity{Family: bus.Machine, Project: a.project, Name: name})
		if err != nil || s.Deleted {
			return nil, notFoundHint(fmt.Errorf("machine/%s in project %s: %w", name, a.project, absent(err)), target{kind: "machines", name: name})
		}
		e, err := readMachineEntry(ctx, b, s)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// machineNames are the names of MACHINE/NAME... or MACHINE NAME...; nil: all.
func machineNames(args []string) ([]string, error) {
	targets, err := namedTargets(args)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range targets {
		if !isMachine(t.kind) {
			return nil, usage("%s: machines are shown by themselves", t)
		}
		names = append(names, t.name)
	}
	return names, nil
}

// printMachines prints those of the names, or all, with -o json as what they are, and as text by write.
func (a *App) printMachines(ctx context.Context, names []string, write func([]machineEntry) error) error {
	ctx, b, cancel, err := a.patiently(ctx)
	defer cancel()
	if err != nil {
		return err
	}
	entries, err := a.readMachines(ctx, b, names)
	if err != nil {
		return err
	}
	items := make([]item, len(entries))
	for i := range entries {
		items[i] = entries[i].item()
	}
	return a.printItems(items, len(names) == 1, func() error { return write(entries) })
}

func (a *App) getMachines(ctx context.Context, args []string) error {
	names, err := machineNames(args)
	if err != nil {
		return err
	}
	return a.printMachines(ctx, names, func(entries []machineEntry) error {
		if len(entries) == 0 {
			a.tell("nothing there: no machine in project %s", render.Text(a.project))
			return nil
		}
		header := []string{"NAME", "CONDITION", "WORKFLOW", "STAGE", "TASK", "PLACE", "WHY"}
		if a.wide() {
			header = append(header, "BOOTENV", "CONTEXT", "UUID", "JOB")
		}
		t := render.NewTable(header...)
		for i := range entries {
			s := &entries[i].state
			row := []string{
				render.Text(s.Name), s.Condition().String(), dash(s.Workflow), dash(s.Stage), dash(taskOf(s)),
				fmt.Sprintf("%d of %d", s.CurrentTask, len(s.Tasks)), render.Text(machine.Why(s).Text),
			}
			if a.wide() {
				row = append(row, dash(s.BootEnv), dash(s.Context), render.Text(s.UUID), dash(s.CurrentJob))
			}
			t.Row(row...)
		}
		return t.Write(a.Out, "")
	})
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return render.Text(text)
}

// taskOf is the entry at the place.
func taskOf(s *machine.State) string {
	if s.CurrentTask < 0 || s.CurrentTask >= len(s.Tasks) {
		return ""
	}
	return s.Tasks[s.CurrentTask]
}

func (a *App) describeMachines(ctx context.Context, args []string) error {
	names, err := machineNames(args)
	if err != nil {
		return err
	}
	if names == nil {
		return usage("name the machine: machine/NAME")
	}
	return a.printMachines(ctx, names, func(entries []machineEntry) error {
		for i := range entries {
			if err := a.writeMachine(a.Out, &entries[i].state); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *App) writeMachine(w io.Writer, s *machine.State) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", a.paint.Bold(render.Text("machine/"+s.Name)))
	for _, f := range [][2]string{
		{"uuid", s.UUID}, {"condition", s.Condition().String()}, {"workflow", s.Workflow}, {"stage", s.Stage}, {"boot environment", s.BootEnv},
		{"context", s.Context}, {"description", s.Description},
	} {
		if f[1] != "" {
			fmt.Fprintf(&b, "  %-18s%s\n", f[0], render.Text(f[1]))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", a.paint.Bold("Tasks"))
	for i, entry := range s.Tasks {
		mark := "  "
		if i == s.CurrentTask {
			mark = "▸ "
		}
		state := ""
		if s.Run != nil && s.Run.Index == i && i == s.CurrentTask {
			state = "  " + s.Run.State.String() + "  job " + s.Run.ID
		}
		fmt.Fprintf(&b, "  %s%s%s\n", mark, render.Text(entry), render.Text(state))
	}
	if len(s.Tasks) == 0 {
		b.WriteString("  none\n")
	}
	if s.CurrentJob != "" {
		fmt.Fprintf(&b, "\n  %s drover logs --raw %s/%s\n", a.paint.Dim("log of the last job:"), bus.TaskRunOutput, render.Text(s.CurrentJob))
	}
	why := machine.Why(s)
	since := ""
	if !why.Since.IsZero() {
		since = a.paint.Dim("  since " + render.Age(a.Now(), why.Since))
	}
	fmt.Fprintf(&b, "\n%s\n  %s%s\n", a.paint.Bold("Why it is where it is"), render.Text(why.Text), since)
	_, err := io.WriteString(w, b.String())
	return err
}
