package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newWait(a *App) *cobra.Command {
	var sel targetFlags
	var condition string
	cmd := &cobra.Command{
		Use:   "wait (KIND/NAME... | KIND (--all | -l SELECTOR)) --for CONDITION",
		Short: "Wait until resources are where they should be",
		Long: `Wait until every one of the resources meets the condition:

  state=STATE   it is in the lifecycle state, and no job drives it any more
  deleted       it is gone
  job=ID        the job has ended; the exit code says how

It starts nothing, and waits also for resources that are not there yet. A phase that fails is told, and waited for: a
retry may mend it. Bound it by --timeout.

` + targetHelp,
		Example: `  drover wait node/web-1 --for state=Started --timeout 5m
  drover wait --all node --for state=Terminated
  drover wait node/web-1 --for deleted
  drover wait --for job=ltdjfdhvwgcxsmn4ssdm5jrsuu`,
		ValidArgsFunction: a.completeTargets,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			c, err := parseCondition(condition)
			if err != nil {
				return err
			}
			if c.job != "" {
				return a.waitForJob(ctx, c.job, args)
			}
			targets, err := sel.resolve(ctx, a, args)
			if err != nil {
				return err
			}
			return a.waitForAll(ctx, targets, c, len(targets) == 1 && !sel.all && sel.selector == "")
		}),
	}
	sel.add(cmd)
	cmd.Flags().StringVar(&condition, "for", "", "state=STATE, deleted, or job=ID")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(
		[]string{"state=", "deleted", "job="}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	return cmd
}

// condition is what is waited for: exactly one of its fields is set.
type condition struct {
	state   string
	deleted bool
	job     string
}

func parseCondition(s string) (condition, error) {
	name, value, _ := strings.Cut(s, "=")
	switch {
	case s == "":
		return condition{}, usage("--for is missing: state=STATE, deleted, or job=ID")
	case s == "deleted":
		return condition{deleted: true}, nil
	case name == "state" && value != "":
		return condition{state: value}, nil
	case name == "job" && value != "":
		return condition{job: value}, nil
	}
	return condition{}, usage("--for: %q is none of state=STATE, deleted, job=ID", s)
}

// waitForJob waits for a job that was named; arguments, if any, must be the resource that it is for.
func (a *App) waitForJob(ctx context.Context, id string, args []string) error {
	b, err := a.bus(ctx)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		targets, err := namedTargets(args)
		if err != nil {
			return err
		}
		e, err := readJob(ctx, b, a.project, id, settleTimeout)
		if err != nil {
			return err
		}
		if of := (target{kind: e.Record.Kind, name: e.Record.Name}); len(targets) != 1 || targets[0] != of {
			return usage("job %s is of %s", id, of)
		}
	}
	return a.waitJobs(ctx, b, []string{id})
}

// met is what waiting for one resource came to.
type met struct {
	Resource string `json:"resource"`
	Project  string `json:"project"`
	State    string `json:"state,omitempty"`
	Gone     bool   `json:"gone,omitempty"`
	Met      bool   `json:"met"`
	Why      string `json:"why,omitempty"` // where it stood when the time was up
}

func (a *App) waitForAll(ctx context.Context, targets []target, c condition, one bool) error {
	b, err := a.bus(ctx)
	if err != nil {
		return err
	}
	w := waiter{app: a, condition: c, met: make(map[target]*met, len(targets)), lives: map[target]string{}, failed: map[target]bool{}}
	results := make([]met, len(targets))
	for i, t := range targets {
		results[i] = met{Resource: t.String(), Project: a.project}
		w.met[t] = &results[i]
	}
	if len(targets) > 0 {
		err = awaitResources(ctx, b, a.project, targets, w.see)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return fail(ExitError, "interrupted")
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		return err
	}
	exit := ExitOK
	items := make([]item, len(results))
	for i := range results {
		items[i] = item{name: results[i].Resource, json: jsonOf(results[i])}
		if !results[i].Met {
			exit = ExitTimeout
		}
	}
	err = a.printItems(items, one, func() error {
		for i := range results {
			if err := a.printMet(&results[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return exitWith(exit)
}

func (a *App) printMet(m *met) error {
	state := render.Text(m.State)
	switch {
	case m.Gone:
		state = "gone"
	case m.State == "":
		state = "-"
	}
	if m.Met {
		return a.printf("%s  %s\n", render.Text(m.Resource), a.paint.Good(state))
	}
	return a.printf("%s  %s  %s  %s\n", render.Text(m.Resource), a.paint.Warn("timeout"), state, render.Text(m.Why))
}

// waiter judges resources by a condition.
type waiter struct {
	app *App
	condition
	met    map[target]*met
	lives  map[target]string // uid that each had when it was first seen
	failed map[target]bool
}

func (w *waiter) see(t target, e *entry) (bool, error) {
	m := w.met[t]
	if e == nil {
		m.State, m.Gone, m.Why = "", true, "there is no such resource"
		m.Met = w.deleted
		return m.Met, nil
	}
	s := &e.State
	if w.lives[t] == "" {
		w.lives[t] = s.UID
	}
	m.Gone, m.State, m.Why = false, s.State, whyText(s)
	if s.PhaseFailed && !w.failed[t] {
		w.app.tell("%s: %s", t.safe(), render.Text(m.Why))
	}
	w.failed[t] = s.PhaseFailed
	if w.deleted {
		m.Gone = s.UID != w.lives[t] || s.Gone // the name is another one's by now
		m.Met = m.Gone
	} else {
		m.Met = s.State == w.state && s.Job() == nil
	}
	return m.Met, nil
}

// whyText is why a resource is where it is, on a line.
func whyText(s *resource.State) string {
	var parts []string
	for _, r := range resource.Why(s) {
		parts = append(parts, r.Text)
	}
	return strings.Join(parts, "; ")
}
