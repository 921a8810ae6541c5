package cli

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/selector"
)

// completeTimeout bounds what a person waits for after TAB.
const completeTimeout = 2 * time.Second

func (a *App) completeSettings(root *cobra.Command) {
	fixed := func(flag string, values ...string) {
		_ = root.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	fixed("output", outputs...)
	fixed("color", "auto", "always", "never")
	for _, free := range []string{"server", "context", "project", "timeout", "inbox-prefix"} {
		fixed(free)
	}
}

// ask reads from the server for a completion; nothing is completed where that fails.
func (a *App) ask(cmd *cobra.Command, read func(ctx context.Context, b Bus) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	if err := a.prepare(cmd); err != nil {
		return nil, nothing
	}
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completeTimeout)
	defer cancel()
	b, err := a.bus(ctx)
	if err != nil {
		return nil, nothing
	}
	words, err := read(ctx, b)
	if err != nil {
		return nil, nothing
	}
	return words, nothing
}

// completeTargets completes KIND/NAME.
func (a *App) completeTargets(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	kind, _, slash := strings.Cut(toComplete, "/")
	prefix := kind + "/"
	if !slash && len(args) > 0 && !strings.Contains(args[0], "/") {
		kind, prefix, slash = args[0], "", true // KIND NAME...
	}
	if !slash {
		words, directive := a.completeKinds(cmd, "/", false)
		return words, directive | cobra.ShellCompDirectiveNoSpace
	}
	return a.ask(cmd, func(ctx context.Context, b Bus) ([]string, error) {
		entries, err := listResources(ctx, b, a.project, kind, selector.Selector{})
		words := make([]string, 0, len(entries))
		for i := range entries {
			words = append(words, prefix+entries[i].State.Name)
		}
		return plainWords(words), err
	})
}

// completeGet completes kinds and KIND/NAME.
func (a *App) completeGet(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 && !strings.Contains(toComplete, "/") {
		return a.completeKinds(cmd, "", true)
	}
	return a.completeTargets(cmd, args, toComplete)
}

func (a *App) completeKinds(cmd *cobra.Command, suffix string, lists bool) ([]string, cobra.ShellCompDirective) {
	return a.ask(cmd, func(ctx context.Context, b Bus) ([]string, error) {
		prints, err := listBlueprints(ctx, b, a.project)
		var words []string
		for i := range prints {
			words = append(words, prints[i].kind()+suffix)
		}
		if lists {
			words = append(words, "blueprints", "jobs", "machines", "checks", "instances")
		}
		return plainWords(words), err
	})
}

// completePhases completes KIND/PHASE behind a prefix, and with kinds also KIND.
func (a *App) completePhases(cmd *cobra.Command, prefix string, kinds bool) ([]string, cobra.ShellCompDirective) {
	return a.ask(cmd, func(ctx context.Context, b Bus) ([]string, error) {
		prints, err := listBlueprints(ctx, b, a.project)
		var words []string
		for i := range prints {
			if kinds {
				words = append(words, prefix+prints[i].kind())
			}
			for _, p := range phasesOf(&prints[i], "") {
				words = append(words, prefix+p.String())
			}
		}
		return plainWords(words), err
	})
}

// completeDescribe completes KIND/NAME, blueprint/KIND and phase/KIND/PHASE.
func (a *App) completeDescribe(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	switch kind, _, slash := strings.Cut(toComplete, "/"); {
	case slash && kind == kindPhase:
		return a.completePhases(cmd, kindPhase+"/", false)
	case slash && isBlueprint(kind):
		return a.ask(cmd, func(ctx context.Context, b Bus) ([]string, error) {
			prints, err := listBlueprints(ctx, b, a.project)
			words := make([]string, len(prints))
			for i := range prints {
				words[i] = kind + "/" + prints[i].kind()
			}
			return plainWords(words), err
		})
	case !slash && len(args) == 0:
		words, directive := a.completeTargets(cmd, args, toComplete)
		return append(words, "blueprint/", kindPhase+"/"), directive
	}
	return a.completeTargets(cmd, args, toComplete)
}

// completeVerbs completes the verbs of all blueprints.
func (a *App) completeVerbs(cmd *cobra.Command, _ string) ([]string, cobra.ShellCompDirective) {
	return a.ask(cmd, func(ctx context.Context, b Bus) ([]string, error) {
		prints, err := listBlueprints(ctx, b, a.project)
		var words []string
		for i := range prints {
			words = append(words, prints[i].verbs()...)
		}
		slices.Sort(words)
		return plainWords(slices.Compact(words)), err
	})
}

// completeGated completes the phases that wait for approval, of the resources that the command line names, or of all.
func (a *App) completeGated(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.ask(cmd, func(ctx context.Context, b Bus) ([]string, error) {
		kind := ""
		var named []target
		if len(args) > 0 {
			kind, _, _ = strings.Cut(args[0], "/")
			var err error
			if named, err = namedTargets(args); err != nil {
				return nil, err
			}
		}
		entries, err := listResources(ctx, b, a.project, kind, selector.Selector{})
		var words []string
		for i := range entries {
			if named != nil && !slices.Contains(named, entries[i].target()) {
				continue
			}
			for k := range entries[i].State.Phases {
				if run := &entries[i].State.Phases[k]; run.Status == resource.Gated {
					words = append(words, run.Name)
				}
			}
		}
		slices.Sort(words)
		return plainWords(slices.Compact(words)), err
	})
}

// completeJobs completes job ids.
func (a *App) completeJobs(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.ask(cmd, func(ctx context.Context, b Bus) ([]string, error) {
		jobs, err := listJobEntries(ctx, b, a.project, jobFilter{newest: 100})
		words := make([]string, 0, len(jobs))
		for i := range jobs {
			r := &jobs[i].Record
			words = append(words, r.ID+"\t"+r.Verb+" "+r.Kind+"/"+r.Name+" "+r.State.String())
		}
		return plainWords(words), err
	})
}

// plainWords leaves out what a shell or a terminal could take for more than a word.
func plainWords(words []string) []string {
	plain := words[:0]
	for _, w := range words {
		if !strings.ContainsFunc(w, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }) {
			plain = append(plain, w)
		}
	}
	return plain
}
