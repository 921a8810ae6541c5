// Command drover-orchestrator runs the service that decides.
package main

import (
	"os"

	"github.com/droverproject/drover/pkg/service"
	"github.com/droverproject/drover/services/orchestrator"
)

func main() { os.Exit(service.Main(orchestrator.Service, orchestrator.Run)) }
