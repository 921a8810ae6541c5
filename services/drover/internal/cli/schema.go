package cli

import (
	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newSchema(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of manifests",
		Long:  "Print the JSON Schema of manifests, for editors that check and complete YAML.",
		Example: `  drover schema > drover.schema.json
  # yaml-language-server: $schema=drover.schema.json     (first line of a manifest)`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			schema := manifest.Schema()
			if a.output == "yaml" {
				text, err := render.YAML(schema)
				if err != nil {
					return err
				}
				_, err = a.Out.Write(text)
				return err
			}
			text, err := render.Indent(schema)
			if err != nil {
				return err
			}
			_, err = a.Out.Write(append(text, '\n'))
			return err
		},
	}
}
