// Package cli is the command line: one file a command, and what they share.
//
// # Rules
//
// Data goes to stdout, everything else to stderr. A flag is stronger than the environment, which is stronger than the
// configuration file. Exit codes are those of exit.go. What is shown is read from the buckets, which trail the log by
// milliseconds; what is asked goes to intake as a request that carries a request id, so that asking twice is asking
// once. The CLI speaks to the bus through the interface Bus and holds no state of its own.
package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Groups of the help.
const (
	groupRun   = "run"
	groupDrive = "drive"
	groupFlows = "flows"
	groupSee   = "see"
	groupTools = "tools"
)

func newRoot(a *App) *cobra.Command {
	root := &cobra.Command{
		Use:   "drover",
		Short: "Drive fleets of resources from the state they are in to the state that was asked for",
		Long: `Drover drives fleets of resources from the state they are in to the state that was asked for.

Every command is a message on NATS; every transition is a durable event. What is done here can be done with any NATS
client, and what others do shows here.`,
		Example: `  drover up &                            run all of Drover in one process, on an embedded NATS server
  drover apply -f fleet.yaml             say what there is
  drover start node/web-1 --wait         drive it to Started
  drover get node                        see where everything stands
  drover describe node/web-1             see why it is where it is
  drover terminate --all node --wait     and back`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) },
		Args:              cobra.NoArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.AddGroup(
		&cobra.Group{ID: groupDrive, Title: "Drive:"},
		&cobra.Group{ID: groupFlows, Title: "Flows of the lifecycles:"},
		&cobra.Group{ID: groupSee, Title: "See:"},
		&cobra.Group{ID: groupRun, Title: "Run:"},
		&cobra.Group{ID: groupTools, Title: "Tools:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupDrive, newApply(a))
	add(groupFlows, newFlows(a)...)
	add(groupDrive, newDo(a), newApprove(a), newRetry(a), newCancel(a), newInterrupt(a), newDelete(a), newWait(a))
	add(groupSee, newGet(a), newDescribe(a), newPhases(a), newGraph(a), newEvents(a), newHistory(a), newJobs(a), newLogs(a))
	add(groupRun, newUp(a), newSetup(a), newBackup(a), newRestore(a), newPlugin(a), newCerts(a), newKeys(a))
	add(groupTools, newBench(a), newDoctor(a), newDecode(a), newSchema(a), newVersion(a))
	root.SetCompletionCommandGroupID(groupTools)
	root.SetHelpCommandGroupID(groupTools)
	addSettings(root.PersistentFlags())
	a.completeSettings(root)
	completeNoFiles(root)
	return root
}

// completeNoFiles keeps TAB from offering files where no command takes one as an argument.
func completeNoFiles(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, c := range cmd.Commands() {
		completeNoFiles(c)
	}
}

// printf writes data to stdout. The arguments must be safe texts.
func (a *App) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.Out, format, args...)
	return err
}
