package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/follow"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newJobs(a *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "jobs",
		Aliases: []string{"job"},
		Short:   "See, wait for and cancel jobs",
		Long: `A job is what a user asked for: pending, running, and in the end succeeded, failed or canceled. Final jobs are kept
for seven days.`,
		Example: `  drover jobs list --state running
  drover jobs wait ltdjfdhvwgcxsmn4ssdm5jrsuu`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newJobsList(a), newJobsShow(a), newJobsWait(a), newJobsCancel(a))
	return cmd
}

// jobFilter narrows a list of jobs. The zero value holds all.
type jobFilter struct {
	states []job.State
	kind   string
	name   string
	newest int // 0: all
	// selection is the id of the selector command's job that started them; empty: whichever.
	selection string
}

func newJobsList(a *App) *cobra.Command {
	var states []string
	newest, selection := 0, ""
	cmd := &cobra.Command{
		Use:     "list [KIND | KIND/NAME]",
		Aliases: []string{"ls"},
		Short:   "List jobs, newest first",
		Example: `  drover jobs list
  drover jobs list --state running,pending
  drover jobs list node/web-1 -o wide
  drover jobs list --state failed -o name
  drover jobs list --selection ltdjfdhvwgcxsmn4ssdm5jrsuu   what a selector command has started`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeGet,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			f := jobFilter{newest: newest, selection: selection}
			if newest < 0 {
				return usage("--newest: %d is no number of jobs", newest)
			}
			for _, s := range states {
				state, err := parseJobState(s)
				if err != nil {
					return err
				}
				f.states = append(f.states, state)
			}
			if len(args) == 1 {
				targets, err := namedTargets(args)
				if err != nil {
					return err
				}
				f.kind = args[0]
				if len(targets) == 1 {
					f.kind, f.name = targets[0].kind, targets[0].name
				}
			}
			return a.listJobs(ctx, f)
		}),
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only jobs in these states: pending, running, succeeded, failed, canceled")
	cmd.Flags().StringVar(&selection, "selection", "", "only jobs that this selector command's job has started")
	cmd.Flags().IntVar(&newest, "newest", 0, "only so many (default all)")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(jobStateNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func jobStateNames() []string {
	var names []string
	for _, s := range job.States() {
		if s != job.None {
			names = append(names, s.String())
		}
	}
	return names
}

func parseJobState(name string) (job.State, error) {
	for _, s := range job.States() {
		if s != job.None && s.String() == name {
			return s, nil
		}
	}
	return job.None, usage("--state: %q is none of pending, running, succeeded, failed, canceled", name)
}

// jobEntry is one job as its bucket holds it.
type jobEntry struct {
	wire.JobEvent
	stored bus.Stored
}

func jobItem(e *jobEntry) item {
	return item{name: e.Record.ID, json: func() ([]byte, error) { return wire.EventJSON(e.stored.Body) }}
}

func decodeJob(s bus.Stored) (jobEntry, error) {
	event, err := wire.DecodeJob(s.Body)
	if err != nil {
		return jobEntry{}, fmt.Errorf("decode %s in bucket %s: %w", s.Entity.Key(), bus.Job.Bucket(), err)
	}
	return jobEntry{JobEvent: event, stored: s}, nil
}

func (a *App) listJobs(ctx context.Context, f jobFilter) error {
	ctx, b, cancel, err := a.patiently(ctx)
	defer cancel()
	if err != nil {
		return err
	}
	jobs, err := listJobEntries(ctx, b, a.project, f)
	if err != nil {
		return err
	}
	items := make([]item, len(jobs))
	for i := range jobs {
		items[i] = jobItem(&jobs[i])
	}
	return a.printItems(items, false, func() error {
		if len(jobs) == 0 {
			a.tell("nothing there: no such job in project %s", render.Text(a.project))
			return nil
		}
		return a.jobTable(jobs).Write(a.Out, "")
	})
}

// listJobEntries reads the jobs of a project, newest first.
func listJobEntries(ctx context.Context, b bus.Readers, project string, f jobFilter) ([]jobEntry, error) {
	var jobs []jobEntry
	err := b.List(ctx, bus.Job, project, "", func(s bus.Stored) error {
		if s.Deleted {
			return nil
		}
		e, err := decodeJob(s)
		if err != nil {
			return err
		}
		r := &e.Record
		if !r.Gone && (f.kind == "" || r.Kind == f.kind) && (f.name == "" || r.Name == f.name) &&
			(f.selection == "" || r.Ref.Selection == f.selection) &&
			(len(f.states) == 0 || slices.Contains(f.states, r.State)) {
			jobs = append(jobs, e)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list bucket %s: %w", bus.Job.Bucket(), err)
	}
	slices.SortFunc(jobs, func(x, y jobEntry) int {
		return cmp.Or(y.Record.AcceptedAt.Compare(x.Record.AcceptedAt), cmp.Compare(x.Record.ID, y.Record.ID))
	})
	if f.newest > 0 && len(jobs) > f.newest {
		jobs = jobs[:f.newest]
	}
	return jobs, nil
}

func (a *App) jobTable(jobs []jobEntry) *render.Table {
	header := []string{"JOB", "RESOURCE", "VERB", "STATE", "AGE", "RAN", "MESSAGE"}
	if a.wide() {
		header = []string{"JOB", "RESOURCE", "VERB", "TARGET", "STATE", "AGE", "RAN", "BY", "REQUEST", "MESSAGE"}
	}
	t := render.NewTable(header...)
	now := a.Now()
	for i := range jobs {
		r := &jobs[i].Record
		resource := render.Text(r.Kind + "/" + r.Name)
		age, ran, message := render.Age(now, r.AcceptedAt), runText(now, &r.Ref), render.Text(r.Message)
		if s := r.Selection; s != nil && !r.State.Final() {
			message = countsText(s)
		}
		if a.wide() {
			t.Row(r.ID, resource, render.Text(r.Verb), render.Text(r.Target), a.paintJob(r.State), age, ran,
				render.Text(r.RequestedBy), render.Text(r.RequestID), message)
			continue
		}
		t.Row(r.ID, resource, render.Text(r.Verb), a.paintJob(r.State), age, ran, render.Cut(message, 60))
	}
	return t
}

// readJob reads one job; a record that trails its answer is waited for.
func readJob(ctx context.Context, b Bus, project, id string, patience time.Duration) (jobEntry, error) {
	deadline := time.Now().Add(patience)
	for {
		s, err := b.Get(ctx, follow.JobEntity(project, id))
		if err == nil && !s.Deleted {
			return decodeJob(s)
		}
		err = absent(err)
		if !errors.Is(err, bus.ErrNotFound) || time.Now().After(deadline) {
			err = fmt.Errorf("job %s in project %s: %w", id, project, err)
			if errors.Is(err, bus.ErrNotFound) {
				return jobEntry{}, fail(ExitNotFound, "%w", err).withHint("`drover jobs list` lists what there is; final jobs are kept for 7 days")
			}
			return jobEntry{}, err
		}
		select {
		case <-ctx.Done():
			return jobEntry{}, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func newJobsShow(a *App) *cobra.Command {
	return &cobra.Command{
		Use:               "show ID...",
		Aliases:           []string{"get", "describe"},
		Short:             "Show jobs in full",
		Example:           `  drover jobs show ltdjfdhvwgcxsmn4ssdm5jrsuu`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeJobs,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			ctx, cancel := a.bounded(ctx, RequestTimeout)
			defer cancel()
			b, err := a.bus(ctx)
			if err != nil {
				return err
			}
			jobs := make([]jobEntry, len(args))
			items := make([]item, len(args))
			for i, id := range args {
				if jobs[i], err = readJob(ctx, b, a.project, id, 0); err != nil {
					return err
				}
				items[i] = jobItem(&jobs[i])
			}
			return a.printItems(items, len(args) == 1, func() error {
				for i := range jobs {
					if err := a.writeJob(ctx, b, &jobs[i], i > 0); err != nil {
						return err
					}
				}
				return nil
			})
		}),
	}
}

func (a *App) writeJob(ctx context.Context, b Bus, e *jobEntry, apart bool) error {
	s := &sheet{w: a.Out, paint: a.paint}
	if apart {
		s.line("")
	}
	r, now := &e.Record, a.Now()
	t := render.NewTable()
	t.Row(a.paint.Bold("Job"), render.Text(r.ID))
	t.Row(a.paint.Bold("State"), a.paintJob(r.State))
	t.Row(a.paint.Bold("Resource"), render.Text(r.Kind+"/"+r.Name))
	t.Row(a.paint.Bold("Project"), render.Text(r.Project))
	t.Row(a.paint.Bold("Verb"), render.Text(r.Verb))
	t.Row(a.paint.Bold("Target"), render.Text(r.Target))
	t.Row(a.paint.Bold("Accepted"), moment(now, r.AcceptedAt))
	t.Row(a.paint.Bold("Started"), moment(now, r.StartedAt))
	t.Row(a.paint.Bold("Ended"), moment(now, r.EndedAt))
	t.Row(a.paint.Bold("Ran"), runText(now, &r.Ref))
	t.Row(a.paint.Bold("Asked by"), render.Text(r.RequestedBy))
	t.Row(a.paint.Bold("Request"), render.Text(r.RequestID))
	t.Row(a.paint.Bold("Blueprint"), render.Text(r.Blueprint))
	if r.Ref.Selection != "" {
		t.Row(a.paint.Bold("Selection"), render.Text(r.Ref.Selection))
	}
	if s := r.Selection; s != nil {
		t.Row(a.paint.Bold("Selector"), selectorText(s))
		t.Row(a.paint.Bold("Stage"), s.Stage.String())
		t.Row(a.paint.Bold("Asked up to"), render.Text(s.Cursor))
		t.Row(a.paint.Bold("Resources"), countsText(s))
	}
	t.Row(a.paint.Bold("Message"), render.Text(r.Message))
	s.table(t, "")
	if sel := r.Selection; sel != nil {
		for _, f := range sel.Refusals {
			s.line("\n%s refused: %s: %s", render.Text(r.Kind+"/"+f.Name), render.Text(f.Code), render.Text(f.Message))
		}
		if more := int(sel.Refused) - len(sel.Refusals); more > 0 {
			s.line("\nand %d more refused", more)
		}
		return s.err
	}
	if r.State == job.Failed {
		for _, f := range failedPhases(ctx, b, *r) {
			s.line("\nphase %s failed in state %s, attempt %d: %s", render.Text(f.Phase), render.Text(f.State), f.Attempt, render.Text(f.Message))
		}
	}
	return s.err
}

func newJobsWait(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "wait ID...",
		Short: "Wait until jobs have ended; the exit code says how",
		Long: `Wait until all of the jobs have ended. The exit code is 0 if they succeeded, 5 if one failed, 6 if one was canceled,
7 if the time was up.`,
		Example: `  drover jobs wait ltdjfdhvwgcxsmn4ssdm5jrsuu --timeout 5m
  drover jobs wait $(drover jobs list --state running -o name)`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeJobs,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			b, err := a.bus(ctx)
			if err != nil {
				return err
			}
			return a.waitJobs(ctx, b, args)
		}),
	}
}

// waitJobs waits for jobs by their ids, and prints what became of them.
func (a *App) waitJobs(ctx context.Context, b Bus, ids []string) error {
	outcomes := make([]*outcome, 0, len(ids))
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		e, err := readJob(ctx, b, a.project, id, settleTimeout)
		if err != nil {
			return err
		}
		r := &e.Record
		t := target{kind: r.Kind, name: r.Name}
		outcomes = append(outcomes, &outcome{
			Resource: t.String(), Project: r.Project, Verb: r.Verb, Result: resultAccepted, JobID: id, target: t,
		})
	}
	if err := a.waitFor(ctx, b, outcomes); err != nil {
		return err
	}
	settle(ctx, b, outcomes)
	if err := a.printOutcomes(outcomes, len(ids) == 1, true); err != nil {
		return err
	}
	exit := ExitOK
	for _, o := range outcomes {
		exit = worse(exit, o.exit)
	}
	return exitWith(exit)
}

