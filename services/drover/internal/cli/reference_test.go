package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// reference is docs/cli.md, which TestReference renders from the commands.
var reference = filepath.Join("..", "..", "..", "..", "docs", "cli.md")

// walk calls each with a command and all below it, in the order of the help; what cobra adds by itself is left out.
func walk(cmd *cobra.Command, each func(*cobra.Command)) {
	each(cmd)
	for _, c := range cmd.Commands() {
		if c.Name() != "help" && c.Name() != "completion" && !c.Hidden {
			walk(c, each)
		}
	}
}

// TestEveryCommandIsExplained: each command says what it does and shows how, and each of its flags says what it is for.
func TestEveryCommandIsExplained(t *testing.T) {
	t.Parallel()
	walk(newRoot(app(nil)), func(cmd *cobra.Command) {
		name := cmd.CommandPath()
		require.NotEmpty(t, cmd.Short, name)
		require.True(t, unicode.IsUpper([]rune(cmd.Short)[0]), "%s: %s", name, cmd.Short)
		require.False(t, strings.HasSuffix(cmd.Short, "."), "%s: %s", name, cmd.Short)
		require.NotEmpty(t, cmd.Example, "%s shows no example", name)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { require.NotEmpty(t, f.Usage, "%s --%s", name, f.Name) })
		if cmd.Runnable() && cmd.HasParent() {
			require.NotNil(t, cmd.ValidArgsFunction, "%s: TAB would complete files", name)
		}
		for line := range strings.Lines(cmd.Example) {
			require.LessOrEqual(t, len([]rune(line)), 130, "%s: %s", name, line)
		}
	})
}

// TestExamplesParse: what --help shows is what the commands take.
func TestExamplesParse(t *testing.T) {
	t.Parallel()
	parsed := 0
	walk(newRoot(app(nil)), func(cmd *cobra.Command) {
		own := 0
		for line := range strings.Lines(cmd.Example) {
			for _, args := range commandLines(line) {
				root := newRoot(app(nil)) // flags remember what they were told
				found, rest, err := root.Find(args)
				require.NoError(t, err, line)
				require.NoError(t, found.ParseFlags(rest), "%s: %s", cmd.CommandPath(), line)
				require.NoError(t, found.ValidateArgs(found.Flags().Args()), "%s: %s", cmd.CommandPath(), line)
				parsed++
				if strings.HasPrefix(found.CommandPath()+" ", cmd.CommandPath()+" ") {
					own++
				}
			}
		}
		require.True(t, own > 0 || strings.Contains(cmd.Example, "'"+cmd.CommandPath()), "%s: no example is of the command itself: %s", cmd.CommandPath(), cmd.Example)
	})
	require.Greater(t, parsed, 80)
}

var substitution = regexp.MustCompile(`\$\([^)]*\)`)

// commandLines are the words behind "drover" of each command in a line of shell. A remark stands behind two spaces.
func commandLines(line string) [][]string {
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "#") {
		return nil
	}
	line, _, _ = strings.Cut(line, "  ")
	var all [][]string
	line = substitution.ReplaceAllStringFunc(line, func(inner string) string {
		all = append(all, commandLines(inner[len("$("):len(inner)-1])...)
		return "ID"
	})
	var words []string
	var word strings.Builder
	quote, inside := rune(0), false
	end := func() {
		if inside {
			words = append(words, word.String())
		}
		word.Reset()
		inside = false
	}
	flush := func() {
		end()
		if len(words) > 1 && words[0] == "drover" {
			all = append(all, words[1:])
		}
		words = nil
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inside = r, true
		case strings.ContainsRune("|>&;", r):
			flush()
		case r == ' ':
			end()
		default:
			word.WriteRune(r)
			inside = true
		}
	}
	flush()
	return all
}

// TestReference holds docs/cli.md to the commands; `make generate-docs` writes it anew.
func TestReference(t *testing.T) {
	t.Parallel()
	got := renderReference()
	if *update {
		require.NoError(t, os.WriteFile(reference, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(reference)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "docs/cli.md is stale: run `make generate-docs`")
}

func renderReference() string {
	var b strings.Builder
	root := newRoot(app(nil))
	b.WriteString("# Command line\n\n<!-- Generated from services/drover/internal/cli by `make generate-docs`; do not edit. -->\n\n")
	fmt.Fprintf(&b, "%s\n\nData goes to stdout, everything else to stderr. A flag is stronger than the environment, which is stronger than the\n"+
		"configuration file (`drover/config.yaml` in the user's configuration folder, with the names of the flags of every command).\n"+
		"`drover completion bash|zsh|fish` prints what completes commands, kinds, names, phases and job ids.\n\n", root.Long)
	b.WriteString("## Exit codes\n\n| code | means |\n|---|---|\n")
	for code, text := range []string{
		ExitOK:          "done",
		ExitError:       "anything that no other code names; invalid manifests and arguments of a verb",
		ExitUsage:       "the command line is wrong",
		ExitNotFound:    "there is no such thing",
		ExitConflict:    "its state does not allow it, or another body is under this request id",
		ExitFailed:      "the job that was waited for failed",
		ExitCanceled:    "the job that was waited for was canceled",
		ExitTimeout:     "the time was up",
		ExitUnreachable: "no server, no service, overloaded, or not permitted",
	} {
		fmt.Fprintf(&b, "| %d | %s |\n", code, text)
	}
	b.WriteString("\n## Flags of every command\n\n")
	writeFlags(&b, root.PersistentFlags())
	for _, group := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(group.Title, ":"))
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID && cmd.Name() != "help" && cmd.Name() != "completion" {
				walk(cmd, func(c *cobra.Command) { writeCommand(&b, c) })
			}
		}
	}
	return b.String()
}

func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n### %s\n\n    %s\n", cmd.CommandPath(), cmd.UseLine())
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(b, "\nAlso `%s`.\n", strings.Join(cmd.Aliases, "`, `"))
	}
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	fmt.Fprintf(b, "\n%s\n", escapeMarkdown(long))
	if cmd.LocalNonPersistentFlags().HasAvailableFlags() {
		b.WriteByte('\n')
		writeFlags(b, cmd.LocalNonPersistentFlags())
	}
	b.WriteByte('\n')
	for line := range strings.Lines(cmd.Example) {
		fmt.Fprintf(b, "  %s\n", strings.TrimSuffix(line, "\n"))
	}
}

// escapeMarkdown keeps < as it is read in a terminal, and tables that stand two spaces in as they are laid out.
func escapeMarkdown(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") {
			lines[i] = "  " + line
			continue
		}
		lines[i] = strings.ReplaceAll(line, "<", `\<`)
	}
	return strings.Join(lines, "\n")
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | |\n|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name, text := pflag.UnquoteUsage(f)
		form := "`--" + f.Name
		if f.Shorthand != "" {
			form = "`-" + f.Shorthand + "`, " + form
		}
		if name != "" {
			form += " " + name
		}
		if !slices.Contains([]string{"", "false", "0", "[]", "0s"}, f.DefValue) && !strings.Contains(text, "(default") {
			text += " (default " + f.DefValue + ")"
		}
		text = strings.NewReplacer("|", `\|`, "<", `\<`).Replace(text)
		fmt.Fprintf(b, "| %s` | %s |\n", strings.ReplaceAll(form, "|", `\|`), text)
	})
}
