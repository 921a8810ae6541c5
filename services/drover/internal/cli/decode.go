package cli

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newDecode(a *App) *cobra.Command {
	var typeName, subject string
	var lines bool
	cmd := &cobra.Command{
		Use:   "decode",
		Short: "Turn a message's body into JSON, from stdin to stdout",
		Long: `Read the body of one of Drover's messages from stdin and write it as JSON. What it is follows from --type, or from the
subject that it was published under; without either it is taken for an event. A body that is JSON already is passed on.

With --lines each line of stdin is a body in base64, and each line of stdout its JSON.`,
		Example: `  nats sub 'drover.evt.>' --translate 'drover decode'
  nats sub 'drover.>' --translate 'drover decode --subject {{Subject}}'
  nats kv get drover_resources default.node.web-1 --raw | drover decode | jq .state
  nats stream view OUTPUT --translate 'drover decode --type output'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			if typeName != "" && subject != "" {
				return usage("--type and --subject exclude each other")
			}
			as := wire.TypeEvent
			switch {
			case typeName != "":
				as = typeName
			case subject != "":
				as = subject
			}
			if lines {
				return a.decodeLines(as)
			}
			body, err := readAllBounded(a.In, "stdin", bus.BodyBytesMax)
			if err != nil {
				return err
			}
			return a.decode(as, body)
		},
	}
	cmd.Flags().StringVar(&typeName, "type", "", strings.Join(wire.Types(), "|")+" (default event)")
	cmd.Flags().StringVar(&subject, "subject", "", "subject that it was published under, from which its type follows")
	cmd.Flags().BoolVar(&lines, "lines", false, "each line of stdin is a body in base64")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(wire.Types(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// decode writes one body. For tables there is no better form of it than JSON, on one line where nobody looks on.
func (a *App) decode(as string, body []byte) error {
	text, err := wire.BodyJSON(as, body)
	if err != nil {
		return fmt.Errorf("decode as %s: %w", as, err)
	}
	switch {
	case a.output == "yaml":
		text, err = render.YAML(text)
	case a.output == "json" || a.human() && a.OutTerminal:
		text, err = render.Indent(text)
	default:
		text, err = render.Compact(text)
	}
	if err != nil {
		return err
	}
	if a.output != "yaml" {
		text = append(text, '\n')
	}
	_, err = a.Out.Write(text)
	return err
}

func (a *App) decodeLines(as string) error {
	in := bufio.NewScanner(a.In)
	in.Buffer(nil, base64.StdEncoding.EncodedLen(bus.BodyBytesMax)+2)
	number := 0
	for in.Scan() {
		number++
		line := strings.TrimSpace(in.Text())
		if line == "" {
			continue
		}
		body, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		text, err := wire.BodyJSON(as, body)
		if err == nil {
			text, err = render.Compact(text)
		}
		if err != nil {
			return fmt.Errorf("line %d: decode as %s: %w", number, as, err)
		}
		if _, err := a.Out.Write(append(text, '\n')); err != nil { // at once: there may be no more for hours
			return err
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("line %d: %w", number+1, err)
	}
	return nil
}