func newJobsCancel(a *App) *cobra.Command {
	var send sendFlags
	cmd := &cobra.Command{
		Use:   "cancel ID...",
		Short: "Cancel jobs",
		Long: `Cancel jobs by their ids. What is out may end; nothing more is handed out. A job that waits behind another is taken
out at once. With --wait the command returns when the jobs have ended. The job of a selector command (--all, -l) asks no
more resources then; what it has started goes on, unless --cascade is given.`,
		Example: `  drover jobs cancel ltdjfdhvwgcxsmn4ssdm5jrsuu --wait
  drover jobs cancel $(drover jobs list --state running -o name)`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeJobs,
	}
	message := messageArg(cmd)
	cascade := cmd.Flags().Bool("cascade", false, "of a selector command: cancel the jobs that it has started, too")
	send.add(cmd)
	cmd.RunE = a.runner(func(ctx context.Context, args []string) error {
		with, err := message()
		if err != nil {
			return err
		}
		return a.cancelJobs(ctx, args, with, *cascade, send)
	})
	return cmd
}

// jobTail is how much of a job's id tells the orders apart that cancel jobs of one resource.
const jobTail = 10

func (a *App) cancelJobs(ctx context.Context, ids []string, with map[string]string, cascade bool, flags sendFlags) error {
	b, err := a.bus(ctx)
	if err != nil {
		return err
	}
	var orders []order
	exit := ExitOK
	for _, id := range ids {
		e, err := readJob(ctx, b, a.project, id, settleTimeout)
		if err != nil {
			return err
		}
		r := &e.Record
		if cascade && r.Selection == nil {
			return usage("--cascade: job %s is not that of a selector command", id)
		}
		if r.State.Final() {
			a.tell("job %s: %s: it has %s already", render.Text(id), a.errPaint.Bad("refused"), pastOf(r.State))
			exit = worse(exit, ExitConflict)
			continue
		}
		t := target{kind: r.Kind, name: r.Name}
		body := wire.Command{Args: map[string]string{"job": id}}
		maps.Copy(body.Args, with)
		if cascade {
			body.Args[selection.ArgCascade] = "true"
		}
		orders = append(orders, order{target: t, verb: resource.VerbCancel, body: body, job: id, tail: id[:min(len(id), jobTail)]})
	}
	if len(orders) > 0 {
		if err := a.carryOut(ctx, [][]order{orders}, flags, len(ids) == 1); err != nil {
			exit = worse(exit, codeOf(err))
			var f *failure
			if !errors.As(err, &f) || !f.told {
				return err
			}
		}
	}
	return exitWith(exit)
}

func pastOf(s job.State) string {
	if s == job.Canceled {
		return "been canceled"
	}
	return s.String()
}
