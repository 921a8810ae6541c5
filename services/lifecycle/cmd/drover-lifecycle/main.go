// Command drover-lifecycle runs the service that asks for sweeps.
package main

import (
	"os"

	"github.com/droverproject/drover/pkg/service"
	"github.com/droverproject/drover/services/lifecycle"
)

func main() { os.Exit(service.Main(lifecycle.Service, lifecycle.Run)) }
