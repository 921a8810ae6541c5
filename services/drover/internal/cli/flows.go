package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/engine/resource"
)

// flows are the verbs of the preset lifecycles that have a command of their own. A blueprint's own verbs are run by
// `drover do`.
var flows = []struct{ verb, short, target string }{
	{"start", "Drive resources to Started", "Started"},
	{"shutdown", "Drive resources to Off", "Off"},
	{"deallocate", "Drive resources to Deallocated", "Deallocated"},
	{"terminate", "Drive resources to Terminated", "Terminated"},
}

func newFlows(a *App) []*cobra.Command {
	commands := make([]*cobra.Command, 0, len(flows))
	for _, f := range flows {
		cmd, _ := newVerb(a, f.verb, f.short,
			fmt.Sprintf("Start the flow %q of the node lifecycle, which leads to %s by the states that the kind's blueprint names.", f.verb, f.target),
			examples(f.verb))
		commands = append(commands, cmd)
	}
	return commands
}

func examples(verb string) string {
	return fmt.Sprintf(`  drover %[1]s node/web-1                  ask, and return once it was accepted
  drover %[1]s node/web-1 node/web-2 --wait  wait until it is done, or has failed
  drover %[1]s --all node --wait --timeout 5m
  drover %[1]s node -l rack=a -o json`, verb)
}

func newDo(a *App) *cobra.Command {
	var with []string
	v := &verbCommand{app: a}
	v.args = func() (map[string]string, error) { return parseArgs(with) }
	cmd := &cobra.Command{
		Use:   "do VERB (KIND/NAME... | KIND (--all | -l SELECTOR))",
		Short: "Run any verb of a blueprint's lifecycle",
		Long: "Send any verb: those of a blueprint's own lifecycle, and those that have a command of their own too.\n\n" +
			targetHelp,
		Example: `  drover do deploy service/shop --wait
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
  drover retry --all node                those that have not failed are refused
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
		"Delete resources: each is first driven along its lifecycle's flow of deletion, and is gone when that has\nsucceeded.",
		`  drover delete node/web-1 --wait         wait until it is gone
  drover delete node -l rack=a`)
	cmd.Aliases = []string{"rm"}
	return cmd
}
