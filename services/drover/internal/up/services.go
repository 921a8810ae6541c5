package up

import (
	"net"

	"github.com/droverproject/drover/services/intake"
	"github.com/droverproject/drover/services/lifecycle"
	"github.com/droverproject/drover/services/notifier"
	"github.com/droverproject/drover/services/orchestrator"
)

// services are all that run in one process, in the order in which they start.
func services(o Options, _ net.Listener) []service {
	return []service{
		{orchestrator.Service, orchestrator.Run},
		{lifecycle.Service, lifecycle.Run},
		{notifier.Service, notifier.RunOptions{Secrets: o.Secrets}.Run},
		{intake.Service, intake.Run},
	}
}
