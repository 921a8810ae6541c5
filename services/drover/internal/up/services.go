package up

import (
	"net"

	"github.com/droverproject/drover/services/gateway"
	"github.com/droverproject/drover/services/intake"
	"github.com/droverproject/drover/services/lifecycle"
	"github.com/droverproject/drover/services/notifier"
	"github.com/droverproject/drover/services/orchestrator"
	"github.com/droverproject/drover/services/runner"
)

// services are all that run in one process, in the order in which they start: who decides first, who is asked last.
func services(o Options, listener net.Listener) []service {
	return []service{
		{orchestrator.Service, orchestrator.Run},
		{lifecycle.Service, lifecycle.Run},
		{notifier.Service, notifier.RunOptions{Secrets: o.Secrets}.Run},
		{runner.Service, runner.Run},
		{intake.Service, intake.Run},
		{gateway.Service, gateway.RunOptions{Listener: listener}.Run},
	}
}
