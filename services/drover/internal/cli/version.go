package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/host"
)

// versionInfo is what `version` says.
type versionInfo struct {
	Version       string `json:"version"`
	ReaderVersion uint32 `json:"readerVersion"` // states up to this one can be decided on
	Go            string `json:"go"`
	Platform      string `json:"platform"`
}

func newVersion(a *App) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: `  drover version -o json`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{
				Version: host.Version(), ReaderVersion: drive.Reader, Go: runtime.Version(),
				Platform: runtime.GOOS + "/" + runtime.GOARCH,
			}
			return a.printItems([]item{{name: v.Version, json: jsonOf(v)}}, true, func() error {
				return a.printf("drover %s (%s, %s)\n", v.Version, v.Go, v.Platform)
			})
		},
	}
}
