// Command deployer is the deployer of the trees' items, as a stranger would write one with the SDK: it carries each item
// out at once, keeps a ledger of its own, and does as signs say. Signs are empty files in a folder, so that they outlive
// whoever is killed:
//
//	hold-<phase>-<item>  the item is pending while the sign is there
//	fail-<phase>-<item>  it fails
//
//	deployer --nats URL --project NAME --ledger FILE --signs FOLDER
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/droverproject/drover/deploy/e2e/internal/journal"
	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/plugin"
	"github.com/droverproject/drover/pkg/service"
)

// held is how long an item that is held sleeps before it is looked at again.
const held = 100 * time.Millisecond

type deployer struct{ project, ledger, signs string }

func main() {
	var d deployer
	// To the server it is a runner, as every plugin's worker is (pkg/bus/contract.go).
	os.Exit(service.Main(string(bus.Runner), d.run, func(f *flag.FlagSet) {
		f.StringVar(&d.project, "project", "default", "`project` of the items")
		f.StringVar(&d.ledger, "ledger", "", "`file` to which a line is appended when an item is begun and when it is done")
		f.StringVar(&d.signs, "signs", "", "`folder` of the signs")
	}))
}

func (d *deployer) run(ctx context.Context, _ *host.Host, b bus.Bus) error {
	phases := []string{"deploy", "uninstall"}
	errs := make([]error, len(phases))
	var serving sync.WaitGroup
	for i, phase := range phases {
		serving.Go(func() {
			of := bus.Phase{Project: d.project, Kind: "DeployItem", Phase: phase}
			errs[i] = plugin.Serve(ctx, b, of, plugin.Options{BindEvery: 100 * time.Millisecond}, func(_ context.Context, batch *plugin.Batch) error {
				for _, r := range batch.Resources() {
					if err := d.carryOut(batch, r); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	serving.Wait()
	return errors.Join(errs...)
}

func (d *deployer) carryOut(batch *plugin.Batch, r *plugin.Resource) error {
	f := r.Fence()
	name := r.Key().Name
	item := name[strings.LastIndexByte(name, '/')+1:]
	line := journal.Line{Begin: true, Item: item, Ran: journal.Ran{UID: f.UID, Job: f.JobID, Phase: f.Phase, Attempt: f.Attempt}}
	if !r.Polled() {
		line.At = time.Now()
		if err := journal.Append(d.ledger, line); err != nil {
			return err
		}
	}
	hold, err := d.sign("hold", f.Phase, item)
	if err != nil {
		return err
	}
	if hold {
		batch.Pending(r, held, "held")
		return nil
	}
	fail, err := d.sign("fail", f.Phase, item)
	if err != nil {
		return err
	}
	if fail {
		batch.Failed(r, "the chart of "+item+" is broken")
		return nil
	}
	line.At, line.Begin = time.Now(), false
	if err := journal.Append(d.ledger, line); err != nil {
		return err
	}
	batch.Completed(r)
	return nil
}

func (d *deployer) sign(what, phase, item string) (bool, error) {
	_, err := os.Stat(filepath.Join(d.signs, what+"-"+phase+"-"+item))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("sign: %w", err)
}
