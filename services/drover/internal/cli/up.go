package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/drover/internal/render"
	"github.com/droverproject/drover/services/drover/internal/up"
)

// UpOptions is what `up` runs with.
type UpOptions = up.Options

func newUp(a *App) *cobra.Command {
	o := up.Options{}
	var sync, logLevel, logFormat string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run all of Drover in this process, on an embedded NATS server",
		Long: `Run intake, orchestrator, runner, lifecycle, notifier and gateway in this process, on an embedded NATS server with
JetStream that other clients can reach too. Everything is in the data folder, and survives a restart.

One process runs on a data folder at a time. Ctrl-C stops gracefully; whatever was under way goes on at the next start.`,
		Example: `  drover up
  drover up --data /var/lib/drover
  drover up --ephemeral --nats 127.0.0.1:0 --http 127.0.0.1:0 -o json
  nats --server nats://127.0.0.1:4222 sub 'drover.evt.>' --translate 'drover decode'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.endless(cmd.Flags(), "--timeout is not for `up`, which runs until it is stopped"); err != nil {
				return err
			}
			log, err := host.NewLogger(a.Err, logLevel, logFormat)
			if err != nil {
				return usage("%w", err)
			}
			o.Sync = up.Sync(sync)
			if o.Ephemeral && cmd.Flags().Changed("data") {
				return usage("--data and --ephemeral exclude each other")
			}
			return a.up(cmd.Context(), o, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Data, "data", "./"+up.DataDefault, "data `FOLDER`; made where it is not there")
	f.BoolVar(&o.Ephemeral, "ephemeral", false, "keep everything in a temporary folder, and remove it at the end")
	f.StringVar(&o.NATS, "nats", up.NATSDefault, "`ADDRESS` for NATS clients; port 0 is a free one")
	f.StringVar(&o.HTTP, "http", up.HTTPDefault, "`ADDRESS` of the HTTP gateway; port 0 is a free one")
	f.StringVar(&o.Metrics, "metrics", "", "`ADDRESS` for /livez, /readyz and /metrics of all services (default none)")
	f.StringVar(&sync, "sync", string(up.SyncAlways), "when a write is acknowledged: always (it reached the disk) or default (at once, synced every two minutes)")
	f.StringVar(&o.Secrets, "secrets", "", "`FOLDER` with a folder for each project, of files with the secrets that its listeners may name (default none)")
	f.IntVar(&o.Partitions, "partitions", 0, "partitions of a new system (default 64); an existing one keeps its number")
	f.StringVar(&o.Restore, "restore", "", "`FOLDER` of a backup (drover backup) to make the system of; there must be none in the data folder yet")
	f.StringVar(&logLevel, "log-level", "warn", "debug|info|warn|error")
	f.StringVar(&logFormat, "log-format", host.FormatAuto, "json|console|auto (console on a terminal)")
	_ = cmd.RegisterFlagCompletionFunc("sync", cobra.FixedCompletions([]string{"always", "default"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagDirname("data")
	_ = cmd.MarkFlagDirname("secrets")
	_ = cmd.MarkFlagDirname("restore")
	return cmd
}

func (a *App) up(ctx context.Context, o up.Options, log *zap.Logger) error {
	o.Log = log
	o.Ready = a.printReady
	err := a.Up(ctx, o)
	switch {
	case errors.Is(err, up.ErrOptions):
		return usage("%w", err)
	case errors.Is(err, up.ErrInUse):
		return fail(ExitConflict, "%w", err).withHint("stop it, or take another folder by --data, or --ephemeral")
	case errors.Is(err, up.ErrPort):
		return fail(ExitError, "%w", err).withHint("something else listens there, perhaps another `drover up`; --nats and --http take other addresses, and port 0 is a free one")
	case err != nil:
		return fmt.Errorf("up: %w", err)
	}
	a.tell("stopped")
	return nil
}

// printReady prints the addresses; as JSON it is one line, for those who started the process.
func (a *App) printReady(at up.Addresses) error {
	if a.output == "json" {
		body, err := render.Marshal(at)
		if err != nil {
			return err
		}
		return a.printf("%s\n", body)
	}
	return a.printItems([]item{{name: at.NATS, json: jsonOf(at)}}, true, func() error {
		data := at.Data
		if data == "" {
			data = "ephemeral"
		}
		t := render.NewTable()
		if err := a.printf("%s\n", a.paint.Good("ready")); err != nil {
			return err
		}
		t.Row("NATS", render.Text(at.NATS))
		t.Row("HTTP", render.Text(at.HTTP))
		if at.Metrics != "" {
			t.Row("metrics", render.Text(at.Metrics))
		}
		t.Row("data", render.Text(data))
		t.Row("sync", string(at.Sync))
		if err := t.Write(a.Out, "  "); err != nil {
			return err
		}
		a.tell("Ctrl-C stops it; `drover apply -f FILE` is next")
		return nil
	})
}
