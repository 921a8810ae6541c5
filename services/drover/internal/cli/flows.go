package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/engine/resource"
)

// flows are the verbs of the preset lifecycles that have a command of their own. A blueprint's own verbs are run by
// `drover do`.
var flows = []struct{ verb, short, of, leads, example string }{
	{"start", "Drive nodes to Started", "node", "to Started, by the states that the kind's blueprint names", "node/web"},
	{"shutdown", "Drive nodes to Off", "node", "to Off, by the states that the kind's blueprint names", "node/web"},
	{"deallocate", "Drive nodes to Deallocated", "node", "to Deallocated, by the states that the kind's blueprint names", "node/web"},
	{"terminate", "Drive nodes to Terminated", "node", "to Terminated, by the states that the kind's blueprint names", "node/web"},
	{"deploy", "Deploy services for the first time, or out of Error", "service", "each phase from Ready to Deployed", "service/shop"},
	{"redeploy", "Deploy services again as they are", "service", "each phase from Deployed to Deployed, as a first deployment would", "service/shop"},
	{"update", "Deploy services that were changed", "service", "each phase from Deployed to Deployed, by Pending_Update and Updating", "service/shop"},
	{
		"decom", "Take services out of service", "service",
		"each phase from Deployed to Retired, by its undo executor and in reverse order", "service/shop",
	},
	{"reactivate", "Make retired services ready for another deployment", "service", "each phase from Retired to Ready", "service/shop"},
	{
		"reconcile", "Make installations, executions and deploy items as their specs say", "installation, execution and deployitem",
		"to Succeeded, from the beginning of the path. Of a resource that is marked deleted, it is the deletion that goes on", "item/shop",
	},
}

func newFlows(a *App) []*cobra.Command {
	commands := make([]*cobra.Command, 0, len(flows))
	for _, f := range flows {
		cmd, _ := newVerb(a, f.verb, f.short,
			fmt.Sprintf("Start the flow %q of the lifecycle %s, or a flow of that name in a blueprint's own lifecycle.\nIt leads %s.",
				f.verb, f.of, f.leads),
			examples(f.verb, f.example))
		commands = append(commands, cmd)
	}
	return commands
}

func examples(verb, of string) string {
	kind, _, _ := strings.Cut(of, "/")
	one := fmt.Sprintf("  drover %s %s-1", verb, of)
	two := fmt.Sprintf("%s %s-2 --wait", one, of)
	return fmt.Sprintf(`%-[3]*[4]s  ask, and return once it was accepted
%[5]s  wait until it is done, or has failed
  drover %[1]s --all %[2]s --wait --timeout 5m
  drover %[1]s %[2]s -l rack=a -o json`, verb, kind, len(two), one, two)
}

func newDo(a *App) *cobra.Command {
	var with []string
	v := &verbCommand{app: a}
	v.args = func() (map[string]string, error) { return parseArgs(with) }
	cmd := &cobra.Command{
		Use:   "do VERB (KIND/NAME... | KIND (--all | -l SELECTOR))",
		Short: "Run any verb of a blueprint's lifecycle",
		Long: "Send any verb: those of a blueprint's own lifecycle, and those that have a command of their own too.\n\n" +
			targetHelp + "\n" + manyHelp,
		Example: `  drover do reboot node/web-1 --wait
  drover do reboot --all node
  drover do retry node/web-1 --arg scope=all`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkName("verb", args[0]); err != nil {
				return err
			}
			v.verb = args[0]
			if v.verb == resource.VerbApply {
				return usage("apply needs a manifest").withHint("use `drover apply -f FILE`")
			}
			return a.runner(v.run)(cmd, args[1:])
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return a.completeVerbs(cmd, toComplete)
			}
			return a.completeTargets(cmd, args[1:], toComplete)
		},
	}
	v.targetFlags.add(cmd)
	v.sendFlags.add(cmd)
	cmd.Flags().StringArrayVar(&with, "arg", nil, "argument of the verb as NAME=VALUE; may be given again")
	return cmd
}

