// Command drover-intake runs the service that takes commands.
package main

import (
	"os"

	"github.com/droverproject/drover/pkg/service"
	"github.com/droverproject/drover/services/intake"
)

func main() { os.Exit(service.Main(intake.Service, intake.Run)) }
