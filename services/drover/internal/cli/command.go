package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// runner makes a RunE of a command whose time --timeout bounds.
func (a *App) runner(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := a.bounded(cmd.Context(), 0)
		defer cancel()
		return run(ctx, args)
	}
}

// sendFlags are those of every command that sends commands.
type sendFlags struct {
	wait      bool
	requestID string
}

func (f *sendFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.wait, "wait", "w", false, "wait until the jobs have ended, and show how they get on; the exit code says how")
	cmd.Flags().StringVar(&f.requestID, "request-id", "", "id of this request (default random): what was accepted under it is not done twice")
}

// verbCommand is a command that sends one verb to many resources.
type verbCommand struct {
	app *App
	targetFlags
	sendFlags
	verb string
	// args are the verb's arguments; nil: none.
	args func() (map[string]string, error)
	// job is the one that --wait waits for, of a resource as it stood before; empty, or nil: the verb's own.
	job func(*resource.State) string
}

// newVerb makes the cobra command of a verb that acts on resources.
func newVerb(a *App, verb, short, long, example string) (*cobra.Command, *verbCommand) {
	v := &verbCommand{app: a, verb: verb}
	cmd := &cobra.Command{
		Use:               verb + " KIND/NAME... | KIND (--all | -l SELECTOR)",
		Short:             short,
		Long:              long + "\n\n" + targetHelp + "\n" + manyHelp,
		Example:           example,
		RunE:              a.runner(v.run),
		ValidArgsFunction: a.completeTargets,
	}
	v.targetFlags.add(cmd)
	v.sendFlags.add(cmd)
	return cmd, v
}

func (v *verbCommand) run(ctx context.Context, args []string) error {
	var with map[string]string
	if v.args != nil {
		var err error
		if with, err = v.args(); err != nil {
			return err
		}
	}
	if v.many() {
		return v.runMany(ctx, args, with)
	}
	targets, err := v.resolve(ctx, v.app, args)
	if err != nil {
		return err
	}
	orders := make([]order, len(targets))
	for i, t := range targets {
		orders[i] = order{target: t, verb: v.verb, body: wire.Command{Args: with}}
		if v.wait && v.job != nil {
			if orders[i].job, err = v.jobOf(ctx, t); err != nil {
				return err
			}
		}
	}
	return v.app.carryOut(ctx, [][]order{orders}, v.sendFlags, len(orders) == 1)
}

// jobOf is the job of a resource that is to be waited for. Where there is no such resource, the command will say so.
func (v *verbCommand) jobOf(ctx context.Context, t target) (string, error) {
	b, err := v.app.bus(ctx)
	if err != nil {
		return "", err
	}
	e, err := getResource(ctx, b, v.app.project, t)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	}
	return v.job(&e.State), nil
}

// outcome is what became of an order, as it is printed. Times are in seconds.
type outcome struct {
	Resource  string `json:"resource"`
	Project   string `json:"project"`
	Verb      string `json:"verb"`
	Result    string `json:"result"` // accepted, refused, error, unknown, or with --wait the final state of the job
	JobID     string `json:"jobId,omitempty"`
	RequestID string `json:"requestId,omitempty"`
	Code      string `json:"code,omitempty"` // of a refusal
	Message   string `json:"message,omitempty"`
	// Violations are the fields for which it was refused.
	Violations []violation `json:"violations,omitempty"`
	// FailedPhases are why a job failed.
	FailedPhases []failedPhase `json:"failedPhases,omitempty"`
	Seconds      float64       `json:"seconds,omitempty"`
	// Selection is what a selector command came to; only with --wait.
	Selection *selected `json:"selection,omitempty"`

	exit     int
	target   target
	spec     []byte // of a manifest
	uid      string // of the resource, where its job was followed
	revision uint64 // of the resource, that the job's record is derived from
	record   job.Record
	counts   *selected // how a selection that is under way stands
}

type violation struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

type failedPhase struct {
	Phase   string `json:"phase"`
	State   string `json:"state"`
	Attempt uint32 `json:"attempt"`
	Message string `json:"message,omitempty"`
}

// Results of an outcome, beside the states of a job.
const (
	resultAccepted = "accepted"
	resultRefused  = "refused"
	resultError    = "error"
	resultWaiting  = "waiting" // the time was up before the job had ended

)