func parseArgs(with []string) (map[string]string, error) {
	args := make(map[string]string, len(with))
	for _, w := range with {
		name, value, ok := strings.Cut(w, "=")
		if !ok || name == "" {
			return nil, usage("--arg: %q is not of the form NAME=VALUE", w)
		}
		if _, twice := args[name]; twice {
			return nil, usage("--arg: %q is given twice", name)
		}
		args[name] = value
	}
	return args, nil
}

func newRetry(a *App) *cobra.Command {
	cmd, v := newVerb(a, resource.VerbRetry, "Run the failed phases of resources again",
		"Run the failed phases again, under a new job. Their phase data is cleared. With --scope all every phase of the\npresent state runs again.",
		`  drover retry node/web-1 --wait
  drover retry --all node                those that have not failed refuse
  drover retry node/web-1 --scope all --wait`)
	scope := cmd.Flags().String("scope", "", "failed|all (default failed)")
	_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"failed", "all"}, cobra.ShellCompDirectiveNoFileComp))
	v.args = func() (map[string]string, error) {
		switch *scope {
		case "":
			return nil, nil
		case "failed", "all":
			return map[string]string{"scope": *scope}, nil
		}
		return nil, usage("--scope: %q is neither failed nor all", *scope)
	}
	return cmd
}

func newApprove(a *App) *cobra.Command {
	cmd, v := newVerb(a, resource.VerbApprove, "Let phases run that wait for a person",
		"Approve the phases of resources that are Gated (auto_deploy false): those that wait now, or the one that --phase\n"+
			"names. With --wait the command waits for the job that they hold up.",
		`  drover approve service/shop
  drover approve service/shop --phase port --wait
  drover approve --all service --phase port`)
	phase := cmd.Flags().String("phase", "", "the phase (default all that wait)")
	_ = cmd.RegisterFlagCompletionFunc("phase", a.completeGated)
	v.args = func() (map[string]string, error) {
		switch {
		case *phase != "":
			return map[string]string{"phase": *phase}, checkName("--phase", *phase)
		case cmd.Flags().Changed("phase"):
			return nil, usage("--phase is empty")
		}
		return nil, nil
	}
	// Approving is over at once; who waits means what was held up.
	v.job = func(s *resource.State) string {
		if j := s.Job(); j != nil {
			return j.ID
		}
		return ""
	}
	return cmd
}

func newCancel(a *App) *cobra.Command {
	cmd, v := newVerb(a, resource.VerbCancel, "Cancel what resources are at",
		"Cancel the jobs of resources. Phases that are out may end; nothing more is handed out. `drover jobs cancel ID`\ncancels by the job's id.",
		`  drover cancel node/web-1 --message "wrong size"
  drover cancel --all node --wait`)
	v.args = messageArg(cmd)
	return cmd
}

func newInterrupt(a *App) *cobra.Command {
	cmd, v := newVerb(a, resource.VerbInterrupt, "Give up calls of resources that hang",
		"Fail what is out without waiting for its answer. Answers that come later are refused.",
		`  drover interrupt node/web-1 --message "host is gone"`)
	v.args = messageArg(cmd)
	return cmd
}

func messageArg(cmd *cobra.Command) func() (map[string]string, error) {
	message := cmd.Flags().StringP("message", "m", "", "why, for those who read the history")
	return func() (map[string]string, error) {
		if *message == "" {
			return nil, nil
		}
		return map[string]string{"message": *message}, nil
	}
}

func newDelete(a *App) *cobra.Command {
	cmd, _ := newVerb(a, resource.VerbDelete, "Delete resources",
		"Delete resources: each is first driven along its lifecycle's flow of deletion, and is gone when that has\nsucceeded. "+
			"A blueprint is deleted when no resource of its kind is left; that takes some fifteen seconds, in which\nnone is created.",
		`  drover delete node/web-1 --wait         wait until it is gone
  drover delete node -l rack=a
  drover delete blueprint/node --wait`)
	cmd.Aliases = []string{"rm"}
	return cmd
}
