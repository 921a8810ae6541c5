package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/drover/internal/render"
	"github.com/droverproject/drover/services/drover/internal/up"
)

func newBackup(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FOLDER",
		Short: "Copy the system's streams into a folder, while it is at work",
		Long: `Copy what a system is made of into a folder, which must be empty or not there: the log, commands and results that
wait, output, refusals and poison. Buckets and work are derived from the log and left out. The system goes on meanwhile: all that
was accepted before the command began is in the backup.

Each stream has a folder in the form of ` + "`nats stream backup`" + ` (nats-server 2.15). Specs and output are in it as they were
written; the files are their owner's alone. On a server with permissions it takes the operator's.`,
		Example: `  drover backup --context operator /backup/$(date +%F)
  drover restore /backup/2026-11-20`,
		Args: cobra.ExactArgs(1),
		RunE: a.runner(func(ctx context.Context, args []string) error {
			b, err := a.bus(ctx)
			if err != nil {
				return err
			}
			if a.Backup == nil {
				return errors.New("this connection cannot be backed up")
			}
			made, err := a.Backup(ctx, b, args[0], a.copied)
			if err != nil {
				return err
			}
			return a.printItems([]item{{name: args[0], json: jsonOf(made)}}, true, func() error {
				return a.printf("all that was accepted until %s is in %s\n", made.TakenAt.UTC().Format(time.RFC3339), render.Text(args[0]))
			})
		}),
	}
}

func newRestore(a *App) *cobra.Command {
	var replicas int
	var sync string
	cmd := &cobra.Command{
		Use:   "restore FOLDER",
		Short: "Make a system of a backup, on servers that hold none",
		Long: `Make a system of a backup, on servers that hold none. Stop every service and worker before, those of the lost system
too, and start them after it: buckets are derived of the log anew, work that was out when the backup was taken waits for
workers again, and jobs go on. What happened after the backup is not known any more: phases that were carried out since are
carried out again.`,
		Example: `  drover restore --context operator --replicas 3 /backup/2026-11-20
  drover up --data ./new --restore /backup/2026-11-20     one process, on an embedded server`,
		Args: cobra.ExactArgs(1),
		RunE: a.runner(func(ctx context.Context, args []string) error {
			if sync != "" && sync != string(up.SyncAlways) && sync != string(up.SyncDefault) {
				return usage("--sync %s: always or default", sync)
			}
			a.Replicas, a.Sync = replicas, sync
			b, err := a.bus(ctx)
			if err != nil {
				return err
			}
			if a.Restore == nil {
				return errors.New("this connection cannot be restored to")
			}
			made, err := a.Restore(ctx, b, args[0], a.copied)
			if err != nil {
				return err
			}
			return a.printItems([]item{{name: args[0], json: jsonOf(made)}}, true, func() error {
				if made.Unread > 0 {
					a.tell("%d resources are a newer version's: a sweep will find what they had out", made.Unread)
				}
				return a.printf("the system is as it was at %s; %d pieces of work wait for workers\n",
					made.TakenAt.UTC().Format(time.RFC3339), made.HandedOut)
			})
		}),
	}
	cmd.Flags().IntVar(&replicas, "replicas", 0, "copies of each stream: 1, 3 or 5 (default 1)")
	cmd.Flags().StringVar(&sync, "sync", "", "the servers' jetstream.sync_interval: always or default (default: as the backup says)")
	return cmd
}

// copied tells of a stream.
func (a *App) copied(c bus.Copied) {
	a.tell("%s: %d messages, %s", c.Stream, c.Messages, bytesText(uint64(max(c.Bytes, 0))))
}