// carryOut sends orders, waits for their jobs where that was asked for, and prints what became of them. Of several
// groups, each is sent when all of the one before it have been answered. one says that one thing was asked for. also are
// jobs that are waited for beside those of the orders.
func (a *App) carryOut(ctx context.Context, groups [][]order, flags sendFlags, one bool, also ...*outcome) error {
	s, err := a.newSender(ctx, flags.requestID)
	if err != nil {
		return err
	}
	var outcomes []*outcome
	hints := map[string]bool{}
	for _, orders := range groups {
		s.sendAll(ctx, orders, func(ans answer) {
			o := a.outcomeOf(ans, s.idOf(&ans.order))
			outcomes = append(outcomes, o)
			if ans.err != nil {
				a.tellRefused(ans)
				if hint := hintOf(ans.err); hint != "" {
					hints[hint] = true
				}
			}
			if a.human() && !flags.wait && ans.err == nil {
				err = errors.Join(err, a.printOutcome(o))
			}
		})
	}
	if err != nil {
		return err
	}
	for _, hint := range slices.Sorted(maps.Keys(hints)) {
		a.tell("%s %s", a.errPaint.Dim("hint:"), render.Text(hint))
	}
	outcomes = append(outcomes, also...)
	var unfollowed error
	if flags.wait {
		unfollowed = a.waitFor(ctx, s.bus, outcomes)
	}
	if unfollowed == nil {
		settle(ctx, s.bus, outcomes)
	}
	// Whatever becomes of the waiting, the jobs are there: their ids are how one gets at them.
	if err := a.printOutcomes(outcomes, one, flags.wait); err != nil {
		return err
	}
	if unfollowed != nil {
		return unfollowed
	}
	exit := ExitOK
	for _, o := range outcomes {
		exit = worse(exit, o.exit)
	}
	return exitWith(exit)
}

func (a *App) outcomeOf(ans answer, requestID string) *outcome {
	project := ans.project
	if project == "" {
		project = a.project
	}
	o := &outcome{
		Resource: ans.target.String(), Project: project, Verb: ans.verb, Result: resultAccepted, JobID: ans.jobID,
		RequestID: requestID, target: ans.target,
	}
	if ans.job != "" {
		o.JobID = ans.job
	}
	if m := ans.body.Manifest; m != nil {
		o.spec = m.Spec
	}
	if ans.err == nil {
		return o
	}
	o.exit = codeOf(ans.err)
	o.Result, o.Message = resultError, ans.err.Error()
	var refused *refusedError
	if errors.As(ans.err, &refused) {
		o.Result, o.Code, o.Message = resultRefused, string(refused.refusal.Code), refused.refusal.Message
		for _, v := range refused.refusal.Violations {
			o.Violations = append(o.Violations, violation{Field: v.Field, Reason: v.Reason})
		}
	}
	return o
}

func (a *App) tellRefused(ans answer) {
	a.tell("%s: %s %s: %s", ans.safe(), render.Text(ans.verb), a.errPaint.Bad("refused"), render.Text(message(ans.err)))
	var refused *refusedError
	if errors.As(ans.err, &refused) {
		a.tellViolations("  ", refused, ans.place)
		if refused.refusal.Code == resource.Conflict {
			a.tell("  see `drover describe %s`", ans.safe())
		}
	}
}

// printOutcome prints one for people, on a line.
func (a *App) printOutcome(o *outcome) error {
	line := fmt.Sprintf("%s  %s %s", render.Text(o.Resource), render.Text(o.Verb), a.paintResult(o.Result))
	if o.Seconds > 0 {
		line += "  " + render.Span(seconds(o.Seconds))
	}
	if o.JobID != "" {
		line += a.paint.Dim("  job " + render.Text(o.JobID))
	}
	if o.Selection != nil {
		line += "  " + render.Text(o.Message)
	}
	return a.printf("%s\n", line)
}

func (a *App) paintResult(result string) string {
	switch result {
	case "succeeded", resultAccepted:
		return a.paint.Good(result)
	case "failed", resultRefused, resultError:
		return a.paint.Bad(result)
	default:
		return a.paint.Warn(result)
	}
}

// resourceLinesMax is of how many resources of a selector command people are shown each; of more only the counts.
const resourceLinesMax = 1000

// printOutcomes prints all of them at the end: for people only those that were waited for, because the others have
// been printed as they came.
func (a *App) printOutcomes(outcomes []*outcome, one, waited bool) error {
	items := make([]item, len(outcomes))
	for i, o := range outcomes {
		items[i] = item{name: o.Resource, json: jsonOf(o)}
	}
	return a.printItems(items, one, func() error {
		for _, o := range outcomes {
			if o.Selection != nil && len(o.Selection.Resources) <= resourceLinesMax {
				for _, made := range o.Selection.Resources {
					if err := a.printOutcome(made); err != nil {
						return err
					}
				}
			}
			if !waited || o.Result == resultRefused || o.Result == resultError {
				continue
			}
			if err := a.printOutcome(o); err != nil {
				return err
			}
		}
		return nil
	})
}
