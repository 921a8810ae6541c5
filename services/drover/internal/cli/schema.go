package cli

import (
	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/schema"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newSchema(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "schema [KIND]",
		Short: "Print the JSON Schema of manifests",
		Long: `Print the JSON Schema of manifests, of any kind or of one, for editors that check and complete YAML. A KIND that is not built in
is one that a blueprint defines, whose specs are its users' own.`,
		Example: `  drover schema > drover.schema.json
  # yaml-language-server: $schema=drover.schema.json     (first line of a manifest)
  drover schema CheckConfiguration -o yaml`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, k := range schema.Kinds() {
				names = append(names, k.Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			of := schema.All()
			if len(args) == 1 {
				of = schema.Of(args[0])
			}
			text := schema.JSON(of)
			if a.output == "yaml" {
				var err error
				if text, err = render.YAML(text); err != nil {
					return err
				}
			}
			_, err := a.Out.Write(text)
			return err
		},
	}
}
