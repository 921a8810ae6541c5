package cli

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/authority"
	"github.com/droverproject/drover/services/drover/internal/render"
	"github.com/droverproject/drover/services/drover/internal/secrets"
)

// existingFlags say what becomes of files that are there.
type existingFlags struct{ keep, overwrite bool }

func (f *existingFlags) add(cmd *cobra.Command, keep string) {
	cmd.Flags().BoolVar(&f.keep, "keep", false, keep)
	cmd.Flags().BoolVar(&f.overwrite, "overwrite", false, "make everything anew, whatever is there")
}

func (f *existingFlags) check(out string) error {
	switch {
	case out == "":
		return usage("--out: name a folder")
	case f.keep && f.overwrite:
		return usage("--keep and --overwrite exclude each other")
	}
	return nil
}

func (f *existingFlags) existing() secrets.Existing {
	switch {
	case f.keep:
		return secrets.Keep
	case f.overwrite:
		return secrets.Overwrite
	default:
		return secrets.Refuse
	}
}

func newCerts(a *App) *cobra.Command {
	var o secrets.CertificateOptions
	var existing existingFlags
	cmd := &cobra.Command{
		Use:   "certs --out FOLDER",
		Short: "Make certificates of an authority to throw away, for demonstrations and tests",
		Long: `Make a certificate authority, and certificates by it for the NATS servers, for the gateway and for each role that connects:
FOLDER/nats, FOLDER/gateway, FOLDER/intake and so on, with tls.pem, tls.key and ca.pem in each, readable by you alone. Give
each process its own folder. FOLDER/ca is the authority: no process needs it.

The routes between servers have an authority of their own, so that a client's certificate opens none.

What is there is not touched unless you say so. With --keep, what has a third of its life left stays, and the rest is
issued by the authority that is there: run it now and then. The services take new files for new connections by
themselves; a NATS server does on SIGHUP.

For anything that lasts, take certificates from where yours come from.`,
		Example: `  drover certs --out secrets --hosts nats-1,nats-2,nats-3,gateway,localhost,127.0.0.1
  drover certs --out secrets --keep
  drover certs --out secrets --overwrite --life 24h`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.runner(func(context.Context, []string) error {
			if err := existing.check(o.Out); err != nil {
				return err
			}
			if o.Life <= 0 || o.Life > authority.LifeMax {
				return usage("--life %s: above zero and at most %s", o.Life, authority.LifeMax)
			}
			if slices.Contains(o.Hosts, "") || len(o.Hosts) == 0 {
				return usage("--hosts: a name is empty")
			}
			o.Now, o.Existing = a.Now(), existing.existing()
			written, err := secrets.Certificates(o)
			return a.wrote(written, err)
		}),
	}
	existing.add(cmd, "let what is valid for a third of its life yet stay")
	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "`FOLDER` to write to; made where it is not there")
	f.StringSliceVar(&o.Hosts, "hosts", []string{"localhost", "127.0.0.1", "::1"}, "`NAMES` and addresses by which servers and gateways are called")
	f.DurationVar(&o.Life, "life", authority.LifeDefault, "how long all of it is valid")
	_ = cmd.MarkFlagDirname("out")
	return cmd
}

func newKeys(a *App) *cobra.Command {
	var o secrets.KeyOptions
	var existing existingFlags
	cmd := &cobra.Command{
		Use:   "keys --out FOLDER",
		Short: "Make an NKey for each role, and the NATS servers' authorization",
		Long: `Make an NKey for each role that connects, FOLDER/intake/nkey and so on, readable by you alone, and
FOLDER/nats/authorization.conf, which lets each do what its work needs and nothing else: include it at the top of a
server's configuration. Also FOLDER/gateway/token.key and password, for the machine-agent API. Nothing is printed of a
secret.

What is there is not touched unless you say so. With --keep, keys stay and the authorization is written for this
version: run it before an upgrade, and have the servers read it (SIGHUP).`,
		Example: `  drover keys --out secrets
  drover-intake --nkey secrets/intake/nkey --nats nats://127.0.0.1:4222
  drover setup --nkey secrets/operator/nkey --replicas 3`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.runner(func(context.Context, []string) error {
			if err := existing.check(o.Out); err != nil {
				return err
			}
			o.Existing = existing.existing()
			written, err := secrets.Keys(o)
			return a.wrote(written, err)
		}),
	}
	existing.add(cmd, "let keys that are there stay; write the authorization for this version")
	cmd.Flags().StringVar(&o.Out, "out", "", "`FOLDER` to write to; made where it is not there")
	_ = cmd.MarkFlagDirname("out")
	return cmd
}

// written is a folder that was written to, as `certs` and `keys` tell it.
type written struct {
	Folder string `json:"folder"`
}

func (a *App) wrote(folders []string, err error) error {
	if errors.Is(err, secrets.ErrExists) {
		return fail(ExitConflict, "%w", err).withHint("--keep keeps what is there and makes what is missing; --overwrite makes everything anew")
	}
	if err != nil {
		return err
	}
	items := make([]item, len(folders))
	for i, folder := range folders {
		items[i] = item{name: folder, json: jsonOf(written{folder})}
	}
	return a.printItems(items, false, func() error {
		for _, folder := range folders {
			if err := a.printf("wrote %s\n", render.Text(folder)); err != nil {
				return err
			}
		}
		if len(folders) == 0 {
			a.tell("everything is there, and valid")
		}
		return nil
	})
}
